//! What is on its way to the controller: PDUs in order, their data still in the caller's memory.
//!
//! Must stay true: bytes leave in the order in which they were put here, each once.

use std::collections::VecDeque;

use crate::sys::SysResult;

use super::socket::{Part, Socket};
use crate::nvme::wire::pdu::{DIGEST_BYTES, Start};

/// Most pieces of memory of one system call, three for each PDU.
const PARTS_MAX: usize = 96;

/// A PDU that is to be sent.
#[derive(Debug)]
pub struct Outgoing {
    /// What precedes the data.
    pub start: Start,
    /// Memory of a command, or nothing.
    pub data: *const u8,
    /// How much of it.
    pub length: usize,
    /// What follows the data, if digests were agreed on.
    pub digest: Option<[u8; DIGEST_BYTES]>,
    /// The command that it belongs to; none of the connection itself.
    pub command_id: Option<u16>,
    /// The last of what an R2T asked for.
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

/// The PDUs that are to be sent.
#[derive(Debug, Default)]
pub struct Sender {
    queue: VecDeque<Outgoing>,
    /// How much of the first one was sent.
    sent: usize,
}

impl Sender {
    /// Adds one.
    pub fn push(&mut self, outgoing: Outgoing) {
        self.queue.push_back(outgoing);
    }

    /// Whether all was sent.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Forgets what was not sent.
    pub fn clear(&mut self) {
        self.queue.clear();
        self.sent = 0;
    }

    /// The same, but for a PDU of which a part was sent.
    pub fn clear_unsent(&mut self) {
        self.queue.truncate(usize::from(self.sent > 0));
    }

    /// Sends as much as the kernel takes now; tells `done` of each PDU that was sent whole.
    pub fn send(&mut self, socket: &Socket, mut done: impl FnMut(&Outgoing)) -> SysResult<()> {
        while !self.queue.is_empty() {
            let mut parts = [Part { iov_base: core::ptr::null_mut(), iov_len: 0 }; PARTS_MAX];
            let (count, bytes) = self.gather(&mut parts);
            // SAFETY: headers and digests stand in the queue, which does not change meanwhile; the
            // data are the memory of commands under way, which their submitter vouches for.
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

    /// Fills `parts` with what is next; how many of them, and how many bytes they are.
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
