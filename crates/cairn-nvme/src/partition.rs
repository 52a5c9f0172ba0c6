//! Partitions of a namespace, one for each store: equal and in order, as the balancer plans them.
//!
//! Invariant: partitions of the same count do not overlap. None reaches the last page of the
//! namespace, because callers pass a capacity without it.

use core::num::NonZeroU32;

/// Partitions begin and end at multiples of this, bytes.
pub const PARTITION_ALIGNMENT_BYTES: u64 = 1 << 20;

/// Part of a device, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// First byte.
    pub offset: u64,
    /// Size.
    pub length: u64,
}

/// Returns the partition of process `index` out of `count`.
pub fn partition(capacity_bytes: u64, index: u64, count: u64) -> Partition {
    let length = capacity_bytes / count / PARTITION_ALIGNMENT_BYTES * PARTITION_ALIGNMENT_BYTES;
    Partition { offset: index * length, length }
}

/// One of several equal parts. As text, `2/8` is the second of eight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    index: u32,
    count: NonZeroU32,
}

impl Part {
    /// Part `index`, counted from 0, of `count`. `None`: there are not so many.
    pub fn new(index: u32, count: u32) -> Option<Part> {
        NonZeroU32::new(count).filter(|_| index < count).map(|count| Part { index, count })
    }

    /// Reads text such as `2/8`.
    pub fn parse(text: &str) -> Option<Part> {
        let (number, count) = text.split_once('/')?;
        Part::new(number.parse::<u32>().ok()?.checked_sub(1)?, count.parse().ok()?)
    }

    /// Number of parts.
    pub fn count(self) -> u32 {
        self.count.get()
    }

    /// Range of this part in `capacity_bytes`.
    pub fn of(self, capacity_bytes: u64) -> Partition {
        partition(capacity_bytes, self.index.into(), self.count().into())
    }
}

impl core::fmt::Display for Part {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(formatter, "{}/{}", self.index + 1, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_as_they_are_shown_and_do_not_overlap() {
        let capacity = (64 << 20) - 4096;
        for (text, offset) in [("1/3", 0), ("2/3", 21 << 20), ("3/3", 42 << 20)] {
            let part = Part::parse(text).unwrap();
            assert_eq!(part.to_string(), text);
            assert_eq!(part.of(capacity), Partition { offset, length: 21 << 20 });
        }
        for text in ["0/3", "4/3", "1/0", "1", "", "a/b", "1/"] {
            assert_eq!(Part::parse(text), None, "{text}");
        }
    }
}
