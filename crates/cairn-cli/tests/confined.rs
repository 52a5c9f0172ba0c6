//! `cairn run` where shared memory, address space or what is allocated ahead is not as usual.

mod common;

use common::{Ran, Sandbox, eventually};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

/// Runs a shell script with `cairn` as `$CAIRN` and no store root or tier chosen.
fn script(sandbox: &Sandbox, launcher: &[&str], text: &str) -> Ran {
    let mut command = Command::new(launcher[0]);
    command.args(&launcher[1..]).args(["bash", "-ec", text]);
    command.current_dir(sandbox.work()).stdin(Stdio::null());
    for variable in ["CAIRN_STORE_ROOT", "CAIRN_RUN_TIER", "CAIRN_STORE", "XDG_RUNTIME_DIR"] {
        command.env_remove(variable);
    }
    command.env("CAIRN", common::CAIRN).env("ROOT", sandbox.root());
    command.env("CAIRN_RUN_HUGE_PAGES", "never");
    Ran::of(command.output().expect("starts"), text.to_string())
}

#[test]
fn small_shared_memory_is_passed_over_unless_it_was_chosen() {
    let sandbox = Sandbox::new();
    let launcher: Vec<&str> = "unshare --user --map-root-user --mount".split_whitespace().collect();
    let possible = Command::new(launcher[0]).args(&launcher[1..]).arg("true").output();
    if !possible.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this machine does not allow mount namespaces");
        return;
    }
    let job = format!("small-shm-{}", std::process::id());
    let mount = "mount -t tmpfs -o size=16m,mode=1777 tmpfs /dev/shm\n\
        mkdir $ROOT/user && export XDG_RUNTIME_DIR=$ROOT/user\n";
    let text = format!(
        "{mount}
        $CAIRN run --discard -- bash -c 'head -c 40000000 /dev/zero >/cairn/x; stat -c %s /cairn/x'
        $CAIRN run --job {job} -- bash -c 'echo kept >/cairn/f'
        $CAIRN status {job} >/dev/null
        $CAIRN run --job {job} --discard -- cat /cairn/f
        $CAIRN run --tier ram:1G --discard -- echo large
        $CAIRN run --tier ram:8M --discard -- ls /dev/shm | wc -l"
    );
    let ran = script(&sandbox, &launcher, &text).succeeds();
    assert_eq!(ran.stdout, "40000000\nkept\nlarge\n1\n");
    let user = sandbox.root().join("user");
    let line =
        format!("cairn: /dev/shm has only 16.0 MiB free: the store lives in {}", user.display());
    assert_eq!(ran.stderr.matches(&line).count(), 3, "{}", ran.stderr);

    let refused =
        format!("rmdir $ROOT/user; {mount} $CAIRN run --store-root /dev/shm --tier ram:1G -- true");
    script(&sandbox, &launcher, &refused).refused_with("free in /dev/shm");
}

#[test]
fn little_address_space_makes_a_small_tier_and_refuses_a_large_one() {
    let sandbox = Sandbox::new();
    let limited = |rest: &str| format!("ulimit -v 4000000; $CAIRN --store-root $ROOT {rest}");
    let text = limited(
        "run --discard -- bash -c 'seq 100000 >/cairn/f; cp /cairn/f /cairn/g; wc -l </cairn/g'",
    );
    script(&sandbox, &["env"], &text).succeeds().prints("100000\n");
    let text = limited("run --tier ram:3G -- true");
    script(&sandbox, &["env"], &text).refused_with("ulimit -v");
}

#[test]
fn the_beginning_of_the_tier_is_allocated_before_it_is_used() {
    let sandbox = Sandbox::new();
    let arguments =
        ["run", "--tier", "ram:64M", "--job", "ahead", "--discard", "--", "sleep", "60"];
    let mut child = sandbox.command(&arguments).stderr(Stdio::null()).spawn().expect("starts");
    eventually("a quarter of the tier is allocated", || {
        let segment = fs::metadata(sandbox.store("ahead").join("node.ram0"));
        segment.is_ok_and(|segment| segment.blocks() * 512 >= 16 << 20)
    });
    common::kill("TERM", i64::from(child.id()));
    child.wait().expect("ends");
}
