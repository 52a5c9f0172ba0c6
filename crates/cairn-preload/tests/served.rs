//! Calls that have the same effect below the mount as on a disk, call by call.

mod common;

use common::same_on_both;

#[test]
fn calls_by_number_reach_the_hooks_of_their_names() {
    for case in ["numbers_of_data", "numbers_of_names", "numbers_of_processes"] {
        same_on_both("served", case);
    }
}

#[test]
fn formatted_output_to_a_descriptor_takes_arguments_of_every_kind() {
    same_on_both("served", "formatted_output");
}

#[test]
fn stream_is_opened_again_on_the_same_file() {
    same_on_both("served", "same_file_again");
}

#[test]
fn walk_changes_to_the_directories_it_visits() {
    same_on_both("served", "walks_that_change_directory");
}

#[test]
fn regular_file_is_neither_a_terminal_nor_a_socket() {
    same_on_both("served", "no_terminal_and_no_socket");
}

#[test]
fn status_flags_are_remembered() {
    same_on_both("served", "flags_of_a_description");
}

#[test]
fn less_common_calls_do_what_they_do_on_a_disk() {
    for case in ["less_common_calls", "backtrace_to_a_file"] {
        same_on_both("served", case);
    }
}

#[test]
fn inherited_file_is_ready_before_it_is_known() {
    same_on_both("served", "inherited_and_waited_for");
}

#[test]
fn asynchronous_requests_complete_as_on_a_disk() {
    for case in ["requests", "lists"] {
        same_on_both("asynchronous", case);
    }
}

#[test]
fn queue_of_the_kernel_takes_requests_on_ours_and_on_other_files() {
    same_on_both("asynchronous", "queue");
}

#[test]
fn ranges_of_a_file_are_punched_zeroed_and_allocated() {
    same_on_both("served", "space_of_a_file");
}

#[test]
fn file_without_a_name_is_given_one() {
    same_on_both("served", "files_without_a_name");
}

/// Mechanism: the blocks of a punched range were freed at once, while a mapping still showed them.
/// Consequence: the mapping showed the file that got these blocks next. Fix: while another process
/// may have mapped the file, the range is overwritten with zeros instead.
#[test]
fn mapping_of_a_punched_file_shows_zeros_and_no_other_file() {
    same_on_both("served", "punched_under_a_mapping");
}

#[test]
fn tree_is_walked_by_fts_with_every_kind_of_instruction() {
    same_on_both("served", "walks_by_fts");
}
