//! Short paths for system calls, built on the stack: around fork, and inside a signal handler's
//! `open`, nothing may be allocated.
//!
//! Invariant: the bytes always end in a NUL.
//!
//! Does not hold paths of users, only names that Cairn makes itself.

use core::ffi::CStr;

/// A short NUL-terminated path built without allocation, for use around fork.
pub struct ShortPath {
    bytes: [u8; 80],
    length: usize,
}

impl ShortPath {
    /// Returns an empty path.
    pub fn new() -> ShortPath {
        ShortPath { bytes: [0; 80], length: 0 }
    }

    /// Appends bytes, which contain no NUL. Panics if the path would exceed 79 bytes.
    pub fn push(&mut self, part: &[u8]) {
        assert!(self.length + part.len() < self.bytes.len(), "the last byte stays NUL");
        self.bytes[self.length..self.length + part.len()].copy_from_slice(part);
        self.length += part.len();
    }

    /// Appends a decimal number.
    pub fn push_number(&mut self, mut value: u64) {
        let mut digits = [0_u8; 20];
        let mut start = digits.len();
        loop {
            start -= 1;
            digits[start] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                break;
            }
        }
        self.push(&digits[start..]);
    }
}

impl core::ops::Deref for ShortPath {
    type Target = CStr;

    fn deref(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).expect("push keeps the last byte NUL")
    }
}

impl Default for ShortPath {
    fn default() -> ShortPath {
        ShortPath::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decimal_and_the_end_is_a_nul() {
        let mut path = ShortPath::new();
        path.push(b"handles/node.");
        path.push_number(0);
        path.push(b".");
        path.push_number(u64::MAX);
        assert_eq!(&*path, c"handles/node.0.18446744073709551615");
    }
}
