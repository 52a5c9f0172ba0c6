//! A store that failed all writes, and whose target is back: the next run resumes with the durable
//! state.

mod common;
#[path = "common/exported.rs"]
mod exported;

use common::{Ran, Sandbox};
use exported::{Target, exporting};
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Stdio};

/// Writes files that will be kept, announces it, waits, and then writes more, which is too late.
const WRITE: &str = "cd /cairn && head -c 3M /dev/urandom >ck.1 && head -c 2M /dev/urandom >tmp && mv tmp ck.2 && \
    mkdir d && echo x >d/x && cksum ck.1 ck.2 d/x; echo safe; read; \
    head -c 1M /dev/urandom 2>&1 >late; echo late >late2; rm ck.1; sync late2 2>&1; mv late2 late3; echo ended";
const READ: &str = "cd /cairn && cksum ck.1 ck.2 d/x && echo new >new && sync new && ls -x .";

/// A program in a store whose target fails under it.
struct Failing {
    sandbox: Sandbox,
    target: Target,
    program: Child,
    said: Lines<BufReader<ChildStdout>>,
    /// Checksums of the files that were safe before the failure.
    safe: Vec<String>,
}

impl Failing {
    /// Runs the program, with the target as a tier in `options`, until its files are safe.
    fn new(sandbox: Sandbox, options: impl Fn(&Target) -> Vec<String>) -> Failing {
        let target = Target::start(&sandbox, "127.0.0.1:0");
        let mut words = vec!["run".to_string(), "--job".into(), "job".into()];
        words.extend(options(&target));
        words.extend(["--", "bash", "-c", WRITE].map(String::from));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut program = sandbox.command(&words);
        let program = program.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = program.stderr(Stdio::null()).spawn().expect("starts");
        let mut said = BufReader::new(program.stdout.take().expect("piped")).lines();
        let safe = said.by_ref().map(|line| line.expect("text")).take_while(|line| line != "safe");
        let safe = safe.collect();
        Failing { sandbox, target, program, said, safe }
    }

    fn export(&self) -> PathBuf {
        self.sandbox.work().join("export")
    }

    /// Gives the export another size for a while, so that every call fails at once.
    fn shrinks(&mut self) {
        self.target.end();
        let whole = self.sandbox.work().join("whole");
        fs::rename(self.export(), &whole).expect("is there");
        let small = fs::File::create(self.export()).expect("is made");
        small.set_len(8 << 20).expect("has room");
        self.target = Target::start(&self.sandbox, &self.target.address);
        self.goes_on();
        self.target.end();
        fs::rename(whole, self.export()).expect("is there");
    }

    /// Lets the program write too late, and waits for its end.
    fn goes_on(&mut self) {
        self.program.stdin.take().expect("piped").write_all(b"\n").expect("is told");
        assert!(self.said.by_ref().any(|line| line.expect("text") == "ended"));
        self.program.wait().expect("ends");
    }

    fn is_back(&mut self) {
        self.target = Target::start(&self.sandbox, &self.target.address);
    }

    fn run(&self, options: &[&str], script: &str) -> Ran {
        let run = ["run", "--job", "job"];
        let words = [&run[..], options, &["--", "bash", "-c", script]].concat();
        let mut command = self.sandbox.command(&words);
        // The store knows its tiers.
        let output = command.env_remove("CAIRN_RUN_TIER").output().expect("starts");
        Ran::of(output, words.join(" "))
    }

    /// Asserts that the next run has the safe files and can write.
    fn goes_on_with_what_was_safe(&self, options: &[&str]) -> Ran {
        let ran = self.run(options, READ);
        let lines: Vec<&str> = ran.stdout.lines().collect();
        assert_eq!(lines.len(), 4, "{}", ran.stderr);
        assert_eq!(lines[..3], self.safe, "{}", ran.stderr);
        assert_eq!(lines[3], "ck.1  ck.2  d  new");
        ran
    }
}

/// A process that ends with the test.
struct Survivor(Child);

impl Drop for Survivor {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

fn tier(target: &Target) -> Vec<String> {
    vec!["--tier".to_string(), target.tier.clone()]
}

/// Mechanism: a failed flush is recorded for good, so that nothing becomes durable any more. Nobody
/// cleared that record when the device could be written to again.
///
/// Consequence: every later run of the job failed at its first `fsync`, until a user removed the
/// store's directory.
///
/// Fix: the next run, which has the store to itself, rebuilds it from its media.
#[test]
fn target_is_away_for_longer_than_calls_wait_then_the_next_run_goes_on_with_what_was_durable() {
    let mut failing = Failing::new(exporting(), tier);
    failing.target.end();
    failing.goes_on();
    let status = failing.sandbox.cairn(&["status", "job"]).succeeds();
    status.says("nothing becomes durable any more").says("cairn run --job job goes on");
    let refused = failing.run(&[], READ).ends_with(2);
    refused.says("cannot be used: connection refused; is there a target?");
    let known = failing.sandbox.cairn(&["ls", "job"]).succeeds();
    known.says("late3");
    failing.is_back();
    let ran = failing.goes_on_with_what_was_safe(&[]).succeeds();
    let ran = ran.says("going on with the data that is durable there");
    let ran = ran.says("recovered 4 files and directories");
    ran.says("job: 2 files lost, apart from data that was durable: /cairn/late, /cairn/late3\n");
    let again = failing.run(&[], READ).succeeds();
    assert!(!again.stderr.contains("recovered"), "{}", again.stderr);
    let status = failing.sandbox.cairn(&["status", "job"]).succeeds();
    assert!(!status.stdout.contains("trouble"), "{}", status.stdout);
}

/// Drained copies stay, even of files that have left the store; files that can be drained are
/// drained.
#[test]
fn store_is_made_again_from_its_media_then_all_that_could_be_drained_is_in_the_persist_directory() {
    let sandbox = exporting();
    let out = sandbox.out().display().to_string();
    let options = |target: &Target| {
        [tier(target), vec!["--persist".into(), out.clone(), "--drain".into(), "none".into()]]
            .concat()
    };
    let mut failing = Failing::new(sandbox, options);
    failing.shrinks();
    failing.is_back();
    let ran = failing.goes_on_with_what_was_safe(&["--drain", "wait"]).succeeds();
    let names = failing.sandbox.drained_names();
    let is_outside = |name: &str| names.iter().any(|drained| drained == name);
    for name in ["ck.1", "ck.2", "d/x", "new"] {
        assert!(is_outside(name), "{name} of {names:?}");
    }
    // A late file is unclean if its writer got an error, and is then named as lost; what there was
    // of it may have been drained.
    let is_told = |what: &str, name: &str| {
        let line = ran.stderr.lines().find_map(|line| line.split_once(what));
        line.is_some_and(|(_, names)| names.split(", ").any(|told| told == name))
    };
    for name in ["late", "late3"] {
        let told = format!("/cairn/{name}");
        let is_elsewhere = is_told(" only in the persist directory: ", &told);
        let is_lost = is_told(" lost, apart from data that was durable: ", &told);
        let all = (names.clone(), &ran.stderr);
        assert!(is_elsewhere != is_lost && (is_lost || is_outside(name)), "{name}: {all:?}");
    }
}

#[test]
fn complete_files_with_data_in_memory_are_kept_until_they_are_safe_or_given_up() {
    let options = |target: &Target| {
        ["--meta-tier", &target.tier, "--tier", "ram:16M"].map(String::from).to_vec()
    };
    let mut failing = Failing::new(exporting(), options);
    failing.shrinks();
    failing.is_back();
    let refused = failing.run(&[], "true").ends_with(2);
    let refused = refused.says("2 files, complete, would be lost");
    refused.says("/cairn/ck.2, /cairn/d/x").says("cairn drain job --persist DIR");
    let out = failing.sandbox.out().display().to_string();
    failing.sandbox.cairn(&["drain", "job", "--persist", &out]).succeeds();
    let ran = failing.run(&[], "echo new >/cairn/new && sync /cairn/new");
    ran.says("files only in the persist directory: /cairn/ck.2");
    assert!(failing.sandbox.out().join("ck.2").exists());
    assert_eq!(failing.sandbox.drained("new"), "new\n");
}

#[test]
fn complete_files_with_data_in_memory_are_given_up_when_that_is_said() {
    let options = |target: &Target| {
        ["--meta-tier", &target.tier, "--tier", "ram:16M"].map(String::from).to_vec()
    };
    let mut failing = Failing::new(exporting(), options);
    failing.shrinks();
    failing.is_back();
    let ran = failing.run(&["--yes"], "echo new >/cairn/new && sync /cairn/new").succeeds();
    ran.says("/cairn/ck.2");
}

#[test]
fn store_is_not_made_again_under_a_program_that_still_uses_it() {
    let mut failing = Failing::new(exporting(), tier);
    let script = "exec 3</cairn/ck.1; echo in; exec sleep 1000";
    let mut survivor =
        failing.sandbox.command(&["exec", "--job", "job", "--", "bash", "-c", script]);
    let survivor = survivor.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut survivor = Survivor(survivor.expect("starts"));
    let mut said = BufReader::new(survivor.0.stdout.take().expect("piped")).lines();
    assert_eq!(said.next().expect("says something").expect("text"), "in");
    failing.shrinks();
    failing.is_back();
    failing.run(&[], "true").ends_with(2).says("still uses it;");
    drop(survivor);
    failing.goes_on_with_what_was_safe(&[]).succeeds();
}
