//! `cairn check --self`: tells whether this installation serves programs here. A process of ours
//! finds out which C library it has, which interposer library was loaded and from where, which of
//! its functions come before the C library's, and whether files below the prefix are served.
//!
//! Must stay true: what could not be found out is reported as trouble. The test uses only a store
//! in memory, which is removed.
//!
//! Does not examine the user's programs; the rest of `check.rs` does.

use crate::Context;
use crate::check::trial;
use crate::claim::Claim;
use crate::error::{Error, LaunchError, Result};
use crate::output::{self, count, escaped};
use crate::run::{launch, probe};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr, OsString, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Functions of the C library that Cairn replaces, one per line.
pub const WRAPPED: &str = include_str!("../../../cairn-preload/wrapped.txt");
/// Maximum number of names in a line.
const NAMES_MAX: usize = 8;
/// File that is written below the prefix and read back.
const FILE: &str = "cairn-self-test";
const CONTENT: &[u8] = b"what was written is read";

/// What a process in a job found.
#[derive(Debug, Serialize, Deserialize)]
pub struct Found {
    /// Version of its C library.
    glibc: String,
    /// File that our library was loaded from; None if it was not loaded.
    loaded: Option<PathBuf>,
    /// Number of our functions that come before all others.
    in_front: usize,
    /// Our functions that are not reached, and the file whose function is called instead; None if
    /// no function of that name is loaded.
    displaced: BTreeMap<String, Option<PathBuf>>,
    /// Functions that neither this C library nor any other loaded library has, so that no program
    /// calls them.
    absent: Vec<String>,
    /// Why files below the prefix are not served.
    trouble: Option<String>,
}

#[derive(Debug, Serialize)]
struct SelfReport {
    /// Library that programs are started with.
    library: PathBuf,
    /// Prefix that was tried.
    mount: String,
    /// Whether files below the prefix could be written, read and removed.
    served: bool,
    #[serde(flatten)]
    found: Found,
    exit_code: i32,
}

/// Runs the command. Returns the exit code.
pub fn run(context: &Context, mount: Option<String>) -> Result<i32> {
    let library = launch::find_library()?;
    let claim = trial::claim(context, mount, &[])?;
    let mount = claim.store.job.mount.clone();
    let found = ask(&claim, &library);
    let removed = claim.remove();
    let found = found?;
    removed?;
    let served = found.trouble.is_none();
    let exit_code = match (served, found.displaced.is_empty()) {
        (true, true) => 0,
        (true, false) => crate::check::EXIT_MISSED,
        (false, _) => crate::check::EXIT_OUT_OF_REACH,
    };
    let report = SelfReport { library, mount, served, found, exit_code };
    match context.json {
        true => output::json(&report)?,
        false => report.lines().iter().for_each(|line| output::line(line)),
    }
    Ok(exit_code)
}

/// Returns what a process in the job finds. A process that cannot start, or is not served, counts
/// as trouble.
fn ask(claim: &Claim, library: &Path) -> Result<Found> {
    let program = std::env::current_exe().map_err(Error::file("find", Path::new("cairn")))?;
    let mount = OsString::from(&claim.store.job.mount);
    let words: [OsString; 4] = [program.into(), "probe".into(), "--report".into(), mount];
    let mut command = launch::command(&claim.store, library, &words, false);
    let output = command.stdin(Stdio::null()).output().map_err(|source| {
        Error::Launch(LaunchError::Execute {
            command: words[0].to_string_lossy().into_owned(),
            source,
        })
    })?;
    let mut found = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| Found {
        trouble: Some(format!("a program with the library ends with {}", output.status)),
        ..Found::nothing()
    });
    if let Some(complaint) = probe::complaint(&output.stderr).filter(|_| found.trouble.is_some()) {
        found.trouble = Some(format!("the dynamic linker cannot load it: {complaint}"));
    }
    Ok(found)
}

/// Runs in that process: prints its findings.
pub fn report(mount: &Path) -> i32 {
    crate::output::line(&serde_json::to_string(&Found::here(mount)).expect("texts and numbers"));
    0
}

impl Found {
    fn nothing() -> Found {
        Found {
            glibc: probe::glibc(),
            loaded: None,
            in_front: 0,
            displaced: BTreeMap::new(),
            absent: Vec::new(),
            trouble: None,
        }
    }

    /// Collects the findings about this process.
    fn here(mount: &Path) -> Found {
        let mut found = Found::nothing();
        found.trouble = probe::find_out(mount).and_then(|()| write_and_read(mount)).err();
        found.loaded = function(c"cairn_prefix").and_then(file_of);
        if found.loaded.is_some() {
            WRAPPED.lines().for_each(|name| found.look_for(name));
        }
        found
    }

    fn look_for(&mut self, name: &str) {
        let Ok(terminated) = CString::new(name) else { return };
        let owner = function(&terminated).map(file_of);
        match owner {
            Some(owner) if owner == self.loaded => self.in_front += 1,
            owner => drop(self.displaced.insert(name.to_owned(), owner.flatten())),
        }
        if next_function(&terminated).is_none() {
            self.absent.push(name.to_owned());
        }
    }
}

/// Writes a file below the prefix, reads it, and removes it.
fn write_and_read(mount: &Path) -> std::result::Result<(), String> {
    let path = mount.join(FILE);
    let content = fs::write(&path, CONTENT).and_then(|()| fs::read(&path));
    let removed = fs::remove_file(&path);
    match content {
        Ok(content) if content == CONTENT => {
            removed.map_err(|error| format!("a file cannot be removed: {error}"))
        }
        Ok(_) => Err("what was written to a file is not what is read".to_owned()),
        Err(error) => Err(format!("a file cannot be written and read: {error}")),
    }
}

/// Returns the function that a program calls under this name.
fn function(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is NUL-terminated.
    Some(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }).filter(|found| !found.is_null())
}

/// Returns the C library's own function.
fn next_function(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the names are NUL-terminated. The C library is already loaded and is never unloaded.
    let found = unsafe {
        let library = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() {
            return None;
        }
        libc::dlsym(library, name.as_ptr())
    };
    Some(found).filter(|found| !found.is_null())
}

/// Returns the file that a function was loaded from.
fn file_of(function: *mut c_void) -> Option<PathBuf> {
    // SAFETY: Dl_info is plain data, for which all-zero is a valid value.
    let mut information: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr accepts any address and fills the structure that it is given.
    let is_known = unsafe { libc::dladdr(function, &raw mut information) } != 0;
    if !is_known || information.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the dynamic linker provides this name, NUL-terminated and valid while the file is
    // loaded.
    let name = unsafe { CStr::from_ptr(information.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

impl SelfReport {
    fn lines(&self) -> Vec<String> {
        let shown = |path: &Path| escaped(path.as_os_str().as_bytes());
        let Found { glibc, loaded, in_front, displaced, absent, trouble } = &self.found;
        let mut lines =
            vec![format!("C library: glibc {glibc}"), format!("library: {}", shown(&self.library))];
        lines.push(match loaded {
            Some(loaded) => format!("  loaded from {}", shown(loaded)),
            None => "  not loaded".to_owned(),
        });
        if loaded.is_some() {
            let functions = count(*in_front as u64, "function");
            lines.push(format!("  {functions} in front of the C library's"));
        }
        if !absent.is_empty() {
            let names = some_of(absent.iter());
            lines.push(format!("  {} of them not in this C library: {names}", absent.len()));
        }
        for (name, owner) in displaced.iter().take(NAMES_MAX) {
            let instead = owner.as_ref().map_or("none has it".to_owned(), |owner| shown(owner));
            lines.push(format!("  missed: {name} is not reached: {instead}"));
        }
        if displaced.len() > NAMES_MAX {
            lines.push(format!("  missed: {} more", displaced.len() - NAMES_MAX));
        }
        let mount = escaped(self.mount.as_bytes());
        lines.push(match trouble {
            None => format!("{mount}: served; a file was written and read"),
            Some(trouble) => format!("{mount}: not served: {}", escaped(trouble.as_bytes())),
        });
        lines
    }
}

fn some_of<'names>(names: impl Iterator<Item = &'names String> + Clone) -> String {
    let shown: Vec<&str> = names.clone().take(NAMES_MAX).map(String::as_str).collect();
    let more = if names.count() > NAMES_MAX { ", ..." } else { "" };
    shown.join(", ") + more
}
