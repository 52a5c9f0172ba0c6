//! Locks between the processes of a node.

mod common;

use cairn_posix::Errno;
use cairn_posix::descriptors::description;
use cairn_posix::descriptors::locks;
use cairn_posix::files::file;
use common::*;

const AGAIN: Errno = Errno(libc::EAGAIN);

fn range(kind: i32, start: i64, length: i64) -> libc::flock {
    // SAFETY: plain integers, for which zero is a valid value.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_start = start;
    lock.l_len = length;
    lock
}

fn set(file: i32, kind: i32, start: i64, length: i64) -> Result<(), Errno> {
    locks::lock_range(file, libc::F_SETLK, &mut range(kind, start, length))
}

/// Returns the result of another process that tries `lock` on a descriptor of its own.
fn elsewhere(name: &str, lock: impl FnOnce(i32) -> Result<(), Errno>) -> Result<(), Errno> {
    let status = forked(|| {
        let file = open(name, libc::O_RDWR).unwrap();
        let outcome = lock(file).map_or_else(|Errno(number)| number, |()| 0);
        cairn_posix::process::end();
        // SAFETY: ends the child with the outcome as its status.
        unsafe { libc::_exit(outcome) };
    });
    if status == 0 { Ok(()) } else { Err(Errno(status)) }
}

#[test]
fn whole_file_lock_belongs_to_the_description() {
    let _turn = turn();
    put("whole", b"0123456789");
    let file = open("whole", libc::O_RDWR).unwrap();
    let duplicate = cairn_posix::descriptors::descriptor::duplicate(file, 0, true).unwrap();
    let exclusive = libc::LOCK_EX | libc::LOCK_NB;
    assert_eq!(locks::lock_whole(file, exclusive), Ok(()));
    assert_eq!(locks::lock_whole(duplicate, exclusive), Ok(()));
    assert_eq!(elsewhere("whole", |other| locks::lock_whole(other, exclusive)), Err(AGAIN));
    close(file);
    assert_eq!(elsewhere("whole", |other| locks::lock_whole(other, exclusive)), Err(AGAIN));
    close(duplicate);
    assert_eq!(elsewhere("whole", |other| locks::lock_whole(other, exclusive)), Ok(()));
    remove("whole");
}

#[test]
fn range_lock_belongs_to_the_process_and_any_close_drops_it() {
    let _turn = turn();
    put("ranges", b"0123456789");
    let file = open("ranges", libc::O_RDWR).unwrap();
    file::seek(handle(file), 4, libc::SEEK_SET).unwrap();
    let mut lock = range(libc::F_WRLCK, -2, 3);
    lock.l_whence = libc::SEEK_CUR as i16;
    locks::lock_range(file, libc::F_SETLK, &mut lock).unwrap();
    let overlapping = |other| set(other, libc::F_WRLCK, 4, 1);
    let apart = |other| set(other, libc::F_WRLCK, 5, 1);
    assert_eq!(elsewhere("ranges", overlapping), Err(AGAIN));
    assert_eq!(elsewhere("ranges", apart), Ok(()));
    let mut found = range(libc::F_WRLCK, 0, 0);
    locks::lock_range(file, libc::F_GETLK, &mut found).unwrap();
    assert_eq!(i32::from(found.l_type), libc::F_UNLCK);
    close(open("ranges", libc::O_RDONLY).unwrap());
    assert_eq!(elsewhere("ranges", overlapping), Ok(()));
    close(file);
    remove("ranges");
}

#[test]
fn section_lock_starts_at_the_cursor() {
    let _turn = turn();
    put("section", b"0123456789");
    let file = open("section", libc::O_RDWR).unwrap();
    file::seek(handle(file), 3, libc::SEEK_SET).unwrap();
    locks::lock_section(file, libc::F_TLOCK, 4).unwrap();
    assert_eq!(elsewhere("section", |other| set(other, libc::F_WRLCK, 0, 3)), Ok(()));
    assert_eq!(elsewhere("section", |other| set(other, libc::F_WRLCK, 6, 1)), Err(AGAIN));
    assert_eq!(locks::lock_section(file, libc::F_TEST, 4), Ok(()));
    locks::lock_section(file, libc::F_ULOCK, 4).unwrap();
    assert_eq!(elsewhere("section", |other| set(other, libc::F_WRLCK, 0, 0)), Ok(()));
    close(file);
    remove("section");
}

#[test]
fn lock_needs_the_right_direction() {
    let _turn = turn();
    put("direction", b"0123456789");
    let reader = open("direction", libc::O_RDONLY).unwrap();
    assert_eq!(set(reader, libc::F_WRLCK, 0, 0), Err(EBADF));
    assert_eq!(set(reader, libc::F_RDLCK, 0, 0), Ok(()));
    close(reader);
    assert_eq!(locks::lock_whole(reader, libc::LOCK_SH), Err(EBADF));
    remove("direction");
}

/// Mechanism: a lock file belonged to an inode number.
///
/// Consequence: a new file could not be locked while a process was ending that had locked the
/// removed file with the same number.
///
/// Fix: a lock file belongs to one file.
#[test]
fn lock_does_not_outlive_its_file() {
    let _turn = turn();
    let exclusive = libc::LOCK_EX | libc::LOCK_NB;
    let inode = |number| description::opened(handle(number)).unwrap().inode;
    put("locked", b"0123456789");
    let old = open("locked", libc::O_RDWR).unwrap();
    let was = inode(old);
    locks::lock_whole(old, exclusive).unwrap();
    // As in a process that has closed its files but not ended: the kernel's lock stays.
    let mut kept = Vec::new();
    cairn_posix::descriptors::locks::for_each_descriptor(&mut |lock| {
        // SAFETY: duplicates a descriptor that is open.
        kept.push(unsafe { libc::dup(lock) });
    });
    close(old);
    remove("locked");
    put("locked", b"anew");
    let new = open("locked", libc::O_RDWR).unwrap();
    assert_eq!(inode(new), was, "the number is used again");
    assert_eq!(locks::lock_whole(new, exclusive), Ok(()));
    assert_eq!(elsewhere("locked", |other| locks::lock_whole(other, exclusive)), Err(AGAIN));
    close(new);
    // SAFETY: the numbers are ours.
    kept.iter().for_each(|&lock| assert_eq!(unsafe { libc::close(lock) }, 0));
    remove("locked");
}
