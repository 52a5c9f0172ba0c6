//! Functions in which the C library itself walks directories, so that its inner calls do not reach our hooks:
//! `scandir` is done here, `glob` is given our functions.

use core::ffi::{c_char, c_int, c_void};

use cairn_posix::path::{Place, Route};
use cairn_posix::{Errno, PathResult, Result, directory, gate};
use libc::{DIR, dirent64, stat as Stat};

use crate::{directories, stat};

type Filter = Option<unsafe extern "C-unwind" fn(*const dirent64) -> c_int>;
type Compare =
    Option<unsafe extern "C-unwind" fn(*mut *const dirent64, *mut *const dirent64) -> c_int>;

unsafe fn scan(
    place: &Place,
    list: *mut *mut *mut dirent64,
    filter: Filter,
    compare: Compare,
) -> PathResult<c_int> {
    let stream = directory::open(place)?;
    // SAFETY: the callbacks are the caller's.
    let collected = unsafe { collect(stream, filter) };
    let closed = stream.close();
    let mut found = collected?;
    closed?;
    if let Some(compare) = compare {
        found.sort_by(|&left, &right| {
            let (mut left, mut right) = (left.cast_const(), right.cast_const());
            // SAFETY: alphasort and its like take pointers to pointers to entries.
            gate::outside(|| unsafe { compare(&raw mut left, &raw mut right) }).cmp(&0)
        });
    }
    let bytes = found.len().max(1) * size_of::<*mut dirent64>();
    // SAFETY: malloc may be called here; the caller frees the array and the entries, as scandir(3) says.
    let array = unsafe { libc::malloc(bytes) }.cast::<*mut dirent64>();
    if array.is_null() {
        found.iter().for_each(|&entry| free(entry));
        return Err(Errno(libc::ENOMEM).into());
    }
    // SAFETY: the array has room for all entries; the caller passes room for one pointer.
    unsafe {
        core::ptr::copy_nonoverlapping(found.as_ptr(), array, found.len());
        list.write(array);
    }
    c_int::try_from(found.len()).map_err(|_| Errno(libc::EOVERFLOW).into())
}

fn free(entry: *mut dirent64) {
    // SAFETY: the entry came from malloc in `collect` and nobody else has it.
    unsafe { libc::free(entry.cast()) };
}

unsafe fn collect(stream: &directory::Stream, filter: Filter) -> Result<Vec<*mut dirent64>> {
    let mut found = Vec::new();
    loop {
        let entry = match stream.next() {
            Ok(entry) if entry.is_null() => return Ok(found),
            Ok(entry) => entry,
            Err(errno) => {
                found.into_iter().for_each(free);
                return Err(errno);
            }
        };
        // SAFETY: the filter is the caller's, and takes an entry.
        if filter.is_some_and(|filter| gate::outside(|| unsafe { filter(entry) }) == 0) {
            continue;
        }
        // SAFETY: an entry of ours is complete as far as its length says.
        let length = usize::from(unsafe { (*entry).d_reclen });
        // SAFETY: malloc may be called here.
        let copy = unsafe { libc::malloc(length) }.cast::<dirent64>();
        if copy.is_null() {
            found.into_iter().for_each(free);
            return Err(Errno(libc::ENOMEM));
        }
        // SAFETY: both have `length` bytes and do not overlap.
        unsafe { core::ptr::copy_nonoverlapping(entry.cast::<u8>(), copy.cast::<u8>(), length) };
        found.push(copy);
    }
}

path_hooks! {
    fn scandir(path: *const c_char, list: *mut *mut *mut dirent64, filter: Filter, compare: Compare) -> c_int,
        // SAFETY: the caller's own arguments.
        [path, follow true] = |place| unsafe { scan(&place, list, filter, compare) };
    fn scandir64(path: *const c_char, list: *mut *mut *mut dirent64, filter: Filter, compare: Compare) -> c_int,
        // SAFETY: the caller's own arguments.
        [path, follow true] = |place| unsafe { scan(&place, list, filter, compare) };
    fn scandirat(directory: c_int, path: *const c_char, list: *mut *mut *mut dirent64, filter: Filter, compare: Compare) -> c_int,
        // SAFETY: the caller's own arguments.
        [path at directory, follow true] = |place| unsafe { scan(&place, list, filter, compare) };
    fn scandirat64(directory: c_int, path: *const c_char, list: *mut *mut *mut dirent64, filter: Filter, compare: Compare) -> c_int,
        // SAFETY: the caller's own arguments.
        [path at directory, follow true] = |place| unsafe { scan(&place, list, filter, compare) };
    // A handle would have to be opened by the kernel.
    fn name_to_handle_at(directory: c_int, path: *const c_char, handle: *mut c_void, mount: *mut c_int, flags: c_int) -> c_int,
        [path at directory, follow true] = |_place| refused::<()>();
    // No event would ever come; with this errno, tail and its like poll instead.
    fn inotify_add_watch(instance: c_int, path: *const c_char, mask: u32) -> c_int,
        [path, follow true] = |_place| Err::<(), _>(Errno(libc::ENOSPC).into());
}

fn refused<T>() -> PathResult<T> {
    Err(Errno(libc::EOPNOTSUPP).into())
}

/// `glob_t` of the C library, with its hooks.
#[repr(C)]
pub struct Glob {
    count: usize,
    paths: *mut *mut c_char,
    reserved: usize,
    flags: c_int,
    close: Option<unsafe extern "C-unwind" fn(*mut DIR) -> c_int>,
    read: Option<unsafe extern "C-unwind" fn(*mut DIR) -> *mut dirent64>,
    open: Option<unsafe extern "C-unwind" fn(*const c_char) -> *mut DIR>,
    lstat: Option<unsafe extern "C-unwind" fn(*const c_char, *mut Stat) -> c_int>,
    stat: Option<unsafe extern "C-unwind" fn(*const c_char, *mut Stat) -> c_int>,
}

const _: () = assert!(size_of::<Glob>() == size_of::<libc::glob_t>());
const _: () =
    assert!(core::mem::offset_of!(Glob, reserved) == core::mem::offset_of!(libc::glob_t, gl_offs));

macro_rules! globs {
    ($(fn $name:ident;)*) => {$(
        /// As `glob(3)`; a pattern below the mount is matched with our directory functions.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            pattern: *const c_char, flags: c_int, error: *mut c_void, result: *mut Glob,
        ) -> c_int {
            let real = || next!($name: fn(*const c_char, c_int, *mut c_void, *mut Glob) -> c_int);
            // SAFETY: the caller passes a terminated pattern.
            let ours = matches!(unsafe { cairn_posix::path::route(pattern) }, Route::Place(_));
            if !ours || flags & libc::GLOB_ALTDIRFUNC != 0 {
                // SAFETY: the caller's own arguments.
                return unsafe { real()(pattern, flags, error, result) };
            }
            // SAFETY: the caller passes a result structure; the functions have the types it demands.
            unsafe {
                (*result).close = Some(directories::closedir);
                (*result).read = Some(directories::readdir64);
                (*result).open = Some(directories::opendir);
                (*result).lstat = Some(stat::lstat64);
                (*result).stat = Some(stat::stat64);
                real()(pattern, flags | libc::GLOB_ALTDIRFUNC, error, result)
            }
        }
    )*};
}

globs! {
    fn glob;
    fn glob64;
}
