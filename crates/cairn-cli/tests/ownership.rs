//! A persist directory belongs to one job.

mod common;

use common::session::Session;
use common::{Ran, Sandbox};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;

/// Runs a script as `job` with `cairn run` and these options.
fn run(sandbox: &Sandbox, job: &str, options: &[&str], script: &str) -> Ran {
    let out = sandbox.out();
    let first = ["run", "--job", job, "--persist", out.to_str().expect("UTF-8")];
    let arguments = [&first[..], options, &["--", "bash", "-c", script]].concat();
    sandbox.cairn(&arguments)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Mechanism: a new start of a finished job began with an empty store and drained over the existing
/// files.
///
/// Consequence: results were replaced, with only a note.
///
/// Fix: the start is refused, and the message lists the options.
#[test]
fn new_start_of_a_finished_job_is_refused_with_the_ways_on() {
    let sandbox = Sandbox::new();
    run(&sandbox, "melt", &[], "echo 1 >/cairn/result").succeeds();
    let again = run(&sandbox, "melt", &[], "echo 2 >/cairn/result");
    let again = again.refused_with("earlier run of job melt").says("--stage").says("--fresh");
    again.says("--shared");
    assert_eq!(sandbox.drained("result"), "1\n");
    assert!(!sandbox.store("melt").exists());
    run(&sandbox, "melt", &["--stage"], "cat /cairn/result; echo 3 >>/cairn/result")
        .succeeds()
        .prints("1\n");
    assert_eq!(sandbox.drained("result"), "1\n3\n");
}

/// Mechanism: two jobs drained to one directory.
///
/// Consequence: they silently replaced each other's files.
///
/// Fix: the second job is refused, or shares the directory and replaces nothing.
#[test]
fn another_job_is_refused_or_replaces_nothing() {
    let sandbox = Sandbox::new();
    run(&sandbox, "melt", &[], "echo 1 >/cairn/result").succeeds();
    run(&sandbox, "other", &[], "echo 2 >/cairn/result").refused_with("belongs to job melt");
    let script = "echo 2 >/cairn/result; echo 2 >/cairn/more; ln -s more /cairn/link";
    let shared = run(&sandbox, "other", &["--shared"], script).ends_with(75);
    shared.says("result exists already").says("the store is kept");
    assert_eq!((sandbox.drained("result"), sandbox.drained("more")), ("1\n".into(), "2\n".into()));
    assert_eq!(sandbox.entry("melt", "result")["state"], "drained");
    sandbox.cairn(&["cp", "other:/result", "theirs"]).succeeds();
    assert_eq!(read(&sandbox.work().join("theirs")), "2\n");
}

#[test]
fn what_an_earlier_start_has_left_is_set_aside_where_one_begins_anew() {
    let sandbox = Sandbox::new();
    let script = "mkdir -p /cairn/d/e; echo 1 >/cairn/d/e/result; ln -s d/e/result /cairn/link; echo 1 >/cairn/top";
    run(&sandbox, "melt", &[], script).succeeds();
    fs::write(sandbox.out().join("of the user"), "mine").expect("writes");
    fs::write(sandbox.out().join("top"), "changed by the user").expect("writes");
    run(&sandbox, "melt", &["--fresh"], "echo 2 >/cairn/result")
        .succeeds()
        .says("cairn-aside.melt.1");
    let aside = sandbox.out().join("cairn-aside.melt.1");
    assert_eq!(read(&aside.join("d/e/result")), "1\n");
    assert_eq!(read(&aside.join("link")), "1\n");
    assert!(!aside.join("top").exists() && !sandbox.out().join("d").exists());
    assert_eq!(sandbox.drained("top"), "changed by the user");
    assert_eq!(
        (sandbox.drained("result"), sandbox.drained("of the user")),
        ("2\n".into(), "mine".into())
    );
    let aside = aside.to_str().expect("UTF-8").to_string();
    sandbox.cairn(&["verify", "--persist", &aside]).ends_with(1).says("top");
    run(&sandbox, "melt", &["--fresh"], "true").succeeds();
    assert!(sandbox.out().join("cairn-aside.melt.2/result").exists());
}

/// The store of a failed run belongs to the job, so resuming it is not refused.
#[test]
fn job_that_goes_on_in_its_store_owns_its_directory() {
    let sandbox = Sandbox::new();
    run(&sandbox, "melt", &[], "echo 1 >/cairn/result; exit 3").ends_with(3);
    run(&sandbox, "melt", &[], "cat /cairn/result; echo 2 >/cairn/result").succeeds().prints("1\n");
    assert_eq!(sandbox.drained("result"), "2\n");
    run(&sandbox, "other", &[], "true").refused_with("belongs to job melt");
    let out = sandbox.out();
    sandbox.cairn(&["run", "--job", "third", "--", "bash", "-c", "echo 3 >/cairn/x"]).succeeds();
    let to = out.to_str().expect("UTF-8");
    sandbox.cairn(&["drain", "third", "--persist", to]).ends_with(2).says("belongs to job melt");
    sandbox.cairn(&["drain", "third", "--persist", to, "--shared"]).succeeds();
    assert_eq!(sandbox.drained("x"), "3\n");
}

/// Mechanism: the owner of a directory was not visible until its first file was there.
///
/// Consequence: of two jobs that began at once, the second ran to its end, and could then not be
/// drained.
///
/// Fix: a job claims its directory before its program starts.
#[test]
fn of_two_jobs_that_begin_at_once_the_second_is_refused() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "one", &[]);
    run(&sandbox, "two", &[], "touch ran").refused_with("belongs to job one");
    assert!(!sandbox.work().join("ran").exists());
    session.shell("echo one >/cairn/result");
    assert_eq!(session.end(), Some(0));
    assert_eq!(sandbox.drained("result"), "one\n");
    // A job that drained nothing leaves nothing.
    let sandbox = Sandbox::new();
    run(&sandbox, "one", &[], "true").succeeds();
    run(&sandbox, "two", &[], "echo 2 >/cairn/result").succeeds();
}

/// Mechanism: permissions on a job's directories were set after the agent had looked into them.
///
/// Consequence: for any user but root, a directory without permissions was never again drained to,
/// staged or set aside.
///
/// Fix: permissions are set first.
#[test]
fn directories_without_rights_keep_nobody_from_going_on_or_beginning_anew() {
    const USER: u32 = 65_534;
    let sandbox = Sandbox::new();
    if rustix::process::geteuid().is_root() {
        for directory in [sandbox.root(), sandbox.out(), sandbox.work()] {
            chown(directory, Some(USER), Some(USER)).expect("gives it away");
        }
    }
    let out = sandbox.out().display().to_string();
    let run = |options: &[&str], script: &str| {
        let head = ["run", "--job", "job", "--tier", "ram:16M", "--persist", &out];
        let mut command =
            sandbox.command(&[&head, options, &["--", "bash", "-c", script]].concat());
        if rustix::process::geteuid().is_root() {
            command.uid(USER).gid(USER);
        }
        Ran::of(command.output().expect("starts"), script.to_string()).succeeds()
    };
    run(
        &[],
        "cd /cairn; mkdir shut narrow; echo a >shut/a; echo b >narrow/b; chmod 0 shut; chmod 311 narrow",
    );
    let script = "cd /cairn; chmod 700 shut; cat shut/a narrow/b; echo c >shut/c; chmod 0 shut";
    run(&["--stage"], script).prints("a\nb\n");
    let mode = |place: &str| {
        let found = fs::metadata(sandbox.out().join(place)).expect("is there");
        found.permissions().mode() & 0o777
    };
    assert_eq!((mode("shut"), mode("narrow")), (0, 0o311));
    run(&["--fresh"], "echo d >/cairn/d");
    assert_eq!((mode("cairn-aside.job.1/shut"), mode("cairn-aside.job.1/narrow")), (0, 0o311));
    assert_eq!(
        sandbox.drained_names().iter().filter(|name| !name.starts_with("cairn-")).count(),
        1
    );
}

/// Mechanism: only files drained by other jobs were protected from being replaced.
///
/// Consequence: results of plain runs in a directory, and any other files of the user, were
/// replaced by the first run that drained there, and removed with the program's files of the same
/// names.
///
/// Fix: they are set aside.
#[test]
fn what_was_in_the_directory_before_is_set_aside() {
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    let own = |name: &str| fs::read_to_string(out.join("cairn-before.us").join(name));
    fs::create_dir_all(out.join("out/deep")).expect("makes");
    for name in ["results", "out/notes", "out/deep/kept", "other", "a directory here"] {
        fs::write(out.join(name), "precious").expect("writes");
    }
    std::os::unix::fs::symlink("other", out.join("link")).expect("links");
    let script = "cd /cairn; echo new >>results; mkdir out 'a directory here'; echo x >out/notes; echo y >link; ln -s results other; \
                  until [ -e $OUT/out/notes ] && [ \"$(cat $OUT/out/notes)\" = x ]; do sleep 0.02; done; rm out/notes; rmdir out; echo z >a; mv a b";
    let script = format!("OUT={}; {script}", out.display());
    let ran = sandbox.run("us", &script).succeeds();
    ran.says("earlier files with the same names as the job's files are now in");
    let read = |name: &str| fs::read_to_string(out.join(name)).expect("it is there");
    assert_eq!([read("results"), read("link"), read("b")], ["new\n", "y\n", "z\n"]);
    assert_eq!(fs::read_link(out.join("other")).expect("a link"), Path::new("results"));
    assert!(out.join("a directory here").is_dir() && !out.join("out/notes").exists());
    // Files that are in nobody's way stay.
    assert_eq!(read("out/deep/kept"), "precious");
    for name in ["results", "out/notes", "other", "a directory here"] {
        assert_eq!(own(name).expect("it is set aside"), "precious", "{name}");
    }
    let link = fs::read_link(out.join("cairn-before.us/link")).expect("it is set aside");
    assert_eq!(link, Path::new("other"));
    // An existing directory becomes the job's when the job makes one of the same name.
    let other = out.with_file_name("other");
    fs::create_dir_all(other.join("e")).expect("makes");
    let script = "mkdir /cairn/e; sleep 0.5; rmdir /cairn/e; sleep 0.5; echo x >/cairn/e";
    let run = [
        "run",
        "--job",
        "e",
        "--persist",
        other.to_str().expect("UTF-8"),
        "--",
        "sh",
        "-c",
        script,
    ];
    sandbox.cairn(&run).succeeds();
    assert_eq!(fs::read_to_string(other.join("e")).expect("a file"), "x\n");
    // The job's own files are replaced as usual, even by another of its stores.
    sandbox
        .cairn(&[
            "run",
            "--job",
            "us",
            "--persist",
            out.to_str().expect("UTF-8"),
            "--stage",
            "--",
            "sh",
            "-c",
            "echo newer >/cairn/results",
        ])
        .succeeds();
    assert_eq!(
        (read("results"), own("results").expect("it stays")),
        ("newer\n".into(), "precious".into())
    );
    assert!(!out.join("cairn-before.us.1").exists());
}
