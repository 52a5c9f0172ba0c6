//! Stores in which another process of the same user has put foreign files, and commands that read
//! there.

mod common;

use common::{CAIRN, Ran, Sandbox};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

/// Files in the directory of a store that commands and the library read and write, grouped by the
/// job for which they are all odd.
const FILES: [(&str, &[&str]); 3] = [
    ("described", &["job.json"]),
    ("held", &["agent.lock", "run.lock", "agent.log"]),
    ("noted", &["notes", "ranks", "calls", "unserved/1.2"]),
];
/// Larger than memory, in bytes.
const TOO_LARGE: u64 = 1 << 40;

/// Runs a command in the job's sandbox; it must neither hang nor be killed.
fn ends(sandbox: &Sandbox, odd: &str, arguments: &[&str]) -> Ran {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "300", CAIRN]).args(arguments).current_dir(sandbox.work());
    command.env("CAIRN_STORE_ROOT", sandbox.root()).env("CAIRN_RUN_TIER", "ram:16M");
    let output = command.output().expect("starts");
    let code = output.status.code();
    let text = format!("{odd}: {arguments:?}");
    if code.is_none_or(|code| code >= 124) {
        // Otherwise the end of the sandbox could hang, too.
        let _ = fs::remove_dir_all(sandbox.root());
    }
    assert!(code.is_some_and(|code| code < 124), "{text} ended with {code:?}");
    Ran::of(output, text)
}

fn make_fifo(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status();
    assert!(made.is_ok_and(|status| status.success()));
}

fn make_huge_file(path: &Path) {
    File::create(path).and_then(|file| file.set_len(TOO_LARGE)).expect("it takes no room");
}

/// Mechanism: files of a store were opened and read whatever kind of file was there. A reader
/// waited for a FIFO, and allocated as much memory as a file claimed to be long.
///
/// Consequence: one such store, which any process of the user can make by mistake, kept `cairn
/// status` from reporting any job.
///
/// Fix: only regular files of a bounded length are read (`Descriptor::open_regular`).
#[test]
fn odd_files_in_a_store_hold_nothing_up() {
    for kind in ["a FIFO", "a huge file"] {
        let sandbox = Sandbox::new();
        sandbox.run_undrained("kept", "echo kept >/cairn/f").succeeds();
        for (job, names) in FILES {
            sandbox.run_undrained(job, "echo x >/cairn/f").succeeds();
            for name in names {
                let path = sandbox.store(job).join(name);
                fs::create_dir_all(path.parent().expect("a directory")).expect("makes");
                let _ = fs::remove_file(&path);
                match kind {
                    "a FIFO" => make_fifo(&path),
                    _ => make_huge_file(&path),
                }
            }
            let ends = |arguments: &[&str]| ends(&sandbox, kind, arguments);
            let status = ends(&["status"]);
            assert!(status.stdout.contains("kept"), "{kind}: {}", status.stdout);
            ends(&["status", job, "--json"]);
            ends(&["calls", job]);
            ends(&["ls", job, "--json"]);
            ends(&["run", "--job", job, "--", "cat", "/cairn/f"]);
        }
    }
}
