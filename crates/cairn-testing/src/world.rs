//! A small namespace on the heap, and simulated processes that attach to it.

use crate::driver::{Clock, Process};
use crate::tier::{CHECKSUM, HeapTier, Tier, small_geometry};
use cairn_core::{
    Credentials, Geometry, HeapMemory, Microfs, NumaPolicy, OpenOptions, Placement,
    ProcessIdentity, TIERS_MAX,
};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Credentials that pass every check of permission bits.
pub const SUPERUSER: Credentials = Credentials { uid: 0, gid: 0 };

/// Opens or creates a file for reading and writing.
pub const READ_WRITE: OpenOptions = OpenOptions {
    read: true,
    write: true,
    append: false,
    create: true,
    exclusive: false,
    truncate: false,
    directory: false,
    no_follow: false,
    path_only: false,
    ..OpenOptions::NONE
};

thread_local! {
    static NODE: Cell<u32> = const { Cell::new(0) };
}

/// Moves the calling thread to memory node `node`, as seen by the namespaces of a `World`.
pub fn move_to_node(node: u32) {
    NODE.set(node);
}

/// A namespace of 4 KiB hugeblocks on the heap.
pub struct World {
    /// Words of the meta segment.
    pub memory: Arc<HeapMemory>,
    /// Bytes of all tiers.
    pub tier: Arc<dyn Tier>,
    /// Clock of the simulated node.
    pub clock: Clock,
    next_pid: AtomicU32,
}

impl World {
    /// Makes a namespace of `blocks` hugeblocks and at most `inodes` inodes. The root directory
    /// belongs to the superuser.
    pub fn new(blocks: u32, inodes: u32) -> World {
        World::tiered([blocks, 0, 0, 0], inodes)
    }

    /// Makes a namespace with several tiers; `tier_blocks` is the size of each in hugeblocks.
    pub fn tiered(tier_blocks: [u32; TIERS_MAX], inodes: u32) -> World {
        let geometry = Geometry { tier_blocks, ..small_geometry(tier_blocks[0], inodes) };
        let memory = Arc::new(HeapMemory::new(geometry.segment_bytes() as usize / 8));
        World::on(memory, Arc::new(HeapTier::new(&geometry)), &geometry)
    }

    /// Makes a namespace whose tier `tier` is divided among the memory nodes set in the bit mask
    /// `nodes`.
    pub fn divided(tier: u8, tier_blocks: [u32; TIERS_MAX], nodes: u64, inodes: u32) -> World {
        let placement = Placement { policy: NumaPolicy::Local, nodes, tier };
        let geometry =
            Geometry { placement, tier_blocks, ..small_geometry(tier_blocks[0], inodes) };
        let memory = Arc::new(HeapMemory::new(geometry.segment_bytes() as usize / 8));
        World::on(memory, Arc::new(HeapTier::new(&geometry)), &geometry)
    }

    /// Formats a namespace on a given tier, in a zeroed segment `memory` of the length that
    /// `geometry` asks for.
    pub fn on(memory: Arc<HeapMemory>, tier: Arc<dyn Tier>, geometry: &Geometry) -> World {
        let clock = Clock::default();
        let formatted = Microfs::format(&memory, geometry, CHECKSUM, SUPERUSER, clock.tick());
        formatted.expect("the geometry is valid");
        World { memory, tier, clock, next_pid: AtomicU32::new(1) }
    }

    /// Opens another view of the namespace, as a separate process would have.
    pub fn microfs(&self) -> Microfs {
        let fs = Microfs::open(Box::new(self.memory.clone()), CHECKSUM);
        fs.expect("the header is intact").with_nodes(|| NODE.get())
    }

    /// Returns the identity of a process that has not existed before.
    pub fn identity(&self) -> ProcessIdentity {
        let pid = self.next_pid.fetch_add(1, Ordering::Relaxed);
        ProcessIdentity { pid, pid_namespace: 1, start_time: 7 }
    }

    /// Attaches a new process.
    pub fn process(&self, credentials: Credentials) -> Process {
        let (tier, clock) = (self.tier.clone(), self.clock.clone());
        Process::attach(self.microfs(), self.identity(), credentials, tier, clock)
            .expect("there are free slots")
    }
}
