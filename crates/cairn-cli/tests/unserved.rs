//! Programs into which the system loads nothing: they see no file below the mount, and the user is told.

mod common;

use common::Sandbox;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Ways to execute it: by path, by `PATH`, and as Python does with and without a child.
const WAYS: [&str; 5] = [
    "/tmp/cairn-gains/cat /cairn/f",
    "env PATH=/tmp/cairn-gains:/bin:/usr/bin cat /cairn/f",
    "exec /tmp/cairn-gains/cat /cairn/f",
    "python3 -c 'import os; os.execvp(\"/tmp/cairn-gains/cat\", [\"cat\", \"/cairn/f\"])'",
    "python3 -c 'import subprocess, sys; sys.exit(subprocess.run([\"/tmp/cairn-gains/cat\", \"/cairn/f\"]).returncode)'",
];

/// Nobody can be told when it happens, because the library prints nothing.
#[test]
fn program_that_gains_rights_is_named_at_the_end_and_in_the_status() {
    let sandbox = Sandbox::new();
    let directory = sandbox.work().join("gains");
    fs::create_dir(&directory).expect("makes");
    let program = directory.join("cat");
    fs::copy("/bin/cat", &program).expect("copies");
    // Of another group: of a user it could only be for root.
    let is_given = std::os::unix::fs::chown(&program, None, Some(65534)).is_ok();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o2755)).expect("changes");
    if !is_given {
        println!("left out: this user may not give files away");
        return;
    }
    for (index, way) in WAYS.iter().enumerate() {
        let job = format!("gains{index}");
        let way = way.replace("/tmp/cairn-gains", directory.to_str().expect("UTF-8"));
        let ran = sandbox.run_undrained(&job, &format!("echo secret >/cairn/f; {way}"));
        let ran = ran.ends_with(1).says("No such file or directory").says("not served: ");
        assert!(ran.stderr.contains("gains/cat: gained rights"), "{way}: {}", ran.stderr);
        let status = sandbox.cairn(&["status", &job]).succeeds();
        assert!(status.stdout.contains("gains/cat: gained rights"), "{}", status.stdout);
        let json = sandbox.cairn(&["status", &job, "--json"]).succeeds().json();
        assert_eq!(json[0]["unserved"].as_array().map(Vec::len), Some(1), "{json}");
        sandbox.cairn(&["rm", &job, "--discard"]).succeeds();
    }
}

#[test]
fn program_that_is_served_is_not_named() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run_undrained("served", "echo x >/cairn/f; cat /cairn/f; env cat /cairn/f");
    let ran = ran.prints("x\nx\n");
    assert!(!ran.stderr.contains("not served"), "{}", ran.stderr);
}
