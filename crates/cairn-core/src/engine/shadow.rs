//! The shadow: pages of a segment are saved here before they change while an image is held.
//!
//! ```text
//! page 0   pages saved (1 word) | number of the image (1)
//! table    for each page of the segment: image << 32 | place + 1
//! list     for each place: which page is there
//! places   the pages
//! ```
//!
//! Invariant: a page is whole in its place, and in the list, before the count covers it, and is
//! counted before the table names it. Only pages that the table names may have changed. So a death
//! in between costs one place and nothing else. The table of an earlier image means nothing to the
//! next one, which has another number.
//!
//! Not saved: the undo area and the log, which nobody reads in an image; and checksums, which do
//! not change for blocks that are in it.

use crate::engine::transaction::Transaction;
use crate::format::error::Result;
use crate::format::layout::{IMAGE, IMAGE_LOST, LOG_WORDS, PAGE_WORDS, UNDO_WORDS};
use crate::format::memory::{Acquired, Memory};
use std::sync::atomic::{AtomicU64, Ordering};

/// Why an image was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum ImageLoss {
    /// There was no memory for a page that had to be saved.
    NoSpace = 1,
    /// More pages changed than can be saved, or than one transaction may save.
    TooManyPages = 2,
    /// The namespace had no record left for blocks that were replaced.
    NoRecords = 3,
    /// A program waited too long for a write that was planned before the cut and may still store
    /// into a block of the image.
    Awaited = 4,
    /// The holder asked for it.
    Wanted = 5,
}

/// Bits of the reason in `IMAGE_LOST`; the number of the image is above them.
pub(crate) const LOSS_BITS: u32 = 8;

/// Maximum number of pages that one transaction saves; this many places are kept backed ahead.
pub(crate) const PAGES_PER_TRANSACTION_MAX: usize = 256;
/// Places backed at a time.
const STEP: usize = 2 * PAGES_PER_TRANSACTION_MAX;
/// Places whose memory stays from one image to the next. A process that has mapped them once finds
/// them backed at the first change after a cut; otherwise that costs as many page faults.
const PLACES_KEPT: usize = STEP;

/// Number of times a transaction backs places that others use up before it.
const ATTEMPTS_MAX: usize = 16;

const COUNT: usize = 0;
const NUMBER: usize = 1;
const TABLE: usize = PAGE_WORDS;
/// Bits of an image's number that tables keep.
const NUMBER_MASK: u64 = 0xffff_ffff;

/// Part of the shadow that this process has backed and mapped: the image's number in the high half,
/// the number of places in the low half.
#[derive(Default)]
pub(crate) struct ShadowHere(AtomicU64);

impl ShadowHere {
    /// Returns the number of places backed for the image `number`; `None` if nothing is backed, not
    /// even the table.
    fn places(&self, number: u64) -> Option<usize> {
        let known = self.0.load(Ordering::Relaxed);
        let places = known as u32 as usize;
        match known >> 32 == number & NUMBER_MASK {
            true => Some(places),
            false => Some(places.min(PLACES_KEPT)),
        }
        .filter(|_| places > 0)
    }

    pub(crate) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    fn set(&self, number: u64, places: usize) {
        self.0.store(number << 32 | places as u64, Ordering::Relaxed);
    }
}

/// Image that a transaction has joined.
#[derive(Clone, Copy)]
pub(crate) struct Held<'m> {
    pub number: u64,
    pub shadow: Shadow<'m>,
    pages_kept: usize,
}

/// The shadow of a segment.
#[derive(Clone, Copy)]
pub(crate) struct Shadow<'m> {
    words: &'m [AtomicU64],
    /// Pages of the segment.
    pages: usize,
    list: usize,
    first_place: usize,
    /// Number of places.
    places: usize,
}

impl<'m> Shadow<'m> {
    /// Returns the shadow of a memory; `None` if it has none.
    pub(crate) fn of(memory: &'m dyn Memory) -> Option<Shadow<'m>> {
        let words = memory.shadow();
        let pages = memory.words().len() / PAGE_WORDS;
        let list = TABLE + pages.next_multiple_of(PAGE_WORDS);
        let rest = words.len().checked_sub(list)?;
        let mut places = rest / (PAGE_WORDS + 1);
        if places.next_multiple_of(PAGE_WORDS) + places * PAGE_WORDS > rest {
            places = places.saturating_sub(1);
        }
        let first_place = list + places.next_multiple_of(PAGE_WORDS);
        (places > PAGES_PER_TRANSACTION_MAX).then_some(Shadow {
            words,
            pages,
            list,
            first_place,
            places,
        })
    }

    fn get(&self, at: usize) -> u64 {
        self.words[at].load(Ordering::Acquire)
    }

    fn put(&self, at: usize, value: u64) {
        self.words[at].store(value, Ordering::Release);
    }

    /// Returns the number of pages saved for the image `number`.
    pub(crate) fn count(&self, number: u64) -> usize {
        match self.get(NUMBER) == number {
            true => (self.get(COUNT) as usize).min(self.places),
            false => 0,
        }
    }

    /// Begins the image `number`, with no page saved.
    pub(crate) fn begin(&self, number: u64) {
        self.put(COUNT, 0);
        self.put(NUMBER, number);
    }

    /// Number of words from the beginning whose memory stays when an image ends: the table, the
    /// list, and the first places.
    pub(crate) fn words_kept(&self) -> usize {
        self.place(PLACES_KEPT.min(self.places))
    }

    /// Backs what a transaction may need that joins the image `number`. Without the lock. Errors:
    /// `NoSpace`.
    pub(crate) fn back(&self, memory: &dyn Memory, here: &ShadowHere, number: u64) -> Result<()> {
        if self.is_backed(here, number) {
            return Ok(());
        }
        let known = here.places(number);
        if known.is_none() {
            memory.back_shadow(0, self.list)?;
        }
        let from = known.unwrap_or(0);
        let to = self.places.min(self.count(number).max(from) + STEP);
        memory.back_shadow(self.list + from, to - from)?;
        memory.back_shadow(self.place(from), (to - from) * PAGE_WORDS)?;
        here.set(number, to);
        Ok(())
    }

    /// Whether this process has backed what a transaction may need.
    fn is_backed(&self, here: &ShadowHere, number: u64) -> bool {
        let needed = self.places.min(self.count(number) + PAGES_PER_TRANSACTION_MAX);
        here.places(number).is_some_and(|places| places >= needed)
    }

    fn place(&self, place: usize) -> usize {
        self.first_place + place * PAGE_WORDS
    }

    /// Returns the place of a page that is saved for this image.
    fn place_of(&self, number: u64, page: usize) -> Option<usize> {
        let entry = if page < self.pages { self.get(TABLE + page) } else { 0 };
        let place = (entry as u32 as usize).checked_sub(1)?;
        (entry >> 32 == number & NUMBER_MASK && place < self.places).then(|| self.place(place))
    }

    /// Returns a word of a saved page.
    pub(crate) fn saved_word(&self, number: u64, at: usize) -> Option<u64> {
        let place = self.place_of(number, at / PAGE_WORDS)?;
        Some(self.get(place + at % PAGE_WORDS))
    }

    /// Sets bits in a word of a saved page.
    pub(crate) fn add_to_saved(&self, number: u64, at: usize, bits: u64) {
        if let Some(place) = self.place_of(number, at / PAGE_WORDS) {
            self.words[place + at % PAGE_WORDS].fetch_or(bits, Ordering::AcqRel);
        }
    }

    /// Saves a page. Returns false if there is no place left.
    fn save(&self, number: u64, page: usize, words: &[AtomicU64]) -> bool {
        let place = self.count(number);
        if place >= self.places {
            return false;
        }
        let target = &self.words[self.place(place)..][..PAGE_WORDS];
        for (to, from) in target.iter().zip(&words[page * PAGE_WORDS..][..PAGE_WORDS]) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.put(self.list + place, page as u64);
        self.put(COUNT, place as u64 + 1);
        self.put(TABLE + page, number << 32 | (place as u64 + 1));
        true
    }

    /// Returns the page in a place, if the entry is valid.
    pub(crate) fn page_in(&self, place: usize) -> Option<usize> {
        let page = self.get(self.list + place) as usize;
        (page < self.pages).then_some(page)
    }

    /// Returns the words in a place.
    pub(crate) fn saved_page(&self, place: usize) -> &'m [AtomicU64] {
        &self.words[self.place(place)..][..PAGE_WORDS]
    }
}

impl<'m> Transaction<'m> {
    /// Joins the image that the namespace holds, and makes sure that pages can be saved. The caller
    /// holds the lock; it may be released for a while. If pages cannot be saved, the image is given
    /// up.
    #[cold]
    pub(crate) fn join_image(&mut self) -> Result<()> {
        let shadow = Shadow::of(self.memory);
        for _ in 0..ATTEMPTS_MAX {
            let number = self.words[IMAGE].load(Ordering::Relaxed);
            if number == 0 {
                return Ok(());
            }
            let Some(shadow) = shadow else { break };
            if shadow.is_backed(&self.local.shadow, number) {
                self.image = Some(Held { number, shadow, pages_kept: 0 });
                self.set_plain(false);
                // Then fresh records are also saved before they are overwritten.
                self.gave_back = true;
                return Ok(());
            }
            self.unlock();
            let backed = shadow.back(self.memory, &self.local.shadow, number);
            self.lock()?;
            self.note_checksum();
            if backed.is_err() && self.words[IMAGE].load(Ordering::Relaxed) == number {
                self.lose_image(number, ImageLoss::NoSpace);
                return Ok(());
            }
        }
        let number = self.words[IMAGE].load(Ordering::Relaxed);
        self.lose_image(number, ImageLoss::TooManyPages);
        Ok(())
    }

    /// Gives up the image. This stays so even if the transaction is undone.
    #[cold]
    pub(crate) fn lose_image(&mut self, number: u64, why: ImageLoss) {
        self.words[IMAGE_LOST].store(number << LOSS_BITS | why as u64, Ordering::Release);
        self.words[IMAGE].store(0, Ordering::Release);
        self.image = None;
        self.set_plain(true);
    }

    /// Saves the page of the word at `at`, which is about to change, if an image is held and has
    /// not saved the page yet.
    pub(crate) fn keep_page(&mut self, at: usize) {
        let Some(Held { number, shadow, pages_kept }) = self.image else { return };
        let page = at / PAGE_WORDS;
        let is_kept = page >= shadow.pages || shadow.place_of(number, page).is_some();
        if is_kept || !self.is_of_image(at) {
            return;
        }
        let fits = pages_kept < PAGES_PER_TRANSACTION_MAX;
        if !fits || !shadow.save(number, page, self.words) {
            return self.lose_image(number, ImageLoss::TooManyPages);
        }
        self.image = Some(Held { number, shadow, pages_kept: pages_kept + 1 });
    }

    /// Whether another step of a batch may save pages: each step saves fewer than half of what a
    /// transaction may.
    pub(crate) fn may_keep_more(&self) -> bool {
        self.image.is_none_or(|held| held.pages_kept < PAGES_PER_TRANSACTION_MAX / 2)
    }

    /// Does the same as `keep_page` for `count` words from `at` on.
    #[inline]
    pub(crate) fn keep_pages(&mut self, at: usize, count: usize) {
        if self.image.is_some() && count > 0 {
            self.keep_each_page(at, count);
        }
    }

    #[cold]
    fn keep_each_page(&mut self, at: usize, count: usize) {
        let last = at.saturating_add(count - 1);
        for page in at / PAGE_WORDS..=last / PAGE_WORDS {
            self.keep_page(page * PAGE_WORDS);
        }
    }

    /// Whether images save the page of this word.
    fn is_of_image(&self, at: usize) -> bool {
        let layout = self.layout;
        let is_in = |first: usize, words: usize| (first..first + words).contains(&at);
        !is_in(layout.undo, UNDO_WORDS)
            && !is_in(layout.log, LOG_WORDS)
            && !layout
                .tiers
                .iter()
                .any(|tier| is_in(tier.checksums, (tier.blocks as usize).div_ceil(2)))
    }

    fn unlock(&mut self) {
        self.holds_lock = false;
        self.memory.unlock();
    }

    /// Takes the lock and undoes what a dead owner left. Does not join an image.
    #[inline(always)]
    pub(crate) fn lock(&mut self) -> Result<()> {
        let acquired = self.memory.lock()?;
        self.holds_lock = true;
        if acquired == Acquired::OwnerDied || self.undo_length() != 0 {
            self.undo_what_is_left()?;
        }
        Ok(())
    }
}
