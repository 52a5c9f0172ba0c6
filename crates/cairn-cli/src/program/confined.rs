//! Runs the dynamic linker that a program names, to list the libraries it finds. The program may
//! come from anybody, may name any file as its dynamic linker, and may have the linker execute code
//! of a library (`DT_AUDIT`).
//!
//! The linker is therefore confined: it may read files, allocate memory, and write to its standard
//! output and error, for a limited number of seconds.
//!
//! Invariant: the kernel refuses every call that is not listed here (seccomp), whatever the file
//! is.

use crate::program::seccomp::{self, Filter, Forbidden};
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};

/// Time limit. SIGALRM ends the linker, which cannot block it: that takes a call that the filter
/// refuses.
const SECONDS_MAX: libc::c_uint = 20;
/// Maximum number of bytes read from each of its outputs.
const TEXT_BYTES_MAX: u64 = 1 << 20;
/// Open flags that are refused, because they can change a file.
const CHANGING: i32 =
    libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | (libc::O_TMPFILE & !libc::O_DIRECTORY);
/// Calls that change nothing outside the process.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_brk,
    libc::SYS_close,
    // The executed program runs under the same filter.
    libc::SYS_execve,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fstat,
    libc::SYS_getcwd,
    libc::SYS_getrandom,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_newfstatat,
    libc::SYS_pread64,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_statx,
    libc::SYS_uname,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_arch_prctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
];

/// Why there is no output.
#[derive(Debug)]
pub enum Failure {
    /// The system does not allow a filter; the command was not executed.
    Unconfined(io::Error),
    /// The command could not be executed, or it failed; with the last line of its standard error.
    Failed(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Failed(error)
    }
}

/// Runs the command under the filter. Returns what it writes to its standard output.
pub fn output(command: &mut Command) -> Result<String, Failure> {
    seccomp::try_out().map_err(Failure::Unconfined)?;
    let filter = filter();
    let confine = move || {
        // SAFETY: the call takes a number. The alarm stays set after the exec.
        unsafe { libc::alarm(SECONDS_MAX) };
        seccomp::install(&filter, 0).map(drop)
    };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: between fork and exec the closure makes only system calls, on memory that was
    // allocated before the fork.
    unsafe { command.pre_exec(confine) };
    let mut child = command.spawn()?;
    let texts = texts(&mut child);
    let status = child.wait()?;
    let (text, complaint) = texts?;
    let complaint = match (status.success(), status.signal()) {
        (true, _) => return Ok(text),
        (false, Some(signal)) => format!("its dynamic linker was ended by signal {signal}"),
        (false, None) => complaint.lines().last().unwrap_or_default().to_owned(),
    };
    Err(Failure::Failed(io::Error::other(complaint)))
}

/// Reads standard output and standard error. Closes both, so that a process that goes on writing is
/// ended.
fn texts(child: &mut Child) -> io::Result<(String, String)> {
    let (mut output, mut complaint) = (Vec::new(), Vec::new());
    if let Some(from) = child.stdout.take() {
        from.take(TEXT_BYTES_MAX).read_to_end(&mut output)?;
    }
    if let Some(from) = child.stderr.take() {
        from.take(TEXT_BYTES_MAX).read_to_end(&mut complaint)?;
    }
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok((text(output), text(complaint)))
}

fn filter() -> Vec<libc::sock_filter> {
    const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut filter = Filter::new(libc::SECCOMP_RET_KILL_PROCESS);
    ALLOWED.iter().for_each(|&number| filter.rule(number, libc::SECCOMP_RET_ALLOW));
    let reading = || Forbidden::AnyBit(CHANGING as u32);
    filter.rule_unless(libc::SYS_openat, (2, reading()), REFUSE);
    #[cfg(target_arch = "x86_64")]
    filter.rule_unless(libc::SYS_open, (1, reading()), REFUSE);
    for number in [libc::SYS_write, libc::SYS_writev] {
        // Higher descriptors may be inherited ones.
        filter.rule_unless(number, (0, Forbidden::AtLeast(3)), REFUSE);
    }
    filter.finish(REFUSE)
}
