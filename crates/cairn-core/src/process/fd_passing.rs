//! Open-file descriptions in transit between processes: in a message that was sent and not received
//! yet.
//!
//! Such a description has one more reference, which no process slot owns, however many messages it
//! is in.
//!
//! Does not know whether it still is in a message: `cairn_device::store::fd_passing` asks the
//! kernel.

use core::sync::atomic::Ordering;

use crate::engine::fs::Microfs;
use crate::format::error::Result;
use crate::format::layout::{FLIGHT_COUNT, SlabKind};
use crate::format::types::{HandleId, Timestamp};
use crate::process::handle::IN_FLIGHT;

impl Microfs {
    /// Keeps `handle` open until [`Microfs::land`]. Call it before `handle` is sent. `token`:
    /// kernel inode number by which the receiver recognises it.
    pub fn launch(&self, handle: HandleId, token: u64) -> Result<()> {
        self.transact(|tx| {
            let handle = tx.handle(handle)?;
            handle.set_token(tx, token);
            if handle.flags(tx) & IN_FLIGHT == 0 {
                handle.add_flags(tx, IN_FLIGHT);
                handle.add_reference(tx);
                let count = tx.get(FLIGHT_COUNT);
                tx.set(FLIGHT_COUNT, count.wrapping_add(1));
            }
            Ok(())
        })
    }

    /// Ends the transit of `handle`, which is in no message any more. Closes it if nobody has
    /// received it; that is an orderly end, unless a process that had it died before. Does nothing
    /// if it was not in transit. Errors: as [`Microfs::release`].
    pub fn land(&self, handle: HandleId, now: Timestamp) -> Result<()> {
        let wrote = self.transact(|tx| {
            let found = tx.handle(handle).ok().filter(|found| found.flags(tx) & IN_FLIGHT != 0);
            let Some(found) = found else { return Ok(false) };
            let count = tx.get(FLIGHT_COUNT);
            tx.set(FLIGHT_COUNT, count.wrapping_sub(1));
            tx.land_handle(found, now)
        })?;
        match wrote {
            true => self.sync(),
            false => Ok(()),
        }
    }

    /// Returns the number of descriptions in transit. Takes no lock.
    pub fn flights(&self) -> u64 {
        self.memory().words()[FLIGHT_COUNT].load(Ordering::Relaxed)
    }

    /// Returns the description in transit with the lowest number at or above `from`.
    pub fn next_in_flight(&self, from: u32) -> Result<Option<HandleId>> {
        self.transact(|tx| {
            let numbers = from.max(1)..tx.records_end(SlabKind::Handle);
            let mut open = numbers.filter_map(|number| tx.handle_numbered(number).ok());
            let found = open.find(|handle| handle.flags(tx) & IN_FLIGHT != 0);
            Ok(found.map(|handle| handle.id))
        })
    }

    /// Returns the description in transit with this kernel inode number as its token.
    pub fn handle_by_token(&self, token: u64) -> Result<Option<HandleId>> {
        self.transact(|tx| {
            let numbers = 1..tx.records_end(SlabKind::Handle);
            let mut open = numbers.filter_map(|number| tx.handle_numbered(number).ok());
            let found =
                open.find(|handle| handle.flags(tx) & IN_FLIGHT != 0 && handle.token(tx) == token);
            Ok(found.map(|handle| handle.id))
        })
    }
}
