//! Stopped processes (SIGSTOP, a debugger, `scontrol suspend`) that others wait for: commands name
//! the process and end; programs wait, and resume.
//!
//! Mechanism: a wait for the lock of a namespace lasted as long as its owner lived, and a wait for
//! an agent's answer two minutes, repeatedly.
//!
//! Consequence: with one rank or the agent stopped, every command hung silently, and so did the end
//! of `cairn run`.
//!
//! Fix: commands and agents wait for 5 s. A process that needs a stopped agent continues it.

mod common;

use common::session::Session;
use common::{Sandbox, eventually, kill};
use std::fs;
use std::time::Instant;

/// Owns the lock of a namespace, in its documented format, and is stopped. Later it releases the
/// lock.
const OWNER: &str = "\
import mmap, os, signal, struct, sys
with open(sys.argv[1], 'r+b') as file:
    memory = mmap.mmap(file.fileno(), 4096)
namespace = os.stat('/proc/self/ns/pid').st_ino & 0xffffffff
word = lambda: struct.unpack_from('<Q', memory)[0]
while word() != 0:
    pass
struct.pack_into('<Q', memory, 0, os.getpid() | namespace << 32)
open('owns', 'w').close()
os.kill(os.getpid(), signal.SIGSTOP)
struct.pack_into('<Q', memory, 0, 0)
";

/// A process that is killed at the end of the test, whatever its result.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

#[test]
fn owner_of_the_lock_is_stopped_then_commands_name_it_and_programs_wait() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "job", &[]);
    session.shell("echo before >/cairn/before");
    eventually("it is outside", || sandbox.out().join("before").exists());
    fs::write(sandbox.work().join("owner.py"), OWNER).expect("writes");
    let meta = sandbox.store("job").join("node.meta");
    let owner = std::process::Command::new("python3")
        .args(["owner.py", meta.to_str().expect("UTF-8")])
        .current_dir(sandbox.work())
        .spawn()
        .expect("python3 starts");
    let mut owner = Killed(owner);
    let pid = owner.0.id();
    let is_stopped = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.contains("State:\tT")
    };
    eventually("it is stopped", is_stopped);
    session.begin("echo after >/cairn/after; touch written");
    let named = format!("process {pid} (python3), which is stopped, holds the store");
    for command in [&["ls", "job"][..], &["drain", "job"], &["verify", "job"]] {
        let refused = sandbox.cairn(command);
        assert_ne!(refused.code, Some(0), "{command:?}");
        assert!(refused.stderr.contains(&named), "{command:?}: {}", refused.stderr);
        assert!(refused.stderr.contains(&format!("kill -CONT {pid}")), "{}", refused.stderr);
    }
    sandbox.cairn(&["status", "job"]).says(&named);
    let log = sandbox.store("job").join("agent.log");
    eventually("the agent says so", || {
        fs::read_to_string(&log).is_ok_and(|log| log.contains(&named))
    });
    assert!(!sandbox.work().join("written").exists(), "programs wait");
    kill("CONT", i64::from(pid));
    owner.0.wait().expect("ends");
    eventually("the program goes on", || sandbox.work().join("written").exists());
    assert_eq!(session.end(), Some(0));
    assert_eq!(fs::read(sandbox.out().join("after")).expect("is there"), b"after\n");
}

#[test]
fn agent_is_stopped_then_status_says_so_and_the_end_of_a_run_has_it_go_on() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "job", &[]);
    session.shell("echo before >/cairn/before");
    eventually("it is outside", || {
        let shown = sandbox.cairn(&["status", "job"]);
        shown.stdout.contains("drained   1 file") && !shown.stdout.contains("undrained")
    });
    let agent = sandbox.agent("job");
    kill("STOP", i64::from(agent));
    let asked = Instant::now();
    sandbox.cairn(&["status", "job"]).says(&format!("the agent, process {agent}, is stopped"));
    sandbox.cairn(&["ls", "--jobs"]).succeeds();
    // Generous for a busy machine, and less than a wait of two minutes for each command.
    assert!(asked.elapsed().as_secs() < 60, "{:?}", asked.elapsed());
    session.shell("echo after >/cairn/after");
    assert_eq!(session.end(), Some(0));
    assert_eq!(fs::read(sandbox.out().join("after")).expect("is there"), b"after\n");
}
