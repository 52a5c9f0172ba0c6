//! `--map`: directories of the store with their own places below the persist directory, for every
//! command that uses drained files.

mod common;

use common::session::Session;
use common::{Ran, Sandbox, eventually};
use std::fs;
use std::os::unix::fs::MetadataExt;

const MAP: &str = "/cairn/out=results/run7";

/// Runs a script as job `melt` with these options.
fn run(sandbox: &Sandbox, options: &[&str], script: &str) -> Ran {
    let out = sandbox.out();
    let first = ["run", "--job", "melt", "--persist", out.to_str().expect("UTF-8")];
    sandbox.cairn(&[&first, options, &["--", "bash", "-c", script]].concat())
}

fn verify(sandbox: &Sandbox) {
    let out = sandbox.out();
    sandbox.cairn(&["verify", "--persist", out.to_str().expect("UTF-8")]).succeeds();
}

#[test]
fn directories_land_at_their_places_and_follow_what_the_program_does() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "melt", &["--map", MAP]);
    session.shell("mkdir -p /cairn/out/deep; echo one >/cairn/out/a; echo two >/cairn/out/deep/b");
    session.shell("echo three >/cairn/plain; ln -s a /cairn/out/link");
    let arrived = |name: &str| sandbox.out().join(name).exists();
    eventually("all is there", || arrived("results/run7/link") && arrived("plain"));
    eventually("all is there", || arrived("results/run7/deep/b"));
    sandbox.cairn(&["status", "melt"]).succeeds().says("/cairn/out to results/run7");
    session.shell("mv /cairn/out/a /cairn/moved; mv /cairn/plain /cairn/out/plain");
    eventually("they are moved", || arrived("moved") && arrived("results/run7/plain"));
    eventually("nothing is left", || !arrived("results/run7/a") && !arrived("plain"));
    session.shell("rm /cairn/out/deep/b; rmdir /cairn/out/deep");
    eventually("it is gone", || !arrived("results/run7/deep"));
    assert_eq!(session.end(), Some(0));
    let names = ["moved", "results", "results/run7", "results/run7/link", "results/run7/plain"];
    assert_eq!(sandbox.drained_names(), names);
    assert_eq!(sandbox.drained("results/run7/plain"), "three\n");
    assert_eq!(sandbox.entry("melt", "out/plain")["state"], "drained");
    assert_eq!(sandbox.manifest("melt")["map"][0]["to"], "results/run7");
    verify(&sandbox);
}

#[test]
fn later_runs_and_restored_stores_find_files_where_they_landed() {
    let sandbox = Sandbox::new();
    run(
        &sandbox,
        &["--map", MAP],
        "mkdir /cairn/out; echo 1 >/cairn/out/md_step1.cpt; echo x >/cairn/y",
    )
    .succeeds();
    // Also without giving the option again.
    let script = "cat /cairn/out/md_step1.cpt /cairn/y; echo 2 >/cairn/out/md_step2.cpt";
    let ran = run(&sandbox, &["--stage"], script).succeeds();
    assert_eq!(ran.stdout, "1\nx\n");
    assert_eq!(sandbox.drained("results/run7/md_step2.cpt"), "2\n");
    assert!(!sandbox.out().join("out").exists());
    verify(&sandbox);

    let out = sandbox.out();
    let out = out.to_str().expect("UTF-8");
    // Selected by their place outside, and by their path in the store.
    sandbox.cairn(&["restore", out, "--only", "out/*"]).succeeds().says("2 files");
    sandbox.cairn(&["rm", "melt", "--discard"]).succeeds();
    sandbox.cairn(&["restore", out, "--only", "results/*"]).succeeds().says("2 files");
    // A file that is already there is found to be identical before it is removed from the store.
    let placed =
        || fs::metadata(sandbox.out().join("results/run7/md_step1.cpt")).expect("is there");
    let before = placed().ino();
    sandbox.cairn(&["drain", "melt"]).succeeds();
    sandbox.cairn(&["rm", "melt:/out/md_step1.cpt"]).succeeds();
    assert_eq!(placed().ino(), before);
    let kept = run(&sandbox, &["--map", MAP], "ls /cairn/out; echo 3 >/cairn/out/md_step3.cpt");
    assert_eq!(kept.succeeds().stdout, "md_step2.cpt\n");
    for step in [1, 2, 3] {
        assert_eq!(
            sandbox.drained(&format!("results/run7/md_step{step}.cpt")),
            format!("{step}\n")
        );
    }
    verify(&sandbox);
    // Damage of a copy is found at its place outside.
    fs::write(sandbox.out().join("results/run7/md_step2.cpt"), "4\n").expect("writes");
    sandbox.cairn(&["verify", "--persist", out]).ends_with(1).says("results/run7/md_step2.cpt");
}

#[test]
fn what_would_land_in_a_place_of_another_stays_in_the_store_and_the_rest_arrives() {
    let sandbox = Sandbox::new();
    let script = "mkdir -p /cairn/out /cairn/results/run7 /cairn/results/other
        echo one >/cairn/out/a; echo two >/cairn/results/run7/a; echo three >/cairn/results/other/a";
    run(&sandbox, &["--map", MAP], script)
        .ends_with(75)
        .says("/results/run7/a cannot be drained: --map puts a directory in its place");
    assert_eq!(sandbox.drained("results/run7/a"), "one\n");
    assert_eq!(sandbox.drained("results/other/a"), "three\n");
    run(&sandbox, &[], "mv /cairn/results/run7/a /cairn/b; rmdir /cairn/results/run7").succeeds();
    assert_eq!(
        (sandbox.drained("b"), sandbox.drained("results/run7/a")),
        ("two\n".into(), "one\n".into())
    );
    verify(&sandbox);
}

#[test]
fn mappings_that_cannot_be_or_contradict_what_is_there_are_refused() {
    let sandbox = Sandbox::new();
    for (options, part) in [
        (&["--map", "out"][..], "write FROM=TO"),
        (
            &["--map", "/other/out=x"],
            "does not lie below /cairn; relative to the prefix, write other/out",
        ),
        (&["--map", "out=/x"], "relative to the persist directory"),
        (&["--map", "out=../x"], "must stay below the persist directory"),
        (&["--map", "/cairn=x"], "cannot be mapped to x"),
        (&["--map", "a=x,b=x/y"], "cannot be mapped into each other"),
        (&["--map", "a=x", "--scope", "rank"], "--scope rank"),
    ] {
        run(&sandbox, options, "true").refused_with(part);
    }
    run(&sandbox, &["--map", MAP], "mkdir /cairn/out; echo 1 >/cairn/out/a; exit 3").ends_with(3);
    run(&sandbox, &["--map", "out=elsewhere"], "true")
        .refused_with("contradicts the store of job melt, which was made with out=results/run7");
    fs::write(sandbox.work().join("cairn.toml"), "[run]\nmap = [\"out=results/run7\"]\n")
        .expect("writes");
    run(&sandbox, &[], "true").succeeds();
    fs::remove_file(sandbox.work().join("cairn.toml")).expect("removes");
    assert!(!sandbox.store("melt").exists());
    let before = sandbox.drained_names();
    run(&sandbox, &["--map", "out=elsewhere"], "true").refused_with(
        "contradicts earlier drains of job melt to that directory, made with out=results/run7",
    );
    assert_eq!(sandbox.drained_names(), before);
}
