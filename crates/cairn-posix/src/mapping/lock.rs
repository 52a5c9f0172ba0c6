//! `mlockall(2)` of a program that has a store: its own memory and its mapped files, as it asks, and not the store.
//!
//! The kernel knows one answer for all that is mapped, and would make every page of every tier present. So what there is
//! now is locked range by range, and only what follows by the kernel itself (`cairn_device::unlocked`).

use core::ffi::c_void;
use core::ops::Range;

use cairn_device::{sys, unlocked};

use crate::error::{Errno, Result};
use crate::kernel;

/// Of `mlockall`.
const FLAGS: i32 = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;

/// As `mlockall(2)`. Errors: `EINVAL`; `ENOMEM` and `EPERM` if the limit is less than what the program has.
pub fn lock_all(flags: i32) -> Result<()> {
    let what = flags & (libc::MCL_CURRENT | libc::MCL_FUTURE);
    if flags & !FLAGS != 0 || what == 0 {
        return Err(Errno(libc::EINVAL));
    }
    let follows = what & libc::MCL_FUTURE != 0;
    let followed = unlocked::set_following(follows);
    let asked = match (follows, followed) {
        (true, _) => kernel::lock_all_pages(flags & !libc::MCL_CURRENT),
        // Only together with what is locked can it be taken back.
        (false, true) => kernel::unlock_all_pages(),
        (false, false) => Ok(()),
    };
    let locked = asked.and_then(|()| match what & libc::MCL_CURRENT {
        0 => Ok(()),
        _ => lock_present(flags & libc::MCL_ONFAULT != 0),
    });
    if locked.is_err() && !followed {
        let _ = unlock_all();
    }
    locked
}

/// As `munlockall(2)`.
pub fn unlock_all() -> Result<()> {
    unlocked::set_following(false);
    kernel::unlock_all_pages()
}

/// Locks all that is mapped now, but for the store.
fn lock_present(on_fault: bool) -> Result<()> {
    each_mapped(|mut range| {
        while range.start < range.end {
            let inside = unlocked::ranges().find(|ours| ours.contains(&range.start));
            if let Some(ours) = inside {
                range.start = ours.end;
                continue;
            }
            let starts = unlocked::ranges().map(|ours| ours.start);
            let next = starts.filter(|start| range.contains(start)).min().unwrap_or(range.end);
            lock(range.start..next, on_fault)?;
            range.start = next;
        }
        Ok(())
    })
}

/// What the limit forbids is an error. That a page cannot be made present is none, as with the kernel's own `mlockall`.
fn lock(range: Range<usize>, on_fault: bool) -> Result<()> {
    let (start, bytes) = (core::ptr::without_provenance_mut::<c_void>(range.start), range.len());
    if let Err(errno) = kernel::lock_pages(start, bytes, true) {
        // SAFETY: starts no writing, and tells whether all of it is mapped; another thread may have unmapped it since.
        return unsafe { kernel::msync(start, bytes, libc::MS_ASYNC) }
            .map_or(Ok(()), |()| Err(errno));
    }
    if !on_fault {
        let _ = kernel::lock_pages(start, bytes, false);
    }
    Ok(())
}

/// Calls `act` with each mapping of this process, lowest first.
fn each_mapped(mut act: impl FnMut(Range<usize>) -> Result<()>) -> Result<()> {
    /// Longer than a line: addresses and a path.
    const BUFFER_BYTES: usize = 8192;
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let list = sys::openat(libc::AT_FDCWD, c"/proc/self/maps", flags, 0)?;
    let mut buffer = vec![0_u8; BUFFER_BYTES];
    let mut filled = 0;
    let done = loop {
        let got = match sys::read(list, &mut buffer[filled..]) {
            Ok(0) => break Ok(()),
            Ok(got) => got,
            Err(errno) => break Err(errno.into()),
        };
        filled += got;
        let end = buffer[..filled].iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let mut lines = buffer[..end].split(|&byte| byte == b'\n').filter_map(range_of);
        if let Err(errno) = lines.try_for_each(&mut act) {
            break Err(errno);
        }
        buffer.copy_within(end..filled, 0);
        filled -= end;
    };
    let _ = sys::close(list);
    done
}

/// What a line of `/proc/self/maps` begins with; none for what is not the process's.
fn range_of(line: &[u8]) -> Option<Range<usize>> {
    let range = core::str::from_utf8(line.split(|&byte| byte == b' ').next()?).ok()?;
    let (start, end) = range.split_once('-')?;
    let [start, end] = [start, end].map(|digits| usize::from_str_radix(digits, 16).ok());
    let range = start?..end?;
    (range.end <= isize::MAX as usize).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_begin_with_a_range() {
        let line = b"7f10aa000000-7f10aa021000 rw-p 00000000 00:00 0  [heap]";
        assert_eq!(range_of(line), Some(0x7f10_aa00_0000..0x7f10_aa02_1000));
        assert_eq!(range_of(b""), None);
    }

    #[test]
    fn every_mapping_is_seen() {
        static PLACE: u8 = 0;
        let here = (&raw const PLACE).addr();
        let stack = (&raw const here).addr();
        let mut seen = Vec::new();
        each_mapped(|range| {
            seen.push(range);
            Ok(())
        })
        .unwrap();
        assert!(seen.is_sorted_by_key(|range| range.start));
        for address in [here, stack] {
            assert!(seen.iter().any(|range| range.contains(&address)));
        }
    }
}
