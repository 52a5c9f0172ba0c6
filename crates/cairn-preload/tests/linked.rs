//! Programs that have the library linked into them, statically or dynamically: what the other tests show of the one that is
//! preloaded holds for them, too.

mod common;

use common::{Link, all_same_when_linked};

#[test]
fn static_program_is_served() {
    for program in ["served", "mappings"] {
        all_same_when_linked(program, Link::Static, false);
    }
}

#[test]
fn static_program_has_children_and_threads() {
    for program in ["children", "threads"] {
        all_same_when_linked(program, Link::Static, false);
    }
}

#[test]
fn archive_serves_a_dynamic_program_alone() {
    for program in ["mappings", "threads"] {
        all_same_when_linked(program, Link::Archive, true);
    }
}

#[test]
fn archive_gives_way_to_the_library_that_is_preloaded() {
    for program in ["served", "children", "threads"] {
        all_same_when_linked(program, Link::Archive, false);
    }
}

#[test]
fn shared_library_serves_a_program_alone() {
    for program in ["mappings", "threads"] {
        all_same_when_linked(program, Link::Shared, true);
    }
}

#[test]
fn program_that_asks_for_the_library_that_is_preloaded_has_it_once() {
    for program in ["served", "children"] {
        all_same_when_linked(program, Link::Shared, false);
    }
}
