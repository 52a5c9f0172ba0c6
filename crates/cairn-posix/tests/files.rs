//! Files: data, cursors, sizes, descriptors.

mod common;

use cairn_posix::Errno;
use cairn_posix::data::io::At;
use cairn_posix::descriptors::description;
use cairn_posix::descriptors::descriptor;
use cairn_posix::files::{file, names};
use cairn_posix::mount::Rights;
use common::*;

#[test]
fn bytes_written_in_any_pieces_are_read_back_at_every_offset() {
    let _turn = turn();
    let mut model = Vec::new();
    let file = create("pieces");
    let lengths = [1, 511, 4096, HUGEBLOCK - 1, HUGEBLOCK, HUGEBLOCK + 1, 3 * HUGEBLOCK + 7, 13];
    for (seed, length) in lengths.into_iter().enumerate() {
        let bytes = pattern(length, seed);
        assert_eq!(write(file, &bytes), Ok(length));
        model.extend(bytes);
    }
    // Overwrites within one block, across a border, and past the end.
    for (seed, offset) in
        [0, 100, HUGEBLOCK - 3, 2 * HUGEBLOCK, model.len() - 5].into_iter().enumerate()
    {
        let bytes = pattern(5000, 100 + seed);
        assert_eq!(write_at(file, &bytes, At::Offset(offset as u64)), Ok(bytes.len()));
        model.resize(model.len().max(offset + bytes.len()), 0);
        model[offset..offset + bytes.len()].copy_from_slice(&bytes);
    }
    for offset in (0..model.len()).step_by(7919) {
        let expected = &model[offset..model.len().min(offset + 50_000)];
        assert_eq!(read_at(file, 50_000, At::Offset(offset as u64)).unwrap(), expected, "{offset}");
    }
    close(file);
    assert_eq!(get("pieces"), model);
    remove("pieces");
}

#[test]
fn list_of_buffers_is_written_and_read_as_one() {
    let _turn = turn();
    let file = create("list");
    let parts = [pattern(10, 1), Vec::new(), pattern(HUGEBLOCK, 2), pattern(3, 3)];
    let list: Vec<libc::iovec> = parts
        .iter()
        .map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() })
        .collect();
    // SAFETY: the list describes `parts`, which writing only reads.
    let buffers = unsafe { cairn_posix::data::transfer::Buffers::new(list.as_ptr(), 4) }.unwrap();
    assert_eq!(cairn_posix::data::io::write(handle(file), buffers, At::Cursor), Ok(HUGEBLOCK + 13));
    close(file);
    assert_eq!(get("list"), parts.concat());
    remove("list");
}

/// Mechanism: calls on a file by name found its inode first and then used it.
///
/// Consequence: if the name was replaced between the two, the call failed with `ENOENT`, or changed
/// a later file that had got the inode.
///
/// Fix: the inode is kept until the call is done.
#[test]
fn file_that_was_found_is_no_other_file_although_its_name_is_replaced() {
    let _turn = turn();
    put("found", b"old");
    put("new", b"new");
    let found = file::find(&at("found"), true).unwrap_or_else(|_| panic!("it is there"));
    names::rename(&at("new"), &at("found"), 0).unwrap();
    put("later", b"later");
    assert_eq!(found.attributes().map(|attributes| attributes.links), Ok(0));
    assert_eq!(file::set_mode(found.inode, 0o600), Ok(()));
    for name in ["found", "later"] {
        let other = file::stat(&at(name), true).unwrap();
        assert_ne!((other.inode, other.mode & 0o777), (found.inode, 0o600), "{name}");
    }
    let handles = usage().handles;
    drop(found);
    assert_eq!(usage().handles, handles - 1);
    remove("found");
    remove("later");
}

#[test]
fn call_that_outlives_its_descriptor_leaves_other_files_alone() {
    let _turn = turn();
    let file = create("closed");
    // As if another thread closed the file between the lookup of its number and the write.
    let looked_up = handle(file);
    close(file);
    let other = create("other");
    assert_eq!(handle(other).number(), looked_up.number());
    for length in [1, HUGEBLOCK] {
        let bytes = vec![1; length];
        let entry = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: length };
        // SAFETY: the entry describes `bytes`, which writing only reads.
        let buffers = unsafe { cairn_posix::data::transfer::Buffers::one(&entry) };
        let written = cairn_posix::data::io::write(looked_up, buffers, At::Cursor);
        assert_eq!(written, Err(Errno(libc::EBADF)));
    }
    close(other);
    assert_eq!(get("other"), b"");
    remove("closed");
    remove("other");
}

#[test]
fn appending_goes_to_the_end_whatever_cursor_and_offset_say() {
    let _turn = turn();
    put("log", b"one,");
    let file = open("log", libc::O_WRONLY | libc::O_APPEND).unwrap();
    assert_eq!(file::seek(handle(file), 0, libc::SEEK_SET), Ok(0));
    assert_eq!(write(file, b"two,"), Ok(4));
    assert_eq!(write_at(file, b"three", At::Offset(0)), Ok(5));
    file::set_status_flags(handle(file), 0).unwrap();
    assert_eq!(write_at(file, b"ONE", At::Offset(0)), Ok(3));
    close(file);
    assert_eq!(get("log"), b"ONE,two,three");
    remove("log");
}

#[test]
fn file_that_grows_again_after_a_cut_shows_zeros() {
    let _turn = turn();
    let file = create("cut");
    let bytes = pattern(3 * HUGEBLOCK, 5);
    write(file, &bytes).unwrap();
    file::truncate_handle(handle(file), 1000).unwrap();
    file::truncate_handle(handle(file), 2 * HUGEBLOCK as i64).unwrap();
    write_at(file, b"end", At::Offset(2 * HUGEBLOCK as u64)).unwrap();
    let mut expected = bytes[..1000].to_vec();
    expected.resize(2 * HUGEBLOCK, 0);
    expected.extend(b"end");
    close(file);
    assert_eq!(get("cut"), expected);
    remove("cut");
}

#[test]
fn holes_are_found_and_hold_no_blocks() {
    let _turn = turn();
    let file = create("sparse");
    let far = 10 * HUGEBLOCK as u64;
    write_at(file, b"x", At::Offset(far)).unwrap();
    assert_eq!(file::attributes(handle(file)).unwrap().allocated_bytes, HUGEBLOCK as u64);
    assert_eq!(file::seek(handle(file), 0, libc::SEEK_DATA), Ok(far as i64));
    assert_eq!(file::seek(handle(file), 0, libc::SEEK_HOLE), Ok(0));
    assert_eq!(file::seek(handle(file), far as i64 + 1, libc::SEEK_DATA), Err(Errno(libc::ENXIO)));
    assert_eq!(read_at(file, 20, At::Offset(far - 10)).unwrap(), b"\0\0\0\0\0\0\0\0\0\0x");
    close(file);
    remove("sparse");
}

#[test]
fn duplicate_shares_the_cursor_and_a_second_open_does_not() {
    let _turn = turn();
    put("cursor", b"0123456789");
    let before = usage().handles;
    let first = open("cursor", libc::O_RDONLY).unwrap();
    let duplicate = descriptor::duplicate(first, 0, true).unwrap();
    let second = open("cursor", libc::O_RDONLY).unwrap();
    assert_eq!(usage().handles, before + 2);
    assert_eq!(read(first, 3).unwrap(), b"012");
    assert_eq!(read(duplicate, 3).unwrap(), b"345");
    assert_eq!(read(second, 3).unwrap(), b"012");
    close(first);
    assert_eq!(read(duplicate, 3).unwrap(), b"678");
    close(duplicate);
    close(second);
    assert_eq!(usage().handles, before);
    remove("cursor");
}

#[test]
fn descriptor_numbers_are_the_lowest_and_flags_belong_to_each() {
    let _turn = turn();
    let flags = |number| cairn_posix::kernel::fcntl(number, libc::F_GETFD, 0).unwrap();
    let first = create("a");
    let second = open("a", libc::O_RDWR | libc::O_CLOEXEC).unwrap();
    assert_eq!((flags(first), flags(second)), (0, libc::FD_CLOEXEC));
    close(first);
    let third = open("a", libc::O_RDONLY).unwrap();
    assert_eq!(third, first);
    assert_eq!(descriptor::duplicate_to(third, 200, 0), Ok(200));
    assert_eq!(descriptor::duplicate(third, 100, true), Ok(100));
    assert_eq!(descriptor::duplicate_to(second, 200, libc::O_CLOEXEC), Ok(200));
    assert_eq!(flags(200), libc::FD_CLOEXEC);
    [second, third, 100, 200].into_iter().for_each(close);
    assert_eq!(description::close(200), Err(EBADF));
    remove("a");
}

#[test]
fn number_taken_by_another_file_is_not_ours_any_more() {
    let _turn = turn();
    let file = create("replaced");
    let null = cairn_posix::kernel::openat(libc::AT_FDCWD, c"/dev/null", libc::O_RDWR, 0).unwrap();
    let before = usage().handles;
    assert_eq!(descriptor::duplicate_to(null, file, 0), Ok(file));
    assert!(!cairn_posix::task::table::is_ours(file));
    assert_eq!(usage().handles, before - 1);
    cairn_posix::kernel::close(file).unwrap();
    cairn_posix::kernel::close(null).unwrap();
    remove("replaced");
}

#[test]
fn unlinked_file_lives_until_its_last_close() {
    let _turn = turn();
    let blocks = || usage().used_blocks[0];
    let before = blocks();
    let file = create("ghost");
    write(file, &pattern(4 * HUGEBLOCK, 1)).unwrap();
    remove("ghost");
    assert_eq!(errno(open("ghost", libc::O_RDONLY)), libc::ENOENT);
    assert_eq!(file::attributes(handle(file)).unwrap().links, 0);
    assert_eq!(read_at(file, 5, At::Offset(7)).unwrap(), pattern(12, 1)[7..]);
    assert!(blocks() > before);
    close(file);
    assert_eq!(blocks(), before);
}

#[test]
fn direction_that_was_not_opened_is_refused() {
    let _turn = turn();
    put("one-way", b"abc");
    let reader = open("one-way", libc::O_RDONLY).unwrap();
    let writer = open("one-way", libc::O_WRONLY).unwrap();
    let namer = open("one-way", libc::O_PATH).unwrap();
    assert_eq!(write(reader, b"x"), Err(EBADF));
    assert_eq!(write(reader, b""), Err(EBADF));
    assert_eq!(read(writer, 1), Err(EBADF));
    assert_eq!(read(namer, 1), Err(EBADF));
    assert_eq!(file::truncate_handle(handle(reader), 0), Err(Errno(libc::EINVAL)));
    assert_eq!(file::sync(handle(namer)), Err(EBADF));
    [reader, writer, namer].into_iter().for_each(close);
    remove("one-way");
}

#[test]
fn flags_that_cannot_be_served_are_refused() {
    let _turn = turn();
    assert_eq!(errno(open("", libc::O_TMPFILE | libc::O_RDONLY)), libc::EINVAL);
    assert_eq!(errno(open("d", libc::O_CREAT | libc::O_DIRECTORY)), libc::EINVAL);
    assert_eq!(errno(names::make_node(&at("fifo"), libc::S_IFIFO | 0o600)), libc::EPERM);
    assert_eq!(errno(file::access(&at(""), 8, true, Rights::Effective)), libc::EINVAL);
}

#[test]
fn full_tier_gives_a_short_count_and_then_enospc() {
    let _turn = turn();
    let file = create("full");
    let chunk = pattern(1 << 20, 3);
    let mut total = 0;
    let last = loop {
        match write(file, &chunk) {
            Ok(count) if count == chunk.len() => total += count,
            other => break other,
        }
    };
    if let Ok(count) = last {
        assert!(count < chunk.len());
        total += count;
        assert_eq!(write(file, &chunk), Err(Errno(libc::ENOSPC)));
    } else {
        assert_eq!(last, Err(Errno(libc::ENOSPC)));
    }
    assert!(total <= BLOCKS as usize * HUGEBLOCK);
    assert_eq!(file::attributes(handle(file)).unwrap().size, total as u64);
    close(file);
    remove("full");
    put("again", &chunk);
    assert_eq!(get("again"), chunk);
    remove("again");
}

#[test]
fn closed_file_has_valid_checksums_even_where_it_was_overwritten() {
    let _turn = turn();
    put("sealed", &pattern(3 * HUGEBLOCK, 1));
    let file = open("sealed", libc::O_RDWR).unwrap();
    write_at(file, b"patch", At::Offset(HUGEBLOCK as u64 + 5)).unwrap();
    let inode = mount().inode_of(handle(file)).unwrap();
    let mut checksums = [None; 3];
    mount().fs().checksums(inode, 0, &mut checksums).unwrap();
    assert!(checksums[0].is_some() && checksums[1].is_none() && checksums[2].is_some());
    close(file);
    mount().fs().checksums(inode, 0, &mut checksums).unwrap();
    let content = get("sealed");
    for (block, checksum) in checksums.into_iter().enumerate() {
        let bytes = &content[block * HUGEBLOCK..(block + 1) * HUGEBLOCK];
        assert_eq!(checksum, Some(cairn_platform::checksum::crc32c(0, bytes)), "block {block}");
    }
    remove("sealed");
}
