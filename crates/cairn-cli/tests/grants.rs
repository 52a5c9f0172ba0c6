//! `cairn target grant`, `revoke` and `list`.

mod common;

use common::Sandbox;
use common::target::{Target, start, start_at};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;

/// Starts a target with room for grants of 8 MiB. Returns it with its control socket.
fn granting(sandbox: &Sandbox) -> (Target, String) {
    let socket = sandbox.work().join("control").display().to_string();
    let (target, _) = start(sandbox, &["--control", &socket, "--grants", "ram:8M", "ram:1M"]);
    (target, socket)
}

fn mode(path: impl AsRef<std::path::Path>) -> u32 {
    std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777
}

#[test]
fn job_uses_what_it_was_granted_until_it_is_revoked() {
    let sandbox = Sandbox::new();
    let (_target, socket) = granting(&sandbox);
    assert_eq!(mode(&socket), 0o600);
    let key = sandbox.work().join("key").display().to_string();
    let told = ["--control", &socket, "--job", "4711"];
    let granted = [&["target", "grant"], &told[..], &["--size", "8M", "--auth", &key]].concat();
    let tier = sandbox.cairn(&granted).succeeds().stdout.trim().to_string();
    assert!(tier.ends_with(&format!(".job.4711?auth={key}")), "{tier}");
    assert_eq!(mode(&key), 0o600);
    sandbox
        .cairn(&["run", "--job", "j", "--tier", &tier, "--", "bash", "-c", "echo x >/cairn/f"])
        .succeeds();
    let list = ["--json", "target", "list", "--control", &socket];
    let listed = sandbox.cairn(&list).succeeds();
    assert!(!listed.stdout.contains("DHHC"));
    let listed: serde_json::Value = serde_json::from_str(&listed.stdout).expect("JSON");
    assert_eq!(listed[1]["job"], json!("4711"));
    assert_eq!(listed[1]["namespace_bytes"], json!([8 << 20]));
    sandbox.cairn(&["rm", "j", "--discard"]).succeeds();
    let revoke = [&["target", "revoke"], &told[..]].concat();
    sandbox.cairn(&revoke).succeeds();
    sandbox.cairn(&revoke).ends_with(1).says("nothing was granted to job \"4711\"");
    sandbox.cairn(&[&revoke[..], &["--if-granted"]].concat()).succeeds();
    let run = ["run", "--job", "k", "--tier", &tier, "--", "true"];
    assert_ne!(sandbox.cairn(&run).code, Some(0), "it is gone");
    let (text, rest) =
        (sandbox.cairn(&list[1..]).succeeds().stdout, "target: 1.00 MiB, 0 controllers");
    assert!(text.contains(rest) && !text.contains("4711"), "{text}");
}

#[test]
fn secrets_are_printed_once_or_written_to_a_file_of_their_own() {
    let sandbox = Sandbox::new();
    let (_target, socket) = granting(&sandbox);
    let grant = |job: &str, options: &[&str]| {
        let told = ["target", "grant", "--control", &socket, "--job", job, "--size", "1M"];
        sandbox.cairn(&[&told[..], options].concat())
    };
    let printed = grant("a", &["--host", "nqn.2026-11.test:mine"]).succeeds().stdout;
    let lines: Vec<_> = printed.lines().collect();
    assert!(lines[0].starts_with("# nvme-tcp://127.0.0.1:") && lines[1] == "nqn.2026-11.test:mine");
    assert!(lines[2..].iter().all(|line| line.starts_with("DHHC-1:01:")) && lines.len() == 4);
    let kept = sandbox.work().join("kept").display().to_string();
    std::fs::write(&kept, "mine").expect("writes");
    grant("b", &["--auth", &kept]).ends_with(1).says("exists");
    assert_eq!(std::fs::read_to_string(&kept).expect("reads"), "mine");
    let file = sandbox.work().join("file").display().to_string();
    grant("a", &["--auth", &file]).ends_with(1).says("revoke it first");
    assert!(!std::path::Path::new(&file).exists(), "nothing was granted");
    grant("c", &["--size", "1G"]).ends_with(2);
    grant("a b", &[]).ends_with(1).says("is not the name of a job");
    let large = ["target", "grant", "--control", &socket, "--job", "d", "--size", "8M"];
    sandbox.cairn(&large).ends_with(1).says("there is no room");
}

#[test]
fn target_that_is_not_there_or_is_another_one_is_said() {
    let sandbox = Sandbox::new();
    let (target, socket) = granting(&sandbox);
    let again = ["target", "--listen", "127.0.0.1:0", "--control", &socket, "ram:1M"];
    sandbox.cairn(&again).ends_with(1).says("listen on");
    drop(target);
    let list = ["target", "list", "--control", &socket];
    sandbox.cairn(&list).ends_with(1).says("is it running with --control?");
    sandbox.cairn(&["target", "list"]).ends_with(2).says("--control");
    sandbox.cairn(&["target", "--grants", "ram:1M"]).ends_with(2).says("--control");
    let empty = ["target", "grant", "--control", &socket, "--job", "j", "--size", "0"];
    let room = ["target", "--control", &socket, "--grants", "disk:1M"];
    sandbox.cairn(&room).ends_with(2).says("is not a place for grants");
    // The socket of a killed target blocks nobody.
    let _target = start(&sandbox, &["--control", &socket, "--grants", "ram:1M"]);
    sandbox.cairn(&empty).ends_with(1).says("a namespace needs at least one byte");
}

#[test]
fn what_was_granted_is_there_again_when_the_target_was_killed_and_started_again() {
    let sandbox = Sandbox::new();
    let room = sandbox.work().join("room");
    std::fs::create_dir(&room).expect("makes");
    let socket = sandbox.work().join("control").display().to_string();
    let room_option = format!("dir:{}:64M", room.display());
    let arguments = ["--control", &socket, "--grants", &room_option];
    let (target, report) = start(&sandbox, &arguments);
    let address = report["address"].as_str().expect("an address").to_string();
    let grant = |job: &str| {
        let key = sandbox.work().join(job).display().to_string();
        let told = ["target", "grant", "--control", &socket, "--job", job, "--size", "24M"];
        let granted = sandbox.cairn(&[&told[..], &["--auth", &key]].concat()).succeeds();
        granted.stdout.trim().to_string()
    };
    let other = sandbox.work().join("other").display().to_string();
    let taken =
        ["target", "--listen", "127.0.0.1:0", "--control", &other, "--grants", &room_option];
    sandbox.cairn(&taken).ends_with(1).says("room: another target has it");
    let (tier, gone) = (grant("kept"), grant("gone"));
    sandbox.cairn(&["target", "revoke", "--control", &socket, "--job", "gone"]).succeeds();
    sandbox
        .cairn(&["run", "--job", "a", "--tier", &tier, "--", "bash", "-c", "echo x >/cairn/f"])
        .succeeds();
    target.signal(libc::SIGKILL);
    assert_eq!(target.end(), None, "it was killed");
    let (_target, _) = start_at(&sandbox, &["--listen", &address], &arguments);
    for file in std::fs::read_dir(&room).expect("reads") {
        assert_eq!(mode(file.expect("reads").path()), 0o600);
    }
    let listed = sandbox.cairn(&["target", "list", "--control", &socket]).succeeds().stdout;
    assert!(listed.contains("kept") && !listed.contains("gone"), "{listed}");
    assert!(!listed.contains("DHHC"));
    let read = ["exec", "--job", "a", "--", "cat", "/cairn/f"];
    assert_eq!(sandbox.cairn(&read).succeeds().stdout, "x\n", "with the secret of before");
    sandbox.cairn(&["rm", "a", "--discard"]).succeeds();
    let lost = ["run", "--job", "b", "--tier", &gone, "--", "true"];
    assert_ne!(sandbox.cairn(&lost).code, Some(0), "what was revoked stays so");
}
