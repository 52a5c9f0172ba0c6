//! Renaming: a file that already has the new name is replaced, kept or exchanged.
//!
//! Invariant: no directory ever lies below itself.

use crate::engine::fs::Microfs;
use crate::engine::inode::{Inode, RENAMED, WRITE};
use crate::engine::slot::Slot;
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::record::Operation;
use crate::format::types::{Caller, InodeId, NAME_BYTES_MAX, RenameMode, Timestamp};
use crate::namespace::namei::{permit_creation, touch_directory};
use crate::namespace::walk::{Last, Spare, Walked};

impl Transaction<'_> {
    /// Updates a file or directory whose name a rename has taken over.
    fn drop_replaced(&mut self, parent: Inode, victim: Inode, now: Timestamp) {
        victim.set_changed(self, now);
        match victim.is_directory(self) {
            true => self.bury_directory(parent, victim),
            false => victim.drop_link(self),
        }
    }
}

impl Microfs {
    /// Renames a file, atomically for every process of the node.
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
            tx.count_barrier();
            match mode {
                RenameMode::Exchange => exchange(tx, caller, &old, &new, moved),
                _ => replace(tx, caller, slot, &old, &new, moved),
            }
        })
    }
}

/// Checks what `rename` refuses to every caller, in Linux's order. Returns the inode to be moved.
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

/// Checks the right to move a directory to another parent, which writes its `..`.
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

/// Second half of `rename`: `moved` takes the new name from whatever had it.
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
    let replaced = new.target.map_or(InodeId(0), |victim| victim.id);
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
        let entry = new.entry.ok_or(Error::NotFound)?;
        tx.unlink_name(new.parent, entry, now);
        tx.drop_replaced(new.parent, victim, now);
    } else {
        permit_move(tx, caller, moved, old, new)?;
    }
    let entry = old.entry.ok_or(Error::NotFound)?;
    tx.unlink_name(old.parent, entry, now);
    moved.drop_link(tx);
    tx.link_name(new.parent, new.name, moved, now)?;
    note_renamed(tx, moved);
    if is_directory && old.parent.id != new.parent.id {
        old.parent.drop_link(tx);
        new.parent.add_link(tx)?;
        moved.set_parent(tx, new.parent.id.0);
    }
    log_pair(tx, Operation::Rename, caller, old, new, [moved.id, replaced]);
    match new.target {
        Some(victim) => tx.retire_if_unreachable(victim, Some(slot)),
        None => Ok(()),
    }
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
    let from = old.entry.ok_or(Error::NotFound)?;
    let to = new.entry.ok_or(Error::NotFound)?;
    tx.redirect_name(from, other.id);
    tx.redirect_name(to, moved.id);
    for (inode, leaves, joins) in [(moved, old.parent, new.parent), (other, new.parent, old.parent)]
    {
        inode.set_changed(tx, caller.now);
        note_renamed(tx, inode);
        if inode.is_directory(tx) && leaves.id != joins.id {
            leaves.drop_link(tx);
            joins.add_link(tx)?;
            inode.set_parent(tx, joins.id.0);
        }
        touch_directory(tx, joins, caller.now);
    }
    log_pair(tx, Operation::Exchange, caller, old, new, [moved.id, other.id]);
    Ok(())
}

/// Notes that a directory, and so all that is in it, has another name. The note is not on media and
/// is lost in a crash.
fn note_renamed(tx: &mut Transaction, moved: Inode) {
    if moved.is_directory(tx) {
        moved.add_flags(tx, RENAMED);
    }
}

/// Logs an operation on two names and the two inodes that had them.
fn log_pair(
    tx: &mut Transaction,
    operation: Operation,
    caller: &Caller,
    old: &Walked<'_>,
    new: &Walked<'_>,
    [first, second]: [InodeId; 2],
) {
    let parameters = [old.parent.id, first, new.parent.id, second].map(|id| u64::from(id.0));
    let mut names = [0; 2 * NAME_BYTES_MAX + 1];
    let second_at = old.name.len() + 1;
    let end = second_at + new.name.len();
    names[..old.name.len()].copy_from_slice(old.name);
    names[second_at..end].copy_from_slice(new.name);
    tx.log(operation, caller.now, &parameters, &names[..end]);
}
