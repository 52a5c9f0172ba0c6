//! Planted bugs. A fuzzer that does not find them within the runs that `scripts/fuzz.sh --canary`
//! allows is broken.

use super::operations;
use crate::tier::{HeapTier, Tier};
use cairn_core::Result;
use std::sync::Arc;

/// First bytes of a record.
const MAGIC: &[u8] = b"cairn";

/// Reads a record and trusts its length field. Chance alone would not produce a record in a
/// lifetime. Only a fuzzer that observes how far the reader gets can find the bug.
pub(super) fn length(input: &[u8]) {
    let mut rest = input.iter();
    for expected in MAGIC {
        if rest.next() != Some(expected) {
            return;
        }
    }
    let (Some(b'1'), Some(&length)) = (rest.next(), rest.next()) else { return };
    let body = rest.as_slice();
    if length > 3 {
        let last = body[usize::from(length) - 1];
        std::hint::black_box(last);
    }
}

/// A tier that loses the zeros at the end of what is written to a fresh block.
struct Leaky(HeapTier);

impl Tier for Leaky {
    fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.0.read(offset, target)
    }

    fn write(&self, offset: u64, source: &[u8]) -> Result<()> {
        let zeros = source.iter().rev().take_while(|&&byte| byte == 0).count();
        self.0.write(offset, &source[..source.len() - zeros])
    }
}

/// Plays operations on that tier. The store then shows bytes that nobody wrote.
pub(super) fn store(input: &[u8]) {
    let world = operations::world(|geometry| Arc::new(Leaky(HeapTier::new(geometry))));
    operations::play(input, world);
}
