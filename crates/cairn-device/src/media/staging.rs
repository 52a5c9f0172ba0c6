//! Page-aligned buffers between an application's memory and direct I/O.
//!
//! A device reads and writes whole pages at page addresses, and the bytes that it writes must be
//! the ones that were summed. So bytes go through a private buffer. There is a small pool for each
//! file and process; its memory is allocated at first use.
//!
//! Must stay true: a buffer has one user. A forked child finds all of the pool free and zero:
//! memory and marks are wiped in it, so it shares nothing with a thread of its parent that was in
//! the middle of a transfer.
//!
//! Does not wait: if no buffer is free, it maps one for this transfer.

use core::sync::atomic::{AtomicU8, Ordering};

use cairn_platform::mapping::LocalTable;
use cairn_platform::sys::SysResult;

/// Size of a buffer: the most that one system call transfers.
pub const STAGING_BYTES: usize = 1 << 20;
/// Number of buffers in the pool; more threads than this rarely transfer at the same time.
const BUFFERS: usize = 8;

const FREE: u8 = 0;
const TAKEN: u8 = 1;

/// The buffers of one file in this process.
#[derive(Debug)]
pub struct Staging {
    marks: LocalTable,
    memory: LocalTable,
}

/// A buffer in use; drop returns it to the pool.
#[derive(Debug)]
pub struct Buffer<'a> {
    address: *mut u8,
    holder: Holder<'a>,
}

/// Memory of a buffer: a part of the pool, or a temporary mapping.
#[derive(Debug)]
enum Holder<'a> {
    Pool(&'a AtomicU8),
    Temporary { _memory: LocalTable },
}

impl Staging {
    /// Returns a pool whose memory is not allocated yet.
    pub fn new() -> SysResult<Staging> {
        let memory = LocalTable::new(BUFFERS * STAGING_BYTES)?;
        Ok(Staging { marks: LocalTable::new(BUFFERS)?, memory })
    }

    /// Returns a page-aligned buffer of `STAGING_BYTES`. Errors: no memory for one more.
    pub fn take(&self) -> SysResult<Buffer<'_>> {
        // The lowest free buffer: its memory is the likeliest to be present.
        for (mark, memory) in
            self.marks.entries().iter().zip(self.memory.entries().chunks_exact(STAGING_BYTES))
        {
            let taken = mark.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed);
            if taken.is_ok() {
                return Ok(Buffer { address: start(memory), holder: Holder::Pool(mark) });
            }
        }
        let memory = LocalTable::new(STAGING_BYTES)?;
        let address = start(memory.entries());
        Ok(Buffer { address, holder: Holder::Temporary { _memory: memory } })
    }
}

/// Returns the address of the memory for writing: atomics may be written through a shared
/// reference.
fn start(memory: &[AtomicU8]) -> *mut u8 {
    memory.as_ptr().cast_mut().cast()
}

impl Buffer<'_> {
    /// Returns the address of its first byte.
    pub fn address(&self) -> *mut u8 {
        self.address
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        if let Holder::Pool(mark) = self.holder {
            mark.store(FREE, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_apart_reused_and_never_wanting() {
        let staging = Staging::new().unwrap();
        let held: Vec<_> = (0..BUFFERS + 2).map(|_| staging.take().unwrap()).collect();
        let mut addresses: Vec<_> = held.iter().map(|buffer| buffer.address().addr()).collect();
        assert!(addresses.iter().all(|address| address % 4096 == 0));
        addresses.sort_unstable();
        assert!(addresses.windows(2).all(|pair| pair[1] - pair[0] >= STAGING_BYTES));
        let first = held[0].address();
        drop(held);
        assert_eq!(staging.take().unwrap().address(), first);
    }

    #[test]
    fn forked_child_finds_every_buffer_free_and_wiped() {
        let staging = Staging::new().unwrap();
        let held: Vec<_> = (0..BUFFERS).map(|_| staging.take().unwrap()).collect();
        // SAFETY: the buffer is held, so its bytes are this test's.
        unsafe { held[0].address().write_bytes(7, STAGING_BYTES) };
        // SAFETY: the child takes a buffer, which allocates nothing, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let buffer = staging.take().unwrap();
            let is_pooled = buffer.address() == held[0].address();
            // SAFETY: the buffer is this process's; `_exit` skips the parent's exit handlers.
            unsafe {
                let is_zero = buffer.address().read() == 0;
                buffer.address().write_bytes(9, STAGING_BYTES);
                libc::_exit(i32::from(!is_pooled) + 2 * i32::from(!is_zero));
            }
        }
        let mut status = 0;
        // SAFETY: `status` receives one int.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        // SAFETY: still held.
        assert_eq!(unsafe { held[0].address().read() }, 7);
    }
}
