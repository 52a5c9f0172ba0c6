//! A file of a sandbox that `cairn target` exports, and scripts that use a store there.

// Each test file is a separate program and uses only a part of this module.
#![allow(dead_code)]

use crate::common::{self, Sandbox};
use serde_json::Value;
use std::fs;
use std::process::{Child, Command, Stdio};

/// NQN of the exported subsystem.
pub const NAME: &str = "nqn.2026-11.test:remote";

/// Variable with the address of another target. That target has a namespace 2 under the name that
/// the tests of `cairn-target` expect; its content does not matter.
const PEER_VARIABLE: &str = "CAIRN_NVME_PEER";

/// A target that ends with the test.
pub struct Target {
    child: Option<Child>,
    pub tier: String,
    pub address: String,
    /// Address of its metrics, if they were requested.
    pub metrics: String,
}

impl Target {
    /// Exports the file of the sandbox at an address; port 0 means any port.
    pub fn start(sandbox: &Sandbox, address: &str) -> Target {
        Target::start_with(sandbox, address, &[])
    }

    /// `start`, with these options.
    pub fn start_with(sandbox: &Sandbox, address: &str, options: &[&str]) -> Target {
        let export = format!("file:{}", sandbox.work().join("export").display());
        let all = ["--json", "target", "--listen", address, "--nqn", NAME, &export];
        let all = [&all[..], options].concat();
        Target::spawn(&mut sandbox.command(&all))
    }

    /// Starts a target from a complete command.
    pub fn spawn(command: &mut Command) -> Target {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
        let stdout = child.stdout.take().expect("it is a pipe");
        let mut documents = serde_json::Deserializer::from_reader(stdout).into_iter::<Value>();
        let report = documents.next().expect("it says where it is").expect("JSON");
        let address = report["address"].as_str().expect("an address").to_string();
        let metrics = report["metrics"].as_str().unwrap_or_default().to_string();
        let tier = format!("nvme-tcp://{address}/{NAME}?nsid=1");
        Target { child: Some(child), tier, address, metrics }
    }

    /// The target of `PEER_VARIABLE`, or one of our own.
    pub fn any(sandbox: &Sandbox) -> Target {
        let Ok(address) = std::env::var(PEER_VARIABLE) else {
            return Target::start(sandbox, "127.0.0.1:0");
        };
        let tier = format!("nvme-tcp://{address}/nqn.2026-11.io.cairn:interop?nsid=2");
        Target { child: None, tier, address, metrics: String::new() }
    }

    pub fn end(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = (child.kill(), child.wait());
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.end();
    }
}

/// Sandbox with a file to export.
pub fn exporting() -> Sandbox {
    let sandbox = Sandbox::new();
    let file = fs::File::create(sandbox.work().join("export")).expect("makes");
    file.set_len(64 << 20).expect("has room");
    sandbox
}

/// Kills the agent and removes the store's memory.
pub fn lose_memory(sandbox: &Sandbox, job: &str) {
    if let Some(agent) = sandbox.agent_if_any(job) {
        common::kill("KILL", agent.into());
    }
    fs::remove_dir_all(sandbox.store(job)).expect("removes");
}

/// Makes some files and prints their checksums.
pub const WRITE: &str = "cd /cairn && mkdir d && for i in 1 2 3; do seq $i 200000 >d/f$i; done && \
    echo more >>d/f1 && truncate -s 1000 d/f2 && mv d/f3 g && sync d/f1 && cksum d/f1 d/f2 g";
/// Prints the checksums again.
pub const READ: &str = "cd /cairn && cksum d/f1 d/f2 g";
