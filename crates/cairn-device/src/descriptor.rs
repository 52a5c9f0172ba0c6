//! Descriptors that Cairn itself keeps open inside an application.
//!
//! Must stay true: they are close-on-exec and live at high numbers, so that the low numbers the
//! application expects to get next stay its own.
//! Does not protect them from the application's `close`; `cairn-posix` does, from the numbers
//! reported by `descriptors()` of their owners.

use core::ffi::CStr;

use crate::sys::{self, Errno, SysResult};

/// Where our descriptors start if the limit on open files allows.
const HIGH_NUMBER: u64 = 512;

/// An open descriptor, closed on drop.
#[derive(Debug)]
pub struct Descriptor(i32);

impl Descriptor {
    /// Opens `path` relative to `directory`, close-on-exec.
    pub fn open(directory: i32, path: &CStr, flags: i32, mode: u32) -> SysResult<Descriptor> {
        sys::openat(directory, path, flags | libc::O_CLOEXEC, mode).map(Descriptor)
    }

    /// Takes over a raw descriptor.
    pub fn from_raw(raw: i32) -> Descriptor {
        Descriptor(raw)
    }

    /// The number, still owned by this object.
    pub fn raw(&self) -> i32 {
        self.0
    }

    /// The number, now owned by the caller.
    pub fn into_raw(self) -> i32 {
        let raw = self.0;
        core::mem::forget(self);
        raw
    }

    /// Another number for the same open file, high and close-on-exec.
    pub fn duplicate(&self) -> SysResult<Descriptor> {
        sys::fcntl(self.0, libc::F_DUPFD_CLOEXEC, 0).map(|copy| Descriptor(copy).raise())
    }

    /// Moves to a high number. Where no number is free there, the descriptor stays as it is.
    pub fn raise(self) -> Descriptor {
        let limit = sys::soft_limit(libc::RLIMIT_NOFILE).unwrap_or(1024);
        let lowest = HIGH_NUMBER.min(limit - limit / 4);
        match sys::fcntl(self.0, libc::F_DUPFD_CLOEXEC, lowest as i64) {
            Ok(high) => Descriptor(high),
            Err(Errno(_)) => self,
        }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // The kernel frees the number whatever it answers; nothing can be done about an error.
        let _ = sys::close(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raised_descriptor_is_high_and_closed_on_exec() {
        let file = Descriptor::open(libc::AT_FDCWD, c"/", libc::O_PATH, 0).unwrap().raise();
        let limit = sys::soft_limit(libc::RLIMIT_NOFILE).unwrap();
        assert!(file.raw() as u64 >= HIGH_NUMBER.min(limit - limit / 4));
        let flags = sys::fcntl(file.raw(), libc::F_GETFD, 0).unwrap();
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    }
}
