//! The life of a process: start, fork, end.
//!
//! The end is handled at the last possible moment. `__libc_start_main` registers the dynamic
//! linker's function that runs all destructors; this file wraps it, so that whatever the destructor
//! of a library writes is still part of an orderly end. A death by signal bypasses all of this.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use cairn_posix::descriptors::{locks, recognition};
use cairn_posix::files::cwd;
use cairn_posix::kernel::latch::Held;
use cairn_posix::kernel::{configuration, stack};
use cairn_posix::process::{self, Spawn};
use cairn_posix::task::store_inodes;
use cairn_posix::{Errno, Result, mapping, mount};
use libc::{pid_t, size_t};

use crate::answer::{errno, guarded, set_errno};
use crate::{dispatch, environment, next, sanitizers, signals, stdio, streams};

/// Runs first in the process. Installs the reporting of bad addresses, and checks whether
/// descriptors 0 to 2 are Cairn's before other libraries copy stdin, stdout and stderr. In the
/// preloaded library even the C library is not initialised yet, and does not know its environment.
extern "C" fn start(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    if next::is_linked() && is_loaded_too() {
        next::supersede();
        configuration::decline();
        return;
    }
    // SAFETY: the dynamic linker or the C library passes the list that the kernel made.
    if unsafe { configuration::capture_from(environment) }.is_none() {
        return;
    }
    if !sanitizers::is_there() {
        signals::watch_addresses();
        if cwd::is_stand_in() {
            signals::watch_cores();
        }
        stack::begin();
    }
    dispatch::begin();
    if !(0..=2).any(store_inodes::may_be_placeholder) {
        return;
    }
    match sanitizers::may_use_threads() {
        true => look_at_standard_descriptors(),
        false => LOOKS_LATE.store(true, Ordering::Relaxed),
    }
}

/// Descriptors 0 to 2 are checked when `main` is about to be called, not at start.
static LOOKS_LATE: AtomicBool = AtomicBool::new(false);

fn look_at_standard_descriptors() {
    let before = errno();
    for number in 0..=2 {
        let is_ours = guarded(|| Ok::<_, Errno>(recognition::classify(number)));
        if is_ours == Ok(true) {
            streams::descriptor_changed(number);
        }
    }
    set_errno(before);
}

// Runs before the constructors of a C++ library that is linked into the program.
#[used]
#[unsafe(export_name = "__cairn_start")]
#[unsafe(link_section = ".init_array.00001")]
static START: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

/// Whether this library is also loaded in this process as a shared object.
fn is_loaded_too() -> bool {
    unsafe extern "C" fn look(object: *mut libc::dl_phdr_info, _: size_t, _: *mut c_void) -> c_int {
        // SAFETY: the C library passes a valid description with a terminated name, which is empty
        // for the program.
        let path = unsafe { CStr::from_ptr((*object).dlpi_name) }.to_bytes();
        let file = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        file.starts_with(configuration::LIBRARY).into()
    }
    // SAFETY: the function has the required type, and needs no data.
    unsafe { libc::dl_iterate_phdr(Some(look), core::ptr::null_mut()) != 0 }
}

type Destructors = extern "C-unwind" fn();

/// Function that the dynamic linker asked to be called at exit. The exported name is for the
/// archive: in a static program its `__libc_start_main` stores the function before any code of ours
/// can run.
#[unsafe(export_name = "__cairn_destructors")]
static DESTRUCTORS: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

#[unsafe(export_name = "__cairn_finish")]
extern "C-unwind" fn finish() {
    let destructors = DESTRUCTORS.load(Ordering::Relaxed);
    if !destructors.is_null() {
        // SAFETY: `__libc_start_main` stored the dynamic linker's function of this type.
        unsafe { core::mem::transmute::<*mut c_void, Destructors>(destructors)() };
    }
    stdio::flush_all();
    end();
}

/// Ends the process in an orderly way for the store: releases its handles and its slot.
pub fn end() {
    if mount::attached().is_none() {
        return;
    }
    // An error cannot be reported here; the agent reaps the slot.
    let _ = guarded(|| {
        process::end();
        Ok::<_, Errno>(())
    });
}

type Main = unsafe extern "C-unwind" fn(c_int, *mut *mut c_char, *mut *mut c_char) -> c_int;

/// As the C library's function of this name, which calls `main`. The archive has its own version,
/// because no code of ours can run before it in a static program.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __libc_start_main(
    main: Main,
    count: c_int,
    arguments: *mut *mut c_char,
    init: *mut c_void,
    fini: *mut c_void,
    destructors: *mut c_void,
    stack_end: *mut c_void,
) -> c_int {
    let real = library!(__libc_start_main: fn(Main, c_int, *mut *mut c_char, *mut c_void, *mut c_void, *mut c_void, *mut c_void) -> c_int);
    if LOOKS_LATE.load(Ordering::Relaxed) {
        look_at_standard_descriptors();
    }
    // Stored without a mount, too: the program may attach one while it runs.
    DESTRUCTORS.store(destructors, Ordering::Relaxed);
    // SAFETY: the caller's own arguments, except for the function called at exit. Ours calls
    // theirs.
    unsafe { real(main, count, arguments, init, fini, finish as *mut c_void, stack_end) }
}

macro_rules! ends {
    ($(fn $name:ident;)*) => {$(
        /// As `_exit(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(status: c_int) -> ! {
            end();
            // SAFETY: the caller's own argument.
            unsafe { library!($name: fn(c_int) -> !)(status) }
        }
    )*};
}

ends! {
    fn _exit;
    fn _Exit;
}

/// As `exit(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn exit(status: c_int) -> ! {
    if mount::attached().is_some() {
        let _ = guarded(|| {
            process::begin_exit();
            Ok::<_, Errno>(())
        });
    }
    // SAFETY: the caller's own argument.
    unsafe { library!(exit: fn(c_int) -> !)(status) }
}

/// As `quick_exit(3)`. Its handlers may still write, so the process is only marked as ending.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn quick_exit(status: c_int) -> ! {
    let _ = guarded(|| {
        process::mark_ending();
        Ok::<_, Errno>(())
    });
    // SAFETY: the caller's own argument.
    unsafe { library!(quick_exit: fn(c_int) -> !)(status) }
}

/// Lets a child about to be made share the file locks of what it inherits.
fn share_locks() {
    let _ = guarded(|| {
        if process::has_inheritable_state() {
            locks::before_child();
        }
        Ok::<_, Errno>(())
    });
}

/// A child being created. It gets references to everything its parent holds. While this value
/// exists, no mapping and no file lock is added or removed.
#[must_use]
pub struct Making {
    quiet: [Result<Held<'static>>; 2],
    spawn: Spawn,
}

impl Making {
    /// Call before creating the child. Returns none and sets errno if no child may be created.
    pub fn begin() -> Option<Making> {
        share_locks();
        let quiet = [guarded(mapping::quiet), guarded(locks::quiet)];
        match guarded(Spawn::begin) {
            Ok(spawn) => Some(Making { quiet, spawn }),
            Err(Errno(number)) => {
                set_errno(number);
                None
            }
        }
    }

    /// Call in both processes with the result of fork. Leaves errno as it is.
    pub fn end(self, pid: pid_t) {
        let after = errno();
        drop(self.quiet);
        let _ = guarded(|| {
            match pid {
                -1 => self.spawn.cancel(),
                0 => self.spawn.child(),
                pid => self.spawn.parent(pid),
            }
            Ok::<_, Errno>(())
        });
        if pid == 0 {
            dispatch::in_child();
        }
        set_errno(after);
    }
}

/// Runs `create`, which returns as fork does, with the child's references taken before.
pub fn spawning<T: Copy + Into<i64>>(failed: T, create: impl FnOnce() -> T) -> T {
    let Some(making) = Making::begin() else { return failed };
    let pid = create();
    making.end(pid.into() as pid_t);
    pid
}

macro_rules! forks {
    ($(fn $name:ident as $real:ident;)*) => {$(
        /// As `fork(2)`. `vfork` is served as a fork, because a child that shares the parent's
        /// memory could not be told apart from it.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name() -> pid_t {
            let real = library!($real: fn() -> pid_t);
            // SAFETY: takes nothing.
            spawning(-1, || unsafe { real() })
        }
    )*};
}

forks! {
    fn fork as fork;
    fn __fork as fork;
    fn _Fork as _Fork;
    fn vfork as fork;
    fn __vfork as fork;
}

/// As `forkpty(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn forkpty(
    terminal: *mut c_int,
    name: *mut c_char,
    settings: *const c_void,
    size: *const c_void,
) -> pid_t {
    let real =
        library!(forkpty: fn(*mut c_int, *mut c_char, *const c_void, *const c_void) -> pid_t);
    // SAFETY: the caller's own arguments.
    spawning(-1, || unsafe { real(terminal, name, settings, size) })
}

/// As `daemon(3)`: only the child returns; the parent ends its part of the mount.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn daemon(keep_directory: c_int, keep_descriptors: c_int) -> c_int {
    // SAFETY: our own hook, which takes nothing.
    match unsafe { fork() } {
        -1 => return -1,
        0 => {}
        // SAFETY: as daemon(3) does.
        _ => unsafe { _exit(0) },
    }
    // SAFETY: setsid takes nothing; the path is terminated; our own hooks change descriptors 0 to
    // 2.
    unsafe {
        if libc::setsid() == -1 {
            return -1;
        }
        if keep_directory == 0 && crate::directories::chdir(c"/".as_ptr()) != 0 {
            return -1;
        }
        if keep_descriptors == 0 {
            let null = crate::open::open(c"/dev/null".as_ptr(), libc::O_RDWR, 0);
            if null < 0 {
                return -1;
            }
            for number in 0..=2 {
                crate::descriptors::dup2(null, number);
            }
            if null > 2 {
                crate::descriptors::close(null);
            }
        }
    }
    0
}

/// As `system(3)`. The shell's references are held until it has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    let real = library!(system: fn(*const c_char) -> c_int);
    share_locks();
    let spawn = match guarded(Spawn::begin) {
        Ok(spawn) => spawn,
        Err(Errno(number)) => {
            set_errno(number);
            return -1;
        }
    };
    // SAFETY: the caller's own argument.
    let status = environment::complete_while(|| unsafe { real(command) });
    let after = errno();
    let _ = guarded(|| {
        spawn.cancel();
        Ok::<_, Errno>(())
    });
    set_errno(after);
    status
}
