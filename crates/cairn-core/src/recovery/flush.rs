//! Flushing the log to the media: group commit (DESIGN decision 3, order on media).
//!
//! One process flushes for all. It takes everything appended so far, writes the checksums that
//! changed, flushes them together with the data, writes the log, and flushes again. The others
//! wait, and find their records durable.
//!
//! Invariants: the records that a flush has taken do not change any more (`LOG_FROZEN`), so a flush
//! whose process died is repeated with the same words. A record is on the media only after the data
//! and checksums it refers to.
//!
//! After a failed write or flush nobody knows what is on the media. From then on nothing becomes
//! durable, and every later call says so. So nothing may become durable between a failed flush and
//! the note of it: whoever flushes, for whatever purpose, holds the duty of flushing.

use crate::engine::durable::Durable;
use crate::engine::fs::Microfs;
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::layout::{
    LOG_DURABLE, LOG_FROZEN, LOG_HEAD, LOG_START, LOG_TAILS, LOG_WORDS, MEDIA_EPOCH, MEDIA_FAILED,
    PAGE_WORDS, SNAPSHOT_NUMBER,
};
use crate::format::log_media::{self, PAYLOAD_WORDS, block_of};
use crate::format::media::{MEDIA_BLOCK_BYTES, Media, write_words};
use crate::format::memory::Memory;
use crate::format::types::ProcessIdentity;
use crate::process::claim::{Claim, FLUSH, SNAPSHOT};
use crate::recovery::snapshot;
use std::cell::Cell;
use std::sync::atomic::Ordering;

/// Log blocks that are kept free, so that a flush in progress always finds room.
pub(crate) const BLOCKS_SPARE: u64 = (LOG_WORDS as u64).div_ceil(PAYLOAD_WORDS) + 2;

/// Usage of the log on the media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogUsage {
    /// Bytes that recovery would read.
    pub used_bytes: u64,
    /// Bytes of the whole ring.
    pub total_bytes: u64,
    /// Whether a file is open.
    pub busy: bool,
    /// Number of times it was flushed to the media; each is one flush for data and checksums and
    /// one for records.
    pub commits: u64,
    /// Whether a write to the media has failed; nothing becomes durable any more.
    pub failed: bool,
}

/// What a process does about a duty.
enum Duty {
    None,
    Waits(ProcessIdentity),
    Mine,
}

/// Part of the log that one flush takes.
#[derive(Clone, Copy)]
struct Batch {
    from: u64,
    to: u64,
    turn: u64,
}

impl Microfs {
    /// Sets the identity of this process. Duties held under this identity are void: the thread that
    /// had them is gone.
    pub fn introduce(&self, identity: ProcessIdentity) -> Result<()> {
        let Some(durable) = &self.durable else { return Ok(()) };
        durable.set_identity(identity);
        self.transact_unlogged(|tx| {
            for duty in [FLUSH, SNAPSHOT] {
                if duty.owner(tx) == Some(identity) {
                    duty.set_owner(tx, None);
                    tx.mark_all_checksums_dirty();
                }
            }
            Ok(())
        })
    }

    /// Returns when every operation that returned before survives the loss of this node's memory;
    /// at once if the first tier is not durable. Errors: `Io`: the media failed, now or before.
    pub fn sync(&self) -> Result<()> {
        let Some(durable) = &self.durable else { return Ok(()) };
        let wanted = self.log_head();
        let reached = |tx: &Transaction| tx.get(LOG_DURABLE) >= wanted;
        self.with_duty(durable, FLUSH, &reached, &|| self.flush(durable))
    }

    /// Calls `sync` if this process changed anything; does not wait for the changes of others.
    pub(crate) fn sync_own(&self) -> Result<()> {
        match &self.durable {
            Some(durable) if durable.logged.load(Ordering::Relaxed) => self.sync(),
            _ => Ok(()),
        }
    }

    /// Calls `act` once this process has the duty, unless `done` says that it is not needed any
    /// more.
    fn with_duty(
        &self,
        durable: &Durable,
        claim: Claim,
        done: &dyn Fn(&Transaction) -> bool,
        act: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let me = durable.identity();
        for round in 0.. {
            let duty = self.transact_unlogged(|tx| {
                if done(tx) {
                    return Ok(Duty::None);
                }
                if tx.get(MEDIA_FAILED) != 0 {
                    return Err(Error::Io);
                }
                match claim.owner(tx) {
                    Some(owner) => Ok(Duty::Waits(owner)),
                    None => {
                        claim.set_owner(tx, Some(me));
                        Ok(Duty::Mine)
                    }
                }
            })?;
            match duty {
                Duty::None => break,
                Duty::Mine => {
                    let result = act();
                    self.transact_unlogged(|tx| {
                        claim.set_owner(tx, None);
                        if result == Err(Error::Io) {
                            tx.set(MEDIA_FAILED, 1);
                        }
                        if result.is_err() {
                            // The pages that were taken may not have been written.
                            tx.mark_all_checksums_dirty();
                        }
                        Ok(())
                    })?;
                    result?;
                }
                Duty::Waits(owner) => {
                    if durable.media.wait_for(owner, round) {
                        self.take_over(claim, owner)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Ends the duty of a process that does not exist any more. The checksums that it was writing
    /// will be written again.
    fn take_over(&self, claim: Claim, dead: ProcessIdentity) -> Result<()> {
        self.transact_unlogged(|tx| {
            if claim.owner(tx) == Some(dead) {
                claim.set_owner(tx, None);
                tx.mark_all_checksums_dirty();
            }
            Ok(())
        })
    }

    /// Flushes everything appended so far. The caller has the duty.
    fn flush(&self, durable: &Durable) -> Result<()> {
        let (media, superblock) = (durable.media.as_ref(), &durable.superblock);
        let mut pages = Vec::with_capacity(self.checksum_page_count());
        let (batch, epoch) = self.transact_unlogged(|tx| {
            let batch =
                Batch { from: tx.get(LOG_DURABLE), to: tx.get(LOG_HEAD), turn: tx.get(LOG_TAILS) };
            if batch.to.checked_sub(batch.from).is_none_or(|length| length > LOG_WORDS as u64) {
                return Err(Error::Corrupt { what: "log positions" });
            }
            tx.set(LOG_FROZEN, batch.to);
            tx.take_dirty_checksums(&mut pages);
            Ok((batch, tx.get(MEDIA_EPOCH)))
        })?;
        // Nobody will read the checksums of blocks that are lost with the memory.
        pages.retain(|&(tier, _)| superblock.survives(tier));
        // 1. Checksums, and with them the data that are on their way.
        for &(tier, page) in &pages {
            self.write_checksum_page(durable, tier, page)?;
        }
        durable.further.iter().try_for_each(|media| media.flush())?;
        media.flush()?;
        // 2. The records that refer to them.
        let words = self.memory().words();
        let ring = self.layout().log;
        log_media::write(
            media,
            superblock,
            (superblock.brand(epoch), self.checksum()),
            (batch.from, batch.to),
            batch.turn,
            |position| words[ring + position as usize % LOG_WORDS].load(Ordering::Relaxed),
        )?;
        media.flush()?;
        self.transact_unlogged(|tx| {
            tx.set(LOG_DURABLE, batch.to);
            // Only now: a repeated flush must not overwrite the tail that is durable.
            tx.set(LOG_TAILS, batch.turn.wrapping_add(1));
            Ok(())
        })
    }

    fn write_checksum_page(&self, durable: &Durable, tier: u8, page: usize) -> Result<()> {
        let table = self.layout().tiers[usize::from(tier)].checksums;
        let mut words = [0; PAGE_WORDS];
        self.back_checksum(tier, table + page * PAGE_WORDS)?;
        for (word, shared) in
            words.iter_mut().zip(&self.memory().words()[table + page * PAGE_WORDS..])
        {
            *word = shared.load(Ordering::Relaxed);
        }
        let offset = durable.superblock.checksums(tier) + (page * MEDIA_BLOCK_BYTES) as u64;
        write_words(durable.media.as_ref(), offset, &words)
    }

    /// Returns the usage of the log on the media; `None` without one.
    pub fn log_usage(&self) -> Result<Option<LogUsage>> {
        let Some(durable) = &self.durable else { return Ok(None) };
        self.transact_unlogged(|tx| {
            Ok(Some(LogUsage {
                used_bytes: log_blocks_used(tx) * MEDIA_BLOCK_BYTES as u64,
                total_bytes: durable.superblock.log_blocks * MEDIA_BLOCK_BYTES as u64,
                busy: tx.records_in_use(crate::format::layout::SlabKind::Handle) > 0,
                commits: tx.get(LOG_TAILS),
                failed: tx.get(MEDIA_FAILED) != 0,
            }))
        })
    }

    /// Writes a snapshot of the durable state and lets the log begin there. The snapshot is made
    /// from the media alone, while everything else goes on. Errors: `NoSpace` if the slot is too
    /// small; `Io`.
    pub fn write_snapshot(&self) -> Result<()> {
        let Some(durable) = &self.durable else { return Ok(()) };
        let before = self.transact_unlogged(|tx| Ok(tx.get(SNAPSHOT_NUMBER)))?;
        let written = |tx: &Transaction| tx.get(SNAPSHOT_NUMBER) != before;
        self.with_duty(durable, SNAPSHOT, &written, &|| {
            let media = OneFlushAtATime { fs: self, durable };
            let made = snapshot::advance(&media, &durable.superblock, self.checksum())?;
            self.transact_unlogged(|tx| {
                tx.set(SNAPSHOT_NUMBER, made.number);
                tx.set(LOG_START, made.position);
                Ok(())
            })
        })
    }

    /// Makes room for what a transaction may append, in the ring in memory and on the media.
    #[cold]
    pub(crate) fn make_log_room(&self) -> Result<()> {
        let Some(durable) = &self.durable else { return Ok(()) };
        self.sync()?;
        let used = self.transact_unlogged(|tx| Ok(log_blocks_used(tx)))?;
        match used + BLOCKS_SPARE >= durable.superblock.log_blocks {
            true => self.write_snapshot(),
            false => Ok(()),
        }
    }

    /// Whether the log has room for another transaction.
    pub(crate) fn has_log_room(&self, tx: &Transaction) -> bool {
        self.durable.as_ref().is_none_or(|durable| {
            tx.log_has_room() && log_blocks_used(tx) + BLOCKS_SPARE < durable.superblock.log_blocks
        })
    }
}

/// The media of a durable tier for the holder of another duty: each flush takes the duty of
/// flushing.
struct OneFlushAtATime<'a> {
    fs: &'a Microfs,
    durable: &'a Durable,
}

impl Media for OneFlushAtATime<'_> {
    fn bytes(&self) -> u64 {
        self.durable.media.bytes()
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.durable.media.read(offset, target)
    }

    fn write(&self, offset: u64, source: &[u8]) -> Result<()> {
        self.durable.media.write(offset, source)
    }

    fn flush(&self) -> Result<()> {
        let is_done = Cell::new(false);
        self.fs.with_duty(self.durable, FLUSH, &|_| is_done.get(), &|| {
            self.durable.media.flush()?;
            is_done.set(true);
            Ok(())
        })
    }

    fn workspace(&self, words: usize) -> Result<Box<dyn Memory>> {
        self.durable.media.workspace(words)
    }
}

fn log_blocks_used(tx: &Transaction) -> u64 {
    (block_of(tx.get(LOG_HEAD)) + 1).saturating_sub(block_of(tx.get(LOG_START)))
}
