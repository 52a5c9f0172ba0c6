//! Media and segment as actors access them: every access takes virtual time and lets other actors
//! go first.
//!
//! The seed decides whether an access takes effect when it begins or when it ends. Others see it
//! early or late, and a process that dies in between has done it or has not.

use cairn_core::{Acquired, Error, Media, Memory, ProcessIdentity, Result, Superblock};
use cairn_device::Workspace;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::scheduler::{draw, holds_lock, is_alive, pause, release_lock, take_lock, tell};
use crate::faulty::{ByteMedia, FaultyMedia};
use crate::tier::CHECKSUM;

/// Time of accesses in nanoseconds: the minimum, and the largest addition to it.
const TRANSFER: (u64, u64) = (10_000, 90_000);
const FLUSH: (u64, u64) = (100_000, 900_000);
/// One access in `STALL_ODDS` takes `STALL_FACTOR` times as long.
const STALL_ODDS: u64 = 60;
const STALL_FACTOR: u64 = 30;
/// Time between two checks of the process that is waited for, in nanoseconds.
const WAIT: u64 = 50_000;
/// One checksum in so many, under the lock, is a switch point.
const CHECKSUM_ODDS: u64 = 16;

/// Checksum routine for the core, which calls it in the middle of transactions.
pub(super) fn checksum(start: u32, bytes: &[u8]) -> u32 {
    if holds_lock() && draw(CHECKSUM_ODDS) == 0 {
        pause(0);
    }
    CHECKSUM(start, bytes)
}

/// Media whose accesses take time.
pub(super) struct SlowMedia(pub Arc<FaultyMedia>);

/// Media as one process has opened them: each process learns of a failed flush once.
///
/// Linux reports it to the processes that have the file open at that time, and to a later one only
/// if nobody was told before. The process that flushed may die before it has told anybody. If all
/// others die as well, nobody learns of the failure on Linux. Nothing above a disk can mend that,
/// so it is not simulated.
pub(super) struct OpenMedia {
    media: Arc<dyn ByteMedia>,
    faulty: Arc<FaultyMedia>,
    told: AtomicU64,
}

impl OpenMedia {
    pub fn new(media: Arc<dyn ByteMedia>, faulty: Arc<FaultyMedia>) -> OpenMedia {
        OpenMedia { media, faulty, told: AtomicU64::new(0) }
    }
}

impl Media for OpenMedia {
    fn bytes(&self) -> u64 {
        self.media.bytes()
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.media.read(offset, target)
    }

    fn write(&self, offset: u64, source: &[u8]) -> Result<()> {
        self.media.write(offset, source)
    }

    fn flush(&self) -> Result<()> {
        let flushed = self.media.flush();
        let failed = self.faulty.failed_flushes();
        match self.told.swap(failed, Ordering::Relaxed) == failed {
            true => flushed,
            false => Err(Error::Io),
        }
    }

    fn wait_for(&self, owner: ProcessIdentity, round: u32) -> bool {
        self.media.wait_for(owner, round)
    }

    fn workspace(&self, words: usize) -> Result<Box<dyn Memory>> {
        self.media.workspace(words)
    }
}

impl ByteMedia for OpenMedia {
    fn read_bytes(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.media.read_bytes(offset, target)
    }

    fn write_bytes(&self, offset: u64, source: &[u8]) -> Result<()> {
        self.media.write_bytes(offset, source)
    }
}

impl SlowMedia {
    fn access<R>(
        &self,
        (least, more): (u64, u64),
        what: fmt::Arguments<'_>,
        act: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let stall = if draw(STALL_ODDS) == 0 { STALL_FACTOR } else { 1 };
        // Under the lock nothing is slow: the bytes go to memory.
        let time = if holds_lock() { 0 } else { (least + draw(more)) * stall };
        let acts_first = draw(2) == 0;
        if !acts_first {
            pause(time);
        }
        let result = act();
        let failed = if result.is_err() { " fails" } else { "" };
        tell(format_args!("{what}{failed}"));
        if acts_first {
            pause(time);
        }
        result
    }
}

impl Media for SlowMedia {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        let what = (offset, target.len());
        self.access(TRANSFER, format_args!("read {what:?}"), || self.0.read(offset, target))
    }

    fn write(&self, offset: u64, source: &[u8]) -> Result<()> {
        let what = (offset, source.len());
        self.access(TRANSFER, format_args!("write {what:?}"), || self.0.write(offset, source))
    }

    fn flush(&self) -> Result<()> {
        self.access(FLUSH, format_args!("flush"), || self.0.flush())
    }

    fn wait_for(&self, owner: ProcessIdentity, round: u32) -> bool {
        tell(format_args!("waits for process {}", owner.pid));
        pause(WAIT);
        round % 4 == 3 && !is_alive(owner)
    }

    fn workspace(&self, words: usize) -> Result<Box<dyn Memory>> {
        Ok(Box::new(Workspace::new(words)?))
    }
}

impl ByteMedia for SlowMedia {
    fn read_bytes(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        let what = (offset, target.len());
        self.access(TRANSFER, format_args!("fetch {what:?}"), || self.0.read_bytes(offset, target))
    }

    fn write_bytes(&self, offset: u64, source: &[u8]) -> Result<()> {
        let what = (offset, source.len());
        self.access(TRANSFER, format_args!("store {what:?}"), || self.0.write_bytes(offset, source))
    }
}

/// The segment. An actor that waits for its lock lets others go on.
#[derive(Clone)]
pub(super) struct Segment(Arc<Workspace>);

impl Segment {
    /// Returns an empty segment for the namespace of a superblock.
    pub fn new(superblock: &Superblock) -> Segment {
        let words = superblock.geometry.segment_bytes() as usize / 8;
        let memory = Workspace::new(words).and_then(Workspace::with_shadow);
        Segment(Arc::new(memory.expect("there is address space")))
    }
}

impl Memory for Segment {
    fn words(&self) -> &[AtomicU64] {
        self.0.words()
    }

    fn lock(&self) -> Result<Acquired> {
        Ok(take_lock())
    }

    fn unlock(&self) {
        release_lock();
        if draw(4) == 0 {
            pause(0);
        }
    }

    fn back(&self, first_word: usize, word_count: usize) -> Result<()> {
        self.0.back(first_word, word_count)
    }

    fn shadow(&self) -> &[AtomicU64] {
        self.0.shadow()
    }

    fn back_shadow(&self, first_word: usize, word_count: usize) -> Result<()> {
        self.0.back_shadow(first_word, word_count)
    }
}
