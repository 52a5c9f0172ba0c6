//! Process slots: what each process of the job holds, so that its death can be cleaned up.
//!
//! A slot owns references to open-file descriptions (one bit each), pins (see `pin.rs`), leases
//! (see `lease.rs`), warm block runs, streams (see `streams.rs`) and the working directory. A
//! spawner fills its child's slot before the child exists; the child finds it by identity.
//!
//! Invariant: the reference count of a handle equals the number of slots that have its bit set.
//!
//! A dead process keeps its slot until it is reaped; then another process may take the slot at
//! once. So the id of a slot counts the uses of its number. `reap` is told who died, because the
//! slot may have passed from a spawner to its child.
//!
//! Does not decide whether a process is alive; the agent does and calls `reap`.

pub(crate) mod claim;
pub(crate) mod fd_passing;
pub(crate) mod handle;
pub(crate) mod pin;
use crate::engine::fs::Microfs;
use crate::engine::run::BlockRun;
use crate::engine::slot::{
    BITS_FIRST, BITS_WORDS, PIN_WORDS, PINS_PER_SLOT, STREAMS_END, STREAMS_FIRST, Slot, WARM_FIRST,
    WARM_RUNS,
};
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::layout::{ATTACH_COUNT, HANDLES_MAX, SlabKind};
use crate::format::types::{
    Attached, HandleId, Holding, InodeId, ProcessIdentity, SlotId, Timestamp,
};
use crate::process::handle::MAPPED;
use crate::space::parts::Part;

const ACTIVE: u32 = 1;
/// Made by a spawner; its process does not exist yet or has not attached.
const EMBRYO: u32 = 2;

/// The process ends in an orderly way, or replaced its image: its handles are released as clean.
const ENDS_CLEAN: u32 = 1;
/// The process serves the store and is not a program of the job.
const SERVICE: u32 = 2;

/// Bitmap words handled in one transaction: at most 4096 handles.
const BATCH_WORDS: usize = 64;
/// Slots examined, and handles found, under one lock by `holdings`.
const HOLDERS_BATCH: u32 = 16;
const HOLDINGS_BATCH: usize = 256;
/// Handles released in one transaction.
const RELEASE_BATCH: usize = 32;

impl Slot {
    /// Returns the warm run that was remembered last.
    pub(crate) fn newest_warm(self, tx: &Transaction) -> Option<BlockRun> {
        let at = self.at + WARM_FIRST + self.warm_top(tx) as usize % WARM_RUNS;
        let run = BlockRun::unpack(tx.get(at));
        (run.count > 0).then_some(run)
    }

    /// Takes the warm run that was remembered last, if it is of `tier`. On a tier with several
    /// parts, takes the last one that begins in `part`.
    pub(crate) fn pop_warm(self, tx: &mut Transaction, tier: u8, part: Part) -> Option<BlockRun> {
        let top = self.warm_top(tx);
        let place =
            |back: usize| self.at + WARM_FIRST + top.wrapping_sub(back as u64) as usize % WARM_RUNS;
        let depth = if tx.layout.part_count(tier) > 1 { WARM_RUNS } else { 1 };
        let run_at = |back: usize| BlockRun::unpack(tx.get(place(back)));
        let fits = |run: BlockRun| run.count > 0 && run.tier == tier && part.contains(run.first);
        let back = (0..depth).find(|&back| fits(run_at(back)))?;
        let run = run_at(back);
        if back > 0 {
            // The newest run moves to the place that becomes free.
            tx.set(place(back), run_at(0).pack());
        }
        tx.set(place(0), 0);
        self.set_warm_top(tx, top.wrapping_sub(1));
        Some(run)
    }

    /// Remembers `run` as warm; joins it with the newest run if they touch.
    pub(crate) fn push_warm(self, tx: &mut Transaction, run: BlockRun) {
        let top = self.warm_top(tx);
        let newest_at = self.at + WARM_FIRST + top as usize % WARM_RUNS;
        let newest = BlockRun::unpack(tx.get(newest_at));
        let joined_count = newest.count + run.count;
        let joinable = newest.count > 0
            && newest.tier == run.tier
            && joined_count <= crate::engine::run::RUN_BLOCKS_MAX;
        if joinable && newest.end() == run.first {
            return tx.set(newest_at, BlockRun { count: joined_count, ..newest }.pack());
        }
        if joinable && run.end() == newest.first {
            return tx.set(newest_at, BlockRun { count: joined_count, ..run }.pack());
        }
        let top = top.wrapping_add(1);
        self.set_warm_top(tx, top);
        tx.set(self.at + WARM_FIRST + top as usize % WARM_RUNS, run.pack());
    }

    fn bit(self, handle: HandleId) -> (usize, u64) {
        (self.at + BITS_FIRST + handle.number() as usize / 64, 1 << (handle.number() % 64))
    }

    pub(crate) fn holds(self, tx: &Transaction, handle: HandleId) -> bool {
        let (at, mask) = self.bit(handle);
        tx.get(at) & mask != 0
    }

    pub(crate) fn set_holds(self, tx: &mut Transaction, handle: HandleId, holds: bool) {
        let (at, mask) = self.bit(handle);
        let old = tx.get(at);
        tx.set(at, if holds { old | mask } else { old & !mask });
    }

    /// Returns the handle with the lowest number at or after `from` that this slot holds.
    fn next_held(self, tx: &Transaction, from: u32) -> Result<Option<HandleId>> {
        let end = tx.records_end(SlabKind::Handle).min(HANDLES_MAX);
        let mut number = from;
        while number < end {
            let bits = tx.get(self.at + BITS_FIRST + number as usize / 64) >> (number % 64);
            if bits != 0 {
                let held = tx.handle_numbered(number + bits.trailing_zeros())?;
                return Ok(Some(held.id));
            }
            number = (number / 64 + 1) * 64;
        }
        Ok(None)
    }

    fn identity(self, tx: &Transaction) -> ProcessIdentity {
        ProcessIdentity {
            pid: self.pid(tx),
            pid_namespace: self.pid_namespace(tx),
            start_time: self.start_time(tx),
        }
    }

    /// Process whose death ends this slot: its own process or, while that has no pid, its spawner.
    fn keeper(self, tx: &Transaction) -> ProcessIdentity {
        let identity = self.identity(tx);
        match identity.pid {
            0 => ProcessIdentity { pid: self.parent(tx), ..identity },
            _ => identity,
        }
    }

    fn set_identity(self, tx: &mut Transaction, identity: ProcessIdentity) {
        self.set_pid(tx, identity.pid);
        self.set_pid_namespace(tx, identity.pid_namespace);
        self.set_start_time(tx, identity.start_time);
    }

    /// Whether the end of the process counts as an orderly close of the handle. A process that
    /// never attached has written nothing, except to inherited mappings.
    fn ends_clean(self, tx: &Transaction, handle: HandleId) -> bool {
        let is_mapped = || tx.handle(handle).is_ok_and(|handle| handle.flags(tx) & MAPPED != 0);
        self.flags(tx) & ENDS_CLEAN != 0 || self.state(tx) == EMBRYO && !is_mapped()
    }
}

impl Transaction<'_> {
    /// Returns the slot `id`. Errors: `Invalid` if it is not in use, or if a later process has its
    /// number.
    pub(crate) fn slot(&self, id: SlotId) -> Result<Slot> {
        let slot = self.slot_numbered(id.number())?;
        match slot.id == id {
            true => Ok(slot),
            false => Err(Error::Invalid),
        }
    }

    /// Returns the slot in use that has this number. Errors: `Invalid` if there is none.
    pub(crate) fn slot_numbered(&self, number: u32) -> Result<Slot> {
        if !self.is_record(SlabKind::Slot, number) {
            return Err(Error::Invalid);
        }
        let slot = self.slot_record(number);
        match slot.state(self) {
            ACTIVE | EMBRYO => Ok(slot),
            _ => Err(Error::Invalid),
        }
    }

    fn slot_record(&self, number: u32) -> Slot {
        let at = self.record(SlabKind::Slot, number);
        let record = Slot { id: SlotId(number), at };
        Slot { id: SlotId::new(number, record.uses(self)), at }
    }

    /// Returns the slot `id` if it is in use and `keeper` is its process.
    fn slot_kept_by(&self, id: SlotId, keeper: ProcessIdentity) -> Option<Slot> {
        self.slot(id).ok().filter(|slot| slot.keeper(self) == keeper)
    }

    /// All slots in use.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        (1..self.records_end(SlabKind::Slot)).filter_map(|number| self.slot_numbered(number).ok())
    }

    fn new_slot(&mut self, state: u32) -> Result<Slot> {
        let taken = self.take(SlabKind::Slot, Error::TooManyProcesses)?;
        let earlier = self.slot_record(taken.index);
        let uses = earlier.uses(self);
        for word in (0..WARM_FIRST + WARM_RUNS).chain(STREAMS_FIRST..STREAMS_END) {
            self.set(earlier.at + word, 0);
        }
        earlier.set_uses(self, uses.wrapping_add(1));
        let slot = self.slot_record(taken.index);
        slot.set_state(self, state);
        Ok(slot)
    }
}

impl Microfs {
    /// Attaches a process of a program: finds its slot, or makes one.
    pub fn attach(&self, identity: ProcessIdentity) -> Result<Attached> {
        self.attach_as(identity, 0)
    }

    /// Attaches a process that serves the store; [`Microfs::programs`] leaves it out.
    pub fn attach_service(&self, identity: ProcessIdentity) -> Result<Attached> {
        self.attach_as(identity, SERVICE)
    }

    fn attach_as(&self, identity: ProcessIdentity, flags: u32) -> Result<Attached> {
        self.introduce(identity)?;
        self.transact(|tx| {
            let same = |slot: &Slot, tx: &Transaction| {
                let found = slot.identity(tx);
                found.pid == identity.pid
                    && found.pid_namespace == identity.pid_namespace
                    && (found.start_time == identity.start_time || found.start_time == 0)
            };
            let known = tx.slots().find(|slot| same(slot, tx));
            let slot = match known {
                Some(slot) => {
                    // The previous image executed this one. Threads it still had may have been in
                    // the middle of writes.
                    tx.abandon_pins(slot)?;
                    slot
                }
                None => tx.new_slot(ACTIVE)?,
            };
            slot.set_state(tx, ACTIVE);
            // A process that was a program before stays one.
            let before = known.map_or(flags, |slot| slot.flags(tx));
            slot.set_flags(tx, flags & before);
            slot.set_identity(tx, identity);
            let count = tx.get(ATTACH_COUNT);
            tx.set(ATTACH_COUNT, count.wrapping_add(1));
            Ok(Attached { slot: slot.id, known: known.is_some() })
        })
    }

    /// Ends a process in an orderly way: releases every handle it holds as clean and frees its
    /// slot. If the first tier is durable, what the process changed is durable when this returns.
    /// Errors: `Io`: the media failed.
    pub fn detach(&self, slot: SlotId, now: Timestamp) -> Result<()> {
        let ending = self.transact(|tx| {
            let slot = tx.slot(slot)?;
            let flags = slot.flags(tx);
            slot.set_flags(tx, flags | ENDS_CLEAN);
            Ok(slot.keeper(tx))
        })?;
        self.reap(slot, ending, now)?;
        self.sync_own()
    }

    /// Cleans up after a dead process: undoes its unfinished writes, releases its handles, frees
    /// its slot. Files it was writing to become unclean, unless it ended in an orderly way.
    ///
    /// The caller has established that `dead`, which [`Microfs::processes`] showed in this slot, is
    /// dead, or is that process itself. Returns false, with nothing more done, once the slot
    /// belongs to another process: somebody else reaped it and it was taken again, or the child of
    /// a dead spawner introduced itself.
    pub fn reap(&self, slot: SlotId, dead: ProcessIdentity, now: Timestamp) -> Result<bool> {
        loop {
            let reaped = self.transact(|tx| {
                let Some(slot) = tx.slot_kept_by(slot, dead) else { return Ok(Some(false)) };
                // In each round: until the slot is freed, threads of a process that ends in an
                // orderly way may begin more writes.
                tx.abandon_pins(slot)?;
                for _ in 0..RELEASE_BATCH {
                    if !tx.has_room() {
                        break;
                    }
                    let Some(handle) = slot.next_held(tx, 1)? else {
                        tx.set(slot.at, 0);
                        tx.give_back(SlabKind::Slot, slot.id.number());
                        return Ok(Some(true));
                    };
                    // A service only keeps what it shares with another process.
                    let is_kept =
                        slot.flags(tx) & SERVICE != 0 && tx.handle(handle)?.references(tx) > 1;
                    let clean = is_kept || slot.ends_clean(tx, handle);
                    tx.release_handle(slot, handle, clean, now)?;
                }
                Ok(None)
            })?;
            if let Some(reaped) = reaped {
                return Ok(reaped);
            }
        }
    }

    /// Makes `to` hold every handle that `from` holds.
    pub fn share_handles(&self, from: SlotId, to: SlotId) -> Result<()> {
        let mut next = 1;
        loop {
            let shared = self.transact(|tx| {
                let (from, to) = (tx.slot(from)?, tx.slot(to)?);
                let Some(id) = from.next_held(tx, next)? else { return Ok(None) };
                if !to.holds(tx, id) {
                    to.set_holds(tx, id, true);
                    tx.handle(id)?.add_reference(tx);
                }
                Ok(Some(id.number()))
            })?;
            match shared {
                Some(number) => next = number + 1,
                None => return Ok(()),
            }
        }
    }

    /// Makes a slot for a child that is about to be created. The slot already holds what the child
    /// will inherit.
    pub fn spawn_begin(&self, parent: SlotId) -> Result<SlotId> {
        let child = self.transact(|tx| {
            let parent = tx.slot(parent)?;
            let child = tx.new_slot(EMBRYO)?;
            child.set_parent(tx, parent.pid(tx));
            child.set_pid_namespace(tx, parent.pid_namespace(tx));
            child.set_directory(tx, parent.directory(tx));
            child.set_stand_in(tx, parent.stand_in(tx));
            Ok(child.id)
        })?;
        for batch in (0..BITS_WORDS).step_by(BATCH_WORDS) {
            let more = self.transact(|tx| {
                let (parent, child) = (tx.slot(parent)?, tx.slot(child)?);
                for word in batch..batch + BATCH_WORDS {
                    let bits = tx.get(parent.at + BITS_FIRST + word);
                    let mut inherited = bits;
                    for bit in (0..64).filter(|bit| bits & 1 << bit != 0) {
                        let handle = tx.handle_numbered(word as u32 * 64 + bit)?;
                        let file = tx.inode(InodeId(handle.inode(tx)));
                        // Another thread fills the pack, and the child does not have that thread.
                        if file.is_ok_and(|file| file.is_pack(tx)) {
                            inherited &= !(1 << bit);
                        } else {
                            handle.add_reference(tx);
                        }
                    }
                    tx.set(child.at + BITS_FIRST + word, inherited);
                }
                Ok((batch + BATCH_WORDS) * 64 < tx.records_end(SlabKind::Handle) as usize)
            })?;
            if !more {
                break;
            }
        }
        Ok(child)
    }

    /// Records the pid of a child. Called in the parent once the child exists. Errors: `Invalid` if
    /// the child has already ended.
    pub fn spawn_parent(&self, child: SlotId, child_pid: u32) -> Result<()> {
        self.transact(|tx| {
            let child = tx.slot(child)?;
            if child.state(tx) == EMBRYO {
                child.set_pid(tx, child_pid);
            }
            Ok(())
        })
    }

    /// Takes over the slot. Called in the child, before anything else. Errors: `Invalid` if the
    /// slot was reaped with its spawner, or is already taken: call `attach` then.
    pub fn spawn_child(&self, child: SlotId, identity: ProcessIdentity) -> Result<()> {
        self.introduce(identity)?;
        self.transact(|tx| {
            let child = tx.slot(child)?;
            if child.state(tx) != EMBRYO {
                return Err(Error::Invalid);
            }
            child.set_state(tx, ACTIVE);
            child.set_identity(tx, identity);
            Ok(())
        })
    }

    /// Frees a child's slot. Called in the parent when no child was created.
    pub fn spawn_cancel(&self, child: SlotId, now: Timestamp) -> Result<()> {
        self.detach(child, now)
    }

    /// Records that the process is about to replace its image, or that this failed. The end of a
    /// replaced image counts as orderly.
    pub fn mark_exec(&self, slot: SlotId, about_to: bool) -> Result<()> {
        self.transact(|tx| {
            let slot = tx.slot(slot)?;
            let others = slot.flags(tx) & !ENDS_CLEAN;
            slot.set_flags(tx, if about_to { others | ENDS_CLEAN } else { others });
            Ok(())
        })
    }

    /// Releases all handles for which `held` is false: an exec closed their descriptors.
    pub fn retain_only(
        &self,
        slot: SlotId,
        held: &dyn Fn(HandleId) -> bool,
        now: Timestamp,
    ) -> Result<()> {
        let mut next = 1;
        loop {
            let done = self.transact(|tx| {
                let slot = tx.slot(slot)?;
                for _ in 0..RELEASE_BATCH {
                    if !tx.has_room() {
                        break;
                    }
                    let Some(handle) = slot.next_held(tx, next)? else { return Ok(true) };
                    next = handle.number() + 1;
                    if !held(handle) {
                        tx.release_handle(slot, handle, true, now)?;
                    }
                }
                Ok(false)
            })?;
            if done {
                return Ok(());
            }
        }
    }

    /// Returns every process that has a slot. A slot whose process was never created shows its
    /// spawner.
    pub fn processes(&self) -> Result<Vec<(SlotId, ProcessIdentity)>> {
        self.processes_where(|_, _| true)
    }

    /// Returns the same, without the processes that serve the store.
    pub fn programs(&self) -> Result<Vec<(SlotId, ProcessIdentity)>> {
        self.processes_where(|tx, slot| slot.flags(tx) & SERVICE == 0)
    }

    fn processes_where(
        &self,
        are_meant: impl Fn(&Transaction, Slot) -> bool,
    ) -> Result<Vec<(SlotId, ProcessIdentity)>> {
        let mut found = Vec::new();
        loop {
            // Memory is reserved before the lock is taken. If processes attach meanwhile, another
            // round is needed.
            let needed = self.transact(|tx| Ok(tx.records_end(SlabKind::Slot)))? as usize;
            found.clear();
            found.reserve(needed);
            let complete = self.transact(|tx| {
                for slot in tx.slots().filter(|slot| are_meant(tx, *slot)) {
                    if found.len() == found.capacity() {
                        return Ok(false);
                    }
                    found.push((slot.id, slot.keeper(tx)));
                }
                Ok(true)
            })?;
            if complete {
                return Ok(found);
            }
        }
    }

    /// Returns which processes have which regular files open. Works in batches: a change meanwhile
    /// is seen as before or after. A description that several processes share is listed for each.
    /// What was written under a lease counts once the lease is recalled.
    pub fn holdings(&self) -> Result<Vec<Holding>> {
        let mut found = Vec::new();
        let (mut number, mut from) = (1, 0);
        loop {
            // Memory is reserved before the lock is taken.
            found.reserve(HOLDINGS_BATCH);
            let most = found.len() + HOLDINGS_BATCH;
            let more = self.transact_unlogged(|tx| {
                let end = tx.records_end(SlabKind::Slot);
                let batch_end = end.min(number + HOLDERS_BATCH);
                while number < batch_end {
                    let Ok(slot) = tx.slot_numbered(number) else {
                        (number, from) = (number + 1, 0);
                        continue;
                    };
                    let Some(handle) = slot.next_held(tx, from)? else {
                        (number, from) = (number + 1, 0);
                        continue;
                    };
                    if found.len() == most {
                        return Ok(true);
                    }
                    from = handle.number() + 1;
                    found.extend(tx.holding(slot.keeper(tx), handle));
                }
                Ok(number < end)
            })?;
            if !more {
                return Ok(found);
            }
        }
    }

    /// Records the working directory of a process and the kernel inode that stands in for it.
    pub fn set_working_directory(
        &self,
        slot: SlotId,
        directory: Option<(InodeId, u64)>,
    ) -> Result<()> {
        self.transact(|tx| {
            let slot = tx.slot(slot)?;
            let (directory, stand_in) = directory.map_or((0, 0), |(id, inode)| (id.0, inode));
            slot.set_directory(tx, u64::from(directory));
            slot.set_stand_in(tx, stand_in);
            Ok(())
        })
    }

    /// Returns the directory that the kernel inode `stand_in` stands for. The record of the process
    /// in `slot` comes first, then that of any other process.
    pub fn working_directory(&self, slot: SlotId, stand_in: u64) -> Result<Option<InodeId>> {
        self.transact(|tx| {
            let knows = |slot: &Slot| stand_in != 0 && slot.stand_in(tx) == stand_in;
            let own = tx.slot(slot).ok().filter(knows);
            let slot = own.or_else(|| tx.slots().find(knows));
            Ok(slot.map(|slot| InodeId(slot.directory(tx) as u32)))
        })
    }
}
