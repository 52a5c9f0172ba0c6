//! Simulated machines: mount namespaces. Processes that share `/dev/shm` are one machine.

// Each test file is a separate program and uses only a part of this module.
#![allow(dead_code)]

use crate::common::{Ran, Sandbox};
use std::ffi::OsStr;
use std::io::Read;
use std::process::{Child, Command, Stdio};

const IN_NAMESPACE: [&str; 4] = ["unshare", "--user", "--map-root-user", "--mount"];

/// A machine that exists as long as this value.
pub struct Machine(Child);

impl Machine {
    /// Prints a message and returns None where mount namespaces are not allowed.
    pub fn start() -> Option<Machine> {
        let script = "mount -t tmpfs none /dev/shm && echo && exec cat";
        let mut command = Command::new(IN_NAMESPACE[0]);
        command.args(&IN_NAMESPACE[1..]).args(["sh", "-c", script]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let is_ready = child.stdout.as_mut().is_some_and(|out| out.read_exact(&mut [0]).is_ok());
        if !is_ready {
            eprintln!("skipped: this machine does not allow mount namespaces");
        }
        let machine = Machine(child);
        is_ready.then_some(machine)
    }

    /// Command of `cairn run` on this machine, not started yet.
    pub fn run(&self, sandbox: &Sandbox, job: &str, tier: &str, script: &str) -> Command {
        self.cairn(sandbox, &["run", "--job", job, "--tier", tier, "--", "bash", "-c", script])
    }

    /// Process id of the machine's first process.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Command of `cairn` on this machine, not started yet.
    pub fn cairn(&self, sandbox: &Sandbox, arguments: &[&str]) -> Command {
        let there = sandbox.command(arguments);
        let mut command = self.command(there.get_program());
        command.args(there.get_args()).current_dir(sandbox.work());
        for (name, value) in there.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// Command of any program on this machine, as its administrator.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--user", "--mount", "--preserve-credentials", "--target"]);
        command.arg(self.0.id().to_string()).arg("--").arg(program);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

/// Runs a command to its end.
pub fn ran(command: &mut Command) -> Ran {
    let output = command.output().expect("starts");
    Ran::of(output, format!("{command:?}"))
}
