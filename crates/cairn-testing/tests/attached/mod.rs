//! A separate store for a test program, under a temporary root, attached in this process as the
//! mount `/cairn`.
//!
//! A process has one mount, so a test program has one store. The root is removed when the program
//! ends.

// Each test file is a program of its own and uses only a part of this.
#![allow(dead_code)]

use cairn_core::{Attributes, Geometry, Report, Usage};
use cairn_device::Store;
use cairn_device::store::namespace::create_namespace;
use cairn_platform::{process, sys};
use cairn_posix::data::io::{self, At};
use cairn_posix::data::transfer::Buffers;
use cairn_posix::descriptors::description;
use cairn_posix::files::place::Place;
use cairn_posix::files::{file, names};
use cairn_posix::kernel::configuration::{self, Scope};
use cairn_posix::mount::{self, Mount};
use cairn_posix::task::table;
use cairn_posix::{PathResult, Result};
use std::path::PathBuf;
use std::sync::OnceLock;

pub const HUGEBLOCK: usize = 32 << 10;

static ROOT: OnceLock<PathBuf> = OnceLock::new();

/// Makes the store of this program, if it does not exist, with `blocks` hugeblocks and
/// `inode_capacity` inodes.
pub fn store(blocks: u32, inode_capacity: u32) {
    ROOT.get_or_init(|| {
        let root = PathBuf::from(format!("/dev/shm/cairn-testing-{}", std::process::id()));
        std::fs::create_dir(&root).expect("a root of our own");
        let store = Store::create(&root, "job").expect("a store");
        let geometry = Geometry {
            hugeblock_bytes: HUGEBLOCK as u32,
            inode_capacity,
            ..Geometry::new(b"/cairn", [blocks, 0, 0, 0], 0)
        };
        create_namespace(&store, "node", geometry, false).expect("a namespace");
        let path = store.path().as_os_str().as_encoded_bytes();
        configuration::set(path, b"/cairn", Scope::Node).expect("a configuration");
        // SAFETY: the function only removes the directory made above, and does not run in children,
        // which end with `_exit`.
        unsafe { libc::atexit(remove_root) };
        root
    });
}

extern "C" fn remove_root() {
    if let Some(root) = ROOT.get() {
        let _ = std::fs::remove_dir_all(root);
    }
}

pub fn mount() -> &'static Mount {
    mount::current().expect("attached")
}

pub fn usage() -> Usage {
    mount().fs().usage().expect("usage")
}

/// Returns the place of a name below the mount's root.
pub fn at(name: &str) -> Place<'_> {
    Place { base: cairn_core::ROOT, path: name.as_bytes() }
}

pub fn open(name: &str, flags: i32) -> PathResult<i32> {
    file::open(&at(name), flags, 0o644)
}

pub fn close(descriptor: i32) {
    description::close(descriptor).expect("closes");
}

pub fn write_at(descriptor: i32, bytes: &[u8], at: At) -> Result<usize> {
    let entry = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let handle = table::lookup(descriptor).expect("ours");
    // SAFETY: the entry describes `bytes`, which writing only reads.
    io::write(handle, unsafe { Buffers::one(&entry) }, at)
}

pub fn write(descriptor: i32, bytes: &[u8]) -> Result<usize> {
    write_at(descriptor, bytes, At::Cursor)
}

pub fn read(descriptor: i32, length: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0xee; length];
    let entry = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: length };
    let handle = table::lookup(descriptor).expect("ours");
    // SAFETY: the entry describes `bytes`, which nothing else accesses during the call.
    let got = io::read(handle, unsafe { Buffers::one(&entry) }, At::Cursor)?;
    bytes.truncate(got);
    Ok(bytes)
}

/// Creates or replaces a file with these bytes.
pub fn put(name: &str, bytes: &[u8]) {
    let descriptor = open(name, libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC).expect("opens");
    assert_eq!(write(descriptor, bytes), Ok(bytes.len()), "{name}");
    close(descriptor);
}

/// Returns all bytes of a file.
pub fn get(name: &str) -> Vec<u8> {
    let descriptor = open(name, libc::O_RDONLY).expect("opens");
    let size = file::stat(&at(name), true).expect("stat").size as usize;
    let bytes = read(descriptor, size + 1).expect("reads");
    close(descriptor);
    bytes
}

/// Returns the attributes of a file, if it exists.
pub fn stat(name: &str) -> Option<Attributes> {
    match file::stat(&at(name), true) {
        Ok(attributes) => Some(attributes),
        Err(error) => {
            assert_eq!(error.errno().0, libc::ENOENT, "stat of {name}");
            None
        }
    }
}

pub fn remove(name: &str) {
    names::unlink(&at(name)).expect("removes");
}

pub fn errno<T>(result: PathResult<T>) -> i32 {
    result.err().map_or(0, |error| error.errno().0)
}

/// Cleans up after dead processes, as the agent does. Returns their number.
pub fn reap() -> usize {
    let found = mount().fs().processes().expect("processes").into_iter();
    let dead = found.filter(|&(_, identity)| !process::is_alive(identity));
    dead.filter(|&(slot, dead)| mount().fs().reap(slot, dead, sys::now()).expect("reaps")).count()
}

/// Frees all orphans, checks every invariant, and checks that no block is lost.
pub fn check() -> Report {
    while mount().fs().orphans() > 0 {
        let more = mount().fs().reclaim(Some(mount().slot())).expect("reclaims");
        assert!(more || mount().fs().orphans() == 0, "orphans that cannot be freed");
    }
    let report = mount().fs().check().expect("a consistent store");
    let accounted = report.free_blocks + report.file_blocks;
    assert_eq!(accounted, report.capacity_blocks, "free and in files is all: {report:?}");
    assert_eq!((report.orphaned_blocks, report.reserved_blocks), (0, 0), "{report:?}");
    report
}

/// Compares each block of a file with its checksum, where that is valid.
pub fn compare_checksums(name: &str, content: &[u8]) {
    let inode = file::stat(&at(name), true).expect("stat").inode;
    let mut checksums = vec![None; content.len().div_ceil(HUGEBLOCK)];
    mount().fs().checksums(inode, 0, &mut checksums).expect("checksums");
    let mut block = vec![0; HUGEBLOCK];
    for (number, (bytes, checksum)) in content.chunks(HUGEBLOCK).zip(checksums).enumerate() {
        if let Some(checksum) = checksum {
            block[..bytes.len()].copy_from_slice(bytes);
            block[bytes.len()..].fill(0);
            let actual = cairn_platform::checksum::crc32c(0, &block);
            assert_eq!(actual, checksum, "checksum of {name}, block {number}");
        }
    }
}
