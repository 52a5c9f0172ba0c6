//! `cairn run` as a launcher's task: each rank of a node starts one. The test imitates the launcher
//! by setting its variables.

mod common;

#[path = "common/archiving.rs"]
mod archiving;

use archiving::{Mood, ObjectStore, client};
use common::{Ran, Sandbox, eventually, kill};
use std::fs;
use std::process::{Child, Command, Stdio};

const RANKS: u32 = 3;
/// Shell command that waits until every rank has written its file, so that all ranks run at once.
const TOGETHER: &str =
    "touch /cairn/rank.$PMI_RANK; until [ $(ls /cairn/rank.* | wc -l) = 3 ]; do :; done";

/// Starts rank `rank` of the launch `launch`: `cairn run` with these arguments.
fn start(sandbox: &Sandbox, launch: &str, rank: u32, arguments: &[&str]) -> Child {
    as_rank(sandbox.command(&[&["run"], arguments].concat()), launch, rank)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts")
}

/// `command` as rank `rank` of the launch `launch`.
fn as_rank(mut command: Command, launch: &str, rank: u32) -> Command {
    let (rank, size) = (rank.to_string(), RANKS.to_string());
    command.envs([("PMI_JOBID", launch), ("PMI_RANK", &rank), ("PMI_SIZE", &size)]);
    command.envs([("MPI_LOCALRANKID", &rank), ("MPI_LOCALNRANKS", &size)]);
    command.env_remove("SLURMD_NODENAME");
    command
}

fn ended(child: Child) -> Ran {
    Ran::of(child.wait_with_output().expect("ends"), "run".to_string())
}

/// Runs all ranks, each with this script.
fn ranks(sandbox: &Sandbox, launch: &str, options: &[&str], script: &str) -> Vec<Ran> {
    let arguments = [options, &["--", "bash", "-c", script]].concat();
    let started: Vec<Child> =
        (0..RANKS).map(|rank| start(sandbox, launch, rank, &arguments)).collect();
    started.into_iter().map(ended).collect()
}

/// Asserts that exactly one rank printed `part`, and returns that rank's output.
fn ending(ran: &[Ran], part: &str) -> String {
    let said: Vec<&str> = ran.iter().map(|ran| ran.stderr.as_str()).collect();
    let ends: Vec<&&str> = said.iter().filter(|text| text.contains(part)).collect();
    assert_eq!(ends.len(), 1, "{part} in {said:#?}");
    ends[0].to_string()
}

/// Mechanism: each `cairn run` of a launcher's tasks made a store of its own. If they were given
/// one job name, all but one were refused.
///
/// Consequence: `srun -n4 cairn run -- ./program` ran, but no rank saw the files of another.
///
/// Fix: the runs of one launch on a node share one store (`launcher.rs`).
#[test]
fn ranks_of_a_node_share_a_store_that_the_last_one_ends() {
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    let options = ["--persist", out.to_str().expect("UTF-8")];
    for launch in ["7.0", "7.1"] {
        let ran = ranks(&sandbox, launch, &options, TOGETHER);
        assert!(ran.iter().all(|ran| ran.code == Some(0)), "{launch}");
        assert!(ending(&ran, "3 files").contains(&format!("pmi-{launch}-")), "named by its start");
        let drained = ["rank.0", "rank.1", "rank.2"];
        assert_eq!(sandbox.drained_names(), drained);
        fs::remove_dir_all(&out).expect("removes");
        fs::create_dir(&out).expect("makes");
        assert_eq!(fs::read_dir(sandbox.root()).expect("the root").count(), 0, "it is removed");
    }
}

#[test]
fn failure_of_any_rank_keeps_the_store_and_each_has_its_own_exit_code() {
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    let options = ["--job", "kept", "--persist", out.to_str().expect("UTF-8")];
    let ran = ranks(&sandbox, "8.0", &options, &format!("{TOGETHER}; exit $PMI_RANK"));
    assert_eq!(ran.iter().map(|ran| ran.code).collect::<Vec<_>>(), [Some(0), Some(1), Some(2)]);
    assert!(sandbox.store("kept").exists());
    assert!(!sandbox.store("kept").join("company.json").exists());
    // All of it is outside, although nobody knows whether more parts would have followed.
    sandbox.cairn(&["rm", "kept"]).succeeds();
}

/// Mechanism: the rank that ended the store exited with 75 if something could not be drained, even
/// where another rank had failed.
///
/// Consequence: the exit codes of a failed run depended on which rank ended last.
///
/// Fix: only a rank whose run succeeded exits with 75.
#[test]
fn rank_that_succeeds_last_has_its_own_exit_code_where_another_failed() {
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    let options = ["--job", "late", "--persist", out.to_str().expect("UTF-8")];
    let company = sandbox.root().join("*/late/company.json");
    let others = format!("grep -q '\"ended\":{{\"1\":1,\"2\":1}}' {}", company.display());
    let script = format!(
        "{TOGETHER}; [ $PMI_RANK = 0 ] || exit 1
        until {others}; do :; done; mv {out} {out}.away; touch {out}",
        out = out.display()
    );
    let ran = ranks(&sandbox, "22.0", &options, &script);
    assert_eq!(ran.iter().map(|ran| ran.code).collect::<Vec<_>>(), [Some(0), Some(1), Some(1)]);
    ending(&ran, "the drain to");
}

#[test]
fn one_rank_compares_the_newest_checkpoint_and_all_find_it_put_right() {
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    let options = ["--job", "rot", "--persist", out.to_str().expect("UTF-8")];
    let write = "[ $PMI_RANK = 0 ] && for step in 1 2; do
        mkdir /cairn/new; head -c 300000 /dev/zero | tr '\\0' $step >/cairn/new/a
        mv /cairn/new /cairn/ckpt-$step
    done; exit 3";
    let ran = ranks(&sandbox, "21.0", &options, write);
    assert!(ran.iter().all(|ran| ran.code == Some(3)));
    sandbox.flip("rot", &[b'2'; 64], 40_000);
    let ran = ranks(&sandbox, "21.1", &options, "tr -d 2 </cairn/ckpt-2/a | wc -c; exit 3");
    assert_eq!(ran.iter().map(|ran| &ran.stdout[..]).collect::<Vec<_>>(), ["0\n"; 3]);
    ending(&ran, "/ckpt-2/a is repaired from");
}

#[test]
fn rank_that_runs_again_waits_for_the_others_to_end_the_first_run() {
    let sandbox = Sandbox::new();
    let round = "touch /cairn/$0.$PMI_RANK; until [ $(ls /cairn/$0.* | wc -l) = 3 ]; do :; done; echo >>/cairn/all";
    let twice = format!(
        "for round in 1 2; do {} run --job again -- bash -c '{round}' $round || exit; done",
        common::CAIRN
    );
    let start = |rank: u32| {
        let rank = rank.to_string();
        let mut command = Command::new("bash");
        command.args(["-c", &twice]).current_dir(sandbox.work());
        command.envs([("PMI_JOBID", "9.0"), ("PMI_RANK", &rank), ("PMI_SIZE", "3")]);
        command.envs([("MPI_LOCALRANKID", &rank[..]), ("MPI_LOCALNRANKS", "3")]);
        command.env("CAIRN_STORE_ROOT", sandbox.root()).env("CAIRN_RUN_TIER", "ram:16M");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts")
    };
    let started: Vec<Child> = (0..RANKS).map(start).collect();
    started.into_iter().for_each(|child| drop(ended(child).succeeds()));
    sandbox
        .cairn(&["exec", "--job", "again", "--", "wc", "-l", "/cairn/all"])
        .prints("6 /cairn/all\n");
}

#[test]
fn store_of_a_company_is_in_use_until_its_last_rank_went_or_was_killed() {
    let sandbox = Sandbox::new();
    let fifo = sandbox.work().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().is_ok_and(|made| made.success()));
    let script = "echo >/cairn/rank.$PMI_RANK; [ $PMI_RANK = 0 ] || exec cat fifo";
    let arguments = ["--job", "used", "--", "bash", "-c", script];
    let mut started: Vec<Child> =
        (0..RANKS).map(|rank| start(&sandbox, "10.0", rank, &arguments)).collect();
    ended(started.remove(0)).succeeds().prints("");
    sandbox.cairn(&["status", "used"]).succeeds().says("running");
    sandbox.cairn(&["rm", "used", "--discard"]).refused_with("used");
    sandbox.run_undrained("used", "true").refused_with("is running already");
    let other = start(&sandbox, "11.0", 0, &arguments);
    ended(other).refused_with("is running already");
    kill("KILL", i64::from(started[0].id()));
    started.remove(0).wait().expect("ends");
    let writer = fs::OpenOptions::new().write(true).open(&fifo).expect("the others read");
    drop(writer);
    let last = ended(started.remove(0)).succeeds();
    assert!(last.stderr.contains("only in the memory"), "{}", last.stderr);
    eventually("the cat of the killed one ends", || {
        sandbox.cairn(&["rm", "used", "--discard"]).code == Some(0)
    });
}

/// Mechanism: ranks waited at most a minute for the run lock, which the first rank holds while it
/// makes and fills the store.
///
/// Consequence: where a checkpoint took longer to arrive, the other ranks were refused, and the
/// launcher ended the program.
///
/// Fix: ranks of the same launch wait for the filling rank without a limit, and print that they
/// wait.
#[test]
fn ranks_wait_for_the_one_that_fills_the_store() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    server.set_mood(Mood::Silent);
    let options = ["run", "--job", "filled", "--stage", "--archive", "s3://runs/deep/er"];
    let arguments = [&options[..], &["--", "bash", "-c", TOGETHER]].concat();
    let said = |rank: u32| sandbox.work().join(format!("said.{rank}"));
    let start = |rank: u32| {
        let mut command = as_rank(client(&sandbox, &server, &arguments), "13.0", rank);
        command.stderr(fs::File::create(said(rank)).expect("makes"));
        Running(command.spawn().expect("starts"))
    };
    let first = start(0);
    server.wait_until_stuck();
    let others = [1, 2].map(start);
    for rank in [1, 2] {
        eventually("that it waits is said", || {
            let text = fs::read_to_string(said(rank)).expect("reads");
            text == "cairn: filled: waiting for the rank of this node that makes the store\n"
        });
    }
    server.set_mood(Mood::Fine);
    for (rank, mut running) in [first].into_iter().chain(others).enumerate() {
        let ended = running.0.wait().expect("ends");
        assert!(ended.success(), "{rank}: {:?}", fs::read_to_string(said(rank as u32)));
    }
}

/// Mechanism: when the rank that filled the store failed, the next one began to fill it, and so on.
///
/// Consequence: some ranks ran without the others, or each failed long after the one before. A rank
/// that had waited for more than a minute could be told that the job was already running.
///
/// Fix: waiting ranks are told why the filling failed.
#[test]
fn ranks_that_wait_are_told_why_the_store_could_not_be_filled() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    server.set_mood(Mood::Silent);
    let options = ["run", "--job", "filled", "--stage", "--archive", "s3://runs/deep/er"];
    let arguments = [&options[..], &["--", "true"]].concat();
    let said = |rank: u32| sandbox.work().join(format!("said.{rank}"));
    let start = |rank: u32| {
        let mut command = as_rank(client(&sandbox, &server, &arguments), "15.0", rank);
        command.stderr(fs::File::create(said(rank)).expect("makes"));
        Running(command.spawn().expect("starts"))
    };
    let text = |rank: u32| fs::read_to_string(said(rank)).expect("reads");
    let mut first = start(0);
    server.wait_until_stuck();
    let others = [1, 2].map(start);
    for rank in [1, 2] {
        eventually("that it waits is said", || text(rank).contains("waiting for the rank"));
    }
    server.set_mood(Mood::Forbidding);
    assert_eq!(first.0.wait().expect("ends").code(), Some(1), "{}", text(0));
    assert!(text(0).contains("AccessDenied") && !text(0).contains("no store"), "{}", text(0));
    // No other rank asks the server again.
    server.set_mood(Mood::Fine);
    for (rank, mut running) in [1, 2].into_iter().zip(others) {
        assert_eq!(running.0.wait().expect("ends").code(), Some(1), "{}", text(rank));
        assert!(text(rank).contains("that fills it failed: "), "{}", text(rank));
        assert!(text(rank).contains("AccessDenied"), "{}", text(rank));
    }
}

/// A rank that ends with the test, even if the test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().expect("kills, or it has ended");
        self.0.wait().expect("ends");
    }
}

/// Mechanism: a missing store after a failed attempt to make one was taken for its removal by
/// others.
///
/// Consequence: a request that cannot be met was refused only after a minute.
///
/// Fix: the attempt is repeated only if a store existed before.
#[test]
fn request_that_cannot_be_met_is_refused_at_once() {
    let sandbox = Sandbox::new();
    let started = start(&sandbox, "12.0", 0, &["--tier", "ram:900T", "--", "true"]);
    let began = std::time::Instant::now();
    ended(started).refused_with("a RAM tier of 900 TiB");
    assert!(began.elapsed() < std::time::Duration::from_secs(30), "it is not tried for a minute");
}

#[test]
fn tasks_on_other_nodes_are_told_of_before_they_start() {
    let sandbox = Sandbox::new();
    let launcher = sandbox.work().join("srun");
    fs::copy("/bin/true", &launcher).expect("copies");
    let run = |nodes: &str| {
        let mut command = sandbox.command(&["run", "--", "./srun"]);
        command.env("SLURM_JOB_NUM_NODES", nodes).env("SLURMD_NODENAME", "n1");
        Ran::of(command.output().expect("starts"), "run".to_string()).succeeds()
    };
    run("2").says("tasks that srun starts on other nodes find no store");
    assert!(!run("1").stderr.contains("other nodes"));
}
