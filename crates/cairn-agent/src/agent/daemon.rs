//! Turns the calling process into the agent: a separate process that holds nothing of the caller.
//!
//! Invariant: the agent keeps no descriptor, terminal, working directory or session of the process
//! that started it, so a pipeline or a batch system never waits for it. The starter learns whether
//! the agent is ready, or why it is not. Precondition: no other thread exists, because `detach`
//! forks.

use crate::model::error::{Error, Result};
use crate::model::log::Log;
use cairn_platform::sys;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process;

/// Raises the soft limit of open descriptors to the hard limit. Errors are ignored: with fewer
/// descriptors the agent works more slowly or reports which call fails.
pub fn allow_many_files() {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
}

/// Pipe through which the agent reports its start to the process that started it.
pub struct Readiness {
    pipe: File,
}

/// Line that says the agent accepts requests.
const READY: &[u8] = b"ready\n";

impl Readiness {
    /// Tells the starter that the agent accepts requests.
    pub fn ready(mut self) {
        // The starter may have been killed; the agent does not need it.
        let _ = self.pipe.write_all(READY);
    }

    /// Tells the starter why no agent starts.
    pub fn failed(mut self, reason: &str) {
        let _ = self.pipe.write_all(reason.as_bytes());
    }
}

/// Forks off the agent and appends its output to the log at `path`. Returns only in the agent, with
/// the log. The calling process waits until the agent is ready and exits with 0, or prints the
/// reason of the failure and exits with 1.
pub fn detach(path: &Path) -> Result<(Readiness, Log)> {
    // SAFETY: no code in this process owns a descriptor above 2 yet: `main` has opened no file and
    // started no thread.
    let _ = unsafe { sys::close_range(3, u32::MAX) };
    let log = Log::open(path).map_err(Error::file("open", path))?;
    let null = Path::new("/dev/null");
    let null_file = rustix::fs::open(null, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(Error::file("open", null))?;
    let (from_agent, to_starter) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(Error::file("make a pipe for", path))?;

    if fork(path)? != 0 {
        drop(to_starter);
        wait_for_agent(File::from(from_agent));
    }
    drop(from_agent);
    rustix::process::setsid().map_err(Error::file("start a session for", path))?;
    if fork(path)? != 0 {
        // SAFETY: this is the short-lived process between the starter and the agent. It has no
        // state to flush.
        unsafe { libc::_exit(0) };
    }
    rustix::process::chdir("/").map_err(Error::file("enter", Path::new("/")))?;
    rustix::process::umask(Mode::from_raw_mode(0o077));
    let attach = || {
        rustix::stdio::dup2_stdin(&null_file)?;
        crate::model::log::print_to(log.file())
    };
    attach().map_err(Error::file("write to", path))?;
    // SAFETY: ignoring a signal installs no handler, and the empty set only unblocks the signals
    // that the starter had blocked. With SIGXFSZ ignored, a write past a file size limit fails
    // instead of killing the agent.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
    Ok((Readiness { pipe: File::from(to_starter) }, log))
}

fn fork(log: &Path) -> Result<i32> {
    // SAFETY: this process has one thread, so the child's copy of every lock is free.
    match unsafe { libc::fork() } {
        -1 => Err(Error::file("fork for", log)(std::io::Error::last_os_error())),
        pid => Ok(pid),
    }
}

/// Runs in the starter: relays the agent's report and exits.
fn wait_for_agent(mut from_agent: File) -> ! {
    let mut said = Vec::new();
    let failure = match from_agent.read_to_end(&mut said) {
        Ok(_) if said == READY => process::exit(0),
        Ok(_) if said.is_empty() => "the agent ended before it was ready".to_owned(),
        Ok(_) => String::from_utf8_lossy(&said).trim_end().to_owned(),
        Err(error) => format!("cannot hear from the agent: {error}"),
    };
    let _ = writeln!(std::io::stderr(), "{failure}");
    process::exit(1)
}
