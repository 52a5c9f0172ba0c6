//! `cairn ls --checkpoints`: lists the checkpoints of a job, in its store and in the persist
//! directory only; and finds the newest one to restart from.
//!
//! Must stay true: the list comes from the files themselves, not from the agent's last record.
//! Listing changes nothing. A checkpoint is offered for a restart only if the checksums of all its
//! files match.

use cairn_agent::drain::checkpoints::{Checkpoints, Filled, View};
use cairn_agent::model::drain_task::DrainTask;
use cairn_agent::model::protocol::Unfinished;
use cairn_agent::persist::destination::Destination;
use cairn_agent::persist::manifest_file;
use cairn_agent::store::inputs::SourceState;
use cairn_agent::store::read::{Buffer, read_whole};
use cairn_agent::store::volume::{Volume, now};
use cairn_job::checkpoint::name::{Family, Name, Step};
use cairn_job::checkpoint::sets::register::{Checkpoint, Level};
use cairn_job::checkpoint::sets::rules::MATCHING;
use cairn_job::checkpoint::sets::{self, Member, NamespaceTree};
use cairn_job::file::node::{Kind, Tree};
use cairn_job::file::path::{FilePath, serialize_bytes};
use cairn_job::outside::manifest::{self, Manifest};
use glob::Pattern;
use serde::{Serialize, Serializer};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use crate::error::{CopyError, Error, Result, SettingError};
use crate::output::duration;
use crate::size::human;
use crate::store::{OpenStore, locate};
use crate::{Context, output};

/// Checkpoints and files of a store.
pub struct Found {
    /// Complete checkpoints, in the order in which they were found complete.
    pub complete: Vec<Checkpoint>,
    /// Incomplete checkpoints.
    pub unfinished: Vec<Unfinished>,
    /// Files of each incomplete checkpoint.
    pub unfinished_files: HashMap<Name, Vec<Member>>,
    /// Other files whose writers were killed.
    pub unclean: Vec<FilePath>,
}

impl Found {
    /// Examines the files of `store`, whose namespaces are `volumes`.
    pub fn look(store: &OpenStore, volumes: &[Volume]) -> Result<Found> {
        let trees = trees(volumes)?;
        let mut checkpoints = Checkpoints::load(store.directory(), &store.job)?;
        let view = checkpoints.look(&groves(volumes, &trees), DrainTask::default())?;
        let complete = checkpoints.complete().to_vec();
        let View { unfinished, incomplete, .. } = view;
        let files = incomplete.into_iter().map(|set| (set.name, set.members));
        let unfinished_files: HashMap<Name, Vec<Member>> = files.collect();
        let incomplete: HashSet<&FilePath> =
            unfinished_files.values().flatten().map(|member| &member.path).collect();
        let all = trees.iter().flatten().filter(|(path, node)| {
            node.kind == Kind::File && node.unclean && !incomplete.contains(*path)
        });
        let unclean = all.map(|(path, _)| path.clone()).collect();
        Ok(Found { complete, unfinished, unfinished_files, unclean })
    }
}

impl Found {
    /// Returns the files of all incomplete checkpoints.
    pub fn incomplete(&self) -> HashSet<&FilePath> {
        self.unfinished_files.values().flatten().map(|member| &member.path).collect()
    }
}

/// Returns the inputs of a store that are tagged reusable and that nobody has changed.
pub fn reusable_inputs(
    store: &OpenStore,
    volumes: &[Volume],
) -> Result<Vec<(FilePath, PathBuf, SourceState)>> {
    let trees = trees(volumes)?;
    let checkpoints = Checkpoints::load(store.directory(), &store.job)?;
    Ok(checkpoints.reusable_inputs(&groves(volumes, &trees))?)
}

fn trees(volumes: &[Volume]) -> Result<Vec<Tree>> {
    Ok(volumes.iter().map(Volume::tree).collect::<cairn_agent::Result<_>>()?)
}

fn groves<'a>(volumes: &'a [Volume], trees: &'a [Tree]) -> Vec<NamespaceTree<'a>> {
    volumes.iter().map(Volume::prefix).zip(trees).collect()
}

/// Records what the last run left unfinished. To be called before another run begins in a store
/// without an agent.
pub fn begin_run(store: &OpenStore, volumes: &[Volume]) -> Result<()> {
    let trees = trees(volumes)?;
    Ok(Checkpoints::open(store.directory(), &store.job)?.begin_run(&groves(volumes, &trees))?)
}

/// Records how a run ended in a store without an agent.
pub fn end_run(store: &OpenStore, told: DrainTask) -> Result<()> {
    let volumes = store.volumes()?;
    let trees = trees(&volumes)?;
    Ok(Checkpoints::open(store.directory(), &store.job)?
        .end_run(&groves(&volumes, &trees), told)?)
}

/// Registers the checkpoints that a new store was filled with, oldest first; they keep this order.
pub fn adopt(
    store: &OpenStore,
    volumes: &[Volume],
    filled: &[&manifest::Checkpoint],
) -> Result<()> {
    let trees = trees(volumes)?;
    let filled = filled.iter().map(|known| Filled {
        name: &known.name,
        files: known.files.iter().map(|file| &file.path).collect(),
        modified_ns: Some(known.modified_ns),
    });
    let filled: Vec<Filled<'_>> = filled.collect();
    let mut checkpoints = Checkpoints::load(store.directory(), &store.job)?;
    Ok(checkpoints.adopt(&groves(volumes, &trees), &filled)?)
}

/// Returns the checkpoints of a store that nobody else changes.
pub fn current(store: &OpenStore, volumes: &[Volume]) -> Result<Checkpoints> {
    let trees = trees(volumes)?;
    let mut checkpoints = Checkpoints::open(store.directory(), &store.job)?;
    checkpoints.look(&groves(volumes, &trees), DrainTask::default())?;
    Ok(checkpoints)
}

/// Registers a checkpoint of these files that was brought into a store with other checkpoints.
pub fn take_up(
    checkpoints: &mut Checkpoints,
    volumes: &[Volume],
    name: &Name,
    files: Vec<&FilePath>,
) -> Result<()> {
    let trees = trees(volumes)?;
    let filled = Filled { name, files, modified_ns: None };
    Ok(checkpoints.adopt(&groves(volumes, &trees), &[filled])?)
}

/// A path as programs see it.
#[derive(Debug)]
struct SeenPath(Vec<u8>);

impl Serialize for SeenPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> core::result::Result<S::Ok, S::Error> {
        serialize_bytes(&self.0, serializer)
    }
}

/// Writes the value of a step, for programs that compare steps.
fn write_value<S: Serializer>(
    step: &Option<Step>,
    serializer: S,
) -> core::result::Result<S::Ok, S::Error> {
    match step.as_ref().map(|step| (step.whole_number(), step)) {
        None => serializer.serialize_none(),
        Some((Some(number), _)) => serializer.serialize_u64(number),
        Some((None, step)) => serializer.serialize_f64(step.approximate()),
    }
}

/// A checkpoint in the list.
#[derive(Debug, Serialize)]
struct Row {
    /// Its number in the store; null if it is incomplete or comes from another store.
    id: Option<u64>,
    /// Its family: the newer checkpoints of a family replace the older ones.
    family: Family,
    #[serde(serialize_with = "write_value")]
    step: Option<Step>,
    /// Path of its only file, or of the lowest directory that contains all of them, as programs see
    /// it.
    path: SeenPath,
    files: u64,
    bytes: u64,
    /// Seconds since the last change of its files; null if it is incomplete.
    age_s: Option<f64>,
    /// Where it is: `node`, `pfs` (also in the persist directory), `pfs-only`; null if it is
    /// incomplete.
    level: Option<&'static str>,
    /// Where it is to be: `node` or `pfs`.
    wanted: Option<&'static str>,
    /// Whether it is complete; null if unknown.
    whole: Option<bool>,
    /// Whether its copy in the persist directory is verified.
    verified: bool,
    /// Why it is incomplete, or in the persist directory but not verified.
    reason: Option<String>,
}

/// Lists all checkpoints, or the files of the newest one with a file that matches `newest`.
pub fn list(
    context: &Context,
    store: &OpenStore,
    volumes: &[Volume],
    newest: Option<&str>,
) -> Result<()> {
    // The persist directory is read first: the agent writes the register before the manifest, so
    // everything that the manifest names is in the register by then.
    let outside = if newest.is_none() { outside(store)? } else { None };
    let found = Found::look(store, volumes)?;
    if let Some(pattern) = newest {
        let paths = newest_files(store, volumes, found.complete, pattern)?;
        let seen = paths.iter().map(|path| SeenPath(store.seen(path)));
        return match context.json {
            true => output::json(&seen.collect::<Vec<_>>()),
            false => {
                seen.for_each(|path| output::print(&[&path.0[..], b"\n"].concat()));
                Ok(())
            }
        };
    }
    let ours = outside.as_ref().filter(|manifest| manifest.store == store.job.store);
    let seen = |path: FilePath| SeenPath(store.seen(&path));
    let complete = found.complete.iter().map(|known| {
        let path = sets::place(known.files.iter().map(|file| &file.path));
        in_store(known, seen(path), ours)
    });
    let mut rows: Vec<Row> = complete.collect();
    let known: HashSet<&Name> = found.complete.iter().map(|known| &known.name).collect();
    if let Some(manifest) = &outside {
        let whole = manifest.whole_checkpoints().into_iter();
        let detached = whole.filter(|drained| !known.contains(&drained.name));
        let outside = detached.map(|drained| {
            let path = sets::place(drained.files.iter().map(|file| &file.path));
            only_outside(drained, seen(path), manifest, &store.job.store)
        });
        rows.splice(0..0, outside);
    }
    let unfinished = found.unfinished.into_iter();
    rows.extend(unfinished.map(|one| not_complete(seen(one.place.clone()), one)));
    match context.json {
        true => output::json(&rows),
        false => {
            print_rows(&rows);
            Ok(())
        }
    }
}

/// Returns the manifest of the job in the persist directory.
fn outside(store: &OpenStore) -> Result<Option<Manifest>> {
    let Some(persist) = &store.job.persist else { return Ok(None) };
    // An absent directory does not keep the store from being listed.
    let Ok(mut destination) = Destination::open(persist, &store.job.store) else {
        return Ok(None);
    };
    Ok(manifest_file::load(&mut destination, &store.job.job)?)
}

/// Returns a message about the first copy that is known to be damaged.
fn damage<'a>(
    mut paths: impl Iterator<Item = &'a FilePath>,
    manifest: &Manifest,
) -> Option<String> {
    let damaged = paths.find(|path| manifest.is_damaged(path))?;
    Some(format!("the copy of {damaged} is damaged or gone"))
}

fn age_s(modified_ns: i64) -> f64 {
    now().0.saturating_sub(modified_ns).max(0) as f64 / 1e9
}

impl Row {
    /// Creates the row of a checkpoint with default values.
    fn new(name: Name, path: SeenPath, files: u64, bytes: u64) -> Row {
        Row {
            id: None,
            family: name.family,
            step: name.step,
            path,
            files,
            bytes,
            age_s: None,
            level: None,
            wanted: None,
            whole: Some(true),
            verified: false,
            reason: None,
        }
    }
}

/// Creates the row of a checkpoint in the store. `manifest` is that of this store in the persist
/// directory.
fn in_store(known: &Checkpoint, path: SeenPath, manifest: Option<&Manifest>) -> Row {
    let word = |level| if level == Level::Pfs { "pfs" } else { "node" };
    let reason = manifest.and_then(|manifest| {
        let copied = known.files.iter().filter(|file| manifest.has(file));
        damage(copied.map(|file| &file.path), manifest)
    });
    let level = if reason.is_some() { Level::Node } else { known.level };
    Row {
        id: Some(known.id),
        age_s: Some(age_s(known.modified_ns)),
        level: Some(word(level)),
        wanted: Some(word(known.wanted)),
        verified: level == Level::Pfs,
        reason,
        ..Row::new(known.name.clone(), path, known.files.len() as u64, known.bytes())
    }
}

/// Creates the row of a checkpoint without files in `store`.
fn only_outside(
    drained: &manifest::Checkpoint,
    path: SeenPath,
    manifest: &Manifest,
    store: &str,
) -> Row {
    let reason = damage(drained.files.iter().map(|file| &file.path), manifest);
    Row {
        id: (drained.store == *store).then_some(drained.id),
        age_s: Some(age_s(drained.modified_ns)),
        level: Some("pfs-only"),
        verified: reason.is_none(),
        reason,
        ..Row::new(drained.name.clone(), path, drained.files.len() as u64, drained.bytes())
    }
}

fn not_complete(path: SeenPath, unfinished: Unfinished) -> Row {
    let Unfinished { name, files, bytes, reason, is_unknown, .. } = unfinished;
    let whole = (!is_unknown).then_some(false);
    Row { reason: Some(reason), whole, ..Row::new(name, path, files, bytes) }
}

fn print_rows(rows: &[Row]) {
    if rows.is_empty() {
        return output::line("no checkpoints");
    }
    let headline = ["ID", "STEP", "FILES", "SIZE", "AGE", "LEVEL", "FAMILY"].map(str::to_string);
    let cells: Vec<[String; 7]> = std::iter::once(headline).chain(rows.iter().map(cells)).collect();
    let width = |column: usize| cells.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let [w0, w1, w2, w3, w4, w5, _] = std::array::from_fn(width);
    for [id, step, files, size, age, level, family] in &cells {
        output::line(&format!(
            "{id:>w0$}  {step:>w1$}  {files:>w2$}  {size:>w3$}  {age:>w4$}  {level:<w5$}  {family}"
        ));
    }
}

fn cells(row: &Row) -> [String; 7] {
    let or_dash = |text: Option<String>| text.unwrap_or("-".to_string());
    let level = match (row.level, row.wanted) {
        (Some("pfs-only"), _) if row.reason.is_some() => "pfs, damaged",
        (Some("node"), _) if row.reason.is_some() => "node, not verified",
        (Some("node"), Some("pfs")) => "node, to be drained",
        (Some("pfs"), _) => "node and pfs, verified",
        (Some("pfs-only"), _) => "pfs, verified",
        (Some(level), _) => level,
        (None, _) if row.whole.is_none() => "not known",
        (None, _) => "not complete",
    };
    let family = output::escaped(&row.family.0);
    [
        or_dash(row.id.map(|id| id.to_string())),
        or_dash(row.step.as_ref().map(Step::to_string)),
        row.files.to_string(),
        human(row.bytes),
        or_dash(row.age_s.map(duration::human)),
        level.to_string(),
        match &row.reason {
            Some(reason) => format!("{family} ({reason})"),
            None => family,
        },
    ]
}

/// Returns the files of the newest checkpoint that has a file matching `pattern` and whose data all
/// match their checksums; older checkpoints are tried in turn.
fn newest_files(
    store: &OpenStore,
    volumes: &[Volume],
    mut complete: Vec<Checkpoint>,
    pattern: &str,
) -> Result<Vec<FilePath>> {
    let relative = pattern.strip_prefix(&format!("{}/", store.job.mount)).unwrap_or(pattern);
    let compiled = Pattern::new(relative.trim_start_matches('/')).map_err(|error| {
        Error::Setting(SettingError::Pattern {
            pattern: pattern.to_string(),
            problem: error.msg.to_string(),
        })
    })?;
    complete.sort_by_key(|known| Reverse(known.id));
    let mut buffer = Buffer::default();
    for checkpoint in complete {
        let paths: Vec<FilePath> = checkpoint.files.into_iter().map(|file| file.path).collect();
        let matches = |path: &FilePath| {
            let name = path.split().map(|(_, name)| String::from_utf8_lossy(name).into_owned());
            compiled.matches_with(&path.to_lossy(), MATCHING)
                || name.is_some_and(|name| compiled.matches_with(&name, MATCHING))
        };
        if !paths.iter().any(matches) {
            continue;
        }
        match paths.iter().try_for_each(|path| check(volumes, path, &mut buffer)) {
            Ok(()) => return Ok(paths),
            Err(
                error @ (cairn_agent::Error::Damaged { .. } | cairn_agent::Error::Changed { .. }),
            ) => {
                output::say!("cairn: {} is left out: {error}", checkpoint.name);
            }
            Err(error) if error.is_about_absent_data() => {
                output::say!("cairn: {} is left out: {error}", checkpoint.name);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::Copy(CopyError::NoMatch {
        pattern: pattern.to_string(),
        job: store.job.job.clone(),
    }))
}

/// Compares the data of a file with their checksums.
fn check(volumes: &[Volume], path: &FilePath, buffer: &mut Buffer) -> cairn_agent::Result<()> {
    let Some((volume, inner)) = locate(volumes, path) else { return Ok(()) };
    read_whole(&volume.open_present(&inner)?, buffer, &mut |_| Ok(())).map(|_| ())
}
