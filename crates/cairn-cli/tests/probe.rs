//! Checks of `cairn run` before the job starts: whether programs would be served at all.

mod common;

use common::{Ran, Sandbox};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a job with another library in place of Cairn's.
fn run_with(sandbox: &Sandbox, library: &Path) -> Ran {
    let mut command = sandbox.command(&["run", "--job", "probed", "--", "bash", "-c", "echo ran"]);
    command.env("CAIRN_PRELOAD", library);
    Ran::of(command.output().expect("starts"), "run".to_string())
}

/// Foreign library under the name of Cairn's.
fn somebody_elses(sandbox: &Sandbox) -> PathBuf {
    let library = sandbox.work().join("libcairn_preload.so");
    let maps = fs::read_to_string("/proc/self/maps").expect("the kernel tells what is mapped");
    let other =
        maps.lines().find_map(|line| line.split_whitespace().nth(5)?.strip_suffix("libgcc_s.so.1"));
    fs::copy(format!("{}libgcc_s.so.1", other.expect("it is loaded")), &library).expect("copies");
    library
}

/// Report of `cairn check --self` with a variable set; asserts its exit code.
fn self_test(sandbox: &Sandbox, variable: (&str, &Path), code: i32) -> Value {
    let mut command = sandbox.command(&["check", "--self", "--json"]);
    let output = command.env(variable.0, variable.1).output().expect("starts");
    let report = Ran::of(output, "check --self".to_string()).ends_with(code).json();
    assert_eq!(report["exit_code"], code);
    assert_eq!(report["served"], code != 4, "{report:#}");
    report
}

#[test]
fn self_test_says_what_is_loaded_and_serves_and_leaves_nothing() {
    let sandbox = Sandbox::new();
    let ours = Path::new(common::CAIRN).with_file_name("libcairn_preload.so");
    let ours = ours.canonicalize().expect("it was built");
    let report = self_test(&sandbox, ("CAIRN_PRELOAD", &ours), 0);
    assert_eq!(report["loaded"].as_str(), ours.to_str());
    assert!(report["glibc"].as_str().is_some_and(|version| version.starts_with("2.")));
    assert!(report["in_front"].as_u64() > Some(300), "{report:#}");
    assert_eq!(report["displaced"], Value::Object(serde_json::Map::new()));
    let absent = report["absent"].as_array().expect("a list");
    assert!(absent.contains(&"MPI_Init".into()) && !absent.contains(&"open".into()), "{report:#}");
    let said = sandbox.cairn(&["check", "--self", "--mount", "/elsewhere"]).succeeds();
    said.says("C library: glibc 2.").says("/elsewhere: served");
    let users = fs::read_dir(sandbox.root()).expect("the root is there").flatten();
    assert_eq!(users.count(), 0, "the store is gone");
    sandbox.cairn(&["check", "--self", "true"]).refused_with("--self");
}

#[test]
fn self_test_explains_a_library_that_cannot_serve() {
    let sandbox = Sandbox::new();
    let broken = sandbox.work().join("broken.so");
    fs::write(&broken, "no library").expect("writes");
    for (library, trouble) in
        [(broken, "file too short"), (somebody_elses(&sandbox), "not Cairn's")]
    {
        let report = self_test(&sandbox, ("CAIRN_PRELOAD", &library), 4);
        assert_eq!(report["loaded"], Value::Null);
        assert!(report["trouble"].as_str().is_some_and(|why| why.contains(trouble)), "{report:#}");
    }
}

#[test]
fn self_test_names_functions_that_another_library_stands_in_front_of() {
    let sandbox = Sandbox::new();
    // A library of this name is loaded before ours.
    let other = sandbox.work().join("libasan.so.other");
    let source = sandbox.work().join("other.c");
    fs::write(&source, "int mkfifoat(void) { return -1; }").expect("writes");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-w", "-o"]).args([&other, &source]);
    assert!(compiler.status().is_ok_and(|status| status.success()));
    let report = self_test(&sandbox, ("LD_PRELOAD", &other), 3);
    assert_eq!(report["displaced"]["mkfifoat"].as_str(), other.to_str());
    assert_eq!(report["displaced"].as_object().map(serde_json::Map::len), Some(1), "{report:#}");
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
    let library = somebody_elses(&sandbox);
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
