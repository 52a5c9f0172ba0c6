//! stdin, stdout and stderr when descriptors 0, 1 and 2 are Cairn's.
//!
//! The C library reads and writes these descriptors internally, where no hook sees it. So while one
//! of them is Cairn's, the variable `stdin`, `stdout` or `stderr` points to a stream of `stdio.rs`,
//! otherwise to the C library's own. Buffered output is written before the descriptor changes. If a
//! program saved the old value of a variable, `redirect.rs` serves most calls on it.

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use cairn_posix::task::table;
use libc::FILE;

use crate::stdio;

unsafe extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
}

/// One of the three standard streams.
struct Standard {
    /// Value of the variable before our first change; null if there was no change.
    native: AtomicPtr<FILE>,
    /// Our stream on the descriptor; null if there is none.
    ours: AtomicPtr<FILE>,
}

static STANDARD: [Standard; 3] = [const {
    Standard {
        native: AtomicPtr::new(core::ptr::null_mut()),
        ours: AtomicPtr::new(core::ptr::null_mut()),
    }
}; 3];
const MODES: [&CStr; 3] = [c"r", c"w", c"w"];

fn variable(number: usize) -> &'static AtomicPtr<FILE> {
    let address = match number {
        0 => &raw mut stdin,
        1 => &raw mut stdout,
        _ => &raw mut stderr,
    };
    // SAFETY: the C library's variables live as long as the process; an AtomicPtr has the layout of
    // a pointer.
    unsafe { AtomicPtr::from_ptr(address) }
}

fn index(number: c_int) -> Option<usize> {
    usize::try_from(number).ok().filter(|&number| number < STANDARD.len())
}

/// Must be called before the kernel changes what `number` refers to.
#[inline]
pub fn about_to_change(number: c_int) {
    if let Some(number) = index(number) {
        flush(number);
    }
}

#[cold]
fn flush(number: usize) {
    // Input streams have nothing to write. What they read ahead stays with the old file.
    let stream = variable(number).load(Ordering::Relaxed);
    if number > 0 && !stream.is_null() {
        stdio::flush(stream);
    }
}

/// Must be called after the kernel changed what `number` refers to.
#[inline]
pub fn descriptor_changed(number: c_int) {
    if let Some(index) = index(number) {
        if table::in_use() {
            follow(number, index);
        }
    }
}

#[cold]
fn follow(number: c_int, index: usize) {
    let standard = &STANDARD[index];
    let current = variable(index).load(Ordering::Relaxed);
    let ours = standard.ours.load(Ordering::Relaxed);
    let is_ours_now = !ours.is_null() && current == ours;
    match (table::is_ours(number), is_ours_now) {
        (true, false) => {
            let stream = if ours.is_null() { new_stream(number, index) } else { ours };
            if !stream.is_null() {
                standard.ours.store(stream, Ordering::Relaxed);
                standard.native.store(current, Ordering::Relaxed);
                variable(index).store(stream, Ordering::Relaxed);
                MOVED.store(true, Ordering::Relaxed);
            }
        }
        (false, true) => {
            variable(index).store(standard.native.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        _ => {}
    }
}

fn new_stream(number: c_int, index: usize) -> *mut FILE {
    let made = crate::answer::guarded(|| stdio::stream_on(number, MODES[index]));
    let stream = made.unwrap_or(core::ptr::null_mut());
    if index == 2 && !stream.is_null() {
        // SAFETY: the new stream. stderr is never buffered.
        unsafe { libc::setvbuf(stream, core::ptr::null_mut(), libc::_IONBF, 0) };
    }
    stream
}

/// Called when a Cairn stream is closed. Resets the variable that points to it.
pub fn stream_closed(stream: *mut FILE) {
    for (index, standard) in STANDARD.iter().enumerate() {
        if !stream.is_null() && standard.ours.load(Ordering::Relaxed) == stream {
            standard.ours.store(core::ptr::null_mut(), Ordering::Relaxed);
            let native = standard.native.load(Ordering::Relaxed);
            let _ = variable(index).compare_exchange(
                stream,
                native,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }
}

/// Whether a variable ever pointed to a Cairn stream.
static MOVED: AtomicBool = AtomicBool::new(false);

/// The stream to use for `stream`: our stream on the descriptor if `stream` is the C library's
/// standard stream and the descriptor is Cairn's; otherwise `stream`.
#[inline]
pub fn current(stream: *mut FILE) -> *mut FILE {
    if MOVED.load(Ordering::Relaxed) { stand_in(stream) } else { stream }
}

#[cold]
fn stand_in(stream: *mut FILE) -> *mut FILE {
    for (index, standard) in STANDARD.iter().enumerate() {
        let ours = standard.ours.load(Ordering::Relaxed);
        let moved = !ours.is_null() && variable(index).load(Ordering::Relaxed) == ours;
        if moved && standard.native.load(Ordering::Relaxed) == stream {
            return ours;
        }
    }
    stream
}

/// Number (0, 1 or 2) of a standard stream, by the variables or their former values.
pub fn standard_number(stream: *mut FILE) -> Option<c_int> {
    (0..STANDARD.len())
        .find(|&index| {
            variable(index).load(Ordering::Relaxed) == stream
                || STANDARD[index].native.load(Ordering::Relaxed) == stream
        })
        .map(|index| index as c_int)
}

/// Value of the variable for descriptor `number` (0, 1 or 2); null for other numbers.
pub fn standard_stream(number: c_int) -> *mut FILE {
    index(number).map_or(core::ptr::null_mut(), |index| variable(index).load(Ordering::Relaxed))
}
