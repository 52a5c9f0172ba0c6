//! PDUs on their way to the controller, in order. Their data stay in the caller's memory.
//!
//! Invariant: bytes leave in the order in which they were pushed, each exactly once.

use std::collections::VecDeque;

use cairn_platform::sys::SysResult;

use super::socket::{Part, Socket};
use crate::wire::pdu::{DIGEST_BYTES, Start};

/// Most pieces of memory per system call; a PDU has three.
const PARTS_MAX: usize = 96;

/// A PDU to send.
#[derive(Debug)]
pub struct Outgoing {
    /// Bytes that precede the data.
    pub start: Start,
    /// Data, in the memory of a command; null if there are none.
    pub data: *const u8,
    /// Number of bytes of data.
    pub length: usize,
    /// Digest that follows the data, if digests were agreed on.
    pub digest: Option<[u8; DIGEST_BYTES]>,
    /// Command that the PDU belongs to; `None`: it belongs to the connection.
    pub command_id: Option<u16>,
    /// Whether the PDU is the last one that an R2T asked for.
    pub ends_transfer: bool,
}

impl Outgoing {
    /// A PDU without data that belongs to no command.
    pub fn alone(start: Start) -> Outgoing {
        Outgoing {
            start,
            data: core::ptr::null(),
            length: 0,
            digest: None,
            command_id: None,
            ends_transfer: false,
        }
    }

    fn parts(&self) -> impl Iterator<Item = (*const u8, usize)> {
        let digest = self.digest.as_ref().map_or(&[][..], |digest| digest);
        [
            (self.start.bytes().as_ptr(), self.start.bytes().len()),
            (self.data, self.length),
            (digest.as_ptr(), digest.len()),
        ]
        .into_iter()
    }

    fn bytes(&self) -> usize {
        self.parts().map(|(_, length)| length).sum()
    }
}

/// Queue of PDUs to send.
#[derive(Debug, Default)]
pub struct Sender {
    queue: VecDeque<Outgoing>,
    /// Number of bytes of the first PDU that were sent.
    sent: usize,
}

impl Sender {
    /// Appends a PDU.
    pub fn push(&mut self, outgoing: Outgoing) {
        self.queue.push_back(outgoing);
    }

    /// Whether everything was sent.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Drops everything that was not sent.
    pub fn clear(&mut self) {
        self.queue.clear();
        self.sent = 0;
    }

    /// Drops every PDU except one that was sent in part.
    pub fn clear_unsent(&mut self) {
        self.queue.truncate(usize::from(self.sent > 0));
    }

    /// Sends as much as the kernel takes at once. Calls `done` for each PDU that was sent whole.
    pub fn send(&mut self, socket: &Socket, mut done: impl FnMut(&Outgoing)) -> SysResult<()> {
        while !self.queue.is_empty() {
            let mut parts = [Part { iov_base: core::ptr::null_mut(), iov_len: 0 }; PARTS_MAX];
            let (count, bytes) = self.gather(&mut parts);
            // SAFETY: headers and digests stand in the queue, which does not change meanwhile. The
            // data are memory of commands under way, and their submitter vouches for them.
            let mut sent = unsafe { socket.send(&mut parts[..count]) }?;
            let is_all = sent == bytes;
            while let Some(first) = self.queue.front() {
                let left = first.bytes() - self.sent;
                if sent < left {
                    break;
                }
                (sent, self.sent) = (sent - left, 0);
                done(first);
                self.queue.pop_front();
            }
            self.sent += sent;
            if !is_all {
                break;
            }
        }
        Ok(())
    }

    /// Fills `parts` with what is to be sent next. Returns the number of parts and of bytes.
    fn gather(&self, parts: &mut [Part; PARTS_MAX]) -> (usize, usize) {
        let (mut count, mut bytes, mut skipped) = (0, 0, self.sent);
        for (address, length) in self.queue.iter().flat_map(Outgoing::parts) {
            let skip = skipped.min(length);
            skipped -= skip;
            if skip == length {
                continue;
            }
            if count == PARTS_MAX {
                break;
            }
            parts[count] = Part {
                iov_base: address.wrapping_add(skip).cast_mut().cast(),
                iov_len: length - skip,
            };
            (count, bytes) = (count + 1, bytes + length - skip);
        }
        (count, bytes)
    }
}
