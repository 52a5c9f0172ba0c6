//! Flips every bit of the metadata of a small namespace at rest. Either the checksum detects it, or
//! everything visible is unchanged.

use cairn_core::{Error, Geometry, HeapMemory, Memory, Microfs, OpenOptions, Position, ROOT};
use cairn_testing::driver::Process;
use cairn_testing::durable::look;
use cairn_testing::tier::{CHECKSUM, HeapTier, Tier, small_geometry};
use cairn_testing::world::{READ_WRITE, SUPERUSER, World};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const BLOCK: usize = 4096;

/// A namespace at rest with files, directories, links and attributes, whose metadata have a
/// checksum.
struct Rest {
    words: Vec<u64>,
    tier: Arc<dyn Tier>,
    seen: String,
}

impl Rest {
    fn new() -> Rest {
        let geometry: Geometry = small_geometry(64, 64);
        let memory = Arc::new(HeapMemory::new(geometry.segment_bytes() as usize / 8));
        let tier: Arc<dyn Tier> = Arc::new(HeapTier::new(&geometry));
        let world = World::on(memory, tier.clone(), &geometry);
        let process = world.process(SUPERUSER);
        let (fs, caller) = (&process.fs, process.caller());
        fs.make_directory(&caller, ROOT, b"out", 0o750).unwrap();
        for number in 0..8_usize {
            let name = format!("out/state.{number}");
            let opened = fs.open_file(&caller, ROOT, name.as_bytes(), READ_WRITE, 0o640).unwrap();
            let content: Vec<u8> =
                (0..number * BLOCK + 100).map(|at| (at / BLOCK + number) as u8).collect();
            process.write(&caller, opened.handle, Position::At(0), &content).unwrap();
            process.close(opened.handle).unwrap();
        }
        fs.unlink(&caller, ROOT, b"out/state.3").unwrap();
        fs.symlink(&caller, b"out/state.7", ROOT, b"latest").unwrap();
        fs.detach(process.slot, caller.now).unwrap();
        let fs = world.microfs();
        while fs.orphans() > 0 {
            fs.reclaim(None).unwrap();
        }
        assert!(!fs.has_metadata_sum());
        fs.sum_metadata(None).unwrap();
        assert!(fs.has_metadata_sum());
        let words = Memory::words(&world.memory).iter().map(|word| word.load(Ordering::Relaxed));
        let words: Vec<u64> = words.collect();
        let mut rest = Rest { words, tier, seen: String::new() };
        rest.seen = rest.looks(rest.copy()).expect("is whole");
        rest
    }

    fn copy(&self) -> Arc<HeapMemory> {
        Arc::new(HeapMemory::from_words(&self.words))
    }

    /// Describes the namespace in `memory`. Errors: it cannot be opened, or its checksum does not
    /// match.
    fn looks(&self, memory: Arc<HeapMemory>) -> Result<String, Error> {
        let fs = Microfs::open(Box::new(memory.clone()), CHECKSUM)?;
        fs.check_metadata()?;
        let identity = cairn_core::ProcessIdentity { pid: 77, pid_namespace: 1, start_time: 7 };
        let clock = cairn_testing::driver::Clock::default();
        let process = Process::attach(fs, identity, SUPERUSER, self.tier.clone(), clock)?;
        Ok(format!("{:?}", look(&process)?.state()))
    }
}

#[test]
fn bit_of_the_metadata_changes_then_the_checksum_says_so_or_all_is_seen_as_it_was() {
    let rest = Rest::new();
    let memory = rest.copy();
    let words = Memory::words(&memory);
    let fs = Microfs::open(Box::new(memory.clone()), CHECKSUM).unwrap();
    let is_told = |at: usize, bit: u32| {
        words[at].fetch_xor(1 << bit, Ordering::Relaxed);
        let told = fs.check_metadata().is_err();
        words[at].fetch_xor(1 << bit, Ordering::Relaxed);
        told
    };
    // The lock stands in front of these words. Words that were never used are zeros.
    let used = |at: &usize| *at > 8 && rest.words[at - 1..rest.words.len().min(at + 2)] != [0; 3];
    let (mut told, mut harmless) = (0, 0);
    for at in (9..rest.words.len()).filter(used) {
        let untold: Vec<u32> = (0..64).filter(|&bit| !is_told(at, bit)).collect();
        told += 64 - untold.len();
        // A word without a checksum has none for all its bits, so a sample suffices.
        for bit in untold.into_iter().step_by(21) {
            let flipped = rest.copy();
            Memory::words(&flipped)[at].fetch_xor(1 << bit, Ordering::Relaxed);
            if let Ok(seen) = rest.looks(flipped) {
                assert_eq!(seen, rest.seen, "bit {bit} of word {at}");
            }
            harmless += 1;
        }
    }
    assert!(told > 64 * 500, "{told} told, {harmless} harmless");
}

#[test]
fn checksum_goes_with_the_first_change_and_not_with_looking() {
    let rest = Rest::new();
    let memory = rest.copy();
    assert_eq!(rest.looks(memory.clone()).as_ref(), Ok(&rest.seen));
    let fs = Microfs::open(Box::new(memory.clone()), CHECKSUM).unwrap();
    let identity = cairn_core::ProcessIdentity { pid: 78, pid_namespace: 1, start_time: 7 };
    let clock = cairn_testing::driver::Clock::default();
    let process = Process::attach(fs, identity, SUPERUSER, rest.tier.clone(), clock).unwrap();
    let fs = &process.fs;
    fs.stat(&process.caller(), ROOT, b"out/state.1", true).unwrap();
    let options = OpenOptions { write: true, ..OpenOptions::NONE };
    let opened = fs.open_file(&process.caller(), ROOT, b"out/state.1", options, 0).unwrap();
    assert!(!fs.has_metadata_sum(), "who has a file open is counted");
    fs.sum_metadata(Some(process.slot)).unwrap();
    assert!(!fs.has_metadata_sum(), "the process that looked before is not gone");
    let dead = cairn_core::ProcessIdentity { pid: 77, pid_namespace: 1, start_time: 7 };
    for (slot, identity) in fs.processes().unwrap() {
        assert!(identity != dead || fs.reap(slot, dead, process.caller().now).unwrap());
    }
    fs.sum_metadata(Some(process.slot)).unwrap();
    assert!(fs.has_metadata_sum());
    fs.check_metadata().unwrap();
    process.write(&process.caller(), opened.handle, Position::At(9000), b"more").unwrap();
    assert!(!fs.has_metadata_sum());
    process.close(opened.handle).unwrap();
    fs.sum_metadata(None).unwrap();
    assert!(!fs.has_metadata_sum(), "somebody uses it");
    fs.sum_metadata(Some(process.slot)).unwrap();
    fs.check_metadata().unwrap();
}
