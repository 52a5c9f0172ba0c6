//! Mapped files. No program can distinguish mappings of Cairn files from those of files on a disk.

mod common;

use common::{
    same_on_a_mapped_tier, same_on_a_remote_tier, same_on_a_tier_in_a_file, same_on_both,
};

macro_rules! scenes {
    ($play:ident: $($test:ident: $scene:literal;)*) => {$(
        #[test]
        fn $test() {
            $play("mappings", $scene);
        }
    )*};
}

scenes! { same_on_both:
    stores_to_a_shared_mapping_are_the_files: "stores_are_the_files";
    page_at_the_end_is_filled_with_zeros_and_the_next_is_a_signal: "bytes_behind_the_end";
    mapping_shows_how_its_file_grows: "file_grows_under_its_mapping";
    mapping_of_a_file_that_is_cut_shows_its_new_end: "file_is_cut_under_its_mapping";
    stores_into_holes_are_the_files: "holes_are_stored_to";
    private_pages_are_the_files_until_they_are_stored_to: "private_pages_are_the_processes";
    mapping_loses_its_middle_and_its_ends: "parts_are_unmapped";
    fixed_addresses_replace_mappings: "fixed_addresses_replace";
    protection_of_a_mapping_changes: "protection_is_changed";
    mappings_are_moved_and_get_another_length: "mappings_are_moved";
    mapping_shows_other_pages_of_its_file: "other_pages_are_shown";
    children_inherit_mappings_and_outlive_their_parents: "mappings_are_inherited";
    stores_outlive_deaths_and_execs: "stores_outlive_a_killed_process";
    advice_and_locks_are_those_of_a_file: "advice_and_locks";
    locked_memory_is_the_programs_and_not_the_store: "all_is_locked";
    program_that_may_lock_little_keeps_what_it_has_locked_and_its_store: "little_is_locked";
    requests_for_mappings_are_refused_as_on_a_disk: "requests_are_refused";
    processes_share_memory_by_a_file: "processes_share_a_counter";
    stores_and_writes_of_whole_pages_meet: "stores_meet_writes";
}

/// Mechanism: our hook passed `syscall(SYS_mremap, ..)` to the C library's `mremap`. A library that
/// tracks all mappings had patched a jump there to its own code, which makes the call by `syscall`.
/// Consequence: every program of MPICH over UCX overflowed its stack in `MPI_Init`. Fix: a foreign
/// call by number goes to the kernel by number.
#[test]
fn patched_functions_of_the_c_library_reach_the_kernel() {
    same_on_both("mappings", "functions_are_patched");
}

mod on_a_tier_in_a_file {
    use super::*;

    scenes! { same_on_a_tier_in_a_file:
        stores_to_a_shared_mapping_are_the_files: "stores_are_the_files";
        mapping_of_a_file_that_is_cut_shows_its_new_end: "file_is_cut_under_its_mapping";
        stores_into_holes_are_the_files: "holes_are_stored_to";
        mapping_loses_its_middle_and_its_ends: "parts_are_unmapped";
        fixed_addresses_replace_mappings: "fixed_addresses_replace";
        protection_of_a_mapping_changes: "protection_is_changed";
        children_inherit_mappings_and_outlive_their_parents: "mappings_are_inherited";
        stores_outlive_deaths_and_execs: "stores_outlive_a_killed_process";
        advice_and_locks_are_those_of_a_file: "advice_and_locks";
        requests_for_mappings_are_refused_as_on_a_disk: "requests_are_refused";
        processes_share_memory_by_a_file: "processes_share_a_counter";
        stores_and_writes_of_whole_pages_meet: "stores_meet_writes";
    }
}

mod on_a_tier_of_another_machine {
    use super::*;

    scenes! { same_on_a_remote_tier:
        stores_to_a_shared_mapping_are_the_files: "stores_are_the_files";
        mapping_of_a_file_that_is_cut_shows_its_new_end: "file_is_cut_under_its_mapping";
        stores_into_holes_are_the_files: "holes_are_stored_to";
        mapping_loses_its_middle_and_its_ends: "parts_are_unmapped";
        fixed_addresses_replace_mappings: "fixed_addresses_replace";
        protection_of_a_mapping_changes: "protection_is_changed";
        children_inherit_mappings_and_outlive_their_parents: "mappings_are_inherited";
        stores_outlive_deaths_and_execs: "stores_outlive_a_killed_process";
        advice_and_locks_are_those_of_a_file: "advice_and_locks";
        requests_for_mappings_are_refused_as_on_a_disk: "requests_are_refused";
        processes_share_memory_by_a_file: "processes_share_a_counter";
        stores_and_writes_of_whole_pages_meet: "stores_meet_writes";
    }
}

mod on_a_mapped_tier {
    use super::*;

    scenes! { same_on_a_mapped_tier:
        stores_to_a_shared_mapping_are_the_files: "stores_are_the_files";
        page_at_the_end_is_filled_with_zeros_and_the_next_is_a_signal: "bytes_behind_the_end";
        mapping_shows_how_its_file_grows: "file_grows_under_its_mapping";
        private_pages_are_the_files_until_they_are_stored_to: "private_pages_are_the_processes";
        stores_and_writes_of_whole_pages_meet: "stores_meet_writes";
    }
}
