//! `clone`: processes made by hand. Threads of the C library do not come this way.
//!
//! What matters is whether the child has our memory and our descriptors, because what we know of
//! descriptors is in that memory. With both of its own it is a fork; with neither it lives in what
//! its maker holds. One that has our memory only until it executes a program, as after `vfork`,
//! gets memory of its own. Any other would change what we know of descriptors that are not its own:
//! refused with `EINVAL` where the store is in use.

use core::cell::Cell;
use core::ffi::{c_int, c_long, c_void};
use core::mem::offset_of;

use cairn_posix::kernel::{address, configuration};
use cairn_posix::process;
use libc::{clone_args, pid_t};

use crate::answer::set_errno;
use crate::life::{self, Making};

/// The shortest description of `clone3`, the first version of it, and the longest, which is a page.
const DESCRIPTION_BYTES_MIN: usize = 64;
const DESCRIPTION_BYTES_MAX: usize = 4096;

/// How a clone with some flags is made.
enum Manner {
    /// By the kernel alone.
    Passed,
    /// As a fork, with these flags.
    Forked(u64),
    Refused,
}

const fn flag(flag: c_int) -> u64 {
    flag as u32 as u64
}

fn manner(flags: u64) -> Manner {
    let has = |wanted: c_int| flags & flag(wanted) != 0;
    match (has(libc::CLONE_VM), has(libc::CLONE_FILES)) {
        _ if configuration::get().is_none() => Manner::Passed,
        (true, true) => Manner::Passed,
        (false, false) => Manner::Forked(flags),
        (true, false) if has(libc::CLONE_VFORK) => {
            // Handlers cannot be shared without the memory they are in.
            Manner::Forked(flags & !flag(libc::CLONE_VM | libc::CLONE_SIGHAND))
        }
        _ if !process::has_something() => Manner::Passed,
        _ => Manner::Refused,
    }
}

type Run = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;

/// What the child does first. Lives on the stack of the parent, of which the child has a copy.
struct Start {
    run: Run,
    argument: *mut c_void,
    making: Cell<Option<Making>>,
}

extern "C-unwind" fn begin(start: *mut c_void) -> c_int {
    // SAFETY: `clone` below passes its own, of which this process has a copy.
    let start = unsafe { &*start.cast::<Start>() };
    if let Some(making) = start.making.take() {
        making.end(0);
    }
    // SAFETY: the caller's own function and argument.
    let status = unsafe { (start.run)(start.argument) };
    // What follows is the end of the process, past every hook.
    life::end();
    status
}

macro_rules! clones {
    ($(fn $name:ident;)*) => {$(
        /// As `clone(2)`; the variable arguments are in the registers and the stack word of the
        /// last three.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            run: Run,
            stack: *mut c_void,
            flags: c_int,
            argument: *mut c_void,
            parent_thread: *mut pid_t,
            thread_area: *mut c_void,
            child_thread: *mut pid_t,
        ) -> c_int {
            let real = library!($name: fn(Run, *mut c_void, c_int, *mut c_void, *mut pid_t, *mut c_void, *mut pid_t) -> c_int);
            match manner(flag(flags)) {
                Manner::Passed => {
                    // SAFETY: the caller's own arguments.
                    unsafe { real(run, stack, flags, argument, parent_thread, thread_area, child_thread) }
                }
                Manner::Forked(flags) => {
                    let Some(making) = Making::begin() else { return -1 };
                    let start = Start { run, argument, making: Cell::new(Some(making)) };
                    let place = (&raw const start).cast_mut().cast();
                    // SAFETY: the caller's own arguments, but for a function that runs theirs in a
                    // copy of this memory.
                    let pid = unsafe {
                        real(begin, stack, flags as c_int, place, parent_thread, thread_area, child_thread)
                    };
                    if let Some(making) = start.making.take() {
                        making.end(pid);
                    }
                    pid
                }
                Manner::Refused => refused() as c_int,
            }
        }
    )*};
}

clones! {
    fn clone;
    fn __clone;
}

fn refused() -> c_long {
    set_errno(libc::EINVAL);
    -1
}

/// `clone` by number, which returns twice: `create` makes the call with these flags.
pub fn by_number(flags: u64, create: impl FnOnce(u64) -> c_long) -> c_long {
    match manner(flags) {
        Manner::Passed => create(flags),
        Manner::Forked(flags) => life::spawning(-1, || create(flags)),
        Manner::Refused => refused(),
    }
}

/// `clone3` by number: `create` makes the call with this description. Of one that is longer than
/// the one known the rest is the kernel's to judge. One that names a stack is the kernel's affair,
/// because no function can return on it.
///
/// # Safety
/// `description` is null or holds as many bytes as `bytes` says.
pub unsafe fn described(
    description: *const clone_args,
    bytes: usize,
    create: impl FnOnce(*const clone_args) -> c_long,
) -> c_long {
    const FLAGS: usize = offset_of!(clone_args, flags) / 8;
    const STACK: usize = offset_of!(clone_args, stack) / 8;
    let mut own = [0_u64; DESCRIPTION_BYTES_MAX / 8];
    let is_possible = (DESCRIPTION_BYTES_MIN..=DESCRIPTION_BYTES_MAX).contains(&bytes);
    // SAFETY: there is room for that many bytes.
    let mut took = || unsafe { address::fetch(own.as_mut_ptr().cast(), description.cast(), bytes) };
    if !is_possible || took().is_err() || own[STACK] != 0 {
        return create(description);
    }
    by_number(own[FLAGS], |flags| {
        own[FLAGS] = flags;
        create(own.as_ptr().cast())
    })
}
