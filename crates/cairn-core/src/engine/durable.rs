//! The media of a durable namespace, as one process uses them.
//!
//! Does not write to them; `recovery/flush.rs` does.

use crate::format::layout::Durability;
use crate::format::media::Media;
use crate::format::superblock::Superblock;
use crate::format::types::ProcessIdentity;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The media of a durable namespace, as one process uses them.
pub(crate) struct Durable {
    pub media: Arc<dyn Media>,
    /// Media of the tiers behind the first one that survive the loss of memory. Only flushed here.
    pub(crate) further: Vec<Arc<dyn Media>>,
    pub superblock: Superblock,
    /// Every operation is durable when it returns (NVMe-CR), not only those before a `sync`.
    pub each_operation: bool,
    /// This process, or the one it was forked from, has logged something.
    pub logged: AtomicBool,
    /// Identity of this process, for its duties. Not under a lock: a forked child would inherit it
    /// taken.
    pub(crate) identity: [AtomicU64; 3],
}

impl Durable {
    pub(crate) fn new(
        media: Arc<dyn Media>,
        further: Vec<Arc<dyn Media>>,
        superblock: Superblock,
    ) -> Durable {
        let each_operation = superblock.geometry.durability == Some(Durability::Operation);
        Durable {
            media,
            further,
            superblock,
            each_operation,
            logged: AtomicBool::new(false),
            identity: [AtomicU64::new(u64::from(u32::MAX)), AtomicU64::new(0), AtomicU64::new(0)],
        }
    }

    pub(crate) fn identity(&self) -> ProcessIdentity {
        let [pid, pid_namespace, start_time] =
            [0, 1, 2].map(|word| self.identity[word].load(Ordering::Relaxed));
        ProcessIdentity { pid: pid as u32, pid_namespace, start_time }
    }

    pub(crate) fn set_identity(&self, identity: ProcessIdentity) {
        let words = [u64::from(identity.pid), identity.pid_namespace, identity.start_time];
        for (own, word) in self.identity.iter().zip(words) {
            own.store(word, Ordering::Relaxed);
        }
    }
}
