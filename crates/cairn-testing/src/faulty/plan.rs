//! Fault plans: which access fails, and how.
//!
//! Must stay true: a plan is data; the same plan and the same accesses give the same bytes.
//! `faulty.rs` says what each fault means.

use cairn_core::MEDIA_BLOCK_BYTES;
use std::collections::BTreeMap;

use super::survivors::Survivors;
use crate::random::Random;

/// Fault of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFault {
    /// It fails with `Io`.
    Fails,
    /// It returns the bytes at this offset.
    Misdirected(u64),
    /// It returns the blocks as they were before their last change.
    Stale,
    /// This bit of the target is flipped, once.
    Flipped(u64),
    /// This bit of the range is flipped on the media, from then on.
    Rotten(u64),
}

/// Fault of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFault {
    /// It fails with `Io` after these of its sectors were written.
    Fails(Survivors),
    /// It lands at this offset.
    Misdirected(u64),
}

/// Fault of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushFault {
    /// It fails with `Io`. These sectors are durable; the others never become durable unless they
    /// are written again.
    Fails(Survivors),
    /// It succeeds without doing anything.
    Lies,
}

/// Guarantee that Cairn owes the user after a fault, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Nothing acknowledged is lost; at most the call fails.
    Survived,
    /// An error, or a state that was complete earlier; never bytes that nobody wrote.
    Detected,
    /// No guarantee.
    Fatal,
}

/// A fault of any kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A read fault.
    Read(ReadFault),
    /// A write fault.
    Write(WriteFault),
    /// A flush fault.
    Flush(FlushFault),
}

impl Fault {
    /// Guarantee owed after the fault.
    pub fn outcome(&self) -> Outcome {
        match self {
            Fault::Read(ReadFault::Fails)
            | Fault::Write(WriteFault::Fails(_))
            | Fault::Flush(FlushFault::Fails(_)) => Outcome::Survived,
            Fault::Read(_) | Fault::Write(WriteFault::Misdirected(_)) => Outcome::Detected,
            Fault::Flush(FlushFault::Lies) => Outcome::Fatal,
        }
    }

    /// Draws one fault of each kind for media of `bytes` bytes.
    fn draw_each(random: &mut Random, bytes: u64) -> [Fault; 9] {
        let block = random.below(bytes / MEDIA_BLOCK_BYTES as u64) * MEDIA_BLOCK_BYTES as u64;
        let bit = random.draw();
        let survivors = Survivors::Random(random.draw());
        [
            Fault::Read(ReadFault::Fails),
            Fault::Read(ReadFault::Misdirected(block)),
            Fault::Read(ReadFault::Stale),
            Fault::Read(ReadFault::Flipped(bit)),
            Fault::Read(ReadFault::Rotten(bit)),
            Fault::Write(WriteFault::Fails(survivors)),
            Fault::Write(WriteFault::Misdirected(block)),
            Fault::Flush(FlushFault::Fails(survivors)),
            Fault::Flush(FlushFault::Lies),
        ]
    }
}

/// Number of accesses of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of reads.
    pub reads: u64,
    /// Number of writes.
    pub writes: u64,
    /// Number of flushes.
    pub flushes: u64,
}

impl Counts {
    /// Number of points at which the power can fail, besides the very beginning: writes and
    /// flushes.
    pub fn operations(&self) -> u64 {
        self.writes + self.flushes
    }

    fn of(&self, fault: &Fault) -> u64 {
        match fault {
            Fault::Read(_) => self.reads,
            Fault::Write(_) => self.writes,
            Fault::Flush(_) => self.flushes,
        }
    }
}

/// Faults and their accesses. Accesses are counted from 0 since the media were made, each kind
/// separately.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    pub(super) reads: BTreeMap<u64, ReadFault>,
    pub(super) writes: BTreeMap<u64, WriteFault>,
    pub(super) flushes: BTreeMap<u64, FlushFault>,
    pub(super) power_fails_at: Option<u64>,
}

impl FaultPlan {
    /// Returns a plan with one random fault whose outcome is no worse than `worst`, for a run of
    /// `counts` accesses on media of `bytes` bytes. No fault if there are no accesses.
    pub fn random(seed: u64, worst: Outcome, counts: Counts, bytes: u64) -> FaultPlan {
        let mut random = Random::new(seed);
        let mut faults = Fault::draw_each(&mut random, bytes).to_vec();
        faults.retain(|fault| fault.outcome() <= worst && counts.of(fault) > 0);
        if faults.is_empty() {
            return FaultPlan::default();
        }
        let fault = *random.pick(&faults);
        FaultPlan::default().with(random.below(counts.of(&fault)), fault)
    }

    /// Adds a fault at access number `index` of its kind.
    pub fn with(mut self, index: u64, fault: Fault) -> FaultPlan {
        match fault {
            Fault::Read(fault) => drop(self.reads.insert(index, fault)),
            Fault::Write(fault) => drop(self.writes.insert(index, fault)),
            Fault::Flush(fault) => drop(self.flushes.insert(index, fault)),
        }
        self
    }

    /// Returns every fault with the index of its access.
    pub fn faults(&self) -> impl Iterator<Item = (u64, Fault)> {
        let reads = self.reads.iter().map(|(&index, &fault)| (index, Fault::Read(fault)));
        let writes = self.writes.iter().map(|(&index, &fault)| (index, Fault::Write(fault)));
        let flushes = self.flushes.iter().map(|(&index, &fault)| (index, Fault::Flush(fault)));
        reads.chain(writes).chain(flushes)
    }

    /// Lets the power fail after `operation` writes and flushes: from the next one on everything
    /// fails with `Io` and changes nothing.
    pub fn power_fails_at(mut self, operation: u64) -> FaultPlan {
        self.power_fails_at = Some(operation);
        self
    }
}
