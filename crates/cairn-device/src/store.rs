//! The store: one private directory per job that holds everything of the job on this node.
//!
//! ```text
//! <root>/cairn-<uid>/<job>/        0700
//!   <ns>.meta    <ns>.ram0         segments of a namespace (ram0 may be a link into huge/)
//!   <ns>.tiers                     places of its tiers, unless memory is the only one
//!   handles/                       0700; 0777 once a process of the job that has it open was about
//!                                  to give up its rights
//!   handles/<ns>.<number>          socket inodes that stand for open-file descriptions
//!   handles/<ns>.<number>.token    FIFOs that stand for them in transit between processes
//!   handles/<ns>.lock-<inode>-<time> files on which the kernel keeps locks, see `lock_file.rs`
//!   ranks                          MPI ranks that came
//!   handles/void-<thread>.<number> stand-ins of working directories, while they are made
//!   huge/                          file system of huge pages, where one could be mounted
//! ```
//! Invariant: a directory that others can enter, that is not ours or that is a symbolic link is
//! refused, not repaired.
//!
//! Does not know job.json, the agent's files or their locks; the command and the agent do.

pub(crate) mod fd_passing;
pub mod lock_file;
pub mod namespace;
pub mod notes;
pub mod tiers;
pub mod transfer;
pub(crate) mod upkeep;

use core::ffi::CStr;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cairn_platform::sys::c_path;
use cairn_platform::sys::{self, Errno};

use crate::directory::{Directory, StoreResult};
use crate::memory::huge;
use crate::store::namespace::removal;

pub use crate::directory::StoreError;
pub use crate::store::namespace::removal::{LeftTier, TierLocks};

/// Directory of placeholders and of stand-ins for working directories, within the store.
pub const HANDLES: &CStr = c"handles";
/// Longest name of a job or a namespace, in bytes.
pub const NAME_BYTES_MAX: usize = 48;
/// Separates the name of a job from a number in the name of a store's directory that is being
/// removed.
const REMOVED: &str = ".removed-";
/// Most stores of one name that are being removed at the same time, or whose removal was
/// interrupted.
const REMOVALS_MAX: u32 = 1000;
/// Advice for a removal that fails.
const FINISHED_BY: &str = "what is left of the store is removed with: cairn gc";
/// Number of attempts to make a store whose directory is removed meanwhile.
const ATTEMPTS_MAX: u32 = 8;
/// Free space at which a place is good enough for a store of no particular size.
const ROOM_BYTES: u64 = 1 << 30;

/// An open store directory.
#[derive(Debug)]
pub struct Store {
    directory: Directory,
}

impl Store {
    /// Creates (or opens, if it exists) the store of `job` below `root`.
    /// Errors: `root` is missing or not writable; the user's or the job's directory exists but is
    /// not private; the job's name is not a simple name.
    pub fn create(root: &Path, job: &str) -> StoreResult<Store> {
        let root = Directory::open(root)?;
        let job = simple_name(&root, job)?;
        let mut attempts = 1;
        loop {
            match make(&root, &job) {
                // Somebody removed the last store of this user, and with it a directory that this
                // call had found.
                Err(error) if error.errno == libc::ENOENT && attempts < ATTEMPTS_MAX => {
                    attempts += 1
                }
                made => return made,
            }
        }
    }

    /// Opens the store directory at `path`.
    pub fn open(path: &Path) -> StoreResult<Store> {
        Ok(Store { directory: Directory::open(path)?.checked_private()? })
    }

    /// Returns the store's directory.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Returns the path of the store's directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the names of the namespaces, sorted.
    pub fn namespaces(&self) -> StoreResult<Vec<String>> {
        self.names_with(".meta")
    }

    /// Returns the parts before `suffix` of the names of files that end with it, sorted.
    fn names_with(&self, suffix: &str) -> StoreResult<Vec<String>> {
        let mut names = Vec::new();
        // A new descriptor, because listing moves the directory's offset.
        let directory = Directory::open(self.path())?;
        let mut visit = |name: &CStr, _| {
            let name = name.to_str().ok().and_then(|name| name.strip_suffix(suffix));
            names.extend(name.map(str::to_owned));
            true
        };
        crate::directory::list(directory.raw(), &mut visit)
            .map_err(|errno| self.directory.error("list", c"", errno))?;
        names.sort();
        Ok(names)
    }

    /// Keeps other stores from recovering the tiers of this one for as long as the result exists.
    pub fn lock_tiers(&self) -> TierLocks {
        let mut locks = TierLocks::default();
        let names = self.names_with(".tiers").unwrap_or_default();
        names.iter().for_each(|name| locks.take(&self.directory, name));
        locks
    }

    /// As `remove_locked`, for a store whose tiers nobody has locked.
    pub fn remove(self) -> StoreResult<Vec<LeftTier>> {
        self.remove_locked(TierLocks::default())
    }

    /// Removes the store with everything in it, its tiers' files, and the user's directory if this
    /// was its last store. Returns the tiers that stay although the store seemed to have them: they
    /// could not be reached, or another store has recovered them.
    ///
    /// The directory loses its name first, durably. So a store of that name that is made meanwhile
    /// is another one, and an interrupted or failed removal leaves no store without its tiers, but
    /// a removal that can be finished. Processes that have the store mapped keep working on memory
    /// that nobody else will see.
    pub fn remove_locked(self, locks: TierLocks) -> StoreResult<Vec<LeftTier>> {
        let _guard = self.directory.exclusive()?;
        remove_renamed(&rename_away(self.path())?, locks).map_err(|error| {
            match error.advice.is_empty() {
                true => error.advise(FINISHED_BY),
                false => error,
            }
        })
    }
}

/// Returns the job whose store is being removed in a directory of this name; `None` for other
/// names.
pub fn removed_job(name: &str) -> Option<&str> {
    let (job, number) = name.strip_prefix('.')?.rsplit_once(REMOVED)?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    Some(job).filter(|job| is_number && !job.is_empty())
}

/// Finishes the interrupted removal of a store. `removed_job` knows the name of `path`. Result as
/// of `remove_locked`; `None` if another process is removing it.
pub fn finish_removal(path: &Path) -> StoreResult<Option<Vec<LeftTier>>> {
    let Some(_guard) = Directory::open(path)?.checked_private()?.try_exclusive()? else {
        return Ok(None);
    };
    match path.symlink_metadata() {
        Ok(_) => remove_renamed(path, TierLocks::default()).map(Some),
        Err(_) => Ok(Some(Vec::new())),
    }
}

/// Removes the content of a directory that has lost the name of its job. May be repeated.
fn remove_renamed(path: &Path, mut locks: TierLocks) -> StoreResult<Vec<LeftTier>> {
    let store = Store::open(path)?;
    let mut left = Vec::new();
    for name in store.names_with(".tiers")? {
        left.extend(removal::empty(&store.directory, &name, locks.of(&name))?);
        // Without the metadata nobody could tell later whether another store has recovered the
        // tiers.
        let list = CString::new(format!("{name}.tiers")).expect("a name of a file");
        store.directory.remove_file(&list)?;
    }
    huge::withdraw(&store.directory)?;
    remove_directory(path)?;
    remove_parent(path);
    Ok(left)
}

/// Renames the directory of a store, durably, to a name under which nobody looks for a store.
fn rename_away(path: &Path) -> StoreResult<PathBuf> {
    let failed = |errno: Errno| StoreError::new("rename directory", path, errno);
    let name = path.file_name().unwrap_or_default().as_bytes();
    let from = c_path(path).map_err(failed)?;
    let mut number = 0;
    let renamed = loop {
        let new_name = [b".", name, REMOVED.as_bytes(), number.to_string().as_bytes()].concat();
        let renamed = path.with_file_name(std::ffi::OsStr::from_bytes(&new_name));
        let to = c_path(&renamed).map_err(failed)?;
        let (from, to) = ((libc::AT_FDCWD, &*from), (libc::AT_FDCWD, &*to));
        match sys::renameat2(from, to, libc::RENAME_NOREPLACE) {
            Ok(()) => break renamed,
            Err(Errno(libc::EEXIST)) if number < REMOVALS_MAX => number += 1,
            Err(errno) => return Err(failed(errno)),
        }
    };
    let parent = Directory::open(path.parent().unwrap_or(Path::new("/")))?;
    sys::fsync(parent.raw()).map_err(failed)?;
    Ok(renamed)
}

fn remove_directory(path: &Path) -> StoreResult<()> {
    Directory::open(path)?.clear()?;
    let failed = |errno: Errno| StoreError::new("remove directory", path, errno);
    let path = c_path(path).map_err(failed)?;
    sys::unlinkat(libc::AT_FDCWD, &path, libc::AT_REMOVEDIR).map_err(failed)
}

/// Removes the directory of a user whose store at `store` is gone, if that was the last one there.
fn remove_parent(store: &Path) {
    let parent = store.parent().and_then(|parent| c_path(parent).ok());
    if let Some(parent) = parent.filter(|path| path.to_bytes().ends_with(&user_suffix())) {
        // Fails as long as other jobs have stores there, as it should.
        let _ = sys::unlinkat(libc::AT_FDCWD, &parent, libc::AT_REMOVEDIR);
    }
}

fn make(root: &Directory, job: &CStr) -> StoreResult<Store> {
    let directory = root.private(&user_directory())?.private(job)?;
    directory.private(HANDLES)?;
    Ok(Store { directory })
}

/// Returns the places where stores are looked for and made, in order: `$CAIRN_STORE_ROOT`,
/// /dev/shm, `$XDG_RUNTIME_DIR`, /tmp. An explicit choice is the only place.
pub fn candidate_roots() -> Vec<PathBuf> {
    match std::env::var_os("CAIRN_STORE_ROOT").filter(|root| !root.is_empty()) {
        Some(root) => vec![PathBuf::from(root)],
        None => [
            Some(PathBuf::from("/dev/shm")),
            std::env::var_os("XDG_RUNTIME_DIR").filter(|root| !root.is_empty()).map(PathBuf::from),
            Some(PathBuf::from("/tmp")),
        ]
        .into_iter()
        .flatten()
        .collect(),
    }
}

/// A place for a new store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The directory.
    pub root: PathBuf,
    /// Number of bytes that may be written there.
    pub free_bytes: u64,
    /// Whether its file system keeps its files in memory.
    pub in_memory: bool,
}

/// Returns the place for a new store that needs `wanted_bytes`, or as much as possible without a
/// given size. It is the first writable directory with enough room. The second result is the first
/// such directory that was passed over because it has less.
///
/// If none has the room, the choice is the first place for a given size, which is then too large,
/// and the largest place otherwise. Errors: no place is a writable directory; the reason is that of
/// the last one.
pub fn find_candidate(wanted_bytes: Option<u64>) -> StoreResult<(Candidate, Option<Candidate>)> {
    let mut places = Vec::new();
    let mut refusal = None;
    for root in candidate_roots() {
        match usable(&root).and_then(|()| measure(&root)) {
            Ok(place) => places.push(place),
            Err(error) => refusal = Some(error),
        }
    }
    match roomiest(&places, wanted_bytes) {
        None => Err(refusal.expect("there is always a candidate")),
        Some(0) => Ok((places.swap_remove(0), None)),
        Some(chosen) => Ok((places.swap_remove(chosen), Some(places.swap_remove(0)))),
    }
}

fn roomiest(places: &[Candidate], wanted_bytes: Option<u64>) -> Option<usize> {
    let enough = wanted_bytes.unwrap_or(ROOM_BYTES);
    let first = places.iter().position(|place| place.free_bytes >= enough);
    let most = || {
        let indices = (0..places.len()).rev();
        indices
            .max_by_key(|&index| if wanted_bytes.is_some() { 0 } else { places[index].free_bytes })
    };
    first.or_else(most)
}

fn measure(root: &Path) -> StoreResult<Candidate> {
    let state = state(root)?;
    let in_memory = state.f_type == libc::TMPFS_MAGIC;
    Ok(Candidate { root: root.to_owned(), free_bytes: free(&state), in_memory })
}

/// Returns the path of a job's store below `root`, whether or not it exists.
pub fn store_path(root: &Path, job: &str) -> PathBuf {
    root.join(format!("cairn-{}", sys::geteuid())).join(job)
}

/// Returns the number of bytes that may still be written to the file system of `root`.
pub fn free_bytes(root: &Path) -> StoreResult<u64> {
    Ok(free(&state(root)?))
}

fn state(root: &Path) -> StoreResult<libc::statfs> {
    c_path(root)
        .and_then(|path| sys::statfs(&path))
        .map_err(|errno| StoreError::new("measure", root, errno))
}

fn free(state: &libc::statfs) -> u64 {
    state.f_bavail * state.f_bsize as u64
}

fn usable(root: &Path) -> StoreResult<()> {
    let directory = Directory::open(root)?;
    sys::faccessat(directory.raw(), c".", libc::W_OK | libc::X_OK).map_err(|errno| {
        directory
            .error("create a store in", c"", errno)
            .advise("choose a writable directory with CAIRN_STORE_ROOT")
    })
}

fn user_directory() -> CString {
    CString::new(format!("cairn-{}", sys::geteuid())).expect("digits and letters contain no NUL")
}

fn user_suffix() -> Vec<u8> {
    [b"/", user_directory().as_bytes()].concat()
}

/// Returns a name of a job or namespace as a file name: letters, digits, `-`, `_` and, except at
/// the start, `.`.
pub(crate) fn simple_name(parent: &Directory, name: &str) -> StoreResult<CString> {
    let simple = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let good = (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(simple)
        && !name.starts_with('.');
    CString::new(name).ok().filter(|_| good).ok_or_else(|| {
        let path = parent.path().join(std::ffi::OsStr::from_bytes(name.as_bytes()));
        StoreError::new("use the name", &path, Errno(libc::EINVAL))
            .advise("a name has 1 to 48 letters, digits, '-', '_' or '.', and no leading '.'")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::tests::Scratch;

    #[test]
    fn created_store_is_private_and_can_be_opened_and_removed() {
        let scratch = Scratch::new();
        let store = Store::create(scratch.0.path(), "job-1").unwrap();
        assert_eq!(store.path(), store_path(scratch.0.path(), "job-1"));
        let again = Store::open(store.path()).unwrap();
        assert_eq!(sys::fstat(again.directory().raw()).unwrap().st_mode & 0o7777, 0o700);
        assert!(again.namespaces().unwrap().is_empty());
        store.remove().unwrap();
        assert!(std::fs::read_dir(scratch.0.path()).unwrap().next().is_none());
    }

    #[test]
    fn a_store_loses_its_name_before_it_is_removed_and_what_is_left_can_be_finished() {
        let scratch = Scratch::new();
        let store = Store::create(scratch.0.path(), "job.1").unwrap();
        let (path, renamed) = (store.path().to_owned(), rename_away(store.path()).unwrap());
        assert!(!path.exists() && renamed.join("handles").exists());
        let second = Store::create(scratch.0.path(), "job.1").unwrap();
        second.remove().unwrap();
        let name = renamed.file_name().and_then(|name| name.to_str()).unwrap();
        assert_eq!(removed_job(name), Some("job.1"));
        for other in ["job.1", ".job.1", ".removed-1", ".job.removed-", ".job.removed-x"] {
            assert_eq!(removed_job(other), None, "{other}");
        }
        assert_eq!(finish_removal(&renamed), Ok(Some(Vec::new())));
        assert!(std::fs::read_dir(scratch.0.path()).unwrap().next().is_none());
    }

    #[test]
    fn users_directory_stays_while_another_job_has_a_store() {
        let scratch = Scratch::new();
        let first = Store::create(scratch.0.path(), "first").unwrap();
        let second = Store::create(scratch.0.path(), "second").unwrap();
        first.remove().unwrap();
        assert!(Store::open(second.path()).is_ok());
    }

    #[test]
    fn job_name_that_is_a_path_is_refused() {
        let scratch = Scratch::new();
        for name in ["", ".", "..", "a/b", ".hidden", &"x".repeat(49), "a\0b"] {
            let error = Store::create(scratch.0.path(), name).unwrap_err();
            assert_eq!(error.errno, libc::EINVAL, "{name:?}");
        }
    }

    #[test]
    fn missing_root_is_named_in_the_error() {
        let error = Store::create(Path::new("/nonexistent/root"), "job").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/nonexistent/root") && text.contains("No such file"), "{text}");
    }

    #[test]
    fn free_bytes_of_shared_memory_are_positive() {
        assert!(free_bytes(Path::new("/dev/shm")).unwrap() > 0);
    }

    #[test]
    fn the_first_place_with_room_is_chosen() {
        let chosen = |free: &[u64], wanted: Option<u64>| {
            let place = |&free_bytes: &u64| Candidate {
                root: PathBuf::from("/"),
                free_bytes,
                in_memory: false,
            };
            roomiest(&free.iter().map(place).collect::<Vec<_>>(), wanted)
        };
        let gib = 1 << 30;
        assert_eq!(chosen(&[2 * gib, 9 * gib], None), Some(0));
        assert_eq!(chosen(&[1 << 24, 2 * gib, 9 * gib], None), Some(1));
        assert_eq!(chosen(&[1 << 24, 1 << 20, 1 << 25], None), Some(2));
        assert_eq!(chosen(&[1 << 24, 1 << 24], None), Some(0));
        assert_eq!(chosen(&[1 << 24, 9 * gib], Some(1 << 24)), Some(0));
        assert_eq!(chosen(&[2 * gib, 9 * gib], Some(4 * gib)), Some(1));
        assert_eq!(chosen(&[2 * gib, 9 * gib], Some(10 * gib)), Some(0));
        assert_eq!(chosen(&[], None), None);
    }
}
