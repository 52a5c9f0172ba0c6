//! Bytes that a connection has to send.
//!
//! Invariant: pieces leave in order, each exactly once. Buffers go back to the pool as soon as they
//! were sent.

use crate::pool::{Buffer, Pool};
use crate::socket::Socket;
use crate::subsystem::namespace::Namespace;
use std::collections::VecDeque;
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::sync::Arc;

/// Most pieces per system call.
const PIECES_MAX: usize = 64;

enum Piece {
    /// Headers, and small data.
    Bytes(Vec<u8>),
    /// The first bytes of a buffer.
    Data(Buffer, usize),
    /// A range of a namespace: offset and length.
    Stored(Arc<Namespace>, u64, usize),
}

impl Piece {
    fn length(&self) -> usize {
        match self {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::Data(_, length) | Piece::Stored(_, _, length) => *length,
        }
    }
}

/// Queue of pieces to send.
#[derive(Default)]
pub(crate) struct Outbox {
    pieces: VecDeque<Piece>,
    /// Number of bytes of the first piece that were sent.
    sent: usize,
    small_bytes: usize,
    buffer_bytes: usize,
}

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Number of bytes that are in neither a buffer nor a namespace.
    pub(crate) fn small_bytes(&self) -> usize {
        self.small_bytes
    }

    /// Size of the buffers, bytes.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Appends a few bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.small_bytes += bytes.len();
        match self.pieces.back_mut() {
            Some(Piece::Bytes(last)) => last.extend_from_slice(bytes),
            _ => self.pieces.push_back(Piece::Bytes(bytes.to_vec())),
        }
    }

    /// Appends the first `length` bytes of a buffer.
    pub(crate) fn push_buffer(&mut self, buffer: Buffer, length: usize) {
        assert!(length > 0 && length <= buffer.len(), "it is in the buffer");
        self.buffer_bytes += buffer.len();
        self.pieces.push_back(Piece::Data(buffer, length));
    }

    /// Appends a range of a namespace. The bytes are read when they are sent.
    pub(crate) fn push_stored(&mut self, namespace: Arc<Namespace>, offset: u64, length: usize) {
        self.pieces.push_back(Piece::Stored(namespace, offset, length));
    }

    /// Sends as much as possible. Returns the number of bytes. Errors: the connection is over.
    pub(crate) fn flush(&mut self, socket: &Socket, pool: &mut Pool) -> Result<usize> {
        let mut all = 0;
        while let Some(piece) = self.pieces.front() {
            let sent = match piece {
                Piece::Stored(namespace, offset, length) => {
                    let (offset, left) = (offset + self.sent as u64, length - self.sent);
                    match socket.send_file(namespace.file(), offset, left)? {
                        Some(0) => return Err(Error::from(ErrorKind::UnexpectedEof)),
                        sent => sent,
                    }
                }
                _ => self.send_bytes(socket)?,
            };
            let Some(sent) = sent else { break };
            self.advance(sent, pool);
            all += sent;
        }
        Ok(all)
    }

    /// Sends leading pieces that are in memory.
    fn send_bytes(&self, socket: &Socket) -> Result<Option<usize>> {
        let mut parts = [IoSlice::new(&[]); PIECES_MAX];
        let mut count = 0;
        for (part, piece) in parts.iter_mut().zip(&self.pieces) {
            *part = match piece {
                Piece::Bytes(bytes) => IoSlice::new(bytes),
                Piece::Data(buffer, length) => IoSlice::new(&buffer[..*length]),
                Piece::Stored(..) => break,
            };
            count += 1;
        }
        let mut parts = &mut parts[..count];
        IoSlice::advance_slices(&mut parts, self.sent);
        socket.send(parts, count < self.pieces.len())
    }

    fn advance(&mut self, sent: usize, pool: &mut Pool) {
        self.sent += sent;
        while let Some(length) = self.pieces.front().map(Piece::length) {
            if self.sent < length {
                return;
            }
            self.sent -= length;
            self.remove_first(pool);
        }
    }

    fn remove_first(&mut self, pool: &mut Pool) {
        match self.pieces.pop_front() {
            Some(Piece::Bytes(bytes)) => self.small_bytes -= bytes.len(),
            Some(Piece::Data(buffer, _)) => {
                self.buffer_bytes -= buffer.len();
                pool.give(buffer);
            }
            Some(Piece::Stored(..)) | None => {}
        }
    }

    /// Drops everything and gives the buffers back.
    pub(crate) fn clear(&mut self, pool: &mut Pool) {
        while !self.pieces.is_empty() {
            self.remove_first(pool);
        }
        self.sent = 0;
    }
}
