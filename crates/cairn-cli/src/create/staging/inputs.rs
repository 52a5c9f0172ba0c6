//! Stages the inputs of a job into its store: files and directories outside that the user named
//! with `--stage-in`.
//!
//! Must stay true: every input is in the store, whole, before a program runs, or the command ends
//! with an error. A file that a program has changed, removed or made is never replaced. What was
//! staged when the command was cut off stays, and the next one continues; what it may have left
//! half recorded is staged again.
//!
//! Files are read with the permissions of the user, once. Does not change the sources.

use cairn_agent::model::path::{FilePath, building_place};
use cairn_agent::store::extended::Extended;
use cairn_agent::store::inputs::{Inputs, SourceState, StagedFile};
use cairn_agent::store::node::Tree;
use cairn_agent::store::volume::Volume;
use cairn_agent::store::write::{AbsentFile, Original};
use cairn_core::{InodeId, ROOT, RenameMode};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::reuse::Reusable;
use super::site::Site;
use super::sources::{Found, Outside, open};
use super::{ALL_RIGHTS, for_each, lock, restrict};
use crate::create::claim::Claim;
use crate::drain::checkpoints;
use crate::error::{Error, Result, StageError};
use crate::output::progress::Progress;
use crate::output::size::human;
use crate::output::{count, duration};
use crate::settings::input_options::{InputRequest, ReusePolicy};
use crate::settings::stage_option::Stage;
use crate::store::{building, local, locate};

/// Shortest time between two replacements of the record.
const SAVE_EVERY: Duration = Duration::from_secs(2);
/// Mode of directories above inputs that the user did not name.
const PARENT_MODE: u32 = 0o755;
/// Inode number of a file that is still to be staged. No file has it.
pub const TO_COME: u32 = 0;

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
    let deadline = request.timeout.map(|timeout| (Instant::now() + timeout, timeout));
    let mut found = Found::default();
    for input in &inputs.named {
        found.walk(input, &inputs)?;
    }
    let tree = volume.tree()?;
    let mut told = Told::default();
    found.files.retain(|file| is_wanted(file, &inputs, &tree, &mut told));
    told.lines(&found).iter().filter(|_| !quiet).for_each(|line| say(claim, line));
    // Programs have run since these were made, unless the command that made them was cut off.
    let was_cut_off = inputs.files.values().any(|file| file.inode == TO_COME);
    let is_new = |path: &FilePath| {
        let is_made = tree.contains_key(path) || inputs.others.contains_key(path);
        !path.is_root() && (!is_made || was_cut_off)
    };
    found.directories.retain(|one| is_new(&one.path));
    found.links.retain(|one| is_new(&one.path));
    for file in &found.files {
        let (source, state) = (file.source.clone(), SourceState::of(&file.metadata));
        let staged = StagedFile { source, state, crc32c: None, inode: TO_COME, version: 0 };
        inputs.files.insert(file.path.clone(), staged);
    }
    // Also if nothing is to be staged: what is named now counts for the next run.
    inputs.save(directory)?;
    let reusable = Reusable::beside(directory, &request.reuse);
    let staging = Staging {
        directory,
        volume,
        reusable: &reusable,
        built: AtomicU64::new(0),
        reused: AtomicU64::new(0),
        site: request.slots.as_ref().map(|slots| Site::new(slots, claim, quiet)),
        record: Mutex::new((inputs, Instant::now())),
        deadline,
        total: found.files.len(),
    };
    let bytes: u64 = found.files.iter().map(|file| file.metadata.len()).sum();
    let is_on_demand = matches!(stage, Stage::OnDemand(_)) && claim.is_new;
    if !found.files.is_empty() {
        building::begin(volume)?;
    }
    let restricted = staging.open_up(&found.files, &tree)?;
    staging.names(&found)?;
    let staged = match is_on_demand {
        true => staging.announce(&found.files),
        false => staging.bring(&found.files, (bytes, quiet)),
    };
    staging.save()?;
    building::clear(&volumes);
    let directories = found.directories.iter().map(|one| (&one.path, one.metadata.mode()));
    let restricted = restricted.iter().map(|(path, mode)| (path, *mode));
    let all: Vec<(&FilePath, u32)> = restricted.chain(directories).collect();
    restrict(&volumes, all.into_iter().rev())?;
    staged?;
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

/// Whether an input file is to be staged.
fn is_wanted(file: &Outside, inputs: &Inputs, tree: &Tree, told: &mut Told) -> bool {
    let known = inputs.files.get(&file.path);
    let there = tree.get(&file.path);
    let is_same = known.is_some_and(|known| {
        (&known.source, known.state) == (&file.source, SourceState::of(&file.metadata))
    });
    match (known, there) {
        // An earlier command was about to stage it, and no program has run since.
        (Some(StagedFile { inode: TO_COME, .. }), _) => true,
        (None, None) => true,
        (None, Some(_)) => {
            told.own += 1;
            false
        }
        // Programs have it, or what they made of it, or have removed it.
        (Some(_), None) => false,
        (Some(_), Some(_)) if is_same => false,
        (Some(_), Some(node)) if !inputs.is_unchanged(&file.path, node) => {
            told.own += 1;
            false
        }
        (Some(_), Some(_)) => {
            told.changed += 1;
            true
        }
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
    /// The record, and when it was last saved.
    record: Mutex<(Inputs, Instant)>,
    /// When the time is over, and how long it was.
    deadline: Option<(Instant, Duration)>,
    /// Number of files to stage.
    total: usize,
}

impl Staging<'_> {
    /// Makes the directories above files that are to be staged, or gives their owner all
    /// permissions there. Returns the directories whose owner had less, with their modes.
    fn open_up(&self, files: &[Outside], tree: &Tree) -> Result<BTreeMap<FilePath, u32>> {
        let mut parents: BTreeSet<FilePath> = BTreeSet::new();
        for file in files {
            let mut parent = file.path.split().map(|(parent, _)| parent);
            while let Some(path) = parent.filter(|path| !path.is_root()) {
                parent = path.split().map(|(parent, _)| parent);
                if !parents.insert(path) {
                    break;
                }
            }
        }
        let mut restricted = BTreeMap::new();
        for path in parents {
            match tree.get(&path) {
                None => {
                    local::make_directory(self.volume, &path, PARENT_MODE, &Extended::default())?;
                    self.note_other(&path)?;
                }
                Some(node) if node.mode & ALL_RIGHTS != ALL_RIGHTS => {
                    let (fs, caller) = (self.volume.fs(), self.volume.caller());
                    let mode = node.mode & 0o7777 | ALL_RIGHTS;
                    let set = fs.set_mode(&caller, InodeId(node.inode), mode);
                    set.map_err(self.volume.error("set the attributes of", &path))?;
                    restricted.insert(path, node.mode);
                }
                Some(_) => {}
            }
        }
        Ok(restricted)
    }

    /// Makes directories, with all permissions for their owner, and symbolic links.
    fn names(&self, found: &Found) -> Result<()> {
        for one in &found.directories {
            let extended = File::open(&one.source).map(Extended::read).unwrap_or_default();
            let mode = one.metadata.mode() | ALL_RIGHTS;
            local::make_directory(self.volume, &one.path, mode, &extended)?;
            self.note_other(&one.path)?;
        }
        for one in &found.links {
            let target = fs::read_link(&one.source).map_err(Error::file("read", &one.source))?;
            let mtime_ns = local::mtime_ns(&one.metadata);
            local::make_symlink(self.volume, &one.path, target.as_os_str().as_bytes(), mtime_ns)?;
            self.note_other(&one.path)?;
        }
        Ok(())
    }

    /// Stages the data of files, several at a time, the largest first. Names of one file become
    /// names of one file again.
    fn bring(&self, files: &[Outside], (bytes, quiet): (u64, bool)) -> Result<()> {
        let mut first: HashMap<(u64, u64), &FilePath> = HashMap::new();
        let (mut copies, mut links) = (Vec::new(), Vec::new());
        for file in files {
            let key = (file.metadata.dev(), file.metadata.ino());
            match first.get(&key) {
                Some(&other) if file.metadata.nlink() > 1 => links.push((file, other)),
                _ => {
                    first.insert(key, &file.path);
                    copies.push(file);
                }
            }
        }
        copies.sort_by_key(|file| std::cmp::Reverse(file.metadata.len()));
        let progress = Mutex::new(Progress::new("staging in", bytes, quiet));
        for_each(&copies, |&file| {
            let mut advance = |bytes| {
                lock(&progress).advance(bytes);
                self.site.iter().for_each(Site::renew);
                self.check_time()
            };
            let no_room = |error| match error {
                Error::Agent(cairn_agent::Error::Store {
                    source: cairn_core::Error::NoSpace,
                    ..
                }) => Error::Stage(StageError::NoRoom {
                    path: file.source.clone(),
                    bytes: human(bytes),
                }),
                error => error,
            };
            let crc32c = self.copy(file, &mut advance).map_err(no_room)?;
            self.note(file, Some(crc32c))
        })?;
        for (file, other) in links {
            let crc32c = lock(&self.record).0.files.get(other).and_then(|known| known.crc32c);
            self.link(other, &file.path)?;
            self.note(file, crc32c)?;
        }
        Ok(())
    }

    /// Copies a file into the store, from this node if an earlier job has kept it. Returns the
    /// CRC32C of its data. Errors: it changed meanwhile.
    fn copy(&self, file: &Outside, advance: &mut dyn FnMut(u64) -> Result<()>) -> Result<u32> {
        if let Some(crc32c) = self.copy_kept(file, advance)? {
            return Ok(crc32c);
        }
        let state = SourceState::of(&file.metadata);
        if let Some(site) = &self.site {
            site.enter(&|| self.check_time())?;
        }
        let copied = self.build(file, |built| {
            let source = open(&file.source)?;
            let other = source.try_clone().map_err(Error::file("open", &file.source))?;
            let copied = local::copy_in(other, &file.source, self.volume, built, None, advance)?;
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
            local::copy_in(kept, &name, volume, built, Some(expected), advance)
        })?;
        match copied {
            Some(_) => drop(self.reused.fetch_add(1, Ordering::Relaxed)),
            None => self.reusable.forget(&file.source),
        }
        Ok(copied)
    }

    /// Makes files whose data the agent stages in while programs run, except for those that are on
    /// this node.
    fn announce(&self, files: &[Outside]) -> Result<()> {
        for file in files {
            if let Some(crc32c) = self.copy_kept(file, &mut |_| Ok(()))? {
                self.note(file, Some(crc32c))?;
                continue;
            }
            let extended = Extended::read(open(&file.source)?);
            let (bytes, mode) = (file.metadata.len(), file.metadata.mode());
            let mtime_ns = local::mtime_ns(&file.metadata);
            // Nobody has read the data yet.
            let original = Original { bytes, crc32c: 0, mode, mtime_ns };
            AbsentFile::create(self.volume, &file.path, &original, &extended)?;
            self.note(file, None)?;
        }
        Ok(())
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

    /// Records that a directory or symbolic link was made for the inputs.
    fn note_other(&self, path: &FilePath) -> Result<()> {
        let inode = self.volume.attributes(path)?.inode.0;
        lock(&self.record).0.others.insert(path.clone(), inode);
        Ok(())
    }

    /// Records that a file is in the store.
    fn note(&self, file: &Outside, crc32c: Option<u32>) -> Result<()> {
        let there = self.volume.attributes(&file.path)?;
        let mut record = lock(&self.record);
        if let Some(staged) = record.0.files.get_mut(&file.path) {
            (staged.inode, staged.version, staged.crc32c) = (there.inode.0, there.version, crc32c);
        }
        if record.1.elapsed() < SAVE_EVERY {
            return Ok(());
        }
        record.0.save(self.directory)?;
        record.1 = Instant::now();
        Ok(())
    }

    fn save(&self) -> Result<()> {
        Ok(lock(&self.record).0.save(self.directory)?)
    }

    fn check_time(&self) -> Result<()> {
        match self.deadline {
            Some((deadline, limit)) if Instant::now() > deadline => {
                let record = lock(&self.record);
                let left = record.0.files.values().filter(|file| file.inode == TO_COME).count();
                let (here, total) = (self.total - left.min(self.total), self.total);
                let limit = duration::human(limit.as_secs_f64());
                Err(Error::Stage(StageError::Late { limit, here, total }))
            }
            _ => Ok(()),
        }
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
    files.sort_by_key(|(_, staged)| std::cmp::Reverse(staged.state.bytes));
    let reusable = Reusable::beside(claim.store.directory(), policy);
    let (mut kept, mut bytes, mut left) = (0, 0, 0);
    for (path, staged) in &files {
        let Some((volume, inner)) = locate(&volumes, path) else { continue };
        match reusable.keep(volume, &inner, staged)? {
            true => (kept, bytes) = (kept + 1, bytes + staged.state.bytes),
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
