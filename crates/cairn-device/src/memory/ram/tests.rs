//! The RAM tier: rules of warmth, limits, and equal bytes on every path.

use super::*;
use core::ptr;

const BLOCK: usize = 32 * 1024;

fn device_on(path: &core::ffi::CStr, blocks: usize, huge_pages: bool) -> RamDevice {
    let flags = libc::O_TMPFILE | libc::O_RDWR;
    let file = Descriptor::open(libc::AT_FDCWD, path, flags, 0o600).unwrap();
    sys::ftruncate(file.raw(), (blocks * BLOCK) as u64).unwrap();
    RamDevice::new(file, (blocks * BLOCK) as u64, BLOCK as u32, huge_pages).unwrap()
}

fn device(blocks: usize) -> RamDevice {
    device_on(c"/dev/shm", blocks, false)
}

fn sample(length: usize) -> Vec<u8> {
    (0..length as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

fn write(device: &RamDevice, offset: usize, bytes: &[u8]) -> Result<u32> {
    // SAFETY: the slice is readable and not part of the device.
    unsafe { device.write(offset as u64, bytes.as_ptr(), bytes.len()) }
}

fn read(device: &RamDevice, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; length];
    // SAFETY: the vector is writable and not borrowed elsewhere.
    unsafe { device.read(offset as u64, bytes.as_mut_ptr(), length) }.unwrap();
    bytes
}

#[test]
fn first_write_leaves_a_block_unmapped_and_the_second_warms_it() {
    let device = device(8);
    let bytes = sample(2 * BLOCK);
    write(&device, BLOCK, &bytes).unwrap();
    assert_eq!(device.warm_blocks(), 0);
    write(&device, BLOCK, &bytes).unwrap();
    assert_eq!(device.warm_blocks(), 2);
    assert_eq!(read(&device, BLOCK, 2 * BLOCK), bytes);
}

#[test]
fn write_over_blocks_of_every_warmth_stores_and_sums_exactly() {
    let device = device(16);
    let bytes = sample(12 * BLOCK + 777);
    write(&device, 3 * BLOCK, &bytes[..2 * BLOCK]).unwrap();
    write(&device, 3 * BLOCK, &bytes[..2 * BLOCK]).unwrap();
    write(&device, 7 * BLOCK, &bytes[..BLOCK]).unwrap();
    let raw = write(&device, BLOCK + 13, &bytes).unwrap();
    assert_eq!(raw, checksum::raw(&bytes));
    assert_eq!(read(&device, BLOCK + 13, bytes.len()), bytes);
}

#[test]
fn reads_around_the_ends_of_warm_blocks_give_what_was_written() {
    let device = device(3);
    let bytes = sample(2 * BLOCK);
    for _ in 0..2 {
        write(&device, 0, &bytes).unwrap();
    }
    assert_eq!(device.warm_blocks(), 2);
    for (offset, length) in [(0, BLOCK), (BLOCK - 8, 8), (BLOCK - 4, 8), (BLOCK, 8), (0, 0)] {
        assert_eq!(read(&device, offset, length), bytes[offset..offset + length]);
    }
    // The last block is cold.
    assert_eq!(read(&device, 2 * BLOCK - 4, 8), [&bytes[2 * BLOCK - 4..], &[0; 4]].concat());
    assert_eq!(read(&device, 3 * BLOCK, 0), []);
}

#[test]
fn blocks_written_by_one_device_are_read_by_another_of_the_same_file() {
    let first = device(8);
    let file = sys::dup(first.mappable().unwrap().descriptor).unwrap();
    let second =
        RamDevice::new(Descriptor::from_raw(file), first.bytes(), BLOCK as u32, false).unwrap();
    let bytes = sample(8 * BLOCK);
    write(&first, 0, &bytes).unwrap();
    for _ in 0..3 {
        assert_eq!(read(&second, 100, 8 * BLOCK - 100), bytes[100..]);
    }
    assert_eq!(second.warm_blocks(), 8);
}

#[test]
fn zeroing_works_on_cold_and_warm_blocks() {
    let device = device(4);
    write(&device, 0, &sample(4 * BLOCK)).unwrap();
    let mut expected = sample(4 * BLOCK);
    for (offset, length) in [(10, 100), (BLOCK - 5, 2 * BLOCK), (4 * BLOCK - 1, 1)] {
        device.zero(offset as u64, length).unwrap();
        expected[offset..offset + length].fill(0);
        assert_eq!(read(&device, 0, 4 * BLOCK), expected);
    }
}

#[test]
fn zeroing_a_block_never_met_gives_zeros() {
    let device = device(2);
    device.zero(0, BLOCK).unwrap();
    assert_eq!(read(&device, 0, 2 * BLOCK), vec![0; 2 * BLOCK]);
}

#[test]
fn checksum_is_of_the_stored_bytes() {
    let device = device(4);
    let bytes = sample(BLOCK);
    write(&device, 2 * BLOCK, &bytes).unwrap();
    assert_eq!(device.checksum(2 * BLOCK as u64, BLOCK).unwrap(), checksum::crc32c(0, &bytes));
}

#[test]
fn warm_write_stores_only_where_the_block_is_present() {
    let device = device(2);
    let bytes = sample(100);
    assert!(!device.write_warm(7, &bytes));
    for _ in 0..2 {
        write(&device, 0, &sample(BLOCK)).unwrap();
    }
    assert!(device.write_warm(7, &bytes));
    assert_eq!(read(&device, 7, 100), bytes);
    assert!(!device.write_warm(2 * BLOCK as u64 - 50, &bytes));
}

#[test]
fn range_outside_the_tier_is_refused_everywhere() {
    let device = device(2);
    let bytes = sample(BLOCK);
    let end = device.bytes();
    assert!(write(&device, 2 * BLOCK - 1, &bytes).is_err());
    assert!(device.zero(end, 1).is_err());
    assert!(device.checksum(u64::MAX, 2).is_err());
    assert_eq!(write(&device, 2 * BLOCK, &[]), Ok(0));
}

#[test]
fn bad_source_address_on_a_cold_block_is_a_fault_error() {
    let device = device(2);
    // SAFETY: not readable on purpose; the cold path lets the kernel find out.
    let result = unsafe { device.write(0, ptr::without_provenance(8), 100) };
    assert_eq!(result, Err(Error::Fault));
}

#[test]
fn warmth_is_not_inherited_by_a_forked_child() {
    let device = device(4);
    let bytes = sample(4 * BLOCK);
    write(&device, 0, &bytes).unwrap();
    write(&device, 0, &bytes).unwrap();
    assert_eq!(device.warm_blocks(), 4);
    // SAFETY: the child only looks at its table and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let warm = device.warm_blocks();
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(warm as i32) };
    }
    let mut status = 0;
    // SAFETY: `status` receives one int.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
}

#[test]
fn prefault_allocates_a_range_and_warms_nothing_here() {
    let device = device(64);
    device.prefault(BLOCK as u64, 10 * BLOCK).unwrap();
    let stat = sys::fstat(device.mappable().unwrap().descriptor).unwrap();
    assert_eq!((stat.st_blocks * 512, device.warm_blocks()), (10 * BLOCK as i64, 0));
    let outside = device.prefault(60 * BLOCK as u64, 5 * BLOCK);
    assert_eq!(outside, Err(Error::Corrupt { what: "range outside its segment" }));
}

#[test]
fn huge_page_tier_populates_a_whole_huge_page_at_first_sight() {
    let device = device_on(c"/dev/shm", 200, true);
    let bytes = sample(BLOCK);
    write(&device, 65 * BLOCK, &bytes).unwrap();
    assert_eq!(device.warm_blocks(), HUGE_BYTES / BLOCK);
    assert_eq!(read(&device, 65 * BLOCK, BLOCK), bytes);
}

#[test]
fn full_file_system_is_no_space_in_every_state_and_never_a_signal() {
    let scratch = crate::directory::tests::Scratch::new();
    let point = scratch.0.private(c"small").unwrap();
    let path = cairn_platform::sys::c_path(point.path()).unwrap();
    drop(point);
    if sys::mount(c"tmpfs", &path, 0, c"size=256k").is_err() {
        // Only root may mount; elsewhere the rule is covered by `mapping`'s tests.
        return;
    }
    let result = std::panic::catch_unwind(|| {
        let device = device_on(&path, 16, false);
        let bytes = sample(16 * BLOCK);
        assert_eq!(write(&device, 0, &bytes), Err(Error::NoSpace));
        assert_eq!(write(&device, 0, &bytes), Err(Error::NoSpace));
        assert_eq!(device.zero(15 * BLOCK as u64, BLOCK), Err(Error::NoSpace));
        assert_eq!(read(&device, 0, BLOCK), bytes[..BLOCK]);
        assert_eq!(device.prefault(0, 16 * BLOCK), Err(Error::NoSpace));
    });
    sys::umount2(&path, libc::MNT_DETACH).unwrap();
    result.unwrap();
}

#[test]
fn limit_on_file_sizes_is_respected_without_a_signal() {
    let device = device(4);
    // SAFETY: the child uses only the device, which does not allocate, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let limit = libc::rlimit { rlim_cur: BLOCK as u64, rlim_max: BLOCK as u64 };
        // SAFETY: `limit` is read for the call; it binds the child only.
        unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
        let stored = write(&device, 2 * BLOCK, &[7; 100]).is_ok();
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!stored)) };
    }
    let mut status = 0;
    // SAFETY: `status` receives one int.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
    assert_eq!(read(&device, 2 * BLOCK, 100), [7; 100]);
}
