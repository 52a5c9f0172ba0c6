//! Files whose data are still elsewhere: everything about them is as it will be, only that whoever
//! wants the data waits until somebody has brought them (`cairn run --stage=on-demand`).
//!
//! Must stay true: what was brought in part is never read: nobody opens an absent file but to empty
//! it, to name it, or to bring it, and who brings it writes only as long as it is absent. A crash
//! leaves it absent. Bringing changes nothing that `stat` shows. Absence ends when the data are
//! there, or when the file is emptied. Has no clock, and does not know where data come from.

use crate::engine::fs::Microfs;
use crate::engine::inode::{
    ABSENT, ASKED, DAMAGED, Inode, LOST, TORN, UNAVAILABLE, UNCLEAN, WANTED,
};
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::layout::{ABSENCE_BEAT, ABSENCE_WISHES, SlabKind};
use crate::format::record::Operation;
use crate::format::types::{Absence, Caller, HandleId, InodeId};
use crate::process::Slot;
use crate::process::handle::{Handle, MAY_READ, MAY_WRITE, PATH_ONLY};
use crate::space::{Hope, Moment};
use std::sync::atomic::{AtomicU64, Ordering};

/// Somebody who did not say for so long that files are brought brings none any more.
const BRINGER_LIFE_MS: u32 = 30_000;
/// Tells a time from none.
const IS_SET: u64 = 1 << 32;
/// Inodes looked at under one lock.
const INODES_BATCH: u32 = 1024;
/// All that is said of an absent file.
const ANY: u32 = ABSENT | WANTED | ASKED | UNAVAILABLE | DAMAGED;

impl Inode {
    /// What is known of the data of an absent file.
    pub(crate) fn absence(self, tx: &Transaction) -> Option<Absence> {
        let flags = self.flags(tx);
        (flags & ABSENT != 0).then(|| Absence {
            crc32c: self.drained_version(tx) as u32,
            wanted: flags & WANTED != 0,
            unavailable: flags & UNAVAILABLE != 0,
            damaged: flags & DAMAGED != 0,
        })
    }

    /// The file is emptied: its data are not to be brought any more.
    pub(crate) fn forgo_data(self, tx: &mut Transaction) {
        if self.flags(tx) & ABSENT != 0 {
            self.clear_flags(tx, ANY);
            self.set_drained_version(tx, 0);
        }
    }
}

impl Transaction<'_> {
    /// Makes a file absent whose size and data are known, or drops what was brought of it.
    fn begin_absence(
        &mut self,
        inode: Inode,
        (size, crc32c): (u64, u32),
        (caller, slot): (&Caller, Slot),
    ) -> Result<()> {
        self.cut_all(inode, caller, slot)?;
        inode.clear_tail(self);
        inode.set_written_end(self, 0);
        inode.set_appended_end(self, 0);
        inode.clear_flags(self, UNCLEAN | TORN | LOST | ANY);
        inode.add_flags(self, ABSENT);
        inode.set_size(self, size);
        inode.set_drained_version(self, u64::from(crc32c));
        let parameters = [u64::from(inode.id.0), size, u64::from(crc32c), inode.version(self)];
        self.log(Operation::Absent, caller.now, &parameters, &[]);
        Ok(())
    }

    /// An absent file is regular, and nobody can read it.
    pub(crate) fn is_absence_sound(&self, inode: Inode) -> bool {
        let flags = inode.flags(self);
        match flags & ABSENT {
            0 => flags & ANY == 0,
            _ => inode.is_regular(self) && inode.drained_version(self) <= u64::from(u32::MAX),
        }
    }

    /// Whether a description may exist while its file is absent.
    pub(crate) fn may_see_absent(&self, handle: Handle) -> bool {
        let access = handle.flags(self) & (PATH_ONLY | MAY_READ | MAY_WRITE);
        access == PATH_ONLY || access == MAY_WRITE
    }
}

impl Microfs {
    /// Says that the file that `handle` has open for writing is of `size` bytes with this CRC32C,
    /// which are not here yet.
    /// Errors: `Invalid` unless it is empty, and open for writing alone and nowhere else;
    /// `NotSupported` on media of a version before 4.
    pub fn make_absent(
        &self,
        caller: &Caller,
        handle: HandleId,
        size: u64,
        crc32c: u32,
    ) -> Result<()> {
        // Older builds would take the record of it on media of theirs for the end of the log.
        if self.durable.as_ref().is_some_and(|durable| !durable.superblock.holds_absent()) {
            return Err(Error::NotSupported);
        }
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let handle = tx.handle(handle)?;
            let inode = handle.file(tx, MAY_WRITE)?;
            let is_new = inode.size(tx) == 0 && inode.opens(tx) == 1 && !tx.is_written(inode);
            if !is_new || !tx.may_see_absent(handle) {
                return Err(Error::Invalid);
            }
            if size > u64::from(u32::MAX) << tx.layout.hugeblock_shift {
                return Err(Error::FileTooLarge);
            }
            tx.begin_absence(inode, (size, crc32c), (caller, slot))
        })
    }

    /// Opens an absent file to bring its data: they are written through the description, at any
    /// offset below its size. What was brought before is dropped.
    /// Errors: `NotFound` if it is not absent, or has no name any more; `Busy` if somebody else
    /// brings it.
    pub fn open_absent(&self, caller: &Caller, inode: InodeId) -> Result<HandleId> {
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let inode = tx.recalled_inode(inode)?;
            let Some(Absence { crc32c, .. }) = inode.absence(tx) else {
                return Err(Error::NotFound);
            };
            if inode.links(tx) == 0 {
                return Err(Error::NotFound);
            }
            if inode.writers(tx) != 0 || tx.is_written(inode) {
                return Err(Error::Busy);
            }
            let wanted = inode.flags(tx) & (WANTED | ASKED);
            if inode.held(tx) != 0 || inode.flags(tx) & (LOST | UNCLEAN) != 0 {
                let what = (inode.size(tx), crc32c);
                tx.begin_absence(inode, what, (caller, slot))?;
            }
            inode.clear_flags(tx, UNAVAILABLE | DAMAGED);
            inode.add_flags(tx, wanted);
            Ok(tx.new_handle(slot, inode, MAY_WRITE)?.id)
        })
    }

    /// The data of the absent file that `handle` brings are there, as they should be. False if that
    /// is nobody's any more: the file was emptied meanwhile.
    pub fn end_absence(&self, caller: &Caller, handle: HandleId) -> Result<bool> {
        self.transact(|tx| {
            let inode = tx.handle(handle)?.file(tx, MAY_WRITE)?;
            if inode.flags(tx) & ABSENT == 0 {
                return Ok(false);
            }
            if tx.is_written(inode) {
                return Err(Error::Busy);
            }
            inode.clear_flags(tx, UNCLEAN | TORN | ANY);
            let version = inode.version(tx);
            inode.set_drained_version(tx, version);
            tx.log(Operation::Present, caller.now, &[u64::from(inode.id.0)], &[]);
            Ok(true)
        })
    }

    /// What is known of the data of a file that is absent; `None` if it is not.
    pub fn absence(&self, inode: InodeId) -> Result<Option<Absence>> {
        self.transact_unlogged(|tx| Ok(tx.inode(inode)?.absence(tx)))
    }

    /// Somebody waits for the data of a file: they are to be brought next, even if that has failed
    /// before. What is known of them; `None` if the file is not absent.
    pub fn want_absent(&self, inode: InodeId) -> Result<Option<Absence>> {
        let found = self.transact_unlogged(|tx| {
            let inode = tx.inode(inode)?;
            if inode.flags(tx) & (ABSENT | DAMAGED) == ABSENT {
                inode.clear_flags(tx, UNAVAILABLE);
                inode.add_flags(tx, WANTED | ASKED);
            }
            Ok(inode.absence(tx))
        })?;
        self.absence_word(ABSENCE_WISHES).fetch_add(1, Ordering::Relaxed);
        Ok(found)
    }

    /// Begins an attempt to bring the data of an absent file: if it fails, that is nothing to those
    /// who begin to wait from now on.
    pub fn try_absent(&self, inode: InodeId) -> Result<()> {
        self.transact_unlogged(|tx| {
            tx.inode(inode)?.clear_flags(tx, ASKED);
            Ok(())
        })
    }

    /// Says that the data of an absent file could not be had in the attempt that began last;
    /// `damaged`: what is there of them is not what it should be, so it is of no use to try again.
    /// False, and nobody is told, if somebody began to wait since, who is owed another attempt. For
    /// who brings them.
    pub fn fail_absent(&self, inode: InodeId, damaged: bool) -> Result<bool> {
        self.transact_unlogged(|tx| {
            let inode = tx.inode(inode)?;
            let flags = inode.flags(tx);
            if flags & ASKED != 0 && !damaged {
                return Ok(false);
            }
            if flags & ABSENT != 0 {
                inode.clear_flags(tx, WANTED | ASKED);
                inode.add_flags(tx, if damaged { UNAVAILABLE | DAMAGED } else { UNAVAILABLE });
            }
            Ok(true)
        })
    }

    /// The absent files that somebody waits for.
    pub fn wanted_absent(&self) -> Result<Vec<InodeId>> {
        let mut wanted = Vec::new();
        let mut next = 1u32;
        loop {
            let end = self.transact_unlogged(|tx| {
                let end = tx.records_end(SlabKind::Inode);
                for number in next..end.min(next.saturating_add(INODES_BATCH)) {
                    let inode = tx.inode(InodeId(number)).ok();
                    let is_wanted = |inode: &Inode| inode.flags(tx) & WANTED != 0;
                    wanted.extend(inode.filter(is_wanted).map(|inode| inode.id));
                }
                Ok(end)
            })?;
            next = next.saturating_add(INODES_BATCH);
            if next >= end {
                return Ok(wanted);
            }
        }
    }

    /// How often somebody began to wait for data, read without the lock.
    pub fn absence_wishes(&self) -> u64 {
        self.absence_word(ABSENCE_WISHES).load(Ordering::Relaxed)
    }

    /// Says that files are brought. For who does that, several times a second.
    pub fn absence_beat(&self, now: Moment) {
        self.absence_word(ABSENCE_BEAT).store(IS_SET | u64::from(now.0), Ordering::Relaxed);
    }

    /// What somebody may hope for who has waited since `began`.
    pub fn absence_hope(&self, began: Moment, now: Moment) -> Hope {
        let waited_ms = now.since(began);
        let silence_ms = match self.absence_word(ABSENCE_BEAT).load(Ordering::Relaxed) {
            0 => waited_ms,
            said => now.since(Moment(said as u32)).min(waited_ms),
        };
        if silence_ms > BRINGER_LIFE_MS { Hope::None } else { Hope::Some }
    }

    fn absence_word(&self, word: usize) -> &AtomicU64 {
        &self.memory().words()[word]
    }
}
