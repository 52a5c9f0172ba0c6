//! A run that archives two checkpoints in the test's object store.

// Each test file is a separate program and uses only a part of this module.
#![allow(dead_code, unused_imports)]

#[path = "../../../cairn-testing/src/object_store.rs"]
mod object_store;

use crate::common::{self, Ran, Sandbox};
use std::process::{Child, Command, Output, Stdio};

pub use object_store::{Mood, ObjectStore, Trouble};

/// Writes two checkpoints: a small file, and a large file that is uploaded in parts.
pub const SCRIPT: &str = "head -c 100 /dev/urandom > /cairn/state.100; chmod 640 /cairn/state.100; \
                          touch -d @1500000000 /cairn/state.100; head -c 9000000 /dev/urandom > /cairn/state.200; wait";
/// Prefix of the job's objects: BUCKET/PREFIX/JOB/.
pub const OBJECTS: &str = "runs/deep/er/melt/";

/// Command of `cairn` as a client of `server`.
pub fn client(sandbox: &Sandbox, server: &ObjectStore, arguments: &[&str]) -> Command {
    let mut command = sandbox.command(arguments);
    command
        .env("CAIRN_ARCHIVE_ENDPOINT", server.url())
        .env("CAIRN_RUN_TIER", "ram:64M")
        .env("AWS_ACCESS_KEY_ID", "key-of-the-test")
        .env("AWS_SECRET_ACCESS_KEY", "secret-of-the-test")
        .env("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent");
    command
}

/// Runs `client` to its end.
pub fn cairn(sandbox: &Sandbox, server: &ObjectStore, arguments: &[&str]) -> Ran {
    let output = client(sandbox, server, arguments).output().expect("cairn starts");
    Ran::of(output, arguments.join(" "))
}

/// Command of `cairn run` for a shell script that archives in `server`.
pub fn command(sandbox: &Sandbox, server: &ObjectStore, script: &str) -> Command {
    let out = sandbox.out();
    let persist = out.to_str().expect("UTF-8");
    let words = ["run", "--job", "melt", "--persist", persist, "--archive", "s3://runs/deep/er"];
    client(sandbox, server, &[&words[..], &["--", "bash", "-c", script]].concat())
}

/// Runs `command` to its end.
pub fn run(sandbox: &Sandbox, server: &ObjectStore, script: &str) -> Ran {
    let output = command(sandbox, server, script).output().expect("cairn starts");
    Ran::of(output, script.to_string())
}

/// A run that ends with the test, even if the test fails.
pub struct Running(Option<Child>);

impl Running {
    pub fn start(mut command: Command) -> Running {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(Some(command.spawn().expect("starts")))
    }

    pub fn wait(mut self) -> Ran {
        let output = self.0.take().map(Child::wait_with_output);
        let output: Output = output.expect("was started").expect("ends");
        Ran::of(output, "run".to_string())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            common::kill("TERM", i64::from(child.id()));
            child.wait().expect("ends");
        }
    }
}

/// Names of the manifest objects, one for each archived checkpoint.
pub fn manifests(server: &ObjectStore) -> Vec<String> {
    let stem = format!("{OBJECTS}cairn-checkpoint.");
    server.names().into_iter().filter(|name| name.starts_with(&stem)).collect()
}

/// Whether the archive has a manifest object for the checkpoint of this step.
pub fn is_said_to_be_there(server: &ObjectStore, step: &str) -> bool {
    let stem = format!("{OBJECTS}cairn-checkpoint.{step}-");
    manifests(server).iter().any(|name| name.starts_with(&stem))
}

/// Asserts that both checkpoints are archived as the persist directory has them, and that no
/// unfinished upload is left.
pub fn assert_archived(sandbox: &Sandbox, server: &ObjectStore) {
    for name in ["state.100", "state.200"] {
        let there = server.object(&format!("{OBJECTS}{name}")).expect("is there");
        assert!(there == std::fs::read(sandbox.out().join(name)).expect("is drained"), "{name}");
    }
    assert_eq!(manifests(server).len(), 2, "{:?}", server.names());
    assert_eq!(server.unfinished(), 0);
}

/// Asserts that no secret is in the output or in the files of the store.
pub fn assert_secrets_are_kept(sandbox: &Sandbox, ran: &Ran) {
    let store = sandbox.store("melt");
    let files = std::fs::read_dir(&store).into_iter().flatten().flatten().map(|entry| entry.path());
    let small = files.filter(|path| path.metadata().is_ok_and(|found| found.len() < 1 << 20));
    let texts = small
        .map(|path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned());
    for text in texts.chain([ran.stdout.clone(), ran.stderr.clone()]) {
        assert!(!text.contains("-of-the-test") && !text.contains("X-Amz"), "{text}");
    }
}
