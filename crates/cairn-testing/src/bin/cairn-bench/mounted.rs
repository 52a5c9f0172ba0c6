//! Rows about programs that reach a store through a mount: data and names, against tmpfs.
//!
//! This program runs outside the store, with plain calls. The `cairn` beside it makes the store and
//! mounts it. Needs root or a user who may mount.

use crate::measure::{Row, gigabytes_per_second, thousands_per_second};
use crate::metadata::{create, names, stat, unlink};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const JOB: &str = "cairn-bench-mounted";
const FILE_BYTES: usize = 256 << 20;
const CALLS: [(&str, usize); 3] =
    [("128 KiB", 128 << 10), ("1 MiB", 1 << 20), ("16 MiB", 16 << 20)];
/// Names per measured slice.
const SLICE: usize = 5_000;

/// Returns `length` bytes that begin at a page, as large buffers of programs do. The kernel copies
/// far more slowly to others.
fn page_aligned(memory: &mut Vec<u8>, length: usize) -> &mut [u8] {
    const PAGE_BYTES: usize = 4096;
    memory.resize(length + PAGE_BYTES, 1);
    let start = memory.as_ptr().align_offset(PAGE_BYTES);
    &mut memory[start..start + length]
}

/// A store whose only program sleeps, mounted until this is dropped.
struct Mounted {
    cairn: PathBuf,
    place: PathBuf,
    run: Child,
}

impl Mounted {
    fn new() -> Mounted {
        let own = std::env::current_exe().expect("has a path");
        let cairn = own.with_file_name("cairn");
        let place = std::env::temp_dir().join(format!("{JOB}.{}", std::process::id()));
        let run = Command::new(&cairn)
            .args(["run", "--job", JOB, "--discard", "--tier", "ram:2G", "--", "sleep", "3600"])
            .stderr(Stdio::null())
            .spawn()
            .expect("cairn starts");
        let mount = || {
            let mut command = Command::new(&cairn);
            command.args(["mount", "--job", JOB]).arg(&place).output().expect("cairn starts")
        };
        let mut mounted = mount();
        for _ in 0..100 {
            if mounted.status.success() {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
            mounted = mount();
        }
        let said = String::from_utf8_lossy(&mounted.stderr);
        assert!(mounted.status.success(), "cairn mount: {said}");
        Mounted { cairn, place, run }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new(&self.cairn).args(["unmount", "--lazy"]).arg(&self.place).status();
        // SAFETY: kill takes numbers only, and the child is not reaped yet.
        unsafe { libc::kill(self.run.id() as i32, libc::SIGTERM) };
        let _ = self.run.wait();
    }
}

fn write(file: &File, bytes: &[u8]) -> f64 {
    gigabytes_per_second(FILE_BYTES, || {
        for at in (0..FILE_BYTES).step_by(bytes.len()) {
            file.write_all_at(bytes, at as u64).expect("writes");
        }
    })
}

fn write_anew(path: &Path, bytes: &[u8]) -> f64 {
    let _ = fs::remove_file(path);
    write(&File::create(path).expect("creates"), bytes)
}

fn read(path: &Path, bytes: &mut [u8]) -> f64 {
    let file = File::open(path).expect("opens");
    gigabytes_per_second(FILE_BYTES, || {
        for at in (0..FILE_BYTES).step_by(bytes.len()) {
            file.read_exact_at(bytes, at as u64).expect("reads");
        }
    })
}

/// Measures new files, rewritten files and reads for each size of a call; then names.
pub fn rates() {
    println!("{}", Row::header());
    let mounted = Mounted::new();
    let tmpfs = PathBuf::from("/dev/shm").join(format!("{JOB}.{}", std::process::id()));
    fs::create_dir(&tmpfs).expect("makes");
    let (ours, baseline) = (mounted.place.join("file"), tmpfs.join("file"));
    for (size, call) in CALLS {
        let (mut memory, mut other) = (Vec::new(), Vec::new());
        let bytes = page_aligned(&mut memory, call);
        Row::compare(
            format!("write {size}, new file, mounted / tmpfs"),
            "GB/s",
            0.5,
            || write_anew(&ours, bytes),
            || write_anew(&baseline, bytes),
        );
        let rewrite = |path| write(&File::options().write(true).open(path).expect("opens"), bytes);
        Row::compare(
            format!("write {size}, rewritten, mounted / tmpfs"),
            "GB/s",
            0.5,
            || rewrite(&ours),
            || rewrite(&baseline),
        );
        let other = page_aligned(&mut other, call);
        Row::compare(
            format!("read {size}, mounted / tmpfs"),
            "GB/s",
            0.6,
            || read(&ours, bytes),
            || read(&baseline, other),
        );
    }
    let (ours, baseline) = (names(&mounted.place, SLICE), names(&tmpfs, SLICE));
    let rate = |work: fn(&[std::ffi::CString]), names: &[std::ffi::CString]| {
        thousands_per_second(SLICE, || work(names))
    };
    let created = |names: &[std::ffi::CString]| {
        let rate = rate(create, names);
        unlink(names);
        rate
    };
    Row::compare(
        "create+close, mounted / tmpfs",
        "k/s",
        None,
        || created(&ours),
        || created(&baseline),
    );
    create(&ours);
    create(&baseline);
    Row::compare(
        "stat, mounted / tmpfs",
        "k/s",
        None,
        || rate(stat, &ours),
        || rate(stat, &baseline),
    );
    let _ = fs::remove_dir_all(&tmpfs);
}
