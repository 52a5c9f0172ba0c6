//! Who the process is: calls that change its credentials or its file mode creation mask, of which we keep copies.

use core::ffi::c_int;

use cairn_posix::{mount, process};
use libc::{gid_t, mode_t, uid_t};

macro_rules! credentials {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the caller's own arguments.
            let result = unsafe { next!($name: fn($($type),*) -> c_int)($($argument),*) };
            process::credentials_changed();
            result
        }
    )*};
}

credentials! {
    fn setuid(uid: uid_t);
    fn seteuid(uid: uid_t);
    fn setreuid(real: uid_t, effective: uid_t);
    fn setresuid(real: uid_t, effective: uid_t, saved: uid_t);
    fn setgid(gid: gid_t);
    fn setegid(gid: gid_t);
    fn setregid(real: gid_t, effective: gid_t);
    fn setresgid(real: gid_t, effective: gid_t, saved: gid_t);
}

/// As `umask(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn umask(mask: mode_t) -> mode_t {
    // SAFETY: the caller's own argument.
    let before = unsafe { next!(umask: fn(mode_t) -> mode_t)(mask) };
    if let Some(mount) = mount::attached() {
        mount.set_umask(mask);
    }
    before
}
