//! Functions in which the C library walks directories by internal calls that do not reach our
//! hooks. `scandir` is implemented here; `glob` is given our functions.

use core::ffi::{c_char, c_int, c_void};

use cairn_posix::files::path::Route;
use cairn_posix::{Errno, PathResult, Result};
use libc::{DIR, dirent64, stat as Stat};

use crate::answer::{answer_unguarded, errno, set_errno};
use crate::{descriptors, directories, open, stat};

type Filter = Option<unsafe extern "C-unwind" fn(*const dirent64) -> c_int>;
type Compare = Option<Order<dirent64>>;
/// Comparison function of the program. It may not define a consistent order.
pub type Order<T> = unsafe extern "C-unwind" fn(*const *const T, *const *const T) -> c_int;
type AnyOrder = unsafe extern "C-unwind" fn(*const c_void, *const c_void) -> c_int;

/// Sorts entries by the C library's `qsort`, which accepts even an inconsistent order.
///
/// # Safety
/// `order` takes pointers to two of the entries.
pub unsafe fn sort<T>(entries: &mut [*mut T], order: Order<T>) {
    unsafe extern "C-unwind" {
        fn qsort(start: *mut c_void, count: usize, bytes: usize, order: AnyOrder);
    }
    // SAFETY: pointers are passed in the same way whatever they point to.
    let order = unsafe { core::mem::transmute::<Order<T>, AnyOrder>(order) };
    let start = entries.as_mut_ptr().cast();
    // SAFETY: the slice has that many pointers; the order is promised by the caller.
    unsafe { qsort(start, entries.len(), size_of::<*mut T>(), order) };
}

/// Open directory stream, closed on drop, also if a callback of the program unwinds.
struct Stream(*mut DIR);

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream is open, and nobody uses it afterwards.
        unsafe { directories::closedir(self.0) };
    }
}

/// Entries allocated by malloc. Freed on drop, unless the caller gets them.
struct Entries(Vec<*mut dirent64>);

impl Drop for Entries {
    fn drop(&mut self) {
        // SAFETY: the entries came from malloc, and nobody else has them.
        self.0.drain(..).for_each(|entry| unsafe { libc::free(entry.cast()) });
    }
}

fn allocate<T>(bytes: usize) -> Result<*mut T> {
    // SAFETY: malloc may be called here.
    match unsafe { libc::malloc(bytes) } {
        memory if memory.is_null() => Err(Errno(libc::ENOMEM)),
        memory => Ok(memory.cast()),
    }
}

/// Serves `scandir` on an open directory; null means that it could not be opened. Calls only our
/// hooks and the caller's functions, which may leave by an exception or end their thread.
///
/// # Safety
/// The arguments of `scandir`, and a stream that nobody else uses.
unsafe fn scan(
    stream: *mut DIR,
    list: *mut *mut *mut dirent64,
    filter: Filter,
    compare: Compare,
) -> Result<c_int> {
    if stream.is_null() {
        return Err(Errno(errno()));
    }
    let stream = Stream(stream);
    let mut found = Entries(Vec::new());
    loop {
        set_errno(0);
        // SAFETY: an open stream.
        let entry = unsafe { directories::readdir64(stream.0) };
        if entry.is_null() {
            match errno() {
                0 => break,
                errno => return Err(Errno(errno)),
            }
        }
        // SAFETY: the filter is the caller's, and takes an entry.
        if filter.is_some_and(|filter| unsafe { filter(entry) } == 0) {
            continue;
        }
        // SAFETY: an entry is valid for `d_reclen` bytes.
        let length = usize::from(unsafe { (*entry).d_reclen });
        let copy = allocate::<dirent64>(length)?;
        // SAFETY: both have `length` bytes and do not overlap.
        unsafe { core::ptr::copy_nonoverlapping(entry.cast::<u8>(), copy.cast::<u8>(), length) };
        found.0.push(copy);
    }
    drop(stream);
    if let Some(compare) = compare {
        // SAFETY: alphasort and similar functions take pointers to pointers to entries.
        unsafe { sort(&mut found.0, compare) };
    }
    let array = allocate::<*mut dirent64>(found.0.len().max(1) * size_of::<*mut dirent64>())?;
    let entries = core::mem::take(&mut found.0);
    // SAFETY: the array has room for all entries; the caller passes room for one pointer.
    unsafe {
        core::ptr::copy_nonoverlapping(entries.as_ptr(), array, entries.len());
        list.write(array);
    }
    Ok(entries.len() as c_int)
}

/// Opens a directory as `opendir` does, relative to another one.
///
/// # Safety
/// The path is terminated.
unsafe fn open_from(directory: c_int, path: *const c_char) -> *mut DIR {
    const FLAGS: c_int = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: our own hooks; the path is the caller's.
    unsafe {
        let number = open::openat(directory, path, FLAGS, 0);
        if number < 0 {
            return core::ptr::null_mut();
        }
        let stream = directories::fdopendir(number);
        if stream.is_null() {
            let failure = errno();
            descriptors::close(number);
            set_errno(failure);
        }
        stream
    }
}

macro_rules! scans {
    ($(fn $name:ident($($directory:ident)?), by $open:path;)*) => {$(
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            $($directory: c_int,)?
            path: *const c_char,
            list: *mut *mut *mut dirent64,
            filter: Filter,
            compare: Compare,
        ) -> c_int {
            // SAFETY: the caller passes a terminated path.
            if matches!(unsafe { path_hooks!(@route path $($directory)?) }, Route::Libc) {
                let real = next!($name: fn($(scans!(@int $directory),)? *const c_char, *mut *mut *mut dirent64, Filter, Compare) -> c_int);
                // SAFETY: the caller's own arguments.
                return unsafe { real($($directory,)? path, list, filter, compare) };
            }
            // SAFETY: the caller's own arguments.
            answer_unguarded(stringify!($name), || unsafe { scan($open($($directory,)? path), list, filter, compare) })
        }
    )*};
    (@int $directory:ident) => { c_int };
}

scans! {
    fn scandir(), by directories::opendir;
    fn scandir64(), by directories::opendir;
    fn scandirat(directory), by open_from;
    fn scandirat64(directory), by open_from;
}

path_hooks! {
    // Only the kernel could open such a handle.
    fn name_to_handle_at(directory: c_int, path: *const c_char, handle: *mut c_void, mount: *mut c_int, flags: c_int) -> c_int,
        [path at directory, follow true] = |_place| refused::<()>();
    // No event would ever arrive. With this errno, tail and similar programs fall back to polling.
    fn inotify_add_watch(instance: c_int, path: *const c_char, mask: u32) -> c_int,
        [path, follow true] = |_place| Err::<(), _>(Errno(libc::ENOSPC).into());
}

fn refused<T>() -> PathResult<T> {
    Err(Errno(libc::EOPNOTSUPP).into())
}

/// The C library's `glob_t`, with its function pointers.
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
        /// As `glob(3)`. A pattern below the mount is matched with our directory functions.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            pattern: *const c_char, flags: c_int, error: *mut c_void, result: *mut Glob,
        ) -> c_int {
            let real = || next!($name: fn(*const c_char, c_int, *mut c_void, *mut Glob) -> c_int);
            // SAFETY: the caller passes a terminated pattern.
            let ours = matches!(unsafe { cairn_posix::files::path::route(pattern) }, Route::Place(_));
            if !ours || flags & libc::GLOB_ALTDIRFUNC != 0 {
                // SAFETY: the caller's own arguments.
                return unsafe { real()(pattern, flags, error, result) };
            }
            // SAFETY: the caller passes a result structure; the functions have the required types.
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
