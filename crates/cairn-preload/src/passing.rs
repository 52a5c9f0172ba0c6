//! Messages that pass descriptors between processes (`cairn_posix::descriptors::fd_passing`), and
//! descriptors fetched from another process.
//!
//! Messages without Cairn descriptors, and the kernel's own checks of a message, are left to the C
//! library.

use core::ffi::{c_int, c_uint, c_void};

use cairn_posix::descriptors::fd_passing::Token;
use cairn_posix::descriptors::recognition;
use cairn_posix::kernel::{address, configuration};
use cairn_posix::task::table;
use cairn_posix::{Errno, Result};
use libc::{CMSG_DATA, CMSG_LEN, cmsghdr, mmsghdr, msghdr, ssize_t, timespec};

use crate::answer::{Answer, errno, guarded, is_ours, recognise_after_failure, set_errno};
use crate::hooks;
use crate::sockets::refused;

/// Maximum size of control data copied without allocation: enough for all descriptors that the
/// kernel accepts in one message.
const CONTROL_WORDS: usize = 256;
/// Maximum number of descriptors in one message (`SCM_MAX_FD`), and of messages in one call
/// (`UIO_MAXIOV`).
const DESCRIPTORS_MAX: usize = 253;
const MESSAGES_MAX: c_uint = 1024;

/// Iterates over the places of descriptors in the control data of a message. Stops at malformed
/// data.
struct Passed {
    /// Rest of the control data.
    at: *mut u8,
    bytes: usize,
    /// Rest of the descriptors in the current control message.
    next: *mut c_int,
    count: usize,
}

impl Passed {
    /// Starts at the first control message.
    ///
    /// # Safety
    /// `control` is `bytes` bytes of control data, which outlive the iterator.
    unsafe fn new(control: *mut c_void, bytes: usize) -> Passed {
        Passed { at: control.cast(), bytes, next: core::ptr::null_mut(), count: 0 }
    }
}

impl Iterator for Passed {
    type Item = *mut c_int;

    fn next(&mut self) -> Option<*mut c_int> {
        // SAFETY: takes no pointer.
        let header_bytes = unsafe { CMSG_LEN(0) } as usize;
        while self.count == 0 {
            if self.bytes < header_bytes {
                return None;
            }
            // SAFETY: `new` was promised these bytes.
            let header = unsafe { self.at.cast::<cmsghdr>().read_unaligned() };
            let length = header.cmsg_len;
            if length < header_bytes || length > self.bytes {
                return None;
            }
            if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                // SAFETY: the data begin within `length` bytes.
                self.next = unsafe { CMSG_DATA(self.at.cast()) }.cast();
                self.count = (length - header_bytes) / size_of::<c_int>();
            }
            let whole = length.next_multiple_of(size_of::<usize>()).min(self.bytes);
            self.at = self.at.wrapping_add(whole);
            self.bytes -= whole;
        }
        self.count -= 1;
        let place = self.next;
        self.next = place.wrapping_add(1);
        Some(place)
    }
}

/// Descriptors that a message passes.
///
/// # Safety
/// The caller passes a message with its control data, or bad addresses.
unsafe fn passed(message: *const msghdr) -> Passed {
    // SAFETY: any bytes are a valid `msghdr`.
    let (control, bytes) = unsafe { address::take(message) }
        .map_or((core::ptr::null_mut(), 0), |found| (found.msg_control, found.msg_controllen));
    // SAFETY: unreadable bytes are not used; the rest is promised by the caller.
    unsafe { Passed::new(control, address::readable(control, bytes)) }
}

/// Whether a message to be sent passes a descriptor of Cairn.
///
/// # Safety
/// As for `passed`.
unsafe fn passes_ours(message: *const msghdr) -> bool {
    if configuration::get().is_none() {
        return false;
    }
    // SAFETY: promised by the caller; the places are in the control data.
    unsafe { passed(message).any(|place| is_ours(place.read_unaligned())) }
}

/// Message to be sent instead of one that passes Cairn descriptors.
struct Parcel {
    control: [u64; CONTROL_WORDS],
    /// Control data that do not fit into `control`.
    long_control: Vec<u64>,
    tokens: [Option<Token>; DESCRIPTORS_MAX],
}

impl Parcel {
    const fn new() -> Parcel {
        let tokens = [const { None }; DESCRIPTORS_MAX];
        Parcel { control: [0; CONTROL_WORDS], long_control: Vec::new(), tokens }
    }

    /// Returns the message with tokens in place of Cairn descriptors. Valid as long as the parcel.
    ///
    /// # Safety
    /// The message's control data are readable.
    unsafe fn pack(&mut self, message: &msghdr) -> Result<msghdr> {
        let bytes = message.msg_controllen;
        let control = match bytes.div_ceil(size_of::<u64>()) {
            0..=CONTROL_WORDS => self.control.as_mut_ptr(),
            words => {
                self.long_control.resize(words, 0);
                self.long_control.as_mut_ptr()
            }
        };
        // SAFETY: promised by the caller; the copy has room for `bytes` bytes.
        unsafe { control.cast::<u8>().copy_from_nonoverlapping(message.msg_control.cast(), bytes) };
        let mut tokens = self.tokens.iter_mut();
        // SAFETY: the copy has `bytes` bytes, and nothing else uses it.
        for place in unsafe { Passed::new(control.cast(), bytes) } {
            // SAFETY: a place within the copy.
            let number = unsafe { place.read_unaligned() };
            if !table::is_ours(number) {
                continue;
            }
            // The kernel refuses a message with more descriptors.
            let Some(kept) = tokens.next() else { break };
            let token = kept.insert(Token::of(number)?);
            // SAFETY: as above.
            unsafe { place.write_unaligned(token.number()) };
        }
        Ok(msghdr { msg_control: control.cast(), ..*message })
    }
}

/// Runs `act` with cancellation disabled, because a cancelled thread would leak what `act` holds.
fn uncancelled<R>(act: impl FnOnce() -> R) -> R {
    unsafe extern "C" {
        fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    }
    const DISABLED: c_int = 1;
    let mut before = 0;
    // SAFETY: takes a number and writes one.
    unsafe { pthread_setcancelstate(DISABLED, &raw mut before) };
    let result = act();
    // SAFETY: as above.
    unsafe { pthread_setcancelstate(before, core::ptr::null_mut()) };
    result
}

/// As `sendmsg(2)` on a socket.
unsafe fn send_one(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let real = next!(sendmsg: fn(c_int, *const msghdr, c_int) -> ssize_t);
    // SAFETY: the caller's own arguments.
    if !unsafe { passes_ours(message) } {
        // SAFETY: as above.
        return unsafe { real(socket, message, flags) };
    }
    hooks::cancellation_point();
    uncancelled(|| {
        let mut parcel = Parcel::new();
        // SAFETY: the message passes descriptors, so it and its control data are readable.
        match guarded(|| unsafe { parcel.pack(&*message) }) {
            Ok(packed) => {
                // SAFETY: the caller's own arguments, with other control data.
                let result = unsafe { real(socket, &raw const packed, flags) };
                let after = errno();
                drop(parcel);
                set_errno(after);
                result
            }
            Err(Errno(number)) => {
                set_errno(number);
                -1
            }
        }
    })
}

/// As `sendmmsg(2)` on a socket.
unsafe fn send_several(
    socket: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    let real = next!(sendmmsg: fn(c_int, *mut mmsghdr, c_uint, c_int) -> c_int);
    let count_taken = count.min(MESSAGES_MAX);
    let several = (0..count_taken as usize).map(|index| messages.wrapping_add(index));
    // SAFETY: the caller's own arguments.
    if !several.clone().any(|each| unsafe { passes_ours(&raw const (*each).msg_hdr) }) {
        // SAFETY: as above.
        return unsafe { real(socket, messages, count, flags) };
    }
    let mut sent = 0;
    for each in several {
        // SAFETY: as above.
        let result = unsafe { send_one(socket, &raw const (*each).msg_hdr, flags) };
        if result < 0 {
            return if sent > 0 { sent } else { -1 };
        }
        // SAFETY: as above.
        unsafe { (*each).msg_len = result as c_uint };
        sent += 1;
    }
    sent
}

/// Turns the tokens in a received message into Cairn descriptors.
///
/// # Safety
/// The kernel filled the message.
unsafe fn unpack(message: *const msghdr) {
    if configuration::get().is_none() {
        return;
    }
    // SAFETY: promised by the caller.
    for place in unsafe { passed(message) } {
        // SAFETY: the places are in the control data.
        got(unsafe { place.read_unaligned() });
    }
}

/// Runs `act`, the kernel's call; on a Cairn file returns the error of a socket call instead.
fn on_socket<R: Answer>(descriptor: c_int, act: impl FnOnce() -> R) -> R {
    if !table::is_ours(descriptor) {
        let result = act();
        if result != R::FAILED || !recognise_after_failure(descriptor) {
            return result;
        }
    }
    if let Some(handle) = table::lookup(descriptor) {
        if let Err(Errno(number)) = guarded(|| refused::<()>(handle)) {
            set_errno(number);
        }
    }
    R::FAILED
}

/// As `sendmsg(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(
    descriptor: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's own arguments.
    on_socket(descriptor, || unsafe { send_one(descriptor, message, flags) })
}

/// As `sendmmsg(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmmsg(
    descriptor: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's own arguments.
    on_socket(descriptor, || unsafe { send_several(descriptor, messages, count, flags) })
}

/// As `recvmsg(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmsg(
    descriptor: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    on_socket(descriptor, || {
        let real = next!(recvmsg: fn(c_int, *mut msghdr, c_int) -> ssize_t);
        // SAFETY: the caller's own arguments.
        let result = unsafe { real(descriptor, message, flags) };
        if result >= 0 {
            // SAFETY: the kernel filled the message.
            unsafe { unpack(message) };
        }
        result
    })
}

/// As `recvmmsg(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmmsg(
    descriptor: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    on_socket(descriptor, || {
        let real = next!(recvmmsg: fn(c_int, *mut mmsghdr, c_uint, c_int, *mut timespec) -> c_int);
        // SAFETY: the caller's own arguments.
        let result = unsafe { real(descriptor, messages, count, flags, timeout) };
        for index in 0..usize::try_from(result).unwrap_or(0) {
            // SAFETY: the kernel filled that many messages.
            unsafe { unpack(&raw const (*messages.wrapping_add(index)).msg_hdr) };
        }
        result
    })
}

/// As `pidfd_getfd(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pidfd_getfd(process: c_int, number: c_int, flags: c_uint) -> c_int {
    let real = next!(pidfd_getfd: fn(c_int, c_int, c_uint) -> c_int);
    // SAFETY: the caller's own arguments.
    got(unsafe { real(process, number, flags) })
}

/// Takes in a descriptor received from another process; -1 means none. Returns `descriptor`.
pub fn got(descriptor: c_int) -> c_int {
    if descriptor >= 0 && configuration::get().is_some() {
        let _ = guarded(|| {
            recognition::received(descriptor);
            Ok::<_, Errno>(())
        });
    }
    descriptor
}
