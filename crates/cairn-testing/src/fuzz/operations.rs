//! Sequences of operations by several processes, whose results must match the reference model.
//!
//! The input makes the choices that the random model test draws: which process does what, when a
//! write in flight continues, who forks and who dies.

use crate::play::{USERS, act};
use crate::random::Random;
use crate::simulation::Simulation;
use crate::step::Generator;
use crate::tier::{HeapTier, Tier, clear, small_geometry};
use crate::world::World;
use cairn_core::{Geometry, HeapMemory};
use std::cell::OnceCell;
use std::sync::Arc;

/// Most actions of one run.
const ACTIONS_MAX: usize = 120;
/// Number of actions between two full comparisons. There is another comparison at the end.
const VERIFY_EVERY: usize = 40;
/// Number of hugeblocks and inodes: few, so that they run out.
const SIZE: (u32, u32) = (64, 24);

thread_local! {
    /// Segment shared by all runs of the thread: making one takes longer than a run.
    static SEGMENT: OnceCell<Arc<HeapMemory>> = const { OnceCell::new() };
}

/// Makes an empty namespace on the tier that `tier` returns.
pub(super) fn world(tier: impl FnOnce(&Geometry) -> Arc<dyn Tier>) -> World {
    let geometry = small_geometry(SIZE.0, SIZE.1);
    let words = geometry.segment_bytes() as usize / 8;
    let memory =
        SEGMENT.with(|segment| segment.get_or_init(|| Arc::new(HeapMemory::new(words))).clone());
    // A run that panicked may have left the segment locked.
    memory.simulate_owner_death();
    clear(&memory);
    World::on(memory, tier(&geometry), &geometry)
}

/// Plays the actions that the input describes.
pub(super) fn run(input: &[u8]) {
    play(input, world(|geometry| Arc::new(HeapTier::new(geometry))));
}

/// Plays the actions of the input on a given namespace.
pub(super) fn play(input: &[u8], world: World) {
    let mut simulation = Simulation::of(world);
    for user in &USERS[1..3] {
        simulation.start(*user);
    }
    let mut random = Random::from_choices(input);
    let reach = *random.pick(&[9000, 40_000, 100_000]);
    let write_bytes = *random.pick(&[300, 5000, 20_000]);
    let mut generator = Generator { random, reach, write_bytes, opens_max: 5, holder: 0 };
    for action in 1..=ACTIONS_MAX {
        if generator.random.is_used_up() {
            break;
        }
        act(&mut simulation, &mut generator);
        if action % VERIFY_EVERY == 0 {
            simulation.verify();
        }
    }
    simulation.verify();
    simulation.finish();
}
