//! State of a mapped file after a power failure: exactly the lines that were written back. The test
//! machine has no persistent memory. The mapping of an ordinary file stands in for it, and each
//! line is copied to a shadow when it is written back.

use super::*;
use std::cell::RefCell;
use std::sync::Arc;

use cairn_core::Media;
use cairn_platform::checksum;

use crate::device::Device;
use crate::media::file::FileTier;
use crate::media::media_file::MediaFile;
use crate::media::media_file::tests::{FLUSHES, Place};

const PAGE: usize = MEDIA_BLOCK_BYTES;
const LINE: usize = 64;
const BYTES: usize = 1 << 20;

thread_local! {
    /// Durable bytes of the one file that this thread maps. `None`: its mappings are ordinary ones.
    static DURABLE: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// Whether this thread treats every mapping as persistent memory.
pub(super) fn pretends() -> bool {
    DURABLE.with_borrow(Option::is_some)
}

/// Copies the lines of a range that was written back to the durable bytes.
pub(super) fn note(mapping: &DaxMapping, offset: u64, length: usize) {
    DURABLE.with_borrow_mut(|durable| {
        let Some(durable) = durable else { return };
        let start = offset as usize / LINE * LINE;
        let end = (offset as usize + length).next_multiple_of(LINE);
        let lines = &mut durable[start..end];
        // SAFETY: the lines lie in the mapping, which ends with a page, and nobody else uses it.
        let source = unsafe { mapping.mapping.address().as_ptr().add(start) };
        // SAFETY: as above.
        unsafe { core::ptr::copy_nonoverlapping(source, lines.as_mut_ptr(), lines.len()) };
    });
}

/// A tier in persistent memory.
struct Persistent {
    tier: FileTier,
    _place: Place,
}

impl Persistent {
    fn new() -> Persistent {
        let place = Place::in_memory();
        drop(place.file(BYTES as u64));
        DURABLE.set(Some(vec![0; BYTES]));
        let file = MediaFile::open(&place.tier()).unwrap().mapped().unwrap();
        assert_eq!(file.is_synchronous(), Some(true));
        let tier = FileTier::new(Arc::new(file), 0, BYTES as u64).unwrap();
        Persistent { tier, _place: place }
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: the slice is readable and not part of the device.
        unsafe { self.tier.write(offset as u64, bytes.as_ptr(), bytes.len()) }.unwrap();
    }

    /// Returns the bytes that reads see.
    fn live(&self) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        // SAFETY: the vector is writable and used here only.
        unsafe { self.tier.read(0, bytes.as_mut_ptr(), BYTES) }.unwrap();
        bytes
    }

    fn durable(&self) -> Vec<u8> {
        DURABLE.with_borrow(|durable| durable.clone().unwrap())
    }
}

impl Drop for Persistent {
    fn drop(&mut self) {
        DURABLE.set(None);
    }
}

fn sample(length: usize, salt: usize) -> Vec<u8> {
    (0..length).map(|at| ((at ^ salt).wrapping_mul(2_654_435_761) >> 11) as u8 | 1).collect()
}

#[test]
fn power_fails_then_everything_is_there_whose_store_had_returned() {
    let memory = Persistent::new();
    for (salt, length) in [1, 63, 64, 65, 1000, PAGE, 3 * PAGE + 5, 100_000].into_iter().enumerate()
    {
        for start in [0, 1, LINE - 1, PAGE - 1, 5 * PAGE + 33] {
            memory.write(start, &sample(length, salt + start));
            assert!(memory.durable() == memory.live(), "{length} bytes at {start}");
            memory.tier.zero((start + length / 3) as u64, length / 2).unwrap();
            assert!(memory.durable() == memory.live(), "zeros in {length} bytes at {start}");
        }
    }
    let bytes = sample(PAGE + 5, 7);
    // SAFETY: the vector is readable and not part of the device.
    unsafe { memory.tier.write_mapped(40_000, bytes.as_ptr(), bytes.len()) }.unwrap();
    assert!(memory.durable() == memory.live(), "written while programs may store there");
    memory.tier.zero_mapped(41_000, 700).unwrap();
    assert!(memory.durable() == memory.live(), "zeros while programs may store there");
    let (block, count) = (32 << 10, 20);
    let blocks = sample(block * count, 9);
    // SAFETY: the vector is readable and not part of the device.
    unsafe { memory.tier.write_blocks(0, blocks.as_ptr(), block, count, &mut |_| Ok(())) }.unwrap();
    assert!(memory.durable() == memory.live());
    memory.tier.file().write(7 * PAGE as u64, &sample(2 * PAGE, 3)).unwrap();
    assert!(memory.durable() == memory.live());
    memory.tier.flush().unwrap();
}

/// Mechanism: a program maps a file and stores to it. In persistent memory a flush had nothing to
/// do, because every store through a call was already written back.
///
/// Consequence: after a power failure, stores from before the return of fsync were lost.
///
/// Fix: where programs may store to a file through mappings, fsync has the kernel flush the tier.
#[test]
fn flush_of_the_tier_is_the_kernels_too_and_that_of_metadata_is_not() {
    let memory = Persistent::new();
    let flushes = || FLUSHES.get();
    let before = flushes();
    memory.write(0, &sample(PAGE, 1));
    memory.tier.file().flush().unwrap();
    assert_eq!(flushes(), before);
    memory.tier.flush().unwrap();
    assert_eq!(flushes(), before + 1);
}

/// Mechanism: a writer is killed between its copy and the write-back. Others see the bytes. A
/// process that finds the block without a checksum sums it, and the log records that checksum.
///
/// Consequence: after a power failure the bytes are lost and the checksum does not match, so that
/// even what others had synced in that block was refused.
///
/// Fix: a process that sums a block in place writes it back.
#[test]
fn writer_dies_in_its_copy_then_what_it_stored_is_durable_once_somebody_has_summed_it() {
    let memory = Persistent::new();
    let (at, bytes) = (PAGE as u64, sample(300, 4));
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        memory.tier.file().store(at, bytes.len(), |target, _, _| {
            // SAFETY: there is room for the bytes.
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
            panic!("dies here");
        })
    }));
    assert!(died.is_err());
    assert!(memory.live()[PAGE..][..300] == bytes && memory.durable()[PAGE..][..300] == [0; 300]);
    assert_eq!(memory.tier.checksum(at, 300), Ok(checksum::crc32c(0, &bytes)));
    assert!(memory.durable() == memory.live());
}

#[cfg(target_arch = "x86_64")]
#[test]
fn every_line_of_a_range_is_written_back_once_and_none_beside_it() {
    let of = |start, length| lines::of(start, length).collect::<Vec<_>>();
    assert_eq!(of(0, 64), [0]);
    assert_eq!(of(63, 2), [0, 64]);
    assert_eq!(of(130, 62), [128]);
    assert_eq!(of(130, 63), [128, 192]);
    assert_eq!(of(100, 0), [0; 0]);
    assert_eq!(of(4096, 4096).len(), 64);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn every_way_of_this_processor_leaves_the_bytes_as_they_are() {
    let bytes = sample(10_000, 1);
    for way in [lines::Way::Flush, lines::Way::FlushOptimised, lines::Way::WriteBack] {
        if way <= lines::best() {
            // SAFETY: the range is the vector's, and this processor has the instruction.
            unsafe { lines::write_back_by(way, bytes.as_ptr().add(3), 9_000) };
            assert_eq!(bytes, sample(10_000, 1), "{way:?}");
        }
    }
}
