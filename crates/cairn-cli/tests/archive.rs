//! Complete checkpoints go to an object store, whatever the server does meanwhile. The server here
//! plays what real ones do when they are in trouble; tests/apps has real ones.

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

/// Waits until the test says so, by a file in the working directory.
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
        // A run that fails with what the server did is followed by a drain, as it says.
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
    // Else the agent may be faster than the end of the run.
    server.set_mood(Mood::Away);
    cairn(&sandbox, &server, &words).succeeds();
    server.set_mood(Mood::Fine);
    let drained = without(client(&sandbox, &server, &["drain", "melt"])).ends_with(75);
    drained.says("has no credentials for the archive");
    assert!(server.names().is_empty());
}

/// Mechanism: the server is asked at the end of a run, also where nothing is to be sent.
/// Consequence: a run without a file ended as if something were not safe, kept its store, and said
/// that nothing there was verified.
/// Fix: what has no files needs no server; and what nobody could ask is said to be nothing.
#[test]
fn run_without_files_needs_no_server() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    server.set_mood(Mood::Away);
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
    // Another agent, which knows nothing of what the first one did.
    run(&sandbox, &server, "exit 3").ends_with(3);
    assert_eq!(server.written(), sent);
    let before = manifests(&server);
    run(&sandbox, &server, "echo x > /cairn/state.100; exit 0").succeeds();
    assert_archived(&sandbox, &server);
    let after = manifests(&server);
    assert!(after.iter().filter(|name| before.contains(name)).count() == 1, "{before:?} {after:?}");
}

/// Mechanism: what an agent that was killed had begun was given up, and begun again from the first
/// byte.
/// Consequence: a file that takes longer to send than agents live was never archived, and each of
/// them paid for all of it.
/// Fix: the next one compares the parts that are there and sends the others.
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
    // The one that was on its way when the agent died may have come, too.
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
    server.set_mood(Mood::Away);
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

/// Mechanism: an agent gave up whatever was begun and not complete below its job's prefix.
/// Consequence: of a job whose archive lies below that of another one, what was just being sent was
/// thrown away.
/// Fix: what lies in the archive of another job is left alone.
#[test]
fn what_a_job_sends_below_the_archive_of_another_is_left_alone() {
    let (sandbox, other, server) = (Sandbox::new(), Sandbox::new(), ObjectStore::start(&[]));
    server.set_mood(Mood::StuckAt(2));
    let running = Running::start(command(&sandbox, &server, SCRIPT));
    server.wait_until_stuck();
    // Its objects are in runs/deep/er/.
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
    server.set_mood(Mood::Away);
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
    server.set_mood(Mood::Away);
    let ran = run(&sandbox, &server, SCRIPT).ends_with(75).says("archive not complete");
    assert_eq!(ran.offered("drain").split(' ').next_back(), Some("melt"));
    cairn(&sandbox, &server, &["drain", "melt"]).ends_with(75).says("cannot list");
    server.set_mood(Mood::Fine);
    cairn(&sandbox, &server, &["drain", "melt"]).succeeds();
    assert_archived(&sandbox, &server);
}

/// Mechanism: what the job wants to keep knew of the persist directory only.
/// Consequence: a checkpoint left the store before it was in the archive, which then had nothing to
/// send and said nothing.
/// Fix: what is owed to the archive, or may be, stays.
#[test]
fn checkpoint_stays_in_the_store_until_the_archive_has_it() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    server.set_mood(Mood::Away);
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
    // What went before the last object asked for leave, but for what a tenth of a second saves.
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

/// The threads of a process, by their names, and how nice they are.
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

/// Mechanism: the runs of a drill archived, and wrote figures, as the environment or `cairn.toml`
/// says for real ones.
/// Consequence: checkpoints of drills in the bucket of real jobs.
/// Fix: they go without.
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

/// Mechanism: the end of a run that does not wait for its drain told the agent nothing of the
/// archive, of which the newest checkpoint is asked for by whoever waits; and `status --wait` knew
/// nothing of it.
/// Consequence: with `--archive-every 10` the last step of a run never came to the archive, though
/// it was said to go on there.
/// Fix: what tells the drain of the end goes to the archive, too, and an agent that finds no run
/// asks for the newest itself.
///
/// Mechanism: the newest was chosen of what the agent knew when it was asked, or found no run,
/// before the pass that was told of the end had looked.
/// Consequence: where the end of the walltime kept a run from waiting, an older checkpoint was
/// archived, too.
/// Fix: what is newest is known after that pass.
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
    server.set_mood(Mood::Away);
    rarely(&sandbox, &server, &["--drain", "background"]).succeeds();
    cairn(&sandbox, &server, &["status", "--wait", "melt"]).ends_with(75).says("cannot list");
    kill("KILL", i64::from(sandbox.agent("melt")));
    server.set_mood(Mood::Fine);
    cairn(&sandbox, &server, &["status", "--wait", "melt"]).succeeds().says("1 checkpoint, ");
    assert!(is_said_to_be_there(&server, "200") && !is_said_to_be_there(&server, "100"));
}

/// A run that archives one checkpoint in ten, and the newest.
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

/// Mechanism: what says that a checkpoint is there was removed before the first byte of its new
/// file was sent.
/// Consequence: the only checkpoint of a program that writes one file again and again was gone for
/// as long as that took, and for good if the node was lost then, though its object was still there.
/// Fix: it is removed just before the object is replaced.
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

/// Mechanism: what the server refused for good, but for a name, ended the round, and the next one
/// began with the same checkpoint.
/// Consequence: one object with a path that is too long, or below the name of another, kept every
/// older checkpoint from the archive.
/// Fix: a refusal that is about the object is that of its checkpoint.
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

/// Mechanism: what could not be archived did not count as owed.
/// Consequence: `--retain` gave it up, though it is to stay until it is there.
/// Fix: it counts.
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

/// Mechanism: a checkpoint that the server refuses for good stayed in the store for ever.
/// Consequence: such ones filled it, and the program's writes failed, though `--retain` says that
/// they need not stay.
/// Fix: where writers wait for room, and nothing else can go, the oldest of them goes, and that is
/// said.
#[test]
fn checkpoint_that_the_archive_refuses_goes_when_nothing_else_makes_room() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    server.refuse(Some("runs/deep/er/melt/state.1"));
    let script =
        "for step in 1 2 3 4; do head -c 20M /dev/zero >/cairn/state.$step || exit 9; done";
    let out = sandbox.out().display().to_string();
    let words = ["run", "--job", "melt", "--persist", &out, "--archive", "s3://runs/deep/er"];
    let options = ["--retain", "count=2", "--space-wait", "10m"];
    let pattern = ["--checkpoint-pattern", "/state.{step}", "--", "bash", "-c", script];
    let ran = cairn(&sandbox, &server, &[&words[..], &options, &pattern].concat()).succeeds();
    ran.says("3 checkpoints, 60.0 MiB, in").says("want of room, not archived: state.1");
    assert_eq!(sandbox.drained_names(), ["state.1", "state.2", "state.3", "state.4"]);
}

/// Mechanism: what is left in the store of a checkpoint is one to the register, with another
/// number, and was one to the archive.
/// Consequence: two checkpoints of one name there; the newest of them lacked the files that had
/// been given up, and restored.
/// Fix: what a checkpoint there has already is no other one.
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

/// Mechanism: whoever removes a store looked at what is not drained, and at nothing else.
/// Consequence: a store that a run had kept because the server was away, with exit code 75, was
/// removed by `cairn gc` before its checkpoints were archived.
/// Fix: what the archive is owed is sent, or keeps the store.
#[test]
fn store_stays_as_long_as_the_archive_lacks_a_checkpoint_of_it() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    server.set_mood(Mood::Away);
    run(&sandbox, &server, SCRIPT).ends_with(75);
    let collect = ["gc", "--job", "melt", "--older-than", "0"];
    cairn(&sandbox, &server, &collect).ends_with(1).says("not in s3://runs/deep/er: cannot list");
    cairn(&sandbox, &server, &["rm", "melt"]).refused_with("not in s3://runs/deep/er: cannot list");
    // Its agent would go on trying.
    kill("KILL", sandbox.agent("melt").into());
    let rehearse = [&collect[..], &["--dry-run"]].concat();
    cairn(&sandbox, &server, &rehearse).ends_with(1).says("in the archive: cannot list");
    assert!(sandbox.store("melt").exists());
    server.set_mood(Mood::Fine);
    cairn(&sandbox, &server, &rehearse).succeeds().says("once 2 checkpoints of it are archived");
    assert!(manifests(&server).is_empty() && sandbox.store("melt").exists());
    cairn(&sandbox, &server, &collect).succeeds();
    assert!(!sandbox.store("melt").exists());
    assert_archived(&sandbox, &server);
}
