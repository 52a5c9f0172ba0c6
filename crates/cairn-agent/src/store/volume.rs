//! One namespace of a store as the agent and the tools use it: as a process among others, with its
//! own slot.
//!
//! Must stay true: opened files are released on every path; the tools see every file whatever its
//! mode bits, because the store belongs to one user; nothing here writes file data.
//! Does not decide what is drained.

use crate::checkpoint::quarantine;
use crate::drain::hold::Hold;
use crate::model::error::{Error, Result};
use crate::model::job::Scope;
use crate::model::path::FilePath;
use crate::model::protocol::Silent;
use crate::store::extended::Extended;
use crate::store::node::Kind;
use crate::store::node::{Node, Tree};
use crate::store::reaper;
use cairn_core::{
    Attributes, Caller, Credentials, HandleId, Hope, InodeId, Microfs, Moment, OpenOptions,
    PATH_BYTES_MAX, Position, ROOT, ReadPlan, SlotId, StaleBlock, Timestamp,
};
use cairn_device::namespace::{self, open_namespace};
use cairn_device::{Device, MediumKind, Namespace, Store, TierPlace, sys};
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How often is looked whether a file has its data.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Depth at which a tree is taken for a damaged one.
const DEPTH_MAX: usize = 1024;

/// A namespace, attached.
pub struct Volume {
    name: String,
    prefix: FilePath,
    namespace: Namespace,
    places: Vec<TierPlace>,
    slot: SlotId,
    detaches: bool,
    /// It is as it was at a cut, and can only be read.
    is_image: bool,
    /// What is kept open while it is copied.
    pub(crate) hold: Hold,
}

/// Where the files of namespace `name` lie for the user: at the top, unless every rank has a
/// namespace of its own.
pub fn prefix_of(name: &str, scope: Scope) -> FilePath {
    match scope {
        Scope::Node => FilePath::root(),
        Scope::Rank => FilePath::root().join(name.as_bytes()),
    }
}

/// The present.
pub fn now() -> Timestamp {
    cairn_device::sys::now()
}

impl Volume {
    /// Opens the namespace `name` of `store`; its files lie below `prefix` for the user. Errors:
    /// its metadata are damaged.
    pub fn open(store: &Store, name: &str, prefix: FilePath) -> Result<Volume> {
        let namespace = open_namespace(store, name)?;
        let places = namespace::places(store, name)?;
        let in_store = |source| Error::store("attach to", &prefix)(source);
        let identity = cairn_device::process::identity()
            .map_err(|errno| std::io::Error::from_raw_os_error(errno.0))
            .map_err(Error::file("read", Path::new("/proc/self/stat")))?;
        namespace.fs.check_metadata().map_err(in_store)?;
        let attached = namespace.fs.attach_to_look_after(identity).map_err(in_store)?;
        // Where our own library is loaded into a tool as well, both use one slot; the library gives
        // it up at exit.
        let shared = attached.known || std::env::var_os("CAIRN_MOUNT").is_some();
        Ok(Volume {
            name: name.to_string(),
            prefix,
            namespace,
            places,
            slot: attached.slot,
            detaches: !shared,
            is_image: false,
            hold: Hold::default(),
        })
    }

    /// Makes a cut through all of `volumes` at one moment. Errors: one of them cannot hold an
    /// image.
    pub fn begin_images(volumes: &[Arc<Volume>]) -> Result<()> {
        let namespaces: Vec<&Namespace> = volumes.iter().map(|volume| &volume.namespace).collect();
        let root = FilePath::root();
        let begun = namespace::begin_images(&namespaces);
        begun.map(drop).map_err(Error::store("take an image of", &root))
    }

    /// What `live` was at the cut of the image that it holds. Errors: it holds none.
    pub fn open_image(store: &Store, live: &Volume) -> Result<Volume> {
        Ok(Volume {
            name: live.name.clone(),
            prefix: live.prefix.clone(),
            namespace: namespace::open_image(store, &live.name)?,
            places: live.places.clone(),
            slot: live.slot,
            detaches: false,
            is_image: true,
            hold: Hold::default(),
        })
    }

    /// Whether it is as it was at a cut.
    pub fn is_image(&self) -> bool {
        self.is_image
    }

    /// Has small files share a block where there is no other room; false if that made none.
    pub fn pack(&self) -> bool {
        self.namespace.pack(&self.caller()).unwrap_or(false)
    }

    /// The namespace's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its files lie for the user, relative to the persist directory.
    pub fn prefix(&self) -> &FilePath {
        &self.prefix
    }

    /// The engine.
    pub fn fs(&self) -> &Microfs {
        &self.namespace.fs
    }

    /// As `Namespace::land_all`.
    pub fn land_all(&self) -> cairn_core::Result<()> {
        self.namespace.land_all()
    }

    /// As `Namespace::put_away`.
    pub fn put_away(&self, goes_on: &dyn Fn() -> bool) -> cairn_core::Result<()> {
        self.namespace.put_away(goes_on)
    }

    /// The slot of this process.
    pub fn slot(&self) -> SlotId {
        self.slot
    }

    /// Bytes of a hugeblock.
    pub fn hugeblock_bytes(&self) -> u64 {
        u64::from(self.fs().geometry().hugeblock_bytes)
    }

    /// How many tiers it has.
    pub fn tiers(&self) -> u8 {
        self.namespace.tiers.len() as u8
    }

    /// The device of a tier.
    pub fn tier(&self, tier: u8) -> cairn_core::Result<&dyn Device> {
        let device = self.namespace.tiers.get(usize::from(tier));
        device.map(Box::as_ref).ok_or(cairn_core::Error::Io)
    }

    /// A tier, for people.
    pub fn shown_tier(&self, tier: u8) -> String {
        match self.places.get(usize::from(tier)) {
            Some(TierPlace::Medium { kind: MediumKind::Remote, path, .. }) => {
                format!("nvme-tcp:{}", path.display())
            }
            Some(TierPlace::Medium { path, .. }) => path.display().to_string(),
            Some(TierPlace::Ram) | None => "memory".to_string(),
        }
    }

    /// Tiers on machines that have not answered a call of this process for so long, or that do not
    /// have them any more.
    pub fn silent_tiers(&self, at_least: Duration) -> impl Iterator<Item = Silent> {
        (0..).zip(&self.namespace.tiers).filter_map(move |(tier, device)| {
            let silent_for = device.silent_for().filter(|silence| *silence >= at_least);
            let is_gone = device.is_gone();
            let tier = || self.shown_tier(tier);
            let for_s = silent_for.unwrap_or_default().as_secs();
            (is_gone || silent_for.is_some()).then(|| Silent { tier: tier(), for_s, is_gone })
        })
    }

    /// Whether there is a tier that cannot be read at all: neither where it begins, nor in the
    /// middle, nor where it ends.
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

    /// This process, now, with the rights to see everything.
    pub fn caller(&self) -> Caller {
        let group = rustix::process::getegid().as_raw();
        let credentials = Credentials { uid: 0, gid: group };
        Caller { slot: self.slot, credentials, groups: &[], now: now() }
    }

    /// This process, now, with the rights of its user: for files that it makes.
    pub fn caller_as_user(&self) -> Caller {
        let user = rustix::process::geteuid().as_raw();
        let caller = self.caller();
        Caller { credentials: Credentials { uid: user, ..caller.credentials }, ..caller }
    }

    /// The path a user knows for a path of this namespace.
    pub fn outer_path(&self, path: &FilePath) -> FilePath {
        self.prefix.append(path)
    }

    /// An error on a file of this namespace.
    pub fn error(
        &self,
        action: &'static str,
        path: &FilePath,
    ) -> impl FnOnce(cairn_core::Error) -> Error + use<> {
        Error::store(action, &self.outer_path(path))
    }

    /// Attributes of what `path` names; a symbolic link is not followed.
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

    /// The file `inode` if this process holds it, by whichever path it was found.
    pub fn held_file(&self, path: &FilePath, inode: InodeId) -> Option<OpenFile<'_>> {
        let (path, handle) = (path.clone(), Cell::new(None));
        self.holds(inode).then_some(OpenFile { volume: self, path, handle, inode })
    }

    /// As `open_file`; a file whose data are still elsewhere is waited for. Errors: also those that
    /// are about absent data, if these cannot be had, or nobody brings them.
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
                false => self.fs().want_absent(inode),
            };
            let is_lost = known.is_ok_and(|known| known.is_some_and(|known| known.unavailable));
            let hope = self.fs().absence_hope(began, Moment(sys::monotonic_ms()));
            if is_lost || hope == Hope::None {
                return opened;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Everything in the namespace, by outer path, but for what a repair builds. The root itself is
    /// there if it has a name, that is a prefix. Names that come or go meanwhile may be missed; the
    /// log then asks for another look.
    pub fn tree(&self) -> Result<Tree> {
        let mut tree = Tree::new();
        if !self.prefix.is_root() {
            let root = self.attributes(&FilePath::root())?;
            let extended = self.extended(&FilePath::root(), &root)?;
            tree.insert(self.prefix.clone(), node(&root, Vec::new(), extended));
        }
        let building_place = quarantine::building_place();
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

    /// Extended attributes of a file that looks like this; none if it was removed meanwhile.
    pub fn extended(&self, path: &FilePath, attributes: &Attributes) -> Result<Extended> {
        match attributes.extended.then(|| self.fs().all_extended(attributes.inode)) {
            Some(Ok(found)) => Ok(Extended::of(&found)),
            Some(Err(cairn_core::Error::NotFound)) | None => Ok(Extended::default()),
            Some(Err(error)) => Err(self.error("look at", path)(error)),
        }
    }

    /// The entries of a directory; none if it was removed meanwhile.
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

    /// Attributes, and the target of a symbolic link; None if it was removed meanwhile.
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

    /// Recomputes the checksums that writes left void. True if afterwards every block of the file
    /// is sealed; false if somebody writes to it. `path` is for messages.
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
                // Who is dead does not use it.
                let _ = reaper::reap(self);
            }
            // If this fails the slot is reaped like that of a dead process.
            let _ = self.fs().detach(self.slot, now());
            // Or the next one does it who is the last.
            let _ = self.fs().sum_metadata(None);
        }
    }
}

/// A file opened for reading; released when dropped, or let go.
pub struct OpenFile<'a> {
    /// The namespace it lies in.
    pub volume: &'a Volume,
    /// Its path in the namespace.
    pub path: FilePath,
    /// The open-file description; none since the file was let go.
    handle: Cell<Option<HandleId>>,
    /// The file.
    pub inode: InodeId,
}

impl OpenFile<'_> {
    /// The file's attributes now. Errors: `Changed` if it was let go, and is gone.
    pub fn attributes(&self) -> Result<Attributes> {
        self.volume.fs().attributes(self.inode).map_err(|error| self.failed("look at", error))
    }

    /// What it is that this could not be done: where one was that was let go, there may be nothing,
    /// or something else.
    pub fn failed(&self, action: &'static str, error: cairn_core::Error) -> Error {
        use cairn_core::Error::{IsDirectory, NotDirectory, NotFound, SymlinkLoop};
        match error {
            NotFound | NotDirectory | IsDirectory | SymlinkLoop => self.changed(),
            error => self.volume.error(action, &self.path)(error),
        }
    }

    /// Where `length` bytes at `offset` are. Errors: `Changed` as for `handle`.
    pub fn plan_read(&self, offset: u64, length: u64) -> Result<ReadPlan> {
        let (fs, caller) = (self.volume.fs(), self.volume.caller());
        if self.volume.is_image {
            let planned = fs.plan_read_of(self.inode, offset, length);
            return planned.map_err(|error| self.failed("read", error));
        }
        let plan = |handle| fs.plan_read(&caller, handle, Position::At(offset), length);
        let planned = match self.volume.while_held(self.inode, plan) {
            Some(planned) => planned,
            None => plan(self.handle()?),
        };
        planned.map_err(|error| self.failed("read", error))
    }

    /// The open-file description. Errors: `Changed` if the file was let go, and is not what its
    /// path leads to any more.
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

    /// Lets go of the file until it is read from again: if it is removed meanwhile, the space it
    /// takes is free at once.
    pub fn let_go(&self) {
        if let Some(handle) = self.handle.take() {
            // If this fails the handle goes with the slot.
            let _ = self.volume.fs().release(self.volume.slot, handle, now());
        }
    }

    /// That it is not what it was.
    pub fn changed(&self) -> Error {
        Error::Changed { path: self.volume.outer_path(&self.path) }
    }

    /// Whether its path still leads to it, or it is held although it does not.
    pub fn is_still_there(&self) -> bool {
        self.is_still_named() || self.volume.holds(self.inode)
    }

    fn is_still_named(&self) -> bool {
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
        renamed: attributes.renamed,
        version: attributes.version,
        unclean: attributes.unclean,
        torn: attributes.torn,
        links: attributes.links,
        // Of an absent file it is who brings it.
        open: kind == Kind::File && attributes.writers > 0 && attributes.absence.is_none(),
        drained: attributes.drained_version == attributes.version,
        absence: attributes.absence,
        target,
        extended,
    }
}
