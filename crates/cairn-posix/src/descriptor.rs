//! Duplicating and closing descriptor numbers, ours and those that take the place of ours.
//!
//! Invariant: the kernel and the table agree after every call: a number that is replaced leaves the table before the
//! kernel replaces it, a duplicate of ours enters it afterwards.

use cairn_device::sys;

use crate::calls::{self, Outcome};
use crate::error::{Errno, Result};
use crate::table::{self, Left};
use crate::{file, kernel, mount, placeholder, upkeep};

fn release_quietly(left: Option<Left>) {
    if let (Some(left), Some(mount)) = (left, mount::holder()) {
        // As for dup2, an error of the implied close has nowhere to go.
        let _ = upkeep::release(mount, left);
    }
}

/// The lowest duplicate of a descriptor of ours, at or above `lowest`.
pub fn duplicate(descriptor: i32, lowest: i32, close_on_exec: bool) -> Result<i32> {
    let handle = table::lookup(descriptor).ok_or(Errno(libc::EBADF))?;
    let command = if close_on_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    let duplicate = sys::fcntl(descriptor, command, i64::from(lowest))?;
    match table::enter(duplicate, handle) {
        Ok(displaced) => {
            release_quietly(displaced);
            Ok(duplicate)
        }
        Err(errno) => {
            let _ = sys::close(duplicate);
            Err(errno)
        }
    }
}

/// As `dup3(2)` where `from` or `to` is ours, or `to` is a number Cairn uses itself (`EBUSY` if it must keep it).
pub fn duplicate_to(from: i32, to: i32, flags: i32) -> Result<i32> {
    if from == to {
        return Err(Errno(libc::EINVAL));
    }
    if placeholder::is_internal(from) {
        return Err(Errno(libc::EBADF));
    }
    if placeholder::is_internal(to) && !placeholder::vacate(to) {
        return Err(Errno(libc::EBUSY));
    }
    let handle = table::lookup(from);
    let replaced = table::leave(to);
    match sys::dup3(from, to, flags) {
        Ok(number) => {
            if replaced.is_some() {
                table::closed(to);
            }
            let entered = match handle {
                Some(handle) => table::enter(to, handle),
                None => Ok(table::forget(to)),
            };
            release_quietly(replaced);
            release_quietly(entered?);
            Ok(number)
        }
        Err(errno) => {
            if let Some(left) = replaced {
                // Nothing was replaced: the number is still open on the same handle.
                table::closed(to);
                table::enter(to, left.handle)?;
            }
            Err(errno.into())
        }
    }
}

/// The kernel gave `descriptor` to something that is not ours; forgets what we knew about the number.
#[inline]
pub fn claimed(descriptor: i32) {
    if descriptor >= 0 && table::in_use() {
        let left = table::forget(descriptor);
        if left.is_some() {
            // The kernel closed it: nothing of ours was asked to.
            calls::count("close", Outcome::Missed, b"");
        }
        release_quietly(left);
    }
}

/// As `close_range(2)` without flags: closes ours properly, spares Cairn's own, lets the kernel close the rest.
pub fn close_range(first: u32, last: u32) -> Result<()> {
    if first > last {
        return Err(Errno(libc::EINVAL));
    }
    let bound = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    for (descriptor, _) in table::range(bound(first), bound(last)) {
        file::close(descriptor)?;
    }
    let mut start = first;
    for internal in placeholder::internal_numbers() {
        if internal < start || internal > last {
            continue;
        }
        if internal > start {
            kernel::close_range(start, internal - 1, 0)?;
        }
        start = internal + 1;
    }
    match start <= last {
        true => kernel::close_range(start, last, 0),
        false => Ok(()),
    }
}
