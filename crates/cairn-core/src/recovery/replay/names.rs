//! Records of the log that add, remove and change names.

use super::{Rest, WRITING, claim, contradiction, directory, existing, release, replayer};
use crate::engine::inode::Inode;
use crate::engine::transaction::Transaction;
use crate::format::error::Result;
use crate::format::types::{Credentials, NAME_BYTES_MAX, ROOT, Timestamp};

pub(super) fn create(tx: &mut Transaction, p: &[u64], name: &[u8], now: Timestamp) -> Result<()> {
    let parent = directory(tx, p[0])?;
    let inode = claim(tx, p[1], p[2] as u32, &replayer(Credentials::unpack(p[3]), now))?;
    give_name(tx, parent, name, inode, now)?;
    if inode.is_directory(tx) {
        inode.set_parent(tx, parent.id.0);
        inode.add_link(tx)?;
        parent.add_link(tx)?;
    } else if inode.is_regular(tx) {
        inode.add_flags(tx, WRITING);
    }
    Ok(())
}

/// Adds `name` of `inode` to `parent`.
pub(super) fn give_name(
    tx: &mut Transaction,
    parent: Inode,
    name: &[u8],
    inode: Inode,
    now: Timestamp,
) -> Result<()> {
    permit_name(name)?;
    tx.link_name(parent, name, inode, now)
}

pub(super) fn permit_name(name: &[u8]) -> Result<()> {
    let is_proper = !matches!(name, b"" | b"." | b"..")
        && name.len() <= NAME_BYTES_MAX
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'));
    match is_proper {
        true => Ok(()),
        false => contradiction("name that is none"),
    }
}

/// Checks that `moved`, which is about to be in `to`, is not above it.
pub(super) fn permit_parent(tx: &Transaction, moved: Inode, to: Inode) -> Result<()> {
    let mut above = to;
    while moved.is_directory(tx) && above.id != ROOT {
        if above.id == moved.id {
            return contradiction("directory inside itself");
        }
        above = directory(tx, u64::from(above.parent(tx)))?;
    }
    Ok(())
}

/// Removes `name` of `inode` from `parent`.
pub(super) fn take_name(
    tx: &mut Transaction,
    parent: Inode,
    name: &[u8],
    inode: Inode,
    now: Timestamp,
) -> Result<()> {
    match tx.find_name(parent.id, name).filter(|entry| entry.inode == inode.id) {
        Some(entry) => {
            tx.unlink_name(parent, entry, now);
            Ok(())
        }
        None => contradiction("name that is not there"),
    }
}

/// Applies that `inode` lost a name in `parent`; the inode is freed with its last name.
pub(super) fn forget(tx: &mut Transaction, parent: Inode, inode: Inode) -> Result<Option<Rest>> {
    if inode.is_directory(tx) {
        if inode.held(tx) != 0 {
            return contradiction("removed directory is not empty");
        }
        parent.drop_link(tx);
        release(tx, inode)?;
        return Ok(None);
    }
    inode.drop_link(tx);
    match (inode.links(tx), inode.is_regular(tx)) {
        (0, true) => Ok(Some(Rest::Cut { inode: inode.id, from_block: 0 })),
        (0, false) => {
            release(tx, inode)?;
            Ok(None)
        }
        _ => Ok(None),
    }
}

pub(super) fn two_names(names: &[u8]) -> Result<(&[u8], &[u8])> {
    match names.iter().position(|&byte| byte == 0) {
        Some(end) => Ok((&names[..end], &names[end + 1..])),
        None => contradiction("two names"),
    }
}

pub(super) fn rename(
    tx: &mut Transaction,
    p: &[u64],
    names: &[u8],
    now: Timestamp,
) -> Result<Option<Rest>> {
    let (old, new) = two_names(names)?;
    let (from, moved, to) = (directory(tx, p[0])?, existing(tx, p[1])?, directory(tx, p[2])?);
    permit_parent(tx, moved, to)?;
    let mut cut = None;
    if p[3] != 0 {
        let victim = existing(tx, p[3])?;
        take_name(tx, to, new, victim, now)?;
        victim.set_changed(tx, now);
        cut = forget(tx, to, victim)?;
    }
    take_name(tx, from, old, moved, now)?;
    moved.drop_link(tx);
    give_name(tx, to, new, moved, now)?;
    change_parent(tx, moved, from, to)?;
    Ok(cut)
}

pub(super) fn change_parent(
    tx: &mut Transaction,
    moved: Inode,
    from: Inode,
    to: Inode,
) -> Result<()> {
    if moved.is_directory(tx) && from.id != to.id {
        from.drop_link(tx);
        to.add_link(tx)?;
        moved.set_parent(tx, to.id.0);
    }
    Ok(())
}

pub(super) fn exchange(
    tx: &mut Transaction,
    p: &[u64],
    names: &[u8],
    now: Timestamp,
) -> Result<()> {
    let (name, other_name) = two_names(names)?;
    let (parent, inode) = (directory(tx, p[0])?, existing(tx, p[1])?);
    let (other_parent, other) = (directory(tx, p[2])?, existing(tx, p[3])?);
    permit_parent(tx, inode, other_parent)?;
    permit_parent(tx, other, parent)?;
    for (parent, name, inode) in [(parent, name, inode), (other_parent, other_name, other)] {
        take_name(tx, parent, name, inode, now)?;
        inode.drop_link(tx);
    }
    give_name(tx, parent, name, other, now)?;
    give_name(tx, other_parent, other_name, inode, now)?;
    change_parent(tx, inode, parent, other_parent)?;
    change_parent(tx, other, other_parent, parent)
}
