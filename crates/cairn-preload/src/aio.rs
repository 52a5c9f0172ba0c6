//! POSIX asynchronous I/O. A request on a Cairn file is served synchronously, because serving it is
//! a copy in memory; it is complete when the submitting call returns.
//!
//! The result goes into the fields of the request where the C library keeps it, so its own
//! `aio_error`, `aio_return`, `aio_suspend` and `aio_cancel` find it. The C library also sends the
//! notifications: `lio_listio` with an empty list sends one immediately.

use core::ffi::{c_int, c_void};

use cairn_posix::{Errno, Result};
use libc::{sigevent, size_t, ssize_t};

use crate::answer::{errno, is_ours, set_errno};
use crate::io;

/// `struct aiocb` of the C library.
#[repr(C)]
pub struct Request {
    descriptor: c_int,
    operation: c_int,
    priority: c_int,
    buffer: *mut c_void,
    length: size_t,
    event: sigevent,
    next: *mut Request,
    absolute_priority: c_int,
    policy: c_int,
    error: c_int,
    result: ssize_t,
    offset: i64,
    reserved: [u8; 32],
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::aiocb>());
const _: () = assert!(
    core::mem::offset_of!(Request, offset) == core::mem::offset_of!(libc::aiocb, aio_offset)
);

/// Highest value allowed in `aio_reqprio` (`AIO_PRIO_DELTA_MAX`).
const PRIORITY_MAX: c_int = 20;

/// Operation of a request.
#[derive(Clone, Copy)]
enum Task {
    Read,
    Write,
    Sync,
}

/// Serves the request and stores its result in it. Leaves errno as it is.
///
/// # Safety
/// The request is the application's and valid.
unsafe fn perform(request: &mut Request, task: Task) {
    let before = errno();
    let Request { descriptor, buffer, length, offset, .. } = *request;
    // SAFETY: promised by the caller.
    let result = unsafe {
        match task {
            Task::Read => io::pread64(descriptor, buffer, length, offset),
            Task::Write => io::pwrite64(descriptor, buffer, length, offset),
            Task::Sync => io::fsync(descriptor) as ssize_t,
        }
    };
    request.error = if result < 0 { errno() } else { 0 };
    request.result = result;
    set_errno(before);
}

type List = *const *mut Request;

/// Sends the notification `event`, by a call of `lio_listio` with an empty list.
///
/// # Safety
/// `event` is the one that the application put into its request.
unsafe fn notify(event: sigevent) {
    if event.sigev_notify != libc::SIGEV_NONE {
        let real = || next!(lio_listio: fn(c_int, List, c_int, *const sigevent) -> c_int);
        // SAFETY: promised by the caller; the list has no entries.
        unsafe { real()(libc::LIO_NOWAIT, core::ptr::null(), 0, &raw const event) };
    }
}

/// Serves a request on a Cairn file and sends its notification, after which the application owns
/// the request again. Returns the request's error number, 0 if it succeeded. Errors: `EINVAL` for a
/// bad priority, as the C library, before anything is done.
///
/// # Safety
/// As for [`perform`].
unsafe fn submit(request: *mut Request, task: Task) -> Result<c_int> {
    // SAFETY: promised by the caller.
    let fields = unsafe { &mut *request };
    if !(0..=PRIORITY_MAX).contains(&fields.priority) {
        (fields.error, fields.result) = (libc::EINVAL, -1);
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: promised by the caller.
    unsafe { perform(fields, task) };
    let (event, error) = (fields.event, fields.error);
    // SAFETY: promised by the caller.
    unsafe { notify(event) };
    Ok(error)
}

fn queued(submitted: Result<c_int>) -> c_int {
    match submitted {
        Ok(_) => 0,
        Err(Errno(number)) => {
            set_errno(number);
            -1
        }
    }
}

macro_rules! requests {
    ($(fn $name:ident, $task:expr;)*) => {$(
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(request: *mut Request) -> c_int {
            // SAFETY: the caller passes a valid request.
            unsafe {
                match is_ours((*request).descriptor) {
                    true => queued(submit(request, $task)),
                    false => next!($name: fn(*mut Request) -> c_int)(request),
                }
            }
        }
    )*};
}

requests! {
    fn aio_read, Task::Read;
    fn aio_read64, Task::Read;
    fn aio_write, Task::Write;
    fn aio_write64, Task::Write;
}

macro_rules! syncs {
    ($(fn $name:ident;)*) => {$(
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(operation: c_int, request: *mut Request) -> c_int {
            // SAFETY: the caller passes a valid request.
            unsafe {
                if !is_ours((*request).descriptor) {
                    return next!($name: fn(c_int, *mut Request) -> c_int)(operation, request);
                }
                if operation != libc::O_SYNC && operation != libc::O_DSYNC {
                    set_errno(libc::EINVAL);
                    return -1;
                }
                perform(&mut *request, Task::Sync);
                notify((*request).event);
                0
            }
        }
    )*};
}

syncs! {
    fn aio_fsync;
    fn aio_fsync64;
}

/// Serves the requests of a list that are on Cairn files. Returns the others, and whether one of
/// those served failed.
///
/// # Safety
/// The entries are null or valid requests.
unsafe fn take_ours(list: &[*mut Request]) -> (Vec<*mut Request>, bool) {
    let mut others = Vec::new();
    let mut failed = false;
    for &entry in list.iter().filter(|entry| !entry.is_null()) {
        // SAFETY: promised by the caller.
        let task = match unsafe { (*entry).operation } {
            libc::LIO_READ => Some(Task::Read),
            libc::LIO_WRITE => Some(Task::Write),
            _ => None,
        };
        // SAFETY: as above.
        match task.filter(|_| is_ours(unsafe { (*entry).descriptor })) {
            // SAFETY: as above.
            Some(task) => failed |= unsafe { submit(entry, task) } != Ok(0),
            None => others.push(entry),
        }
    }
    (others, failed)
}

macro_rules! lists {
    ($(fn $name:ident;)*) => {$(
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            mode: c_int, list: List, count: c_int, event: *const sigevent,
        ) -> c_int {
            let real = || next!($name: fn(c_int, List, c_int, *const sigevent) -> c_int);
            let known = mode == libc::LIO_WAIT || mode == libc::LIO_NOWAIT;
            if !known || count <= 0 || cairn_posix::kernel::configuration::get().is_none() {
                // SAFETY: the caller's own arguments.
                return unsafe { real()(mode, list, count, event) };
            }
            // SAFETY: the caller passes a list of `count` entries.
            let (others, failed) = unsafe { take_ours(core::slice::from_raw_parts(list, count as usize)) };
            // SAFETY: the caller's own requests, without those already served.
            let result = unsafe { real()(mode, others.as_ptr(), others.len() as c_int, event) };
            if result == 0 && failed && mode == libc::LIO_WAIT {
                set_errno(libc::EIO);
                return -1;
            }
            result
        }
    )*};
}

lists! {
    fn lio_listio;
    fn lio_listio64;
}
