//! View of an image: a private copy of the segment, with the saved pages in their places.
//!
//! Invariant: the holder of the view's lock holds the lock of the namespace, and the image is held.
//! Every saved page is in the view as it was at the cut; every other page of the segment is as it
//! was then. So each operation that only reads finds, under the lock, the namespace of the cut. Its
//! result belongs to the image if the image is still held. A change in the view is private to the
//! process that makes it.

use crate::engine::fs::Microfs;
use crate::engine::shadow::Shadow;
use crate::engine::slab;
use crate::engine::transaction::{Local, Transaction};
use crate::format::error::{Error, Result};
use crate::format::layout::{self, Checksum, IMAGE, Layout, PAGE_WORDS, SLAB_KINDS};
use crate::format::memory::{Acquired, HeapMemory, Memory};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Maximum number of pages put in their places under one lock.
const BATCH: usize = 32;

/// The words of a segment, as one process sees them: nobody else sees what it stores.
pub trait PrivateWords: Send + Sync {
    /// Returns all words.
    fn words(&self) -> &[AtomicU64];

    /// Whether a page to which nothing was stored always shows what the segment has there. If not,
    /// all pages are zeros at first, and are copied.
    fn shows_segment(&self) -> bool;
}

impl<W: PrivateWords> PrivateWords for Arc<W> {
    fn words(&self) -> &[AtomicU64] {
        W::words(self)
    }

    fn shows_segment(&self) -> bool {
        W::shows_segment(self)
    }
}

/// A segment as it was at the cut of the image that it holds.
pub struct ImageMemory {
    live: Arc<dyn Memory>,
    view: Box<dyn PrivateWords>,
    layout: Layout,
    checksum: Checksum,
    local: Local,
    number: u64,
    /// Number of saved pages that are in their places. Then the number of saved pages whose places
    /// are private to this process, so that touching them does not fault.
    installed: AtomicUsize,
    touched: AtomicUsize,
}

impl ImageMemory {
    /// Creates the view of the image that the namespace in `live` holds. Errors: `ImageLost` if it
    /// holds none; as `Microfs::open`.
    pub fn new(
        live: Arc<dyn Memory>,
        view: Box<dyn PrivateWords>,
        checksum: Checksum,
    ) -> Result<ImageMemory> {
        let geometry = layout::read_header(live.as_ref(), checksum)?;
        let number = live.words()[IMAGE].load(Ordering::Acquire);
        if number == 0 || live.words().len() != view.words().len() {
            return Err(Error::ImageLost);
        }
        let layout = Layout::new(&geometry);
        let (local, installed, touched) = (Local::new(), AtomicUsize::new(0), AtomicUsize::new(0));
        let memory =
            ImageMemory { live, view, layout, checksum, local, number, installed, touched };
        memory.touch(0);
        if !memory.view.shows_segment() {
            memory.copy_all()?;
        }
        Ok(memory)
    }

    /// Returns the number of the image.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Takes the lock of the namespace. Errors: `ImageLost`.
    fn lock_live(&self) -> Result<Acquired> {
        let live = self.live.as_ref();
        let mut tx = Transaction::new(live, &self.layout, self.checksum, &self.local);
        tx.lock()?;
        if tx.get(IMAGE) != self.number {
            return Err(Error::ImageLost);
        }
        tx.leave_locked();
        Ok(Acquired::Clean)
    }

    fn shadow(&self) -> Result<Shadow<'_>> {
        Shadow::of(self.live.as_ref()).ok_or(Error::ImageLost)
    }

    /// Copies what may be in use, page by page, if the view does not show the segment by itself.
    fn copy_all(&self) -> Result<()> {
        let words = self.live.words();
        let tables = self.layout.tiers.iter().map(|tier| {
            let end = tier.checksums + (tier.blocks as usize).div_ceil(2);
            (tier.used, end - tier.used)
        });
        let slabs = SLAB_KINDS.map(|kind| {
            let region = self.layout.slab(kind);
            (region.first_word, slab::high_water(words, region) * region.record_words)
        });
        self.lock_live()?;
        for (first, count) in [(0, PAGE_WORDS)].into_iter().chain(tables).chain(slabs) {
            let range = first..first + count.next_multiple_of(PAGE_WORDS);
            copy(&words[range.clone()], &self.view.words()[range]);
        }
        self.live.unlock();
        Ok(())
    }

    /// Makes a page of the view private to this process. What it shows then is either replaced
    /// later, or is as it was at the cut.
    fn touch(&self, page: usize) {
        self.view.words()[page * PAGE_WORDS].fetch_or(0, Ordering::Relaxed);
    }

    /// Puts saved pages in their places that were touched since the last call. The lock is held.
    /// Writes the pages to touch next to `next`, and returns the range of their places in the
    /// shadow; it is empty if all saved pages are where they belong.
    fn install(&self, next: &mut [usize; BATCH]) -> Result<Range<usize>> {
        let shadow = self.shadow()?;
        let (count, touched) = (shadow.count(self.number), self.touched.load(Ordering::Relaxed));
        for place in self.installed.load(Ordering::Relaxed)..touched {
            if let Some(page) = shadow.page_in(place) {
                copy(shadow.saved_page(place), &self.view.words()[page * PAGE_WORDS..]);
            }
        }
        self.installed.store(touched, Ordering::Relaxed);
        let places = touched..count.min(touched + BATCH);
        for (page, place) in next.iter_mut().zip(places.clone()) {
            *page = shadow.page_in(place).unwrap_or(0);
        }
        Ok(places)
    }
}

fn copy(from: &[AtomicU64], to: &[AtomicU64]) {
    for (from, to) in from.iter().zip(to) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Memory for ImageMemory {
    fn words(&self) -> &[AtomicU64] {
        self.view.words()
    }

    fn lock(&self) -> Result<Acquired> {
        let mut next = [0; BATCH];
        loop {
            self.lock_live()?;
            let found = self.install(&mut next);
            if found.as_ref().is_ok_and(Range::is_empty) {
                // No pages are saved for changes of the view.
                self.words()[IMAGE].store(0, Ordering::Relaxed);
                return Ok(Acquired::Clean);
            }
            self.live.unlock();
            let found = found?;
            next[..found.len()].iter().for_each(|&page| self.touch(page));
            // Another thread may have touched the same pages, or more.
            self.touched.fetch_max(found.end, Ordering::Relaxed);
        }
    }

    fn unlock(&self) {
        self.live.unlock();
    }

    fn back(&self, _first_word: usize, _word_count: usize) -> Result<()> {
        Ok(())
    }
}

impl PrivateWords for HeapMemory {
    fn words(&self) -> &[AtomicU64] {
        Memory::words(self)
    }

    fn shows_segment(&self) -> bool {
        false
    }
}

impl Microfs {
    /// Opens the image that a namespace holds for reading. Changes affect this memory only, and
    /// tiers must not be written to. Errors: as `open`; every operation fails with `ImageLost` once
    /// the image has ended or was given up.
    pub fn open_image(memory: ImageMemory, checksum: Checksum) -> Result<Microfs> {
        let geometry = layout::read_header(&memory, checksum)?;
        let fs = Microfs::over(Box::new(memory), checksum, geometry, None)?;
        fs.require_image()?;
        Ok(fs)
    }
}
