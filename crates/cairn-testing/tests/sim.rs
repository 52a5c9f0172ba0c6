//! Simulated nodes keep their promises to programs, whoever dies and whenever the power fails.
//!
//! `make sim SEED=n` replays a seed with its whole trace; `CAIRN_TEST_SEEDS=n` runs n seeds.

use cairn_core::{Media, Memory, ProcessIdentity, Result};
use cairn_testing::faulty::ByteMedia;
use cairn_testing::random::for_each_seed;
use cairn_testing::sim::{Failure, Wrap, run};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Environment variable that, if set, prints every event.
const TRACE_VARIABLE: &str = "CAIRN_SIM_TRACE";
/// Default number of seeds.
const SEEDS: u64 = 16;
/// Number of seeds within which a planted bug must be found.
const CANARY_SEEDS: u64 = 40;

#[test]
fn nodes_keep_what_they_promised() {
    let verbose = std::env::var_os(TRACE_VARIABLE).is_some();
    for_each_seed(SEEDS, |seed| {
        let report = run(seed, &|media| media, verbose);
        println!("{:?}", report.unwrap_or_else(|failure| panic!("{failure}")));
    });
}

#[test]
fn same_seed_takes_the_same_steps() {
    for seed in 1..=2 {
        let [one, other] = [(); 2].map(|()| run(seed, &|media| media, false));
        assert_eq!(one, other);
        assert_ne!(one, run(seed + 1, &|media| media, false));
    }
}

/// A planted bug.
#[derive(Clone, Copy, PartialEq)]
enum Bug {
    /// One flush in four does nothing.
    FlushLies,
    /// A flush that begins during another one ends with it, without the bytes written meanwhile.
    FlushJoinsAnother,
    /// A process that waits for another is told that the other is dead.
    LivingAreTakenForDead,
}

struct Buggy {
    media: Arc<dyn ByteMedia>,
    bug: Bug,
    flushes: AtomicU64,
    is_flushing: AtomicBool,
}

impl Media for Buggy {
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
        let lies = self.flushes.fetch_add(1, Relaxed) % 4 == 3 && self.bug == Bug::FlushLies;
        if lies || self.is_flushing.swap(self.bug == Bug::FlushJoinsAnother, Relaxed) {
            return Ok(());
        }
        let result = self.media.flush();
        self.is_flushing.store(false, Relaxed);
        result
    }

    fn wait_for(&self, owner: ProcessIdentity, round: u32) -> bool {
        self.media.wait_for(owner, round) || self.bug == Bug::LivingAreTakenForDead
    }

    fn workspace(&self, words: usize) -> Result<Box<dyn Memory>> {
        self.media.workspace(words)
    }
}

impl ByteMedia for Buggy {
    fn read_bytes(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.media.read_bytes(offset, target)
    }

    fn write_bytes(&self, offset: u64, source: &[u8]) -> Result<()> {
        self.media.write_bytes(offset, source)
    }
}

/// Finds a planted bug, and checks that replaying its seed finds it again.
fn find(bug: Bug) -> Failure {
    let wrap: Wrap<'_> = &|media| {
        let (flushes, is_flushing) = (AtomicU64::new(0), AtomicBool::new(false));
        Arc::new(Buggy { media, bug, flushes, is_flushing })
    };
    let found = (1..=CANARY_SEEDS).find_map(|seed| run(seed, wrap, false).err());
    let found = found.expect("the bug is not found");
    assert_eq!(run(found.seed, wrap, false).err().as_ref(), Some(&found), "it is not replayed");
    println!("{found}");
    found
}

#[test]
fn flush_that_lies_is_found() {
    find(Bug::FlushLies);
}

#[test]
fn flush_that_joins_another_is_found() {
    find(Bug::FlushJoinsAnother);
}

#[test]
fn duty_taken_from_a_living_process_is_found() {
    find(Bug::LivingAreTakenForDead);
}
