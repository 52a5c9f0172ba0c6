//! New stores filled with what a job drained earlier: after the node was wiped, or on another one.

mod common;

use common::{Ran, Sandbox};
use std::fs;

/// Three checkpoints of two files each, a file of its own, and many small ones.
const WRITE: &str = "
for step in 1 2 3; do
    mkdir /cairn/ckpt-$step
    for rank in a b; do head -c 300000 /dev/zero | tr '\\0' $step >/cairn/ckpt-$step/$rank; done
done
echo input >/cairn/input; ln -s input /cairn/link
mkdir /cairn/many; for n in {a..z}; do echo $n >/cairn/many/$n; done";

/// What is in a store, with the first byte of each part of a checkpoint.
const SHOW: &str = "
cd /cairn; for d in ckpt-*; do echo $d $(ls $d) $(head -c1 $d/a; head -c1 $d/b); done
cat link; cat many/* | tail -1; ls many | wc -l; ls -A | tr '\\n' ' '";

fn drained() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.run("job", WRITE).succeeds().says("store removed");
    sandbox
}

fn spoil(sandbox: &Sandbox, path: &str) {
    let path = sandbox.out().join(path);
    let mut content = fs::read(&path).expect("is drained");
    let middle = content.len() / 2;
    content[middle] ^= 1;
    fs::write(&path, content).expect("writes");
}

fn staged(sandbox: &Sandbox, script: &str) -> Ran {
    let out = sandbox.out().display().to_string();
    let arguments = ["run", "--job", "job", "--persist", &out, "--stage"];
    sandbox.cairn(&[&arguments[..], &["--", "bash", "-c", script]].concat())
}

#[test]
fn newest_checkpoint_is_there_before_the_program_starts() {
    let sandbox = drained();
    let ran = staged(&sandbox, SHOW).succeeds().says("brought in, with ckpt-3");
    ran.prints("ckpt-3 a b 33\ninput\nz\n26\nckpt-3 input link many ");
    // The older ones stay where they are.
    assert!(sandbox.drained_names().contains(&"ckpt-1/a".to_string()));
}

#[test]
fn older_checkpoint_takes_the_place_of_a_damaged_one() {
    let sandbox = drained();
    spoil(&sandbox, "ckpt-3/b");
    spoil(&sandbox, "many/g");
    let ran = staged(&sandbox, SHOW).succeeds();
    let ran = ran.says("damaged, left out: many/g").says("ckpt-3 is left out");
    ran.prints("ckpt-2 a b 22\ninput\nz\n25\nckpt-2 input link many ");
}

#[test]
fn missing_copy_counts_as_damaged() {
    let sandbox = drained();
    fs::remove_file(sandbox.out().join("ckpt-3/a")).expect("removes");
    spoil(&sandbox, "ckpt-2/a");
    staged(&sandbox, SHOW)
        .succeeds()
        .prints("ckpt-1 a b 11\ninput\nz\n26\nckpt-1 input link many ");
}

#[test]
fn without_the_option_a_new_store_is_empty_and_that_is_said() {
    let sandbox = drained();
    let ran = sandbox.run("job", "ls /cairn").succeeds();
    ran.says("job job has checkpoint ckpt-3").says("--stage brings that").prints("");
    // Nothing is said of, or brought into, a store that was kept.
    let sandbox = drained();
    staged(&sandbox, "echo new >/cairn/input; rm -r /cairn/ckpt-3; exit 3").ends_with(3);
    let ran = staged(&sandbox, "cat /cairn/input; ls -d /cairn/ckpt-*").ends_with(2);
    assert_eq!(ran.stdout, "new\n", "{}", ran.stderr);
}

#[test]
fn first_run_of_a_job_has_nothing_to_bring_in() {
    let sandbox = Sandbox::new();
    staged(&sandbox, "echo x >/cairn/f").succeeds().says("nothing to bring in");
    let wrong = ["run", "--job", "other", "--stage", "--", "true"];
    sandbox.cairn(&wrong).refused_with("--persist");
}

#[test]
fn store_whose_filling_was_cut_off_is_filled_anew() {
    let sandbox = drained();
    let out = sandbox.out().display().to_string();
    sandbox.cairn(&["restore", &out]).succeeds();
    // As if it had been killed: a part is there, and the mark.
    sandbox.cairn(&["exec", "--job", "job", "--", "bash", "-c", "rm /cairn/ckpt-3/b"]).succeeds();
    fs::write(sandbox.store("job").join("staging"), "").expect("writes");
    staged(&sandbox, SHOW)
        .succeeds()
        .prints("ckpt-3 a b 33\ninput\nz\n26\nckpt-3 input link many ");
}

#[test]
fn restore_brings_back_everything_or_the_newest_but_no_part_of_a_damaged_checkpoint() {
    let sandbox = drained();
    spoil(&sandbox, "ckpt-2/b");
    let out = sandbox.out().display().to_string();
    let ran = sandbox.cairn(&["restore", &out]).ends_with(1).says("checkpoint ckpt-2 is left out");
    ran.says("1 of ");
    let show = ["exec", "--job", "job", "--", "bash", "-c", SHOW];
    let all = "ckpt-1 a b 11\nckpt-3 a b 33\ninput\nz\n26\nckpt-1 ckpt-3 input link many ";
    sandbox.cairn(&show).succeeds().prints(all);
    sandbox.cairn(&["rm", "job", "--discard"]).succeeds();
    let report = sandbox.cairn(&["restore", &out, "--newest", "--json"]).succeeds().json();
    assert_eq!(report["checkpoints"], serde_json::json!(["ckpt-3"]), "{report}");
    sandbox.cairn(&show).prints("ckpt-3 a b 33\ninput\nz\n26\nckpt-3 input link many ");
}
