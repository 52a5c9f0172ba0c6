//! The process that others wait for: its name and state as the system reports them.
//!
//! Does not decide how long to wait.

use std::{fmt, fs};

/// A process that holds what others wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Process id.
    pid: u32,
    /// Its command; None if the process is not visible.
    name: Option<String>,
    /// Why it makes no progress.
    rest: Rest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    Stopped,
    Traced,
    /// It may wait for a device, a page or a processor.
    Unknown,
}

impl Holder {
    /// Looks up the process of `thread`.
    pub fn look(thread: u32) -> Holder {
        let status = fs::read(format!("/proc/{thread}/status")).unwrap_or_default();
        // Process names are arbitrary bytes.
        let status = String::from_utf8_lossy(&status);
        let field = |name: &str| {
            let mut fields = status.lines().filter_map(|line| line.split_once(':'));
            fields.find(|(field, _)| *field == name).map(|(_, value)| value.trim())
        };
        let rest = match field("State").and_then(|state| state.chars().next()) {
            Some('T') => Rest::Stopped,
            Some('t') => Rest::Traced,
            _ => Rest::Unknown,
        };
        let pid = field("Tgid").and_then(|pid| pid.parse().ok()).unwrap_or(thread);
        Holder { pid, name: field("Name").map(str::to_string), rest }
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it is stopped, by a signal or by a debugger.
    pub fn is_stopped(&self) -> bool {
        self.rest != Rest::Unknown
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Holder { pid, name, rest } = self;
        let Some(name) = name else {
            return write!(f, "a process that cannot be seen from here holds the store");
        };
        match rest {
            Rest::Stopped => write!(
                f,
                "process {pid} ({name}), which is stopped, holds the store; to continue it: kill -CONT {pid}"
            ),
            Rest::Traced => write!(
                f,
                "process {pid} ({name}), which a debugger has stopped, holds the store; continue it there"
            ),
            Rest::Unknown => write!(f, "process {pid} ({name}) holds the store and is stuck"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_described_by_its_state() {
        let own = Holder::look(rustix::thread::gettid().as_raw_nonzero().get() as u32);
        assert_eq!((own.pid, own.is_stopped()), (std::process::id(), false));
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("starts");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("is stopped");
        while !Holder::look(child.id()).is_stopped() {
            std::thread::yield_now();
        }
        let said = Holder::look(child.id()).to_string();
        let start = format!("process {} (", child.id());
        let end =
            format!("which is stopped, holds the store; to continue it: kill -CONT {}", child.id());
        assert!(said.starts_with(&start) && said.ends_with(&end), "{said}");
        child.kill().expect("is killed");
        child.wait().expect("ends");
        let hidden = Holder::look(0).to_string();
        assert!(hidden.contains("cannot be seen from here"), "{hidden}");
    }
}
