//! `cairn top` without a terminal. Its drawing is tested beside its code.

mod common;

use common::Sandbox;

#[test]
fn without_a_terminal_it_is_refused_in_a_line() {
    let sandbox = Sandbox::new();
    sandbox.cairn(&["top"]).refused_with("cairn status --json");
}
