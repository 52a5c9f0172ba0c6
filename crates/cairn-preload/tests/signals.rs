//! Signals that arrive during Cairn's calls. Handlers run between the calls, and may do anything.

mod common;

use common::{same_in_memory, same_on_both};

#[test]
fn handler_that_uses_files_runs_between_the_writes_of_its_thread() {
    same_on_both("signals", "handler_does_input_and_output");
}

#[test]
fn timer_whose_handler_writes_neither_blocks_nor_loses_anything() {
    same_on_both("signals", "timer_writes");
}

#[test]
fn handler_that_jumps_out_leaves_whole_records_and_nothing_locked() {
    same_on_both("signals", "handler_jumps_out_of_a_write");
}

#[test]
fn threads_killed_in_the_middle_leave_files_that_can_be_continued() {
    same_on_both("signals", "threads_are_killed_in_the_middle");
}

#[test]
fn sigaction_tells_what_was_set_through_it() {
    same_on_both("signals", "flags_of_a_handler_hold");
}

#[test]
fn checkpoints_that_a_handler_writes_thousands_of_times_are_whole() {
    same_in_memory("signals", "handler_writes_checkpoints");
}

#[test]
fn checkpoints_that_threads_of_a_timer_write_are_whole() {
    same_in_memory("signals", "threads_of_a_timer_write_checkpoints");
}

/// Mechanism: the kernel writes a core file into its own current directory. While the program is in
/// a Cairn directory, that is a stand-in directory without a name. Consequence: no core file and no
/// message. Fix: before the program dies, the kernel's current directory becomes the one where the
/// job was launched.
#[test]
fn program_that_dies_in_a_directory_of_ours_can_leave_a_core_file() {
    same_on_both("signals", "dying_programs_are_where_a_core_can_be");
}
