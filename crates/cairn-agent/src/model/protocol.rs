//! Protocol between `cairn` and the agent: one JSON object per line over a Unix socket.
//!
//! Exactly one final `Answer` ends a request; `drain` sends `Answer::Progress` lines before it.
//!
//! Does not move bytes; `control.rs` listens and `client.rs` asks.

use crate::model::archive::ArchiveStatus;
use crate::model::drain_task::DrainTask;
use cairn_job::checkpoint::name::Name;
use cairn_job::file::path::FilePath;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Longest line either side accepts, bytes.
pub const LINE_BYTES_MAX: u64 = 64 << 20;

/// A request to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "lowercase")]
pub enum Request {
    /// Report the status.
    Status,
    /// Drain everything that is closed, now. Answered when that is done or has failed.
    Drain {
        /// Time to wait for files that are still open, milliseconds: processes that were just
        /// killed take a moment to go.
        settle_ms: u64,
        /// How the run ended, and which work is wanted.
        #[serde(default)]
        told: DrainTask,
    },
    /// Drain everything that is closed. Answered at once.
    Ended {
        /// How the run ended, and which work is wanted.
        told: DrainTask,
    },
    /// Remove these files from the store, in this order, and keep their drained copies.
    Evict {
        /// Paths below the persist directory; a directory comes after its content.
        paths: Vec<FilePath>,
        /// Whether to remove files that are not drained, too.
        force: bool,
    },
    /// The copies of these files differ from what was drained: make them again.
    Distrust {
        /// Paths below the persist directory.
        paths: Vec<FilePath>,
    },
    /// Archive what the policy selects, now. Answered when that is done or has failed.
    Archive {
        /// Whether to archive the newest checkpoint of each family, too, whatever the policy says.
        newest: bool,
    },
    /// Time is short: lift all limits, and take the newest files first.
    Hurry,
    /// End the agent.
    Stop,
}

/// A line from the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "lowercase")]
pub enum Answer {
    /// The answer to `Status`.
    Status(Box<Status>),
    /// Progress of a drain under way.
    Progress(Progress),
    /// The answer to `Drain`.
    Drained(Outcome),
    /// The answer to `Archive`.
    Archived {
        /// Status of the archive; None if nothing is archived.
        status: Option<ArchiveStatus>,
    },
    /// Another request was carried out. After `Ended`: it will be.
    Done,
    /// The request was not carried out.
    Error {
        /// What failed, on which file, and why.
        reason: String,
    },
}

/// Files whose data are brought in from the persist directory while programs run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bringing {
    /// Files still to bring in.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Number of these files that a program waits for.
    pub waited_for: u64,
    /// Files brought in since the agent began.
    #[serde(default)]
    pub brought_files: u64,
    /// Their bytes.
    #[serde(default)]
    pub brought_bytes: u64,
    /// Average rate since the agent began to bring them in; 0 while nothing arrives.
    #[serde(default)]
    pub bytes_per_second: u64,
    /// Files that cannot be brought in, and why; `quarantined` ones are damaged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<Failed>,
}

/// Progress of a drain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Files to copy in this pass.
    pub files_total: u64,
    /// Files of these that are done.
    pub files_done: u64,
    /// Bytes to copy in this pass.
    pub bytes_total: u64,
    /// Bytes of these that are copied.
    pub bytes_done: u64,
}

/// Result of a pass over the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Whether the cut is verified in the persist directory as a whole, and all of one moment.
    pub complete: bool,
    /// Number of files verified there in their newest version.
    pub drained_files: u64,
    /// Their bytes.
    pub drained_bytes: u64,
    /// Number of files whose data are lost: they were to be brought in, and their copies are
    /// damaged or gone.
    #[serde(default)]
    pub lost_files: u64,
    /// Files that somebody had open for writing at the cut.
    pub open: Vec<FilePath>,
    /// Files whose last writer died or could not write everything. Their copies are as they are.
    pub unclean: Vec<FilePath>,
    /// Files that are open or unclean, and whose last whole versions are kept outside, too.
    #[serde(default)]
    pub whole: Vec<FilePath>,
    /// Mapped files whose copies may contain stores that came after something the cut lacks.
    #[serde(default)]
    pub unsteady: Vec<FilePath>,
    /// Files that could not be drained, and why.
    pub failed: Vec<Failed>,
    /// Number of files left to the next pass.
    pub changed: u64,
    /// Number of files and directories whose extended attributes the persist directory did not
    /// accept.
    #[serde(default)]
    pub without_attributes: u64,
    /// Whether its file system refused to change permission bits.
    #[serde(default)]
    pub without_modes: bool,
    /// Checkpoints that are not known to be whole. Their files are drained all the same.
    #[serde(default)]
    pub unfinished: Vec<Unfinished>,
    /// Number of files that are not copied because nobody wants them outside.
    #[serde(default)]
    pub kept_files: u64,
}

/// A checkpoint that is not known to be whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfinished {
    /// Its name.
    #[serde(flatten)]
    pub name: Name,
    /// Number of its files so far.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The file, or the lowest directory that contains all of them.
    #[serde(default)]
    pub place: FilePath,
    /// Why it is incomplete.
    pub reason: String,
    /// Whether it may be complete: nothing says that it is, nor that it is not.
    #[serde(default)]
    pub is_unknown: bool,
}

impl Unfinished {
    /// Returns its name for a message.
    pub fn shown(&self) -> String {
        self.name.shown(self.files, &self.place)
    }

    /// Returns its name and the reason.
    pub fn told(&self) -> String {
        format!("{}: {}", self.shown(), self.reason)
    }

    /// Returns its state for messages.
    pub fn verdict(&self) -> &'static str {
        if self.is_unknown { "not known to be complete" } else { "not complete" }
    }
}

/// A file that could not be drained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Its path below the persist directory.
    pub path: FilePath,
    /// Reason.
    pub reason: String,
    /// Whether its data in the store are damaged.
    pub quarantined: bool,
}

/// A file in the persist directory on which work makes no progress: its file system hangs, or is
/// very slow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stalled {
    /// Its path below the persist directory.
    pub path: FilePath,
    /// Seconds without progress.
    pub for_s: u64,
}

/// A tier on a machine that does not answer the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silent {
    /// The tier, as shown to users.
    pub tier: String,
    /// Seconds without an answer.
    pub for_s: u64,
    /// Whether the machine has answered that it has no such subsystem or namespace.
    #[serde(default)]
    pub is_gone: bool,
}

/// Activity of the agent.
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
    /// Number of writers that wait for space.
    pub waiting: u64,
    /// Time that the first of them has waited, milliseconds.
    pub longest_ms: u64,
    /// Bytes being drained.
    pub draining_bytes: u64,
    /// Number of files evicted under the job's space policy. Their copies are safe.
    pub given_up_files: u64,
    /// Their bytes.
    pub given_up_bytes: u64,
    /// How often a drained file gave up its data, with its name still here: to make room, or
    /// because a program said that it will not read it soon.
    #[serde(default)]
    pub released_files: u64,
    /// Their bytes.
    #[serde(default)]
    pub released_bytes: u64,
}

/// The state of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Process id.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// Persist directory.
    pub persist: Option<PathBuf>,
    /// Time since the cut that lies outside, milliseconds; None before the first. If nothing has
    /// changed since, what lies outside is as new as the store.
    #[serde(default)]
    pub cut_age_ms: Option<u64>,
    /// Present activity.
    pub phase: Phase,
    /// Why the persist directory cannot be used, while `phase` is `retrying`.
    pub reason: Option<String>,
    /// Time until the next attempt, milliseconds.
    pub retry_in_ms: Option<u64>,
    /// Whether there is nothing to do until something changes or somebody asks.
    #[serde(default)]
    pub settled: bool,
    /// Progress of the pass under way.
    pub progress: Progress,
    /// Its files without progress.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stalled: Vec<Stalled>,
    /// Tiers that do not answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<Silent>,
    /// Limits of the drain.
    #[serde(default)]
    pub pace: PaceReport,
    /// Forecast for the end of the job's time, if that is known.
    #[serde(default)]
    pub forecast: Option<Forecast>,
    /// Writers that wait for space; None if nobody waits and nothing is ever evicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<SpaceStatus>,
    /// Files whose data are brought in while programs run; None if there were none since the agent
    /// began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bringing: Option<Bringing>,
    /// Archive of complete checkpoints; None if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<ArchiveStatus>,
    /// Result of the last pass.
    pub last: Outcome,
    /// Namespaces that cannot be opened, and why.
    pub unreadable: Vec<String>,
}

/// Forecast for the end of the job's time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forecast {
    /// End of the job's time, seconds since the epoch.
    pub until: u64,
    /// Seconds until then.
    pub left_s: u64,
    /// Bytes of files to be drained that are only in the store.
    pub undrained_bytes: u64,
    /// Seconds to drain them as fast as possible, with a reserve; None before anything was
    /// measured.
    pub needed_s: Option<u64>,
    /// Whether they will be safe by then, as far as is known.
    pub in_time: bool,
}

/// The state of the pace, for reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaceReport {
    /// Largest number of bytes per second.
    pub rate_bytes: Option<u64>,
    /// Largest percentage of the time in which programs write.
    pub share_percent: Option<u8>,
    /// Whether the drain pauses for a program that writes a checkpoint.
    pub paused: bool,
    /// Slot that the drain waits for, and who has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// Whether limits are lifted.
    pub lifted: bool,
    /// Bytes that asked for admission since the agent started.
    pub admitted_bytes: u64,
    /// Time they waited for it, all threads together, in milliseconds.
    pub waited_ms: u64,
    /// Time from the first admission to the last one, in milliseconds.
    pub span_ms: u64,
}
