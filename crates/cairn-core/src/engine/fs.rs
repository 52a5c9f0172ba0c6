//! A namespace handle: memory, geometry, and the one way to change them, a transaction.

use crate::engine::durable::Durable;
use crate::engine::inode::Inode;
use crate::engine::transaction::{Local, Transaction};
use crate::format::error::{Error, Result};
use crate::format::layout::{self, Checksum, Geometry, LOG_HEAD, Layout};
use crate::format::memory::Memory;
use crate::format::types::{
    Caller, Credentials, MODE_DIRECTORY, ROOT, SlotId, TIERS_MAX, Timestamp,
};
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of times a transaction makes room in the log that others use up before it.
const LOG_ROOM_ATTEMPTS_MAX: usize = 1000;

/// A namespace in a meta segment. Many processes, each with its own `Microfs`, share one segment.
pub struct Microfs {
    memory: Box<dyn Memory>,
    geometry: Geometry,
    layout: Layout,
    checksum: Checksum,
    local: Local,
    checksum_pages: [Vec<AtomicBool>; TIERS_MAX],
    pub(crate) durable: Option<Durable>,
}

impl Microfs {
    /// Makes an empty namespace in a zeroed segment that nobody else uses yet. Errors: `Invalid`
    /// geometry; `NoSpace` if the segment is too short or cannot be backed.
    pub fn format(
        memory: &dyn Memory,
        geometry: &Geometry,
        checksum: Checksum,
        owner: Credentials,
        now: Timestamp,
    ) -> Result<()> {
        memory.back(0, layout::PAGE_WORDS)?;
        let layout = layout::write_header(memory, geometry, checksum)?;
        for (first, count) in layout.eager_ranges() {
            memory.back(first, count)?;
        }
        let local = Local::new();
        let mut tx = Transaction::new(memory, &layout, checksum, &local);
        tx.begin()?;
        let caller = Caller { slot: SlotId(0), credentials: owner, groups: &[], now };
        let root: Inode = tx.new_inode(MODE_DIRECTORY | 0o755, &caller)?;
        debug_assert_eq!(root.id, ROOT);
        root.set_links(&mut tx, 2);
        root.set_parent(&mut tx, ROOT.0);
        tx.commit()
    }

    /// Returns the geometry that the namespace in `memory` was formatted with; its durability says
    /// how to open it. Errors: as `open`.
    pub fn geometry_in(memory: &dyn Memory, checksum: Checksum) -> Result<Geometry> {
        layout::read_header(memory, checksum)
    }

    /// Returns the bytes in use of the media that hold the log; `None` without media.
    pub fn media_bytes(&self) -> Option<u64> {
        self.durable.as_ref().map(|durable| durable.superblock.bytes)
    }

    /// Whether metadata are also on media.
    pub fn is_durable(&self) -> bool {
        self.durable.is_some()
    }

    /// Opens an existing namespace whose first tier is not durable.
    /// Errors: `Corrupt` or `UnsupportedVersion` if the header is not one this build can use;
    /// `Invalid` if its first tier is durable.
    pub fn open(memory: Box<dyn Memory>, checksum: Checksum) -> Result<Microfs> {
        Microfs::open_any(memory, checksum, None)
    }

    /// Opens the result of [`recover_read_only`](crate::recover_read_only) for reading. Changes
    /// affect this memory only. Errors: as `open`; `Invalid` if the namespace is not durable.
    pub fn open_recovered(memory: Box<dyn Memory>, checksum: Checksum) -> Result<Microfs> {
        let geometry = layout::read_header(memory.as_ref(), checksum)?;
        match geometry.durability {
            Some(_) => Microfs::over(memory, checksum, geometry, None),
            None => Err(Error::Invalid),
        }
    }

    pub(crate) fn open_any(
        memory: Box<dyn Memory>,
        checksum: Checksum,
        durable: Option<Durable>,
    ) -> Result<Microfs> {
        let geometry = layout::read_header(memory.as_ref(), checksum)?;
        let fits = match &durable {
            // Media do not record the memory nodes of the machine.
            Some(Durable { superblock, .. }) => {
                let placement = geometry.placement;
                Geometry { placement, ..superblock.geometry.clone() } == geometry
            }
            None => geometry.durability.is_none(),
        };
        if !fits {
            return Err(Error::Invalid);
        }
        Microfs::over(memory, checksum, geometry, durable)
    }

    pub(crate) fn over(
        memory: Box<dyn Memory>,
        checksum: Checksum,
        geometry: Geometry,
        durable: Option<Durable>,
    ) -> Result<Microfs> {
        let layout = Layout::new(&geometry);
        for (first, count) in layout.eager_ranges() {
            memory.back(first, count)?;
        }
        let checksum_pages = layout.tiers.map(|tier| {
            let pages = (tier.blocks as usize).div_ceil(2 * layout::PAGE_WORDS);
            (0..pages).map(|_| AtomicBool::new(false)).collect()
        });
        let local = Local::new();
        Ok(Microfs { memory, geometry, layout, checksum, local, checksum_pages, durable })
    }

    /// Turns logging off in this view, to measure the cost of the log. For a namespace in memory
    /// whose log nobody else reads.
    #[doc(hidden)]
    pub fn without_log(mut self) -> Microfs {
        assert!(self.durable.is_none(), "a durable namespace is what its log says");
        self.layout.logs = false;
        self
    }

    /// Sets the function that returns the memory node of the calling thread. It decides from which
    /// part of a divided tier blocks come. It is called under the lock.
    pub fn with_nodes(mut self, node: fn() -> u32) -> Microfs {
        self.local.node = node;
        self
    }

    /// Returns the geometry that the namespace was formatted with.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(crate) fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// Returns the number of pages in the tables of checksums.
    pub(crate) fn checksum_page_count(&self) -> usize {
        self.checksum_pages.iter().map(Vec::len).sum()
    }

    pub(crate) fn memory(&self) -> &dyn Memory {
        self.memory.as_ref()
    }

    /// Backs the page of a tier's checksum table that holds the word `at`, once per process.
    pub(crate) fn back_checksum(&self, tier: u8, at: usize) -> Result<()> {
        let table = self.layout.tiers[tier as usize].checksums;
        let page = (at - table) / layout::PAGE_WORDS;
        let backed = &self.checksum_pages[tier as usize][page];
        if !backed.load(Ordering::Relaxed) {
            self.memory.back(table + page * layout::PAGE_WORDS, layout::PAGE_WORDS)?;
            backed.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the state that this process keeps for itself.
    pub(crate) fn local(&self) -> &Local {
        &self.local
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Runs `change` under the lock. If it fails, or the segment proves corrupt, nothing is
    /// changed.
    pub(crate) fn transact<R>(
        &self,
        change: impl FnOnce(&mut Transaction) -> Result<R>,
    ) -> Result<R> {
        let Some(durable) = &self.durable else { return self.transact_unlogged(change) };
        let mut change = Some(change);
        for _ in 0..LOG_ROOM_ATTEMPTS_MAX {
            let done = self.transact_unlogged(|tx| {
                if !self.has_log_room(tx) {
                    return Ok(None);
                }
                let head = tx.get(LOG_HEAD);
                let value = change.take().map(|change| change(tx)).transpose()?;
                Ok(value.map(|value| (value, tx.get(LOG_HEAD) != head)))
            })?;
            let Some((value, logged)) = done else {
                self.make_log_room()?;
                continue;
            };
            if logged {
                durable.logged.store(true, Ordering::Relaxed);
            }
            return match logged && durable.each_operation {
                true => self.sync().map(|()| value),
                false => Ok(value),
            };
        }
        Err(Error::NoSpace)
    }

    /// Does the same as `transact` for a change that appends nothing to the log.
    pub(crate) fn transact_unlogged<R>(
        &self,
        change: impl FnOnce(&mut Transaction) -> Result<R>,
    ) -> Result<R> {
        let memory = self.memory.as_ref();
        let mut tx = Transaction::new(memory, &self.layout, self.checksum, &self.local);
        tx.begin()?;
        let result = change(&mut tx);
        match result {
            Ok(value) => tx.commit().map(|()| value),
            Err(error) => Err(tx.corruption().unwrap_or(error)),
        }
    }
}
