//! Plays random actions on a simulation: steps of processes, the stages of a write, forks, deaths.
//!
//! The random tests draw the actions from a seed, the fuzzer from its input.

use crate::model::Kind;
use crate::simulation::Simulation;
use crate::step::{Generator, Place, Step};
use crate::world::READ_WRITE;
use cairn_core::{Credentials, OpenOptions, RenameMode};

/// Most processes alive at once.
const PROCESSES_MAX: usize = 5;
/// Credentials of the processes. The superuser comes up more often; the two users share a group.
pub const USERS: [Credentials; 4] = [
    Credentials { uid: 0, gid: 0 },
    Credentials { uid: 0, gid: 0 },
    Credentials { uid: 1000, gid: 100 },
    Credentials { uid: 1001, gid: 100 },
];

/// Takes one random action of a random process.
pub fn act(simulation: &mut Simulation, generator: &mut Generator) {
    let index = generator.random.below(simulation.processes.len() as u64) as usize;
    generator.holder = simulation.processes[index].slot.0;
    let is_writable_file = |kind: &Kind, write: bool| matches!(kind, Kind::File(_)) && write;
    let files = simulation
        .reference
        .places(generator.holder, |node, open| is_writable_file(&node.kind, open.options.write));
    match generator.random.below(100) {
        0..14 if !files.is_empty() => {
            let place = *generator.random.pick(&files);
            let at = (!generator.random.one_in(3)).then(|| generator.offset());
            let length = generator.length() as usize;
            let bytes = generator.random.bytes(length);
            let transfers = generator.random.one_in(2);
            simulation.begin_write(index, place, at, &bytes, transfers);
        }
        14..32 if simulation.writes_in_flight() > 0 => {
            let which = generator.random.below(simulation.writes_in_flight() as u64) as usize;
            if generator.random.one_in(5) {
                simulation.abort_write(which);
            } else {
                simulation.continue_write(which);
            }
        }
        32..35 if !files.is_empty() => {
            let place = *generator.random.pick(&files);
            simulation.begin_settle(index, place);
        }
        35..38 if simulation.settles_in_flight() > 0 => {
            let which = generator.random.below(simulation.settles_in_flight() as u64) as usize;
            let gives_up = generator.random.one_in(8);
            simulation.continue_settle(which, gives_up);
        }
        38..41 if !files.is_empty() => {
            let place = *generator.random.pick(&files);
            simulation.seal(index, place);
        }
        41 => simulation.reclaim(index),
        42 if simulation.processes.len() < PROCESSES_MAX => {
            let born = !generator.random.one_in(4);
            simulation.fork(index, born);
        }
        43 if simulation.processes.len() < PROCESSES_MAX => {
            let user = *generator.random.pick(&USERS);
            simulation.start(user);
        }
        44 | 45 if simulation.processes.len() > 1 => {
            let clean = generator.random.one_in(3);
            simulation.end(index, clean);
        }
        46 => simulation.world.memory.simulate_owner_death(),
        47..51 if !files.is_empty() => {
            let place = *generator.random.pick(&files);
            go_on_writing(simulation, generator, index, place);
        }
        _ => {
            let step = generator.step(&mut simulation.reference);
            simulation.take(index, &step);
        }
    }
}

/// Begins a cut, compares the image with the state at the cut, or ends the image.
pub fn act_on_images(simulation: &mut Simulation, generator: &mut Generator) {
    match generator.random.below(60) {
        0..3 if !simulation.has_cut() => simulation.begin_cut(),
        3..5 => simulation.verify_cut(),
        5 => simulation.end_cut(),
        _ => {}
    }
}

/// Begins to promote blocks of a file that a random process has open, or continues or gives up a
/// promotion in flight.
pub fn act_on_promotions(simulation: &mut Simulation, generator: &mut Generator) {
    let in_flight = simulation.promotions_in_flight() as u64;
    if in_flight > 0 && !generator.random.one_in(3) {
        let which = generator.random.below(in_flight) as usize;
        return simulation.continue_promotion(which, generator.random.one_in(8));
    }
    let index = generator.random.below(simulation.processes.len() as u64) as usize;
    let holder = simulation.processes[index].slot.0;
    let is_file = |kind: &Kind| matches!(kind, Kind::File(_));
    let files = simulation.reference.places(holder, |node, _| is_file(&node.kind));
    if !files.is_empty() {
        let place = *generator.random.pick(&files);
        simulation.begin_promotion(index, place, generator.random.below(4) as u32);
    }
}

/// Takes one action of a random process on one of a few small files. The process mostly closes it
/// again.
pub fn act_on_small_files(simulation: &mut Simulation, generator: &mut Generator) {
    const NAMES: u64 = 20;
    let index = generator.random.below(simulation.processes.len() as u64) as usize;
    let random = &mut generator.random;
    let mut name = || (None, format!("small.{}", random.below(NAMES)).into_bytes());
    let [(base, path), other] = [name(), name()];
    let offset = random.below(1500);
    let length = 1 + random.below(1500) as usize;
    let bytes = random.bytes(length);
    let action = random.below(20);
    match action {
        0 => return simulation.take(index, &Step::Unlink { base, path }),
        1 => {
            let mode = RenameMode::Replace;
            return simulation.take(index, &Step::Rename { from: (base, path), to: other, mode });
        }
        2 => {
            let old = (base, path);
            return simulation.take(index, &Step::Link { old, new: other, follow: false });
        }
        _ => {}
    }
    let place = simulation.reference.free_place();
    let options = match action {
        3..6 => OpenOptions { read: true, ..OpenOptions::default() },
        6..12 => READ_WRITE,
        _ => OpenOptions { truncate: true, ..READ_WRITE },
    };
    simulation.take(index, &Step::Open { base, path, options, mode: 0o666 });
    if simulation.inode(place).is_err() {
        return;
    }
    match action {
        // The file stays open.
        3 => return,
        4..6 => simulation.take(index, &Step::Read { open: place, at: Some(offset), length: 5000 }),
        6..8 => simulation.take(index, &Step::Truncate { open: place, size: offset }),
        8..12 => simulation.take(index, &Step::Write { open: place, at: Some(offset), bytes }),
        _ => simulation.take(index, &Step::Write { open: place, at: None, bytes }),
    }
    simulation.seal(index, place);
    simulation.take(index, &Step::Close { open: place });
}

/// Takes one stage of packing small files, or of giving one a block of its own.
pub fn act_on_packs(simulation: &mut Simulation, generator: &mut Generator) {
    let in_flight = simulation.packings_in_flight() as u64;
    if in_flight > 0 && !generator.random.one_in(4) {
        let which = generator.random.below(in_flight) as usize;
        return simulation.continue_packing(which, generator.random.one_in(12));
    }
    let index = generator.random.below(simulation.processes.len() as u64) as usize;
    let holder = simulation.processes[index].slot.0;
    let files = simulation.reference.places(holder, |node, _| matches!(node.kind, Kind::File(_)));
    if generator.random.one_in(2) {
        simulation.begin_pack(index);
    } else if !files.is_empty() {
        let place = *generator.random.pick(&files);
        simulation.begin_unpacking(index, place);
    }
}

/// Makes a file absent, new or drained, truncates an absent file, stages one in by one more step,
/// or ends the process that stages it in.
pub fn act_on_absent(simulation: &mut Simulation, generator: &mut Generator) {
    let index = generator.random.below(simulation.processes.len() as u64) as usize;
    generator.holder = simulation.processes[index].slot.0;
    let absent = simulation.absent();
    let in_flight = simulation.absences_in_flight() as u64;
    match generator.random.below(46) {
        0..8 => make_absent(simulation, generator, index),
        40.. => release_data(simulation, generator, index),
        8..10 if !absent.is_empty() => {
            let node = *generator.random.pick(&absent);
            let size = if generator.random.one_in(2) { 0 } else { generator.offset() };
            simulation.truncate_absent(index, node, size);
        }
        10..16 if !absent.is_empty() => {
            let node = *generator.random.pick(&absent);
            simulation.begin_to_bring(node);
        }
        16 if in_flight > 0 => simulation.end_bringer(generator.random.one_in(3)),
        17..40 if in_flight > 0 => {
            let which = generator.random.below(in_flight) as usize;
            let gives_up = generator.random.one_in(30);
            simulation.go_on_bringing(which, generator.length() as usize, gives_up);
        }
        _ => {}
    }
}

fn release_data(simulation: &mut Simulation, generator: &mut Generator, index: usize) {
    let is_file = |kind: &Kind| matches!(kind, Kind::File(_));
    let files = simulation.reference.places(generator.holder, |node, _| is_file(&node.kind));
    if !files.is_empty() {
        let place = *generator.random.pick(&files);
        simulation.release_data(index, place);
    }
}

/// Makes a file absent: mostly a new or an emptied one, sometimes any open one.
fn make_absent(simulation: &mut Simulation, generator: &mut Generator, index: usize) {
    let place = if generator.random.one_in(8) {
        let is_file = |kind: &Kind| matches!(kind, Kind::File(_));
        let files = simulation.reference.places(generator.holder, |node, _| is_file(&node.kind));
        if files.is_empty() {
            return;
        }
        *generator.random.pick(&files)
    } else {
        let options =
            OpenOptions { write: true, create: true, truncate: true, ..OpenOptions::NONE };
        let place = simulation.reference.free_place();
        let path = generator.path();
        simulation.take(index, &Step::Open { base: None, path, options, mode: 0o666 });
        if simulation.reference.open(place).is_err() {
            return;
        }
        place
    };
    let length = generator.length() as usize;
    let bytes = generator.random.bytes(length);
    simulation.make_absent(index, place, &bytes);
}

/// Writes several times at the cursor, which earns the process a lease. The last write stays in
/// flight.
fn go_on_writing(
    simulation: &mut Simulation,
    generator: &mut Generator,
    index: usize,
    place: Place,
) {
    const BYTES_MAX: u64 = 400;
    let writes = generator.random.below(6);
    let mut bytes = || {
        let length = 1 + generator.random.below(BYTES_MAX);
        generator.random.bytes(length as usize)
    };
    for _ in 0..writes {
        simulation.take(index, &Step::Write { open: place, at: None, bytes: bytes() });
    }
    let last = bytes();
    let transfers = generator.random.one_in(2);
    simulation.begin_write(index, place, None, &last, transfers);
}

/// Takes one random step of a random process. Nothing stays in flight.
pub fn act_on_names(simulation: &mut Simulation, generator: &mut Generator) {
    let index = generator.random.below(simulation.processes.len() as u64) as usize;
    generator.holder = simulation.processes[index].slot.0;
    let step = generator.step(&mut simulation.reference);
    simulation.take(index, &step);
}
