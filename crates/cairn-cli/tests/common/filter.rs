//! Commands for which the kernel refuses a call (seccomp), as other kernels, containers and file
//! systems do.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes the kernel refuse `call` with `errno` to the command and its children, except where the
/// call's second argument is `but_for`.
pub fn refuse(
    command: &mut Command,
    call: libc::c_long,
    errno: i32,
    but_for: Option<u32>,
) -> &mut Command {
    const SECOND_ARGUMENT: u32 = 24;
    let step = |code, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |at| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
    let is = |what, jt, jf| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, jf, what);
    let answer = |what| step(libc::BPF_RET | libc::BPF_K, 0, 0, what);
    let steps = [
        load(0),
        is(call as u32, 0, 3),
        load(SECOND_ARGUMENT),
        is(but_for.unwrap_or(0), u8::from(but_for.is_some()), 0),
        answer(libc::SECCOMP_RET_ERRNO | errno as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let confine = move || {
        let program = libc::sock_fprog { len: 6, filter: steps.as_ptr().cast_mut() };
        // SAFETY: the calls take numbers and a filter of six steps, which the kernel only reads.
        let is_set = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
                    == 0
        };
        if is_set { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: the closure only makes system calls.
    unsafe { command.pre_exec(confine) }
}
