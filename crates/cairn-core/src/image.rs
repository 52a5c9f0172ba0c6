//! Images: a namespace as it was at one moment, the *cut*, held while programs go on writing.
//!
//! Must stay true while an image is held:
//!
//! - If a call is in the image, so is every call that had returned before it began. The cut is made
//!   under the lock, and no lease is live at that moment. A call in progress may be there in part.
//! - Before a word of the segment changes, its page as it was at the cut is saved in the *shadow*
//!   (`shadow.rs`). A reader takes saved pages from there and all others from the segment
//!   (`view.rs`).
//! - A block that was in use at the cut keeps its bytes and its checksum. A write to it goes to a
//!   copy (`write.rs`, `settle.rs`). If its file frees the block, the pool does not hand it out
//!   again (`pool.rs`).
//! - Writes that were planned before the cut may still store into such blocks: see
//!   [`Microfs::image_is_settled`].
//! - Files that are mapped at the cut or later are written in place. The image records which of
//!   them may have changed.
//!
//! Some words change without the lock: the lock itself, lease states (none is live at the cut),
//! claims, read notes, and the words of those who wait for space or data. The image has them as
//! they were when their page was saved, or later. They mean nothing there, and no call that only
//! reads looks at them. Free blocks that are in the image count as free although they cannot be
//! allocated: [`Microfs::image_blocks_held`].
//!
//! An image never makes a program's call fail: if a page cannot be saved, the image is given up.
//!
//! Does not copy anything, does not decide when an image is taken or how long it is held, and does
//! not outlive the segment.

mod view;

pub use view::{ImageMemory, PrivateWords};

use crate::data::map::Stretch;
use crate::engine::fs::Microfs;
use crate::engine::inode::{CHANGED_LATER, Inode, MAPPED, MAPPED_LATER, MAPPED_TO_STORE};
use crate::engine::run::BlockRun;
use crate::engine::shadow::{Held, ImageLoss, LOSS_BITS, Shadow};
use crate::engine::slot::PINS_PER_SLOT;
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::layout::{
    IMAGE, IMAGE_BARRIERS, IMAGE_COUNT, IMAGE_LOST, IMAGE_PINS, SYNCS, SlabKind,
};
use crate::format::types::InodeId;
use crate::process::pin::{PIN_ACTIVE, PIN_LEASED, PIN_WAITS, Pin, RUNS_MAX};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Whether a namespace holds an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageState {
    /// No image.
    None,
    /// The image with this number.
    Held(u64),
    /// The image with this number was given up; [`Microfs::end_image`] frees its memory.
    Lost(u64, ImageLoss),
}

/// Count of the events that order stores to mapped files, see [`Microfs::barriers`].
pub type Barriers = u64;

/// Meeting point for threads that begin the images of several namespaces. Each holds the lock of
/// its namespace and goes on once all have arrived. This is the only place where a thread waits for
/// others while it holds a lock; it waits as long as they need to take their locks.
pub struct Rendezvous {
    expected: usize,
    arrived: AtomicUsize,
    failed: AtomicBool,
}

impl Rendezvous {
    /// Creates a meeting point for `expected` namespaces, each with a thread of its own.
    pub fn new(expected: usize) -> Rendezvous {
        Rendezvous { expected, arrived: AtomicUsize::new(0), failed: AtomicBool::new(false) }
    }

    /// Reports that one namespace cannot take part.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    /// Waits for all namespaces. Returns true if all have arrived, false if one of them failed.
    fn meet(&self) -> bool {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        while self.arrived.load(Ordering::Acquire) < self.expected {
            if self.failed.load(Ordering::Acquire) {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }
}

impl Transaction<'_> {
    /// Returns the word at `at` as it was at the cut. Precondition: images save its page.
    pub(crate) fn word_at_cut(&self, at: usize) -> u64 {
        let saved = self.image.and_then(|held| held.shadow.saved_word(held.number, at));
        saved.unwrap_or_else(|| self.get(at))
    }

    fn bit_at_cut(&self, bitmap: usize, block: u32) -> bool {
        self.word_at_cut(bitmap + block as usize / 64) & 1 << (block % 64) != 0
    }

    /// Whether the block was in use at the cut of the image that is held.
    #[inline]
    pub(crate) fn in_image(&self, tier: u8, block: u32) -> bool {
        self.image.is_some()
            && self
                .layout
                .tiers
                .get(usize::from(tier))
                .is_some_and(|region| block < region.blocks && self.bit_at_cut(region.used, block))
    }

    /// Returns whether the first block of a run is in the image, and how many leading blocks of the
    /// run share that answer, at least 1.
    pub(crate) fn first_in_image(&self, run: BlockRun) -> (bool, u32) {
        if self.image.is_none() {
            return (false, run.count);
        }
        let first = self.in_image(run.tier, run.first);
        let differs = |index: &u32| self.in_image(run.tier, run.first + index) != first;
        (first, (1..run.count).find(differs).unwrap_or(run.count))
    }

    /// Whether the image has the checksum of the block, so that it must not change.
    pub(crate) fn is_checksum_of_image(&self, inode: Inode, tier: u8, block: u32) -> bool {
        let stale = |tier: u8| self.layout.tiers[usize::from(tier)].stale;
        self.is_redirected(inode)
            && self.in_image(tier, block)
            && !self.bit_at_cut(stale(tier), block)
    }

    /// Whether writes to blocks of the file that are in the image go to copies. They do not if the
    /// file is mapped, or was mapped since the cut.
    #[inline]
    pub(crate) fn is_redirected(&self, inode: Inode) -> bool {
        self.image.is_some() && !self.is_mapped_for_image(inode.at)
    }

    /// Whether the inode record at `at` was in use at the cut and its file is mapped, or was mapped
    /// since.
    fn is_mapped_for_image(&self, at: usize) -> bool {
        self.has_flag_at_cut(at, MAPPED | MAPPED_LATER)
    }

    fn has_flag_at_cut(&self, at: usize, flags: u32) -> bool {
        let word = self.word_at_cut(at);
        word >> 32 != 0 && word as u32 & flags != 0
    }

    fn add_at_cut(&mut self, inode: Inode, flag: u32) {
        self.keep_pages(inode.at, 1);
        if let Some(Held { number, shadow, .. }) = self.image {
            shadow.add_to_saved(number, inode.at, u64::from(flag));
        }
    }

    /// Records in the image that the file is mapped: from now on its bytes change in place,
    /// including those that are in the image.
    pub(crate) fn map_in_image(&mut self, inode: Inode) {
        self.add_at_cut(inode, MAPPED_LATER);
    }

    /// Records in the image that the file's bytes may change at any time from now on.
    pub(crate) fn store_in_image(&mut self, inode: Inode) {
        self.add_at_cut(inode, CHANGED_LATER);
    }

    /// Records in the image that blocks of the file are overwritten in place, if the image has one
    /// of them.
    pub(crate) fn write_in_image(&mut self, inode: Inode, run: BlockRun) {
        let is_there = |index: u32| self.in_image(run.tier, run.first + index);
        if self.image.is_some() && (0..run.count).any(is_there) {
            self.add_at_cut(inode, CHANGED_LATER);
            self.count_barrier();
        }
    }

    /// Counts a barrier while an image is held: a call ends, and a later store to a mapped file
    /// must not be in an image that lacks the call. Also counts a write to bytes that the image was
    /// to keep.
    pub(crate) fn count_barrier(&self) {
        if self.image.is_some() {
            self.words[IMAGE_BARRIERS].fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Whether a write that was planned before the cut is in flight to blocks from `first` to
    /// before `end` of the file.
    pub(crate) fn is_written_since_before_cut(&self, inode: Inode, first: u32, end: u32) -> bool {
        let cut = self.get(IMAGE_PINS);
        let block = |byte: u64| (byte >> self.layout.hugeblock_shift) as u32;
        inode.pins(self) != 0
            && self.pins_of(inode.id).any(|pin| {
                let last = pin.end(self).saturating_sub(1).max(pin.offset(self));
                pin.epoch(self) <= cut && block(pin.offset(self)) < end && block(last) >= first
            })
    }

    /// Recalls the leases of the slots from `next` on. Voids, for the image, the checksums of
    /// blocks that writes in flight may still change. Returns true when all slots are done, false
    /// when the transaction has no room for more.
    fn quiesce(&mut self, next: &mut u32) -> Result<bool> {
        while *next < self.records_end(SlabKind::Slot) {
            if !self.has_room() {
                return Ok(false);
            }
            if let Ok(slot) = self.slot_numbered(*next) {
                for index in 0..PINS_PER_SLOT {
                    let pin = Pin { at: slot.pin_at(index) };
                    if pin.flags(self) & PIN_LEASED != 0 {
                        self.recalled_inode(InodeId(pin.inode(self)))?;
                    }
                    self.void_pinned(pin);
                }
            }
            *next += 1;
        }
        Ok(true)
    }

    /// Voids the checksums of blocks that the write behind a pin may still store into. Also voids
    /// that of the file's last block if appends behind its end wait for the write: their bytes are
    /// in that block, and in its checksum.
    fn void_pinned(&mut self, pin: Pin) {
        if pin.flags(self) & (PIN_ACTIVE | PIN_WAITS) == 0 {
            return;
        }
        let Ok(inode) = self.inode(InodeId(pin.inode(self))) else { return };
        let size = inode.size(self);
        if inode.appended_end(self) > size && size & (self.layout.hugeblock_bytes - 1) != 0 {
            let last = (size >> self.layout.hugeblock_shift) as u32;
            if let Stretch::Data(found) = self.stretch(inode.map(self), last) {
                self.note_stale(inode, BlockRun { count: 1, ..found });
            }
        }
        for index in 0..RUNS_MAX {
            let run = pin.runs(self).nth(index).filter(|_| pin.is_active(self));
            let Some(run) = run else { break };
            if !run.fresh && self.is_used(run.blocks.tier, run.blocks.first) {
                self.note_stale(inode, run.blocks);
            }
        }
    }
}

impl Microfs {
    /// Makes a cut: from now on the namespace holds an image of its state at this moment. Returns
    /// the image's number.
    ///
    /// Errors: `Busy` if the namespace holds an image, or the memory of one that was given up;
    /// `NoSpace`; `NotSupported` where no image can be held.
    pub fn begin_image(&self) -> Result<u64> {
        self.begin_image_together(&Rendezvous::new(1))
    }

    /// Does the same for several namespaces at once, each in a thread of its own. If a call is in
    /// one image, the calls it depends on are in the others. Errors: as `begin_image`; `Busy` if
    /// another namespace failed: whoever did begin an image then ends it.
    pub fn begin_image_together(&self, rendezvous: &Rendezvous) -> Result<u64> {
        self.begin(rendezvous).inspect_err(|_| rendezvous.fail())
    }

    fn begin(&self, rendezvous: &Rendezvous) -> Result<u64> {
        // Older builds would take the record of a block that replaces another one for the end of
        // the log.
        if self.durable.as_ref().is_some_and(|durable| !durable.superblock.holds_replaced()) {
            return Err(Error::NotSupported);
        }
        let words = self.memory().words();
        let number = words[IMAGE_COUNT].load(Ordering::Relaxed).wrapping_add(1);
        let shadow = Shadow::of(self.memory()).ok_or(Error::NotSupported)?;
        shadow.back(self.memory(), &self.local().shadow, number)?;
        self.transact_unlogged(|tx| {
            if self.image() != ImageState::None || tx.get(IMAGE_COUNT).wrapping_add(1) != number {
                return Err(Error::Busy);
            }
            let mut next = 1;
            while !tx.quiesce(&mut next)? {
                tx.commit_and_go_on()?;
            }
            tx.commit_and_go_on()?;
            let epoch = tx.next_pin_epoch();
            tx.set(IMAGE_PINS, epoch);
            tx.set(IMAGE_COUNT, number);
            tx.set(IMAGE, number);
            shadow.begin(number);
            match rendezvous.meet() {
                true => Ok(number),
                false => Err(Error::Busy),
            }
        })
    }

    /// Returns whether the namespace holds an image. Takes no lock.
    pub fn image(&self) -> ImageState {
        let words = self.memory().words();
        match words[IMAGE].load(Ordering::Acquire) {
            0 => match words[IMAGE_LOST].load(Ordering::Acquire) {
                0 => ImageState::None,
                lost => ImageState::Lost(lost >> LOSS_BITS, loss(lost)),
            },
            number => ImageState::Held(number),
        }
    }

    /// Checks in the view of an image that the image is still held. If so, all that was read from
    /// the view, blocks included, is as it was at the cut. Errors: `ImageLost`.
    pub fn require_image(&self) -> Result<()> {
        self.transact_unlogged(|_| Ok(()))
    }

    /// Whether the bytes of the image change no more: no write that was planned before the cut is
    /// still in flight. Errors: `ImageLost` if no image is held.
    pub fn image_is_settled(&self) -> Result<bool> {
        self.transact_unlogged(|tx| match tx.image {
            None => Err(Error::ImageLost),
            Some(_) => Ok(!tx.pinned_since(tx.get(IMAGE_PINS))),
        })
    }

    /// Ends the image that the namespace holds, or that was given up, and frees its memory. Does
    /// nothing if there is none. For the holder of the image or, if that died, for its successor:
    /// nobody else may look at the image or begin one.
    pub fn end_image(&self) -> Result<()> {
        if self.image() == ImageState::None {
            return Ok(());
        }
        self.transact_unlogged(|tx| {
            let held = tx.get(IMAGE);
            if held != 0 {
                // The memory is not freed yet: if this process dies here, its successor frees it.
                tx.set(IMAGE_LOST, held << LOSS_BITS | ImageLoss::Wanted as u64);
                tx.set(IMAGE, 0);
            }
            Ok(())
        })?;
        if let Some(shadow) = Shadow::of(self.memory()) {
            self.memory().clear_shadow(shadow.words_kept());
        }
        self.transact_unlogged(|tx| {
            tx.set(IMAGE_LOST, 0);
            Ok(())
        })
    }

    /// Forgets, in a forked child, where the parent has mapped the shadow: the child has no such
    /// mapping.
    pub fn forked(&self) {
        self.local().shadow.forget();
    }

    /// Gives up the image that is held, if there is one. Its memory stays until
    /// [`Microfs::end_image`].
    pub fn give_up_image(&self, why: ImageLoss) -> Result<()> {
        self.transact_unlogged(|tx| {
            if let Some(Held { number, .. }) = tx.image {
                tx.lose_image(number, why);
            }
            Ok(())
        })
    }

    /// Gives up the image if the work for it failed for lack of records. Returns true if so: the
    /// call may then be repeated without the image.
    pub(crate) fn goes_on_without_image<T>(&self, image: u64, done: &Result<T>) -> bool {
        let fails = image != 0 && done.as_ref().err() == Some(&Error::NoInodes);
        fails && self.give_up_image(ImageLoss::NoRecords).is_ok()
    }

    /// Gives up the image because a program needs its blocks. Returns false if none is held, or if
    /// that gives no room to a write that `grows` its file: then the program waits for other room,
    /// and the image for the end of its copy.
    pub(crate) fn give_image_up_for_room(&self, grows: bool) -> Result<bool> {
        match self.image() {
            // Bytes that the image has could be overwritten in place without it.
            ImageState::Held(_) if grows && self.image_blocks_held()? == 0 => Ok(false),
            ImageState::Held(_) => self.transact_unlogged(|tx| {
                let held = tx.image.as_ref().map(|held| held.number);
                held.into_iter().for_each(|number| tx.lose_image(number, ImageLoss::NoSpace));
                Ok(held.is_some())
            }),
            _ => Ok(false),
        }
    }

    /// Whether the image may lack the bytes that a file had at the cut: programs could store to it
    /// through a mapping at the cut or since, or it was mapped and was written to. Ask after the
    /// bytes were copied. Errors: `ImageLost`; `NotFound`.
    pub fn image_may_lack(&self, inode: InodeId) -> Result<bool> {
        self.transact_unlogged(|tx| {
            if tx.image.is_none() {
                return Err(Error::ImageLost);
            }
            let at = tx.find_record(SlabKind::Inode, inode.0).ok_or(Error::NotFound)?;
            Ok(tx.has_flag_at_cut(at, MAPPED_TO_STORE | CHANGED_LATER))
        })
    }

    /// Returns the number of free blocks that cannot be allocated because they are in the image.
    pub fn image_blocks_held(&self) -> Result<u64> {
        const BATCH_WORDS: usize = 8 << 10;
        let mut held = 0;
        for region in self.layout().tiers {
            let words = (region.blocks as usize).div_ceil(64);
            for first in (0..words).step_by(BATCH_WORDS) {
                held += self.transact_unlogged(|tx| {
                    let batch = first..words.min(first + BATCH_WORDS);
                    let count = |word: usize| {
                        let at = region.used + word;
                        (tx.word_at_cut(at) & !tx.get(at)).count_ones()
                    };
                    Ok(batch.map(count).map(u64::from).sum::<u64>())
                })?;
            }
        }
        Ok(held)
    }

    /// Returns a count of the events that order stores to mapped files: calls that make bytes of
    /// files durable, and ends of mappings. While an image is held it also counts closes of
    /// descriptions that were written to, renames, and writes to bytes of mapped files that the
    /// image was to keep. If the count after the copy of a mapped file differs from that before the
    /// cut, the copy may hold bytes that are newer than something the image lacks. Takes no lock.
    pub fn barriers(&self) -> Barriers {
        self.memory().words()[IMAGE_BARRIERS].load(Ordering::Acquire).wrapping_add(self.syncs())
    }

    /// Returns the count of durability calls and ends of mappings alone. Takes no lock.
    pub fn syncs(&self) -> u64 {
        self.memory().words()[SYNCS].load(Ordering::Acquire)
    }

    /// Counts a call that made bytes durable, or the end of a mapping. Takes no lock.
    pub fn note_barrier(&self) {
        self.memory().words()[SYNCS].fetch_add(1, Ordering::AcqRel);
    }
}

fn loss(word: u64) -> ImageLoss {
    match word & ((1 << LOSS_BITS) - 1) {
        2 => ImageLoss::TooManyPages,
        3 => ImageLoss::NoRecords,
        4 => ImageLoss::Awaited,
        5 => ImageLoss::Wanted,
        _ => ImageLoss::NoSpace,
    }
}
