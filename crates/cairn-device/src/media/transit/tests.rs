//! A transit area with its file, for the tests of both directions.

use cairn_platform::descriptor::Descriptor;
use cairn_platform::sys::SysResult;

use super::*;

use crate::directory::tests::Scratch;

pub const LENGTH: usize = 3 * PAGE_BYTES + 100;

/// An area and its file.
pub struct Place {
    pub scratch: Scratch,
    file: Descriptor,
}

impl Place {
    pub fn new() -> Place {
        let scratch = Scratch::new();
        Transit::create(&scratch.0, c"transit").unwrap();
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
        let file = Descriptor::open(scratch.0.raw(), c"file", flags, 0o600).unwrap();
        sys::ftruncate(file.raw(), 64 << 20).unwrap();
        Place { scratch, file }
    }

    pub fn area(&self) -> Transit {
        Transit::open(&self.scratch.0, c"transit").unwrap()
    }

    /// Returns an area that takes writes although nobody serves it.
    pub fn unserved_area(&self) -> Transit {
        let area = self.area();
        area.word(W_SERVED).store(1, Ordering::Relaxed);
        area
    }

    pub fn put(&self, address: *mut u8, offset: u64, length: usize) -> Result<()> {
        // SAFETY: the area hands out readable bytes.
        let written = unsafe { sys::pwrite_raw(self.file.raw(), address, length, offset) };
        assert_eq!(written?, length);
        Ok(())
    }

    pub fn stage(&self, area: &Transit, offset: u64, byte: u8, length: usize) -> Result<bool> {
        // SAFETY: the area gives room for `length` bytes.
        let mut fill = |address: *mut u8| unsafe { address.write_bytes(byte, length) };
        area.stage(offset, length, &|a, o, l| self.put(a, o, l), &mut fill)
    }

    pub fn settle(&self, area: &Transit, offset: u64) {
        area.settle(offset..offset + LENGTH as u64, &|a, o, l| self.put(a, o, l)).unwrap();
    }

    pub fn get(&self, area: &Transit, address: *mut u8, offset: u64, length: usize) -> Result<()> {
        let range = offset..offset + length as u64;
        area.settle(range, &|a, o, l| self.put(a, o, l))?;
        // SAFETY: the area hands out writable bytes.
        let read = unsafe { sys::pread_raw(self.file.raw(), address, length, offset) };
        assert_eq!(read?, length);
        Ok(())
    }

    pub fn byte(&self, offset: u64) -> u8 {
        let mut byte = [0xee];
        // SAFETY: one byte is writable.
        let read: SysResult<usize> =
            unsafe { sys::pread_raw(self.file.raw(), byte.as_mut_ptr(), 1, offset) };
        assert_eq!(read, Ok(1));
        byte[0]
    }

    pub fn kinds(&self, area: &Transit) -> Vec<u64> {
        area.slots().map(|slot| slot.kind()).collect()
    }
}

pub fn unwanted(_: *mut u8, _: u64, _: usize) -> Result<()> {
    panic!("nobody wants anything")
}

/// Runs `body` in a child, which is killed if `body` returns. Waits for its end and returns its
/// status.
pub fn in_a_child(body: impl FnOnce()) -> i32 {
    // SAFETY: the child uses only what it inherited and never returns.
    let child = unsafe { libc::fork() };
    if child == 0 {
        body();
        // SAFETY: ends the child as SIGKILL would.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    let mut status = 0;
    // SAFETY: `status` receives one int.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status
}
