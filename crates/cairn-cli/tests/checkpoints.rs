//! Checkpoints: which files make one, when it is drained, and which one is offered for restart.

mod common;

use common::session::Session;
use common::{Sandbox, eventually, kill};
use serde_json::Value;
use std::fs;

/// Options under which a directory is not taken for complete because it is quiet.
const PATIENT: [&str; 2] = ["--settle", "1h"];

/// Steps of the checkpoints in the manifest.
fn drained(sandbox: &Sandbox, job: &str) -> Vec<u64> {
    let manifest = sandbox.manifest(job);
    let checkpoints = manifest["checkpoints"].as_array().cloned().unwrap_or_default();
    checkpoints.iter().map(|checkpoint| checkpoint["step"].as_u64().expect("a step")).collect()
}

/// Step of each listed checkpoint, with its level or the reason why it has none.
fn listed(sandbox: &Sandbox, job: &str) -> Vec<(u64, String)> {
    let rows = sandbox.cairn(&["ls", "--checkpoints", job, "--json"]).succeeds().json();
    let plain = |row: &Value| {
        let word = row["level"].as_str().or(row["reason"].as_str()).expect("a level or reason");
        (row["step"].as_u64().expect("a step"), word.to_string())
    };
    rows.as_array().expect("a list").iter().map(plain).collect()
}

/// Mechanism: the files of a checkpoint waited until something said that it is whole.
///
/// Consequence: where a guess about names was wrong, closed files were only in the store, and a
/// lost node took them. Others arrived one by one, and tore whole steps apart.
///
/// Fix: all files are delivered as they are at one moment. What is known of checkpoints is said.
#[test]
fn files_arrive_whatever_is_known_of_their_checkpoint() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "whole", &PATIENT);
    session.shell("mkdir /cairn/ckpt-1; echo a >/cairn/ckpt-1/a; echo x >/cairn/plain");
    eventually("the plain file arrives", || sandbox.out().join("plain").exists());
    session.shell("echo b >/cairn/ckpt-1/b; echo y >/cairn/other");
    eventually("the other arrives", || sandbox.out().join("other").exists());
    assert_eq!(sandbox.drained("ckpt-1/a") + &sandbox.drained("ckpt-1/b"), "a\nb\n");
    assert_eq!(drained(&sandbox, "whole"), [] as [u64; 0], "more files may come");
    session.shell("mkdir /cairn/ckpt-2; echo a >/cairn/ckpt-2/a");
    eventually("the first is a checkpoint", || drained(&sandbox, "whole") == [1]);
    eventually("so is the beginning of the next", || sandbox.out().join("ckpt-2/a").exists());
    assert_eq!(
        listed(&sandbox, "whole"),
        [(1, "pfs".to_string()), (2, "more files may come".to_string())]
    );
    // It has as many files as the one before, so it is complete.
    session.shell("echo b >/cairn/ckpt-2/b");
    eventually("the second is a checkpoint", || drained(&sandbox, "whole") == [1, 2]);
    eventually("status shows both", || {
        let status = sandbox.cairn(&["status", "whole", "--json"]).succeeds().json();
        let sets = status[0]["sets"].as_array().cloned().unwrap_or_default();
        let levels: Vec<&str> = sets.iter().filter_map(|set| set["level"].as_str()).collect();
        levels == ["pfs", "pfs"] && sets[1]["files"] == 2
    });
    sandbox.cairn(&["status", "whole"]).succeeds().says("2 checkpoints, 2 of them drained");
    session.shell("rm -r /cairn/ckpt-1");
    eventually("the first is gone", || !sandbox.out().join("ckpt-1").exists());
    eventually("the manifest says so", || drained(&sandbox, "whole") == [2]);
    session.shell("mkdir /cairn/ckpt-3; echo a >/cairn/ckpt-3/a");
    assert_eq!(session.end(), Some(0));
    // It has fewer files than those before, so it is not known to be complete; it is drained all
    // the same.
    assert_eq!((drained(&sandbox, "whole"), sandbox.drained("ckpt-3/a")), (vec![2], "a\n".into()));
    assert_eq!(sandbox.manifest("whole")["complete"], true);
}

/// Two processes write without a launcher, so they are not known as ranks. One is late by longer
/// than `--settle`.
///
/// Mechanism: a checkpoint that had been quiet for `--settle` counted as complete, and the next
/// ones were compared with it.
///
/// Consequence: half of a checkpoint was drained as a whole one and offered for restart.
///
/// Fix: quiet files are drained, but are not called a checkpoint.
#[test]
fn checkpoint_of_which_nothing_says_that_it_is_whole_is_delivered_and_not_called_so() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "late", &["--settle", "100ms"]);
    session.shell("mkdir /cairn/ckpt-1; echo a >/cairn/ckpt-1/rank0");
    eventually("what there is arrives", || sandbox.out().join("ckpt-1/rank0").exists());
    let unknown = "these may not be all its files yet";
    eventually("it is quiet", || listed(&sandbox, "late") == [(1, unknown.to_string())]);
    assert_eq!(drained(&sandbox, "late"), [] as [u64; 0]);
    sandbox
        .cairn(&["drain", "late"])
        .succeeds()
        .says("checkpoint not known to be complete, 1 file, as they are: ckpt-1: these may");
    sandbox.cairn(&["ls", "--checkpoints", "late", "--newest", "*"]).ends_with(1);
    session.shell("echo b >/cairn/ckpt-1/rank1; mkdir /cairn/ckpt-2; echo a >/cairn/ckpt-2/rank0");
    eventually("the first is a checkpoint", || drained(&sandbox, "late") == [1]);
    assert_eq!(listed(&sandbox, "late")[0], (1, "pfs".to_string()));
    session.shell("echo b >/cairn/ckpt-2/rank1");
    assert_eq!(session.end(), Some(0));
    assert_eq!(drained(&sandbox, "late"), [1, 2]);
}

/// Mechanism: in the first step only the part numbers differ, and they were taken for steps.
///
/// Consequence: each part was a checkpoint. `--retain` took older parts from a program that was
/// about to rename them, and one part was offered as the newest checkpoint.
///
/// Fix: a file that may be a part is not a checkpoint until the next step decides.
#[test]
fn parts_of_the_first_step_are_no_checkpoints_that_replace_each_other() {
    let sandbox = Sandbox::new();
    let options = ["--settle", "50ms", "--retain", "count=1"];
    let mut session = Session::start(&sandbox, "parts", &options);
    for part in 0..3 {
        session.shell(&format!("echo {part} >/cairn/st.100.r{part}"));
        let arrived = sandbox.out().join(format!("st.100.r{part}"));
        eventually("it arrives", || arrived.exists());
    }
    let is_unsaid = |(_, said): &(u64, String)| said.contains("the number may count parts");
    eventually("nobody knows", || listed(&sandbox, "parts").iter().all(is_unsaid));
    assert_eq!(listed(&sandbox, "parts").len(), 3);
    sandbox.cairn(&["ls", "--checkpoints", "parts", "--newest", "*"]).ends_with(1);
    session
        .shell("cat /cairn/st.100.r{0,1,2}; for r in 0 1 2; do echo $r >/cairn/st.200.r$r; done");
    eventually("the first step is known", || {
        listed(&sandbox, "parts").iter().any(|(step, _)| *step == 200)
    });
    assert_eq!(session.end(), Some(0));
    assert_eq!(drained(&sandbox, "parts"), [100, 200]);
    assert_eq!(sandbox.drained("st.100.r1"), "1\n");
}

/// After a quiet period of twelve times `--settle`, it is still unknown whether the files are
/// complete. Where all checkpoints are wanted, that matters to nobody. Where some are, they wait
/// for the end of the run.
#[test]
fn checkpoint_that_may_get_more_files_waits_only_where_not_all_are_wanted() {
    let unknown = "these may not be all its files yet";
    let is_unknown =
        |sandbox: &Sandbox, job| listed(sandbox, job).contains(&(1, unknown.to_string()));
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "again", &["--settle", "50ms"]);
    session.shell("mkdir /cairn/new; touch /cairn/new/{a,b}; mv /cairn/new /cairn/ckpt-1");
    eventually("it is a checkpoint", || drained(&sandbox, "again") == [1]);
    session.shell("echo new >/cairn/ckpt-1/a");
    eventually("it is quiet", || is_unknown(&sandbox, "again"));
    eventually("it arrives", || sandbox.drained("ckpt-1/a") == "new\n");
    sandbox.cairn(&["drain", "again"]).succeeds();
    assert_eq!(session.end(), Some(0));
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "some", &["--settle", "50ms", "--pfs-every", "3"]);
    session.shell("mkdir /cairn/step-1; echo a >/cairn/step-1/a");
    eventually("it is quiet", || is_unknown(&sandbox, "some"));
    session.shell("echo x >/cairn/other");
    eventually("the other file arrives", || sandbox.out().join("other").exists());
    assert!(!sandbox.out().join("step-1/a").exists());
    assert_eq!(session.end(), Some(0));
    assert_eq!(sandbox.drained("step-1/a"), "a\n");
}

/// Mechanism: the register was written after a complete drain pass.
///
/// Consequence: while the persist directory was away, status, the archive and the metrics did not
/// know newer checkpoints.
///
/// Fix: the register is written after the scan of the files.
#[test]
fn checkpoint_is_known_while_the_persist_directory_is_away() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "away", &[]);
    let away = sandbox.work().join("away");
    fs::rename(sandbox.out(), &away).expect("renames");
    session.shell("echo 1 >/cairn/f.1; echo 2 >/cairn/f.2");
    eventually("status shows both", || {
        let status = sandbox.cairn(&["status", "away", "--json"]).succeeds().json();
        let sets = status[0]["sets"].as_array().cloned().unwrap_or_default();
        sets.iter().filter(|set| set["level"] == "node").count() == 2
    });
    fs::rename(&away, sandbox.out()).expect("renames");
    assert_eq!(session.end(), Some(0));
    assert_eq!(drained(&sandbox, "away"), [1, 2]);
}

#[test]
fn directory_that_is_renamed_into_place_is_complete_at_once() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "renamed", &PATIENT);
    session
        .shell("mkdir /cairn/new; echo a >/cairn/new/a; sleep 0.02; mv /cairn/new /cairn/ckpt-8");
    eventually("it arrives", || drained(&sandbox, "renamed") == [8]);
    assert_eq!(session.end(), Some(0));
}

#[test]
fn what_a_killed_run_left_unfinished_is_delivered_and_never_offered() {
    let sandbox = Sandbox::new();
    let save = |step: u32, files: &str| {
        format!(
            "mkdir -p /cairn/ckpt-{step}; for f in {files}; do echo {step} >/cairn/ckpt-{step}/$f; done; "
        )
    };
    let out = sandbox.out().display().to_string();
    let script = format!("{}{}kill -9 $$", save(1, "a b"), save(2, "a"));
    let first = ["run", "--job", "torn", "--persist", &out];
    let run = |script: &str| {
        sandbox.cairn(&[&first[..], &PATIENT, &["--", "bash", "-c", script]].concat())
    };
    run(&script)
        .ends_with(137)
        .says("checkpoint not known to be complete, 1 file, as they are: ckpt-2");
    let names = ["ckpt-1", "ckpt-1/a", "ckpt-1/b", "ckpt-2", "ckpt-2/a"];
    assert_eq!(sandbox.drained_names(), names);
    sandbox.cairn(&["drain", "torn"]).succeeds();
    assert_eq!(drained(&sandbox, "torn"), [1]);
    sandbox
        .cairn(&["ls", "--checkpoints", "torn", "--newest", "*"])
        .prints("/cairn/ckpt-1/a\n/cairn/ckpt-1/b\n");
    sandbox.cairn(&["ls", "torn", "--newest", "ckpt-*/a"]).prints("/cairn/ckpt-1/a\n");
    let list = ["ls", "--checkpoints", "torn", "--json"];
    let rows = sandbox.cairn(&list).json();
    assert_eq!([&rows[0]["path"], &rows[1]["path"]], ["/cairn/ckpt-1", "/cairn/ckpt-2/a"]);
    let newest = sandbox.cairn(&[&list[..], &["--newest", "*/a"]].concat()).json();
    assert_eq!(newest, serde_json::json!(["/cairn/ckpt-1/a", "/cairn/ckpt-1/b"]));
    // A later checkpoint does not complete it; rewriting it does.
    run(&format!("{}kill -9 $$", save(3, "a b"))).ends_with(137);
    assert_eq!(drained(&sandbox, "torn"), [1, 3]);
    run(&save(2, "a b")).succeeds();
    assert_eq!(drained(&sandbox, "torn"), [1, 3, 2]);
}

#[test]
fn run_that_was_killed_with_its_agent_leaves_nothing_that_passes_for_complete() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "lost", &PATIENT);
    session.shell("mkdir /cairn/ckpt-1; echo a >/cairn/ckpt-1/a; echo b >/cairn/ckpt-1/b");
    session.shell("mkdir /cairn/ckpt-2; echo a >/cairn/ckpt-2/a");
    eventually("the first is a checkpoint", || drained(&sandbox, "lost") == [1]);
    kill("KILL", i64::from(sandbox.agent("lost")));
    session.kill_all();
    let script = "mkdir /cairn/ckpt-3; echo a >/cairn/ckpt-3/a; echo b >/cairn/ckpt-3/b";
    sandbox.run("lost", script).succeeds();
    assert_eq!(drained(&sandbox, "lost"), [1, 3]);
}

/// Mechanism: after a run died, nobody looked until the directory that it was writing had been
/// quiet long enough.
///
/// Consequence: the directory counted as complete, was drained as verified, and was restored in
/// place of the whole checkpoint before it.
///
/// Fix: quiet time counts only while the run is seen to be alive.
#[test]
fn what_a_killed_run_left_unfinished_stays_so_however_late_somebody_looks() {
    let sandbox = Sandbox::new();
    let out = sandbox.out().display().to_string();
    let script = "mkdir /cairn/ckpt-1; echo a >/cairn/ckpt-1/a; kill -9 $PPID $$";
    let run = ["run", "--job", "late", "--persist", &out, "--settle", "300ms", "--"];
    sandbox.cairn(&[&run[..], &["bash", "-c", script]].concat());
    let unfinished = "it may have been unfinished when the run failed".to_string();
    eventually("the agent has noticed", || listed(&sandbox, "late") == [(1, unfinished.clone())]);
    sandbox.cairn(&["drain", "late"]).succeeds();
    assert_eq!(drained(&sandbox, "late"), [] as [u64; 0]);
    // Cleaning up does not complete the rest, either.
    let again = "echo b >/cairn/ckpt-1/b; kill -9 $PPID $$";
    sandbox.cairn(&[&run[..], &["bash", "-c", again]].concat());
    eventually("the agent has noticed", || listed(&sandbox, "late") == [(1, unfinished.clone())]);
    sandbox.cairn(&[&run[..], &["rm", "/cairn/ckpt-1/a"]].concat()).ends_with(75);
    assert_eq!(listed(&sandbox, "late"), [(1, unfinished)]);
}

#[test]
fn what_a_run_that_was_killed_with_its_agent_left_is_not_complete_when_somebody_looks_later() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "later", &["--settle", "1ms"]);
    kill("KILL", i64::from(sandbox.agent("later")));
    session.shell("mkdir /cairn/ckpt-1; echo a >/cairn/ckpt-1/a; sleep 0.01");
    session.kill_all();
    let unfinished = "it may have been unfinished when the run failed".to_string();
    assert_eq!(listed(&sandbox, "later"), [(1, unfinished)]);
    sandbox.cairn(&["drain", "later"]).succeeds();
    assert_eq!(drained(&sandbox, "later"), [] as [u64; 0]);
}

/// Mechanism: the register knew a run only from the first scan during that run.
///
/// Consequence: a run that died before its first scan left no failed run. The rest of a checkpoint
/// that it was removing counted as complete at once.
///
/// Fix: the register knows the runs that have ended.
#[test]
fn rest_of_a_checkpoint_is_none_if_the_run_that_removed_it_died_unseen() {
    let sandbox = Sandbox::new();
    let out = sandbox.out().display().to_string();
    let run = ["run", "--job", "unseen", "--persist", &out, "--drain", "background", "--"];
    let whole = "mkdir /cairn/ckpt-1; cd /cairn/ckpt-1; touch a b c d";
    sandbox.cairn(&[&run[..], &["bash", "-c", whole]].concat()).succeeds();
    eventually("it is drained", || drained(&sandbox, "unseen") == [1]);
    let torn = "rm /cairn/ckpt-1/[ab]; kill -9 $PPID $$";
    sandbox.cairn(&[&run[..], &["bash", "-c", torn]].concat());
    let (_, reason) = listed(&sandbox, "unseen").remove(0);
    assert!(!["node", "pfs"].contains(&&reason[..]), "{reason}");
    sandbox.cairn(&["drain", "unseen"]);
    assert_eq!(sandbox.drained_names(), ["ckpt-1", "ckpt-1/c", "ckpt-1/d"], "as on a disk");
}

/// Mechanism: a directory that had changed later than its entries was taken for a renamed one.
///
/// Consequence: after a change of its mode or owner, a checkpoint was complete with its first file.
///
/// Fix: the store records renames.
#[test]
fn directory_of_which_only_the_mode_changes_is_not_complete() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "mode", &PATIENT);
    session
        .shell("mkdir /cairn/ckpt-1; echo a >/cairn/ckpt-1/a; sleep 0.01; chmod 750 /cairn/ckpt-1");
    session.shell("echo x >/cairn/plain");
    eventually("the plain file arrives", || sandbox.out().join("plain").exists());
    assert_eq!(listed(&sandbox, "mode"), [(1, "more files may come".to_string())]);
    session.kill_all();
}

/// Mechanism: a checkpoint was complete with as many files as the one before.
///
/// Consequence: a checkpoint that began with more shards than that was complete without its
/// optimizer.
///
/// Fix: it is complete when it has every file name of the one before.
#[test]
fn checkpoint_with_as_many_files_but_others_is_not_complete() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "names", &PATIENT);
    session
        .shell("mkdir /cairn/new; touch /cairn/new/{model,optimizer}; mv /cairn/new /cairn/ckpt-1");
    eventually("the first is a checkpoint", || drained(&sandbox, "names") == [1]);
    session.shell("mkdir /cairn/ckpt-2; touch /cairn/ckpt-2/model{,-2}; echo x >/cairn/plain");
    eventually("the plain file arrives", || sandbox.out().join("plain").exists());
    assert_eq!(listed(&sandbox, "names")[1], (2, "more files may come".to_string()));
    session.shell("touch /cairn/ckpt-2/optimizer");
    eventually("the second is a checkpoint", || drained(&sandbox, "names") == [1, 2]);
    session.kill_all();
}

#[test]
fn one_in_so_many_checkpoints_is_drained_and_all_at_the_end() {
    let sandbox = Sandbox::new();
    let script = "for i in 1 2 3 4 5 6 7; do echo $i >/cairn/step.$i; done; echo x >/cairn/log";
    let mut session = Session::start(&sandbox, "levels", &["--pfs-every", "3"]);
    session.shell(script);
    eventually("two of them arrive", || drained(&sandbox, "levels") == [3, 6]);
    let levels: Vec<String> = listed(&sandbox, "levels").into_iter().map(|row| row.1).collect();
    assert_eq!(levels, ["node", "node", "pfs", "node", "node", "pfs", "node"]);
    assert_eq!(session.end(), Some(0));
    let all = ["log", "step.1", "step.2", "step.3", "step.4", "step.5", "step.6", "step.7"];
    assert_eq!(sandbox.drained_names(), all);
    // After a failed run, only the newest is drained; an explicit `cairn drain` takes all.
    let sandbox = Sandbox::new();
    let out = sandbox.out().display().to_string();
    let first = ["run", "--job", "levels", "--persist", &out, "--pfs-every", "3", "--"];
    let failing = format!("{script}; exit 1");
    let again = [&first[..], &["bash", "-c", &failing]].concat();
    sandbox.cairn(&again).ends_with(1).says("4 files not drained, as requested");
    sandbox.cairn(&["drain", "levels"]).succeeds();
    assert_eq!(drained(&sandbox, "levels"), [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn newest_checkpoint_outside_stays_until_there_is_a_newer_one() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "kept", &["--pfs-every", "3"]);
    session.shell("for i in 1 2 3; do echo $i >/cairn/step.$i; done");
    eventually("the third arrives", || drained(&sandbox, "kept") == [3]);
    // A program that keeps its newest two.
    session.shell(
        "for i in 4 5; do echo $i >/cairn/step.$i; done; rm /cairn/step.[123]; echo x >/cairn/log",
    );
    eventually("the log arrives", || sandbox.out().join("log").exists());
    assert_eq!(sandbox.drained("step.3"), "3\n");
    session.shell("echo 6 >/cairn/step.6");
    eventually("the sixth replaces it", || {
        drained(&sandbox, "kept") == [6] && !sandbox.out().join("step.3").exists()
    });
    // Files removed by a program that succeeds are removed outside, too.
    session.shell("rm /cairn/step.*");
    assert_eq!(session.end(), Some(0));
    assert_eq!(sandbox.drained_names(), ["log"]);
}

/// Mechanism: the rest of a checkpoint that a program was removing counted as complete and replaced
/// the whole one in the manifest.
///
/// Consequence: the newest checkpoint outside lost its files one by one and was reported as whole.
///
/// Fix: a rest is not a checkpoint until it has stayed for a while, and never replaces a whole one.
#[test]
fn newest_checkpoint_outside_stays_whole_while_a_program_removes_it() {
    let sandbox = Sandbox::new();
    let options = ["--pfs-every", "3", "--settle", "1h"];
    let mut session = Session::start(&sandbox, "removed", &options);
    let write = |step: u32| {
        format!(
            "mkdir /cairn/ckpt-{step}; for part in a b; do echo {step} >/cairn/ckpt-{step}/$part; done\n"
        )
    };
    (1..=4).for_each(|step| session.shell(&write(step)));
    eventually("the third arrives", || drained(&sandbox, "removed") == [3]);
    session.shell(&write(5));
    for (removed, file) in [("a", "first"), ("b", "second")] {
        session.shell(&format!("rm /cairn/ckpt-3/{removed}; echo x >/cairn/{file}"));
        eventually("the file arrives", || sandbox.out().join(file).exists());
        assert_eq!(drained(&sandbox, "removed"), [3]);
        assert_eq!(
            ["a", "b"].map(|part| sandbox.drained(&format!("ckpt-3/{part}"))),
            ["3\n", "3\n"]
        );
    }
    session.kill_all();
}

#[test]
fn program_that_keeps_one_checkpoint_has_one_in_so_many_drained() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "one", &["--pfs-every", "3"]);
    session.shell("for i in 1 2 3; do echo $i >/cairn/step.$i; done");
    eventually("the third arrives", || drained(&sandbox, "one") == [3]);
    session.shell("rm /cairn/step.[12]");
    for (step, other) in [(4, "a"), (5, "b")] {
        let before = step - 1;
        session.shell(&format!("echo {step} >/cairn/step.{step}; rm /cairn/step.{before}"));
        session.shell(&format!("echo x >/cairn/{other}"));
        eventually("the other arrives", || sandbox.out().join(other).exists());
        assert_eq!(drained(&sandbox, "one"), [3]);
        assert!(!sandbox.out().join(format!("step.{step}")).exists());
    }
    session.shell("echo 6 >/cairn/step.6; rm /cairn/step.5");
    eventually("the sixth arrives", || drained(&sandbox, "one") == [6]);
    session.kill_all();
}

/// Mechanism: the files of a failed run were judged before the size of its checkpoints was known.
///
/// Consequence: the last checkpoint was given up as unfinished, although it was as large as the one
/// before.
///
/// Fix: complete checkpoints are determined first.
#[test]
fn last_checkpoint_of_a_run_that_failed_at_once_is_one() {
    let sandbox = Sandbox::new();
    let script = "mkdir /cairn/ckpt-1 /cairn/ckpt-2; for step in 1 2; do for part in a b; do \
                  echo $step >/cairn/ckpt-$step/$part; done; done; exit 3";
    sandbox.run("failed", script).ends_with(3);
    assert_eq!(drained(&sandbox, "failed"), [1, 2]);
}

/// Mechanism: where the names of one step differ in their ranks, only the ranks were taken for
/// steps.
///
/// Consequence: with --pfs-every most parts were dropped at the end, and a restart got one of them.
///
/// Fix: the words before the numbers decide.
#[test]
fn parts_of_a_program_without_a_launcher_are_one_checkpoint() {
    let sandbox = Sandbox::new();
    let out = sandbox.out().display().to_string();
    let parts = "for rank in 0 1 2 3; do echo $rank >/cairn/ckpt_rank${rank}_step10.pt; done";
    let run =
        ["run", "--persist", &out, "--job", "parts", "--pfs-every", "10", "--", "sh", "-c", parts];
    sandbox.cairn(&run).succeeds();
    assert_eq!(sandbox.drained_names().len(), 4);
    let again = ["run", "--persist", &out, "--job", "parts", "--stage", "--", "ls", "/cairn"];
    assert_eq!(sandbox.cairn(&again).succeeds().stdout.lines().count(), 4);
}

/// Mechanism: the newest checkpoint was chosen by the times of its files.
///
/// Consequence: after the clock was set back, the checkpoint before it was drained at the end, kept
/// and offered for restart.
///
/// Fix: the order in which checkpoints were found complete decides.
#[test]
fn checkpoint_written_after_the_clock_was_set_back_is_the_newest() {
    let sandbox = Sandbox::new();
    let out = sandbox.out().display().to_string();
    let run = |job: &str, step: u32, second: u32, code: i32| {
        let script = format!(
            "import os
file = os.open('/cairn/dump.{step}', os.O_WRONLY | os.O_CREAT)
os.write(file, b'{step}')
os.utime(file, ({second}, {second}))
os.close(file)
os._exit({code})"
        );
        let head = ["run", "--job", job, "--persist", &out, "--pfs-every", "10"];
        let pattern = ["--checkpoint-pattern", "/dump.{step}", "--", "python3", "-c", &script];
        sandbox.cairn(&[&head[..], &pattern].concat()).ends_with(code)
    };
    run("back", 1, 2_000_000_000, 1);
    run("back", 2, 1_000_000_000, 1);
    assert_eq!(sandbox.drained_names(), ["dump.1", "dump.2"], "each was the newest at an end");
    let newest = ["ls", "--checkpoints", "back", "--newest", "*"];
    sandbox.cairn(&newest).prints("/cairn/dump.2\n");
    // A new store is filled with the same checkpoint.
    sandbox.cairn(&["rm", "back"]).succeeds();
    let staged = ["run", "--job", "back", "--persist", &out, "--stage", "--newest-only"];
    sandbox.cairn(&[&staged[..], &["--", "ls", "/cairn"]].concat()).succeeds().prints("dump.2\n");
}

#[test]
fn files_are_drained_as_their_purpose_says() {
    let sandbox = Sandbox::new();
    let out = sandbox.out().display().to_string();
    let script = "mkdir -p /cairn/scratch/deep /cairn/empty; echo t >/cairn/scratch/deep/t; echo r >/cairn/input.r;
        for i in 1 2; do echo $i >/cairn/keep.$i; done; echo x >/cairn/x";
    let options = [
        &["--temporary", "scratch/**", "--reusable", "*.r"][..],
        &["--persistent", "keep.*", "--pfs-every", "100"],
    ];
    let first = ["run", "--job", "purposes", "--persist", &out];
    let all = [&first[..], &options.concat(), &["--", "bash", "-c", script]].concat();
    sandbox.cairn(&all).succeeds();
    assert_eq!(sandbox.drained_names(), ["empty", "keep.1", "keep.2", "x"]);
}

#[test]
fn program_says_itself_what_its_checkpoint_is() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "marked", &PATIENT);
    let mark = |call: &str| {
        format!(
            "python3 -c 'import ctypes; ctypes.CDLL(None).cairn_checkpoint_{call}(b\"state\", 5)'"
        )
    };
    session.shell(&format!("{}; echo 1 >/cairn/one; echo 2 >/cairn/two", mark("begin")));
    let waits = "0 of 1 processes are done".to_string();
    eventually("it is seen", || listed(&sandbox, "marked") == [(5, waits.clone())]);
    eventually("the files arrive", || sandbox.drained_names() == ["one", "two"]);
    assert_eq!(drained(&sandbox, "marked"), [] as [u64; 0]);
    session.shell(&mark("end"));
    eventually("it is a checkpoint", || drained(&sandbox, "marked") == [5]);
    assert_eq!(session.end(), Some(0));
    assert_eq!(sandbox.drained_names(), ["one", "two"]);
}

#[test]
fn patterns_and_levels_come_from_the_configuration_and_nonsense_is_refused() {
    let sandbox = Sandbox::new();
    let settings = "[checkpoint]\npattern = \"/s{step}p{rank}\"\nlevels = { node = 1, pfs = 2 }\n";
    fs::write(sandbox.work().join("cairn.toml"), settings).expect("writes");
    let script = "for s in 1 2 3; do for p in 0 1; do echo $s >/cairn/s${s}p$p; done; done; exit 1";
    sandbox.run("toml", script).ends_with(1);
    assert_eq!(drained(&sandbox, "toml"), [2, 3]);
    for (option, value) in
        [("--checkpoint-pattern", "{stp}"), ("--pfs-every", "0"), ("--settle", "x")]
    {
        sandbox.cairn(&["run", option, value, "--", "true"]).refused_with(option);
    }
}

/// Mechanism: a checkpoint was the set of its files still in the store, and replaced the manifest's
/// entry of the same name.
///
/// Consequence: after a file was removed from the store and its copy kept, the manifest had the
/// checkpoint without that file, and it was restored that way.
///
/// Fix: files that have left the store still belong to the checkpoint.
#[test]
fn checkpoint_outside_keeps_the_files_that_leave_the_store() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "rest", &PATIENT);
    session.shell("mkdir /cairn/ckpt-1; echo a >/cairn/ckpt-1/a; echo b >/cairn/ckpt-1/b");
    session.shell("mkdir /cairn/ckpt-2; echo a >/cairn/ckpt-2/a");
    eventually("the first is a checkpoint", || drained(&sandbox, "rest") == [1]);
    session.shell("echo b >/cairn/ckpt-2/b");
    eventually("both are", || drained(&sandbox, "rest") == [1, 2]);
    sandbox.cairn(&["rm", "rest:/ckpt-1/a"]).succeeds();
    session.shell("echo x >/cairn/log");
    eventually("the agent has looked", || sandbox.out().join("log").exists());
    let files = |index: usize| sandbox.manifest("rest")["checkpoints"][index]["files"].clone();
    assert_eq!(files(0).as_array().map(Vec::len), Some(2));
    assert_eq!(session.end(), Some(0));
    assert_eq!(drained(&sandbox, "rest"), [1, 2]);
    assert_eq!(files(0).as_array().map(Vec::len), Some(2));
}

/// Mechanism: an agent read the job's rules for checkpoints and files only when it was asked to
/// drain.
///
/// Consequence: a run that began while the previous run's agent was alive had its files drained by
/// the previous run's rules.
///
/// Fix: the agent checks whether the job description was replaced.
#[test]
fn run_that_resumes_a_store_with_an_agent_has_its_own_rules() {
    let sandbox = Sandbox::new();
    sandbox.run("rules", "echo 1 >/cairn/old; exit 1").ends_with(1);
    let mut session = Session::start(&sandbox, "rules", &["--temporary", "*.tmp"]);
    session.shell("echo t >/cairn/x.tmp; echo y >/cairn/y");
    eventually("the other file arrives", || sandbox.out().join("y").exists());
    assert!(!sandbox.out().join("x.tmp").exists());
    assert_eq!(session.end(), Some(0));
    assert_eq!(sandbox.drained_names(), ["old", "y"]);
}

/// Mechanism: the agent checked only once, at its start, whether metrics are wanted.
///
/// Consequence: a run with metrics that resumed a store with a living agent got none.
///
/// Fix: it checks each time.
#[test]
fn figures_are_written_for_a_run_that_finds_an_agent() {
    let sandbox = Sandbox::new();
    sandbox.run("melt", "echo 1 >/cairn/old; exit 1").ends_with(1);
    let session = Session::start(&sandbox, "melt", &["--metrics-file", "melt.prom"]);
    let file = sandbox.work().join("melt.prom");
    let has = |line: &str| fs::read_to_string(&file).is_ok_and(|text| text.contains(line));
    eventually("figures", || has("cairn_drained_files{job=\"melt\"} 1"));
    assert_eq!(session.end(), Some(0));
}

#[test]
fn figures_for_prometheus_are_written_beside_the_run() {
    let sandbox = Sandbox::new();
    let file = sandbox.work().join("melt.prom");
    let session = Session::start(&sandbox, "melt", &["--metrics-file", "melt.prom"]);
    let has = |line: &str| fs::read_to_string(&file).is_ok_and(|text| text.contains(line));
    eventually("figures", || has("cairn_drained_files{job=\"melt\"} 0"));
    assert_eq!(session.end(), Some(0));
    assert!(!sandbox.work().join("melt.prom.new").exists());
}
