//! Cairn files in the address space. Calls on memory without a Cairn file cost one more load.

use core::ffi::{c_int, c_void};

use cairn_posix::kernel::configuration;
use cairn_posix::mapping::{self, Request};
use cairn_posix::task::table;
use cairn_posix::{Errno, Result, mount};
use libc::size_t;

use crate::answer::{
    answer_as, counted_as, guarded, number_as, recognise_after_failure, set_errno,
};

const FAILED: *mut c_void = libc::MAP_FAILED;
/// With this key, `pkey_mprotect` is `mprotect`.
const NO_KEY: c_int = -1;

fn address(mapped: Result<*mut c_void>) -> *mut c_void {
    mapped.unwrap_or_else(|Errno(number)| {
        set_errno(number);
        FAILED
    })
}

/// Serves a call on memory. Returns none if no Cairn file is mapped there.
fn ours<T>(act: impl FnOnce() -> Option<Result<T>>) -> Option<Result<T>> {
    if !mapping::any() {
        return None;
    }
    guarded(|| Ok::<_, Errno>(act())).unwrap_or_else(|errno| Some(Err(errno)))
}

/// Maps something foreign at a fixed address, after taking out any mapping of a Cairn file there.
fn replacing(start: *mut c_void, length: size_t, map: impl Fn() -> *mut c_void) -> *mut c_void {
    match ours(|| mapping::replace(start, length, &map)) {
        Some(replaced) => address(replaced),
        None => map(),
    }
}

/// As `mmap(2)`; calls `real` if no Cairn file is concerned.
///
/// # Safety
/// As for mmap(2).
pub unsafe fn map_or(
    request: Request,
    descriptor: c_int,
    real: impl Fn() -> *mut c_void,
) -> *mut c_void {
    let is_anonymous = request.flags & libc::MAP_ANONYMOUS != 0;
    if is_anonymous || !table::is_ours(descriptor) {
        let result = match request.flags & libc::MAP_FIXED {
            0 => real(),
            _ => replacing(request.address, request.length, real),
        };
        if result != FAILED || is_anonymous || !recognise_after_failure(descriptor) {
            return result;
        }
    }
    address(counted_as(
        || "mmap",
        || {
            let handle = table::lookup(descriptor).ok_or(Errno(libc::EBADF))?;
            // SAFETY: the caller's own request.
            unsafe { mapping::map(handle, &request) }
        },
    ))
}

macro_rules! maps {
    ($(fn $name:ident;)*) => {$(
        /// As `mmap(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            address: *mut c_void, length: size_t, protection: c_int, flags: c_int, descriptor: c_int, offset: i64,
        ) -> *mut c_void {
            let real = || next!($name: fn(*mut c_void, size_t, c_int, c_int, c_int, i64) -> *mut c_void);
            let request = Request { address, length, protection, flags, offset };
            // SAFETY: the caller's own arguments, also below.
            unsafe {
                map_or(request, descriptor, || real()(address, length, protection, flags, descriptor, offset))
            }
        }
    )*};
}

maps! {
    fn mmap;
    fn mmap64;
}

/// Defines functions on a range of memory: one that calls `real` if no Cairn file is mapped there,
/// and the hook.
macro_rules! ranges {
    ($(
        $(#[$attribute:meta])*
        fn $name:ident or $ours_or:ident(start, length $(, $argument:ident)?) by $answer:ident = $ours:expr;
    )*) => {$(
        /// Serves the hook's call; calls `real` if no Cairn file is mapped in the range.
        ///
        /// # Safety
        /// As for the hook.
        pub unsafe fn $ours_or(
            start: *mut c_void, length: size_t $(, $argument: c_int)?, real: impl FnOnce() -> c_int
        ) -> c_int {
            // SAFETY: the caller's own arguments.
            match ours(|| unsafe { ($ours)(start, length $(, $argument)?) }) {
                Some(done) => $answer(|| stringify!($name), || done),
                None => real(),
            }
        }

        $(#[$attribute])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            start: *mut c_void, length: size_t $(, $argument: c_int)?
        ) -> c_int {
            let real = || next!($name: fn(*mut c_void, size_t $(, ranges!(@number $argument))?) -> c_int);
            // SAFETY: the caller's own arguments.
            unsafe { $ours_or(start, length $(, $argument)?, || real()(start, length $(, $argument)?)) }
        }
    )*};
    (@number $argument:ident) => { c_int };
}

ranges! {
    /// As `munmap(2)`.
    fn munmap or unmap_or(start, length) by answer_as = mapping::unmap;
    /// As `mprotect(2)`.
    fn mprotect or protect_or(start, length, protection) by answer_as = mapping::protect;
    /// As `msync(2)`.
    fn msync or sync_or(start, length, flags) by answer_as = mapping::sync;
    /// As `madvise(2)`.
    fn madvise or advise_or(start, length, advice) by answer_as = mapping::advise;
    /// As `posix_madvise(3)`.
    fn posix_madvise or advise_portably_or(start, length, advice) by number_as = portable_advice;
}

/// Serves `mlockall`; calls `real` if the process has no store. The store must not be locked into
/// memory, so it is attached first: it need not be mapped later, while the kernel locks new
/// mappings.
pub fn lock_all_or(flags: c_int, real: impl FnOnce() -> c_int) -> c_int {
    let attached = configuration::get().is_some() && guarded(mount::current).is_ok();
    match attached {
        true => answer_as(|| "mlockall", || mapping::lock_all(flags)),
        false => real(),
    }
}

/// Serves `munlockall`.
pub fn unlock_all_or(real: impl FnOnce() -> c_int) -> c_int {
    match configuration::get().is_some() {
        true => answer_as(|| "munlockall", mapping::unlock_all),
        false => real(),
    }
}

/// As `mlockall(2)`, except that the store is not locked.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mlockall(flags: c_int) -> c_int {
    // SAFETY: the caller's own argument.
    lock_all_or(flags, || unsafe { next!(mlockall: fn(c_int) -> c_int)(flags) })
}

/// As `munlockall(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn munlockall() -> c_int {
    // SAFETY: no argument.
    unlock_all_or(|| unsafe { next!(munlockall: fn() -> c_int)() })
}

/// As `pkey_mprotect(2)`. Errors: `EINVAL` for a key on pages of a Cairn file.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pkey_mprotect(
    start: *mut c_void,
    length: size_t,
    protection: c_int,
    key: c_int,
) -> c_int {
    let real = || next!(pkey_mprotect: fn(*mut c_void, size_t, c_int, c_int) -> c_int);
    // SAFETY: the caller's own arguments.
    unsafe {
        protect_by_key_or(start, length, protection, key, || real()(start, length, protection, key))
    }
}

/// Serves `pkey_mprotect`; calls `real` if no Cairn file is mapped in the range.
///
/// # Safety
/// As for `pkey_mprotect`.
pub unsafe fn protect_by_key_or(
    start: *mut c_void,
    length: size_t,
    protection: c_int,
    key: c_int,
    real: impl FnOnce() -> c_int,
) -> c_int {
    if key == NO_KEY {
        // SAFETY: the caller's own arguments.
        return unsafe { protect_or(start, length, protection, real) };
    }
    match ours(|| mapping::is_shown(start, length).then_some(Err::<(), _>(Errno(libc::EINVAL)))) {
        Some(refused) => answer_as(|| "pkey_mprotect", || refused),
        None => real(),
    }
}

/// POSIX advice has the same numbers as `madvise`; other numbers are not advice.
unsafe fn portable_advice(start: *mut c_void, length: size_t, advice: c_int) -> Option<Result<()>> {
    match advice {
        // SAFETY: the caller's own arguments.
        libc::POSIX_MADV_NORMAL..=libc::POSIX_MADV_DONTNEED => unsafe {
            mapping::advise(start, length, advice)
        },
        _ => None,
    }
}

/// As `remap_file_pages(2)`; calls `real` if no Cairn file is mapped in the range.
///
/// # Safety
/// As for remap_file_pages(2).
pub unsafe fn show_other_pages_or(
    start: *mut c_void,
    length: size_t,
    protection: c_int,
    page: size_t,
    real: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller's own arguments.
    match ours(|| unsafe { mapping::remap_pages(start, length, protection, page) }) {
        Some(turned) => answer_as(|| "remap_file_pages", || turned),
        None => real(),
    }
}

/// As `remap_file_pages(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn remap_file_pages(
    start: *mut c_void,
    length: size_t,
    protection: c_int,
    page: size_t,
    flags: c_int,
) -> c_int {
    let real = || next!(remap_file_pages: fn(*mut c_void, size_t, c_int, size_t, c_int) -> c_int);
    // SAFETY: the caller's own arguments.
    unsafe {
        show_other_pages_or(start, length, protection, page, || {
            real()(start, length, protection, page, flags)
        })
    }
}

/// As `mremap(2)`; calls `real` if no Cairn file is mapped in the range.
///
/// # Safety
/// As for mremap(2).
pub unsafe fn remap_or(
    start: *mut c_void,
    length: size_t,
    new_length: size_t,
    flags: c_int,
    target: *mut c_void,
    real: impl Fn() -> *mut c_void,
) -> *mut c_void {
    // SAFETY: the caller's own arguments.
    let moved = ours(|| unsafe { mapping::remap(start, length, new_length, flags, target) });
    match moved {
        Some(moved) => address(counted_as(|| "mremap", || moved)),
        None if flags & libc::MREMAP_FIXED != 0 => replacing(target, new_length, real),
        None => real(),
    }
}

/// As `mremap(2)`. The last argument is present if the flags say so.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mremap(
    start: *mut c_void,
    length: size_t,
    new_length: size_t,
    flags: c_int,
    target: *mut c_void,
) -> *mut c_void {
    let real = || next!(mremap: fn(*mut c_void, size_t, size_t, c_int, *mut c_void) -> *mut c_void);
    // SAFETY: the caller's own arguments.
    unsafe {
        remap_or(start, length, new_length, flags, target, || {
            real()(start, length, new_length, flags, target)
        })
    }
}
