//! C streams on files of ours: the C library's own `FILE`, made by `fopencookie`, and an interposed
//! `fileno`.
//!
//! Invariant: every such stream has a record in the list below, from its making until its close
//! function has run. Wide-character streams do not exist on cookies: `fwide` stays negative.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use cairn_posix::descriptors::table;
use cairn_posix::files::file;
use cairn_posix::files::path::Place;
use cairn_posix::{Errno, PathResult, Result};
use libc::{FILE, size_t, ssize_t};

use crate::answer::{answer, set_errno};
use crate::numbers::stream_opened;
use crate::{descriptors, io, streams};

/// What a stream of ours works on.
struct Record {
    descriptor: AtomicI32,
    stream: AtomicPtr<FILE>,
    next: AtomicPtr<Record>,
}

/// All records ever made; a closed one has no stream and is used again.
static RECORDS: AtomicPtr<Record> = AtomicPtr::new(core::ptr::null_mut());
/// Stands in a record's stream while it is being filled.
const TAKEN: *mut FILE = core::ptr::dangling_mut();

fn records() -> impl Iterator<Item = &'static Record> {
    // SAFETY: records come from Box::leak and are never freed.
    let follow = |link: &AtomicPtr<Record>| unsafe { link.load(Ordering::Acquire).as_ref() };
    core::iter::successors(follow(&RECORDS), move |record| follow(&record.next))
}

fn new_record(descriptor: c_int) -> &'static Record {
    let free = records().find(|record| {
        let closed = core::ptr::null_mut();
        record.stream.compare_exchange(closed, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    });
    if let Some(record) = free {
        record.descriptor.store(descriptor, Ordering::Relaxed);
        return record;
    }
    let record: &'static Record = Box::leak(Box::new(Record {
        descriptor: AtomicI32::new(descriptor),
        stream: AtomicPtr::new(TAKEN),
        next: AtomicPtr::new(core::ptr::null_mut()),
    }));
    let mut first = RECORDS.load(Ordering::Acquire);
    loop {
        record.next.store(first, Ordering::Relaxed);
        let new = core::ptr::from_ref(record).cast_mut();
        match RECORDS.compare_exchange(first, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return record,
            Err(other) => first = other,
        }
    }
}

/// The record of a stream of ours.
fn record_of(stream: *mut FILE) -> Option<&'static Record> {
    records().find(|record| record.stream.load(Ordering::Acquire) == stream && !stream.is_null())
}

/// The descriptor of a stream of ours.
pub fn descriptor_of(stream: *mut FILE) -> Option<c_int> {
    record_of(stream).map(|record| record.descriptor.load(Ordering::Relaxed))
}

/// Writes out what streams of ours still hold, and gives back what they read ahead, without waiting
/// for the lock of a stream that another thread uses: for the end of the process.
pub fn flush_all() {
    for record in records() {
        let stream = record.stream.load(Ordering::Acquire);
        if !stream.is_null() && stream != TAKEN {
            // SAFETY: the stream is open: its close function would have cleared the record.
            unsafe { libc_stdio::fflush_unlocked(stream) };
        }
    }
}

mod libc_stdio {
    use super::{FILE, c_char, c_int, c_void, size_t, ssize_t};

    /// `cookie_io_functions_t`.
    #[repr(C)]
    pub struct CookieFunctions {
        pub read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
        pub write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
        pub seek: unsafe extern "C-unwind" fn(*mut c_void, *mut i64, c_int) -> c_int,
        pub close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
    }

    unsafe extern "C-unwind" {
        pub fn fopencookie(
            cookie: *mut c_void,
            mode: *const c_char,
            functions: CookieFunctions,
        ) -> *mut FILE;
        pub fn fflush_unlocked(stream: *mut FILE) -> c_int;
    }
}

/// Writes out what one stream still holds.
pub fn flush(stream: *mut FILE) {
    // SAFETY: the caller passes an open stream.
    unsafe { library!(fflush: fn(*mut FILE) -> c_int)(stream) };
}

unsafe fn cookie<'a>(cookie: *mut c_void) -> &'a Record {
    // SAFETY: the C library passes back what `stream_on` gave it: a leaked record.
    unsafe { &*cookie.cast::<Record>() }
}

unsafe extern "C-unwind" fn cookie_read(
    of: *mut c_void,
    target: *mut c_char,
    length: size_t,
) -> ssize_t {
    // SAFETY: the C library passes a buffer of `length` bytes.
    unsafe { io::read(cookie(of).descriptor.load(Ordering::Relaxed), target.cast(), length) }
}

unsafe extern "C-unwind" fn cookie_write(
    of: *mut c_void,
    source: *const c_char,
    length: size_t,
) -> ssize_t {
    // SAFETY: the C library passes a buffer of `length` bytes.
    let written =
        unsafe { io::write(cookie(of).descriptor.load(Ordering::Relaxed), source.cast(), length) };
    // A cookie says 0 for an error.
    written.max(0)
}

unsafe extern "C-unwind" fn cookie_seek(of: *mut c_void, offset: *mut i64, whence: c_int) -> c_int {
    // SAFETY: the C library passes a valid offset.
    let position =
        unsafe { io::lseek64(cookie(of).descriptor.load(Ordering::Relaxed), *offset, whence) };
    if position < 0 {
        return -1;
    }
    // SAFETY: as above.
    unsafe { *offset = position };
    0
}

unsafe extern "C-unwind" fn cookie_close(of: *mut c_void) -> c_int {
    // SAFETY: as in `cookie`.
    let record = unsafe { cookie(of) };
    let descriptor = record.descriptor.load(Ordering::Relaxed);
    streams::stream_closed(record.stream.swap(core::ptr::null_mut(), Ordering::AcqRel));
    // SAFETY: the stream owns the descriptor.
    unsafe { descriptors::close(descriptor) }
}

/// A stream on `descriptor`, which it owns from now on. Errors: `ENOMEM`.
pub fn stream_on(descriptor: c_int, mode: &CStr) -> Result<*mut FILE> {
    make(new_record(descriptor), mode)
}

fn make(record: &'static Record, mode: &CStr) -> Result<*mut FILE> {
    let functions = libc_stdio::CookieFunctions {
        read: cookie_read,
        write: cookie_write,
        seek: cookie_seek,
        close: cookie_close,
    };
    let cookie = core::ptr::from_ref(record).cast_mut().cast();
    // SAFETY: the record lives forever; the functions have the types that fopencookie demands.
    let stream = unsafe { libc_stdio::fopencookie(cookie, mode.as_ptr(), functions) };
    record.stream.store(stream, Ordering::Release);
    match stream.is_null() {
        true => Err(Errno(libc::ENOMEM)),
        false => Ok(stream),
    }
}

/// A stream on nothing, and its cookie: to see what one looks like. Give it to [`discard`].
pub fn model() -> Result<(*mut FILE, *mut c_void)> {
    let record = new_record(-1);
    Ok((make(record, c"r")?, core::ptr::from_ref(record).cast_mut().cast()))
}

/// Closes a stream made by [`model`].
pub fn discard(model: *mut FILE) {
    // SAFETY: an open stream that nobody else has; its descriptor is none.
    unsafe { libc::fclose(model) };
}

/// Takes the descriptor away from a stream of ours, which works on none from now on.
pub fn abandon(stream: *mut FILE) {
    if let Some(record) = record_of(stream) {
        record.descriptor.store(-1, Ordering::Relaxed);
    }
}

/// The cookie for a stream that was not made here and works on `descriptor` from now on.
pub fn take_over(stream: *mut FILE, descriptor: c_int) -> *mut c_void {
    let record = new_record(descriptor);
    record.stream.store(stream, Ordering::Release);
    core::ptr::from_ref(record).cast_mut().cast()
}

/// Bytes of a mode that count, as the C library has it.
const MODE_BYTES: usize = 7;
/// The same of a mode of `fdopen`.
const ADOPTED_MODE_BYTES: usize = 5;

/// The flags of open(2) that a mode of fopen(3) stands for.
pub fn flags_of(mode: &CStr) -> Result<c_int> {
    mode_flags(mode, MODE_BYTES)
}

fn mode_flags(mode: &CStr, counted_bytes: usize) -> Result<c_int> {
    let bytes = mode.to_bytes();
    if bytes.windows(4).any(|part| part == b"ccs=") {
        // Conversion needs a wide stream.
        return Err(Errno(libc::EINVAL));
    }
    let bytes = &bytes[..bytes.len().min(counted_bytes)];
    let plus = bytes.contains(&b'+');
    let access = |alone| if plus { libc::O_RDWR } else { alone };
    let mut flags = match bytes.first() {
        Some(b'r') => access(libc::O_RDONLY),
        Some(b'w') => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_TRUNC,
        Some(b'a') => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_APPEND,
        _ => return Err(Errno(libc::EINVAL)),
    };
    for byte in &bytes[1..] {
        match byte {
            b'x' => flags |= libc::O_EXCL,
            b'e' => flags |= libc::O_CLOEXEC,
            _ => {}
        }
    }
    Ok(flags)
}

/// What fopencookie needs to know of a mode.
fn cookie_mode(flags: c_int) -> &'static CStr {
    match (flags & libc::O_ACCMODE, flags & libc::O_APPEND != 0) {
        (libc::O_RDONLY, _) => c"r",
        (libc::O_WRONLY, false) => c"w",
        (libc::O_WRONLY, true) => c"a",
        (_, false) => c"r+",
        (_, true) => c"a+",
    }
}

fn open_stream(place: &Place, mode: &CStr) -> PathResult<*mut FILE> {
    let flags = flags_of(mode)?;
    let descriptor = file::open(place, flags, 0o666)?;
    streams::descriptor_changed(descriptor);
    let stream = on_descriptor(descriptor, flags);
    if stream.is_err() {
        // SAFETY: the descriptor just opened.
        unsafe { descriptors::close(descriptor) };
    }
    Ok(stream?)
}

fn on_descriptor(descriptor: c_int, flags: c_int) -> Result<*mut FILE> {
    // As the C library: `a` begins at the end, `a+` reads from the start.
    if flags & (libc::O_APPEND | libc::O_ACCMODE) == libc::O_APPEND | libc::O_WRONLY {
        let handle = table::lookup(descriptor).ok_or(Errno(libc::EBADF))?;
        file::seek(handle, 0, libc::SEEK_END)?;
    }
    stream_on(descriptor, cookie_mode(flags))
}

unsafe fn text<'a>(mode: *const c_char) -> &'a CStr {
    // SAFETY: the caller of fopen and its kin passes a terminated mode.
    unsafe { CStr::from_ptr(mode) }
}

path_hooks! {
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE,
        // SAFETY: the caller passes a terminated mode.
        [path, follow true, then stream_opened] = |place| open_stream(&place, unsafe { text(mode) });
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE,
        // SAFETY: the caller passes a terminated mode.
        [path, follow true, then stream_opened] = |place| open_stream(&place, unsafe { text(mode) });
}

/// A stream on a descriptor there is. As with the C library, `e` and `x` are nothing to it.
fn adopt(descriptor: c_int, mode: &CStr) -> Result<*mut FILE> {
    let flags = mode_flags(mode, ADOPTED_MODE_BYTES)?;
    let handle = table::lookup(descriptor).ok_or(Errno(libc::EBADF))?;
    let status = file::status_flags(handle)?;
    let (has, wants) = (status & libc::O_ACCMODE, flags & libc::O_ACCMODE);
    if has != libc::O_RDWR && has != wants {
        return Err(Errno(libc::EINVAL));
    }
    let begins_to_append = flags & libc::O_APPEND != 0 && status & libc::O_APPEND == 0;
    if begins_to_append {
        file::set_status_flags(handle, status | libc::O_APPEND)?;
    }
    if begins_to_append && wants == libc::O_WRONLY {
        file::seek(handle, 0, libc::SEEK_END)?;
    }
    stream_on(descriptor, cookie_mode(flags))
}

/// As `fdopen(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fdopen(descriptor: c_int, mode: *const c_char) -> *mut FILE {
    if !table::is_ours(descriptor) && !is_unknown_placeholder(descriptor) {
        // SAFETY: the caller's own arguments.
        return unsafe { next!(fdopen: fn(c_int, *const c_char) -> *mut FILE)(descriptor, mode) };
    }
    // SAFETY: the caller passes a terminated mode.
    answer(|| adopt(descriptor, unsafe { text(mode) }))
}

/// The C library's fdopen asks only for the flags, which a placeholder has.
fn is_unknown_placeholder(descriptor: c_int) -> bool {
    // SAFETY: F_GETFL takes no argument; our own hook recognises what it finds.
    cairn_posix::kernel::configuration::get().is_some()
        && unsafe { descriptors::fcntl(descriptor, libc::F_GETFL, 0) } >= 0
        && table::is_ours(descriptor)
}

macro_rules! numbers {
    ($(fn $name:ident;)*) => {$(
        /// As `fileno(3)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(stream: *mut FILE) -> c_int {
            let before = crate::answer::errno();
            // SAFETY: the caller's own argument.
            let number = unsafe { library!($name: fn(*mut FILE) -> c_int)(stream) };
            if number >= 0 {
                return number;
            }
            match descriptor_of(stream) {
                Some(descriptor) if descriptor >= 0 => {
                    set_errno(before);
                    descriptor
                }
                _ => number,
            }
        }
    )*};
}

numbers! {
    fn fileno;
    fn fileno_unlocked;
}
