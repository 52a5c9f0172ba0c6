//! Random operations by several processes, on one or several tiers, give the results of the
//! reference model, whatever happens between the stages of a write: overlapping writes, truncation,
//! unlink, close, fork, death.
//!
//! `CAIRN_TEST_SEEDS=n` runs n seeds, `CAIRN_TEST_SEED=s` repeats one.

use cairn_core::{Error, ROOT};
use cairn_testing::play::{
    USERS, act, act_on_absent, act_on_images, act_on_names, act_on_packs, act_on_promotions,
    act_on_small_files,
};
use cairn_testing::random::{Random, for_each_seed};
use cairn_testing::simulation::Simulation;
use cairn_testing::step::Generator;
use cairn_testing::world::{SUPERUSER, World, move_to_node};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

const ACTIONS: usize = 400;
const VERIFY_EVERY: usize = 12;
fn run(seed: u64, names_only: bool) {
    let mut random = Random::new(seed);
    let blocks = *random.pick(&[40, 64, 200, 512]);
    let inodes = *random.pick(&[16, 24, 64]);
    let tiers = *random.pick(&[[1, 0, 0, 0], [4, 4, 0, 0], [2, 2, 4, 0]]);
    let parts: u32 = tiers.iter().sum();
    let world = match tiers {
        // Divides the only tier or the second one among three memory nodes, if possible.
        [1, ..] | [4, ..] if random.one_in(2) => {
            let tier = u8::from(parts > 1);
            World::divided(tier, tiers.map(|part| blocks / parts * part), 0b1101, inodes)
        }
        _ => World::tiered(tiers.map(|part| blocks / parts * part), inodes),
    };
    let mut simulation = Simulation::of(world);
    for user in &USERS[..3] {
        simulation.start(*user);
    }
    let reach = *random.pick(&[9000, 40_000, 100_000]);
    let write_bytes = *random.pick(&[300, 5000, 20_000]);
    let mut generator = Generator { random, reach, write_bytes, opens_max: 5, holder: 0 };
    for action in 0..ACTIONS {
        move_to_node(generator.random.below(5) as u32);
        if names_only {
            act_on_names(&mut simulation, &mut generator);
        } else {
            act(&mut simulation, &mut generator);
        }
        if action % VERIFY_EVERY == 0 {
            simulation.verify();
        }
    }
    simulation.finish();
}

/// Promotes blocks of files during other operations. Most writes are kept off the first tier.
/// Returns the number of promotions.
fn run_with_promotions(seed: u64) -> u64 {
    const FAST: u32 = 256;
    let mut random = Random::new(seed);
    let world = World::tiered([FAST, *random.pick(&[0, 2]), 2000, 0], 64);
    let mut simulation = Simulation::of(world);
    simulation.bar(FAST);
    for user in &USERS[..3] {
        simulation.start(*user);
    }
    let reach = *random.pick(&[9000, 40_000, 100_000]);
    let write_bytes = *random.pick(&[300, 5000, 20_000]);
    let mut generator = Generator { random, reach, write_bytes, opens_max: 5, holder: 0 };
    for action in 0..ACTIONS {
        act(&mut simulation, &mut generator);
        simulation.bar(0);
        for _ in 0..generator.random.below(10) {
            act_on_promotions(&mut simulation, &mut generator);
        }
        simulation.bar(FAST);
        if action % VERIFY_EVERY == 0 {
            simulation.verify();
        }
    }
    let promoted = simulation.promoted();
    simulation.finish();
    promoted
}

/// Makes cuts at random moments, and compares their images with the state at the cut during other
/// operations.
fn run_with_images(seed: u64) {
    let mut random = Random::new(seed);
    let blocks = *random.pick(&[64, 200, 512, 2000]);
    let tiers = *random.pick(&[[1, 0, 0, 0], [1, 0, 0, 0], [4, 4, 0, 0]]);
    let parts: u32 = tiers.iter().sum();
    let inodes = *random.pick(&[24, 64]);
    let world = World::tiered(tiers.map(|part| blocks / parts * part), inodes);
    let mut simulation = Simulation::of(world);
    for user in &USERS[..3] {
        simulation.start(*user);
    }
    let reach = *random.pick(&[9000, 40_000, 100_000]);
    let write_bytes = *random.pick(&[300, 5000, 20_000]);
    let [promotes, brings, packs] = [(); 3].map(|()| random.one_in(4));
    let mut generator = Generator { random, reach, write_bytes, opens_max: 5, holder: 0 };
    for action in 0..ACTIONS {
        act(&mut simulation, &mut generator);
        act_on_images(&mut simulation, &mut generator);
        if promotes {
            act_on_promotions(&mut simulation, &mut generator);
        }
        if brings {
            act_on_absent(&mut simulation, &mut generator);
        }
        for _ in 0..if packs { generator.random.below(6) } else { 0 } {
            act_on_small_files(&mut simulation, &mut generator);
            act_on_packs(&mut simulation, &mut generator);
            act_on_packs(&mut simulation, &mut generator);
        }
        if action % (4 * VERIFY_EVERY) == 0 {
            simulation.verify();
        }
    }
    simulation.verify_cut();
    simulation.finish();
}

/// Makes files absent and stages them in during other operations. Returns the number staged in, and
/// how often a drained file gave up its data.
fn run_with_absent(seed: u64) -> [u64; 2] {
    let mut random = Random::new(seed);
    let blocks = *random.pick(&[40, 200, 512]);
    let mut simulation = Simulation::new(blocks, *random.pick(&[24, 64]));
    for user in &USERS[..3] {
        simulation.start(*user);
    }
    let reach = *random.pick(&[9000, 40_000]);
    let write_bytes = *random.pick(&[300, 5000, 20_000]);
    let mut generator = Generator { random, reach, write_bytes, opens_max: 5, holder: 0 };
    for action in 0..ACTIONS {
        act(&mut simulation, &mut generator);
        for _ in 0..generator.random.below(8) {
            act_on_absent(&mut simulation, &mut generator);
        }
        if action % VERIFY_EVERY == 0 {
            simulation.verify();
        }
    }
    let counts = [simulation.brought(), simulation.released()];
    simulation.finish();
    counts
}

/// Packs and unpacks small files during other operations. Returns the number packed.
fn run_with_packs(seed: u64) -> u64 {
    let mut random = Random::new(seed);
    let blocks = *random.pick(&[40, 200, 512]);
    let tiers = *random.pick(&[[1, 0, 0, 0], [1, 0, 0, 0], [2, 2, 4, 0]]);
    let parts: u32 = tiers.iter().sum();
    let world = World::tiered(tiers.map(|part| blocks / parts * part), *random.pick(&[24, 64]));
    let mut simulation = Simulation::of(world);
    for user in &USERS[..3] {
        simulation.start(*user);
    }
    let reach = *random.pick(&[900, 3000, 9000]);
    let write_bytes = *random.pick(&[100, 1000, 5000]);
    let mut generator = Generator { random, reach, write_bytes, opens_max: 5, holder: 0 };
    for action in 0..ACTIONS {
        act(&mut simulation, &mut generator);
        for _ in 0..generator.random.below(4) {
            act_on_small_files(&mut simulation, &mut generator);
        }
        for _ in 0..generator.random.below(10) {
            act_on_packs(&mut simulation, &mut generator);
        }
        if action % VERIFY_EVERY == 0 {
            simulation.verify();
        }
    }
    let packed = simulation.packed();
    simulation.finish();
    packed
}

/// Lists a directory a few entries at a time, while other names come and go.
fn list_while_names_change(seed: u64) {
    const STAYING: usize = 150;
    const CHANGES_PER_STEP: u64 = 6;
    let world = World::new(64, 1000);
    let process = world.process(SUPERUSER);
    let (fs, caller) = (&process.fs, process.caller());
    let mut random = Random::new(seed);
    let staying: BTreeSet<Vec<u8>> = (0..STAYING)
        .map(|index| format!("{index}{}", "s".repeat(random.below(200) as usize)).into_bytes())
        .collect();
    for name in &staying {
        fs.make_directory(&caller, ROOT, name, 0o755).expect("the name is new");
    }
    let mut seen = Vec::new();
    let mut position = 0;
    loop {
        let wanted = 1 + random.below(40);
        let mut found = 0;
        let listed = fs.list(&caller, ROOT, position, &mut |entry| {
            assert!(entry.cookie > position, "positions ascend");
            position = entry.cookie;
            seen.push(entry.name.to_vec());
            found += 1;
            found < wanted
        });
        listed.expect("root may list every directory");
        if found == 0 {
            break;
        }
        for _ in 0..random.below(CHANGES_PER_STEP) {
            let name = format!("coming and going {}", random.below(100)).into_bytes();
            if fs.make_directory(&caller, ROOT, &name, 0o755) == Err(Error::Exists) {
                fs.remove_directory(&caller, ROOT, &name).expect("it exists and is empty");
            }
        }
    }
    let listed = seen.len();
    seen.retain(|name| staying.contains(name));
    assert_eq!(seen.len(), STAYING, "of {listed} listed");
    assert!(seen.into_iter().collect::<BTreeSet<_>>() == staying);
}

#[test]
fn names_that_stay_are_listed_once_while_others_come_and_go() {
    for_each_seed(20, list_while_names_change);
}

#[test]
fn operations_one_after_the_other_give_what_the_model_gives() {
    for_each_seed(20, |seed| run(seed, true));
}

#[test]
fn promotions_change_nothing_that_can_be_seen() {
    let promoted = AtomicU64::new(0);
    for_each_seed(30, |seed| {
        promoted.fetch_add(run_with_promotions(seed), Ordering::Relaxed);
    });
    let promoted = promoted.into_inner();
    println!("{promoted} blocks were promoted");
    assert!(promoted > 0);
}

#[test]
fn packing_changes_nothing_that_can_be_seen() {
    let packed = AtomicU64::new(0);
    for_each_seed(20, |seed| {
        packed.fetch_add(run_with_packs(seed), Ordering::Relaxed);
    });
    let packed = packed.into_inner();
    println!("{packed} files were packed");
    assert!(packed > 0);
}

#[test]
fn image_stays_what_the_namespace_was_at_the_cut_while_programs_go_on() {
    for_each_seed(30, run_with_images);
}

#[test]
fn absent_files_are_what_they_will_be_or_what_programs_made_of_them() {
    let (brought, released) = (AtomicU64::new(0), AtomicU64::new(0));
    for_each_seed(12, |seed| {
        let counts = run_with_absent(seed);
        brought.fetch_add(counts[0], Ordering::Relaxed);
        released.fetch_add(counts[1], Ordering::Relaxed);
    });
    let (brought, released) = (brought.into_inner(), released.into_inner());
    println!("{brought} files were brought, {released} gave up their data");
    assert!(brought > 0 && released > 0);
}

#[test]
fn operations_that_overlap_give_what_the_model_gives() {
    for_each_seed(30, |seed| run(seed, false));
}
