//! Mapping files of ours: a private mapping is a copy; a shared one is refused with ENODEV.

use core::ffi::{c_int, c_void};

use cairn_posix::HandleId;
use cairn_posix::io::{self, At};
use cairn_posix::transfer::Buffers;
use cairn_posix::{Errno, Result, file, table};
use libc::size_t;

use crate::answer::{is_missed, set_errno};

type Map =
    unsafe extern "C-unwind" fn(*mut c_void, size_t, c_int, c_int, c_int, i64) -> *mut c_void;

const FAILED: *mut c_void = libc::MAP_FAILED;

/// What one call asks for.
struct Request {
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    offset: i64,
}

impl Request {
    /// Maps anonymous memory and fills it with the file's bytes; what lies past the end of the file is zero.
    unsafe fn copy(&self, handle: HandleId, real: Map) -> Result<*mut c_void> {
        let status = file::status_flags(handle)?;
        if status & libc::O_ACCMODE == libc::O_WRONLY || file::is_directory(handle)? {
            return Err(Errno(libc::EACCES));
        }
        if self.flags & libc::MAP_TYPE != libc::MAP_PRIVATE {
            return Err(Errno(libc::ENODEV));
        }
        let At::Offset(offset) = At::offset(self.offset)? else { return Err(Errno(libc::EINVAL)) };
        if offset % 4096 != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let flags = self.flags | libc::MAP_ANONYMOUS;
        let writable = self.protection | libc::PROT_WRITE;
        // SAFETY: the caller's own request, for memory without a file.
        let start = unsafe { real(self.address, self.length, writable, flags, -1, 0) };
        if start == FAILED {
            return Err(Errno(crate::answer::errno()));
        }
        // SAFETY: the new mapping has `length` bytes and nobody else knows it yet.
        let filled = unsafe { self.fill(handle, start, offset) };
        if filled.is_err() {
            // SAFETY: the mapping made above.
            unsafe { libc::munmap(start, self.length) };
        } else if writable != self.protection {
            // SAFETY: as above.
            unsafe { libc::mprotect(start, self.length, self.protection) };
        }
        filled.map(|()| start)
    }

    unsafe fn fill(&self, handle: HandleId, start: *mut c_void, offset: u64) -> Result<()> {
        let mut done = 0;
        while done < self.length {
            let entry = libc::iovec {
                iov_base: start.wrapping_byte_add(done),
                iov_len: self.length - done,
            };
            // SAFETY: promised by the caller of this function.
            let buffers = unsafe { Buffers::one(&entry) };
            match io::read(handle, buffers, At::Offset(offset + done as u64))? {
                0 => break,
                bytes => done += bytes,
            }
        }
        Ok(())
    }
}

macro_rules! maps {
    ($(fn $name:ident;)*) => {$(
        /// As `mmap(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            address: *mut c_void, length: size_t, protection: c_int, flags: c_int, descriptor: c_int, offset: i64,
        ) -> *mut c_void {
            let real = next!($name: fn(*mut c_void, size_t, c_int, c_int, c_int, i64) -> *mut c_void);
            if flags & libc::MAP_ANONYMOUS != 0 || !table::is_ours(descriptor) {
                // SAFETY: the caller's own arguments.
                let result = unsafe { real(address, length, protection, flags, descriptor, offset) };
                if result != FAILED || flags & libc::MAP_ANONYMOUS != 0 || !is_missed(descriptor) {
                    return result;
                }
            }
            let Some(handle) = table::lookup(descriptor) else {
                set_errno(libc::EBADF);
                return FAILED;
            };
            let request = Request { address, length, protection, flags, offset };
            // SAFETY: the caller's own request.
            match crate::answer::guarded(|| unsafe { request.copy(handle, real) }) {
                Ok(start) => start,
                Err(Errno(number)) => {
                    set_errno(number);
                    FAILED
                }
            }
        }
    )*};
}

maps! {
    fn mmap;
    fn mmap64;
}
