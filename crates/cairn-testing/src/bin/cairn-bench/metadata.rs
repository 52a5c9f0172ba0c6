//! Metadata rows: create+close, stat and unlink in one directory, against tmpfs.

use crate::Places;
use crate::measure::{Row, thousands_per_second};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Number of files per measured slice; a slice stays well below two seconds.
const SLICE: usize = 10_000;

pub fn names(directory: &Path, files: usize) -> Vec<CString> {
    (0..files)
        .map(|index| directory.join(format!("rank.{index}.ckpt")))
        .map(|path| CString::new(path.as_os_str().as_bytes()).expect("no zero in a name"))
        .collect()
}

pub fn create(names: &[CString]) {
    for name in names {
        // SAFETY: `name` is zero-terminated.
        let file = unsafe { libc::open(name.as_ptr(), libc::O_CREAT | libc::O_WRONLY, 0o644) };
        assert!(file >= 0, "open: {}", std::io::Error::last_os_error());
        // SAFETY: closes the descriptor opened above.
        unsafe { libc::close(file) };
    }
}

pub fn stat(names: &[CString]) {
    for name in names {
        let mut attributes = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: `name` is zero-terminated, and `attributes` has room for the result.
        let failed = unsafe { libc::stat(name.as_ptr(), attributes.as_mut_ptr()) };
        assert_eq!(failed, 0, "stat: {}", std::io::Error::last_os_error());
    }
}

pub fn unlink(names: &[CString]) {
    for name in names {
        // SAFETY: `name` is zero-terminated.
        let failed = unsafe { libc::unlink(name.as_ptr()) };
        assert_eq!(failed, 0, "unlink: {}", std::io::Error::last_os_error());
    }
}

/// Measures all three operations in a directory of 100 000 files.
pub fn rates(places: &Places) {
    rates_of(places, 100_000, "", [4.0, 8.0, 7.0]);
}

/// Measures all three operations in a directory of 1 000 000 files.
pub fn rates_of_a_million(places: &Places) {
    rates_of(places, 1_000_000, ", 1 000 000 files", [2.5, 4.0, 5.0]);
}

/// Measures all three operations. The directory holds all `files` files except the slice that is
/// created and removed.
fn rates_of(places: &Places, files: usize, suffix: &str, bars: [f64; 3]) {
    let ours = names(&places.cairn, files);
    let tmpfs = names(&places.tmpfs, files);
    for all in [&ours, &tmpfs] {
        create(&all[SLICE..]);
        unlink_if_there(&all[..SLICE]);
    }
    let rate = |work: fn(&[CString]), names: &[CString]| {
        thousands_per_second(SLICE, || work(&names[..SLICE]))
    };
    Row::compare(
        format!("create+close / tmpfs{suffix}"),
        "k/s",
        bars[0],
        || timed_then(&ours, create, unlink),
        || timed_then(&tmpfs, create, unlink),
    );
    create(&ours[..SLICE]);
    create(&tmpfs[..SLICE]);
    Row::compare(
        format!("stat / tmpfs{suffix}"),
        "k/s",
        bars[1],
        || rate(stat, &ours),
        || rate(stat, &tmpfs),
    );
    Row::compare(
        format!("unlink / tmpfs{suffix}"),
        "k/s",
        bars[2],
        || timed_then(&ours, unlink, create),
        || timed_then(&tmpfs, unlink, create),
    );
    for all in [&ours, &tmpfs] {
        unlink(all);
    }
}

fn timed_then(names: &[CString], timed: fn(&[CString]), undo: fn(&[CString])) -> f64 {
    let rate = thousands_per_second(SLICE, || timed(&names[..SLICE]));
    undo(&names[..SLICE]);
    rate
}

fn unlink_if_there(names: &[CString]) {
    for name in names {
        // SAFETY: `name` is zero-terminated. An absent file is fine.
        unsafe { libc::unlink(name.as_ptr()) };
    }
}
