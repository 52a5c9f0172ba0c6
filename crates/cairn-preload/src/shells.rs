//! `popen`, implemented by `posix_spawn`, because the C library would create a child that holds no
//! references.
//!
//! The stream is one of the C library's, on a pipe. Invariant: a shell has a record from its start
//! until its stream is closed.

use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use cairn_posix::kernel::configuration;
use cairn_posix::{Errno, kernel};
use libc::{FILE, pid_t};

use crate::answer::{errno, set_errno};
use crate::open::opened;
use crate::spawn;

/// Record of a shell at the other end of a pipe.
struct Shell {
    stream: AtomicPtr<FILE>,
    process: AtomicI32,
    /// This process's end of the pipe.
    descriptor: AtomicI32,
    next: AtomicPtr<Shell>,
}

/// All records ever made. A free one has no stream.
static SHELLS: AtomicPtr<Shell> = AtomicPtr::new(core::ptr::null_mut());
/// Value of a record's stream while the record is being filled.
const TAKEN: *mut FILE = core::ptr::dangling_mut();

fn shells() -> impl Iterator<Item = &'static Shell> {
    // SAFETY: records come from Box::leak and are never freed.
    let follow = |link: &AtomicPtr<Shell>| unsafe { link.load(Ordering::Acquire).as_ref() };
    core::iter::successors(follow(&SHELLS), move |shell| follow(&shell.next))
}

fn new_record() -> &'static Shell {
    let free = |shell: &&Shell| {
        let stream = &shell.stream;
        let none = core::ptr::null_mut();
        stream.compare_exchange(none, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    if let Some(shell) = shells().find(free) {
        return shell;
    }
    let shell: &'static Shell = Box::leak(Box::new(Shell {
        stream: AtomicPtr::new(TAKEN),
        process: AtomicI32::new(0),
        descriptor: AtomicI32::new(-1),
        next: AtomicPtr::new(core::ptr::null_mut()),
    }));
    let mut first = SHELLS.load(Ordering::Acquire);
    loop {
        shell.next.store(first, Ordering::Relaxed);
        let new = core::ptr::from_ref(shell).cast_mut();
        match SHELLS.compare_exchange(first, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return shell,
            Err(other) => first = other,
        }
    }
}

/// Frees the record of a stream and returns its process; none if the stream is not a shell's.
fn take(stream: *mut FILE) -> Option<pid_t> {
    let found = |shell: &&Shell| shell.stream.load(Ordering::Acquire) == stream;
    let shell = shells().find(found).filter(|_| !stream.is_null())?;
    let process = shell.process.load(Ordering::Relaxed);
    shell.stream.store(core::ptr::null_mut(), Ordering::Release);
    Some(process)
}

/// Parsed mode of `popen`.
struct Mode {
    reads: bool,
    close_on_exec: bool,
}

fn mode(mode: &[u8]) -> Option<Mode> {
    let has = |letter| mode.contains(&letter);
    let known = mode.iter().all(|letter| b"rwe".contains(letter));
    (known && has(b'r') != has(b'w')).then(|| Mode { reads: has(b'r'), close_on_exec: has(b'e') })
}

/// As `popen(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn popen(
    command: *const c_char,
    mode_text: *const c_char,
) -> *mut FILE {
    if configuration::get().is_none() {
        // SAFETY: the caller's own arguments.
        return unsafe {
            library!(popen: fn(*const c_char, *const c_char) -> *mut FILE)(command, mode_text)
        };
    }
    // SAFETY: the caller passes a terminated mode.
    let Some(mode) = mode(unsafe { core::ffi::CStr::from_ptr(mode_text) }.to_bytes()) else {
        set_errno(libc::EINVAL);
        return core::ptr::null_mut();
    };
    let [reader, writer] = match kernel::pipe() {
        Ok(ends) => ends.map(opened),
        Err(Errno(number)) => {
            set_errno(number);
            return core::ptr::null_mut();
        }
    };
    let (ours, its, number) = if mode.reads { (reader, writer, 1) } else { (writer, reader, 0) };
    let others = shells().filter(|shell| !shell.stream.load(Ordering::Acquire).is_null());
    let others = others.map(|shell| shell.descriptor.load(Ordering::Relaxed));
    // The stream first: if it fails, no shell must exist that nobody waits for.
    let text = if mode.reads { c"r" } else { c"w" };
    // SAFETY: the mode is terminated.
    let stream = unsafe { libc::fdopen(ours, text.as_ptr()) };
    if stream.is_null() {
        let number = errno();
        let _ = (kernel::close(ours), kernel::close(its));
        set_errno(number);
        return stream;
    }
    // SAFETY: the caller's own command.
    let started = unsafe { spawn::shell(command, (its, number), others) };
    let _ = kernel::close(its);
    match started {
        Ok(process) => {
            if !mode.close_on_exec {
                let _ = kernel::fcntl(ours, libc::F_SETFD, 0);
            }
            let shell = new_record();
            shell.process.store(process, Ordering::Relaxed);
            shell.descriptor.store(ours, Ordering::Relaxed);
            shell.stream.store(stream, Ordering::Release);
            stream
        }
        Err(Errno(number)) => {
            // SAFETY: the stream made above, which nobody else knows.
            unsafe { library!(fclose: fn(*mut FILE) -> c_int)(stream) };
            set_errno(number);
            core::ptr::null_mut()
        }
    }
}

/// Closes a shell's stream and waits for the shell. Returns its status, or -1.
unsafe fn close_and_wait(stream: *mut FILE, process: pid_t) -> c_int {
    // SAFETY: the caller's own stream.
    let closed = unsafe { library!(fclose: fn(*mut FILE) -> c_int)(stream) };
    let mut status = 0;
    loop {
        // SAFETY: there is room for the status.
        let ended = unsafe { libc::waitpid(process, &raw mut status, 0) };
        if ended == process {
            return if closed == 0 { status } else { -1 };
        }
        if errno() != libc::EINTR {
            return -1;
        }
    }
}

macro_rules! closings {
    ($(fn $name:ident;)*) => {$(
        /// As the C library's function of this name, and waits for a shell if the stream has one.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(stream: *mut FILE) -> c_int {
            match take(stream) {
                // SAFETY: the caller's own stream.
                Some(process) => unsafe { close_and_wait(stream, process) },
                // SAFETY: as above.
                None => unsafe { library!($name: fn(*mut FILE) -> c_int)(stream) },
            }
        }
    )*};
}

closings! {
    fn pclose;
    fn fclose;
}
