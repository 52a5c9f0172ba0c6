//! Duplicates and closes descriptor numbers: ours, and those that take the place of ours.
//!
//! Invariant: the kernel and the table agree after every call. A number that is replaced leaves the
//! table before the kernel replaces it; a duplicate of ours enters it afterwards.

use cairn_core::HandleId;
use cairn_platform::sys;

use crate::descriptors::{description, internal, upkeep};
use crate::error::{Errno, Result};
use crate::kernel::calls::{self, Outcome};
use crate::task::table::{self, Left};
use crate::{kernel, mount};

fn release_quietly(left: Option<Left>) {
    if let (Some(left), Some(mount)) = (left, mount::holder()) {
        // As for dup2, an error of the implied close cannot be reported.
        let _ = upkeep::release(mount, left);
    }
}

/// Duplicates a descriptor of ours and returns the lowest free number at or above `lowest`.
pub fn duplicate(descriptor: i32, lowest: i32, close_on_exec: bool) -> Result<i32> {
    let handle = share(descriptor)?;
    let command = if close_on_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    match sys::fcntl(descriptor, command, i64::from(lowest)) {
        Ok(duplicate) => keep(descriptor, duplicate, handle).map(|()| duplicate),
        Err(errno) => {
            release_quietly(Some(table::unshare(handle)));
            Err(errno.into())
        }
    }
}

/// Counts one more number for the handle behind a descriptor of ours. Errors: `EBADF`, also if
/// another thread is closing it.
fn share(descriptor: i32) -> Result<HandleId> {
    table::lookup(descriptor).filter(|&handle| table::share(handle)).ok_or(Errno(libc::EBADF))
}

/// Enters a duplicate that was made of `from` when it referred to `handle`. Errors: `EBADF` if
/// `from` does not refer to it any more, because it was closed meanwhile, perhaps before the
/// duplication; `EMFILE`. After an error the number is closed.
fn keep(from: i32, duplicate: i32, handle: HandleId) -> Result<()> {
    let kept = match table::lookup(from) == Some(handle) {
        true => table::put(duplicate, handle),
        false => {
            release_quietly(Some(table::unshare(handle)));
            Err(Errno(libc::EBADF))
        }
    };
    match kept {
        Ok(displaced) => {
            release_quietly(displaced);
            Ok(())
        }
        Err(errno) => {
            let _ = sys::close(duplicate);
            Err(errno)
        }
    }
}

/// As `dup3(2)` where `from` or `to` is ours, or `to` is a number that Cairn uses itself (`EBUSY`
/// if Cairn must keep it).
pub fn duplicate_to(from: i32, to: i32, flags: i32) -> Result<i32> {
    if from == to {
        return Err(Errno(libc::EINVAL));
    }
    if internal::is_internal(from) {
        return Err(Errno(libc::EBADF));
    }
    if internal::is_internal(to) && !internal::vacate(to) {
        return Err(Errno(libc::EBUSY));
    }
    let handle = if table::is_ours(from) { Some(share(from)?) } else { None };
    let replaced = table::leave(to);
    let duplicated = sys::dup3(from, to, flags);
    if replaced.is_some() {
        table::closed(to);
    }
    if let Err(errno) = duplicated {
        release_quietly(handle.map(table::unshare));
        if let Some(left) = replaced {
            // Nothing was replaced: the number is still open on the same handle.
            table::enter(to, left.handle)?;
        }
        return Err(errno.into());
    }
    release_quietly(replaced);
    match handle {
        Some(handle) => keep(from, to, handle)?,
        None => release_quietly(table::forget(to)),
    }
    Ok(to)
}

/// Forgets a number that the kernel gave to something that is not ours.
#[inline]
pub fn claimed(descriptor: i32) {
    if descriptor >= 0 && table::in_use() {
        let left = table::forget(descriptor);
        if left.is_some() {
            // The kernel closed the old descriptor without a call that we saw.
            calls::count("close", Outcome::Missed, b"");
        }
        release_quietly(left);
    }
}

/// As `close_range(2)` without flags: closes ours properly, keeps Cairn's own, lets the kernel
/// close the rest.
pub fn close_range(first: u32, last: u32) -> Result<()> {
    if first > last {
        return Err(Errno(libc::EINVAL));
    }
    let bound = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    for (descriptor, _) in table::range(bound(first), bound(last)) {
        // The kernel, too, closes what it can and ignores errors.
        let _ = description::close(descriptor);
    }
    let mut start = first;
    for internal in internal::numbers() {
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
