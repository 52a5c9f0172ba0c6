//! Calls about the job that a program can make: attaching without the environment of `cairn run`,
//! store usage and drain state, waiting, notes and hints.
//!
//! The agent owns the job's description; only single values of it are read here. Waiting looks at
//! the files themselves, because the agent marks a file as drained once it has verified and renamed
//! it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cairn_core::{Attributes, Survey, TIERS_MAX};
use cairn_device::Store;
use cairn_device::store::notes::{self, Note};
pub use cairn_device::store::notes::{HINTS, Kind};
use cairn_device::store::{NAME_BYTES_MAX, candidate_roots, store_path};
use cairn_platform::descriptor::Descriptor;
use cairn_platform::sys;

use crate::error::{Errno, PathResult, Result};
use crate::files::place::Place;
use crate::files::{cwd, file};
use crate::kernel::launcher::Rank;
use crate::kernel::{configuration, gate};
use crate::mapping;
use crate::mount::{self, Mount};
use crate::task::table;

/// Job description, and the file that the agent holds a lock on.
const JOB_FILE: &std::ffi::CStr = c"job.json";
const AGENT_LOCK: &std::ffi::CStr = c"agent.lock";
/// Longest description that is read, in bytes.
const JOB_BYTES_MAX: usize = 1 << 20;
/// A part of the kernel's tick, which is 1 to 10 ms.
const TICK_PART: Duration = Duration::from_micros(500);
const TICK_PARTS_MAX: u32 = 40;
/// Sleep between two checks of a wait: the first, and the longest.
const LOOK_FIRST: Duration = Duration::from_millis(1);
const LOOK_MOST: Duration = Duration::from_millis(50);

/// Attaches this process to the store of an existing job, below `prefix` or else below the job's
/// own prefix. Errors: `EINVAL` for an invalid name or a prefix that is not an absolute path;
/// `ENODEV`: there is no such job; `EBUSY`: the process has a mount; `EXDEV`: it had a different
/// one before; errors of opening the store.
pub fn attach(job: &[u8], prefix: Option<&[u8]>) -> Result<()> {
    let store = find(job)?;
    let description = description(&store)?;
    let own_prefix = text_value(&description, "mount").ok_or(Errno(libc::EUCLEAN))?;
    let is_by_rank = text_value(&description, "scope").as_deref() == Some(b"rank");
    let prefix = prefix.unwrap_or(&own_prefix);
    configuration::begin(store.as_os_str().as_bytes(), trimmed(prefix), is_by_rank)?;
    mount::current().map(|_| ()).inspect_err(|_| configuration::retire(mount::is_retired()))
}

fn trimmed(mut prefix: &[u8]) -> &[u8] {
    while let [rest @ .., b'/'] = prefix {
        prefix = rest;
    }
    prefix
}

/// Finds the directory of a job's store.
fn find(job: &[u8]) -> Result<PathBuf> {
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    let starts_well = job.first().is_some_and(u8::is_ascii_alphanumeric);
    if !starts_well || job.len() > NAME_BYTES_MAX || !job.iter().all(is_name) {
        return Err(Errno(libc::EINVAL));
    }
    let name = core::str::from_utf8(job).map_err(|_| Errno(libc::EINVAL))?;
    let stores = candidate_roots().into_iter().map(|root| store_path(&root, name));
    let is_whole = |store: &PathBuf| description(store).is_ok();
    stores.into_iter().find(is_whole).ok_or(Errno(libc::ENODEV))
}

/// Reads the job description of a store.
fn description(store: &Path) -> Result<Vec<u8>> {
    let store = Store::open(store).map_err(|error| Errno(error.errno))?;
    description_in(store.directory().raw())
}

fn description_in(directory: i32) -> Result<Vec<u8>> {
    let file = Descriptor::open_regular(directory, JOB_FILE, libc::O_RDONLY, 0)?;
    Ok(file.read_up_to(JOB_BYTES_MAX)?)
}

/// Value of a key in the description, if it is a text. A quotation mark within a value follows a
/// backslash, so a quoted key with a colon cannot be part of a value.
fn text_value(description: &[u8], key: &str) -> Option<Vec<u8>> {
    let key = format!("\"{key}\":");
    let at = description.windows(key.len()).position(|part| part == key.as_bytes())?;
    let value = description[at + key.len()..].trim_ascii_start().strip_prefix(b"\"")?;
    let mut text = Vec::new();
    let mut bytes = value.iter();
    loop {
        match bytes.next()? {
            b'"' => return Some(text),
            b'\\' => match bytes.next()? {
                &byte @ (b'"' | b'\\' | b'/') => text.push(byte),
                // Control characters; no value that is read here has them.
                _ => return None,
            },
            &byte => text.push(byte),
        }
    }
}

/// Gives the mount up: every path is the C library's again. The same job may be attached again
/// below the same prefix. Errors: `ENODEV`: there is no mount; `EBUSY`: a file of ours is open or
/// mapped, or the current directory is ours.
pub fn detach() -> Result<()> {
    configuration::get().ok_or(Errno(libc::ENODEV))?;
    if table::all().next().is_some() || mapping::any() || cwd::inode().is_some() {
        return Err(Errno(libc::EBUSY));
    }
    mount::retire()?;
    configuration::retire(true);
    Ok(())
}

/// Name of the job. Errors: `ENODEV`.
pub fn name() -> Result<&'static [u8]> {
    let store = configuration::get().ok_or(Errno(libc::ENODEV))?.store();
    let name = Path::new(OsStr::from_bytes(store)).file_name();
    Ok(name.ok_or(Errno(libc::ENODEV))?.as_bytes())
}

/// Prefix below which the store appears. Errors: `ENODEV`.
pub fn prefix() -> Result<&'static [u8]> {
    Ok(configuration::get().ok_or(Errno(libc::ENODEV))?.mount())
}

/// Usage and drain state of a store. Sizes in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Status {
    /// Size of each tier that has data or metadata.
    pub total_bytes: [u64; TIERS_MAX],
    /// Bytes in use on each tier.
    pub used_bytes: [u64; TIERS_MAX],
    /// Number of tiers.
    pub tiers: usize,
    /// Number of regular files, and of those that are drained.
    pub survey: Survey,
    /// Whether the job is drained anywhere.
    pub persists: bool,
    /// Whether the job's agent is alive.
    pub has_agent: bool,
}

/// Returns the state of the store. Errors: `ENODEV`; errors of reading it.
pub fn status() -> Result<Status> {
    let mount = mount::current()?;
    let usage = mount.fs().usage()?;
    let bytes = |blocks: [u64; TIERS_MAX]| blocks.map(|count| count * usage.hugeblock_bytes);
    let in_use = usage.total_blocks.iter().rposition(|&blocks| blocks > 0);
    Ok(Status {
        total_bytes: bytes(usage.total_blocks),
        used_bytes: bytes(usage.used_blocks),
        tiers: in_use.map_or(0, |last| last + 1),
        survey: mount.fs().survey()?,
        persists: persists(mount)?,
        has_agent: has_agent(mount)?,
    })
}

fn persists(mount: &Mount) -> Result<bool> {
    let description = description_in(mount.store_directory())?;
    Ok(text_value(&description, "persist").is_some())
}

fn has_agent(mount: &Mount) -> Result<bool> {
    match Descriptor::open_regular(mount.store_directory(), AGENT_LOCK, libc::O_RDONLY, 0) {
        Ok(file) => {
            let taken = sys::flock(file.raw(), libc::LOCK_SH | libc::LOCK_NB);
            Ok(taken == Err(sys::Errno(libc::EWOULDBLOCK)))
        }
        Err(sys::Errno(libc::ENOENT)) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Appends a note of this process about a checkpoint or files. Errors: `ENODEV`; `EINVAL` for an
/// empty or too long text; `ENOSPC`.
pub fn note(kind: Kind, number: u64, text: &[u8]) -> Result<()> {
    let mount = mount::current()?;
    let note = Note {
        time_ns: sys::now().0,
        pid: sys::getpid(),
        rank: Rank::find(configuration::environment).map(|found| found.rank),
        kind,
        number,
        text: text.to_vec(),
    };
    notes::append(mount.store_directory(), &note)?;
    // Files have times of the kernel's tick, which may be 4 ms behind. What is written at once
    // after a checkpoint begins must not seem older than that.
    for _ in 0..TICK_PARTS_MAX {
        // Longer would mean that the clock was set back.
        if kind != Kind::Begin || mount::now().0 >= note.time_ns {
            break;
        }
        // A signal may cut it short.
        let _ = gate::outside(|| sys::nanosleep(TICK_PART));
    }
    Ok(())
}

/// Makes all data as durable as the first tier can. Errors: `ENODEV`; `EIO`.
pub fn settle() -> Result<()> {
    mount::current()?;
    file::sync_all()
}

/// Waits until a file, or all files, are drained and verified. Errors: `ENOTSUP`: the job is
/// drained nowhere; `ESRCH`: its agent is dead; `EIO`: a file will never be drained, because its
/// writer died or found no room, or a part of it is lost; `EISDIR`; `EINVAL`: the path is not a
/// regular file; `ETIMEDOUT`; `EINTR`: a signal handler interrupted the wait.
pub fn wait_drained(place: Option<&Place>, timeout: Option<Duration>) -> PathResult<()> {
    let mount = mount::current()?;
    if !persists(mount)? {
        return Err(Errno(libc::ENOTSUP).into());
    }
    let begun = Instant::now();
    let mut look = LOOK_FIRST;
    loop {
        let is_safe = match place {
            Some(place) => is_file_safe(&file::stat(place, true)?)?,
            None => is_all_safe(mount.fs().survey()?)?,
        };
        if is_safe {
            return Ok(());
        }
        if !has_agent(mount)? {
            return Err(Errno(libc::ESRCH).into());
        }
        let left = timeout.map_or(look, |timeout| timeout.saturating_sub(begun.elapsed()));
        if left.is_zero() {
            return Err(Errno(libc::ETIMEDOUT).into());
        }
        gate::outside(|| sys::nanosleep(look.min(left)))?;
        look = (look * 2).min(LOOK_MOST);
    }
}

fn is_file_safe(file: &Attributes) -> Result<bool> {
    match (file.is_regular(), file.unclean || file.lost) {
        _ if file.is_directory() => Err(Errno(libc::EISDIR)),
        (false, _) => Err(Errno(libc::EINVAL)),
        (true, false) => Ok(file.is_drained()),
        (true, true) => Err(Errno(libc::EIO)),
    }
}

fn is_all_safe(survey: Survey) -> Result<bool> {
    match (survey.undrained_files, survey.unclean_files) {
        (0, 0) => Ok(true),
        // They may be outside as they are, which is not what their writers wanted.
        (undrained, unclean) if undrained <= unclean => Err(Errno(libc::EIO)),
        _ => Ok(false),
    }
}
