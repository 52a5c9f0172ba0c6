//! Damaged metadata: the input patches words of a populated segment, then chooses the operations to
//! try.
//!
//! Invariant: whatever the words are, every operation returns. An index outside the segment or an
//! overflowing sum panics in the fuzzed build. The fuzzer itself detects an endless loop.

use crate::damage::{HEADER, Image, OPERATIONS, UNDO};
use crate::random::Random;
use crate::tier::CHECKSUM;
use cairn_core::{HeapMemory, Memory, Microfs};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

/// Most words patched.
const PATCHES_MAX: u64 = 24;
/// Most operations tried.
const OPERATIONS_MAX: usize = 12;
/// Number of words of the first page that change while the namespace is in use.
const DYNAMIC_WORDS: u64 = 76;

thread_local! {
    /// Segment shared by all runs of the thread: making one takes longer than a run.
    static SEGMENT: OnceLock<(Image, Arc<HeapMemory>)> = const { OnceLock::new() };
}

/// Patches the words and tries the operations that the input describes.
pub(super) fn run(input: &[u8]) {
    SEGMENT.with(|segment| {
        let (image, memory) = segment.get_or_init(|| {
            let image = Image::populate().expect("the namespace is intact");
            let memory = Arc::new(HeapMemory::new(image.words.len()));
            (image, memory)
        });
        image.restore(memory);
        let mut choices = Random::from_choices(input);
        for _ in 0..choices.below(PATCHES_MAX + 1) {
            patch(image, memory, &mut choices);
        }
        let fs = Microfs::open(Box::new(memory.clone()), CHECKSUM).expect("the header is intact");
        for _ in 0..OPERATIONS_MAX {
            if choices.is_used_up() {
                break;
            }
            let (_, operation) = choices.pick(OPERATIONS);
            // Any result will do.
            let _ = operation(&fs, image);
        }
    });
}

fn patch(image: &Image, memory: &HeapMemory, choices: &mut Random) {
    let words = memory.words();
    let at = match choices.below(8) {
        0 => HEADER.end + choices.below((words.len() - HEADER.end) as u64) as usize,
        1 | 2 => HEADER.end + choices.below(DYNAMIC_WORDS) as usize,
        3 => UNDO + choices.below(64) as usize,
        _ => *choices.pick(&image.interesting),
    };
    let old = words[at].load(Relaxed);
    let new = match choices.below(8) {
        0 => choices.draw(),
        1 => *choices.pick(&[0, 1, u64::MAX, 1 << 32, u64::MAX >> 32, u64::MAX << 32]),
        2 => old.wrapping_add(choices.below(256)).wrapping_sub(128),
        3 => image.words[*choices.pick(&image.interesting)],
        4 => old & u64::MAX << 32 | choices.below(1 << 32),
        5 => old & u64::MAX >> 32 | choices.below(1 << 32) << 32,
        6 => choices.below(1 << 16),
        _ => old ^ 1 << choices.below(64),
    };
    words[at].store(new, Relaxed);
}
