//! Streams: where the next blocks for each open description of a process come from.
//!
//! A log record covers consecutive blocks, and so does a mapping of the kernel. So bytes written
//! through one description should get consecutive blocks, whatever is written in between through
//! others. All descriptions take their first blocks from the stretch that the process shares
//! (pool.rs); small files stay there. A description that finds others' blocks behind its own gets a
//! stretch for itself, as long as its file is: on a durable tier an unbroken one, in memory what
//! the process has at hand. Like the runs of a slot's ring, what is set apart is a hint: it is
//! free, and others take it when nothing else is left. Two descriptions may map to the same place;
//! the second one goes without a stream.

use crate::engine::fields::fields;
use crate::engine::inode::Inode;
use crate::engine::run::BlockRun;
use crate::engine::slot::{STREAMS_PER_SLOT, Slot};
use crate::engine::transaction::Transaction;
use crate::format::layout::TierRegion;
use crate::format::types::HandleId;
use crate::space::pool::STRETCH_BLOCKS;

/// Shortest stretch in memory, where a stretch costs a mapping but no record.
const STRETCH_BLOCKS_IN_MEMORY: u32 = 32;

/// Largest share of the free blocks in memory for one description: one part in this many.
const SHARE_IN_MEMORY: u64 = 16;

/// Place where one description goes on.
#[derive(Clone, Copy)]
struct Stream {
    at: usize,
}

fields!(Stream {
    // 0: not in use.
    handle, set_handle: word 0;
    // Run that is set apart. If it is empty, it begins behind the block that was taken last.
    packed_rest, set_packed_rest: word 1;
});

impl Stream {
    fn rest(self, tx: &Transaction) -> BlockRun {
        BlockRun::unpack(self.packed_rest(tx))
    }
}

impl Slot {
    fn streams(self) -> impl Iterator<Item = Stream> {
        (0..STREAMS_PER_SLOT).map(move |index| Stream { at: self.stream_at(index) })
    }

    fn place_of(self, handle: HandleId) -> Stream {
        Stream { at: self.stream_at(handle.number() as usize % STREAMS_PER_SLOT) }
    }

    /// Returns the stream of `handle`; `None` while another description has its place.
    fn stream(self, tx: &mut Transaction, handle: HandleId) -> Option<Stream> {
        let stream = self.place_of(handle);
        if stream.handle(tx) == 0 {
            stream.set_handle(tx, u64::from(handle.0));
            stream.set_packed_rest(tx, 0);
        }
        (stream.handle(tx) == u64::from(handle.0)).then_some(stream)
    }

    /// Ends the stream of `handle`, to which the process does not refer any more. Other
    /// descriptions of the process may have what was set apart.
    pub(crate) fn end_stream(self, tx: &mut Transaction, handle: HandleId) {
        let stream = self.place_of(handle);
        if stream.handle(tx) != u64::from(handle.0) {
            return;
        }
        let rest = stream.rest(tx);
        stream.set_handle(tx, 0);
        if rest.count > 0 {
            self.push_warm(tx, rest);
        }
    }
}

impl Transaction<'_> {
    /// Takes up to `wanted` consecutive free blocks for a write of `inode` through `handle`.
    pub(crate) fn allocate_in_stream(
        &mut self,
        slot: Slot,
        handle: HandleId,
        inode: Inode,
        wanted: u32,
    ) -> Option<BlockRun> {
        if !self.layout.durable && inode.held(self) == 0 {
            // Most files have one block, and should pay nothing.
            return self.allocate_shared(slot, wanted);
        }
        let Some(stream) = slot.stream(self, handle) else {
            return self.allocate_shared(slot, wanted);
        };
        let rest = stream.rest(self);
        if let Some(found) = self.free_part(rest, wanted) {
            self.take_part(stream, rest, found);
            return Some(found);
        }
        let is_first = stream.packed_rest(self) == 0;
        let goes_on = |run: BlockRun| (run.tier, run.first) == (rest.tier, rest.first);
        if is_first || rest.count == 0 && slot.newest_warm(self).is_some_and(goes_on) {
            let found = self.allocate_shared(slot, wanted)?;
            self.continue_behind(stream, found, 0);
            return Some(found);
        }
        let stretch = self.stretch_for(slot, inode, wanted)?;
        let found = BlockRun { count: stretch.count.min(wanted), ..stretch };
        self.take_part(stream, stretch, found);
        Some(found)
    }

    /// Uses `part` of what is set apart, and keeps what follows it there set apart.
    fn take_part(&mut self, stream: Stream, whole: BlockRun, part: BlockRun) {
        self.mark_used(part);
        self.continue_behind(stream, part, whole.end().saturating_sub(part.end()));
    }

    fn continue_behind(&mut self, stream: Stream, taken: BlockRun, count: u32) {
        let rest = BlockRun { first: taken.end(), count, ..taken };
        stream.set_packed_rest(self, rest.pack());
    }

    /// Returns a stretch for one file: as long as the file, within the bounds for stretches, and a
    /// multiple of the write.
    fn stretch_for(&mut self, slot: Slot, inode: Inode, wanted: u32) -> Option<BlockRun> {
        let held = inode.held(self);
        if !self.layout.durable {
            let room = |region: &TierRegion| {
                u64::from(region.blocks).saturating_sub(self.get(region.counters))
            };
            let room: u64 = self.layout.tiers.iter().map(room).sum();
            // No more than a process takes at a time, so that untouched blocks are touched only for
            // what is written.
            let longest = (room / SHARE_IN_MEMORY).min(u64::from(STRETCH_BLOCKS)) as u32;
            let length = held.min(longest).max(STRETCH_BLOCKS_IN_MEMORY).max(wanted);
            return self.find_shared(slot, length);
        }
        (0..).zip(self.layout.tiers).find_map(|(tier, region)| {
            if self.is_full(&region) {
                return None;
            }
            let longest = self.stretch_blocks(&region);
            let length = held.clamp(STRETCH_BLOCKS, longest).next_multiple_of(wanted);
            self.next_stretch(tier, length)
        })
    }

    /// Returns the number of blocks that are set apart for single descriptions.
    pub(crate) fn blocks_in_streams(&self) -> u32 {
        let streams = self.slots().flat_map(Slot::streams);
        streams.fold(0, |sum: u32, stream| sum.saturating_add(stream.rest(self).count))
    }
}
