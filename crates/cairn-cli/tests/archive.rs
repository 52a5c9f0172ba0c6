//! Complete checkpoints go to an object store, whatever the server does meanwhile. The server here plays what real ones do when
//! they are in trouble.

mod common;

#[path = "common/object_store.rs"]
mod object_store;

use common::{Ran, Sandbox};
use object_store::{ObjectStore, Trouble};
use std::process::Command;

/// Two checkpoints: one of a small and one of a large file, which comes in parts.
const SCRIPT: &str = "head -c 100 /dev/zero > /cairn/state.100; \
                      head -c 9000000 /dev/urandom > /cairn/state.200; wait";

/// `cairn run` of a shell script that archives in `server`.
fn command(sandbox: &Sandbox, server: &ObjectStore, script: &str) -> Command {
    let out = sandbox.out();
    let persist = out.to_str().expect("UTF-8");
    let words = ["run", "--job", "melt", "--persist", persist, "--archive", "s3://runs/deep/er"];
    let mut command = sandbox.command(&[&words[..], &["--", "bash", "-c", script]].concat());
    command
        .env("CAIRN_ARCHIVE_ENDPOINT", server.url())
        .env("CAIRN_RUN_TIER", "ram:64M")
        .env("AWS_ACCESS_KEY_ID", "key-of-the-test")
        .env("AWS_SECRET_ACCESS_KEY", "secret-of-the-test")
        .env("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent");
    command
}

fn run(sandbox: &Sandbox, server: &ObjectStore, script: &str) -> Ran {
    Ran::of(command(sandbox, server, script).output().expect("cairn starts"), script.to_string())
}

fn manifests(server: &ObjectStore) -> Vec<String> {
    let names = server.names().into_iter();
    names.filter(|name| name.starts_with("runs/deep/er/melt/cairn-checkpoint.")).collect()
}

/// That both checkpoints are there, as the persist directory has them.
fn assert_archived(sandbox: &Sandbox, server: &ObjectStore) {
    for name in ["state.100", "state.200"] {
        let there = server.object(&format!("runs/deep/er/melt/{name}")).expect("is there");
        assert!(there == std::fs::read(sandbox.out().join(name)).expect("is drained"), "{name}");
    }
    assert_eq!(manifests(server).len(), 2, "{:?}", server.names());
}

#[test]
fn complete_checkpoints_are_there_when_the_run_ends_and_the_store_is_removed() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    let ran = run(&sandbox, &server, SCRIPT);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("2 checkpoints, 8.58 MiB, in s3://runs/deep/er, verified"),
        "{}",
        ran.stderr
    );
    assert!(!sandbox.store("melt").exists(), "{}", ran.stderr);
    assert_archived(&sandbox, &server);
}

#[test]
fn server_in_trouble_is_asked_again_and_nothing_is_said_to_be_there_before_it_is() {
    for trouble in [Trouble::SlowDown, Trouble::Hangup, Trouble::WrongChecksum] {
        let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[trouble; 3]));
        let ran = run(&sandbox, &server, SCRIPT);
        assert_eq!(ran.code, Some(0), "{trouble:?}: {}", ran.stderr);
        assert_archived(&sandbox, &server);
    }
}

#[test]
fn server_that_keeps_other_bytes_than_it_got_has_no_checkpoint() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[Trouble::NoChecksums; 100]));
    let ran = run(&sandbox, &server, SCRIPT);
    assert_eq!(ran.code, Some(75), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("cannot read back s3://runs/deep/er/melt/state."),
        "{}",
        ran.stderr
    );
    assert!(manifests(&server).is_empty() && sandbox.store("melt").exists());
}

#[test]
fn server_that_refuses_leaves_the_store_with_the_reason() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[Trouble::Forbidden; 100]));
    let ran = run(&sandbox, &server, SCRIPT);
    assert_eq!(ran.code, Some(75), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("archive not complete") && ran.stderr.contains("AccessDenied"),
        "{}",
        ran.stderr
    );
    assert!(sandbox.store("melt").exists() && manifests(&server).is_empty());
    for file in ["job.json", "agent.log", "checkpoints.json"] {
        let text = std::fs::read_to_string(sandbox.store("melt").join(file)).unwrap_or_default();
        assert!(!text.contains("-of-the-test") && !text.contains("X-Amz"), "{file}: {text}");
    }
}

#[test]
fn agent_without_credentials_says_so() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    let mut command = command(&sandbox, &server, SCRIPT);
    command.env_remove("AWS_ACCESS_KEY_ID");
    let ran = Ran::of(command.output().expect("cairn starts"), "run".to_string());
    assert_eq!(ran.code, Some(75), "{}", ran.stderr);
    assert!(ran.stderr.contains("has no credentials for the archive"), "{}", ran.stderr);
    assert!(server.names().is_empty());
}

#[test]
fn what_is_there_is_not_sent_again_and_what_was_replaced_is_no_checkpoint_any_more() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    let script = format!("{SCRIPT}; exit 3");
    assert_eq!(run(&sandbox, &server, &script).code, Some(3));
    assert_archived(&sandbox, &server);
    let sent = server.written();
    // Another agent, which knows nothing of what the first one did.
    assert_eq!(run(&sandbox, &server, "exit 3").code, Some(3));
    assert_eq!(server.written(), sent);
    let before = manifests(&server);
    assert_eq!(run(&sandbox, &server, "echo x > /cairn/state.100; exit 0").code, Some(0));
    assert_archived(&sandbox, &server);
    let after = manifests(&server);
    assert!(after.iter().filter(|name| before.contains(name)).count() == 1, "{before:?} {after:?}");
}
