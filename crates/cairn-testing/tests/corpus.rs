//! Replays every input below `fuzz/`: the inputs that reach most of the code (`corpus`) and those
//! that once made it fail (`regressions`). The input that first found a planted bug must find it
//! again.

use cairn_testing::fuzz::{TARGETS, Target};
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

fn inputs(kind: &str, target: &Target) -> Vec<PathBuf> {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let directory = fuzz.join(kind).join(target.name);
    let Ok(entries) = fs::read_dir(&directory) else { return Vec::new() };
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.expect("the directory can be read").path()).collect();
    paths.sort();
    paths
}

fn replay(target: &Target, path: &Path) {
    // The last input printed is the one that failed.
    println!("{}: {}", target.name, path.display());
    (target.run)(&fs::read(path).expect("the input can be read"));
}

#[test]
fn kept_inputs_are_replayed_then_none_fails() {
    for target in TARGETS.iter().filter(|target| !target.planted) {
        let corpus = inputs("corpus", target);
        assert!(!corpus.is_empty(), "{} has no inputs", target.name);
        for path in corpus.iter().chain(&inputs("regressions", target)) {
            replay(target, path);
        }
    }
}

#[test]
fn planted_bug_is_replayed_then_it_is_found() {
    for target in TARGETS.iter().filter(|target| target.planted) {
        let found = inputs("planted", target);
        assert!(!found.is_empty(), "{} was never found", target.name);
        for path in found {
            let failed = catch_unwind(|| replay(target, &path)).is_err();
            assert!(failed, "{}: {} does not fail", target.name, path.display());
        }
    }
}
