//! Memory for data on their way, used again and again: new memory would be cleared, page by page, for every command.
//!
//! Must stay true: what a buffer holds is old; who takes one uses only what it has put there.

/// Most buffers that are kept.
const SPARE_MAX: usize = 16;

/// The buffers of a connection that are not in use.
#[derive(Debug, Default)]
pub(super) struct Buffers(Vec<Vec<u8>>);

impl Buffers {
    /// A buffer of at least so many bytes.
    pub(super) fn take(&mut self, bytes: usize) -> Vec<u8> {
        let mut buffer = self.0.pop().unwrap_or_default();
        ensure(&mut buffer, bytes);
        buffer
    }

    /// Takes one back.
    pub(super) fn give(&mut self, buffer: Vec<u8>) {
        if self.0.len() < SPARE_MAX {
            self.0.push(buffer);
        }
    }
}

/// Makes a buffer as long as that, if it is shorter.
pub(super) fn ensure(buffer: &mut Vec<u8>, bytes: usize) {
    if buffer.len() < bytes {
        buffer.resize(bytes, 0);
    }
}
