//! What `cairn run` finds out before the job starts: whether programs would be served at all.

mod common;

use common::{Ran, Sandbox};
use std::fs;
use std::path::Path;

/// A run with another library in the place of Cairn's.
fn run_with(sandbox: &Sandbox, library: &Path) -> Ran {
    let mut command = sandbox.command(&["run", "--job", "probed", "--", "bash", "-c", "echo ran"]);
    command.env("CAIRN_PRELOAD", library);
    Ran::of(command.output().expect("starts"), "run".to_string())
}

#[test]
fn library_that_cannot_be_loaded_is_refused_before_the_program_starts() {
    let sandbox = Sandbox::new();
    let library = sandbox.work().join("libcairn_preload.so");
    fs::write(&library, "no library").expect("writes");
    let ran = run_with(&sandbox, &library).ends_with(1).prints("");
    ran.says("files below the prefix cannot be served")
        .says("the dynamic linker cannot load it: file too short");
    assert!(!sandbox.store("probed").exists(), "a store in which nothing ran is not kept");
}

#[test]
fn library_of_somebody_else_is_refused_and_may_be_insisted_on() {
    let sandbox = Sandbox::new();
    let library = sandbox.work().join("libcairn_preload.so");
    let maps = fs::read_to_string("/proc/self/maps").expect("the kernel tells what is mapped");
    let other =
        maps.lines().find_map(|line| line.split_whitespace().nth(5)?.strip_suffix("libgcc_s.so.1"));
    fs::copy(format!("{}libgcc_s.so.1", other.expect("it is loaded")), &library).expect("copies");
    run_with(&sandbox, &library).ends_with(1).prints("").says("it is not Cairn's");
    let mut command = sandbox.command(&["run", "--discard", "--", "bash", "-c", "echo ran"]);
    command.env("CAIRN_PRELOAD", &library).env("CAIRN_RUN_PROBE", "never");
    Ran::of(command.output().expect("starts"), "run".to_string()).succeeds().prints("ran\n");
}

#[test]
fn probe_leaves_nothing_in_the_store() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run_undrained("clean", "ls -A /cairn").succeeds();
    ran.prints("").says("no files");
}
