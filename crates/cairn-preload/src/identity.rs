//! Who the process is and what it may: calls that change its credentials, its file mode creation mask or its limits,
//! of which we keep copies.

use core::ffi::{c_char, c_int, c_long, c_uint};

use cairn_posix::{mount, process};
use libc::{gid_t, mode_t, pid_t, rlimit, size_t, uid_t};

macro_rules! noted {
    ($(fn $name:ident($($argument:ident: $type:ty),*), then $note:path;)*) => {$(
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the caller's own arguments.
            let result = unsafe { library!($name: fn($($type),*) -> c_int)($($argument),*) };
            $note();
            result
        }
    )*};
}

noted! {
    fn setuid(uid: uid_t), then process::credentials_changed;
    fn seteuid(uid: uid_t), then process::credentials_changed;
    fn setreuid(real: uid_t, effective: uid_t), then process::credentials_changed;
    fn setresuid(real: uid_t, effective: uid_t, saved: uid_t), then process::credentials_changed;
    fn setgid(gid: gid_t), then process::credentials_changed;
    fn setegid(gid: gid_t), then process::credentials_changed;
    fn setregid(real: gid_t, effective: gid_t), then process::credentials_changed;
    fn setresgid(real: gid_t, effective: gid_t, saved: gid_t), then process::credentials_changed;
    fn setgroups(count: size_t, groups: *const gid_t), then process::credentials_changed;
    fn initgroups(user: *const c_char, group: gid_t), then process::credentials_changed;
    fn setrlimit(resource: c_uint, limit: *const rlimit), then process::limits_changed;
    fn setrlimit64(resource: c_uint, limit: *const rlimit), then process::limits_changed;
    fn prlimit(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit),
        then process::limits_changed;
    fn prlimit64(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit),
        then process::limits_changed;
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
    if let Some(mount) = mount::attached() {
        mount.set_umask(mask);
    }
    before
}
