//! Operations on names: create, remove, rename, link, list, and the attributes behind them.

use crate::error::{Error, Result};
use crate::fs::Microfs;
use crate::handle::{APPEND, MAY_READ, MAY_WRITE, PATH_ONLY, WROTE};
use crate::inode::{EXECUTE, Inode, READ, WRITE};
use crate::names::Entry;
use crate::oplog::Operation;
use crate::process::Slot;
use crate::transaction::Transaction;
use crate::types::{
    Attributes, Caller, DirectoryEntry, InodeId, MODE_DIRECTORY, MODE_REGULAR, MODE_SYMLINK,
    NAME_BYTES_MAX, OpenOptions, Opened, PATH_BYTES_MAX, ROOT, RenameMode, TimeUpdate, Timestamp,
};
use crate::walk::{Last, Spare, Walked};

const STICKY: u32 = 0o1000;
const PERMISSION_BITS: u32 = 0o7777;
/// Entries read from a directory under one lock.
const LIST_BATCH: usize = 32;
/// Directories between one and the root that `path_of` and the cycle check of `rename` go through.
const DEPTH_MAX: usize = 4096;

fn last(follow: bool) -> Last {
    if follow { Last::Follow } else { Last::Keep }
}

impl Transaction<'_> {
    /// Gives `inode` its first or another name.
    fn link_name(
        &mut self,
        parent: Inode,
        name: &[u8],
        inode: Inode,
        now: Timestamp,
    ) -> Result<()> {
        if parent.links(self) == 0 {
            return Err(Error::NotFound);
        }
        self.add_name(parent.id, name, inode.id)?;
        let entries = parent.held(self);
        parent.set_held(self, entries.wrapping_add(1));
        inode.add_link(self)?;
        inode.set_changed(self, now.0);
        touch_directory(self, parent, now);
        Ok(())
    }

    fn unlink_name(&mut self, parent: Inode, entry: Entry, now: Timestamp) {
        self.remove_name(parent.id, entry);
        let entries = parent.held(self);
        parent.set_held(self, entries.saturating_sub(1));
        touch_directory(self, parent, now);
    }

    /// Frees what belongs to `inode` if no name and no open description is left.
    pub(crate) fn retire_if_unreachable(&mut self, inode: Inode, slot: Option<Slot>) -> Result<()> {
        if inode.links(self) > 0 || inode.opens(self) > 0 {
            return Ok(());
        }
        match inode.kind(self) {
            MODE_REGULAR => self.dispose_inode(inode, slot),
            MODE_SYMLINK => {
                let target = inode.target(self);
                self.free_text(target);
                self.free_inode(inode);
            }
            _ => self.free_inode(inode),
        }
        Ok(())
    }

    /// Whether `caller` may remove or replace `victim` in `parent`.
    fn permit_removal(&self, parent: Inode, victim: Inode, caller: &Caller) -> Result<()> {
        parent.permit(self, caller, WRITE | EXECUTE)?;
        let uid = caller.credentials.uid;
        let sticky = parent.mode(self) & STICKY != 0;
        let owns = uid == 0 || uid == victim.uid(self) || uid == parent.uid(self);
        match sticky && !owns {
            true => Err(Error::NotPermitted),
            false => Ok(()),
        }
    }

    /// Whether `inner` is `outer` or lies below it.
    fn is_below(&self, inner: Inode, outer: Inode) -> Result<bool> {
        let mut directory = inner;
        for _ in 0..DEPTH_MAX {
            if directory.id == outer.id {
                return Ok(true);
            }
            if directory.id == ROOT {
                return Ok(false);
            }
            match self.parent_of(directory) {
                Ok(parent) => directory = parent,
                // A removed directory is below nothing.
                Err(_) => return Ok(false),
            }
        }
        Err(Error::Corrupt { what: "directory depth" })
    }

    /// The directory `directory` is in, or was in when it was removed.
    /// Errors: `NotFound` if that is gone, too, even if its number is in use again.
    pub(crate) fn parent_of(&self, directory: Inode) -> Result<Inode> {
        let parent = self.inode(InodeId(directory.parent(self)))?;
        let removed = directory.links(self) == 0;
        match removed && parent.version(self) != directory.parent_version(self) {
            true => Err(Error::NotFound),
            false => Ok(parent),
        }
    }

    /// Ends the life of a directory's name; it may still be open or somebody's working directory.
    fn bury_directory(&mut self, parent: Inode, directory: Inode) {
        parent.drop_link(self);
        directory.set_links(self, 0);
        let version = parent.version(self);
        directory.set_parent_version(self, version);
    }

    /// Removes the name of a target that a rename replaces.
    fn drop_replaced(
        &mut self,
        parent: Inode,
        victim: Inode,
        slot: Slot,
        now: Timestamp,
    ) -> Result<()> {
        victim.set_changed(self, now.0);
        match victim.is_directory(self) {
            true => self.bury_directory(parent, victim),
            false => victim.drop_link(self),
        }
        self.retire_if_unreachable(victim, Some(slot))
    }
}

fn touch_directory(tx: &mut Transaction, directory: Inode, now: Timestamp) {
    directory.set_modified(tx, now.0);
    directory.set_changed(tx, now.0);
}

impl Microfs {
    fn walk<'p>(
        &self,
        tx: &Transaction,
        caller: &Caller,
        path: (InodeId, &'p [u8]),
        last: Last,
        spare: &'p Spare,
    ) -> Result<Walked<'p>> {
        tx.walk(&self.geometry().mount, caller, path, last, spare)
    }

    /// Opens `path`. `mode` holds the permission bits of a file that is created (umask applied).
    pub fn open_file(
        &self,
        caller: &Caller,
        base: InodeId,
        path: &[u8],
        options: OpenOptions,
        mode: u32,
    ) -> Result<Opened> {
        let keep_link = options.no_follow || options.create && options.exclusive;
        let last = match (keep_link, options.create) {
            (true, true) => Last::Name,
            (true, false) => Last::Keep,
            (false, true) => Last::Create,
            (false, false) => Last::Follow,
        };
        let spare = Spare::new();
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let walked = self.walk(tx, caller, (base, path), last, &spare)?;
            if options.create && walked.trailing_slash && walked.has_ordinary_name() {
                return Err(Error::IsDirectory);
            }
            let (inode, created) = match walked.target {
                Some(inode) => (inode, false),
                None if options.create => (create_file(tx, caller, &walked, mode)?, true),
                None => return Err(Error::NotFound),
            };
            let is_directory = inode.is_directory(tx);
            if !created {
                if options.create && options.exclusive {
                    return Err(Error::Exists);
                }
                if is_directory && options.create {
                    return Err(Error::IsDirectory);
                }
                if (walked.trailing_slash || options.directory) && !is_directory {
                    return Err(Error::NotDirectory);
                }
                if inode.is_symlink(tx) && !options.path_only {
                    return Err(Error::SymlinkLoop);
                }
                if is_directory && (options.write || options.truncate) {
                    return Err(Error::IsDirectory);
                }
                if !options.path_only {
                    let wanted = if options.read { READ } else { 0 }
                        | if options.write || options.truncate { WRITE } else { 0 };
                    inode.permit(tx, caller, wanted)?;
                }
            }
            let truncates = options.truncate && !created && inode.is_regular(tx);
            if truncates {
                tx.truncate_to_zero(inode, caller, slot)?;
            }
            let mut flags = 0;
            for (set, flag) in [
                (options.read, MAY_READ),
                (options.write, MAY_WRITE),
                (options.append, APPEND),
                (options.path_only, PATH_ONLY),
                ((created || truncates) && options.write, WROTE),
            ] {
                flags |= if set { flag } else { 0 };
            }
            if options.path_only {
                flags &= !(MAY_READ | MAY_WRITE | WROTE);
            }
            let handle = tx.new_handle(slot, inode, flags)?;
            Ok(Opened { handle: handle.id, inode: inode.id, created, is_directory })
        })
    }

    /// What `path` names.
    pub fn resolve(
        &self,
        caller: &Caller,
        base: InodeId,
        path: &[u8],
        follow: bool,
    ) -> Result<InodeId> {
        let spare = Spare::new();
        self.transact(|tx| {
            let walked = self.walk(tx, caller, (base, path), last(follow), &spare)?;
            Ok(walked.existing(tx)?.id)
        })
    }

    /// Attributes of what `path` names.
    pub fn stat(
        &self,
        caller: &Caller,
        base: InodeId,
        path: &[u8],
        follow: bool,
    ) -> Result<Attributes> {
        let spare = Spare::new();
        self.transact(|tx| {
            let walked = self.walk(tx, caller, (base, path), last(follow), &spare)?;
            Ok(walked.existing(tx)?.attributes(tx))
        })
    }

    /// Attributes of an inode.
    pub fn attributes(&self, inode: InodeId) -> Result<Attributes> {
        self.transact(|tx| Ok(tx.inode(inode)?.attributes(tx)))
    }

    /// Checks access as `access(2)`: `mask` of 4 read, 2 write, 1 execute; 0 asks for existence.
    pub fn access(
        &self,
        caller: &Caller,
        base: InodeId,
        path: &[u8],
        mask: u32,
        follow: bool,
    ) -> Result<()> {
        let spare = Spare::new();
        self.transact(|tx| {
            let walked = self.walk(tx, caller, (base, path), last(follow), &spare)?;
            walked.existing(tx)?.permit(tx, caller, mask)
        })
    }

    /// Makes a directory.
    pub fn make_directory(
        &self,
        caller: &Caller,
        base: InodeId,
        path: &[u8],
        mode: u32,
    ) -> Result<InodeId> {
        let spare = Spare::new();
        self.transact(|tx| {
            let walked = self.walk(tx, caller, (base, path), Last::Name, &spare)?;
            if walked.target.is_some() {
                return Err(Error::Exists);
            }
            permit_creation(tx, caller, &walked)?;
            let mode = MODE_DIRECTORY | mode & PERMISSION_BITS;
            let inode = tx.new_inode(mode, caller)?;
            inode.set_parent(tx, walked.parent.id.0);
            tx.link_name(walked.parent, walked.name, inode, caller.now)?;
            inode.add_link(tx)?;
            walked.parent.add_link(tx)?;
            log_create(tx, caller, &walked, inode);
            Ok(inode.id)
        })
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, caller: &Caller, base: InodeId, path: &[u8]) -> Result<()> {
        let spare = Spare::new();
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let walked = self.walk(tx, caller, (base, path), Last::Name, &spare)?;
            if !walked.has_ordinary_name() {
                return Err(match walked.name {
                    b"." => Error::Invalid,
                    b".." => Error::NotEmpty,
                    _ => Error::InUse,
                });
            }
            let target = walked.target.ok_or(Error::NotFound)?;
            tx.permit_removal(walked.parent, target, caller)?;
            if !target.is_directory(tx) {
                return Err(Error::NotDirectory);
            }
            if target.held(tx) != 0 {
                return Err(Error::NotEmpty);
            }
            let name = walked.name;
            let entry = tx.find_name(walked.parent.id, name).ok_or(Error::NotFound)?;
            tx.unlink_name(walked.parent, entry, caller.now);
            target.set_changed(tx, caller.now.0);
            tx.bury_directory(walked.parent, target);
            log_name(tx, Operation::Unlink, caller, &walked, target);
            tx.retire_if_unreachable(target, Some(slot))
        })
    }

    /// Removes a name; the file goes when its last name and last open description are gone.
    pub fn unlink(&self, caller: &Caller, base: InodeId, path: &[u8]) -> Result<()> {
        self.remove_file(caller, base, path, Operation::Unlink)
    }

    /// Removes a name from the store only: a drained copy stays where it is.
    pub fn evict(&self, caller: &Caller, base: InodeId, path: &[u8]) -> Result<()> {
        self.remove_file(caller, base, path, Operation::Evict)
    }

    fn remove_file(
        &self,
        caller: &Caller,
        base: InodeId,
        path: &[u8],
        operation: Operation,
    ) -> Result<()> {
        let spare = Spare::new();
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let walked = self.walk(tx, caller, (base, path), Last::Name, &spare)?;
            let target = walked.target.ok_or(Error::NotFound)?;
            let is_directory = target.is_directory(tx);
            if walked.trailing_slash && !is_directory {
                return Err(Error::NotDirectory);
            }
            if walked.has_ordinary_name() && !walked.trailing_slash {
                tx.permit_removal(walked.parent, target, caller)?;
            }
            if is_directory {
                return Err(Error::IsDirectory);
            }
            let name = walked.name;
            let entry = tx.find_name(walked.parent.id, name).ok_or(Error::NotFound)?;
            tx.unlink_name(walked.parent, entry, caller.now);
            target.drop_link(tx);
            target.set_changed(tx, caller.now.0);
            log_name(tx, operation, caller, &walked, target);
            tx.retire_if_unreachable(target, Some(slot))
        })
    }

    /// Gives a file another name.
    pub fn link(
        &self,
        caller: &Caller,
        old: (InodeId, &[u8]),
        new: (InodeId, &[u8]),
        follow: bool,
    ) -> Result<()> {
        let spare = Spare::new();
        let new_spare = Spare::new();
        self.transact(|tx| {
            let inode = self.walk(tx, caller, old, last(follow), &spare)?.existing(tx)?;
            let walked = self.walk(tx, caller, new, Last::Name, &new_spare)?;
            self.link_inode(tx, caller, inode, &walked)
        })
    }

    /// Gives an open file a (further) name, as `linkat` does for a descriptor.
    fn link_inode(
        &self,
        tx: &mut Transaction,
        caller: &Caller,
        inode: Inode,
        walked: &Walked<'_>,
    ) -> Result<()> {
        if walked.target.is_some() {
            return Err(Error::Exists);
        }
        if walked.trailing_slash {
            return Err(Error::NotFound);
        }
        permit_creation(tx, caller, walked)?;
        if inode.is_directory(tx) {
            return Err(Error::NotPermitted);
        }
        if inode.links(tx) == 0 {
            return Err(Error::NotFound);
        }
        tx.link_name(walked.parent, walked.name, inode, caller.now)?;
        log_name(tx, Operation::Link, caller, walked, inode);
        Ok(())
    }

    /// Makes a symbolic link.
    pub fn symlink(
        &self,
        caller: &Caller,
        target: &[u8],
        base: InodeId,
        path: &[u8],
    ) -> Result<InodeId> {
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        if target.len() > PATH_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        let spare = Spare::new();
        self.transact(|tx| {
            let walked = self.walk(tx, caller, (base, path), Last::Name, &spare)?;
            if walked.target.is_some() {
                return Err(Error::Exists);
            }
            if walked.trailing_slash {
                return Err(Error::NotFound);
            }
            permit_creation(tx, caller, &walked)?;
            let inode = tx.new_inode(MODE_SYMLINK | 0o777, caller)?;
            let record = tx.store_text(target, inode.id)?;
            inode.set_target(tx, record);
            inode.set_size(tx, target.len() as u64);
            tx.link_name(walked.parent, walked.name, inode, caller.now)?;
            log_name(tx, Operation::Symlink, caller, &walked, inode);
            tx.log(Operation::Target, caller.now, &[u64::from(inode.id.0), 0], target);
            Ok(inode.id)
        })
    }

    /// Reads the target of a symbolic link into `target`, whose capacity should be [`PATH_BYTES_MAX`].
    pub fn read_link(
        &self,
        caller: &Caller,
        base: InodeId,
        path: &[u8],
        target: &mut Vec<u8>,
    ) -> Result<()> {
        target.clear();
        target.resize(PATH_BYTES_MAX, 0);
        let spare = Spare::new();
        let length = self.transact(|tx| {
            let inode = self.walk(tx, caller, (base, path), Last::Keep, &spare)?.existing(tx)?;
            match inode.is_symlink(tx) {
                true => Ok(tx.copy_text(inode.target(tx), target)),
                false => Err(Error::Invalid),
            }
        })?;
        target.truncate(length);
        Ok(())
    }

    /// Renames, atomically for every process of the node.
    pub fn rename(
        &self,
        caller: &Caller,
        from: (InodeId, &[u8]),
        to: (InodeId, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        let spare = Spare::new();
        let new_spare = Spare::new();
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let old = self.walk(tx, caller, from, Last::Name, &spare)?;
            let new = self.walk(tx, caller, to, Last::Name, &new_spare)?;
            let moved = check_rename(tx, &old, &new, mode)?;
            if new.target.is_some_and(|target| target.id == moved.id) {
                return Ok(());
            }
            tx.permit_removal(old.parent, moved, caller)?;
            match new.target {
                Some(victim) => tx.permit_removal(new.parent, victim, caller)?,
                None => permit_creation(tx, caller, &new)?,
            }
            if mode == RenameMode::Exchange {
                return exchange(tx, caller, &old, &new, moved);
            }
            replace(tx, caller, slot, &old, &new, moved)
        })
    }

    /// Sets the permission bits.
    pub fn set_mode(&self, caller: &Caller, inode: InodeId, mode: u32) -> Result<()> {
        self.change_attributes(caller, inode, |tx, inode| {
            inode.permit_owner(tx, caller)?;
            let kind = inode.kind(tx);
            inode.set_mode(tx, kind | mode & PERMISSION_BITS);
            Ok(())
        })
    }

    /// Sets owner and group, where given. Only root may give a file away.
    pub fn set_owner(
        &self,
        caller: &Caller,
        inode: InodeId,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<()> {
        self.change_attributes(caller, inode, |tx, inode| {
            inode.permit_owner(tx, caller)?;
            let credentials = caller.credentials;
            let foreign_uid = uid.is_some_and(|uid| uid != inode.uid(tx));
            let foreign_gid = gid.is_some_and(|gid| gid != inode.gid(tx) && gid != credentials.gid);
            if credentials.uid != 0 && (foreign_uid || foreign_gid) {
                return Err(Error::NotPermitted);
            }
            if let Some(uid) = uid {
                inode.set_uid(tx, uid);
            }
            if let Some(gid) = gid {
                inode.set_gid(tx, gid);
            }
            Ok(())
        })
    }

    /// Sets access and modification time.
    pub fn set_times(
        &self,
        caller: &Caller,
        inode: InodeId,
        accessed: TimeUpdate,
        modified: TimeUpdate,
    ) -> Result<()> {
        self.change_attributes(caller, inode, |tx, inode| {
            let touches_only = [accessed, modified].iter().all(|update| *update == TimeUpdate::Now);
            if inode.permit_owner(tx, caller).is_err() {
                match touches_only {
                    true => inode.permit(tx, caller, WRITE)?,
                    false => return Err(Error::NotPermitted),
                }
            }
            let value = |update: TimeUpdate| match update {
                TimeUpdate::Omit => None,
                TimeUpdate::Now => Some(caller.now.0),
                TimeUpdate::At(time) => Some(time.0),
            };
            if let Some(time) = value(accessed) {
                inode.set_accessed(tx, time);
            }
            if let Some(time) = value(modified) {
                inode.set_modified(tx, time);
            }
            Ok(())
        })
    }

    fn change_attributes(
        &self,
        caller: &Caller,
        inode: InodeId,
        change: impl FnOnce(&mut Transaction, Inode) -> Result<()>,
    ) -> Result<()> {
        self.transact(|tx| {
            let inode = tx.inode(inode)?;
            change(tx, inode)?;
            inode.set_changed(tx, caller.now.0);
            let parameters = [
                u64::from(inode.id.0),
                u64::from(inode.mode(tx)),
                u64::from(inode.uid(tx)),
                u64::from(inode.gid(tx)),
                inode.accessed(tx),
                inode.modified(tx),
            ];
            tx.log(Operation::Attributes, caller.now, &parameters, &[]);
            Ok(())
        })
    }

    /// Visits the entries of `directory` after position `after` (0 = from the start) until `visit` returns false.
    /// `.` and `..` are not among them. The visitor runs without the lock.
    pub fn list(
        &self,
        caller: &Caller,
        directory: InodeId,
        after: u64,
        visit: &mut dyn FnMut(DirectoryEntry<'_>) -> bool,
    ) -> Result<()> {
        let mut names = [0; LIST_BATCH * 128];
        let mut position = after;
        loop {
            let mut batch = [(0usize, InodeId(0), 0u8, 0u64); LIST_BATCH];
            let mut count = 0;
            self.transact(|tx| {
                let inode = tx.inode(directory)?;
                if !inode.is_directory(tx) {
                    return Err(Error::NotDirectory);
                }
                inode.permit(tx, caller, READ)?;
                let mut used = 0;
                while count < LIST_BATCH && used + NAME_BYTES_MAX <= names.len() {
                    let Some(entry) = tx.next_name(directory, position) else { break };
                    let length = tx.copy_name(entry, &mut names[used..used + NAME_BYTES_MAX]);
                    let kind = tx.inode(entry.inode)?.directory_kind(tx);
                    batch[count] = (length, entry.inode, kind, entry.hash);
                    used += length;
                    count += 1;
                    position = entry.hash;
                }
                Ok(())
            })?;
            let mut start = 0;
            for &(length, inode, kind, cookie) in &batch[..count] {
                let name = &names[start..start + length];
                start += length;
                if !visit(DirectoryEntry { name, inode, kind, cookie }) {
                    return Ok(());
                }
            }
            if count == 0 {
                return Ok(());
            }
        }
    }

    /// The directory that holds `directory`; the root holds itself.
    pub fn parent(&self, directory: InodeId) -> Result<InodeId> {
        self.transact(|tx| {
            let inode = tx.inode(directory)?;
            match inode.is_directory(tx) {
                true => Ok(InodeId(inode.parent(tx))),
                false => Err(Error::NotDirectory),
            }
        })
    }

    /// Path of a directory below the root, without leading slash; empty for the root.
    /// Errors: `NotFound` if it was removed.
    pub fn path_of(&self, directory: InodeId) -> Result<Vec<u8>> {
        let mut reversed = Vec::with_capacity(PATH_BYTES_MAX + NAME_BYTES_MAX + 1);
        self.transact(|tx| {
            let mut inode = tx.inode(directory)?;
            for _ in 0..DEPTH_MAX {
                if inode.id == ROOT {
                    return Ok(());
                }
                if inode.links(tx) == 0 {
                    return Err(Error::NotFound);
                }
                let parent = tx.inode(InodeId(inode.parent(tx)))?;
                let mut name = [0; NAME_BYTES_MAX];
                let length = name_of(tx, parent, inode, &mut name)?;
                if reversed.len() + length >= PATH_BYTES_MAX {
                    return Err(Error::NameTooLong);
                }
                reversed.extend(name[..length].iter().rev());
                reversed.push(b'/');
                inode = parent;
            }
            Err(Error::Corrupt { what: "directory depth" })
        })?;
        reversed.pop();
        reversed.reverse();
        Ok(reversed)
    }
}

/// Copies the name `inode` has in `parent`, found by looking at every entry.
fn name_of(tx: &Transaction, parent: Inode, inode: Inode, name: &mut [u8]) -> Result<usize> {
    let mut position = 0;
    while let Some(entry) = tx.next_name(parent.id, position) {
        if entry.inode == inode.id {
            return Ok(tx.copy_name(entry, name));
        }
        position = entry.hash;
    }
    Err(Error::NotFound)
}

/// Whether `caller` may make the name that `walked` leads to.
fn permit_creation(tx: &Transaction, caller: &Caller, walked: &Walked) -> Result<()> {
    match walked.parent.links(tx) {
        0 => Err(Error::NotFound),
        _ => walked.parent.permit(tx, caller, WRITE | EXECUTE),
    }
}

fn create_file(
    tx: &mut Transaction,
    caller: &Caller,
    walked: &Walked<'_>,
    mode: u32,
) -> Result<Inode> {
    permit_creation(tx, caller, walked)?;
    let inode = tx.new_inode(MODE_REGULAR | mode & PERMISSION_BITS, caller)?;
    tx.link_name(walked.parent, walked.name, inode, caller.now)?;
    log_create(tx, caller, walked, inode);
    Ok(inode)
}

fn log_create(tx: &mut Transaction, caller: &Caller, walked: &Walked<'_>, inode: Inode) {
    let mode = inode.mode(tx);
    let parameters = [u64::from(walked.parent.id.0), u64::from(inode.id.0), u64::from(mode)];
    tx.log(Operation::Create, caller.now, &parameters, walked.name);
}

fn log_name(
    tx: &mut Transaction,
    operation: Operation,
    caller: &Caller,
    walked: &Walked<'_>,
    inode: Inode,
) {
    let parameters = [u64::from(walked.parent.id.0), u64::from(inode.id.0)];
    tx.log(operation, caller.now, &parameters, walked.name);
}

/// What `rename` refuses whoever asks, in Linux's order; returns what is to be moved.
fn check_rename(
    tx: &Transaction,
    old: &Walked<'_>,
    new: &Walked<'_>,
    mode: RenameMode,
) -> Result<Inode> {
    if !old.has_ordinary_name() {
        return Err(Error::InUse);
    }
    if !new.has_ordinary_name() {
        let keeps = mode == RenameMode::NoReplace;
        return Err(if keeps { Error::Exists } else { Error::InUse });
    }
    let moved = old.target.ok_or(Error::NotFound)?;
    let exchanges = mode == RenameMode::Exchange;
    match new.target {
        Some(_) if mode == RenameMode::NoReplace => return Err(Error::Exists),
        None if exchanges => return Err(Error::NotFound),
        Some(other) if exchanges && new.trailing_slash && !other.is_directory(tx) => {
            return Err(Error::NotDirectory);
        }
        _ => {}
    }
    let slash = old.trailing_slash || new.trailing_slash && !exchanges;
    if slash && !moved.is_directory(tx) {
        return Err(Error::NotDirectory);
    }
    if moved.is_directory(tx) && tx.is_below(new.parent, moved)? {
        return Err(Error::Invalid);
    }
    let Some(other) = new.target.filter(|other| other.is_directory(tx)) else { return Ok(moved) };
    match tx.is_below(old.parent, other)? {
        true if exchanges => Err(Error::Invalid),
        true => Err(Error::NotEmpty),
        false => Ok(moved),
    }
}

/// A directory that gets another parent has its `..` written.
fn permit_move(
    tx: &Transaction,
    caller: &Caller,
    moved: Inode,
    old: &Walked<'_>,
    new: &Walked<'_>,
) -> Result<()> {
    match moved.is_directory(tx) && old.parent.id != new.parent.id {
        true => moved.permit(tx, caller, WRITE),
        false => Ok(()),
    }
}

/// The second half of `rename`: `moved` takes the new name, whatever had it goes.
fn replace(
    tx: &mut Transaction,
    caller: &Caller,
    slot: Slot,
    old: &Walked<'_>,
    new: &Walked<'_>,
    moved: Inode,
) -> Result<()> {
    let now = caller.now;
    let is_directory = moved.is_directory(tx);
    let replaced = new.target.map_or(0, |victim| victim.id.0);
    if let Some(victim) = new.target {
        match (is_directory, victim.is_directory(tx)) {
            (true, false) => return Err(Error::NotDirectory),
            (false, true) => return Err(Error::IsDirectory),
            _ => {}
        }
        permit_move(tx, caller, moved, old, new)?;
        if victim.is_directory(tx) && victim.held(tx) != 0 {
            return Err(Error::NotEmpty);
        }
        let entry = tx.find_name(new.parent.id, new.name).ok_or(Error::NotFound)?;
        tx.unlink_name(new.parent, entry, now);
        tx.drop_replaced(new.parent, victim, slot, now)?;
    } else {
        permit_move(tx, caller, moved, old, new)?;
    }
    let entry = tx.find_name(old.parent.id, old.name).ok_or(Error::NotFound)?;
    tx.unlink_name(old.parent, entry, now);
    moved.drop_link(tx);
    tx.link_name(new.parent, new.name, moved, now)?;
    if is_directory && old.parent.id != new.parent.id {
        old.parent.drop_link(tx);
        new.parent.add_link(tx)?;
        moved.set_parent(tx, new.parent.id.0);
    }
    log_rename(tx, caller, old, new, moved, replaced);
    Ok(())
}

fn exchange(
    tx: &mut Transaction,
    caller: &Caller,
    old: &Walked<'_>,
    new: &Walked<'_>,
    moved: Inode,
) -> Result<()> {
    let other = new.target.ok_or(Error::NotFound)?;
    permit_move(tx, caller, moved, old, new)?;
    permit_move(tx, caller, other, old, new)?;
    let from = tx.find_name(old.parent.id, old.name).ok_or(Error::NotFound)?;
    let to = tx.find_name(new.parent.id, new.name).ok_or(Error::NotFound)?;
    tx.redirect_name(from, other.id);
    tx.redirect_name(to, moved.id);
    for (inode, leaves, joins) in [(moved, old.parent, new.parent), (other, new.parent, old.parent)]
    {
        inode.set_changed(tx, caller.now.0);
        if inode.is_directory(tx) && leaves.id != joins.id {
            leaves.drop_link(tx);
            joins.add_link(tx)?;
            inode.set_parent(tx, joins.id.0);
        }
        touch_directory(tx, joins, caller.now);
    }
    log_rename(tx, caller, old, new, moved, other.id.0);
    log_rename(tx, caller, new, old, other, moved.id.0);
    Ok(())
}

fn log_rename(
    tx: &mut Transaction,
    caller: &Caller,
    old: &Walked<'_>,
    new: &Walked<'_>,
    moved: Inode,
    replaced: u32,
) {
    let parameters =
        [old.parent.id, moved.id, new.parent.id, InodeId(replaced)].map(|id| u64::from(id.0));
    tx.log(Operation::Rename, caller.now, &parameters, new.name);
}
