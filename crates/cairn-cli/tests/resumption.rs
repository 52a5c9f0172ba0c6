//! Stores that a run goes on in: the newest checkpoint is compared with its checksums first, and what is damaged is put right
//! from its copy, or set aside.

mod common;

use common::session::Session;
use common::{Ran, Sandbox, eventually};
use std::fs;
use std::path::Path;

/// Two checkpoints of two files each. Renamed into place they are complete, whenever the agent looks.
const WRITE: &str = "
for step in 1 2; do
    mkdir /cairn/new
    for rank in a b; do
        head -c 300000 /dev/zero | tr '\\0' $step | sed s/^/$rank/ >/cairn/new/$rank
    done
    mv /cairn/new /cairn/ckpt-$step
done
exit 3";

/// What there is, with the first bytes of each file, and whether each is whole.
const SHOW: &str = "
cd /cairn; for f in ckpt-*/*; do
    echo $f $(head -c2 $f) $(tail -c +2 $f | tr -d ${f:5:1} | wc -c)
done; exit 3";

/// What that prints of whole ones.
const FIRST: &str = "ckpt-1/a a1 0\nckpt-1/b b1 0\n";
const BOTH: &str = "ckpt-1/a a1 0\nckpt-1/b b1 0\nckpt-2/a a2 0\nckpt-2/b b2 0\n";

/// Flips a bit in the middle of the data that begin like this.
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
    ran.says("put right from").prints(BOTH);
    // It is the checkpoint that it was, there and outside.
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
    // Nothing is lost, and a program that looks for the newest directory does not find it.
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
    let ran = again(&sandbox, "rot", &["--persist", &out, "--stage"], SHOW).ends_with(3);
    ran.prints("ckpt-2/a a2 0\nckpt-2/b b2 0\n");
    flip(&sandbox, "rot", b"b2");
    spoil(&sandbox.out().join("ckpt-2/b"));
    let ran = again(&sandbox, "rot", &[], SHOW).ends_with(3);
    ran.says("set aside").says("goes on from ckpt-1, which was brought in").prints(FIRST);
    // It is not there twice, and is as safe as before.
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
    ran.says("/ckpt-2/b is put right from").prints(BOTH);
    assert_eq!(sandbox.manifest("rot")["checkpoints"].as_array().map(Vec::len), Some(2));
}

#[test]
fn nothing_is_compared_where_that_is_not_wanted() {
    let sandbox = Sandbox::new();
    sandbox.run("rot", WRITE).ends_with(3);
    flip(&sandbox, "rot", b"b2");
    let ran = again(&sandbox, "rot", &["--no-verify"], SHOW).ends_with(3);
    assert!(!ran.stderr.contains("is damaged"), "{}", ran.stderr);
    ran.prints(&BOTH.replace("b2 0", "b2 1"));
}
