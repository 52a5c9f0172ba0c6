//! Damaged metadata never makes the core panic or loop. Every public operation on a namespace with
//! flipped or overwritten words returns `Ok` or `Err`. A damaged header is refused at open.
//!
//! `CAIRN_TEST_SEEDS` sets the number of seeds, `CAIRN_TEST_SEED` runs one. A failure names its
//! seed and operation.

use cairn_core::{Error, HeapMemory, Memory, Microfs};
use cairn_testing::damage::{HEADER, Image, OPERATIONS, UNDO};
use cairn_testing::random::{Random, for_each_seed};
use cairn_testing::tier::CHECKSUM;
use std::collections::BTreeMap;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Default number of seeds.
const SEEDS: u64 = 1500;
/// Time without progress after which an operation counts as endless.
const PATIENCE: Duration = Duration::from_secs(60);

/// Damages words; `seed` determines which.
fn damage(image: &Image, memory: &HeapMemory, seed: u64) {
    let mut random = Random::new(seed);
    let words = memory.words();
    if random.one_in(4) {
        words[UNDO].store(random.below(64), Relaxed);
    }
    let changes = (1 + random.below(64)) >> random.below(6);
    for _ in 0..=changes {
        let at = match random.below(8) {
            0 => HEADER.end + random.below((words.len() - HEADER.end) as u64) as usize,
            1 | 2 => HEADER.end + random.below(76) as usize,
            3 => UNDO + random.below(64) as usize,
            _ => *random.pick(&image.interesting),
        };
        let old = words[at].load(Relaxed);
        let new = match random.below(6) {
            0 => random.draw(),
            1 => *random.pick(&[0, 1, u64::MAX, 1 << 32, u64::MAX >> 32, u64::MAX << 32]),
            2 => old.wrapping_add(random.below(5)).wrapping_sub(2),
            3 => image.words[*random.pick(&image.interesting)],
            _ => old ^ 1 << random.below(64),
        };
        words[at].store(new, Relaxed);
    }
}

/// Starts a thread that aborts the test process if nothing is reported for `PATIENCE`. It stops
/// when the sender is dropped.
fn start_watchdog() -> Sender<(u64, &'static str)> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut last = (0, "nothing");
        loop {
            match receiver.recv_timeout(PATIENCE) {
                Ok(next) => last = next,
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    let (seed, operation) = last;
                    // The test harness would hold back the output of `eprintln` until a test ends.
                    let said =
                        format!("seed {seed}: {operation} did not end within {PATIENCE:?}\n");
                    let _ = std::io::stderr().write_all(said.as_bytes());
                    std::process::abort();
                }
            }
        }
    });
    sender
}

#[test]
fn flipped_words_then_every_operation_answers() {
    let image = Image::populate().expect("the namespace is intact");
    let memory = Arc::new(HeapMemory::new(image.words.len()));
    let progress = start_watchdog();
    let place = Arc::new(Mutex::new(String::new()));
    let noted = place.clone();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        *noted.lock().unwrap_or_else(PoisonError::into_inner) = info.to_string();
    }));
    let mut panics = BTreeMap::new();
    for_each_seed(SEEDS, |seed| {
        image.restore(&memory);
        damage(&image, &memory, seed);
        let fs = Microfs::open(Box::new(memory.clone()), CHECKSUM).expect("the header is intact");
        // Operations change the words, too, so each of them is the first one for some seeds.
        let first = seed as usize % OPERATIONS.len();
        for (name, operation) in OPERATIONS[first..].iter().chain(&OPERATIONS[..first]) {
            progress.send((seed, name)).expect("the watchdog runs");
            if catch_unwind(AssertUnwindSafe(|| operation(&fs, &image))).is_err() {
                let place = place.lock().unwrap_or_else(PoisonError::into_inner).clone();
                panics.entry(place).or_insert((seed, *name));
            }
        }
    });
    std::panic::set_hook(hook);
    assert!(panics.is_empty(), "panics, each with its first seed and operation: {panics:#?}");
}

#[test]
fn flipped_header_bit_then_open_is_refused() {
    let image = Image::populate().expect("the namespace is intact");
    let memory = Arc::new(HeapMemory::new(image.words.len()));
    image.restore(&memory);
    for at in HEADER {
        for bit in 0..64 {
            memory.words()[at].fetch_xor(1 << bit, Relaxed);
            let opened = Microfs::open(Box::new(memory.clone()), CHECKSUM).map(drop);
            let refused =
                matches!(opened, Err(Error::Corrupt { .. } | Error::UnsupportedVersion { .. }));
            assert!(refused, "bit {bit} of word {at}: {opened:?}");
            memory.words()[at].fetch_xor(1 << bit, Relaxed);
        }
    }
    Microfs::open(Box::new(memory), CHECKSUM).map(drop).expect("every bit is back");
}

#[test]
fn damaged_image_is_restored_then_every_word_is_back() {
    let image = Image::populate().expect("the namespace is intact");
    let memory = HeapMemory::new(image.words.len());
    for seed in 1..20 {
        damage(&image, &memory, seed);
        image.restore(&memory);
        let differing =
            memory.words().iter().zip(&image.words).position(|(is, was)| is.load(Relaxed) != *was);
        assert_eq!(differing, None, "seed {seed}");
    }
}
