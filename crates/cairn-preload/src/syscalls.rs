//! `syscall(2)`, the C library's function for system calls by number. A call that concerns a Cairn
//! file goes to the hook of the same name.
//!
//! Programs use it for calls that their C library has no function for, and some runtimes for all
//! calls. Foreign calls go to the kernel with unchanged arguments, and where possible not through
//! the C library's function: libraries that track all mappings (UCX and Open MPI, for memory
//! registered with a network card) patch the code of those functions, and their patches lead here.
//! `syscall` instructions elsewhere are not seen here; on a placeholder they get EBADF.

use core::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

use cairn_posix::files::cwd;
use cairn_posix::files::path::Route;
use cairn_posix::kernel::{address, configuration, gate};
use cairn_posix::mapping::Request;
use cairn_posix::task::{fs_context, table};
use cairn_posix::{Errno, kernel};
use libc::{epoll_event, iovec, pollfd, sigset_t, timespec};

use crate::answer::{answer_as, errno, is_ours, recognise_after_failure, set_errno};
use crate::{
    attributes, clones, descriptors, directories, exec, extended, identity, io, life, mapping,
    names, numbers, open, passing, poll, resolve, space, stat, submit, walks,
};

type Words = [usize; 6];

/// System calls on extended attributes since Linux 6.13. Programs that find them missing use the
/// older ones, which have functions.
const SYS_SETXATTRAT: c_long = 463;
const SYS_REMOVEXATTRAT: c_long = 466;

/// A system call by number.
struct Call {
    number: c_long,
    words: Words,
    /// The call was made by an instruction, not through `syscall`.
    is_by_instruction: bool,
}

impl Call {
    /// Makes the call in the kernel. Returns -1 with errno on failure.
    fn pass(&self) -> c_long {
        let [a, b, c, d, e, f] = self.words;
        if self.is_by_instruction {
            let words = self.words.map(|word| word as c_long);
            // SAFETY: the caller's own arguments.
            return unsafe { kernel::call(self.number, words) }.map_or_else(
                |failed| {
                    set_errno(failed.0);
                    -1
                },
                |result| result as c_long,
            );
        }
        let real = next!(syscall: fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long);
        // SAFETY: the caller's own arguments.
        unsafe { real(self.number, a, b, c, d, e, f) }
    }

    /// The same call with another argument at `place`.
    fn with(&self, place: usize, word: usize) -> Call {
        let mut words = self.words;
        words[place] = word;
        Call { words, ..*self }
    }

    fn descriptor(&self, place: usize) -> c_int {
        self.words[place] as c_int
    }

    fn pointer<T>(&self, place: usize) -> *mut T {
        self.words[place] as *mut T
    }

    /// Runs `hook` if the descriptor at `place` is Cairn's, the kernel's call otherwise.
    fn on(&self, place: usize, hook: impl Fn() -> c_long) -> c_long {
        let descriptor = self.descriptor(place);
        if table::is_ours(descriptor) {
            return hook();
        }
        let result = self.pass();
        if result == -1 && recognise_after_failure(descriptor) { hook() } else { result }
    }

    /// Runs `hook` if one of two descriptors is Cairn's.
    fn on_either(&self, places: [usize; 2], hook: impl Fn() -> c_long) -> c_long {
        match places.iter().any(|&place| table::is_ours(self.descriptor(place))) {
            true => hook(),
            false => self.on(places[0], hook),
        }
    }

    /// As [`Call::on`], for calls that the kernel answers for an unknown placeholder, too.
    fn on_known(&self, place: usize, hook: impl FnOnce() -> c_long) -> c_long {
        let descriptor = self.descriptor(place);
        if is_ours(descriptor) { hook() } else { self.pass() }
    }

    /// Runs `hook` if the path at `place`, relative to the current directory, leads to a Cairn
    /// file.
    fn at(&self, place: usize, hook: impl FnOnce() -> c_long) -> c_long {
        // SAFETY: the caller passes a path as the call of this number demands.
        let route = unsafe { cairn_posix::files::path::route(self.pointer(place)) };
        self.routed(route, hook)
    }

    /// Runs `hook` if the path after the directory descriptor at `place` leads to a Cairn file, or
    /// if there is no path and the descriptor is Cairn's.
    fn under(&self, place: usize, hook: impl FnOnce() -> c_long) -> c_long {
        let directory = self.descriptor(place);
        let path: *const c_char = self.pointer(place + 1);
        // SAFETY: the caller passes null or a terminated path.
        let unnamed = path.is_null() || unsafe { cairn_posix::files::path::is_empty(path) };
        if unnamed && is_ours(directory) {
            return hook();
        }
        // SAFETY: as above.
        let route = unsafe { cairn_posix::files::path::route_at(directory, path) };
        self.routed(route, hook)
    }

    fn routed(&self, route: Route<'_>, hook: impl FnOnce() -> c_long) -> c_long {
        match route {
            Route::Libc => self.pass(),
            _ => hook(),
        }
    }
}

/// As `syscall(2)`. Reads seven words like the C library's own, however many the caller passed.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let call = Call { number, words: [a, b, c, d, e, f], is_by_instruction: false };
    // A call made while one of ours is served comes from the C library's function that we called,
    // on its way to the kernel.
    if configuration::get().is_none() || gate::is_inside() {
        return call.pass();
    }
    // SAFETY: the caller's own arguments.
    unsafe { serve(&call).unwrap_or_else(|| call.pass()) }
}

/// Serves a call made by an instruction. Returns the kernel's result, a value or a negated errno;
/// none if no call of this number concerns a file.
///
/// # Safety
/// As for `serve`.
pub unsafe fn serve_instruction(number: c_long, words: Words) -> Option<c_long> {
    // SAFETY: promised by the caller.
    let result = unsafe { serve(&Call { number, words, is_by_instruction: true }) }?;
    Some(if result == -1 { -c_long::from(errno()) } else { result })
}

/// Serves a call through its hook; none if no call of this number concerns a file.
///
/// # Safety
/// The arguments are as the call of this number demands.
#[rustfmt::skip]
unsafe fn serve(call: &Call) -> Option<c_long> {
    let [a, b, c, d, e, f] = call.words;
    let fd = a as c_int;
    // SAFETY: promised by the caller; each hook takes its arguments as the kernel's call of the
    // same name does.
    let result = unsafe { match call.number {
        libc::SYS_read => call.on(0, || io::read(fd, b as *mut c_void, c) as c_long),
        libc::SYS_write => call.on(0, || io::write(fd, b as *const c_void, c) as c_long),
        libc::SYS_pread64 => call.on(0, || io::pread64(fd, b as *mut c_void, c, d as i64) as c_long),
        libc::SYS_pwrite64 => call.on(0, || io::pwrite64(fd, b as *const c_void, c, d as i64) as c_long),
        libc::SYS_readv => call.on(0, || io::readv(fd, b as *const iovec, c as c_int) as c_long),
        libc::SYS_writev => call.on(0, || io::writev(fd, b as *const iovec, c as c_int) as c_long),
        libc::SYS_preadv => call.on(0, || io::preadv64(fd, b as *const iovec, c as c_int, d as i64) as c_long),
        libc::SYS_pwritev => call.on(0, || io::pwritev64(fd, b as *const iovec, c as c_int, d as i64) as c_long),
        // Before the flags is the offset's high half, which 64-bit kernels ignore.
        libc::SYS_preadv2 => call.on(0, || io::preadv64v2(fd, b as *const iovec, c as c_int, d as i64, f as c_int) as c_long),
        libc::SYS_pwritev2 => call.on(0, || io::pwritev64v2(fd, b as *const iovec, c as c_int, d as i64, f as c_int) as c_long),
        libc::SYS_lseek => call.on(0, || io::lseek64(fd, b as i64, c as c_int)),
        libc::SYS_fsync => call.on(0, || io::fsync(fd).into()),
        libc::SYS_fdatasync => call.on(0, || io::fdatasync(fd).into()),
        libc::SYS_syncfs => call.on(0, || io::syncfs(fd).into()),
        libc::SYS_sync_file_range => call.on(0, || io::sync_file_range(fd, b as i64, c as i64, d as u32).into()),
        libc::SYS_ftruncate => call.on(0, || io::ftruncate64(fd, b as i64).into()),
        libc::SYS_truncate => call.at(0, || space::truncate64(a as *const c_char, b as i64).into()),
        libc::SYS_fallocate => call.on(0, || space::fallocate64(fd, b as c_int, c as i64, d as i64).into()),
        libc::SYS_fadvise64 => call.on(0, || 0),
        libc::SYS_readahead => call.on(0, || space::readahead(fd, b as i64, c) as c_long),
        libc::SYS_copy_file_range => call.on_either([0, 2], || {
            space::copy_file_range(fd, b as *mut i64, c as c_int, d as *mut i64, e, f as c_uint) as c_long
        }),
        libc::SYS_splice => call.on_either([0, 2], || {
            space::splice(fd, b as *mut i64, c as c_int, d as *mut i64, e, f as c_uint) as c_long
        }),
        libc::SYS_sendfile => call.on_either([0, 1], || space::sendfile64(fd, b as c_int, c as *mut i64, d) as c_long),
        libc::SYS_sendmsg => passing::sendmsg(fd, call.pointer(1), c as c_int) as c_long,
        libc::SYS_sendmmsg => passing::sendmmsg(fd, call.pointer(1), c as c_uint, d as c_int).into(),
        libc::SYS_recvmsg => passing::recvmsg(fd, call.pointer(1), c as c_int) as c_long,
        libc::SYS_socket | libc::SYS_accept | libc::SYS_accept4 | libc::SYS_epoll_create1 | libc::SYS_eventfd2 | libc::SYS_signalfd4
        | libc::SYS_timerfd_create | libc::SYS_inotify_init1 | libc::SYS_fanotify_init | libc::SYS_memfd_create
        | libc::SYS_memfd_secret | libc::SYS_pidfd_open | libc::SYS_userfaultfd | libc::SYS_perf_event_open | libc::SYS_mq_open
        | libc::SYS_fsopen | libc::SYS_fspick | libc::SYS_fsmount | libc::SYS_open_tree => {
            open::opened(call.pass() as c_int).into()
        }
        libc::SYS_pipe2 => numbers::pair_opened(call.pass() as c_int, call.pointer(0)).into(),
        libc::SYS_socketpair => numbers::pair_opened(call.pass() as c_int, call.pointer(3)).into(),
        libc::SYS_pidfd_getfd => passing::got(call.pass() as c_int).into(),
        libc::SYS_recvmmsg => passing::recvmmsg(fd, call.pointer(1), c as c_uint, d as c_int, call.pointer(4)).into(),

        libc::SYS_openat => open::openat64(fd, b as *const c_char, c as c_int, d as c_uint).into(),
        libc::SYS_openat2 => resolve::openat2(fd, b as *const c_char, c as *const libc::open_how, d),
        libc::SYS_close => descriptors::close(fd).into(),
        libc::SYS_close_range => descriptors::close_range(a as c_uint, b as c_uint, c as c_int).into(),
        libc::SYS_dup => descriptors::dup(fd).into(),
        libc::SYS_dup3 => descriptors::dup3(fd, b as c_int, c as c_int).into(),
        libc::SYS_fcntl => call.on(0, || descriptors::fcntl64(fd, b as c_int, c).into()),
        libc::SYS_ioctl => call.on(0, || descriptors::ioctl(fd, b as c_ulong, c as *mut c_void).into()),
        libc::SYS_flock => call.on(0, || descriptors::flock(fd, b as c_int).into()),

        libc::SYS_fstat => call.on_known(0, || stat::fstat64(fd, call.pointer(1)).into()),
        libc::SYS_newfstatat => call.under(0, || {
            stat::fstatat64(fd, b as *const c_char, c as *mut libc::stat, d as c_int).into()
        }),
        libc::SYS_statx => call.under(0, || {
            stat::statx(fd, b as *const c_char, c as c_int, d as c_uint, e as *mut libc::statx).into()
        }),
        libc::SYS_faccessat => call.under(0, || stat::faccessat(fd, b as *const c_char, c as c_int, 0).into()),
        libc::SYS_faccessat2 => call.under(0, || {
            stat::faccessat(fd, b as *const c_char, c as c_int, d as c_int).into()
        }),
        libc::SYS_statfs => call.at(0, || stat::statfs64(a as *const c_char, b as *mut libc::statfs).into()),
        libc::SYS_fstatfs => call.on(0, || stat::fstatfs64(fd, b as *mut libc::statfs).into()),

        libc::SYS_mkdirat => call.under(0, || names::mkdirat(fd, b as *const c_char, c as u32).into()),
        libc::SYS_mknodat => call.under(0, || names::mknodat(fd, b as *const c_char, c as u32, d as u64).into()),
        libc::SYS_unlinkat => call.under(0, || names::unlinkat(fd, b as *const c_char, c as c_int).into()),
        libc::SYS_symlinkat => call.under(1, || {
            names::symlinkat(a as *const c_char, b as c_int, c as *const c_char).into()
        }),
        libc::SYS_readlinkat => call.under(0, || names::readlinkat(fd, b as *const c_char, c as *mut c_char, d) as c_long),
        libc::SYS_renameat2 => {
            names::renameat2(fd, b as *const c_char, c as c_int, d as *const c_char, e as c_uint).into()
        }
        libc::SYS_linkat => names::linkat(fd, b as *const c_char, c as c_int, d as *const c_char, e as c_int).into(),

        libc::SYS_fchmod => call.on(0, || attributes::fchmod(fd, b as u32).into()),
        libc::SYS_fchmodat => call.under(0, || attributes::fchmodat(fd, b as *const c_char, c as u32, 0).into()),
        libc::SYS_fchown => call.on(0, || attributes::fchown(fd, b as u32, c as u32).into()),
        libc::SYS_fchownat => call.under(0, || {
            attributes::fchownat(fd, b as *const c_char, c as u32, d as u32, e as c_int).into()
        }),
        libc::SYS_utimensat if b == 0 => call.on(0, || attributes::futimens(fd, c as *const timespec).into()),
        libc::SYS_utimensat => call.under(0, || {
            attributes::utimensat(fd, b as *const c_char, c as *const timespec, d as c_int).into()
        }),

        libc::SYS_getxattr => call.at(0, || extended::getxattr(call.pointer(0), call.pointer(1), call.pointer(2), d) as c_long),
        libc::SYS_lgetxattr => call.at(0, || extended::lgetxattr(call.pointer(0), call.pointer(1), call.pointer(2), d) as c_long),
        libc::SYS_fgetxattr => call.on(0, || extended::fgetxattr(fd, call.pointer(1), call.pointer(2), d) as c_long),
        libc::SYS_setxattr => call.at(0, || {
            extended::setxattr(call.pointer(0), call.pointer(1), call.pointer(2), d, e as c_int).into()
        }),
        libc::SYS_lsetxattr => call.at(0, || {
            extended::lsetxattr(call.pointer(0), call.pointer(1), call.pointer(2), d, e as c_int).into()
        }),
        libc::SYS_fsetxattr => call.on(0, || extended::fsetxattr(fd, call.pointer(1), call.pointer(2), d, e as c_int).into()),
        libc::SYS_listxattr => call.at(0, || extended::listxattr(call.pointer(0), call.pointer(1), c) as c_long),
        libc::SYS_llistxattr => call.at(0, || extended::llistxattr(call.pointer(0), call.pointer(1), c) as c_long),
        libc::SYS_flistxattr => call.on(0, || extended::flistxattr(fd, call.pointer(1), c) as c_long),
        libc::SYS_removexattr => call.at(0, || extended::removexattr(call.pointer(0), call.pointer(1)).into()),
        libc::SYS_lremovexattr => call.at(0, || extended::lremovexattr(call.pointer(0), call.pointer(1)).into()),
        libc::SYS_fremovexattr => call.on(0, || extended::fremovexattr(fd, call.pointer(1)).into()),

        SYS_SETXATTRAT..=SYS_REMOVEXATTRAT => call.under(0, || {
            answer_as(|| "setxattrat", || Err::<i64, _>(Errno(libc::ENOSYS)))
        }),

        libc::SYS_getdents64 => call.on(0, || directories::getdents64(fd, b as *mut c_void, c) as c_long),
        libc::SYS_chdir => directories::chdir(a as *const c_char).into(),
        libc::SYS_fchdir => directories::fchdir(fd).into(),
        libc::SYS_getcwd if !fs_context::is_foreign() => working_directory(call),

        libc::SYS_mmap => {
            let request = Request { address: call.pointer(0), length: b, protection: c as c_int, flags: d as c_int, offset: f as i64 };
            mapping::map_or(request, e as c_int, || call.pass() as *mut c_void) as c_long
        }
        libc::SYS_munmap => mapping::unmap_or(call.pointer(0), b, || call.pass() as c_int).into(),
        libc::SYS_mremap => {
            mapping::remap_or(call.pointer(0), b, c, d as c_int, call.pointer(4), || call.pass() as *mut c_void) as c_long
        }
        libc::SYS_remap_file_pages => {
            mapping::show_other_pages_or(call.pointer(0), b, c as c_int, d, || call.pass() as c_int).into()
        }
        libc::SYS_mprotect => mapping::protect_or(call.pointer(0), b, c as c_int, || call.pass() as c_int).into(),
        libc::SYS_pkey_mprotect => {
            mapping::protect_by_key_or(call.pointer(0), b, c as c_int, d as c_int, || call.pass() as c_int).into()
        }
        libc::SYS_msync => mapping::sync_or(call.pointer(0), b, c as c_int, || call.pass() as c_int).into(),
        libc::SYS_madvise => mapping::advise_or(call.pointer(0), b, c as c_int, || call.pass() as c_int).into(),
        libc::SYS_mlockall => mapping::lock_all_or(a as c_int, || call.pass() as c_int).into(),
        libc::SYS_munlockall => mapping::unlock_all_or(|| call.pass() as c_int).into(),

        libc::SYS_ppoll => poll::ppoll(a as *mut pollfd, b as c_ulong, c as *const timespec, d as *const sigset_t).into(),
        libc::SYS_epoll_ctl => poll::epoll_ctl(fd, b as c_int, c as c_int, d as *mut epoll_event).into(),
        libc::SYS_inotify_add_watch => call.at(1, || walks::inotify_add_watch(fd, b as *const c_char, c as u32).into()),

        libc::SYS_io_submit => submit::submit(b as c_long, c as *const _, |count| call.with(1, count).pass()),
        libc::SYS_io_uring_setup => answer_as(|| "io_uring_setup", || Err::<i64, _>(Errno(libc::ENOSYS))),

        libc::SYS_execve => exec::execve(a as *const c_char, b as exec::List, c as exec::List).into(),
        libc::SYS_execveat => {
            exec::execveat(fd, b as *const c_char, c as exec::List, d as exec::List, e as c_int).into()
        }
        // A plain fork goes to `fork`, which also runs the handlers of `pthread_atfork`.
        libc::SYS_clone if a == libc::SIGCHLD as usize && b == 0 => life::fork().into(),
        // Only for a child on the same stack: no function can return on another one.
        libc::SYS_clone if b == 0 => clones::by_number(a as u64, |flags| call.with(0, flags as usize).pass()),
        libc::SYS_clone3 => clones::described(call.pointer(0), b, |description| call.with(0, description as usize).pass()),
        libc::SYS_exit_group => life::_exit(fd),
        libc::SYS_setuid | libc::SYS_setgid | libc::SYS_setreuid | libc::SYS_setregid | libc::SYS_setresuid
        | libc::SYS_setresgid | libc::SYS_setgroups => identity::change_credentials(|| call.pass()),
        libc::SYS_umask => identity::umask(a as u32).into(),
        libc::SYS_prctl => identity::prctl(a as c_int, b as c_long, c as c_long, d as c_long, e as c_long).into(),
        libc::SYS_seccomp if a == libc::SECCOMP_SET_MODE_STRICT as usize && identity::is_needed() => {
            answer_as(|| "seccomp", || Err::<i64, _>(Errno(libc::EINVAL)))
        }
        libc::SYS_unshare => identity::unshare_or(a as c_int, || call.pass() as c_int).into(),
        #[cfg(target_arch = "x86_64")]
        _ => return old(call),
        #[cfg(not(target_arch = "x86_64"))]
        _ => return None,
    } };
    Some(result)
}

/// Serves calls whose numbers exist on older architectures only.
///
/// # Safety
/// As for [`serve`].
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
unsafe fn old(call: &Call) -> Option<c_long> {
    let [a, b, c, d, e, _] = call.words;
    let fd = a as c_int;
    // SAFETY: as in `serve`.
    let result = unsafe { match call.number {
        libc::SYS_open => open::open64(a as *const c_char, b as c_int, c as c_uint).into(),
        libc::SYS_creat => open::creat64(a as *const c_char, b as c_uint).into(),
        libc::SYS_dup2 => descriptors::dup2(fd, b as c_int).into(),
        libc::SYS_stat => call.at(0, || stat::stat64(a as *const c_char, b as *mut libc::stat).into()),
        libc::SYS_lstat => call.at(0, || stat::lstat64(a as *const c_char, b as *mut libc::stat).into()),
        libc::SYS_access => call.at(0, || stat::access(a as *const c_char, b as c_int).into()),
        libc::SYS_mkdir => call.at(0, || names::mkdir(a as *const c_char, b as u32).into()),
        libc::SYS_rmdir => call.at(0, || names::rmdir(a as *const c_char).into()),
        libc::SYS_mknod => call.at(0, || names::mknod(a as *const c_char, b as u32, c as u64).into()),
        libc::SYS_unlink => call.at(0, || names::unlink(a as *const c_char).into()),
        libc::SYS_symlink => call.at(1, || names::symlink(a as *const c_char, b as *const c_char).into()),
        libc::SYS_readlink => call.at(0, || names::readlink(a as *const c_char, b as *mut c_char, c) as c_long),
        libc::SYS_rename => names::rename(a as *const c_char, b as *const c_char).into(),
        libc::SYS_renameat => names::renameat(fd, b as *const c_char, c as c_int, d as *const c_char).into(),
        libc::SYS_link => names::link(a as *const c_char, b as *const c_char).into(),
        libc::SYS_chmod => call.at(0, || attributes::chmod(a as *const c_char, b as u32).into()),
        libc::SYS_chown => call.at(0, || attributes::chown(a as *const c_char, b as u32, c as u32).into()),
        libc::SYS_lchown => call.at(0, || attributes::lchown(a as *const c_char, b as u32, c as u32).into()),
        libc::SYS_utime => call.at(0, || attributes::utime(a as *const c_char, call.pointer(1)).into()),
        libc::SYS_utimes => call.at(0, || attributes::utimes(a as *const c_char, call.pointer(1)).into()),
        libc::SYS_futimesat => call.under(0, || attributes::futimesat(fd, b as *const c_char, call.pointer(2)).into()),
        libc::SYS_poll => poll::poll(a as *mut pollfd, b as c_ulong, c as c_int).into(),
        libc::SYS_select => poll::select(fd, call.pointer(1), call.pointer(2), call.pointer(3), e as *mut libc::timeval).into(),
        libc::SYS_fork | libc::SYS_vfork => life::fork().into(),
        libc::SYS_eventfd | libc::SYS_signalfd | libc::SYS_epoll_create | libc::SYS_inotify_init => {
            open::opened(call.pass() as c_int).into()
        }
        libc::SYS_pipe => numbers::pair_opened(call.pass() as c_int, call.pointer(0)).into(),
        _ => return None,
    } };
    Some(result)
}

/// As the kernel's `getcwd`, which returns the length including the NUL.
fn working_directory(call: &Call) -> c_long {
    let name = || "getcwd";
    answer_as(name, || {
        let path = cwd::path().ok_or(Errno(libc::ENOENT))??;
        if path.len() >= call.words[1] {
            return Err(Errno(libc::ERANGE));
        }
        let target: *mut u8 = call.pointer(0);
        // SAFETY: the caller passes room for the number of bytes it gives.
        unsafe {
            address::give(target, path.as_ptr(), path.len())?;
            address::give(target.wrapping_add(path.len()), [0].as_ptr(), 1)?;
        }
        Ok(path.len() as i64 + 1)
    })
}
