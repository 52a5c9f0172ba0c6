//! Operations that add and remove names: unlink, link, symbolic links, and what all operations on
//! names share.
//!
//! Invariant: an inode counts its names; it is retired when it has neither a name nor an open
//! description. Opening, directories, renaming and attributes have files of their own.

use crate::engine::fs::Microfs;
use crate::engine::inode::{EXECUTE, Inode, NAMELESS, RENAMED, WRITE};
use crate::engine::slot::Slot;
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::record::Operation;
use crate::format::types::{
    Caller, InodeId, MODE_REGULAR, MODE_SYMLINK, PATH_BYTES_MAX, Timestamp,
};
use crate::namespace::names::Entry;
use crate::namespace::walk::{Last, Spare, Walked, last};

const STICKY: u32 = 0o1000;

impl Transaction<'_> {
    /// Gives `inode` its first or another name.
    pub(crate) fn link_name(
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
        inode.set_changed(self, now);
        touch_directory(self, parent, now);
        Ok(())
    }

    pub(crate) fn unlink_name(&mut self, parent: Inode, entry: Entry, now: Timestamp) {
        self.remove_name(parent.id, entry);
        let entries = parent.held(self);
        parent.set_held(self, entries.saturating_sub(1));
        touch_directory(self, parent, now);
    }

    /// Frees `inode` and all that belongs to it, if it has no name and no open description.
    pub(crate) fn retire_if_unreachable(&mut self, inode: Inode, slot: Option<Slot>) -> Result<()> {
        if inode.links(self) > 0 || inode.opens(self) > 0 {
            return Ok(());
        }
        self.drop_extended(inode)?;
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

    /// Checks that `caller` may remove or replace `victim` in `parent`.
    pub(crate) fn permit_removal(
        &self,
        parent: Inode,
        victim: Inode,
        caller: &Caller,
    ) -> Result<()> {
        parent.permit(self, caller, WRITE | EXECUTE)?;
        let uid = caller.credentials.uid;
        let sticky = parent.mode(self) & STICKY != 0;
        let owns = uid == 0 || uid == victim.uid(self) || uid == parent.uid(self);
        match sticky && !owns {
            true => Err(Error::NotPermitted),
            false => Ok(()),
        }
    }
}

impl Microfs {
    /// Returns the inode that `path` names.
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

    /// Removes a name. The file is freed when its last name and last open description are gone.
    pub fn unlink(&self, caller: &Caller, base: InodeId, path: &[u8]) -> Result<()> {
        self.remove_file(caller, base, path, Operation::Unlink, None)
    }

    /// Removes a name from the store only: a drained copy stays.
    pub fn evict(&self, caller: &Caller, base: InodeId, path: &[u8]) -> Result<()> {
        self.remove_file(caller, base, path, Operation::Evict, None)
    }

    /// Does the same if the name names `inode`, whose data have this version, and nobody may write
    /// to it. Errors: `Busy` otherwise.
    pub fn evict_unchanged(
        &self,
        caller: &Caller,
        base: InodeId,
        path: &[u8],
        (inode, version): (InodeId, u64),
    ) -> Result<()> {
        self.remove_file(caller, base, path, Operation::Evict, Some((inode, version)))
    }

    fn remove_file(
        &self,
        caller: &Caller,
        base: InodeId,
        path: &[u8],
        operation: Operation,
        expected: Option<(InodeId, u64)>,
    ) -> Result<()> {
        let spare = Spare::new();
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let walked = self.walk(tx, caller, (base, path), Last::Name, &spare)?;
            let target = walked.target.ok_or(Error::NotFound)?;
            let found = (target.id, target.version(tx));
            if expected.is_some_and(|expected| expected != found || target.writers(tx) > 0) {
                return Err(Error::Busy);
            }
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
            let entry = walked.entry.ok_or(Error::NotFound)?;
            tx.unlink_name(walked.parent, entry, caller.now);
            target.drop_link(tx);
            target.set_changed(tx, caller.now);
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

    /// Gives an inode a further name, or the first one if it was created without a name.
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
        let is_first = inode.links(tx) == 0;
        if is_first && inode.flags(tx) & NAMELESS == 0 {
            return Err(Error::NotFound);
        }
        tx.link_name(walked.parent, walked.name, inode, caller.now)?;
        match is_first {
            true => {
                inode.clear_flags(tx, NAMELESS);
                log_create(tx, caller, walked, inode);
            }
            false => log_name(tx, Operation::Link, caller, walked, inode),
        }
        Ok(())
    }

    /// Makes a symbolic link. Returns its inode.
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
            let inode = tx.new_inode_in(walked.parent, MODE_SYMLINK | 0o777, caller)?;
            let record = tx.store_text(target, inode.id)?;
            inode.set_target(tx, record);
            inode.set_size(tx, target.len() as u64);
            tx.link_name(walked.parent, walked.name, inode, caller.now)?;
            let id = u64::from(inode.id.0);
            let parameters = [u64::from(walked.parent.id.0), id, inode.owner(tx).pack()];
            tx.log(Operation::Symlink, caller.now, &parameters, walked.name);
            tx.log(Operation::Target, caller.now, &[id], target);
            Ok(inode.id)
        })
    }

    /// Reads the target of a symbolic link into `target`, whose capacity should be
    /// [`PATH_BYTES_MAX`].
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
}

/// Checks that `caller` may create the name that `walked` leads to.
pub(crate) fn permit_creation(tx: &Transaction, caller: &Caller, walked: &Walked) -> Result<()> {
    match walked.parent.links(tx) {
        0 => Err(Error::NotFound),
        _ => walked.parent.permit(tx, caller, WRITE | EXECUTE),
    }
}

pub(crate) fn log_create(tx: &mut Transaction, caller: &Caller, walked: &Walked<'_>, inode: Inode) {
    let mode = u64::from(inode.mode(tx));
    let (parent, id) = (u64::from(walked.parent.id.0), u64::from(inode.id.0));
    let parameters = [parent, id, mode, inode.owner(tx).pack()];
    tx.log(Operation::Create, caller.now, &parameters, walked.name);
}

pub(crate) fn log_name(
    tx: &mut Transaction,
    operation: Operation,
    caller: &Caller,
    walked: &Walked<'_>,
    inode: Inode,
) {
    let parameters = [u64::from(walked.parent.id.0), u64::from(inode.id.0)];
    tx.log(operation, caller.now, &parameters, walked.name);
}

pub(crate) fn touch_directory(tx: &mut Transaction, directory: Inode, now: Timestamp) {
    directory.set_modified(tx, now);
    directory.set_changed(tx, now);
    if directory.flags(tx) & RENAMED != 0 {
        directory.clear_flags(tx, RENAMED);
    }
}
