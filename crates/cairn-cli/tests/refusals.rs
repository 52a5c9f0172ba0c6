//! Bad input: one clear line, exit code 2, and nothing created, lost or overwritten.

mod common;

use common::{Sandbox, eventually};
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

/// Asserts that a command is refused on an otherwise empty sandbox.
fn refused(arguments: &[&str], part: &str) {
    let sandbox = Sandbox::new();
    sandbox.cairn(arguments).refused_with(part);
    assert_eq!(fs::read_dir(sandbox.root()).expect("reads").count(), 0, "nothing was created");
}

#[test]
fn unknown_option_or_command_is_refused() {
    refused(&["run", "--bogus", "--", "true"], "--bogus");
    refused(&["frobnicate"], "frobnicate");
    refused(&["run"], "COMMAND");
}

#[test]
fn size_that_is_none_is_refused() {
    refused(&["run", "--tier", "ram:8GX", "--", "true"], "\"8GX\" is not a size");
    refused(&["run", "--tier", "8G", "--", "true"], "not a tier");
    refused(&["run", "--tier", "ram:0", "--", "true"], "too small");
}

#[test]
fn ram_tier_larger_than_memory_is_refused() {
    refused(&["run", "--tier", "ram:1000T", "--", "true"], "larger than the memory");
}

#[test]
fn mount_prefix_that_is_relative_or_hides_something_is_refused() {
    refused(&["run", "--mount", "cairn", "--", "true"], "is relative");
    refused(&["run", "--mount", "/", "--", "true"], "root directory");
    refused(&["run", "--mount", "/a/../b", "--", "true"], "component");
    refused(&["run", "--mount", "/etc", "--", "true"], "exists in the file system");
}

#[test]
fn persist_directory_that_cannot_be_used_is_refused() {
    refused(&["run", "--persist", "/nonexistent/dir", "--", "true"], "does not exist");
    refused(&["run", "--persist", "/etc/passwd", "--", "true"], "is not a directory");
    refused(&["run", "--persist", "/proc", "--", "true"], "cannot be written to");
}

#[test]
fn persist_directory_below_the_mount_prefix_is_refused() {
    let sandbox = Sandbox::new();
    let (out, mount) = (sandbox.out(), sandbox.out());
    let (out, mount) = (out.to_str().expect("UTF-8"), mount.to_str().expect("UTF-8"));
    let arguments = ["run", "--force", "--mount", mount, "--persist", out, "--", "true"];
    sandbox.cairn(&arguments).refused_with("lies below the mount prefix");
}

#[test]
fn discard_of_what_is_to_be_persisted_is_refused() {
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    let out = out.to_str().expect("UTF-8");
    sandbox
        .cairn(&["run", "--discard", "--persist", out, "--", "true"])
        .refused_with("contradicts");
    sandbox
        .cairn(&["run", "--discard", "--archive", "s3://runs", "--", "true"])
        .refused_with("--discard contradicts the archive s3://runs");
}

#[test]
fn job_name_that_is_a_path_is_refused() {
    refused(&["run", "--job", "../x", "--", "true"], "is not a valid job name");
    refused(&["status", "a/b"], "is not a valid job name");
}

#[test]
fn unknown_key_of_the_configuration_file_is_refused() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.work().join("cairn.toml"), "[run]\nteir = \"ram:1G\"\n").expect("writes");
    sandbox.cairn(&["run", "--", "true"]).refused_with("line 2");
}

#[test]
fn value_of_an_environment_variable_is_checked_like_the_option() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&["run", "--", "true"]);
    let output = command.env("CAIRN_RUN_TIER", "ram:8GX").output().expect("starts");
    common::Ran::of(output, "run".to_string()).refused_with("8GX");
}

/// A kept store of job `kept` with a file in it.
fn with_kept_store() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.run_undrained("kept", "echo precious >/cairn/f").succeeds();
    end_agent(&sandbox);
    sandbox
}

/// Commands to try on an unusable store.
const ATTEMPTS: [&[&str]; 6] = [
    &["run", "--job", "kept", "--", "true"],
    &["exec", "--job", "kept", "--", "true"],
    &["ls", "kept"],
    &["verify", "kept"],
    &["cp", "kept:/f", "copy"],
    &["cp", "/etc/hostname", "kept:/f"],
];

fn all_refused(sandbox: &Sandbox, part: &str) {
    let before = sandbox.fingerprint();
    for attempt in ATTEMPTS {
        sandbox.cairn(attempt).refused_with(part);
    }
    assert!(sandbox.fingerprint() == before, "a refused command changed the store");
}

/// Ends the agent of job `kept`, so that only the command under test touches the store.
fn end_agent(sandbox: &Sandbox) {
    let pid = sandbox.cairn(&["status", "kept", "--json"]).json()[0]["agent"]["pid"].as_u64();
    if let Some(pid) = pid {
        common::kill("KILL", pid as i64);
        eventually("the agent ends", || !Path::new(&format!("/proc/{pid}")).exists());
    }
}

#[test]
fn store_with_a_description_of_a_newer_format_is_refused() {
    let sandbox = with_kept_store();
    let path = sandbox.store("kept").join("job.json");
    let text = fs::read_to_string(&path).expect("reads");
    let newer = text.replace("\"format\": 1", "\"format\": 99");
    assert_ne!(newer, text);
    fs::write(&path, newer).expect("writes");
    all_refused(&sandbox, "has format 99, this version knows up to 1");
    fs::write(&path, text).expect("writes");
    sandbox.cairn(&["exec", "--job", "kept", "--", "cat", "/cairn/f"]).prints("precious\n");
}

#[test]
fn store_with_a_damaged_description_is_refused() {
    let sandbox = with_kept_store();
    let path = sandbox.store("kept").join("job.json");
    let text = fs::read_to_string(&path).expect("reads");
    fs::write(&path, &text[..text.len() / 2]).expect("writes");
    all_refused(&sandbox, "is damaged");
    fs::write(&path, text).expect("writes");
}

/// Replaces eight bytes of the meta segment for the duration of `attempt`.
fn with_header_word(sandbox: &Sandbox, offset: u64, word: u64, attempt: impl FnOnce()) {
    let path = sandbox.store("kept").join("node.meta");
    let mut file = fs::File::options().read(true).write(true).open(path).expect("opens");
    let mut before = [0; 8];
    file.read_exact_at(&mut before, offset).expect("reads");
    file.seek(SeekFrom::Start(offset)).expect("seeks");
    file.write_all(&word.to_le_bytes()).expect("writes");
    attempt();
    file.write_all_at(&before, offset).expect("writes");
}

#[test]
fn store_with_a_damaged_header_is_refused() {
    let sandbox = with_kept_store();
    with_header_word(&sandbox, 64, 0x1234, || all_refused(&sandbox, "is damaged"));
    with_header_word(&sandbox, 80, 0x1234, || all_refused(&sandbox, "is damaged"));
    sandbox.cairn(&["exec", "--job", "kept", "--", "cat", "/cairn/f"]).prints("precious\n");
}

/// Mechanism: every EIO from opening a namespace was blamed on the header of its meta segment.
///
/// Consequence: a truncated data segment was reported as damage to another file.
///
/// Fix: the error says whether the core refused the namespace, and why.
#[test]
fn store_with_a_truncated_data_segment_is_refused_naming_it() {
    let sandbox = with_kept_store();
    let path = sandbox.store("kept").join("node.ram0");
    let whole = fs::metadata(&path).expect("is there").len();
    let file = fs::File::options().write(true).open(path).expect("opens");
    file.set_len(whole / 2).expect("truncates");
    all_refused(&sandbox, "node.ram0: input/output error; its size contradicts");
    file.set_len(whole).expect("extends");
}

#[test]
fn store_with_a_namespace_of_a_newer_format_is_refused() {
    let sandbox = with_kept_store();
    with_header_word(&sandbox, 72, 99, || all_refused(&sandbox, "has format 99"));
}

#[test]
fn store_that_others_can_enter_is_refused() {
    let sandbox = with_kept_store();
    let store = sandbox.store("kept");
    fs::set_permissions(&store, fs::Permissions::from_mode(0o755)).expect("sets");
    all_refused(&sandbox, "other users can enter it");
    fs::set_permissions(&store, fs::Permissions::from_mode(0o700)).expect("sets");
}

#[test]
fn store_of_another_user_is_refused() {
    let sandbox = with_kept_store();
    let store = sandbox.store("kept");
    // Only root can give a directory away; for other users the test above covers this case.
    if std::os::unix::fs::chown(&store, Some(12345), None).is_ok() {
        all_refused(&sandbox, "belongs to another user");
        std::os::unix::fs::chown(&store, Some(0), None).expect("takes it back");
    }
}

#[test]
fn directory_that_is_no_store_is_refused_and_left_alone() {
    let sandbox = with_kept_store();
    let other = sandbox.store("kept").with_file_name("other");
    fs::create_dir(&other).expect("makes");
    fs::set_permissions(&other, fs::Permissions::from_mode(0o700)).expect("sets");
    fs::write(other.join("notes"), "mine").expect("writes");
    sandbox.cairn(&["run", "--job", "other", "--", "true"]).refused_with("not a complete store");
    sandbox.cairn(&["ls", "other"]).refused_with("not a complete store");
    assert_eq!(fs::read_to_string(other.join("notes")).expect("reads"), "mine");
}

#[test]
fn job_that_is_running_already_is_refused() {
    let sandbox = Sandbox::new();
    let started = sandbox.work().join("started");
    let script = "touch started; until [ -e stop ]; do sleep 0.02; done";
    let mut first = sandbox
        .command(&["run", "--job", "busy", "--", "bash", "-c", script])
        .spawn()
        .expect("starts");
    eventually("the first run starts", || started.exists());
    sandbox.cairn(&["run", "--job", "busy", "--", "true"]).refused_with("is running already");
    sandbox.cairn(&["rm", "busy", "--discard"]).refused_with("is running already");
    fs::write(sandbox.work().join("stop"), "").expect("writes");
    assert!(first.wait().expect("ends").success());
}

#[test]
fn options_that_contradict_the_store_are_refused_naming_both() {
    let sandbox = with_kept_store();
    let refused = |option: &[&str], part: &str| {
        let mut arguments = vec!["run", "--job", "kept"];
        arguments.extend(option);
        arguments.extend(["--", "true"]);
        sandbox.cairn(&arguments).refused_with(part);
    };
    refused(&["--mount", "/other"], "--mount /other contradicts");
    refused(&["--scope", "rank"], "made with node");
    refused(&["--tier", "ram:32M"], "--tier ram:32M contradicts");
    let out = sandbox.out();
    refused(&["--persist", out.to_str().expect("UTF-8")], "made with no --persist");
}

#[test]
fn command_line_that_makes_no_sense_is_answered_with_the_right_help() {
    let sandbox = Sandbox::new();
    sandbox.cairn(&[]).refused_with("a command is missing; start with: cairn run -- PROGRAM");
    sandbox.cairn(&["run"]).refused_with("; see: cairn run --help");
    sandbox.cairn(&["ls", "--bogus"]).refused_with("; see: cairn ls --help");
    sandbox.cairn(&["bogus"]).refused_with("'bogus'; see: cairn --help");
}

#[test]
fn directory_that_was_not_drained_to_is_said_by_whoever_reads_it() {
    let sandbox = Sandbox::new();
    for command in [&["restore"] as &[&str], &["verify", "--persist"]] {
        let on = |directory| sandbox.cairn(&[command, &[directory]].concat());
        on("absent").refused_with("does not exist; name the directory that was drained to");
        on("/dev/null").refused_with("is not a directory; name the directory that was drained to");
    }
    sandbox.run("drained", "echo x >/cairn/f").succeeds();
    let out = sandbox.out();
    let out = out.to_str().expect("UTF-8");
    let part = "no manifest of job other, only of drained; name one of these";
    sandbox.cairn(&["restore", out, "--job", "other"]).refused_with(part);
    sandbox.cairn(&["verify", "other", "--persist", out]).refused_with(part);
}

#[test]
fn stores_that_do_not_exist_or_are_ambiguous_are_said() {
    let sandbox = Sandbox::new();
    sandbox.cairn(&["ls"]).refused_with("there is no store");
    sandbox.cairn(&["ls", "absent"]).refused_with("job absent has no store");
    sandbox.run_undrained("one", "touch /cairn/f").succeeds();
    sandbox.run_undrained("two", "touch /cairn/f").succeeds();
    sandbox.cairn(&["ls"]).refused_with("one, two");
}
