//! The bytes of one file of the reference model, and what is not certain about them.
//!
//! A write happens between its plan and its commit. Meanwhile a reader may see old or new bytes;
//! where two such writes overlap, or one of them is never committed, either's bytes may stay. So a
//! byte has one value, or a set of values it may have until it is read once with no write in
//! flight.
//!
//! Must stay true: bytes at or past the size are zero, but for those of writes in flight.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

const CHUNK_BYTES: u64 = 256;

/// Names a write in flight.
pub type WriteId = u64;

#[derive(Clone, Debug)]
struct InFlight {
    offset: u64,
    bytes: Vec<u8>,
    append: bool,
    /// Offsets that another write wrote to since this one was planned.
    contested: BTreeSet<u64>,
}

impl InFlight {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

/// Calls `visit` with each chunk that `length` bytes from `offset` touch, which of its bytes these
/// are, and where they stand in the range.
fn for_chunks(offset: u64, length: u64, mut visit: impl FnMut(u64, Range<usize>, Range<usize>)) {
    let mut done = 0;
    while done < length {
        let inside = (offset + done) % CHUNK_BYTES;
        let count = (CHUNK_BYTES - inside).min(length - done);
        let part = done as usize..(done + count) as usize;
        visit((offset + done) / CHUNK_BYTES, inside as usize..(inside + count) as usize, part);
        done += count;
    }
}

/// Bytes of a file.
#[derive(Clone, Debug, Default)]
pub struct Content {
    size: u64,
    chunks: BTreeMap<u64, [u8; CHUNK_BYTES as usize]>,
    doubts: BTreeMap<u64, BTreeSet<u8>>,
    in_flight: BTreeMap<WriteId, InFlight>,
    /// End of the furthest append that was committed: it may be past the size while an earlier one
    /// is in flight.
    appended_end: u64,
}

impl Content {
    /// Length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether some write is between plan and commit.
    pub fn is_busy(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Whether an append may be placed at `offset`: at the end, past what is in flight.
    pub fn may_append_at(&self, offset: u64) -> bool {
        let appends = self.in_flight.values().filter(|write| write.append);
        let end = appends.map(InFlight::end).fold(self.size.max(self.appended_end), u64::max);
        if self.is_busy() { offset >= end } else { offset == end }
    }

    /// Number of bytes a read of `length` at `offset` gives.
    pub fn readable(&self, offset: u64, length: u64) -> u64 {
        self.size.saturating_sub(offset).min(length)
    }

    /// Whether the file may hold `seen` at `offset`. What was in doubt is certain from now on.
    pub fn admits(&mut self, offset: u64, seen: &[u8]) -> bool {
        let mut expected = self.certain(offset, seen.len() as u64);
        let mut decided = Vec::new();
        for (&at, doubt) in self.doubts.range(offset..offset + seen.len() as u64) {
            let index = (at - offset) as usize;
            if doubt.contains(&seen[index]) {
                expected[index] = seen[index];
                decided.push((at, seen[index]));
            }
        }
        for (at, value) in decided {
            if !self.covered(at) {
                self.settle(at, value);
            }
        }
        expected == seen
    }

    /// The bytes from `offset` on, as far as they are certain.
    pub fn certain(&self, offset: u64, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        for_chunks(offset, length, |chunk, inside, part| {
            if let Some(found) = self.chunks.get(&chunk) {
                bytes[part].copy_from_slice(&found[inside]);
            }
        });
        bytes
    }

    /// The first byte of `seen` that the file cannot have: its offset, the value seen and what is
    /// possible.
    pub fn first_difference(&self, offset: u64, seen: &[u8]) -> Option<(u64, u8, Vec<u8>)> {
        let possible = |at: u64| match self.doubts.get(&at) {
            Some(doubt) => doubt.iter().copied().collect(),
            None => vec![self.byte(at)],
        };
        let mut differing = (offset..).zip(seen).map(|(at, &value)| (at, value, possible(at)));
        differing.find(|(_, value, possible)| !possible.contains(value))
    }

    /// Where the file has chunks that may hold something, as offsets and lengths.
    pub fn data_ranges(&self) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for chunk in self.chunks.keys().filter(|&&chunk| chunk * CHUNK_BYTES < self.size) {
            let start = chunk * CHUNK_BYTES;
            match ranges.last_mut() {
                Some((from, length)) if *from + *length == start => *length += CHUNK_BYTES,
                _ => ranges.push((start, CHUNK_BYTES)),
            }
        }
        ranges
    }

    /// A write that nothing can come between.
    pub fn write(&mut self, offset: u64, bytes: &[u8], append: bool) {
        if self.is_busy() {
            self.begin(WriteId::MAX, offset, bytes, append);
            return self.commit(WriteId::MAX, bytes.len() as u64);
        }
        let end = offset + bytes.len() as u64;
        self.doubts.retain(|at, _| !(offset..end).contains(at));
        for_chunks(offset, bytes.len() as u64, |chunk, inside, part| {
            let chunk = self.chunks.entry(chunk).or_insert([0; CHUNK_BYTES as usize]);
            chunk[inside].copy_from_slice(&bytes[part]);
        });
        self.size = self.size.max(end);
        self.appended_end = self.size;
    }

    /// A write of `bytes` at `offset` is planned; some of them may be seen from now on.
    pub fn begin(&mut self, id: WriteId, offset: u64, bytes: &[u8], append: bool) {
        let range = offset..offset + bytes.len() as u64;
        let mut contested = BTreeSet::new();
        for other in self.in_flight.values_mut() {
            let overlap = range.start.max(other.offset)..range.end.min(other.end());
            contested.extend(overlap.clone());
            other.contested.extend(overlap);
        }
        for (at, &value) in range.zip(bytes) {
            let old = self.byte(at);
            self.doubts.entry(at).or_insert_with(|| BTreeSet::from([old])).insert(value);
        }
        self.in_flight.insert(id, InFlight { offset, bytes: bytes.to_vec(), append, contested });
    }

    /// The first `length` bytes of a write are part of the file; the rest, if any, is still in
    /// flight.
    pub fn commit(&mut self, id: WriteId, length: u64) {
        let Some(mut write) = self.in_flight.remove(&id) else { return };
        let end = write.offset + length;
        for (at, &value) in (write.offset..end).zip(&write.bytes) {
            if write.contested.contains(&at) {
                let old = self.byte(at);
                self.doubts.entry(at).or_insert_with(|| BTreeSet::from([old])).insert(value);
            } else {
                self.settle(at, value);
            }
        }
        let append = write.append;
        if length < write.bytes.len() as u64 {
            write.bytes.drain(..length as usize);
            write.offset = end;
            self.in_flight.insert(id, write);
        }
        if append {
            self.appended_end = self.appended_end.max(end);
            self.show_appended();
        } else {
            self.size = self.size.max(end);
        }
        self.clear_past_end();
    }

    /// A write was given up or its writer died: nothing of it is visible past the end of the file.
    pub fn abort(&mut self, id: WriteId) {
        self.in_flight.remove(&id);
        self.show_appended();
        self.clear_past_end();
    }

    /// Sets the length. What is cut off reads as zeros if the file grows again.
    pub fn truncate(&mut self, size: u64) {
        if size < self.size.max(self.appended_end) {
            self.clear_from(size);
        }
        self.appended_end = self.appended_end.min(size);
        self.size = size;
    }

    /// The byte at `at` as far as it is certain.
    fn byte(&self, at: u64) -> u8 {
        self.chunks.get(&(at / CHUNK_BYTES)).map_or(0, |chunk| chunk[(at % CHUNK_BYTES) as usize])
    }

    fn settle(&mut self, at: u64, value: u8) {
        self.doubts.remove(&at);
        if value != 0 || self.chunks.contains_key(&(at / CHUNK_BYTES)) {
            let chunk = self.chunks.entry(at / CHUNK_BYTES).or_insert([0; CHUNK_BYTES as usize]);
            chunk[(at % CHUNK_BYTES) as usize] = value;
        }
    }

    fn covered(&self, at: u64) -> bool {
        self.in_flight.values().any(|write| (write.offset..write.end()).contains(&at))
    }

    /// Appends become visible as a contiguous prefix: up to the first that is still in flight.
    fn show_appended(&mut self) {
        let pending = self.in_flight.values().filter(|write| write.append);
        let first = pending.map(|write| write.offset).fold(u64::MAX, u64::min);
        self.size = self.size.max(self.appended_end.min(first));
    }

    /// Nothing is left past the end of the file once no write is in flight.
    fn clear_past_end(&mut self) {
        if !self.is_busy() {
            self.clear_from(self.size);
        }
    }

    fn clear_from(&mut self, size: u64) {
        self.chunks.retain(|&chunk, _| chunk < size.div_ceil(CHUNK_BYTES));
        if let Some(chunk) = self.chunks.get_mut(&(size / CHUNK_BYTES)) {
            chunk[(size % CHUNK_BYTES) as usize..].fill(0);
        }
        self.doubts.retain(|&at, _| at < size);
        // What is in flight may still be moved, to where it belongs now.
        for write in self.in_flight.values() {
            for (at, &value) in (write.offset..).zip(&write.bytes).filter(|(at, _)| *at >= size) {
                self.doubts.entry(at).or_insert_with(|| BTreeSet::from([0])).insert(value);
            }
        }
    }
}
