//! Which subsystems there are, and which of them a host sees.

use cairn_nvme::wire::Nqn;
use cairn_nvme::wire::fabrics::DISCOVERY_NQN;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use crate::counters::Totals;
use crate::mailbox::{Letter, Mailbox};
use crate::notices::Change;
use crate::subsystem::{Limits, Subsystem};

/// The subsystems of a target.
#[derive(Debug)]
pub struct Directory {
    limits: Limits,
    /// What hosts connect to that want to know the others.
    discovery: Arc<Subsystem>,
    subsystems: RwLock<Vec<Arc<Subsystem>>>,
    /// Changes whenever they do.
    generation: AtomicU64,
    totals: Totals,
    /// The loops whose hosts are told of changes.
    loops: Mutex<Vec<Weak<Mailbox>>>,
}

impl Directory {
    /// One without subsystems, on whose connections hosts may ask for so much.
    pub fn new(limits: Limits) -> Directory {
        let name = Nqn::new(DISCOVERY_NQN).expect("it is a name");
        let discovery = Arc::new(Subsystem::new(name, Vec::new(), limits));
        let (subsystems, generation) = (RwLock::default(), AtomicU64::new(1));
        let (totals, loops) = (Totals::default(), Mutex::default());
        Directory { limits, discovery, subsystems, generation, totals, loops }
    }

    /// Adds one. Errors: there is another one of that name, which is left as it is.
    pub fn add(&self, subsystem: Arc<Subsystem>) -> Result<(), Arc<Subsystem>> {
        let mut subsystems = self.subsystems.write().unwrap_or_else(PoisonError::into_inner);
        let is_taken = subsystem.name() == self.discovery.name()
            || subsystems.iter().any(|other| other.name() == subsystem.name());
        if is_taken {
            return Err(subsystem);
        }
        subsystems.push(subsystem);
        drop(subsystems);
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.announce(&Change::Subsystems);
        Ok(())
    }

    /// Removes the one of that name, and has everybody who uses it leave; whether there was one.
    pub fn remove(&self, name: &Nqn) -> bool {
        let mut subsystems = self.subsystems.write().unwrap_or_else(PoisonError::into_inner);
        let place = subsystems.iter().position(|subsystem| subsystem.name() == name);
        let removed = place.map(|place| subsystems.remove(place));
        drop(subsystems);
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.announce(&Change::Subsystems);
        removed.is_some_and(|subsystem| {
            subsystem.close();
            true
        })
    }

    /// Looks how large files and devices are by now, and tells their hosts where that has changed.
    pub fn look_again(&self) {
        for subsystem in self.all() {
            let changed: Vec<u32> = subsystem
                .namespaces()
                .filter_map(|(number, namespace)| namespace.look_again().then_some(number))
                .collect();
            if !changed.is_empty() {
                self.announce(&Change::Namespaces(subsystem.name().to_string(), changed));
            }
        }
    }

    /// Has this loop told of changes from now on.
    pub(super) fn inform(&self, mailbox: &Arc<Mailbox>) {
        let mut loops = self.loops.lock().unwrap_or_else(PoisonError::into_inner);
        loops.push(Arc::downgrade(mailbox));
    }

    fn announce(&self, change: &Change) {
        let mut loops = self.loops.lock().unwrap_or_else(PoisonError::into_inner);
        loops.retain(|mailbox| mailbox.strong_count() > 0);
        for mailbox in loops.iter().filter_map(Weak::upgrade) {
            mailbox.post(Letter::Change(change.clone()));
        }
    }

    /// A number that changes whenever the subsystems do.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// What was counted of all connections.
    pub(super) fn totals(&self) -> &Totals {
        &self.totals
    }

    /// What hosts may ask for.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The one that hosts ask for others.
    pub(super) fn discovery(&self) -> &Arc<Subsystem> {
        &self.discovery
    }

    /// The one of that name.
    pub fn find(&self, name: &Nqn) -> Option<Arc<Subsystem>> {
        if name == self.discovery.name() {
            return Some(Arc::clone(&self.discovery));
        }
        let subsystems = self.subsystems.read().unwrap_or_else(PoisonError::into_inner);
        subsystems.iter().find(|subsystem| subsystem.name() == name).cloned()
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Subsystem>> {
        self.subsystems.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
