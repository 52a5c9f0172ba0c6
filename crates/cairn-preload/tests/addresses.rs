//! Bad addresses are errors, as in the kernel. Signals for bad addresses belong to the program.

mod common;

use common::{same_on_a_tier_in_a_file, same_on_both};

/// Mechanism: Cairn accessed the application's addresses without checking. Consequence: SIGSEGV
/// where the kernel returns EFAULT. Fix: accesses use instructions whose faults are recovered
/// (`address.rs`).
#[test]
fn reading_and_writing_at_a_bad_address_fails_and_moves_nothing() {
    same_on_both("addresses", "one_buffer");
}

#[test]
fn buffer_that_ends_too_early_is_used_as_far_as_it_goes() {
    same_on_both("addresses", "over_the_edge");
}

#[test]
fn lists_of_buffers_are_used_as_far_as_they_go() {
    same_on_both("addresses", "lists");
}

#[test]
fn descriptor_and_offset_and_end_are_looked_at_before_the_address() {
    same_on_both("addresses", "what_is_looked_at_first");
}

#[test]
fn large_transfers_stop_where_the_buffer_does() {
    same_on_both("addresses", "large_ones");
}

#[test]
fn attributes_and_links_are_not_told_to_a_bad_address() {
    same_on_both("addresses", "attributes");
}

#[test]
fn path_at_a_bad_address_is_none() {
    same_on_both("addresses", "paths");
}

/// Mechanism: only the first byte of a path was checked. Consequence: SIGSEGV for a path that runs
/// into unmapped memory, also for a foreign path. Fix: the search for the end of a string reports
/// that there is none.
#[test]
fn path_that_runs_off_its_memory_is_none() {
    same_on_both("addresses", "paths_without_an_end");
}

#[test]
fn memory_that_a_mapped_file_does_not_reach_is_a_bad_address() {
    same_on_both("addresses", "behind_the_end_of_a_file");
}

#[test]
fn address_that_no_program_has_is_an_error_even_with_all_signals_blocked() {
    same_on_both("addresses", "with_blocked_signals");
}

#[test]
fn bad_addresses_are_errors_in_children() {
    same_on_both("addresses", "children");
}

/// On other architectures the memory is checked before the copy.
#[cfg(target_arch = "x86_64")]
#[test]
fn memory_that_another_thread_takes_away_during_a_copy_ends_nobody() {
    same_on_both("addresses", "memory_that_comes_and_goes");
}

#[test]
fn offsets_at_a_bad_address_copy_nothing() {
    same_on_both("addresses", "copies");
}

#[test]
fn messages_at_a_bad_address_are_the_kernels_to_refuse() {
    same_on_both("addresses", "messages");
}

#[test]
fn program_that_handles_bad_addresses_sees_its_own_and_no_others() {
    same_on_both("addresses", "own_handlers");
}

#[test]
fn program_that_looks_after_its_stack_goes_on_doing_so() {
    same_on_both("addresses", "handlers_on_a_stack_of_their_own");
}

#[test]
fn program_dies_of_its_faults_as_without_cairn() {
    same_on_both("addresses", "deaths");
}

#[test]
fn threads_that_pass_bad_addresses_at_once_all_get_errors() {
    same_on_both("addresses", "several_threads");
}

mod on_a_tier_in_a_file {
    use super::*;

    #[test]
    fn bad_addresses_are_errors() {
        same_on_a_tier_in_a_file("addresses", "one_buffer");
        same_on_a_tier_in_a_file("addresses", "over_the_edge");
        same_on_a_tier_in_a_file("addresses", "large_ones");
    }
}

/// Mechanism: entries of Cairn descriptors were taken out of the caller's own list, which was
/// accessed without checking. Consequence: SIGSEGV or an abort where the kernel returns EFAULT or
/// EINVAL; and another thread saw the list without them. Fix: the kernel gets a copy.
#[test]
fn lists_of_descriptors_to_wait_for_are_not_changed_before_the_end() {
    same_on_both("addresses", "waiting");
}
