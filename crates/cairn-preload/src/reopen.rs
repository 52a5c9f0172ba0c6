//! `freopen` of streams that are, or become, Cairn's. The caller keeps its `FILE *`, so the
//! structure behind it must change.
//!
//! A Cairn stream stays a cookie stream and only gets another file under its number. A stream of
//! the C library is made a cookie stream in place: both kinds begin with the same structure, and a
//! cookie adds five words after it. The layout is the C library's ABI for 64-bit targets, and is
//! checked against a fresh cookie stream before it is used. The three standard streams are static
//! and have no room for these words; for them, the variables change (`streams.rs`).

use core::ffi::{CStr, c_char, c_int, c_void};

use cairn_posix::files::path::{Route, route};
use cairn_posix::{Errno, Result};
use libc::{FILE, size_t};

use crate::answer::{counted_as, set_errno};
use crate::exec::DescriptorPath;
use crate::{descriptors, io, stdio, streams};

/// The needed part of the C library's `struct _IO_FILE`, followed by the fields of a cookie stream.
#[repr(C)]
struct Layout {
    flags: c_int,
    buffers: [*mut c_void; 13],
    descriptor: c_int,
    more_flags: [c_int; 3],
    small: [*mut c_void; 1],
    lock: *mut c_void,
    offset: i64,
    conversion: *mut c_void,
    wide: *mut c_void,
    lists: [*mut c_void; 3],
    orientation: c_int,
    reserved: [c_int; 5],
    functions: *const c_void,
    cookie: [*mut c_void; 5],
}

const _: () = assert!(core::mem::offset_of!(Layout, descriptor) == 112);
const _: () = assert!(core::mem::offset_of!(Layout, lock) == 136);
const _: () = assert!(core::mem::offset_of!(Layout, orientation) == 192);
const _: () = assert!(core::mem::offset_of!(Layout, functions) == 216);
const _: () = assert!(core::mem::offset_of!(Layout, cookie) == 224);

/// Bits of `flags`.
const AT_END: c_int = 0x10;
const FAILED: c_int = 0x20;
const NO_READS: c_int = 0x4;
const NO_WRITES: c_int = 0x8;
const APPENDING: c_int = 0x1000;
/// Value of the descriptor field of a cookie stream.
const COOKIE_DESCRIPTOR: c_int = -2;
/// Size of a stream's lock in the C library.
const LOCK_BYTES: size_t = 16;

unsafe extern "C-unwind" {
    /// Discards a stream's buffer.
    fn __fpurge(stream: *mut FILE);
}

/// Serves `freopen` if the old or the new file is Cairn's; none otherwise. `open` opens a path with
/// the given flags.
///
/// # Safety
/// The arguments are those of `freopen`.
pub unsafe fn reopen(
    symbol: &'static str,
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
    open: impl FnOnce(*const c_char, c_int) -> c_int,
) -> Option<*mut FILE> {
    let is_ours = stdio::descriptor_of(stream).is_some();
    // SAFETY: the path is null or terminated.
    let to_ours = !path.is_null() && !matches!(unsafe { route(path) }, Route::Libc);
    if !is_ours && !to_ours {
        return None;
    }
    // SAFETY: the mode is terminated, and the stream is open.
    let replace = || unsafe { replace_file(path, CStr::from_ptr(mode), stream, open) };
    let result = counted_as(|| symbol, replace);
    Some(result.unwrap_or_else(|Errno(number)| {
        // SAFETY: the caller's own stream and mode.
        unsafe { let_go(mode, streams::current(stream)) };
        set_errno(number);
        core::ptr::null_mut()
    }))
}

/// Closes a stream whose reopening failed: it has lost its old file, too.
unsafe fn let_go(mode: *const c_char, stream: *mut FILE) {
    if let Some(descriptor) = stdio::descriptor_of(stream) {
        // A standard stream of ours is reused when its number is.
        if streams::standard_number(stream).is_none() {
            stdio::abandon(stream);
        }
        // SAFETY: an open Cairn stream, and the descriptor that belonged to it.
        unsafe {
            __fpurge(stream);
            descriptors::close(descriptor);
        }
        return;
    }
    let real = library!(freopen: fn(*const c_char, *const c_char, *mut FILE) -> *mut FILE);
    // SAFETY: the caller's own stream and mode. The C library cannot open an empty path.
    unsafe { real(c"".as_ptr(), mode, stream) };
}

unsafe fn replace_file(
    path: *const c_char,
    mode: &CStr,
    stream: *mut FILE,
    open: impl FnOnce(*const c_char, c_int) -> c_int,
) -> Result<*mut FILE> {
    let flags = stdio::flags_of(mode)?;
    let standard = streams::standard_number(stream);
    // SAFETY: the stream is open.
    let number = standard.unwrap_or_else(|| unsafe { stdio::fileno(stream) });
    if number < 0 {
        // A stream without a descriptor.
        return Err(Errno(libc::EOPNOTSUPP));
    }
    stdio::flush(stream);
    // Without a path: reopen the same file in another mode.
    let same = DescriptorPath::new(number);
    let opened = open(if path.is_null() { same.as_ptr() } else { path }, flags);
    if opened < 0 {
        return Err(Errno(crate::answer::errno()));
    }
    if opened != number {
        // SAFETY: both are descriptors of this process, and `opened` is not used afterwards.
        let moved = unsafe {
            let moved = descriptors::dup3(opened, number, flags & libc::O_CLOEXEC);
            descriptors::close(opened);
            moved
        };
        if moved < 0 {
            return Err(Errno(crate::answer::errno()));
        }
    }
    let stream = match standard {
        Some(number) => streams::standard_stream(number),
        None => stream,
    };
    if stdio::descriptor_of(stream).is_none() && standard.is_none() {
        // SAFETY: an open stream of the C library that is not static.
        unsafe { become_cookie(stream, number) }?;
    }
    if stdio::descriptor_of(stream).is_some() {
        // SAFETY: an open Cairn stream; `start_over` checks its layout.
        unsafe { start_over(stream, flags) };
    }
    if flags & (libc::O_APPEND | libc::O_ACCMODE) == libc::O_APPEND | libc::O_WRONLY {
        // SAFETY: the number was just opened.
        unsafe { io::lseek64(number, 0, libc::SEEK_END) };
    }
    Ok(stream)
}

/// Whether the layout is the expected one, shown by a stream that `fopencookie` made with `record`.
fn is_as_expected(cookie: &Layout, record: *mut c_void) -> bool {
    cookie.descriptor == COOKIE_DESCRIPTOR && cookie.cookie[0] == record
}

/// Turns a stream of the C library into a Cairn stream on the same number.
unsafe fn become_cookie(stream: *mut FILE, number: c_int) -> Result<()> {
    // SAFETY: streams that are not static come from malloc.
    let room = unsafe { libc::malloc_usable_size(stream.cast()) };
    if room < size_of::<Layout>() {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    // A fresh cookie stream serves as the model. It is closed again without touching a descriptor.
    let (model, record) = stdio::model()?;
    // SAFETY: both are open streams of at least this size, and the C library's own begin with the
    // same fields.
    let usable = unsafe {
        let (from, to) = (&*model.cast::<Layout>(), &mut *stream.cast::<Layout>());
        let lock = libc::calloc(1, LOCK_BYTES);
        let usable = is_as_expected(from, record) && !lock.is_null();
        if usable {
            __fpurge(stream);
            to.functions = from.functions;
            to.cookie = from.cookie;
            to.descriptor = COOKIE_DESCRIPTOR;
            to.wide = from.wide;
            to.orientation = from.orientation;
            // The stream's own lock was where the cookie is now.
            to.lock = lock;
            to.cookie[0] = stdio::adopt_stream(stream, number);
        }
        usable
    };
    stdio::discard(model);
    if usable { Ok(()) } else { Err(Errno(libc::EOPNOTSUPP)) }
}

/// Resets the state that a Cairn stream has of its old file.
unsafe fn start_over(stream: *mut FILE, flags: c_int) {
    // SAFETY: an open cookie stream.
    let layout = unsafe {
        __fpurge(stream);
        &mut *stream.cast::<Layout>()
    };
    if layout.descriptor != COOKIE_DESCRIPTOR {
        return;
    }
    let direction = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => NO_WRITES,
        libc::O_WRONLY => NO_READS,
        _ => 0,
    };
    let appending = if flags & libc::O_APPEND != 0 { APPENDING } else { 0 };
    layout.flags &= !(AT_END | FAILED | NO_READS | NO_WRITES | APPENDING);
    layout.flags |= direction | appending;
    layout.offset = -1;
}

macro_rules! reopens {
    ($(fn $name:ident with $open:ident;)*) => {$(
        /// As `freopen(3)`. Errors: `EOPNOTSUPP` for a stream without a descriptor.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            path: *const c_char, mode: *const c_char, stream: *mut FILE,
        ) -> *mut FILE {
            // SAFETY: the caller's own arguments.
            unsafe {
                reopen(stringify!($name), path, mode, stream, |path, flags| crate::open::$open(path, flags, 0o666)).unwrap_or_else(|| {
                    next!($name: fn(*const c_char, *const c_char, *mut FILE) -> *mut FILE)(path, mode, stream)
                })
            }
        }
    )*};
}

reopens! {
    fn freopen with open;
    fn freopen64 with open64;
}
