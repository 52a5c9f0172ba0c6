//! Memory for data on their way: a fixed amount, whatever hosts do, and reused.
//!
//! Invariant: buffers in use and spare buffers together never exceed the bound. A namespace leaves
//! as much memory unused as it has, so that others find some however long its disk keeps its
//! buffers. A buffer holds old bytes; its user reads only what it has written there. Buffers are
//! aligned for I/O past the page cache.

use cairn_platform::direct::Aligned;
use std::collections::HashMap;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Size of the smallest buffer, as a power of two.
const CLASS_SHIFT_MIN: u32 = 12;
/// Number of buffer sizes. Each is twice the previous one.
const CLASSES: usize = 20;

/// Memory of one event loop.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Number of bytes that may still be allocated.
    free_bytes: usize,
    spare: [Vec<Buffer>; CLASSES],
    /// Number of bytes that are not in use.
    unused_bytes: usize,
    /// Number of bytes that each namespace has, by its address.
    shares: HashMap<usize, usize>,
}

/// Reason for which there is no buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lack {
    /// No memory is left until buffers are given back.
    Memory,
    /// This namespace has used up its share.
    Share(usize),
}

/// A buffer; empty for users that need none.
#[derive(Default)]
pub(crate) struct Buffer {
    bytes: Aligned,
    is_beside: bool,
    /// Namespace that has the buffer while it is in use.
    namespace: Option<usize>,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} bytes", self.len())
    }
}

impl Pool {
    pub(crate) fn new(bytes_max: usize) -> Pool {
        let (free_bytes, unused_bytes) = (bytes_max, bytes_max);
        Pool { free_bytes, spare: Default::default(), unused_bytes, shares: HashMap::new() }
    }

    /// Takes a buffer of at least `bytes`, on account of `namespace`.
    pub(crate) fn take(&mut self, bytes: usize, namespace: Option<usize>) -> Result<Buffer, Lack> {
        if bytes == 0 {
            return Ok(Buffer::default());
        }
        let class = class_of(bytes).filter(|&class| class < CLASSES).ok_or(Lack::Memory)?;
        let size = 1 << (CLASS_SHIFT_MIN as usize + class);
        if let Some(namespace) = namespace {
            let share = self.shares.get(&namespace);
            if share.is_some_and(|share| share + 2 * size > self.unused_bytes) {
                return Err(Lack::Share(namespace));
            }
        }
        let mut buffer = self.find(class, size).ok_or(Lack::Memory)?;
        self.unused_bytes -= size;
        buffer.namespace = namespace;
        if let Some(namespace) = namespace {
            *self.shares.entry(namespace).or_default() += size;
        }
        Ok(buffer)
    }

    fn find(&mut self, class: usize, size: usize) -> Option<Buffer> {
        if let Some(buffer) = self.spare[class].pop() {
            return Some(buffer);
        }
        while self.free_bytes < size {
            let other = self.spare.iter_mut().rev().find_map(Vec::pop)?;
            self.free_bytes += other.len();
        }
        self.free_bytes -= size;
        let mut buffer = Buffer::default();
        buffer.bytes.grow(size);
        Some(buffer)
    }

    /// Allocates a buffer outside of the bound. The caller must limit these.
    pub(crate) fn beside(bytes: usize) -> Buffer {
        let mut buffer = Buffer { is_beside: true, ..Buffer::default() };
        buffer.bytes.grow(bytes);
        buffer
    }

    /// Number of bytes that are not in use.
    pub(crate) fn unused_bytes(&self) -> usize {
        self.unused_bytes
    }

    /// Takes a buffer back.
    pub(crate) fn give(&mut self, mut buffer: Buffer) {
        if buffer.is_empty() || buffer.is_beside {
            return;
        }
        self.unused_bytes += buffer.len();
        if let Some(namespace) = buffer.namespace.take() {
            let share = self.shares.entry(namespace).or_default();
            *share -= buffer.len();
            if *share == 0 {
                self.shares.remove(&namespace);
            }
        }
        let class = class_of(buffer.len()).expect("it was taken from here");
        self.spare[class].push(buffer);
    }
}

/// Index of the smallest size that is large enough.
fn class_of(bytes: usize) -> Option<usize> {
    let shift = bytes.checked_next_power_of_two()?.trailing_zeros();
    Some(shift.saturating_sub(CLASS_SHIFT_MIN) as usize)
}

impl Buffer {
    /// Number of its bytes outside of the bound.
    pub(crate) fn beside_bytes(&self) -> usize {
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
        let buffer = pool.take(5000, None).expect("there is room");
        assert_eq!(buffer.len(), 8192);
        let place = buffer.as_ptr();
        pool.give(buffer);
        assert_eq!(pool.take(8192, None).expect("there is room").as_ptr(), place);
        assert!(pool.take(0, None).expect("nothing is always there").is_empty());
    }

    #[test]
    fn no_more_than_the_bound_is_out_and_what_is_spare_makes_room() {
        let mut pool = Pool::new(64 << 10);
        let small: Vec<_> =
            (0..16).map(|_| pool.take(4096, None).expect("there is room")).collect();
        assert!(pool.take(1, None).is_err());
        small.into_iter().for_each(|buffer| pool.give(buffer));
        let large = pool.take(64 << 10, None).expect("the spare ones make room");
        assert!(pool.take(1, None).is_err());
        pool.give(large);
        assert!(pool.take(128 << 10, None).is_err() && pool.take(usize::MAX, None).is_err());
        assert!(pool.take(4096, None).is_ok());
        pool.give(Pool::beside(4096));
        assert_eq!(pool.unused_bytes(), 60 << 10, "what is beside the bound stays beside it");
    }

    #[test]
    fn namespace_leaves_as_much_as_it_has_and_each_gets_something() {
        let mut pool = Pool::new(64 << 10);
        let mut has = |namespace| {
            let mut buffers = Vec::new();
            while let Ok(buffer) = pool.take(4096, Some(namespace)) {
                buffers.push(buffer);
            }
            buffers
        };
        let [first, second, third] = [1, 2, 3].map(&mut has);
        assert_eq!([first.len(), second.len(), third.len()], [8, 4, 2]);
        assert_eq!(pool.take(4096, Some(1)).unwrap_err(), Lack::Share(1));
        assert_eq!(pool.take(16 << 10, Some(4)).unwrap_err(), Lack::Memory);
        let last = [4, 5].map(|namespace| pool.take(4096, Some(namespace)).expect("the last ones"));
        assert_eq!(pool.take(4096, Some(6)).unwrap_err(), Lack::Memory);
        let all = first.into_iter().chain(second).chain(third).chain(last);
        all.for_each(|buffer| pool.give(buffer));
        assert_eq!((pool.unused_bytes(), pool.shares.len()), (64 << 10, 0));
    }
}
