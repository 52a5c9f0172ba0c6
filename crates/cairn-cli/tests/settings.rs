//! Settings of `cairn run` from the command line, the environment and `cairn.toml`: what each may say, and which one counts.

mod common;

use common::{Ran, Sandbox};
use std::fs;

/// Runs a program in a store that drains, with options, variables and a configuration file.
fn run(sandbox: &Sandbox, options: &[&str], variables: &[(&str, &str)], file: &str) -> Ran {
    fs::write(sandbox.work().join("cairn.toml"), file).expect("writes");
    let out = sandbox.out().display().to_string();
    let words = [&["run", "--persist", &out], options, &["--", "true"]].concat();
    let mut command = sandbox.command(&words);
    command.envs(variables.iter().copied());
    Ran::of(command.output().expect("cairn starts"), words.join(" "))
}

/// Mechanism: a variable was read as a Rust literal, and one that said no was as none.
#[test]
fn switch_is_turned_on_or_off_by_usual_words_and_what_is_said_nearer_counts() {
    let sandbox = Sandbox::new();
    let discard = |options: &[&str], variable: Option<&str>, file: &str| {
        let variables: Vec<_> =
            variable.into_iter().map(|value| ("CAIRN_RUN_DISCARD", value)).collect();
        run(&sandbox, options, &variables, file)
    };
    // With a persist directory that is refused.
    for yes in ["1", "yes", "true", "Y", "on"] {
        discard(&[], Some(yes), "").refused_with("--discard contradicts");
    }
    for no in ["0", "no", "false", "off"] {
        discard(&[], Some(no), "[run]\ndiscard = true\n").succeeds();
    }
    discard(&["--discard=no"], Some("yes"), "").succeeds();
    discard(&["--discard"], Some("no"), "").refused_with("--discard contradicts");
    discard(&[], None, "[run]\ndiscard = true\n").refused_with("--discard contradicts");
    discard(&[], Some("maybe"), "").refused_with("maybe");
}
