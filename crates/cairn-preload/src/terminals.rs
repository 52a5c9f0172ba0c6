//! Terminal calls, which fail on a Cairn file.

use cairn_posix::descriptors::description;
use core::ffi::{c_char, c_int, c_void};

use cairn_posix::{Errno, HandleId, Result};
use libc::{pid_t, size_t};

use crate::answer::{answer, number};
use crate::{hooks, streams};

fn refused<T>(handle: HandleId) -> Result<T> {
    description::opened(handle).and(Err(Errno(libc::ENOTTY)))
}

descriptor_hooks! {
    fn tcgetattr(descriptor: c_int, settings: *mut c_void) -> c_int = |handle| refused::<c_int>(handle);
    fn tcsetattr(descriptor: c_int, when: c_int, settings: *const c_void) -> c_int
        = |handle| refused::<c_int>(handle);
    fn tcdrain(descriptor: c_int) -> c_int = |handle| refused::<c_int>(handle);
    fn tcflow(descriptor: c_int, action: c_int) -> c_int = |handle| refused::<c_int>(handle);
    fn tcflush(descriptor: c_int, queue: c_int) -> c_int = |handle| refused::<c_int>(handle);
    fn tcsendbreak(descriptor: c_int, duration: c_int) -> c_int = |handle| refused::<c_int>(handle);
    fn tcgetpgrp(descriptor: c_int) -> pid_t = |handle| refused::<c_int>(handle);
    fn tcsetpgrp(descriptor: c_int, group: pid_t) -> c_int = |handle| refused::<c_int>(handle);
    fn tcgetsid(descriptor: c_int) -> pid_t = |handle| refused::<c_int>(handle);
    fn ttyname(descriptor: c_int) -> *mut c_char = |handle| refused::<*mut c_char>(handle);
    fn ptsname(descriptor: c_int) -> *mut c_char = |handle| refused::<*mut c_char>(handle);
}

/// Hooks for functions that return the error number.
macro_rules! numbered {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(descriptor: c_int $(, $argument: $type)*) -> c_int {
            if let Some(handle) = hooks::known(descriptor) {
                return number(|| refused(handle));
            }
            // SAFETY: the caller's own arguments.
            unsafe { next!($name: fn(c_int $(, $type)*) -> c_int)(descriptor $(, $argument)*) }
        }
    )*};
}

numbered! {
    fn ttyname_r(target: *mut c_char, room: size_t);
    fn ptsname_r(target: *mut c_char, room: size_t);
    fn __ttyname_r_chk(target: *mut c_char, room: size_t, has: size_t);
    fn __ptsname_r_chk(target: *mut c_char, room: size_t, has: size_t);
}

/// As `login_tty(3)`. Afterwards descriptors 0 to 2 are the terminal.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn login_tty(terminal: c_int) -> c_int {
    if let Some(handle) = hooks::known(terminal) {
        return answer(|| refused::<c_int>(handle));
    }
    (0..=2).for_each(streams::about_to_change);
    // SAFETY: the caller's own argument.
    let result = unsafe { next!(login_tty: fn(c_int) -> c_int)(terminal) };
    if result == 0 {
        (0..=2).for_each(|number| {
            crate::open::opened(number);
        });
    }
    result
}
