//! Absent files of a simulation: made absent when they are new or after they were drained, and
//! fetched step by step by a process of its own, which may be killed at any step, while other
//! processes act.

use cairn_core::{Error, HandleId, InodeId, Position, Truncation};
use std::collections::BTreeMap;

use super::{Simulation, WRITES_PER_PROCESS, is_exhaustion};
use crate::driver::{Process, WriteInFlight};
use crate::model::{NodeId, OpenId};
use crate::step::{Place, Step};
use crate::tier::CHECKSUM;
use crate::world::SUPERUSER;

/// Files that were ever absent, the process that fetches them, and the fetches in flight.
#[derive(Default)]
pub(super) struct Absentees {
    pub(super) inodes: BTreeMap<NodeId, InodeId>,
    /// Versions of the files, which stay the same while they are absent.
    pub(super) versions: BTreeMap<NodeId, u64>,
    bringer: Option<Process>,
    pub(super) brought: Vec<Brought>,
    ended: u64,
    released: u64,
}

/// A file that is being fetched.
pub(super) struct Brought {
    node: NodeId,
    inode: InodeId,
    open: OpenId,
    handle: HandleId,
    content: Vec<u8>,
    done: usize,
    write: Option<WriteInFlight>,
    is_transferred: bool,
}

impl Brought {
    /// Whether a write to this file is between plan and commit.
    pub(super) fn is_busy(&self, inode: InodeId) -> bool {
        self.inode == inode && self.write.is_some()
    }
}

impl Simulation {
    /// Lets a process declare that a file that it has open has these bytes elsewhere, and close it.
    pub fn make_absent(&mut self, index: usize, place: Place, bytes: &[u8]) {
        let (Ok(inode), Ok(handle)) = (self.inode(place), self.handle(place)) else { return };
        let (caller, slot) = (self.processes[index].caller(), self.processes[index].slot.0);
        let Ok(id) = self.reference.open(place) else { return };
        let open = self.reference.model.description(id).expect("it is open").clone();
        // A write in flight whose place is gone does not hinder this, but makes bytes uncertain.
        if open.holders.len() > 1 || !open.holders.contains(&slot) || self.is_busy(inode) {
            return;
        }
        let is_empty = self.reference.model.facts(open.node).size == 0;
        let is_alone = self.reference.model.opens_of(open.node) == 1;
        let is_right = is_empty && is_alone && open.options.write && !open.options.read;
        let (size, crc32c) = (bytes.len() as u64, CHECKSUM(0, bytes));
        let made = self.processes[index].fs.make_absent(&caller, handle, size, crc32c);
        self.note(format!("{inode:?} is absent, {size} bytes: {made:?}"));
        if let Err(error) = made {
            let wrong = if open.options.write { Error::Invalid } else { Error::BadHandle };
            return assert!(error == wrong && !is_right, "{error:?}");
        }
        assert!(is_right);
        self.reference.model.make_absent(open.node, bytes);
        self.absentees.inodes.insert(open.node, inode);
        let version = self.inspector.fs.attributes(inode).expect("it is open").version;
        self.absentees.versions.insert(open.node, version);
        self.take(index, &Step::Close { open: place });
    }

    /// Closes a file, and makes it absent as one that was drained.
    pub fn release_data(&mut self, index: usize, place: Place) {
        let (Ok(inode), Ok(node)) = (self.inode(place), self.reference.node(place)) else { return };
        if self.is_busy(inode) {
            return;
        }
        self.take(index, &Step::Close { open: place });
        let Ok(found) = self.inspector.fs.attributes(inode) else { return };
        let Ok(content) = self.reference.model.content(node) else { return };
        if !content.is_certain() || found.links == 0 {
            return;
        }
        let crc32c = CHECKSUM(0, &content.certain(0, found.size));
        let caller = self.processes[index].caller();
        let fs = &self.processes[index].fs;
        fs.mark_drained(inode, found.version, caller.now).expect("it is there");
        let stale = fs.release_data(&caller, inode, found.version.wrapping_add(1), crc32c);
        assert_eq!(stale, Ok(false), "another version was drained");
        let released = fs.release_data(&caller, inode, found.version, crc32c);
        self.note(format!("{} {inode:?} gives up its data: {released:?}", caller.now.0));
        let is_free = found.opens == 0 && found.absence.is_none() && !found.unclean;
        match released {
            Ok(true) => assert!(is_free, "{found:?}"),
            // What is mapped or torn keeps its data, too.
            Ok(false) => return,
            Err(error) => return self.expect_exhausted(index, error),
        }
        self.reference.model.release_data(node);
        self.absentees.inodes.insert(node, inode);
        self.absentees.versions.insert(node, found.version);
        self.absentees.released += 1;
    }

    /// Number of times that a drained file gave up its data.
    pub fn released(&self) -> u64 {
        self.absentees.released
    }

    /// Returns the absent files.
    pub fn absent(&self) -> Vec<NodeId> {
        let nodes = self.absentees.inodes.keys().copied();
        nodes.filter(|&node| self.reference.model.is_absent(node)).collect()
    }

    /// Number of files whose fetch has completed.
    pub fn brought(&self) -> u64 {
        self.absentees.ended
    }

    /// Number of files that are being fetched.
    pub fn absences_in_flight(&self) -> usize {
        self.absentees.brought.len()
    }

    /// Lets a process truncate an absent file.
    pub fn truncate_absent(&mut self, index: usize, node: NodeId, size: u64) {
        let (caller, inode) = (self.processes[index].caller(), self.absentees.inodes[&node]);
        let cut = self.processes[index].fs.truncate(&caller, inode, size);
        self.note(format!("{} {inode:?} is cut to {size}: {cut:?}", caller.now.0));
        match cut {
            // The fetched blocks go to an orphan then, which needs an inode.
            Err(error) if size == 0 && is_exhaustion(error) => self.expect_exhausted(index, error),
            _ if size > 0 => assert_eq!(cut, Err(Error::Absent { inode })),
            _ => {
                assert_eq!(cut, Ok(Truncation::Done));
                self.reference.model.truncate(&caller, node, 0).expect("it is a file");
            }
        }
    }

    fn bringer(&mut self) -> &Process {
        let world = &self.world;
        self.absentees.bringer.get_or_insert_with(|| world.process(SUPERUSER))
    }

    /// Begins to fetch an absent file.
    pub fn begin_to_bring(&mut self, node: NodeId) {
        if self.absentees.brought.len() == WRITES_PER_PROCESS {
            return;
        }
        let inode = self.absentees.inodes[&node];
        let is_brought = self.absentees.brought.iter().any(|brought| brought.node == node);
        let bringer = self.bringer();
        let caller = bringer.caller();
        let opened = bringer.fs.open_absent(&caller, inode);
        self.note(format!("{} {inode:?} is to be brought: {opened:?}", caller.now.0));
        let facts = self.reference.model.facts(node);
        let handle = match opened {
            Ok(handle) => handle,
            Err(Error::NotFound) => return assert_eq!(facts.links, 0),
            Err(Error::Busy) => return assert!(is_brought, "{inode:?} is brought by nobody"),
            Err(error) => return assert!(is_exhaustion(error), "{error:?}"),
        };
        assert!(facts.links > 0 && !is_brought);
        let model = &mut self.reference.model;
        let open = model.open_absent(&caller, node);
        let content = model.content(node).expect("it is a file").certain(0, facts.size);
        let (done, write, is_transferred) = (0, None, false);
        let brought = Brought { node, inode, open, handle, content, done, write, is_transferred };
        self.absentees.brought.push(brought);
    }

    /// Takes the next step of a fetch: plans, transfers or commits up to `part` bytes, or completes
    /// it. Or gives it up.
    pub fn go_on_bringing(&mut self, which: usize, part: usize, gives_up: bool) {
        let mut brought = self.absentees.brought.remove(which);
        let goes_on = !gives_up && self.bring_step(&mut brought, part);
        let bringer = self.absentees.bringer.as_ref().expect("it has begun this");
        if goes_on {
            return self.absentees.brought.push(brought);
        }
        let slot = bringer.slot.0;
        if let Some(write) = &brought.write {
            bringer.abort(&bringer.caller(), write).expect("it is in flight");
        }
        bringer.close(brought.handle).expect("it is open");
        self.note(format!("{:?} is not brought any more", brought.inode));
        self.reference.model.release(slot, brought.open, true).expect("it is open");
    }

    /// Takes a step. Returns false if the fetch ends with it.
    fn bring_step(&mut self, brought: &mut Brought, part: usize) -> bool {
        let bringer = self.absentees.bringer.as_ref().expect("it has begun this");
        let caller = bringer.caller();
        let is_absent = self.reference.model.is_absent(brought.node);
        let Brought { handle, done, .. } = *brought;
        if brought.write.is_none() && done == brought.content.len() {
            let ended = bringer.fs.end_absence(&caller, handle);
            assert_eq!(ended, Ok(is_absent), "{:?}", brought.inode);
            self.note(format!("{} {:?} is brought: {ended:?}", caller.now.0, brought.inode));
            self.absentees.ended += u64::from(is_absent);
            self.reference.model.end_absence(brought.node);
            return false;
        }
        let stepped = match &mut brought.write {
            Some(write) if write.used_up => {
                brought.is_transferred = true;
                bringer.replan(&caller, handle, write)
            }
            Some(write) if brought.is_transferred => {
                let committed = bringer.commit(&caller, write);
                if committed == Ok(true) {
                    brought.done += write.done as usize;
                    brought.write = None;
                }
                committed.map(drop)
            }
            Some(write) => {
                brought.is_transferred = true;
                bringer.transfer(write)
            }
            None => {
                let end = brought.content.len().min(done + part);
                let bytes = &brought.content[done..end];
                let begun = bringer.begin_write(&caller, handle, Position::At(done as u64), bytes);
                brought.is_transferred = false;
                begun.map(|write| brought.write = Some(write))
            }
        };
        let line = format!("{} step of bringing {:?}: {stepped:?}", caller.now.0, brought.inode);
        self.note(line);
        match stepped {
            Ok(()) => {
                let planned = brought.write.iter().find(|write| !write.used_up);
                let is_late = planned.is_some_and(|write| !write.plan.brings());
                assert!(!(is_late && is_absent), "a write that would change an absent file");
                !is_late
            }
            Err(error) => {
                assert!(!is_absent || error == Error::NoSpace, "{error:?}");
                false
            }
        }
    }

    /// Ends the process that fetches files, killed or in order. Later fetches are another
    /// process's.
    pub fn end_bringer(&mut self, clean: bool) {
        let Some(bringer) = self.absentees.bringer.take() else { return };
        let slot = bringer.slot;
        self.note(format!("end of {slot:?}, which brings files, clean: {clean}"));
        let ended = match clean {
            true => self.inspector.fs.detach(slot, self.world.clock.tick()),
            false => self.inspector.reap(slot),
        };
        ended.expect("the slot exists");
        self.absentees.brought.clear();
        self.reference.model.end(slot.0, clean);
    }
}
