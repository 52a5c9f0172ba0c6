//! `cairn drill`: a run that is killed and comes back, or does not.

mod common;

use common::{Ran, Sandbox, eventually, kill};
use std::fs;
use std::process::Stdio;

/// Adds up step numbers, starting after the newest checkpoint, which holds the step and the sum.
const SUM: &str = "
step=0; sum=0
newest=$(ls /cairn | grep '^ckpt' | sort -t. -k2 -n | tail -1)
[ -z \"$newest\" ] || read step sum </cairn/$newest
while [ $step -lt 100 ]; do
    step=$((step + 1)); sum=$((sum + step))
    echo $step $sum >/cairn/new; mv /cairn/new /cairn/ckpt.$step
    sleep 0.05
done
echo $sum >result";

fn drill(sandbox: &Sandbox, options: &[&str], script: &str) -> Ran {
    sandbox.cairn(&[&["drill"], options, &["--", "bash", "-c", script]].concat())
}

#[test]
fn run_that_is_killed_comes_back_and_that_is_reported() {
    let sandbox = Sandbox::new();
    let options = ["--kills", "2", "--after", "1.5s..2s", "--seed", "5", "--json"];
    let report = drill(&sandbox, &options, SUM).succeeds().json();
    assert_eq!((&report["ended_well"], &report["seed"]), (&true.into(), &5.into()), "{report}");
    let kills = report["kills"].as_array().expect("a list");
    assert_eq!(kills.len(), 2, "{report}");
    let steps: Vec<u64> = kills.iter().map(|kill| kill["step"].as_u64().unwrap_or(0)).collect();
    assert!(0 < steps[0] && steps[0] < steps[1], "each goes on where the last one was: {report}");
    let after = kills.iter().map(|kill| kill["after_seconds"].as_f64().expect("a number"));
    assert!(after.into_iter().all(|seconds| seconds >= 1.5), "{report}");
    let result = fs::read_to_string(sandbox.work().join("result")).expect("a result");
    assert_eq!(result, "5050\n", "nothing was counted twice or left out");
    let left = sandbox.cairn(&["ls", "--jobs"]).succeeds();
    left.prints("no stores\n");
}

#[test]
fn run_that_cannot_go_on_fails_the_drill_and_keeps_its_store() {
    let sandbox = Sandbox::new();
    // The script exits by itself if it was killed before its first checkpoint.
    let script = "[ -e /cairn/ckpt.1 ] && exit 5; echo 1 >/cairn/ckpt.1; sleep 30";
    let ran = drill(&sandbox, &["--kills", "1", "--after", "3s..3s"], script).ends_with(1);
    ran.says("the run ended with exit code 5").says("did not recover");
    sandbox.cairn(&["ls", "--jobs"]).succeeds().says("drill-");
    // The same program with another restart command.
    let options = ["--kills", "1", "--after", "3s..3s", "--restart", "cat /cairn/ckpt.1"];
    drill(&sandbox, &options, script).succeeds().says("1 kill").says("the run ended well");
}

#[test]
fn run_that_ends_before_it_is_killed_is_said_to() {
    let sandbox = Sandbox::new();
    let ran = drill(&sandbox, &["--after", "60s..60s"], "echo x >/cairn/f").ends_with(1);
    assert!(!ran.stderr.contains("the store is kept"), "it is removed: {}", ran.stderr);
    ran.says("0 kills").says("killed 0 of 3 times").says("give shorter times");
    sandbox.cairn(&["ls", "--jobs"]).succeeds().prints("no stores\n");
    sandbox.cairn(&["drill", "--kills", "0", "--", "true"]).refused_with("0 is not in 1..");
    drill(&sandbox, &["--after", "60s..60s"], "exit 3").ends_with(1).says("exit code 3");
}

#[test]
fn drill_touches_nothing_of_real_runs() {
    let sandbox = Sandbox::new();
    sandbox.run("real", "echo real >/cairn/f").succeeds();
    let out = sandbox.out().display().to_string();
    let not_empty = ["drill", "--persist", &out, "--", "true"];
    sandbox.cairn(&not_empty).refused_with("is not empty");
    let mut command = sandbox.command(&["drill", "--", "true"]);
    let output = command.env("CAIRN_RUN_PERSIST", &out).output().expect("starts");
    Ran::of(output, "drill".to_string()).refused_with("is used by real runs");
    sandbox.cairn(&["drill", "--after", "soon", "--", "true"]).refused_with("10s..60s");
    assert_eq!(sandbox.drained("f"), "real\n");
}

/// Mechanism: the runs of a drill took their tiers from the environment or `cairn.toml`, as real
/// runs do, and the end of the drill removes its store with its tiers.
///
/// Consequence: after a restart of the node, the drill recovered the data of a real job in a
/// durable tier, wrote to them, and removed them.
///
/// Fix: a configured tier that is not empty is refused.
#[test]
fn tier_that_holds_what_a_real_run_left_is_refused_and_stays_as_it_is() {
    let sandbox = Sandbox::new();
    let path = sandbox.work().join("tier");
    let tier = format!("file:{}:16M", path.display());
    let in_tier = |variable: &str, words: &[&str]| {
        let mut command = sandbox.command(words);
        let output = command.env(variable, &tier).output().expect("starts");
        Ran::of(output, words.join(" "))
    };
    let write = ["run", "--job", "melt", "--", "bash", "-c", "echo real >/cairn/f"];
    in_tier("CAIRN_RUN_TIER", &write).succeeds();
    kill("KILL", i64::from(sandbox.agent("melt")));
    fs::remove_dir_all(sandbox.store("melt")).expect("the store was there");
    let before = fs::read(&path).expect("the tier is there");
    let drill = ["drill", "--after", "60s..60s", "--", "bash", "-c", "echo drill >/cairn/f"];
    for variable in ["CAIRN_RUN_TIER", "CAIRN_RUN_META_TIER"] {
        in_tier(variable, &drill).refused_with("may hold data of real runs");
    }
    let settings = sandbox.work().join("cairn.toml");
    fs::write(&settings, format!("[run]\ntier = [\"ram:16M\", \"{tier}\"]\n")).expect("writes");
    let mut command = sandbox.command(&drill);
    let output = command.env_remove("CAIRN_RUN_TIER").output().expect("starts");
    Ran::of(output, "drill".to_string()).refused_with("may hold data of real runs");
    fs::remove_file(settings).expect("removes");
    in_tier("CAIRN_RUN_TIER", &["drill", "--", "true"]).refused_with("may hold");
    assert!(fs::read(&path).expect("it is still there") == before, "nothing was written to it");
    let read = ["run", "--job", "melt", "--", "cat", "/cairn/f"];
    in_tier("CAIRN_RUN_TIER", &read).succeeds().prints("real\n");
    // A tier that does not exist yet belongs to the drill.
    sandbox.cairn(&["rm", "melt", "--discard"]).succeeds();
    assert!(!path.exists());
    in_tier("CAIRN_RUN_TIER", &drill).ends_with(1).says("the run ended well");
    assert!(!path.exists());
}

/// Mechanism: a run that ended before it was killed counted as one that came back.
///
/// Consequence: the drill succeeded although nothing, or less than requested, had been tested.
///
/// Fix: a drill with fewer kills than requested fails.
#[test]
fn run_that_ends_before_the_second_kill_is_no_success() {
    let sandbox = Sandbox::new();
    let options = ["--kills", "2", "--after", "5s..5s", "--restart", "true"];
    let ran = drill(&sandbox, &options, "sleep 1000").ends_with(1);
    ran.says("the run ended well").says("killed 1 of 2 times");
    sandbox.cairn(&["ls", "--jobs"]).succeeds().prints("no stores\n");
}

/// Mechanism: only the end of the run decided the result.
///
/// Consequence: a program that wrote nothing below the prefix, because it was told another
/// directory, "survived" and passed.
///
/// Fix: kills while no file is in the store do not count as a test.
#[test]
fn run_that_has_nothing_below_the_prefix_is_no_success() {
    let sandbox = Sandbox::new();
    let options = ["--kills", "2", "--after", "0.5s..0.5s", "--restart", "sleep 2"];
    let ran = drill(&sandbox, &options, "echo x >elsewhere; sleep 1000").ends_with(1);
    ran.says("the run ended well").says("the store was empty at every kill (2)");
    sandbox.cairn(&["ls", "--jobs"]).succeeds().prints("no stores\n");
    let report = drill(&sandbox, &[&options[..], &["--json"]].concat(), "sleep 1000").ends_with(1);
    assert_eq!(report.json()["kills"][0]["files"], 0, "{}", report.stdout);
}

/// Mechanism: the run is in a process group of its own, and nothing told it that the drill had been
/// terminated.
///
/// Consequence: it ran on alone in the background, and its store stayed.
///
/// Fix: a signal that ends the drill ends the run, and the store goes with it.
#[test]
fn drill_that_is_told_to_end_ends_its_run_and_leaves_nothing() {
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let sandbox = Sandbox::new();
        let script = "echo x >/cairn/f; echo $$ >begun.new; mv begun.new begun; sleep 1000";
        let words = ["drill", "--after", "900s..900s", "--", "bash", "-c", script];
        let mut command = sandbox.command(&words);
        let said = sandbox.work().join("said");
        // Not a pipe, which a surviving program would keep open.
        command.stderr(fs::File::create(&said).expect("makes")).stdout(Stdio::null());
        let mut child = command.spawn().expect("starts");
        let begun = sandbox.work().join("begun");
        eventually("the program runs", || begun.exists());
        kill(signal, i64::from(child.id()));
        assert_eq!(child.wait().expect("ends").code(), Some(code));
        let said = fs::read_to_string(said).expect("is there");
        assert!(said.contains("ended the drill"), "{said}");
        sandbox.cairn(&["ls", "--jobs"]).succeeds().prints("no stores\n");
        let process = fs::read_to_string(begun).expect("is there");
        assert!(is_dead(process.trim()), "{signal}: the program lives");
    }
}

/// Whether the process is gone or a zombie.
fn is_dead(process: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    !status.contains("State:") || status.contains("State:\tZ") || status.contains("State:\tX")
}
