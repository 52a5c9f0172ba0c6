//! A store of its own for each test program, attached in this process as the mount `/cairn`.
//!
//! A process has one mount, one descriptor table and one current directory, so the tests of a
//! program take turns.

// Each test file is a program of its own and uses only a part of this module.
#![allow(dead_code)]

use cairn_posix::descriptors::description;
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use cairn_core::{Caller, Geometry, HandleId, Usage};
use cairn_device::Store;
use cairn_device::store::namespace::create_namespace;
use cairn_platform::{process, sys};
use cairn_posix::data::io::{self, At};
use cairn_posix::data::transfer::Buffers;
use cairn_posix::files::path::Route;
use cairn_posix::files::place::Place;
use cairn_posix::files::{file, names, path};
use cairn_posix::kernel::configuration::{self, Scope};
use cairn_posix::mount::{self, Mount};
use cairn_posix::task::table;
use cairn_posix::{Errno, PathResult, Result};

pub const HUGEBLOCK: usize = 32 << 10;
/// Hugeblocks of the tier; few, so that a test can fill it.
pub const BLOCKS: u32 = 512;

static TURN: Mutex<()> = Mutex::new(());
static STORE: OnceLock<PathBuf> = OnceLock::new();

/// Creates the store on first use and waits for this test's turn.
pub fn turn() -> MutexGuard<'static, ()> {
    let guard = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    STORE.get_or_init(|| {
        let root = PathBuf::from(format!("/dev/shm/cairn-posix-test-{}", std::process::id()));
        std::fs::create_dir(&root).unwrap();
        let store = Store::create(&root, "job").unwrap();
        let geometry = Geometry {
            hugeblock_bytes: HUGEBLOCK as u32,
            inode_capacity: 4096,
            ..Geometry::new(b"/cairn", [BLOCKS, 0, 0, 0], 0)
        };
        create_namespace(&store, "node", geometry, false).unwrap();
        let path = store.path().to_owned();
        configuration::set(path.as_os_str().as_encoded_bytes(), b"/cairn", Scope::Node).unwrap();
        // SAFETY: the function only removes the directory made above.
        unsafe { libc::atexit(remove_store) };
        path
    });
    guard
}

extern "C" fn remove_store() {
    if let Some(root) = STORE.get().and_then(|path| path.parent()?.parent()) {
        let _ = std::fs::remove_dir_all(root);
    }
}

pub fn mount() -> &'static Mount {
    mount::current().unwrap()
}

pub fn caller() -> Caller {
    mount().caller()
}

pub fn usage() -> Usage {
    mount().fs().usage().unwrap()
}

/// Returns the place of a name below the mount's root.
pub fn at(name: &str) -> Place<'_> {
    Place { base: cairn_core::ROOT, path: name.as_bytes() }
}

/// Returns what the predicate says about an absolute or relative path.
pub fn routed(text: &str) -> Option<(u32, String)> {
    let text = CString::new(text).unwrap();
    // SAFETY: the string is NUL-terminated and lives to the end of the function.
    match unsafe { path::route(text.as_ptr()) } {
        Route::Place(place) => {
            Some((place.base.0, String::from_utf8(place.path.to_vec()).unwrap()))
        }
        _ => None,
    }
}

pub fn open(name: &str, flags: i32) -> PathResult<i32> {
    file::open(&at(name), flags, 0o644)
}

pub fn create(name: &str) -> i32 {
    open(name, libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC).unwrap()
}

pub fn handle(descriptor: i32) -> HandleId {
    table::lookup(descriptor).unwrap()
}

pub fn close(descriptor: i32) {
    description::close(descriptor).unwrap();
}

pub fn write_at(descriptor: i32, bytes: &[u8], at: At) -> Result<usize> {
    let entry = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: the entry describes `bytes`, which writing only reads.
    io::write(handle(descriptor), unsafe { Buffers::one(&entry) }, at)
}

pub fn write(descriptor: i32, bytes: &[u8]) -> Result<usize> {
    write_at(descriptor, bytes, At::Cursor)
}

pub fn read_at(descriptor: i32, length: usize, at: At) -> Result<Vec<u8>> {
    let mut bytes = vec![0xee; length];
    let entry = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: length };
    // SAFETY: the entry describes `bytes`, which is not read during the call.
    let got = io::read(handle(descriptor), unsafe { Buffers::one(&entry) }, at)?;
    bytes.truncate(got);
    Ok(bytes)
}

pub fn read(descriptor: i32, length: usize) -> Result<Vec<u8>> {
    read_at(descriptor, length, At::Cursor)
}

/// Creates a file with these bytes.
pub fn put(name: &str, bytes: &[u8]) {
    let descriptor = create(name);
    assert_eq!(write(descriptor, bytes), Ok(bytes.len()));
    close(descriptor);
}

/// Returns all bytes of a file.
pub fn get(name: &str) -> Vec<u8> {
    let descriptor = open(name, libc::O_RDONLY).unwrap();
    let size = file::stat(&at(name), true).unwrap().size as usize;
    let bytes = read(descriptor, size + 1).unwrap();
    close(descriptor);
    bytes
}

pub fn remove(name: &str) {
    names::unlink(&at(name)).unwrap();
}

pub fn errno<T>(result: PathResult<T>) -> i32 {
    result.err().map_or(0, |error| error.errno().0)
}

/// Returns bytes that differ from byte to byte, from block to block and from seed to seed.
pub fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 + index / 251 + seed * 7) as u8).collect()
}

/// Runs `child` in a forked process and returns its exit status. A panic in `child` ends there.
pub fn forked(child: impl FnOnce()) -> i32 {
    let spawn = cairn_posix::process::Spawn::begin().unwrap();
    // SAFETY: the child only runs the closure and leaves without the parent's exit handlers.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        spawn.child();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
        cairn_posix::process::end();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    assert!(pid > 0);
    spawn.parent(pid);
    wait(pid)
}

/// Returns the exit status of a child, or 128 plus the signal that ended it.
pub fn wait(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: the status is a local.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    match libc::WIFEXITED(status) {
        true => libc::WEXITSTATUS(status),
        false => 128 + libc::WTERMSIG(status),
    }
}

/// Reaps dead processes, as the agent does.
pub fn reap() {
    for (slot, identity) in mount().fs().processes().unwrap() {
        if !process::is_alive(identity) {
            mount().fs().reap(slot, identity, sys::now()).unwrap();
        }
    }
}

pub const EBADF: Errno = Errno(libc::EBADF);

/// The store's directory.
pub fn store_path() -> &'static std::path::Path {
    STORE.get().expect("a test has its turn")
}
