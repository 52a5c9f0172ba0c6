//! Who the process is and what it may: calls that change its credentials, its file mode creation
//! mask or its limits, of which we keep copies, and those by which a thread leaves others or
//! confines itself.

use core::ffi::{c_char, c_int, c_long, c_uint};

use cairn_posix::descriptors::table;
use cairn_posix::files::cwd::{self, Split};
use cairn_posix::kernel::configuration;
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

/// Does what the rights are needed for that the process may be about to give up.
fn before_credentials_change() {
    let _ = guarded(|| {
        process::before_credentials_change();
        Ok::<_, Errno>(())
    });
}

/// A call of the kernel that changes credentials of the thread, which is what a program without a C
/// library does in each of its threads.
pub fn change_credentials(real: impl FnOnce() -> c_long) -> c_long {
    before_credentials_change();
    let result = real();
    // Others keep theirs, and what we know is of the process.
    if kernel::has_threads() == Some(false) {
        process::credentials_changed();
    }
    result
}

/// As `ulimit(3)`; the variable argument is in the register of the second.
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
    cwd::set_umask(mask);
    before
}

/// As `unshare(2)`. A thread that shares descriptors with no other would need a table of its own:
/// `EINVAL`, as of a kernel that does not know it, where there are others.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn unshare(flags: c_int) -> c_int {
    // SAFETY: the caller's own argument.
    unshare_or(flags, || unsafe { next!(unshare: fn(c_int) -> c_int)(flags) })
}

/// What `unshare` gives, for which `real` does the kernel's part.
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

/// As `prctl(2)`; the variable arguments are in the registers of the others.
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

/// Whether a thread that may only read and write what the kernel has would be killed at its next
/// call on a file of ours, which can need others of the kernel. Then it is told, as by a kernel
/// that cannot confine it so.
pub fn is_needed() -> bool {
    configuration::get().is_some() && table::all().next().is_some()
}
