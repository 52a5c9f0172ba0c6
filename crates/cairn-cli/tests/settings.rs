//! Settings of `cairn run` from the command line, the environment and `cairn.toml`: valid values
//! and precedence.

mod common;

use common::{Ran, Sandbox};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Runs a program in a store that drains, with options, variables and a configuration file.
fn run(sandbox: &Sandbox, options: &[&str], variables: &[(&str, &str)], file: &str) -> Ran {
    fs::write(sandbox.work().join("cairn.toml"), file).expect("writes");
    let out = sandbox.out().display().to_string();
    let words = [&["run", "--persist", &out], options, &["--", "true"]].concat();
    let mut command = sandbox.command(&words);
    // The variables of all tests would take precedence over the file.
    for (key, name) in [("tier", "CAIRN_RUN_TIER"), ("root", "CAIRN_STORE_ROOT")] {
        if file.contains(key) {
            command.env_remove(name);
        }
    }
    command.envs(variables.iter().copied());
    Ran::of(command.output().expect("cairn starts"), words.join(" "))
}

/// Mechanism: a variable was parsed as a Rust literal, and "no" was treated as unset.
#[test]
fn switch_is_turned_on_or_off_by_usual_words_and_what_is_said_nearer_counts() {
    let sandbox = Sandbox::new();
    let discard = |options: &[&str], variable: Option<&str>, file: &str| {
        let variables: Vec<_> =
            variable.into_iter().map(|value| ("CAIRN_RUN_DISCARD", value)).collect();
        run(&sandbox, options, &variables, file)
    };
    // `--discard` is refused with a persist directory.
    for yes in ["1", "yes", "true", "Y", "on"] {
        discard(&[], Some(yes), "").refused_with("--discard contradicts");
    }
    for no in ["0", "no", "false", "off"] {
        discard(&[], Some(no), "[run]\ndiscard = true\n").succeeds();
    }
    discard(&["--discard=no"], Some("yes"), "").succeeds();
    discard(&["--discard"], Some("no"), "").refused_with("--discard contradicts");
    discard(&[], None, "[run]\ndiscard = true\n").refused_with("--discard contradicts");
    discard(&[], Some("maybe"), "").refused_with("maybe");
}

#[test]
fn value_that_is_wrong_is_said_to_come_from_where_it_does() {
    let sandbox = Sandbox::new();
    let line = |options: &[&str]| run(&sandbox, options, &[], "");
    let variable = |name: &str, value: &str| run(&sandbox, &[], &[(name, value)], "");
    let file = |text: &str| run(&sandbox, &[], &[], text);

    line(&["--drain-rate", "x"]).refused_with("cairn: --drain-rate is \"x\", but must be");
    line(&["--quota", "8GX"]).refused_with("cairn: --quota: \"8GX\" is not a size");
    line(&["--space-wait=-1"]).refused_with("cairn: --space-wait: \"-1\"");
    line(&["--drain", "x"]).refused_with("cairn: invalid value 'x' for '--drain <HOW>'");

    for (name, value, part) in [
        ("CAIRN_RUN_JOB", "a/b", "\"a/b\" is not a valid job name"),
        ("CAIRN_RUN_MOUNT", "x", "the mount prefix \"x\" is relative"),
        ("CAIRN_RUN_TIER", "ram:8GX", "\"8GX\" is not a size"),
        ("CAIRN_RUN_TIER", "ram:9999T", "a RAM tier of 9.76 PiB is larger"),
        ("CAIRN_RUN_META_TIER", "x", "\"x\" is not a tier"),
        ("CAIRN_RUN_MAP", "x", "--map x: write FROM=TO"),
        ("CAIRN_RUN_NUMA", "x", "--numa is \"x\", but must be"),
        ("CAIRN_RUN_STAGE", "x", "invalid value 'x' for '--stage"),
        ("CAIRN_RUN_DISCARD", "x", "invalid value 'x' for '--discard"),
        ("CAIRN_RUN_DISCARD", "1", "--discard contradicts"),
        ("CAIRN_DRAIN_END", "x", "invalid value 'x' for '--drain <HOW>'"),
        ("CAIRN_DRAIN_UNTIL", "x", "--until is \"x\", but must be"),
        ("CAIRN_SPACE_RETAIN", "x", "--retain is \"x\", but must be"),
        ("CAIRN_SPACE_RETAIN", "age=x", "\"x\" is not a duration"),
        ("CAIRN_CHECKPOINT_SETTLE", "x", "--settle: "),
        ("CAIRN_FILES_TEMPORARY", "[", "\"[\" is not a pattern"),
        ("CAIRN_ARCHIVE_URL", "x", "--archive: "),
        ("CAIRN_STORE_ROOT", "/nowhere", "--store-root: /nowhere is not a directory"),
    ] {
        variable(name, value).refused_with(&format!("cairn: {name}: {part}"));
    }
    run(&sandbox, &["--mount", "y"], &[("CAIRN_RUN_MOUNT", "x")], "")
        .refused_with("cairn: the mount prefix \"y\"");
    run(&sandbox, &["--drain=y"], &[("CAIRN_DRAIN_END", "x")], "")
        .refused_with("cairn: invalid value 'y'");

    for (text, place) in [
        ("\n[run]\njob = \"a/b\"\n", "line 3: run.job: \"a/b\" is not a valid job name"),
        ("[run]\nscope = \"x\"\n", "line 2: run.scope: --scope is \"x\""),
        ("[run]\ntier = [\"ram:1G\",\n\"ram:x\"]\n", "line 2: run.tier: \"x\" is not a size"),
        ("[run]\ndiscard = true\n", "line 2: run.discard: --discard contradicts"),
        ("[drain]\n\nend = \"x\"\n", "line 3: drain.end: --drain is \"x\""),
        ("[space]\nquota = \"x\"\n", "line 2: space.quota: \"x\" is not a size"),
        ("[space.retain]\nage = \"x\"\n", "line 1: space.retain: \"x\" is not a duration"),
        ("[checkpoint.levels]\npfs = 0\n", "line 2: checkpoint.levels.pfs: --pfs-every: "),
        ("[checkpoint.levels]\nnode = 2\n", "line 2: checkpoint.levels.node: "),
        ("[store]\nroot = \"/nowhere\"\n", "line 2: store.root: --store-root: /nowhere"),
        ("[run]\njob = 3\n", "line 2: "),
    ] {
        file(text).refused_with(&format!("cairn: ./cairn.toml: {place}"));
    }
}

#[test]
fn variable_that_no_setting_has_is_named_with_the_one_that_was_meant() {
    let sandbox = Sandbox::new();
    let wrong = ("CAIRN_DRAIN_RTE", "1G");
    let note =
        "cairn: CAIRN_DRAIN_RTE is not a setting and is ignored; did you mean CAIRN_DRAIN_RATE?";
    let ran = run(&sandbox, &[], &[wrong], "").succeeds();
    assert_eq!(ran.stderr.matches(note).count(), 1, "{}", ran.stderr);
    let ran = run(&sandbox, &["--json"], &[wrong], "").succeeds();
    assert!(!ran.stderr.contains("CAIRN_DRAIN_RTE"), "{}", ran.stderr);
    // Inside a run, the environment has the variables that `cairn run` sets for programs.
    let script = "\"$CAIRN\" run -- true; \"$CAIRN\" ls / >/dev/null";
    let words = ["run", "--", "bash", "-c", script];
    let mut command = sandbox.command(&words);
    command.env("CAIRN", common::CAIRN).env("CAIRN_RUN_PROBE", "never").env("CAIRN_SITE", "x");
    let ran = Ran::of(command.output().expect("cairn starts"), words.join(" "));
    assert!(!ran.succeeds().stderr.contains("is not a setting"));
}

/// Mechanism: `cairn.toml` in the current directory was obeyed, whoever owned it.
///
/// Consequence: in a directory where others write, another user's file decided where data went and
/// what was overwritten.
///
/// Fix: only a file that nobody else can have put there is obeyed.
#[test]
fn file_that_may_be_somebody_elses_is_not_obeyed() {
    let sandbox = Sandbox::new();
    let work = sandbox.work();
    let file = work.join("cairn.toml");
    let evil = work.join("evil").display().to_string();
    fs::create_dir(&evil).expect("makes");
    fs::write(&file, format!("[run]\npersist = \"{evil}\"\n")).expect("writes");
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changes");
    };
    let run = |options: &[&str]| {
        let arguments = [&["run", "--job", "job"], options, &["--", "true"]].concat();
        sandbox.cairn(&arguments)
    };
    let refused = |why: &str| {
        run(&[]).ends_with(2).says("cairn.toml").says(why).says("--settings none");
    };
    run(&[]).succeeds().says(&format!("settings of {}", file.display()));
    mode(&file, 0o646);
    refused("others may write to it");
    run(&["--settings", "none"]).succeeds();
    mode(&file, 0o644);
    mode(&work, 0o757);
    refused("others may write to its directory");
    mode(&work, 0o1777);
    run(&[]).succeeds();
    mode(&work, 0o755);
    if std::os::unix::fs::chown(&file, Some(4711), None).is_err() {
        println!("left out: only root makes files of others");
        return;
    }
    refused("it belongs to user 4711");
    // Nor does the command wait for another user's FIFO.
    let pipe = format!("rm {0}; mkfifo {0}; chown 4711 {0}", file.display());
    assert!(sandbox.shell(&pipe).status.success());
    refused("it belongs to user 4711");
    fs::remove_file(&file).expect("removes");
    fs::write(&file, format!("[run]\npersist = \"{evil}\"\n")).expect("writes");
    std::os::unix::fs::chown(&file, Some(4711), None).expect("is root");
    let named = ["--settings", file.to_str().expect("UTF-8")];
    run(&named).succeeds().says(&format!("settings of {}", file.display()));
    std::os::unix::fs::chown(&file, Some(0), None).expect("is root");
    std::os::unix::fs::chown(&work, Some(4711), None).expect("is root");
    refused("its directory belongs to user 4711");
}
