//! Becoming the agent: a process of its own that nothing of the caller holds on to.
//!
//! Must stay true: the agent keeps no descriptor, terminal, working directory or session of whoever
//! started it, so a pipeline or a batch system never waits for it; the starter learns whether the
//! agent is ready or why not. Runs before any thread exists: it forks.

use crate::error::{Error, Result};
use crate::model::log::Log;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process;

/// Lets this process have as many descriptors as it is allowed at all. With fewer it gets on more slowly, or says what fails.
pub fn allow_many_files() {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
}

/// What the agent reports to the process that started it.
pub struct Readiness {
    pipe: File,
}

/// The line that means the agent accepts requests.
const READY: &[u8] = b"ready\n";

impl Readiness {
    /// Tells the starter that the agent accepts requests.
    pub fn ready(mut self) {
        // The starter may have been killed; the agent does not need it.
        let _ = self.pipe.write_all(READY);
    }

    /// Tells the starter why there will be no agent.
    pub fn failed(mut self, reason: &str) {
        let _ = self.pipe.write_all(reason.as_bytes());
    }
}

/// Splits off the agent, with its output appended to the log at `path`. Returns only there, with the log; the calling process
/// waits until the agent is ready and exits with 0, or prints why it is not and exits with 1.
pub fn detach(path: &Path) -> Result<(Readiness, Log)> {
    // SAFETY: nothing in this process owns a descriptor above 2 yet: `main` has opened no file and
    // started no thread.
    unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
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
        // SAFETY: this is the short-lived process between the starter and the agent; it has no
        // state to flush.
        unsafe { libc::_exit(0) };
    }
    rustix::process::chdir("/").map_err(Error::file("enter", Path::new("/")))?;
    rustix::process::umask(Mode::from_raw_mode(0o077));
    let attach = || {
        rustix::stdio::dup2_stdin(&null_file)?;
        print_to(log.file())
    };
    attach().map_err(Error::file("write to", path))?;
    // SAFETY: ignoring a signal installs no handler, and an empty set unblocks what the starter had
    // blocked. Past a file size limit a write then fails instead of killing us.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
    Ok((Readiness { pipe: File::from(to_starter) }, log))
}

/// What this process prints goes to `file` from now on.
pub fn print_to(file: &File) -> rustix::io::Result<()> {
    rustix::stdio::dup2_stdout(file)?;
    rustix::stdio::dup2_stderr(file)
}

fn fork(log: &Path) -> Result<i32> {
    // SAFETY: this process has one thread, so the child's copy of every lock is free.
    match unsafe { libc::fork() } {
        -1 => Err(Error::file("fork for", log)(std::io::Error::last_os_error())),
        pid => Ok(pid),
    }
}

/// The starter's part: relays what the agent says and ends.
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

/// Takes the lock file `name` in `directory` for as long as the returned file is open; None if
/// another process has it, or several share it.
pub fn try_lock(directory: &Path, name: &str) -> Result<Option<File>> {
    let lock = try_lock_beside(directory, name)?;
    Ok(lock.filter(|lock| !is_shared(lock)))
}

/// As `try_lock`, also while others share it.
pub fn try_lock_beside(directory: &Path, name: &str) -> Result<Option<File>> {
    let path = directory.join(name);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    loop {
        let file = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600))
            .map_err(Error::file("open", &path))?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(Error::file("lock", &path)(errno)),
        }
        let file = File::from(file);
        // One whose store was removed meanwhile keeps nobody out of a new store of that name.
        if file.metadata().map_err(Error::file("look at", &path))?.nlink() > 0 {
            return Ok(Some(file));
        }
    }
}

/// Says of a lock that the caller has taken that a run has it, and not somebody who only looks.
pub fn say_run(lock: &File) -> std::io::Result<()> {
    set_share(lock, libc::F_RDLCK)
}

/// Whether a run has the lock `name`, alone or with others.
pub fn has_run(directory: &Path, name: &str) -> Result<bool> {
    let path = directory.join(name);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::open(&path, flags, Mode::empty()) {
        Ok(file) => Ok(is_shared(&File::from(file))),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(Error::file("open", &path)(errno)),
    }
}

/// Shares a lock that the caller has taken, and lets others take and share it, too.
pub fn share(lock: &File) -> std::io::Result<()> {
    say_run(lock)?;
    Ok(rustix::fs::flock(lock, rustix::fs::FlockOperation::Unlock)?)
}

/// Waits for the lock in which the caller shares, takes it, and shares it no more.
pub fn take_back(lock: &File) -> std::io::Result<()> {
    rustix::io::retry_on_intr(|| {
        rustix::fs::flock(lock, rustix::fs::FlockOperation::LockExclusive)
    })?;
    set_share(lock, libc::F_UNLCK)
}

/// Whether another process shares the lock.
pub fn is_shared(lock: &File) -> bool {
    let mut conflict = whole_file(libc::F_WRLCK);
    // SAFETY: the request reads and fills one such structure, which lives for the call.
    let answer = unsafe { libc::fcntl(lock.as_raw_fd(), libc::F_OFD_GETLK, &raw mut conflict) };
    answer == 0 && i32::from(conflict.l_type) != libc::F_UNLCK
}

/// Sharing is a lock of another kind on the same file, which belongs to the open file as the first one does.
fn set_share(lock: &File, kind: i32) -> std::io::Result<()> {
    let range = whole_file(kind);
    // SAFETY: the request reads one such structure, which lives for the call.
    match unsafe { libc::fcntl(lock.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn whole_file(kind: i32) -> libc::flock {
    // SAFETY: plain data, for which zero is a value: the whole file.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as libc::c_short;
    range
}

/// Whether some process holds or shares the lock file `name`. The question itself holds it for an instant.
pub fn is_locked(directory: &Path, name: &str) -> Result<bool> {
    let path = directory.join(name);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::open(&path, flags, Mode::empty()) {
        Ok(file) => {
            let file = File::from(file);
            let operation = rustix::fs::FlockOperation::NonBlockingLockShared;
            let is_held = rustix::fs::flock(&file, operation) == Err(Errno::WOULDBLOCK);
            Ok(is_held || is_shared(&file))
        }
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(Error::file("open", &path)(errno)),
    }
}
