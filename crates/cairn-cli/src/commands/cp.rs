//! `cairn cp`: copies files out of a store or into it.

use cairn_agent::persist::destination::Destination;
use cairn_agent::store::extended;
use cairn_agent::store::volume::Volume;
use cairn_core::{Attributes, ROOT};
use cairn_job::file::node::Kind;
use cairn_job::file::path::FilePath;
use clap::Args;
use glob::{MatchOptions, Pattern};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::Context;
use crate::error::{CopyError, Error, Result, SettingError};
use crate::output::progress::Progress;
use crate::output::{self, count};
use crate::size::human;
use crate::store::{OpenStore, Place, local, locate};

const EXAMPLES: &str = "\
Examples:
  cairn cp melt:/restart.100 .              out of the store of job melt, comparing checksums
  cairn cp input.dat mesh.h5 melt:/         into that store
  cairn cp 'melt:/restart.*' /scratch/all   all files whose names match
  cairn cp --recursive melt:/run1 /scratch/run1

A path in a store has the form JOB:/path, or :/path if there is only one store or with --job. It can be the path
that the program sees (/cairn/a), or relative to the mount (/a).

cp keeps the mode, the time of last change and extended attributes. It replaces an existing file as
a whole. If the target outside the store is a symbolic link, cp writes to the file that the link
names. If it is a device or a FIFO, cp writes to that. In these cases the attributes of the target
do not change.";

/// Problem of a target that is to receive several files.
const SEVERAL: &str = "several files need a directory, and this is not one";

/// Copy files out of a store or into it.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Copy directories with everything in them
    #[arg(long, short)]
    recursive: bool,
    /// The job of places without a name, as in :/path [default: the one this runs in, or the only
    /// one]
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// What to copy; in a store, `*`, `?` and `[...]` match parts of names
    #[arg(value_name = "SOURCE", required = true)]
    sources: Vec<String>,
    /// Target: a name, or a directory to copy into
    #[arg(value_name = "TARGET")]
    target: String,
}

/// Result of the command.
#[derive(Debug, Default, Serialize)]
pub struct CopyReport {
    /// Number of regular files.
    files: u64,
    /// Their size in bytes.
    bytes: u64,
}

/// Runs the command.
pub fn run(context: &Context, arguments: Arguments) -> Result<()> {
    let Arguments { recursive, job, sources, target } = arguments;
    let place = |text: &str| {
        let place = store_place(text)?;
        Some(Place { job: place.job.or_else(|| job.clone()), ..place })
    };
    let inside = sources.iter().map(|source| place(source)).collect::<Option<Vec<_>>>();
    let is_outside = sources.iter().all(|source| place(source).is_none());
    let mut report = CopyReport::default();
    match (inside, place(&target)) {
        (Some(places), None) => {
            let expanded: Vec<Vec<Source>> =
                places.iter().map(|place| expand(context, place)).collect::<Result<_>>()?;
            let found: Vec<Source> = expanded.into_iter().flatten().collect();
            let target = Path::new(&target);
            if found.len() > 1 {
                if !target.is_dir() {
                    let path = target.display().to_string();
                    return Err(Error::Copy(CopyError::Target { path, problem: SEVERAL }));
                }
                differ(found.iter().map(|(_, path)| path.split().map(|(_, name)| name.to_vec())))?;
            }
            for (job, path) in &found {
                copy_out(context, job.as_deref(), path, (target, recursive), &mut report)?;
            }
        }
        (None, Some(mut place)) if is_outside => {
            if sources.len() > 1 && !place.path.ends_with('/') {
                // Makes the target a directory, or an error.
                place.path.push('/');
            }
            // Names in the store come from the targets of links.
            let name = |source: &String| {
                let path = Path::new(source).canonicalize().ok()?;
                path.file_name().map(|name| name.as_bytes().to_vec())
            };
            differ(sources.iter().map(name))?;
            for source in &sources {
                copy_in(context, Path::new(source), &place, recursive, &mut report)?;
            }
        }
        _ => return Err(Error::Copy(CopyError::CopySides)),
    }
    if context.json {
        return output::json(&report);
    }
    output::line(&format!("{}, {} copied", count(report.files, "file"), human(report.bytes)));
    Ok(())
}

/// A job, if one is named, and a path in its store.
type Source = (Option<String>, FilePath);

/// Checks that no two sources would become the same file of the target.
fn differ(names: impl Iterator<Item = Option<Vec<u8>>>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for name in names.flatten() {
        if let Some(twice) = seen.replace(name) {
            let path = String::from_utf8_lossy(&twice).into_owned();
            let problem = "two sources have this name, and one would replace the other";
            return Err(Error::Copy(CopyError::Target { path, problem }));
        }
    }
    Ok(())
}

/// Returns the paths that a place matches, sorted. A place without wildcards, or one that exists
/// under its literal name, stands for itself. Errors: nothing matches.
fn expand(context: &Context, place: &Place) -> Result<Vec<Source>> {
    let store = context.roots.choose(place.job.as_deref())?;
    let path = store.path(&place.path)?;
    let named = |path: FilePath| (place.job.clone(), path);
    if !place.path.contains(['*', '?', '[']) {
        return Ok(vec![named(path)]);
    }
    let volumes = store.volumes()?;
    if locate(&volumes, &path).is_some_and(|(volume, inner)| volume.attributes(&inner).is_ok()) {
        return Ok(vec![named(path)]);
    }
    let pattern = String::from_utf8_lossy(path.as_bytes()).into_owned();
    let glob = Pattern::new(&pattern).map_err(|error| {
        Error::Setting(SettingError::Pattern { pattern, problem: error.msg.to_string() })
    })?;
    // Wildcards match as in a shell.
    let options = MatchOptions {
        require_literal_separator: true,
        require_literal_leading_dot: true,
        ..MatchOptions::new()
    };
    let mut found = Vec::new();
    for volume in &volumes {
        let matches =
            |path: &FilePath| glob.matches_with(&String::from_utf8_lossy(path.as_bytes()), options);
        found.extend(volume.tree()?.into_keys().filter(matches).map(named));
    }
    if found.is_empty() {
        let problem = "nothing in the store matches";
        return Err(Error::Copy(CopyError::Target { path: store.shown(&path), problem }));
    }
    Ok(found)
}

/// Parses a place in a store: a text with a colon that no slash precedes.
fn store_place(text: &str) -> Option<Place> {
    let (job, _) = text.split_once(':')?;
    (!job.contains('/')).then(|| Place::parse(text))
}

fn copy_out(
    context: &Context,
    job: Option<&str>,
    path: &FilePath,
    (target, recursive): (&Path, bool),
    report: &mut CopyReport,
) -> Result<()> {
    let store = context.roots.choose(job)?;
    let volumes = store.volumes()?;
    let (volume, inner) = find(&store, &volumes, path)?;
    let attributes = volume.attributes(&inner)?;
    if attributes.is_directory() && !recursive {
        return Err(Error::Copy(CopyError::IsDirectory { path: store.shown(path) }));
    }
    let (directory, name) = match target.is_dir() {
        true => (target.to_path_buf(), inner.split().map(|(_, name)| name.to_vec())),
        false => {
            let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
            let name = target.file_name().map(|name| name.as_bytes().to_vec());
            let problem = "its name is missing";
            let bad =
                || Error::Copy(CopyError::Target { path: target.display().to_string(), problem });
            (parent.unwrap_or(Path::new(".")).to_path_buf(), Some(name.ok_or_else(bad)?))
        }
    };
    let destination = Destination::open(&directory, &format!("cp-{}", std::process::id()))?;
    let outer = name.map_or(FilePath::root(), |name| FilePath::root().join(&name));
    let total = match attributes.is_directory() {
        true => volume.tree()?.into_values().map(|node| node.bytes).sum(),
        false => attributes.size,
    };
    let mut progress = Progress::new("copying", total, context.json);
    let mut out = Out { volume, destination: &destination, report };
    out.copy(&inner, &outer, &attributes, &mut progress)
}

/// A copy out of a store.
struct Out<'a> {
    volume: &'a Volume,
    destination: &'a Destination,
    report: &'a mut CopyReport,
}

impl Out<'_> {
    fn copy(
        &mut self,
        inner: &FilePath,
        outer: &FilePath,
        attributes: &Attributes,
        progress: &mut Progress,
    ) -> Result<()> {
        if attributes.is_directory() {
            return self.copy_directory(inner, outer, attributes, progress);
        }
        if attributes.is_symlink() {
            let mut target = Vec::new();
            let (fs, caller) = (self.volume.fs(), self.volume.caller());
            let read = fs.read_link(&caller, ROOT, inner.as_bytes(), &mut target);
            read.map_err(self.volume.error("read the symbolic link", inner))?;
            self.check_replaceable(outer)?;
            return Ok(self.destination.make_symlink(outer, &target, attributes.modified.0)?);
        }
        let found = self.destination.look(outer)?.map(|found| found.kind);
        match found {
            // For a directory, copy_out returns the error.
            None | Some(Some(Kind::File | Kind::Directory)) => {
                local::copy_out(self.volume, inner, self.destination, outer, progress)?;
            }
            Some(_) => {
                let path = self.destination.full_path(outer);
                local::write_out(self.volume, inner, &path, progress)?;
            }
        }
        self.report.files += 1;
        self.report.bytes += attributes.size;
        Ok(())
    }

    /// Checks that a symbolic link may replace what is at `outer`.
    fn check_replaceable(&self, outer: &FilePath) -> Result<()> {
        match self.destination.look(outer)?.map(|found| found.kind) {
            None | Some(Some(Kind::File | Kind::Symlink)) => Ok(()),
            Some(_) => {
                let path = self.destination.full_path(outer).display().to_string();
                let problem = "a symbolic link can replace only a file or a link";
                Err(Error::Copy(CopyError::Target { path, problem }))
            }
        }
    }

    fn copy_directory(
        &mut self,
        inner: &FilePath,
        outer: &FilePath,
        attributes: &Attributes,
        progress: &mut Progress,
    ) -> Result<()> {
        if !outer.is_root() {
            self.destination.make_directory(outer, attributes.mode)?;
        }
        for (name, inode) in self.volume.names(inner, attributes.inode)? {
            let child = inner.join(&name);
            let found = self.volume.fs().attributes(inode);
            let found = found.map_err(self.volume.error("look at", &child))?;
            self.copy(&child, &outer.join(&name), &found, progress)?;
        }
        if !outer.is_root() {
            let (mode, mtime_ns) = (attributes.mode & 0o7777, attributes.modified.0);
            let extended = self.volume.extended(inner, attributes)?;
            if !extended.is_empty() {
                self.destination.set_extended(outer, &extended)?;
            }
            self.destination.set_attributes(outer, mode, mtime_ns)?;
        }
        Ok(())
    }
}

fn copy_in(
    context: &Context,
    source: &Path,
    place: &Place,
    recursive: bool,
    report: &mut CopyReport,
) -> Result<()> {
    let metadata = fs::metadata(source).map_err(Error::file("look at", source))?;
    if metadata.is_dir() && !recursive {
        return Err(Error::Copy(CopyError::IsDirectory { path: source.display().to_string() }));
    }
    let store = context.roots.choose(place.job.as_deref())?;
    let mut path = store.path(&place.path)?;
    let volumes = store.volumes()?;
    let (volume, inner) = find(&store, &volumes, &path)?;
    let target_is_directory = inner.is_root()
        || volume.attributes(&inner).is_ok_and(|attributes| attributes.is_directory());
    if target_is_directory || place.path.ends_with('/') {
        let problem = "the source has no name; give the target one";
        let name = source.canonicalize().map_err(Error::file("look at", source))?;
        let name = name.file_name().map(|name| name.as_bytes().to_vec());
        let name = name
            .ok_or_else(|| Error::Copy(CopyError::Target { path: store.shown(&path), problem }))?;
        path = path.join(&name);
    }
    let (volume, inner) = find(&store, &volumes, &path)?;
    let mut progress = Progress::new("copying", local_bytes(source)?, context.json);
    // A link on the command line is followed; a link below it is copied as a link.
    let named = source.canonicalize().map_err(Error::file("look at", source))?;
    copy_in_path(&named, volume, &inner, report, &mut progress)
}

fn copy_in_path(
    source: &Path,
    volume: &Volume,
    inner: &FilePath,
    report: &mut CopyReport,
    progress: &mut Progress,
) -> Result<()> {
    let metadata = fs::symlink_metadata(source).map_err(Error::file("look at", source))?;
    if metadata.is_symlink() {
        let target = fs::read_link(source).map_err(Error::file("read", source))?;
        let bytes = target.as_os_str().as_bytes();
        return local::make_symlink(volume, inner, bytes, local::mtime_ns(&metadata));
    }
    if metadata.is_dir() {
        let extended = File::open(source).map(extended::read).unwrap_or_default();
        local::make_directory(volume, inner, metadata.mode(), &extended)?;
        for child in sorted_children(source)? {
            let name = child.file_name().unwrap_or_default().as_bytes();
            copy_in_path(&child, volume, &inner.join(name), report, progress)?;
        }
        return Ok(());
    }
    let file = File::open(source).map_err(Error::file("open", source))?;
    local::copy_in((file, source), None, (volume, inner), None, &mut |bytes| {
        progress.advance(bytes);
        Ok(())
    })?;
    report.files += 1;
    report.bytes += metadata.len();
    Ok(())
}

fn sorted_children(directory: &Path) -> Result<Vec<PathBuf>> {
    let list = || -> std::io::Result<Vec<PathBuf>> {
        fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect()
    };
    let mut children = list().map_err(Error::file("list", directory))?;
    children.sort();
    Ok(children)
}

/// Returns the size of the regular files at and below `path`, in bytes.
fn local_bytes(path: &Path) -> Result<u64> {
    let metadata = fs::symlink_metadata(path).map_err(Error::file("look at", path))?;
    if !metadata.is_dir() {
        return Ok(if metadata.is_file() { metadata.len() } else { 0 });
    }
    sorted_children(path)?.iter().map(|child| local_bytes(child)).sum()
}

fn find<'a>(
    store: &OpenStore,
    volumes: &'a [Volume],
    path: &FilePath,
) -> Result<(&'a Volume, FilePath)> {
    locate(volumes, path).ok_or_else(|| Error::Copy(CopyError::Target {
        path: store.shown(path),
        problem: "with --scope rank a path begins with the name of a namespace, as in /rank-0/file",
    }))
}
