//! Planted bugs. A fuzzer that does not find them within the runs that `scripts/fuzz.sh --canary`
//! gives it is broken.

use super::operations;
use crate::tier::{HeapTier, Tier};
use cairn_core::Result;
use std::sync::Arc;

/// The text that a record starts with.
const MAGIC: &[u8] = b"cairn";

/// A reader of records that trusts the length field. By chance alone a record would not be met in a
/// lifetime: only who sees how far the reader gets can find it.
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

/// A tier that loses the zeros behind what is written to a fresh block.
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

/// A store on that tier, which shows bytes that nobody wrote.
pub(super) fn store(input: &[u8]) {
    let world = operations::world(|geometry| Arc::new(Leaky(HeapTier::new(geometry))));
    operations::play(input, world);
}
