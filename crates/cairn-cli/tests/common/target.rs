//! `cairn target`, for as long as a test needs it.

use super::Sandbox;
use serde_json::Value;
use std::process::{Child, Stdio};

/// A target that is ended with the test.
pub struct Target(Child);

impl Target {
    /// Its process.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: a signal to a child of ours that was not waited for; no memory is involved.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, signal) }, 0);
    }

    /// Waits for its end; its exit code.
    pub fn end(mut self) -> Option<i32> {
        self.0.wait().expect("it is a child").code()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

/// Starts `cairn target` with these arguments at any port; what it says.
pub fn start(sandbox: &Sandbox, arguments: &[&str]) -> (Target, Value) {
    start_at(sandbox, &["--listen", "127.0.0.1:0"], arguments)
}

/// Starts it where these arguments say.
pub fn start_at(sandbox: &Sandbox, place: &[&str], arguments: &[&str]) -> (Target, Value) {
    let all = [&["--json", "target"], place, arguments].concat();
    let mut child = sandbox.command(&all).stdout(Stdio::piped()).spawn().expect("starts");
    let stdout = child.stdout.take().expect("it is a pipe");
    let mut documents = serde_json::Deserializer::from_reader(stdout).into_iter();
    let report = documents.next().expect("it says where it is").expect("JSON");
    (Target(child), report)
}
