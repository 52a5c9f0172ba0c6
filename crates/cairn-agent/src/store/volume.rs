//! One namespace of a store as the agent and the tools use it: attached with a process slot of its
//! own, like any process.
//!
//! Must stay true: opened files are released on every path. The tools see every file whatever its
//! mode, because the store belongs to one user. Nothing here writes file data.
//!
//! Does not decide what is drained.

use cairn_core::{
    Attributes, Caller, Credentials, HandleId, InodeId, Microfs, Moment, OpenOptions,
    PATH_BYTES_MAX, Position, Prospect, ROOT, ReadPlan, Rendezvous, SlotId, StaleBlock, Timestamp,
};
use cairn_device::store::namespace::{self, open_namespace};
use cairn_device::{Device, MediumKind, Namespace, Store, TierPlace};
use cairn_platform::sys;
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::model::error::{Error, Result};
use crate::model::job::Scope;
use crate::model::protocol::Silent;
use crate::store::reaper;
use cairn_job::file::extended::Extended;
use cairn_job::file::node::{Kind, Node, Tree};
use cairn_job::file::path::{FilePath, building_place};
use cairn_job::outside::manifest::LogPosition;

/// Interval at which `open_present` checks whether a file has its data.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Depth at which a tree counts as damaged.
const DEPTH_MAX: usize = 1024;

/// An attached namespace.
pub struct Volume {
    name: String,
    prefix: FilePath,
    namespace: Namespace,
    places: Vec<TierPlace>,
    slot: SlotId,
    detaches: bool,
    /// Whether this is the read-only view of an image.
    is_image: bool,
}

/// Path below which the files of namespace `name` appear to the user: the root, unless every rank
/// has a namespace of its own.
pub fn prefix_of(name: &str, scope: Scope) -> FilePath {
    match scope {
        Scope::Node => FilePath::root(),
        Scope::Rank => FilePath::root().join(name.as_bytes()),
    }
}

/// Returns the present time.
pub fn now() -> Timestamp {
    cairn_platform::sys::now()
}

impl Volume {
    /// Opens the namespace `name` of `store` and attaches to it. Its files appear to the user below
    /// `prefix`. Errors: its metadata are damaged.
    pub fn open(store: &Store, name: &str, prefix: FilePath) -> Result<Volume> {
        let namespace = open_namespace(store, name)?;
        let places = namespace::places(store, name)?;
        let in_store = |source| Error::store("attach to", &prefix)(source);
        let identity = cairn_platform::process::identity()
            .map_err(|errno| std::io::Error::from_raw_os_error(errno.0))
            .map_err(Error::file("read", Path::new("/proc/self/stat")))?;
        namespace.fs.check_metadata().map_err(in_store)?;
        let attached = namespace.fs.attach_service(identity).map_err(in_store)?;
        // If Cairn's library is loaded into a tool as well, both share one slot, and the library
        // releases it at exit.
        let shared = attached.known || std::env::var_os("CAIRN_MOUNT").is_some();
        Ok(Volume {
            name: name.to_string(),
            prefix,
            namespace,
            places,
            slot: attached.slot,
            detaches: !shared,
            is_image: false,
        })
    }

    /// Cuts an image of all `volumes` at one moment: if a call is in the image of one of them, so
    /// is everything in the others that it depends on. Errors: one of them cannot hold an image,
    /// and no image that was begun here is held then.
    pub fn begin_images(volumes: &[Arc<Volume>]) -> Result<()> {
        let Some((first, others)) = volumes.split_first() else { return Ok(()) };
        let rendezvous = &Rendezvous::new(volumes.len());
        let begin = |volume: &Volume| volume.fs().begin_image_together(rendezvous);
        // One thread each, because a thread holds at most one lock.
        let begun: Vec<cairn_core::Result<u64>> = thread::scope(|scope| {
            let start = |volume| {
                let started = thread::Builder::new().spawn_scoped(scope, move || begin(volume));
                started.inspect_err(|_| rendezvous.fail())
            };
            let threads: Vec<_> = others.iter().map(|volume| start(volume)).collect();
            let mine = begin(first);
            let theirs = threads.into_iter().map(|thread| match thread.map(|it| it.join()) {
                Ok(Ok(begun)) => begun,
                _ => Err(cairn_core::Error::Busy),
            });
            std::iter::once(mine).chain(theirs).collect()
        });
        let failed = || Error::store("take an image of", &FilePath::root());
        let Some(error) = begun.iter().find_map(|begun| begun.err()) else { return Ok(()) };
        for (volume, _) in volumes.iter().zip(&begun).filter(|(_, begun)| begun.is_ok()) {
            volume.fs().end_image().map_err(failed())?;
        }
        Err(failed()(error))
    }

    /// Opens the image that `live` holds, for reading. Errors: it holds none.
    pub fn open_image(store: &Store, live: &Volume) -> Result<Volume> {
        Ok(Volume {
            name: live.name.clone(),
            prefix: live.prefix.clone(),
            namespace: namespace::open_image(store, &live.namespace)?,
            places: live.places.clone(),
            slot: live.slot,
            detaches: false,
            is_image: true,
        })
    }

    /// Returns the position of the log's end, if the log is on a medium.
    pub fn position(&self) -> Option<LogPosition> {
        let identity = self.places.first().filter(|_| self.fs().is_durable())?.identity_words()?;
        let medium = identity.iter().map(|word| format!("{word:016x}")).collect();
        let (epoch, lsn) = (self.fs().media_epoch(), self.fs().last_lsn());
        Some(LogPosition { medium, epoch, lsn })
    }

    /// Whether this is the view of an image.
    pub fn is_image(&self) -> bool {
        self.is_image
    }

    /// Packs small files into shared blocks to make room. False if that made none.
    pub fn pack(&self) -> bool {
        self.namespace.pack(&self.caller()).unwrap_or(false)
    }

    /// Returns the name of the namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path of its files as the user sees them, relative to the persist directory.
    pub fn prefix(&self) -> &FilePath {
        &self.prefix
    }

    /// Returns the core.
    pub fn fs(&self) -> &Microfs {
        &self.namespace.fs
    }

    /// Drops the references of descriptors that were sent and never received, see
    /// `Namespace::reap_transfers`.
    pub fn reap_transfers(&self) -> cairn_core::Result<()> {
        self.namespace.reap_transfers()
    }

    /// Frees memory that mappings of ended programs left, as long as `goes_on` returns true, see
    /// `Namespace::evict_unmapped`.
    pub fn evict_unmapped(&self, goes_on: &dyn Fn() -> bool) -> cairn_core::Result<()> {
        self.namespace.evict_unmapped(goes_on)
    }

    /// Returns the slot of this process.
    pub fn slot(&self) -> SlotId {
        self.slot
    }

    /// Size of a hugeblock, bytes.
    pub fn hugeblock_bytes(&self) -> u64 {
        u64::from(self.fs().geometry().hugeblock_bytes)
    }

    /// Number of tiers.
    pub fn tiers(&self) -> u8 {
        self.namespace.tiers.len() as u8
    }

    /// Returns the namespace.
    pub(crate) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns the device of a tier.
    pub fn tier(&self, tier: u8) -> cairn_core::Result<&dyn Device> {
        self.namespace.tier(tier)
    }

    /// Returns the name of a tier for messages.
    pub fn shown_tier(&self, tier: u8) -> String {
        match self.places.get(usize::from(tier)) {
            Some(TierPlace::Medium { kind: MediumKind::Remote, path, .. }) => {
                format!("nvme-tcp:{}", path.display())
            }
            Some(TierPlace::Medium { path, .. }) => path.display().to_string(),
            Some(TierPlace::Ram) | None => "memory".to_string(),
        }
    }

    /// Returns the tiers on machines that have not answered a call of this process for `at_least`,
    /// or that do not have the tier any more.
    pub fn silent_tiers(&self, at_least: Duration) -> impl Iterator<Item = Silent> {
        (0..).zip(&self.namespace.tiers).filter_map(move |(tier, device)| {
            let silent_for = device.silent_for().filter(|silence| *silence >= at_least);
            let is_gone = device.is_gone();
            let tier = || self.shown_tier(tier);
            let for_s = silent_for.unwrap_or_default().as_secs();
            (is_gone || silent_for.is_some()).then(|| Silent { tier: tier(), for_s, is_gone })
        })
    }

    /// Whether a tier cannot be read at all: not at its beginning, middle or end.
    pub fn has_unreadable_tier(&self) -> bool {
        let block_bytes = self.hugeblock_bytes();
        self.namespace.tiers.iter().any(|device| {
            let blocks = device.bytes() / block_bytes;
            let probes = [0, blocks / 2, blocks.saturating_sub(1)];
            let is_read =
                |block| device.checksum(block * block_bytes, block_bytes as usize).is_ok();
            blocks > 0 && !probes.into_iter().any(is_read)
        })
    }

    /// Returns this process as a caller with root's rights, at the present time.
    pub fn caller(&self) -> Caller {
        let group = rustix::process::getegid().as_raw();
        let credentials = Credentials { uid: 0, gid: group };
        Caller { slot: self.slot, credentials, groups: &[], now: now() }
    }

    /// Returns this process as a caller with the rights of its user, at the present time: for files
    /// that it makes.
    pub fn caller_as_user(&self) -> Caller {
        let user = rustix::process::geteuid().as_raw();
        let caller = self.caller();
        Caller { credentials: Credentials { uid: user, ..caller.credentials }, ..caller }
    }

    /// Returns the path by which the user knows `path` of this namespace.
    pub fn outer_path(&self, path: &FilePath) -> FilePath {
        self.prefix.append(path)
    }

    /// For `map_err`: returns the error of `action` on a file of this namespace.
    pub fn error(
        &self,
        action: &'static str,
        path: &FilePath,
    ) -> impl FnOnce(cairn_core::Error) -> Error + use<> {
        Error::store(action, &self.outer_path(path))
    }

    /// Returns the attributes of `path`; a symbolic link is not followed.
    pub fn attributes(&self, path: &FilePath) -> Result<Attributes> {
        let attributes = self.fs().stat(&self.caller(), ROOT, path.as_bytes(), false);
        attributes.map_err(self.error("look at", path))
    }

    /// Opens a regular file for reading.
    pub fn open_file(&self, path: &FilePath) -> Result<OpenFile<'_>> {
        if self.is_image {
            let found = self.fs().resolve(&self.caller(), ROOT, path.as_bytes(), false);
            let inode = found.map_err(self.error("open", path))?;
            return Ok(OpenFile {
                volume: self,
                path: path.clone(),
                handle: Cell::new(None),
                inode,
            });
        }
        let options = OpenOptions { read: true, no_follow: true, ..OpenOptions::default() };
        let opened = self.fs().open_file(&self.caller(), ROOT, path.as_bytes(), options, 0);
        let opened = opened.map_err(self.error("open", path))?;
        let handle = Cell::new(Some(opened.handle));
        Ok(OpenFile { volume: self, path: path.clone(), handle, inode: opened.inode })
    }

    /// Like `open_file`, but waits for a file whose data are absent. Errors: also those about
    /// absent data, if the data are not available or nobody brings them in.
    pub fn open_present(&self, path: &FilePath) -> Result<OpenFile<'_>> {
        let began = Moment(sys::monotonic_ms());
        let mut waits_for = None;
        loop {
            let opened = self.open_file(path);
            let Err(Error::Store { source: cairn_core::Error::Absent { inode }, .. }) = opened
            else {
                return opened;
            };
            let known = match waits_for.replace(inode) == Some(inode) {
                true => self.fs().absence(inode),
                false => self.fs().request_stage_in(inode),
            };
            let is_lost = known.is_ok_and(|known| known.is_some_and(|known| known.unavailable));
            let hope = self.fs().absence_prospect(began, Moment(sys::monotonic_ms()));
            if is_lost || hope == Prospect::None {
                return opened;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Reads all names of the namespace, by outer path, except those that a repair builds. The root
    /// is included if it has a name, which is the prefix. Names that come or go meanwhile may be
    /// missed; the log then requires another look.
    pub fn tree(&self) -> Result<Tree> {
        let mut tree = Tree::new();
        if !self.prefix.is_root() {
            let root = self.attributes(&FilePath::root())?;
            let extended = self.extended(&FilePath::root(), &root)?;
            tree.insert(self.prefix.clone(), node(&root, Vec::new(), extended));
        }
        let building_place = building_place();
        let mut waiting = vec![(FilePath::root(), ROOT, 0)];
        while let Some((directory, inode, depth)) = waiting.pop() {
            if depth > DEPTH_MAX {
                let source = cairn_core::Error::Corrupt { what: "directory depth" };
                return Err(self.error("list", &directory)(source));
            }
            for (name, child) in self.names(&directory, inode)? {
                let path = directory.join(&name);
                let Some((attributes, target)) = self.look(&path, child)? else { continue };
                if path == building_place {
                    continue;
                }
                if attributes.is_directory() {
                    waiting.push((path.clone(), child, depth + 1));
                }
                let extended = self.extended(&path, &attributes)?;
                tree.insert(self.outer_path(&path), node(&attributes, target, extended));
            }
        }
        Ok(tree)
    }

    /// Returns the extended attributes of a file with these attributes; none if it was removed
    /// meanwhile.
    pub fn extended(&self, path: &FilePath, attributes: &Attributes) -> Result<Extended> {
        match attributes.extended.then(|| self.fs().all_extended(attributes.inode)) {
            Some(Ok(found)) => Ok(Extended::of(&found)),
            Some(Err(cairn_core::Error::NotFound)) | None => Ok(Extended::default()),
            Some(Err(error)) => Err(self.error("look at", path)(error)),
        }
    }

    /// Returns the entries of a directory; none if it was removed meanwhile.
    pub fn names(&self, directory: &FilePath, inode: InodeId) -> Result<Vec<(Vec<u8>, InodeId)>> {
        let mut names = Vec::new();
        let listed = self.fs().list(&self.caller(), inode, 0, &mut |entry| {
            names.push((entry.name.to_vec(), entry.inode));
            true
        });
        match listed {
            Ok(()) => Ok(names),
            Err(cairn_core::Error::NotFound) => Ok(Vec::new()),
            Err(error) => Err(self.error("list", directory)(error)),
        }
    }

    /// Returns the attributes, and the target of a symbolic link; None if it was removed meanwhile.
    fn look(&self, path: &FilePath, inode: InodeId) -> Result<Option<(Attributes, Vec<u8>)>> {
        use cairn_core::Error::{Invalid, NotDirectory, NotFound};
        let attributes = match self.fs().attributes(inode) {
            Ok(attributes) if attributes.links > 0 => attributes,
            Ok(_) | Err(NotFound) => return Ok(None),
            Err(error) => return Err(self.error("look at", path)(error)),
        };
        let mut target = Vec::new();
        if attributes.is_symlink() {
            target.reserve(PATH_BYTES_MAX);
            let read = self.fs().read_link(&self.caller(), ROOT, path.as_bytes(), &mut target);
            match read {
                Ok(()) => {}
                Err(NotFound | NotDirectory | Invalid) => return Ok(None),
                Err(error) => return Err(self.error("read the symbolic link", path)(error)),
            }
        }
        Ok(Some((attributes, target)))
    }

    /// Recomputes the checksums that writes invalidated. True if every block of the file is sealed
    /// then; false if somebody writes to it. `path` is for messages.
    pub fn seal(&self, path: &FilePath, inode: InodeId) -> Result<bool> {
        if self.is_image {
            return Ok(false);
        }
        let mut stale: Vec<StaleBlock> = Vec::new();
        loop {
            let version =
                self.fs().stale_blocks(inode, &mut stale).map_err(self.error("seal", path))?;
            if stale.is_empty() {
                return Ok(true);
            }
            let mut sealed = Vec::with_capacity(stale.len());
            for block in &stale {
                let checksum =
                    self.namespace.block_checksum(block).map_err(self.error("read", path))?;
                sealed.push((*block, checksum));
            }
            if !self.fs().seal(inode, version, &sealed).map_err(self.error("seal", path))? {
                return Ok(false);
            }
        }
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if self.detaches {
            if !self.fs().has_metadata_sum() {
                // Reap first: dead processes do not count as users of the namespace.
                let _ = reaper::reap(self);
            }
            // If this fails, the slot is reaped like that of a dead process.
            let _ = self.fs().detach(self.slot, now());
            // If this fails, the next process that detaches last does it.
            let _ = self.fs().sum_metadata(None);
        }
    }
}

/// A file opened for reading; released when dropped, or by `let_go`.
pub struct OpenFile<'a> {
    /// Namespace of the file.
    pub volume: &'a Volume,
    /// Its path in the namespace.
    pub path: FilePath,
    /// The open-file description; None after `let_go`.
    handle: Cell<Option<HandleId>>,
    /// Its inode.
    pub inode: InodeId,
}

impl OpenFile<'_> {
    /// Returns the present attributes. Errors: `Changed` if the file was let go and is gone.
    pub fn attributes(&self) -> Result<Attributes> {
        self.volume.fs().attributes(self.inode).map_err(|error| self.failed("look at", error))
    }

    /// Returns the error of `action`. After `let_go` the path may lead nowhere, or to another file:
    /// such errors become `Changed`.
    pub fn failed(&self, action: &'static str, error: cairn_core::Error) -> Error {
        use cairn_core::Error::{IsDirectory, NotDirectory, NotFound, SymlinkLoop};
        match error {
            NotFound | NotDirectory | IsDirectory | SymlinkLoop => self.changed(),
            error => self.volume.error(action, &self.path)(error),
        }
    }

    /// Plans to read `length` bytes at `offset`. Errors: as `handle`, `Changed`.
    pub fn plan_read(&self, offset: u64, length: u64) -> Result<ReadPlan> {
        let (fs, caller) = (self.volume.fs(), self.volume.caller());
        if self.volume.is_image {
            let planned = fs.plan_read_of(self.inode, offset, length);
            return planned.map_err(|error| self.failed("read", error));
        }
        let plan = |handle| fs.plan_read(&caller, handle, Position::At(offset), length);
        plan(self.handle()?).map_err(|error| self.failed("read", error))
    }

    /// Returns the open-file description. Errors: `Changed` if the file was let go and its path
    /// leads elsewhere by now.
    fn handle(&self) -> Result<HandleId> {
        if let Some(handle) = self.handle.get() {
            return Ok(handle);
        }
        let again = match self.volume.open_file(&self.path) {
            Err(Error::Store { source, .. }) => return Err(self.failed("open", source)),
            opened => opened?,
        };
        if again.inode != self.inode {
            return Err(self.changed());
        }
        self.handle.set(again.handle.take());
        self.handle.get().ok_or_else(|| self.changed())
    }

    /// Closes the file until it is read again: if it is removed meanwhile, its space is free at
    /// once.
    pub fn let_go(&self) {
        if let Some(handle) = self.handle.take() {
            // If this fails, the handle is released with the slot.
            let _ = self.volume.fs().release(self.volume.slot, handle, now());
        }
    }

    /// Returns `Changed` for this file.
    pub fn changed(&self) -> Error {
        Error::Changed { path: self.volume.outer_path(&self.path) }
    }

    /// Whether its path still leads to it.
    pub fn is_still_there(&self) -> bool {
        let found =
            self.volume.fs().resolve(&self.volume.caller(), ROOT, self.path.as_bytes(), false);
        found == Ok(self.inode)
    }
}

impl Drop for OpenFile<'_> {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// Returns when the data of a file were last written, or when a directory got its name or an entry
/// changed. A program may have set the modification time: then it lies outside of the life of the
/// file, as far as we know it, and the last change counts.
fn written_ns(attributes: &Attributes) -> i64 {
    let life = attributes.born.0..=attributes.changed.0;
    let modified = attributes.modified.0;
    match life.contains(&modified) && !attributes.is_directory() {
        true => modified,
        false => attributes.changed.0,
    }
}

fn node(attributes: &Attributes, target: Vec<u8>, extended: Extended) -> Node {
    let kind = if attributes.is_directory() {
        Kind::Directory
    } else if attributes.is_symlink() {
        Kind::Symlink
    } else {
        Kind::File
    };
    Node {
        inode: attributes.inode.0,
        kind,
        bytes: if kind == Kind::File { attributes.size } else { 0 },
        mode: attributes.mode & 0o7777,
        mtime_ns: attributes.modified.0,
        written_ns: written_ns(attributes),
        renamed: attributes.renamed,
        version: attributes.version,
        unclean: attributes.unclean,
        torn: attributes.torn,
        links: attributes.links,
        // The writer of an absent file is whoever brings in its data.
        open: kind == Kind::File && attributes.writers > 0 && attributes.absence.is_none(),
        drained: attributes.drained_version == attributes.version,
        absence: attributes.absence,
        target,
        extended,
    }
}
