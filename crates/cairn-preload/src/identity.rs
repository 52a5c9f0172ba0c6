//! Credentials and limits of the process: hooks for calls that change its credentials, umask or
//! limits, of which Cairn keeps copies, and for calls by which a thread stops sharing state with
//! others (`unshare`) or confines itself (`prctl`).

use core::ffi::{c_char, c_int, c_long, c_uint};

use cairn_posix::files::cwd::Split;
use cairn_posix::kernel::configuration;
use cairn_posix::task::{fs_context, table};
use cairn_posix::{Errno, kernel, process};
use libc::{gid_t, mode_t, pid_t, rlimit, size_t, uid_t};

use crate::answer::{answer, guarded};

macro_rules! noted {
    ($before:block, $after:block; $(fn $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            $before
            // SAFETY: the caller's own arguments.
            let result = unsafe { library!($name: fn($($type),*) -> c_int)($($argument),*) };
            $after
            result
        }
    )*};
}

noted! {
    { before_credentials_change() }, { process::credentials_changed() };
    fn setuid(uid: uid_t);
    fn seteuid(uid: uid_t);
    fn setreuid(real: uid_t, effective: uid_t);
    fn setresuid(real: uid_t, effective: uid_t, saved: uid_t);
    fn setgid(gid: gid_t);
    fn setegid(gid: gid_t);
    fn setregid(real: gid_t, effective: gid_t);
    fn setresgid(real: gid_t, effective: gid_t, saved: gid_t);
    fn setgroups(count: size_t, groups: *const gid_t);
    fn initgroups(user: *const c_char, group: gid_t);
}

noted! {
    {}, { process::limits_changed() };
    fn setrlimit(resource: c_uint, limit: *const rlimit);
    fn setrlimit64(resource: c_uint, limit: *const rlimit);
    fn prlimit(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit);
    fn prlimit64(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit);
}

/// Does what needs the rights that the process may be about to give up.
fn before_credentials_change() {
    let _ = guarded(|| {
        process::before_credentials_change();
        Ok::<_, Errno>(())
    });
}

/// Serves a system call that changes the credentials of one thread. A program without a C library
/// makes it in each of its threads.
pub fn change_credentials(real: impl FnOnce() -> c_long) -> c_long {
    before_credentials_change();
    let result = real();
    // Other threads keep their credentials, but our copy is per process.
    if kernel::has_threads() == Some(false) {
        process::credentials_changed();
    }
    result
}

/// As `ulimit(3)`. The variable argument is passed in the register of the second parameter.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ulimit(command: c_int, limit: c_long) -> c_long {
    // SAFETY: the caller's own arguments.
    let result = unsafe { library!(ulimit: fn(c_int, c_long) -> c_long)(command, limit) };
    process::limits_changed();
    result
}

/// As `umask(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn umask(mask: mode_t) -> mode_t {
    // SAFETY: the caller's own argument.
    let before = unsafe { library!(umask: fn(mode_t) -> mode_t)(mask) };
    fs_context::set_umask(mask);
    before
}

/// As `unshare(2)`. Errors: `EINVAL`, as from a kernel without this feature, if a thread of several
/// asks for descriptors of its own: it would need a descriptor table of its own here.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn unshare(flags: c_int) -> c_int {
    // SAFETY: the caller's own argument.
    unshare_or(flags, || unsafe { next!(unshare: fn(c_int) -> c_int)(flags) })
}

/// Serves `unshare`; `real` makes the kernel's call.
pub fn unshare_or(flags: c_int, real: impl FnOnce() -> c_int) -> c_int {
    const SHARED: c_int = libc::CLONE_FS | libc::CLONE_NEWNS;
    if configuration::get().is_none() {
        return real();
    }
    if flags & libc::CLONE_FILES != 0 && kernel::has_threads() == Some(true) {
        return answer(|| Err::<(), _>(Errno(libc::EINVAL)));
    }
    if flags & SHARED == 0 {
        return real();
    }
    let split = guarded(|| Ok::<_, Errno>(Split::begin())).unwrap_or(None);
    let result = real();
    if let Some(split) = split.filter(|_| result == 0) {
        let _ = guarded(|| {
            split.end();
            Ok::<_, Errno>(())
        });
    }
    result
}

/// As `prctl(2)`. The variable arguments are passed in the registers of the other parameters.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn prctl(
    option: c_int,
    second: c_long,
    third: c_long,
    fourth: c_long,
    fifth: c_long,
) -> c_int {
    if option == libc::PR_SET_SECCOMP && second == libc::SECCOMP_MODE_STRICT.into() && is_needed() {
        return answer(|| Err::<(), _>(Errno(libc::EINVAL)));
    }
    let real = next!(prctl: fn(c_int, c_long, c_long, c_long, c_long) -> c_int);
    // SAFETY: the caller's own arguments.
    unsafe { real(option, second, third, fourth, fifth) }
}

/// Whether strict seccomp mode must be refused. It allows only `read`, `write` and exit, and a call
/// on a Cairn file may need other system calls, so the kernel would kill the thread. `EINVAL` then,
/// as from a kernel without this mode.
pub fn is_needed() -> bool {
    configuration::get().is_some() && table::all().next().is_some()
}
