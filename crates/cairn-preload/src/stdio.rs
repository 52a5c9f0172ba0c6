//! C streams on Cairn files: the C library's own `FILE`, made by `fopencookie`, with an interposed
//! `fileno`.
//!
//! Invariant: every such stream has a record in the list below, from its creation until its close
//! function has run. Cookie streams do not support wide characters: `fwide` stays negative.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use cairn_posix::files::file;
use cairn_posix::files::place::Place;
use cairn_posix::task::table;
use cairn_posix::{Errno, PathResult, Result};
use libc::{FILE, size_t, ssize_t};

use crate::answer::{answer, set_errno};
use crate::numbers::stream_opened;
use crate::{descriptors, io, streams};

/// Descriptor of a Cairn stream.
struct Record {
    descriptor: AtomicI32,
    stream: AtomicPtr<FILE>,
    next: AtomicPtr<Record>,
}

/// All records ever made. The record of a closed stream has no stream and is reused.
static RECORDS: AtomicPtr<Record> = AtomicPtr::new(core::ptr::null_mut());
/// Value of a record's stream while the record is being filled.
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

/// Record of a Cairn stream; none for other streams.
fn record_of(stream: *mut FILE) -> Option<&'static Record> {
    records().find(|record| record.stream.load(Ordering::Acquire) == stream && !stream.is_null())
}

/// Descriptor of a Cairn stream; none for other streams.
pub fn descriptor_of(stream: *mut FILE) -> Option<c_int> {
    record_of(stream).map(|record| record.descriptor.load(Ordering::Relaxed))
}

/// Flushes all Cairn streams at the end of the process: writes buffered output and seeks back over
/// input that was read ahead. Does not wait for the lock of a stream that another thread uses.
pub fn flush_all() {
    for record in records() {
        let stream = record.stream.load(Ordering::Acquire);
        if !stream.is_null() && stream != TAKEN {
            // SAFETY: the stream is open, because its close function would have cleared the record.
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

/// Writes the buffered output of one stream.
pub fn flush(stream: *mut FILE) {
    // SAFETY: the caller passes an open stream.
    unsafe { library!(fflush: fn(*mut FILE) -> c_int)(stream) };
}

unsafe fn cookie<'a>(cookie: *mut c_void) -> &'a Record {
    // SAFETY: the C library passes back the cookie that `make` gave it: a leaked record.
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
    // A cookie's write function reports an error as 0.
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

/// Makes a stream on `descriptor`, which the stream owns afterwards. Errors: `ENOMEM`.
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
    // SAFETY: the record lives forever; the functions have the types that fopencookie requires.
    let stream = unsafe { libc_stdio::fopencookie(cookie, mode.as_ptr(), functions) };
    record.stream.store(stream, Ordering::Release);
    match stream.is_null() {
        true => Err(Errno(libc::ENOMEM)),
        false => Ok(stream),
    }
}

/// Makes a stream without a file, and returns it with its cookie. It shows the layout of a cookie
/// stream. To be closed by [`discard`].
pub fn model() -> Result<(*mut FILE, *mut c_void)> {
    let record = new_record(-1);
    Ok((make(record, c"r")?, core::ptr::from_ref(record).cast_mut().cast()))
}

/// Closes a stream made by [`model`].
pub fn discard(model: *mut FILE) {
    // SAFETY: an open stream that nobody else has, without a descriptor.
    unsafe { libc::fclose(model) };
}

/// Takes the descriptor away from a Cairn stream. Later operations on the stream fail.
pub fn abandon(stream: *mut FILE) {
    if let Some(record) = record_of(stream) {
        record.descriptor.store(-1, Ordering::Relaxed);
    }
}

/// Makes a record for a stream that was not made here, and returns it as the stream's cookie. The
/// stream works on `descriptor` afterwards.
pub fn adopt_stream(stream: *mut FILE, descriptor: c_int) -> *mut c_void {
    let record = new_record(descriptor);
    record.stream.store(stream, Ordering::Release);
    core::ptr::from_ref(record).cast_mut().cast()
}

/// Number of characters of a mode that the C library evaluates.
const MODE_BYTES: usize = 7;
/// The same for `fdopen`.
const ADOPTED_MODE_BYTES: usize = 5;

/// Flags of open(2) for a mode of fopen(3). Errors: `EINVAL`.
pub fn flags_of(mode: &CStr) -> Result<c_int> {
    mode_flags(mode, MODE_BYTES)
}

fn mode_flags(mode: &CStr, counted_bytes: usize) -> Result<c_int> {
    let bytes = mode.to_bytes();
    if bytes.windows(4).any(|part| part == b"ccs=") {
        // Character conversion needs a wide stream.
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

/// Mode for fopencookie.
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
    // As in the C library: `a` begins at the end, `a+` reads from the start.
    if flags & (libc::O_APPEND | libc::O_ACCMODE) == libc::O_APPEND | libc::O_WRONLY {
        let handle = table::lookup(descriptor).ok_or(Errno(libc::EBADF))?;
        file::seek(handle, 0, libc::SEEK_END)?;
    }
    stream_on(descriptor, cookie_mode(flags))
}

unsafe fn text<'a>(mode: *const c_char) -> &'a CStr {
    // SAFETY: the caller of fopen or a related function passes a terminated mode.
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

/// Makes a stream on an open descriptor. `e` and `x` in the mode have no effect, as in the C
/// library.
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

/// Whether the descriptor was an unknown placeholder; it is in the table afterwards. The C
/// library's fdopen only asks for the flags, and a placeholder has flags, so its success proves
/// nothing.
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
