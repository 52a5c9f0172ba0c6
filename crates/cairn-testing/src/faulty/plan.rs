//! Which access goes wrong, and how.
//!
//! Must stay true: a plan is data; the same plan and the same accesses give the same bytes. What
//! each fault means stands in `faulty.rs`.

use super::survivors::Survivors;
use crate::random::Random;
use cairn_core::MEDIA_BLOCK_BYTES;
use std::collections::BTreeMap;

/// What may go wrong with a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFault {
    /// It fails with `Io`.
    Fails,
    /// It returns what is at this offset.
    Misdirected(u64),
    /// It returns the blocks as they were before their last change.
    Stale,
    /// This bit of the target is wrong, this time only.
    Flipped(u64),
    /// This bit of what is read is wrong from now on.
    Rotten(u64),
}

/// What may go wrong with a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFault {
    /// It fails with `Io` after these of its sectors were written.
    Fails(Survivors),
    /// It lands at this offset.
    Misdirected(u64),
}

/// What may go wrong with a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushFault {
    /// It fails with `Io`; these sectors are durable, the others never will be unless they are
    /// written again.
    Fails(Survivors),
    /// It succeeds and has done nothing.
    Lies,
}

/// What Cairn owes the user after a fault, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Nothing acknowledged is lost; at most the call fails.
    Survived,
    /// An error, or a state that was complete earlier; never bytes that nobody wrote.
    Detected,
    /// Nothing can be promised.
    Fatal,
}

/// A fault of any kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Of a read.
    Read(ReadFault),
    /// Of a write.
    Write(WriteFault),
    /// Of a flush.
    Flush(FlushFault),
}

impl Fault {
    /// What is owed after it.
    pub fn outcome(&self) -> Outcome {
        match self {
            Fault::Read(ReadFault::Fails)
            | Fault::Write(WriteFault::Fails(_))
            | Fault::Flush(FlushFault::Fails(_)) => Outcome::Survived,
            Fault::Read(_) | Fault::Write(WriteFault::Misdirected(_)) => Outcome::Detected,
            Fault::Flush(FlushFault::Lies) => Outcome::Fatal,
        }
    }

    /// One fault of each kind on media of `bytes` bytes.
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

/// How many accesses of each kind there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
}

impl Counts {
    /// Points at which the power can fail, besides the very beginning: writes and flushes.
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

/// What goes wrong and when. Accesses are counted from 0, each kind by itself, from the making of
/// the media on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    pub(super) reads: BTreeMap<u64, ReadFault>,
    pub(super) writes: BTreeMap<u64, WriteFault>,
    pub(super) flushes: BTreeMap<u64, FlushFault>,
    pub(super) power_fails_at: Option<u64>,
}

impl FaultPlan {
    /// One random fault whose outcome is no worse than `worst`, for a run of so many accesses on
    /// media of `bytes` bytes. No fault if there are no accesses.
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

    /// The `index`-th access of the fault's kind goes wrong, too.
    pub fn with(mut self, index: u64, fault: Fault) -> FaultPlan {
        match fault {
            Fault::Read(fault) => drop(self.reads.insert(index, fault)),
            Fault::Write(fault) => drop(self.writes.insert(index, fault)),
            Fault::Flush(fault) => drop(self.flushes.insert(index, fault)),
        }
        self
    }

    /// Every fault, with the index of the access that it befalls.
    pub fn faults(&self) -> impl Iterator<Item = (u64, Fault)> {
        let reads = self.reads.iter().map(|(&index, &fault)| (index, Fault::Read(fault)));
        let writes = self.writes.iter().map(|(&index, &fault)| (index, Fault::Write(fault)));
        let flushes = self.flushes.iter().map(|(&index, &fault)| (index, Fault::Flush(fault)));
        reads.chain(writes).chain(flushes)
    }

    /// So many writes and flushes take place; from the next one on everything fails with `Io` and
    /// changes nothing.
    pub fn power_fails_at(mut self, operation: u64) -> FaultPlan {
        self.power_fails_at = Some(operation);
        self
    }
}
