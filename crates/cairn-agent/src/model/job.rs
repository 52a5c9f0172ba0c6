//! Description of a job apart from its files: `job.json` in the store directory.
//!
//! Invariant: the file is replaced whole (temporary, fsync, rename), so a reader sees an old or a
//! new one. Its format is checked before anything else in it is used.
//!
//! Only `cairn` and the agent read it. Programs of the job get what they need through environment
//! variables.

use cairn_device::MediumKind;
use cairn_device::store::NAME_BYTES_MAX;
use cairn_job::outside::manifest::LogPosition;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

use crate::model::archive::ArchivePolicy;
use crate::model::directory_id::DirectoryId;
use crate::model::error::{Error, Result};
use crate::model::format;
use crate::model::log::Level;
use crate::model::policy::DrainPolicy;
use crate::model::store_file::{self, MustSurvive, Version};
use cairn_job::checkpoint::policy::CheckpointPolicy;
use cairn_job::checkpoint::space_policy::SpacePolicy;
use cairn_job::file::mapping::Mapping;

/// Format of `job.json` that this version writes, and the newest it reads.
pub const JOB_FORMAT: u32 = 1;
/// Name of the file in the store directory.
pub const JOB_FILE: &str = "job.json";
/// Longest description that is read.
const JOB_BYTES_MAX: usize = 1 << 20;
/// Lock held by the one `cairn run` of the job.
pub const RUN_LOCK: &str = "run.lock";
/// Lock held by the agent of the store.
pub const AGENT_LOCK: &str = "agent.lock";
/// The agent's control socket.
pub const AGENT_SOCKET: &str = "agent.sock";
/// The agent's log; older files have a number after the name.
pub const AGENT_LOG: &str = "agent.log";

/// Which processes share a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// One tree for all processes of the node.
    #[default]
    Node,
    /// One tree for each rank.
    Rank,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scope::Node => "node",
            Scope::Rank => "rank",
        })
    }
}

/// The kind of device a tier is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// Shared memory of the node.
    Ram,
    /// A file.
    File,
    /// A file that is mapped into memory.
    Dax,
    /// A block device.
    Block,
    /// A namespace on another machine.
    #[serde(rename = "nvme-tcp")]
    Remote,
}

impl DeviceKind {
    /// Kind of medium that the tier lies on; None in memory.
    pub fn medium(self) -> Option<MediumKind> {
        match self {
            DeviceKind::Ram => None,
            DeviceKind::File => Some(MediumKind::File),
            DeviceKind::Dax => Some(MediumKind::Dax),
            DeviceKind::Block => Some(MediumKind::Block),
            DeviceKind::Remote => Some(MediumKind::Remote),
        }
    }
}

/// One tier of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierSpec {
    /// Kind of device.
    pub device: DeviceKind,
    /// Absolute path; None in memory. On another machine: `//ADDRESS:PORT/NQN?nsid=N`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Capacity in bytes.
    pub bytes: u64,
}

/// A job as `job.json` describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Format of the file.
    pub format: u32,
    /// The job's name.
    pub job: String,
    /// Identity of the store: sixteen hexadecimal digits, unique among stores of the same name.
    pub store: String,
    /// Path prefix under which programs see the store.
    pub mount: String,
    /// Directory that closed files are drained to; absolute. None: nothing is drained.
    pub persist: Option<PathBuf>,
    /// Directories that have places of their own in the persist directory.
    #[serde(default, skip_serializing_if = "Mapping::is_empty")]
    pub map: Mapping,
    /// Identity of the persist directory when it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persist_id: Option<DirectoryId>,
    /// Whether other jobs drain there, too. If so, no copy replaces a file that this job did not
    /// put there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// Launcher's start that the job belongs to. All jobs of one start may drain to one directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<String>,
    /// Whether each node or each rank has a namespace.
    pub scope: Scope,
    /// Tiers with data, in order of preference.
    pub tiers: Vec<TierSpec>,
    /// Tier of the metadata, if it was given. In memory without a given size, it has 0 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<TierSpec>,
    /// Whether data that are read on slower tiers move to a faster one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub promote: bool,
    /// Number of runs of the job in this store.
    #[serde(default)]
    pub runs: u64,
    /// Executable of the first run since the last one that ended well. A run of another executable
    /// does not end the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<String>,
    /// File for Prometheus metrics; absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<PathBuf>,
    /// Level of the agent's log.
    #[serde(default, skip_serializing_if = "Level::is_default")]
    pub log: Level,
    /// Policy for checkpoints and files.
    #[serde(default, skip_serializing_if = "CheckpointPolicy::is_default")]
    pub checkpoint: CheckpointPolicy,
    /// Policy of the drain.
    #[serde(default, skip_serializing_if = "DrainPolicy::is_default")]
    pub drain: DrainPolicy,
    /// How much the store keeps, and how long a write waits for space.
    #[serde(default, skip_serializing_if = "SpacePolicy::is_empty")]
    pub space: SpacePolicy,
    /// Archive of complete checkpoints; None if they are not archived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<ArchivePolicy>,
    /// Where the log of an earlier store ended from whose media this one was recovered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovered: Option<LogPosition>,
    /// Time of the store's creation, seconds since the epoch.
    pub created: u64,
    /// Command the store was created for.
    pub command: Vec<String>,
}

impl Job {
    /// Returns the tier whose file holds the metadata; None if they are only in memory.
    pub fn media(&self) -> Option<&TierSpec> {
        self.meta.as_ref().or(self.tiers.first()).filter(|tier| tier.path.is_some())
    }

    /// Returns the first tier of the namespaces if it holds only metadata.
    pub fn metadata_tier(&self) -> Option<&TierSpec> {
        self.meta.as_ref().filter(|tier| tier.path.is_some())
    }

    /// Returns the tiers of the namespaces, in their order.
    pub fn all_tiers(&self) -> impl Iterator<Item = &TierSpec> {
        self.metadata_tier().into_iter().chain(&self.tiers)
    }

    /// Returns the executable of a command without its directory, as in `pending`.
    pub fn executable(command: &[String]) -> Option<String> {
        let name = command.first()?.rsplit('/').next()?;
        Some(name.to_string())
    }

    /// Reads the description of the store in `directory`.
    /// Errors: `File`, `Json`, `Format` (written by a newer version).
    pub fn load(directory: &Path) -> Result<Job> {
        let path = directory.join(JOB_FILE);
        let text = store_file::read(&path, JOB_BYTES_MAX).map_err(Error::file("read", &path))?;
        format::parse(&path, &text, JOB_FORMAT)
    }

    /// Replaces the description in `directory`.
    pub fn save(&self, directory: &Path) -> Result<()> {
        let path = directory.join(JOB_FILE);
        let mut text = serde_json::to_vec_pretty(self)
            .map_err(|source| Error::Json { path: path.clone(), source })?;
        text.push(b'\n');
        store_file::replace(&path, &text, MustSurvive::Node)
    }
}

/// Watches the description of a store, which another run may replace.
#[derive(Default)]
pub struct Description {
    seen: Option<Version>,
}

impl Description {
    /// Returns the description in `directory` if it changed since the last call. Errors: those of
    /// [`Job::load`].
    pub fn follow(&mut self, directory: &Path) -> Result<Option<Job>> {
        let found = store_file::version(&directory.join(JOB_FILE));
        if found == self.seen {
            return Ok(None);
        }
        let job = Job::load(directory)?;
        self.seen = found;
        Ok(Some(job))
    }
}

/// Whether `name` can name a job. A name becomes a directory name and is typed before a colon.
pub fn is_valid_job_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let starts_well = name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric());
    starts_well && name.len() <= NAME_BYTES_MAX && name.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_job::checkpoint::policy::Every;
    use std::fs;

    fn scratch(name: &str) -> PathBuf {
        let directory =
            std::env::temp_dir().join(format!("cairn-job-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a scratch directory");
        directory
    }

    fn melt() -> Job {
        Job {
            format: JOB_FORMAT,
            job: "melt-x7".into(),
            store: "0123456789abcdef".into(),
            mount: "/cairn".into(),
            persist: Some("/scratch/out".into()),
            map: Mapping::default(),
            persist_id: Some(DirectoryId::at(Path::new("/")).expect("is there")),
            shared: true,
            launch: Some("slurm:8.0".into()),
            scope: Scope::Node,
            tiers: vec![
                TierSpec { device: DeviceKind::Ram, path: None, bytes: 1 << 30 },
                TierSpec { device: DeviceKind::File, path: Some("/a:b".into()), bytes: 1 << 20 },
                TierSpec {
                    device: DeviceKind::Remote,
                    path: Some("//[::1]:1/nqn.x?nsid=1".into()),
                    bytes: 1 << 20,
                },
            ],
            meta: None,
            promote: false,
            runs: 1,
            pending: None,
            recovered: None,
            metrics: None,
            log: Level::Debug,
            checkpoint: CheckpointPolicy::default(),
            drain: DrainPolicy { rate_bytes: Some(1 << 20), ..DrainPolicy::default() },
            space: SpacePolicy { retain_count: Some(3), ..SpacePolicy::default() },
            archive: Some(ArchivePolicy {
                url: "s3://runs/x".into(),
                endpoint: None,
                region: "us-east-1".into(),
                every: Every::Seconds(3600),
            }),
            created: 1,
            command: vec!["lmp".into()],
        }
    }

    #[test]
    fn description_is_told_each_time_that_it_was_replaced() {
        let directory = scratch("follow");
        let mut description = Description::default();
        assert_eq!(description.follow(&directory).expect("there is none yet"), None);
        let mut job = melt();
        job.save(&directory).expect("saves");
        assert_eq!(description.follow(&directory).expect("loads"), Some(job.clone()));
        assert_eq!(description.follow(&directory).expect("looks"), None);
        job.runs += 1;
        job.save(&directory).expect("saves");
        assert_eq!(description.follow(&directory).expect("loads"), Some(job));
        fs::remove_dir_all(directory).expect("removes");
    }

    #[test]
    fn a_saved_job_is_read_back_and_a_newer_format_is_refused() {
        let directory = scratch("format");
        let mut job = melt();
        job.save(&directory).expect("saves");
        assert_eq!(Job::load(&directory).expect("loads"), job);
        job.format = JOB_FORMAT + 1;
        job.save(&directory).expect("saves");
        assert!(matches!(Job::load(&directory), Err(Error::Format { found, .. }) if found == 2));
        fs::write(directory.join(JOB_FILE), "{\"format\": 1, \"job").expect("writes");
        assert!(matches!(Job::load(&directory), Err(Error::Json { .. })));
        fs::remove_dir_all(directory).expect("removes");
    }

    #[test]
    fn job_names_are_safe_to_type_and_to_store() {
        for good in ["melt-x7", "a", "Run_2.1"] {
            assert!(is_valid_job_name(good), "{good}");
        }
        for bad in ["", ".hidden", "-x", "a/b", "a:b", "a b", "ü", &"x".repeat(NAME_BYTES_MAX + 1)]
        {
            assert!(!is_valid_job_name(bad), "{bad}");
        }
    }
}
