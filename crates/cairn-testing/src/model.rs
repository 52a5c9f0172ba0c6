//! A reference file system: what POSIX says, as simply as it can be said.
//!
//! Directories are maps from names to nodes, open files are records with a cursor, errors come in
//! the order in which Linux finds them (`tests/kernel.rs` compares with the kernel).
//! `tests/model.rs` compares Cairn with this.
//! Does not know blocks, space, locks or processes' deaths beyond who holds which open file.

use crate::content::Content;
use crate::path::{Last, Walk};
use cairn_core::{
    Caller, Error, ExtendedUpdate, InodeId, MODE_DIRECTORY, MODE_REGULAR, MODE_SYMLINK,
    OpenOptions, Result,
};
use std::collections::{BTreeMap, BTreeSet};

/// Names a file, directory or symbolic link of the model.
pub type NodeId = u32;
/// Names an open-file description of the model.
pub type OpenId = u32;

/// The root directory.
pub const ROOT: NodeId = 1;

/// What kind of thing a node is, and what it holds.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Names, and the directory this one is in.
    Directory {
        /// What is in it.
        entries: BTreeMap<Vec<u8>, NodeId>,
        /// The directory it is in; the root is in itself.
        parent: NodeId,
    },
    /// Bytes.
    File(Content),
    /// The target.
    Symlink(Vec<u8>),
}

/// A file, directory or symbolic link.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it is.
    pub kind: Kind,
    /// Permission bits.
    pub permissions: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names it has; a directory counts itself and its subdirectories.
    pub links: u32,
    /// Last change of the data, nanoseconds.
    pub modified: i64,
    /// Last change of data or attributes, nanoseconds.
    pub changed: i64,
    /// Its writer died.
    pub unclean: bool,
    deaths: u32,
    /// Extended attributes.
    pub extended: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Its data are elsewhere.
    pub absent: bool,
}

/// An open-file description.
#[derive(Clone, Debug)]
pub struct Open {
    /// The open file.
    pub node: NodeId,
    /// How it was opened.
    pub options: OpenOptions,
    /// Shared file offset.
    pub cursor: u64,
    /// Whether data was written through it.
    pub wrote: bool,
    /// Processes that refer to it.
    pub holders: BTreeSet<u32>,
    /// It was opened for writing when the file was unclean, and how many deaths of writers the file
    /// had seen then.
    takes_over: Option<u32>,
}

/// What `stat` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links.
    pub links: u32,
    /// Length in bytes; 0 for directories.
    pub size: u64,
    /// Last change of the data.
    pub modified: i64,
    /// Last change of data or attributes.
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
    /// Type and permission bits.
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

    /// Whether `caller` has all rights of `mask`.
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
    /// An empty root directory that belongs to the caller.
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

    /// A node that exists.
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

    /// The bytes of a regular file.
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

    /// What `path` names.
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

    /// What `stat` shows of a node.
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

    /// Attributes of what `path` names.
    pub fn stat(&self, caller: &Caller, base: NodeId, path: &[u8], follow: bool) -> Result<Facts> {
        self.resolve(caller, base, path, follow).map(|id| self.facts(id))
    }

    /// As `access(2)`.
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

    /// Sets the permission bits.
    pub fn set_mode(&mut self, caller: &Caller, id: NodeId, permissions: u32) -> Result<()> {
        let node = self.node_mut(id);
        if caller.credentials.uid != 0 && caller.credentials.uid != node.uid {
            return Err(Error::NotPermitted);
        }
        node.permissions = permissions & 0o7777;
        node.changed = caller.now.0;
        Ok(())
    }

    /// Whether `caller` may read or write the extended attribute `name` of a node.
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

    /// As `setxattr(2)`, of values that are not too long.
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

    /// As `getxattr(2)`.
    pub fn get_extended(&self, caller: &Caller, id: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        self.permit_extended(caller, id, name, READ)?;
        self.node(id).extended.get(name).cloned().ok_or(Error::NoData)
    }

    /// As `removexattr(2)`.
    pub fn remove_extended(&mut self, caller: &Caller, id: NodeId, name: &[u8]) -> Result<()> {
        self.permit_extended(caller, id, name, WRITE)?;
        let node = self.node_mut(id);
        node.extended.remove(name).ok_or(Error::NoData)?;
        node.changed = caller.now.0;
        Ok(())
    }

    /// Names of a directory.
    pub fn list(&self, caller: &Caller, id: NodeId) -> Result<&BTreeMap<Vec<u8>, NodeId>> {
        let entries = self.node(id).entries()?;
        self.node(id).permit(caller, READ)?;
        Ok(entries)
    }

    /// Opens a file for the process `holder`.
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

    /// An open description. Errors: `BadHandle`.
    pub fn description(&mut self, id: OpenId) -> Result<&mut Open> {
        self.opens.get_mut(&id).ok_or(Error::BadHandle)
    }

    /// Number of open descriptions of a node.
    pub fn opens_of(&self, node: NodeId) -> usize {
        self.opens.values().filter(|open| open.node == node).count()
    }

    /// Whether `holder` refers to the description.
    pub fn holds(&self, holder: u32, id: OpenId) -> bool {
        self.opens.get(&id).is_some_and(|open| open.holders.contains(&holder))
    }

    /// The process `child` inherits everything `parent` has open.
    pub fn fork(&mut self, parent: u32, child: u32) {
        for open in self.opens.values_mut().filter(|open| open.holders.contains(&parent)) {
            open.holders.insert(child);
        }
    }

    /// A process lets go of a description; `clean` false if it was killed.
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

    /// A process ends; everything it has open is released.
    pub fn end(&mut self, holder: u32, clean: bool) {
        let held: Vec<OpenId> =
            self.opens.keys().copied().filter(|&id| self.holds(holder, id)).collect();
        for id in held {
            self.release(holder, id, clean).expect("the process holds it");
        }
    }

    /// The data of `node`, or what is in it, changed.
    pub fn touch(&mut self, caller: &Caller, node: NodeId) {
        let node = self.node_mut(node);
        node.modified = caller.now.0;
        node.changed = caller.now.0;
    }

    /// Forgets a node without names and open descriptions.
    pub(crate) fn drop_if_unreachable(&mut self, id: NodeId) {
        let is_open = self.opens.values().any(|open| open.node == id);
        if self.node(id).links == 0 && !is_open {
            self.nodes.remove(&id);
        }
    }

    /// Sets the length of a regular file.
    pub fn truncate(&mut self, caller: &Caller, node: NodeId, size: u64) -> Result<()> {
        self.content(node)?.truncate(size);
        if size == 0 {
            self.node_mut(node).unclean = false;
            self.node_mut(node).absent = false;
        }
        self.touch(caller, node);
        Ok(())
    }

    /// An empty regular file has these bytes, which are elsewhere.
    pub fn make_absent(&mut self, node: NodeId, bytes: &[u8]) {
        self.content(node).expect("it is a file").write(0, bytes, false);
        let node = self.node_mut(node);
        node.absent = true;
        node.unclean = false;
    }

    /// Whether a file is there whose data are not.
    pub fn is_absent(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|node| node.absent)
    }

    /// Opens an absent file for who brings its data.
    pub fn open_absent(&mut self, caller: &Caller, node: NodeId) -> OpenId {
        self.add_open(caller, node, OpenOptions { write: true, ..OpenOptions::NONE }, false)
    }

    /// The data of a file are there.
    pub fn end_absence(&mut self, node: NodeId) {
        self.node_mut(node).absent = false;
    }
}
