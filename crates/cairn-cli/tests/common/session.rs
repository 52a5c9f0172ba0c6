//! A run whose program executes the test's commands step by step.

use super::{Sandbox, eventually, kill};
use std::fs;
use std::process::Child;

/// A run whose shell executes commands one by one until it is told to end.
pub struct Session<'a> {
    sandbox: &'a Sandbox,
    child: Child,
    commands: u32,
    /// Whether the shell runs on without its `cairn run`.
    is_alone: bool,
}

impl<'a> Session<'a> {
    /// Starts a session as `job` with these options of `cairn run`.
    pub fn start(sandbox: &'a Sandbox, job: &str, options: &[&str]) -> Session<'a> {
        let script = "echo $$ >shell; n=1; while :; do until [ -e do.$n ]; do sleep 0.01; done
            . ./do.$n; touch done.$n; n=$((n + 1)); done";
        let out = sandbox.out();
        let persist = out.to_str().expect("UTF-8");
        let first = ["run", "--job", job, "--persist", persist];
        let arguments = [&first[..], options, &["--", "bash", "-c", script]].concat();
        let child = sandbox.command(&arguments).spawn().expect("starts");
        let mut session = Session { sandbox, child, commands: 0, is_alone: false };
        session.shell("true");
        session
    }

    /// Executes `command` in the shell and returns when it is done.
    pub fn shell(&mut self, command: &str) {
        self.begin(command);
        let done = self.sandbox.work().join(format!("done.{}", self.commands));
        eventually(command, || done.exists());
    }

    /// Queues `command`: the shell executes it after all earlier ones.
    pub fn begin(&mut self, command: &str) {
        self.commands += 1;
        let work = self.sandbox.work();
        let file = work.join(format!("do.{}", self.commands));
        fs::write(work.join("new"), command).expect("writes");
        fs::rename(work.join("new"), file).expect("renames");
    }

    /// Ends the shell and returns the exit code of the run.
    pub fn end(mut self) -> Option<i32> {
        self.begin("exit 0");
        self.child.wait().expect("ends").code()
    }

    /// Kills `cairn run`; the shell runs on.
    #[allow(dead_code, reason = "not every test does")]
    pub fn kill_run(&mut self) {
        self.child.kill().expect("kills");
        self.child.wait().expect("ends");
        self.is_alone = true;
    }

    /// Kills the shell.
    #[allow(dead_code, reason = "not every test does")]
    pub fn kill_shell(&mut self) {
        self.is_alone = false;
        let shell = fs::read_to_string(self.sandbox.work().join("shell")).expect("it wrote it");
        kill("KILL", shell.trim().parse().expect("a number"));
    }

    /// Kills `cairn run` and the shell.
    pub fn kill_all(mut self) {
        self.kill_run();
        self.kill_shell();
    }
}

impl Drop for Session<'_> {
    /// Ends a session left by a failed test.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            kill("TERM", i64::from(self.child.id()));
            self.child.wait().expect("ends");
        } else if self.is_alone {
            self.kill_shell();
        }
    }
}
