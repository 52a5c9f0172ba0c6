//! New stores filled from a job's archive, whatever happened to the objects meanwhile.

mod common;

#[path = "common/archiving.rs"]
mod archiving;

use archiving::{
    Mood, OBJECTS, ObjectStore, SCRIPT, Trouble, assert_secrets_are_kept, cairn, client, manifests,
    run,
};
use common::{Ran, Sandbox, kill};
use std::fs;
use std::os::unix::fs::MetadataExt;

const ARCHIVE: &str = "s3://runs/deep/er";

/// Server that has both checkpoints, and a sandbox whose persist directory has them for comparison.
fn archived() -> (Sandbox, ObjectStore) {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    run(&sandbox, &server, SCRIPT).succeeds();
    assert!(!sandbox.store("melt").exists());
    (sandbox, server)
}

fn restore(sandbox: &Sandbox, server: &ObjectStore, options: &[&str]) -> Ran {
    cairn(sandbox, server, &[&["restore", ARCHIVE], options].concat())
}

/// Asserts that the store has these files, unchanged, and no others.
fn assert_restored(sandbox: &Sandbox, server: &ObjectStore, names: &[&str]) {
    let script = format!("cp -a /cairn/. . && rm -rf /cairn/* && echo {}", names.len());
    cairn(sandbox, server, &["run", "--job", "melt", "--", "bash", "-c", &script]).succeeds();
    let mut found: Vec<String> = fs::read_dir(sandbox.work())
        .expect("is there")
        .map(|entry| entry.expect("is there").file_name().into_string().expect("UTF-8"))
        .collect();
    found.sort();
    assert_eq!(found, names);
    for name in names {
        let (there, here) = (sandbox.out().join(name), sandbox.work().join(name));
        assert!(fs::read(&there).expect("reads") == fs::read(&here).expect("reads"), "{name}");
        let attributes = |path| {
            let found = fs::metadata(path).expect("is there");
            (found.mode(), found.mtime(), found.mtime_nsec())
        };
        assert_eq!(attributes(&there), attributes(&here), "{name}");
    }
}

#[test]
fn archived_checkpoints_come_back_as_they_were() {
    let (sandbox, server) = archived();
    restore(&sandbox, &server, &[]).succeeds().says("2 files, 8.58 MiB, restored");
    assert_restored(&sandbox, &server, &["state.100", "state.200"]);
}

/// Runs the job with an archive and writes the checkpoint dump.STEP with this modification time.
/// The store stays.
fn write(sandbox: &Sandbox, server: &ObjectStore, step: u32, second: u32) {
    let script =
        format!("printf {step} >/cairn/dump.{step}; touch -d @{second} /cairn/dump.{step}; exit 3");
    let head = ["run", "--job", "melt", "--archive", ARCHIVE, "--checkpoint-pattern"];
    let tail = ["/dump.{step}", "--", "bash", "-c", &script];
    cairn(sandbox, server, &[&head[..], &tail].concat()).ends_with(3);
}

fn assert_newest(server: &ObjectStore, name: &str) {
    let ran = restore(&Sandbox::new(), server, &["--newest", "--json"]).succeeds();
    assert_eq!(ran.json()["checkpoints"], serde_json::json!([name]), "{}", ran.stdout);
}

/// Mechanism: of two stores of a job, the one with the later file counted as the newer one.
///
/// Consequence: after the clock was set back, or on a node whose clock is slow, the job was
/// restored to an older checkpoint.
///
/// Fix: each archived checkpoint records what the archive held before it.
#[test]
fn newest_of_several_stores_is_what_was_archived_last_whatever_the_clocks_said() {
    let server = ObjectStore::start(&[]);
    let (first, second) = (Sandbox::new(), Sandbox::new());
    write(&first, &server, 1, 1_200_000_000);
    write(&second, &server, 2, 1_000_000_000);
    assert_newest(&server, "dump.2");
    write(&first, &server, 3, 900_000_000);
    assert_newest(&server, "dump.3");
}

/// Mechanism: an agent that had lost the register counted from 1 again.
///
/// Consequence: its checkpoints counted as older than those in the archive.
///
/// Fix: it continues from the numbers that the archive has of the store.
#[test]
fn numbers_go_on_after_the_register_was_lost() {
    let (sandbox, server) = (Sandbox::new(), ObjectStore::start(&[]));
    (1..=3).for_each(|step| write(&sandbox, &server, step, 1_000_000_000 + step));
    cairn(&sandbox, &server, &["exec", "--job", "melt", "--", "bash", "-c", "rm /cairn/dump.[12]"])
        .succeeds();
    if let Some(agent) = sandbox.agent_if_any("melt") {
        kill("KILL", agent.into());
    }
    fs::remove_file(sandbox.store("melt").join("checkpoints.json")).expect("is there");
    write(&sandbox, &server, 4, 1_000_000_004);
    assert_newest(&server, "dump.4");
}

#[test]
fn newest_alone_is_restored_and_the_job_goes_on_in_the_store() {
    let (sandbox, server) = archived();
    let ran = restore(&sandbox, &server, &["--newest", "--json"]).succeeds();
    assert_eq!(ran.json()["checkpoints"].as_array().map(Vec::len), Some(1), "{}", ran.stdout);
    assert_secrets_are_kept(&sandbox, &ran);
    assert_restored(&sandbox, &server, &["state.200"]);
}

#[test]
fn older_checkpoint_takes_the_place_of_one_that_is_damaged_at_the_server() {
    type Damage = fn(&ObjectStore);
    const NEWEST: &str = "runs/deep/er/melt/state.200";
    let damages: [(&str, Damage); 5] = [
        ("a bit", |server| server.damage(NEWEST, |bytes| bytes[5_000_000] ^= 4)),
        ("the end", |server| server.damage(NEWEST, |bytes| bytes.truncate(8_999_999))),
        ("all of it", |server| server.lose(NEWEST)),
        ("a bit of what says that it is there", |server| {
            server.damage(&manifest_of(server), |bytes| bytes[50] ^= 4);
        }),
        ("the end of what says that it is there", |server| {
            server.damage(&manifest_of(server), |bytes| bytes.truncate(50));
        }),
    ];
    for (what, damage) in damages {
        let (sandbox, server) = archived();
        damage(&server);
        let ran = restore(&sandbox, &server, &["--newest"]).ends_with(1).says("damaged");
        assert!(ran.stdout.contains("200"), "{what}: {}", ran.stdout);
        assert_restored(&sandbox, &server, &["state.100"]);
    }
}

/// Manifest object of the newest checkpoint.
fn manifest_of(server: &ObjectStore) -> String {
    let stem = format!("{OBJECTS}cairn-checkpoint.200-");
    manifests(server).into_iter().find(|name| name.starts_with(&stem)).expect("is there")
}

#[test]
fn connection_that_breaks_is_made_again_and_a_server_that_stays_away_leaves_no_store() {
    let (sandbox, server) = archived();
    (0..4).for_each(|_| server.trouble(Trouble::CutOff));
    restore(&sandbox, &server, &[]).succeeds();
    assert!(server.has_had_them());
    assert_restored(&sandbox, &server, &["state.100", "state.200"]);
    for (mood, reason) in [(Mood::Availability, "cannot list"), (Mood::Forbidding, "AccessDenied")]
    {
        server.set_mood(mood);
        let ran = restore(&sandbox, &server, &[]).ends_with(1).says(reason);
        assert_secrets_are_kept(&sandbox, &ran);
        assert!(!sandbox.store("melt").exists());
    }
}

#[test]
fn job_is_named_where_there_are_several_and_what_is_not_there_is_refused() {
    let (sandbox, server) = archived();
    let other = ["run", "--job", "other", "--archive", ARCHIVE, "--", "bash", "-c", SCRIPT];
    cairn(&sandbox, &server, &other).succeeds();
    restore(&sandbox, &server, &[]).refused_with("melt, other");
    restore(&sandbox, &server, &["--job", "none"]).refused_with("has no checkpoint");
    let elsewhere = ["restore", "s3://runs/elsewhere"];
    cairn(&sandbox, &server, &elsewhere).refused_with("s3://runs/elsewhere has no checkpoint");
    cairn(&sandbox, &server, &["restore", "s3://"]).refused_with("names no bucket");
    let mut nobody = client(&sandbox, &server, &["restore", ARCHIVE]);
    nobody.env_remove("AWS_ACCESS_KEY_ID");
    let ran = Ran::of(nobody.output().expect("starts"), "restore".to_string());
    ran.refused_with("there are no credentials for the archive");
    restore(&sandbox, &server, &["--job", "melt", "--only", "*.100"]).succeeds();
    assert_restored(&sandbox, &server, &["state.100"]);
}

#[test]
fn run_is_filled_from_the_archive_where_the_persist_directory_has_nothing() {
    let (sandbox, server) = archived();
    let fresh = Sandbox::new();
    let out = fresh.out().display().to_string();
    let words = ["run", "--job", "melt", "--stage", "--newest-only", "--archive", ARCHIVE];
    let show = ["--", "ls", "/cairn"];
    let ran = cairn(&fresh, &server, &[&words[..], &["--persist", &out], &show].concat());
    ran.succeeds().says("nothing to bring in from").says("with state.200").prints("state.200\n");
    // And without a persist directory.
    let ran = cairn(&sandbox, &server, &[&words[..], &show].concat());
    ran.succeeds().says("with state.200").prints("state.200\n");
}

/// Mechanism: the mark of a store that is being filled was made only when the first file arrived.
///
/// Consequence: a run that was killed while it listed the archive left an empty store, which the
/// next run took for its own.
///
/// Fix: the mark exists before the store does.
#[test]
fn run_that_is_killed_before_anything_was_brought_in_is_filled_by_the_next_one() {
    let (_, server) = archived();
    let fresh = Sandbox::new();
    let words = [
        "run",
        "--job",
        "melt",
        "--stage",
        "--newest-only",
        "--archive",
        ARCHIVE,
        "--",
        "ls",
        "/cairn",
    ];
    server.set_mood(Mood::Silent);
    let mut first = client(&fresh, &server, &words).spawn().expect("starts");
    server.wait_until_stuck();
    first.kill().expect("kills");
    first.wait().expect("ends");
    server.set_mood(Mood::Fine);
    assert!(fresh.store("melt").join("job.json").exists());
    cairn(&fresh, &server, &words).succeeds().prints("state.200\n");
}

/// Mechanism: one manifest object that could not be read failed the whole listing of the archive.
///
/// Consequence: nothing could be restored if one checkpoint had just been removed, or had moved to
/// a storage class that takes hours to read.
///
/// Fix: a manifest object that is gone counts as no checkpoint. Any other unreadable one is named
/// in a message, and the rest are restored.
#[test]
fn one_checkpoint_that_cannot_be_asked_for_keeps_no_other_from_being_restored() {
    for (trouble, code) in [(Trouble::Gone, 0), (Trouble::Frozen, 1)] {
        let (sandbox, server) = archived();
        server.trouble(trouble);
        let ran = restore(&sandbox, &server, &[]).ends_with(code);
        assert_eq!(ran.stdout.contains("InvalidObjectState"), code == 1, "{}", ran.stdout);
        assert!(server.has_had_them());
        assert_restored(&sandbox, &server, &["state.200"]);
    }
}

#[test]
fn what_is_in_an_archive_alone_comes_as_a_whole_even_on_demand() {
    let (sandbox, server) = archived();
    let words =
        ["run", "--job", "melt", "--stage=on-demand", "--newest-only", "--archive", ARCHIVE];
    let words = [&words[..], &["--", "bash", "-c", "ls /cairn; wc -c </cairn/state.200"]].concat();
    let ran = cairn(&sandbox, &server, &words).succeeds();
    let ran = ran.says("files of an archive are all brought in first, not on demand");
    ran.says("1 file, 8.58 MiB, brought in").prints("state.200\n9000000\n");
}
