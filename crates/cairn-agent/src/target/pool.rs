//! Memory for data on their way: so much in all, whatever hosts do, and used again and again.
//!
//! Must stay true: the buffers that are out and those that are kept for the next one never have more than the bound together.
//! What a buffer holds is old; who takes one uses only what it has put there. Each begins where what goes past the page cache may.

use crate::direct::Aligned;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Size of the smallest buffer, as a power of two.
const CLASS_SHIFT_MIN: u32 = 12;
/// Sizes of buffers: each is twice the one before.
const CLASSES: usize = 20;

/// The memory of one loop.
#[derive(Debug)]
pub(super) struct Pool {
    /// What may still be allocated.
    free_bytes: usize,
    spare: [Vec<Buffer>; CLASSES],
}

/// Some of it; empty for who needs none.
#[derive(Default)]
pub(super) struct Buffer {
    bytes: Aligned,
    is_beside: bool,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} bytes", self.len())
    }
}

impl Pool {
    pub(super) fn new(bytes_max: usize) -> Pool {
        Pool { free_bytes: bytes_max, spare: Default::default() }
    }

    /// A buffer of at least so many bytes; none until others are given back.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Buffer> {
        if bytes == 0 {
            return Some(Buffer::default());
        }
        let class = class_of(bytes).filter(|&class| class < CLASSES)?;
        if let Some(buffer) = self.spare[class].pop() {
            return Some(buffer);
        }
        let size = 1 << (CLASS_SHIFT_MIN as usize + class);
        while self.free_bytes < size {
            let other = self.spare.iter_mut().rev().find_map(Vec::pop)?;
            self.free_bytes += other.len();
        }
        self.free_bytes -= size;
        let mut buffer = Buffer::default();
        buffer.bytes.grow(size);
        Some(buffer)
    }

    /// A buffer beside the bound, of which who takes it keeps count.
    pub(super) fn beside(bytes: usize) -> Buffer {
        let mut buffer = Buffer { bytes: Aligned::default(), is_beside: true };
        buffer.bytes.grow(bytes);
        buffer
    }

    /// How much nobody has.
    pub(super) fn unused_bytes(&self) -> usize {
        self.free_bytes + self.spare.iter().flatten().map(|buffer| buffer.len()).sum::<usize>()
    }

    /// Takes one back.
    pub(super) fn give(&mut self, buffer: Buffer) {
        if !buffer.is_empty() && !buffer.is_beside {
            let class = class_of(buffer.len()).expect("it was taken from here");
            self.spare[class].push(buffer);
        }
    }
}

/// The index of the smallest size that is enough.
fn class_of(bytes: usize) -> Option<usize> {
    let shift = bytes.checked_next_power_of_two()?.trailing_zeros();
    Some(shift.saturating_sub(CLASS_SHIFT_MIN) as usize)
}

impl Buffer {
    /// How much of it is beside the bound.
    pub(super) fn beside_bytes(&self) -> usize {
        if self.is_beside { self.len() } else { 0 }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_as_large_as_asked_for_and_used_again() {
        let mut pool = Pool::new(1 << 20);
        let buffer = pool.take(5000).expect("there is room");
        assert_eq!(buffer.len(), 8192);
        let place = buffer.as_ptr();
        pool.give(buffer);
        assert_eq!(pool.take(8192).expect("there is room").as_ptr(), place);
        assert!(pool.take(0).expect("nothing is always there").is_empty());
    }

    #[test]
    fn no_more_than_the_bound_is_out_and_what_is_spare_makes_room() {
        let mut pool = Pool::new(64 << 10);
        let small: Vec<_> = (0..16).map(|_| pool.take(4096).expect("there is room")).collect();
        assert!(pool.take(1).is_none());
        small.into_iter().for_each(|buffer| pool.give(buffer));
        let large = pool.take(64 << 10).expect("the spare ones make room");
        assert!(pool.take(1).is_none());
        pool.give(large);
        assert!(pool.take(128 << 10).is_none() && pool.take(usize::MAX).is_none());
        assert!(pool.take(4096).is_some());
        pool.give(Pool::beside(4096));
        assert_eq!(pool.unused_bytes(), 60 << 10, "what is beside the bound stays beside it");
    }
}
