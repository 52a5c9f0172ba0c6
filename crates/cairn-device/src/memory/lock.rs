//! The lock of a namespace: a futex word in shared memory that detects the death of its owner.
//!
//! The low half of word 0 follows the kernel's robust-futex protocol (thread id, `FUTEX_WAITERS`,
//! `FUTEX_OWNER_DIED`); the high half holds the owner's pid namespace. A thread announces the word
//! in the `list_op_pending` field of its existing robust list, from before it takes the lock until
//! after it has released it. So the kernel marks the word when the thread exits, is killed or
//! executes another program, and no pointer is ever stored in shared memory.
//!
//! Invariant: a thread holds at most one of these locks. A signal handler may interrupt the
//! operation on another robust mutex; the announcement of that mutex is restored afterwards.
//!
//! Does not repair what a dead owner left behind; the core does when told `OwnerDied`.

use core::cell::{Cell, UnsafeCell};
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence};
use core::time::Duration;
use std::time::Instant;

use cairn_core::{Acquired, Error, Result};
use cairn_platform::process;
use cairn_platform::sys::{self, Errno};

const TID_MASK: u64 = libc::FUTEX_TID_MASK as u64;
const WAITERS: u64 = libc::FUTEX_WAITERS as u64;

/// Position of the lock word. It and the words below are in the first 64 bytes of the namespace.
const LOCK: usize = 0;
const ACQUISITIONS: usize = 1;
const CONTENDED: usize = 2;
const DEATHS: usize = 3;
/// Number of words of the segment that belong to the lock.
pub const LOCK_WORDS: usize = cairn_core::LOCK_WORDS;

/// Number of polls of the word before sleeping; the lock is held for well under a microsecond.
const SPINS: u32 = 100;
/// Longest sleep before the owner's existence is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Number of checks after which this thread stops waiting for an owner that it cannot check
/// (another pid namespace).
const UNCHECKABLE_ROUNDS: u32 = 30;

/// Longest wait of this process for a lock, in milliseconds; 0: as long as the owner lives.
static PATIENCE_MS: AtomicU32 = AtomicU32::new(0);

/// Limits every later wait of this process for the lock of a namespace to `patience`. For commands
/// and agents, which have to report what they wait for; programs wait without a limit.
pub fn set_patience(patience: Duration) {
    let milliseconds = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
    PATIENCE_MS.store(milliseconds, Ordering::Relaxed);
}

fn own_patience() -> Option<Duration> {
    let milliseconds = PATIENCE_MS.load(Ordering::Relaxed);
    (milliseconds > 0).then(|| Duration::from_millis(milliseconds.into()))
}

/// Owner of the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Thread id in its pid namespace.
    pub tid: u32,
    /// Low half of the inode number of that pid namespace.
    pub pid_namespace: u32,
}

/// Counters of the lock since the segment was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockStatistics {
    /// Number of acquisitions.
    pub acquisitions: u64,
    /// Number of acquisitions that found the lock held.
    pub contended: u64,
    /// Number of acquisitions whose previous owner had died.
    pub deaths: u64,
}

/// The lock in the first words of a segment.
#[derive(Clone, Copy)]
pub struct RobustLock<'a> {
    words: &'a [AtomicU64],
}

impl<'a> RobustLock<'a> {
    /// Returns the lock that uses the first [`LOCK_WORDS`] of `words`.
    pub fn new(words: &'a [AtomicU64]) -> RobustLock<'a> {
        assert!(words.len() >= LOCK_WORDS, "a segment is at least one page");
        RobustLock { words: &words[..LOCK_WORDS] }
    }

    /// Takes the lock. Waits as long as its owner lives, or as long as [`set_patience`] allows.
    /// Errors: `Held` if one thread held it for all that time; `Busy` if this thread holds a lock
    /// already (a signal handler interrupted it), or if an owner in another pid namespace made no
    /// progress for half a minute; `Io` if the kernel offers no robust list.
    pub fn lock(&self) -> Result<Acquired> {
        self.enter(None)
    }

    /// As `lock`, with a limit of `patience` on the wait, or else the limit of this process.
    fn enter(&self, patience: Option<Duration>) -> Result<Acquired> {
        SEAT.with(|seat| {
            let mine = seat.sit_down(self.address())?;
            let taken = match self.compare_exchange(0, mine) {
                true => Ok(Acquired::Clean),
                false => self.take_contended(mine, patience.or_else(own_patience)),
            };
            match taken {
                Ok(Acquired::Clean) => self.count(ACQUISITIONS),
                Ok(Acquired::OwnerDied) => {
                    self.count(ACQUISITIONS);
                    self.count(DEATHS);
                }
                Err(_) => seat.leave(),
            }
            taken
        })
    }

    /// Takes the lock if no thread holds it; returns false otherwise. Does not report that the
    /// previous owner died: the caller has to find that out. Errors: as `lock`, for this thread.
    pub fn try_lock(&self) -> Result<bool> {
        SEAT.with(|seat| {
            let mine = seat.sit_down(self.address())?;
            let seen = self.words[LOCK].load(Ordering::Relaxed);
            let is_taken =
                seen & TID_MASK == 0 && self.compare_exchange(seen, mine | seen & WAITERS);
            if !is_taken {
                seat.leave();
            }
            Ok(is_taken)
        })
    }

    /// Releases the lock. Panics if the calling thread does not hold it.
    pub fn unlock(&self) {
        SEAT.with(|seat| {
            assert!(seat.held.get() == self.address(), "unlock by a thread that holds no lock");
            let seen = self.words[LOCK].swap(0, Ordering::Release);
            if seen & WAITERS != 0 {
                self.wake_one();
            }
            seat.leave();
        });
    }

    /// Returns the owner of the lock, which may have changed by the time the call returns.
    pub fn holder(&self) -> Option<Holder> {
        let seen = self.words[LOCK].load(Ordering::Relaxed);
        let tid = (seen & TID_MASK) as u32;
        (tid != 0).then_some(Holder { tid, pid_namespace: (seen >> 32) as u32 })
    }

    /// Whether a thread holds the lock. The kernel reports a thread that died. With `looks`, the
    /// call also checks that the thread exists.
    pub fn is_held(&self, looks: bool) -> bool {
        let is_gone = |holder: Holder| {
            let own = (process::pid_namespace() & u64::from(u32::MAX)) as u32;
            holder.pid_namespace == own && !process::thread_exists(holder.tid)
        };
        self.holder().is_some_and(|holder| !(looks && is_gone(holder)))
    }

    /// Returns the counters, approximately.
    pub fn statistics(&self) -> LockStatistics {
        let read = |index: usize| self.words[index].load(Ordering::Relaxed);
        LockStatistics {
            acquisitions: read(ACQUISITIONS),
            contended: read(CONTENDED),
            deaths: read(DEATHS),
        }
    }

    fn address(&self) -> usize {
        self.words[LOCK].as_ptr() as usize
    }

    /// Returns the half of the lock word that the kernel knows.
    fn futex(&self) -> *const AtomicU32 {
        self.words[LOCK].as_ptr().cast::<AtomicU32>()
    }

    fn wake_one(&self) {
        // SAFETY: the futex is the low half of a word of the borrowed segment, hence mapped and
        // aligned. Waking fails only for bad addresses.
        let _ = unsafe { sys::futex_wake(self.futex(), 1) };
    }

    /// Waits for the lock and takes it. `mine` is the word for a lock that this thread holds.
    fn take_contended(&self, mine: u64, patience: Option<Duration>) -> Result<Acquired> {
        // Lock word, count of acquisitions, and the time since which both are unchanged.
        let mut held = (0, 0, Instant::now());
        let mut waiters = 0;
        let mut spins = 0;
        let mut silent_rounds = 0;
        loop {
            let seen = self.words[LOCK].load(Ordering::Relaxed);
            // This thread is not in the lock (its seat says so), so a word that names it is stale.
            let stale = (seen & TID_MASK, seen >> 32) == (mine & TID_MASK, mine >> 32);
            if seen & TID_MASK == 0 || stale {
                if self.compare_exchange(seen, mine | waiters | seen & WAITERS) {
                    self.count(CONTENDED);
                    return Ok(if seen == 0 { Acquired::Clean } else { Acquired::OwnerDied });
                }
                continue;
            }
            if spins < SPINS {
                spins += 1;
                core::hint::spin_loop();
                continue;
            }
            let asleep = seen | WAITERS;
            if seen != asleep && !self.compare_exchange(seen, asleep) {
                continue;
            }
            // After a sleep this thread cannot know whether others still sleep, so it keeps the
            // mark.
            waiters = WAITERS;
            spins = 0;
            let acquisitions = self.words[ACQUISITIONS].load(Ordering::Relaxed);
            if (held.0, held.1) != (asleep, acquisitions) {
                held = (asleep, acquisitions, Instant::now());
            }
            let left = patience.map(|patience| patience.saturating_sub(held.2.elapsed()));
            if self.sleep(asleep, left) {
                silent_rounds = 0;
                continue;
            }
            silent_rounds += 1;
            let gone = owner_is_gone(asleep, mine);
            if gone == Some(true) && self.compare_exchange(asleep, mine | WAITERS) {
                self.count(CONTENDED);
                return Ok(Acquired::OwnerDied);
            }
            if gone.is_none() && silent_rounds >= UNCHECKABLE_ROUNDS {
                return Err(Error::Busy);
            }
            if gone != Some(true) && left.is_some_and(|left| left.is_zero()) {
                let thread = if gone.is_some() { (asleep & TID_MASK) as u32 } else { 0 };
                return Err(Error::Held { thread });
            }
        }
    }

    /// Sleeps while the word is `asleep`, at most for `left`. Returns false if nothing has changed.
    fn sleep(&self, asleep: u64, left: Option<Duration>) -> bool {
        let limit = left.map_or(CHECK_INTERVAL, |left| left.min(CHECK_INTERVAL));
        // SAFETY: the futex is the low half of a word of the borrowed segment.
        let woken = unsafe { sys::futex_wait(self.futex(), asleep as u32, limit) };
        if woken != Err(Errno(libc::ETIMEDOUT)) {
            return true;
        }
        self.words[LOCK].load(Ordering::Relaxed) != asleep
    }

    fn compare_exchange(&self, expected: u64, new: u64) -> bool {
        self.words[LOCK]
            .compare_exchange(expected, new, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Adds one to a counter. Only the holder of the lock does, so no atomic addition is needed.
    fn count(&self, counter: usize) {
        let counter = &self.words[counter];
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

/// Whether the thread named in `word` does not exist any more; `None` if it is of another pid
/// namespace than the thread described by `mine`.
fn owner_is_gone(word: u64, mine: u64) -> Option<bool> {
    (word >> 32 == mine >> 32).then(|| !process::thread_exists((word & TID_MASK) as u32))
}

/// `struct robust_list_head` of the kernel.
#[repr(C)]
struct RobustListHead {
    list: *mut RobustListHead,
    futex_offset: libc::c_long,
    list_op_pending: *mut u8,
}

const _: () = assert!(size_of::<RobustListHead>() == 24);
const _: () = assert!(offset_of!(RobustListHead, list_op_pending) == 16);

/// State of a thread for taking locks.
struct Seat {
    /// Value of `process::generation` for which the fields below are valid.
    generation: Cell<u64>,
    /// The word with which this thread takes a lock: pid namespace and thread id.
    mine: Cell<u64>,
    /// The thread's registered robust list.
    head: Cell<*mut RobustListHead>,
    /// Address of the lock that is held or being taken; 0 if none.
    held: Cell<usize>,
    /// The announcement that ours replaced.
    previous: Cell<*mut u8>,
    /// Robust list that is registered only if the C library registers none.
    own_head: UnsafeCell<RobustListHead>,
}

thread_local! {
    static SEAT: Seat = const {
        Seat {
            generation: Cell::new(0),
            mine: Cell::new(0),
            head: Cell::new(ptr::null_mut()),
            held: Cell::new(0),
            previous: Cell::new(ptr::null_mut()),
            own_head: UnsafeCell::new(RobustListHead {
                list: ptr::null_mut(),
                futex_offset: 0,
                list_op_pending: ptr::null_mut(),
            }),
        }
    };
}

impl Seat {
    /// Announces the lock at `address` to the kernel. Returns the word that takes it.
    #[inline]
    fn sit_down(&self, address: usize) -> Result<u64> {
        let generation = process::generation();
        if self.generation.get() != generation {
            self.introduce(generation)?;
        }
        if self.held.get() != 0 {
            return Err(Error::Busy);
        }
        self.held.set(address);
        let head = self.head.get();
        // SAFETY: `head` is this thread's registered list (`introduce`), which lives as long as
        // the thread; only this thread and, after its death, the kernel touch it.
        unsafe {
            let pending = &raw mut (*head).list_op_pending;
            self.previous.set(pending.read());
            let entry = (address as libc::c_long).wrapping_sub((*head).futex_offset);
            pending.write_volatile(ptr::without_provenance_mut(entry as usize));
        }
        // The kernel sees this thread's stores in program order, so the compiler must keep it.
        compiler_fence(Ordering::SeqCst);
        Ok(self.mine.get())
    }

    /// Withdraws the announcement, after the lock was released or could not be taken.
    #[inline]
    fn leave(&self) {
        compiler_fence(Ordering::SeqCst);
        // SAFETY: as in `sit_down`, which ran before on this thread.
        unsafe {
            (&raw mut (*self.head.get()).list_op_pending).write_volatile(self.previous.get())
        };
        compiler_fence(Ordering::SeqCst);
        self.held.set(0);
    }

    /// Fills in the state of this thread: once per thread, and again in a forked child.
    #[cold]
    fn introduce(&self, generation: u64) -> Result<()> {
        let mut head = sys::get_robust_list()? as *mut RobustListHead;
        if head.is_null() {
            head = self.own_head.get();
            // SAFETY: `own_head` is in this thread's static storage, touched by nobody else.
            unsafe { (*head).list = head };
            // SAFETY: an empty list whose head lives as long as the thread.
            unsafe { sys::set_robust_list(head.cast(), size_of::<RobustListHead>())? };
        }
        let namespace = process::pid_namespace() & u64::from(u32::MAX);
        self.mine.set(u64::from(sys::gettid()) | namespace << 32);
        self.head.set(head);
        // In a forked child, the lock that the parent's thread held is not ours.
        self.held.set(0);
        self.generation.set(generation);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
