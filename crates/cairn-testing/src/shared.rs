//! A memory segment shared with a forked child, and single-stepping of that child.
//!
//! The lock is one word that says whether it is held. That is enough to know whether a process died
//! inside. `cairn-device` tests how a real lock detects a dead owner.

use cairn_core::{Acquired, Error, Memory, Result};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

const FREE: u64 = 0;
const HELD: u64 = 1;
/// The owner died; the next process to lock is told so.
const DEAD: u64 = 2;

/// Segment of words that stays shared across `fork`.
pub struct ForkShared {
    start: *mut AtomicU64,
    words: usize,
    /// Number of words behind the others that form the shadow.
    shadow_words: usize,
}

// SAFETY: all access goes through atomic words, and the mapping lives as long as the value.
unsafe impl Send for ForkShared {}
// SAFETY: as for `Send`.
unsafe impl Sync for ForkShared {}

impl ForkShared {
    /// Maps a zeroed segment of `words` words without a shadow.
    pub fn new(words: usize) -> ForkShared {
        ForkShared::with_shadow(words, 0)
    }

    /// Maps a zeroed segment of `words` words, with `shadow_words` words to save pages in while an
    /// image is held.
    pub fn with_shadow(words: usize, shadow_words: usize) -> ForkShared {
        let all = (words + shadow_words) * 8;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice; it replaces
        // nothing.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), all, protection, flags, -1, 0) };
        assert!(start != libc::MAP_FAILED, "mmap: {}", io::Error::last_os_error());
        ForkShared { start: start.cast(), words, shadow_words }
    }

    /// Whether the lock is held, or its owner died holding it.
    pub fn is_locked(&self) -> bool {
        self.words()[0].load(Ordering::Relaxed) != FREE
    }

    /// Marks the owner of a held lock as dead, so that the next owner is told.
    pub fn bury_owner(&self) {
        let _ = self.words()[0].compare_exchange(HELD, DEAD, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl Drop for ForkShared {
    fn drop(&mut self) {
        // SAFETY: `with_shadow` made the mapping with this length; no reference to it outlives
        // `self`.
        unsafe { libc::munmap(self.start.cast(), (self.words + self.shadow_words) * 8) };
    }
}

impl Memory for ForkShared {
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: `start` is a page-aligned mapping of at least `words` words. They are zeroed or
        // written atomically.
        unsafe { std::slice::from_raw_parts(self.start, self.words) }
    }

    fn lock(&self) -> Result<Acquired> {
        let word = &self.words()[0];
        let take = |seen| word.compare_exchange(seen, HELD, Ordering::Acquire, Ordering::Relaxed);
        if take(FREE).is_ok() {
            return Ok(Acquired::Clean);
        }
        // Only one process runs at a time, so waiting for a held lock would never end.
        take(DEAD).map(|_| Acquired::OwnerDied).map_err(|_| Error::Busy)
    }

    fn unlock(&self) {
        self.words()[0].store(FREE, Ordering::Release);
    }

    fn back(&self, first_word: usize, word_count: usize) -> Result<()> {
        match first_word.checked_add(word_count) {
            Some(end) if end <= self.words => Ok(()),
            _ => Err(Error::NoSpace),
        }
    }

    fn shadow(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has `shadow_words` more words behind the first `words`.
        unsafe { std::slice::from_raw_parts(self.start.add(self.words), self.shadow_words) }
    }

    fn back_shadow(&self, first_word: usize, word_count: usize) -> Result<()> {
        match first_word.checked_add(word_count) {
            Some(end) if end <= self.shadow_words => Ok(()),
            _ => Err(Error::NoSpace),
        }
    }
}

/// A forked child that runs freely or, if traced, under control of its parent.
pub struct Child {
    pid: libc::pid_t,
    reaped: bool,
}

/// State of a child after it was resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stepped {
    /// It stopped again.
    Stopped,
    /// It ended with this exit status; `None` if a signal ended it.
    Ended(Option<i32>),
}

impl Child {
    /// Forks a child that runs `act` and ends with status 0, or 1 if `act` panics. A `traced` child
    /// stops first and waits to be stepped.
    pub fn fork(traced: bool, act: impl FnOnce()) -> Child {
        // SAFETY: the child runs only `act` and ends with `_exit`. Besides memory it needs only the
        // locks of the allocator, which the C library keeps usable across fork.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork: {}", io::Error::last_os_error());
        if pid == 0 {
            if traced {
                // SAFETY: asks to be traced by the parent and stops; touches no memory.
                unsafe {
                    libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                    libc::raise(libc::SIGSTOP);
                }
            }
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
            // SAFETY: ends the child at once; no destructor or exit handler of the parent runs.
            unsafe { libc::_exit(i32::from(result.is_err())) };
        }
        let mut child = Child { pid, reaped: false };
        if traced {
            assert_eq!(child.wait(), Stepped::Stopped, "the child stops first");
        }
        child
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.pid as u32
    }

    fn wait(&mut self) -> Stepped {
        let mut status = 0;
        loop {
            // SAFETY: `status` is a valid target. The pid is that of our child, and only this
            // object waits for it.
            let waited = unsafe { libc::waitpid(self.pid, &mut status, 0) };
            if waited == self.pid {
                break;
            }
            let error = io::Error::last_os_error();
            assert_eq!(error.kind(), io::ErrorKind::Interrupted, "waitpid: {error}");
        }
        if libc::WIFSTOPPED(status) {
            return Stepped::Stopped;
        }
        self.reaped = true;
        Stepped::Ended(libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)))
    }

    /// Lets a traced child run one instruction.
    pub fn step(&mut self) -> Stepped {
        self.resume(libc::PTRACE_SINGLESTEP)
    }

    /// Lets a traced child run until it has written to a watched word.
    pub fn run_to_watch(&mut self) -> Stepped {
        self.resume(libc::PTRACE_CONT)
    }

    fn resume(&mut self, request: u32) -> Stepped {
        // SAFETY: the child is stopped and traced by this thread; no memory is passed.
        let resumed = unsafe { libc::ptrace(request, self.pid, 0, 0) };
        assert_eq!(resumed, 0, "ptrace: {}", io::Error::last_os_error());
        self.wait()
    }

    /// Makes a stopped child stop whenever it has written to one of these words, at most four.
    /// Returns false if the machine has no debug registers for us.
    #[cfg(target_arch = "x86_64")]
    pub fn watch(&mut self, words: &[&AtomicU64]) -> bool {
        /// Bits of the debug control register, per watched word: enabled for this thread; stop
        /// after writes; 8 bytes (Intel SDM, volume 3, 18.2.4).
        const ENABLE_LOCALLY: usize = 1;
        const ON_WRITE_OF_8_BYTES: usize = 0b1001;
        let control = (0..words.len())
            .map(|index| ENABLE_LOCALLY << (2 * index) | ON_WRITE_OF_8_BYTES << (16 + 4 * index))
            .sum();
        let registers = std::mem::offset_of!(libc::user, u_debugreg);
        let poke = |index: usize, value: usize| {
            // SAFETY: the child is stopped and traced by this thread; the kernel checks offset and
            // value.
            unsafe {
                libc::ptrace(libc::PTRACE_POKEUSER, self.pid, registers + 8 * index, value) == 0
            }
        };
        let addresses = words.iter().enumerate();
        assert!(words.len() <= 4, "a processor has four such registers");
        addresses.into_iter().all(|(index, word)| poke(index, word.as_ptr() as usize))
            && poke(7, control)
    }

    /// Kills the child and waits for its end.
    pub fn kill(mut self) {
        self.kill_now();
    }

    /// Waits for the end of a child that is not traced.
    pub fn join(mut self) -> Stepped {
        self.wait()
    }

    fn kill_now(&mut self) {
        // SAFETY: the pid is that of our child, and nobody has waited for it yet.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        while self.wait() == Stepped::Stopped {}
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            self.kill_now();
        }
    }
}
