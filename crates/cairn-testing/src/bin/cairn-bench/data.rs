//! Data rows: writes and reads of the RAM tier against memcpy into an equally warm shared mapping,
//! and series of checkpoints against tmpfs.

use crate::Places;
use crate::measure::{Row, gigabytes_per_second};
use crate::process::in_children;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

/// Size of a checkpoint, bytes; far beyond every cache.
pub const CHECKPOINT_BYTES: usize = 512 << 20;
/// Pause before each of the first checkpoints.
const COMPUTING: Duration = Duration::from_millis(100);
const CALLS: [(usize, &str, f64); 4] = [
    (4 << 10, "4 KiB", 0.80),
    (128 << 10, "128 KiB", 1.05),
    (1 << 20, "1 MiB", 1.05),
    (16 << 20, "16 MiB", 1.05),
];

/// Returns private memory that stands for an application's state.
pub fn application_state() -> Vec<u8> {
    (0..CHECKPOINT_BYTES).map(|at| ((at * 31) >> 7) as u8).collect()
}

/// A warm shared mapping, the target of the baseline memcpy.
pub struct SharedMapping {
    start: *mut u8,
    bytes: usize,
}

impl SharedMapping {
    pub fn new(bytes: usize) -> SharedMapping {
        // SAFETY: a new anonymous mapping at an address of the kernel's choice; it replaces
        // nothing.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
                -1,
                0,
            )
        };
        assert!(start != libc::MAP_FAILED, "no memory for the baseline");
        SharedMapping { start: start.cast(), bytes }
    }

    /// Copies `state` in calls of `call_bytes` bytes. It must not be longer than the mapping.
    pub fn fill(&self, state: &[u8], call_bytes: usize) {
        assert!(state.len() <= self.bytes, "too long");
        for (index, chunk) in state.chunks(call_bytes).enumerate() {
            // SAFETY: the mapping is at least as long as `state`, and `state` is separate memory.
            unsafe {
                let target = self.start.add(index * call_bytes);
                std::ptr::copy_nonoverlapping(chunk.as_ptr(), target, chunk.len());
            }
        }
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping with this length, and nothing borrows it.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

/// Writes `state` in calls of `call_bytes` bytes.
pub fn write_all(file: &File, state: &[u8], call_bytes: usize) {
    for chunk in state.chunks(call_bytes) {
        let mut done = 0;
        while done < chunk.len() {
            // SAFETY: the pointer and length lie within `chunk`.
            let written = unsafe {
                libc::write(file.as_raw_fd(), chunk[done..].as_ptr().cast(), chunk.len() - done)
            };
            assert!(written > 0, "write: {}", std::io::Error::last_os_error());
            done += written as usize;
        }
    }
}

/// Reads a file from its start in calls of `call_bytes` bytes.
pub fn read_all(file: &File, state: &mut [u8], call_bytes: usize) {
    // SAFETY: lseek takes no pointers.
    assert_eq!(unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_SET) }, 0);
    state.chunks_mut(call_bytes).for_each(|chunk| read_exact(file, chunk));
}

/// Creates an empty file.
pub fn create(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(true).open(path).expect("create")
}

/// Measures warm writes: the file is rewritten from its start, as when a checkpoint overwrites the
/// last but one.
pub fn writes(places: &Places) {
    let state = application_state();
    let mapping = SharedMapping::new(CHECKPOINT_BYTES);
    let path = places.cairn.join("warm");
    for (call_bytes, name, bar) in CALLS {
        let fresh_write = || {
            let file = create(&path);
            gigabytes_per_second(CHECKPOINT_BYTES, || write_all(&file, &state, call_bytes))
        };
        fresh_write();
        fresh_write();
        Row::compare(
            format!("write 512 MiB, {name} calls / memcpy"),
            "GB/s",
            bar,
            fresh_write,
            || gigabytes_per_second(CHECKPOINT_BYTES, || mapping.fill(&state, call_bytes)),
        );
    }
}

/// Measures warm reads.
pub fn reads(places: &Places) {
    let mut state = application_state();
    let mapping = SharedMapping::new(CHECKPOINT_BYTES);
    mapping.fill(&state, 1 << 20);
    let file = create(&places.cairn.join("warm"));
    write_all(&file, &state, 1 << 20);
    for (call_bytes, name, bar) in CALLS {
        let state = std::cell::RefCell::new(&mut state);
        Row::compare(
            format!("read 512 MiB, {name} calls / memcpy"),
            "GB/s",
            bar,
            || {
                let mut state = state.borrow_mut();
                gigabytes_per_second(CHECKPOINT_BYTES, || read_all(&file, &mut state, call_bytes))
            },
            || {
                let mut state = state.borrow_mut();
                gigabytes_per_second(CHECKPOINT_BYTES, || {
                    for (index, chunk) in state.chunks_mut(call_bytes).enumerate() {
                        // SAFETY: the mapping is as long as `state`, and `state` is separate
                        // memory.
                        unsafe {
                            std::ptr::copy_nonoverlapping(
                                mapping.start.add(index * call_bytes),
                                chunk.as_mut_ptr(),
                                chunk.len(),
                            );
                        }
                    }
                })
            },
        );
    }
}

fn read_exact(file: &File, chunk: &mut [u8]) {
    let mut done = 0;
    while done < chunk.len() {
        // SAFETY: the pointer and length lie within `chunk`.
        let read = unsafe {
            libc::read(file.as_raw_fd(), chunk[done..].as_mut_ptr().cast(), chunk.len() - done)
        };
        assert!(read > 0, "read: {}", std::io::Error::last_os_error());
        done += read as usize;
    }
}

/// Measures two processes that write at the same time, each repeatedly to its own file, against one
/// process alone. The same for copies to memory, which show what the machine can do.
pub fn scaling(places: &Places) {
    const TIMES: usize = 16;
    let part = &application_state()[..64 << 20];
    let total = |processes: usize, work: &dyn Fn(usize)| {
        (processes * TIMES * part.len()) as f64 / in_children(processes, work) / 1e9
    };
    let write = |rank: usize| {
        let path = places.cairn.join(format!("scaling.{rank}"));
        (0..TIMES).for_each(|_| write_all(&create(&path), part, 1 << 20));
    };
    let mapping = SharedMapping::new(CHECKPOINT_BYTES);
    let copy = |rank: usize| {
        let own = mapping.start.wrapping_add(rank * part.len());
        for (index, chunk) in part.chunks(1 << 20).cycle().enumerate().take(TIMES * 64) {
            let target = own.wrapping_add(index % 64 * chunk.len());
            // SAFETY: the mapping has room for the parts of both processes, and `part` is separate
            // memory.
            unsafe { target.copy_from_nonoverlapping(chunk.as_ptr(), chunk.len()) };
        }
    };
    let row = |name, bar, work: &dyn Fn(usize)| {
        Row::compare(name, "GB/s", bar, || total(2, work), || total(1, work));
    };
    row("memcpy, two processes / one", None, &copy);
    row("write, two processes / one", Some(1.85), &write);
}

/// Measures new files in memory that nobody used before, with pauses between them, as a program
/// writes its first checkpoints.
pub fn first_checkpoints(places: &Places) {
    let state = &application_state()[..16 << 20];
    let count = std::cell::Cell::new(0);
    let checkpoint = |directory: &Path| {
        std::thread::sleep(COMPUTING);
        count.set(count.get() + 1);
        let path = directory.join(format!("first.{}", count.get()));
        gigabytes_per_second(state.len(), || write_all(&create(&path), state, 1 << 20))
    };
    Row::compare(
        "first checkpoints of 16 MiB / tmpfs",
        "GB/s",
        2.0,
        || checkpoint(&places.cairn),
        || checkpoint(&places.tmpfs),
    );
    for number in 1..=count.get() {
        // Every second file is in the other directory.
        let _ = std::fs::remove_file(places.cairn.join(format!("first.{number}")));
        let _ = std::fs::remove_file(places.tmpfs.join(format!("first.{number}")));
    }
}

/// Measures a series of checkpoints of the same bytes, each a new file: one process, then two at
/// once.
pub fn checkpoints(places: &Places) {
    let state = application_state();
    let bytes = CHECKPOINT_BYTES / 2;
    let checkpoint = |directory: &Path, rank: usize| {
        let path = directory.join(format!("checkpoint.{rank}"));
        let next = directory.join(format!("checkpoint.{rank}.new"));
        write_all(&create(&next), &state[..bytes], 1 << 20);
        std::fs::rename(&next, &path).expect("rename");
    };
    Row::compare(
        "checkpoints 256 MiB, one process / tmpfs",
        "GB/s",
        2.0,
        || gigabytes_per_second(bytes, || checkpoint(&places.cairn, 0)),
        || gigabytes_per_second(bytes, || checkpoint(&places.tmpfs, 0)),
    );
    let in_two = |directory: &Path| {
        2.0 * bytes as f64 / in_children(2, |rank| checkpoint(directory, rank)) / 1e9
    };
    Row::compare(
        "checkpoints 256 MiB, two processes / tmpfs",
        "GB/s",
        2.5,
        || in_two(&places.cairn),
        || in_two(&places.tmpfs),
    );
}
