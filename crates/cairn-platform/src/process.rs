//! Identity of this process, and whether another one is alive.
//!
//! Invariant: a living process is never called dead. If the state is unknown (another pid
//! namespace, no /proc or one of another namespace), the process counts as alive.
//!
//! Does not reap; the core does, after a caller established a death here.

use core::ffi::CStr;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use cairn_core::ProcessIdentity;

use crate::descriptor::Descriptor;
use crate::short_path::ShortPath;
use crate::sys::{self, Errno, SysResult};

/// Longest part of a `/proc/PID/stat` line that is read; the needed fields end well before.
const STAT_BYTES: usize = 1024;
const PAGE_BYTES: usize = 4096;

/// Page that the kernel clears in a forked child; null until first used.
static FORK_MARK: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
/// Source of generation numbers. Fork copies it, so a child continues above its parent's.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Returns a number that changes in a child created by fork (by any means that copies the memory),
/// so that facts about a process, such as thread ids, can be cached. Costs two loads. Never 0.
pub fn generation() -> u64 {
    let mut mark = FORK_MARK.load(Ordering::Acquire);
    if mark.is_null() {
        mark = match create_fork_mark() {
            Some(mark) => mark,
            // Without the mark nothing can be cached past a fork, so return the pid itself.
            None => return u64::from(sys::getpid()) | 1 << 63,
        };
    }
    // SAFETY: a non-null mark is a mapping of one page that is never unmapped.
    let current = unsafe { &*mark };
    match current.load(Ordering::Relaxed) {
        0 => {
            let next = GENERATION.fetch_add(1, Ordering::Relaxed) + 1;
            match current.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => next,
                Err(other) => other,
            }
        }
        known => known,
    }
}

fn create_fork_mark() -> Option<*mut AtomicU64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let page = sys::mmap(PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0).ok()?;
    // SAFETY: the fresh page is ours; the advice only changes what a child inherits.
    let wiped = unsafe { sys::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) };
    let mark = page.cast::<AtomicU64>();
    if wiped.is_ok() {
        let null = ptr::null_mut();
        match FORK_MARK.compare_exchange(null, mark, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Some(mark),
            Err(winner) => {
                // SAFETY: this page was never published.
                let _ = unsafe { sys::munmap(page, PAGE_BYTES) };
                return Some(winner);
            }
        }
    }
    // SAFETY: this page was never published.
    let _ = unsafe { sys::munmap(page, PAGE_BYTES) };
    None
}

/// Returns the inode number of the caller's pid namespace; 0 if /proc does not tell.
pub fn pid_namespace() -> u64 {
    sys::fstatat(libc::AT_FDCWD, c"/proc/self/ns/pid", 0).map_or(0, |stat| stat.st_ino)
}

/// Returns the identity of the calling process. Errors: /proc is not mounted or shows another
/// namespace.
pub fn identity() -> SysResult<ProcessIdentity> {
    let pid = sys::getpid();
    let stat = read_stat(c"/proc/self/stat")?;
    Ok(ProcessIdentity { pid, pid_namespace: pid_namespace(), start_time: stat.start_time })
}

/// Returns the identity of the calling thread, its own id and start time, for use with `is_alive`.
/// Errors: as `identity`.
pub fn thread_identity() -> SysResult<ProcessIdentity> {
    let stat = read_stat(c"/proc/thread-self/stat")?;
    let pid = sys::gettid();
    Ok(ProcessIdentity { pid, pid_namespace: pid_namespace(), start_time: stat.start_time })
}

/// Returns the identity of process `pid` of the caller's pid namespace.
pub fn identity_of(pid: u32) -> SysResult<ProcessIdentity> {
    let stat = read_stat(&stat_path(pid))?;
    Ok(ProcessIdentity { pid, pid_namespace: pid_namespace(), start_time: stat.start_time })
}

/// Whether the process is alive, as far as the caller can tell. A zombie all of whose threads are
/// gone is dead. A process of another pid namespace counts as alive. A start time of 0 (not known
/// yet) matches any process of that pid.
pub fn is_alive(identity: ProcessIdentity) -> bool {
    if identity.pid_namespace != pid_namespace() {
        return true;
    }
    let exists = || sys::kill(identity.pid, 0) != Err(Errno(libc::ESRCH));
    match read_stat(&stat_path(identity.pid)) {
        Ok(stat) if stat.is_of(identity) => true,
        Ok(_) => !proc_is_ours() && exists(),
        Err(_) => exists(),
    }
}

/// Whether no process of this number exists any more. Makes one system call. Also false for a dead
/// process that nobody has waited for, for one whose number was reused, and for one of another pid
/// namespace.
pub fn is_gone(identity: ProcessIdentity) -> bool {
    identity.pid_namespace == pid_namespace()
        && sys::kill(identity.pid, 0) == Err(Errno(libc::ESRCH))
}

/// Whether /proc numbers processes as the caller's pid namespace does. It may be the /proc of an
/// outer namespace.
fn proc_is_ours() -> bool {
    let mut own = ShortPath::new();
    own.push_number(u64::from(sys::getpid()));
    let mut name = [0; 16];
    let length = sys::readlinkat(libc::AT_FDCWD, c"/proc/self", &mut name);
    length.is_ok_and(|length| name[..length] == *own.to_bytes())
}

/// Whether a thread of the caller's pid namespace with this id exists.
pub fn thread_exists(tid: u32) -> bool {
    tid != 0 && tid <= i32::MAX as u32 && sys::tkill(tid, 0) != Err(Errno(libc::ESRCH))
}

/// The fields of `/proc/PID/stat` that are used.
#[derive(PartialEq, Eq, Debug)]
struct Stat {
    state: u8,
    threads: u64,
    start_time: u64,
}

impl Stat {
    /// Whether these fields say that this process or thread is alive.
    fn is_of(&self, identity: ProcessIdentity) -> bool {
        (self.start_time == identity.start_time || identity.start_time == 0)
            && !(matches!(self.state, b'Z' | b'X') && self.threads <= 1)
    }
}

fn stat_path(pid: u32) -> ShortPath {
    let mut path = ShortPath::new();
    path.push(b"/proc/");
    path.push_number(u64::from(pid));
    path.push(b"/stat");
    path
}

fn read_stat(path: &CStr) -> SysResult<Stat> {
    let file = Descriptor::open(libc::AT_FDCWD, path, libc::O_RDONLY, 0)?;
    let mut line = [0_u8; STAT_BYTES];
    let length = sys::read(file.raw(), &mut line)?;
    parse_stat(&line[..length]).ok_or(Errno(libc::EIO))
}

/// Parses a line. The command name may contain spaces and parentheses, so fields are counted from
/// the last `)`.
fn parse_stat(line: &[u8]) -> Option<Stat> {
    let name_end = line.iter().rposition(|&byte| byte == b')')?;
    let mut fields =
        line[name_end + 1..].split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    // The iterator stands before field 3 (state); nth() counts from there.
    let state = *fields.next()?.first()?;
    let threads = parse_number(fields.nth(16)?)?;
    let start_time = parse_number(fields.nth(1)?)?;
    Some(Stat { state, threads, start_time })
}

fn parse_number(digits: &[u8]) -> Option<u64> {
    core::str::from_utf8(digits).ok()?.trim_end().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exit status of a child that may not make namespaces.
    const REFUSED: i32 = 77;

    /// Returns what `body` returns in a child.
    fn in_a_child(body: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child uses only what it inherited, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status = body();
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: `status` receives one int.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        libc::WEXITSTATUS(status)
    }

    #[test]
    fn command_name_with_parenthesis_and_spaces_is_skipped() {
        let line = b"12 (a ) b (c) R 1 12 12 0 -1 4 1 0 0 0 1 2 3 4 20 0 7 0 98765 1 2 3\n";
        let stat = parse_stat(line).unwrap();
        assert_eq!(stat, Stat { state: b'R', threads: 7, start_time: 98765 });
    }

    #[test]
    fn truncated_line_is_refused() {
        assert_eq!(parse_stat(b"12 (a) R 1 2 3"), None);
    }

    #[test]
    fn own_process_is_alive_and_a_recycled_pid_is_not() {
        let me = identity().unwrap();
        assert!(is_alive(me));
        assert!(!is_alive(ProcessIdentity { start_time: me.start_time + 1, ..me }));
    }

    #[test]
    fn thread_lives_until_it_ends_though_its_process_goes_on() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(thread_identity().unwrap()).unwrap();
            ended.recv().unwrap();
        });
        let identity = told.recv().unwrap();
        assert_ne!(identity.pid, sys::getpid());
        assert!(is_alive(identity));
        end.send(()).unwrap();
        thread.join().unwrap();
        // After the join the thread may still exist: the kernel wakes the joiner first.
        while is_alive(identity) {
            sys::sched_yield();
        }
    }

    #[test]
    fn process_of_another_pid_namespace_counts_as_alive() {
        let me = identity().unwrap();
        let pid_namespace = me.pid_namespace + 1;
        assert!(is_alive(ProcessIdentity { pid: 1 << 22, pid_namespace, start_time: 1 }));
    }

    /// Mechanism: a process in its own pid namespace can see the /proc of the outer namespace.
    /// There its number belongs to another process, which began at another time.
    ///
    /// Consequence: living programs were reaped, and the files that they were writing were taken
    /// from them.
    ///
    /// Fix: a death report is believed only from a /proc that numbers processes as the caller does.
    #[test]
    fn living_process_is_alive_under_the_proc_of_another_namespace() {
        let status = in_a_child(|| {
            // SAFETY: no pointers are passed.
            if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWPID) } != 0 {
                return REFUSED;
            }
            // The first process of the new namespace has number 1, as another one has in /proc.
            in_a_child(|| {
                let alive = identity().is_ok_and(is_alive) && thread_identity().is_ok_and(is_alive);
                let ended = ProcessIdentity { pid: 9, ..identity().unwrap() };
                i32::from(!alive) + 2 * i32::from(is_alive(ended))
            })
        });
        assert!(status == 0 || status == REFUSED, "{status}");
    }

    #[test]
    fn unreaped_zombie_is_dead() {
        // SAFETY: the child only calls _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(0) };
        }
        let identity = identity_of(child as u32).unwrap();
        let mut info = core::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
        let options = libc::WEXITED | libc::WNOWAIT;
        // SAFETY: `info` receives one siginfo; WNOWAIT leaves the zombie in place.
        unsafe { libc::waitid(libc::P_PID, child as u32, info.as_mut_ptr(), options) };
        assert!(!is_alive(identity));
        // SAFETY: reaps our own child; no status is asked for.
        unsafe { libc::waitpid(child, ptr::null_mut(), 0) };
        assert!(!is_alive(identity));
    }

    #[test]
    fn generation_changes_in_a_forked_child() {
        let before = generation();
        assert_eq!(before, generation());
        // SAFETY: the child calls only this module, which does not allocate, and _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let changed = generation() != before && generation() == generation();
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(if changed { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: `status` receives one int.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    }
}
