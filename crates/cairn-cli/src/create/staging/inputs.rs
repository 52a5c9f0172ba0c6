//! Stages the inputs of a job into its store: files and directories outside that the user named
//! with `--stage-in`.
//!
//! Must stay true: every input is in the store, whole, before a program runs, or the command ends
//! with an error. A file that a program has changed, removed or made is never replaced. What was
//! staged when the command was cut off stays, and the next one continues; what it may have left
//! half recorded is staged again.
//!
//! Files are read with the permissions of the user, once. Does not change the sources.

use cairn_agent::store::extended;
use cairn_agent::store::inputs::{Content, Inputs, Made, SourceState, Staged};
use cairn_agent::store::volume::Volume;
use cairn_agent::store::write::{AbsentFile, Original, set_mtime};
use cairn_core::{InodeId, ROOT, RenameMode};
use cairn_job::file::extended::Extended;
use cairn_job::file::node::{Kind, Tree};
use cairn_job::file::path::{FilePath, building_place};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::limit::Limit;
use super::reuse::Reusable;
use super::site::Site;
use super::sources::{Found, Outside, open};
use super::{ALL_RIGHTS, for_each, is_without_room, lock};
use crate::claim::Claim;
use crate::drain::checkpoints;
use crate::error::{Error, Result, StageError};
use crate::output::progress::Progress;
use crate::output::{count, duration};
use crate::settings::input_options::{InputRequest, ReusePolicy};
use crate::settings::stage_option::Stage;
use crate::size::human;
use crate::store::{building, local, locate};

/// Shortest time between two replacements of the record, and how many times as long as one takes.
const SAVE_EVERY: Duration = Duration::from_secs(2);
const SAVE_SHARE: u32 = 20;
/// Mode of directories above inputs that the user did not name.
const PARENT_MODE: u32 = 0o755;

/// Stages the inputs that `request` names, and those named for the job before, as far as they are
/// not in the store. Errors: a source is missing, cannot be read or changes; the store has no room;
/// the time is over.
pub fn stage(claim: &Claim, request: &InputRequest, stage: Stage, quiet: bool) -> Result<()> {
    let directory = claim.store.directory();
    let mut inputs = Inputs::load(directory)?;
    inputs.name(&request.named);
    if inputs.named.is_empty() {
        return Ok(());
    }
    let volumes = claim.store.volumes()?;
    let [volume] = &volumes[..] else { return Err(Error::Stage(StageError::OfRanks)) };
    let limit = Limit::begin(request.timeout);
    let tree = volume.tree()?;
    let found = Found::look(&inputs, &tree)?;
    let Plan { found, told } = Plan::of(found, &inputs, &tree)?;
    told.lines(&found).iter().filter(|_| !quiet).for_each(|line| say(claim, line));
    // What an earlier command was about to stage, and has gone at the source, is not to come.
    inputs.staged.retain(|_, staged| staged.made.is_some());
    for one in found.all() {
        let before = tree.get(&one.path).map(|node| (node.inode, node.version));
        let (source, content) = (one.source.clone(), one.content.clone());
        let staged = Staged { source, content, made: None, before };
        inputs.staged.insert(one.path.clone(), staged);
    }
    // Also if nothing is to be staged: what is named now counts for the next run.
    inputs.save(directory)?;
    limit.set_total(found.files.len());
    let reusable = Reusable::beside(directory, &request.reuse)?;
    let staging = Staging {
        directory,
        volume,
        reusable: &reusable,
        built: AtomicU64::new(0),
        reused: AtomicU64::new(0),
        site: request.slots.as_ref().map(|slots| Site::new(slots, claim, quiet)),
        record: Mutex::new((inputs, Instant::now() + SAVE_EVERY)),
        limit: &limit,
    };
    let bytes: u64 = found.files.iter().map(|file| file.metadata.len()).sum();
    let is_on_demand = matches!(stage, Stage::OnDemand(_)) && claim.is_new;
    if !found.files.is_empty() {
        building::begin(volume)?;
    }
    let restricted = staging.open_up(&found, &tree)?;
    staging.names(&found, &tree)?;
    let staged = staging.bring(&found.files, is_on_demand, (bytes, quiet));
    building::clear(&volumes);
    let finished = staging.finish(&found, restricted);
    staging.save()?;
    staged.and(finished)?;
    if !quiet && !found.files.is_empty() {
        let files = count(found.files.len() as u64, "input file");
        let done =
            if is_on_demand { "to be staged in while the command runs" } else { "staged in" };
        let reused = match staging.reused.load(Ordering::Relaxed) {
            0 => String::new(),
            reused => format!(", {reused} of them from this node"),
        };
        say(claim, &format!("{files}, {}, {done}{reused}", human(bytes)));
    }
    Ok(())
}

fn say(claim: &Claim, line: &str) {
    crate::output::say!("cairn: {}: {line}", claim.store.job.job);
}

/// What is worth a line before files are staged.
#[derive(Default)]
struct Told {
    /// Files in the store that the job made, drained or changed, and that stay as they are.
    own: u64,
    /// Files whose source has changed since they were staged.
    changed: u64,
}

impl Told {
    fn lines(&self, found: &Found) -> Vec<String> {
        let mut lines = Vec::new();
        for source in &found.gone {
            lines.push(format!("{} is gone; what was staged from it stays", source.display()));
        }
        if self.changed > 0 {
            let files = count(self.changed, "input file");
            lines.push(format!("{files} changed at the source and will be staged again"));
        }
        if self.own > 0 {
            let files = count(self.own, "input file");
            lines
                .push(format!("{files} not staged: the job has files of its own with these names"));
        }
        if let Some(first) = found.others.first() {
            let more = match found.others.len() - 1 {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let first = first.display();
            lines.push(format!(
                "left out, because only files, directories and links can be staged: {first}{more}"
            ));
        }
        lines
    }
}

/// What is to be staged of what there is.
struct Plan {
    found: Found,
    told: Told,
}

impl Plan {
    /// Decides what is to be staged. Errors: a directory that the user names would have to replace
    /// a file of the job.
    fn of(mut found: Found, inputs: &Inputs, tree: &Tree) -> Result<Plan> {
        let mut told = Told::default();
        for named in &inputs.named {
            let is_directory = found.directories.iter().any(|one| one.path == named.path);
            let is_own = tree.get(&named.path).is_some_and(|node| {
                node.kind != Kind::Directory && !inputs.is_unchanged(&named.path, node)
            });
            if is_directory && is_own && !inputs.staged.contains_key(&named.path) {
                let (source, path) = (named.source.clone(), named.path.to_string());
                return Err(Error::Stage(StageError::Taken { source_path: source, path }));
            }
        }
        // Directories first, parents before what is in them.
        let mut gone: HashSet<FilePath> = HashSet::new();
        let is_below = |path: &FilePath, gone: &HashSet<FilePath>| {
            path.split().is_some_and(|(parent, _)| gone.contains(&parent))
        };
        found.directories.retain(|one| {
            let verdict = verdict(one, inputs, tree);
            let is_lost = verdict == Verdict::Own || is_below(&one.path, &gone);
            if is_lost {
                gone.insert(one.path.clone());
            }
            !is_lost && verdict != Verdict::There && !one.path.is_root()
        });
        let mut is_wanted = |one: &Outside| {
            if is_below(&one.path, &gone) {
                return false;
            }
            let verdict = verdict(one, inputs, tree);
            told.own += u64::from(verdict == Verdict::Own && tree.contains_key(&one.path));
            told.changed += u64::from(verdict == Verdict::Changed);
            matches!(verdict, Verdict::New | Verdict::Changed)
        };
        found.files.retain(&mut is_wanted);
        found.links.retain(&mut is_wanted);
        Ok(Plan { found, told })
    }
}

/// Whether something outside is to be staged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The store does not have it.
    New,
    /// The store has it, but the source has changed.
    Changed,
    /// The store has it.
    There,
    /// Programs have something else there, or have removed it.
    Own,
}

fn verdict(one: &Outside, inputs: &Inputs, tree: &Tree) -> Verdict {
    let (known, there) = (inputs.staged.get(&one.path), tree.get(&one.path));
    match (known, there) {
        (None, None) => Verdict::New,
        // Two inputs, or an input and what was drained, share a directory.
        (None, Some(node)) if node.kind == Kind::Directory && one.is_directory() => Verdict::There,
        (None, Some(_)) => Verdict::Own,
        (Some(staged), None) if staged.made.is_none() => Verdict::New,
        (Some(_), None) => Verdict::Own,
        (Some(staged), Some(node)) => match staged.is_unchanged(node) {
            true if staged.made.is_none() => Verdict::New,
            true if (&staged.source, &staged.content) == (&one.source, &one.content) => {
                Verdict::There
            }
            true => Verdict::Changed,
            false if node.kind == Kind::Directory && one.is_directory() => Verdict::There,
            false => Verdict::Own,
        },
    }
}

/// Stages files into one namespace.
struct Staging<'a> {
    directory: &'a Path,
    volume: &'a Volume,
    reusable: &'a Reusable,
    /// Number of files that were begun.
    built: AtomicU64,
    /// Number of files that an earlier job had kept on this node.
    reused: AtomicU64,
    /// The slots of the site.
    site: Option<Site>,
    /// The record, and when it is to be saved next.
    record: Mutex<(Inputs, Instant)>,
    limit: &'a Limit,
}

impl Staging<'_> {
    /// Makes the directories above everything that is to be staged, except for those that are
    /// staged themselves, and gives their owner all permissions there. Returns the directories
    /// whose owner had less, with their modes.
    fn open_up(&self, found: &Found, tree: &Tree) -> Result<BTreeMap<FilePath, u32>> {
        let own: HashSet<&FilePath> = found.directories.iter().map(|one| &one.path).collect();
        let mut parents: BTreeSet<FilePath> = BTreeSet::new();
        for one in found.all() {
            let mut parent = one.path.split().map(|(parent, _)| parent);
            while let Some(path) = parent.filter(|path| !path.is_root()) {
                parent = path.split().map(|(parent, _)| parent);
                if !parents.insert(path) {
                    break;
                }
            }
        }
        let mut restricted = BTreeMap::new();
        for path in parents.into_iter().filter(|path| !own.contains(path)) {
            match tree.get(&path) {
                None => {
                    local::make_directory(self.volume, &path, PARENT_MODE, &Extended::default())?;
                    let content = Content::Directory(PARENT_MODE);
                    let source = PathBuf::new();
                    let staged = Staged { source, content, made: None, before: None };
                    lock(&self.record).0.staged.insert(path.clone(), staged);
                    self.note(&path, None)?;
                }
                Some(node) if node.mode & ALL_RIGHTS != ALL_RIGHTS => {
                    self.set_mode(&path, InodeId(node.inode), node.mode | ALL_RIGHTS)?;
                    restricted.insert(path, node.mode);
                }
                Some(_) => {}
            }
        }
        Ok(restricted)
    }

    fn set_mode(&self, path: &FilePath, inode: InodeId, mode: u32) -> Result<()> {
        let set = self.volume.fs().set_mode(&self.volume.caller(), inode, mode & 0o7777);
        Ok(set.map_err(self.volume.error("set the attributes of", path))?)
    }

    /// Makes directories, with all permissions for their owner, and symbolic links.
    fn names(&self, found: &Found, tree: &Tree) -> Result<()> {
        for one in &found.directories {
            self.remove_other(one, tree)?;
            let extended = File::open(&one.source).map(extended::read).unwrap_or_default();
            let mode = one.metadata.mode() | ALL_RIGHTS;
            local::make_directory(self.volume, &one.path, mode, &extended)?;
        }
        for one in &found.links {
            self.remove_other(one, tree)?;
            let Content::Symlink(target) = &one.content else { continue };
            let mtime_ns = local::mtime_ns(&one.metadata);
            local::make_symlink(self.volume, &one.path, target, mtime_ns)?;
            self.note(&one.path, None)?;
        }
        for one in &found.files {
            self.remove_other(one, tree)?;
        }
        Ok(())
    }

    /// Removes an unchanged input whose source has become something of another kind.
    fn remove_other(&self, one: &Outside, tree: &Tree) -> Result<()> {
        let (fs, caller) = (self.volume.fs(), self.volume.caller_as_user());
        let removed = match tree.get(&one.path) {
            Some(node) if node.kind != one.content.kind() => match node.kind {
                Kind::Directory => fs.remove_directory(&caller, ROOT, one.path.as_bytes()),
                Kind::File | Kind::Symlink => fs.unlink(&caller, ROOT, one.path.as_bytes()),
            },
            _ => return Ok(()),
        };
        Ok(removed.map_err(self.volume.error("replace", &one.path))?)
    }

    /// Gives directories their own modes and times, and the `restricted` ones theirs. The content
    /// of a directory comes before the directory.
    fn finish(&self, found: &Found, restricted: BTreeMap<FilePath, u32>) -> Result<()> {
        for one in found.directories.iter().rev() {
            let inode = self.volume.attributes(&one.path)?.inode;
            self.set_mode(&one.path, inode, one.metadata.mode())?;
            let set = set_mtime(self.volume, inode, local::mtime_ns(&one.metadata));
            set.map_err(self.volume.error("set the time of", &one.path))?;
            self.note(&one.path, None)?;
        }
        for (path, mode) in restricted.iter().rev() {
            self.set_mode(path, self.volume.attributes(path)?.inode, *mode)?;
        }
        Ok(())
    }

    /// Stages files, several at a time, the largest first. With `is_on_demand`, the agent brings
    /// their data while programs run, except for those that are on this node. Names of one file
    /// become names of one file again.
    fn bring(
        &self,
        files: &[Outside],
        is_on_demand: bool,
        (bytes, quiet): (u64, bool),
    ) -> Result<()> {
        let mut first: HashMap<(u64, u64), &Outside> = HashMap::new();
        let (mut copies, mut links) = (Vec::new(), Vec::new());
        for file in files {
            let key = (file.metadata.dev(), file.metadata.ino());
            match first.get(&key) {
                Some(&other) if file.metadata.nlink() > 1 => links.push((file, other)),
                _ => {
                    first.insert(key, file);
                    copies.push(file);
                }
            }
        }
        copies.sort_by_key(|file| std::cmp::Reverse(file.metadata.len()));
        let progress = Mutex::new(Progress::new("staging in", bytes, quiet || is_on_demand));
        for_each(&copies, |&file| {
            let mut advance = |bytes| {
                lock(&progress).advance(bytes);
                self.site.iter().for_each(Site::renew);
                self.limit.check()
            };
            let no_room = |error| match is_without_room(&error) {
                true => {
                    let (path, bytes) = (file.source.clone(), human(bytes));
                    Error::Stage(StageError::NoRoom { path, bytes })
                }
                false => error,
            };
            let crc32c = match self.copy_kept(file, &mut advance).map_err(no_room)? {
                Some(crc32c) => Some(crc32c),
                // Files without a length may have data all the same, in /proc for example.
                None if is_on_demand && file.metadata.len() > 0 => self.announce(file)?,
                None => Some(self.copy(file, &mut advance).map_err(no_room)?),
            };
            self.note(&file.path, crc32c)
        })?;
        for (file, other) in links {
            self.link(&other.path, &file.path)?;
            let made = lock(&self.record).0.staged.get(&other.path).and_then(|it| it.made);
            self.note(&file.path, made.and_then(|made| made.crc32c))?;
        }
        Ok(())
    }

    /// Copies a file into the store. Returns the CRC32C of its data. Errors: it changed meanwhile.
    fn copy(&self, file: &Outside, advance: &mut dyn FnMut(u64) -> Result<()>) -> Result<u32> {
        let state = SourceState::of(&file.metadata);
        if let Some(site) = &self.site {
            site.enter(&|| self.limit.check())?;
        }
        let copied = self.build(file, |built| {
            let source = open(&file.source)?;
            let other = source.try_clone().map_err(Error::file("open", &file.source))?;
            let copied =
                local::copy_in((other, &file.source), None, (self.volume, built), None, advance)?;
            let now = source.metadata().map_err(Error::file("look at", &file.source))?;
            Ok(copied.filter(|_| SourceState::of(&now) == state))
        })?;
        let changed = || Error::Stage(StageError::Changed { path: file.source.clone() });
        copied.ok_or_else(changed)
    }

    /// Lets `copy` build a file under a name that no program sees, and gives it its own name if
    /// that succeeds. A killed command leaves nothing under another name.
    fn build(
        &self,
        file: &Outside,
        copy: impl FnOnce(&FilePath) -> Result<Option<u32>>,
    ) -> Result<Option<u32>> {
        let number = self.built.fetch_add(1, Ordering::Relaxed);
        let built = building_place().join(format!("input-{number}").as_bytes());
        let copied = copy(&built)?;
        if copied.is_some() {
            let (fs, caller) = (self.volume.fs(), self.volume.caller());
            let (from, to) = ((ROOT, built.as_bytes()), (ROOT, file.path.as_bytes()));
            let renamed = fs.rename(&caller, from, to, RenameMode::Replace);
            renamed.map_err(self.volume.error("make", &file.path))?;
        }
        Ok(copied)
    }

    /// Copies a file that an earlier job has kept on this node into the store. Returns the CRC32C
    /// of its data; None if there is none, or its data are not what they were.
    fn copy_kept(
        &self,
        file: &Outside,
        advance: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Option<u32>> {
        let state = SourceState::of(&file.metadata);
        let Some((kept, name, expected)) = self.reusable.find(&file.source, state) else {
            return Ok(None);
        };
        let volume = self.volume;
        let copied = self.build(file, |built| {
            // What the source is now counts, not what an earlier job has made of its copy.
            let like = open(&file.source)?;
            local::copy_in((kept, &name), Some(&like), (volume, built), Some(expected), advance)
        })?;
        match copied {
            Some(_) => drop(self.reused.fetch_add(1, Ordering::Relaxed)),
            None => self.reusable.forget(&file.source),
        }
        Ok(copied)
    }

    /// Makes a file whose data the agent stages in while programs run. Nobody knows their checksum.
    fn announce(&self, file: &Outside) -> Result<Option<u32>> {
        let extended = extended::read(open(&file.source)?);
        let (bytes, mode) = (file.metadata.len(), file.metadata.mode());
        let mtime_ns = local::mtime_ns(&file.metadata);
        let original = Original { bytes, crc32c: 0, mode, mtime_ns };
        AbsentFile::create(self.volume, &file.path, &original, &extended)?;
        Ok(None)
    }

    fn link(&self, other: &FilePath, path: &FilePath) -> Result<()> {
        let (fs, caller) = (self.volume.fs(), self.volume.caller_as_user());
        let link = || fs.link(&caller, (ROOT, other.as_bytes()), (ROOT, path.as_bytes()), false);
        let linked = match link() {
            Err(cairn_core::Error::Exists) => {
                let removed = fs.unlink(&caller, ROOT, path.as_bytes());
                removed.map_err(self.volume.error("replace", path))?;
                link()
            }
            linked => linked,
        };
        Ok(linked.map_err(self.volume.error("give another name to", other))?)
    }

    /// Records that something is in the store as it is to be; `crc32c` is that of a file's data.
    fn note(&self, path: &FilePath, crc32c: Option<u32>) -> Result<()> {
        let there = self.volume.attributes(path)?;
        let (inode, version) = (there.inode.0, there.version);
        let (mode, mtime_ns) = (there.mode & 0o7777, there.modified.0);
        let mut record = lock(&self.record);
        if let Some(staged) = record.0.staged.get_mut(path) {
            staged.made = Some(Made { inode, version, mode, mtime_ns, crc32c });
            staged.before = None;
            if matches!(staged.content, Content::File(_)) {
                self.limit.note_file();
            }
        }
        let begun = Instant::now();
        if begun < record.1 {
            return Ok(());
        }
        record.0.save(self.directory)?;
        record.1 = Instant::now() + SAVE_EVERY.max(begun.elapsed() * SAVE_SHARE);
        Ok(())
    }

    fn save(&self) -> Result<()> {
        Ok(lock(&self.record).0.save(self.directory)?)
    }
}

/// Keeps the inputs of a job that are tagged reusable and that nobody has changed on this node, for
/// the next job that names the same sources. Returns a line about it. Errors: one cannot be read or
/// written.
pub fn keep(claim: &Claim, policy: &ReusePolicy) -> Result<Option<String>> {
    let volumes = claim.store.volumes()?;
    let mut files = checkpoints::reusable_inputs(&claim.store, &volumes)?;
    if policy.lease.is_zero() || files.is_empty() {
        return Ok(None);
    }
    files.sort_by_key(|(_, _, state)| std::cmp::Reverse(state.bytes));
    let reusable = Reusable::beside(claim.store.directory(), policy)?;
    let (mut kept, mut bytes, mut left) = (0, 0, 0);
    for (path, source, state) in &files {
        let Some((volume, inner)) = locate(&volumes, path) else { continue };
        match reusable.keep(volume, &inner, (source, *state))? {
            true => (kept, bytes) = (kept + 1, bytes + state.bytes),
            false => left += 1,
        }
    }
    let (lease, without) = (
        duration::human(policy.lease.as_secs_f64()),
        match left {
            0 => String::new(),
            left => format!("; {} had no room (--reuse-size)", count(left, "file")),
        },
    );
    let files = count(kept, "input file");
    let bytes = human(bytes);
    Ok(Some(format!("{files}, {bytes}, stay on this node for other jobs, for {lease}{without}")))
}
