//! From a `Result` to what a C caller expects, with errno; from a panic to EIO.
//!
//! Invariant: errno changes only if the call fails. A panic poisons the mount and is never printed.

use core::ffi::{CStr, c_int};
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicBool, Ordering};

use cairn_posix::{Errno, PathError, PathResult, Result, address, gate, mount, placeholder, table};

/// A type that C functions return, and its value for failure.
pub trait Answer: Copy + PartialEq {
    /// What the caller gets when errno says more.
    const FAILED: Self;
}

impl Answer for c_int {
    const FAILED: c_int = -1;
}
impl Answer for isize {
    const FAILED: isize = -1;
}
impl Answer for i64 {
    const FAILED: i64 = -1;
}
impl<T> Answer for *mut T {
    const FAILED: *mut T = core::ptr::null_mut();
}

/// A success that a C function returns as `R`.
pub trait Success<R> {
    /// What the caller gets.
    fn value(self) -> R;
}

impl Success<c_int> for () {
    fn value(self) -> c_int {
        0
    }
}
impl Success<c_int> for c_int {
    fn value(self) -> c_int {
        self
    }
}
impl Success<isize> for usize {
    fn value(self) -> isize {
        self as isize
    }
}
impl Success<i64> for i64 {
    fn value(self) -> i64 {
        self
    }
}
impl<T> Success<*mut T> for *mut T {
    fn value(self) -> *mut T {
        self
    }
}

/// The calling thread's errno.
pub fn errno() -> c_int {
    // SAFETY: __errno_location returns the calling thread's errno cell, always valid.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's errno.
pub fn set_errno(value: c_int) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = value };
}

/// Runs code of ours, uninterrupted by signal handlers. A panic becomes EIO, for this call and all that follow.
pub fn guarded<T, E: From<Errno>>(
    act: impl FnOnce() -> core::result::Result<T, E>,
) -> core::result::Result<T, E> {
    static SILENT: AtomicBool = AtomicBool::new(false);
    if !SILENT.load(Ordering::Relaxed) {
        // The hook is of this library's own copy of the standard library: an application in Rust keeps its own.
        std::panic::set_hook(Box::new(|_| {}));
        SILENT.store(true, Ordering::Relaxed);
    }
    let outcome = gate::inside(|| std::panic::catch_unwind(AssertUnwindSafe(act)));
    outcome.unwrap_or_else(|panic| {
        mount::poison();
        // Dropping a payload can panic again; it is a few bytes.
        core::mem::forget(panic);
        Err(Errno(libc::EIO).into())
    })
}

/// Answers a call on a descriptor.
pub fn answer<R: Answer, T: Success<R>>(act: impl FnOnce() -> Result<T>) -> R {
    let before = errno();
    match guarded(act) {
        Ok(value) => {
            set_errno(before);
            value.value()
        }
        Err(Errno(number)) => {
            set_errno(number);
            R::FAILED
        }
    }
}

/// Answers a call on a path; one that leads elsewhere is continued there.
pub fn answer_path<R: Answer, T: Success<R>>(
    act: impl FnOnce() -> PathResult<T>,
    elsewhere: impl FnOnce(&CStr) -> R,
) -> R {
    let before = errno();
    match guarded(act) {
        Ok(value) => {
            set_errno(before);
            value.value()
        }
        Err(PathError::Errno(Errno(number))) => {
            set_errno(number);
            R::FAILED
        }
        Err(PathError::Elsewhere(path)) => {
            set_errno(before);
            elsewhere(&path)
        }
    }
}

/// Hands a value to the caller. Errors: `EFAULT` for an address that cannot be.
///
/// # Safety
/// The caller passes room for one, or such an address.
pub unsafe fn deliver<T>(target: *mut T, value: T) -> Result<()> {
    address::check(target)?;
    // SAFETY: promised by the caller.
    unsafe { target.write(value) };
    Ok(())
}

/// What the caller passes, if it does. Errors: as [`deliver`].
///
/// # Safety
/// The caller passes null, a valid value that nobody else uses for the call, or such an address.
pub unsafe fn given<'a, T>(value: *mut T) -> Result<Option<&'a mut T>> {
    if !value.is_null() {
        address::check(value)?;
    }
    // SAFETY: promised by the caller.
    Ok(unsafe { value.as_mut() })
}

/// The answer of calls that return an error number instead of setting errno.
pub fn number(act: impl FnOnce() -> Result<()>) -> c_int {
    let before = errno();
    let result = guarded(act);
    set_errno(before);
    match result {
        Ok(()) => 0,
        Err(Errno(number)) => number,
    }
}

/// After a call of the C library failed on `descriptor`: whether that is one of ours that was not known yet, so
/// that the call is to be repeated on it. Leaves errno as it is.
#[inline]
pub fn is_missed(descriptor: c_int) -> bool {
    let number = errno();
    matches!(number, libc::EBADF | libc::ENOTDIR) && recognise(descriptor)
}

/// Whether `descriptor` is one of ours, known yet or not: where the C library's call would not say that it missed one.
pub fn is_ours(descriptor: c_int) -> bool {
    table::is_ours(descriptor) || recognise(descriptor)
}

/// Whether `descriptor` is one of ours that was not known yet.
#[cold]
pub fn recognise(descriptor: c_int) -> bool {
    let before = errno();
    let found = guarded(|| Ok::<_, Errno>(placeholder::classify(descriptor)));
    set_errno(before);
    found == Ok(true)
}
