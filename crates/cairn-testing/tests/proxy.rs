//! A job that computes, writes checkpoints and fails ends in the state of one that does not fail.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

fn run(directory: &Path, more: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cairn-proxy"));
    command.arg(directory).args(["--ranks", "3", "--mebibytes", "1", "--period", "0.02", "--json"]);
    let output = command.args(more).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{more:?}: {said}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn job_that_fails_ends_with_the_state_of_one_that_does_not() {
    let scratch = std::env::temp_dir().join(format!("cairn-proxy-{}", std::process::id()));
    let [plain, failing] = ["plain", "failing"].map(|name| scratch.join(name));
    let expected = run(&plain, &["--steps", "20"]);
    assert_eq!(expected["failures"], 0);
    let kept = std::fs::read_dir(&plain).expect("it is there").count();
    assert_eq!(kept, 6, "two steps of three ranks");
    let failed = run(&failing, &["--steps", "20", "--mtbf", "0.02", "--failures", "5"]);
    assert_eq!(failed["failures"], 5, "{failed}");
    assert_eq!(failed["states"], expected["states"]);
    std::fs::remove_dir_all(scratch).expect("removes");
}
