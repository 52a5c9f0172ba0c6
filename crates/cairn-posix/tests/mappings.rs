//! Mapped files as the store sees them: checksums, blocks, writers, and the state after a death.

mod common;

use core::ffi::c_void;
use core::ops::Range;

use cairn_core::{Attributes, InodeId};
use cairn_posix::data::io::At;
use cairn_posix::descriptors::locks;
use cairn_posix::files::{file, names};
use cairn_posix::mapping::{self, Request};
use cairn_posix::process::Exec;
use cairn_posix::{Errno, kernel, pages};
use common::*;

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// A mapping of this test, unmapped when dropped.
struct Mapped {
    start: *mut u8,
    length: usize,
}

impl Mapped {
    fn new(descriptor: i32, length: usize, protection: i32, flags: i32) -> Mapped {
        Mapped::try_new(descriptor, length, protection, flags).unwrap()
    }

    fn try_new(
        descriptor: i32,
        length: usize,
        protection: i32,
        flags: i32,
    ) -> Result<Mapped, Errno> {
        let address = core::ptr::null_mut();
        let request = Request { address, length, protection, flags, offset: 0 };
        // SAFETY: no fixed address is asked for.
        let start = unsafe { mapping::map(handle(descriptor), &request) }?;
        Ok(Mapped { start: start.cast(), length })
    }

    fn to_store(descriptor: i32, length: usize) -> Mapped {
        Mapped::new(descriptor, length, READ_WRITE, libc::MAP_SHARED)
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.length);
        // SAFETY: inside the mapping; nobody has a reference to it.
        unsafe { core::ptr::copy(bytes.as_ptr(), self.start.add(at), bytes.len()) };
    }

    fn load(&self, range: Range<usize>) -> Vec<u8> {
        assert!(range.end <= self.length);
        // SAFETY: inside the mapping; each byte is copied, and no reference to it is made.
        range.map(|at| unsafe { self.start.add(at).read_volatile() }).collect()
    }

    fn unmap_part(&self, range: Range<usize>) {
        let start: *mut c_void = self.start.wrapping_add(range.start).cast();
        // SAFETY: a part of the mapping, which the test does not use afterwards.
        unsafe { mapping::unmap(start, range.len()) }.expect("it is ours").unwrap();
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is not used any more. Parts of it may be unmapped already.
        let _ = unsafe { mapping::unmap(self.start.cast(), self.length) };
    }
}

fn attributes(name: &str) -> Attributes {
    file::stat(&at(name), true).unwrap()
}

/// Returns for each of the file's blocks whether its checksum is valid.
fn sealed(inode: InodeId, blocks: usize) -> Vec<bool> {
    let mut found = vec![None; blocks];
    mount().fs().checksums(inode, 0, &mut found).unwrap();
    found.iter().map(Option::is_some).collect()
}

fn checked() -> cairn_core::Report {
    mount().fs().check().unwrap()
}

#[test]
fn checksums_are_void_while_a_file_is_mapped_to_be_stored_to_and_valid_afterwards() {
    let _turn = turn();
    let content = pattern(4 * HUGEBLOCK, 3);
    put("sums", &content);
    let inode = attributes("sums").inode;
    let descriptor = open("sums", libc::O_RDWR).unwrap();
    let mapped = Mapped::to_store(descriptor, 2 * HUGEBLOCK);
    assert_eq!(sealed(inode, 4), [false, false, true, true]);
    // Neither a write of a whole block nor a sync makes a checksum valid: a store may come at any
    // time.
    write_at(descriptor, &content[..HUGEBLOCK], At::Offset(0)).unwrap();
    file::sync(handle(descriptor)).unwrap();
    close(descriptor);
    assert_eq!(sealed(inode, 2), [false, false]);
    assert_eq!(attributes("sums").writers, 1);
    let version = attributes("sums").version;
    mapped.store(HUGEBLOCK, b"stored");
    checked();
    drop(mapped);
    assert_eq!(sealed(inode, 4), [true; 4]);
    let after = attributes("sums");
    assert_eq!((after.writers, after.opens, after.unclean), (0, 0, false));
    assert!(after.version > version, "what was drained is drained again");
    assert_eq!(get("sums")[HUGEBLOCK..][..6], *b"stored");
    checked();
    remove("sums");
}

#[test]
fn mapping_that_only_reads_leaves_the_file_as_it_is() {
    let _turn = turn();
    put("read", &pattern(2 * HUGEBLOCK, 4));
    let before = attributes("read");
    let descriptor = open("read", libc::O_RDWR).unwrap();
    let mapped = Mapped::new(descriptor, 2 * HUGEBLOCK, libc::PROT_READ, libc::MAP_SHARED);
    let private = Mapped::new(descriptor, 2 * HUGEBLOCK, READ_WRITE, libc::MAP_PRIVATE);
    close(descriptor);
    private.store(0, b"own");
    assert_eq!(sealed(before.inode, 2), [true; 2]);
    assert_eq!((attributes("read").writers, attributes("read").version), (0, before.version));
    // SAFETY: pages of the mapping.
    let changed = unsafe { mapping::protect(mapped.start.cast(), 4096, READ_WRITE) };
    assert_eq!(changed, Some(Ok(())));
    assert_eq!(sealed(before.inode, 2), [false; 2]);
    assert_eq!(attributes("read").writers, 1);
    mapped.store(0, b"all");
    drop(mapped);
    assert_eq!(attributes("read").writers, 0);
    assert_eq!(private.load(0..3), b"own");
    drop(private);
    assert_eq!(get("read")[..3], *b"all");
    checked();
    remove("read");
}

#[test]
fn blocks_cut_from_a_mapped_file_are_nobody_elses_before_it_is_unmapped() {
    let _turn = turn();
    let before = usage();
    for (size, name) in [(0, "emptied"), (HUGEBLOCK + 10, "cut")] {
        let content = pattern(40 * HUGEBLOCK, 5);
        put(name, &content);
        let descriptor = open(name, libc::O_RDWR).unwrap();
        let mapped = Mapped::to_store(descriptor, 40 * HUGEBLOCK);
        // A process that does not look at the file sees the old content, and its stores go to
        // blocks that belong to no other file.
        let status = forked(|| {
            let descriptor = open(name, libc::O_RDWR).unwrap();
            file::truncate_handle(handle(descriptor), size as i64).unwrap();
            close(descriptor);
        });
        assert_eq!(status, 0);
        assert_eq!(checked().orphaned_blocks, 40 - size.div_ceil(HUGEBLOCK) as u64);
        assert_eq!(usage().orphans, 0, "what is in limbo does not keep anything else waiting");
        put("other", &pattern(64 * HUGEBLOCK, 6));
        mapped.store(20 * HUGEBLOCK, &[0xee; HUGEBLOCK]);
        assert_eq!(get("other"), pattern(64 * HUGEBLOCK, 6));
        remove("other");
        pages::follow(attributes(name).inode);
        file::truncate_handle(handle(descriptor), 40 * HUGEBLOCK as i64).unwrap();
        assert_eq!(mapped.load(20 * HUGEBLOCK..20 * HUGEBLOCK + 2), [0, 0]);
        close(descriptor);
        drop(mapped);
        assert_eq!(checked().orphaned_blocks, 0);
        assert!(get(name)[size..].iter().all(|&byte| byte == 0));
        remove(name);
    }
    assert_eq!(usage().used_blocks, before.used_blocks);
}

#[test]
fn process_that_dies_with_a_mapping_leaves_its_stores_and_an_unclean_file() {
    let _turn = turn();
    let before = usage();
    for (name, flags, protection, unclean) in [
        ("stored", libc::MAP_SHARED, READ_WRITE, true),
        ("looked-at", libc::MAP_SHARED, libc::PROT_READ, false),
        ("private", libc::MAP_PRIVATE, READ_WRITE, false),
    ] {
        put(name, &pattern(2 * HUGEBLOCK, 7));
        let status = forked(|| {
            let descriptor = open(name, libc::O_RDWR).unwrap();
            let mapped = Mapped::new(descriptor, 2 * HUGEBLOCK, protection, flags);
            close(descriptor);
            if protection == READ_WRITE {
                mapped.store(0, b"last words");
            }
            // SAFETY: ends the process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        });
        assert_eq!(status, 128 + libc::SIGKILL);
        assert_eq!(attributes(name).opens, 1);
        reap();
        let after = attributes(name);
        assert_eq!((after.opens, after.writers, after.unclean), (0, 0, unclean), "{name}");
        assert_eq!(&get(name)[..10] == b"last words", unclean, "{name}");
        checked();
        remove(name);
    }
    assert_eq!(usage().used_blocks, before.used_blocks);
}

#[test]
fn process_that_exits_with_a_mapping_leaves_a_clean_file() {
    let _turn = turn();
    put("left", &pattern(2 * HUGEBLOCK, 8));
    let status = forked(|| {
        let descriptor = open("left", libc::O_RDWR).unwrap();
        let mapped = Mapped::to_store(descriptor, 2 * HUGEBLOCK);
        mapped.store(5, b"kept");
        core::mem::forget(mapped);
    });
    assert_eq!(status, 0);
    let after = attributes("left");
    assert_eq!((after.opens, after.unclean), (0, false));
    assert_eq!(sealed(after.inode, 2), [true; 2]);
    assert_eq!(get("left")[5..9], *b"kept");
    remove("left");
}

#[test]
fn child_that_inherits_a_mapping_keeps_it_until_it_ends_or_executes() {
    let _turn = turn();
    put("inherited", &pattern(2 * HUGEBLOCK, 9));
    let descriptor = open("inherited", libc::O_RDWR).unwrap();
    let mapped = Mapped::to_store(descriptor, 2 * HUGEBLOCK);
    close(descriptor);
    let [reader, writer] = kernel::pipe().unwrap();
    let [told, tell] = kernel::pipe().unwrap();
    let spawn = cairn_posix::process::Spawn::begin().unwrap();
    // SAFETY: the child leaves without the parent's exit handlers.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        kernel::close(writer).unwrap();
        spawn.child();
        let _ = kernel::read(reader, &mut [0]);
        mapped.store(0, b"child");
        let exec = Exec::begin(false);
        kernel::write(tell, b"x").unwrap();
        let _ = kernel::read(reader, &mut [0]);
        exec.failed();
        mapped.store(0, b"alone");
        cairn_posix::process::end();
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    spawn.parent(pid);
    drop(mapped);
    assert_eq!(attributes("inherited").writers, 1);
    kernel::write(writer, b"x").unwrap();
    let _ = kernel::read(told, &mut [0]);
    // The child is about to execute a program that may run for long and never look at the file.
    assert_eq!(attributes("inherited").writers, 0);
    kernel::write(writer, b"x").unwrap();
    assert_eq!(wait(pid), 0);
    [reader, writer, told, tell].into_iter().for_each(|end| kernel::close(end).unwrap());
    let after = attributes("inherited");
    assert_eq!((after.opens, after.unclean), (0, false));
    assert_eq!(get("inherited")[..5], *b"child");
    checked();
    remove("inherited");
}

#[test]
fn child_that_nobody_announced_keeps_the_blocks_that_it_has_mapped() {
    let _turn = turn();
    put("unseen", &pattern(8 * HUGEBLOCK, 3));
    let descriptor = open("unseen", libc::O_RDWR).unwrap();
    let mapped = Mapped::to_store(descriptor, 8 * HUGEBLOCK);
    let [reader, writer] = kernel::pipe().unwrap();
    let [told, tell] = kernel::pipe().unwrap();
    // SAFETY: the child leaves without the parent's exit handlers.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        kernel::close(writer).unwrap();
        let attached = file::attributes(handle(descriptor)).is_ok();
        close(descriptor);
        kernel::write(tell, b"x").unwrap();
        let _ = kernel::read(reader, &mut [0]);
        mapped.store(4 * HUGEBLOCK, b"mine");
        let kept = mapped.load(0..4) == pattern(4, 3);
        cairn_posix::process::end();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!attached || !kept)) };
    }
    let _ = kernel::read(told, &mut [0]);
    close(descriptor);
    drop(mapped);
    remove("unseen");
    put("other", &pattern(64 * HUGEBLOCK, 4));
    kernel::write(writer, b"x").unwrap();
    assert_eq!(wait(pid), 0);
    [reader, writer, told, tell].into_iter().for_each(|end| kernel::close(end).unwrap());
    assert_eq!(get("other"), pattern(64 * HUGEBLOCK, 4));
    checked();
    remove("other");
}

#[test]
fn holes_that_are_mapped_to_be_stored_to_get_blocks_or_the_mapping_is_refused() {
    let _turn = turn();
    let before = usage();
    let descriptor = create("sparse");
    file::truncate_handle(handle(descriptor), 100 * HUGEBLOCK as i64).unwrap();
    let looked_at = Mapped::new(descriptor, 100 * HUGEBLOCK, libc::PROT_READ, libc::MAP_SHARED);
    assert_eq!(attributes("sparse").allocated_bytes, 0);
    let mapped = Mapped::to_store(descriptor, 60 * HUGEBLOCK);
    assert_eq!(attributes("sparse").allocated_bytes, 60 * HUGEBLOCK as u64);
    drop((mapped, looked_at));
    let too_much = 2 * BLOCKS as usize * HUGEBLOCK;
    file::truncate_handle(handle(descriptor), too_much as i64).unwrap();
    let refused = Mapped::try_new(descriptor, too_much, READ_WRITE, libc::MAP_SHARED).err();
    assert_eq!(refused, Some(Errno(libc::ENOSPC)));
    assert!(Mapped::try_new(descriptor, too_much, READ_WRITE, libc::MAP_PRIVATE).is_ok());
    assert_eq!(attributes("sparse").opens, 1);
    checked();
    close(descriptor);
    remove("sparse");
    assert_eq!(usage().used_blocks, before.used_blocks);
}

#[test]
fn bytes_stored_behind_the_end_do_not_become_the_files() {
    let _turn = turn();
    put("behind", b"short");
    let descriptor = open("behind", libc::O_RDWR).unwrap();
    let mapped = Mapped::to_store(descriptor, 4096);
    mapped.store(0, &[b'x'; 4096]);
    write_at(descriptor, b"far", At::Offset(100)).unwrap();
    let content = read_at(descriptor, 200, At::Offset(0)).unwrap();
    assert_eq!(content, [&[b'x'; 5][..], &[0; 95], b"far"].concat());
    mapped.store(103, &[b'y'; 200]);
    file::truncate_handle(handle(descriptor), 200).unwrap();
    let content = read_at(descriptor, 300, At::Offset(0)).unwrap();
    assert_eq!(content[100..], [&b"far"[..], &[0; 97]].concat());
    drop(mapped);
    close(descriptor);
    assert_eq!(get("behind").len(), 200);
    checked();
    remove("behind");
}

#[test]
fn parts_of_a_mapping_are_unmapped_then_the_last_one_ends_it() {
    let _turn = turn();
    put("parts", &pattern(6 * HUGEBLOCK, 2));
    let descriptor = open("parts", libc::O_RDWR).unwrap();
    let mapped = Mapped::to_store(descriptor, 6 * HUGEBLOCK);
    close(descriptor);
    mapped.unmap_part(2 * HUGEBLOCK..3 * HUGEBLOCK);
    mapped.unmap_part(0..HUGEBLOCK);
    mapped.unmap_part(5 * HUGEBLOCK..6 * HUGEBLOCK);
    assert_eq!(attributes("parts").writers, 1);
    mapped.store(4 * HUGEBLOCK, b"left");
    mapped.unmap_part(HUGEBLOCK..6 * HUGEBLOCK);
    assert_eq!(attributes("parts").opens, 0);
    assert_eq!(get("parts")[4 * HUGEBLOCK..][..4], *b"left");
    remove("parts");
}

#[test]
fn memory_that_is_not_ours_is_left_to_the_kernel() {
    let _turn = turn();
    put("ours", &pattern(HUGEBLOCK, 1));
    let descriptor = open("ours", libc::O_RDWR).unwrap();
    let mapped = Mapped::to_store(descriptor, HUGEBLOCK);
    close(descriptor);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let foreign: *mut c_void = kernel::mmap(HUGEBLOCK, READ_WRITE, flags, -1, 0).unwrap().cast();
    // SAFETY: nothing is done to the memory.
    unsafe {
        assert!(mapping::unmap(foreign, HUGEBLOCK).is_none());
        assert!(mapping::protect(foreign, HUGEBLOCK, READ_WRITE).is_none());
        assert!(mapping::sync(foreign, HUGEBLOCK, libc::MS_SYNC).is_none());
        assert!(mapping::advise(foreign, HUGEBLOCK, libc::MADV_NORMAL).is_none());
        let nowhere = core::ptr::null_mut();
        assert!(mapping::remap(foreign, HUGEBLOCK, 4096, 0, nowhere).is_none());
        kernel::munmap(foreign.cast(), HUGEBLOCK).unwrap();
    }
    mapped.store(0, b"!");
    drop(mapped);
    assert!(!mapping::any());
    remove("ours");
}

#[test]
fn removed_pages_are_zeros_of_the_file() {
    let _turn = turn();
    put("removed", &pattern(2 * HUGEBLOCK, 1));
    let descriptor = open("removed", libc::O_RDWR).unwrap();
    let mapped = Mapped::to_store(descriptor, 2 * HUGEBLOCK);
    // SAFETY: pages of the mapping.
    let removed = unsafe { mapping::advise(mapped.start.cast(), HUGEBLOCK, libc::MADV_REMOVE) };
    assert_eq!(removed, Some(Ok(())));
    drop(mapped);
    close(descriptor);
    assert!(get("removed")[..HUGEBLOCK].iter().all(|&byte| byte == 0));
    assert_eq!(get("removed")[HUGEBLOCK..], pattern(2 * HUGEBLOCK, 1)[HUGEBLOCK..]);
    remove("removed");
}

/// Files of the stress test; each is filled with a byte of its own.
const NAMES: [&str; 5] = ["mine", "yours", "his", "hers", "theirs"];
const BLOCKS_MAX: u64 = 12;

/// Pseudo-random numbers from a seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// One process of the stress test. It works on files that others map, write, truncate and remove at
/// the same time.
struct Meddler {
    chance: Chance,
    /// File that is locked exclusively to truncate, and shared to prevent truncation.
    lock: i32,
    /// Mappings: index of the file, a descriptor of it, and the mapping.
    maps: Vec<(usize, i32, Mapped)>,
}

impl Meddler {
    fn tag(file: usize) -> u8 {
        file as u8 + 1
    }

    fn step(&mut self) {
        let file = self.chance.below(NAMES.len() as u64) as usize;
        let (name, offset) = (NAMES[file], self.chance.below(BLOCKS_MAX * HUGEBLOCK as u64));
        match self.chance.below(9) {
            8 => self.append(file),
            0 => drop(names::unlink(&at(name))),
            1 if !self.maps.is_empty() => {
                let gone = self.chance.below(self.maps.len() as u64) as usize;
                close(self.maps.swap_remove(gone).1);
            }
            2 => {
                let descriptor = open(name, libc::O_RDWR | libc::O_CREAT).unwrap();
                locks::lock_whole(self.lock, libc::LOCK_EX).unwrap();
                file::truncate_handle(handle(descriptor), offset as i64).unwrap();
                locks::lock_whole(self.lock, libc::LOCK_UN).unwrap();
                close(descriptor);
            }
            3 => {
                let descriptor = open(name, libc::O_RDWR | libc::O_CREAT).unwrap();
                let bytes = vec![Meddler::tag(file); self.chance.below(100_000) as usize + 1];
                let written = write_at(descriptor, &bytes, At::Offset(offset));
                assert!(matches!(written, Ok(_) | Err(Errno(libc::ENOSPC))), "{written:?}");
                close(descriptor);
            }
            4 | 5 if self.maps.len() < 4 => {
                let descriptor = open(name, libc::O_RDWR | libc::O_CREAT).unwrap();
                let length = offset as usize + 1;
                match Mapped::try_new(descriptor, length, READ_WRITE, libc::MAP_SHARED) {
                    Ok(mapped) => self.maps.push((file, descriptor, mapped)),
                    Err(errno) => assert_eq!(errno, Errno(libc::ENOSPC)),
                }
            }
            _ => self.touch(),
        }
    }

    /// Appends to a file in small writes.
    fn append(&mut self, file: usize) {
        let descriptor = open(NAMES[file], libc::O_RDWR | libc::O_CREAT).unwrap();
        file::seek(handle(descriptor), 0, libc::SEEK_END).unwrap();
        for _ in 0..self.chance.below(60) {
            let bytes = vec![Meddler::tag(file); self.chance.below(300) as usize + 1];
            let written = write(descriptor, &bytes);
            assert!(matches!(written, Ok(_) | Err(Errno(libc::ENOSPC))), "{written:?}");
        }
        close(descriptor);
    }

    /// Reads the sizes of the files while nobody can truncate them, and then stores to each mapping
    /// while others truncate the files. Every byte found must still be the file's own or zero.
    fn touch(&mut self) {
        locks::lock_whole(self.lock, libc::LOCK_SH).unwrap();
        let size = |descriptor| file::attributes(handle(descriptor)).unwrap().size;
        let sizes: Vec<u64> =
            self.maps.iter().map(|(_, descriptor, _)| size(*descriptor)).collect();
        locks::lock_whole(self.lock, libc::LOCK_UN).unwrap();
        for _ in 0..50 {
            kernel::sched_yield();
            for ((file, _, mapped), size) in self.maps.iter().zip(&sizes) {
                let length = (*size).min(mapped.length as u64);
                if length > 0 {
                    let at = self.chance.below(length) as usize;
                    let found = mapped.load(at..at + 1)[0];
                    assert!([0, Meddler::tag(*file)].contains(&found), "{found} in {file}");
                    mapped.store(at, &[Meddler::tag(*file)]);
                }
            }
        }
    }
}

/// Starts a process that makes random changes and ends at random: orderly or by a signal.
fn meddling(seed: u64) -> i32 {
    let spawn = cairn_posix::process::Spawn::begin().unwrap();
    // SAFETY: the child leaves without the parent's exit handlers.
    let pid = unsafe { libc::fork() };
    if pid > 0 {
        spawn.parent(pid);
        return pid;
    }
    spawn.child();
    let meddled = std::panic::catch_unwind(|| {
        let lock = open("lock", libc::O_RDWR | libc::O_CREAT).unwrap();
        let mut meddler = Meddler { chance: Chance(seed), lock, maps: Vec::new() };
        for _ in 0..60 {
            meddler.step();
        }
        if meddler.chance.below(2) == 0 {
            // SAFETY: ends the process, with what it has mapped.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        core::mem::forget(meddler);
    });
    cairn_posix::process::end();
    // SAFETY: ends the child.
    unsafe { libc::_exit(i32::from(meddled.is_err())) }
}

#[test]
fn processes_that_map_cut_and_remove_the_same_files_and_die_get_nobody_elses_bytes() {
    let _turn = turn();
    let before = usage();
    for round in 1..=25 {
        let seed = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(round);
        println!("round {round}, seed {seed:#x}");
        let children = [1, 2, 3].map(|child| meddling(seed.rotate_left(child * 7) | 1));
        for pid in children {
            let end = wait(pid);
            assert!(end == 0 || end == 128 + libc::SIGKILL, "it ended with {end}");
        }
        reap();
        mount().fs().reclaim(None).unwrap();
        checked();
        for (file, name) in NAMES.iter().enumerate() {
            if file::stat(&at(name), true).is_ok() {
                let is_own = |&byte: &u8| byte == 0 || byte == Meddler::tag(file);
                assert!(get(name).iter().all(is_own), "{name} has bytes of others");
            }
        }
    }
    NAMES.iter().chain(&["lock"]).for_each(|name| drop(names::unlink(&at(name))));
    while mount().fs().reclaim(None).unwrap() {}
    assert_eq!((usage().used_blocks, usage().handles), (before.used_blocks, before.handles));
    assert_eq!(checked().orphaned_blocks, 0);
}
