//! A store on a namespace of another machine, exported by `cairn target` here.

mod common;
#[path = "common/exported.rs"]
mod exported;
#[path = "common/machine.rs"]
mod machine;

use cairn_nvme::claim::Claim;
use cairn_nvme::controller::Settings;
use cairn_nvme::remote::Remote;
use cairn_nvme::tcp::TcpFabric;
use cairn_nvme::wire::Nqn;
use common::Sandbox;
use exported::{NAME, READ, Target, WRITE, exporting, lose_memory};
use machine::{Machine, ran};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn what_was_closed_is_there_when_the_node_has_lost_its_memory() {
    let sandbox = exporting();
    let target = Target::any(&sandbox);
    let run = |job: &str, script: &str| {
        let tier = ["--tier", &target.tier, "--yes"];
        let all = [&["run", "--job", job], &tier[..], &["--", "bash", "-c", script]].concat();
        sandbox.cairn(&all)
    };
    let written = run("first", WRITE).succeeds().stdout;
    let resumed = run("first", READ).succeeds().stdout;
    assert_eq!(resumed, written, "read by other processes");
    sandbox.cairn(&["status", "first"]).succeeds().says(&target.tier);
    run("second", "true").ends_with(2).says("another store uses it");
    lose_memory(&sandbox, "first");
    sandbox.cairn(&["fsck", &target.tier]).succeeds();
    let recovered = run("second", READ).succeeds().stdout;
    assert_eq!(recovered, written, "after the memory was lost");
    sandbox.cairn(&["rm", "second", "--discard"]).succeeds();
    let empty = run("third", "ls -A /cairn").succeeds().stdout;
    assert_eq!(empty, "", "a store that was removed leaves nothing behind");
}

/// Mechanism: an address was shown as the path that it is internally.
///
/// Consequence: no command accepted the printed text as a tier.
///
/// Fix: it is shown as the user gives it, wherever a tier is shown.
#[test]
fn namespace_is_shown_as_it_is_given() {
    let sandbox = exporting();
    let Target { tier, .. } = &Target::start(&sandbox, "127.0.0.1:0");
    let arguments =
        ["run", "--job", "job", "--meta-tier", tier, "--tier", "ram:8M", "--", "bash", "-c"];
    sandbox.cairn(&[&arguments[..], &["echo x >/cairn/x"]].concat()).succeeds();
    sandbox.cairn(&["status", "job"]).succeeds().says(&format!("directories, {tier}"));
    lose_memory(&sandbox, "job");
    let checked = sandbox.cairn(&["fsck", tier]).succeeds().stdout;
    assert!(checked.starts_with(tier), "{checked}");
}

/// Mechanism: the file that is locked in place of a namespace was named after the address, and the
/// reservation belongs to the machine.
///
/// Consequence: a second store that used another address of the target recovered the namespace
/// under the first one.
///
/// Fix: a file named after the tier is locked, too.
#[test]
fn namespace_by_another_address_of_its_target_is_refused_to_a_second_store() {
    let sandbox = exporting();
    let target = Target::start(&sandbox, "0.0.0.0:0");
    let run = |job: &str, address: &str, script: &str| {
        let tier = target.tier.replace("0.0.0.0", address);
        sandbox.cairn(&["run", "--job", job, "--tier", &tier, "--", "bash", "-c", script])
    };
    let written = run("first", "127.0.0.1", WRITE).succeeds().stdout;
    run("second", "127.0.0.2", READ).ends_with(2).says("another store uses it");
    assert_eq!(run("first", "127.0.0.1", READ).succeeds().stdout, written);
    sandbox.cairn(&["rm", "first", "--discard"]).succeeds();
    run("second", "127.0.0.2", WRITE).succeeds();
}

/// Connects as another machine that claims the export.
fn claimant(target: &Target, claim: Claim) -> Remote<TcpFabric> {
    let fabric = TcpFabric::new(target.address.parse().expect("an address"));
    let settings = Settings { claim, ..Settings::new(*b"another machine!") };
    let name = Nqn::new(NAME).expect("a name");
    Remote::connect(fabric, &name, 1, &settings, Duration::from_secs(5)).expect("claimed")
}

#[test]
fn store_on_a_namespace_of_another_machine_is_refused_until_it_takes_over_and_then_that_one_is() {
    let sandbox = exporting();
    let target = Target::start(&sandbox, "127.0.0.1:0");
    let mut other = claimant(&target, Claim::Exclusive);
    let run = |tier: &str, script: &str| {
        sandbox.cairn(&["run", "--job", "job", "--tier", tier, "--", "bash", "-c", script])
    };
    run(&target.tier, "true").ends_with(2).says("if that machine is dead, add take-over=yes");
    let taking = format!("{}&take-over=yes", target.tier);
    run(&taking, WRITE).succeeds();
    other.write(0, &[1; 4096]).expect_err("it was put out");
    run(&target.tier, READ).succeeds();
    let mut heir = claimant(&target, Claim::TakeOver);
    let exported = || fs::read(sandbox.work().join("export")).expect("is there");
    let before = exported();
    let late = run(&target.tier, "cd /cairn && cp g h && sync h");
    assert_ne!(late.code, Some(0), "a store that was put out goes on");
    assert!(exported() == before, "it has written");
    heir.write(0, &[2; 4096]).expect("it has taken over");
}

#[test]
fn namespace_of_a_store_that_was_removed_is_free_for_other_machines() {
    let sandbox = exporting();
    let target = Target::start(&sandbox, "127.0.0.1:0");
    sandbox
        .cairn(&["run", "--job", "job", "--tier", &target.tier, "--", "bash", "-c", WRITE])
        .succeeds();
    sandbox.cairn(&["rm", "job", "--discard"]).succeeds();
    claimant(&target, Claim::Exclusive);
}

/// Mechanism: a tier that could not be opened counted as missing.
///
/// Consequence: `cairn rm` reported that the store was removed, but all its data stayed on the
/// target.
///
/// Fix: the tiers that stay are named, with the reason.
#[test]
fn namespace_that_cannot_be_reached_when_its_store_is_removed_stays_and_that_is_said() {
    let sandbox = exporting();
    let mut target = Target::start(&sandbox, "127.0.0.1:0");
    let run = |tier: &str, script: &str| {
        sandbox.cairn(&["run", "--job", "job", "--tier", tier, "--", "bash", "-c", script])
    };
    let written = run(&target.tier, WRITE).succeeds().stdout;
    target.end();
    let removed = sandbox.cairn(&["rm", "job", "--discard"]).succeeds();
    assert_eq!(removed.stdout, "store of job job removed\n");
    assert_eq!(removed.stderr.lines().count(), 1, "{}", removed.stderr);
    removed.says("is there a target?").says(&target.address).says("take-over=yes");
    let again = Target::start(&sandbox, &target.address);
    assert_eq!(run(&again.tier, READ).succeeds().stdout, written, "it was not emptied");
    let removed = sandbox.cairn(&["rm", "job", "--discard"]).succeeds();
    assert_eq!(removed.stderr, "");
}

/// Mechanism: every refusal by a target was taken for a lack of permission, and a connection that
/// it closed for a violation of the protocol.
///
/// Consequence: a user whose namespace was gone, or for whom the target had no connection left, got
/// a wrong reason.
///
/// Fix: the message repeats what the target said.
#[test]
fn target_without_what_is_asked_for_or_without_a_place_is_said_to_be_so() {
    let sandbox = exporting();
    let mut target = Target::start(&sandbox, "127.0.0.1:0");
    let persist = sandbox.out().display().to_string();
    let options = ["--meta-tier", "ram", "--persist", &persist, "--drain", "none"];
    let run = |tier: &str| {
        let run = [&["run", "--job", "job", "--tier", tier], &options[..]].concat();
        let script = ["--", "bash", "-c", "head -c 20M /dev/urandom >/cairn/kept"];
        sandbox.cairn(&[&run[..], &script].concat())
    };
    run(&target.tier.replace("nsid=1", "nsid=7")).refused_with("has no such namespace in it");
    run(&target.tier.replace(NAME, "nqn.x:y")).refused_with("has no such subsystem");
    run(&target.tier).succeeds();
    target.end();
    let export = format!("file:{}", sandbox.work().join("export").display());
    let other = ["--json", "target", "--listen", &target.address, "--nqn", "nqn.x:y", &export];
    let mut other = Target::spawn(&mut sandbox.command(&other));
    run(&target.tier).refused_with("has no such subsystem; it may have been revoked");
    assert_ne!(sandbox.cairn(&["drain", "job"]).code, Some(0));
    sandbox.cairn(&["status", "job"]).succeeds().says("the target has no such namespace any more");
    other.end();
    let full = Target::start_with(&sandbox, &target.address, &["--connections", "1"]);
    run(&full.tier).refused_with("has no place for more");
}

#[test]
fn target_is_started_again_under_programs_then_nothing_fails() {
    const ROUNDS: &str =
        "cd $D && touch $BEGUN && for i in $(seq 30); do seq $i 60000 >f$((i % 4)); done; cksum f*";
    let sandbox = exporting();
    let mut target = Target::start(&sandbox, "127.0.0.1:0");
    let plain = sandbox.work().join("plain");
    fs::create_dir(&plain).expect("makes");
    let script = |directory: &Path, begun: &str| {
        let begun = sandbox.work().join(begun);
        format!("D={} BEGUN={}; {ROUNDS}", directory.display(), begun.display())
    };
    let here = Command::new("bash").args(["-c", &script(&plain, "x")]).output().expect("runs");
    let script = script(Path::new("/cairn"), "begun");
    let run = ["run", "--job", "job", "--tier", &target.tier, "--", "bash", "-c", &script];
    let mut run = sandbox.command(&run);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
    common::eventually("the program runs", || sandbox.work().join("begun").exists());
    target.end();
    let _again = Target::start(&sandbox, &target.address);
    let there = run.wait_with_output().expect("ends");
    assert_eq!(String::from_utf8_lossy(&there.stdout), String::from_utf8_lossy(&here.stdout));
}

/// A target whose file system has less room than it exports.
fn with_little_room(sandbox: &Sandbox, machine: &Machine, size: &str) -> Target {
    let small = sandbox.work().join("small");
    fs::create_dir(&small).expect("makes");
    let mount = ["-t", "tmpfs", "-o", size, "none"];
    ran(machine.command("mount").args(mount).arg(&small)).succeeds();
    let file = small.join("export");
    ran(machine.command("truncate").args(["--size", "64M"]).arg(&file)).succeeds();
    let export = format!("file:{}", file.display());
    let arguments = ["--json", "target", "--listen", "127.0.0.1:0", "--nqn", NAME, &export];
    Target::spawn(&mut machine.cairn(sandbox, &arguments))
}

/// Writes a file that fits, then one that does not, and prints whether the second succeeded.
const FILL: &str = "cd /cairn && head -c 4M /dev/urandom >kept && sync kept && cksum kept; \
    head -c 40M /dev/urandom >more && sync more; echo $?; cksum kept";

#[test]
fn target_that_has_no_room_fails_what_does_not_fit_and_keeps_the_rest() {
    let Some(machine) = Machine::start() else { return };
    let sandbox = Sandbox::new();
    let target = with_little_room(&sandbox, &machine, "size=16m");
    let run = ["run", "--job", "job", "--tier", &target.tier, "--", "bash", "-c", FILL];
    let filled = sandbox.cairn(&run).stdout;
    let lines: Vec<&str> = filled.lines().collect();
    let [kept, failed, again] = lines[..] else { panic!("{filled}") };
    assert_ne!(failed, "0", "there is no room for it");
    assert_eq!(again, kept);
}

/// Mechanism: only a lack of space in the tier was recorded, not a failure of the tier.
///
/// Consequence: a checkpoint whose every write got EIO was complete with no bytes, and was drained.
#[test]
fn file_that_a_failing_tier_did_not_take_is_no_checkpoint() {
    const CHECKPOINTS: &str = "cd /cairn; for step in $(seq 6); do \
        head -c 4M /dev/urandom >ck.$step 2>/dev/null || echo $step; done; exit 3";
    let Some(machine) = Machine::start() else { return };
    let sandbox = Sandbox::new();
    let target = with_little_room(&sandbox, &machine, "size=10m");
    let persist = sandbox.out().display().to_string();
    let tier = ["run", "--job", "job", "--tier", &target.tier, "--persist", &persist];
    let ran = sandbox.cairn(&[&tier[..], &["--", "bash", "-c", CHECKPOINTS]].concat());
    let failed: Vec<&str> = ran.stdout.lines().collect();
    assert!(failed.contains(&"6"), "there is no room for all: {}", ran.stdout);
    let offered = sandbox.cairn(&["ls", "--checkpoints", "job", "--newest", "*"]).stdout;
    for step in failed {
        let name = format!("ck.{step}");
        // What the tier did not take cannot be read.
        let entry = sandbox.entry("job", &name);
        assert!(entry.is_null() || entry["unclosed"] == true, "{name} is no checkpoint: {entry}");
        assert!(!offered.contains(&name), "{name} is offered: {offered}");
    }
    assert!(ran.stderr.contains("the store is kept"), "{}", ran.stderr);
}

#[test]
fn store_whose_tier_another_one_recovered_is_refused_before_it_writes() {
    let sandbox = exporting();
    let target = Target::start(&sandbox, "127.0.0.1:0");
    let run = |job: &str, script: &str| {
        sandbox.cairn(&["run", "--job", job, "--tier", &target.tier, "--", "bash", "-c", script])
    };
    let kill_agent = |job: &str| {
        if let Some(agent) = sandbox.agent_if_any(job) {
            common::kill("KILL", agent.into());
        }
    };
    let written = run("first", WRITE).succeeds().stdout;
    kill_agent("first");
    let recovered = run("second", READ).succeeds().stdout;
    assert_eq!(recovered, written);
    kill_agent("second");
    let exported = || fs::read(sandbox.work().join("export")).expect("is there");
    let before = exported();
    let late = run("first", "cd /cairn && cp g h && sync h");
    assert_ne!(late.code, Some(0), "a store that has lost its tier goes on");
    assert!(exported() == before, "it has written");
    assert_eq!(run("second", READ).succeeds().stdout, written);
}

/// Shell function `count`, which prints the target's number of connections so far; `$PORT` is the
/// port of its metrics.
const COUNT: &str = "count() { exec 3<>/dev/tcp/127.0.0.1/$PORT && printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3 && \
    sed -n 's/^cairn_target_connections_total //p' <&3; }";

#[test]
fn programs_that_read_and_write_no_data_make_no_connection() {
    let sandbox = exporting();
    let metrics = ["--metrics", "127.0.0.1:0"];
    let target = Target::start_with(&sandbox, "127.0.0.1:0", &metrics);
    let port = target.metrics.rsplit(':').next().expect("a port");
    let looks = "for i in $(seq 20); do ls -l; stat g; test -e d/f1; done >/dev/null";
    let script = format!(
        "PORT={port}; {COUNT}; {WRITE} && before=$(count) && {looks} && after=$(count) && \
        echo $((after - before))"
    );
    let run = ["run", "--job", "job", "--tier", &target.tier, "--", "bash", "-c", &script];
    let said = sandbox.cairn(&run).succeeds().stdout;
    let connections: u32 =
        said.lines().last().and_then(|line| line.parse().ok()).expect("a number");
    // Connections of the agent may be among them.
    assert!(connections <= 4, "{connections} connections for 40 programs");
}

#[test]
fn more_processes_than_the_target_takes_connections_all_write_and_read() {
    let sandbox = exporting();
    let target = Target::start_with(&sandbox, "127.0.0.1:0", &["--connections", "6"]);
    let script = "cd /cairn && for i in $(seq 40); do \
        (seq $i 3000 >f$i && sync f$i && [ \"$(cksum <f$i)\" = \"$(seq $i 3000 | cksum)\" ] && echo fine) & done; wait";
    let run = ["run", "--job", "job", "--tier", &target.tier, "--", "bash", "-c", script];
    let said = sandbox.cairn(&run).succeeds().stdout;
    assert_eq!(said.lines().filter(|line| *line == "fine").count(), 40, "{said}");
}

/// One process writes again while others wait to read blocks that nobody reads ahead for them. Each
/// of those then goes on computing.
const READ_AND_COMPUTE: &str = "
import os, time
def write(name):
    with open('/cairn/' + name, 'wb', buffering=0) as file:
        file.write(bytes(100000))
        os.fsync(file.fileno())
def read(number):
    with open('/cairn/first', 'rb', buffering=0) as file:
        return os.pread(file.fileno(), 1000, 20000 * number)
write('first')
told, tell = os.pipe()
for number in range(4):
    if os.fork() == 0:
        try:
            os.write(tell, b'r' if read(number) == bytes(1000) else b'?')
        except OSError:
            os.write(tell, b'e')
        time.sleep(60)
        os._exit(0)
time.sleep(0.2)
write('second')
print(''.join(os.read(told, 1).decode() for _ in range(4)), flush=True)
os.killpg(0, 9)
";

#[test]
fn process_that_has_waited_for_a_connection_and_needs_it_no_more_loses_it_to_the_next_one() {
    let sandbox = exporting();
    // Room for the agent's connections and one more.
    let target = Target::start_with(&sandbox, "127.0.0.1:0", &["--connections", "4"]);
    let program = ["setsid", "-w", "python3", "-c", READ_AND_COMPUTE];
    let run = ["run", "--job", "job", "--tier", &target.tier, "--"];
    let said = sandbox.cairn(&[&run[..], &program].concat());
    assert_eq!(said.stdout, "rrrr\n", "{}", said.stderr);
}

/// Identity of the tests' host, its secret, and the target's secret.
const HOST: &str = "nqn.2026-11.test:host";
const SECRET: &str = "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
const OF_TARGET: &str = "DHHC-1:01:ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoOeXryU:";

/// Writes a file of secrets with this mode; returns its path.
fn secrets(sandbox: &Sandbox, name: &str, text: &str, mode: u32) -> String {
    let path = sandbox.work().join(name);
    fs::write(&path, text).expect("has room");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("is ours");
    path.display().to_string()
}

#[test]
fn target_that_demands_secrets_serves_who_knows_them_and_nobody_else() {
    let sandbox = exporting();
    let hosts = secrets(&sandbox, "hosts", &format!("{HOST} {SECRET} {OF_TARGET}\n"), 0o600);
    let target = Target::start_with(&sandbox, "127.0.0.1:0", &["--auth", &hosts]);
    let both = format!("{HOST}\n{SECRET}\n{OF_TARGET}\n");
    let good = secrets(&sandbox, "good", &both, 0o600);
    let open = secrets(&sandbox, "open", &both, 0o644);
    let wrong = secrets(&sandbox, "wrong", &format!("{HOST}\n{OF_TARGET}\n"), 0o600);
    let run = |auth: &str, script: &str| {
        let tier = format!("{}{auth}", target.tier);
        let all = ["run", "--job", "j", "--tier", &tier, "--", "bash", "-c", script];
        sandbox.cairn(&all)
    };
    run("", "true").ends_with(2).says("add auth=FILE to the tier");
    run(&format!("&auth={open}"), "true").ends_with(2).says("chmod 600");
    let unknown = secrets(&sandbox, "unknown", &format!("nqn.x:y\n{SECRET}\n"), 0o600);
    let other = secrets(&sandbox, "other", &format!("{HOST}\n{SECRET}\n{SECRET}\n"), 0o600);
    let missing = sandbox.work().join("missing").display().to_string();
    for (file, what, host) in [
        (&wrong, "are not the same; give the host the one that the target has", HOST),
        (&other, "the second secret is not the one it has", HOST),
        (&unknown, "does not serve the host of that name", "nqn.x:y"),
    ] {
        let said = run(&format!("&auth={file}"), "true").ends_with(2).says(what);
        said.says(&format!("; the host is {host}, with the secrets in {file}, for {NAME}\n"));
    }
    let said = run(&format!("&auth={missing}"), "true").ends_with(2);
    said.says("no such file or directory; the secret cannot be read; given were the secrets in");
    let written = run(&format!("&auth={good}"), WRITE).succeeds();
    let read = run(&format!("&auth={good}"), READ).succeeds();
    assert_eq!(read.stdout, written.stdout, "by other processes, which prove themselves again");
    let status = sandbox.cairn(&["--json", "status", "j"]).succeeds();
    for said in [&written, &read, &status] {
        assert!(!said.stdout.contains("DHHC") && !said.stderr.contains("DHHC"));
    }
    sandbox.cairn(&["rm", "j", "--discard"]).succeeds();
}

#[test]
fn target_with_a_file_of_secrets_that_others_may_read_does_not_start() {
    let sandbox = exporting();
    let hosts = secrets(&sandbox, "hosts", &format!("{HOST} {SECRET}\n"), 0o640);
    sandbox.cairn(&["target", "--auth", &hosts, "ram:1M"]).ends_with(2).says("chmod 600");
    let hosts = secrets(&sandbox, "empty", "# nobody\n", 0o600);
    sandbox.cairn(&["target", "--auth", &hosts, "ram:1M"]).ends_with(2).says("HOSTNQN SECRET");
}
