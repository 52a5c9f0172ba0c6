//! Zeroed private memory to rebuild a namespace in: for recovery without changes, snapshots and
//! tests.
//!
//! Pages exist once they are touched, so a namespace with few files takes little memory, however
//! large it may grow.
//!
//! Does not guard against other processes: nobody else can see it.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cairn_core::{Acquired, Error, Memory, PrivateWords, Result};

/// Words of one namespace, in an anonymous mapping.
pub struct Workspace {
    words: NonNull<AtomicU64>,
    count: usize,
    shadow: Option<Box<Workspace>>,
    locked: AtomicBool,
}

// SAFETY: the mapping is owned by the value and reached only as a slice of atomics.
unsafe impl Send for Workspace {}
// SAFETY: as above.
unsafe impl Sync for Workspace {}

impl Workspace {
    /// Returns `count` zeroed words. Errors: `NoSpace` if the address space has no room.
    pub fn new(count: usize) -> Result<Workspace> {
        let bytes = count.checked_mul(size_of::<u64>()).filter(|&bytes| bytes > 0);
        let bytes = bytes.ok_or(Error::Invalid)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new anonymous mapping touches nothing that exists.
        let start = unsafe { libc::mmap(core::ptr::null_mut(), bytes, access, flags, -1, 0) };
        let words = match start {
            libc::MAP_FAILED => None,
            start => NonNull::new(start.cast()),
        };
        let words = words.ok_or(Error::NoSpace)?;
        Ok(Workspace { words, count, shadow: None, locked: AtomicBool::new(false) })
    }

    /// Adds a shadow, for a namespace that may hold an image.
    pub fn with_shadow(mut self) -> Result<Workspace> {
        self.shadow = Some(Box::new(Workspace::new(cairn_core::shadow_words(self.count))?));
        Ok(self)
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` made; the borrow checker ensures that no slice of
        // it is left.
        unsafe { libc::munmap(self.words.as_ptr().cast(), self.count * size_of::<u64>()) };
    }
}

impl PrivateWords for Workspace {
    fn words(&self) -> &[AtomicU64] {
        Memory::words(self)
    }

    fn shows_segment(&self) -> bool {
        false
    }
}

impl Memory for Workspace {
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has `count` words, page-aligned and zeroed, and lives as long as
        // `self`.
        unsafe { core::slice::from_raw_parts(self.words.as_ptr(), self.count) }
    }

    fn lock(&self) -> Result<Acquired> {
        while self.locked.swap(true, Ordering::Acquire) {
            core::hint::spin_loop();
        }
        Ok(Acquired::Clean)
    }

    fn unlock(&self) {
        self.locked.store(false, Ordering::Release);
    }

    fn back(&self, first_word: usize, word_count: usize) -> Result<()> {
        match first_word.checked_add(word_count) {
            Some(end) if end <= self.count => Ok(()),
            _ => Err(Error::NoSpace),
        }
    }

    fn shadow(&self) -> &[AtomicU64] {
        self.shadow.as_ref().map_or(&[], |shadow| Memory::words(shadow.as_ref()))
    }

    fn back_shadow(&self, first_word: usize, word_count: usize) -> Result<()> {
        self.shadow.as_ref().map_or(Err(Error::NoSpace), |it| it.back(first_word, word_count))
    }
}
