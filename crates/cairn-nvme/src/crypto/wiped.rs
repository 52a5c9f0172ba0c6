//! Secret bytes.
//!
//! Invariant: bytes are overwritten before their memory is freed. No message shows any of them.
//!
//! Does not keep memory from being swapped out.

use core::fmt;
use core::ops::{Deref, DerefMut};

use subtle::ConstantTimeEq;
use zeroize::{Zeroize, Zeroizing};

use cairn_platform::sys::{self, SysResult};

/// Bytes that are overwritten with zeros when they are dropped. They cannot grow: growing would
/// leave a copy behind.
#[derive(Clone)]
pub struct Wiped(Zeroizing<Box<[u8]>>);

impl Wiped {
    /// `count` zeros.
    pub fn zeros(count: usize) -> Wiped {
        Wiped(Zeroizing::new(vec![0; count].into()))
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Wiped {
        Wiped(Zeroizing::new(bytes.into()))
    }

    /// A copy of `bytes`. Overwrites the originals.
    pub fn taken_from(bytes: &mut [u8]) -> Wiped {
        let copy = Wiped::copy_of(bytes);
        bytes.zeroize();
        copy
    }

    /// `count` random bytes from the kernel.
    pub fn random(count: usize) -> SysResult<Wiped> {
        let mut bytes = Wiped::zeros(count);
        for piece in bytes.chunks_mut(size_of::<[u8; 16]>()) {
            let mut some = sys::random()?;
            piece.copy_from_slice(&some[..piece.len()]);
            some.zeroize();
        }
        Ok(bytes)
    }

    /// Whether the bytes equal `others`. The time depends only on their number.
    pub fn is(&self, others: &[u8]) -> bool {
        self.ct_eq(others).into()
    }
}

impl Deref for Wiped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Wiped {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl fmt::Debug for Wiped {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_compared_whole_and_shown_to_nobody() {
        let bytes = Wiped::copy_of(b"secret");
        assert!(bytes.is(b"secret") && bytes.clone().is(b"secret"));
        for other in [&b"secres"[..], b"tecret", b"secre", b"secrets", b""] {
            assert!(!bytes.is(other), "{other:?}");
        }
        assert_eq!(format!("{bytes:?}"), "(hidden)");
        assert_ne!(*Wiped::random(40).unwrap(), *Wiped::random(40).unwrap());
    }

    #[test]
    fn bytes_are_taken_then_they_are_zero_where_they_were() {
        let mut bytes = [7; 5];
        assert_eq!(*Wiped::taken_from(&mut bytes), [7; 5]);
        assert_eq!(bytes, [0; 5]);
    }
}
