//! Checks of addresses that the application passes. The kernel answers a bad address with `EFAULT`;
//! touching it would end the process.
//!
//! Invariant: `cairn_platform::address` does the checks. A failed check is `EFAULT` here.
//!
//! Does not check the buffers that a tier copies from and to; the tier checks them.

use core::mem::MaybeUninit;

use cairn_platform::address;
pub use cairn_platform::address::{
    byte, bytes_in_page, length_of_string, overwritable, passes_range_check, readable, recover,
    writable,
};

use crate::error::{Errno, Result};

/// Whether a readable NUL-terminated string starts at `address`.
#[inline]
pub fn is_string(address: *const core::ffi::c_char) -> bool {
    byte(address.cast()).is_some() && length_of_string(address.cast()).is_some()
}

fn good(is_good: bool) -> Result<()> {
    if is_good { Ok(()) } else { Err(Errno(libc::EFAULT)) }
}

/// Errors: `EFAULT` if the process may not read `length` bytes at `address`.
#[inline]
pub fn check_readable<T>(address: *const T, length: usize) -> Result<()> {
    good(readable(address, length) == length)
}

/// Errors: `EFAULT` if the process may not write `length` bytes at `address`.
#[inline]
pub fn check_writable<T>(address: *mut T, length: usize) -> Result<()> {
    good(writable(address, length) == length)
}

/// Errors: `EFAULT` if the process may not write `length` bytes at `address`. The caller must own
/// the bytes for overwriting: the check sets some of them to zero.
#[inline]
pub fn check_overwritable<T>(address: *mut T, length: usize) -> Result<()> {
    good(overwritable(address, length) == length)
}

/// Copies `length` bytes to the application. Errors: `EFAULT`; some of the bytes may have been
/// stored.
///
/// # Safety
/// No reference of ours to the `length` bytes at `target` is alive, and `source` is readable for
/// `length` bytes.
#[inline]
pub unsafe fn give(target: *mut u8, source: *const u8, length: usize) -> Result<()> {
    let is_possible = length == 0 || address::is_possible(target);
    // SAFETY: promised by the caller, except for the target, which `copy` checks.
    good(is_possible && unsafe { address::copy(target, source, length) })
}

/// Copies `length` bytes from the application. Errors: `EFAULT`; some of the bytes may have been
/// stored.
///
/// # Safety
/// The `length` bytes at `target` are ours, and no reference to them is alive.
#[inline]
pub unsafe fn fetch(target: *mut u8, source: *const u8, length: usize) -> Result<()> {
    let is_possible = length == 0 || address::is_possible(source);
    // SAFETY: promised by the caller, except for the source, which `copy` checks.
    good(is_possible && unsafe { address::copy(target, source, length) })
}

/// Copies a value from the application. Errors: `EFAULT`.
///
/// # Safety
/// The bytes at `source`, if readable, are a valid `T`.
#[inline]
pub unsafe fn take<T: Copy>(source: *const T) -> Result<T> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the local has room for one value.
    unsafe { fetch(value.as_mut_ptr().cast(), source.cast(), size_of::<T>()) }?;
    // SAFETY: `fetch` filled it, and the caller promises that the bytes are a valid value.
    Ok(unsafe { value.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_is_reached_and_addresses_of_nobody_are_not() {
        let mut bytes = vec![7_u8; 3 * 4096];
        let start = bytes.as_mut_ptr();
        assert_eq!(
            (readable(start, bytes.len()), writable(start, bytes.len())),
            (bytes.len(), bytes.len())
        );
        assert_eq!((readable(start, 0), writable(core::ptr::null_mut::<u8>(), 0)), (0, 0));
        assert!(bytes.iter().all(|&byte| byte == 7));
        for nobodys in [0, 8, 4095, 1 << 56, 1 << 62, usize::MAX] {
            let nobodys = nobodys as *mut u8;
            assert_eq!((readable(nobodys, 1), writable(nobodys, 9)), (0, 0), "{nobodys:?}");
            assert_eq!(check_readable(nobodys, 1), Err(Errno(libc::EFAULT)));
            // SAFETY: the source is a local.
            assert_eq!(unsafe { give(nobodys, &raw const bytes[0], 1) }, Err(Errno(libc::EFAULT)));
            // SAFETY: any bytes are a valid number.
            assert_eq!(unsafe { take(nobodys.cast::<u64>()) }, Err(Errno(libc::EFAULT)));
        }
    }

    #[test]
    fn what_is_given_and_taken_arrives_whatever_its_length() {
        let source: Vec<u8> = (0..600_u32).map(|at| at as u8).collect();
        for length in [0, 1, 7, 8, 9, 144, 255, 256, 257, 600] {
            let mut target = vec![0xee_u8; 602];
            // SAFETY: both vectors hold at least `length` bytes from these addresses.
            unsafe { give(target.as_mut_ptr().add(1), source.as_ptr(), length) }.unwrap();
            assert_eq!(&target[1..=length], &source[..length]);
            assert!(target[0] == 0xee && target[length + 1..].iter().all(|&byte| byte == 0xee));
        }
        // SAFETY: any byte is a valid number.
        assert_eq!(unsafe { take(&raw const source[1]) }, Ok(1));
    }
}
