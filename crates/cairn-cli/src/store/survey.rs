//! Examines every store on this machine without using it, for `cairn ls --jobs` and `cairn gc`.
//!
//! Must stay true: no agent is started and nothing is changed. A store that cannot be opened, or
//! something else in the place of a store, is listed without any statement about its content.

use cairn_agent::agent::client::Client;
use cairn_agent::model::job::{JOB_FILE, Job};
use cairn_agent::persist::outside::Lack;
use cairn_agent::store::liveness::{Life, Living};
use cairn_agent::store::volume::Volume;
use cairn_core::{ProcessIdentity, Timestamp};
use cairn_device::store::removed_job;
use cairn_job::file::node::Kind;
use cairn_platform::process;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::error::Result;
use crate::output::user_name;
use crate::store::unsaved::{Amount, Risk};
use crate::store::{OpenStore, REUSABLE, Roots, creation};

/// Unit of `st_blocks` in bytes.
const BLOCK_BYTES: u64 = 512;
/// How long to wait for processes that end with their parent.
const END_PATIENCE: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// State of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// A `cairn run` holds it, or a program in it lives.
    Running,
    /// Nobody uses it.
    LeftBehind,
    /// Its removal was cut off; nothing in it is needed.
    Removed,
    /// Its creation was cut off before it held anything.
    Unbegun,
    /// It is no store, or an unusable one.
    Damaged,
    /// It belongs to another user.
    Foreign,
}

impl State {
    /// Returns the state as text for a person.
    pub fn word(self) -> &'static str {
        match self {
            State::Running => "running",
            State::LeftBehind => "left behind",
            State::Removed => "half removed",
            State::Unbegun => "never made",
            State::Damaged => "damaged",
            State::Foreign => "foreign",
        }
    }
}

/// A store, or whatever is in the place of one.
#[derive(Debug, Serialize)]
pub struct StoreRow {
    /// The job.
    pub job: String,
    /// User who owns it.
    pub owner: String,
    /// Its state.
    pub state: State,
    /// Time of its creation in seconds since the epoch, if known.
    pub created: Option<u64>,
    /// Seconds since its last use: a write to a file in it, or a start or end of its agent.
    pub idle_seconds: u64,
    /// Its directory.
    pub store: PathBuf,
    /// Memory and disk space in bytes that its removal would free.
    pub held_bytes: u64,
    /// Its regular files; null if unknown.
    pub contents: Option<Amount>,
    /// Files that exist nowhere else: the newest version is not verified in the persist directory,
    /// or is not there any more; null if unknown.
    pub not_safe: Option<Amount>,
    /// Number of these files by reason.
    pub reasons: BTreeMap<Lack, u64>,
    /// Its persist directory.
    pub persist: Option<PathBuf>,
    /// Why the persist directory cannot be examined.
    pub persist_problem: Option<String>,
    /// Why the store cannot be examined.
    pub problem: Option<String>,
}

impl StoreRow {
    /// Returns the time since its last use.
    pub fn idle(&self) -> Duration {
        Duration::from_secs(self.idle_seconds)
    }
}

/// Returns everything in the places for stores, sorted by job; stores of other users as far as
/// their directories can be read.
pub fn survey(roots: &Roots) -> Vec<StoreRow> {
    let mut rows: Vec<StoreRow> = Vec::new();
    for directory in roots.users() {
        if let Some(problem) = planted(&directory) {
            rows.extend(closed(&directory, &problem));
            continue;
        }
        match fs::read_dir(&directory) {
            Ok(entries) => {
                let entries = entries.flatten().filter(|entry| entry.file_name() != REUSABLE);
                let paths = entries.map(|entry| entry.path());
                rows.extend(paths.filter_map(|path| look(&path)));
            }
            Err(error) => rows.extend(closed(&directory, &cairn_agent::model::error::why(&error))),
        }
    }
    rows.sort_by(|a, b| (&a.job, &a.store).cmp(&(&b.job, &b.store)));
    rows
}

/// Returns why a path with the name of a user's store directory is not one; None if it is. In
/// `/tmp` for example, anybody can create such a name.
fn planted(directory: &Path) -> Option<String> {
    let found = directory.symlink_metadata().ok()?;
    if !found.is_dir() {
        return Some("it is not a directory".to_string());
    }
    let name = directory.file_name()?.to_str()?;
    let user: u32 = name.rsplit('-').next()?.parse().ok()?;
    (found.uid() != user).then(|| format!("it belongs to {}", user_name(found.uid())))
}

/// Returns the row for a directory that cannot be listed, which usually is another user's.
fn closed(directory: &Path, problem: &str) -> Option<StoreRow> {
    let mut row = row(directory)?;
    row.job = "?".to_string();
    row.state = State::Foreign;
    row.problem = Some(format!("cannot be listed: {problem}"));
    Some(row)
}

/// Returns the row for one entry; None if it was removed meanwhile.
fn look(path: &Path) -> Option<StoreRow> {
    let mut row = row(path)?;
    let metadata = path.symlink_metadata().ok()?;
    let described = path.join(JOB_FILE).symlink_metadata().is_ok();
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        row.state = State::Foreign;
        row.problem = Some(format!("it belongs to user {}", row.owner));
    } else if let Some(job) = removed_job(&row.job).filter(|_| metadata.is_dir()) {
        row.job = job.to_string();
        row.state = State::Removed;
    } else if metadata.is_dir() && creation::is_abandoned_creation(&row.store).unwrap_or(false) {
        row.state = State::Unbegun;
    } else if !metadata.is_dir() || !described {
        let problem = "no store: it has no description (job.json)";
        row.problem = Some(problem.to_string());
    } else if let Err(error) = fill(&mut row) {
        if path.symlink_metadata().is_err() {
            return None;
        }
        row.problem = Some(error.to_string());
    }
    Some(row)
}

/// Returns a row with the facts that hold for any directory.
fn row(path: &Path) -> Option<StoreRow> {
    let metadata = path.symlink_metadata().ok()?;
    let name = path.file_name().unwrap_or_default();
    Some(StoreRow {
        job: name.to_string_lossy().into_owned(),
        owner: user_name(metadata.uid()),
        state: State::Damaged,
        created: None,
        idle_seconds: seconds_since(last_touched(path, &metadata)),
        store: path.to_path_buf(),
        held_bytes: held_bytes(path),
        contents: None,
        not_safe: None,
        reasons: BTreeMap::new(),
        persist: None,
        persist_problem: None,
        problem: None,
    })
}

/// Adds the facts that the store itself holds.
fn fill(row: &mut StoreRow) -> Result<()> {
    let store = OpenStore::open(&row.store)?;
    row.created = Some(store.job.created);
    row.persist = store.job.persist.clone();
    row.held_bytes += tiers_bytes(&store.job);
    row.state = if store.is_running() { State::Running } else { State::LeftBehind };
    let look = Look::at(&store)?;
    if look.living > 0 {
        row.state = State::Running;
    }
    row.contents = Some(look.contents);
    let risk = Risk::of(&store)?;
    row.not_safe = Some(risk.amount);
    row.reasons = risk.reasons;
    row.persist_problem = risk.persist_problem;
    row.idle_seconds = row.idle_seconds.min(seconds_since(look.changed));
    Ok(())
}

/// What is in a store.
pub struct Look {
    /// Number of processes that use it, without this one and its agent.
    pub living: usize,
    /// Its regular files.
    pub contents: Amount,
    /// Time of the last write to a file, in seconds since the epoch.
    changed: i64,
}

impl Look {
    /// Examines every file of a store. Errors: a namespace cannot be opened or read.
    pub fn at(store: &OpenStore) -> Result<Look> {
        let mut look = Look { living: 0, contents: Amount::default(), changed: i64::MIN };
        let agent_pid = agent_of(store);
        for volume in store.volumes()? {
            look.living += living(&volume, agent_pid)?.len();
            for node in volume.tree()?.into_values().filter(|node| node.kind == Kind::File) {
                look.contents.add(node.bytes);
                look.changed = look.changed.max(Timestamp(node.mtime_ns).parts().0);
            }
        }
        Ok(look)
    }
}

/// Returns the programs that use a store, as process ids in their own pid namespaces. Leaves out
/// this process, and processes that may or may not live. Waits for those that are just ending.
/// Errors: those of `Look::at`.
pub fn programs(store: &OpenStore) -> Result<Vec<u32>> {
    let (own, here) = (std::process::id(), process::pid_namespace());
    let (volumes, started) = (store.volumes()?, Instant::now());
    loop {
        let mut programs = Vec::new();
        for volume in &volumes {
            let failed = volume
                .error("look after the processes of", &cairn_job::file::path::FilePath::root());
            let processes = volume.fs().programs().map_err(failed)?;
            let mut living = Living::now();
            let processes = processes.into_iter().map(|(_, process)| process);
            let processes = processes
                .filter(|process| (process.pid, process.pid_namespace) != (own, here))
                .filter(|process| living.life(*process) == Life::Seen);
            programs.extend(processes.map(|process| process.pid));
        }
        if programs.is_empty() || started.elapsed() > END_PATIENCE {
            return Ok(programs);
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Returns the process id of the store's agent, if one answers.
fn agent_of(store: &OpenStore) -> Option<u32> {
    let agent = Client::connect(store.directory()).and_then(|mut agent| agent.status().ok());
    agent.map(|status| status.pid)
}

/// Returns the live processes of a namespace, without this one and the agent.
fn living(volume: &Volume, agent: Option<u32>) -> Result<Vec<ProcessIdentity>> {
    let failed =
        volume.error("look after the processes of", &cairn_job::file::path::FilePath::root());
    let processes = volume.fs().processes().map_err(failed)?;
    let mut alive = Living::now();
    let others = processes.into_iter().filter(|(slot, identity)| {
        *slot != volume.slot() && Some(identity.pid) != agent && alive.has(*identity)
    });
    Ok(others.map(|(_, identity)| identity).collect())
}

/// Returns when something was last created or removed in a store's directory, in seconds since the
/// epoch.
fn last_touched(path: &Path, metadata: &Metadata) -> i64 {
    let handles = path.join("handles").symlink_metadata().map(|handles| handles.mtime());
    metadata.mtime().max(handles.unwrap_or(i64::MIN))
}

fn seconds_since(time: i64) -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from((now.as_secs() as i64).saturating_sub(time)).unwrap_or(0)
}

/// Returns the disk space of everything below a path, in bytes.
fn held_bytes(path: &Path) -> u64 {
    let Ok(metadata) = path.symlink_metadata() else { return 0 };
    let own = metadata.blocks() * BLOCK_BYTES;
    match fs::read_dir(path) {
        Ok(entries) if metadata.is_dir() => {
            own + entries.flatten().map(|entry| held_bytes(&entry.path())).sum::<u64>()
        }
        _ => own,
    }
}

/// Returns the disk space of the tiers' files, which lie outside the store's directory, in bytes.
fn tiers_bytes(job: &Job) -> u64 {
    let files = job.all_tiers().filter_map(|tier| tier.path.as_ref());
    let of_file = |path: &PathBuf| {
        let metadata = path.symlink_metadata().ok().filter(Metadata::is_file);
        metadata.map_or(0, |metadata| metadata.blocks() * BLOCK_BYTES)
    };
    files.map(of_file).sum()
}
