//! A held checkpoint that the program removes before it is copied.

use super::*;
use crate::checkpoint::sets::Member;
use crate::checkpoint::sets::register::{self, Level};
use crate::drain::hold::hold;
use crate::persist::manifest::Partial;

const NAMES: [&str; 3] = ["step_1/a", "step_1/b", "step_1/c"];

/// Creates a store with a checkpoint of three files in a directory.
fn world() -> (World, register::Checkpoint) {
    let world = World::new();
    world.make_directory("step_1");
    NAMES.iter().for_each(|name| world.write(name, 1, &format!("text of {name}")));
    let tree = world.tree();
    let member = |name: &&str| {
        let (path, node) = (path(name), &tree[&path(name)]);
        Member { path, inode: node.inode, version: node.version, bytes: node.bytes }
    };
    let known = register::Checkpoint {
        id: 1,
        name: Name { family: Family(b"step_{step}".to_vec()), step: Some(1) },
        ordinal: 1,
        completed_ns: 1,
        modified_ns: 1,
        wanted: Level::Pfs,
        level: Level::Node,
        files: NAMES.iter().map(member).collect(),
    };
    (world, known)
}

/// Holds the checkpoint, removes it from the store, and carries out `count` of the four steps. Then
/// releases the hold and tries the other steps. Returns the number of steps that failed after the
/// release.
fn copy_held(world: &World, known: &register::Checkpoint, count: usize) -> u64 {
    let tree = world.tree();
    let _holding = hold(&[&world.volume], known).expect("there is room");
    world.remove_everything();
    let mut ledger = world.ledger();
    let files = known.files.iter().map(|file| file.path.clone()).collect();
    let set = Partial { name: known.name.clone(), files, earlier: None };
    ledger.expect(vec![known.clone()], vec![set]);
    ledger.begin_changes(&HashSet::new()).expect("begins");
    let steps = single_steps(&plan(&tree, ledger.manifest(), &FilePath::root(), &|_| false));
    assert_eq!(steps.len(), 4);
    let mut failures = Failures::default();
    for (index, step) in steps.iter().enumerate() {
        if index == count {
            world.volume.let_go();
        }
        world.with_carrier(&mut ledger, &mut failures, &tree, |carrier| {
            carrier.carry_out(step).expect("the directory is fine");
        });
    }
    ledger.name_drained();
    ledger.note_partial(&HashSet::new());
    ledger.save().expect("saves");
    failures.take_changed()
}

#[test]
fn held_checkpoint_that_was_removed_is_copied_and_named_only_if_it_is_whole() {
    for count in 0..=4 {
        let (world, known) = world();
        let changed = copy_held(&world, &known, count);
        // The directory needs nothing from the store.
        assert_eq!(changed as usize, NAMES.len().min(4 - count), "{count}");
        let found = Manifest::load(&mut world.destination(), "job").expect("loads");
        let found = found.expect("is there");
        let is_whole = count == 4;
        assert_eq!(found.whole().len(), usize::from(is_whole), "{count}");
        assert_eq!(found.partial.len(), usize::from((2..4).contains(&count)), "{count}");
        // The state that the next agent finds after the copying agent died.
        assert!(world.drain(), "{count}");
        let copies: Vec<_> = world.copies().into_keys().collect();
        let expected = if is_whole { [&["step_1"], &NAMES[..]].concat() } else { Vec::new() };
        assert_eq!(copies, expected, "{count}");
    }
}

#[test]
fn what_is_let_go_or_was_never_held_leaves_no_description_behind() {
    let (world, known) = world();
    let handles = || world.volume.fs().usage().expect("counts").handles;
    let before = handles();
    let holding = hold(&[&world.volume], &known).expect("there is room");
    assert_eq!(handles(), before + 3);
    world.volume.let_go();
    assert!(!world.volume.is_holding());
    drop(holding);
    assert_eq!(handles(), before);
    world.write("step_1/c", 2, "other text");
    assert!(hold(&[&world.volume], &known).is_none(), "one is another one");
    let mut large = known;
    large.files[0].bytes = u64::MAX / 4;
    assert!(hold(&[&world.volume], &large).is_none(), "there is no room");
    assert_eq!(handles(), before);
}
