//! Notes of programs about their checkpoints and files. Where they are kept is up to others.

/// A mark or hint for files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A checkpoint begins; the number is its step.
    Begin,
    /// A checkpoint is complete as far as this process is concerned.
    End,
    /// Treatment of files; the number is one of [`HINTS`].
    Hint,
    /// A run begins in the store: no process of earlier runs lives. Number and text mean nothing.
    Run,
}

/// Names of the hints, in the order of their numbers, which begin at 1.
pub const HINTS: [&str; 5] = ["persistent", "reusable", "temporary", "preload", "offload"];

/// A note of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Nanoseconds since the epoch.
    pub time_ns: i64,
    /// Process that wrote it.
    pub pid: u32,
    /// Rank of the process, if a launcher gave it one.
    pub rank: Option<u32>,
    /// Kind of note.
    pub kind: Kind,
    /// Step or hint.
    pub number: u64,
    /// Name of the checkpoint; path or pattern of the files, as the program sees them.
    pub text: Vec<u8>,
}
