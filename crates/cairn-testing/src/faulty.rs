//! Media with injected faults, in the spirit of the test storages of redb and TigerBeetle.
//!
//! `FaultyMedia` keeps the *live* bytes, which reads see, the *durable* bytes, and in order the
//! writes since the last flush. These are cut into sectors of 512 bytes, or of 8 bytes, as
//! persistent memory is written. `crash` returns what a power failure leaves. A `FaultPlan` says
//! which fault happens when; nothing is random except by a seed.
//!
//! Faults that happen without a plan, and that Cairn survives (nothing acknowledged is lost,
//! nothing half-done is seen):
//! - *lost and reordered writes*: after a crash any subset of the sectors written since the last
//!   flush is there.
//! - *torn write*: a write survives in part; each sector is the old or the new one as a whole.
//!
//! Faults that a plan asks for, and that Cairn survives (the call fails, nothing acknowledged is
//! lost):
//! - *read fails* with `Io`; the target is filled with garbage.
//! - *write fails* with `Io`; any subset of its sectors may be written.
//! - *flush fails* with `Io`; any subset of the sectors is durable. The others are read as written
//!   until a crash, but no later flush makes them durable: they must be written again.
//! - *power failure*: from an operation on everything fails with `Io` and changes nothing.
//!
//! Faults that Cairn must detect (an error, or a state that was complete earlier; never bytes that
//! nobody wrote). If the affected block is the only witness of newer state, as the last log block
//! is, the fault looks like an earlier crash.
//! - *misdirected write*: it succeeds and lands at another block; its own block keeps the old
//!   bytes.
//! - *misdirected read*: it returns the bytes of another block.
//! - *stale read*: it returns each block as it was before its last change.
//! - *bit flip on read*: one bit is wrong, once.
//! - *bit flip at rest*: one bit is wrong from then on, on the media.
//!
//! Faults that nothing survives:
//! - *lying flush*: it succeeds, and a later crash may lose everything since the flush before it.
//!
//! Does not judge what is recovered; `crash.rs` calls the checks.

mod disk;
mod image;
mod pages;
mod plan;
mod recording;
mod survivors;
mod tier;

pub use image::Image;
pub use plan::{Counts, Fault, FaultPlan, FlushFault, Outcome, ReadFault, WriteFault};
pub use recording::{Recording, Replay};
pub use survivors::Survivors;
pub use tier::{AsMedia, ByteMedia, MediaTier};

use cairn_core::{Error, MEDIA_BLOCK_BYTES, Media, Memory, Result, SECTOR_BYTES};
use cairn_device::Workspace;
use disk::{Disk, Effect, Write, surviving_runs};
use pages::Pages;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Byte that fills the target of a failed read.
const GARBAGE: u8 = 0xdb;

/// Media whose accesses fail as planned, and whose power can fail at any write and flush.
pub struct FaultyMedia {
    state: Mutex<State>,
}

struct State {
    /// Bytes that reads see.
    live: Pages,
    /// Each page as it was before its last change.
    older: Pages,
    /// Durable bytes and pending writes, from which a crash is made.
    disk: Disk,
    plan: FaultPlan,
    counts: Counts,
    failed_flushes: u64,
    powerless: bool,
    recording: Option<Recording>,
}

/// Checks that a range lies on the media. Errors: `Corrupt`.
fn check_range(pages: &Pages, offset: u64, length: usize) -> Result<()> {
    match offset.checked_add(length as u64) {
        Some(end) if end <= pages.bytes() => Ok(()),
        _ => Err(Error::Corrupt { what: "range outside the media" }),
    }
}

/// Asserts that an access covers whole blocks; a partial block is a bug of the caller.
fn assert_whole_blocks(offset: u64, length: usize) {
    assert_eq!(offset % MEDIA_BLOCK_BYTES as u64, 0, "offset of an access to media");
    assert_eq!(length % MEDIA_BLOCK_BYTES, 0, "length of an access to media");
}

impl FaultyMedia {
    /// Returns media that hold `image`, all of it durable. Without a plan no access fails.
    pub fn new(image: &Image) -> FaultyMedia {
        FaultyMedia::with_sectors(image, SECTOR_BYTES)
    }

    /// As [`FaultyMedia::new`], with sectors of `sector_bytes` bytes, a power of two.
    pub fn with_sectors(image: &Image, sector_bytes: usize) -> FaultyMedia {
        let pages = image.pages();
        FaultyMedia {
            state: Mutex::new(State {
                live: pages.clone(),
                older: pages.clone(),
                disk: Disk::new(pages, sector_bytes),
                plan: FaultPlan::default(),
                counts: Counts::default(),
                failed_flushes: 0,
                powerless: false,
                recording: None,
            }),
        }
    }

    /// Replaces the plan of faults.
    pub fn follow(&self, plan: FaultPlan) {
        self.lock().plan = plan;
    }

    /// Records all effects from now on, until `take_recording`.
    pub fn record(&self) {
        let mut state = self.lock();
        state.recording = Some(Recording::new(state.disk.clone()));
    }

    /// Stops recording and returns the recording, if there is one.
    pub fn take_recording(&self) -> Option<Recording> {
        self.lock().recording.take()
    }

    /// Number of accesses so far.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Number of failed flushes so far.
    pub fn failed_flushes(&self) -> u64 {
        self.lock().failed_flushes
    }

    /// Number of writes and flushes so far: the power could have failed after each of them.
    pub fn crash_points(&self) -> u64 {
        self.counts().operations()
    }

    /// Number of sectors of each write since the last flush, in order; `Survivors` choose from
    /// them.
    pub fn pending(&self) -> Vec<usize> {
        self.lock().disk.pending()
    }

    /// Returns what is on the media if the power fails now. Changes nothing.
    pub fn crash(&self, survivors: &Survivors) -> Image {
        self.lock().disk.image(survivors)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Media for FaultyMedia {
    fn bytes(&self) -> u64 {
        self.lock().live.bytes()
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        assert_whole_blocks(offset, target.len());
        self.read_bytes(offset, target)
    }

    fn write(&self, offset: u64, source: &[u8]) -> Result<()> {
        assert_whole_blocks(offset, source.len());
        self.write_bytes(offset, source)
    }

    fn flush(&self) -> Result<()> {
        let mut state = self.lock();
        state.need_power_for_operation()?;
        let index = state.counts.flushes;
        state.counts.flushes += 1;
        let (effect, result) = match state.plan.flushes.get(&index) {
            None => (Effect::Settle(Survivors::All), Ok(())),
            Some(FlushFault::Fails(survivors)) => (Effect::Settle(*survivors), Err(Error::Io)),
            Some(FlushFault::Lies) => (Effect::Nothing, Ok(())),
        };
        state.failed_flushes += u64::from(result.is_err());
        state.take_effect(effect);
        result
    }

    fn workspace(&self, words: usize) -> Result<Box<dyn Memory>> {
        Ok(Box::new(Workspace::new(words)?))
    }
}

impl ByteMedia for FaultyMedia {
    fn read_bytes(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        let mut state = self.lock();
        check_range(&state.live, offset, target.len())?;
        if target.is_empty() {
            return Ok(());
        }
        state.read(offset, target).inspect_err(|_| target.fill(GARBAGE))
    }

    fn write_bytes(&self, offset: u64, source: &[u8]) -> Result<()> {
        let mut state = self.lock();
        check_range(&state.live, offset, source.len())?;
        if source.is_empty() {
            return Ok(());
        }
        state.write(offset, source)
    }
}

impl State {
    fn need_power(&self) -> Result<()> {
        if self.powerless { Err(Error::Io) } else { Ok(()) }
    }

    fn need_power_for_operation(&mut self) -> Result<()> {
        self.powerless |= self.plan.power_fails_at.is_some_and(|n| n <= self.counts.operations());
        self.need_power()
    }

    fn take_effect(&mut self, effect: Effect) {
        self.disk.apply(&effect);
        if let Some(recording) = &mut self.recording {
            recording.push(effect);
        }
    }

    fn read(&mut self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.need_power()?;
        let index = self.counts.reads;
        self.counts.reads += 1;
        let bits = 8 * target.len() as u64;
        match self.plan.reads.get(&index).copied() {
            Some(ReadFault::Fails) => return Err(Error::Io),
            Some(ReadFault::Misdirected(from)) => {
                self.live.read(self.fit(from, target.len()), target);
            }
            Some(ReadFault::Stale) => self.older.read(offset, target),
            Some(ReadFault::Flipped(bit)) => {
                self.live.read(offset, target);
                target[(bit % bits / 8) as usize] ^= 1 << (bit % 8);
            }
            Some(ReadFault::Rotten(bit)) => {
                self.rot(8 * offset + bit % bits);
                self.live.read(offset, target);
            }
            None => self.live.read(offset, target),
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, source: &[u8]) -> Result<()> {
        self.need_power_for_operation()?;
        let index = self.counts.writes;
        self.counts.writes += 1;
        let (at, survivors, result) = match self.plan.writes.get(&index) {
            None => (offset, Survivors::All, Ok(())),
            Some(WriteFault::Fails(survivors)) => (offset, *survivors, Err(Error::Io)),
            Some(WriteFault::Misdirected(to)) => {
                (self.fit(*to, source.len()), Survivors::All, Ok(()))
            }
        };
        self.store(self.whole_sectors(at, source), &survivors);
        result
    }

    /// Returns the offset nearest to `offset` at which `length` bytes lie on the media.
    fn fit(&self, offset: u64, length: usize) -> u64 {
        offset.min(self.live.bytes() - length as u64)
    }

    /// Returns the whole sectors that a write at any byte changes, with the bytes around it.
    fn whole_sectors(&self, offset: u64, source: &[u8]) -> Write {
        let sector_bytes = self.disk.sector_bytes();
        let before = offset as usize % sector_bytes;
        let start = offset - before as u64;
        let length = (before + source.len()).next_multiple_of(sector_bytes);
        if length == source.len() {
            return Write { offset, bytes: source.into() };
        }
        let mut bytes = vec![0; length];
        self.live.read(start, &mut bytes);
        bytes[before..][..source.len()].copy_from_slice(source);
        Write { offset: start, bytes: bytes.into() }
    }

    /// Makes the surviving sectors of a write live and pending.
    fn store(&mut self, write: Write, survivors: &Survivors) {
        let Write { offset, bytes } = write;
        self.older.adopt(&self.live, offset, bytes.len());
        let mut stored = Vec::new();
        if *survivors == Survivors::All {
            stored.push(Write { offset, bytes });
        } else {
            let sector_bytes = self.disk.sector_bytes();
            let mask = survivors.mask(&[bytes.len() / sector_bytes]);
            stored.extend(
                surviving_runs(&mask, sector_bytes).map(|run| Write {
                    offset: offset + run.start as u64,
                    bytes: bytes[run].into(),
                }),
            );
        }
        for write in &stored {
            self.live.write(write.offset, &write.bytes);
        }
        self.take_effect(Effect::Write(stored));
    }

    /// Flips a bit of the media.
    fn rot(&mut self, bit: u64) {
        self.live.flip(bit);
        self.take_effect(Effect::Flip(bit));
    }
}
