//! `cairn ls`: lists names in a store, each with its state; and finds the newest file to restart
//! from.

use cairn_agent::model::clock::utc_time;
use cairn_agent::model::job::Scope;
use cairn_agent::store::read::{Buffer, read_whole};
use cairn_agent::store::volume::{Volume, prefix_of};
use cairn_core::{Attributes, ROOT};
use cairn_job::file::path;
use cairn_job::file::path::{FilePath, serialize_bytes};
use cairn_posix::kernel::configuration;
use clap::Args;
use glob::{MatchOptions, Pattern};
use serde::{Serialize, Serializer};

use crate::Context;
use crate::commands::jobs;
use crate::drain::checkpoints::{self, Found};
use crate::drain::notes::Notes;
use crate::error::{CopyError, Error, Result, SettingError};
use crate::output::{self, escaped, group_name, local_time, mode_letters, user_name};
use crate::store::{OpenStore, Place, locate};

const EXAMPLES: &str = "\
Examples:
  cairn ls                              the top directory of the only store
  cairn ls melt:/run1                   a directory of job melt
  cairn ls --recursive melt
  cairn ls --jobs                       every store on this machine; cairn gc removes unused ones
  f=$(cairn ls --newest 'restart.*')    the file to restart from, as the program sees it
  cairn ls --checkpoints melt           checkpoints, and which are safe in the persist directory
  cairn ls --checkpoints --newest '*'   the files of the newest complete, intact checkpoint

States of a file:
  open      a program may still write to it
  unclean   its writer died, a write failed or a part is lost: do not restart from it
  clean     closed
  drained   closed, and verified in the persist directory
  absent    drained, but not yet brought back from there; see cairn run --stage=on-demand

--newest prints only a file that is clean, drained or absent, belongs to no unfinished checkpoint,
and matches its checksums. It waits for the data of an absent file. Exit code 1 if there is none.";

/// List files in a store.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// JOB, JOB:/path or /path [default: the job this runs in, or the only one]
    #[arg(value_name = "JOB:/PATH")]
    target: Option<String>,
    /// The job, if it is not given with the path
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// List subdirectories, too
    #[arg(long, short)]
    recursive: bool,
    /// List the stores on this machine, including those of killed runs: owner, time since last use,
    /// size, and what is not safe anywhere else
    #[arg(long, conflicts_with_all = ["target", "job", "recursive", "newest"])]
    jobs: bool,
    /// Print only the path of the newest clean file that matches, as the program sees it. With
    /// --checkpoints, print the paths of all files of the newest complete checkpoint with a
    /// matching file
    #[arg(long, value_name = "GLOB")]
    newest: Option<String>,
    /// List checkpoints instead of files: step, files, bytes, age, and where each is safe
    #[arg(long, conflicts_with = "recursive")]
    checkpoints: bool,
}

/// A name in a store.
#[derive(Debug, Serialize)]
struct Row {
    /// Path as the program sees it.
    path: Bytes,
    /// `file`, `directory` or `symlink`.
    kind: &'static str,
    /// `open`, `unclean`, `clean`, `drained` or `absent`; null for anything but a file.
    state: Option<&'static str>,
    /// Length in bytes.
    bytes: u64,
    /// Permission bits, octal.
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    /// Time of last change, RFC 3339.
    modified: String,
    /// Version of the data.
    version: u64,
    /// Target of a symbolic link.
    target: Option<Bytes>,
    /// Hints of programs about the file: `persistent`, `reusable` or `temporary`; `preload` or
    /// `offload`.
    hints: Vec<&'static str>,
    /// Path in the store.
    #[serde(skip)]
    place: FilePath,
    #[serde(skip)]
    attributes: Option<Attributes>,
}

/// A name of arbitrary bytes.
#[derive(Debug)]
struct Bytes(Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serialize_bytes(&self.0, serializer)
    }
}

/// Runs the command.
pub fn run(context: &Context, arguments: Arguments) -> Result<()> {
    if arguments.jobs {
        return jobs::list(context);
    }
    let mut place = Place::parse(arguments.target.as_deref().unwrap_or(":"));
    if let Some(job) = arguments.job {
        if place.job.is_some() {
            let problem = "the job is named twice: here, and before the path".to_string();
            return Err(Error::Setting(SettingError::Option { option: "--job", problem }));
        }
        place.job = Some(job);
    }
    let store = context.roots.choose(place.job.as_deref())?;
    let path = store.path(&place.path)?;
    let volumes = store.volumes()?;
    if arguments.checkpoints {
        return checkpoints::list(context, &store, &volumes, arguments.newest.as_deref());
    }
    if let Some(pattern) = &arguments.newest {
        let path = if path.is_root() { own_namespace(&store) } else { path };
        let row = newest(&store, &volumes, &path, pattern)?;
        return match context.json {
            true => output::json(&row),
            false => {
                // Printed unescaped even if it is not text, because scripts use it as a path.
                output::print(&[&row.path.0[..], b"\n"].concat());
                Ok(())
            }
        };
    }
    let mut rows = list(&store, &volumes, &path, arguments.recursive)?;
    match context.json {
        true => {
            let notes = Notes::of(&store)?;
            rows.iter_mut().for_each(|row| row.hints = notes.hints(&row.path.0));
            output::json(&rows)
        }
        false => {
            print_rows(&rows, &store.seen(&path));
            Ok(())
        }
    }
}

/// Returns the rows for `path`: itself if it is a file, else its content.
fn list(
    store: &OpenStore,
    volumes: &[Volume],
    path: &FilePath,
    recursive: bool,
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let Some((volume, inner)) = locate(volumes, path) else {
        // The path lies above the namespaces of ranks.
        for volume in volumes {
            let attributes = volume.attributes(&FilePath::root())?;
            rows.push(row(store, volume, &FilePath::root(), &attributes)?);
            if recursive {
                list_directory(store, volume, &FilePath::root(), true, &mut rows)?;
            }
        }
        return Ok(rows);
    };
    let attributes = volume.attributes(&inner)?;
    match attributes.is_directory() {
        true => list_directory(store, volume, &inner, recursive, &mut rows)?,
        false => rows.push(row(store, volume, &inner, &attributes)?),
    }
    Ok(rows)
}

fn list_directory(
    store: &OpenStore,
    volume: &Volume,
    directory: &FilePath,
    recursive: bool,
    rows: &mut Vec<Row>,
) -> Result<()> {
    let inode = match directory.is_root() {
        true => ROOT,
        false => volume.attributes(directory)?.inode,
    };
    let mut names = volume.names(directory, inode)?;
    names.sort();
    for (name, inode) in names {
        let path = directory.join(&name);
        let attributes = match volume.fs().attributes(inode) {
            Ok(attributes) => attributes,
            // The file was removed meanwhile.
            Err(cairn_core::Error::NotFound) => continue,
            Err(error) => return Err(volume.error("look at", &path)(error).into()),
        };
        rows.push(row(store, volume, &path, &attributes)?);
        if recursive && attributes.is_directory() {
            list_directory(store, volume, &path, true, rows)?;
        }
    }
    Ok(())
}

fn row(
    store: &OpenStore,
    volume: &Volume,
    inner: &FilePath,
    attributes: &Attributes,
) -> Result<Row> {
    let kind = match (attributes.is_directory(), attributes.is_symlink()) {
        (true, _) => "directory",
        (_, true) => "symlink",
        _ => "file",
    };
    let target = match attributes.is_symlink() {
        false => None,
        true => {
            let mut target = Vec::new();
            let read = volume.fs().read_link(&volume.caller(), ROOT, inner.as_bytes(), &mut target);
            read.map_err(volume.error("read the symbolic link", inner))?;
            Some(Bytes(target))
        }
    };
    let place = volume.outer_path(inner);
    Ok(Row {
        path: Bytes(store.seen(&place)),
        place,
        kind,
        state: attributes.is_regular().then(|| state(attributes)),
        bytes: attributes.size,
        mode: format!("{:04o}", attributes.mode & 0o7777),
        links: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        modified: utc_time(attributes.modified),
        version: attributes.version,
        target,
        hints: Vec::new(),
        attributes: Some(*attributes),
    })
}

fn state(attributes: &Attributes) -> &'static str {
    if attributes.absence.is_some() {
        "absent"
    } else if attributes.writers > 0 {
        "open"
    } else if attributes.unclean {
        "unclean"
    } else if attributes.drained_version == attributes.version {
        "drained"
    } else {
        "clean"
    }
}

fn print_rows(rows: &[Row], directory: &[u8]) {
    let prefix = [directory, b"/"].concat();
    let cells: Vec<[String; 8]> = rows
        .iter()
        .map(|row| {
            let kind = match row.kind {
                "directory" => 'd',
                "symlink" => 'l',
                _ => '-',
            };
            let known = row.attributes.map(|found| (found.mode & 0o7777, found.modified));
            let (mode, modified) = known.unwrap_or_default();
            let path = &row.path.0[..];
            let name = escaped(path.strip_prefix(&prefix[..]).unwrap_or(path));
            let target = row.target.as_ref().map(|target| format!(" -> {}", escaped(&target.0)));
            [
                mode_letters(kind, mode),
                row.links.to_string(),
                user_name(row.uid),
                group_name(row.gid),
                row.bytes.to_string(),
                local_time(modified),
                row.state.unwrap_or("-").to_string(),
                format!("{name}{}", target.unwrap_or_default()),
            ]
        })
        .collect();
    let width = |column: usize| cells.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: [usize; 8] = std::array::from_fn(width);
    let [_, w1, w2, w3, w4, _, w6, _] = widths;
    for [mode, links, user, group, bytes, time, state, name] in &cells {
        output::line(&format!(
            "{mode} {links:>w1$} {user:<w2$} {group:<w3$} {bytes:>w4$} {time} {state:<w6$} {name}"
        ));
    }
}

/// Returns the prefix of the files of the program that runs this command: that of its rank, else
/// the root.
fn own_namespace(store: &OpenStore) -> FilePath {
    let captured = configuration::get();
    match (store.job.scope, captured.map(|found| found.scope())) {
        (Scope::Rank, Some(configuration::Scope::Rank { rank, .. })) => {
            prefix_of(&format!("rank-{rank}"), Scope::Rank)
        }
        _ => FilePath::root(),
    }
}

/// Returns the newest file below `directory` that matches, is clean, and has intact data.
fn newest(
    store: &OpenStore,
    volumes: &[Volume],
    directory: &FilePath,
    pattern: &str,
) -> Result<Row> {
    let relative = pattern.strip_prefix(&format!("{}/", store.job.mount)).unwrap_or(pattern);
    let bad = |error: glob::PatternError| {
        Error::Setting(SettingError::Pattern {
            pattern: pattern.to_string(),
            problem: error.msg.to_string(),
        })
    };
    let compiled = Pattern::new(relative.trim_start_matches('/')).map_err(bad)?;
    let options = MatchOptions { require_literal_separator: true, ..MatchOptions::new() };
    let found = Found::look(store, volumes)?;
    let incomplete = found.incomplete();
    // Damaged checkpoints are listed only if the user asks for their directory.
    let is_aside =
        |path: &FilePath| locate(volumes, path).is_some_and(|(_, inner)| path::is_aside(&inner));
    let sees_aside = is_aside(directory);
    let mut candidates = Vec::new();
    for row in list(store, volumes, directory, true)? {
        let Some(attributes) = row.attributes else { continue };
        let path = row.place.clone();
        let below = path.strip_prefix(directory).unwrap_or_else(|| path.clone());
        let matches = compiled.matches_with(&below.to_lossy(), options);
        let is_clean = matches!(row.state, Some("clean" | "drained" | "absent"));
        let is_damaged = is_aside(&path) && !sees_aside;
        if matches && is_clean && !is_damaged && !incomplete.contains(&path) {
            candidates.push((attributes.modified, attributes.born, row, path));
        }
    }
    candidates.sort_by(|a, b| (b.0, b.1, &b.3).cmp(&(a.0, a.1, &a.3)));
    let mut buffer = Buffer::default();
    for (_, _, row, path) in candidates {
        let Some((volume, inner)) = locate(volumes, &path) else { continue };
        let file = volume.open_present(&inner);
        match file.and_then(|file| read_whole(&file, &mut buffer, &mut |_| Ok(()))) {
            // In scope `rank`, the program does not see the name of its namespace.
            Ok(_) => return Ok(Row { path: Bytes(store.seen(&inner)), ..row }),
            // An older intact file is better than a newer one that is damaged or being rewritten.
            Err(error @ cairn_agent::Error::Damaged { .. }) => output::say!("cairn: {error}"),
            Err(error) if error.is_about_absent_data() => output::say!("cairn: {error}"),
            Err(cairn_agent::Error::Changed { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::Copy(CopyError::NoMatch {
        pattern: pattern.to_string(),
        job: store.job.job.clone(),
    }))
}
