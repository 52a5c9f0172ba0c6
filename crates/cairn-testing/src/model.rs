//! Reference file system: POSIX semantics in their simplest form.
//!
//! A directory is a map from names to nodes. An open file is a record with a cursor. Errors come in
//! the order in which Linux checks for them; `tests/kernel.rs` compares the model with the kernel.
//! `tests/model.rs` compares Cairn with the model.
//!
//! Does not model blocks, space or locks. Of a process that dies it knows only which descriptions
//! the process holds.

use crate::content::Content;
use crate::path::{Last, Walk};
use cairn_core::{
    Caller, Error, ExtendedUpdate, InodeId, MODE_DIRECTORY, MODE_REGULAR, MODE_SYMLINK,
    OpenOptions, Result,
};
use std::collections::{BTreeMap, BTreeSet};

/// Identity of a file, directory or symbolic link of the model.
pub type NodeId = u32;
/// Identity of an open-file description of the model.
pub type OpenId = u32;

/// The root directory.
pub const ROOT: NodeId = 1;

/// Type of a node, with its content.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A directory.
    Directory {
        /// Nodes by name.
        entries: BTreeMap<Vec<u8>, NodeId>,
        /// Parent directory; the root is its own parent.
        parent: NodeId,
    },
    /// A regular file.
    File(Content),
    /// A symbolic link, with its target.
    Symlink(Vec<u8>),
}

/// A file, directory or symbolic link.
#[derive(Clone, Debug)]
pub struct Node {
    /// Type and content.
    pub kind: Kind,
    /// Permission bits.
    pub permissions: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of hard links. A directory counts itself and its subdirectories.
    pub links: u32,
    /// Time of the last change of the data, nanoseconds.
    pub modified: i64,
    /// Time of the last change of data or attributes, nanoseconds.
    pub changed: i64,
    /// Whether a writer of the file died.
    pub unclean: bool,
    deaths: u32,
    /// Extended attributes.
    pub extended: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Whether the data of the file are only elsewhere.
    pub absent: bool,
}

/// An open-file description.
#[derive(Clone, Debug)]
pub struct Open {
    /// File it refers to.
    pub node: NodeId,
    /// Options it was opened with.
    pub options: OpenOptions,
    /// File offset, shared by all holders.
    pub cursor: u64,
    /// Whether data was written through this description.
    pub wrote: bool,
    /// Processes that hold the description.
    pub holders: BTreeSet<u32>,
    /// Number of writers of the file that had died when this description was opened for writing on
    /// an unclean file; `None` for any other description.
    takes_over: Option<u32>,
}

/// Attributes that `stat` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of hard links.
    pub links: u32,
    /// Length in bytes; 0 for directories.
    pub size: u64,
    /// Time of the last change of the data, nanoseconds.
    pub modified: i64,
    /// Time of the last change of data or attributes, nanoseconds.
    pub changed: i64,
    /// Whether a writer died.
    pub unclean: bool,
}

/// The whole file system.
#[derive(Clone, Debug)]
pub struct Model {
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    opens: BTreeMap<OpenId, Open>,
    next: u32,
}

pub(crate) const READ: u32 = 4;
pub(crate) const WRITE: u32 = 2;
pub(crate) const EXECUTE: u32 = 1;

impl Node {
    /// Returns type and permission bits.
    pub fn mode(&self) -> u32 {
        let kind = match self.kind {
            Kind::Directory { .. } => MODE_DIRECTORY,
            Kind::File(_) => MODE_REGULAR,
            Kind::Symlink(_) => MODE_SYMLINK,
        };
        kind | self.permissions
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self.kind, Kind::Directory { .. })
    }

    pub(crate) fn entries(&self) -> Result<&BTreeMap<Vec<u8>, NodeId>> {
        match &self.kind {
            Kind::Directory { entries, .. } => Ok(entries),
            _ => Err(Error::NotDirectory),
        }
    }

    /// Checks that `caller` has all rights of `mask`. Errors: `AccessDenied`.
    pub fn permit(&self, caller: &Caller, mask: u32) -> Result<()> {
        let who = caller.credentials;
        let granted = if who.uid == 0 {
            let executable = self.is_directory() || self.permissions & 0o111 != 0;
            READ | WRITE | if executable { EXECUTE } else { 0 }
        } else if who.uid == self.uid {
            self.permissions >> 6
        } else if who.gid == self.gid {
            self.permissions >> 3
        } else {
            self.permissions
        };
        if granted & mask == mask { Ok(()) } else { Err(Error::AccessDenied) }
    }
}

impl Model {
    /// Makes a file system with an empty root directory that belongs to the caller.
    pub fn new(caller: &Caller) -> Model {
        let mut model = Model { nodes: BTreeMap::new(), opens: BTreeMap::new(), next: ROOT };
        let root = model.add_node(
            Kind::Directory { entries: BTreeMap::new(), parent: ROOT },
            0o755,
            caller,
        );
        model.node_mut(root).links = 2;
        model
    }

    /// Returns a node, which must exist.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[&id]
    }

    /// Whether a node still exists.
    pub fn exists(&self, id: NodeId) -> bool {
        self.nodes.contains_key(&id)
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes.get_mut(&id).expect("the model refers to nodes it has")
    }

    pub(crate) fn add_node(&mut self, kind: Kind, permissions: u32, caller: &Caller) -> NodeId {
        let id = self.next;
        self.next += 1;
        let now = caller.now.0;
        let credentials = caller.credentials;
        let node = Node {
            kind,
            permissions: permissions & 0o7777,
            uid: credentials.uid,
            gid: credentials.gid,
            links: 0,
            modified: now,
            changed: now,
            unclean: false,
            deaths: 0,
            extended: BTreeMap::new(),
            absent: false,
        };
        self.nodes.insert(id, node);
        id
    }

    /// Returns the content of a regular file. Errors: `IsDirectory`, or `Invalid` for a symbolic
    /// link.
    pub fn content(&mut self, id: NodeId) -> Result<&mut Content> {
        match &mut self.node_mut(id).kind {
            Kind::File(content) => Ok(content),
            Kind::Directory { .. } => Err(Error::IsDirectory),
            Kind::Symlink(_) => Err(Error::Invalid),
        }
    }

    pub(crate) fn entries_mut(&mut self, id: NodeId) -> &mut BTreeMap<Vec<u8>, NodeId> {
        match &mut self.node_mut(id).kind {
            Kind::Directory { entries, .. } => entries,
            _ => panic!("the model walked to a directory"),
        }
    }

    pub(crate) fn walk(
        &self,
        caller: &Caller,
        base: NodeId,
        path: &[u8],
        last: Last,
    ) -> Result<Walk> {
        crate::path::walk(self, caller, base, path, last)
    }

    /// Resolves `path` from `base` to a node.
    pub fn resolve(
        &self,
        caller: &Caller,
        base: NodeId,
        path: &[u8],
        follow: bool,
    ) -> Result<NodeId> {
        self.walk(caller, base, path, if follow { Last::Follow } else { Last::Keep })?
            .existing(self)
    }

    /// Returns the attributes of a node.
    pub fn facts(&self, id: NodeId) -> Facts {
        let node = self.node(id);
        Facts {
            mode: node.mode(),
            uid: node.uid,
            gid: node.gid,
            links: node.links,
            size: match &node.kind {
                Kind::Directory { .. } => 0,
                Kind::File(content) => content.size(),
                Kind::Symlink(target) => target.len() as u64,
            },
            modified: node.modified,
            changed: node.changed,
            unclean: node.unclean,
        }
    }

    /// Resolves `path` and returns the attributes of its node.
    pub fn stat(&self, caller: &Caller, base: NodeId, path: &[u8], follow: bool) -> Result<Facts> {
        self.resolve(caller, base, path, follow).map(|id| self.facts(id))
    }

    /// Checks access to a path, as `access(2)`.
    pub fn access(
        &self,
        caller: &Caller,
        base: NodeId,
        path: &[u8],
        mask: u32,
        follow: bool,
    ) -> Result<()> {
        self.node(self.resolve(caller, base, path, follow)?).permit(caller, mask)
    }

    /// Sets the permission bits. Errors: `NotPermitted` unless the caller is the owner or the
    /// superuser.
    pub fn set_mode(&mut self, caller: &Caller, id: NodeId, permissions: u32) -> Result<()> {
        let node = self.node_mut(id);
        if caller.credentials.uid != 0 && caller.credentials.uid != node.uid {
            return Err(Error::NotPermitted);
        }
        node.permissions = permissions & 0o7777;
        node.changed = caller.now.0;
        Ok(())
    }

    /// Checks that `caller` may read or write the extended attribute `name` of a node.
    fn permit_extended(&self, caller: &Caller, id: NodeId, name: &[u8], mask: u32) -> Result<()> {
        if name.is_empty() || name.len() > 255 {
            return Err(Error::OutOfRange);
        }
        let (node, uid) = (self.node(id), caller.credentials.uid);
        let is_users = name.starts_with(b"user.");
        let is_anothers = node.permissions & 0o1000 != 0 && uid != 0 && uid != node.uid;
        match (&node.kind, mask) {
            (Kind::Symlink(_), WRITE) if is_users => return Err(Error::NotPermitted),
            (Kind::Symlink(_), _) if is_users => return Err(Error::NoData),
            (Kind::Directory { .. }, WRITE) if is_users && is_anothers => {
                return Err(Error::NotPermitted);
            }
            _ => {}
        }
        node.permit(caller, mask)?;
        match name {
            b"user." => Err(Error::Invalid),
            _ if is_users => Ok(()),
            _ => Err(Error::NotSupported),
        }
    }

    /// Sets an extended attribute, as `setxattr(2)`. The model has no limit on the length of a
    /// value.
    pub fn set_extended(
        &mut self,
        caller: &Caller,
        id: NodeId,
        name: &[u8],
        value: &[u8],
        update: ExtendedUpdate,
    ) -> Result<()> {
        self.permit_extended(caller, id, name, WRITE)?;
        let node = self.node_mut(id);
        match node.extended.contains_key(name) {
            true if update.create => return Err(Error::Exists),
            false if update.replace => return Err(Error::NoData),
            _ => node.extended.insert(name.to_vec(), value.to_vec()),
        };
        node.changed = caller.now.0;
        Ok(())
    }

    /// Returns the value of an extended attribute, as `getxattr(2)`.
    pub fn get_extended(&self, caller: &Caller, id: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        self.permit_extended(caller, id, name, READ)?;
        self.node(id).extended.get(name).cloned().ok_or(Error::NoData)
    }

    /// Removes an extended attribute, as `removexattr(2)`.
    pub fn remove_extended(&mut self, caller: &Caller, id: NodeId, name: &[u8]) -> Result<()> {
        self.permit_extended(caller, id, name, WRITE)?;
        let node = self.node_mut(id);
        node.extended.remove(name).ok_or(Error::NoData)?;
        node.changed = caller.now.0;
        Ok(())
    }

    /// Returns the entries of a directory.
    pub fn list(&self, caller: &Caller, id: NodeId) -> Result<&BTreeMap<Vec<u8>, NodeId>> {
        let entries = self.node(id).entries()?;
        self.node(id).permit(caller, READ)?;
        Ok(entries)
    }

    /// Opens a file for the calling process.
    pub fn open(
        &mut self,
        caller: &Caller,
        base: NodeId,
        path: &[u8],
        options: OpenOptions,
        mode: u32,
    ) -> Result<OpenId> {
        let keep = options.no_follow || options.create && options.exclusive;
        let last = match (keep, options.create) {
            (true, true) => Last::Name,
            (true, false) => Last::Keep,
            (false, true) => Last::Create,
            (false, false) => Last::Follow,
        };
        let walk = self.walk(caller, base, path, last)?;
        if options.create && walk.trailing_slash && walk.is_ordinary() {
            return Err(Error::IsDirectory);
        }
        let node = match walk.target {
            None if options.create => {
                self.permit_creation(caller, &walk)?;
                let id = self.add_node(Kind::File(Content::default()), mode, caller);
                self.add_name(caller, walk.parent, &walk.name, id);
                return Ok(self.add_open(caller, id, options, options.write));
            }
            None => return Err(Error::NotFound),
            Some(_) if options.create && options.exclusive => return Err(Error::Exists),
            Some(id) => id,
        };
        let is_directory = self.node(node).is_directory();
        let writes = options.write || options.truncate;
        if options.create && is_directory {
            return Err(Error::IsDirectory);
        }
        if (options.directory || walk.trailing_slash) && !is_directory {
            return Err(Error::NotDirectory);
        }
        if matches!(self.node(node).kind, Kind::Symlink(_)) {
            return Err(Error::SymlinkLoop);
        }
        if is_directory && writes {
            return Err(Error::IsDirectory);
        }
        let wanted = if options.read { READ } else { 0 } | if writes { WRITE } else { 0 };
        self.node(node).permit(caller, wanted)?;
        if self.node(node).absent && !options.truncate {
            return Err(Error::Absent { inode: InodeId(node) });
        }
        if options.truncate {
            self.truncate(caller, node, 0)?;
        }
        Ok(self.add_open(caller, node, options, options.truncate && options.write))
    }

    fn add_open(
        &mut self,
        caller: &Caller,
        node: NodeId,
        options: OpenOptions,
        wrote: bool,
    ) -> OpenId {
        let id = self.next;
        self.next += 1;
        let holders = BTreeSet::from([caller.slot.0]);
        let Node { unclean, deaths, .. } = *self.node(node);
        let takes_over = (unclean && options.write).then_some(deaths);
        self.opens.insert(id, Open { node, options, cursor: 0, wrote, holders, takes_over });
        id
    }

    /// Returns an open description. Errors: `BadHandle`.
    pub fn description(&mut self, id: OpenId) -> Result<&mut Open> {
        self.opens.get_mut(&id).ok_or(Error::BadHandle)
    }

    /// Returns the number of open descriptions of a node.
    pub fn opens_of(&self, node: NodeId) -> usize {
        self.opens.values().filter(|open| open.node == node).count()
    }

    /// Whether the process `holder` holds the description.
    pub fn holds(&self, holder: u32, id: OpenId) -> bool {
        self.opens.get(&id).is_some_and(|open| open.holders.contains(&holder))
    }

    /// Gives the process `child` every description that `parent` holds.
    pub fn fork(&mut self, parent: u32, child: u32) {
        for open in self.opens.values_mut().filter(|open| open.holders.contains(&parent)) {
            open.holders.insert(child);
        }
    }

    /// Takes a description from a process. `clean` is false if the process was killed; a file it
    /// wrote to becomes unclean. Errors: `BadHandle` if the process does not hold it.
    pub fn release(&mut self, holder: u32, id: OpenId, clean: bool) -> Result<()> {
        let open = self.description(id)?;
        if !open.holders.remove(&holder) {
            return Err(Error::BadHandle);
        }
        let is_torn = !clean && open.wrote && open.options.write;
        let (node, is_last) = (open.node, open.holders.is_empty());
        if is_torn {
            let node = self.node_mut(node);
            node.unclean = true;
            node.deaths += 1;
        }
        if is_last {
            let open = self.opens.remove(&id).expect("it was found above");
            let node = self.node_mut(open.node);
            if clean && open.takes_over == Some(node.deaths) {
                node.unclean = false;
            }
            self.drop_if_unreachable(open.node);
        }
        Ok(())
    }

    /// Ends a process and releases every description it holds.
    pub fn end(&mut self, holder: u32, clean: bool) {
        let held: Vec<OpenId> =
            self.opens.keys().copied().filter(|&id| self.holds(holder, id)).collect();
        for id in held {
            self.release(holder, id, clean).expect("the process holds it");
        }
    }

    /// Sets the times of `node` after a change of its data or entries.
    pub fn touch(&mut self, caller: &Caller, node: NodeId) {
        let node = self.node_mut(node);
        node.modified = caller.now.0;
        node.changed = caller.now.0;
    }

    /// Drops a node without names and without open descriptions.
    pub(crate) fn drop_if_unreachable(&mut self, id: NodeId) {
        let is_open = self.opens.values().any(|open| open.node == id);
        if self.node(id).links == 0 && !is_open {
            self.nodes.remove(&id);
        }
    }

    /// Sets the length of a regular file, bytes. Length 0 makes it clean and present.
    pub fn truncate(&mut self, caller: &Caller, node: NodeId, size: u64) -> Result<()> {
        self.content(node)?.truncate(size);
        if size == 0 {
            self.node_mut(node).unclean = false;
            self.node_mut(node).absent = false;
        }
        self.touch(caller, node);
        Ok(())
    }

    /// Gives an empty regular file these bytes and marks it absent: its data are only elsewhere.
    pub fn make_absent(&mut self, node: NodeId, bytes: &[u8]) {
        self.content(node).expect("it is a file").write(0, bytes, false);
        let node = self.node_mut(node);
        node.absent = true;
        node.unclean = false;
    }

    /// Marks a file as absent that has the data which are elsewhere.
    pub fn release_data(&mut self, node: NodeId) {
        self.node_mut(node).absent = true;
    }

    /// Whether a node exists and is an absent file.
    pub fn is_absent(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|node| node.absent)
    }

    /// Opens an absent file for the process that stages its data in.
    pub fn open_absent(&mut self, caller: &Caller, node: NodeId) -> OpenId {
        self.add_open(caller, node, OpenOptions { write: true, ..OpenOptions::NONE }, false)
    }

    /// Marks the data of a file as present.
    pub fn end_absence(&mut self, node: NodeId) {
        self.node_mut(node).absent = false;
    }
}
