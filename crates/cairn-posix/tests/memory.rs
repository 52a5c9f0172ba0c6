//! Mapped files, reserved space, and limits.

mod common;

use core::ffi::c_void;
use core::slice;

use cairn_posix::data::copy;
use cairn_posix::data::io::At;
use cairn_posix::files::{allocate, attributes, file};
use cairn_posix::mapping::{self, Request};
use cairn_posix::{Errno, kernel};
use common::*;

fn request(length: usize, protection: i32, flags: i32, offset: i64) -> Request {
    Request { address: core::ptr::null_mut(), length, protection, flags, offset }
}

fn map(descriptor: i32, request: &Request) -> Result<*mut c_void, Errno> {
    // SAFETY: no fixed address is asked for.
    unsafe { mapping::map(handle(descriptor), request) }
}

fn bytes<'a>(start: *mut c_void, length: usize) -> &'a [u8] {
    // SAFETY: the tests pass what they mapped, and use the slice before they change the file again.
    unsafe { slice::from_raw_parts(start.cast(), length) }
}

fn unmap(start: *mut c_void, length: usize) {
    // SAFETY: the tests pass what they mapped and do not use it afterwards.
    unsafe { mapping::unmap(start, length) }.expect("it is ours").unwrap();
}

#[test]
fn private_mapping_keeps_its_stores_from_the_file() {
    let _turn = turn();
    let content = pattern(HUGEBLOCK + 100, 1);
    put("private", &content);
    let file = open("private", libc::O_RDWR).unwrap();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let asked = request(2 * HUGEBLOCK, protection, libc::MAP_PRIVATE, 4096);
    let start = map(file, &asked).unwrap();
    assert_eq!(bytes(start, content.len() - 4096), &content[4096..]);
    let rest = content.len() - 4096..HUGEBLOCK;
    assert!(bytes(start, HUGEBLOCK)[rest].iter().all(|&byte| byte == 0));
    // SAFETY: the first byte of a writable mapping.
    unsafe { start.cast::<u8>().write(!content[4096]) };
    close(file);
    assert_eq!(get("private"), content);
    unmap(start, 2 * HUGEBLOCK);
    remove("private");
}

#[test]
fn shared_mapping_shows_later_writes_and_outlives_close_and_unlink() {
    let _turn = turn();
    let before = usage();
    let content = pattern(3 * HUGEBLOCK + 10, 2);
    put("shared", &content);
    let file = open("shared", libc::O_RDWR).unwrap();
    let asked = request(content.len(), libc::PROT_READ, libc::MAP_SHARED, 0);
    let start = map(file, &asked).unwrap();
    assert_eq!(bytes(start, content.len()), content);
    write_at(file, b"changed", At::Offset(HUGEBLOCK as u64 - 3)).unwrap();
    assert_eq!(&bytes(start, content.len())[HUGEBLOCK - 3..HUGEBLOCK + 4], b"changed");
    close(file);
    remove("shared");
    assert_eq!(&bytes(start, content.len())[..100], &content[..100]);
    // SAFETY: the mapping made above. Its file is read-only, so that not even a change of the
    // protection permits writing to the tier.
    let made_writable = unsafe { kernel::protect(start, 4096, libc::PROT_READ | libc::PROT_WRITE) };
    assert_eq!(made_writable, Err(Errno(libc::EACCES)));
    unmap(start, HUGEBLOCK);
    assert_eq!(usage().handles, before.handles + 1);
    unmap(start.wrapping_byte_add(HUGEBLOCK), content.len() - HUGEBLOCK);
    let after = usage();
    assert_eq!((after.handles, after.used_blocks), (before.handles, before.used_blocks));
}

#[test]
fn mapping_that_cannot_be_served_is_refused() {
    let _turn = turn();
    let file = create("refused");
    let refused = |asked: &Request| map(file, asked).unwrap_err().0;
    assert_eq!(refused(&request(100, libc::PROT_READ, libc::MAP_PRIVATE, 100)), libc::EINVAL);
    assert_eq!(refused(&request(0, libc::PROT_READ, libc::MAP_PRIVATE, 0)), libc::EINVAL);
    close(file);
    let writer = open("refused", libc::O_WRONLY).unwrap();
    let asked = request(100, libc::PROT_READ, libc::MAP_PRIVATE, 0);
    assert_eq!(map(writer, &asked), Err(Errno(libc::EACCES)));
    close(writer);
    remove("refused");
}

#[test]
fn allocated_range_holds_blocks_and_keeps_the_data() {
    let _turn = turn();
    put("allocated", b"data");
    let file = open("allocated", libc::O_RDWR).unwrap();
    allocate::allocate(handle(file), 2, 4 * HUGEBLOCK as i64).unwrap();
    let found = file::attributes(handle(file)).unwrap();
    assert_eq!(
        (found.size, found.allocated_bytes),
        (4 * HUGEBLOCK as u64 + 2, 5 * HUGEBLOCK as u64)
    );
    assert_eq!(file::seek(handle(file), 0, libc::SEEK_HOLE), Ok(found.size as i64));
    assert_eq!(read_at(file, 6, At::Offset(0)).unwrap(), b"data\0\0");
    assert_eq!(allocate::allocate(handle(file), 0, 0), Err(Errno(libc::EINVAL)));
    assert_eq!(allocate::allocate(handle(file), -1, 5), Err(Errno(libc::EINVAL)));
    let too_much = i64::from(BLOCKS) * 2 * HUGEBLOCK as i64;
    assert_eq!(allocate::allocate(handle(file), 0, too_much), Err(Errno(libc::ENOSPC)));
    close(file);
    remove("allocated");
}

/// Returns pseudo-random numbers, the same in each run.
fn numbers() -> impl FnMut(usize) -> usize {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    move |below| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    }
}

#[test]
fn ranges_that_are_punched_zeroed_and_allocated_read_as_they_should() {
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
    const ROUNDS: usize = 400;
    let _turn = turn();
    let before = usage().used_blocks;
    let file = create("changed");
    let change = |mode, start: usize, length: usize| {
        allocate::change(handle(file), mode, start as i64, length as i64).unwrap();
    };
    let mut model = Vec::new();
    let mut number = numbers();
    for round in 0..ROUNDS {
        // Half of the ranges begin and end at block borders.
        let unit = if number(2) == 0 { 1 } else { HUGEBLOCK };
        let start = number(12 * HUGEBLOCK) / unit * unit;
        let length = (1 + number(6 * HUGEBLOCK)).next_multiple_of(unit);
        let end = start + length;
        let kind = number(4);
        match kind {
            0 => assert_eq!(
                write_at(file, &pattern(length, round), At::Offset(start as u64)),
                Ok(length)
            ),
            1 => change(0, start, length),
            2 => change(ZERO, start, length),
            _ => change(PUNCH, start, length),
        }
        if kind < 3 {
            model.resize(model.len().max(end), 0);
        }
        let changed = start.min(model.len())..end.min(model.len());
        match kind {
            0 => model[changed].copy_from_slice(&pattern(length, round)),
            1 => {}
            _ => model[changed].fill(0),
        }
        let content = read_at(file, 20 * HUGEBLOCK, At::Offset(0)).unwrap();
        assert!(content == model, "round {round}: kind {kind}, {start} + {length}");
    }
    mount().fs().check().unwrap();
    change(PUNCH, 0, 100 * HUGEBLOCK);
    let found = file::attributes(handle(file)).unwrap();
    let last = usize::from(model.len() % HUGEBLOCK != 0) * HUGEBLOCK;
    assert_eq!((found.size, found.allocated_bytes), (model.len() as u64, last as u64));
    close(file);
    remove("changed");
    assert_eq!(usage().used_blocks, before);
}

#[test]
fn ranges_behind_the_end_and_modes_that_move_data_are_refused() {
    let _turn = turn();
    put("short", b"data");
    let file = open("short", libc::O_RDWR).unwrap();
    let change = |mode, start, length| allocate::change(handle(file), mode, start, length);
    let refused = Err(Errno(libc::EOPNOTSUPP));
    assert_eq!(change(libc::FALLOC_FL_KEEP_SIZE, 0, 5), refused);
    assert_eq!(change(libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_ZERO_RANGE, 2, 3), refused);
    assert_eq!(change(libc::FALLOC_FL_PUNCH_HOLE, 0, 4), refused);
    assert_eq!(change(libc::FALLOC_FL_COLLAPSE_RANGE, 0, 4), refused);
    assert_eq!(change(libc::FALLOC_FL_KEEP_SIZE, 0, 4), Ok(()));
    assert_eq!(change(0, 0, i64::MAX), Err(Errno(libc::EFBIG)));
    close(file);
    let reader = open("short", libc::O_RDONLY).unwrap();
    assert_eq!(allocate::change(handle(reader), 0, 0, 4), Err(Errno(libc::EBADF)));
    close(reader);
    remove("short");
}

#[test]
fn file_is_charged_for_the_pages_it_fills() {
    let _turn = turn();
    let blocks = |name: &str| {
        let found = file::stat(&at(name), true).unwrap();
        let stat = attributes::stat(mount(), &found);
        (stat.st_size, stat.st_blocks)
    };
    put("small", b"x");
    put("large", &pattern(100_000, 1));
    let sparse = create("sparse");
    file::truncate_handle(handle(sparse), 10 << 20).unwrap();
    close(sparse);
    assert_eq!(blocks("small"), (1, 8));
    assert_eq!(blocks("large"), (100_000, 200));
    assert_eq!(blocks("sparse"), (10 << 20, 0));
    assert_eq!(blocks(""), (4096, 8));
    ["small", "large", "sparse"].into_iter().for_each(remove);
}

#[test]
fn copy_between_ours_and_the_kernels_is_exact_and_advances_offsets() {
    let _turn = turn();
    let content = pattern(5 * HUGEBLOCK / 2, 9);
    put("source", &content);
    let source = open("source", libc::O_RDONLY).unwrap();
    let memory = copy::to_memory(handle(source)).unwrap();
    let target = create("target");
    let (mut from, mut total) = (10_i64, 0);
    loop {
        let (ours, kernels) = (copy::End::Ours(handle(target)), copy::End::Kernel(memory));
        match copy::copy(kernels, Some(&mut from), ours, None, 70_000).unwrap() {
            0 => break,
            moved => total += moved,
        }
    }
    assert_eq!((from as usize, total), (content.len(), content.len() - 10));
    [source, target].into_iter().for_each(close);
    kernel::close(memory).unwrap();
    assert_eq!(get("target"), content[10..]);
    ["source", "target"].into_iter().for_each(remove);
}
