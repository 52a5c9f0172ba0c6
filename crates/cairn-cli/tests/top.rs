//! `cairn top` where there is no terminal. What it draws is tested beside it.

mod common;

use common::Sandbox;

#[test]
fn without_a_terminal_it_is_refused_in_a_line() {
    let sandbox = Sandbox::new();
    sandbox.cairn(&["top"]).refused_with("cairn status --json");
}
