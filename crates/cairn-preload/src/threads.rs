//! Hooks for threads. A new thread registers the size of its stack (`cairn_posix::kernel::stack`)
//! and is armed before it runs code of the application. Threads do not block SIGSYS where system
//! calls are caught (`dispatch.rs`). Without Cairn these hooks only pass calls on.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;

use cairn_posix::kernel::{configuration, stack};
use cairn_posix::selector;
use cairn_posix::task::fs_context;
use libc::{pthread_attr_t, pthread_t};

use crate::dispatch;

type Begin = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;

/// What a new thread runs, and what it inherits.
struct Start<Function> {
    function: Function,
    argument: *mut c_void,
    stack_bytes: usize,
    surroundings: Option<fs_context::Inherited>,
}

impl<Function: Copy> Start<Function> {
    /// Arms the thread and registers its stack. Returns the application's function and argument.
    ///
    /// # Safety
    /// `start` is the box that the thread was given.
    unsafe fn take(start: *mut c_void) -> (Function, *mut c_void) {
        dispatch::arm();
        // SAFETY: promised by the caller.
        let start = *unsafe { Box::from_raw(start.cast::<Start<Function>>()) };
        stack::thread_begins(start.stack_bytes);
        fs_context::begin_with(start.surroundings);
        (start.function, start.argument)
    }
}

/// Whether a new thread must begin in a function of ours.
fn is_taken() -> bool {
    selector::is_on() || stack::asks_for_threads() || fs_context::of_new_thread().is_some()
}

/// Stack size in bytes of a thread with these attributes; 0 if unknown.
///
/// # Safety
/// The caller passes null or initialised attributes.
unsafe fn stack_bytes(attributes: *const pthread_attr_t) -> usize {
    let mut bytes: libc::size_t = 0;
    let mut usual = MaybeUninit::<pthread_attr_t>::uninit();
    // SAFETY: promised by the caller. Newly initialised attributes have the default size and own no
    // memory.
    let failed = unsafe {
        match attributes.is_null() {
            false => libc::pthread_attr_getstacksize(attributes, &raw mut bytes),
            true if libc::pthread_attr_init(usual.as_mut_ptr()) == 0 => {
                libc::pthread_attr_getstacksize(usual.as_ptr(), &raw mut bytes)
            }
            true => 1,
        }
    };
    if failed == 0 { bytes } else { 0 }
}

unsafe extern "C-unwind" fn run_thread(start: *mut c_void) -> *mut c_void {
    // SAFETY: `pthread_create` passes its own `Start`; the function and its argument are the
    // application's.
    unsafe {
        let (function, argument) = Start::<Begin>::take(start);
        let result = function(argument);
        dispatch::thread_ended();
        result
    }
}

/// As `pthread_create(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    function: Begin,
    argument: *mut c_void,
) -> c_int {
    let real = library!(pthread_create: fn(*mut pthread_t, *const pthread_attr_t, Begin, *mut c_void) -> c_int);
    if !is_taken() {
        // SAFETY: the caller's own arguments.
        return unsafe { real(thread, attributes, function, argument) };
    }
    // SAFETY: the caller's own attributes.
    let stack_bytes = unsafe { stack_bytes(attributes) };
    let surroundings = fs_context::of_new_thread();
    let start = Box::into_raw(Box::new(Start { function, argument, stack_bytes, surroundings }));
    // SAFETY: the caller's own arguments, except for the function. Ours runs theirs.
    let result = unsafe { real(thread, attributes, run_thread, start.cast()) };
    if result != 0 {
        // SAFETY: no thread was created, so nobody has taken it.
        drop(unsafe { Box::from_raw(start) });
    }
    result
}

type BeginC11 = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;

unsafe extern "C-unwind" fn run_c11_thread(start: *mut c_void) -> c_int {
    // SAFETY: as in `run_thread`.
    unsafe {
        let (function, argument) = Start::<BeginC11>::take(start);
        let result = function(argument);
        dispatch::thread_ended();
        result
    }
}

/// As `thrd_create(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn thrd_create(
    thread: *mut pthread_t,
    function: BeginC11,
    argument: *mut c_void,
) -> c_int {
    let real = library!(thrd_create: fn(*mut pthread_t, BeginC11, *mut c_void) -> c_int);
    if !is_taken() {
        // SAFETY: the caller's own arguments.
        return unsafe { real(thread, function, argument) };
    }
    // SAFETY: null is allowed.
    let stack_bytes = unsafe { stack_bytes(core::ptr::null()) };
    let surroundings = fs_context::of_new_thread();
    let start = Box::into_raw(Box::new(Start { function, argument, stack_bytes, surroundings }));
    // SAFETY: the caller's own arguments, except for the function. Ours runs theirs.
    let result = unsafe { real(thread, run_c11_thread, start.cast()) };
    if result != 0 {
        // SAFETY: no thread was created, so nobody has taken it.
        drop(unsafe { Box::from_raw(start) });
    }
    result
}

/// Whether system calls are caught, or may be once a library is loaded that needs it. A thread that
/// blocks SIGSYS could not be armed then.
fn may_catch() -> bool {
    cfg!(target_arch = "x86_64") && configuration::get().is_some()
}

macro_rules! masks {
    ($(fn $name:ident;)*) => {$(
        /// As the C library's function of this name, except that it never blocks SIGSYS.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(how: c_int, new: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
            let real = library!($name: fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int);
            // SAFETY: the caller passes null or a set.
            let Some(set) = (unsafe { new.as_ref() }).filter(|_| may_catch()) else {
                // SAFETY: the caller's own arguments.
                return unsafe { real(how, new, old) };
            };
            let mut set = *set;
            // SAFETY: a valid set and signal; the caller's other arguments.
            unsafe {
                libc::sigdelset(&raw mut set, libc::SIGSYS);
                real(how, &raw const set, old)
            }
        }
    )*};
}

masks! {
    fn sigprocmask;
    fn pthread_sigmask;
}

macro_rules! old_masks {
    ($(fn $name:ident;)*) => {$(
        /// As the C library's function of this name, whose sets are integers, except that it never
        /// blocks SIGSYS.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(set: c_int) -> c_int {
            let sigsys = if may_catch() { 1 << (libc::SIGSYS - 1) } else { 0 };
            // SAFETY: takes a number.
            unsafe { library!($name: fn(c_int) -> c_int)(set & !sigsys) }
        }
    )*};
}

old_masks! {
    fn sigblock;
    fn sigsetmask;
}
