//! Bad input and limits, which give the same errno as on a disk, and a store that is removed.

mod common;

use common::{Stage, errors, same_on_both, text};

#[test]
fn addresses_that_no_process_can_have_are_refused() {
    same_on_both("hostile", "addresses_that_cannot_be");
}

#[test]
fn paths_and_names_that_are_too_long_are_refused() {
    same_on_both("hostile", "long_paths");
}

#[test]
fn names_may_hold_any_bytes() {
    same_on_both("hostile", "strange_names");
}

#[test]
fn descriptors_run_out_and_files_already_open_go_on() {
    same_on_both("hostile", "descriptors_run_out");
}

#[test]
fn limit_on_file_sizes_gives_a_signal_and_an_errno() {
    same_on_both("hostile", "size_limit");
}

#[test]
fn store_that_is_removed_below_a_program_never_ends_it() {
    let stage = Stage::new();
    let played = stage.on_cairn(&stage.compile("hostile"), &["store_vanishes", "/cairn"]);
    let round = ["child: 0", "program: ended by itself"];
    let expected =
        [&["the open file: 2"][..], &round, &round, &round, &["close: 1"]].concat().join("\n");
    assert_eq!(text(&played).trim_end(), expected, "{}", errors(&played));
}
