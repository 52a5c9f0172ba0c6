//! Errors of operations on a namespace, and the errno that a program sees for each.
//!
//! Invariant: `Error::errno` is the only place where an errno is chosen.

use crate::format::types::InodeId;

/// Result of an operation on a namespace.
pub type Result<T> = core::result::Result<T, Error>;

/// Why an operation on a namespace failed. A failed operation has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// A component of the path does not exist.
    NotFound,
    /// The name already exists.
    Exists,
    /// A component used as a directory is not one.
    NotDirectory,
    /// The operation does not apply to directories.
    IsDirectory,
    /// The directory still has entries.
    NotEmpty,
    /// A component is longer than 255 bytes or the path longer than 4095.
    NameTooLong,
    /// More than 40 symbolic links on one path.
    SymlinkLoop,
    /// The mode bits forbid it.
    AccessDenied,
    /// Only the owner may do it, or it is never allowed (hard link to a directory).
    NotPermitted,
    /// An argument is invalid.
    Invalid,
    /// No such open-file description, or not opened for this direction.
    BadHandle,
    /// The tiers have no free hugeblock, or the segment cannot grow.
    NoSpace,
    /// All inode, name or tree records are in use.
    NoInodes,
    /// All open-file descriptions of the namespace are in use.
    TooManyHandles,
    /// All process slots of the namespace are in use.
    TooManyProcesses,
    /// The offset lies beyond the largest file (2^32 hugeblocks).
    FileTooLarge,
    /// The link count would overflow.
    LinkLimit,
    /// No data or hole past the given offset (`SEEK_DATA`, `SEEK_HOLE`).
    NoSuchOffset,
    /// This thread already holds the lock, or it was not obtained in time; or the object is in use
    /// by an operation in progress.
    Busy,
    /// Another thread holds the lock for too long; it may be stopped.
    Held {
        /// Thread id of the owner; 0 if it is in another pid namespace.
        thread: u32,
    },
    /// `.`, `..` and the root cannot be removed or renamed.
    InUse,
    /// The last block has bytes past the end that must be zeroed first: see `Microfs::plan_settle`.
    Unsettled,
    /// The data of the file are still elsewhere: wait until they are staged in, see
    /// `Microfs::request_stage_in`.
    Absent {
        /// The file.
        inode: InodeId,
    },
    /// The file has no block of its own: give it one, see `Microfs::plan_unpacking`.
    Packed {
        /// The file.
        inode: InodeId,
    },
    /// Others have the file open for writing: see `OpenOptions::unless_written`.
    BeingWritten,
    /// The path leaves the namespace; `Microfs::escape_path` returns the path outside.
    Escapes,
    /// The path leaves the directory that it must stay in.
    OutOfBounds,
    /// The segment or the media are inconsistent; nothing was changed.
    Corrupt {
        /// The inconsistent structure.
        what: &'static str,
    },
    /// The segment or the media have a format that this build does not know.
    UnsupportedVersion {
        /// Version in the header.
        found: u32,
        /// Version this build reads and writes.
        supported: u32,
    },
    /// A tier or the operating system failed.
    Io,
    /// The address the caller gave is not readable or writable.
    Fault,
    /// There is no extended attribute of this name.
    NoData,
    /// The name of an extended attribute is empty or longer than 255 bytes.
    OutOfRange,
    /// An argument is longer than the kernel accepts.
    TooLarge,
    /// The namespace or its media do not support this.
    NotSupported,
    /// The image was given up or has ended.
    ImageLost,
}

impl Error {
    /// Returns the Linux errno that a program sees for this error.
    pub fn errno(&self) -> i32 {
        match self {
            Error::NotPermitted => 1,
            Error::NotFound => 2,
            Error::Io
            | Error::Absent { .. }
            | Error::Packed { .. }
            | Error::Corrupt { .. }
            | Error::UnsupportedVersion { .. } => 5,
            Error::NoSuchOffset => 6,
            Error::TooLarge => 7,
            Error::BadHandle => 9,
            Error::TooManyProcesses | Error::Unsettled => 11,
            Error::AccessDenied => 13,
            Error::Fault => 14,
            Error::InUse | Error::BeingWritten => 16,
            Error::Exists => 17,
            Error::Escapes | Error::OutOfBounds => 18,
            Error::NotDirectory => 20,
            Error::IsDirectory => 21,
            Error::Invalid => 22,
            Error::TooManyHandles => 23,
            Error::FileTooLarge => 27,
            Error::NoSpace | Error::NoInodes => 28,
            Error::LinkLimit => 31,
            Error::OutOfRange => 34,
            Error::Busy => 35,
            Error::NameTooLong => 36,
            Error::NotEmpty => 39,
            Error::SymlinkLoop => 40,
            Error::NoData => 61,
            Error::NotSupported => 95,
            Error::Held { .. } => 110,
            Error::ImageLost => 116,
        }
    }
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Error::NotFound => f.write_str("no such file or directory"),
            Error::Exists => f.write_str("the name exists already"),
            Error::NotDirectory => f.write_str("not a directory"),
            Error::IsDirectory => f.write_str("is a directory"),
            Error::NotEmpty => f.write_str("directory not empty"),
            Error::NameTooLong => f.write_str("name or path too long"),
            Error::SymlinkLoop => f.write_str("too many symbolic links"),
            Error::AccessDenied => f.write_str("permission denied by the mode bits"),
            Error::NotPermitted => f.write_str("operation not permitted"),
            Error::Invalid => f.write_str("invalid argument"),
            Error::BadHandle => f.write_str("no such open file, or not opened for this direction"),
            Error::NoSpace => f.write_str(
                "the store's tiers are full; remove files, keep fewer checkpoints with --retain, or give it another --tier",
            ),
            Error::NoInodes => f.write_str("the store has no free inode or name record"),
            Error::TooManyHandles => f.write_str("too many open files in the store"),
            Error::TooManyProcesses => f.write_str("too many processes attached to the store"),
            Error::FileTooLarge => f.write_str("offset beyond the largest file"),
            Error::LinkLimit => f.write_str("too many links"),
            Error::NoSuchOffset => f.write_str("no data or hole past this offset"),
            Error::Busy => f.write_str("the namespace's lock is held"),
            Error::Held { thread } => {
                write!(f, "thread {thread} holds the store and does not continue")
            }
            Error::InUse => f.write_str("the root, `.` and `..` stay where they are"),
            Error::Escapes => f.write_str("the path leaves the store"),
            Error::OutOfBounds => f.write_str("the path leaves the directory it must stay in"),
            Error::BeingWritten => f.write_str("others have it open for writing"),
            Error::Unsettled => f.write_str("the last block must be zeroed past the end first"),
            Error::Absent { .. } => f.write_str("the file's data is not in the store yet"),
            Error::Packed { .. } => f.write_str("the file shares its block with others"),
            Error::Corrupt { what } => write!(f, "the store's metadata is damaged: {what}"),
            Error::UnsupportedVersion { found, supported } => {
                write!(f, "the store has format {found}, this build knows {supported}")
            }
            Error::Io => f.write_str("input/output error"),
            Error::Fault => f.write_str("bad address"),
            Error::NoData => f.write_str("no such attribute"),
            Error::OutOfRange => f.write_str("length out of range"),
            Error::TooLarge => f.write_str("argument too long"),
            Error::NotSupported => f.write_str("not supported"),
            Error::ImageLost => f.write_str("the image of the store was given up, or has ended"),
        }
    }
}

impl std::error::Error for Error {}
