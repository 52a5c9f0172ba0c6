//! Complete checkpoints reach an object store, whatever the server does meanwhile.
//!
//! The server here imitates real servers in trouble; tests/apps uses real servers.

mod common;

#[path = "common/archiving.rs"]
mod archiving;

use archiving::{
    Mood, OBJECTS, ObjectStore, Running, SCRIPT, Trouble, assert_archived, assert_secrets_are_kept,
    cairn, client, command, is_said_to_be_there, manifests, run,
};
use common::{Ran, Sandbox, eventually, kill};
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Shell command that waits until the test creates `go` in the working directory.
const WAIT: &str = "until [ -e go ]; do sleep 0.01; done";

#[test]
fn complete_checkpoints_are_there_when_the_run_ends_and_the_store_is_removed() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    let ran = run(&sandbox, &server, SCRIPT).succeeds();
    let ran = ran.says("2 checkpoints, 8.58 MiB, in s3://runs/deep/er, verified");
    assert!(!sandbox.store("melt").exists(), "{}", ran.stderr);
    assert_archived(&sandbox, &server);
}

#[test]
fn server_in_trouble_is_asked_again_and_nothing_is_said_to_be_there_before_it_is() {
    for trouble in [Trouble::SlowDown, Trouble::Hangup, Trouble::WrongChecksum, Trouble::Unanswered]
    {
        let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[trouble; 3]));
        // A run that fails because of the server is followed by a drain, as its message advises.
        match run(&sandbox, &server, SCRIPT).code {
            Some(75) => drop(cairn(&sandbox, &server, &["drain", "melt"]).succeeds()),
            code => assert_eq!(code, Some(0), "{trouble:?}"),
        }
        assert_archived(&sandbox, &server);
    }
}

#[test]
fn server_that_keeps_other_bytes_than_it_got_has_no_checkpoint() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[Trouble::NoChecksums; 100]));
    let ran = run(&sandbox, &server, SCRIPT).ends_with(75);
    ran.says("cannot read back s3://runs/deep/er/melt/state.");
    assert!(manifests(&server).is_empty() && sandbox.store("melt").exists());
}

#[test]
fn server_that_refuses_leaves_the_store_with_the_reason_and_is_used_when_it_does_not() {
    for (mood, reason) in [
        (Mood::Forbidding, "AccessDenied (are the credentials those of this bucket?)"),
        (Mood::Bucketless, "NoSuchBucket (is the bucket there, and on this server?)"),
    ] {
        let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
        server.set_mood(mood);
        let ran = run(&sandbox, &server, SCRIPT).ends_with(75);
        let ran =
            ran.says("archive not complete: cannot list s3://runs/deep/er/melt/").says(reason);
        assert_secrets_are_kept(&sandbox, &ran);
        let status = sandbox.cairn(&["status", "melt"]).succeeds().says(reason);
        assert_secrets_are_kept(&sandbox, &status);
        assert!(server.names().is_empty());
        server.set_mood(Mood::Fine);
        let drained = cairn(&sandbox, &server, &["drain", "melt"]).succeeds();
        drained.says("2 checkpoints, 8.58 MiB, in s3://runs/deep/er, verified");
        assert_archived(&sandbox, &server);
    }
}

#[test]
fn whoever_has_no_credentials_says_so() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    let without = |mut command: std::process::Command| {
        command.env_remove("AWS_ACCESS_KEY_ID");
        Ran::of(command.output().expect("cairn starts"), "without".to_string())
    };
    let ran = without(command(&sandbox, &server, SCRIPT));
    ran.refused_with("there are no credentials for the archive");
    assert!(!sandbox.store("melt").exists(), "nothing was begun");
    let out = sandbox.out().display().to_string();
    let words = ["run", "--job", "melt", "--persist", &out, "--drain", "none"];
    let words = [&words[..], &["--archive", "s3://runs/deep/er"]].concat();
    let words = [&words[..], &["--", "bash", "-c", SCRIPT]].concat();
    // Otherwise the agent may archive before the run ends.
    server.set_mood(Mood::Availability);
    cairn(&sandbox, &server, &words).succeeds();
    server.set_mood(Mood::Fine);
    let drained = without(client(&sandbox, &server, &["drain", "melt"])).ends_with(75);
    drained.says("has no credentials for the archive");
    assert!(server.names().is_empty());
}

/// Mechanism: the end of a run queried the server even when there was nothing to send.
///
/// Consequence: a run without files ended as if data were unsafe, kept its store, and reported that
/// nothing there was verified.
///
/// Fix: a run without files needs no server. An archive that could not be queried counts as empty
/// then.
#[test]
fn run_without_files_needs_no_server() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    server.set_mood(Mood::Availability);
    let ran = run(&sandbox, &server, "true").succeeds();
    assert!(!ran.stderr.contains("verified"), "{}", ran.stderr);
    assert!(!sandbox.store("melt").exists());
    let ran = run(&sandbox, &server, SCRIPT).ends_with(75);
    let address = server.url().replace("http://", "");
    let ran = ran.says(&format!(" at {address}: "));
    assert!(!ran.stderr.contains("0 checkpoints"), "{}", ran.stderr);
}

#[test]
fn server_that_is_not_there_is_named() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    let mut command = command(&sandbox, &server, SCRIPT);
    command.env("CAIRN_ARCHIVE_ENDPOINT", "http://127.0.0.1:1");
    let ran = Ran::of(command.output().expect("starts"), "run".to_string()).ends_with(75);
    ran.says("at 127.0.0.1:1: connection refused (does a server listen there?)");
}

#[test]
fn what_is_there_is_not_sent_again_and_what_was_replaced_is_no_checkpoint_any_more() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    let script = format!("{SCRIPT}; exit 3");
    run(&sandbox, &server, &script).ends_with(3);
    assert_archived(&sandbox, &server);
    let sent = server.written();
    // Another agent, without the first one's state.
    run(&sandbox, &server, "exit 3").ends_with(3);
    assert_eq!(server.written(), sent);
    let before = manifests(&server);
    run(&sandbox, &server, "echo x > /cairn/state.100; exit 0").succeeds();
    assert_archived(&sandbox, &server);
    let after = manifests(&server);
    assert!(after.iter().filter(|name| before.contains(name)).count() == 1, "{before:?} {after:?}");
}

/// Mechanism: the next agent aborted the upload that a killed agent had begun, and restarted it at
/// the first byte.
///
/// Consequence: a file that takes longer to send than agents live was never archived, and each
/// agent paid for the whole file.
///
/// Fix: the next agent compares the parts that the server has and sends the others.
#[test]
fn agent_that_is_killed_in_the_middle_of_an_object_is_followed_by_one_that_sends_the_rest() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    server.set_mood(Mood::StuckAt(4));
    let script = SCRIPT.replace("9000000", "45000000");
    let running = Running::start(command(&sandbox, &server, &script));
    server.wait_until_stuck();
    assert_eq!(server.take_parts(), [1, 2, 3]);
    assert_eq!((server.unfinished(), is_said_to_be_there(&server, "200")), (1, false));
    kill("KILL", i64::from(sandbox.agent("melt")));
    server.set_mood(Mood::Fine);
    running.wait().succeeds().says("2 checkpoints");
    let mut sent = server.take_parts();
    sent.sort();
    // The part in flight when the agent died may have arrived as well.
    sent.dedup();
    assert_eq!((sent, server.begun()), (vec![4, 5, 6], 1));
    assert_archived(&sandbox, &server);
}

#[test]
fn what_the_server_has_of_an_object_counts_though_it_was_away_meanwhile() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    server.set_mood(Mood::StuckAt(3));
    let script = SCRIPT.replace("9000000", "30000000");
    let running = Running::start(command(&sandbox, &server, &format!("{script}; {WAIT}")));
    server.wait_until_stuck();
    server.set_mood(Mood::Availability);
    eventually("it is seen that nobody answers", || {
        let status = sandbox.cairn(&["status", "melt", "--json"]).stdout;
        status.contains("\"phase\": \"retrying\"")
    });
    assert_eq!(server.take_parts(), [1, 2, 3]);
    server.set_mood(Mood::Fine);
    eventually("the checkpoints are there", || manifests(&server).len() == 2);
    assert_eq!((server.take_parts(), server.begun()), (vec![4], 1));
    fs::write(sandbox.work().join("go"), "").expect("writes");
    running.wait().succeeds();
    assert_archived(&sandbox, &server);
}

#[test]
fn what_a_killed_agent_had_begun_is_given_up_also_if_the_file_is_gone() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    server.set_mood(Mood::StuckAt(2));
    let script =
        format!("{SCRIPT}; {WAIT}; rm /cairn/state.200; echo x > /cairn/state.300; exit 3");
    let running = Running::start(command(&sandbox, &server, &script));
    server.wait_until_stuck();
    fs::write(sandbox.work().join("go"), "").expect("writes");
    eventually("the file is removed", || {
        !sandbox.cairn(&["ls", "melt"]).stdout.contains("state.200")
    });
    kill("KILL", i64::from(sandbox.agent("melt")));
    server.set_mood(Mood::Fine);
    let ran = running.wait().ends_with(3);
    assert!(
        is_said_to_be_there(&server, "100") && !is_said_to_be_there(&server, "200"),
        "{}",
        ran.stderr
    );
    assert_eq!(server.unfinished(), 0);
    assert!(server.object(&format!("{OBJECTS}state.200")).is_none());
}

/// Mechanism: an agent aborted every incomplete upload below its job's prefix.
///
/// Consequence: if another job's archive lay below that prefix, its running uploads were thrown
/// away.
///
/// Fix: the agent leaves uploads in the archive of another job alone.
#[test]
fn what_a_job_sends_below_the_archive_of_another_is_left_alone() {
    let (sandbox, other, server) = (Sandbox::new(), Sandbox::new(), ObjectStore::start(&[]));
    server.set_mood(Mood::StuckAt(2));
    let running = Running::start(command(&sandbox, &server, SCRIPT));
    server.wait_until_stuck();
    // This job's objects are in runs/deep/er/.
    let outer = ["run", "--job", "er", "--archive", "s3://runs/deep", "--checkpoint-pattern"];
    let script = ["/dump.{step}", "--", "bash", "-c", "echo x >/cairn/dump.1"];
    cairn(&other, &server, &[&outer[..], &script].concat()).succeeds().says("1 checkpoint");
    assert_eq!(server.unfinished(), 1);
    server.set_mood(Mood::Fine);
    running.wait().succeeds();
    assert_eq!(server.begun(), 1, "nothing was begun again");
    assert_archived(&sandbox, &server);
}

#[test]
fn slow_server_keeps_neither_the_program_nor_the_drain_waiting() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    server.set_mood(Mood::StuckAt(2));
    let script = format!("{SCRIPT}; {WAIT}; echo later > /cairn/later; echo went on");
    let running = Running::start(command(&sandbox, &server, &script));
    server.wait_until_stuck();
    fs::write(sandbox.work().join("go"), "").expect("writes");
    eventually("the drain goes on", || sandbox.out().join("later").exists());
    assert!(!is_said_to_be_there(&server, "200"));
    server.set_mood(Mood::Fine);
    running.wait().succeeds().says("went on").says("2 checkpoints");
    assert_archived(&sandbox, &server);
}

#[test]
fn server_that_comes_back_while_the_program_runs_is_used_without_being_told() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    server.set_mood(Mood::Availability);
    let running = Running::start(command(&sandbox, &server, &format!("{SCRIPT}; {WAIT}")));
    eventually("the archive is in trouble", || {
        let status = sandbox.cairn(&["status", "melt", "--json"]).stdout;
        status.contains("\"phase\": \"retrying\"")
            && status.contains("cannot list s3://runs/deep/er/melt/")
    });
    server.set_mood(Mood::Fine);
    eventually("the checkpoints are there", || manifests(&server).len() == 2);
    fs::write(sandbox.work().join("go"), "").expect("writes");
    running.wait().succeeds();
    assert_archived(&sandbox, &server);
}

#[test]
fn server_that_is_away_leaves_the_store_and_a_drain_archives_it_later() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    server.set_mood(Mood::Availability);
    let ran = run(&sandbox, &server, SCRIPT).ends_with(75).says("archive not complete");
    assert_eq!(ran.offered("drain").split(' ').next_back(), Some("melt"));
    cairn(&sandbox, &server, &["drain", "melt"]).ends_with(75).says("cannot list");
    server.set_mood(Mood::Fine);
    cairn(&sandbox, &server, &["drain", "melt"]).succeeds();
    assert_archived(&sandbox, &server);
}

/// Mechanism: `--retain` considered only the persist directory.
///
/// Consequence: a checkpoint left the store before it was in the archive. The archive then had
/// nothing to send and reported nothing.
///
/// Fix: a checkpoint that the archive lacks, or may lack, stays in the store.
#[test]
fn checkpoint_stays_in_the_store_until_the_archive_has_it() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    server.set_mood(Mood::Availability);
    let mut command = command(&sandbox, &server, &format!("{SCRIPT}; {WAIT}"));
    command.env("CAIRN_SPACE_RETAIN", "count=1");
    let running = Running::start(command);
    eventually("both are drained", || sandbox.out().join("state.200").exists());
    let listed = || sandbox.cairn(&["ls", "melt"]).succeeds().stdout;
    cairn(&sandbox, &server, &["drain", "melt"]).ends_with(75);
    assert!(listed().contains("state.100") && listed().contains("state.200"), "{}", listed());
    server.set_mood(Mood::Fine);
    eventually("the older one is given up", || !listed().contains("state.100"));
    assert!(is_said_to_be_there(&server, "100") && listed().contains("state.200"), "{}", listed());
    fs::write(sandbox.work().join("go"), "").expect("writes");
    running.wait().succeeds();
    assert_archived(&sandbox, &server);
}

#[test]
fn rate_of_the_drain_holds_for_what_is_archived() {
    const RATE: f64 = (4 << 20) as f64;
    let begun = Instant::now();
    let last = std::sync::Arc::new(Mutex::new(Duration::ZERO));
    let noted = std::sync::Arc::clone(&last);
    let note = move |_| *noted.lock().expect("whole") = begun.elapsed();
    let (sandbox, server) = (Sandbox::new(), ObjectStore::watched(&[], Box::new(note)));
    let mut command = command(&sandbox, &server, SCRIPT);
    Ran::of(command.env("CAIRN_DRAIN_RATE", "4M").output().expect("starts"), "run".into())
        .succeeds();
    assert_archived(&sandbox, &server);
    // The limit applies to all bytes before the last object, less the 0.1 s of allowance that the
    // limiter saves up.
    let least = 9_000_000.0 / RATE - 0.1;
    let last = last.lock().expect("whole").as_secs_f64();
    assert!(last >= least, "9 MB at 4 MiB/s came within {last} s");
}

#[test]
fn sending_takes_what_programs_leave_unless_it_is_to_have_as_much() {
    for priority in ["idle", "normal"] {
        let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
        server.set_mood(Mood::StuckAt(2));
        let mut command = command(&sandbox, &server, SCRIPT);
        command.env("CAIRN_DRAIN_PRIORITY", priority);
        let running = Running::start(command);
        server.wait_until_stuck();
        let threads = nice_of_threads(sandbox.agent("melt"));
        let usual = threads.iter().find(|(name, _)| name == "archive").expect("is there").1;
        let expected = if priority == "idle" { 19 } else { usual };
        assert!(threads.contains(&("send".to_string(), expected)), "{priority}: {threads:?}");
        server.set_mood(Mood::Fine);
        running.wait().succeeds();
    }
}

/// Names of a process's threads, each with its nice value.
fn nice_of_threads(process: u32) -> Vec<(String, i64)> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("lives").flatten();
    let nice = |path: PathBuf| {
        let text = fs::read_to_string(path.join("stat")).ok()?;
        let (head, rest) = text.rsplit_once(") ")?;
        let name = head.split_once('(')?.1.to_string();
        Some((name, rest.split(' ').nth(16)?.parse().ok()?))
    };
    tasks.filter_map(|task| nice(task.path())).collect()
}

#[test]
fn job_without_a_persist_directory_is_archived_and_kept() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    let words =
        ["run", "--job", "melt", "--archive", "s3://runs/deep/er", "--", "bash", "-c", SCRIPT];
    cairn(&sandbox, &server, &words).succeeds().says("2 checkpoints");
    assert_eq!(manifests(&server).len(), 2);
    assert!(sandbox.store("melt").exists(), "it may have files that are in no checkpoint");
    cairn(&sandbox, &server, &["drain", "melt"]).succeeds().says("2 checkpoints");
}

/// Mechanism: the runs of a drill archived and wrote metrics wherever the environment or
/// `cairn.toml` said for real runs.
///
/// Consequence: checkpoints of drills appeared in the bucket of real jobs.
///
/// Fix: runs of a drill do neither.
#[test]
fn drill_sends_nothing_to_the_archive_of_real_runs_and_writes_no_figures() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    let words = ["drill", "--after", "900s..900s", "--", "bash", "-c", SCRIPT];
    let mut drill = client(&sandbox, &server, &words);
    let drill = drill.env("CAIRN_ARCHIVE_EVERY", "1").env("CAIRN_RUN_STAGE", "true");
    let figures = sandbox.work().join("melt.prom");
    drill.env("CAIRN_ARCHIVE_URL", "s3://runs/deep/er").env("CAIRN_RUN_METRICS_FILE", &figures);
    let ran = Ran::of(drill.output().expect("starts"), "drill".to_string());
    ran.ends_with(1).says("the run ended well");
    let settings = "[archive]\nurl = \"s3://runs/deep/er\"\nevery = 1\n\
                    [run]\nmetrics_file = \"melt.prom\"\nstage = true\n";
    fs::write(sandbox.work().join("cairn.toml"), settings).expect("writes");
    cairn(&sandbox, &server, &words).ends_with(1).says("the run ended well");
    assert!(server.names().is_empty() && server.begun() == 0, "{:?}", server.names());
    assert!(!figures.exists());
}

/// Mechanism: the end of a run that does not wait for its drain told the agent nothing about the
/// archive. Only a waiter asks for the newest checkpoint, and `status --wait` did not.
///
/// Consequence: with `--archive-every 10` the last step of a run never reached the archive, though
/// the run announced that archiving went on.
///
/// Fix: the message that tells the drain of the end also tells the archive. An agent that finds no
/// run asks for the newest checkpoint itself.
///
/// Mechanism: the agent chose the newest checkpoint when it was asked, or when it found no run,
/// before the drain pass that was told of the end had scanned the files.
///
/// Consequence: where the end of the walltime kept a run from waiting, an older checkpoint was
/// archived as well.
///
/// Fix: the agent chooses the newest checkpoint after that pass.
#[test]
fn newest_checkpoint_is_archived_though_nobody_waits_for_the_end_of_the_run() {
    let ends: [(&[&str], i32); 2] =
        [(&["--drain", "background"], 0), (&["--until", "2020-01-01T00:00:00Z"], 75)];
    for (options, code) in ends {
        let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
        rarely(&sandbox, &server, options).ends_with(code).says("in the background");
        let followed = cairn(&sandbox, &server, &["status", "--wait", "melt"]).succeeds();
        followed.says("1 checkpoint, 8.58 MiB, in s3://runs/deep/er, verified");
        assert!(is_said_to_be_there(&server, "200") && !is_said_to_be_there(&server, "100"));
    }
}

#[test]
fn newest_checkpoint_is_archived_by_another_agent_than_the_one_that_was_told() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    server.set_mood(Mood::Availability);
    rarely(&sandbox, &server, &["--drain", "background"]).succeeds();
    cairn(&sandbox, &server, &["status", "--wait", "melt"]).ends_with(75).says("cannot list");
    kill("KILL", i64::from(sandbox.agent("melt")));
    server.set_mood(Mood::Fine);
    cairn(&sandbox, &server, &["status", "--wait", "melt"]).succeeds().says("1 checkpoint, ");
    assert!(is_said_to_be_there(&server, "200") && !is_said_to_be_there(&server, "100"));
}

/// Run that archives one checkpoint in ten, and the newest.
fn rarely(sandbox: &Sandbox, server: &ObjectStore, options: &[&str]) -> Ran {
    let out = sandbox.out().display().to_string();
    let head = ["run", "--job", "melt", "--persist", &out, "--archive", "s3://runs/deep/er"];
    let often = ["--archive-every", "10"];
    let script = ["--", "bash", "-c", SCRIPT];
    cairn(sandbox, server, &[&head[..], &often, options, &script].concat())
}

#[test]
fn archive_of_a_job_without_a_persist_directory_is_followed_to_its_end() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    let words = ["run", "--job", "melt", "--archive", "s3://runs/deep/er", "--drain", "background"];
    let script = ["--", "bash", "-c", SCRIPT];
    cairn(&sandbox, &server, &[&words[..], &script].concat()).succeeds();
    cairn(&sandbox, &server, &["status", "--wait", "melt"]).succeeds().says("2 checkpoints");
    assert_eq!(manifests(&server).len(), 2);
}

/// Mechanism: the checkpoint's manifest object was removed before the first byte of the new file
/// was sent.
///
/// Consequence: the only checkpoint of a program that rewrites one file was missing for as long as
/// the upload took. If the node was lost then, it was missing for good, though its object was still
/// there.
///
/// Fix: the manifest object is removed just before the object is replaced.
#[test]
fn old_version_of_a_file_counts_until_the_new_one_takes_its_place() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    run(&sandbox, &server, &format!("{SCRIPT}; exit 3")).ends_with(3);
    let (before, object) = (manifests(&server), format!("{OBJECTS}state.200"));
    let old = server.object(&object);
    server.set_mood(Mood::StuckAt(2));
    let again = "head -c 9000000 /dev/urandom > /cairn/state.200; exit 3";
    let running = Running::start(command(&sandbox, &server, again));
    server.wait_until_stuck();
    assert!(server.object(&object) == old && manifests(&server) == before, "{before:?}");
    server.set_mood(Mood::Fine);
    running.wait().ends_with(3);
    assert_archived(&sandbox, &server);
    assert!(server.object(&object) != old && manifests(&server) != before);
}

/// Mechanism: a permanent refusal by the server, unless it was about a name, ended the round. The
/// next round began with the same checkpoint.
///
/// Consequence: one object whose path is too long, or lies below the name of another object, kept
/// every older checkpoint out of the archive.
///
/// Fix: a refusal of an object affects its checkpoint only.
#[test]
fn object_that_the_server_refuses_for_good_keeps_no_other_checkpoint_from_the_archive() {
    let long = "d=$(printf 'x%.0s' {1..250}); mkdir -p /cairn/$d/$d/$d/$d; \
                echo a | tee /cairn/$d/$d/$d/$d/state.300 > /cairn/$d/$d/$d/$d/state.400";
    for (script, reason) in [
        (
            SCRIPT.to_string(),
            "not archived: state.200: cannot begin s3://runs/deep/er/melt/state.200 at 127.0.0.1:",
        ),
        (format!("{SCRIPT}; {long}"), "names of objects have at most 1024 bytes"),
    ] {
        let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
        server.refuse(Some("runs/deep/er/melt/state.200").filter(|_| script == SCRIPT));
        run(&sandbox, &server, &script).ends_with(75).says(reason);
        assert!(is_said_to_be_there(&server, "100"), "{reason}");
        assert_eq!(is_said_to_be_there(&server, "200"), script != SCRIPT, "{reason}");
        sandbox.cairn(&["status", "melt"]).succeeds().says(reason);
        if script == SCRIPT {
            server.refuse(None);
            cairn(&sandbox, &server, &["drain", "melt"]).succeeds();
            assert_archived(&sandbox, &server);
        }
    }
}

/// Mechanism: a checkpoint that could not be archived did not count as owed to the archive.
///
/// Consequence: `--retain` gave it up, though it must stay until the archive has it.
///
/// Fix: it counts as owed.
#[test]
fn checkpoint_that_the_archive_does_not_take_stays_in_the_store() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    server.refuse(Some("runs/deep/er/melt/state.100"));
    let mut command = command(&sandbox, &server, &format!("{SCRIPT}; {WAIT}"));
    command.env("CAIRN_SPACE_RETAIN", "count=1");
    let running = Running::start(command);
    eventually("both are drained", || sandbox.out().join("state.200").exists());
    let drain = || cairn(&sandbox, &server, &["drain", "melt"]);
    drain().ends_with(75).says("not archived: state.100");
    drain().ends_with(75);
    let listed = || sandbox.cairn(&["ls", "melt"]).succeeds().stdout;
    assert!(listed().contains("state.100") && listed().contains("state.200"), "{}", listed());
    server.refuse(None);
    drain().succeeds();
    eventually("the older one is given up", || !listed().contains("state.100"));
    fs::write(sandbox.work().join("go"), "").expect("writes");
    running.wait().succeeds();
    assert_archived(&sandbox, &server);
}

/// Mechanism: a checkpoint that the server refuses for good stayed in the store forever.
///
/// Consequence: such checkpoints filled the store and the program's writes failed, though
/// `--retain` says that they need not stay.
///
/// Fix: when writers wait for room and nothing else can go, the oldest of them goes, and the run
/// says so.
#[test]
fn checkpoint_that_the_archive_refuses_goes_when_nothing_else_makes_room() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    server.refuse(Some("runs/deep/er/melt/state.1"));
    let script = "for step in 1 2 3; do head -c 27M /dev/zero >/cairn/state.$step || exit 9; done";
    let out = sandbox.out().display().to_string();
    let words = ["run", "--job", "melt", "--persist", &out, "--archive", "s3://runs/deep/er"];
    let options = ["--retain", "count=1", "--space-wait", "10m"];
    let pattern = ["--checkpoint-pattern", "/state.{step}", "--", "bash", "-c", script];
    let ran = cairn(&sandbox, &server, &[&words[..], &options, &pattern].concat()).succeeds();
    ran.says("2 checkpoints, 54.0 MiB, in").says("to make room, not archived: state.1");
    assert_eq!(sandbox.drained_names(), ["state.1", "state.2", "state.3"]);
}

/// Mechanism: the files that remain in the store from a checkpoint are a checkpoint to the
/// register, under another number. The archive took them for one, too.
///
/// Consequence: the archive had two checkpoints of one name. The newer lacked the files that had
/// been given up, and was the one restored.
///
/// Fix: files that an archived checkpoint already has do not make another checkpoint.
#[test]
fn rest_of_an_archived_checkpoint_is_not_archived_beside_it() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    let script = "mkdir /cairn/ckpt-1 /cairn/ckpt-2; echo a > /cairn/ckpt-1/a; \
                  echo b > /cairn/ckpt-1/b; echo a > /cairn/ckpt-2/a; exit 3";
    run(&sandbox, &server, script).ends_with(3);
    let before = manifests(&server);
    assert!(is_said_to_be_there(&server, "1"), "{before:?}");
    cairn(&sandbox, &server, &["drain", "melt"]).succeeds();
    cairn(&sandbox, &server, &["rm", "melt:/ckpt-1/a"]).succeeds();
    cairn(&sandbox, &server, &["drain", "melt"]).succeeds();
    assert_eq!(manifests(&server), before);
}

/// Mechanism: removing a store checked only for files that are not drained.
///
/// Consequence: a store kept with exit code 75 because the server was away was removed by `cairn
/// gc` before its checkpoints were archived.
///
/// Fix: checkpoints that the archive lacks are sent, or keep the store.
#[test]
fn store_stays_as_long_as_the_archive_lacks_a_checkpoint_of_it() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    server.set_mood(Mood::Availability);
    run(&sandbox, &server, SCRIPT).ends_with(75);
    let collect = ["gc", "--job", "melt", "--older-than", "0"];
    cairn(&sandbox, &server, &collect).ends_with(1).says("not in s3://runs/deep/er: cannot list");
    cairn(&sandbox, &server, &["rm", "melt"]).refused_with("not in s3://runs/deep/er: cannot list");
    // Its agent would keep retrying.
    kill("KILL", sandbox.agent("melt").into());
    let rehearse = [&collect[..], &["--dry-run"]].concat();
    cairn(&sandbox, &server, &rehearse)
        .ends_with(1)
        .says("cannot tell what the archive has of it: cannot list");
    assert!(sandbox.store("melt").exists());
    server.set_mood(Mood::Fine);
    cairn(&sandbox, &server, &rehearse).succeeds().says("once 2 checkpoints of it are archived");
    assert!(manifests(&server).is_empty() && sandbox.store("melt").exists());
    cairn(&sandbox, &server, &collect).succeeds();
    assert!(!sandbox.store("melt").exists());
    assert_archived(&sandbox, &server);
}
