//! Bytes in transit between programs and a file: slots in shared memory that programs and the agent
//! pass to each other. Together they are the transit area of the file.
//!
//! ```text
//! FREE ──► FILLING ──► STAGED ──► WRITING ──► FREE           writes of programs (`write_behind`)
//!                       │  ▲
//!                       └► GROWING                           following bytes are added to it
//! FREE ──► FILLING ──► WANTED ──► READING ──► READY ──► TAKEN ──► FREE  reads (`read_ahead`)
//! ```
//! A writer to a device writes in its turn (`turns`).
//!
//! Must stay true: the owner of a slot is known, so that a slot whose owner died is never lost.
//! Everything in shared memory is checked before it is used.
//!
//! Does not start threads. Does not know what the bytes of the file mean.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

use cairn_core::{Error, Result};
use cairn_platform::descriptor::Descriptor;
use cairn_platform::mapping::{LocalTable, Mapping, PAGE_BYTES, Populate};
use cairn_platform::process;
use cairn_platform::sys::{self, Errno};

use crate::directory::{Directory, StoreResult};
use crate::media::staging::STAGING_BYTES;
use crate::memory::segment;

mod read_ahead;
mod slot;
mod turns;
mod write_behind;

use read_ahead::Get;
use slot::{FILLING, FREE, KIND, STAGED, Slot, WANTED};
use write_behind::Put;

pub use turns::Turn;

const MAGIC: u64 = u64::from_le_bytes(*b"cairnstg");
/// Enough slots to keep a device busy. The memory of a slot is allocated at its first use.
const SLOTS: usize = 16;
pub(crate) const AREA_BYTES: usize = PAGE_BYTES + SLOTS * STAGING_BYTES;

// Words of the first page.
const W_MAGIC: usize = 0;
/// Pid namespace whose threads may claim slots. For other threads nobody could tell whether they
/// are alive.
const W_PID_NAMESPACE: usize = 1;
/// Not 0: somebody serves what is staged or wanted.
const W_SERVED: usize = 2;
/// Not 0: a slot could not be written, and its bytes are lost.
const W_FAILED: usize = 3;
/// Number of mappings of the file that programs have made. While it differs from `W_UNMAPPED`, a
/// write is in the file when it returns, and the file may change unseen.
const W_MAPPED: usize = 4;
/// Number of requests so far, staged or wanted.
const W_TICKETS: usize = 5;
/// Futex: changes when something was staged or wanted. The word behind a futex counts its sleepers.
const W_STAGED: usize = 6;
/// Futex: changes when something was written or read, or a slot became free.
const W_WRITTEN: usize = 8;
/// Value of `W_MAPPED` at which nothing was mapped any more. Only for devices whose pages are shown
/// (`media_file::shown`).
const W_UNMAPPED: usize = 10;
/// Number of times that shown pages went.
const W_GONE: usize = 11;
const W_SLOTS: usize = 64;
const SLOT_WORDS: usize = 8;

/// Sleep of a server between checks whether it has to end.
const SERVER_SLEEP: Duration = Duration::from_millis(100);
/// Sleep of a thread that waits. Every `CHECK_EVERY` rounds it checks that the thread it waits for
/// exists.
const WAITER_SLEEP: Duration = Duration::from_millis(1);
const CHECK_EVERY: u32 = 32;

/// The transit area of one file.
#[derive(Debug)]
pub struct Transit {
    mapping: Mapping,
    /// Nonzero for each slot whose memory is present in this process.
    present: LocalTable,
}

impl Transit {
    /// Makes an empty area `name`. Errors: it exists; no space.
    pub fn create(directory: &Directory, name: &CStr) -> StoreResult<()> {
        let failed = |errno| directory.error("create", name, errno);
        let file = segment::create_file(directory, name, AREA_BYTES as u64)?;
        let mapping = Mapping::new(file, AREA_BYTES).map_err(failed)?;
        let backed = mapping.populate(0, PAGE_BYTES, Populate::Write);
        backed.map_err(|error| directory.error("create", name, error))?;
        let present = LocalTable::new(SLOTS).map_err(failed)?;
        let area = Transit { mapping, present };
        area.word(W_PID_NAMESPACE).store(process::pid_namespace(), Ordering::Relaxed);
        area.word(W_MAGIC).store(MAGIC, Ordering::Release);
        Ok(())
    }

    /// Opens the area `name`. Errors: it does not exist (`ENOENT`), or is something else (`EIO`).
    pub fn open(directory: &Directory, name: &CStr) -> StoreResult<Transit> {
        let failed = |errno| directory.error("open", name, errno);
        let (file, bytes) = segment::open_file(directory, name)?;
        let damaged = || failed(Errno(libc::EIO)).advise("the store is damaged");
        // Shown pages stand behind the slots.
        if bytes < AREA_BYTES as u64 {
            return Err(damaged());
        }
        let mapping = Mapping::new(file, AREA_BYTES).map_err(failed)?;
        let backed = mapping.populate(0, PAGE_BYTES, Populate::Write);
        backed.map_err(|error| directory.error("open", name, error))?;
        let present = LocalTable::new(SLOTS).map_err(failed)?;
        let area = Transit { mapping, present };
        if area.word(W_MAGIC).load(Ordering::Acquire) != MAGIC {
            return Err(damaged());
        }
        area.forget_past();
        Ok(area)
    }

    /// Gives up the slots that this thread owned before its process executed this program.
    fn forget_past(&self) {
        let Some(claim) = self.claim() else { return };
        for slot in self.slots() {
            let state = slot.state();
            if state & !KIND == claim {
                slot.reclaim_slot(state);
            }
        }
    }

    /// Returns the descriptor that this object keeps open.
    pub fn descriptor(&self) -> i32 {
        self.file().raw()
    }

    /// Returns the area's file.
    pub fn file(&self) -> &Descriptor {
        self.mapping.file()
    }

    /// Writes staged slots and reads wanted ones, oldest first. Once `stop` is set, the area
    /// accepts no more, and this returns when nothing is left that this process may write.
    pub fn serve(&self, put: Put, get: Get, stop: &AtomicBool) {
        let Some(claim) = self.claim() else { return };
        loop {
            let is_ending = stop.load(Ordering::Relaxed);
            self.word(W_SERVED).store(u64::from(!is_ending), Ordering::Relaxed);
            let seen = self.load(W_STAGED);
            let is_due = |slot: &Slot| matches!(slot.state(), STAGED | WANTED);
            let oldest = self.slots().filter(is_due).min_by_key(Slot::ticket);
            let served = oldest.is_some_and(|slot| match slot.state() {
                WANTED => slot.fetch(claim, get),
                // A slot that cannot be written counts as served.
                _ => matches!(slot.write(STAGED, claim, put), Ok(_) | Err(Error::Io)),
            });
            match served {
                true => {}
                false if is_ending => break,
                false => self.sleep(W_STAGED, seen, SERVER_SLEEP),
            }
        }
    }

    /// Whether bytes may be in transit. If not, callers read and write the file directly.
    fn is_served(&self) -> bool {
        self.load(W_SERVED) != 0 && !self.is_mapped()
    }

    /// Whether a program may see the file through a mapping.
    pub fn is_mapped(&self) -> bool {
        // Loaded in this order, both values hold at the time of the second load.
        let unmapped = self.load(W_UNMAPPED);
        self.load(W_MAPPED) != unmapped
    }

    /// Number of mappings that programs have made so far.
    pub fn mappings(&self) -> u64 {
        self.load(W_MAPPED)
    }

    /// Records that nothing was mapped any more, and no page was shown, when there were that many
    /// mappings.
    pub fn nothing_is_mapped(&self, mappings: u64) {
        self.word(W_UNMAPPED).fetch_max(mappings, Ordering::SeqCst);
    }

    /// Number of times that shown pages went.
    pub fn gone(&self) -> u64 {
        self.load(W_GONE)
    }

    /// Counts a time that shown pages go. Their marks are cleared already, so nobody finds them any
    /// more.
    pub fn note_gone(&self) {
        self.word(W_GONE).fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the owner bits of the calling thread; `None` if others could not tell whether it is
    /// alive.
    fn claim(&self) -> Option<u64> {
        slot::claim(self.load(W_PID_NAMESPACE))
    }

    fn owner_is_dead(&self, state: u64) -> bool {
        slot::owner_is_dead(state, self.load(W_PID_NAMESPACE))
    }

    fn next_ticket(&self) -> u64 {
        self.word(W_TICKETS).fetch_add(1, Ordering::SeqCst)
    }

    /// Returns a slot to fill: a free one, or one whose owner died and on which nobody relies.
    fn take(&self, claim: u64) -> Option<Slot<'_>> {
        let free = |slot: &Slot| slot.change(FREE, claim | FILLING);
        self.slots().find(free).or_else(|| self.take_bereft(claim, |_| true))
    }

    /// Returns a slot among those that `may_take` accepts whose owner died and on which nobody
    /// relies.
    fn take_bereft(&self, claim: u64, may_take: impl Fn(&Slot) -> bool) -> Option<Slot<'_>> {
        self.slots().filter(may_take).find(|slot| {
            let state = slot.state();
            self.owner_is_dead(state)
                && slot.reclaim_slot(state)
                && slot.change(FREE, claim | FILLING)
        })
    }

    /// Returns the slot, which is to be filled, with its memory. Frees it if there is no memory.
    fn backed<'a>(&self, slot: Slot<'a>) -> Option<Slot<'a>> {
        let is_backed = self.back(&slot).is_ok();
        if !is_backed {
            slot.set(FREE);
        }
        is_backed.then_some(slot)
    }

    /// Makes the slot's memory present, so that touching it raises no signal.
    fn back(&self, slot: &Slot) -> Result<()> {
        let mark = &self.present.entries()[slot.index];
        if mark.load(Ordering::Relaxed) == 0 {
            self.mapping.populate(slot.start(), STAGING_BYTES, Populate::Write)?;
            mark.store(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn slots(&self) -> impl Iterator<Item = Slot<'_>> {
        (0..SLOTS).map(|index| Slot { area: self, index })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.words()[index]
    }

    fn words(&self) -> &[AtomicU64] {
        let first = self.mapping.address().as_ptr().cast();
        // SAFETY: the first page is mapped and present as long as `self` lives; all access is
        // atomic.
        unsafe { core::slice::from_raw_parts(first, PAGE_BYTES / size_of::<AtomicU64>()) }
    }

    fn load(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::SeqCst)
    }

    /// Returns the half of a word that the kernel looks at.
    fn futex(&self, index: usize) -> *const AtomicU32 {
        core::ptr::from_ref(self.word(index)).cast()
    }

    /// Wakes sleepers on `futex`: one server, or all waiters.
    fn signal(&self, futex: usize) {
        self.word(futex).fetch_add(1, Ordering::SeqCst);
        if self.load(futex + 1) != 0 {
            let count = if futex == W_STAGED { 1 } else { i32::MAX };
            // SAFETY: the word is mapped.
            let _ = unsafe { sys::futex_wake(self.futex(futex), count) };
        }
    }

    /// Sleeps until `futex` differs from `seen`, at most for `time`.
    fn sleep(&self, futex: usize, seen: u64, time: Duration) {
        self.word(futex + 1).fetch_add(1, Ordering::SeqCst);
        // SAFETY: the word is mapped. The reason for the end of the sleep does not matter.
        let _ = unsafe { sys::futex_wait(self.futex(futex), seen as u32, time) };
        self.word(futex + 1).fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests;
