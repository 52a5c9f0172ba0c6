//! Records of a snapshot: an inode, a name, extended attributes; and the check that all of them
//! together are a namespace.
//!
//! Records of the log are checked one by one, against the namespace that they change. Those of a
//! snapshot come in any order and make sense only together. They are applied as they are, and
//! checked when the last one is there.

use super::data::{file_fits, set_extended, set_seal};
use super::names::permit_name;
use super::{Image, KEPT_FLAGS, claim, contradiction, directory, existing, replayer};
use crate::engine::fields::fields;
use crate::engine::inode::{Inode, TORN, UNCLEAN};
use crate::engine::transaction::Transaction;
use crate::format::error::Result;
use crate::format::types::{Credentials, ROOT, Timestamp};

fields!(Inode {
    // Same words as the open descriptions and the writers: in an image nothing is open.
    names, set_names: low 4;
    directories, set_directories: high 5;
});

impl Image<'_> {
    /// Checks that the records of a snapshot make a namespace: every inode has as many names as it
    /// says, and every directory is below the root. Errors: `Corrupt`.
    pub(crate) fn check_snapshot(&self) -> Result<()> {
        self.transact(|tx| directory(tx, u64::from(ROOT.0)).map(drop))?;
        let inodes = self.inodes()?;
        let mut is_below_root = vec![false; inodes.last().map_or(0, |last| last.0 as usize) + 1];
        is_below_root[ROOT.0 as usize] = true;
        for id in inodes {
            self.transact(|tx| {
                let inode = tx.inode(id)?;
                check_links(tx, inode)?;
                match inode.is_directory(tx) {
                    true => check_ancestors(tx, inode, &mut is_below_root),
                    false => Ok(()),
                }
            })?;
        }
        Ok(())
    }
}

/// Creates an inode with everything but its names, its target and its blocks.
pub(super) fn inode(tx: &mut Transaction, p: &[u64]) -> Result<()> {
    let mode = (p[1] >> 32) as u32;
    let caller = replayer(Credentials::unpack(p[3]), Timestamp::from_bits(p[11]));
    let inode = claim(tx, p[0], mode, &caller)?;
    // Earlier versions kept only `UNCLEAN` of a file that had been unclean.
    let torn = if p[1] as u32 & UNCLEAN != 0 { TORN } else { 0 };
    inode.set_flags(tx, p[1] as u32 & KEPT_FLAGS | torn);
    inode.set_links(tx, p[2] as u32);
    inode.set_parent(tx, p[4] as u32);
    inode.set_size(tx, p[5]);
    inode.set_version(tx, p[6]);
    inode.set_drained_version(tx, p[7]);
    inode.set_accessed(tx, Timestamp::from_bits(p[8]));
    inode.set_modified(tx, Timestamp::from_bits(p[9]));
    inode.set_changed(tx, Timestamp::from_bits(p[10]));
    if !tx.is_absence_sound(inode) {
        return contradiction("data that are elsewhere");
    }
    if inode.is_regular(tx) {
        if !file_fits(tx, p[5]) {
            return contradiction("size of a file");
        }
        set_seal(tx, inode, p[12]);
    }
    Ok(())
}

/// Adds the extended attributes of an inode that has none yet.
pub(super) fn extended(tx: &mut Transaction, p: &[u64], text: &[u8]) -> Result<()> {
    let inode = existing(tx, p[0])?;
    match text.is_empty() || tx.extended_record(inode).is_some() {
        true => contradiction("extended attributes"),
        false => set_extended(tx, inode, text),
    }
}

/// Adds a name and counts it.
pub(super) fn name(tx: &mut Transaction, p: &[u64], name: &[u8]) -> Result<()> {
    let (parent, inode) = (directory(tx, p[0])?, existing(tx, p[1])?);
    permit_name(name)?;
    tx.add_name(parent.id, name, inode.id)?;
    let entries = parent.held(tx);
    parent.set_held(tx, entries.wrapping_add(1));
    let names = inode.names(tx);
    inode.set_names(tx, names.wrapping_add(1));
    if inode.is_directory(tx) {
        if inode.parent(tx) != parent.id.0 {
            return contradiction("parent of a directory");
        }
        let directories = parent.directories(tx);
        parent.set_directories(tx, directories.wrapping_add(1));
    }
    Ok(())
}

/// Compares the links of an inode with the names that were counted, and clears the counts.
fn check_links(tx: &mut Transaction, inode: Inode) -> Result<()> {
    let (names, directories) = (inode.names(tx), inode.directories(tx));
    inode.set_names(tx, 0);
    inode.set_directories(tx, 0);
    if inode.is_directory(tx) {
        let is_named = names == u32::from(inode.id != ROOT);
        if !is_named || directories.checked_add(2) != Some(inode.links(tx)) {
            return contradiction("links of a directory");
        }
    } else if names == 0 || names != inode.links(tx) {
        return contradiction("links of a file");
    }
    if inode.is_symlink(tx) && inode.target(tx) == 0 {
        return contradiction("symbolic link without target");
    }
    Ok(())
}

/// Follows the parents up to a directory that is known to be below the root: then all on the way
/// are below it, too.
fn check_ancestors(tx: &Transaction, inode: Inode, is_below_root: &mut [bool]) -> Result<()> {
    let mut way = Vec::new();
    let mut above = inode;
    while !is_below_root[above.id.0 as usize] {
        way.push(above.id.0 as usize);
        above = directory(tx, u64::from(above.parent(tx)))?;
        if way.len() > is_below_root.len() {
            return contradiction("directory inside itself");
        }
    }
    way.into_iter().for_each(|index| is_below_root[index] = true);
    Ok(())
}
