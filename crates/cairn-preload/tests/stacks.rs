//! Calls are served wherever a program makes them, however little stack is left.
//!
//! Mechanism: the first call used 106 KiB of the caller's stack, later ones 19 KiB. Consequence:
//! threads with small stacks, user-level threads (Argobots, Charm++, Boost.Context) and handlers on
//! alternate stacks died with SIGSEGV. Fix: calls are served on a stack of Cairn's.

mod common;

use common::{Stage, errors, same_in_memory, text};
use std::collections::BTreeMap;

/// Maximum bytes of the caller's stack that a call may use beyond its use without Cairn. Frames are
/// larger without optimisation.
const MORE_BYTES_MAX: u64 = if cfg!(debug_assertions) { 6 << 10 } else { 2 << 10 };

#[test]
fn small_threads_use_files() {
    same_in_memory("stacks", "small_threads_use_files");
}

#[test]
fn threads_that_end_give_their_stacks_back() {
    same_in_memory("stacks", "threads_that_end_give_their_stacks_back");
}

#[test]
fn contexts_use_files() {
    same_in_memory("stacks", "contexts_use_files");
}

#[test]
fn handlers_on_alternate_stacks_use_files() {
    same_in_memory("stacks", "handlers_on_alternate_stacks_use_files");
}

#[test]
fn small_thread_is_cancelled() {
    same_in_memory("stacks", "small_thread_is_cancelled");
}

/// Mechanism: a thread had a single stack of Cairn's. Consequence: a handler, or another context of
/// the thread, was served on the stack of an unfinished call and overwrote it. Fix: each user has
/// its own stack until its call ends.
#[test]
fn handler_uses_files_while_its_small_thread_waits() {
    same_in_memory("stacks", "handler_uses_files_while_its_small_thread_waits");
}

#[test]
fn contexts_switch_in_callbacks() {
    same_in_memory("stacks", "contexts_switch_in_callbacks");
}

#[test]
fn no_call_takes_much_more_of_the_callers_stack_than_without_cairn() {
    let stage = Stage::in_memory();
    let program = stage.compile("stacks");
    let plain = stage.plain();
    let depths = |output: std::process::Output| -> BTreeMap<String, u64> {
        assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
        let line = |line: &str| {
            let (name, bytes) = line.split_once(' ').expect("a name and a number");
            (name.to_owned(), bytes.parse().expect("a number"))
        };
        text(&output).lines().map(line).collect()
    };
    let without = depths(stage.on_disk(&program, &["depths", plain.to_str().expect("UTF-8")]));
    let with = depths(stage.on_cairn(&program, &["depths", "/cairn"]));
    assert!(without.len() > 50 && without.keys().eq(with.keys()));
    let more = |(name, bytes): (&String, &u64)| {
        let more = bytes.saturating_sub(without[name]);
        (more > MORE_BYTES_MAX).then(|| format!("{name}: {more} more than {}", without[name]))
    };
    let deep: Vec<String> = with.iter().filter_map(more).collect();
    assert!(deep.is_empty(), "{deep:#?}");
}
