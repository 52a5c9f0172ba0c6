//! Directories: make, remove, list, and find the way up to the root.
//!
//! Invariant: a directory knows its parent. A removed directory that is still open keeps the number
//! of its former parent, and the version that tells that parent from later users of the number.

use crate::engine::fs::Microfs;
use crate::engine::inode::{Inode, PERMISSION_BITS, READ};
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::record::Operation;
use crate::format::types::{
    Caller, DirectoryEntry, InodeId, MODE_DIRECTORY, NAME_BYTES_MAX, PATH_BYTES_MAX, ROOT,
};
use crate::namespace::namei::{log_create, log_name, permit_creation};
use crate::namespace::names::Entry;
use crate::namespace::walk::{Last, Spare};

/// Maximum number of entries read from a directory under one lock.
const LIST_BATCH: usize = 32;
/// Maximum depth of a directory for `path_of` and the cycle check of `rename`.
const DEPTH_MAX: usize = 4096;

impl Transaction<'_> {
    /// Whether `inner` is `outer` or lies below it.
    pub(crate) fn is_below(&self, inner: Inode, outer: Inode) -> Result<bool> {
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

    /// Returns the parent of a directory or, if it was removed, its former parent. Errors:
    /// `NotFound` if that is gone, too, even if its number is in use again.
    pub(crate) fn parent_of(&self, directory: Inode) -> Result<Inode> {
        let parent = self.inode(InodeId(directory.parent(self)))?;
        let removed = directory.links(self) == 0;
        match removed && parent.version(self) != directory.parent_version(self) {
            true => Err(Error::NotFound),
            false => Ok(parent),
        }
    }

    /// Records that a directory has lost its name. It may still be open, or be somebody's working
    /// directory.
    pub(crate) fn bury_directory(&mut self, parent: Inode, directory: Inode) {
        parent.drop_link(self);
        directory.set_links(self, 0);
        let version = parent.version(self);
        directory.set_parent_version(self, version);
    }
}

impl Microfs {
    /// Makes a directory. Returns its inode.
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
            let inode = tx.new_inode_in(walked.parent, mode, caller)?;
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
            let entry = walked.entry.ok_or(Error::NotFound)?;
            tx.unlink_name(walked.parent, entry, caller.now);
            target.set_changed(tx, caller.now);
            tx.bury_directory(walked.parent, target);
            log_name(tx, Operation::Unlink, caller, &walked, target);
            tx.retire_if_unreachable(target, Some(slot))
        })
    }

    /// Visits the entries of `directory` behind position `after` (0 = from the start) until `visit`
    /// returns false. Leaves out `.` and `..`. The visitor runs without the lock.
    pub fn list(
        &self,
        caller: &Caller,
        directory: InodeId,
        after: u64,
        visit: &mut dyn FnMut(DirectoryEntry<'_>) -> bool,
    ) -> Result<()> {
        let mut names = [0; LIST_BATCH * 128];
        let mut entries = [Entry::default(); LIST_BATCH];
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
                for &entry in tx.next_names(directory, position, &mut entries) {
                    let Some(room) = names.get_mut(used..used + NAME_BYTES_MAX) else { break };
                    let length = tx.copy_name(entry, room);
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

    /// Returns the parent of a directory; the root is its own parent.
    pub fn parent(&self, directory: InodeId) -> Result<InodeId> {
        self.transact(|tx| {
            let inode = tx.inode(directory)?;
            match inode.is_directory(tx) {
                true => Ok(InodeId(inode.parent(tx))),
                false => Err(Error::NotDirectory),
            }
        })
    }

    /// Returns the path of a directory below the root, without leading slash; empty for the root.
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

/// Copies the name that `inode` has in `parent`, found by a scan of all entries. Returns its
/// length.
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
