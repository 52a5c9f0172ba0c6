//! Bytes that nobody else is to know.
//!
//! Must stay true: what is dropped was overwritten before; nothing of it is in any message.
//! Does not keep memory from being swapped out.

use core::fmt;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{Ordering, compiler_fence};

use crate::sys::{self, SysResult};

/// Values that are overwritten with zeros when they are dropped. They do not grow: what they outgrow would stay behind.
pub struct Wiped<T: Copy + Default = u8>(Box<[T]>);

impl<T: Copy + Default> Wiped<T> {
    /// So many zeros.
    pub fn zeros(count: usize) -> Wiped<T> {
        Wiped(vec![T::default(); count].into())
    }

    /// A copy of `values`.
    pub fn copy_of(values: &[T]) -> Wiped<T> {
        Wiped(values.into())
    }
}

impl Wiped {
    /// So many random bytes, from the kernel.
    pub fn random(count: usize) -> SysResult<Wiped> {
        let mut bytes = Wiped::zeros(count);
        for piece in bytes.chunks_mut(size_of::<[u8; 16]>()) {
            let mut some = sys::random()?;
            piece.copy_from_slice(&some[..piece.len()]);
            wipe(&mut some);
        }
        Ok(bytes)
    }

    /// Whether these are the same bytes as `others`, in a time that depends on their number alone.
    pub fn is(&self, others: &[u8]) -> bool {
        let differences = self.iter().zip(others).fold(0, |all, (a, b)| all | (a ^ b));
        self.len() == others.len() && core::hint::black_box(differences) == 0
    }
}

impl<T: Copy + Default> Clone for Wiped<T> {
    fn clone(&self) -> Wiped<T> {
        Wiped::copy_of(self)
    }
}

impl<T: Copy + Default> Deref for Wiped<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Copy + Default> DerefMut for Wiped<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<T: Copy + Default> Drop for Wiped<T> {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

impl<T: Copy + Default> fmt::Debug for Wiped<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("(hidden)")
    }
}

/// Overwrites values that are not needed any more, also where nobody reads them afterwards.
pub fn wipe<T: Copy + Default>(values: &mut [T]) {
    for value in values {
        // SAFETY: an exclusive reference to a value that is not dropped.
        unsafe { core::ptr::from_mut(value).write_volatile(T::default()) };
    }
    compiler_fence(Ordering::SeqCst);
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
    fn values_that_are_wiped_are_zero() {
        let mut values = [7_u64; 5];
        wipe(&mut values);
        assert_eq!(values, [0; 5]);
    }
}
