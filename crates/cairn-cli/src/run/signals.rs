//! Passing signals on to the program, each exactly once.
//!
//! The program stays in our process group, so that the terminal, job control and `kill -9 -GROUP`
//! treat it as without us. Then a signal sent to the group reaches it without our help, and one
//! sent to us alone does not. The kernel does not tell which it was, but a third member of the
//! group does: a *witness* that does nothing but wait for signals. What the witness got as well was
//! sent to the group. (Signals of the terminal say so themselves.)
//!
//! Must stay true: the signals are blocked in this process from before the program starts until the
//! end, so none is lost and none kills us before the program's files are safe.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// What is passed on besides the signals for real time: whatever ends a program that does not know
/// it, but for what a program does to itself. Batch systems announce limits by several of them
/// (SIGXCPU, SIGUSR2, SIGALRM).
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
/// What the terminal sends; other signals of the kernel are of timers and limits of this process
/// alone.
const OF_TERMINALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP];
/// How long a signal to the group may take from us to the witness.
const GROUP_PATIENCE: Duration = Duration::from_millis(20);
/// How long the witness may take to answer: as long as it waits for a processor.
const WITNESS_PATIENCE: Duration = Duration::from_secs(2);
/// Asks the witness whether it has reported everything, and is its answer: of the signals that wait
/// for a process the kernel gives it that with the lowest number first, and this is the highest
/// one.
const ASK: i32 = 64;
/// A report of the witness that belongs to no signal of ours is forgotten after this time.
const REPORT_LIFE: Duration = Duration::from_secs(1);

/// Signals that end programs, by name.
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

/// A signal for people: its number, and its name if it is a usual one.
pub fn shown(signal: i32) -> String {
    match NAMES.iter().find(|(number, _)| *number == signal) {
        Some((_, name)) => format!("{signal} ({name})"),
        None => signal.to_string(),
    }
}

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A child changed its state.
    Child,
    /// To be passed on: the program did not get it.
    Forward(i32),
    /// The program got it as well.
    Shared(i32),
    /// Nothing arrived in time.
    Timeout,
}

/// The blocked signals and the witness.
pub struct Signals {
    set: libc::sigset_t,
    /// What was blocked before.
    before: libc::sigset_t,
    witness: Option<Witness>,
}

struct Witness {
    process: libc::pid_t,
    reports: OwnedFd,
    /// Signals it reported that were not matched yet.
    unmatched: Vec<(i32, Instant)>,
}

impl Signals {
    /// Blocks the signals and starts the witness. To be called while this process has one thread.
    pub fn block() -> io::Result<Signals> {
        // SAFETY: an all-zero set is valid memory for sigemptyset to initialise.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is a live set and the numbers are valid signals.
        unsafe {
            libc::sigemptyset(&raw mut set);
            let real_time = libc::SIGRTMIN()..=ASK;
            for signal in FORWARDED.into_iter().chain([libc::SIGCHLD]).chain(real_time) {
                libc::sigaddset(&raw mut set, signal);
            }
        }
        // SAFETY: an all-zero set is valid memory for the call to fill.
        let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is an initialised set, `before` is live.
        if unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, &raw mut before) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // Without a witness signals to the group arrive twice; that is no reason not to run the
        // program.
        Ok(Signals { set, before, witness: Witness::start(&set).ok() })
    }

    /// Has `command` start with the signals as they were: a program inherits what is blocked.
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

    /// Waits for the next signal, at most so long.
    pub fn wait(&mut self, timeout: Duration) -> Event {
        let limit = libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // SAFETY: an all-zero siginfo is valid memory for the call to fill.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: all three pointers are to live values of this frame and of self.
        let signal =
            unsafe { libc::sigtimedwait(&raw const self.set, &raw mut info, &raw const limit) };
        match signal {
            -1 => Event::Timeout,
            libc::SIGCHLD => Event::Child,
            // The terminal sends to the whole foreground group.
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
                // SAFETY: this is the freshly forked child, where `testify` may take over.
                unsafe { testify(set, parent, to_us.as_raw_fd()) }
            }
            process => Ok(Witness { process, reports, unmatched: Vec::new() }),
        }
    }

    /// Whether the witness got this signal, too.
    fn saw(&mut self, signal: i32) -> bool {
        self.unmatched.retain(|(_, at)| at.elapsed() < REPORT_LIFE);
        // SAFETY: the process is our child and not waited for yet, so the number is still its own.
        unsafe { libc::kill(self.process, ASK) };
        self.receive_until(ASK, WITNESS_PATIENCE);
        self.matches(signal) || self.receive_until(signal, GROUP_PATIENCE) && self.matches(signal)
    }

    fn matches(&mut self, signal: i32) -> bool {
        let index = self.unmatched.iter().position(|(seen, _)| *seen == signal);
        index.map(|index| self.unmatched.swap_remove(index)).is_some()
    }

    /// Takes in reports up to that of `signal`; false if it does not come in time.
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

    /// Takes in one report, none if none comes in time.
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
        // SAFETY: the process is our child and not waited for yet, so the number is still its own.
        unsafe {
            libc::kill(self.process, libc::SIGKILL);
            libc::waitpid(self.process, std::ptr::null_mut(), 0);
        }
    }
}

/// The witness: writes the number of each signal it gets to `to_parent`, until its parent ends.
///
/// # Safety
/// Runs in a freshly forked child of a process with one thread, which it takes over for good.
unsafe fn testify(set: &libc::sigset_t, parent: u32, to_parent: i32) -> ! {
    // SAFETY: only system calls on values of this frame; the mask set before the fork keeps the
    // signals blocked.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_NAME, c"cairn-witness".as_ptr());
        if libc::getppid() as u32 != parent {
            libc::_exit(0);
        }
        // A pipeline that reads our output, or waits for our lock, must not wait for the witness.
        libc::close_range(0, (to_parent - 1) as libc::c_uint, 0);
        libc::close_range((to_parent + 1) as libc::c_uint, libc::c_uint::MAX, 0);
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
