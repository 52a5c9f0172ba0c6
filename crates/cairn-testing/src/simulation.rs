//! Several processes on one namespace in one thread: every interleaving of their steps can be
//! played.
//!
//! Each process has its own `Microfs` over the shared words, as it would in its own address space.
//! Writes and truncations can stay between plan and commit while others act, close, unlink or die.
//! After every operation the result is compared with the reference model; `verify` compares the
//! whole namespace.
//!
//! Does not interrupt a transaction; `tests/death_in_lock.rs` does.

mod absent;
mod image;
mod pack;

use cairn_core::{
    Attributes, Caller, Credentials, Error, HandleId, InodeId, Position, Promotion, ROOT, Result,
    SettlePlan, Timestamp,
};
use std::collections::BTreeMap;

use self::absent::Absentees;
use self::image::{Copies, Cut};
use self::pack::Packings;
use crate::content::WriteId;
use crate::driver::{Process, WriteInFlight};
use crate::model::{Facts, NodeId, OpenId};
use crate::step::{Base, Outcome, Place, Reference, Step};
use crate::tier::CHECKSUM;
use crate::world::{SUPERUSER, World};

/// Number of trace lines shown when a test fails.
const TRACE_LINES: usize = 600;
/// Most writes and promotions in flight per process; the core has room for one more.
const WRITES_PER_PROCESS: usize = 6;

/// A write between plan and commit.
struct PendingWrite {
    id: WriteId,
    slot: u32,
    node: NodeId,
    open: OpenId,
    handle: HandleId,
    write: WriteInFlight,
    transferred: bool,
}

/// A settling in flight: a file's tail that is being zeroed.
struct PendingSettle {
    slot: u32,
    inode: InodeId,
    plan: SettlePlan,
    zeroed: bool,
}

/// A promotion in flight.
struct PendingPromotion {
    slot: u32,
    plan: Promotion,
    /// Whether the copied blocks match their checksums; none before the copy.
    copied: Option<bool>,
}

/// The processes, the namespace and the model.
pub struct Simulation {
    /// The namespace.
    pub world: World,
    /// The living processes.
    pub processes: Vec<Process>,
    inspector: Process,
    /// The expected state.
    pub reference: Reference,
    handles: Vec<Option<HandleId>>,
    writes: Vec<PendingWrite>,
    settles: Vec<PendingSettle>,
    promotions: Vec<PendingPromotion>,
    packings: Packings,
    absentees: Absentees,
    cut: Option<Cut>,
    copies: Option<Copies>,
    next_write: WriteId,
    trace: Vec<String>,
}

impl Drop for Simulation {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for line in &self.trace[self.trace.len().saturating_sub(TRACE_LINES)..] {
                println!("{line}");
            }
        }
    }
}

/// Returns paths and data in readable form.
fn readable(text: impl std::fmt::Debug) -> String {
    let mut line = format!("{text:?}");
    line.truncate(300);
    line
}

fn facts(attributes: &Attributes) -> Facts {
    Facts {
        mode: attributes.mode,
        uid: attributes.uid,
        gid: attributes.gid,
        links: attributes.links,
        size: if attributes.is_directory() { 0 } else { attributes.size },
        modified: attributes.modified.0,
        changed: attributes.changed.0,
        unclean: attributes.unclean,
    }
}

/// Whether the namespace ran out of a resource that the model does not limit.
fn is_exhaustion(error: Error) -> bool {
    matches!(error, Error::NoSpace | Error::NoInodes | Error::TooManyHandles)
}

impl Simulation {
    /// Returns a simulation of a namespace of `blocks` hugeblocks and at most `inodes` inodes, with
    /// no process but an inspector.
    pub fn new(blocks: u32, inodes: u32) -> Simulation {
        Simulation::of(World::new(blocks, inodes))
    }

    /// As [`Simulation::new`], on a given namespace, which must be empty.
    pub fn of(world: World) -> Simulation {
        let inspector = world.process(SUPERUSER);
        let creator = Caller { now: Timestamp(1), ..inspector.caller() };
        let mut simulation = Simulation {
            reference: Reference::new(&creator),
            world,
            processes: Vec::new(),
            inspector,
            handles: Vec::new(),
            writes: Vec::new(),
            settles: Vec::new(),
            promotions: Vec::new(),
            packings: Packings::default(),
            absentees: Absentees::default(),
            cut: None,
            copies: None,
            next_write: 0,
            trace: Vec::new(),
        };
        simulation.open_root();
        simulation
    }

    /// Lets everybody write to the root directory.
    fn open_root(&mut self) {
        let caller = self.inspector.caller();
        self.inspector.fs.set_mode(&caller, ROOT, 0o777).expect("root may");
        self.reference.model.set_mode(&caller, crate::model::ROOT, 0o777).expect("root may");
    }

    fn note(&mut self, line: String) {
        self.trace.push(line);
    }

    /// Attaches a new process.
    pub fn start(&mut self, credentials: Credentials) {
        let process = self.world.process(credentials);
        self.note(format!("start of {:?} with {credentials:?}", process.slot));
        self.processes.push(process);
    }

    /// Forks a process. If not `born`, the child is never created.
    pub fn fork(&mut self, index: usize, born: bool) {
        let identity = self.world.identity();
        let parent = &self.processes[index];
        let fs = &parent.fs;
        let slot = fs.spawn_begin(parent.slot).expect("there are free slots");
        if born {
            fs.spawn_parent(slot, identity.pid).expect("the child's slot exists");
            fs.spawn_child(slot, identity).expect("the child's slot exists");
            self.reference.model.fork(parent.slot.0, slot.0);
            let child = parent.with_slot(self.world.microfs(), slot);
            self.note(format!("fork of {:?} into {slot:?}", self.processes[index].slot));
            self.processes.push(child);
        } else {
            fs.spawn_cancel(slot, self.world.clock.tick()).expect("the child's slot exists");
            self.note(format!("fork of {:?} fails", self.processes[index].slot));
        }
    }

    /// Ends a process, killed or in order, with everything it has in flight.
    pub fn end(&mut self, index: usize, clean: bool) {
        let process = self.processes.remove(index);
        let slot = process.slot;
        self.note(format!("end of {slot:?}, clean: {clean}"));
        let ended = match clean {
            true => self.inspector.fs.detach(slot, self.world.clock.tick()),
            false => self.inspector.reap(slot),
        };
        ended.expect("the slot exists");
        let (lost, kept) =
            std::mem::take(&mut self.writes).into_iter().partition(|write| write.slot == slot.0);
        self.writes = kept;
        self.lose(lost);
        self.settles.retain(|settle| settle.slot != slot.0);
        self.promotions.retain(|promotion| promotion.slot != slot.0);
        self.packings.forget(slot.0);
        self.reference.model.end(slot.0, clean);
        self.reference.forget_closed();
        self.forget_handles();
    }

    fn lose(&mut self, lost: Vec<PendingWrite>) {
        for write in lost {
            if self.reference.model.exists(write.node) {
                let content = self.reference.model.content(write.node);
                content.expect("it was being written").abort(write.id);
            }
        }
    }

    fn forget_handles(&mut self) {
        let opens = &self.reference.opens;
        for (place, handle) in self.handles.iter_mut().enumerate() {
            if opens.get(place).copied().flatten().is_none() {
                *handle = None;
            }
        }
    }

    fn handle(&self, place: Place) -> Result<HandleId> {
        self.handles.get(place).copied().flatten().ok_or(Error::BadHandle)
    }

    /// Returns the inode of the file that is open in a place.
    pub fn inode(&self, place: Place) -> Result<InodeId> {
        Ok(self.inspector.fs.handle(self.handle(place)?)?.inode)
    }

    fn base(&self, base: Base) -> Result<InodeId> {
        base.map_or(Ok(ROOT), |place| self.inode(place))
    }

    /// Whether data are being fetched for the file in a place, which was emptied since. Appends
    /// then go behind those data, which the model does not know.
    fn is_brought_in_vain(&self, place: Place) -> bool {
        self.inode(place)
            .is_ok_and(|inode| self.absentees.brought.iter().any(|brought| brought.is_busy(inode)))
    }

    /// Lets a process take a step. Its result must be the model's.
    pub fn take(&mut self, index: usize, step: &Step) {
        if matches!(step, Step::Write { open, .. } if self.is_brought_in_vain(*open)) {
            return;
        }
        let caller = self.processes[index].caller();
        self.note(format!("{} {:?}: {}", caller.now.0, caller.slot, readable(step)));
        let seen = self.execute(index, &caller, step);
        if let Err(error) = seen {
            if error == Error::Busy {
                self.expect_busy(&caller, step);
                return self.note("    would wait".to_string());
            }
            if is_exhaustion(error) {
                self.expect_exhausted(index, error);
                if let Step::Truncate { open, size } = step {
                    self.adopt_size(&caller, *open, *size);
                }
                return self.note(format!("    {error:?}"));
            }
        }
        let expected = self.reference.take(&caller, step, seen.as_ref().ok());
        let expected = expected.map_err(|error| self.own_name(error));
        // Cairn bounds the path with its links expanded, Linux only the number of links.
        let too_long = seen == Err(Error::NameTooLong) && expected == Err(Error::SymlinkLoop);
        assert!(
            seen == expected || too_long,
            "{}\n got {}\nwant {}",
            readable(step),
            readable(&seen),
            readable(&expected)
        );
        self.note(format!("    {}", readable(&seen)));
        self.forget_handles();
    }

    /// Converts an error of the model to that of the namespace.
    fn own_name(&self, error: Error) -> Error {
        match error {
            Error::Absent { inode } => Error::Absent { inode: self.absentees.inodes[&inode.0] },
            other => other,
        }
    }

    fn execute(&mut self, index: usize, caller: &Caller, step: &Step) -> Result<Outcome> {
        let process = &self.processes[index];
        let fs = &process.fs;
        let done = |result: Result<()>| result.map(|()| Outcome::Done);
        match step {
            Step::Open { base, path, options, mode } => {
                let opened = loop {
                    match fs.open_file(caller, self.base(*base)?, path, *options, *mode) {
                        Err(Error::Packed { inode }) => process.unpack(inode)?,
                        opened => break opened?,
                    }
                };
                let place = self.reference.free_place();
                self.handles.resize(self.handles.len().max(place + 1), None);
                self.handles[place] = Some(opened.handle);
                Ok(Outcome::Opened(place))
            }
            Step::Close { open } => done(process.close(self.handle(*open)?)),
            Step::MakeDirectory { base, path, mode } => {
                done(fs.make_directory(caller, self.base(*base)?, path, *mode).map(|_| ()))
            }
            Step::RemoveDirectory { base, path } => {
                done(fs.remove_directory(caller, self.base(*base)?, path))
            }
            Step::Unlink { base, path } => done(fs.unlink(caller, self.base(*base)?, path)),
            Step::Link { old, new, follow } => {
                let (from, to) = ((self.base(old.0)?, &old.1[..]), (self.base(new.0)?, &new.1[..]));
                done(fs.link(caller, from, to, *follow))
            }
            Step::Symlink { target, base, path } => {
                done(fs.symlink(caller, target, self.base(*base)?, path).map(|_| ()))
            }
            Step::ReadLink { base, path } => {
                let mut target = Vec::new();
                fs.read_link(caller, self.base(*base)?, path, &mut target)?;
                Ok(Outcome::Target(target))
            }
            Step::Rename { from, to, mode } => {
                let old = (self.base(from.0)?, &from.1[..]);
                let new = (self.base(to.0)?, &to.1[..]);
                done(fs.rename(caller, old, new, *mode))
            }
            Step::Stat { base, path, follow } => {
                let attributes = fs.stat(caller, self.base(*base)?, path, *follow)?;
                Ok(Outcome::Facts(facts(&attributes)))
            }
            Step::Access { base, path, mask } => {
                done(fs.access(caller, self.base(*base)?, path, *mask, true))
            }
            Step::SetMode { open, mode } => done(fs.set_mode(caller, self.inode(*open)?, *mode)),
            Step::List { base } => {
                let mut names = BTreeMap::new();
                fs.list(caller, self.base(*base)?, 0, &mut |entry| {
                    names.insert(entry.name.to_vec(), u32::from(entry.kind) << 12);
                    true
                })?;
                Ok(Outcome::Names(names))
            }
            Step::SetExtended { open, name, value, update } => {
                done(fs.set_extended(caller, self.inode(*open)?, name, value, *update))
            }
            Step::GetExtended { open, name } => {
                fs.extended(caller, self.inode(*open)?, name).map(Outcome::Value)
            }
            Step::RemoveExtended { open, name } => {
                done(fs.remove_extended(caller, self.inode(*open)?, name))
            }
            Step::ListExtended { open } => {
                let attributes = fs.all_extended(self.inode(*open)?)?;
                let names = attributes.iter().map(|(name, _)| name.to_vec());
                Ok(Outcome::Attributes(names.collect()))
            }
            Step::Read { open, at, length } => {
                let handle = self.handle(*open)?;
                let (offset, bytes) = process.read(caller, handle, position(*at), *length)?;
                Ok(Outcome::Bytes(offset, bytes))
            }
            Step::Write { open, at, bytes } => {
                let handle = self.handle(*open)?;
                let (offset, count) = process.write(caller, handle, position(*at), bytes)?;
                Ok(Outcome::Written(Some(offset), count))
            }
            Step::Truncate { open, size } => {
                done(process.truncate(caller, self.inode(*open)?, *size))
            }
            Step::Seek { open, offset, whence } => {
                fs.seek(self.handle(*open)?, *offset, *whence).map(Outcome::Offset)
            }
        }
    }

    /// Checks that a namespace that reported exhaustion is really full.
    fn expect_exhausted(&self, index: usize, error: Error) {
        let process = &self.processes[index];
        let usage = process.fs.usage().expect("usage can always be told");
        match error {
            Error::NoSpace => {
                let held = process.fs.image_blocks_held().expect("it can always be told");
                let used = usage.used_blocks.iter().sum::<u64>() + held;
                assert_eq!(used, usage.total_blocks.iter().sum::<u64>(), "not full: {held} held");
            }
            Error::NoInodes => assert!(usage.inodes + 2 >= usage.inode_capacity, "{usage:?}"),
            _ => panic!("{error:?} with {usage:?}"),
        }
    }

    /// Checks that a step really has to wait: another process writes to the file or settles its
    /// tail.
    fn expect_busy(&mut self, caller: &Caller, step: &Step) {
        let open = match step {
            Step::Write { open, .. } => *open,
            Step::Truncate { open, size } => {
                self.adopt_size(caller, *open, *size);
                *open
            }
            // The file is unpacked first.
            Step::Open { .. } if self.has_no_pin(caller.slot.0) => return,
            _ => panic!("{} has to wait", readable(step)),
        };
        let inode = self.inode(open).expect("it was open for this step");
        let is_busy = self.is_busy(inode) || self.has_no_pin(caller.slot.0);
        assert!(is_busy, "{inode:?} is kept busy by nobody");
    }

    /// Whether a process has as much in flight as the core has room for, except for one write. A
    /// promotion takes the room of a write.
    fn is_all_in_flight(&self, slot: u32) -> bool {
        let writes = self.writes.iter().filter(|write| write.slot == slot).count();
        let promotions = self.promotions.iter().filter(|promotion| promotion.slot == slot).count();
        writes + promotions + self.packings.pins_of(slot) >= WRITES_PER_PROCESS
    }

    /// Whether all pins that a process may use for writes are in use. A settling may have taken one
    /// of them.
    fn has_no_pin(&self, slot: u32) -> bool {
        let settles = self.settles.iter().filter(|settle| settle.slot == slot).count();
        self.is_all_in_flight(slot) && settles > 0
    }

    fn is_busy(&self, inode: InodeId) -> bool {
        self.writes.iter().any(|write| write.write.plan.inode == inode)
            || self.settles.iter().any(|settle| settle.inode == inode)
            || self.absentees.brought.iter().any(|brought| brought.is_busy(inode))
    }

    /// Adopts the size of a file whose truncation could not complete: it may already have been cut.
    fn adopt_size(&mut self, caller: &Caller, place: Place, target: u64) {
        let inode = self.inode(place).expect("it was open for the truncation");
        let node = self.reference.node(place).expect("it was open for the truncation");
        let size = self.inspector.fs.attributes(inode).expect("it is open").size;
        let old = self.reference.model.facts(node).size;
        if size != old {
            assert!(
                (target..old).contains(&size),
                "cut to {size} on the way from {old} to {target}"
            );
            self.reference.model.truncate(caller, node, size).expect("it is a file");
        }
    }

    /// Lets a process plan a write, and perhaps transfer its bytes.
    pub fn begin_write(
        &mut self,
        index: usize,
        place: Place,
        at: Option<u64>,
        bytes: &[u8],
        transfers: bool,
    ) {
        let slot = self.processes[index].slot.0;
        if self.is_all_in_flight(slot) || self.is_brought_in_vain(place) {
            return;
        }
        let caller = self.processes[index].caller();
        let Ok(handle) = self.handle(place) else { return };
        let begun = self.processes[index].begin_write(&caller, handle, position(at), bytes);
        let offset = begun.as_ref().ok().map(|write| write.offset);
        let expected = self.reference.place_write(place, at, offset);
        let write = match begun {
            Ok(write) => write,
            Err(error) if is_exhaustion(error) => return self.expect_exhausted(index, error),
            Err(Error::Busy) => {
                let inode = self.inode(place).expect("it was open");
                let is_busy = self.is_busy(inode) || self.has_no_pin(slot);
                return assert!(is_busy, "{inode:?} is kept busy by nobody");
            }
            Err(error) => return assert_eq!(Some(error), expected.err(), "planning a write"),
        };
        let placed = expected.expect("the core planned a write");
        assert_eq!(write.offset, placed.offset, "place of a write");
        let end = write.offset + write.bytes.len() as u64;
        self.reference.note_written(place, at, end).expect("it is open");
        let content = self.reference.model.content(placed.node).expect("it is a file");
        content.begin(self.next_write, write.offset, &write.bytes, placed.append);
        let (id, node) = (self.next_write, placed.node);
        let open = self.reference.open(place).expect("it is open");
        let mut write = PendingWrite { id, slot, node, open, handle, write, transferred: false };
        self.next_write += 1;
        if transfers {
            self.processes[index].transfer(&mut write.write).expect("the tier takes bytes");
            write.transferred = true;
        }
        let start = write.write.offset;
        let line = format!(
            "{} plan {} of {:?}: place {place} {:?} {start}..{end}, transferred: {transfers}",
            caller.now.0, write.id, caller.slot, write.write.plan.inode
        );
        self.note(line);
        self.writes.push(write);
    }

    /// Number of writes in flight.
    pub fn writes_in_flight(&self) -> usize {
        self.writes.len()
    }

    fn process_of(&self, slot: u32) -> usize {
        let found = self.processes.iter().position(|process| process.slot.0 == slot);
        found.expect("what is in flight belongs to a living process")
    }

    /// Lets a write in flight take its next step towards its commit.
    pub fn continue_write(&mut self, which: usize) {
        let mut pending = self.writes.remove(which);
        let index = self.process_of(pending.slot);
        let process = &self.processes[index];
        let caller = process.caller();
        let write = &mut pending.write;
        let before = write.done;
        let is_open = self.reference.model.holds(pending.slot, pending.open);
        let result = if write.used_up && !is_open {
            // The write cannot be repeated: the handle may belong to another file by then.
            Err(Error::BadHandle)
        } else if write.used_up {
            process.replan(&caller, pending.handle, write).map(|()| false)
        } else if pending.transferred {
            process.commit(&caller, write)
        } else {
            pending.transferred = true;
            process.transfer(write).map(|()| false)
        };
        let (done, progress) = (write.done, write.done - before);
        self.note(format!("{} continue {}: {result:?}, {done} done", caller.now.0, pending.id));
        if progress > 0 && self.reference.model.exists(pending.node) {
            let content = self.reference.model.content(pending.node);
            content.expect("it was written to").commit(pending.id, progress);
            self.reference.model.touch(&caller, pending.node);
        }
        match result {
            Ok(false) => return self.writes.push(pending),
            Err(Error::Busy) => {
                let inode = pending.write.plan.inode;
                assert!(self.is_busy(inode), "{inode:?} is kept busy by nobody");
                return self.writes.push(pending);
            }
            Err(error @ Error::NoSpace) => self.expect_exhausted(index, error),
            Err(error) => assert_eq!(error, Error::BadHandle, "continuing a write"),
            Ok(true) => {}
        }
        if result != Ok(true) {
            self.processes[index]
                .abort(&caller, &pending.write)
                .expect("it can always be given up");
            self.adopt_cursor(&pending);
            if self.reference.model.exists(pending.node) {
                let content = self.reference.model.content(pending.node);
                content.expect("it was written to").abort(pending.id);
            }
        }
    }

    /// Adopts the cursor after a write was given up: the write may have moved it back.
    fn adopt_cursor(&mut self, pending: &PendingWrite) {
        let Ok(open) = self.reference.model.description(pending.open) else { return };
        let seen = self.inspector.fs.handle(pending.handle).expect("it is open").cursor;
        let write = &pending.write;
        let possible = [open.cursor, write.offset, write.plan.offset, write.offset + write.done];
        assert!(possible.contains(&seen), "cursor at {seen}, not one of {possible:?}");
        open.cursor = seen;
    }

    /// Lets the process of a write in flight give it up.
    pub fn abort_write(&mut self, which: usize) {
        let write = self.writes.remove(which);
        let index = self.process_of(write.slot);
        let caller = self.processes[index].caller();
        self.note(format!("{} abort {}", caller.now.0, write.id));
        self.processes[index].abort(&caller, &write.write).expect("it is in flight");
        self.adopt_cursor(&write);
        if self.reference.model.exists(write.node) {
            self.reference.model.content(write.node).expect("it was written to").abort(write.id);
        }
    }

    /// Lets a process begin to settle the tail of a file.
    pub fn begin_settle(&mut self, index: usize, place: Place) {
        let Ok(inode) = self.inode(place) else { return };
        let process = &self.processes[index];
        let (slot, caller) = (process.slot.0, process.caller());
        let begun = process.fs.plan_settle(&caller, inode);
        self.note(format!("settling of {inode:?} by slot {slot}: {begun:?}"));
        match begun {
            Ok(Some(plan)) => {
                self.settles.push(PendingSettle { slot, inode, plan, zeroed: false });
            }
            Ok(None) => {}
            Err(error) => {
                assert_eq!(error, Error::Busy, "settling");
                assert!(self.is_busy(inode), "{inode:?} is kept busy by nobody");
            }
        }
    }

    /// Number of settlings in flight.
    pub fn settles_in_flight(&self) -> usize {
        self.settles.len()
    }

    /// Lets a settling take its next step, or gives it up.
    pub fn continue_settle(&mut self, which: usize, gives_up: bool) {
        let mut settle = self.settles.remove(which);
        let index = self.process_of(settle.slot);
        let process = &self.processes[index];
        if !settle.zeroed && !gives_up {
            process.zero_tail(&settle.plan).expect("the heap does not fail");
            settle.zeroed = true;
            return self.settles.push(settle);
        }
        let caller = process.caller();
        let ended = process.fs.commit_settle(&caller, &settle.plan, settle.zeroed && !gives_up);
        self.note(format!("settling of {:?} ends: {ended:?}", settle.inode));
        ended.expect("it was in flight");
    }

    /// Lets a process plan to promote blocks of a file, from block `first` on.
    pub fn begin_promotion(&mut self, index: usize, place: Place, first: u32) {
        let Ok(inode) = self.inode(place) else { return };
        let process = &self.processes[index];
        let slot = process.slot.0;
        if self.is_all_in_flight(slot) {
            return;
        }
        let planned = process.fs.plan_promotion(&process.caller(), inode, first..u32::MAX);
        self.note(format!("promotion from block {first} of {inode:?} by slot {slot}: {planned:?}"));
        match planned {
            Ok(Some(plan)) => self.promotions.push(PendingPromotion { slot, plan, copied: None }),
            Ok(None) => {}
            Err(error) => assert!(matches!(error, Error::NoSpace | Error::Busy), "{error:?}"),
        }
    }

    /// Bars blocks at the end of the tier in memory, the first one: they are not handed out if they
    /// never were.
    pub fn bar(&mut self, blocks: u32) {
        self.note(format!("{blocks} blocks of the first tier are barred"));
        self.inspector.fs.bar(&[blocks]).expect("the namespace is consistent");
    }

    /// Number of promoted hugeblocks.
    pub fn promoted(&self) -> u64 {
        let usage = self.inspector.fs.usage().expect("usage can always be told");
        usage.promoted_blocks.iter().sum()
    }

    /// Number of promotions in flight.
    pub fn promotions_in_flight(&self) -> usize {
        self.promotions.len()
    }

    /// Lets a promotion take its next step, or gives it up.
    pub fn continue_promotion(&mut self, which: usize, gives_up: bool) {
        let mut promotion = self.promotions.remove(which);
        let process = &self.processes[self.process_of(promotion.slot)];
        let (caller, plan) = (process.caller(), &promotion.plan);
        let inode = plan.inode;
        let done = match promotion.copied {
            _ if gives_up => process.fs.abort_promotion(&caller, plan).map(|()| false),
            None => {
                promotion.copied =
                    Some(process.copy_promoted(plan).expect("the heap does not fail"));
                return self.promotions.push(promotion);
            }
            Some(intact) => {
                let done = process.fs.commit_promotion(&caller, plan);
                assert!(intact || done == Ok(false), "a block that nobody wrote to is damaged");
                done
            }
        };
        self.note(format!("promotion of {inode:?} ends: {done:?}"));
        done.expect("it was in flight");
    }

    /// Lets a process seal a file.
    pub fn seal(&mut self, index: usize, place: Place) {
        let Ok(inode) = self.inode(place) else { return };
        let Ok(sealed) = self.processes[index].seal(inode) else { return };
        self.note(format!("seal of {inode:?}: {sealed}"));
        let busy = self.is_busy(inode);
        assert!(sealed || busy, "{inode:?} cannot be sealed although nobody writes to it");
    }

    /// Lets a process free orphans.
    pub fn reclaim(&mut self, index: usize) {
        self.processes[index].reclaim().expect("orphans can be freed");
        let is_quiet =
            self.writes.is_empty() && self.settles.is_empty() && self.promotions.is_empty();
        if self.packings.is_empty() && is_quiet && self.absentees.brought.is_empty() {
            assert_eq!(self.inspector.fs.orphans(), 0, "orphans are left");
        }
    }

    /// Compares the whole namespace with the model and checks every invariant.
    pub fn verify(&mut self) {
        let report = self.inspector.fs.check().expect("the namespace is consistent");
        let blocks = report.free_blocks
            + report.file_blocks
            + report.orphaned_blocks
            + report.reserved_blocks;
        assert_eq!(blocks, report.capacity_blocks, "blocks add up: {report:?}");
        let opens = self.reference.opens.iter().flatten().count() as u64;
        let brought = self.absentees.brought.len() as u64;
        let packs = self.packings.packs_in_flight() as u64;
        assert_eq!(report.handles, opens + brought + packs, "open descriptions");
        let mut seen = BTreeMap::new();
        self.verify_directory(ROOT, crate::model::ROOT, &mut seen);
        for place in 0..self.reference.opens.len() {
            if self.reference.opens[place].is_some() {
                let node = self.reference.node(place).expect("it is open");
                let inode = self.inode(place).expect("handles and places agree");
                let known = seen.insert(node, inode);
                assert!(known.is_none_or(|known| known == inode), "identity of an open file");
            }
        }
        for (node, inode) in seen {
            self.verify_node(node, inode);
        }
    }

    fn verify_directory(
        &mut self,
        inode: InodeId,
        node: NodeId,
        seen: &mut BTreeMap<NodeId, InodeId>,
    ) {
        assert!(seen.insert(node, inode).is_none(), "a directory is named twice");
        let mut found = BTreeMap::new();
        let caller = self.inspector.caller();
        let listed = self.inspector.fs.list(&caller, inode, 0, &mut |entry| {
            let previous = found.insert(entry.name.to_vec(), (entry.inode, entry.kind));
            assert!(previous.is_none(), "a name is listed twice");
            true
        });
        listed.expect("root may list every directory");
        let expected = self.reference.model.list(&caller, node).expect("it is a directory").clone();
        assert!(
            found.keys().eq(expected.keys()),
            "names of a directory: {:?} instead of {:?}",
            found.keys(),
            expected.keys()
        );
        for (name, child) in expected {
            let (child_inode, kind) = found[&name];
            let mode = self.reference.model.node(child).mode();
            assert_eq!(u32::from(kind), mode >> 12, "type of a directory entry");
            if self.reference.model.node(child).is_directory() {
                self.verify_directory(child_inode, child, seen);
            } else {
                let known = seen.insert(child, child_inode);
                assert!(known.is_none_or(|known| known == child_inode), "hard links");
            }
        }
    }

    fn verify_node(&mut self, node: NodeId, inode: InodeId) {
        let attributes = self.inspector.fs.attributes(inode).expect("it is reachable");
        let expected = self.reference.model.facts(node);
        assert_eq!(facts(&attributes), expected, "attributes of {inode:?}");
        let opens = self.reference.model.opens_of(node);
        assert_eq!(attributes.opens as usize, opens, "open descriptions of {inode:?}");
        let absent = attributes.absence.map(|absence| absence.crc32c);
        if self.reference.model.is_absent(node) {
            let content = self.reference.model.content(node).expect("it is a file");
            let whole = content.certain(0, expected.size);
            assert_eq!(absent, Some(CHECKSUM(0, &whole)), "absence of {inode:?}");
            return assert_eq!(attributes.version, self.absentees.versions[&node], "{inode:?}");
        }
        assert_eq!(absent, None, "absence of {inode:?}");
        if attributes.is_regular() {
            self.verify_content(node, inode, attributes.size);
        }
    }

    fn verify_content(&mut self, node: NodeId, inode: InodeId, size: u64) {
        let caller = self.inspector.caller();
        let options = cairn_core::OpenOptions { read: true, ..Default::default() };
        let opened = self.inspector.fs.open_file(&caller, inode, b"", options, 0);
        let handle = match opened {
            Ok(opened) => opened.handle,
            Err(error) => panic!("{inode:?} cannot be opened: {error:?}"),
        };
        let mut ranges = self.reference.model.content(node).expect("it is a file").data_ranges();
        let mut at = 0;
        while let Ok(start) = self.inspector.fs.seek(handle, at as i64, libc::SEEK_DATA) {
            let end = self.inspector.fs.seek(handle, start as i64, libc::SEEK_HOLE);
            let end = end.expect("after data comes a hole or the end");
            assert!(start >= at && end > start && end <= size, "data at {start}..{end} of {size}");
            ranges.push((start, end - start));
            at = end;
        }
        for (start, length) in ranges {
            let read = self.inspector.read(&caller, handle, Position::At(start), length);
            let (_, bytes) = read.expect("it can be read");
            let content = self.reference.model.content(node).expect("it is a file");
            assert_eq!(bytes.len() as u64, content.readable(start, length), "length of a read");
            if !content.admits(start, &bytes) {
                let difference = content.first_difference(start, &bytes);
                panic!("bytes {start}..{} of {inode:?}: {difference:?}", start + length);
            }
        }
        let busy = self.writes.iter().any(|write| write.node == node);
        if !busy {
            self.inspector.verify_blocks(inode, handle).expect("its blocks can be checked");
        }
        self.inspector.close(handle).expect("it was opened above");
    }

    /// Ends all processes and removes all files. Nothing may be left in use.
    pub fn finish(mut self) {
        self.end_cut();
        while !self.processes.is_empty() {
            self.end(0, true);
        }
        self.end_bringer(true);
        self.verify();
        self.remove_all(ROOT);
        self.inspector.reclaim().expect("orphans can be freed");
        let report = self.inspector.fs.check().expect("the namespace is consistent");
        assert_eq!(report.free_blocks, report.capacity_blocks, "blocks are left: {report:?}");
        assert_eq!((report.inodes, report.names, report.handles), (1, 0, 0), "{report:?}");
    }

    fn remove_all(&self, directory: InodeId) {
        let mut entries = Vec::new();
        let caller = self.inspector.caller();
        let fs = &self.inspector.fs;
        let listed = fs.list(&caller, directory, 0, &mut |entry| {
            entries.push((entry.name.to_vec(), entry.inode, entry.kind));
            true
        });
        listed.expect("root may list every directory");
        for (name, inode, kind) in entries {
            if kind == libc::DT_DIR {
                self.remove_all(inode);
                fs.remove_directory(&caller, directory, &name).expect("it is empty now");
            } else {
                fs.unlink(&caller, directory, &name).expect("root may");
            }
        }
    }
}

fn position(at: Option<u64>) -> Position {
    at.map_or(Position::Cursor, Position::At)
}
