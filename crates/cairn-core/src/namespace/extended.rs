//! Extended attributes: short values by name, of regular files and directories, in the kernel's
//! namespace `user.` only.
//!
//! All attributes of a file are one text (names.rs), which a separate tree finds:
//!
//! ```text
//! tree entry   high: inode     low: name record that the text begins with
//! text         each attribute, ascending by name: length of name (1 byte), length of value (2 bytes), name, value
//! ```
//! So a change is one record of the log, whatever it changes. The total size for a file is bounded,
//! as in a file system that keeps the attributes in one block.
//!
//! Invariant: an inode has the flag [`EXTENDED`] if and only if the tree has an entry for it. There
//! is only one entry for an inode, and its text is not empty. The flag is in the word of the mode,
//! so a file without attributes costs nothing.

use crate::engine::fs::Microfs;
use crate::engine::inode::{EXTENDED, Inode, READ, WRITE};
use crate::engine::transaction::Transaction;
use crate::engine::tree::{Key, Tree, high, key, low};
use crate::format::error::{Error, Result};
use crate::format::layout::EXTENDED_ROOT;
use crate::format::record::Operation;
use crate::format::types::{
    Caller, ExtendedUpdate, InodeId, MODE_DIRECTORY, MODE_REGULAR, PATH_BYTES_MAX,
};
use std::ops::Range;

const TEXTS: Tree = Tree { root_word: EXTENDED_ROOT };
/// Prefix of all attribute names.
const NAMESPACE: &[u8] = b"user.";
/// Namespaces that are refused before the mode bits are checked.
const OTHER_NAMESPACES: [&[u8]; 3] = [b"security.", b"system.", b"trusted."];
/// Longest name of an attribute, bytes.
pub const EXTENDED_NAME_BYTES_MAX: usize = 255;
/// Longest value that the kernel accepts, bytes; a text has room for less.
pub const EXTENDED_VALUE_BYTES_MAX: usize = 64 << 10;
const STICKY: u32 = 0o1000;
const HEAD_BYTES: usize = 3;

/// The attributes of a file, encoded as in its text. An array of 4 KiB, so that nothing is
/// allocated under the lock.
#[derive(Clone)]
pub struct ExtendedAttributes {
    bytes: [u8; PATH_BYTES_MAX],
    length: usize,
}

impl Default for ExtendedAttributes {
    fn default() -> ExtendedAttributes {
        ExtendedAttributes { bytes: [0; PATH_BYTES_MAX], length: 0 }
    }
}

impl ExtendedAttributes {
    /// Returns names and values, ascending by name.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        Attributes { rest: self.as_bytes() }
    }

    /// Returns the value of `name`.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// Returns the encoded attributes, as in the log: equal attributes have equal bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Sets the value of `name`. Errors: `Exists`, `NoData` as `update` says; `NoSpace` if all
    /// attributes together are longer than a text can be.
    fn set(&mut self, name: &[u8], value: &[u8], update: ExtendedUpdate) -> Result<()> {
        let place = self.place(name);
        if update.create && !place.is_empty() {
            return Err(Error::Exists);
        }
        if update.replace && place.is_empty() {
            return Err(Error::NoData);
        }
        let added = HEAD_BYTES + name.len() + value.len();
        if self.length - place.len() + added > self.bytes.len() {
            return Err(Error::NoSpace);
        }
        self.bytes.copy_within(place.end..self.length, place.start + added);
        self.length = self.length - place.len() + added;
        let (head, rest) = self.bytes[place.start..][..added].split_at_mut(HEAD_BYTES);
        head[0] = name.len() as u8;
        head[1..].copy_from_slice(&(value.len() as u16).to_le_bytes());
        rest[..name.len()].copy_from_slice(name);
        rest[name.len()..].copy_from_slice(value);
        Ok(())
    }

    /// Removes `name` and its value. Errors: `NoData`.
    fn remove(&mut self, name: &[u8]) -> Result<()> {
        let place = self.place(name);
        if place.is_empty() {
            return Err(Error::NoData);
        }
        self.bytes.copy_within(place.end..self.length, place.start);
        self.length -= place.len();
        Ok(())
    }

    /// Returns the range of `name` and its value; if `name` is absent, an empty range at the place
    /// where it belongs.
    fn place(&self, name: &[u8]) -> Range<usize> {
        let mut start = 0;
        for (other, value) in self.iter() {
            let end = start + HEAD_BYTES + other.len() + value.len();
            match other.cmp(name) {
                std::cmp::Ordering::Less => start = end,
                std::cmp::Ordering::Equal => return start..end,
                std::cmp::Ordering::Greater => break,
            }
        }
        start..start
    }
}

/// Iterator over the rest of a text.
struct Attributes<'t> {
    rest: &'t [u8],
}

impl<'t> Iterator for Attributes<'t> {
    type Item = (&'t [u8], &'t [u8]);

    fn next(&mut self) -> Option<(&'t [u8], &'t [u8])> {
        let (&[name, low, high], rest) = self.rest.split_first_chunk()?;
        let (name, rest) = rest.split_at_checked(usize::from(name))?;
        let (value, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes([low, high])))?;
        self.rest = rest;
        Some((name, value))
    }
}

/// Whether a text is a valid encoding of attributes.
pub(crate) fn is_well_formed(text: &[u8]) -> bool {
    let mut attributes = Attributes { rest: text };
    let mut last: &[u8] = &[];
    for (name, _) in attributes.by_ref() {
        let suffix = name.strip_prefix(NAMESPACE).filter(|suffix| !suffix.is_empty());
        if suffix.is_none() || name.contains(&0) || name <= last {
            return false;
        }
        last = name;
    }
    attributes.rest.is_empty()
}

fn entry(inode: Inode, record: u32) -> Key {
    key(u64::from(inode.id.0), u64::from(record))
}

impl Transaction<'_> {
    /// Returns the name record that the text of the attributes begins with.
    pub(crate) fn extended_record(&self, inode: Inode) -> Option<u32> {
        if inode.flags(self) & EXTENDED == 0 {
            return None;
        }
        let found = TEXTS.ceiling(self, entry(inode, 0));
        match found.filter(|&found| high(found) == u64::from(inode.id.0)) {
            Some(found) => Some(low(found) as u32),
            None => {
                self.mark_corrupt("extended attributes without text");
                None
            }
        }
    }

    /// Reads the attributes of `inode`.
    pub(crate) fn read_extended(&self, inode: Inode, attributes: &mut ExtendedAttributes) {
        attributes.length = match self.extended_record(inode) {
            Some(record) => self.copy_text(record, &mut attributes.bytes),
            None => 0,
        };
        if !is_well_formed(attributes.as_bytes()) {
            self.mark_corrupt("extended attributes");
        }
    }

    /// Replaces the attributes of `inode` by those in `text`.
    pub(crate) fn store_extended(&mut self, inode: Inode, text: &[u8]) -> Result<()> {
        let old = self.extended_record(inode);
        if let Some(old) = old {
            self.free_text(old);
        }
        if text.is_empty() {
            if old.is_some_and(|old| !TEXTS.remove(self, entry(inode, old))) {
                self.mark_corrupt("extended attributes without tree entry");
            }
            inode.clear_flags(self, EXTENDED);
            return Ok(());
        }
        let new = entry(inode, self.store_text(text, inode.id)?);
        inode.add_flags(self, EXTENDED);
        match old {
            Some(old) => TEXTS.replace(self, entry(inode, old), new),
            None => TEXTS.insert(self, new),
        }
    }

    /// Frees the attributes of an inode that is about to be freed.
    #[inline]
    pub(crate) fn drop_extended(&mut self, inode: Inode) -> Result<()> {
        match inode.flags(self) & EXTENDED {
            0 => Ok(()),
            _ => self.store_extended(inode, &[]),
        }
    }

    /// Returns the number of tree entries, which is that of inodes with attributes.
    pub(crate) fn extended_entries(&self) -> usize {
        TEXTS.ascend(self, 0).count()
    }
}

impl Microfs {
    /// Sets the attribute `name` of `inode`, as `setxattr(2)` does.
    ///
    /// Errors: `NotSupported` for a namespace other than `user.`, and on media of a version before
    /// 3; `NotPermitted` if this is neither a file nor a directory, or a sticky directory of
    /// somebody else; `Exists`, `NoData` as `update` says; `NoSpace` if the attributes of the file
    /// do not fit; `TooLarge`.
    pub fn set_extended(
        &self,
        caller: &Caller,
        inode: InodeId,
        name: &[u8],
        value: &[u8],
        update: ExtendedUpdate,
    ) -> Result<()> {
        if value.len() > EXTENDED_VALUE_BYTES_MAX {
            return Err(Error::TooLarge);
        }
        self.change_extended(caller, inode, name, |attributes| attributes.set(name, value, update))
    }

    /// Removes the attribute `name`. Errors: `NoData` if there is none; else as `set_extended`.
    pub fn remove_extended(&self, caller: &Caller, inode: InodeId, name: &[u8]) -> Result<()> {
        self.change_extended(caller, inode, name, |attributes| attributes.remove(name))
    }

    fn change_extended(
        &self,
        caller: &Caller,
        inode: InodeId,
        name: &[u8],
        change: impl FnOnce(&mut ExtendedAttributes) -> Result<()>,
    ) -> Result<()> {
        check_name(name)?;
        let mut attributes = ExtendedAttributes::default();
        self.transact(|tx| {
            let inode = tx.recalled_inode(inode)?;
            permit(tx, inode, caller, name, WRITE)?;
            self.permit_on_media()?;
            tx.read_extended(inode, &mut attributes);
            change(&mut attributes)?;
            tx.store_extended(inode, attributes.as_bytes())?;
            inode.set_changed(tx, caller.now);
            let parameters = [u64::from(inode.id.0)];
            tx.log(Operation::Extended, caller.now, &parameters, attributes.as_bytes());
            Ok(())
        })
    }

    /// Returns the value of the attribute `name`. Errors: `NoData` if there is none;
    /// `AccessDenied`; `NotSupported`.
    pub fn extended(&self, caller: &Caller, inode: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        check_name(name)?;
        let mut attributes = ExtendedAttributes::default();
        self.transact(|tx| {
            let inode = tx.inode(inode)?;
            permit(tx, inode, caller, name, READ)?;
            tx.read_extended(inode, &mut attributes);
            Ok(())
        })?;
        attributes.get(name).map(<[u8]>::to_vec).ok_or(Error::NoData)
    }

    /// Returns all attributes of `inode`. Checks no rights: anybody may see the names.
    pub fn all_extended(&self, inode: InodeId) -> Result<ExtendedAttributes> {
        let mut attributes = ExtendedAttributes::default();
        self.transact(|tx| {
            tx.read_extended(tx.inode(inode)?, &mut attributes);
            Ok(())
        })?;
        Ok(attributes)
    }

    /// Checks that the media may hold attributes. On older media, older builds would take the
    /// record of an attribute for the end of the log.
    fn permit_on_media(&self) -> Result<()> {
        match self.durable.as_ref().is_none_or(|durable| durable.superblock.holds_extended()) {
            true => Ok(()),
            false => Err(Error::NotSupported),
        }
    }
}

/// Checks a name. Errors: `OutOfRange`; `Invalid` if it holds a zero byte, which ends a name in a
/// listing.
fn check_name(name: &[u8]) -> Result<()> {
    match name.is_empty() || name.len() > EXTENDED_NAME_BYTES_MAX {
        true => Err(Error::OutOfRange),
        false if name.contains(&0) => Err(Error::Invalid),
        false => Ok(()),
    }
}

/// Checks that `caller` may read or write the attribute `name`. The errors come in the order in
/// which Linux finds them.
fn permit(tx: &Transaction, inode: Inode, caller: &Caller, name: &[u8], wanted: u32) -> Result<()> {
    if OTHER_NAMESPACES.iter().any(|namespace| name.starts_with(namespace)) {
        return Err(Error::NotSupported);
    }
    let suffix = name.strip_prefix(NAMESPACE);
    if suffix.is_some() {
        let kind = inode.kind(tx);
        if !matches!(kind, MODE_REGULAR | MODE_DIRECTORY) {
            return Err(if wanted == WRITE { Error::NotPermitted } else { Error::NoData });
        }
        if kind == MODE_DIRECTORY && inode.mode(tx) & STICKY != 0 && wanted == WRITE {
            inode.permit_owner(tx, caller)?;
        }
    }
    inode.permit(tx, caller, wanted)?;
    match suffix {
        None => Err(Error::NotSupported),
        Some(b"") => Err(Error::Invalid),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: ExtendedUpdate = ExtendedUpdate { create: false, replace: false };

    fn listed(attributes: &ExtendedAttributes) -> Vec<(&[u8], &[u8])> {
        attributes.iter().collect()
    }

    #[test]
    fn attributes_are_set_replaced_and_removed_in_order_of_their_names() {
        let mut attributes = ExtendedAttributes::default();
        let mut set = |name: &[u8], value: &[u8]| attributes.set(name, value, ANY).unwrap();
        set(b"user.b", b"two");
        set(b"user.c", b"");
        set(b"user.a", b"one");
        set(b"user.b", b"another value");
        let expected: [(&[u8], &[u8]); 3] =
            [(b"user.a", b"one"), (b"user.b", b"another value"), (b"user.c", b"")];
        assert_eq!(listed(&attributes), expected);
        assert!(is_well_formed(attributes.as_bytes()));
        assert_eq!(attributes.remove(b"user.d"), Err(Error::NoData));
        attributes.remove(b"user.b").unwrap();
        assert_eq!(listed(&attributes), [expected[0], expected[2]]);
    }

    #[test]
    fn attribute_that_makes_a_text_too_long_is_refused() {
        let mut attributes = ExtendedAttributes::default();
        let room = PATH_BYTES_MAX - HEAD_BYTES - b"user.a".len();
        let too_long = vec![7; room + 1];
        assert_eq!(attributes.set(b"user.a", &too_long, ANY), Err(Error::NoSpace));
        attributes.set(b"user.a", &too_long[..room], ANY).unwrap();
        assert_eq!(attributes.set(b"user.b", b"", ANY), Err(Error::NoSpace));
        attributes.set(b"user.a", &too_long[..room - 9], ANY).unwrap();
        attributes.set(b"user.b", b"", ANY).unwrap();
        assert_eq!(attributes.as_bytes().len(), PATH_BYTES_MAX);
    }

    #[test]
    fn text_that_is_cut_or_out_of_order_is_not_well_formed() {
        let mut attributes = ExtendedAttributes::default();
        attributes.set(b"user.a", b"one", ANY).unwrap();
        let end = attributes.as_bytes().len();
        attributes.set(b"user.b", b"two", ANY).unwrap();
        let text = attributes.as_bytes();
        for cut in (1..text.len()).filter(|&cut| cut != end) {
            assert!(!is_well_formed(&text[..cut]), "{cut}");
        }
        assert!(!is_well_formed(&[&text[end..], &text[..end]].concat()));
        assert!(!is_well_formed(&[&text[..end], &text[..end]].concat()));
        assert!(!is_well_formed(b"\x05\0\0user."));
        assert!(!is_well_formed(b"\x06\0\0other."));
    }
}
