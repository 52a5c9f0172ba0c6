//! A drain that takes longer than a program keeps its checkpoints.

mod common;

use common::session::Session;
use common::{CAIRN, Ran, Sandbox, eventually};
use std::fs;

/// `dump.1` goes outside, `dump.2` to `dump.4` cannot; each goes when the agent knows the next one.
const REMOVING: &str = r#"
    cd /cairn; echo 1 >dump.1; until [ -e "$OUT/dump.1" ]; do sleep 0.01; done
    for i in 2 3 4; do
        echo $i >dump.$i; until grep -q "dump\.$i\"" "$CAIRN_STORE/checkpoints.json"; do sleep 0.01; done
        rm dump.$((i - 1))
    done
    echo log >log; until [ -e "$OUT/log" ]; do sleep 0.01; done
"#;

/// Mechanism: what a program removed before it was copied was dropped like anything else that it removed.
/// Consequence: the newest checkpoint outside was many behind, and nobody said so. Fix: they are counted until there is a newer one.
#[test]
fn checkpoints_that_go_before_they_are_outside_are_counted_until_a_newer_one_is() {
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    for step in 2..=4 {
        fs::create_dir(out.join(format!("dump.{step}"))).expect("an obstacle");
    }
    let script = format!(r#"{REMOVING} "$CAIRN" status behind >"$TOLD"; exit 3"#);
    let told = sandbox.work().join("told");
    let persist = out.to_str().expect("UTF-8");
    let mut command = sandbox.command(&["run", "--job", "behind", "--persist", persist]);
    command.args(["--", "bash", "-c", &script]);
    command.env("OUT", &out).env("CAIRN", CAIRN).env("TOLD", &told);
    let ran = Ran::of(command.output().expect("starts"), "run".to_string()).ends_with(3);
    let line = "2 complete checkpoints of dump.{step} went before the drain had copied them; the newest one outside is dump.1, written";
    let ran = ran.says(line).says("keep more checkpoints in the store");
    let told = fs::read_to_string(told).expect("status was asked");
    assert!(told.contains(line), "{told}");
    let status = sandbox.cairn(&["status", "behind", "--json"]).succeeds().json();
    let behind = &status[0]["behind"];
    assert_eq!((&behind[0]["missed"], &behind[0]["outside"]), (&2.into(), &"dump.1".into()));
    sandbox.cairn(&["log", "behind"]).succeeds().says("2 complete checkpoints of dump.{step} went");
    drop(ran);
    fs::remove_dir(out.join("dump.4")).expect("removes");
    sandbox.cairn(&["drain", "behind"]).succeeds();
    let status = sandbox.cairn(&["status", "behind", "--json"]).succeeds().json();
    assert!(status[0]["behind"].is_null(), "{}", status[0]["behind"]);
}

#[test]
fn checkpoints_that_nobody_wants_outside_are_not_missed() {
    for options in [["--temporary", "step*"], ["--pfs-every", "100"]] {
        let sandbox = Sandbox::new();
        let mut session = Session::start(&sandbox, "unwanted", &options);
        for step in 1..=3 {
            session.shell(&format!("echo {step} >/cairn/step{step}"));
            eventually("it is known", || {
                let status = sandbox.cairn(&["status", "unwanted", "--json"]).json();
                let sets = status[0]["sets"].as_array().cloned().unwrap_or_default();
                sets.last().is_some_and(|set| set["name"] == format!("step{step}"))
            });
            session.shell(&format!("rm -f /cairn/step{}", step - 1));
        }
        let status = sandbox.cairn(&["status", "unwanted", "--json"]).succeeds().json();
        assert!(status[0]["behind"].is_null(), "{options:?}: {}", status[0]["behind"]);
    }
}

#[test]
fn what_a_program_that_ends_well_has_cleared_up_is_not_missed() {
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    for step in 2..=4 {
        fs::create_dir(out.join(format!("dump.{step}"))).expect("an obstacle");
    }
    let persist = out.to_str().expect("UTF-8");
    let script = format!("{REMOVING} rm dump.*");
    let mut command = sandbox.command(&["run", "--job", "clear", "--persist", persist]);
    command.args(["--", "bash", "-c", &script]).env("OUT", &out);
    let ran = Ran::of(command.output().expect("starts"), "run".to_string()).succeeds();
    assert!(!ran.stderr.contains("went before"), "{}", ran.stderr);
}
