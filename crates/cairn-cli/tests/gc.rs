//! `cairn ls --jobs` and `cairn gc`: abandoned stores are listed, and removed when nothing is lost
//! with them.

mod common;

use common::{Ran, Sandbox, eventually, kill};
use serde_json::Value;
use std::fs;
use std::io::BufRead;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of races of `gc` with `run`.
const ROUNDS: u32 = 15;

/// Runs a script as `job` and kills the process group of `cairn run` once the script has made
/// `ready` in the working directory.
fn run_and_kill(sandbox: &Sandbox, job: &str, options: &[&str], script: &str) {
    let mut child = start(sandbox, job, options, script);
    kill("KILL", -i64::from(child.id()));
    child.wait().expect("ends");
}

/// Starts a script that makes `ready` and then runs until it is killed.
fn start(sandbox: &Sandbox, job: &str, options: &[&str], script: &str) -> Child {
    let ready = sandbox.work().join("ready");
    let script = format!("{script}\n: >{}; read <{}", ready.display(), fifo(sandbox).display());
    let arguments = [&["run", "--job", job], options, &["--", "bash", "-c", &script]].concat();
    let mut command = sandbox.command(&arguments);
    command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let child = command.spawn().expect("starts");
    eventually("the script is ready", || ready.exists());
    fs::remove_file(ready).expect("removes");
    child
}

/// FIFO without a writer, so that a reader waits.
fn fifo(sandbox: &Sandbox) -> PathBuf {
    let path = sandbox.work().join("never");
    if !path.exists() {
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.expect("mkfifo starts").success());
    }
    path
}

fn out(sandbox: &Sandbox) -> String {
    sandbox.out().display().to_string()
}

/// Row of a job in `cairn ls --jobs`; null if there is none.
fn row(sandbox: &Sandbox, job: &str) -> Value {
    let rows = sandbox.cairn(&["ls", "--jobs", "--json"]).succeeds().json();
    let rows = rows.as_array().cloned().expect("a list");
    rows.into_iter().find(|row| row["job"] == job).unwrap_or(Value::Null)
}

fn gc(sandbox: &Sandbox, options: &[&str]) -> Ran {
    sandbox.cairn(&[&["gc", "--older-than", "0"], options].concat())
}

fn drained(sandbox: &Sandbox, job: &str) {
    eventually("all is drained", || row(sandbox, job)["not_safe"]["files"] == 0);
}

#[test]
fn stores_are_listed_with_what_is_not_safe_in_them() {
    let sandbox = Sandbox::new();
    sandbox.cairn(&["ls", "--jobs"]).succeeds().prints("no stores\n");
    let persist = out(&sandbox);
    run_and_kill(&sandbox, "killed", &["--persist", &persist], "echo one >/cairn/a");
    run_and_kill(&sandbox, "nowhere", &[], "echo two >/cairn/b; echo three >/cairn/c");
    let mut running = start(&sandbox, "running", &[], ":");
    drained(&sandbox, "killed");
    let killed = row(&sandbox, "killed");
    assert_eq!((&killed["state"], &killed["persist"]), (&"left-behind".into(), &persist.into()));
    assert_eq!(killed["contents"], serde_json::json!({"files": 1, "bytes": 4}));
    assert!(killed["held_bytes"].as_u64() > Some(4096), "{killed}");
    let nowhere = row(&sandbox, "nowhere");
    assert_eq!(nowhere["not_safe"], serde_json::json!({"files": 2, "bytes": 10}), "{nowhere}");
    assert_eq!(row(&sandbox, "running")["state"], "running");
    let table = sandbox.cairn(&["ls", "--jobs"]).succeeds();
    table.says("left behind").says("2 files, 10 B").says("none: nothing is drained");
    kill("KILL", -i64::from(running.id()));
    running.wait().expect("ends");
}

#[test]
fn store_left_behind_is_removed_only_when_it_is_old_and_all_of_it_is_safe() {
    let sandbox = Sandbox::new();
    let persist = out(&sandbox);
    run_and_kill(&sandbox, "old", &["--persist", &persist], "echo one >/cairn/a");
    drained(&sandbox, "old");
    gc_keeps(&sandbox, &["gc", "--older-than", "1h"], "old", "it was used");
    let would = gc(&sandbox, &["--dry-run", "--json"]).succeeds().json();
    assert_eq!(would["freed"][0]["job"], "old", "{would}");
    assert!(sandbox.store("old").exists());
    let freed = gc(&sandbox, &["--json"]).succeeds().json();
    assert!(freed["freed_bytes"].as_u64() > Some(4096), "{freed}");
    assert!(!sandbox.store("old").exists());
    assert_eq!(sandbox.drained("a"), "one\n");
    gc(&sandbox, &[]).succeeds().says("freed 0 B in 0 stores");
    gc(&sandbox, &["--job", "old"]).refused_with("job old has no store");
}

fn gc_keeps(sandbox: &Sandbox, arguments: &[&str], job: &str, why: &str) {
    let ran = sandbox.cairn(arguments).succeeds();
    ran.says(&format!("kept: {job}")).says(why);
    assert!(sandbox.store(job).exists());
}

#[test]
fn files_that_are_nowhere_else_are_lost_only_if_that_is_said_twice() {
    let sandbox = Sandbox::new();
    run_and_kill(&sandbox, "only", &[], "echo one >/cairn/a");
    gc_keeps(&sandbox, &["gc", "--older-than", "0"], "only", "drain only --persist DIR");
    gc(&sandbox, &["--job", "only"]).ends_with(1).says("is kept: 1 file, 4 B in it are nowhere");
    gc(&sandbox, &["--force"]).refused_with("--yes");
    gc(&sandbox, &["--yes"]).refused_with("--force");
    assert!(sandbox.store("only").exists());
    gc(&sandbox, &["--job", "only", "--force", "--yes"]).succeeds();
    assert!(!sandbox.store("only").exists());
}

/// Mechanism: the store's own record that a file was drained once counted as a copy.
///
/// Consequence: after the copies, or the whole directory, were gone, no file in the store was
/// reported as unsafe, and `gc` would have removed the store, as `--dry-run` showed.
///
/// Fix: a file is safe if the manifest in the persist directory lists it and its copy is there.
#[test]
fn files_whose_copies_are_gone_are_not_safe_until_they_are_drained_again() {
    let sandbox = Sandbox::new();
    let persist = out(&sandbox);
    run_and_kill(&sandbox, "again", &["--persist", &persist], "echo one >/cairn/a; >/cairn/b");
    drained(&sandbox, "again");
    fs::remove_file(sandbox.out().join("a")).expect("removes");
    let found = row(&sandbox, "again");
    assert_eq!(found["not_safe"], serde_json::json!({"files": 1, "bytes": 4}), "{found}");
    assert_eq!(found["reasons"], serde_json::json!({"copy-gone": 1}), "{found}");
    sandbox.cairn(&["ls", "--jobs"]).succeeds().says("1 file, 4 B: 1 whose copy is gone");
    for dry in [&[][..], &["--dry-run"]] {
        let ran = gc(&sandbox, &[&["--job", "again"], dry].concat()).ends_with(1);
        ran.says("1 whose copy is gone").says("cairn drain again");
    }
    sandbox.cairn(&["drain", "again"]).succeeds();
    gc(&sandbox, &["--job", "again"]).succeeds();
    assert_eq!(sandbox.drained("a"), "one\n", "the copy is there before the store is gone");

    run_and_kill(&sandbox, "lost", &["--persist", &persist, "--shared"], "echo two >/cairn/c");
    drained(&sandbox, "lost");
    // The agent may be writing there.
    eventually("it is removed", || fs::remove_dir_all(sandbox.out()).is_ok());
    sandbox.cairn(&["ls", "--jobs"]).succeeds().says("no such file or directory");
    assert_eq!(row(&sandbox, "lost")["reasons"], serde_json::json!({"copy-gone": 1}));
    let ran = gc(&sandbox, &["--job", "lost"]).ends_with(1);
    ran.says("1 whose copy is gone").says("no such file or directory");
    gc(&sandbox, &["--job", "lost", "--force", "--yes"]).succeeds();
    fs::create_dir(sandbox.out()).expect("makes");
}

/// Mechanism: as above.
///
/// Consequence: a damaged file, set aside because its copy was damaged too, was reported as safe.
#[test]
fn file_that_was_set_aside_without_a_copy_is_not_safe() {
    let sandbox = Sandbox::new();
    let write = "mkdir /cairn/new; head -c 9000 /dev/zero | tr '\\0' x >/cairn/new/a
        mv /cairn/new /cairn/ckpt-1; exit 3";
    sandbox.run("rot", write).ends_with(3);
    sandbox.flip("rot", &[b'x'; 64], 5000);
    fs::write(sandbox.out().join("ckpt-1/a"), "something else").expect("writes");
    let again = ["run", "--job", "rot", "--", "bash", "-c", "exit 3"];
    sandbox.cairn(&again).ends_with(3).says("set aside");
    let found = row(&sandbox, "rot");
    assert_eq!(found["not_safe"], serde_json::json!({"files": 1, "bytes": 9000}), "{found}");
    assert_eq!(found["reasons"], serde_json::json!({"damaged": 1}), "{found}");
    for dry in [&[][..], &["--dry-run"]] {
        let ran = gc(&sandbox, &[&["--job", "rot"], dry].concat()).ends_with(1);
        ran.says("1 damaged in the store").says("cairn rm rot --discard");
    }
    gc(&sandbox, &["--job", "rot", "--force", "--yes"]).succeeds();
}

#[test]
fn store_in_use_is_kept() {
    let sandbox = Sandbox::new();
    let mut running = start(&sandbox, "busy", &[], "echo x >/cairn/f");
    gc_keeps(&sandbox, &["gc", "--older-than", "0", "--force", "--yes"], "busy", "it is in use");
    // `cairn run` is gone, but its program is alive.
    kill("KILL", running.id().into());
    running.wait().expect("ends");
    gc_keeps(&sandbox, &["gc", "--older-than", "0", "--force", "--yes"], "busy", "it is in use");
    kill("KILL", -i64::from(running.id()));
    eventually("the program is gone", || row(&sandbox, "busy")["state"] == "left-behind");
    gc(&sandbox, &["--force", "--yes"]).succeeds();
    assert!(!sandbox.store("busy").exists());
}

#[test]
fn damaged_and_foreign_directories_are_named_and_left_alone() {
    let sandbox = Sandbox::new();
    run_and_kill(&sandbox, "good", &[], ":");
    let user = sandbox.store("good").parent().expect("a parent").to_path_buf();
    fs::create_dir(user.join("strange")).expect("makes");
    fs::write(user.join("strange/data"), "precious").expect("writes");
    std::os::unix::fs::symlink("/", user.join("link")).expect("links");
    run_and_kill(&sandbox, "torn", &[], "echo x >/cairn/f");
    fs::write(sandbox.store("torn").join("job.json"), "{").expect("writes");
    run_and_kill(&sandbox, "open", &[], "echo x >/cairn/f");
    let meta = fs::File::options().write(true).open(sandbox.store("open").join("node.meta"));
    meta.expect("opens").set_len(4096).expect("cuts");
    let options = ["--older-than", "0", "--force", "--yes"];
    let ran = sandbox.cairn(&[&["gc"], &options[..]].concat()).succeeds();
    let ran = ran.says("kept: strange").says("no description").says("kept: link");
    ran.says("kept: torn").says("kept: open").says("freed: good");
    assert_eq!(fs::read(user.join("strange/data")).expect("reads"), b"precious");
    assert!(sandbox.store("torn").join("node.meta").exists());
    let row = row(&sandbox, "open");
    assert_eq!((&row["state"], &row["not_safe"]), (&"left-behind".into(), &Value::Null), "{row}");
    for name in ["strange", "torn", "open"] {
        fs::remove_dir_all(user.join(name)).expect("removes");
    }
    fs::remove_file(user.join("link")).expect("removes");
}

#[test]
fn what_a_removal_that_was_cut_off_left_is_removed() {
    let sandbox = Sandbox::new();
    run_and_kill(&sandbox, "half", &[], "echo one >/cairn/a");
    let store = sandbox.store("half");
    let left = store.with_file_name(".half.removed-0");
    fs::rename(&store, &left).expect("renames");
    sandbox.cairn(&["status", "half"]).refused_with("job half has no store");
    assert_eq!(row(&sandbox, "half")["state"], "removed");
    gc(&sandbox, &["--job", "half"]).succeeds();
    assert!(!left.exists());
}

/// Mechanism: `gc` takes the run lock and removes the store after `run` has found the store or
/// opened its lock file.
///
/// Consequence: `run` failed because a file was missing. Or it held a lock that excluded nobody, or
/// was refused as if the job were running.
///
/// Fix: removal first takes the store's name away, a lock on a removed file is taken again, and
/// `run` looks again for a store that vanished.
#[test]
fn runs_that_start_while_their_store_is_collected_begin_a_new_one() {
    let sandbox = Sandbox::new();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                gc(&sandbox, &[]).succeeds();
            }
        });
        let _end = EndsWith(&over);
        for round in 0..ROUNDS {
            // The script fails, so that its store is left for `gc`.
            let script = format!("echo {round} >/cairn/f{round}; exit 3");
            let out = sandbox.out();
            let first = ["run", "--job", "race", "--persist", out.to_str().expect("UTF-8")];
            let ran =
                sandbox.cairn(&[&first[..], &["--shared", "--", "bash", "-c", &script]].concat());
            assert!(!ran.stderr.contains("running already"), "{}", ran.stderr);
            ran.ends_with(3);
            assert_eq!(sandbox.drained(&format!("f{round}")), format!("{round}\n"));
        }
    });
}

/// Mechanism: removing a store holds its run lock during the checks, which can take long on a
/// loaded machine.
///
/// Consequence: a run that began meanwhile was refused after a moment, as if the job were running.
///
/// Fix: a run marks the lock as its own. A run waits for any other holder.
#[test]
fn run_waits_for_whoever_looks_at_its_store_and_not_for_another_run() {
    let sandbox = Sandbox::new();
    sandbox.run("looked-at", "echo one >/cairn/f; exit 3").ends_with(3);
    let lock = fs::File::open(sandbox.store("looked-at").join("run.lock")).expect("opens");
    lock.lock().expect("locks");
    let arguments = ["run", "--job", "looked-at", "--", "cat", "/cairn/f"];
    let run = sandbox.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut run = run.expect("starts");
    let mut lines = std::io::BufReader::new(run.stderr.take().expect("a pipe")).lines();
    let said = lines.next().expect("a line").expect("text");
    assert!(said.contains("looked-at: waiting for a command that looks at the store"), "{said}");
    drop(lock);
    lines.for_each(drop);
    let ended = Ran::of(run.wait_with_output().expect("ends"), "run".to_string());
    ended.succeeds().prints("one\n");

    let mut running = start(&sandbox, "busy", &[], ":");
    sandbox.cairn(&["run", "--job", "busy", "--", "true"]).refused_with("running already");
    sandbox.cairn(&["rm", "busy"]).refused_with("running already");
    kill("KILL", -i64::from(running.id()));
    running.wait().expect("ends");
}

#[test]
fn run_takes_up_a_store_that_is_drained_before_it_is_removed() {
    let sandbox = Sandbox::new();
    let slow = ["--persist", &out(&sandbox), "--drain", "none", "--drain-rate", "1K"];
    let script = ["--", "bash", "-c", "head -c 12M /dev/zero >/cairn/f; exit 3"];
    sandbox.cairn(&[&["run", "--job", "slow"], &slow[..], &script].concat()).ends_with(3);
    let mut removes = sandbox.command(&["rm", "slow"]).spawn().expect("starts");
    eventually("it is drained", || {
        let status = sandbox.cairn(&["status", "slow", "--json"]).succeeds().json();
        status[0]["agent"]["phase"] == "draining"
    });
    let arguments = ["run", "--job", "slow", "--", "stat", "-c", "%s", "/cairn/f"];
    sandbox.cairn(&arguments).succeeds().prints("12582912\n");
    removes.kill().expect("kills");
    removes.wait().expect("ends");
}

/// Ends a loop even if an assertion fails.
struct EndsWith<'a>(&'a AtomicBool);

impl Drop for EndsWith<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Mechanism: the path of the user's directory of stores was followed even if it was a link.
///
/// Consequence: in a directory that anybody may write to, such as `/dev/shm`, an attacker's link of
/// that name decided what was listed and removed.
///
/// Fix: neither a link nor another user's directory is accepted.
#[test]
fn link_in_the_place_of_the_users_directory_is_not_followed() {
    let sandbox = Sandbox::new();
    let user = format!("cairn-{}", rustix::process::geteuid().as_raw());
    let (place, other) = (sandbox.root().join(&user), sandbox.work().join("other"));
    run_and_kill(&sandbox, "job", &[], "echo text >/cairn/file");
    fs::rename(&place, &other).expect("renames");
    std::os::unix::fs::symlink(&other, &place).expect("links");
    let listed = sandbox.cairn(&["ls", "--jobs", "--json"]).succeeds().json();
    let rows = listed.as_array().expect("a list");
    assert!(rows.iter().all(|row| row["job"] != "job"), "{listed:#}");
    assert!(
        rows.iter().any(|row| row["problem"].to_string().contains("not a directory")),
        "{listed:#}"
    );
    let _ = gc(&sandbox, &["--force", "--yes"]);
    assert!(other.join("job").join("job.json").exists(), "what it leads to stays");
    fs::remove_file(&place).expect("removes");
    fs::rename(&other, &place).expect("renames");
    assert_eq!(row(&sandbox, "job")["job"], "job");
}

/// Mechanism: memory is cleared ahead of its use as long as an agent lives. Consequence: a store
/// that was left with one small file kept hundreds of MiB. Fix: a store that nobody uses gives back
/// what was cleared ahead.
#[test]
fn store_that_nobody_uses_gives_back_what_was_cleared_ahead() {
    let sandbox = Sandbox::new();
    // Long enough for memory to be cleared ahead.
    let script = "head -c 1000000 /dev/zero >/cairn/small; sleep 1; exit 3";
    let run = ["run", "--job", "left", "--tier", "ram:512M", "--", "bash", "-c", script];
    sandbox.cairn(&run).ends_with(3);
    let held = || {
        let rows = sandbox.cairn(&["ls", "--jobs", "--json"]).succeeds().json();
        rows[0]["held_bytes"].as_u64().expect("a number")
    };
    eventually("it has given memory back", || held() < 96 << 20);
    let listed = sandbox.cairn(&["verify", "left"]).succeeds().stdout;
    assert!(listed.contains("1 file"), "{listed}");
    let script = "cmp -n 1000000 /cairn/small /dev/zero";
    let again = ["run", "--job", "left", "--tier", "ram:512M", "--", "bash", "-c", script];
    sandbox.cairn(&again).succeeds();
}

/// Mechanism: a directory that had anything but the names of a new store was no blank one.
///
/// Consequence: what `rm -r` leaves of a store, the mount of its huge pages, could neither be
/// removed nor used again for the job.
///
/// Fix: an empty mount counts as blank.
#[test]
fn mount_that_rm_leaves_of_a_store_is_no_obstacle() {
    let sandbox = Sandbox::new();
    for command in [&["gc", "--job", "job", "--older-than", "0"][..], &["rm", "job", "--discard"]] {
        sandbox.run_undrained("job", "echo x >/cairn/x; exit 3").ends_with(3);
        let store = sandbox.store("job");
        sandbox.shell(&format!(
            "rm -r {} 2>/dev/null; install -d -m 700 {0} {0}/huge",
            store.display()
        ));
        sandbox.cairn(command).succeeds();
        assert!(!store.exists());
    }
}
