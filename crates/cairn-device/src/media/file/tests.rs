//! The file tier at every alignment, beside writers that share a page, and after SIGKILL.

use super::*;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_platform::sys;

use crate::media::media_file::tests::Place;

const PAGE: usize = MEDIA_BLOCK_BYTES;
const BYTES: u64 = 4 << 20;
/// Offset of the tier in its file.
const DATA: u64 = 64 << 10;

fn tier(place: &Place) -> FileTier {
    FileTier::new(Arc::new(place.file(DATA + BYTES)), DATA, BYTES).unwrap()
}

/// Opens the tier that `tier` made, as another process would.
fn again(place: &Place) -> FileTier {
    FileTier::new(Arc::new(place.open()), DATA, BYTES).unwrap()
}

fn sample(length: usize, salt: u32) -> Vec<u8> {
    let byte = |at: u32| ((at ^ salt).wrapping_mul(2_654_435_761) >> 11) as u8;
    (0..length as u32).map(byte).collect()
}

fn write(tier: &FileTier, offset: usize, bytes: &[u8]) -> Result<u32> {
    // SAFETY: the slice is readable and not part of the device.
    unsafe { tier.write(offset as u64, bytes.as_ptr(), bytes.len()) }
}

fn read(tier: &FileTier, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; length];
    // SAFETY: the vector is writable and not borrowed elsewhere.
    unsafe { tier.read(offset as u64, bytes.as_mut_ptr(), length) }.unwrap();
    bytes
}

#[test]
fn blocks_in_a_row_are_exact_and_each_is_summed() {
    for place in Place::all() {
        let tier = tier(&place);
        for (block_bytes, count) in [(PAGE, 1), (PAGE, 600), (32 << 10, 100), (2 << 20, 2)] {
            let bytes = sample(block_bytes * count, count as u32);
            let mut sums = Vec::new();
            let mut take = |sum| {
                sums.push(sum);
                Ok(())
            };
            // SAFETY: the vector is readable and not part of the device.
            unsafe { tier.write_blocks(0, bytes.as_ptr(), block_bytes, count, &mut take) }.unwrap();
            assert!(read(&tier, 0, bytes.len()) == bytes, "{count} blocks of {block_bytes}");
            let expected = bytes.chunks(block_bytes).map(checksum::raw);
            assert_eq!(sums, expected.collect::<Vec<_>>());
        }
        // SAFETY: as above.
        let outside =
            unsafe { tier.write_blocks(BYTES, [0; PAGE].as_ptr(), PAGE, 1, &mut |_| Ok(())) };
        assert_eq!(outside, Err(Error::Corrupt { what: "range outside its tier" }));
    }
}

#[test]
fn writes_and_zeros_of_any_alignment_are_exact_and_summed() {
    const LENGTHS: [usize; 9] =
        [0, 1, 100, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, 32 << 10, (1 << 20) + 5000];
    for place in Place::all() {
        let tier = tier(&place);
        let mut expected = vec![0; BYTES as usize];
        for (salt, length) in LENGTHS.into_iter().enumerate() {
            for start in [0, 1, PAGE - 1, PAGE, (1 << 20) - 7, (1 << 20) - PAGE] {
                let bytes = sample(length, salt as u32);
                let raw = write(&tier, start, &bytes).unwrap();
                assert_eq!(raw, checksum::raw(&bytes), "{length} at {start}");
                expected[start..start + length].copy_from_slice(&bytes);
                let (cut, rest) = (start + length / 3, length / 2);
                tier.zero(cut as u64, rest).unwrap();
                expected[cut..cut + rest].fill(0);
                assert_eq!(read(&tier, start, length), expected[start..start + length]);
                let sum = tier.checksum(start as u64, length).unwrap();
                assert_eq!(sum, checksum::crc32c(0, &expected[start..start + length]));
            }
        }
        assert!(read(&tier, 0, BYTES as usize) == expected);
        let mut before = [1; PAGE];
        tier.file().read(DATA - PAGE as u64, &mut before).unwrap();
        assert_eq!(before, [0; PAGE], "what is not the tier's is untouched");
    }
}

#[test]
fn range_outside_the_tier_is_refused_everywhere() {
    let place = Place::in_memory();
    let tier = tier(&place);
    assert!(write(&tier, BYTES as usize - 1, &[0; 2]).is_err());
    assert!(tier.zero(BYTES, 1).is_err());
    assert!(tier.checksum(u64::MAX, 2).is_err());
    assert_eq!(write(&tier, BYTES as usize, &[]), Ok(0));
    for (offset, bytes) in [(1, BYTES), (DATA, BYTES + 1), (DATA, BYTES + PAGE as u64)] {
        assert!(FileTier::new(tier.file().clone(), offset, bytes).is_err());
    }
}

/// Two threads repeatedly write the two halves of one page. A third one writes the pages on both
/// sides of it. Each checks what it has written, and in the end nothing is lost: neither to a
/// read-modify-write of the page nor to a cached copy of its neighbours.
#[test]
fn writers_of_neighbouring_bytes_and_pages_do_not_undo_each_other() {
    const ROUNDS: u64 = 400;
    const MIDDLE: usize = 5 * PAGE;
    for place in Place::all() {
        let (tier, other) = (tier(&place), again(&place));
        let parts = [
            (MIDDLE, PAGE / 2 + 3),
            (MIDDLE + PAGE / 2 + 3, PAGE / 2 - 3),
            (MIDDLE - 2 * PAGE, 2 * PAGE),
            (MIDDLE + PAGE, 3 * PAGE),
        ];
        let finished = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for (writer, parts) in [&parts[..1], &parts[1..2], &parts[2..]].into_iter().enumerate()
            {
                let (tier, other, finished) = (&tier, &other, &finished);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        // Alternates between the two objects, as different processes would.
                        let (first, second) =
                            if round % 2 == 0 { (tier, other) } else { (other, tier) };
                        for &(start, length) in parts {
                            let bytes = sample(length, (round * 4) as u32 + writer as u32);
                            write(first, start, &bytes).unwrap();
                            assert!(read(second, start, length) == bytes, "{writer} in {round}");
                        }
                    }
                    finished.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        assert_eq!(finished.into_inner(), 3);
        tier.flush().unwrap();
        for (writer, &(start, length)) in [0, 1, 2, 2].into_iter().zip(&parts) {
            let last = sample(length, (ROUNDS as u32 - 1) * 4 + writer);
            assert!(read(&tier, start, length) == last, "{writer}");
        }
        let whole = sample(PAGE, 77);
        write(&tier, MIDDLE, &whole).unwrap();
        assert_eq!(read(&other, MIDDLE + 1, PAGE - 1), whole[1..]);
    }
}

/// Mechanism: parts of a page went through the page cache and whole pages past it. If both happen
/// to one page at the same time, file systems keep them apart; for block devices the kernel does
/// not.
///
/// Consequence: the cache wrote the old rest of the page over the new one, or the next flush failed
/// for good.
///
/// Fix: no write to a device goes through the cache, and a page has one writer at a time.
#[test]
fn writers_of_a_page_and_of_a_part_of_it_undo_nothing_of_each_other() {
    const ROUNDS: u32 = 400;
    const FIRST: usize = 5 * PAGE;
    // A part of the second of three pages.
    const PART: core::ops::Range<usize> = PAGE + 100..PAGE + 300;
    for place in Place::all() {
        let (tier, other) = (tier(&place), again(&place));
        for round in 0..ROUNDS {
            let (pages, part) = (sample(3 * PAGE, round), sample(PART.len(), !round));
            std::thread::scope(|scope| {
                scope.spawn(|| write(&tier, FIRST, &pages).unwrap());
                scope.spawn(|| write(&other, FIRST + PART.start, &part).unwrap());
            });
            let mut seen = read(&other, FIRST, 3 * PAGE);
            // In a mapping the copies overlap in time, so each byte may be that of either writer.
            let mut bytes = seen[PART].iter().zip(part.iter().zip(&pages[PART]));
            let is_new = bytes.all(|(byte, (one, other))| byte == one || byte == other);
            assert!(is_new, "part in round {round}");
            seen[PART].copy_from_slice(&pages[PART]);
            assert!(seen == pages, "pages in round {round}");
            tier.flush().unwrap();
        }
    }
}

#[test]
fn whoever_reads_a_device_beside_us_undoes_nothing() {
    let Some(place) = Place::on_device(512) else { return };
    let tier = tier(&place);
    let is_over = AtomicBool::new(false);
    let mut expected = vec![0; 80 << 10];
    write(&tier, 0, &expected).unwrap();
    let part = |round: usize| (round * 3001) % (64 << 10);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Reads ahead and fills the cache, like any program that scans devices.
            while !is_over.load(Ordering::Relaxed) {
                let mut device = std::fs::File::open(place.tier()).unwrap();
                let mut bytes = vec![0; (DATA + (256 << 10)) as usize];
                std::io::Read::read_exact(&mut device, &mut bytes).unwrap();
            }
        });
        for round in 0..10_000 {
            let length = [100, PAGE, 3 * PAGE + 7][round % 3];
            let bytes = sample(length, round as u32);
            write(&tier, part(round), &bytes).unwrap();
            expected[part(round)..][..length].copy_from_slice(&bytes);
            let (at, length) = (part(round * 7), 1 + round % 9000);
            let is_as_written = read(&tier, at, length) == expected[at..][..length];
            is_over.fetch_or(!is_as_written, Ordering::Relaxed);
            assert!(is_as_written, "round {round}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn bytes_that_were_written_survive_the_writer() {
    for place in Place::all() {
        let tier = tier(&place);
        let bytes = sample(10_000, 5);
        // SAFETY: the child writes through a buffer of its own and is killed.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let _ = write(&tier, 1234, &bytes);
            // SAFETY: takes no pointers.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        let mut status = 0;
        // SAFETY: `status` receives one int.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(libc::WTERMSIG(status), libc::SIGKILL);
        assert_eq!(read(&tier, 1234, bytes.len()), bytes);
    }
}

#[test]
fn mapping_shows_what_is_written_on_either_way() {
    for place in Place::all() {
        let tier = tier(&place);
        let mappable = tier.mappable().unwrap();
        assert_eq!(mappable.in_memory, tier.file().kind() == MediumKind::Dax);
        let file = mappable.descriptor;
        let start = cairn_platform::sys::mmap(
            PAGE * 4,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file,
            mappable.offset,
        );
        let start = start.unwrap();
        // SAFETY: our fresh mapping.
        unsafe { cairn_platform::sys::madvise(start, PAGE * 4, libc::MADV_RANDOM) }.unwrap();
        for (salt, (offset, length)) in
            [(0, 4 * PAGE), (PAGE + 1, 100), (PAGE, PAGE), (10, 3 * PAGE)].into_iter().enumerate()
        {
            let bytes = sample(length, salt as u32);
            write(&tier, offset, &bytes).unwrap();
            // SAFETY: inside the mapping, which nobody writes to at this time.
            let seen = unsafe { core::slice::from_raw_parts(start.add(offset), length) };
            assert!(seen == bytes, "{salt}");
        }
        // SAFETY: no reference into the mapping is left.
        unsafe { cairn_platform::sys::munmap(start, PAGE * 4) }.unwrap();
    }
}

/// Returns the pages of the tier that the page cache holds.
fn cached(tier: &FileTier) -> Vec<usize> {
    let pages = BYTES as usize / PAGE;
    let Mappable { descriptor, offset, .. } = tier.mappable().unwrap();
    let start = cairn_platform::sys::mmap(
        BYTES as usize,
        libc::PROT_READ,
        libc::MAP_SHARED,
        descriptor,
        offset,
    );
    let start = start.unwrap();
    let mut present = vec![0_u8; pages];
    // SAFETY: the mapping is ours, `present` has a byte for each of its pages, and nothing refers
    // to it after.
    unsafe {
        assert_eq!(libc::mincore(start.cast(), BYTES as usize, present.as_mut_ptr()), 0);
        cairn_platform::sys::munmap(start, BYTES as usize).unwrap();
    }
    (0..pages).filter(|&page| present[page] & 1 == 1).collect()
}

#[test]
fn only_pages_used_in_part_are_cached_and_nothing_that_is_written_to_a_device() {
    let places = [Some(Place::on_disk()), Place::on_device(512)].into_iter().flatten();
    for tier in places.map(|place| tier(&place)).filter(|tier| tier.file().direct()) {
        write(&tier, 0, &sample(BYTES as usize, 1)).unwrap();
        assert_eq!(cached(&tier), []);
        for page in 10..14 {
            read(&tier, page * PAGE, 100);
        }
        write(&tier, 20 * PAGE - 10, &sample(20 + PAGE, 2)).unwrap();
        let is_device = tier.file().kind() == MediumKind::Block;
        let written: &[usize] = if is_device { &[] } else { &[19, 21] };
        assert_eq!(cached(&tier), [&[10, 11, 12, 13], written].concat());
        write(&tier, 10 * PAGE, &sample(3 * PAGE, 3)).unwrap();
        assert_eq!(cached(&tier), [&[13], written].concat());
    }
}

/// Sets the flag on drop, so that a thread ends however the test ends.
struct StoppedWhenDropped<'a>(&'a AtomicBool);

impl Drop for StoppedWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Mechanism: whole pages were written past the page cache while a program stored to them through a
/// mapping. The kernel could not drop a page that had become dirty again and kept its old bytes.
///
/// Consequence: the next flush reported an error, and the namespace gives up its media on that.
///
/// Fix: bytes of mapped files go through the cache.
#[test]
fn writes_under_stores_through_a_mapping_are_exact_and_break_no_flush() {
    const PAGES: usize = 16;
    for place in Place::all() {
        let tier = tier(&place);
        let mappable = tier.mappable().unwrap();
        let length = PAGES * PAGE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let mapped =
            sys::mmap(length, protection, libc::MAP_SHARED, mappable.descriptor, DATA).unwrap();
        // SAFETY: the mapping made above; advice about reading ahead.
        unsafe { sys::madvise(mapped, length, libc::MADV_RANDOM) }.unwrap();
        let stop = AtomicBool::new(false);
        let address = mapped as usize;
        std::thread::scope(|scope| {
            let _ends = StoppedWhenDropped(&stop);
            scope.spawn(|| {
                let mut count = 0_u8;
                while !stop.load(Ordering::Relaxed) {
                    count = count.wrapping_add(1);
                    for page in 0..PAGES {
                        // SAFETY: inside the mapping, and nobody has a reference to it.
                        unsafe { ((address + page * PAGE + 100) as *mut u8).write_volatile(count) };
                    }
                }
            });
            for round in 0..50 {
                let bytes = sample(length, round);
                // SAFETY: the vector is readable and not part of the device.
                unsafe { tier.write_mapped(0, bytes.as_ptr(), length) }.unwrap();
                let mut found = read(&tier, 0, length);
                for page in 0..PAGES {
                    found[page * PAGE + 100] = bytes[page * PAGE + 100];
                }
                assert!(found == bytes, "round {round}");
                tier.zero_mapped(PAGE as u64 / 2, PAGE).unwrap();
                tier.flush().unwrap();
            }
        });
        // SAFETY: nobody uses it any more.
        unsafe { sys::munmap(mapped, length) }.unwrap();
    }
}
