//! Children of every kind: what they inherit, and what they share with their parent.

mod common;

use common::same_on_both;

#[test]
fn forked_child_shares_offsets_with_its_parent() {
    same_on_both("children", "offsets_are_shared");
}

/// Mechanism: the lock file of a description was opened at its first lock, by each process that
/// shared the description.
///
/// Consequence: `(flock 9; …) 9>lock` in a shell excluded nobody: the lock was that of the program
/// `flock`, and ended with it.
///
/// Fix: it is opened before a child can inherit the description, and a program that is executed
/// finds it.
#[test]
fn locks_belong_to_the_description_that_children_and_programs_inherit() {
    same_on_both("children", "locks_belong_to_what_is_inherited");
}

/// Mechanism: a store had room for 1 021 processes. Consequence: `EAGAIN` from `fork` on nodes with
/// many ranks, each with helper processes. Fix: room for four times as many.
#[test]
fn file_is_open_in_more_than_a_thousand_processes() {
    same_on_both("children", "many_have_a_file");
}

#[test]
fn descriptor_that_one_closes_stays_open_in_the_other() {
    same_on_both("children", "closing_is_not_shared");
}

#[test]
fn program_executed_after_vfork_writes_where_it_was_redirected() {
    same_on_both("children", "vfork_and_exec");
}

#[test]
fn open_files_survive_exec_unless_they_are_marked() {
    same_on_both("children", "open_files_survive_exec");
}

#[test]
fn spawned_child_gets_what_its_file_actions_say() {
    same_on_both("children", "spawn_with_file_actions");
}

/// Mechanism: the child reported a failure through a pipe whose number a file action could replace
/// or close. Consequence: posix_spawn reported success although the program did not run, and the
/// error number was written into the file that replaced the pipe. Fix: the pipe moves to another
/// number before such an action (`spawn.rs`).
#[test]
fn spawn_that_fails_is_reported_whatever_the_actions_replace() {
    same_on_both("children", "failed_spawn_is_reported");
}

#[test]
fn spawn_closes_everything_above_a_number() {
    same_on_both("children", "everything_above_is_closed");
}

#[test]
fn shells_of_popen_and_system_read_write_and_inherit_files() {
    same_on_both("children", "shells");
}

/// Mechanism: the C library created the child of `popen`, which held no references until it first
/// used a file. Consequence: `EBADF` in a shell for files that its parent had closed meanwhile.
/// Fix: our `posix_spawn` creates the child (`shells.rs`).
#[test]
fn shell_of_popen_that_comes_late_finds_the_file_that_its_parent_closed() {
    same_on_both("children", "shell_comes_late");
}

#[test]
fn streams_of_popen_are_opened_and_closed_as_on_a_disk() {
    same_on_both("children", "streams_to_shells");
}

#[test]
fn descriptor_passed_over_a_socket_is_the_same_open_file() {
    same_on_both("children", "descriptor_is_passed");
}

/// Mechanism: a child that shares its parent's memory until exec, and exits instead, released the
/// parent's part of the mount. Consequence: every later call of the parent failed with EIO. Fix:
/// the owner of the part is compared (`is_borrowed`).
#[test]
fn child_that_ends_in_the_memory_of_its_parent_ends_alone() {
    same_on_both("children", "child_in_our_memory_ends");
}

/// Mechanism: a program that had not yet used its inherited files passed no references to its
/// children. Consequence: once the program and its parent had closed such a file, the child's calls
/// on it failed with EBADF. Fix: the program recognises inherited files before its first child.
#[test]
fn files_that_a_program_inherited_are_handed_on_to_its_children() {
    same_on_both("children", "inherited_files_are_handed_on");
}

/// Mechanism: the pipe on which a child reports a failed exec could not be created, and the error
/// number was read from memory that was never set. Consequence: posix_spawn returned 0 without a
/// child. Fix: such a child has no pipe, and exits with 127.
#[test]
fn process_without_free_numbers_starts_programs() {
    same_on_both("children", "no_numbers_are_left");
}
