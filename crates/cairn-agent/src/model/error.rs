//! Everything that can go wrong between a store and the files it is drained to.
//!
//! Each message says what failed, on which file and why; the command line adds what to do. Files in
//! the store are named from its top, as in `/restart.100`.

use crate::model::holder::Holder;
use crate::model::path::FilePath;
use std::io;
use std::path::{Path, PathBuf};

/// Result of the agent's operations.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why an operation of the agent failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call on an ordinary file failed.
    #[error("cannot {action} {}: {}", path.display(), why(source))]
    File {
        /// What was attempted, a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The persist directory is another one than it was.
    #[error(
        "{} is not the directory that the job began to drain to: its file system is not mounted, or another one is; \
         nothing is written there",
        path.display()
    )]
    AnotherDirectory {
        /// Where it should be.
        path: PathBuf,
    },
    /// The persist directory has files of another job.
    #[error(
        "{} belongs to job {owner}: drain to another directory, with cairn drain JOB --persist DIR, or, if no two files have one name, \
         with --shared",
        path.display()
    )]
    Owned {
        /// The directory.
        path: PathBuf,
        /// The job.
        owner: String,
    },
    /// Something that this job did not put there has the name of a file, in a directory that it
    /// shares.
    #[error("{} is there already, of another job or user; both stay", path.display())]
    Taken {
        /// The name.
        path: PathBuf,
    },
    /// An operation on a file in the store failed.
    #[error("cannot {action} /{path} in the store: {source}")]
    Store {
        /// What was attempted, a verb.
        action: &'static str,
        /// The file, relative to the store.
        path: FilePath,
        /// What the engine said.
        source: cairn_core::Error,
    },
    /// Somebody holds the store, so that nothing can be done with it.
    #[error("cannot {action} /{path} in the store: {holder}")]
    Held {
        /// What was attempted, a verb.
        action: &'static str,
        /// The file, relative to the store.
        path: FilePath,
        /// Who it is, and what can be done about it.
        holder: Holder,
    },
    /// Data of a file in the store cannot be read from its tier.
    #[error("cannot read /{path} in the store, from {tier}: {source}")]
    Tier {
        /// The file, relative to the store.
        path: FilePath,
        /// The tier, for people.
        tier: String,
        /// What it said.
        source: cairn_core::Error,
    },
    /// A namespace could not be opened or created.
    #[error("{}", describe(.0))]
    Namespace(cairn_device::StoreError),
    /// Data in the store does not have the checksum it was written with.
    #[error(
        "/{path} is damaged in the store at offset {offset}: checksum {computed:08x}, \
         written {stored:08x}"
    )]
    Damaged {
        /// The file, relative to the store.
        path: FilePath,
        /// First byte of the damaged hugeblock in the file.
        offset: u64,
        /// Checksum recorded when the data was written.
        stored: u32,
        /// Checksum of the data as it is now.
        computed: u32,
    },
    /// A copy read back differs from what was written.
    #[error("{} reads back with checksum {found:08x} instead of {expected:08x}", path.display())]
    CopyDiffers {
        /// The copy.
        path: PathBuf,
        /// Checksum of what was written.
        expected: u32,
        /// Checksum of what was read.
        found: u32,
    },
    /// A copy has another length than what was written.
    #[error("{} has {found_bytes} bytes instead of {expected_bytes}", path.display())]
    LengthDiffers {
        /// The copy.
        path: PathBuf,
        /// Bytes written.
        expected_bytes: u64,
        /// Bytes found.
        found_bytes: u64,
    },
    /// A file was written, renamed or removed while it was read.
    #[error("/{path} changed while it was read")]
    Changed {
        /// The file, relative to the store.
        path: FilePath,
    },
    /// A file would be lost if it were dropped from the store.
    #[error("/{path} is not drained; it would be lost: drain it first, or add --force")]
    NotDrained {
        /// The file.
        path: FilePath,
    },
    /// A request to the object store failed.
    #[error("cannot {action} {object}: {problem}")]
    Object {
        /// What was attempted, a verb.
        action: &'static str,
        /// The object.
        object: String,
        /// Why.
        problem: String,
        /// What that says of others.
        refusal: Refusal,
    },
    /// Nobody told this process who it is for the object store.
    #[error(
        "there are no credentials for the archive: neither AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, \
         nor the profile {profile} in ~/.aws/credentials"
    )]
    NoCredentials {
        /// The profile that was looked for.
        profile: String,
    },
    /// Nobody told the agent.
    #[error(
        "the agent (process {pid}) has no credentials for the archive: neither AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY \
         in the environment that it was started in, nor the profile {profile} in ~/.aws/credentials; to start another one \
         with them: kill {pid}, and give them to the next cairn command"
    )]
    AgentWithoutCredentials {
        /// The agent.
        pid: u32,
        /// The profile that was looked for.
        profile: String,
    },
    /// The agent's process is stopped, and stays so.
    #[error(
        "the agent, process {pid}, is stopped; kill -CONT {pid} lets it go on, kill -KILL {pid} has the next command start another"
    )]
    AgentStopped {
        /// Its id.
        pid: u32,
    },
    /// Somebody asked for the copy to be given up.
    #[error("stopped")]
    Stopped,
    /// What was copied of mapped files of an image may be newer than something that is not in it.
    #[error("mapped files were stored to while they were copied")]
    Unsteady,
    /// A file of the program has a name that Cairn needs for itself.
    #[error(
        "/{path} has a name that files of Cairn's own have there, and cannot be drained; rename it"
    )]
    Reserved {
        /// The file, relative to the store.
        path: FilePath,
    },
    /// An image does not fit beside the last one.
    #[error("no room for an image in {}: {missing_bytes} bytes more would do", .place.display())]
    NoRoom {
        /// Where it was to be.
        place: PathBuf,
        /// How much more is to be copied than there is room for.
        missing_bytes: u64,
    },
    /// A file of the program would land where a directory of the store has its place.
    #[error(
        "/{path} would land in the place of a directory that is mapped there (--map); rename it"
    )]
    Occupied {
        /// The file, relative to the store.
        path: FilePath,
    },
    /// A manifest is of files that landed elsewhere.
    #[error("{} is of files that were mapped otherwise; say the same with --map, or choose another directory", path.display())]
    Mapped {
        /// The manifest.
        path: PathBuf,
    },
    /// A file of ours does not parse.
    #[error("{} is damaged: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// A file of ours was written by a newer version.
    #[error("{} has format {found}, this version knows up to {supported}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Format in the file.
        found: u32,
        /// Newest format known here.
        supported: u32,
    },
    /// The header of a namespace contradicts itself.
    #[error("{} is damaged: {what}", path.display())]
    Header {
        /// The meta segment.
        path: PathBuf,
        /// Which part of it is wrong.
        what: &'static str,
    },
    /// The agent could not be started.
    #[error("cannot start the agent of {}: {reason}", store.display())]
    AgentStart {
        /// The store directory.
        store: PathBuf,
        /// What it said.
        reason: String,
    },
    /// The agent answered something else than the protocol allows, or hung up.
    #[error("the agent of {} {what}", store.display())]
    AgentAnswer {
        /// The store directory.
        store: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The agent refused a request.
    #[error("{reason}")]
    AgentRefused {
        /// Its reason.
        reason: String,
    },
}

impl From<cairn_device::StoreError> for Error {
    fn from(error: cairn_device::StoreError) -> Error {
        use cairn_core::Error::{Corrupt, UnsupportedVersion};
        match error.refusal {
            Some(Corrupt { what }) => Error::Header { path: error.path, what },
            Some(UnsupportedVersion { found, supported }) => {
                Error::Format { path: error.path, found, supported }
            }
            _ => Error::Namespace(error),
        }
    }
}

/// What the store's own layer says, without the number of the errno.
fn describe(error: &cairn_device::StoreError) -> String {
    let reason = why(&io::Error::from_raw_os_error(error.errno));
    let advice = if error.advice.is_empty() { "" } else { "; " };
    let path = error.path.display();
    format!("cannot {} {path}: {reason}{advice}{}", error.what, error.advice)
}

/// The text of an I/O error without the number that Rust appends.
pub fn why(source: &io::Error) -> String {
    let text = source.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_lowercase(),
        None => text,
    }
}

/// What a request to the object store that failed says of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It may succeed when it is repeated.
    Passing,
    /// It may succeed when the object is begun anew.
    OfParts,
    /// It fails however often it is repeated; requests about other objects may succeed.
    OfObject,
    /// Others fail, too, until somebody changes something.
    OfServer,
}

/// What an error of a system call does to the rest of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Only this file is affected.
    File,
    /// The persist directory is unusable: every other file would fail, too.
    Directory,
}

impl Error {
    /// Pairs with `map_err`: the error of `action` on `path`.
    pub fn file<E: Into<io::Error>>(
        action: &'static str,
        path: &Path,
    ) -> impl FnOnce(E) -> Error + use<E> {
        let path = path.to_path_buf();
        move |source| Error::File { action, path, source: source.into() }
    }

    /// Pairs with `map_err`: the error of `action` on `path` in the store.
    pub fn store(
        action: &'static str,
        path: &FilePath,
    ) -> impl FnOnce(cairn_core::Error) -> Error + use<> {
        let path = path.clone();
        move |source| match source {
            cairn_core::Error::Held { thread } => {
                Error::Held { action, path, holder: Holder::look(thread) }
            }
            source => Error::Store { action, path, source },
        }
    }

    /// Whether the request to the object store may succeed when it is repeated.
    pub(crate) fn passes(&self) -> bool {
        matches!(self, Error::Object { refusal: Refusal::Passing, .. })
    }

    /// Whether nobody can go on with an object that was begun at the object store: it is to be
    /// another one, or is refused.
    pub(crate) fn ends_upload(&self) -> bool {
        use Refusal::{OfObject, OfParts};
        matches!(
            self,
            Error::Object { refusal: OfObject | OfParts, .. }
                | Error::Changed { .. }
                | Error::Damaged { .. }
        )
    }

    /// Whether data of a file were not brought into the store yet.
    pub fn is_about_absent_data(&self) -> bool {
        matches!(self, Error::Store { source: cairn_core::Error::Absent { .. }, .. })
    }

    /// Whether one object is to blame: it is refused for good, or is not what we wrote.
    pub(crate) fn is_of_object(&self) -> bool {
        matches!(
            self,
            Error::Object { refusal: Refusal::OfObject, .. }
                | Error::Json { .. }
                | Error::Format { .. }
        )
    }

    /// Whether other files would fail for the same reason: a directory that is full, read-only or
    /// gone.
    pub fn severity(&self) -> Severity {
        const OF_THE_DIRECTORY: [i32; 7] = [
            libc::ENOSPC,
            libc::EDQUOT,
            libc::EROFS,
            libc::EIO,
            libc::ESTALE,
            libc::ENODEV,
            libc::ENOTCONN,
        ];
        match self {
            Error::File { source, .. } => match source.raw_os_error() {
                Some(code) if OF_THE_DIRECTORY.contains(&code) => Severity::Directory,
                _ => Severity::File,
            },
            _ => Severity::File,
        }
    }

    /// Whether a file system is full, or as full as it may be for this user.
    pub(crate) fn is_about_room(&self) -> bool {
        let code = match self {
            Error::File { source, .. } => source.raw_os_error(),
            _ => None,
        };
        matches!(code, Some(libc::ENOSPC | libc::EDQUOT))
    }
}
