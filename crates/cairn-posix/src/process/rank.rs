//! MPI rank of this process and its effect on the store. The rank is announced in the store when
//! MPI is initialised, and its files are flushed when MPI is finalised.
//!
//! Never calls MPI, and needs no agreement between ranks. A rank's place in the store is its
//! process slot (it writes to blocks of its own, see `pool.rs` and `streams.rs` of the core) or, in
//! scope `rank`, a namespace with its share of the tiers.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;

use cairn_device::memory::ranks::{self, Place, RankRecord};
use cairn_platform::process;

use crate::error::{Errno, Result};
use crate::kernel::configuration;
use crate::kernel::launcher::{Rank, process_name};
use crate::mount;

/// Place of a process among those that one launcher has started on this node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seat {
    /// Launcher and name of the launch; unique.
    pub launch: String,
    /// Number of the process within this node.
    pub local_rank: u32,
    /// Number of processes on this node.
    pub local_size: u32,
    /// Whether the launch has processes on other nodes, too.
    pub has_other_nodes: bool,
    /// Number of this node within the launch, if the launcher states it.
    pub node: Option<u32>,
}

/// Returns the place of this process as its environment states it; none without a launcher, or if
/// the launcher does not state all of it.
pub fn seat() -> Option<Seat> {
    let rank = Rank::find(configuration::environment)?;
    let (local_rank, local_size) = (rank.local_rank?, rank.local_size?);
    Some(Seat {
        launch: rank.launch(configuration::environment),
        local_rank,
        local_size,
        has_other_nodes: rank.size.is_some_and(|size| size > local_size),
        node: rank.node(configuration::environment),
    })
}

/// A rank that was announced.
struct Announced {
    place: Place,
    /// Process generation of the rank; a forked child is not the rank.
    generation: u64,
}

static ANNOUNCED: OnceLock<Announced> = OnceLock::new();
static FINALISED: AtomicBool = AtomicBool::new(false);

/// Handles the initialisation of MPI: attaches the store, which gives this rank its place there,
/// and announces the rank. Further calls change nothing. Errors: those of attaching; the list of
/// ranks cannot be written.
pub fn initialised() -> Result<()> {
    if ANNOUNCED.get().is_some() {
        return Ok(());
    }
    let mount = mount::current()?;
    let process = process::identity()?;
    let rank = Rank::find(configuration::environment);
    let launch = match rank {
        Some(rank) => rank.launch(configuration::environment),
        // A process without a launcher is a launch of its own.
        None => format!("alone:{}", process_name(process.pid)),
    };
    let number = rank.map_or(0, |rank| rank.rank);
    let alone = if rank.is_none() { 1 } else { 0 };
    let record = RankRecord {
        rank: number,
        size: rank.and_then(|rank| rank.size).unwrap_or(alone),
        local_rank: rank.and_then(|rank| rank.local_rank).unwrap_or(number),
        local_size: rank.and_then(|rank| rank.local_size).unwrap_or(alone),
        process,
        slot: mount.slot(),
        launch,
        finalised: None,
    };
    let place = ranks::announce(mount.store_directory(), &record)?;
    // If another thread was faster, it announced the same.
    let _ = ANNOUNCED.set(Announced { place, generation: process::generation() });
    Ok(())
}

/// Whether this process is a rank of MPI that has not finalised. If it ends now, it was
/// interrupted: its MPI library exits when the launcher dies, for instance.
pub(crate) fn is_unfinished() -> bool {
    let is_rank = |rank: &Announced| rank.generation == process::generation();
    ANNOUNCED.get().is_some_and(is_rank) && !FINALISED.load(Ordering::Relaxed)
}

/// Handles the finalisation of MPI: flushes what this process has written and stores the result in
/// its record. Further calls do nothing. Errors: those of `fsync` on any of its files; the list of
/// ranks cannot be written.
pub fn finalised() -> Result<()> {
    let Some(announced) = ANNOUNCED.get() else { return crate::process::flush() };
    let is_rank = announced.generation == process::generation();
    if !is_rank || FINALISED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    // A handler of `exit` may finalise MPI.
    mount::set_interrupted(false);
    let flushed = crate::process::flush();
    let told = flushed.map_err(|Errno(number)| cairn_platform::sys::Errno(number));
    ranks::finalise(mount::current()?.store_directory(), announced.place, told)?;
    flushed
}
