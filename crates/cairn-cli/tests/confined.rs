//! `cairn run` under limits of shared memory or address space, and allocation ahead of use.

mod common;

use common::{Ran, Sandbox, eventually};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

/// Runs a shell script with `cairn` as `$CAIRN` and with no store root or tier chosen.
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

/// Launcher under which a command may mount; None if this machine does not allow that.
fn mounter() -> Option<Vec<&'static str>> {
    let launcher: Vec<&str> = "unshare --user --map-root-user --mount".split_whitespace().collect();
    let possible = Command::new(launcher[0]).args(&launcher[1..]).arg("true").output();
    if possible.is_ok_and(|output| output.status.success()) {
        return Some(launcher);
    }
    eprintln!("skipped: this machine does not allow mount namespaces");
    None
}

#[test]
fn small_shared_memory_is_passed_over_unless_it_was_chosen() {
    let sandbox = Sandbox::new();
    let Some(launcher) = mounter() else { return };
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
fn tier_without_a_size_has_half_of_what_is_free_says_so_and_keeps_it() {
    let sandbox = Sandbox::new();
    let Some(launcher) = mounter() else { return };
    // The file system of the tier's file has 64 MiB, that of the store 16 MiB.
    let text = "mount -t tmpfs -o size=64m tmpfs $ROOT; mkdir $ROOT/shm
        mount -t tmpfs -o size=16m tmpfs $ROOT/shm
        export CAIRN_STORE_ROOT=$ROOT/shm
        run() { $CAIRN run --job half \"$@\"; }
        run --tier file:$ROOT/tier -- bash -c 'echo kept >/cairn/f'
        $CAIRN status half | grep -o 'of .* used, /.*'
        run --tier file:$ROOT/tier -- cat /cairn/f
        rm -r $ROOT/shm/*
        run --tier file:$ROOT/tier --discard -- cat /cairn/f
        apart() { run --meta-tier file:$ROOT/meta:4M --tier ram,file:$ROOT/tier \"$@\"; }
        apart -- bash -c 'echo lost >/cairn/d'
        # An agent keeps the memory of what is removed until it ends.
        agent=$($CAIRN status half --json | python3 -c 'import json, sys; print(json.load(sys.stdin)[0][\"agent\"][\"pid\"])')
        kill -KILL $agent; while kill -0 $agent 2>/dev/null; do :; done
        rm -r $ROOT/shm/*
        apart --discard -- ls /cairn
        test ! -e $ROOT/tier";
    let ran = script(&sandbox, &launcher, text).succeeds();
    let [file, meta] = ["tier", "meta"].map(|name| sandbox.root().join(name).display().to_string());
    assert_eq!(ran.stdout, format!("of 32.0 MiB used, {file}\nkept\nkept\nd\n"), "{}", ran.stderr);
    for line in [
        format!(
            "cairn: the store has 32.0 MiB in {file}; to choose the size: --tier file:PATH:SIZE\n"
        ),
        format!("cairn: recovered 1 files and directories from file:{file}:32M\n"),
        "cairn: the store has 8.00 MiB of memory; to choose the size: --tier ram:SIZE\n"
            .to_string(),
        format!(
            "cairn: the store has 30.0 MiB in {file}; to choose the size: --tier file:PATH:SIZE\n"
        ),
        format!("cairn: recovered 1 files and directories from file:{meta}:4M\n"),
    ] {
        assert_eq!(ran.stderr.matches(&line).count(), 1, "{line} in {}", ran.stderr);
    }
}

#[test]
fn shared_memory_that_others_fill_is_an_error_and_not_a_signal() {
    let sandbox = Sandbox::new();
    let Some(launcher) = mounter() else { return };
    // The agent allocates at most 512 MiB ahead of use, so there is always a block without memory.
    let program = "
import errno, os
BLOCK = 32768
file = os.open('/cairn/f', os.O_RDWR | os.O_CREAT)
other = os.open('/dev/shm/other', os.O_WRONLY | os.O_CREAT)
for size in (1 << 20, 4096):
    try:
        while True: os.write(other, bytes(size))
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
written = 0
try:
    while written < 800 * 32:
        assert os.pwrite(file, b'mine', written * BLOCK) == 4
        written += 1
except OSError as error:
    print(errno.errorcode[error.errno])
assert all(os.pread(file, 4, number * BLOCK) == b'mine' for number in range(written))
os.ftruncate(other, 0)
assert os.pwrite(file, b'mine', written * BLOCK) == 4
print('goes on')";
    fs::write(sandbox.work().join("fills.py"), program).expect("writes");
    // Each run has its own memory: the first run's agent may still hold its store's memory.
    let text = "mount -t tmpfs -o size=900m,mode=1777 tmpfs /dev/shm
        $CAIRN --store-root /dev/shm run --tier ram:800M --discard -- python3 fills.py
        mount -t tmpfs -o size=900m,mode=1777 tmpfs /dev/shm
        $CAIRN --store-root /dev/shm run --tier ram:800M,file:$ROOT/t:8M --discard -- python3 fills.py";
    let ran = script(&sandbox, &launcher, text).succeeds();
    assert_eq!(ran.stdout, "ENOSPC\ngoes on\nENOSPC\ngoes on\n");
}

#[test]
fn what_was_closed_in_shared_memory_that_others_fill_is_drained() {
    let sandbox = Sandbox::new();
    let Some(launcher) = mounter() else { return };
    // Larger than the pieces that the drain marks as copied.
    let program = "
import os, sys, time
content = os.urandom(1 << 20) * 40
open('/cairn/ckpt_1.pt', 'wb').close()
copy = sys.argv[1] + '/ckpt_2.pt'
with open('/cairn/ckpt_2.pt', 'wb', buffering=0) as file:
    for part in range(40): file.write(content[part << 20:(part + 1) << 20])
    other = os.open('/dev/shm/other', os.O_WRONLY | os.O_CREAT)
    for size in (1 << 20, 4096):
        try:
            while True: os.write(other, bytes(size))
        except OSError: pass
until = time.monotonic() + 30
is_outside = lambda: os.path.exists(copy) and open(copy, 'rb').read() == content
while not is_outside() and time.monotonic() < until: time.sleep(0.02)
print(is_outside())
os.ftruncate(other, 0)";
    fs::write(sandbox.work().join("fills.py"), program).expect("writes");
    let text = "mount -t tmpfs -o size=200m,mode=1777 tmpfs /dev/shm
        $CAIRN --store-root /dev/shm run --tier ram:100M --persist $ROOT/out -- python3 fills.py $ROOT/out";
    fs::create_dir(sandbox.root().join("out")).expect("makes");
    assert_eq!(script(&sandbox, &launcher, text).succeeds().stdout, "True\n");
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
