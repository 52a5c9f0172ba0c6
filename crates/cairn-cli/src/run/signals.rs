//! Forwards signals to the program, each exactly once.
//!
//! The program stays in our process group, so that the terminal, job control and `kill -9 -GROUP`
//! treat it as they would without us. A signal sent to the group then reaches the program without
//! our help; a signal sent to us alone does not. The kernel does not say which case it was, but a
//! third member of the group does: a *witness*, a process that only waits for signals. If the
//! witness received the signal too, it was sent to the group. (Signals of the terminal identify
//! themselves.)
//!
//! Invariant: the signals are blocked in this process from before the program starts until the end,
//! so that none is lost and none kills us before the program's files are safe.

use cairn_platform::sys;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// Signals that are forwarded, besides the real-time signals: every signal that by default ends a
/// program, except those that a program causes itself. Batch systems announce limits with several
/// of them (SIGXCPU, SIGUSR2, SIGALRM).
const FORWARDED: [libc::c_int; 13] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGQUIT,
    libc::SIGXCPU,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGSTKFLT,
];
/// Signals that the terminal sends. Other signals from the kernel belong to timers and limits of
/// this process alone.
const OF_TERMINALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP];
/// Maximum time between our receipt of a group signal and the witness's.
const GROUP_PATIENCE: Duration = Duration::from_millis(20);
/// Maximum time for an answer of the witness, which may wait for a processor.
const WITNESS_PATIENCE: Duration = Duration::from_secs(2);
/// Signal that asks the witness whether it has reported everything; also its answer. It is the
/// signal with the highest number, and the kernel delivers pending signals in ascending order, so
/// the witness answers it last.
const ASK: i32 = 64;
/// Age at which a report of the witness without a matching signal of ours is dropped.
const REPORT_LIFE: Duration = Duration::from_secs(1);

/// Names of signals that end programs.
const NAMES: [(i32, &str); 23] = [
    (libc::SIGHUP, "SIGHUP"),
    (libc::SIGINT, "SIGINT"),
    (libc::SIGQUIT, "SIGQUIT"),
    (libc::SIGILL, "SIGILL"),
    (libc::SIGTRAP, "SIGTRAP"),
    (libc::SIGABRT, "SIGABRT"),
    (libc::SIGBUS, "SIGBUS"),
    (libc::SIGFPE, "SIGFPE"),
    (libc::SIGKILL, "SIGKILL"),
    (libc::SIGUSR1, "SIGUSR1"),
    (libc::SIGSEGV, "SIGSEGV"),
    (libc::SIGUSR2, "SIGUSR2"),
    (libc::SIGPIPE, "SIGPIPE"),
    (libc::SIGALRM, "SIGALRM"),
    (libc::SIGTERM, "SIGTERM"),
    (libc::SIGSTKFLT, "SIGSTKFLT"),
    (libc::SIGXCPU, "SIGXCPU"),
    (libc::SIGXFSZ, "SIGXFSZ"),
    (libc::SIGVTALRM, "SIGVTALRM"),
    (libc::SIGPROF, "SIGPROF"),
    (libc::SIGIO, "SIGIO"),
    (libc::SIGPWR, "SIGPWR"),
    (libc::SIGSYS, "SIGSYS"),
];

/// Returns a signal as text: its number, and its name if it is a common one.
pub fn shown(signal: i32) -> String {
    match NAMES.iter().find(|(number, _)| *number == signal) {
        Some((_, name)) => format!("{signal} ({name})"),
        None => signal.to_string(),
    }
}

/// Result of a wait for signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A child changed its state.
    Child,
    /// A signal that the program did not receive and that must be forwarded.
    Forward(i32),
    /// A signal that the program received as well.
    Shared(i32),
    /// No signal arrived in time.
    Timeout,
}

/// The blocked signals and the witness.
pub struct Signals {
    set: libc::sigset_t,
    /// Signal mask before the block.
    before: libc::sigset_t,
    witness: Option<Witness>,
}

struct Witness {
    process: libc::pid_t,
    reports: OwnedFd,
    /// Reported signals that are not matched yet, with the time of the report.
    unmatched: Vec<(i32, Instant)>,
}

impl Signals {
    /// Blocks the signals and starts the witness. Precondition: this process has one thread.
    pub fn block() -> io::Result<Signals> {
        // SAFETY: sigset_t is plain data, and sigemptyset initialises it below.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is a live set and the numbers are valid signals.
        unsafe {
            libc::sigemptyset(&raw mut set);
            let real_time = libc::SIGRTMIN()..=ASK;
            for signal in FORWARDED.into_iter().chain([libc::SIGCHLD]).chain(real_time) {
                libc::sigaddset(&raw mut set, signal);
            }
        }
        // SAFETY: sigset_t is plain data, and sigprocmask fills it below.
        let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is an initialised set, `before` is live.
        if unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, &raw mut before) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // Without a witness, group signals arrive twice. The program runs anyway.
        Ok(Signals { set, before, witness: Witness::start(&set).ok() })
    }

    /// Makes `command` start with the original signal mask, because a program inherits the mask.
    pub fn unblock_in(&self, command: &mut Command) {
        let before = self.before;
        // SAFETY: the closure makes one system call on a value it owns, which is allowed between
        // fork and exec.
        unsafe {
            command.pre_exec(move || {
                match libc::sigprocmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut())
                {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                }
            });
        }
    }

    /// Waits for the next signal, at most `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> Event {
        let limit = libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // SAFETY: siginfo_t is plain data, and sigtimedwait fills it.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: all three pointers refer to live values of this frame and of self.
        let signal =
            unsafe { libc::sigtimedwait(&raw const self.set, &raw mut info, &raw const limit) };
        match signal {
            -1 => Event::Timeout,
            libc::SIGCHLD => Event::Child,
            // The terminal sends to the whole foreground process group.
            signal if info.si_code == libc::SI_KERNEL && OF_TERMINALS.contains(&signal) => {
                self.was_witnessed(signal);
                Event::Shared(signal)
            }
            signal if signal != ASK && self.was_witnessed(signal) => Event::Shared(signal),
            signal => Event::Forward(signal),
        }
    }

    fn was_witnessed(&mut self, signal: i32) -> bool {
        self.witness.as_mut().is_some_and(|witness| witness.saw(signal))
    }
}

impl Witness {
    fn start(set: &libc::sigset_t) -> io::Result<Witness> {
        let (reports, to_us) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let parent = std::process::id();
        // SAFETY: this process has one thread; the child makes system calls only.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // SAFETY: this is the freshly forked child of a process with one thread.
                unsafe { witness_main(set, parent, to_us.as_raw_fd()) }
            }
            process => Ok(Witness { process, reports, unmatched: Vec::new() }),
        }
    }

    /// Whether the witness received this signal, too.
    fn saw(&mut self, signal: i32) -> bool {
        self.unmatched.retain(|(_, at)| at.elapsed() < REPORT_LIFE);
        // SAFETY: kill takes numbers only. The witness is our child and not reaped, so its process
        // id cannot belong to another process.
        unsafe { libc::kill(self.process, ASK) };
        self.receive_until(ASK, WITNESS_PATIENCE);
        self.matches(signal) || self.receive_until(signal, GROUP_PATIENCE) && self.matches(signal)
    }

    fn matches(&mut self, signal: i32) -> bool {
        let index = self.unmatched.iter().position(|(seen, _)| *seen == signal);
        index.map(|index| self.unmatched.swap_remove(index)).is_some()
    }

    /// Reads reports up to that of `signal`. Returns false if it does not arrive in time.
    fn receive_until(&mut self, signal: i32, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.receive(left) {
                Some(report) if report == signal => return true,
                Some(_) => {}
                None => return false,
            }
        }
    }

    /// Reads one report; None if none arrives in time.
    fn receive(&mut self, timeout: Duration) -> Option<i32> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let limit = Timespec::try_from(timeout).ok()?;
        let mut polled = [PollFd::new(&self.reports, PollFlags::IN)];
        if !matches!(poll(&mut polled, Some(&limit)), Ok(1)) {
            return None;
        }
        let mut report = [0_u8; 1];
        if !matches!(rustix::io::read(&self.reports, &mut report), Ok(1)) {
            return None;
        }
        let signal = i32::from(report[0]);
        if signal != ASK {
            self.unmatched.push((signal, Instant::now()));
        }
        Some(signal)
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        // SAFETY: both calls take numbers and a null pointer. The witness is our child and not
        // reaped, so its process id cannot belong to another process.
        unsafe {
            libc::kill(self.process, libc::SIGKILL);
            libc::waitpid(self.process, std::ptr::null_mut(), 0);
        }
    }
}

/// Main loop of the witness: writes the number of each received signal to `to_parent` until its
/// parent ends.
///
/// # Safety
/// Must run in a freshly forked child of a process with one thread. Never returns.
unsafe fn witness_main(set: &libc::sigset_t, parent: u32, to_parent: i32) -> ! {
    // SAFETY: the block makes only system calls on values of this frame. The signals stay blocked
    // by the mask that was set before the fork.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_NAME, c"cairn-witness".as_ptr());
        if libc::getppid() as u32 != parent {
            libc::_exit(0);
        }
        // A pipeline that reads our output, or a process that waits for our lock, must not wait for
        // the witness.
        let _ = sys::close_range(0, to_parent as u32 - 1);
        let _ = sys::close_range(to_parent as u32 + 1, u32::MAX);
        loop {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let signal = libc::sigwaitinfo(set, &raw mut info);
            if signal <= 0 {
                continue;
            }
            let report = signal as u8;
            if libc::write(to_parent, (&raw const report).cast(), 1) != 1 {
                libc::_exit(0);
            }
        }
    }
}
