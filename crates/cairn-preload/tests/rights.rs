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
