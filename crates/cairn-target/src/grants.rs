//! Namespaces that are made for a job and go with it: one each, in a subsystem of its own, for a
//! host of its own.
//!
//! Must stay true: who was granted one reaches no other; all together never get more room than
//! there is for them; what is granted reads as zeros at first, and is gone when it is revoked.
//! Secrets are shown once, to who asked for the grant; where the room is a directory they are kept
//! in it, and what was granted outlives the target.

pub mod control;
mod shelf;

use cairn_nvme::secret::{HostSecrets, Secret};
use cairn_nvme::wire::Nqn;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Directory, Guard, Namespace, Subsystem};

use shelf::Shelf;

/// Size of a logical block.
const BLOCK_BYTES: u64 = 4096;
/// Longest name of a job.
const JOB_BYTES_MAX: usize = 64;

/// Where the room is.
#[derive(Clone, Debug)]
pub enum Room {
    /// In memory.
    Memory,
    /// In files of a directory, which keeps what was granted.
    Directory(PathBuf),
}

/// Why something is not granted or revoked.
#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    /// A name that cannot be part of another one.
    #[error(
        "{job:?} is not the name of a job; it has letters, digits, '.', '_' and '-', at most 64"
    )]
    Job {
        /// What was given.
        job: String,
    },
    /// There is something for the job.
    #[error("there is a namespace for job {job:?} already; revoke it first")]
    Taken {
        /// The job.
        job: String,
    },
    /// There is nothing for the job.
    #[error("nothing was granted to job {job:?}")]
    Unknown {
        /// The job.
        job: String,
    },
    /// Nothing was asked for.
    #[error("a namespace has a byte at least")]
    Empty,
    /// Too much was asked for.
    #[error("there is no room for {wanted_bytes} bytes; {free_bytes} of {bytes_max} are free")]
    Full {
        /// So much.
        wanted_bytes: u64,
        /// So much is left.
        free_bytes: u64,
        /// So much there is.
        bytes_max: u64,
    },
    /// A name of a host that is none.
    #[error("{text:?} is not the name of a host; write one like nqn.2014-08.org.nvmexpress:uuid:…")]
    Host {
        /// What was given.
        text: String,
    },
    /// The system did not give what is needed.
    #[error("cannot make the namespace: {0}")]
    System(#[from] std::io::Error),
}

/// What was granted, with its secrets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Grant {
    /// For which job.
    pub job: String,
    /// The subsystem, whose namespace is 1.
    pub nqn: String,
    /// Size of the namespace.
    pub bytes: u64,
    /// The host that may use it.
    pub host: String,
    /// How it proves who it is.
    pub secret: String,
    /// How the target does.
    pub target_secret: String,
}

/// What there is, without secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exported {
    /// For which job, if it was granted.
    pub job: Option<String>,
    /// The subsystem.
    pub nqn: String,
    /// The host that may use it, if it was granted.
    pub host: Option<String>,
    /// Sizes of its namespaces.
    pub namespace_bytes: Vec<u64>,
    /// How many controllers it has: hosts, or processes of hosts.
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
    /// None: what is granted is in memory.
    shelf: Option<Shelf>,
    bytes_max: u64,
    /// What names of subsystems begin with.
    prefix: String,
    held: Mutex<BTreeMap<String, Held>>,
    set_aside: Vec<String>,
}

impl Grants {
    /// So much may be granted in that room, on the machine of that name; what was granted there
    /// before is granted again, even if it is more, and set aside if it is not what it was. Errors:
    /// the system's; or the room is another target's.
    pub fn new(
        directory: Arc<Directory>,
        room: &Room,
        bytes_max: u64,
        machine: &str,
    ) -> std::io::Result<Grants> {
        let prefix = format!("nqn.2026-11.io.cairn:{machine}");
        let shelf = match room {
            Room::Memory => None,
            Room::Directory(path) => Some(Shelf::take(path)?),
        };
        let restored = shelf.as_ref().map_or(Ok(Vec::new()), Shelf::restore)?;
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

    /// What was granted before and is not any more, and why; its files are left as they are.
    pub fn set_aside(&self) -> &[String] {
        &self.set_aside
    }

    /// Makes a namespace of at least so many bytes for a job and a secret for its host, which gets
    /// a name if it has none.
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
        // What is no multiple of a block can be had by nobody.
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

    /// Lets the host of a grant use the namespace.
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

    /// Ends what was granted to a job, with the connections of who uses it.
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

    /// Everything that is exported: what was not granted, then the rest by job.
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
