//! Faults of agents and of the file system that files are drained to.
//!
//! The file systems are small ones in memory, in a mount namespace of the test's own.

mod common;

use common::filter::refuse;
use common::loop_device::LoopDevice;
use common::{CAIRN, Ran, Sandbox, kill};
use std::process::Command;

/// Shell function `await`, which waits until a command succeeds.
const UNTIL: &str = r#"
    await() { for _ in $(seq 1200); do "$@" && return; sleep 0.05; done; echo "in vain: $*"; exit 9; }
    export -f await"#;

/// Runs a script where `$OUT` is a private file system of 8 MiB and `$CAIRN` the command. Returns
/// None if this machine gives users no such namespace.
fn with_small_file_system(sandbox: &Sandbox, script: &str) -> Option<Ran> {
    let launcher = ["unshare", "--map-root-user", "--mount"];
    with_file_system(sandbox, &launcher, "mount -t tmpfs -o size=8M small \"$OUT\"", script)
}

/// As above, with the file system that the command `mount` puts there; None if it cannot.
fn with_file_system(
    sandbox: &Sandbox,
    launcher: &[&str],
    mount: &str,
    script: &str,
) -> Option<Ran> {
    let within = |script: &str| {
        let mut command = sandbox.command(&[]);
        let environment: Vec<_> = command
            .get_envs()
            .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
            .collect();
        command = Command::new(launcher[0]);
        let script = format!("set -e; {mount}; {UNTIL}; {script}");
        command.args(&launcher[1..]).args(["bash", "-c", &script]);
        command.envs(environment).env("OUT", sandbox.out()).env("CAIRN", CAIRN);
        command.current_dir(sandbox.work()).output()
    };
    if !within("true").is_ok_and(|output| output.status.success()) {
        println!("no mount namespace for this user here: nothing is tested");
        return None;
    }
    Some(Ran::of(within(script).expect("starts"), script.to_string()))
}

#[test]
fn full_directory_keeps_the_store_and_takes_the_rest_when_there_is_room() {
    let sandbox = Sandbox::new();
    let script = r#"
        head -c 6M /dev/zero >"$OUT/filler"
        code=0; "$CAIRN" run --job full --persist "$OUT" -- bash -c '
            head -c 4M /dev/urandom | tee copy >/cairn/f' 2>said || code=$?
        cat said; [ $code = 75 ]; grep -q "no room in" said
        if [ -e "$OUT/f" ]; then cmp -n "$(stat -c %s "$OUT/f")" "$OUT/f" copy; fi
        rm "$OUT/filler"
        "$CAIRN" drain full; cmp "$OUT/f" copy; "$CAIRN" verify --persist "$OUT"
        "$CAIRN" rm full --discard"#;
    if let Some(ran) = with_small_file_system(&sandbox, script) {
        ran.succeeds();
    }
}

#[test]
fn directory_that_becomes_read_only_keeps_the_store_until_it_can_be_written() {
    let sandbox = Sandbox::new();
    let script = r#"
        code=0; "$CAIRN" run --job ro --persist "$OUT" -- bash -c '
            mount -o remount,ro "$OUT"; echo text >/cairn/f' 2>said || code=$?
        cat said; [ $code = 75 ]; grep -q "read-only file system" said
        mount -o remount,rw "$OUT"
        "$CAIRN" drain ro; [ "$(cat "$OUT/f")" = text ]
        "$CAIRN" rm ro --discard"#;
    if let Some(ran) = with_small_file_system(&sandbox, script) {
        ran.succeeds();
    }
}

#[test]
fn second_agent_of_a_store_leaves_it_to_the_first() {
    let sandbox = Sandbox::new();
    sandbox.run("one", "echo text >/cairn/f; exit 1").ends_with(1);
    let first = sandbox.agent("one");
    let store = sandbox.store("one");
    for _ in 0..3 {
        sandbox.cairn(&["agent", "--store", store.to_str().expect("UTF-8")]).succeeds();
    }
    assert_eq!(sandbox.agent("one"), first);
    assert_eq!(sandbox.drained("f"), "text\n");
}

#[test]
fn copy_that_was_cut_or_changed_is_made_again_when_somebody_asks() {
    let sandbox = Sandbox::new();
    sandbox.run("cut", "echo one >/cairn/cut; echo two >/cairn/changed; exit 1").ends_with(1);
    std::fs::write(sandbox.out().join("cut"), "on").expect("writes");
    std::fs::write(sandbox.out().join("changed"), "tWo\n").expect("writes");
    sandbox.cairn(&["drain", "cut"]).succeeds();
    assert_eq!(
        (sandbox.drained("cut"), sandbox.drained("changed")),
        ("one\n".into(), "two\n".into())
    );
}

/// Mechanism: a file system was unmounted, and its name led to the directory beneath it.
///
/// Consequence: the drain took that for a directory made anew, copied everything to the node's
/// disk, and reported it as safe.
///
/// Fix: the store knows the directory that it drains to, and refuses one of another file system or
/// another mount.
#[test]
fn directory_beneath_a_file_system_that_vanished_is_never_written_to() {
    let sandbox = Sandbox::new();
    // The directory beneath is on the same file system, so only the mount differs.
    let script = r#"
        mkdir "$OUT/real" "$OUT/seen"; mount --bind "$OUT/real" "$OUT/seen"
        code=0; "$CAIRN" run --job away --persist "$OUT/seen" -- bash -c '
            set -e; echo one >/cairn/a; await test -e "$OUT/seen/a"
            umount -l "$OUT/seen"; echo two >/cairn/b
            says() { "$CAIRN" status away | grep -q "^  agent .*is not the directory that the job drained to before"; }
            await says; [ -z "$(ls -A "$OUT/seen")" ]
            mount --bind "$OUT/real" "$OUT/seen"; await test -e "$OUT/seen/b"
            umount -l "$OUT/seen"; echo three >/cairn/c; exit 3' || code=$?
        [ $code = 3 ]; [ -z "$(ls -A "$OUT/seen")" ]
        code=0; "$CAIRN" run --job away -- true 2>said || code=$?
        cat said; [ $code = 2 ]; grep -q "nothing is written there" said
        code=0; "$CAIRN" drain away 2>said || code=$?
        cat said; [ $code = 75 ]; grep -q "nothing is written there" said; [ -z "$(ls -A "$OUT/seen")" ]
        mount --bind "$OUT/real" "$OUT/seen"
        "$CAIRN" drain away; [ "$(cat "$OUT/seen/a" "$OUT/seen/b" "$OUT/seen/c")" = "one
two
three" ]
        # Another one will do if that is said.
        umount "$OUT/seen" || umount -l "$OUT/seen"
        "$CAIRN" drain away --persist "$OUT/seen"; [ "$(cat "$OUT/seen/a")" = one ]
        "$CAIRN" rm away --discard"#;
    if let Some(ran) = with_small_file_system(&sandbox, script) {
        ran.succeeds();
    }
}

/// A frozen file system makes its writers wait, as a network file system does whose server is gone.
#[test]
fn directory_whose_writes_hang_hinders_nobody_and_status_says_what_hangs() {
    let sandbox = Sandbox::new();
    let Some(device) = LoopDevice::new(&sandbox.work(), 64 << 20) else { return };
    let mount = format!(
        "[ -b {0} ]; mkfs.ext4 -q {0} 2>made || {{ cat made; false; }}; mount {0} \"$OUT\"",
        device.path().display()
    );
    let script = r#"
        trap 'fsfreeze -u "$OUT" 2>/dev/null || true' EXIT
        "$CAIRN" run --job hangs --persist "$OUT" --retain count=1 --space-wait 1s -- bash -c '
            # What is open keeps the manifest from saying that all is there, which would be taken back first.
            set -e; exec 5>/cairn/open; echo one >/cairn/a
            # Which is written after the copy.
            await grep -qs "\"a\"" "$OUT/cairn-manifest.hangs.json"
            # A turn that is under way would hang, not the copy of b.
            is_turned() { ! ls -A "$OUT" | grep -q "^\.cairn"; }; await is_turned
            fsfreeze -f "$OUT"; head -c 1M /dev/zero >/cairn/b
            says() { "$CAIRN" status hangs | grep -q "^  hangs  *b: nothing has moved in the persist directory for"; }
            await says
            # The keeper.
            (exec 3>/cairn/killed; kill -9 $BASHPID) || true
            dead() { "$CAIRN" ls hangs | grep -q unclean; }; await dead
            # Programs, and those of them that wait for space.
            for _ in 1 2 3 4; do head -c 6M /dev/zero >/cairn/c; rm /cairn/c; done
            ! head -c 32M /dev/zero >/cairn/large 2>large; grep -q "No space left" large; rm /cairn/large
            [ ! -e "$OUT/b" ]
            fsfreeze -u "$OUT"; await test -e "$OUT/b"
            moves() { ! "$CAIRN" status hangs | grep -q "^  hangs"; }; await moves; exit 3' || [ $? = 3 ]
        cmp "$OUT/b" <(head -c 1M /dev/zero)
        "$CAIRN" rm hangs --discard"#;
    let launcher = ["unshare", "--mount"];
    if let Some(ran) = with_file_system(&sandbox, &launcher, &mount, script) {
        ran.succeeds();
    }
}

/// Mechanism: copies waited for their names in one directory of the persist directory, and in the
/// places of mapped ones. A rename from there fails where a user has mounted another file system.
/// Consequence: nothing more arrived. Fix: each file system has such a directory.
#[test]
fn directories_on_other_file_systems_get_their_files_too() {
    let sandbox = Sandbox::new();
    let mount = r#"mount -t tmpfs all "$OUT"; mkdir "$OUT/sub" "$OUT/here" "$OUT/bound"
        mount -t tmpfs sub "$OUT/sub"; mount --bind "$OUT/here" "$OUT/bound""#;
    let script = r#"
        "$CAIRN" run --job mounts --persist "$OUT" -- bash -c '
            mkdir -p /cairn/sub/deep /cairn/bound; echo one >/cairn/sub/f; echo two >/cairn/sub/deep/g
            "$CAIRN" drain mounts; [ "$(cat "$OUT/sub/f" "$OUT/sub/deep/g")" = "one
two" ]
            mv /cairn/sub/f /cairn/f; ln /cairn/f /cairn/bound/l; ln -s ../f /cairn/bound/s
            exec 3<>/cairn/sub/deep/g; echo TORN >&3
            await grep -q TORN "$OUT/sub/deep/g"; kill -9 $$' || [ $? = 137 ]
        [ ! -e "$OUT/sub/f" ]; [ "$(cat "$OUT/f" "$OUT/bound/l" "$OUT/bound/s" | sort -u)" = one ]
        [ "$(cat "$OUT/cairn-whole.mounts/sub/deep/g")" = two ]
        "$CAIRN" rm mounts; "$CAIRN" verify --persist "$OUT"; ! find "$OUT" -name ".cairn*" | grep ."#;
    let launcher = ["unshare", "--map-root-user", "--mount"];
    if let Some(ran) = with_file_system(&sandbox, &launcher, mount, script) {
        ran.succeeds();
    }
}

/// Mechanism: `cairn restore` took the manifest of a lost store as it was, and the turn that its
/// agent had begun was finished afterwards. Consequence: the new store had older contents than the
/// copies that were said to be its own. Fix: the turn is finished first.
#[test]
fn store_is_restored_from_a_directory_whose_turn_was_cut_off() {
    let sandbox = Sandbox::new();
    let script = r#"
import glob, json, os, signal, subprocess, time
out, cairn = os.environ['OUT'], os.environ['CAIRN']
def write(text):
    for number in range(500):
        with open(f'/cairn/f{number}', 'w') as file: file.write(text)
def is_turning():
    return any(os.path.isfile(path) for path in glob.glob(out + '/.cairn-*'))
write('first')
subprocess.run([cairn, 'drain', 'lost'], check=True)
status = subprocess.run([cairn, 'status', 'lost', '--json'], check=True, stdout=subprocess.PIPE).stdout
agent = json.loads(status)[0]['agent']['pid']
stopped, limit, count = False, time.monotonic() + 300, 0
while not stopped:
    count += 1
    write(f'text {count}')
    while not is_turning():
        assert time.monotonic() < limit, 'no turn was seen'
    os.kill(agent, signal.SIGSTOP)
    stopped = is_turning()
    if not stopped: os.kill(agent, signal.SIGCONT)
os.rename(out, os.path.join(out, '../lost'))
os.kill(agent, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"#;
    let out = sandbox.out();
    let mut command = sandbox.command(&["run", "--job", "lost", "--persist"]);
    command.arg(&out).args(["--", "python3", "-c", script]).env("CAIRN", CAIRN).env("OUT", &out);
    let ran = Ran::of(command.output().expect("starts"), "run".to_string());
    ran.ends_with(137);
    sandbox.cairn(&["rm", "lost", "--discard"]).succeeds();
    let lost = out.with_file_name("lost").display().to_string();
    sandbox.cairn(&["restore", &lost]).succeeds();
    let compare = format!("cd /cairn && for f in f*; do cmp $f {lost}/$f || exit 1; done");
    sandbox.cairn(&["run", "--job", "lost", "--", "bash", "-c", &compare]).succeeds();
    sandbox.cairn(&["verify", "--persist", &lost]).succeeds();
}

/// A file system in user space without a server makes everybody wait, as a network file system does
/// whose server is gone.
#[test]
fn directory_that_does_not_answer_at_the_start_of_a_run_is_named() {
    let sandbox = Sandbox::new();
    let mount = r#"python3 -c '
import ctypes, os, sys
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
sys.exit(ctypes.CDLL(None).mount(b"none", os.environ["OUT"].encode(), b"fuse", 0, options))
' 2>refused; umount -l "$OUT""#;
    let script = r#"exec python3 -c '
import ctypes, os, subprocess
out = os.environ["OUT"]
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
assert ctypes.CDLL(None).mount(b"none", out.encode(), b"fuse", 0, options) == 0
words = [os.environ["CAIRN"], "run", "--persist", out, "--", "true"]
run = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
assert run.stderr.readline() == f"cairn: waiting for {out}, which does not answer\n"
os.close(device)
said = run.communicate()[1]
assert run.returncode == 2 and "the persist directory" in said, said
'"#;
    if let Some(ran) =
        with_file_system(&sandbox, &["unshare", "--map-root-user", "--mount"], mount, script)
    {
        ran.succeeds();
    }
}

/// With a tier in a file, a close takes as long as a flush.
#[test]
fn writer_that_is_killed_in_its_close_leaves_a_checkpoint_that_is_whole_or_not_offered() {
    let sandbox = Sandbox::new();
    let tier = format!("file:{}:64M", sandbox.work().join("tier").display());
    let out = sandbox.out().display().to_string();
    let script = "
import os, signal
for step in range(1, 13):
    os.mkdir(f'/cairn/ckpt-{step}')
    with open(f'/cairn/ckpt-{step}/a', 'wb') as file: file.write(b'a' * 4096)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        file = os.open(f'/cairn/ckpt-{step}/b', os.O_WRONLY | os.O_CREAT)
        data = bytes([step]) * (1 << 20)
        while data: data = data[os.write(file, data):]
        os.write(writer, b'x')
        os.close(file)
        os.write(writer, b'y')
        while True: signal.pause()
    os.read(reader, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
os._exit(1)
";
    let head = ["run", "--job", "torn", "--persist", &out, "--tier", &tier, "--settle", "1h"];
    sandbox.cairn(&[&head[..], &["--", "python3", "-c", script]].concat()).ends_with(1);
    let rows = sandbox.cairn(&["ls", "--checkpoints", "torn", "--json"]).succeeds().json();
    let rows = rows.as_array().expect("a list");
    assert_eq!(rows.len(), 12, "{rows:?}");
    for row in rows {
        let step = row["step"].as_u64().expect("a step");
        let directory = sandbox.out().join(format!("ckpt-{step}"));
        if row["level"] == "pfs" {
            let copy = std::fs::read(directory.join("b")).expect("is there");
            assert!(copy.len() == 1 << 20 && copy.iter().all(|&byte| u64::from(byte) == step));
            assert_eq!(std::fs::read(directory.join("a")).expect("is there"), [b'a'; 4096]);
        } else {
            assert!(row["reason"].is_string(), "{row}");
        }
    }
    let offered = sandbox.cairn(&["ls", "--checkpoints", "torn", "--newest", "*"]);
    let newest =
        rows.iter().filter(|row| row["level"] == "pfs").filter_map(|row| row["step"].as_u64());
    match newest.max() {
        Some(step) => drop(offered.says(&format!("/cairn/ckpt-{step}/b"))),
        None => drop(offered.ends_with(1)),
    }
}

/// Leaves the store of a failed run, fully drained, with a flipped bit in the copy of `f`. The
/// copy's length and times are unchanged.
fn rotten(job: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.run(job, "echo one >/cairn/f; echo two >/cairn/g; exit 1").ends_with(1);
    let path = sandbox.out().join("f");
    let modified = path.metadata().and_then(|found| found.modified()).expect("is drained");
    std::fs::write(&path, "onE\n").expect("writes");
    let file = std::fs::File::options().write(true).open(&path).expect("opens");
    file.set_modified(modified).expect("sets the time");
    sandbox
}

/// Mechanism: a copy is recognized by its length and times, and the findings of `cairn verify` were
/// not recorded.
///
/// Consequence: the next drain, the end of a run, and `cairn rm` trusted a copy that was known to
/// be damaged, and the store was removed.
///
/// Fix: `cairn verify` tells the agent, which records it in the manifest. Such a copy does not
/// count.
#[test]
fn copy_that_verify_has_found_damaged_is_made_again_before_the_store_goes() {
    let ends = [
        &["drain", "rot"][..],
        &["rm", "rot"],
        &["gc", "--older-than", "0", "--job", "rot"],
        &["run", "--job", "rot", "--", "true"],
    ];
    for end in ends {
        let sandbox = rotten("rot");
        let out = sandbox.out().display().to_string();
        let found = sandbox.cairn(&["verify", "rot", "--persist", &out]).ends_with(1);
        found
            .says("/f: its checksum is")
            .says("1 of these is still in its store")
            .says("cairn drain rot");
        assert_eq!(sandbox.manifest("rot")["complete"], false);
        // The next agent knows the finding, too.
        kill("KILL", i64::from(sandbox.agent("rot")));
        match end[0] {
            "gc" => drop(sandbox.cairn(end).ends_with(1).says("1 whose copy is gone")),
            _ => {
                sandbox.cairn(end).succeeds();
                assert_eq!(sandbox.drained("f"), "one\n", "{end:?}");
                sandbox.cairn(&["verify", "--persist", &out]).succeeds();
            }
        }
    }
}

#[test]
fn copies_are_compared_before_the_store_goes_where_that_is_asked_for() {
    for end in [["drain", "rot", "--verify"], ["rm", "rot", "--verify"]] {
        let sandbox = rotten("rot");
        sandbox.cairn(&["drain", "rot"]).succeeds();
        assert_eq!(sandbox.drained("f"), "onE\n", "nobody has looked");
        sandbox.cairn(&end).succeeds();
        assert_eq!(sandbox.drained("f"), "one\n", "{end:?}");
    }
}

/// A cut that has no room outside leaves the one before it, whole.
#[test]
fn cut_that_has_no_room_leaves_the_last_one_and_says_how_much_it_needs() {
    let sandbox = Sandbox::new();
    let script = r#"
        "$CAIRN" run --job tight --tier ram:64M --temporary part --persist "$OUT" -- bash -c '
            set -e; exec 7>/cairn/a 8>/cairn/b
            head -c 1500K /dev/urandom >&7; head -c 1500K /dev/urandom >&8
            cp /cairn/a is-a; cp /cairn/b is-b; "$CAIRN" drain tight
            head -c 20M /dev/urandom >/cairn/part; mv /cairn/part /cairn/c; head -c 1M /dev/urandom >&8
            code=0; "$CAIRN" drain tight 2>said || code=$?
            cat said; [ $code = 75 ]; grep "no room in $OUT for what changed.*: [0-9]* bytes more" said
            cmp -n 1536000 "$OUT/a" is-a; cmp -n 1536000 "$OUT/b" is-b
            rm /cairn/c; exec 7>/cairn/a; "$CAIRN" drain tight; cmp /cairn/b "$OUT/b"'"#;
    if let Some(ran) = with_small_file_system(&sandbox, script) {
        ran.succeeds();
    }
}

/// Mechanism: a mode that the file system of the persist directory refused was an error of the
/// directory.
///
/// Consequence: nothing was drained to file systems without permission bits, or with access control
/// lists in their place.
///
/// Fix: the refusal is reported, and the files are drained.
#[test]
fn files_are_drained_to_a_file_system_that_refuses_modes() {
    let sandbox = Sandbox::new();
    let out = sandbox.out().display().to_string();
    // A refusal in an earlier pass is reported at the end, too.
    let script = r#"
        echo text >/cairn/file; chmod 640 /cairn/file; mkdir /cairn/d; echo more >/cairn/d/file
        "$CAIRN" drain job"#;
    let arguments = ["run", "--job", "job", "--persist", &out, "--", "bash", "-c", script];
    let mut command = sandbox.command(&arguments);
    command.env("CAIRN", CAIRN);
    // Mode 0600 stays permitted, because segments of a store need it.
    refuse(&mut command, libc::SYS_fchmod, libc::EPERM, Some(0o600));
    let output = command.output().expect("starts");
    let ran = Ran::of(output, script.to_string()).succeeds();
    ran.says("store removed").says("without all permission bits");
    assert_eq!([sandbox.drained("file"), sandbox.drained("d/file")], ["text\n", "more\n"]);
    sandbox.cairn(&["verify", "--persist", &out]).succeeds();
}
