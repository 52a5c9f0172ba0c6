//! `clone`: processes that a program creates without `fork`. The C library's threads are created
//! without these hooks.
//!
//! The table of descriptors is in the process's memory, so what counts is whether the child shares
//! memory and descriptors with its parent. A child with its own copy of both is served as a fork. A
//! child that shares both lives in its parent's table. A child that shares memory only until exec,
//! as after `vfork`, gets a copy of the memory instead. Any other child would change the table for
//! descriptors that are not its own: `EINVAL` while the process uses the store.

use core::cell::Cell;
use core::ffi::{c_int, c_long, c_void};
use core::mem::offset_of;

use cairn_posix::kernel::{address, configuration};
use cairn_posix::process;
use libc::{clone_args, pid_t};

use crate::answer::set_errno;
use crate::life::{self, Making};

/// Smallest (the first version) and largest (a page) size of the `clone_args` of `clone3`, in
/// bytes.
const DESCRIPTION_BYTES_MIN: usize = 64;
const DESCRIPTION_BYTES_MAX: usize = 4096;

/// How to serve a clone, by its flags.
enum Manner {
    /// The kernel serves it alone.
    Passed,
    /// Served as a fork, with these flags.
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
            // Signal handlers cannot be shared without the memory they are in.
            Manner::Forked(flags & !flag(libc::CLONE_VM | libc::CLONE_SIGHAND))
        }
        _ if !process::has_inheritable_state() => Manner::Passed,
        _ => Manner::Refused,
    }
}

type Run = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;

/// What the child runs first. Lives on the parent's stack, which is copied for the child.
struct Start {
    run: Run,
    argument: *mut c_void,
    making: Cell<Option<Making>>,
}

extern "C-unwind" fn begin(start: *mut c_void) -> c_int {
    // SAFETY: `clone` below passes its own `Start`, and this process has a copy of it.
    let start = unsafe { &*start.cast::<Start>() };
    if let Some(making) = start.making.take() {
        making.end(0);
    }
    // SAFETY: the caller's own function and argument.
    let status = unsafe { (start.run)(start.argument) };
    // The process ends after this return, without passing another hook.
    life::end();
    status
}

macro_rules! clones {
    ($(fn $name:ident;)*) => {$(
        /// As `clone(2)`. The variable arguments are passed in the registers and the stack word of
        /// the last three parameters.
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
                    // SAFETY: the caller's own arguments, except for the function: ours runs theirs
                    // in a copy of this memory.
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

/// Serves `clone` called by number, which returns twice. `create` makes the call with the flags it
/// gets.
pub fn by_number(flags: u64, create: impl FnOnce(u64) -> c_long) -> c_long {
    match manner(flags) {
        Manner::Passed => create(flags),
        Manner::Forked(flags) => life::spawning(-1, || create(flags)),
        Manner::Refused => refused(),
    }
}

/// Serves `clone3` called by number; `create` makes the call with the `clone_args` it gets. Two
/// cases go to the kernel as they are: a size that we do not know, and a child with a stack of its
/// own, because no Rust function can return on that stack.
///
/// # Safety
/// `description` is null or holds `bytes` bytes.
pub unsafe fn described(
    description: *const clone_args,
    bytes: usize,
    create: impl FnOnce(*const clone_args) -> c_long,
) -> c_long {
    const FLAGS: usize = offset_of!(clone_args, flags) / 8;
    const STACK: usize = offset_of!(clone_args, stack) / 8;
    let mut own = [0_u64; DESCRIPTION_BYTES_MAX / 8];
    let is_possible = (DESCRIPTION_BYTES_MIN..=DESCRIPTION_BYTES_MAX).contains(&bytes);
    // SAFETY: `own` has room for `bytes` bytes; `is_possible` is checked first.
    let mut took = || unsafe { address::fetch(own.as_mut_ptr().cast(), description.cast(), bytes) };
    if !is_possible || took().is_err() || own[STACK] != 0 {
        return create(description);
    }
    by_number(own[FLAGS], |flags| {
        own[FLAGS] = flags;
        create(own.as_ptr().cast())
    })
}
