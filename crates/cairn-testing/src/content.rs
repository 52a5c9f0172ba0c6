//! Content of one file of the reference model, with its undecided bytes.
//!
//! A write happens between its plan and its commit. Meanwhile a reader may see old or new bytes.
//! Where two such writes overlap, the bytes of either may stay. The same holds if one of them is
//! never committed. So a byte has either one value or a set of possible values. A read with no
//! write in flight decides which one it is.
//!
//! Invariant: bytes at or past the size are zero, except those of writes in flight.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

const CHUNK_BYTES: u64 = 256;

/// Identity of a write in flight.
pub type WriteId = u64;

#[derive(Clone, Debug)]
struct InFlight {
    offset: u64,
    bytes: Vec<u8>,
    append: bool,
    /// Offsets that another write has covered since this one was planned.
    contested: BTreeSet<u64>,
}

impl InFlight {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

/// Calls `visit` for each chunk that `length` bytes from `offset` touch. Its arguments are the
/// number of the chunk, the byte range inside the chunk, and the byte range relative to `offset`.
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

/// Content of a file.
#[derive(Clone, Debug, Default)]
pub struct Content {
    size: u64,
    chunks: BTreeMap<u64, [u8; CHUNK_BYTES as usize]>,
    doubts: BTreeMap<u64, BTreeSet<u8>>,
    in_flight: BTreeMap<WriteId, InFlight>,
    /// End of the furthest committed append. It may be past the size while an earlier append is in
    /// flight.
    appended_end: u64,
}

impl Content {
    /// Length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether any write is between plan and commit.
    pub fn is_busy(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Whether an append may be placed at `offset`: at the end of the file, or past it while writes
    /// are in flight.
    pub fn may_append_at(&self, offset: u64) -> bool {
        let appends = self.in_flight.values().filter(|write| write.append);
        let end = appends.map(InFlight::end).fold(self.size.max(self.appended_end), u64::max);
        if self.is_busy() { offset >= end } else { offset == end }
    }

    /// Number of bytes that a read of `length` bytes at `offset` returns.
    pub fn readable(&self, offset: u64, length: u64) -> u64 {
        self.size.saturating_sub(offset).min(length)
    }

    /// Whether the file may hold `seen` at `offset`. Undecided bytes take the value seen, unless a
    /// write in flight covers them.
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

    /// Whether every byte is decided.
    pub fn is_certain(&self) -> bool {
        self.doubts.is_empty()
    }

    /// Returns `length` bytes from `offset`. An undecided byte has its last certain value.
    pub fn certain(&self, offset: u64, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        for_chunks(offset, length, |chunk, inside, part| {
            if let Some(found) = self.chunks.get(&chunk) {
                bytes[part].copy_from_slice(&found[inside]);
            }
        });
        bytes
    }

    /// Returns the first byte of `seen` that the file cannot hold: its offset, the value seen and
    /// the possible values.
    pub fn first_difference(&self, offset: u64, seen: &[u8]) -> Option<(u64, u8, Vec<u8>)> {
        let possible = |at: u64| match self.doubts.get(&at) {
            Some(doubt) => doubt.iter().copied().collect(),
            None => vec![self.byte(at)],
        };
        let mut differing = (offset..).zip(seen).map(|(at, &value)| (at, value, possible(at)));
        differing.find(|(_, value, possible)| !possible.contains(value))
    }

    /// Returns the runs of chunks that may hold data, as offsets and lengths in bytes.
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

    /// Writes `bytes` atomically: plan and commit in one step.
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

    /// Plans a write of `bytes` at `offset`. A reader may see any of them from here on.
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

    /// Commits the first `length` bytes of a write. The rest, if any, stays in flight.
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

    /// Ends a write that was given up or whose writer died. None of its bytes is visible past the
    /// end of the file.
    pub fn abort(&mut self, id: WriteId) {
        self.in_flight.remove(&id);
        self.show_appended();
        self.clear_past_end();
    }

    /// Sets the length in bytes. Bytes that are cut off read as zeros if the file grows again.
    pub fn truncate(&mut self, size: u64) {
        if size < self.size.max(self.appended_end) {
            self.clear_from(size);
        }
        self.appended_end = self.appended_end.min(size);
        self.size = size;
    }

    /// Returns the last certain value of the byte at `at`.
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

    /// Makes the contiguous prefix of the appends visible: up to the first append still in flight.
    fn show_appended(&mut self) {
        let pending = self.in_flight.values().filter(|write| write.append);
        let first = pending.map(|write| write.offset).fold(u64::MAX, u64::min);
        self.size = self.size.max(self.appended_end.min(first));
    }

    /// Clears the bytes past the end of the file if no write is in flight.
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
        // A write in flight may still move its bytes to their place past the new end.
        for write in self.in_flight.values() {
            for (at, &value) in (write.offset..).zip(&write.bytes).filter(|(at, _)| *at >= size) {
                self.doubts.entry(at).or_insert_with(|| BTreeSet::from([0])).insert(value);
            }
        }
    }
}
