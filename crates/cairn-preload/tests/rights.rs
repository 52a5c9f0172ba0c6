//! Rights of a process that changes its user.

mod common;

use common::same_on_both;

#[test]
fn in_a_sticky_directory_only_the_owner_removes_and_renames() {
    same_on_both("rights", "sticky_directory");
}

#[test]
fn file_is_opened_with_the_rights_of_the_effective_user() {
    same_on_both("rights", "rights_follow_the_effective_user");
}

/// Mechanism: `chown` left the bits by which a program runs as its owner; special files were refused before their names were looked at; and
/// anybody read without a trace. Consequence: what ran with the rights of one ran with those of the next owner.
/// Fix: as the kernel.
#[test]
fn rights_to_run_as_the_owner_go_with_the_owner() {
    same_on_both("rights", "rights_go_with_the_owner");
}
