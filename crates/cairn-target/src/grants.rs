//! Namespaces that are made for a job and end with it: one per job, in a subsystem of its own, for
//! a host of its own.
//!
//! Must stay true: the host of a grant reaches no other grant. All grants together never exceed the
//! room for them. A granted namespace reads as zeros at first, and is gone once it is revoked.
//! Secrets are shown once, to whoever asked for the grant. If the room is a directory, it keeps
//! them, and grants outlive the target.

pub mod control;
mod store;

use cairn_nvme::secret::{HostSecrets, Secret};
use cairn_nvme::wire::Nqn;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Directory, Guard, Namespace, Subsystem};

use store::GrantStore;

/// Size of a logical block, bytes.
const BLOCK_BYTES: u64 = 4096;
/// Longest name of a job, bytes.
const JOB_BYTES_MAX: usize = 64;

/// Location of the room for grants.
#[derive(Clone, Debug)]
pub enum Room {
    /// In memory.
    Memory,
    /// Files in a directory, which keeps the grants.
    Directory(PathBuf),
}

/// Reason for which something is not granted or revoked.
#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    /// The name of the job cannot be part of an NQN.
    #[error(
        "{job:?} is not the name of a job; it has letters, digits, '.', '_' and '-', at most 64"
    )]
    Job {
        /// The name that was given.
        job: String,
    },
    /// The job has a grant already.
    #[error("there is a namespace for job {job:?} already; revoke it first")]
    Taken {
        /// The job.
        job: String,
    },
    /// The job has no grant.
    #[error("nothing was granted to job {job:?}")]
    Unknown {
        /// The job.
        job: String,
    },
    /// No bytes were requested.
    #[error("a namespace needs at least one byte")]
    Empty,
    /// More bytes were requested than are free.
    #[error("there is no room for {wanted_bytes} bytes; {free_bytes} of {bytes_max} are free")]
    Full {
        /// Requested bytes.
        wanted_bytes: u64,
        /// Free bytes.
        free_bytes: u64,
        /// All bytes, free or not.
        bytes_max: u64,
    },
    /// The name of the host is not an NQN.
    #[error("{text:?} is not the name of a host; write one like nqn.2014-08.org.nvmexpress:uuid:…")]
    Host {
        /// The name that was given.
        text: String,
    },
    /// The system refused something that is needed.
    #[error("cannot make the namespace: {0}")]
    System(#[from] std::io::Error),
}

/// A grant with its secrets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Grant {
    /// The job.
    pub job: String,
    /// The subsystem. Its only namespace is number 1.
    pub nqn: String,
    /// Size of the namespace, bytes.
    pub bytes: u64,
    /// The host that may use it.
    pub host: String,
    /// The host's secret.
    pub secret: String,
    /// The target's secret, with which it proves itself to the host.
    pub target_secret: String,
}

/// An exported subsystem, without secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exported {
    /// The job, if it is a grant.
    pub job: Option<String>,
    /// The subsystem.
    pub nqn: String,
    /// The host that may use it, if it is a grant.
    pub host: Option<String>,
    /// Sizes of its namespaces, bytes.
    pub namespace_bytes: Vec<u64>,
    /// Number of its controllers. A host has one per process.
    pub controllers: usize,
}

struct Held {
    name: Nqn,
    host: Nqn,
    bytes: u64,
}

/// The grants of a target.
pub struct Grants {
    directory: Arc<Directory>,
    /// Store of the grants; `None`: they are in memory.
    shelf: Option<GrantStore>,
    bytes_max: u64,
    /// Prefix of the names of subsystems.
    prefix: String,
    held: Mutex<BTreeMap<String, Held>>,
    set_aside: Vec<String>,
}

impl Grants {
    /// Manages grants of up to `bytes_max` bytes in `room`, on a machine with the name `machine`.
    /// Grants that the room has kept are exported again, even if they exceed `bytes_max`; those
    /// that are damaged are set aside. Errors: the system's; another target uses the room.
    pub fn new(
        directory: Arc<Directory>,
        room: &Room,
        bytes_max: u64,
        machine: &str,
    ) -> std::io::Result<Grants> {
        let prefix = format!("nqn.2026-11.io.cairn:{machine}");
        let shelf = match room {
            Room::Memory => None,
            Room::Directory(path) => Some(GrantStore::take(path)?),
        };
        let restored = shelf.as_ref().map_or(Ok(Vec::new()), GrantStore::restore)?;
        let (held, set_aside) = (Mutex::default(), Vec::new());
        let mut grants = Grants { directory, shelf, bytes_max, prefix, held, set_aside };
        for (job, found) in restored {
            let found = found.map_err(GrantError::from);
            let exported = found.and_then(|(grant, namespace)| {
                grants.export(&mut grants.held(), &grant, namespace)
            });
            if let Err(error) = exported {
                grants
                    .set_aside
                    .push(format!("what was granted to job {job:?} is left alone: {error}"));
            }
        }
        Ok(grants)
    }

    /// Earlier grants that were not exported again, and the reasons. Their files are left as they
    /// are.
    pub fn set_aside(&self) -> &[String] {
        &self.set_aside
    }

    /// Makes a namespace of at least `bytes` for a job, and a secret for its host. Without `host`,
    /// the host gets a name.
    pub fn grant(&self, job: &str, bytes: u64, host: Option<&str>) -> Result<Grant, GrantError> {
        check_job(job)?;
        let nqn = format!("{}.job.{job}", self.prefix);
        let host = host.map_or_else(|| format!("{}.host.{job}", self.prefix), str::to_string);
        let named = |text: &str| Nqn::new(text).filter(|_| !text.contains(char::is_whitespace));
        let unnamed = |text: &str| GrantError::Host { text: text.to_string() };
        named(&nqn).ok_or_else(|| unnamed(&nqn))?;
        named(&host).ok_or_else(|| unnamed(&host))?;
        let mut held = self.held();
        if held.contains_key(job) {
            return Err(GrantError::Taken { job: job.to_string() });
        }
        if bytes == 0 {
            return Err(GrantError::Empty);
        }
        // A size that cannot be rounded up to whole blocks fails below: there is never that much
        // room.
        let bytes = bytes.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(bytes);
        let held_bytes = held.values().map(|one| one.bytes).sum();
        let free_bytes = self.bytes_max.saturating_sub(held_bytes);
        if bytes > free_bytes {
            let (wanted_bytes, bytes_max) = (bytes, self.bytes_max);
            return Err(GrantError::Full { wanted_bytes, free_bytes, bytes_max });
        }
        let (secret, target_secret) = (generate()?, generate()?);
        let grant = Grant { job: job.to_string(), nqn, bytes, host, secret, target_secret };
        let namespace = match &self.shelf {
            None => Namespace::in_memory(bytes, BLOCK_BYTES)?,
            Some(shelf) => {
                let namespace = shelf.make(job, bytes)?;
                shelf.keep(&grant, &namespace).inspect_err(|_| shelf.remove(job))?;
                namespace
            }
        };
        let exported = self.export(&mut held, &grant, namespace);
        exported.inspect_err(|_| self.shelf.iter().for_each(|shelf| shelf.remove(job)))?;
        Ok(grant)
    }

    /// Exports the namespace of a grant to its host.
    fn export(
        &self,
        held: &mut BTreeMap<String, Held>,
        grant: &Grant,
        namespace: Namespace,
    ) -> Result<(), GrantError> {
        let Grant { job, nqn, bytes, host, secret, target_secret } = grant;
        let unnamed = |text: &String| GrantError::Host { text: text.clone() };
        let name = Nqn::new(nqn).ok_or_else(|| unnamed(nqn))?;
        let host_name = Nqn::new(host).ok_or_else(|| unnamed(host))?;
        let line = format!("{host} {secret} {target_secret}");
        let secrets = HostSecrets::parse(line.as_bytes()).map_err(|_| unnamed(host))?;
        let limits = *self.directory.limits();
        let subsystem = Subsystem::new(name.clone(), vec![namespace], limits);
        let added = self.directory.add(Arc::new(subsystem.guarded(Guard::new(secrets))));
        added.map_err(|_| GrantError::Taken { job: job.clone() })?;
        held.insert(job.clone(), Held { name, host: host_name, bytes: *bytes });
        Ok(())
    }

    /// Ends a job's grant and the connections of its host.
    pub fn revoke(&self, job: &str) -> Result<(), GrantError> {
        let mut held = self.held();
        let unknown = || GrantError::Unknown { job: job.to_string() };
        let name = held.get(job).ok_or_else(unknown)?.name.clone();
        if let Some(shelf) = &self.shelf {
            shelf.revoke(job)?;
        }
        held.remove(job);
        self.directory.remove(&name);
        if let Some(shelf) = &self.shelf {
            shelf.remove(job);
        }
        Ok(())
    }

    /// Lists all exported subsystems: those that are not grants first, then the grants by job.
    pub fn list(&self) -> Vec<Exported> {
        let held = self.held();
        let exported = |subsystem: &Arc<Subsystem>| {
            let granted = held.iter().find(|(_, one)| one.name == *subsystem.name());
            Exported {
                job: granted.map(|(job, _)| job.clone()),
                nqn: subsystem.name().to_string(),
                host: granted.map(|(_, one)| one.host.to_string()),
                namespace_bytes: subsystem
                    .namespaces()
                    .map(|(_, one)| one.shape().bytes())
                    .collect(),
                controllers: subsystem.controllers_count(),
            }
        };
        let mut all: Vec<Exported> = self.directory.all().iter().map(exported).collect();
        all.sort_by(|one, other| one.job.cmp(&other.job));
        all
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<String, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check_job(job: &str) -> Result<(), GrantError> {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    match (1..=JOB_BYTES_MAX).contains(&job.len()) && job.chars().all(is_letter) {
        true => Ok(()),
        false => Err(GrantError::Job { job: job.to_string() }),
    }
}

fn generate() -> std::io::Result<String> {
    let random = Secret::generate().map_err(|errno| std::io::Error::from_raw_os_error(errno.0));
    Ok(String::from_utf8(random?.to_vec()).expect("it is letters and digits"))
}
