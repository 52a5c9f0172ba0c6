//! Consistency check of a whole namespace under one lock: for tests, `cairn verify` and after a
//! crash.
//!
//! Holds the lock for a time proportional to the size of the namespace; not for use on a path of
//! the application.

use crate::engine::fs::Microfs;
use crate::engine::inode::{MAPPED, MAPPED_TO_STORE, ORPHAN};
use crate::engine::run::BlockRun;
use crate::engine::slot::PINS_PER_SLOT;
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::layout::{
    FLIGHT_COUNT, LIMBO_FIRST, ORPHAN_COUNT, ORPHAN_FIRST, PIN_COUNT, SlabKind,
};
use crate::format::types::{InodeId, ROOT, TIERS_MAX};
use crate::namespace::extended::ExtendedAttributes;
use crate::process::handle::{self, IN_FLIGHT, MAY_WRITE};
use crate::process::pin::PIN_LEASED;

/// Counts of a check. The blocks add up: free + in files + orphaned + reserved = capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Hugeblocks of all tiers.
    pub capacity_blocks: u64,
    /// Free hugeblocks.
    pub free_blocks: u64,
    /// Hugeblocks of files with a name or an open description.
    pub file_blocks: u64,
    /// Hugeblocks of deleted files that wait to be freed, and in limbo.
    pub orphaned_blocks: u64,
    /// Hugeblocks reserved by writes in flight.
    pub reserved_blocks: u64,
    /// Names in all directories.
    pub names: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Open-file descriptions.
    pub handles: u64,
}

/// Marks blocks as seen, to find those owned twice.
struct Seen {
    tiers: [Vec<u64>; TIERS_MAX],
}

impl Seen {
    fn mark(&mut self, tx: &Transaction, run: BlockRun) -> Result<u64> {
        let tier = self.tiers.get_mut(run.tier as usize).ok_or(broken("tier of an extent"))?;
        for block in run.first..run.first.saturating_add(run.count) {
            let word =
                tier.get_mut(block as usize / 64).ok_or(broken("extent outside its tier"))?;
            let bit = 1 << (block % 64);
            if *word & bit != 0 {
                return Err(broken("block owned twice"));
            }
            if !tx.is_used(run.tier, block) {
                return Err(broken("owned block marked free"));
            }
            *word |= bit;
        }
        Ok(u64::from(run.count))
    }
}

fn broken(what: &'static str) -> Error {
    Error::Corrupt { what }
}

fn require(holds: bool, what: &'static str) -> Result<()> {
    if holds { Ok(()) } else { Err(broken(what)) }
}

impl Microfs {
    /// Checks every invariant of the namespace. Errors: `Corrupt`, which names the first one that
    /// does not hold.
    pub fn check(&self) -> Result<Report> {
        self.transact(|tx| check(tx))
    }
}

fn check(tx: &Transaction) -> Result<Report> {
    let mut report = Report::default();
    let mut seen =
        Seen { tiers: tx.layout.tiers.map(|tier| vec![0; (tier.blocks as usize).div_ceil(64)]) };
    let mut named = vec![0u32; tx.records_end(SlabKind::Inode) as usize];
    check_inodes(tx, &mut report, &mut seen, &mut named)?;
    check_links(tx, &named)?;
    check_orphans(tx)?;
    check_mappings(tx)?;
    check_texts(tx)?;
    check_processes(tx, &mut report, &mut seen)?;
    let mut used = 0;
    for (number, tier) in (0..).zip(&tx.layout.tiers) {
        let count = |first: u32, blocks: u32| -> u64 {
            let words = first as usize / 64..(first + blocks).div_ceil(64) as usize;
            words.map(|word| u64::from(tx.get(tier.used + word).count_ones())).sum()
        };
        let counted = count(0, tier.blocks);
        require(counted == tx.get(tier.counters), "used-block counter")?;
        for part in tx.layout.parts(number) {
            let used = count(part.first, part.blocks);
            require(used == tx.get(part.counters), "used-block counter of a part")?;
        }
        report.capacity_blocks += u64::from(tier.blocks);
        used += counted;
    }
    report.free_blocks = report.capacity_blocks - used;
    let owned = report.file_blocks + report.orphaned_blocks + report.reserved_blocks;
    require(owned == used, "blocks in use that nobody owns")?;
    Ok(report)
}

fn check_inodes(
    tx: &Transaction,
    report: &mut Report,
    seen: &mut Seen,
    named: &mut [u32],
) -> Result<()> {
    let mut packed = vec![0; named.len()];
    for index in 1..tx.records_end(SlabKind::Inode) {
        let Ok(inode) = tx.inode(InodeId(index)) else { continue };
        report.inodes += 1;
        if inode.is_directory(tx) {
            let mut entries = 0;
            let mut position = 0;
            while let Some(entry) = tx.next_name(inode.id, position) {
                let target = tx.inode(entry.inode).map_err(|_| broken("name without inode"))?;
                if target.is_directory(tx) {
                    require(target.parent(tx) == index, "parent of a directory")?;
                }
                named[entry.inode.0 as usize] += 1;
                position = entry.hash;
                entries += 1;
            }
            require(entries == inode.held(tx), "entry count of a directory")?;
            report.names += u64::from(entries);
            continue;
        }
        if !inode.is_regular(tx) {
            continue;
        }
        let (mut held, mut next_block) = (0, 0);
        while let Some(extent) = tx.first_extent_from(inode.map(tx), next_block) {
            require(extent.blocks.count > 0, "empty extent")?;
            held += seen.mark(tx, extent.blocks)?;
            let Some(end) = extent.file_block.checked_add(extent.blocks.count) else { break };
            next_block = end;
        }
        require(held == u64::from(inode.held(tx)), "block count of a file")?;
        if inode.is_packed(tx) {
            require(held == 0 && inode.writers(tx) == 0, "blocks of a packed file")?;
            let (pack, _) = tx.pack_of(inode).ok_or(broken("pack of a small file"))?;
            named[pack.id.0 as usize] += 1;
            packed[pack.id.0 as usize] += inode.stored_size(tx);
        }
        let size_blocks = inode.stored_size(tx).div_ceil(tx.layout.hugeblock_bytes);
        if inode.flags(tx) & ORPHAN != 0 {
            report.orphaned_blocks += held;
        } else {
            // A pending append may hold blocks past the visible size.
            let past = u64::from(next_block) > size_blocks;
            require(
                !past || inode.appended_end(tx) > inode.stored_size(tx),
                "blocks past the end",
            )?;
            report.file_blocks += held;
        }
    }
    for (index, bytes) in (1..).zip(packed.iter().skip(1)) {
        let pack = tx
            .inode(InodeId(index))
            .ok()
            .filter(|inode| inode.is_pack(tx) && inode.flags(tx) & ORPHAN == 0);
        let said = pack.map_or(0, |pack| pack.written_end(tx));
        require(said == *bytes, "bytes of files in a pack")?;
    }
    Ok(())
}

fn check_links(tx: &Transaction, named: &[u32]) -> Result<()> {
    for index in 1..tx.records_end(SlabKind::Inode) {
        let Ok(inode) = tx.inode(InodeId(index)) else { continue };
        let links = inode.links(tx);
        if inode.is_directory(tx) {
            let reachable = named[index as usize] == 1 || inode.id == ROOT;
            require(reachable == (links >= 2), "link count of a directory")?;
        } else {
            require(links == named[index as usize], "link count of a file")?;
        }
        let alive = links > 0 || inode.opens(tx) > 0 || inode.flags(tx) & ORPHAN != 0;
        require(alive, "inode that nothing refers to")?;
    }
    Ok(())
}

fn check_orphans(tx: &Transaction) -> Result<()> {
    let mut orphan = tx.get(ORPHAN_FIRST) as u32;
    let count = tx.get(ORPHAN_COUNT);
    require(count <= u64::from(tx.records_end(SlabKind::Inode)), "orphan count")?;
    for _ in 0..count {
        let inode = tx.inode(InodeId(orphan)).map_err(|_| broken("orphan list"))?;
        require(inode.flags(tx) & ORPHAN != 0, "orphan list")?;
        orphan = inode.parent(tx);
    }
    require(orphan == 0, "orphan count")
}

/// Checks that the list of limbo ends, and that exactly the mapped files are flagged as mapped.
fn check_mappings(tx: &Transaction) -> Result<()> {
    let mut orphan = tx.get(LIMBO_FIRST) as u32;
    let mut left = tx.records_end(SlabKind::Inode);
    while orphan != 0 {
        left = left.checked_sub(1).ok_or(broken("limbo"))?;
        let inode = tx.inode(InodeId(orphan)).map_err(|_| broken("limbo"))?;
        require(inode.flags(tx) & ORPHAN != 0, "limbo")?;
        orphan = inode.parent(tx);
    }
    let mut mapped = vec![0; tx.records_end(SlabKind::Inode) as usize];
    for index in 1..tx.records_end(SlabKind::Handle) {
        let Ok(handle) = tx.handle_numbered(index) else { continue };
        let flags = handle.flags(tx);
        if flags & handle::MAPPED != 0 {
            let stores = if flags & MAY_WRITE != 0 { MAPPED_TO_STORE } else { 0 };
            let file = mapped.get_mut(handle.inode(tx) as usize);
            *file.ok_or(broken("mapping without inode"))? |= MAPPED | stores;
        }
    }
    for index in 1..tx.records_end(SlabKind::Inode) {
        if let Ok(inode) = tx.inode(InodeId(index)) {
            let said = inode.flags(tx) & (MAPPED | MAPPED_TO_STORE);
            require(said == mapped[index as usize], "whether a file is mapped")?;
        }
    }
    Ok(())
}

/// Checks that all extended attributes are valid, and that every text belongs to something: a name,
/// the target of a symbolic link, or attributes.
fn check_texts(tx: &Transaction) -> Result<()> {
    let (mut records, mut with_attributes) = (0, 0);
    let mut attributes = ExtendedAttributes::default();
    for index in 1..tx.records_end(SlabKind::Inode) {
        let Ok(inode) = tx.inode(InodeId(index)) else { continue };
        if inode.is_directory(tx) {
            let mut position = 0;
            while let Some(entry) = tx.next_name(inode.id, position) {
                records += tx.name_records(entry);
                position = entry.hash;
            }
        }
        if inode.is_symlink(tx) {
            records += tx.text_records(inode.target(tx));
        }
        tx.read_extended(inode, &mut attributes);
        if let Some(record) = tx.extended_record(inode) {
            require(!inode.is_symlink(tx), "extended attributes of a symbolic link")?;
            require(!attributes.as_bytes().is_empty(), "extended attributes that are none")?;
            records += tx.text_records(record);
            with_attributes += 1;
        }
    }
    require(with_attributes == tx.extended_entries(), "extended attributes of no file")?;
    require(records == tx.records_in_use(SlabKind::Name), "text that nobody has")
}

fn check_processes(tx: &Transaction, report: &mut Report, seen: &mut Seen) -> Result<()> {
    let (mut pins, mut leases) = (0, 0);
    for slot in tx.slots() {
        for index in 0..PINS_PER_SLOT {
            let pin = crate::process::pin::Pin { at: slot.pin_at(index) };
            if pin.flags(tx) & PIN_LEASED != 0 {
                let inode = tx.inode(InodeId(pin.inode(tx)));
                let lease = inode.map_or(0, |inode| inode.lease(tx));
                require(lease == tx.lease_number(slot, index), "lease of no file")?;
                leases += 1;
            }
            if pin.is_active(tx) {
                pins += 1;
                for run in pin.runs(tx).filter(|run| run.fresh) {
                    report.reserved_blocks += seen.mark(tx, run.blocks)?;
                }
            }
        }
    }
    require(pins == tx.get(PIN_COUNT), "count of writes in flight")?;
    let mut opens = vec![0u32; tx.records_end(SlabKind::Inode) as usize];
    let mut flights = 0;
    for index in 1..tx.records_end(SlabKind::Handle) {
        let Ok(handle) = tx.handle_numbered(index) else { continue };
        report.handles += 1;
        let in_flight = usize::from(handle.flags(tx) & IN_FLIGHT != 0);
        let holders = tx.slots().filter(|slot| slot.holds(tx, handle.id)).count() + in_flight;
        require(holders == handle.references(tx) as usize, "reference count of a handle")?;
        flights += in_flight as u64;
        let open =
            opens.get_mut(handle.inode(tx) as usize).ok_or(broken("handle without inode"))?;
        *open += 1;
        let file = tx.inode(InodeId(handle.inode(tx)));
        let is_absent = file.is_ok_and(|file| file.absence(tx).is_some());
        require(!is_absent || tx.may_see_absent(handle), "file that is read without its data")?;
    }
    require(flights == tx.get(FLIGHT_COUNT), "count of descriptions on their way")?;
    for index in 1..tx.records_end(SlabKind::Inode) {
        if let Ok(inode) = tx.inode(InodeId(index)) {
            require(tx.is_absence_sound(inode), "file whose data are elsewhere")?;
            require(inode.opens(tx) == opens[index as usize], "open count of a file")?;
            leases -= i64::from(inode.lease(tx) != 0);
        }
    }
    require(leases == 0, "file whose lease nobody has")?;
    Ok(())
}
