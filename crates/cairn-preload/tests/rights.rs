//! Rights of a process that changes its user.

mod common;

use common::{Stage, errors, same_on_both, text};

#[test]
fn in_a_sticky_directory_only_the_owner_removes_and_renames() {
    same_on_both("rights", "sticky_directory");
}

#[test]
fn file_is_opened_with_the_rights_of_the_effective_user() {
    same_on_both("rights", "rights_follow_the_effective_user");
}

/// Mechanism: `chown` kept the set-user-ID and set-group-ID bits; special files were refused before
/// their names were checked; and anybody could read with `O_NOATIME`. Consequence: a program that
/// ran with the rights of one owner ran with those of the next. Fix: as in the kernel.
#[test]
fn rights_to_run_as_the_owner_go_with_the_owner() {
    same_on_both("rights", "rights_go_with_the_owner");
}

/// Mechanism: a process opened the parts of the store when it first needed them. Consequence: a
/// daemon that had given up root's rights could not open or map a file or change its directory
/// (`EACCES`), whatever its user may do with the job's files. Fix: they are opened before the
/// rights are given up, and what must be created later is in a place where everybody in the job may
/// create it.
#[test]
fn process_gives_up_its_rights_before_its_first_file_and_is_served() {
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    let stage = Stage::new();
    let program = stage.compile("gives_up");
    let script =
        format!("chmod 1777 /cairn && {} /cairn/file && cat /cairn/file", program.display());
    let played = stage
        .command(common::cairn())
        .args(["run", "--discard", "--", "sh", "-c", &script])
        .output()
        .expect("cairn starts");
    assert_eq!(
        (text(&played), played.status.code()),
        ("bytes".into(), Some(0)),
        "{}",
        errors(&played)
    );
}
