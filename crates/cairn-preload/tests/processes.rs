//! Less common ways to create and leave processes: daemons, clones, programs executed by descriptor
//! or with an empty environment.

mod common;

use common::same_on_both;

/// Mechanism: closing a range of descriptors flushed the C library's own stdout. Consequence: a
/// daemon, or any child that closed everything, printed its parent's buffered output a second time.
/// Fix: only Cairn streams are flushed.
#[test]
fn daemon_that_closes_everything_writes_its_own_files_and_no_others() {
    same_on_both("processes", "daemons");
}

/// Mechanism: a child of `clone` with `CLONE_VM` and `CLONE_VFORK` used its parent's state of the
/// store, and released it at exec. Consequence: every later call of the parent failed with `EIO`.
/// Fix: such a child gets its own memory.
#[test]
fn child_of_clone_inherits_and_its_end_is_its_own() {
    same_on_both("processes", "clones");
}

/// Mechanism: the end of a process that shares its parent's memory ended the parent's part of the
/// store. Consequence: as above. Fix: a process that shares another's memory uses its slot, and
/// does not release it.
#[test]
fn child_that_shares_memory_and_descriptors_leaves_its_parent_alone() {
    same_on_both("processes", "clones_that_share_everything");
}

#[test]
fn child_of_clone_by_number_holds_what_its_parent_holds() {
    same_on_both("processes", "clones_by_number");
}

/// Mechanism: `execveat` only handled paths from the current directory. Consequence: `ENOTDIR` for
/// a program in a Cairn directory. Fix: the path is made absolute.
#[test]
fn program_is_executed_by_descriptor_and_from_a_directory() {
    same_on_both("processes", "programs_by_descriptor");
}

/// Mechanism: `system` and `popen` start their shell inside the C library, with the process's own
/// environment. Consequence: after `clearenv` the shell's writes below the prefix did not reach the
/// store. Fix: the environment is complete while the shell is started.
#[test]
fn program_without_an_environment_finds_the_store() {
    same_on_both("processes", "cleared_environments");
}

/// With a shared descriptor table in memory, such a child would change what the table says about
/// its parent's descriptors.
#[test]
fn clone_that_shares_only_memory_or_only_descriptors_is_refused() {
    let expected = ["memory: EINVAL", "descriptors: EINVAL", "both: 3"];
    let stage = common::Stage::new();
    let played = stage.on_cairn(&stage.compile("processes"), &["clones_that_share_half", "/cairn"]);
    let said = common::text(&played);
    assert_eq!(said.lines().collect::<Vec<_>>(), expected, "{}", common::errors(&played));
}
