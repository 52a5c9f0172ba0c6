//! `cairn run` as the task of a launcher: `srun -n4 cairn run -- ./program` starts one `cairn run`
//! on each node for each of its ranks there. The ranks of one node form a company: the first one
//! makes the store, all run their command in it, the last one ends it.
//!
//! The launcher says who belongs to a company (`cairn_posix::process::rank::seat`). A file of the
//! store lists who came and how they ended; only the holder of the run lock changes it. Between
//! coming and leaving, each rank shares the run lock, so that no other run, no removal and no agent
//! takes the store for unused, however the ranks end.
//!
//! Must stay true: nobody waits longer than `ARRIVAL_PATIENCE` for ranks that do not come.
//! Everybody waits for the rank that fills the store, however long that takes. A company whose
//! members were killed does not block a later one.

use cairn_agent::model::job::RUN_LOCK;
use cairn_agent::model::lock;
use cairn_agent::model::store_file::{self, MustSurvive};
use cairn_device::store::NAME_BYTES_MAX;
use cairn_posix::process::rank::{self, Seat};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::claim::Claim;
use crate::create::obtain::Entrance;
use crate::error::{Error, Result, StoreError};
use crate::output::count;
use crate::request::Request;
use crate::store::Roots;

/// Name of the company's file in the store.
const FILE: &str = "company.json";
const FILE_BYTES_MAX: usize = 1 << 20;
/// How long a rank whose command has ended waits, from its own arrival, for ranks that have not
/// come yet. Launchers start all ranks at about the same time.
const ARRIVAL_PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait for a run lock that no rank of this company holds: the last rank of an earlier
/// company may still drain the store.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);
/// How long a rank's next run waits for the other ranks to end the last one.
const ROUND_PATIENCE: Duration = Duration::from_secs(600);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Waits longer than this are reported.
const SAID_AFTER: Duration = Duration::from_secs(2);
/// Maximum number of letters of the node's name in a job's name.
const NODE_BYTES_MAX: usize = 15;
/// Variable that tells a process which job it runs in.
const JOB_VARIABLE: &str = "CAIRN_JOB";

/// Content of the company's file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Members {
    /// Identity of the launch that started the ranks.
    launch: String,
    /// Ranks of this node that came.
    came: BTreeSet<u32>,
    /// Ranks that left, with the exit codes of their commands; None if a command could not be
    /// started.
    ended: BTreeMap<u32, Option<i32>>,
    /// Whether the store was created for this company.
    is_new: bool,
    /// Why the store could not be filled; it is removed in that case.
    #[serde(default)]
    failure: Option<String>,
}

/// One rank's membership in the company of its node.
pub struct NodeRanks {
    seat: Seat,
    job: String,
    since: Instant,
}

/// What the last rank needs to know to end the run.
pub struct Last {
    /// Whether the command of another rank failed.
    pub others_failed: bool,
    /// Whether no rank started its command and the store was created for this company.
    pub is_unused: bool,
}

impl NodeRanks {
    /// Returns this process's company. None if it is no rank, or the only one of its node, or runs
    /// inside the company's job already: such a run is independent.
    pub fn of_this_process(request: &Request) -> Option<NodeRanks> {
        let seat = rank::seat().filter(|seat| seat.local_size > 1)?;
        let job = request.job.clone().unwrap_or_else(|| job_name(&seat.launch, &node()));
        let is_inside = std::env::var_os(JOB_VARIABLE).is_some_and(|inside| *inside == *job);
        (!is_inside).then(|| NodeRanks { seat, job, since: Instant::now() })
    }

    /// Enters the store, which the first rank creates.
    pub fn enter(&mut self, roots: &Roots, request: Request, command: &[String]) -> Result<Claim> {
        let job = self.job.clone();
        let job = &job;
        let request = Request { job: Some(job.clone()), ..request };
        let launch = self.seat.launch.clone();
        let members = || Members { launch: launch.clone(), ..Members::default() };
        let entrance = Entrance {
            take: &|directory, job| take_lock(directory, job, &launch),
            sign: &|directory| members().save(directory),
            give_up: &|directory, error| {
                let failure = Some(error.to_string());
                Members { failure, ..members() }.tell(directory);
            },
        };
        loop {
            let was_there = roots.find(job).is_some();
            let claim = Claim::obtain_by(roots, &request, command, &entrance);
            let is_patient = self.since.elapsed() < LOCK_PATIENCE;
            let claim = match claim {
                Err(error @ Error::Store(StoreError::NotFilled { .. })) => return Err(error),
                // Its last holder has removed it meanwhile.
                Err(_) if was_there && roots.find(job).is_none() && is_patient => {
                    thread::sleep(LOOK_EVERY);
                    continue;
                }
                claim => claim?,
            };
            let directory = claim.store.directory().to_path_buf();
            let goes_on = lock::is_shared(claim.lock());
            let known = Members::load(&directory).filter(|_| goes_on);
            let mut members = match known {
                Some(members) if members.launch != self.seat.launch => {
                    return Err(Error::Store(StoreError::Running { job: job.clone() }));
                }
                // The other ranks have not ended the run that this rank has left.
                Some(members) if self.is_in(&members) => {
                    drop(claim);
                    self.wait_for_end(&directory)?;
                    continue;
                }
                Some(members) => members,
                None if goes_on => {
                    return Err(Error::Store(StoreError::Running { job: job.clone() }));
                }
                None => Members { is_new: claim.is_new, ..members() },
            };
            members.came.insert(self.seat.local_rank);
            members.save(&directory)?;
            lock::share(claim.lock()).map_err(Error::file("share", &directory.join(RUN_LOCK)))?;
            // The others could not enter while this rank filled the store, so their time starts
            // here.
            self.since = Instant::now();
            return Ok(claim);
        }
    }

    /// Leaves the store. `code` is the command's exit code. Returns what is left to do if this is
    /// the last rank, which then holds the store alone.
    pub fn leave(&self, claim: &Claim, code: Option<i32>) -> Result<Option<Last>> {
        let directory = claim.store.directory();
        self.wait_for_others(directory);
        let path = directory.join(RUN_LOCK);
        lock::take_back(claim.lock()).map_err(Error::file("lock", &path))?;
        let mut members = Members::load(directory).unwrap_or_default();
        members.ended.insert(self.seat.local_rank, code);
        if lock::is_shared(claim.lock()) {
            members.save(directory)?;
            return Ok(None);
        }
        lock::mark_as_run(claim.lock()).map_err(Error::file("lock", &path))?;
        // A rank that comes from here on starts a company of its own.
        let _ = fs::remove_file(directory.join(FILE));
        let codes = || members.ended.values();
        Ok(Some(Last {
            // A rank that came and left no exit code was killed.
            others_failed: members.ended.len() < members.came.len()
                || codes().any(|&code| code != Some(0)),
            is_unused: members.is_new && codes().all(Option::is_none),
        }))
    }
}

impl NodeRanks {
    fn is_in(&self, members: &Members) -> bool {
        members.came.contains(&self.seat.local_rank)
    }

    /// Waits until the company that this rank has left already has ended.
    fn wait_for_end(&self, directory: &Path) -> Result<()> {
        let started = Instant::now();
        while lock::is_locked(directory, RUN_LOCK)? {
            // The others may have begun the next run.
            if Members::load(directory).is_some_and(|members| !self.is_in(&members)) {
                break;
            }
            if started.elapsed() > ROUND_PATIENCE {
                return Err(Error::Store(StoreError::Running { job: self.job.clone() }));
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Waits for the ranks that have not come yet.
    fn wait_for_others(&self, directory: &Path) {
        let started = Instant::now();
        let mut is_said = false;
        while self.since.elapsed() < ARRIVAL_PATIENCE {
            let came =
                Members::load(directory).map_or(u32::MAX, |members| members.came.len() as u32);
            let missing = self.seat.local_size.saturating_sub(came);
            if missing == 0 {
                return;
            }
            if !is_said && started.elapsed() > SAID_AFTER {
                is_said = true;
                let ranks = count(missing.into(), "rank");
                crate::output::say!(
                    "cairn: {}: waiting a moment for {ranks} of this node to start",
                    self.job
                );
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

impl Members {
    /// Reads the file. None if it does not exist or is incomplete.
    fn load(directory: &Path) -> Option<Members> {
        serde_json::from_slice(&store_file::read(&directory.join(FILE), FILE_BYTES_MAX).ok()?).ok()
    }

    /// Writes these members for the processes that have the file open. Errors are ignored: those
    /// processes then notice by themselves that the store is gone.
    fn tell(&self, directory: &Path) {
        let text = serde_json::to_vec(self).expect("texts and numbers");
        let file = File::options().write(true).truncate(true).open(directory.join(FILE));
        let _ = file.and_then(|mut file| file.write_all(&text));
    }

    fn save(&self, directory: &Path) -> Result<()> {
        Ok(store_file::replace_json(&directory.join(FILE), self, MustSurvive::Process)?)
    }
}

/// Takes the run lock, even while other ranks of the company share it.
fn take_lock(directory: &Path, job: &str, launch: &str) -> Result<File> {
    let mut started = Instant::now();
    let mut is_said = false;
    // Kept open, so that it stays readable after the store is removed or replaced.
    let mut members: Option<File> = None;
    let check = |members: &Option<File>| match members.as_ref().and_then(|it| failure(it, launch)) {
        Some(reason) => Err(Error::Store(StoreError::NotFilled { job: job.to_string(), reason })),
        None => Ok(()),
    };
    loop {
        check(&members)?;
        members = File::open(directory.join(FILE)).ok().or(members);
        let lock = lock::try_lock_beside(directory, RUN_LOCK);
        check(&members)?;
        let lock = lock?;
        // Ignores the lock of a store that was just removed.
        if let Some(lock) = lock.filter(|lock| is_in(lock, directory).unwrap_or(false)) {
            return Ok(lock);
        }
        let waited = started.elapsed();
        let has_it = |members: Members| members.launch == launch;
        if waited > SAID_AFTER && Members::load(directory).is_some_and(has_it) {
            if !is_said {
                crate::output::say!(
                    "cairn: {job}: waiting for the rank of this node that makes the store"
                );
            }
            is_said = true;
            started = Instant::now();
        } else if waited > LOCK_PATIENCE {
            return Err(Error::Store(StoreError::Running { job: job.to_string() }));
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Returns why the rank of `launch` that created the store could not fill it.
fn failure(file: &File, launch: &str) -> Option<String> {
    let mut text = Vec::new();
    (&*file).seek(SeekFrom::Start(0)).and_then(|_| (&*file).read_to_end(&mut text)).ok()?;
    let members: Members = serde_json::from_slice(&text).ok()?;
    members.failure.filter(|_| members.launch == launch)
}

fn is_in(lock: &File, directory: &Path) -> io::Result<bool> {
    let of = |status: fs::Metadata| (status.dev(), status.ino());
    Ok(of(lock.metadata()?) == of(fs::metadata(directory.join(RUN_LOCK))?))
}

/// Returns a warning if `program` is a launcher that can start tasks on other nodes, where the
/// store does not exist.
pub fn other_nodes(program: &OsStr, mount: &str) -> Option<String> {
    let is_launcher = Path::new(program).file_name().is_some_and(|name| name == "srun");
    let is_only_node = std::env::var_os("SLURMD_NODENAME").is_some()
        && std::env::var_os("SLURM_JOB_NUM_NODES").is_some_and(|nodes| nodes == "1");
    (is_launcher && !is_only_node).then(|| {
        format!(
            "tasks that srun starts on other nodes find no store, and nothing below {mount} (ENODEV); \
             for a store on each node: srun ... cairn run ... -- PROGRAM"
        )
    })
}

/// Gives this node a directory of its own below the persist directory if the launch has other
/// nodes: their files may have the same names. Not for jobs that the user lets share the directory,
/// unless they have one name. Errors: the directory cannot be made.
pub fn settle_in_directory_of_node(request: &mut Request) -> Result<()> {
    let Some(seat) = rank::seat().filter(|seat| seat.has_other_nodes) else { return Ok(()) };
    let has_own_names = request.shared && request.job.is_none();
    let Some(persist) = request.persist.as_mut().filter(|_| !has_own_names) else { return Ok(()) };
    let place = persist.join(directory_of_node(seat.node, &node()));
    match fs::create_dir(&place) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(Error::file("make", &place)(error));
        }
        _ => {}
    }
    if seat.local_rank == 0 && !request.quiet {
        crate::output::say!(
            "cairn: the command runs on several nodes; files of this one go to {}",
            place.display()
        );
    }
    *persist = place;
    Ok(())
}

/// Returns the name of a node's directory: its number in the launch, or else its own name.
fn directory_of_node(number: Option<u32>, name: &str) -> String {
    match number {
        Some(number) => format!("node-{number}"),
        None => format!("node-{name}"),
    }
}

/// Returns the name of this node.
fn node() -> String {
    let named = std::env::var("SLURMD_NODENAME").ok().filter(|name| !name.is_empty());
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    named.unwrap_or_else(host).split('.').next().unwrap_or_default().to_owned()
}

/// Returns a name for the job of a company that was given none: the launch and the node. The node
/// is part of it because all nodes may drain to one directory.
fn job_name(launch: &str, node: &str) -> String {
    let plain = |letter: char| match letter {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '_' => letter,
        _ => '-',
    };
    let of_node: String = node.chars().map(plain).take(NODE_BYTES_MAX).collect();
    let of_launch = launch.chars().map(plain).take(NAME_BYTES_MAX - 1 - of_node.len());
    format!("{}-{of_node}", of_launch.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_agent::model::job::is_valid_job_name;

    #[test]
    fn launches_give_names_of_jobs() {
        for launch in ["slurm:8.0", "pmix:slurm.pmix.8.0", "openmpi:prterun-n1-77@1", "pmi:ä b/c"]
        {
            assert!(is_valid_job_name(&job_name(launch, "n1")), "{launch}");
        }
        assert_eq!(job_name("slurm:8.0", "n1"), "slurm-8.0-n1");
        let long = "x".repeat(100);
        assert!(is_valid_job_name(&job_name(&format!("pmi:{long}"), &long)));
    }
}
