//! Mapping files of ours.

use core::ffi::{c_int, c_void};

use cairn_posix::mapping::{self, Request};
use cairn_posix::{Errno, table};
use libc::size_t;

use crate::answer::{guarded, is_missed, set_errno};

const FAILED: *mut c_void = libc::MAP_FAILED;

macro_rules! maps {
    ($(fn $name:ident;)*) => {$(
        /// As `mmap(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            address: *mut c_void, length: size_t, protection: c_int, flags: c_int, descriptor: c_int, offset: i64,
        ) -> *mut c_void {
            if flags & libc::MAP_ANONYMOUS != 0 || !table::is_ours(descriptor) {
                let real = next!($name: fn(*mut c_void, size_t, c_int, c_int, c_int, i64) -> *mut c_void);
                // SAFETY: the caller's own arguments.
                let result = unsafe { real(address, length, protection, flags, descriptor, offset) };
                if result != FAILED || flags & libc::MAP_ANONYMOUS != 0 || !is_missed(descriptor) {
                    return result;
                }
            }
            let request = Request { address, length, protection, flags, offset };
            let mapped = guarded(|| {
                let handle = table::lookup(descriptor).ok_or(Errno(libc::EBADF))?;
                // SAFETY: the caller's own request.
                unsafe { mapping::map(handle, &request) }
            });
            mapped.unwrap_or_else(|Errno(number)| {
                set_errno(number);
                FAILED
            })
        }
    )*};
}

maps! {
    fn mmap;
    fn mmap64;
}

/// As `munmap(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn munmap(address: *mut c_void, length: size_t) -> c_int {
    // SAFETY: the caller's own arguments.
    let result = unsafe { next!(munmap: fn(*mut c_void, size_t) -> c_int)(address, length) };
    if result == 0 && mapping::any() {
        let _ = guarded(|| {
            mapping::removed(address, length);
            Ok::<_, Errno>(())
        });
    }
    result
}
