//! Media that go wrong as media do, in the spirit of the test storages of redb and TigerBeetle.
//!
//! `FaultyMedia` keeps the *live* bytes, which reads see, the *durable* bytes, and in order the
//! writes since the last flush, cut into sectors of 512 bytes, or, as persistent memory is written,
//! of 8. `crash` gives what a power failure leaves. Which fault happens when stands in a
//! `FaultPlan`; nothing is random but what a seed says.
//!
//! What happens by itself, and Cairn survives (nothing acknowledged is lost, nothing half-done is
//! seen):
//! - *lost and reordered writes*: of the sectors written since the last flush any subset is there
//!   after a crash.
//! - *torn write*: a write survives in part; a sector is the old or the new one as a whole.
//!
//! What a plan asks for, and Cairn survives (the call fails, nothing acknowledged is lost):
//! - *read fails* with `Io`; the target is filled with garbage.
//! - *write fails* with `Io`; any subset of its sectors may be written.
//! - *flush fails* with `Io`; any subset of the sectors is durable. The others are read as written
//!   until a crash, but no later flush makes them durable: they must be written again.
//! - *power failure*: from an operation on everything fails with `Io` and changes nothing.
//!
//! What Cairn must detect (an error, or a state that was complete earlier; never bytes that nobody
//! wrote). Where the block concerned is the only witness of what is newer, as the last log block
//! is, it looks like an earlier crash.
//! - *misdirected write*: it succeeds and lands at another block; its own keeps the old bytes.
//! - *misdirected read*: it returns the bytes of another block.
//! - *stale read*: it returns each block as it was before its last change.
//! - *bit flip on read*: one bit is wrong, once.
//! - *bit flip at rest*: one bit is wrong from now on, on the media.
//!
//! What nobody survives:
//! - *lying flush*: it succeeds, and a later crash may lose anything since the flush before it.
//!
//! Does not judge what is recovered; `crash.rs` calls who does.

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

/// What the target of a failed read holds.
const GARBAGE: u8 = 0xdb;

/// Media whose accesses fail as planned, and whose power can fail at any write and flush.
pub struct FaultyMedia {
    state: Mutex<State>,
}

struct State {
    /// What reads see.
    live: Pages,
    /// Each page as it was before its last change.
    older: Pages,
    /// What a crash leaves.
    disk: Disk,
    plan: FaultPlan,
    counts: Counts,
    failed_flushes: u64,
    powerless: bool,
    recording: Option<Recording>,
}

/// Whether a range lies on the media.
fn check_range(pages: &Pages, offset: u64, length: usize) -> Result<()> {
    match offset.checked_add(length as u64) {
        Some(end) if end <= pages.bytes() => Ok(()),
        _ => Err(Error::Corrupt { what: "range outside the media" }),
    }
}

/// A partial block is a bug of whoever asks for it.
fn assert_whole_blocks(offset: u64, length: usize) {
    assert_eq!(offset % MEDIA_BLOCK_BYTES as u64, 0, "offset of an access to media");
    assert_eq!(length % MEDIA_BLOCK_BYTES, 0, "length of an access to media");
}

impl FaultyMedia {
    /// Media that hold `image`, all of it durable. Nothing goes wrong unless a plan says so.
    pub fn new(image: &Image) -> FaultyMedia {
        FaultyMedia::with_sectors(image, SECTOR_BYTES)
    }

    /// The same with sectors of so many bytes, a power of two.
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

    /// Lets go wrong what the plan says, instead of what an earlier plan said.
    pub fn follow(&self, plan: FaultPlan) {
        self.lock().plan = plan;
    }

    /// Keeps all effects from now on, until `take_recording`.
    pub fn record(&self) {
        let mut state = self.lock();
        state.recording = Some(Recording::new(state.disk.clone()));
    }

    /// What was recorded, if it was, and stops.
    pub fn take_recording(&self) -> Option<Recording> {
        self.lock().recording.take()
    }

    /// Accesses so far.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Flushes so far that failed.
    pub fn failed_flushes(&self) -> u64 {
        self.lock().failed_flushes
    }

    /// Writes and flushes so far: the power could have failed after each of them.
    pub fn crash_points(&self) -> u64 {
        self.counts().operations()
    }

    /// Sectors of each write since the last flush, in order: what `Survivors` choose from.
    pub fn pending(&self) -> Vec<usize> {
        self.lock().disk.pending()
    }

    /// What is there if the power fails now. Changes nothing.
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

    /// The place nearest to `offset` where so many bytes lie on the media.
    fn fit(&self, offset: u64, length: usize) -> u64 {
        offset.min(self.live.bytes() - length as u64)
    }

    /// The sectors that a write at any byte changes, with what is around it.
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

    /// Turns over a bit of the media.
    fn rot(&mut self, bit: u64) {
        self.live.flip(bit);
        self.take_effect(Effect::Flip(bit));
    }
}
