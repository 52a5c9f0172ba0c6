//! What a call on a file of ours answers when it fails.
//!
//! Invariant: an errno is chosen by `cairn_core::Error::errno` or stands in the POSIX page of the
//! call; nothing else is made up here.

use std::ffi::CString;

/// An error number as the application sees it, positive.
///
/// Aligned so that a result with one has a tag of a whole word. Half a word that was just stored is
/// not forwarded to the load of the whole, which then waits for all stores before it, streaming
/// ones included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(align(8))]
pub struct Errno(pub i32);

/// Result of a call on a descriptor.
pub type Result<T> = core::result::Result<T, Errno>;

/// Why a call on a path did not succeed here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathError {
    /// It failed.
    Errno(Errno),
    /// The path leads out of the mount, to this absolute path: the C library must answer, or, if it
    /// leads back, the same call of ours.
    Elsewhere(CString),
}

/// Result of a call on a path.
pub type PathResult<T> = core::result::Result<T, PathError>;

impl From<cairn_core::Error> for Errno {
    fn from(error: cairn_core::Error) -> Errno {
        Errno(error.errno())
    }
}

impl From<cairn_device::Errno> for Errno {
    fn from(errno: cairn_device::Errno) -> Errno {
        Errno(errno.0)
    }
}

impl<E: Into<Errno>> From<E> for PathError {
    fn from(error: E) -> PathError {
        PathError::Errno(error.into())
    }
}

impl PathError {
    /// The errno for callers that cannot continue outside the mount.
    pub fn errno(&self) -> Errno {
        match self {
            PathError::Errno(errno) => *errno,
            PathError::Elsewhere(_) => Errno(libc::EXDEV),
        }
    }
}
