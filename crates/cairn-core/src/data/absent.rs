//! Absent files: their data are elsewhere. All attributes are final, but whoever wants the data
//! waits until they were staged in. Data are elsewhere because they were not staged in yet (`cairn
//! run --stage=on-demand`), or because they were drained and gave up their room.
//!
//! Must stay true: data that were staged in only in part are never read. An absent file is opened
//! only to empty it, to name it, or to stage it in. The stager writes to it only while it is
//! absent. After a crash the file is still absent. Neither absence nor staging in changes anything
//! that `stat` shows. A file becomes absent only while nobody has it open or mapped. Absence ends
//! when the data are complete, or when the file is emptied.
//!
//! Has no clock, and does not know where data come from.

use crate::engine::fs::Microfs;
use crate::engine::inode::{
    ABSENT, ASKED, DAMAGED, Inode, LOST, MAPPED, MAPPED_TO_STORE, TORN, UNAVAILABLE, UNCLEAN,
    WANTED,
};
use crate::engine::slot::Slot;
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::layout::{ABSENCE_BEAT, ABSENCE_WISHES, SlabKind};
use crate::format::record::Operation;
use crate::format::types::{Absence, Caller, HandleId, InodeId};
use crate::process::handle::{Handle, MAY_READ, MAY_WRITE, PATH_ONLY};
use crate::space::{Moment, Prospect};
use std::sync::atomic::{AtomicU64, Ordering};

/// A stager that has not reported for this long is taken to be dead.
const STAGER_LIFE_MS: u32 = 30_000;
/// Marks a word that holds a time.
const IS_SET: u64 = 1 << 32;
/// Inodes examined under one lock.
const INODES_BATCH: u32 = 1024;
/// All flags that describe an absent file.
const ANY: u32 = ABSENT | WANTED | ASKED | UNAVAILABLE | DAMAGED;
/// A file with one of these flags keeps its data: it has none, they may be stored to, or they are
/// not what was drained.
const KEEPS_DATA: u32 = ABSENT | MAPPED | MAPPED_TO_STORE | UNCLEAN | TORN | LOST;

impl Inode {
    /// Returns what is known of the data of an absent file; `None` if the file is not absent.
    pub(crate) fn absence(self, tx: &Transaction) -> Option<Absence> {
        let flags = self.flags(tx);
        (flags & ABSENT != 0).then(|| Absence {
            crc32c: self.drained_version(tx) as u32,
            wanted: flags & WANTED != 0,
            unavailable: flags & UNAVAILABLE != 0,
            damaged: flags & DAMAGED != 0,
        })
    }

    /// Ends absence because the file is emptied: its data need not be staged in.
    pub(crate) fn drop_absence(self, tx: &mut Transaction) {
        if self.flags(tx) & ABSENT != 0 {
            self.clear_flags(tx, ANY);
            self.set_drained_version(tx, 0);
        }
    }
}

impl Transaction<'_> {
    /// Makes a file absent whose size and checksum are known. Drops what was staged in of it so
    /// far.
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

    /// Whether the absence flags are consistent: an absent file is regular and has a CRC32C; any
    /// other file has none of the flags.
    pub(crate) fn is_absence_sound(&self, inode: Inode) -> bool {
        let flags = inode.flags(self);
        match flags & ABSENT {
            0 => flags & ANY == 0,
            _ => inode.is_regular(self) && inode.drained_version(self) <= u64::from(u32::MAX),
        }
    }

    /// Whether the description may exist while its file is absent: it is open for its path only, or
    /// for writing only.
    pub(crate) fn may_see_absent(&self, handle: Handle) -> bool {
        let access = handle.flags(self) & (PATH_ONLY | MAY_READ | MAY_WRITE);
        access == PATH_ONLY || access == MAY_WRITE
    }
}

impl Microfs {
    /// Makes the file that `handle` has open for writing absent: it has `size` bytes with this
    /// CRC32C, which are elsewhere.
    ///
    /// Errors: `Invalid` unless it is empty, and open for writing only and nowhere else;
    /// `FileTooLarge`; `NotSupported` on media of a version before 4.
    pub fn make_absent(
        &self,
        caller: &Caller,
        handle: HandleId,
        size: u64,
        crc32c: u32,
    ) -> Result<()> {
        self.require_absence()?;
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

    /// Makes a drained file absent, which frees its room. `version` of its data was drained, and
    /// has this CRC32C. Returns false, with nothing done, if somebody has the file open or mapped,
    /// if it has other data by now, or if it has no name. Errors: `NotSupported` on media of a
    /// version before 4; `NotFound`.
    pub fn release_data(
        &self,
        caller: &Caller,
        inode: InodeId,
        version: u64,
        crc32c: u32,
    ) -> Result<bool> {
        self.require_absence()?;
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let inode = tx.inode(inode)?;
            if !inode.is_regular(tx) || inode.opens(tx) > 0 || tx.is_written(inode) {
                return Ok(false);
            }
            tx.recall(inode)?;
            let is_drained = inode.links(tx) > 0
                && (inode.version(tx), inode.drained_version(tx)) == (version, version);
            if !is_drained || inode.flags(tx) & KEEPS_DATA != 0 {
                return Ok(false);
            }
            let what = (inode.size(tx), crc32c);
            tx.begin_absence(inode, what, (caller, slot))?;
            Ok(true)
        })
    }

    /// Checks that files may be absent: older builds, which can use media of an older version,
    /// would take the record of one for the end of the log.
    fn require_absence(&self) -> Result<()> {
        match self.durable.as_ref().is_some_and(|durable| !durable.superblock.holds_absent()) {
            true => Err(Error::NotSupported),
            false => Ok(()),
        }
    }

    /// Opens an absent file to stage in its data. They are written through the description, at any
    /// offset below the file's size. Drops what was staged in before.
    ///
    /// Errors: `NotFound` if the file is not absent, or has no name; `Busy` if somebody else stages
    /// it in.
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

    /// Ends the absence of the file behind `handle`: its data are complete and correct. Returns
    /// false if the file was emptied meanwhile. Errors: `Busy` while a write to it is in flight.
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

    /// Returns what is known of the data of a file that is absent; `None` if it is not.
    pub fn absence(&self, inode: InodeId) -> Result<Option<Absence>> {
        self.transact_unlogged(|tx| Ok(tx.inode(inode)?.absence(tx)))
    }

    /// Asks for the data of a file to be staged in next, even if that has failed before, because
    /// somebody waits for them. Returns what is known of the data; `None` if the file is not
    /// absent.
    pub fn request_stage_in(&self, inode: InodeId) -> Result<Option<Absence>> {
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

    /// Begins an attempt to stage in an absent file. If the attempt fails, waiters that arrive from
    /// now on do not take that for theirs.
    pub fn begin_stage_in(&self, inode: InodeId) -> Result<()> {
        self.transact_unlogged(|tx| {
            tx.inode(inode)?.clear_flags(tx, ASKED);
            Ok(())
        })
    }

    /// Reports that the last attempt to stage in an absent file failed. `damaged`: the data found
    /// are not the expected ones, and another attempt is useless. Returns false, with nothing
    /// reported, if a waiter arrived since the attempt began and the data are not damaged: that
    /// waiter is owed another attempt. For the stager.
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

    /// Returns the absent files that somebody waits for.
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

    /// Returns how many waits for data have begun. Takes no lock.
    pub fn absence_wishes(&self) -> u64 {
        self.absence_word(ABSENCE_WISHES).load(Ordering::Relaxed)
    }

    /// Reports that files are being staged in. For the stager, several times a second.
    pub fn absence_beat(&self, now: Moment) {
        self.absence_word(ABSENCE_BEAT).store(IS_SET | u64::from(now.0), Ordering::Relaxed);
    }

    /// Returns the outlook of a waiter that began at `began`.
    pub fn absence_prospect(&self, began: Moment, now: Moment) -> Prospect {
        let waited_ms = now.since(began);
        let silence_ms = match self.absence_word(ABSENCE_BEAT).load(Ordering::Relaxed) {
            0 => waited_ms,
            said => now.since(Moment(said as u32)).min(waited_ms),
        };
        if silence_ms > STAGER_LIFE_MS { Prospect::None } else { Prospect::Some }
    }

    fn absence_word(&self, word: usize) -> &AtomicU64 {
        &self.memory().words()[word]
    }
}
