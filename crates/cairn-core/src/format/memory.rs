//! The shared words of a namespace, and the lock over them.
//!
//! All metadata are a slice of 64-bit words reached by index. Processes that map the same segment
//! see the same words. Every access is atomic, so a word is never torn; the lock gives the
//! ordering.
//!
//! Does not know how the segment is mapped or how the lock detects a dead owner; `cairn-device`
//! does.

use crate::format::error::{Error, Result};
use crate::format::layout::shadow_words;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Maximum number of words in the shadow of a segment on the heap.
const SHADOW_WORDS_MAX: usize = 1 << 19;

/// Words at the start of the segment that belong to the lock.
pub const LOCK_WORDS: usize = 8;

/// How the lock was obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The last owner released it.
    Clean,
    /// The last owner died while holding it: its changes must be undone.
    OwnerDied,
}

/// The words of a namespace and the one lock over them.
pub trait Memory: Send + Sync {
    /// Returns the whole segment. The first [`LOCK_WORDS`] words belong to the lock.
    fn words(&self) -> &[AtomicU64];

    /// Takes the lock. Errors: `Busy` if this thread already holds it.
    fn lock(&self) -> Result<Acquired>;

    /// Releases the lock; the calling thread must hold it.
    fn unlock(&self);

    /// Allocates the pages of these words and maps them here, so that no later access to them
    /// faults. Called without the lock. Errors: `NoSpace`.
    fn back(&self, first_word: usize, word_count: usize) -> Result<()>;

    /// Prefetches these words into the cache while the caller does something else, where the
    /// implementation can. Any index is allowed.
    fn prefetch(&self, _first_word: usize, _word_count: usize) {}

    /// Returns the shadow, in which pages are saved while an image is held (`image.rs`); empty if
    /// none can be held. It has as many words as `Geometry::shadow_bytes` says, or fewer if fewer
    /// pages may be saved.
    fn shadow(&self) -> &[AtomicU64] {
        &[]
    }

    /// Does the same as `back` for the shadow.
    fn back_shadow(&self, _first_word: usize, _word_count: usize) -> Result<()> {
        Err(Error::NoSpace)
    }

    /// Frees the memory of the shadow from a word on, which then reads as zeros. Called without the
    /// lock, while no image is held.
    fn clear_shadow(&self, _first_word: usize) {}
}

/// One segment, used by several instances of `Microfs`.
impl<M: Memory> Memory for Arc<M> {
    fn words(&self) -> &[AtomicU64] {
        M::words(self)
    }

    fn lock(&self) -> Result<Acquired> {
        M::lock(self)
    }

    fn unlock(&self) {
        M::unlock(self);
    }

    fn back(&self, first_word: usize, word_count: usize) -> Result<()> {
        M::back(self, first_word, word_count)
    }

    fn prefetch(&self, first_word: usize, word_count: usize) {
        M::prefetch(self, first_word, word_count);
    }

    fn shadow(&self) -> &[AtomicU64] {
        M::shadow(self)
    }

    fn back_shadow(&self, first_word: usize, word_count: usize) -> Result<()> {
        M::back_shadow(self, first_word, word_count)
    }

    fn clear_shadow(&self, first_word: usize) {
        M::clear_shadow(self, first_word);
    }
}

/// A segment in private memory: for tests and for tools that work on an image.
pub struct HeapMemory {
    words: Vec<AtomicU64>,
    /// Created on first use.
    shadow: OnceLock<Vec<AtomicU64>>,
    locked: AtomicBool,
    owner_died: AtomicBool,
}

impl HeapMemory {
    /// Creates a zeroed segment of `word_count` words.
    pub fn new(word_count: usize) -> HeapMemory {
        HeapMemory::from_words(&vec![0; word_count])
    }

    /// Creates a segment with a copy of `words`.
    pub fn from_words(words: &[u64]) -> HeapMemory {
        HeapMemory {
            words: words.iter().map(|&word| AtomicU64::new(word)).collect(),
            shadow: OnceLock::new(),
            locked: AtomicBool::new(false),
            owner_died: AtomicBool::new(false),
        }
    }

    /// Makes the next `lock` report that the owner died, whether or not the lock is held.
    pub fn simulate_owner_death(&self) {
        self.owner_died.store(true, Ordering::Relaxed);
        self.locked.store(false, Ordering::Release);
    }
}

impl Memory for HeapMemory {
    fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    fn lock(&self) -> Result<Acquired> {
        while self
            .locked
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            std::hint::spin_loop();
        }
        match self.owner_died.swap(false, Ordering::Relaxed) {
            true => Ok(Acquired::OwnerDied),
            false => Ok(Acquired::Clean),
        }
    }

    fn unlock(&self) {
        self.locked.store(false, Ordering::Release);
    }

    fn back(&self, first_word: usize, word_count: usize) -> Result<()> {
        match first_word.checked_add(word_count) {
            Some(end) if end <= self.words.len() => Ok(()),
            _ => Err(Error::NoSpace),
        }
    }

    fn shadow(&self) -> &[AtomicU64] {
        let words = shadow_words(self.words.len()).min(SHADOW_WORDS_MAX);
        self.shadow.get_or_init(|| (0..words).map(|_| AtomicU64::new(0)).collect())
    }

    fn back_shadow(&self, first_word: usize, word_count: usize) -> Result<()> {
        match first_word.checked_add(word_count) {
            Some(end) if end <= self.shadow().len() => Ok(()),
            _ => Err(Error::NoSpace),
        }
    }
}
