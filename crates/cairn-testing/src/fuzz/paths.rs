//! Trees of directories and symbolic links, and path resolution through them, compared with the
//! reference model.
//!
//! The input builds names and link targets from parts that matter to path resolution: slashes,
//! dots, the mount prefix, existing names, names at the limit of length, any byte. A path that
//! leaves the namespace must say where it leads.
//!
//! Cairn bounds the length of a path with its links expanded; Linux and the model bound only the
//! number of links. So either the links of a run are too short for that to matter, or the run is
//! not compared.

use super::operations;
use crate::path::MOUNT;
use crate::random::Random;
use crate::simulation::Simulation;
use crate::step::{Base, Step};
use crate::tier::HeapTier;
use crate::world::{SUPERUSER, World};
use cairn_core::{Error, NAME_BYTES_MAX, OpenOptions, PATH_BYTES_MAX, ROOT, RenameMode};
use std::sync::Arc;

/// Most steps of one run.
const STEPS_MAX: usize = 60;
/// Most parts of a path, unless it is repeated.
const PARTS_MAX: u64 = 12;

/// Longest link of a compared run, bytes: forty of them fit behind the longest path.
const SHORT_LINK_BYTES: usize = 20;
/// Longest path of a compared run, bytes, unless the path is too long even without any link.
const SHORT_PATH_BYTES: usize = 3200;
const _: () = assert!(SHORT_PATH_BYTES + 40 * SHORT_LINK_BYTES < PATH_BYTES_MAX);

/// Builds and resolves what the input describes.
pub(super) fn run(input: &[u8]) {
    let world = operations::world(|geometry| Arc::new(HeapTier::new(geometry)));
    let mut choices = Random::from_choices(input);
    match choices.one_in(4) {
        true => walk_anything(&world, &mut choices),
        false => compare(world, &mut choices),
    }
}

fn compare(world: World, choices: &mut Random) {
    let mut simulation = Simulation::of(world);
    simulation.start(SUPERUSER);
    for _ in 0..STEPS_MAX {
        if choices.is_used_up() {
            break;
        }
        take_step(&mut simulation, choices);
    }
    simulation.verify();
    simulation.finish();
}

/// Resolves any path. Any result will do, as long as the namespace stays consistent.
fn walk_anything(world: &World, choices: &mut Random) {
    let process = world.process(SUPERUSER);
    let (fs, caller) = (&process.fs, process.caller());
    for _ in 0..STEPS_MAX {
        if choices.is_used_up() {
            break;
        }
        let (kind, path, follow) = (choices.below(5), path(choices), choices.one_in(2));
        let _ = match kind {
            0 => fs.make_directory(&caller, ROOT, &path, 0o755).map(drop),
            1 => fs.symlink(&caller, &self::path(choices), ROOT, &path).map(drop),
            2 => fs.read_link(&caller, ROOT, &path, &mut Vec::new()),
            3 => {
                let to = self::path(choices);
                fs.rename(&caller, (ROOT, &path), (ROOT, &to), RenameMode::Replace)
            }
            _ => match fs.stat(&caller, ROOT, &path, follow) {
                Err(Error::Escapes) => {
                    let outside = fs.escape_path(&caller, ROOT, &path, follow);
                    let outside = outside.expect("a path that leaves leads somewhere");
                    assert_eq!(outside.first(), Some(&b'/'), "not absolute: {outside:?}");
                    Ok(())
                }
                answer => answer.map(drop),
            },
        };
    }
    fs.check().expect("the namespace is consistent");
}

fn take_step(simulation: &mut Simulation, choices: &mut Random) {
    let kind = choices.below(10);
    let base = base(simulation, choices);
    let path = short_path(choices);
    let step = match kind {
        0 => Step::MakeDirectory { base, path, mode: 0o755 },
        1 | 2 => {
            let mut target = self::path(choices);
            target.truncate(SHORT_LINK_BYTES);
            Step::Symlink { target, base, path }
        }
        3 => Step::ReadLink { base, path },
        4 | 5 => return walk(simulation, base, path, choices.one_in(2)),
        6 => {
            let to = (base, short_path(choices));
            // Two wrong paths: it is unspecified which error wins.
            if !has_proper_names(&path) || !has_proper_names(&to.1) {
                return;
            }
            let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
            Step::Rename { from: (base, path), to, mode: *choices.pick(&modes) }
        }
        7 => match choices.one_in(2) {
            true => Step::Unlink { base, path },
            false => Step::RemoveDirectory { base, path },
        },
        8 => {
            let options = OpenOptions {
                read: true,
                create: choices.one_in(2),
                directory: choices.one_in(2),
                no_follow: choices.one_in(2),
                ..OpenOptions::default()
            };
            if options.create && options.directory {
                return;
            }
            Step::Open { base, path, options, mode: 0o644 }
        }
        _ => match open_places(simulation).first() {
            Some(&open) => Step::Close { open },
            None => return,
        },
    };
    simulation.take(0, &step);
}

/// Returns the places of all open files.
fn open_places(simulation: &mut Simulation) -> Vec<usize> {
    let holder = simulation.processes[0].slot.0;
    simulation.reference.places(holder, |_, _| true)
}

/// Returns the root or an open directory.
fn base(simulation: &mut Simulation, choices: &mut Random) -> Base {
    let holder = simulation.processes[0].slot.0;
    let directories = simulation.reference.places(holder, |node, _| node.is_directory());
    match directories.is_empty() || choices.one_in(2) {
        true => None,
        false => Some(*choices.pick(&directories)),
    }
}

/// Resolves a path as `stat` does. Only a path that leaves the namespace may say where it leads.
fn walk(simulation: &mut Simulation, base: Base, path: Vec<u8>, follow: bool) {
    let start = match base {
        None => ROOT,
        Some(place) => simulation.inode(place).expect("the base is open"),
    };
    let process = &simulation.processes[0];
    let (fs, caller) = (&process.fs, process.caller());
    let seen = fs.stat(&caller, start, &path, follow).map(drop);
    // `escape_path` does not check for a path that is too long.
    if seen != Err(Error::NameTooLong) {
        let outside = fs.escape_path(&caller, start, &path, follow);
        let leaves = seen == Err(Error::Escapes);
        assert_eq!(outside.is_ok(), leaves, "{path:?}: {seen:?}, and it leads to {outside:?}");
        let is_absolute = outside.is_ok_and(|outside| outside.first() == Some(&b'/'));
        assert!(is_absolute || !leaves, "{path:?} leads to a relative path");
    }
    simulation.take(0, &Step::Stat { base, path, follow });
}

/// Returns a path of a few parts without zero bytes. It may be repeated until it is longer than
/// allowed.
fn path(choices: &mut Random) -> Vec<u8> {
    let mut path = Vec::new();
    for _ in 0..choices.below(PARTS_MAX + 1) {
        match choices.below(18) {
            0..4 => path.push(b'/'),
            4 => path.extend_from_slice(b"."),
            5 | 6 => path.extend_from_slice(b".."),
            7 => path.extend_from_slice(MOUNT),
            8 => path.extend_from_slice(&MOUNT[1..]),
            9 => path.resize(path.len() + NAME_BYTES_MAX, b'n'),
            10 => path.push(choices.below(255) as u8 + 1),
            11 => {
                let times = 1 << choices.below(13);
                path = path.repeat(times.min(2 * PATH_BYTES_MAX / path.len().max(1)).max(1));
            }
            _ => path.push(*choices.pick(b"abc")),
        }
    }
    path.truncate(2 * PATH_BYTES_MAX);
    path
}

/// Returns a path that is either too long or far below the limit.
fn short_path(choices: &mut Random) -> Vec<u8> {
    let mut path = path(choices);
    if path.len() <= PATH_BYTES_MAX {
        path.truncate(SHORT_PATH_BYTES);
    }
    path
}

fn has_proper_names(path: &[u8]) -> bool {
    path.len() <= PATH_BYTES_MAX
        && path.split(|&byte| byte == b'/').all(|name| name.len() <= NAME_BYTES_MAX)
}
