//! Bytes from the controller. Headers pass through a buffer; data go straight to where they belong.
//!
//! Invariant: no more bytes count as data than a frame says. Only data that the buffer already
//! holds are copied. The rest is received in place; the same system call fills the buffer with what
//! follows: many small PDUs, or the beginning of a large one.

use cairn_platform::sys::SysResult;

use super::socket::{Part, Socket};

/// Bytes received into the buffer per system call.
const BUFFER_BYTES: usize = 64 << 10;
/// The same while data are large: a large PDU's data in the buffer would have to be copied.
const BESIDE_LARGE_BYTES: usize = 8 << 10;
/// Size from which a PDU's data are large. A system call then costs less than copying them.
const LARGE_BYTES: usize = 16 << 10;

/// Bytes that were received and not used yet.
#[derive(Debug)]
pub struct Receiver {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// Number of bytes of the buffer in use.
    room: usize,
}

impl Receiver {
    /// An empty buffer.
    pub fn new() -> Receiver {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        Receiver { buffer, start: 0, end: 0, room: BESIDE_LARGE_BYTES }
    }

    /// Adapts to a PDU with `data_bytes` of data; the next ones are probably alike.
    pub fn expect(&mut self, data_bytes: usize) {
        self.room = if data_bytes < LARGE_BYTES { BUFFER_BYTES } else { BESIDE_LARGE_BYTES };
    }

    /// Returns the next `count` bytes without consuming them, if they are here. `count` is at most
    /// the length of a header.
    pub fn peek(&self, count: usize) -> Option<&[u8]> {
        self.buffer[self.start..self.end].get(..count)
    }

    /// Drops up to `count` bytes. Returns their number.
    pub fn skip(&mut self, count: usize) -> usize {
        let count = count.min(self.end - self.start);
        self.start += count;
        count
    }

    /// Moves up to `count` bytes to `target`. Returns their number.
    ///
    /// # Safety
    /// `target` is writable for `count` bytes and does not overlap the buffer.
    pub unsafe fn take(&mut self, target: *mut u8, count: usize) -> usize {
        let from = self.buffer[self.start..self.end].as_ptr();
        let count = self.skip(count);
        // SAFETY: the buffer holds `count` bytes, and the target is the caller's.
        unsafe { core::ptr::copy_nonoverlapping(from, target, count) };
        count
    }

    /// Receives what is available: the first `count` bytes into `target`, the rest into the buffer.
    /// Returns the number of bytes in the target and in total; `None` if there is nothing at the
    /// moment.
    ///
    /// # Safety
    /// As `take`. The buffer is empty if `count` is not 0.
    pub unsafe fn receive(
        &mut self,
        socket: &Socket,
        target: *mut u8,
        count: usize,
    ) -> SysResult<Option<(usize, usize)>> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        assert!(count == 0 || self.end == 0, "what was received earlier comes first");
        // What is left in the buffer is less than a header.
        let room = &mut self.buffer[self.end..self.room];
        let mut parts = [
            Part { iov_base: target.cast(), iov_len: count },
            Part { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() },
        ];
        let used = if count == 0 { &mut parts[1..] } else { &mut parts[..] };
        // SAFETY: the target is the caller's, the room is ours alone.
        let Some(received) = unsafe { socket.receive(used) }? else { return Ok(None) };
        let in_target = received.min(count);
        self.end += received - in_target;
        Ok(Some((in_target, received)))
    }
}
