//! Asynchronous I/O of the kernel (`libaio`), and rings (`io_uring`).
//!
//! A request on a Cairn file is served when it is submitted. The kernel gets a replacement: a write
//! of the same number of bytes to `/dev/null`, which touches no memory. It completes with the same
//! count under the application's request and tag, wakes waiters and signals the event descriptor.
//! So the kernel's queue stays the only one, and it may mix Cairn files and foreign files.
//!
//! Entries of a ring reach the kernel past every hook, and EBADF for each of them would be an I/O
//! error to the program. So setting up a ring fails with ENOSYS, and programs fall back to ordinary
//! calls.

use cairn_posix::descriptors::description;
use core::ffi::{c_int, c_long, c_uint, c_ulong, c_void};

use cairn_posix::kernel::configuration;
use cairn_posix::task::table;
use cairn_posix::{Errno, HandleInfo, Result, kernel};
use libc::{iovec, ssize_t};

use crate::answer::{count_refusal, errno, recognise_after_failure, set_errno};
use crate::io;

/// The kernel's `struct iocb`, little-endian.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Request {
    tag: u64,
    key: u32,
    transfer_flags: c_int,
    operation: u16,
    priority: i16,
    descriptor: c_int,
    buffer: u64,
    length: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_descriptor: u32,
}

const _: () = assert!(size_of::<Request>() == 64);

/// Operations (`IOCB_CMD_PREAD` and so on).
const READ: u16 = 0;
const WRITE: u16 = 1;
const SYNC: u16 = 2;
const SYNC_DATA: u16 = 3;
const POLL: u16 = 5;
const READ_LIST: u16 = 7;
const WRITE_LIST: u16 = 8;
/// Flag: the completion signals an event descriptor.
const SIGNALS: u32 = 1;

/// Events for which a regular file is always ready.
const READY: u64 = (libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM) as u64;

type List = *const *mut Request;

/// Checks that the kernel makes before it begins, in its order. Errors: `EBADF`, `EINVAL`.
fn may_begin(request: &Request, file: HandleInfo) -> Result<()> {
    if request.flags & SIGNALS != 0 && table::is_ours(request.event_descriptor as c_int) {
        return Err(Errno(libc::EINVAL));
    }
    let is_permitted = match request.operation {
        READ | READ_LIST => file.read,
        WRITE | WRITE_LIST => file.write,
        _ => return Ok(()),
    };
    if !is_permitted {
        return Err(Errno(libc::EBADF));
    }
    // `preadv2` and `pwritev2` take -1 as the cursor, which such a request does not use.
    match file.is_directory || request.offset < 0 {
        true => Err(Errno(libc::EINVAL)),
        false => Ok(()),
    }
}

/// Serves a request on a Cairn file. Returns the result for its completion. Errors: those of the
/// operation.
///
/// # Safety
/// The request describes memory of the application.
unsafe fn perform(request: &Request) -> Result<usize> {
    let Request { descriptor, operation, buffer, length, offset, transfer_flags, .. } = *request;
    let handle = table::lookup(descriptor).ok_or(Errno(libc::EBADF))?;
    may_begin(request, description::opened(handle)?)?;
    let one = iovec { iov_base: buffer as *mut c_void, iov_len: length as usize };
    let (list, count) = match operation {
        READ_LIST | WRITE_LIST => (buffer as *const iovec, length as c_int),
        _ => (&raw const one, 1),
    };
    // SAFETY: promised by the caller.
    let result = unsafe {
        match operation {
            READ | READ_LIST => io::preadv64v2(descriptor, list, count, offset, transfer_flags),
            WRITE | WRITE_LIST => io::pwritev64v2(descriptor, list, count, offset, transfer_flags),
            SYNC => io::fsync(descriptor) as ssize_t,
            SYNC_DATA => io::fdatasync(descriptor) as ssize_t,
            POLL => (buffer & READY) as ssize_t,
            _ => return Err(Errno(libc::EINVAL)),
        }
    };
    usize::try_from(result).map_err(|_| Errno(errno()))
}

/// The application's requests while replacements are in their place. Restores them on drop.
struct Replaced<'a> {
    list: &'a [*mut Request],
    null: c_int,
    originals: Vec<(*mut Request, Request)>,
}

impl<'a> Replaced<'a> {
    fn new(list: &'a [*mut Request]) -> Result<Replaced<'a>> {
        let flags = libc::O_WRONLY | libc::O_CLOEXEC;
        let null = kernel::openat(libc::AT_FDCWD, c"/dev/null", flags, 0)?;
        Ok(Replaced { list, null, originals: Vec::new() })
    }

    /// Serves the requests on Cairn files and replaces them. Returns the number of requests, from
    /// the first on, that can be submitted, and the error of the next one.
    ///
    /// # Safety
    /// The entries are valid requests.
    unsafe fn fill(&mut self) -> (usize, Result<()>) {
        for (index, &entry) in self.list.iter().enumerate() {
            // SAFETY: promised by the caller.
            let original = unsafe { *entry };
            if !table::is_ours(original.descriptor) {
                continue;
            }
            // SAFETY: as above.
            match unsafe { perform(&original) } {
                Ok(bytes) => {
                    let (descriptor, length) = (self.null, bytes as u64);
                    let instead = Request {
                        operation: WRITE,
                        transfer_flags: 0,
                        offset: 0,
                        descriptor,
                        length,
                        ..original
                    };
                    self.originals.push((entry, original));
                    // SAFETY: as above.
                    unsafe { entry.write(instead) };
                }
                Err(errno) => return (index, Err(errno)),
            }
        }
        (self.list.len(), Ok(()))
    }
}

impl Drop for Replaced<'_> {
    fn drop(&mut self) {
        for (entry, original) in &self.originals {
            // SAFETY: the request is the application's, which gets it back only after this.
            unsafe { entry.write(*original) };
        }
        let _ = kernel::close(self.null);
    }
}

/// Serves `io_submit`. `submit` makes the kernel's call for the given number of entries from the
/// start of the list. Returns -1 with errno, as the kernel's call does.
///
/// # Safety
/// As for io_submit(2).
pub unsafe fn submit(count: c_long, list: List, submit: impl Fn(usize) -> c_long) -> c_long {
    let wanted = usize::try_from(count).unwrap_or(0);
    if wanted == 0 || list.is_null() || configuration::get().is_none() {
        return submit(count as usize);
    }
    // SAFETY: promised by the caller.
    let requests = unsafe { core::slice::from_raw_parts(list, wanted) };
    // SAFETY: as above.
    let descriptor = |entry: &*mut Request| unsafe { (**entry).descriptor };
    if !requests.iter().any(|entry| table::is_ours(descriptor(entry))) {
        let result = submit(wanted);
        // The kernel stops before a placeholder that is not in the table yet. The application
        // submits the rest again, and then that placeholder is first.
        if result >= 0 || !recognise_after_failure(descriptor(&requests[0])) {
            return result;
        }
    }
    // SAFETY: promised by the caller.
    unsafe { submit_mixed(requests, submit) }
}

/// # Safety
/// As for [`submit`].
unsafe fn submit_mixed(list: &[*mut Request], submit: impl Fn(usize) -> c_long) -> c_long {
    // Reports a queue that does not exist before serving anything.
    if submit(0) < 0 {
        return -1;
    }
    let mut replaced = match Replaced::new(list) {
        Ok(replaced) => replaced,
        Err(Errno(number)) => {
            set_errno(number);
            return -1;
        }
    };
    // SAFETY: promised by the caller.
    match unsafe { replaced.fill() } {
        (0, Err(Errno(number))) => {
            set_errno(number);
            -1
        }
        (count, _) => submit(count),
    }
}

/// As `io_submit` of libaio, which returns a negated errno.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn io_submit(queue: c_ulong, count: c_long, list: List) -> c_int {
    let real = || next!(io_submit: fn(c_ulong, c_long, List) -> c_int);
    let before = errno();
    let act = |count: usize| {
        // SAFETY: the caller's own arguments, or the first entries of its list.
        let result = c_long::from(unsafe { real()(queue, count as c_long, list) });
        if result < 0 {
            set_errno(-result as c_int);
        }
        result.max(-1)
    };
    // SAFETY: the caller's own arguments.
    let result = unsafe { submit(count, list, act) };
    let failure = errno();
    set_errno(before);
    if result < 0 { -failure } else { result as c_int }
}

macro_rules! rings {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        /// As liburing's function of this name. Errors: `ENOSYS` in a process of a job.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            if configuration::get().is_some() {
                count_refusal(stringify!($name), libc::ENOSYS);
                return -libc::ENOSYS;
            }
            // SAFETY: the caller's own arguments.
            unsafe { next!($name: fn($($type),*) -> c_int)($($argument),*) }
        }
    )*};
}

rings! {
    fn io_uring_setup(entries: c_uint, parameters: *mut c_void);
    fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint);
    fn io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void);
    fn io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, parameters: *mut c_void, buffer: *mut c_void, bytes: usize);
}

/// As liburing's function of this name. Returns null in a process of a job.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn io_uring_get_probe() -> *mut c_void {
    match configuration::get().is_some() {
        true => {
            count_refusal("io_uring_get_probe", libc::ENOSYS);
            core::ptr::null_mut()
        }
        // SAFETY: takes nothing.
        false => unsafe { next!(io_uring_get_probe: fn() -> *mut c_void)() },
    }
}
