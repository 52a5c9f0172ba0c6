//! Attributes of files: reading them, checking access, changing them.
//!
//! Must stay true: every change of attributes is logged and moves the change time.

use crate::engine::fs::Microfs;
use crate::engine::inode::{Inode, PERMISSION_BITS, SET_GROUP, WRITE};
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::record::Operation;
use crate::format::types::{Attributes, Caller, InodeId, TimeUpdate};
use crate::namespace::walk::{Spare, last};

impl Microfs {
    /// Returns the attributes of the file that `path` names.
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
            let found = walked.existing(tx)?;
            tx.recall(found)?;
            Ok(found.attributes(tx))
        })
    }

    /// Returns the attributes of an inode.
    pub fn attributes(&self, inode: InodeId) -> Result<Attributes> {
        self.transact(|tx| Ok(tx.recalled_inode(inode)?.attributes(tx)))
    }

    /// Checks access as `access(2)` does. `mask`: 4 read, 2 write, 1 execute; 0 checks existence.
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

    /// Sets the permission bits, without the set-group-ID bit if the caller is not in the group.
    pub fn set_mode(&self, caller: &Caller, inode: InodeId, mode: u32) -> Result<()> {
        self.change_attributes(caller, inode, |tx, inode| {
            inode.permit_owner(tx, caller)?;
            let kind = inode.kind(tx);
            let lost = if caller.may_set_group(inode.gid(tx)) { 0 } else { SET_GROUP };
            inode.set_mode(tx, kind | mode & PERMISSION_BITS & !lost);
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
            if uid.is_some() || gid.is_some() {
                inode.permit_owner(tx, caller)?;
            }
            let foreign_uid = uid.is_some_and(|uid| uid != inode.uid(tx));
            let is_foreign = |gid: u32| gid != inode.gid(tx) && !caller.is_in_group(gid);
            let foreign_gid = gid.is_some_and(is_foreign);
            if caller.credentials.uid != 0 && (foreign_uid || foreign_gid) {
                return Err(Error::NotPermitted);
            }
            if !inode.is_directory(tx) {
                inode.clear_set_id_bits(tx);
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
                TimeUpdate::Now => Some(caller.now),
                TimeUpdate::At(time) => Some(time),
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
            let inode = tx.recalled_inode(inode)?;
            change(tx, inode)?;
            inode.set_changed(tx, caller.now);
            let parameters = [
                u64::from(inode.id.0),
                u64::from(inode.mode(tx)),
                u64::from(inode.uid(tx)),
                u64::from(inode.gid(tx)),
                inode.accessed(tx).to_bits(),
                inode.modified(tx).to_bits(),
            ];
            tx.log(Operation::Attributes, caller.now, &parameters, &[]);
            Ok(())
        })
    }
}
