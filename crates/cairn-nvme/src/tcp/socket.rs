//! A TCP connection, made of system calls alone: the C library's names may be Cairn's own hooks.
//!
//! Invariant: only `wait` blocks. The descriptor is close-on-exec and has a high number.

use core::mem::ManuallyDrop;
use core::time::Duration;
use std::net::SocketAddr;
use std::time::Instant;

use cairn_platform::descriptor::Descriptor;
use cairn_platform::sys::{self, Errno, SysResult};

/// A piece of memory, in the kernel's format.
pub type Part = libc::iovec;

/// A connected socket. If its descriptor number is reserved, dropping it ends the connection but
/// keeps the number.
#[derive(Debug)]
pub struct Socket {
    descriptor: ManuallyDrop<Descriptor>,
    is_reserved: bool,
}

impl Socket {
    /// Connects. With a `number`, replaces the descriptor that has it. Errors: the kernel's;
    /// `ETIMEDOUT` past `deadline`.
    pub fn connect(
        address: &SocketAddr,
        number: Option<i32>,
        deadline: Instant,
    ) -> SysResult<Socket> {
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let mut descriptor = Socket::unconnected(family)?;
        if let Some(number) = number {
            sys::dup3(descriptor.raw(), number, libc::O_CLOEXEC)?;
            descriptor = Descriptor::from_raw(number);
        }
        let descriptor = ManuallyDrop::new(descriptor);
        let socket = Socket { descriptor, is_reserved: number.is_some() };
        socket.set_option(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
        let (storage, length) = encode(address);
        let arguments =
            [socket.raw(), (&raw const storage) as libc::c_long, length as libc::c_long];
        // SAFETY: the kernel reads `length` bytes of `storage`, which outlives the call.
        match unsafe { sys::call(libc::SYS_connect, arguments) } {
            Err(Errno(libc::EINPROGRESS)) => socket.finish_connecting(deadline)?,
            result => drop(result?),
        }
        Ok(socket)
    }

    /// A stream that is already connected.
    pub fn over(stream: Descriptor) -> Socket {
        Socket { descriptor: ManuallyDrop::new(stream), is_reserved: false }
    }

    /// Creates a TCP socket that is not connected.
    pub fn unconnected(family: i32) -> SysResult<Descriptor> {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let arguments = [family.into(), kind.into(), libc::IPPROTO_TCP.into()];
        // SAFETY: no pointers are passed.
        let raw = unsafe { sys::call(libc::SYS_socket, arguments) }?;
        Ok(Descriptor::from_raw(raw as i32).raise())
    }

    fn finish_connecting(&self, deadline: Instant) -> SysResult<()> {
        while !self.wait(libc::POLLOUT, deadline)? {
            if Instant::now() >= deadline {
                return Err(Errno(libc::ETIMEDOUT));
            }
        }
        match self.option(libc::SOL_SOCKET, libc::SO_ERROR)? {
            0 => Ok(()),
            errno => Err(Errno(errno)),
        }
    }

    fn raw(&self) -> libc::c_long {
        self.descriptor.raw().into()
    }

    fn set_option(&self, level: i32, name: i32, value: i32) -> SysResult<()> {
        let address = (&raw const value) as libc::c_long;
        let arguments =
            [self.raw(), level.into(), name.into(), address, size_of::<i32>() as libc::c_long];
        // SAFETY: the kernel reads one int, which outlives the call.
        unsafe { sys::call(libc::SYS_setsockopt, arguments) }.map(drop)
    }

    fn option(&self, level: i32, name: i32) -> SysResult<i32> {
        let (mut value, mut length) = (0_i32, size_of::<i32>() as libc::socklen_t);
        let addresses = [(&raw mut value) as libc::c_long, (&raw mut length) as libc::c_long];
        let arguments = [self.raw(), level.into(), name.into(), addresses[0], addresses[1]];
        // SAFETY: the kernel writes at most one int and its length, which outlive the call.
        unsafe { sys::call(libc::SYS_getsockopt, arguments) }?;
        Ok(value)
    }

    /// Sends as many bytes of the parts, in order, as the kernel takes. Returns their number; 0 if
    /// the kernel takes nothing at the moment.
    ///
    /// # Safety
    /// The parts are readable; others may change them meanwhile.
    pub unsafe fn send(&self, parts: &mut [Part]) -> SysResult<usize> {
        // SAFETY: promised by the caller.
        unsafe { self.transfer(libc::SYS_sendmsg, parts, libc::MSG_NOSIGNAL) }
            .map(|sent| sent.unwrap_or(0))
    }

    /// Receives what is available into the parts, in order. Returns `None` if there is nothing at
    /// the moment, 0 at the end of the stream.
    ///
    /// # Safety
    /// The parts are writable, and nobody else uses them.
    pub unsafe fn receive(&self, parts: &mut [Part]) -> SysResult<Option<usize>> {
        // SAFETY: promised by the caller.
        unsafe { self.transfer(libc::SYS_recvmsg, parts, 0) }
    }

    /// # Safety
    /// The parts may be used in the way that system call `number` uses them.
    unsafe fn transfer(
        &self,
        number: libc::c_long,
        parts: &mut [Part],
        flags: i32,
    ) -> SysResult<Option<usize>> {
        // SAFETY: the fields are plain integers and pointers, for which zero is a valid value.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), parts.len() as _);
        let arguments = [
            self.raw(),
            (&raw mut message) as libc::c_long,
            libc::c_long::from(flags | libc::MSG_DONTWAIT),
        ];
        loop {
            // SAFETY: the message describes the caller's parts, and outlives the call.
            match unsafe { sys::call(number, arguments) } {
                Err(Errno(libc::EINTR)) => {}
                Err(Errno(libc::EAGAIN)) => return Ok(None),
                result => return result.map(Some),
            }
        }
    }

    /// Waits for one of `events` (`POLLIN` and the like) or the end of the connection. Returns
    /// early at `deadline` or on a signal.
    pub fn wait(&self, events: i16, deadline: Instant) -> SysResult<bool> {
        let mut entry = libc::pollfd { fd: self.descriptor.raw(), events, revents: 0 };
        let left = deadline.saturating_duration_since(Instant::now()).min(LONGEST_SLEEP);
        let limit = libc::timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let addresses = [(&raw mut entry) as libc::c_long, (&raw const limit) as libc::c_long];
        let arguments = [addresses[0], 1, addresses[1], 0, 0];
        // SAFETY: one entry and one time, which outlive the call; no signal mask.
        match unsafe { sys::call(libc::SYS_ppoll, arguments) } {
            Err(Errno(libc::EINTR)) => Ok(false),
            result => Ok(result? > 0),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        match self.is_reserved {
            true => {
                let arguments = [self.raw(), libc::SHUT_RDWR.into()];
                // SAFETY: no pointers are passed. If the socket is not connected any more, failure
                // does no harm.
                let _ = unsafe { sys::call(libc::SYS_shutdown, arguments) };
            }
            // SAFETY: the descriptor is not used after this.
            false => unsafe { ManuallyDrop::drop(&mut self.descriptor) },
        }
    }
}

const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// Converts an address to the kernel's format. Returns it and its length.
fn encode(address: &SocketAddr) -> (libc::sockaddr_in6, usize) {
    // SAFETY: the fields are plain integers, for which zero is a valid value. This is the larger of
    // the two structures.
    let mut storage: libc::sockaddr_in6 = unsafe { core::mem::zeroed() };
    match address {
        SocketAddr::V4(address) => {
            let short = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the target is larger and at least as strictly aligned.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(short) };
            (storage, size_of::<libc::sockaddr_in>())
        }
        SocketAddr::V6(address) => {
            storage.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            storage.sin6_port = address.port().to_be();
            storage.sin6_addr.s6_addr = address.ip().octets();
            storage.sin6_scope_id = address.scope_id();
            (storage, size_of::<libc::sockaddr_in6>())
        }
    }
}
