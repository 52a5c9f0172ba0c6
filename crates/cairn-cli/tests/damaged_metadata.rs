//! Metadata with a flipped bit: every command reports it, and none takes the store for an empty
//! one.

mod common;

use common::{Sandbox, eventually, kill};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

const WORD: usize = 8;

/// Makes a store that a failed run has left and that no process uses. Returns its metadata segment.
fn left(sandbox: &Sandbox) -> PathBuf {
    let script = "mkdir /cairn/d; for i in 1 2 3; do seq $((1000 * i)) >/cairn/d/$i; done; exit 3";
    sandbox.run("job", script).ends_with(3);
    if let Some(agent) = sandbox.agent_if_any("job") {
        kill("KILL", i64::from(agent));
    }
    // The first command to look finds the agent dead and computes the checksum.
    eventually("its agent has ended", || sandbox.agent_if_any("job").is_none());
    sandbox.store("job").join("node.meta")
}

/// Offsets of words that are not 0.
fn words(path: &PathBuf) -> Vec<u64> {
    const PAGE: usize = 4096;
    let file = File::open(path).expect("is there");
    let mut page = vec![0; PAGE];
    let mut found = Vec::new();
    let mut at = 0;
    while let Ok(start) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
        file.read_exact_at(&mut page, start).expect("reads");
        let words =
            page.chunks(WORD).enumerate().filter(|(_, word)| word.iter().any(|byte| *byte != 0));
        found.extend(words.map(|(index, _)| start + (index * WORD) as u64));
        at = start + PAGE as u64;
    }
    found
}

fn flip(path: &PathBuf, at: u64, bit: u64) {
    let file = File::options().read(true).write(true).open(path).expect("is there");
    let mut byte = [0];
    let at = at + bit / 8;
    file.read_exact_at(&mut byte, at).expect("reads");
    byte[0] ^= 1 << (bit % 8);
    file.write_all_at(&byte, at).expect("writes");
}

/// Mechanism: only `cairn verify` checked the metadata for contradictions.
///
/// Consequence: after one bit of the root directory had flipped, `ls` showed nothing and exited
/// with
/// 0. The next run found no files and removed the store. Other bits gave files wrong names and
/// bytes.
///
/// Fix: metadata that no process is changing have a checksum. Every command compares it before it
/// uses them.
#[test]
fn bit_of_the_metadata_has_changed_then_every_command_says_so_and_the_store_is_kept() {
    let sandbox = Sandbox::new();
    let meta = left(&sandbox);
    let whole = sandbox.cairn(&["ls", "job:/d"]).succeeds().stdout;
    let words = words(&meta);
    let mut told = Vec::new();
    for number in 0..40 {
        let (at, bit) = (words[number * 7919 % words.len()], (number * 37 % 64) as u64);
        flip(&meta, at, bit);
        let shown = sandbox.cairn(&["ls", "job:/d"]);
        match shown.code {
            Some(0) => assert_eq!(shown.stdout, whole, "bit {bit} of {at}"),
            _ => told.push((at, bit)),
        }
        flip(&meta, at, bit);
    }
    assert!(told.len() > 10, "{} of 40", told.len());
    assert_eq!(sandbox.cairn(&["ls", "job:/d"]).succeeds().stdout, whole);
    let (at, bit) = told[0];
    flip(&meta, at, bit);
    let run = ["run", "--job", "job", "--", "true"];
    for command in [&["ls", "job"][..], &["drain", "job"], &["rm", "job"], &["verify", "job"], &run]
    {
        let said = sandbox.cairn(command).ends_with(2);
        said.says("metadata is damaged").says("the store is kept").says("cairn verify --persist");
    }
    sandbox.cairn(&["status", "job"]).says("metadata is damaged");
    flip(&meta, at, bit);
    sandbox.cairn(&["drain", "job"]).succeeds();
    assert_eq!(sandbox.drained("d/2").lines().count(), 2000);
    sandbox.cairn(&["rm", "job"]).succeeds();
    let another = Sandbox::new();
    let meta = left(&another);
    let is_told = |at: &&u64| {
        flip(&meta, **at, 20);
        let is_told = another.cairn(&["ls", "job"]).code == Some(2);
        if !is_told {
            flip(&meta, **at, 20);
        }
        is_told
    };
    assert!(self::words(&meta).iter().find(is_told).is_some());
    another.cairn(&["rm", "job", "--discard"]).succeeds();
    assert!(!fs::exists(meta).expect("looks"));
}
