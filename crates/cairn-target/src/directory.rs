//! Subsystems of a target, and which of them a host finds.

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
    /// Discovery subsystem, at which hosts find the others.
    discovery: Arc<Subsystem>,
    subsystems: RwLock<Vec<Arc<Subsystem>>>,
    /// Changes whenever the subsystems change.
    generation: AtomicU64,
    totals: Totals,
    /// Event loops that are told of changes.
    loops: Mutex<Vec<Weak<Mailbox>>>,
}

impl Directory {
    /// Directory without subsystems. `limits` hold for all connections.
    pub fn new(limits: Limits) -> Directory {
        let name = Nqn::new(DISCOVERY_NQN).expect("it is a name");
        let discovery = Arc::new(Subsystem::new(name, Vec::new(), limits));
        let (subsystems, generation) = (RwLock::default(), AtomicU64::new(1));
        let (totals, loops) = (Totals::default(), Mutex::default());
        Directory { limits, discovery, subsystems, generation, totals, loops }
    }

    /// Adds a subsystem. Errors: returns it if there is one with that name already.
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

    /// Removes the subsystem with that name and disconnects its hosts. Returns whether there was
    /// one.
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

    /// Checks the sizes of all files and devices, and tells hosts about changes.
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

    /// Tells this loop of changes from now on.
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

    /// Number that changes whenever the subsystems change.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Counters of all connections.
    pub(super) fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Limits for hosts.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The discovery subsystem.
    pub(super) fn discovery(&self) -> &Arc<Subsystem> {
        &self.discovery
    }

    /// Returns the subsystem with that name.
    pub fn find(&self, name: &Nqn) -> Option<Arc<Subsystem>> {
        if name == self.discovery.name() {
            return Some(Arc::clone(&self.discovery));
        }
        let subsystems = self.subsystems.read().unwrap_or_else(PoisonError::into_inner);
        subsystems.iter().find(|subsystem| subsystem.name() == name).cloned()
    }

    /// All subsystems except the one for discovery.
    pub fn all(&self) -> Vec<Arc<Subsystem>> {
        self.subsystems.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
