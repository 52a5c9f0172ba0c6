//! What `cairn` and the agent say to each other: one JSON object a line over a Unix socket.
//!
//! A request is answered by exactly one `Answer` that ends it; `drain` sends `Answer::Progress`
//! lines before that. Does not move bytes; `control.rs` listens and `client.rs` asks.

use crate::archive::ArchiveStatus;
use crate::checkpoint::sets;
use crate::drain::checkpoints::Told;
use crate::drain::forecast::Forecast;
use crate::drain::pace::PaceReport;
use crate::model::path::FilePath;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Longest line either side accepts, bytes.
pub const LINE_BYTES_MAX: u64 = 64 << 20;

/// A request to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "lowercase")]
pub enum Request {
    /// How are things?
    Status,
    /// Drain everything that is closed, now; answer when that is done or has failed.
    Drain {
        /// So long, files that are still open are waited for: processes that were just killed take
        /// a moment to go.
        settle_ms: u64,
        /// How the run ended, and what is wanted.
        #[serde(default)]
        told: Told,
    },
    /// Drain everything that is closed; answer at once.
    Ended {
        /// How the run ended, and what is wanted.
        told: Told,
    },
    /// Drop these files from the store, in this order, and keep their drained copies.
    Evict {
        /// Paths below the persist directory; a directory comes after what is in it.
        paths: Vec<FilePath>,
        /// Also those that are not drained.
        force: bool,
    },
    /// The copies of these files were found to be not what was drained: they are to be made again.
    Distrust {
        /// Paths below the persist directory.
        paths: Vec<FilePath>,
    },
    /// Archive what is to be archived, now; answer when that is done or has failed.
    Archive {
        /// The newest checkpoint of each family, too, whatever the policy says.
        newest: bool,
    },
    /// Time is short: keep no limit, and take the newest files first.
    Hurry,
    /// End.
    Stop,
}

/// A line from the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "lowercase")]
pub enum Answer {
    /// The answer to `Status`.
    Status(Box<Status>),
    /// A drain is under way.
    Progress(Progress),
    /// The answer to `Drain`.
    Drained(Outcome),
    /// The answer to `Archive`.
    Archived {
        /// How it stands; None if nothing is archived.
        status: Option<ArchiveStatus>,
    },
    /// Anything else was carried out, or, of `Ended`, will be.
    Done,
    /// The request was not carried out.
    Error {
        /// What failed, on which file, and why.
        reason: String,
    },
}

/// Files whose data are brought from the persist directory while programs run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bringing {
    /// Those that are yet to be brought.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those of them that somebody waits for.
    pub waited_for: u64,
    /// Those that were brought since the agent began.
    #[serde(default)]
    pub brought_files: u64,
    /// Their bytes.
    #[serde(default)]
    pub brought_bytes: u64,
    /// Bytes that come each second, on average since this agent began with them; 0 while none come.
    #[serde(default)]
    pub bytes_per_second: u64,
    /// Those that cannot be had, and why; `quarantined` ones are damaged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<Failed>,
}

/// How far a drain has got.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Files to copy in this pass.
    pub files_total: u64,
    /// Files of them that are done.
    pub files_done: u64,
    /// Bytes to copy in this pass.
    pub bytes_total: u64,
    /// Bytes of them that are copied.
    pub bytes_done: u64,
}

/// What a pass over the store found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Every clean file is verified in the persist directory.
    pub complete: bool,
    /// Files and their bytes that are verified there in their newest version.
    pub drained_files: u64,
    /// Their bytes.
    pub drained_bytes: u64,
    /// Files whose data are nowhere: they were to be brought in, and their copies there are damaged
    /// or gone.
    #[serde(default)]
    pub lost_files: u64,
    /// Files that somebody may still write to.
    pub open: Vec<FilePath>,
    /// Files whose last writer died, or could not write all, and which are not in the persist
    /// directory as they are.
    pub unclean: Vec<FilePath>,
    /// Files whose last writer died, or could not write all, and which are there as they are.
    #[serde(default)]
    pub as_they_are: Vec<FilePath>,
    /// Of an image: files that programs have mapped, of which it may have what was stored after
    /// something that is not in it.
    #[serde(default)]
    pub unsteady: Vec<FilePath>,
    /// Files that could not be drained, and why.
    pub failed: Vec<Failed>,
    /// Files that wait for the next pass: they changed while they were copied, or something newer
    /// may go first.
    pub changed: u64,
    /// Files and directories with extended attributes that the persist directory did not take.
    #[serde(default)]
    pub without_attributes: u64,
    /// The file system there has refused to change permission bits.
    #[serde(default)]
    pub without_modes: bool,
    /// Checkpoints that are not complete; none of their files is copied but at the end of a run
    /// that succeeded.
    #[serde(default)]
    pub unfinished: Vec<Unfinished>,
    /// Clean files that are not copied: nobody wants them outside.
    #[serde(default)]
    pub kept_files: u64,
}

/// A checkpoint that is not complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfinished {
    /// What it is called.
    #[serde(flatten)]
    pub name: sets::Name,
    /// Its files so far.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The file, or the lowest directory that all of them lie in.
    #[serde(default)]
    pub place: FilePath,
    /// Why it is not complete.
    pub reason: String,
    /// It may be complete: nothing says that it is, nor that it is not.
    #[serde(default)]
    pub is_unknown: bool,
    /// It may still become so.
    pub waits: bool,
    /// Its files are in the persist directory as they are.
    #[serde(default)]
    pub is_outside: bool,
}

impl Unfinished {
    /// Which it is, and why it is not complete.
    pub fn told(&self) -> String {
        format!("{}: {}", self.name, self.reason)
    }

    /// What it is, for people.
    pub fn verdict(&self) -> &'static str {
        if self.is_unknown { "not known to be complete" } else { "not complete" }
    }
}

/// A file that could not be drained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Its path below the persist directory.
    pub path: FilePath,
    /// Why.
    pub reason: String,
    /// Its data in the store is damaged.
    pub quarantined: bool,
}

/// Something in the persist directory that does not get on: its file system hangs, or is very slow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stalled {
    /// Its path below the persist directory.
    pub path: FilePath,
    /// For so many seconds nothing has moved.
    pub for_s: u64,
}

/// A tier on a machine that does not answer the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silent {
    /// The tier, for people.
    pub tier: String,
    /// For so many seconds.
    pub for_s: u64,
    /// It has answered, that it has no such subsystem or namespace.
    #[serde(default)]
    pub is_gone: bool,
}

/// What the agent is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Nothing to do.
    #[default]
    Idle,
    /// Copying.
    Draining,
    /// Waiting to try the persist directory again.
    Retrying,
}

/// The space of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceStatus {
    /// Writers that wait for space.
    pub waiting: u64,
    /// How long the first of them has waited, milliseconds.
    pub longest_ms: u64,
    /// Bytes that are being drained.
    pub draining_bytes: u64,
    /// Files that left the store because the job wants to keep them there no longer; their copies
    /// are safe.
    pub given_up_files: u64,
    /// Their bytes.
    pub given_up_bytes: u64,
}

/// The state of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Its process id.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// Where it drains to.
    pub persist: Option<PathBuf>,
    /// Age of the last whole image that it has made, milliseconds.
    #[serde(default)]
    pub image_age_ms: Option<u64>,
    /// Why the one that was begun after that is none.
    #[serde(default)]
    pub image_trouble: Option<String>,
    /// See [`Outcome::unsteady`].
    #[serde(default)]
    pub image_unsteady: Vec<FilePath>,
    /// What it is doing.
    pub phase: Phase,
    /// Why the persist directory cannot be used, while `phase` is `retrying`.
    pub reason: Option<String>,
    /// When it will be tried again, milliseconds from now.
    pub retry_in_ms: Option<u64>,
    /// Nothing is left to do until something changes or somebody asks.
    #[serde(default)]
    pub settled: bool,
    /// The copy under way.
    pub progress: Progress,
    /// What of it does not get on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stalled: Vec<Stalled>,
    /// Tiers that it gets no answer from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<Silent>,
    /// What limits it.
    #[serde(default)]
    pub pace: PaceReport,
    /// What is to be expected at the end of the job's time, if that is known.
    #[serde(default)]
    pub forecast: Option<Forecast>,
    /// Who waits for space; absent if nobody does and nothing is ever given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<SpaceStatus>,
    /// Files whose data are brought while programs run; absent if there were none since the agent
    /// began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bringing: Option<Bringing>,
    /// Complete checkpoints in an object store; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<ArchiveStatus>,
    /// The last pass.
    pub last: Outcome,
    /// Namespaces that cannot be opened, and why.
    pub unreadable: Vec<String>,
}
