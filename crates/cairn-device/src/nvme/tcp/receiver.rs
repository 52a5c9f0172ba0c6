//! What comes from the controller: a stream of bytes, of which headers pass through a buffer here
//! and data go straight to where they belong.
//!
//! Must stay true: at most what a frame says is taken for it. Of data only what the buffer happened
//! to hold is copied; the rest is received in place, and in the same system call the buffer is
//! filled with what follows: with many small PDUs, or with the beginning of a large one.

use crate::sys::SysResult;

use super::socket::{Part, Socket};

/// What is received beside data.
const BUFFER_BYTES: usize = 64 << 10;
/// The same while data are large, of which it would have to be copied.
const BESIDE_LARGE_BYTES: usize = 8 << 10;
/// Data of a PDU that are large: a system call costs less than to copy them.
const LARGE_BYTES: usize = 16 << 10;

/// The bytes that were received and not used yet.
#[derive(Debug)]
pub struct Receiver {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// How much of the buffer is used.
    room: usize,
}

impl Receiver {
    /// Nothing yet.
    pub fn new() -> Receiver {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        Receiver { buffer, start: 0, end: 0, room: BESIDE_LARGE_BYTES }
    }

    /// So many data come in a PDU, and probably in the next ones.
    pub fn expect(&mut self, data_bytes: usize) {
        self.room = if data_bytes < LARGE_BYTES { BUFFER_BYTES } else { BESIDE_LARGE_BYTES };
    }

    /// The next `count` bytes, if so many are here; they stay. `count` is no more than a header
    /// has.
    pub fn peek(&self, count: usize) -> Option<&[u8]> {
        self.buffer[self.start..self.end].get(..count)
    }

    /// Drops up to `count` bytes; how many.
    pub fn skip(&mut self, count: usize) -> usize {
        let count = count.min(self.end - self.start);
        self.start += count;
        count
    }

    /// Moves up to `count` bytes to `target`; how many.
    ///
    /// # Safety
    /// `target` is writable for `count` bytes, which are no part of the buffer.
    pub unsafe fn take(&mut self, target: *mut u8, count: usize) -> usize {
        let from = self.buffer[self.start..self.end].as_ptr();
        let count = self.skip(count);
        // SAFETY: so many stand in the buffer, and the target is the caller's.
        unsafe { core::ptr::copy_nonoverlapping(from, target, count) };
        count
    }

    /// Receives what there is: first `count` bytes to `target`, what follows into the buffer. How
    /// many went to the target, and how many there were; None if there is nothing now.
    ///
    /// # Safety
    /// As `take`, and the buffer has been emptied if `count` is not 0.
    pub unsafe fn receive(
        &mut self,
        socket: &Socket,
        target: *mut u8,
        count: usize,
    ) -> SysResult<Option<(usize, usize)>> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        assert!(count == 0 || self.end == 0, "what was received earlier comes first");
        // What was left is less than a header.
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
