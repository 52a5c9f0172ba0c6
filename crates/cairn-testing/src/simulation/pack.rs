//! Small files that are packed and unpacked, a step at a time, while everything else goes on.
//! Programs must not see any of it.

use cairn_core::{Error, InodeId, Pack, SmallFile, Unpacking};

use super::Simulation;
use crate::step::Place;

/// A pack that is being filled, and the next file for it.
struct PendingPack {
    slot: u32,
    pack: Pack,
    next: Option<SmallFile>,
    /// Checksum of the copied bytes; none before the copy.
    copied: Option<u32>,
}

/// A packed file that is being given a block of its own.
struct PendingUnpacking {
    slot: u32,
    inode: InodeId,
    plan: Unpacking,
    /// Whether the copied bytes match the file's checksum; none before the copy.
    copied: Option<bool>,
}

/// Packings and unpackings in flight.
#[derive(Default)]
pub struct Packings {
    packs: Vec<PendingPack>,
    unpackings: Vec<PendingUnpacking>,
    packed: u64,
}

impl Packings {
    /// Drops what an ended process had in flight.
    pub fn forget(&mut self, slot: u32) {
        self.packs.retain(|pending| pending.slot != slot);
        self.unpackings.retain(|pending| pending.slot != slot);
    }

    /// Number of packs that are being filled.
    pub fn packs_in_flight(&self) -> usize {
        self.packs.len()
    }

    /// Number of pins of a process in use for unpacking.
    pub fn pins_of(&self, slot: u32) -> usize {
        self.unpackings.iter().filter(|pending| pending.slot == slot).count()
    }

    /// Whether nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.packs.is_empty() && self.unpackings.is_empty()
    }
}

impl Simulation {
    /// Number of files put into packs, except the first of each.
    pub fn packed(&self) -> u64 {
        self.packings.packed
    }

    /// Number of packs and unpackings in flight.
    pub fn packings_in_flight(&self) -> usize {
        self.packings.packs.len() + self.packings.unpackings.len()
    }

    /// Lets a process begin a pack, if there are two small files.
    pub fn begin_pack(&mut self, index: usize) {
        let process = &self.processes[index];
        let (slot, begun) = (process.slot.0, process.fs.begin_pack(&process.caller()));
        self.note(format!("pack by slot {slot}: {begun:?}"));
        match begun {
            Ok(Some((pack, next))) => {
                self.packings.packs.push(PendingPack {
                    slot,
                    pack,
                    next: Some(next),
                    copied: None,
                });
            }
            Ok(None) => {}
            Err(error) => assert!(super::is_exhaustion(error), "{error:?}"),
        }
    }

    /// Lets a process begin to give a file a block of its own, if it is packed.
    pub fn begin_unpacking(&mut self, index: usize, place: Place) {
        let Ok(inode) = self.inode(place) else { return };
        let process = &self.processes[index];
        let slot = process.slot.0;
        if self.is_all_in_flight(slot) {
            return;
        }
        let planned = process.fs.plan_unpacking(&process.caller(), inode);
        self.note(format!("unpacking of {inode:?} by slot {slot}: {planned:?}"));
        match planned {
            Ok(Some(plan)) => {
                self.packings.unpackings.push(PendingUnpacking { slot, inode, plan, copied: None });
            }
            Ok(None) => {}
            Err(error) => assert!(matches!(error, Error::NoSpace | Error::Busy), "{error:?}"),
        }
    }

    /// Lets a packing or unpacking take its next step, or gives it up.
    pub fn continue_packing(&mut self, which: usize, gives_up: bool) {
        match which.checked_sub(self.packings.packs.len()) {
            None => self.continue_pack(which, gives_up),
            Some(which) => self.continue_unpacking(which, gives_up),
        }
    }

    fn continue_pack(&mut self, which: usize, gives_up: bool) {
        let mut pending = self.packings.packs.remove(which);
        let process = &self.processes[self.process_of(pending.slot)];
        let (fs, caller) = (&process.fs, process.caller());
        let Some(file) = pending.next.take().filter(|_| !gives_up) else {
            fs.end_pack(&caller, &pending.pack, true).expect("it is open");
            return self.note(format!("{:?} ends", pending.pack));
        };
        match pending.copied.take() {
            None => {
                let target = fs.pack_target(&pending.pack, &file).expect("it takes it");
                let copied = process.copy_small(&file, target).expect("the heap does not fail");
                pending.copied = Some(copied);
                self.trace.push(format!("{file:?} copied to {:?}: {copied:x}", pending.pack));
                pending.next = Some(file);
            }
            Some(sum) => {
                let put = fs.put_in_pack(&caller, &mut pending.pack, (&file, sum));
                pending.next =
                    fs.next_for_pack(&pending.pack).expect("the namespace is consistent");
                self.packings.packed += u64::from(put.unwrap_or(false));
                self.note(format!("{file:?} put into {:?}: {put:?}", pending.pack));
            }
        }
        self.packings.packs.push(pending);
    }

    fn continue_unpacking(&mut self, which: usize, gives_up: bool) {
        let mut pending = self.packings.unpackings.remove(which);
        let process = &self.processes[self.process_of(pending.slot)];
        let (fs, caller, plan) = (&process.fs, process.caller(), &pending.plan);
        let done = match pending.copied {
            _ if gives_up => fs.abort_unpacking(&caller, plan).map(|()| false),
            None => {
                let copied = process.copy_unpacked(plan).expect("the heap does not fail");
                pending.copied = Some(copied);
                return self.packings.unpackings.push(pending);
            }
            Some(intact) => {
                let done = fs.commit_unpacking(&caller, plan);
                assert!(intact || done == Ok(false), "a packed file is damaged");
                done
            }
        };
        self.note(format!("unpacking of {:?} ends: {done:?}", pending.inode));
        done.expect("it was in flight");
    }
}
