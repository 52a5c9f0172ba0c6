//! `cairn target` for the duration of a test.

use super::Sandbox;
use serde_json::Value;
use std::process::{Child, Stdio};

/// A target that ends with the test.
pub struct Target(Child);

impl Target {
    /// Process id of the target.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Sends the target a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: the signal goes to a child of ours that was not waited for; no memory is
        // involved.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, signal) }, 0);
    }

    /// Waits for the target to end and returns its exit code.
    pub fn end(mut self) -> Option<i32> {
        self.0.wait().expect("it is a child").code()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

/// Starts `cairn target` with these arguments on any port. Returns it with its report.
pub fn start(sandbox: &Sandbox, arguments: &[&str]) -> (Target, Value) {
    start_at(sandbox, &["--listen", "127.0.0.1:0"], arguments)
}

/// As `start`, at the address that `place` gives.
pub fn start_at(sandbox: &Sandbox, place: &[&str], arguments: &[&str]) -> (Target, Value) {
    let all = [&["--json", "target"], place, arguments].concat();
    let mut child = sandbox.command(&all).stdout(Stdio::piped()).spawn().expect("starts");
    let stdout = child.stdout.take().expect("it is a pipe");
    let mut documents = serde_json::Deserializer::from_reader(stdout).into_iter();
    let report = documents.next().expect("it says where it is").expect("JSON");
    (Target(child), report)
}
