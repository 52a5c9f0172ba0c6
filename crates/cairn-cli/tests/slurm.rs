//! `cairn slurm install`: files for Slurm, and the check of a configuration. What the files do is
//! tested on a real Slurm (`make slurm`).

mod common;

use common::Sandbox;
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn files_are_installed_and_settings_are_kept() {
    let sandbox = Sandbox::new();
    let slurm = sandbox.work().join("slurm");
    let directory = slurm.display().to_string();
    let install = ["slurm", "install", "--directory", &directory, "spank", "burst-buffer", "gres"];
    let ran = sandbox.cairn(&install).succeeds();
    assert!(
        ran.stdout.contains("required ") && ran.stdout.contains("cairn_spank.so"),
        "{}",
        ran.stdout
    );
    assert!(ran.stdout.contains(&format!("Epilog={directory}/cairn-bb/epilog")), "{}", ran.stdout);
    let script = slurm.join("cairn-bb/stage");
    assert_eq!(fs::metadata(&script).expect("is there").permissions().mode() & 0o777, 0o755);
    fs::write(slurm.join("cairn-bb/settings"), "mine").expect("writes");
    fs::write(&script, "old").expect("writes");
    let again = sandbox.cairn(&install).succeeds();
    assert!(again.stdout.contains("kept "), "{}", again.stdout);
    assert_eq!(fs::read(slurm.join("cairn-bb/settings")).expect("is there"), b"mine");
    assert_ne!(fs::read(&script).expect("is there"), b"old");
}

#[test]
fn configuration_that_is_missing_is_found_wrong() {
    let sandbox = Sandbox::new();
    let nowhere = sandbox.work().join("none").display().to_string();
    let ran = sandbox.cairn(&["slurm", "install", "--check", &nowhere]).ends_with(1);
    assert!(ran.stdout.contains("BAD"), "{}", ran.stdout);
    sandbox.cairn(&["slurm", "install"]).ends_with(2);
}
