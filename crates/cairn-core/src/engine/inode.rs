//! Inodes: attributes of a file, and the counters that decide when its blocks may be freed.
//!
//! A file's extents are keyed by its *map* number, not by its inode number. Emptying a file swaps
//! its map with that of a fresh *orphan* inode, so that truncation to 0 takes constant time;
//! orphans are freed in bounded batches. Map numbers are a permutation of inode numbers and stay
//! with the record while it is free.
//!
//! Invariant: `moves` never decreases, even across reuse of the record. Of the files that use a
//! record, each is born later than the one before.

use crate::engine::fields::fields;
use crate::engine::slot::{LEASES_PER_SLOT, PINS_PER_SLOT};
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::layout::{ORPHAN_COUNT, ORPHAN_FIRST, SLOTS_MAX, SlabKind};
use crate::format::types::{
    Attributes, Caller, Credentials, InodeId, MODE_DIRECTORY, MODE_REGULAR, MODE_SYMLINK, MODE_TYPE,
};

/// The last writer died by a signal, or left out bytes that there was no room for. Ends when the
/// file is emptied, or a later writer closes it in order.
pub(crate) const UNCLEAN: u32 = 1;
/// Some blocks may be stale: their checksums must be recomputed.
pub(crate) const MAYBE_STALE: u32 = 2;
/// Belongs to no file: only its extents are left to free.
pub(crate) const ORPHAN: u32 = 4;
/// A process waits for the writes in flight to end, to zero the tail; no new writes begin.
pub(crate) const WANTS_SETTLE: u32 = 8;
/// The tail is being zeroed.
pub(crate) const SETTLING: u32 = 16;
/// Some append must be planned again and keeps its place meanwhile.
pub(crate) const HAS_WAITING: u32 = 32;
/// The log says that blocks may be overwritten in place: after a crash none of the checksums may be
/// trusted.
pub(crate) const OPENED: u32 = 64;
/// Blocks were on a tier that is lost, so a hole may be lost data. Ends when the file is emptied.
pub(crate) const LOST: u32 = 128;
/// Some process has the file mapped: blocks that leave the file are not used again meanwhile.
pub(crate) const MAPPED: u32 = 256;
/// Some mapping may be stored to: no checksum of the file becomes valid meanwhile.
pub(crate) const MAPPED_TO_STORE: u32 = 512;
/// Created without a name; may be given its first one.
pub(crate) const NAMELESS: u32 = 1024;
/// Has extended attributes, see `extended.rs`.
pub(crate) const EXTENDED: u32 = 2048;
/// The data are still elsewhere, see `absent.rs`.
pub(crate) const ABSENT: u32 = 4096;
/// Somebody waits for the absent data.
pub(crate) const WANTED: u32 = 8192;
/// The last attempt to get the absent data failed.
pub(crate) const UNAVAILABLE: u32 = 1 << 14;
/// Another attempt to get the absent data is useless.
pub(crate) const DAMAGED: u32 = 1 << 15;
// The next two bits are those of `replay.rs`.
/// Somebody began to wait for the absent data since the last attempt to stage them in began.
pub(crate) const ASKED: u32 = 1 << 18;
/// Of a directory: it got its name when all its contents were there.
pub(crate) const RENAMED: u32 = 1 << 19;
/// Was unclean since it was last emptied: its contents may be torn, even if a later writer has
/// taken it over.
pub(crate) const TORN: u32 = 1 << 20;
/// Count of the times the file became unclean, modulo 256. Tells a writer that came later from one
/// that was there.
const UNCLEAN_COUNT_SHIFT: u32 = 24;
/// Only in a page saved for an image: the file was mapped after the cut.
pub(crate) const MAPPED_LATER: u32 = 1 << 21;
/// Only in a page saved for an image: the file may have been stored to, or was written to in place,
/// after the cut.
pub(crate) const CHANGED_LATER: u32 = 1 << 22;
/// The data are in a pack, or the inode is a pack, see `pack.rs`.
pub(crate) const PACKED: u32 = 1 << 23;

pub(crate) const READ: u32 = 4;
pub(crate) const WRITE: u32 = 2;
pub(crate) const EXECUTE: u32 = 1;
/// Mode bits that `chmod` sets.
pub(crate) const PERMISSION_BITS: u32 = 0o7777;
/// Of a file: it runs as its group. Of a directory: new entries get its group.
pub(crate) const SET_GROUP: u32 = 0o2000;

const LINKS_MAX: u32 = 1 << 20;
/// More than the number of writes that can be in flight.
const PINS_MAX: u32 = (1 << 16) - 1;

const _: () = assert!(SLOTS_MAX as usize * PINS_PER_SLOT <= PINS_MAX as usize);
const _: () = assert!((SLOTS_MAX as usize + 1) * LEASES_PER_SLOT <= PINS_MAX as usize);

/// An inode in use.
#[derive(Clone, Copy)]
pub(crate) struct Inode {
    pub id: InodeId,
    pub at: usize,
}

fields!(Inode {
    mode, set_mode: high 0;
    flags, set_flags: low 0;
    links, set_links: high 1;
    uid, set_uid: low 1;
    gid, set_gid: high 2;
    // Of a directory: its parent directory. Of an orphan: the next orphan.
    parent, set_parent: low 2;
    // Of a leased file: its size without the bytes written under the lease, see `size`.
    stored_size, set_size: word 3;
    map, set_map: high 4;
    opens, set_opens: low 4;
    writers, set_writers: high 5;
    // Writes in flight; above them, the number of the lease on the file, see `lease.rs`.
    lease_and_pins, set_lease_and_pins: low 5;
    layout, set_layout: word 6;
    moves, set_moves: high 6;
    adds, set_adds: low 6;
    // Since the file was last cut, no write at or past this was planned. Of a packed file: its
    // checksum; of a pack: number of its bytes that files use.
    written_end, set_written_end: word 7;
    // Of a removed directory: version of its former parent, which tells whether that is still the
    // same directory.
    parent_version, set_parent_version: word 7;
    // End of the furthest committed append. Of a packed file: pack << 32 | byte offset in it; of a
    // pack: 1 if somebody fills it, or did not report the end of its copies.
    appended_end, set_appended_end: word 8;
    // Of an orphan: log position behind the record that freed its blocks, or later.
    freed_at, set_freed_at: word 8;
    version, set_version: word 9;
    // Of an absent file: CRC32C of its data.
    drained_version, set_drained_version: word 10;
    // Of an orphan: number of the file whose blocks it has; may be its own.
    origin, set_origin: word 10;
    accessed, set_accessed: time 11;
    modified, set_modified: time 12;
    changed, set_changed: time 13;
    born, set_born: time 14;
    // Regular file: hugeblocks held. Directory: number of entries.
    held, set_held: high 15;
    // Symbolic link: name record of its target.
    target, set_target: low 15;
    // Regular file: start of its tail, see `tail`, as file block and byte within it; 0 = no tail.
    tail_block, set_tail_block: low 2;
    tail_byte, set_tail_byte: low 15;
});

impl Inode {
    pub(crate) fn kind(self, tx: &Transaction) -> u32 {
        self.mode(tx) & MODE_TYPE
    }

    pub(crate) fn owner(self, tx: &Transaction) -> Credentials {
        Credentials { uid: self.uid(tx), gid: self.gid(tx) }
    }

    pub(crate) fn is_directory(self, tx: &Transaction) -> bool {
        self.kind(tx) == MODE_DIRECTORY
    }

    pub(crate) fn is_regular(self, tx: &Transaction) -> bool {
        self.kind(tx) == MODE_REGULAR
    }

    pub(crate) fn is_symlink(self, tx: &Transaction) -> bool {
        self.kind(tx) == MODE_SYMLINK
    }

    /// Returns the `DT_*` value of this file.
    pub(crate) fn directory_kind(self, tx: &Transaction) -> u8 {
        (self.kind(tx) >> 12) as u8
    }

    pub(crate) fn add_flags(self, tx: &mut Transaction, flags: u32) {
        let old = self.flags(tx);
        self.set_flags(tx, old | flags);
    }

    pub(crate) fn clear_flags(self, tx: &mut Transaction, flags: u32) {
        let old = self.flags(tx);
        self.set_flags(tx, old & !flags);
    }

    /// Length in bytes. Whoever reads a file's data has recalled the lease on it.
    pub(crate) fn size(self, tx: &Transaction) -> u64 {
        if self.lease(tx) != 0 {
            tx.mark_corrupt("size of a leased file");
        }
        self.stored_size(tx)
    }

    /// Number of writes in flight.
    pub(crate) fn pins(self, tx: &Transaction) -> u32 {
        self.lease_and_pins(tx) & PINS_MAX
    }

    pub(crate) fn set_pins(self, tx: &mut Transaction, pins: u32) {
        let lease = self.lease_and_pins(tx) & !PINS_MAX;
        self.set_lease_and_pins(tx, lease | pins & PINS_MAX);
    }

    /// Number of the lease on the file; 0 without one.
    pub(crate) fn lease(self, tx: &Transaction) -> u32 {
        self.lease_and_pins(tx) / (PINS_MAX + 1)
    }

    pub(crate) fn set_lease(self, tx: &mut Transaction, lease: u32) {
        let pins = self.pins(tx);
        self.set_lease_and_pins(tx, (lease * (PINS_MAX + 1)) | pins);
    }

    /// Notes that the data may have changed: results computed from them are void.
    pub(crate) fn next_version(self, tx: &mut Transaction) {
        let version = self.version(tx);
        self.set_version(tx, version.wrapping_add(1));
    }

    /// Does the same as `next_version`, but the new version survives an undo of the transaction.
    pub(crate) fn next_version_without_undo(self, tx: &mut Transaction) {
        let version = self.version(tx);
        tx.keep_pages(self.at + 9, 1);
        tx.set_unlogged(self.at + 9, version.wrapping_add(1));
    }

    /// Notes that `caller` changed the data. Unless the caller is root, the file loses its
    /// set-user-ID and set-group-ID bits.
    pub(crate) fn touch_data(self, tx: &mut Transaction, caller: &Caller) {
        self.next_version(tx);
        self.set_modified(tx, caller.now);
        self.set_changed(tx, caller.now);
        if caller.credentials.uid != 0 {
            self.clear_set_id_bits(tx);
        }
    }

    /// Clears the set-user-ID bit, and the set-group-ID bit if the group may execute the file.
    pub(crate) fn clear_set_id_bits(self, tx: &mut Transaction) {
        const SET_USER: u32 = 0o4000;
        const RUNS_AS_GROUP: u32 = SET_GROUP | 0o10;
        let mode = self.mode(tx);
        if mode & (SET_USER | SET_GROUP) != 0 {
            let group = if mode & RUNS_AS_GROUP == RUNS_AS_GROUP { SET_GROUP } else { 0 };
            self.set_mode(tx, mode & !(SET_USER | group));
        }
    }

    /// Marks the file unclean because a writer did not end in order. The new version keeps anybody
    /// from taking the data for those of before.
    pub(crate) fn mark_unclean(self, tx: &mut Transaction) {
        self.next_version(tx);
        let flags = self.flags(tx).wrapping_add(1 << UNCLEAN_COUNT_SHIFT);
        self.set_flags(tx, flags | UNCLEAN | TORN);
    }

    /// Count of the times the file became unclean, modulo 256.
    pub(crate) fn unclean_count(self, tx: &Transaction) -> u32 {
        self.flags(tx) >> UNCLEAN_COUNT_SHIFT
    }

    /// Notes that blocks were added to the file.
    pub(crate) fn note_add(self, tx: &mut Transaction) {
        let adds = self.adds(tx);
        self.set_adds(tx, adds.wrapping_add(1));
    }

    /// Notes that blocks left the file or were replaced: readers must look again.
    pub(crate) fn note_move(self, tx: &mut Transaction) {
        let moves = self.moves(tx);
        self.set_moves(tx, moves.wrapping_add(1));
    }

    /// Offset from which the last block holds bytes that do not belong to the file: they were never
    /// written, or were cut off. They count as zeros, and are zeroed before the file grows over
    /// them.
    pub(crate) fn tail(self, tx: &Transaction) -> Option<u64> {
        let start = u64::from(self.tail_block(tx)) << tx.layout.hugeblock_shift;
        match self.tail_byte(tx) {
            0 => None,
            byte => Some(start + u64::from(byte)),
        }
    }

    /// Sets the start of the tail; the end of a block means no tail.
    pub(crate) fn set_tail(self, tx: &mut Transaction, offset: u64) {
        let byte = offset & (tx.layout.hugeblock_bytes - 1);
        self.set_tail_byte(tx, byte as u32);
        self.set_tail_block(
            tx,
            if byte == 0 { 0 } else { (offset >> tx.layout.hugeblock_shift) as u32 },
        );
    }

    pub(crate) fn clear_tail(self, tx: &mut Transaction) {
        self.set_tail(tx, 0);
    }

    pub(crate) fn add_link(self, tx: &mut Transaction) -> Result<()> {
        let links = self.links(tx);
        if links >= LINKS_MAX {
            return Err(Error::LinkLimit);
        }
        self.set_links(tx, links + 1);
        Ok(())
    }

    pub(crate) fn drop_link(self, tx: &mut Transaction) {
        let links = self.links(tx);
        self.set_links(tx, links.saturating_sub(1));
    }

    /// Checks the mode bits. Root passes, except for executing a file that nobody may execute.
    /// Errors: `AccessDenied`.
    pub(crate) fn permit(self, tx: &Transaction, caller: &Caller, wanted: u32) -> Result<()> {
        let mode = self.mode(tx);
        let credentials = caller.credentials;
        if credentials.uid == 0 {
            let executable = mode & 0o111 != 0 || mode & MODE_TYPE == MODE_DIRECTORY;
            return match wanted & EXECUTE == 0 || executable {
                true => Ok(()),
                false => Err(Error::AccessDenied),
            };
        }
        let granted = if credentials.uid == self.uid(tx) {
            mode >> 6
        } else if caller.is_in_group(self.gid(tx)) {
            mode >> 3
        } else {
            mode
        };
        match granted & wanted == wanted {
            true => Ok(()),
            false => Err(Error::AccessDenied),
        }
    }

    /// Checks that `caller` may change what only the owner may. Errors: `NotPermitted`.
    pub(crate) fn permit_owner(self, tx: &Transaction, caller: &Caller) -> Result<()> {
        match caller.credentials.uid == 0 || caller.credentials.uid == self.uid(tx) {
            true => Ok(()),
            false => Err(Error::NotPermitted),
        }
    }

    /// Checks that the file has all its blocks. Errors: `Io`: some are lost; `Absent`; `Packed`.
    pub(crate) fn require_whole(self, tx: &Transaction) -> Result<()> {
        match self.flags(tx) & (LOST | ABSENT | PACKED) {
            0 => Ok(()),
            flags if flags & ABSENT != 0 => Err(Error::Absent { inode: self.id }),
            flags if flags & PACKED != 0 => Err(Error::Packed { inode: self.id }),
            _ => Err(Error::Io),
        }
    }

    pub(crate) fn attributes(self, tx: &Transaction) -> Attributes {
        let is_regular = self.is_regular(tx);
        let (absence, version) = (self.absence(tx), self.version(tx));
        let is_here = absence.is_none();
        Attributes {
            inode: self.id,
            mode: self.mode(tx),
            links: self.links(tx),
            uid: self.uid(tx),
            gid: self.gid(tx),
            size: self.size(tx),
            allocated_bytes: match (is_regular, is_here) {
                (true, true) if !self.is_packed(tx) => {
                    u64::from(self.held(tx)) * tx.layout.hugeblock_bytes
                }
                (true, _) => self.size(tx).next_multiple_of(tx.layout.hugeblock_bytes),
                (false, _) => 0,
            },
            accessed: self.accessed(tx),
            modified: self.modified(tx),
            changed: self.changed(tx),
            born: self.born(tx),
            version,
            drained_version: if is_here { self.drained_version(tx) } else { version },
            unclean: self.flags(tx) & UNCLEAN != 0 && is_here,
            torn: self.flags(tx) & TORN != 0 && is_here,
            lost: self.flags(tx) & LOST != 0 && is_here,
            absence,
            writers: self.writers(tx),
            opens: self.opens(tx),
            extended: self.flags(tx) & EXTENDED != 0,
            renamed: self.flags(tx) & RENAMED != 0,
        }
    }
}

impl Transaction<'_> {
    /// Returns the inode `id`. Errors: `NotFound` if it is not in use (a stale number).
    pub(crate) fn inode(&self, id: InodeId) -> Result<Inode> {
        let at = self.find_record(SlabKind::Inode, id.0).ok_or(Error::NotFound)?;
        let inode = Inode { id, at };
        match inode.mode(self) {
            0 => Err(Error::NotFound),
            _ => Ok(inode),
        }
    }

    /// Creates an inode without a name.
    pub(crate) fn new_inode(&mut self, mode: u32, caller: &Caller) -> Result<Inode> {
        let taken = self.take(SlabKind::Inode, Error::NoInodes)?;
        let inode =
            Inode { id: InodeId(taken.index), at: self.record(SlabKind::Inode, taken.index) };
        if taken.pristine {
            inode.set_map(self, taken.index);
        }
        self.begin_inode(inode, mode, caller);
        Ok(inode)
    }

    /// Creates an inode that is to get a name in `parent`. If the parent has the set-group-ID bit,
    /// the inode gets its group, and a directory also gets the bit.
    pub(crate) fn new_inode_in(
        &mut self,
        parent: Inode,
        mode: u32,
        caller: &Caller,
    ) -> Result<Inode> {
        const RUNS_AS_GROUP: u32 = SET_GROUP | 0o10;
        if parent.mode(self) & SET_GROUP == 0 {
            return self.new_inode(mode, caller);
        }
        let group = parent.gid(self);
        let mode = match mode & MODE_TYPE == MODE_DIRECTORY {
            true => mode | SET_GROUP,
            false if mode & RUNS_AS_GROUP == RUNS_AS_GROUP && !caller.may_set_group(group) => {
                mode & !SET_GROUP
            }
            false => mode,
        };
        let credentials = Credentials { gid: group, ..caller.credentials };
        self.new_inode(mode, &Caller { credentials, ..*caller })
    }

    /// Initialises a record that was just taken as an inode without a name.
    pub(crate) fn begin_inode(&mut self, inode: Inode, mode: u32, caller: &Caller) {
        let (credentials, now) = (caller.credentials, caller.now.to_bits());
        self.set(inode.at, u64::from(mode) << 32);
        inode.set_opens(self, 0);
        let version = inode.version(self);
        inode.set_version(self, version.wrapping_add(1));
        // Links and uid; gid and parent; size.
        let (uid, gid) = (u64::from(credentials.uid), u64::from(credentials.gid) << 32);
        self.set_fresh(inode.at + 1, &[uid, gid, 0]);
        // Writers and pins.
        self.set_fresh(inode.at + 5, &[0]);
        // `written_end` and `appended_end`.
        self.set_fresh(inode.at + 7, &[0, 0]);
        let born = caller.now.0.max(inode.born(self).0.saturating_add(1)) as u64;
        // Drained version, four times, blocks held.
        self.set_fresh(inode.at + 10, &[0, now, now, now, born, 0]);
    }

    /// Frees the inode's record. Precondition: its extents and names are gone.
    pub(crate) fn free_inode(&mut self, inode: Inode) {
        self.set(inode.at, 0);
        self.give_back(SlabKind::Inode, inode.id.0);
    }

    /// Queues `inode`, which holds only extents, to be freed in batches.
    pub(crate) fn push_orphan(&mut self, inode: Inode) {
        let first = self.get(ORPHAN_FIRST) as u32;
        let count = self.get(ORPHAN_COUNT);
        inode.add_flags(self, ORPHAN);
        inode.set_parent(self, first);
        self.set(ORPHAN_FIRST, u64::from(inode.id.0));
        self.set(ORPHAN_COUNT, count.wrapping_add(1));
    }
}
