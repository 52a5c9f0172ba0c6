//! `cairn advise`: input from the command line and from a job's own checkpoints.

mod common;

use cairn_device::Store;
use cairn_device::store::notes::{self, Kind, Note};
use common::Sandbox;

const SECOND: i64 = 1_000_000_000;

#[test]
fn interval_follows_from_cost_and_failures() {
    let sandbox = Sandbox::new();
    let advise = |options: &str| {
        let words: Vec<&str> = ["advise"].into_iter().chain(options.split(' ')).collect();
        sandbox.cairn(&words)
    };
    let report = advise("--checkpoint-cost 5m --mtbf 24h --interval 4h --json").succeeds().json();
    assert_eq!(report["young"]["interval_s"], 7200.0);
    let number = |value: &serde_json::Value| value.as_f64().expect("a number");
    let (best, now) = (&report["best"], &report["now"]);
    let ratio = number(&report["daly"]["interval_s"]) / number(&best["interval_s"]);
    assert!((ratio - 1.0).abs() < 0.001, "{report}");
    assert!(number(&best["progress"]) > number(&now["progress"]), "{report}");
    assert!(best["pfs_every"].is_null() && report["restart_s"] == 300.0, "{report}");

    let nodes = advise("--checkpoint-cost 5m --node-mtbf 10d --nodes 10 --json").succeeds().json();
    assert_eq!(nodes["best"], report["best"]);
    let options = "--checkpoint-cost 3s --mtbf 6h --pfs-cost 2min --pfs-failures 0.1 --interval 10m --pfs-every 1";
    advise(options).succeeds().says("one in 19").says("each one").says("needed by 10 %");
    advise("--checkpoint-cost 12s --mtbf 24h").succeeds().prints(
        "checkpoint 12 s, restart 12 s, a failure every 1 d\n\
         \u{20}             INTERVAL  PROGRESS\n\
         young           24 min   98.33 %\n\
         daly       23 min 52 s   98.33 %\n\
         best       23 min 52 s   98.33 %\n",
    );
}

#[test]
fn nonsense_is_refused_in_a_line() {
    let sandbox = Sandbox::new();
    for (options, part) in [
        ("--checkpoint-cost 12s", "--mtbf"),
        ("--checkpoint-cost 2h --mtbf 1h", "is not shorter than the mean time between failures"),
        ("--checkpoint-cost 0 --mtbf 1h", "positive"),
        ("--checkpoint-cost 1s --mtbf 0s", "positive"),
        ("--checkpoint-cost 12 --mtbf 1parsec", "write a number and a unit"),
        ("--checkpoint-cost 12 --node-mtbf 1y", "--nodes"),
        ("--checkpoint-cost 12 --mtbf 1d --node-mtbf 1y --nodes 2", "cannot be used with"),
        ("--checkpoint-cost 12 --mtbf 1d --pfs-cost 1m", "--pfs-failures"),
        ("--checkpoint-cost 12 --mtbf 1d --pfs-cost 1m --pfs-failures 2", "at most 1, not 2"),
        ("melt --mtbf 1d", "melt"),
    ] {
        let words: Vec<&str> = ["advise"].into_iter().chain(options.split(' ')).collect();
        sandbox.cairn(&words).refused_with(part);
    }
}

#[test]
fn cost_is_that_of_the_job_s_own_checkpoints() {
    let sandbox = Sandbox::new();
    sandbox.run_undrained("melt", "echo state >/cairn/state").succeeds();
    sandbox.cairn(&["advise", "melt", "--mtbf", "1d"]).refused_with("announced no complete");
    let store = Store::open(&sandbox.store("melt")).expect("the store is kept");
    let say = |kind, number: u64, seconds: i64| {
        let (time_ns, text) = (seconds * SECOND, b"melt".to_vec());
        let note = Note { time_ns, pid: 1, rank: None, kind, number, text };
        notes::append(store.directory().raw(), &note).expect("there is room");
    };
    for step in 1..=3 {
        say(Kind::Begin, step, step as i64 * 600);
        say(Kind::End, step, step as i64 * 600 + 20);
    }
    let report = sandbox.cairn(&["advise", "melt", "--mtbf", "1d", "--json"]).succeeds().json();
    assert_eq!(
        (&report["checkpoint_s"], &report["measured_checkpoints"]),
        (&20.0.into(), &3.into())
    );
    assert_eq!(report["now"]["interval_s"], 580.0);
    let ran = sandbox.cairn(&["advise", "--mtbf", "1d"]).succeeds();
    ran.says("checkpoint 20 s (median of 3)").says("now");
}
