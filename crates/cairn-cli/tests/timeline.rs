//! The agent's record of a job's reads and writes: in the store while the job runs, beside the
//! manifest afterwards.

mod common;

use cairn_agent::timeline::{TIMELINE_FILE, Timeline};
use common::{Ran, Sandbox, eventually, kill};
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

const MIB: u64 = 1 << 20;

fn kept(sandbox: &Sandbox, job: &str) -> Timeline {
    let path = sandbox.out().join(format!("cairn-manifest.{job}.timeline"));
    Timeline::load(&path).expect("a timeline beside the manifest")
}

/// Bytes written by processes, by unknown writers, and by the drain.
fn sums(timeline: &Timeline) -> [u64; 3] {
    let shares = timeline.samples.iter().flat_map(|sample| &sample.shares);
    let written = shares.map(|share| share.1).sum();
    let sum = |of: fn(&cairn_agent::timeline::Sample) -> u64| timeline.samples.iter().map(of).sum();
    [written, sum(|sample| sample.unknown), sum(|sample| sample.drained)]
}

fn start(sandbox: &Sandbox, job: &str, script: &str) -> Child {
    let out = sandbox.out();
    let persist = out.to_str().expect("UTF-8");
    let mut command = sandbox.command(&["run", "--job", job, "--persist", persist, "--"]);
    // If the test fails, its directory goes, and the script then ends by itself.
    let until_is = "until_is() { until [ -e $1 ] || [ ! -d $PWD ]; do :; done; }";
    let script = format!("{until_is}\n{script}");
    command.args(["bash", "-c", &script]).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("cairn starts")
}

fn end(child: Child) {
    Ran::of(child.wait_with_output().expect("it ends"), "run".to_string()).succeeds();
}

/// Bytes written by processes, according to the store's timeline so far.
fn written_in(store: &Path) -> u64 {
    Timeline::load(&store.join(TIMELINE_FILE)).map_or(0, |timeline| sums(&timeline)[0])
}

#[test]
fn no_byte_of_a_short_job_is_missing_from_its_timeline() {
    let sandbox = Sandbox::new();
    sandbox
        .run("short", "head -c 3M /dev/zero >/cairn/a; head -c 1M /dev/zero >/cairn/b")
        .succeeds();
    let timeline = kept(&sandbox, "short");
    let [written, unknown, drained] = sums(&timeline);
    assert_eq!(written + unknown, 4 * MIB, "{timeline:?}");
    // More if a cut found a file that was being written.
    assert!(drained >= 4 * MIB, "{timeline:?}");
    let last = timeline.samples.last().expect("something happened");
    assert_eq!((last.exposed, last.held), (0, 4 * MIB));
}

/// Mechanism: a file was written and closed between two scans and was open for reading at the
/// second one. It had grown, but nobody had it open for writing.
///
/// Consequence: its bytes were counted neither for a process nor as unknown.
///
/// Fix: they count as unknown.
#[test]
fn what_was_written_before_it_is_first_seen_being_read_is_not_missing() {
    let sandbox = Sandbox::new();
    let script = "head -c 1M /dev/zero >/cairn/a; exec 7</cairn/a; head -c 1K <&7 >/dev/null
        until grep -q '\"shares\"' \"$CAIRN_STORE/agent.timeline\"; do :; done";
    sandbox.run("quick", script).succeeds();
    let [written, unknown, _] = sums(&kept(&sandbox, "quick"));
    assert_eq!(written + unknown, MIB);
}

#[test]
fn who_has_a_file_open_has_written_what_it_grew_by() {
    let sandbox = Sandbox::new();
    let script = "exec 5>/cairn/grown; head -c 2M /dev/zero >&5; until_is go
        exec 6<>/cairn/grown; head -c 1M /dev/zero >&6; until_is on
        exec 7</cairn/grown; head -c 512K <&7 >/dev/null; until_is end";
    let child = start(&sandbox, "open", script);
    let sees = |bytes| eventually("it is seen", || written_in(&sandbox.store("open")) >= bytes);
    let say = |name: &str| fs::write(sandbox.work().join(name), "").expect("writes");
    sees(2 * MIB);
    say("go");
    sees(3 * MIB);
    say("on");
    let store = sandbox.store("open");
    eventually("reading is seen", || {
        let timeline = Timeline::load(&store.join(TIMELINE_FILE)).expect("it is there");
        let shares = timeline.samples.iter().flat_map(|sample| &sample.shares);
        shares.map(|share| share.2).sum::<u64>() == MIB / 2
    });
    say("end");
    end(child);
    let timeline = kept(&sandbox, "open");
    let [written, unknown, drained] = sums(&timeline);
    assert_eq!((written, unknown), (3 * MIB, 0), "the last is overwritten in place");
    assert!(drained >= 2 * MIB, "{timeline:?}");
    let writer =
        timeline.samples.iter().flat_map(|sample| &sample.shares).find(|share| share.1 > 0);
    let writer = &timeline.processes[&writer.expect("a writer").0];
    assert_eq!((writer.name.as_str(), writer.rank), ("bash", None));
}

#[test]
fn timeline_goes_on_after_its_agent_was_killed() {
    let sandbox = Sandbox::new();
    let script = "exec 5>/cairn/a; head -c 1M /dev/zero >&5; until_is go
        head -c 1M /dev/zero >&5; until_is end";
    let child = start(&sandbox, "killed", script);
    let sees = |bytes| eventually("it is seen", || written_in(&sandbox.store("killed")) >= bytes);
    let say = |name: &str| fs::write(sandbox.work().join(name), "").expect("writes");
    sees(MIB);
    let agent = sandbox.agent("killed");
    kill("KILL", agent.into());
    eventually("another agent", || sandbox.agent_if_any("killed").is_some_and(|pid| pid != agent));
    say("go");
    sees(2 * MIB);
    say("end");
    end(child);
    let timeline = kept(&sandbox, "killed");
    // An open file is drained again when it has changed.
    let [written, unknown, drained] = sums(&timeline);
    assert_eq!((written, unknown), (2 * MIB, 0), "{timeline:?}");
    assert!(drained >= 2 * MIB, "{timeline:?}");
    assert_eq!(timeline.processes.values().filter(|one| one.name == "bash").count(), 1);
}

#[test]
fn file_of_another_kind_keeps_its_name() {
    let sandbox = Sandbox::new();
    let path = sandbox.out().join("cairn-manifest.name.timeline");
    fs::write(&path, "somebody's").expect("writes");
    sandbox.run("name", "echo state >/cairn/state").succeeds();
    assert_eq!(fs::read_to_string(&path).expect("reads"), "somebody's");
    assert_eq!(sandbox.drained("state"), "state\n");
}
