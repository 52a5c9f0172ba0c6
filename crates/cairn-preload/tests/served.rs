//! Calls that do below the mount what they do on a disk, call by call.

mod common;

use common::same_on_both;

#[test]
fn calls_by_number_reach_the_hooks_of_their_names() {
    for case in ["numbers_of_data", "numbers_of_names", "numbers_of_processes"] {
        same_on_both("served", case);
    }
}
