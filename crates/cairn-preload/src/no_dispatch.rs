//! Stand-in for `dispatch.rs` where system calls cannot be caught. Does nothing.

use core::ffi::c_void;

/// See `dispatch.rs`.
pub fn begin() {}

/// See `dispatch.rs`.
pub fn arm() -> bool {
    true
}

/// See `dispatch.rs`.
pub fn in_child() {}

/// See `dispatch.rs`.
pub fn unblock() {}

/// See `dispatch.rs`.
pub fn thread_ended() {}

/// See `dispatch.rs`.
///
/// # Safety
/// None is needed.
pub unsafe fn take(_: &libc::siginfo_t, _: *mut c_void) -> bool {
    false
}
