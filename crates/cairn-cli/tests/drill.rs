//! `cairn drill`: a run that is killed and comes back, or does not.

mod common;

use common::{Ran, Sandbox};

/// Adds up steps; begins after the newest checkpoint, which holds step and sum.
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
    let result = std::fs::read_to_string(sandbox.work().join("result")).expect("a result");
    assert_eq!(result, "5050\n", "nothing was counted twice or left out");
    let left = sandbox.cairn(&["ls", "--jobs"]).succeeds();
    left.prints("no stores\n");
}

#[test]
fn run_that_cannot_go_on_fails_the_drill_and_keeps_its_store() {
    let sandbox = Sandbox::new();
    // It ends by itself if it was killed before it had begun.
    let script = "[ -e /cairn/ckpt.1 ] && exit 5; echo 1 >/cairn/ckpt.1; sleep 30";
    let ran = drill(&sandbox, &["--kills", "1", "--after", "3s..3s"], script).ends_with(1);
    ran.says("the run ended with exit code 5").says("did not come back");
    sandbox.cairn(&["ls", "--jobs"]).succeeds().says("drill-");
    // The same program with another way to start it again.
    let options = ["--kills", "1", "--after", "3s..3s", "--restart", "cat /cairn/ckpt.1"];
    drill(&sandbox, &options, script).succeeds().says("1 kill").says("the run ended well");
}

#[test]
fn run_that_ends_before_it_is_killed_is_said_to() {
    let sandbox = Sandbox::new();
    let ran = drill(&sandbox, &["--after", "60s..60s"], "echo x >/cairn/f").succeeds();
    ran.says("0 kills").says("give shorter times");
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
    Ran::of(output, "drill".to_string()).refused_with("is that of real runs");
    sandbox.cairn(&["drill", "--after", "soon", "--", "true"]).refused_with("10s..60s");
    assert_eq!(sandbox.drained("f"), "real\n");
}
