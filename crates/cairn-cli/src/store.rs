//! Finds stores and opens one for a command.
//!
//! Must stay true: a store that belongs to another user, is not private, has a newer format or is
//! damaged is refused before anything in it is used. Nothing here changes a store.

pub(crate) mod address;
pub(crate) mod building;
pub(crate) mod creation;
pub(crate) mod job_name;
pub(crate) mod local;
pub(crate) mod offline;
pub(crate) mod placement;
pub(crate) mod removal;
pub(crate) mod survey;
pub(crate) mod tier;
pub(crate) mod unsaved;
use cairn_agent::agent::client::Client;
use cairn_agent::model::job::{JOB_FILE, Job, RUN_LOCK, is_valid_job_name};
use cairn_agent::model::lock;
use cairn_agent::store::volume::{Volume, prefix_of};
use cairn_device::media::label::Identity;
use cairn_device::store::{
    Candidate, candidate_roots, find_candidate, namespace, removed_job, store_path,
};
use cairn_device::{Store, TierPlace};
use cairn_job::file::path::FilePath;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{CopyError, Error, Result, ResumeError, SettingError, StoreError};
use crate::output::quoted;
use crate::size::human;

/// Default advice for a store that cannot be used.
const ADVICE: &str = "nothing was changed; use another --job or --store-root";
const ADVICE_NEWER: &str = "nothing was changed; use the version of cairn that made it";
const ADVICE_DAMAGED: &str =
    "nothing was changed; drained files are in the persist directory; remove the store with rm -r";

/// Name of the namespace that every store has.
pub const NODE: &str = "node";

/// Maximum number of agents that a request is sent to, one after another.
const AGENTS_MAX: u32 = 5;

/// Name of the directory, beside a user's stores, of inputs that are kept for other jobs. No job
/// has such a name.
pub const REUSABLE: &str = ".reusable";

/// Directories that can hold stores.
#[derive(Clone, Debug)]
pub struct Roots {
    explicit: Option<PathBuf>,
}

impl Roots {
    /// Uses only `explicit` if given, else the default directories.
    pub fn new(explicit: Option<PathBuf>) -> Roots {
        // Agents and programs of the job have other current directories.
        let absolute = |root: PathBuf| std::path::absolute(&root).unwrap_or(root);
        Roots { explicit: explicit.map(absolute) }
    }

    /// Returns the directory that the user chose, if any.
    pub fn explicit(&self) -> Option<&Path> {
        self.explicit.as_deref()
    }

    /// Returns the command-line option that names the chosen directory, with a trailing space;
    /// empty if none was chosen.
    pub fn option(&self) -> String {
        match &self.explicit {
            Some(root) => format!("--store-root {} ", quoted(&root.display().to_string())),
            None => String::new(),
        }
    }

    fn candidates(&self) -> Vec<PathBuf> {
        match &self.explicit {
            Some(root) => vec![root.clone()],
            None => candidate_roots(),
        }
    }

    /// Returns the directory for a new store that needs `wanted_bytes`, or as much as possible if
    /// None; also a message for the user if the first choice had too little space.
    pub fn for_new(&self, wanted_bytes: Option<u64>) -> Result<(PathBuf, Option<String>)> {
        if let Some(root) = &self.explicit {
            if !root.is_dir() {
                let problem = format!(
                    "{} is not a directory; create it first, or leave out the option and CAIRN_STORE_ROOT",
                    root.display()
                );
                return Err(Error::Setting(SettingError::Option {
                    option: "--store-root",
                    problem,
                }));
            }
            return Ok((root.clone(), None));
        }
        let (place, passed_over) = find_candidate(wanted_bytes).map_err(refuse)?;
        let note = passed_over.map(|small| moved(&small, &place));
        Ok((place.root, note))
    }

    fn places(&self) -> String {
        let places = self.candidates();
        places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(", ")
    }

    /// Returns the directory of a job's store; None if there is none. A store that is being created
    /// or removed does not count.
    pub fn find(&self, job: &str) -> Option<PathBuf> {
        let directories = self.candidates().into_iter().map(|root| store_path(&root, job));
        let mut known = directories.filter(|directory| directory.symlink_metadata().is_ok());
        let first = known.next()?;
        // A directory without a description in an earlier root does not hide a store in a later
        // one.
        let is_whole = |directory: &PathBuf| directory.join(JOB_FILE).symlink_metadata().is_ok();
        if is_whole(&first) { Some(first) } else { known.find(is_whole).or(Some(first)) }
    }

    /// Returns every store of this user: job and directory, sorted by job.
    pub fn all(&self) -> Vec<(String, PathBuf)> {
        let mut found: Vec<(String, PathBuf)> = Vec::new();
        for root in self.candidates() {
            // A root that cannot be read holds no store of this user.
            let Ok(entries) = fs::read_dir(store_path(&root, "")) else { continue };
            for entry in entries.flatten() {
                let Ok(job) = entry.file_name().into_string() else { continue };
                let is_known = found.iter().any(|(known, _)| *known == job);
                // A store whose removal was cut off does not have the name of a job.
                let is_named = is_valid_job_name(&job);
                if is_named && !is_known && entry.path().join(JOB_FILE).exists() {
                    found.push((job, entry.path()));
                }
            }
        }
        found.sort();
        found
    }

    /// Returns the directories of stores of `job` whose removal has begun.
    pub fn removed(&self, job: &str) -> Vec<PathBuf> {
        let candidates = self.candidates().into_iter();
        let entries = candidates.flat_map(|root| fs::read_dir(store_path(&root, ""))).flatten();
        let is_one = |name: &OsStr| name.to_str().and_then(removed_job) == Some(job);
        entries
            .flatten()
            .filter(|entry| is_one(&entry.file_name()))
            .map(|entry| entry.path())
            .collect()
    }

    /// Returns the job whose store has the tier with this identity, finished or not; None if there
    /// is none.
    pub fn job_with_tier(&self, identity: &Identity) -> Option<String> {
        let is_it = |place: &TierPlace| match place {
            TierPlace::Medium { identity: found, .. } => found == identity,
            TierPlace::Ram => false,
        };
        let has_it = |directory: &Path| {
            let places = Store::open(directory).and_then(|store| namespace::places(&store, NODE));
            places.is_ok_and(|places| places.iter().any(is_it))
        };
        self.all().into_iter().find(|(_, directory)| has_it(directory)).map(|(job, _)| job)
    }

    /// Returns the directories in which inputs of this user may be kept for other jobs, beside his
    /// stores.
    pub fn reusable(&self) -> Vec<PathBuf> {
        self.candidates().into_iter().map(|root| store_path(&root, REUSABLE)).collect()
    }

    /// Returns the directories in which users keep stores, other users included.
    pub fn users(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for root in self.candidates() {
            let Ok(entries) = fs::read_dir(&root) else { continue };
            let of_users = entries.flatten().filter(|entry| {
                let name = entry.file_name();
                let user = name.to_str().and_then(|name| name.strip_prefix("cairn-"));
                user.is_some_and(|user| user.parse::<u32>().is_ok())
            });
            found.extend(of_users.map(|entry| entry.path()));
        }
        found
    }

    /// Opens the store of `job`. If no job is named, opens the store this process runs in, else the
    /// only store that exists.
    pub fn choose(&self, job: Option<&str>) -> Result<OpenStore> {
        if let Some(job) = job {
            check_job_name(job)?;
            let directory = self.find(job).ok_or_else(|| {
                Error::Store(StoreError::NoStore { job: job.to_string(), places: self.places() })
            })?;
            return OpenStore::open(&directory);
        }
        if let Some(directory) = std::env::var_os("CAIRN_STORE").filter(|value| !value.is_empty()) {
            return OpenStore::open(Path::new(&directory));
        }
        match self.all().as_slice() {
            [] => Err(Error::Store(StoreError::NoStores { places: self.places() })),
            [(_, directory)] => OpenStore::open(directory),
            several => {
                let jobs: Vec<&str> = several.iter().map(|(job, _)| job.as_str()).collect();
                Err(Error::Store(StoreError::WhichStore { jobs: jobs.join(", ") }))
            }
        }
    }
}

/// Returns a message that a store is not in the first default directory.
fn moved(small: &Candidate, place: &Candidate) -> String {
    let slower = if small.in_memory && !place.in_memory { ", which is slower" } else { "" };
    let free = human(small.free_bytes);
    let (usual, root) = (small.root.display(), place.root.display());
    format!("{usual} has only {free} free: the store lives in {root}{slower}")
}

/// Refuses an invalid job name.
pub fn check_job_name(job: &str) -> Result<()> {
    match is_valid_job_name(job) {
        true => Ok(()),
        false => Err(Error::Setting(SettingError::JobName { name: job.to_string() })),
    }
}

/// Returns the error that a store cannot be used, with advice that fits the cause.
pub fn refuse(source: impl Into<cairn_agent::Error>) -> Error {
    let source = source.into();
    let advice = match &source {
        cairn_agent::Error::Format { .. } => ADVICE_NEWER,
        cairn_agent::Error::Header { .. } | cairn_agent::Error::Json { .. } => ADVICE_DAMAGED,
        cairn_agent::Error::Namespace(error) if !error.advice.is_empty() => "nothing was changed",
        cairn_agent::Error::Held { .. } => "nothing was changed",
        _ => ADVICE,
    };
    Error::Store(StoreError::Store { source, advice })
}

/// A store that passed the checks.
pub struct OpenStore {
    directory: PathBuf,
    /// Description of the job.
    pub job: Job,
}

impl OpenStore {
    /// Opens the store in `directory`. Errors: it is not private to this user, or its description
    /// is missing, damaged or of a newer format.
    pub fn open(directory: &Path) -> Result<OpenStore> {
        Store::open(directory).map_err(refuse)?;
        if !directory.join(JOB_FILE).exists() {
            return Err(Error::Store(StoreError::NotAStore { path: directory.to_path_buf() }));
        }
        let job = Job::load(directory).map_err(refuse)?;
        Ok(OpenStore { directory: directory.to_path_buf(), job })
    }

    /// Returns the directory of the store.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Opens the namespaces of the store. Errors: one is damaged or of a newer format.
    pub fn volumes(&self) -> Result<Vec<Volume>> {
        let store = Store::open(&self.directory).map_err(refuse)?;
        let names = store.namespaces().map_err(refuse)?;
        let open = |name: &String| {
            let opened = Volume::open(&store, name, prefix_of(name, self.job.scope));
            opened.map_err(|error| match error {
                cairn_agent::Error::Store {
                    source: source @ cairn_core::Error::Corrupt { .. },
                    ..
                } => self.damaged(&source),
                error => refuse(error),
            })
        };
        names.iter().map(open).collect()
    }

    fn damaged(&self, found: &cairn_core::Error) -> Error {
        let outside = match &self.job.persist {
            Some(persist) => format!(
                "; drained files are not affected, see: cairn verify --persist {}",
                quoted(&persist.to_string_lossy())
            ),
            None => String::new(),
        };
        let media = match self.job.media() {
            Some(media) => {
                format!("; to see what is durable on its tier: cairn fsck {}", tier::shown(media))
            }
            None => String::new(),
        };
        Error::Resume(ResumeError::Damaged {
            job: self.job.job.clone(),
            found: found.to_string(),
            ways: outside + &media,
        })
    }

    /// Connects to the store's agent, and starts one if there is none.
    pub fn agent(&self) -> Result<Client> {
        let program = std::env::current_exe().map_err(Error::file("find", Path::new("cairn")))?;
        Ok(Client::reach(&self.directory, &program)?)
    }

    /// Sends a repeatable request to the store's agent, first to the one in `given`. An agent that
    /// is killed meanwhile is replaced, and the next one continues its work.
    pub fn ask_agent<T>(
        &self,
        mut given: Option<Client>,
        mut ask: impl FnMut(&mut Client) -> cairn_agent::Result<T>,
    ) -> Result<T> {
        for _ in 1..AGENTS_MAX {
            let mut agent = given.take().map_or_else(|| self.agent(), Ok)?;
            match ask(&mut agent) {
                Err(cairn_agent::Error::AgentAnswer { .. }) => {}
                answered => return Ok(answered?),
            }
        }
        Ok(ask(&mut self.agent()?)?)
    }

    /// Whether a `cairn run` holds the store.
    pub fn is_running(&self) -> bool {
        lock::is_locked(&self.directory, RUN_LOCK).unwrap_or(false)
    }

    /// Converts a path that the user wrote, as the program sees it or relative to the mount prefix,
    /// to a path in the store.
    pub fn path(&self, text: &str) -> Result<FilePath> {
        let bad = || Error::Copy(CopyError::Path { text: text.to_string() });
        let path = FilePath::parse(text.as_bytes()).ok_or_else(bad)?;
        let mount = FilePath::parse(self.job.mount.as_bytes()).ok_or_else(bad)?;
        Ok(path.strip_prefix(&mount).unwrap_or(path))
    }

    /// Returns a path in the store as the program sees it, for a person.
    pub fn shown(&self, path: &FilePath) -> String {
        String::from_utf8_lossy(&self.seen(path)).into_owned()
    }

    /// Returns a path in the store as the program sees it.
    pub fn seen(&self, path: &FilePath) -> Vec<u8> {
        let mut seen = self.job.mount.clone().into_bytes();
        if !path.is_root() {
            seen.truncate(self.job.mount.trim_end_matches('/').len());
            seen.push(b'/');
            seen.extend_from_slice(path.as_bytes());
        }
        seen
    }
}

/// Returns the volume that holds a path, and the path within it; None if the path lies above all
/// volumes.
pub fn locate<'a>(volumes: &'a [Volume], path: &FilePath) -> Option<(&'a Volume, FilePath)> {
    volumes.iter().find_map(|volume| Some((volume, path.strip_prefix(volume.prefix())?)))
}

/// A file on the command line: `JOB:/path`, or `/path` if the job is implied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The job, if one is named.
    pub job: Option<String>,
    /// The path; may be empty.
    pub path: String,
}

impl Place {
    /// Parses `JOB`, `JOB:/path`, `:/path` or `/path`.
    pub fn parse(text: &str) -> Place {
        match text.split_once(':') {
            Some((job, path)) if !job.contains('/') => Place {
                job: Some(job.to_string()).filter(|job| !job.is_empty()),
                path: path.to_string(),
            },
            _ if text.starts_with('/') => Place { job: None, path: text.to_string() },
            _ => Place { job: Some(text.to_string()), path: String::new() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_jobs_paths_or_both() {
        let place = |job: Option<&str>, path: &str| Place {
            job: job.map(str::to_string),
            path: path.to_string(),
        };
        assert_eq!(Place::parse("melt"), place(Some("melt"), ""));
        assert_eq!(Place::parse("melt:/a/b"), place(Some("melt"), "/a/b"));
        assert_eq!(Place::parse("melt:a"), place(Some("melt"), "a"));
        assert_eq!(Place::parse(":/a"), place(None, "/a"));
        assert_eq!(Place::parse("/cairn/a:b"), place(None, "/cairn/a:b"));
    }
}
