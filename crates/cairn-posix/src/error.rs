//! Errors of a call on a file in Cairn.
//!
//! Invariant: an errno comes from `cairn_core::Error::errno` or from the POSIX page of the call. No
//! other errno is returned.

use std::ffi::CString;

/// Error number as the application sees it, positive.
///
/// The alignment gives a `Result` with an `Errno` a tag of a whole word. The processor cannot
/// forward a half-word store to a load of the whole word. Such a load waits for all earlier stores,
/// streaming stores included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(align(8))]
pub struct Errno(pub i32);

/// Result of a call on a descriptor.
pub type Result<T> = core::result::Result<T, Errno>;

/// Reason why a call on a path did not succeed here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathError {
    /// The call failed with this errno.
    Errno(Errno),
    /// The path leads out of the mount, to this absolute path. The C library must answer the call;
    /// if that path leads back into the mount, the same call of this crate must.
    Elsewhere(CString),
}

/// Result of a call on a path.
pub type PathResult<T> = core::result::Result<T, PathError>;

impl From<cairn_core::Error> for Errno {
    fn from(error: cairn_core::Error) -> Errno {
        Errno(error.errno())
    }
}

impl From<cairn_platform::sys::Errno> for Errno {
    fn from(errno: cairn_platform::sys::Errno) -> Errno {
        Errno(errno.0)
    }
}

impl<E: Into<Errno>> From<E> for PathError {
    fn from(error: E) -> PathError {
        PathError::Errno(error.into())
    }
}

impl PathError {
    /// Returns the errno for callers that cannot continue outside the mount.
    pub fn errno(&self) -> Errno {
        match self {
            PathError::Errno(errno) => *errno,
            PathError::Elsewhere(_) => Errno(libc::EXDEV),
        }
    }
}
