//! Stores that a run resumes in: the newest checkpoint is first compared with its checksums.
//! Damaged files are repaired from their copies, or the checkpoint is set aside.

mod common;

use common::session::Session;
use common::{Ran, Sandbox, eventually, kill};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Stdio;

/// Writes two checkpoints of two files each. Each is renamed into place, so it is complete whenever
/// the agent looks.
const WRITE: &str = "
for step in 1 2; do
    mkdir /cairn/new
    for rank in a b; do
        head -c 300000 /dev/zero | tr '\\0' $step | sed s/^/$rank/ >/cairn/new/$rank
    done
    mv /cairn/new /cairn/ckpt-$step
done
exit 3";

/// Prints each file with its first bytes, and the number of wrong bytes in it.
const SHOW: &str = "
cd /cairn; for f in ckpt-*/*; do
    echo $f $(head -c2 $f) $(tail -c +2 $f | tr -d ${f:5:1} | wc -c)
done; exit 3";

/// Output of `SHOW` for whole checkpoints.
const FIRST: &str = "ckpt-1/a a1 0\nckpt-1/b b1 0\n";
const BOTH: &str = "ckpt-1/a a1 0\nckpt-1/b b1 0\nckpt-2/a a2 0\nckpt-2/b b2 0\n";

/// Flips a bit in the middle of the data with this beginning.
fn flip(sandbox: &Sandbox, job: &str, beginning: &[u8; 2]) {
    sandbox.flip(job, &[&beginning[..], &[beginning[1]; 62]].concat(), 40_000);
}

fn spoil(path: &Path) {
    let mut content = fs::read(path).expect("is drained");
    content[1000] ^= 1;
    fs::write(path, content).expect("writes");
}

fn again(sandbox: &Sandbox, job: &str, options: &[&str], script: &str) -> Ran {
    let end = ["--", "bash", "-c", script];
    sandbox.cairn(&[&["run", "--job", job][..], options, &end].concat())
}

#[test]
fn damaged_file_of_the_newest_checkpoint_is_put_right_from_its_copy() {
    let sandbox = Sandbox::new();
    sandbox.run("rot", WRITE).ends_with(3);
    flip(&sandbox, "rot", b"b2");
    let ran = again(&sandbox, "rot", &[], SHOW).ends_with(3);
    let ran = ran.says("/ckpt-2/b is damaged in the store at offset 32768");
    ran.says("repaired from").prints(BOTH);
    // Step, level and file count of the checkpoint are unchanged, in the store and outside.
    let rows = sandbox.cairn(&["ls", "--checkpoints", "rot", "--json"]).succeeds().json();
    let row =
        |at: usize| (rows[at]["step"].as_u64(), rows[at]["level"].as_str().map(str::to_string));
    assert_eq!([row(0), row(1)], [1, 2].map(|step| (Some(step), Some("pfs".to_string()))));
    assert_eq!(rows[1]["files"], 2);
    assert_eq!(
        sandbox.manifest("rot")["checkpoints"][1]["files"].as_array().map(Vec::len),
        Some(2)
    );
    let ran = again(&sandbox, "rot", &[], SHOW).ends_with(3);
    assert!(!ran.stderr.contains("damaged"), "{}", ran.stderr);
}

#[test]
fn damaged_checkpoint_without_a_copy_is_set_aside_for_the_one_before() {
    let sandbox = Sandbox::new();
    sandbox.run_undrained("rot", WRITE).ends_with(3);
    flip(&sandbox, "rot", b"b2");
    let ran = again(&sandbox, "rot", &[], SHOW).ends_with(3);
    let ran = ran.says("/ckpt-2/b is damaged in the store at offset 32768");
    ran.says("set aside").says("goes on from ckpt-1").prints(FIRST);
    // Nothing is lost, and a program that looks for the newest directory does not find the damaged
    // one.
    let script = "cd /cairn; ls; ls -A .cairn-damaged/ckpt-2; exit 3";
    again(&sandbox, "rot", &[], script).ends_with(3).prints("ckpt-1\na\nb\n");
}

#[test]
fn copy_that_is_damaged_too_is_not_taken() {
    let sandbox = Sandbox::new();
    sandbox.run("rot", WRITE).ends_with(3);
    flip(&sandbox, "rot", b"a2");
    spoil(&sandbox.out().join("ckpt-2/a"));
    let ran = again(&sandbox, "rot", &[], SHOW).ends_with(3);
    ran.says("set aside").says("goes on from ckpt-1").prints(FIRST);
}

#[test]
fn checkpoint_that_is_only_outside_takes_the_place_of_a_damaged_one() {
    let sandbox = Sandbox::new();
    sandbox.run("rot", &WRITE.replace("exit 3", "exit 0")).succeeds().says("store removed");
    let out = sandbox.out().display().to_string();
    let ran =
        again(&sandbox, "rot", &["--persist", &out, "--stage", "--newest-only"], SHOW).ends_with(3);
    ran.prints("ckpt-2/a a2 0\nckpt-2/b b2 0\n");
    flip(&sandbox, "rot", b"b2");
    spoil(&sandbox.out().join("ckpt-2/b"));
    let ran = again(&sandbox, "rot", &[], SHOW).ends_with(3);
    ran.says("set aside").says("goes on from ckpt-1, which was brought in").prints(FIRST);
    // It is listed once, and is as safe as before.
    let rows = sandbox.cairn(&["ls", "--checkpoints", "rot", "--json"]).succeeds().json();
    let steps: Vec<_> = rows.as_array().expect("a list").iter().map(|row| &row["step"]).collect();
    assert!(steps.iter().filter(|step| **step == 1).count() == 1, "{rows}");
    assert_eq!(sandbox.manifest("rot")["checkpoints"][0]["step"], 1);
}

#[test]
fn agent_that_a_killed_run_left_is_no_obstacle() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "rot", &[]);
    session.shell(&WRITE.replace("exit 3", "true"));
    eventually("both are drained", || {
        let manifest = sandbox.manifest("rot");
        manifest["checkpoints"].as_array().is_some_and(|known| known.len() == 2)
    });
    session.kill_all();
    flip(&sandbox, "rot", b"b2");
    let ran = again(&sandbox, "rot", &[], SHOW).ends_with(3);
    ran.says("/ckpt-2/b is repaired from").prints(BOTH);
    assert_eq!(sandbox.manifest("rot")["checkpoints"].as_array().map(Vec::len), Some(2));
}

#[test]
fn nothing_is_compared_where_that_is_not_wanted() {
    let sandbox = Sandbox::new();
    sandbox.run("rot", WRITE).ends_with(3);
    flip(&sandbox, "rot", b"b2");
    let ran = again(&sandbox, "rot", &["--resume", "as-is"], SHOW).ends_with(3);
    assert!(!ran.stderr.contains("is damaged"), "{}", ran.stderr);
    ran.prints(&BOTH.replace("b2 0", "b2 1"));
}

/// Writes two checkpoints of two files each, without directories of their own.
const WRITE_FLAT: &str = "
for step in 1 2; do
    for rank in a b; do
        head -c 300000 /dev/zero | tr '\\0' $step | sed s/^/$rank/ >/cairn/restart.$step.$rank
    done
done
exit 3";
const SHOW_FLAT: &str = "cd /cairn; for f in restart.*; do echo $f $(head -c2 $f); done; exit 3";

/// Saves steps as a framework does, each without the one before the last. Dies in the midst of the
/// last one: before the first file if `at` is `before`, between two files if it is `between`,
/// within a file if it is `within`; if it is `after`, behind the last file. Says first which steps
/// there are.
const SAVES: &str = r#"
import os, pathlib, shutil, signal, sys
first, last, at, kilobytes = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
os.makedirs('/cairn/run', exist_ok=True)
print(*sorted(os.listdir('/cairn/run')), 'of', len(list(pathlib.Path('/cairn').rglob('checkpoint-*'))))
open('/cairn/run/log', 'a').write('begun\n')
def die(moment):
    if step == last and at == moment:
        os.kill(os.getpid(), signal.SIGKILL)
for step in range(first, last + 1):
    place = f'/cairn/run/checkpoint-{step}'
    os.makedirs(place, exist_ok=True)
    die('before')
    for name in ['config.json', 'model.safetensors', 'optimizer.pt', 'trainer_state.json']:
        with open(f'{place}/{name}', 'w') as file:
            file.write(f'{step} ' * (512 * kilobytes))
            if name[0] == 'o':
                file.flush()
                die('within')
        if name[0] == 'm':
            die('between')
    die('after')
    shutil.rmtree(f'/cairn/run/checkpoint-{step - 2}', ignore_errors=True)
"#;

fn saves(sandbox: &Sandbox, options: &[&str], arguments: [&str; 4]) -> Ran {
    let program = sandbox.work().join("saves.py");
    fs::write(&program, SAVES).expect("writes");
    let out = sandbox.out();
    let run = ["run", "--job", "train", "--persist", out.to_str().expect("UTF-8")];
    let command = ["--", "python3", program.to_str().expect("UTF-8")];
    sandbox.cairn(&[&run[..], options, &command[..], &arguments[..]].concat())
}

#[test]
fn step_that_a_killed_run_did_not_finish_is_set_aside_before_the_next_begins() {
    for at in ["before", "between", "within"] {
        let sandbox = Sandbox::new();
        saves(&sandbox, &[], ["1", "4", at, "9"]).ends_with(137);
        let ran = saves(&sandbox, &["--resume", "as-is"], ["9", "8", "never", "9"]);
        ran.prints("checkpoint-2 checkpoint-3 checkpoint-4 log of 3\n");
        let sandbox = Sandbox::new();
        saves(&sandbox, &[], ["1", "4", at, "9"]).ends_with(137);
        let ran = saves(&sandbox, &[], ["4", "5", "never", "9"]).succeeds();
        let said = "checkpoint run/checkpoint-4 is set aside in /cairn/.cairn-damaged/unfinished";
        let ran = ran.says(said).says("newest whole checkpoint run/checkpoint-3");
        ran.prints("checkpoint-2 checkpoint-3 log of 2\n");
        let whole = "4 ".repeat(512 * 9);
        assert_eq!(sandbox.drained("run/checkpoint-4/optimizer.pt"), whole);
        let aside = sandbox.out().join(".cairn-damaged/unfinished/run/unfinished-checkpoint-4");
        assert_eq!(aside.join("config.json").exists(), at != "before");
        assert!(aside.is_dir(), "{at}");
    }
}

/// Mechanism: each unfinished step that was set aside stayed. Consequence: a job that was killed
/// again and again filled its store with them.
#[test]
fn steps_that_are_set_aside_do_not_fill_the_store() {
    let sandbox = Sandbox::new();
    let tier = ["--tier", "ram:4M"];
    let numbers: Vec<String> = (1..12).map(|step: u32| step.to_string()).collect();
    for round in 0..4 {
        let (first, last) = (&numbers[2 * round], &numbers[2 * round + 2]);
        saves(&sandbox, &tier, [first, last, "within", "300"]).ends_with(137);
    }
    let ran = saves(&sandbox, &tier, ["9", "9", "never", "300"]).succeeds();
    let ran = ran.says("checkpoint-9 was never finished").says("it stays where it is");
    ran.prints("checkpoint-7 checkpoint-8 checkpoint-9 log of 3\n");
    assert_eq!(sandbox.drained("run/checkpoint-9/optimizer.pt"), "9 ".repeat(512 * 300));
    assert!(!sandbox.out().join(".cairn-damaged").exists());
}

#[test]
fn directory_that_may_be_whole_or_more_than_a_step_stays_where_it_is() {
    let sandbox = Sandbox::new();
    let saved = |last: &str, at: &str| saves(&sandbox, &[], ["1", last, at, "9"]);
    saved("3", "after").ends_with(137);
    let script = r#"
        cd /cairn
        ls run
        for fold in 1 2; do
            mkdir -p checkpoints/fold-$fold ck/checkpoint_$fold
            echo best | tee checkpoints/fold-$fold/last.pt ck/checkpoint_$fold/last.pt > more
            sleep 0.1
        done
        echo config > ck/checkpoint_1/config
        mkdir -p empty/checkpoint-4 run/checkpoint-1.old
        exec python3 -c '
import os
names = ("checkpoints/fold-2/new.pt", "ck/checkpoint_2/log", "checkpoint-7.tmp", "run/checkpoint-3/log")
torn = [open(f"/cairn/{name}", "a") for name in names]
for file in torn:
    file.write("half")
    file.flush()
os.kill(os.getpid(), 9)'
    "#;
    let ran = again(&sandbox, "train", &[], script).ends_with(137);
    ran.prints("checkpoint-1\ncheckpoint-2\ncheckpoint-3\nlog\n");
    let list = "cd /cairn; ls -A; ls -A run ck ck/checkpoint_2 checkpoints/fold-2 empty";
    let ran = again(&sandbox, "train", &[], list);
    ran.prints(
        "checkpoint-7.tmp\ncheckpoints\nck\nempty\nmore\nrun\n\
         checkpoints/fold-2:\nlast.pt\nnew.pt\n\n\
         ck:\ncheckpoint_1\ncheckpoint_2\n\n\
         ck/checkpoint_2:\nlast.pt\nlog\n\n\
         empty:\ncheckpoint-4\n\n\
         run:\ncheckpoint-1\ncheckpoint-1.old\ncheckpoint-2\ncheckpoint-3\nlog\n",
    );
}

#[test]
fn nothing_is_set_aside_after_a_run_that_succeeded() {
    let sandbox = Sandbox::new();
    let step = "mkdir -p /cairn/checkpoint-$n; touch /cairn/checkpoint-$n/a";
    let whole = "touch /cairn/checkpoint-$n/trainer_state.json";
    let script = format!("n=1; {step}; {whole}; sleep 0.2; n=2; {step}; {whole}; n=3; {step}");
    sandbox.cairn(&["run", "--job", "ok", "--", "bash", "-c", &script]).succeeds();
    let ran = sandbox.cairn(&["run", "--job", "ok", "--", "ls", "-A", "/cairn"]);
    ran.prints("checkpoint-1\ncheckpoint-2\ncheckpoint-3\n");
}

/// Executes a script in a store that no run uses.
fn exec(sandbox: &Sandbox, job: &str, script: &str) -> Ran {
    sandbox.cairn(&["exec", "--job", job, "--", "bash", "-c", script]).succeeds()
}

fn inode(sandbox: &Sandbox, job: &str, path: &str) -> u64 {
    let ran = exec(sandbox, job, &format!("stat -c %i /cairn/{path}"));
    ran.stdout.trim().parse().expect("a number")
}

/// Leaves the note of a run that was killed in the middle of a repair.
fn leave_note(sandbox: &Sandbox, job: &str, note: &Value) {
    fs::write(sandbox.store(job).join("repair.json"), note.to_string()).expect("writes");
}

/// Step of each checkpoint in the store, and whether it is complete.
fn checkpoints(sandbox: &Sandbox, job: &str) -> Vec<(u64, bool)> {
    let rows = sandbox.cairn(&["ls", "--checkpoints", job, "--json"]).succeeds().json();
    let rows = rows.as_array().expect("a list").iter().filter(|row| row["level"] != "pfs-only");
    rows.map(|row| (row["step"].as_u64().expect("a number"), !row["id"].is_null())).collect()
}

fn name(step: u64) -> Value {
    json!({ "family": "restart.{step}.{any}", "step": step })
}

/// Mechanism: the files of a checkpoint were set aside one by one, without a record.
///
/// Consequence: after a kill, some files were still in place and others in .cairn-damaged. The rest
/// was drained and offered as a checkpoint.
///
/// Fix: a note lists the files to move, and the next run completes the move.
#[test]
fn run_that_is_killed_while_it_sets_a_checkpoint_aside_leaves_no_half_of_it() {
    let sandbox = Sandbox::new();
    sandbox.run("rot", WRITE_FLAT).ends_with(3);
    let aside = |rank: &str| {
        let from = format!("restart.2.{rank}");
        let to = format!(".cairn-damaged/{from}");
        json!({ "inode": inode(&sandbox, "rot", &from), "from": from, "to": to, "replaces": null })
    };
    let moves = [aside("a"), aside("b")];
    let note = json!({ "format": 1, "aside": [name(2)], "goes_on": name(1), "brought": [], "moves": moves });
    kill("KILL", i64::from(sandbox.agent("rot")));
    leave_note(&sandbox, "rot", &note);
    let status = sandbox.cairn(&["status", "rot", "--json"]).succeeds().json();
    assert_eq!(status[0]["sets"].as_array().map(Vec::len), Some(1), "nobody has looked yet");
    exec(&sandbox, "rot", "cd /cairn; mkdir .cairn-damaged; mv restart.2.a .cairn-damaged");
    assert_eq!(checkpoints(&sandbox, "rot"), [(1, true), (2, false)]);
    let ran = sandbox.cairn(&["ls", "--checkpoints", "--newest", "restart.*", "rot"]).succeeds();
    ran.prints("/cairn/restart.1.a\n/cairn/restart.1.b\n");
    sandbox.cairn(&["ls", "--newest", "**/restart.2.*", "rot"]).ends_with(1);
    sandbox
        .cairn(&["drain", "rot"])
        .ends_with(75)
        .says("the repair of its damaged files was interrupted");
    let known = sandbox.manifest("rot")["checkpoints"].clone();
    let sizes: Vec<_> = known.as_array().expect("a list").iter().map(|it| &it["files"]).collect();
    assert!(sizes.iter().all(|files| files.as_array().map(Vec::len) == Some(2)), "{known}");
    sandbox.cairn(&["verify", "rot"]).succeeds().says("4 intact");
    let ran = again(&sandbox, "rot", &[], SHOW_FLAT).ends_with(3).says("goes on from restart.1");
    ran.says("set aside").prints("restart.1.a a1\nrestart.1.b b1\n");
    assert_eq!(checkpoints(&sandbox, "rot"), [(1, true)]);
    exec(&sandbox, "rot", "ls /cairn/.cairn-damaged").prints("restart.2.a\nrestart.2.b\n");
    assert!(!sandbox.store("rot").join("repair.json").exists());
    sandbox.cairn(&["drain", "rot"]).succeeds();
}

#[test]
fn run_that_is_killed_while_it_puts_a_checkpoint_right_leaves_the_rest_to_the_next() {
    let sandbox = Sandbox::new();
    sandbox.run("rot", WRITE_FLAT).ends_with(3);
    let of = |path: &str| sandbox.entry("rot", path);
    let damaged = ["restart.2.a", "restart.2.b"].map(|path| {
        let entry = of(path);
        json!([entry["inode"], entry["version"]])
    });
    exec(
        &sandbox,
        "rot",
        "cd /cairn; mkdir -p .cairn-damaged/.cairn-building; for rank in a b; do cp -p restart.2.$rank .cairn-damaged/.cairn-building; done",
    );
    let put = |rank: &str, replaces: &Value| {
        let to = format!("restart.2.{rank}");
        let from = format!(".cairn-damaged/.cairn-building/{to}");
        let inode = inode(&sandbox, "rot", &from);
        json!({ "inode": inode, "from": from, "to": to, "replaces": replaces })
    };
    let moves = [put("a", &damaged[0]), put("b", &damaged[1])];
    let note =
        json!({ "format": 1, "aside": [], "goes_on": name(2), "brought": [], "moves": moves });
    leave_note(&sandbox, "rot", &note);
    exec(&sandbox, "rot", "cd /cairn; mv .cairn-damaged/.cairn-building/restart.2.a restart.2.a");
    assert_eq!(checkpoints(&sandbox, "rot"), [(1, true), (2, false)]);
    sandbox.cairn(&["drain", "rot"]).ends_with(75);
    assert_eq!(of("restart.2.a")["inode"], damaged[0][0], "the copy is of the file that was there");
    let ran = again(&sandbox, "rot", &[], SHOW_FLAT).ends_with(3);
    let ran = ran.says("finished a repair of checkpoints that an earlier run had begun");
    ran.prints("restart.1.a a1\nrestart.1.b b1\nrestart.2.a a2\nrestart.2.b b2\n");
    // The checkpoints and their copies are unchanged.
    let rows = sandbox.cairn(&["ls", "--checkpoints", "rot", "--json"]).succeeds().json();
    let row = |at: usize| (rows[at]["id"].as_u64(), rows[at]["level"].as_str());
    assert_eq!([row(0), row(1)], [(Some(1), Some("pfs")), (Some(2), Some("pfs"))]);
    assert_eq!(of("restart.2.b")["inode"], moves[1]["inode"]);
    exec(&sandbox, "rot", "ls -A /cairn | grep -c damaged || true").prints("0\n");
}

#[test]
fn run_that_is_killed_while_it_brings_an_older_checkpoint_in_leaves_the_rest_to_the_next() {
    let sandbox = Sandbox::new();
    sandbox.run("rot", &WRITE.replace("exit 3", "exit 0")).succeeds().says("store removed");
    let out = sandbox.out().display().to_string();
    again(&sandbox, "rot", &["--persist", &out, "--stage", "--newest-only"], "exit 3").ends_with(3);
    let build = format!(
        "cd /cairn; mkdir -p .cairn-damaged/.cairn-building/ckpt-1; cp -p {out}/ckpt-1/* .cairn-damaged/.cairn-building/ckpt-1"
    );
    exec(&sandbox, "rot", &build);
    let one = |from: &str, to: &str| json!({ "inode": inode(&sandbox, "rot", from), "from": from, "to": to, "replaces": null });
    let moves = [
        one("ckpt-2", ".cairn-damaged/ckpt-2"),
        one(".cairn-damaged/.cairn-building/ckpt-1", "ckpt-1"),
    ];
    let name = |step: u64| json!({ "family": "ckpt-{step}", "step": step });
    let brought = ["ckpt-1/a", "ckpt-1/b"];
    let note = json!({
        "format": 1, "aside": [name(2)], "goes_on": name(1), "brought": brought, "moves": moves
    });
    leave_note(&sandbox, "rot", &note);
    exec(&sandbox, "rot", "mv /cairn/ckpt-2 /cairn/.cairn-damaged");
    assert_eq!(checkpoints(&sandbox, "rot"), []);
    let ran = again(&sandbox, "rot", &[], SHOW).ends_with(3);
    ran.says("goes on from ckpt-1, which was brought in").prints(FIRST);
    assert_eq!(checkpoints(&sandbox, "rot"), [(1, true)]);
    assert_eq!(sandbox.manifest("rot")["checkpoints"][0]["step"], 1);
}

#[test]
fn what_a_run_that_was_killed_had_only_built_goes() {
    let sandbox = Sandbox::new();
    sandbox.run("rot", WRITE).ends_with(3);
    let build = "mkdir -p /cairn/.cairn-damaged/.cairn-building/ckpt-2; echo half >/cairn/.cairn-damaged/.cairn-building/ckpt-2/b";
    exec(&sandbox, "rot", build);
    sandbox.cairn(&["drain", "rot"]).succeeds();
    assert!(!sandbox.drained_names().iter().any(|name| name.starts_with(".cairn-damaged/")));
    again(&sandbox, "rot", &[], "ls -A /cairn; exit 3").ends_with(3).prints("ckpt-1\nckpt-2\n");
    // A note of a newer version is left to that version.
    leave_note(&sandbox, "rot", &json!({ "format": 2 }));
    let ran = again(&sandbox, "rot", &["--resume", "as-is"], SHOW).ends_with(1);
    ran.says("cannot be finished").says("has format 2");
}

/// Mechanism: files were moved, and then directories that had become empty were removed.
///
/// Consequence: a directory with a link or an empty directory in it stayed, and looked like the
/// newest checkpoint.
///
/// Fix: the directory is moved as a whole.
#[test]
fn directory_of_a_damaged_checkpoint_is_set_aside_with_all_that_is_in_it() {
    let sandbox = Sandbox::new();
    let write = WRITE.replace(
        "mv /cairn/new",
        "ln -s a /cairn/new/latest; mkdir /cairn/new/logs; mv /cairn/new",
    );
    sandbox.run_undrained("rot", &write).ends_with(3);
    flip(&sandbox, "rot", b"b2");
    let ran = again(&sandbox, "rot", &[], "cd /cairn; ls; ls .cairn-damaged/ckpt-2; exit 3");
    ran.ends_with(3).says("goes on from ckpt-1").prints("ckpt-1\na\nb\nlatest\nlogs\n");
    // A later damaged checkpoint of the same name gets a place of its own.
    again(&sandbox, "rot", &[], &write.replace("1 2", "2").replace(" $step |", " 7 |"))
        .ends_with(3);
    flip(&sandbox, "rot", b"b7");
    let ran =
        again(&sandbox, "rot", &[], "cd /cairn; ls; ls .cairn-damaged .cairn-damaged/2; exit 3");
    ran.ends_with(3)
        .says("goes on from ckpt-1")
        .prints("ckpt-1\n.cairn-damaged:\n2\nckpt-2\n\n.cairn-damaged/2:\nckpt-2\n");
}

/// Replaces a copy by another whole one, as if the drain had not reached the newest version yet.
fn make_older(sandbox: &Sandbox, job: &str, path: &str, other: &str) {
    let copied = fs::copy(sandbox.out().join(other), sandbox.out().join(path)).expect("copies");
    assert!(copied > 0);
    let mut manifest = sandbox.manifest(job);
    let (crc32c, mtime) =
        (sandbox.entry(job, other)["crc32c"].clone(), sandbox.entry(job, other)["mtime"].clone());
    for entry in manifest["files"].as_array_mut().expect("a list") {
        if entry["path"] == path {
            entry["version"] = json!(entry["version"].as_u64().expect("a number") - 1);
            (entry["crc32c"], entry["mtime"]) = (crc32c.clone(), mtime.clone());
        }
    }
    // The format without a checksum of the file.
    manifest["format"] = json!(1);
    let text = serde_json::to_vec(&manifest).expect("JSON");
    fs::write(sandbox.out().join(format!("cairn-manifest.{job}.json")), text).expect("writes");
}

#[test]
fn copy_of_another_version_of_a_file_is_not_taken() {
    let sandbox = Sandbox::new();
    sandbox.run("rot", WRITE).ends_with(3);
    kill("KILL", i64::from(sandbox.agent("rot")));
    make_older(&sandbox, "rot", "ckpt-2/b", "ckpt-1/b");
    flip(&sandbox, "rot", b"b2");
    let ran = again(&sandbox, "rot", &[], SHOW).ends_with(3);
    ran.says("set aside").says("goes on from ckpt-1").prints(FIRST);
}

/// Takes a lease, so that nobody else can open the file until the result is dropped. Returns None
/// if the file system has no leases.
fn lease(path: &Path) -> Option<File> {
    let file = File::options().read(true).write(true).open(path).expect("it is there");
    // SAFETY: the call takes a lease on an open file of ours and no pointer; the signal that
    // announces another opener is ignored by default.
    let taken = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
    (taken == 0).then_some(file)
}

/// Mechanism: every error with a copy counted as damage.
///
/// Consequence: a copy that could not be opened for a moment was taken for damaged from then on.
///
/// Fix: such an error is reported and does not change the state of the copy.
#[test]
fn copy_that_cannot_be_read_is_not_taken_for_a_damaged_one() {
    let sandbox = Sandbox::new();
    sandbox.run("rot", WRITE).ends_with(3);
    flip(&sandbox, "rot", b"b2");
    // SAFETY: ignores a signal, which is the default here because the test installs no handler for
    // it.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    let Some(held) = lease(&sandbox.out().join("ckpt-2/b")) else {
        eprintln!("not tested: no leases on files here");
        return;
    };
    let ran = again(&sandbox, "rot", &["--drain", "none"], SHOW).ends_with(3);
    let ran = ran.says("ckpt-2/b cannot be read: resource temporarily unavailable");
    ran.says("goes on from ckpt-1").prints(FIRST);
    drop(held);
    let manifest = sandbox.manifest("rot");
    let files = manifest["files"].as_array().expect("a list");
    assert!(files.iter().all(|entry| entry["damaged"] != true), "{manifest}");
}

#[test]
fn checkpoint_that_there_is_no_room_to_put_right_is_set_aside() {
    let sandbox = Sandbox::new();
    let fill = "head -c 100000000 /dev/zero >/cairn/filler; exit 3";
    sandbox.run("rot", &WRITE.replace("exit 3", fill)).ends_with(3);
    flip(&sandbox, "rot", b"b2");
    let ran = again(&sandbox, "rot", &[], SHOW).ends_with(3);
    let ran = ran.says("the store has no room for a new copy of /ckpt-2/b: 320 KiB are needed");
    ran.says("goes on from ckpt-1").prints(FIRST);
}

/// Mechanism: the message gave only the reason why checkpoints could not be compared.
///
/// Consequence: the user did not know what to do, nor that a run does not need the comparison.
///
/// Fix: the message says that, too.
#[test]
fn run_whose_checkpoints_cannot_be_compared_is_given_up() {
    let sandbox = Sandbox::new();
    sandbox.run("rot", WRITE).ends_with(3);
    sandbox.agent("rot");
    fs::write(sandbox.store("rot").join("checkpoints.json"), "{").expect("writes");
    let ran = again(&sandbox, "rot", &[], SHOW).ends_with(1);
    let ran = ran.says("cannot verify or repair all").says("checkpoints.json is damaged");
    ran.says("go on with the files as they are: --resume as-is").prints("");
    again(&sandbox, "rot", &["--resume", "as-is"], SHOW).ends_with(3).prints(BOTH);
}

#[test]
fn of_two_runs_that_go_on_in_a_store_one_repairs_and_the_other_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.run("rot", WRITE).ends_with(3);
    flip(&sandbox, "rot", b"b2");
    kill("KILL", i64::from(sandbox.agent("rot")));
    let path = sandbox.store("rot").join("agent.lock");
    let agents = File::options().write(true).open(path).expect("is there");
    // SAFETY: the call locks a file of ours or fails; no pointer is involved.
    let locks = |how| unsafe { libc::flock(agents.as_raw_fd(), how | libc::LOCK_NB) == 0 };
    eventually("the agent is gone", || locks(libc::LOCK_EX));
    // While the agent's lock is held, nothing is repaired.
    let mut command = sandbox.command(&["run", "--job", "rot", "--", "bash", "-c", SHOW]);
    let first = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    eventually("it has the store", || {
        sandbox.cairn(&["status", "rot", "--json"]).json()[0]["state"] == "running"
    });
    again(&sandbox, "rot", &[], "exit 4").refused_with("rot");
    assert!(locks(libc::LOCK_UN));
    let ran = Ran::of(first.wait_with_output().expect("ends"), "run".to_string());
    ran.ends_with(3).says("/ckpt-2/b is repaired from").prints(BOTH);
}
