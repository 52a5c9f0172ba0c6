//! Processes made and left in less common ways: daemons, clones, programs executed by descriptor or
//! without variables.

mod common;

use common::same_on_both;

/// Mechanism: closing a range of descriptors wrote out what the C library's own stdout had
/// buffered. Consequence: a daemon, or any child that closed everything, printed once more what its
/// parent had not yet written. Fix: only streams of ours are.
#[test]
fn daemon_that_closes_everything_writes_its_own_files_and_no_others() {
    same_on_both("processes", "daemons");
}

/// Mechanism: a child of `clone` with `CLONE_VM` and `CLONE_VFORK` used what its parent knew of the
/// store, and gave it up when it executed a program. Consequence: everything the parent did
/// afterwards failed with `EIO`. Fix: it gets memory of its own.
#[test]
fn child_of_clone_inherits_and_its_end_is_its_own() {
    same_on_both("processes", "clones");
}

/// Mechanism: the end of a process that shares its parent's memory ended the parent's part of the
/// store. Consequence: as above.
/// Fix: who shares another's memory lives in its slot, and leaves that alone.
#[test]
fn child_that_shares_memory_and_descriptors_leaves_its_parent_alone() {
    same_on_both("processes", "clones_that_share_everything");
}

#[test]
fn child_of_clone_by_number_holds_what_its_parent_holds() {
    same_on_both("processes", "clones_by_number");
}

/// Mechanism: `execveat` knew paths from the current directory only. Consequence: `ENOTDIR` for a
/// program in a directory of ours.
/// Fix: its path is made whole.
#[test]
fn program_is_executed_by_descriptor_and_from_a_directory() {
    same_on_both("processes", "programs_by_descriptor");
}

/// Mechanism: `system` and `popen` start their shell inside the C library, with the environment as
/// it is. Consequence: after `clearenv` the shell wrote below the prefix to nowhere. Fix: for as
/// long as they start it nothing is missing.
#[test]
fn program_without_an_environment_finds_the_store() {
    same_on_both("processes", "cleared_environments");
}

/// Its table of descriptors would say of the parent's what is true of the child's.
#[test]
fn clone_that_shares_only_memory_or_only_descriptors_is_refused() {
    let expected = ["memory: EINVAL", "descriptors: EINVAL", "both: 3"];
    let stage = common::Stage::new();
    let played = stage.on_cairn(&stage.compile("processes"), &["clones_that_share_half", "/cairn"]);
    let said = common::text(&played);
    assert_eq!(said.lines().collect::<Vec<_>>(), expected, "{}", common::errors(&played));
}
