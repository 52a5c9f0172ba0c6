//! Errors between a store and the files it is drained to.
//!
//! Each message says what failed, on which file and why; the command line adds the remedy. Files in
//! the store are named from its root, as in `/restart.100`.

use crate::model::holder::Holder;
use cairn_job::file::path::FilePath;
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
        /// The action, a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The persist directory is not the one that the job began to drain to.
    #[error(
        "{} is not the directory that the job drained to before: its file system is not mounted, or another one is mounted; \
         nothing is written there",
        path.display()
    )]
    AnotherDirectory {
        /// Its path.
        path: PathBuf,
    },
    /// Another store of the job drains to the persist directory by now.
    #[error(
        "another run of the job drains here by now ({}); nothing more of this one is written there; drain it elsewhere with: \
         cairn drain JOB --persist DIR",
        path.display()
    )]
    Superseded {
        /// The manifest.
        path: PathBuf,
    },
    /// The persist directory holds files of another job.
    #[error(
        "{} belongs to job {owner}; drain to another directory with: cairn drain JOB --persist DIR, or, if the jobs' files \
         have different names, add --shared",
        path.display()
    )]
    Owned {
        /// The directory.
        path: PathBuf,
        /// The job.
        owner: String,
    },
    /// In a shared directory, a file's name is taken by something that this job did not put there.
    #[error("{} exists already and belongs to another job or user; both files are kept", path.display())]
    Taken {
        /// The name.
        path: PathBuf,
    },
    /// An operation on a file in the store failed.
    #[error("cannot {action} /{path} in the store: {source}")]
    Store {
        /// The action, a verb.
        action: &'static str,
        /// The file, relative to the store.
        path: FilePath,
        /// Error of the core.
        source: cairn_core::Error,
    },
    /// A process holds the store's lock, so that the store cannot be used.
    #[error("cannot {action} /{path} in the store: {holder}")]
    Held {
        /// The action, a verb.
        action: &'static str,
        /// The file, relative to the store.
        path: FilePath,
        /// The process, and what can be done about it.
        holder: Holder,
    },
    /// The data of a file in the store cannot be read from their tier.
    #[error("cannot read /{path} in the store, from {tier}: {source}")]
    Tier {
        /// The file, relative to the store.
        path: FilePath,
        /// The tier, as shown to users.
        tier: String,
        /// Error of the tier.
        source: cairn_core::Error,
    },
    /// A namespace could not be opened or created.
    #[error("{}", describe(.0))]
    Namespace(cairn_device::StoreError),
    /// Data in the store do not have the checksum they were written with.
    #[error(
        "/{path} is damaged in the store at offset {offset}: checksum {computed:08x}, \
         written {stored:08x}"
    )]
    Damaged {
        /// The file, relative to the store.
        path: FilePath,
        /// First byte of the damaged hugeblock in the file.
        offset: u64,
        /// Checksum recorded when the data were written.
        stored: u32,
        /// Checksum of the present data.
        computed: u32,
    },
    /// A copy read back differs from what was written.
    #[error("{} reads back with checksum {found:08x} instead of {expected:08x}", path.display())]
    CopyDiffers {
        /// The copy.
        path: PathBuf,
        /// Checksum of the written bytes.
        expected: u32,
        /// Checksum of the bytes read back.
        found: u32,
    },
    /// The length of a copy differs from what was written.
    #[error("{} has {found_bytes} bytes instead of {expected_bytes}", path.display())]
    LengthDiffers {
        /// The copy.
        path: PathBuf,
        /// Bytes written.
        expected_bytes: u64,
        /// Bytes found.
        found_bytes: u64,
    },
    /// A file was written to, renamed or removed while it was read.
    #[error("/{path} changed while it was read")]
    Changed {
        /// The file, relative to the store.
        path: FilePath,
    },
    /// A file is not drained, and removing it from the store would lose it.
    #[error("/{path} is not drained and would be lost; drain it first, or add --force")]
    NotDrained {
        /// The file.
        path: FilePath,
    },
    /// A request to the object store failed.
    #[error("cannot {action} {object}: {problem}")]
    Object {
        /// The action, a verb.
        action: &'static str,
        /// The object.
        object: String,
        /// Reason.
        problem: String,
        /// Which other requests the error affects.
        refusal: Refusal,
    },
    /// This process has no credentials for the object store.
    #[error(
        "there are no credentials for the archive: neither AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, \
         nor the profile {profile} in ~/.aws/credentials"
    )]
    NoCredentials {
        /// The profile that was looked for.
        profile: String,
    },
    /// The agent has no credentials for the object store.
    #[error(
        "the agent (process {pid}) has no credentials for the archive: neither AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY \
         in its environment, nor the profile {profile} in ~/.aws/credentials; end the agent with kill {pid}, and set the \
         credentials for the next cairn command, which starts a new agent"
    )]
    AgentWithoutCredentials {
        /// The agent.
        pid: u32,
        /// The profile that was looked for.
        profile: String,
    },
    /// The agent's process is stopped and does not go on by itself.
    #[error(
        "the agent, process {pid}, is stopped; continue it with kill -CONT {pid}, or end it with kill -KILL {pid}: the next command starts a new one"
    )]
    AgentStopped {
        /// Its process id.
        pid: u32,
    },
    /// Somebody asked to give up the copy.
    #[error("stopped")]
    Stopped,
    /// Copies of mapped files may be newer than something that their cut lacks.
    #[error("mapped files changed while they were copied")]
    Unsteady,
    /// A file of the program has a name that is reserved for Cairn's own files.
    #[error("/{path} cannot be drained: Cairn reserves this name for its own files; rename it")]
    Reserved {
        /// The file, relative to the store.
        path: FilePath,
    },
    /// What changed does not fit beside the cut that lies outside.
    #[error(
        "no room in {} for what changed, beside what is there: {missing_bytes} bytes more are needed",
        .place.display()
    )]
    NoRoom {
        /// The persist directory.
        place: PathBuf,
        /// Bytes to copy beyond the available space.
        missing_bytes: u64,
    },
    /// A file of the program would land in the place of a mapped directory.
    #[error("/{path} cannot be drained: --map puts a directory in its place; rename it")]
    Occupied {
        /// The file, relative to the store.
        path: FilePath,
    },
    /// A manifest was written with another mapping.
    #[error("{} was written with another --map; give the same one, or choose another directory", path.display())]
    Mapped {
        /// The manifest.
        path: PathBuf,
    },
    /// A file of Cairn's own does not parse.
    #[error("{} is damaged: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Error of the parser.
        source: serde_json::Error,
    },
    /// A manifest is not what was written: its checksum differs.
    #[error(
        "{} is damaged: its checksum is wrong, so nothing can be said of the files beside it; \
         they are plain files, and a copy of this file makes them known again",
        path.display()
    )]
    ManifestDamaged {
        /// The file.
        path: PathBuf,
    },
    /// A file of Cairn's own was written by a newer version.
    #[error("{} has format {found}, this version knows up to {supported}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Format in the file.
        found: u32,
        /// Newest format known here.
        supported: u32,
    },
    /// The header of a namespace is inconsistent.
    #[error("{} is damaged: {what}", path.display())]
    Header {
        /// The meta segment.
        path: PathBuf,
        /// The damaged part.
        what: &'static str,
    },
    /// The agent could not be started.
    #[error("cannot start the agent of {}: {reason}", store.display())]
    AgentStart {
        /// The store directory.
        store: PathBuf,
        /// Its output.
        reason: String,
    },
    /// The agent's answer violates the protocol, or the agent hung up.
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

/// Formats an error of the store layer without the number of the errno.
fn describe(error: &cairn_device::StoreError) -> String {
    let reason = why(&io::Error::from_raw_os_error(error.errno));
    let advice = if error.advice.is_empty() { "" } else { "; " };
    let path = error.path.display();
    format!("cannot {} {path}: {reason}{advice}{}", error.what, error.advice)
}

/// Returns the text of an I/O error without the number that Rust appends.
pub fn why(source: &io::Error) -> String {
    let text = source.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_lowercase(),
        None => text,
    }
}

/// How far the refusal of a request to the object store reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request may succeed if it is repeated.
    Passing,
    /// The upload may succeed if it is begun anew.
    OfParts,
    /// The request fails however often it is repeated. Requests about other objects may succeed.
    OfObject,
    /// Other requests fail as well, until somebody changes something.
    OfServer,
}

/// How an error of a system call affects the rest of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Only this file is affected.
    File,
    /// The persist directory is unusable: every other file would fail, too.
    Directory,
}

impl Error {
    /// For `map_err`: returns the error of `action` on `path`.
    pub fn file<E: Into<io::Error>>(
        action: &'static str,
        path: &Path,
    ) -> impl FnOnce(E) -> Error + use<E> {
        let path = path.to_path_buf();
        move |source| Error::File { action, path, source: source.into() }
    }

    /// For `map_err`: returns the error of `action` on `path` in the store.
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

    /// Whether the request to the object store may succeed if it is repeated.
    pub(crate) fn passes(&self) -> bool {
        matches!(self, Error::Object { refusal: Refusal::Passing, .. })
    }

    /// Whether an upload that was begun cannot be continued: the object has to become another one,
    /// or is refused.
    pub(crate) fn ends_upload(&self) -> bool {
        use Refusal::{OfObject, OfParts};
        matches!(
            self,
            Error::Object { refusal: OfObject | OfParts, .. }
                | Error::Changed { .. }
                | Error::Damaged { .. }
        )
    }

    /// Whether the data of a file have not been brought into the store yet.
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

    /// Whether a pass has to be made again although nothing is wrong with the persist directory: it
    /// was to give way, or a program needed the space of its cut.
    pub fn repeats_pass(&self) -> bool {
        use cairn_core::Error::ImageLost;
        matches!(self, Error::Stopped | Error::Unsteady | Error::Store { source: ImageLost, .. })
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

    /// Whether a file system is full, or the user's quota is used up.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Error::File { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    pub(crate) fn is_about_room(&self) -> bool {
        let code = match self {
            Error::File { source, .. } => source.raw_os_error(),
            _ => None,
        };
        matches!(code, Some(libc::ENOSPC | libc::EDQUOT))
    }
}
