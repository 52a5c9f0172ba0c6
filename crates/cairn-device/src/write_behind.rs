//! Bytes on their way into a file: programs have written them, the device has not.
//!
//! ```text
//! FREE ──a program takes it──► FILLING ──its bytes are here──► STAGED ──somebody writes it──► WRITING ──► FREE
//!                                                               ▲  │
//!                                  more bytes that follow  GROWING ◄┘
//! ```
//! A write to a tier in a file ends when its bytes are staged: in shared memory, where they survive the program. The agent
//! brings them to the file, several at a time, while the program goes on; so does whoever cannot wait for the agent.
//! Must stay true: of a range that is staged or being written the file has old bytes, so nobody touches the file there
//! before `settle`. Whoever writes a slot is in a system call that ends before its thread is gone; so what a dead one
//! was writing can be written again. A thread has one slot at most. What stands in shared memory is checked before it is
//! used.
//! Does not order writes to one range that are made at the same time; the core's plans keep those apart. Does not start
//! threads.

use core::cell::Cell;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::ops::Range;

use cairn_core::{Error, ProcessIdentity, Result};

use crate::directory::{Directory, StoreResult};
use crate::mapping::{LocalTable, Mapping, PAGE_BYTES, Populate};
use crate::process;
use crate::segment;
use crate::staging::STAGING_BYTES;
use crate::sys::{self, Errno};

const MAGIC: u64 = u64::from_le_bytes(*b"cairnstg");
/// Enough to keep a device busy; a slot's memory is taken when it is first used.
const SLOTS: usize = 16;
const AREA_BYTES: usize = PAGE_BYTES + SLOTS * STAGING_BYTES;

// Words of the first page.
const W_MAGIC: usize = 0;
/// Pid namespace whose threads may claim slots: others could not be told from the dead.
const W_PID_NAMESPACE: usize = 1;
/// Not 0: somebody writes what is staged.
const W_SERVED: usize = 2;
/// Not 0: a slot could not be written, and its bytes are lost.
const W_FAILED: usize = 3;
/// Not 0: the file is mapped somewhere, so a write is in the file when it returns.
const W_MAPPED: usize = 4;
/// Counts what was staged.
const W_TICKETS: usize = 5;
/// Futex: changes when something was staged. Then how many sleep on it.
const W_STAGED: usize = 6;
const W_SERVERS_ASLEEP: usize = 7;
/// Futex: changes when something was written. Then how many sleep on it.
const W_WRITTEN: usize = 8;
const W_WAITERS_ASLEEP: usize = 9;
const W_SLOTS: usize = 64;
const SLOT_WORDS: usize = 8;

// Words of a slot.
const S_STATE: usize = 0;
const S_OFFSET: usize = 1;
const S_LENGTH: usize = 2;
const S_TICKET: usize = 3;

// The lowest bits of a slot's state; above them, who fills or writes it.
const FREE: u64 = 0;
const FILLING: u64 = 1;
const STAGED: u64 = 2;
const WRITING: u64 = 3;
const GROWING: u64 = 4;
const KIND: u64 = 7;
/// Of a slot that could not be written: it stays as it is, so that nobody takes what the file has for its bytes.
const LOST: u64 = WRITING;
/// Bits of a thread id and of its start time.
const PID_BITS: u32 = 22;
const START_BITS: u32 = 39;

/// How long a server sleeps before it looks whether it is to end.
const SERVER_SLEEP: Duration = Duration::from_millis(100);
/// How often somebody who waits lets others run before it sleeps, for how long it sleeps, and in which rounds it
/// looks whether the one it waits for exists.
const YIELDS: u32 = 20;
const WAITER_SLEEP: Duration = Duration::from_millis(1);
const CHECK_EVERY: u32 = 32;
/// Rounds without anybody writing anything after which a program does not wait for a slot any longer.
const IDLE_ROUNDS: u32 = 25;
/// Rounds without anybody writing anything, half a minute at least, after which somebody who may not write gives up.
const PATIENCE: u32 = if cfg!(test) { 100 } else { 30_000 };

/// Writes bytes at an address to an offset of the file. Errors: `FileTooLarge`, `Fault` or `Busy` if only this process
/// cannot; else the bytes are lost.
pub type Put<'a> = &'a dyn Fn(*const u8, u64, usize) -> Result<()>;

/// The bytes on their way into one file.
#[derive(Debug)]
pub struct WriteBehind {
    mapping: Mapping,
    /// Nonzero: this process has the slot's memory present.
    present: LocalTable,
}

/// What somebody who waits for a slot could do about it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// Somebody else writes it.
    Waits,
    /// It is not for this process to write.
    Stuck,
    Wrote,
}

impl WriteBehind {
    /// Makes an area `name` with nothing in it. Errors: it exists; no space.
    pub fn create(directory: &Directory, name: &CStr) -> StoreResult<()> {
        let failed = |errno| directory.error("create", name, errno);
        let file = segment::create_file(directory, name, AREA_BYTES as u64)?;
        let mapping = Mapping::new(file, AREA_BYTES).map_err(failed)?;
        let backed = mapping.populate(0, PAGE_BYTES, Populate::Write);
        backed.map_err(|error| directory.error("create", name, error))?;
        let present = LocalTable::new(SLOTS).map_err(failed)?;
        let area = WriteBehind { mapping, present };
        area.word(W_PID_NAMESPACE).store(process::pid_namespace(), Ordering::Relaxed);
        area.word(W_MAGIC).store(MAGIC, Ordering::Release);
        Ok(())
    }

    /// Opens the area `name`. Errors: it does not exist (`ENOENT`), or is something else (`EIO`).
    pub fn open(directory: &Directory, name: &CStr) -> StoreResult<WriteBehind> {
        let failed = |errno| directory.error("open", name, errno);
        let (file, bytes) = segment::open_file(directory, name)?;
        let damaged = || failed(Errno(libc::EIO)).advise("the store is damaged");
        if bytes != AREA_BYTES as u64 {
            return Err(damaged());
        }
        let mapping = Mapping::new(file, AREA_BYTES).map_err(failed)?;
        let backed = mapping.populate(0, PAGE_BYTES, Populate::Write);
        backed.map_err(|error| directory.error("open", name, error))?;
        let present = LocalTable::new(SLOTS).map_err(failed)?;
        let area = WriteBehind { mapping, present };
        if area.word(W_MAGIC).load(Ordering::Acquire) != MAGIC {
            return Err(damaged());
        }
        area.forget_past();
        Ok(area)
    }

    /// Gives up the slot that this thread had when its process executed this program.
    fn forget_past(&self) {
        let Some(claim) = self.claim() else { return };
        for slot in self.slots() {
            slot.change(claim | FILLING, FREE);
            slot.change(claim | WRITING, STAGED);
            slot.change(claim | GROWING, STAGED);
        }
    }

    /// The descriptor this object keeps open.
    pub fn descriptor(&self) -> i32 {
        self.mapping.file().raw()
    }

    /// Takes `length` bytes for `offset` of the file, at most `STAGING_BYTES` less the offset within a page; `fill`
    /// puts them where it is told. False, and nothing done: the caller has to write them itself.
    /// Errors: `Io` if bytes that were staged earlier are lost.
    pub fn stage(
        &self,
        offset: u64,
        length: usize,
        put: Put,
        fill: &mut impl FnMut(*mut u8),
    ) -> Result<bool> {
        self.check()?;
        let is_wanted = self.load(W_SERVED) != 0 && self.load(W_MAPPED) == 0;
        let Some(claim) = self.claim().filter(|_| is_wanted) else { return Ok(false) };
        if let Some(slot) = self.grow(claim, offset, length) {
            let before = slot.word(S_LENGTH).load(Ordering::Relaxed);
            fill(slot.address(offset - before).wrapping_add(before as usize));
            slot.word(S_LENGTH).store(before + length as u64, Ordering::Relaxed);
            slot.word(S_STATE).store(STAGED, Ordering::SeqCst);
        } else {
            let Some(slot) = self.take_in_time(claim) else { return Ok(false) };
            fill(slot.address(offset));
            let ticket = self.word(W_TICKETS).fetch_add(1, Ordering::SeqCst);
            slot.word(S_OFFSET).store(offset, Ordering::Relaxed);
            slot.word(S_LENGTH).store(length as u64, Ordering::Relaxed);
            slot.word(S_TICKET).store(ticket, Ordering::Relaxed);
            slot.word(S_STATE).store(STAGED, Ordering::SeqCst);
        }
        if self.load(W_MAPPED) != 0 {
            // Somebody mapped the file just now.
            self.settle(offset..offset + length as u64, put)?;
        }
        self.signal(W_STAGED, W_SERVERS_ASLEEP, 1);
        Ok(true)
    }

    /// Returns when the file has what was staged for a range. Errors: `Io` if it is lost, or if it is not for this process
    /// to write and nobody else does.
    pub fn settle(&self, range: Range<u64>, put: Put) -> Result<()> {
        self.wait_until_written(put, |slot| {
            let (start, end) = slot.range();
            start < range.end && range.start < end
        })
    }

    /// Returns when the file has everything that was staged before. Errors: as `settle`, for any of it.
    pub fn settle_all(&self, put: Put) -> Result<()> {
        let limit = self.load(W_TICKETS);
        self.wait_until_written(put, |slot| slot.word(S_TICKET).load(Ordering::Relaxed) < limit)?;
        self.check()
    }

    /// From now on a write is in the file when it returns. For files that are mapped.
    pub fn settle_for_mapping(&self, put: Put) -> Result<()> {
        self.word(W_MAPPED).store(1, Ordering::SeqCst);
        self.settle_all(put)
    }

    /// Writes what is staged, oldest first, until `stop` is set and nothing is left that this process may write.
    pub fn serve(&self, put: Put, stop: &AtomicBool) {
        let Some(claim) = self.claim() else { return };
        loop {
            self.word(W_SERVED).store(1, Ordering::Relaxed);
            let seen = self.load(W_STAGED);
            let staged = self.slots().filter(|slot| slot.state() == STAGED);
            let oldest = staged.min_by_key(|slot| slot.word(S_TICKET).load(Ordering::Relaxed));
            match oldest.map(|slot| slot.write(STAGED, claim, put)) {
                Some(Ok(_)) => {}
                _ if stop.load(Ordering::Relaxed) => break,
                _ => self.sleep(W_STAGED, W_SERVERS_ASLEEP, seen, SERVER_SLEEP),
            }
        }
        self.word(W_SERVED).store(0, Ordering::Relaxed);
    }

    fn check(&self) -> Result<()> {
        match self.load(W_FAILED) {
            0 => Ok(()),
            _ => Err(Error::Io),
        }
    }

    /// What the calling thread claims slots with; None if others could not tell whether it lives.
    fn claim(&self) -> Option<u64> {
        claim(self.load(W_PID_NAMESPACE))
    }

    /// The staged slot that ends where a range begins, if it has room for that; from now on it is this thread's.
    fn grow(&self, claim: u64, offset: u64, length: usize) -> Option<Slot<'_>> {
        let takes = |slot: &Slot| {
            let (start, end) = slot.range();
            let room = STAGING_BYTES - start as usize % PAGE_BYTES;
            end == offset && (offset - start).saturating_add(length as u64) <= room as u64
        };
        let slot = self.slots().find(|slot| slot.state() == STAGED && takes(slot))?;
        if !slot.change(STAGED, claim | GROWING) {
            return None;
        }
        // Meanwhile it may have become that of another range.
        if takes(&slot) && self.back(&slot).is_ok() {
            return Some(slot);
        }
        slot.word(S_STATE).store(STAGED, Ordering::SeqCst);
        None
    }

    /// A slot, as soon as there is one: the device is to have no more to do at a time than those who serve it give it. None
    /// if nobody serves it any more, or if there is no memory.
    fn take_in_time(&self, claim: u64) -> Option<Slot<'_>> {
        let mut idle = 0;
        while idle < IDLE_ROUNDS {
            let seen = self.load(W_WRITTEN);
            if let Some(slot) = self.take(claim) {
                if self.back(&slot).is_ok() {
                    return Some(slot);
                }
                slot.word(S_STATE).store(FREE, Ordering::Release);
                return None;
            }
            self.sleep(W_WRITTEN, W_WAITERS_ASLEEP, seen, WAITER_SLEEP);
            idle = if self.load(W_WRITTEN) == seen { idle + 1 } else { 0 };
        }
        self.word(W_SERVED).store(0, Ordering::Relaxed);
        None
    }

    /// A free slot, or one whose thread died while it filled it.
    fn take(&self, claim: u64) -> Option<Slot<'_>> {
        self.slots().find(|slot| slot.change(FREE, claim | FILLING)).or_else(|| {
            self.slots().find(|slot| {
                let state = slot.state();
                state & KIND == FILLING
                    && self.is_dead(state)
                    && slot.change(state, claim | FILLING)
            })
        })
    }

    /// Makes the slot's memory present, so that touching it is no signal.
    fn back(&self, slot: &Slot) -> Result<()> {
        let mark = &self.present.entries()[slot.index];
        if mark.load(Ordering::Relaxed) == 0 {
            self.mapping.populate(slot.start(), STAGING_BYTES, Populate::Write)?;
            mark.store(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Waits for the slots that `concerns` chooses, and writes those that nobody writes.
    fn wait_until_written(&self, put: Put, concerns: impl Fn(&Slot) -> bool) -> Result<()> {
        let is_pending = |slot: &Slot| slot.state() & KIND >= STAGED && concerns(slot);
        let (mut stuck, mut before) = (0, 0);
        for round in 1.. {
            let seen = self.load(W_WRITTEN);
            // Nothing is the rule.
            let mut pending = self.slots().filter(is_pending).peekable();
            if pending.peek().is_none() {
                break;
            }
            let mut step = Step::Waits;
            for slot in pending {
                step = step.max(self.advance(&slot, put, round % CHECK_EVERY == 0)?);
            }
            stuck = match step {
                Step::Stuck if seen == before => stuck + 1,
                _ => 0,
            };
            before = seen;
            match round {
                _ if stuck == PATIENCE => return Err(Error::Io),
                _ if step == Step::Wrote => {}
                0..YIELDS => std::thread::yield_now(),
                _ => self.sleep(W_WRITTEN, W_WAITERS_ASLEEP, seen, WAITER_SLEEP),
            }
        }
        Ok(())
    }

    /// Does what can be done for a slot that is waited for; `looks`, whether who writes it exists. Errors: `Io`: it is lost.
    fn advance(&self, slot: &Slot, put: Put, looks: bool) -> Result<Step> {
        let state = slot.state();
        if state == LOST {
            return Err(Error::Io);
        }
        let Some(claim) = self.claim() else { return Ok(Step::Stuck) };
        let is_ours = state == STAGED || looks && state & KIND >= WRITING && self.is_dead(state);
        Ok(match is_ours.then(|| slot.write(state, claim, put)) {
            Some(Ok(true)) => Step::Wrote,
            Some(Err(_)) => Step::Stuck,
            Some(Ok(false)) | None => Step::Waits,
        })
    }

    fn is_dead(&self, state: u64) -> bool {
        let owner = state >> KIND.count_ones();
        let identity = ProcessIdentity {
            pid: (owner & ((1 << PID_BITS) - 1)) as u32,
            pid_namespace: self.load(W_PID_NAMESPACE),
            start_time: owner >> PID_BITS,
        };
        !process::is_alive(identity)
    }

    fn slots(&self) -> impl Iterator<Item = Slot<'_>> {
        (0..SLOTS).map(|index| Slot { area: self, index })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index < PAGE_BYTES / size_of::<AtomicU64>());
        // SAFETY: the first page is mapped and present as long as `self` lives; all access is atomic.
        unsafe { &*self.mapping.address().as_ptr().cast::<AtomicU64>().add(index) }
    }

    fn load(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::SeqCst)
    }

    /// The half of a word that the kernel looks at.
    fn futex(&self, index: usize) -> *const AtomicU32 {
        core::ptr::from_ref(self.word(index)).cast()
    }

    fn signal(&self, futex: usize, asleep: usize, count: i32) {
        self.word(futex).fetch_add(1, Ordering::SeqCst);
        if self.load(asleep) != 0 {
            // SAFETY: the word is mapped.
            let _ = unsafe { sys::futex_wake(self.futex(futex), count) };
        }
    }

    /// Sleeps until `futex` is no longer what was `seen`, or for so long.
    fn sleep(&self, futex: usize, asleep: usize, seen: u64, time: Duration) {
        self.word(asleep).fetch_add(1, Ordering::SeqCst);
        // SAFETY: the word is mapped. Whatever ends the sleep is as good.
        let _ = unsafe { sys::futex_wait(self.futex(futex), seen as u32, time) };
        self.word(asleep).fetch_sub(1, Ordering::SeqCst);
    }
}

/// Place for the bytes of one write.
struct Slot<'a> {
    area: &'a WriteBehind,
    index: usize,
}

impl Slot<'_> {
    fn word(&self, word: usize) -> &AtomicU64 {
        self.area.word(W_SLOTS + self.index * SLOT_WORDS + word)
    }

    fn state(&self) -> u64 {
        self.word(S_STATE).load(Ordering::SeqCst)
    }

    fn change(&self, from: u64, to: u64) -> bool {
        let changed =
            self.word(S_STATE).compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed);
        changed.is_ok()
    }

    /// Where the slot's memory starts in the area.
    fn start(&self) -> usize {
        PAGE_BYTES + self.index * STAGING_BYTES
    }

    /// Where the byte of an offset of the file stands: as far into a page as there.
    fn address(&self, offset: u64) -> *mut u8 {
        let at = self.start() + offset as usize % PAGE_BYTES;
        // SAFETY: inside the mapping, which is as long as all slots.
        unsafe { self.area.mapping.address().as_ptr().add(at) }
    }

    /// The bytes of the file it is for, as far as they can be true.
    fn range(&self) -> (u64, u64) {
        let offset = self.word(S_OFFSET).load(Ordering::Relaxed);
        (offset, offset.saturating_add(self.word(S_LENGTH).load(Ordering::Relaxed)))
    }

    /// Brings the slot, if it is still in `state`, to the file, or gives it up for lost. Whether it did. Errors: this
    /// process cannot; another may.
    fn write(&self, state: u64, claim: u64, put: Put) -> Result<bool> {
        if !self.change(state, claim | WRITING) {
            return Ok(false);
        }
        let (start, end) = self.range();
        let length = (end - start) as usize;
        let fits = length <= STAGING_BYTES - start as usize % PAGE_BYTES;
        let result = match fits {
            true => put(self.address(start), start, length),
            false => Err(Error::Io),
        };
        let next = match result {
            Ok(()) => FREE,
            Err(Error::FileTooLarge | Error::Fault | Error::Busy) => STAGED,
            Err(_) => {
                self.area.word(W_FAILED).store(1, Ordering::SeqCst);
                LOST
            }
        };
        self.word(S_STATE).store(next, Ordering::SeqCst);
        if next == STAGED {
            return result.map(|()| false);
        }
        self.area.signal(W_WRITTEN, W_WAITERS_ASLEEP, i32::MAX);
        Ok(true)
    }
}

/// What the calling thread claims slots with in a pid namespace; None if others could not tell whether it lives.
fn claim(pid_namespace: u64) -> Option<u64> {
    thread_local! {
        /// Identity of this thread, and `process::generation` for which it is right.
        static KNOWN: Cell<(u64, Option<ProcessIdentity>)> = const { Cell::new((0, None)) };
    }
    let generation = process::generation();
    let identity = match KNOWN.get() {
        (known, identity) if known == generation => identity?,
        _ => {
            let identity = process::thread_identity().ok();
            KNOWN.set((generation, identity));
            identity?
        }
    };
    let fits = identity.pid >> PID_BITS == 0 && identity.start_time >> START_BITS == 0;
    let owner = identity.start_time << PID_BITS | u64::from(identity.pid);
    (fits && identity.pid_namespace == pid_namespace).then_some(owner << KIND.count_ones())
}

#[cfg(test)]
mod tests;
