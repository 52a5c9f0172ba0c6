//! New stores filled with files that a job drained earlier: after the node was wiped, or on another
//! node.

mod common;

use common::{Ran, Sandbox};
use std::fs;

/// Writes three checkpoints of two files each, a single file, and many small ones.
const WRITE: &str = "
for step in 1 2 3; do
    mkdir /cairn/ckpt-$step
    for rank in a b; do head -c 300000 /dev/zero | tr '\\0' $step >/cairn/ckpt-$step/$rank; done
done
echo input >/cairn/input; ln -s input /cairn/link
mkdir /cairn/many; for n in {a..z}; do echo $n >/cairn/many/$n; done";

/// Prints what is in a store, with the first byte of each part of a checkpoint.
const SHOW: &str = "
cd /cairn; for d in ckpt-*; do echo $d $(ls $d) $(head -c1 $d/a; head -c1 $d/b); done
cat link; cat many/* | tail -1; ls many | wc -l; ls -A | tr '\\n' ' '";

fn drained() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.run("job", WRITE).succeeds().says("store removed");
    sandbox
}

fn spoil(sandbox: &Sandbox, path: &str) {
    let path = sandbox.out().join(path);
    let mut content = fs::read(&path).expect("is drained");
    let middle = content.len() / 2;
    content[middle] ^= 1;
    fs::write(&path, content).expect("writes");
}

/// Runs a script in a store that, if new, is filled with the newest checkpoint.
fn staged(sandbox: &Sandbox, script: &str) -> Ran {
    let out = sandbox.out().display().to_string();
    let arguments = ["run", "--job", "job", "--persist", &out, "--stage", "--newest-only"];
    sandbox.cairn(&[&arguments[..], &["--", "bash", "-c", script]].concat())
}

#[test]
fn newest_checkpoint_is_there_before_the_program_starts() {
    let sandbox = drained();
    let ran = staged(&sandbox, SHOW).succeeds().says("brought in, with ckpt-3");
    ran.prints("ckpt-3 a b 33\ninput\nz\n26\nckpt-3 input link many ");
    // The older ones stay outside.
    assert!(sandbox.drained_names().contains(&"ckpt-1/a".to_string()));
}

/// Number of files in a store and number of drained ones, before an agent has looked.
fn safe_files(ran: &Ran) -> (u64, u64) {
    let files = &ran.json()[0]["files"];
    let number = |what: &str| files[what].as_u64().expect("a number");
    (number("total"), number("drained"))
}

/// Mechanism: only a drain pass marked files as drained.
///
/// Consequence: a store just filled from its own persist directory was reported as having nothing
/// safe, until the agent had compared everything again.
///
/// Fix: a file from that directory is tied to its copy at once.
#[test]
fn what_came_from_the_persist_directory_of_the_store_is_safe_at_once() {
    let sandbox = drained();
    let out = sandbox.out().display().to_string();
    sandbox.cairn(&["restore", &out]).succeeds();
    let status = sandbox.cairn(&["status", "job", "--json"]).succeeds();
    assert_eq!(safe_files(&status), (33, 33));
    assert_eq!(status.json()[0]["agent"], serde_json::Value::Null, "nobody had to look");
    assert_eq!(sandbox.entry("job", "ckpt-3/a")["detached"], serde_json::Value::Null);
    // The drain finds nothing to do, and a removed file is removed outside, too.
    sandbox.run("job", "rm /cairn/many/q").succeeds().says("store removed");
    assert!(!sandbox.out().join("many/q").exists());
    let ran = staged(&sandbox, &format!("{} status job --json", common::CAIRN)).succeeds();
    assert_eq!(safe_files(&ran), (28, 28));
    // With another persist directory, none of the files is drained yet.
    let elsewhere = sandbox.work().join("elsewhere");
    fs::create_dir(&elsewhere).expect("is made");
    let elsewhere = elsewhere.display().to_string();
    sandbox.cairn(&["restore", &out, "--persist", &elsewhere]).succeeds();
    let status = sandbox.cairn(&["status", "job", "--json"]).succeeds();
    assert_eq!(safe_files(&status), (32, 0));
}

#[test]
fn older_checkpoint_takes_the_place_of_a_damaged_one() {
    let sandbox = drained();
    spoil(&sandbox, "ckpt-3/b");
    spoil(&sandbox, "many/g");
    let ran = staged(&sandbox, SHOW).succeeds();
    let ran = ran.says("damaged, left out: many/g").says("ckpt-3 is left out");
    ran.prints("ckpt-2 a b 22\ninput\nz\n25\nckpt-2 input link many ");
}

/// Mechanism: findings while a store was filled were printed once and recorded nowhere.
///
/// Consequence: `cairn ls` reported the checkpoint that was left out as verified, and the one that
/// was brought in as not drained yet.
///
/// Fix: before the command runs, the manifest records which copies are damaged, and the register
/// which checkpoints are outside.
#[test]
fn checkpoint_that_was_left_out_is_not_called_verified_and_the_one_that_came_is() {
    let sandbox = drained();
    spoil(&sandbox, "ckpt-3/a");
    let out = sandbox.out().display().to_string();
    sandbox.cairn(&["restore", &out, "--newest"]).ends_with(1).says("ckpt-3 is left out");
    let listed = || sandbox.cairn(&["ls", "--checkpoints", "job", "--json"]).succeeds().json();
    let rows = || -> Vec<(u64, String, bool)> {
        let row = |row: &serde_json::Value| {
            let level = row["level"].as_str().expect("a word").to_string();
            (row["step"].as_u64().expect("a number"), level, row["verified"] == true)
        };
        let mut rows: Vec<_> = listed().as_array().expect("a list").iter().map(row).collect();
        rows.sort();
        rows
    };
    let row = |step, level: &str, verified| (step, level.to_string(), verified);
    let expected = [row(1, "pfs-only", true), row(2, "pfs", true), row(3, "pfs-only", false)];
    assert_eq!(rows(), expected);
    // Numbers are those of this store: checkpoints of an earlier store have none.
    let ids: Vec<_> =
        listed().as_array().expect("a list").iter().map(|row| row["id"].as_u64()).collect();
    assert_eq!(ids, [None, None, Some(1)]);
    let shown = sandbox.cairn(&["ls", "--checkpoints", "job"]).succeeds().stdout;
    assert!(shown.contains("pfs, damaged"), "{shown}");
    assert!(shown.contains("(the copy of ckpt-3/a is damaged or gone)"), "{shown}");
    let status = sandbox.cairn(&["status", "job"]).succeeds().stdout;
    assert!(status.contains("1 checkpoint, 1 of them drained"), "{status}");
    // A repaired copy counts again once all copies are compared.
    spoil(&sandbox, "ckpt-3/a");
    sandbox.cairn(&["rm", "job", "--discard"]).succeeds();
    sandbox.cairn(&["restore", &out]).succeeds();
    assert_eq!(rows(), [1, 2, 3].map(|step| row(step, "pfs", true)));
}

#[test]
fn missing_copy_counts_as_damaged() {
    let sandbox = drained();
    fs::remove_file(sandbox.out().join("ckpt-3/a")).expect("removes");
    spoil(&sandbox, "ckpt-2/a");
    staged(&sandbox, SHOW)
        .succeeds()
        .prints("ckpt-1 a b 11\ninput\nz\n26\nckpt-1 input link many ");
}

#[test]
fn nothing_is_brought_into_a_store_that_was_kept() {
    let sandbox = drained();
    staged(&sandbox, "echo new >/cairn/input; rm -r /cairn/ckpt-3; exit 3").ends_with(3);
    let ran = staged(&sandbox, "cat /cairn/input; ls -d /cairn/ckpt-*").ends_with(2);
    assert_eq!(ran.stdout, "new\n", "{}", ran.stderr);
}

/// Mechanism: the last checkpoint in a manifest was taken for whole, though one of its files may
/// have been found missing since.
///
/// Consequence: a checkpoint was offered that `--stage` then left out, and `cairn ls` reported it
/// as verified.
///
/// Fix: the manifest must have all copies of a checkpoint that is offered.
#[test]
fn checkpoint_of_which_a_copy_is_not_known_any_more_is_offered_nowhere() {
    let sandbox = drained();
    let mut manifest = sandbox.manifest("job");
    let files = manifest["files"].as_array_mut().expect("a list");
    files.retain(|entry| entry["path"] != "ckpt-3/b");
    // The format without a checksum of the file.
    manifest["format"] = 1.into();
    let path = sandbox.out().join("cairn-manifest.job.json");
    fs::write(path, manifest.to_string()).expect("writes");
    let out = sandbox.out().display().to_string();
    let beside = ["run", "--job", "job", "--persist", &out, "--shared", "--", "false"];
    sandbox.cairn(&beside).ends_with(1);
    let listed = sandbox.cairn(&["ls", "--checkpoints", "job", "--json"]).succeeds().json();
    let steps: Vec<u64> =
        listed.as_array().into_iter().flatten().filter_map(|row| row["step"].as_u64()).collect();
    assert_eq!(steps, [1, 2], "{listed}");
}

/// Mechanism: a manifest had no checksum of its own.
///
/// Consequence: one flipped bit in it hid a file. Staging left that file out with exit code 0.
///
/// Fix: it has one, and a manifest that differs is refused.
#[test]
fn flipped_bit_in_a_manifest_is_found() {
    let sandbox = drained();
    let path = sandbox.out().join("cairn-manifest.job.json");
    let mut text = fs::read(&path).expect("reads");
    let at = text.windows(8).rposition(|part| part == b"\"crc32c\"").expect("has one");
    text[at + 1] ^= 1;
    fs::write(&path, text).expect("writes");
    staged(&sandbox, "touch ran").says("is damaged: its checksum is wrong");
    assert!(!sandbox.work().join("ran").exists());
    let out = sandbox.out().display().to_string();
    let verified = sandbox.cairn(&["verify", "--persist", &out]);
    assert_ne!(verified.says("its checksum is wrong").code, Some(0));
}

#[test]
fn first_run_of_a_job_has_nothing_to_bring_in() {
    let sandbox = Sandbox::new();
    staged(&sandbox, "echo x >/cairn/f").succeeds().says("nothing to bring in");
    let wrong = ["run", "--job", "other", "--stage", "--", "true"];
    sandbox.cairn(&wrong).refused_with("--persist");
}

#[test]
fn store_whose_filling_was_cut_off_is_filled_anew() {
    let sandbox = drained();
    let out = sandbox.out().display().to_string();
    sandbox.cairn(&["restore", &out, "--newest"]).succeeds();
    // The state after a kill: a part is there, and the mark.
    fs::write(sandbox.store("job").join("staging"), "").expect("writes");
    let run = ["run", "--job", "job", "--persist", &out, "--stage", "--", "bash", "-c", SHOW];
    let all = "ckpt-1 a b 11\nckpt-2 a b 22\nckpt-3 a b 33\ninput\nz\n26\nckpt-1 ckpt-2 ckpt-3 input link many ";
    sandbox.cairn(&run).succeeds().prints(all);
}

#[test]
fn restore_brings_back_everything_or_the_newest_but_no_part_of_a_damaged_checkpoint() {
    let sandbox = drained();
    spoil(&sandbox, "ckpt-2/b");
    let out = sandbox.out().display().to_string();
    let ran = sandbox.cairn(&["restore", &out]).ends_with(1).says("checkpoint ckpt-2 is left out");
    ran.says("1 of ");
    let show = ["exec", "--job", "job", "--", "bash", "-c", SHOW];
    let all = "ckpt-1 a b 11\nckpt-3 a b 33\ninput\nz\n26\nckpt-1 ckpt-3 input link many ";
    sandbox.cairn(&show).succeeds().prints(all);
    sandbox.cairn(&["rm", "job", "--discard"]).succeeds();
    let report = sandbox.cairn(&["restore", &out, "--newest", "--json"]).succeeds().json();
    assert_eq!(report["checkpoints"], serde_json::json!(["ckpt-3"]), "{report}");
    sandbox.cairn(&show).prints("ckpt-3 a b 33\ninput\nz\n26\nckpt-3 input link many ");
}

/// Mechanism: a directory was known to belong to a checkpoint only if it contained a drained file.
///
/// Consequence: if nothing else of a checkpoint was drained, its empty directory came back.
/// Programs that take the highest number for their newest checkpoint failed there at every start.
///
/// Fix: the name of the directory decides.
#[test]
fn empty_directory_of_a_checkpoint_that_was_never_drained_does_not_come_back() {
    let sandbox = Sandbox::new();
    let begin = "mkdir -p /cairn/ckpt-3/nothing /cairn/ckpt-4/part /cairn/ckpt-5 /cairn/ckpt-new /cairn/logs/ckpt-6";
    sandbox.run("job", &format!("{WRITE}\n{begin}")).succeeds().says("store removed");
    let out = sandbox.out().display().to_string();
    let show = "cd /cairn; find . -type d | sort | tr '\\n' ' '";
    let newest = ". ./ckpt-3 ./ckpt-3/nothing ./ckpt-new ./logs ./logs/ckpt-6 ./many ";
    let exec = ["exec", "--job", "job", "--", "bash", "-c", show];
    // A full restore brings back everything that the run left.
    let all = ". ./ckpt-1 ./ckpt-2 ./ckpt-3 ./ckpt-3/nothing ./ckpt-4 ./ckpt-4/part ./ckpt-5 ./ckpt-new ./logs \
        ./logs/ckpt-6 ./many ";
    for (options, found) in [(&[][..], all), (&["--newest"], newest)] {
        sandbox.cairn(&[&["restore", &out], options].concat()).succeeds();
        sandbox.cairn(&exec).succeeds().prints(found);
        sandbox.cairn(&["rm", "job", "--discard"]).succeeds();
    }
    for when in ["--stage", "--stage=on-demand"] {
        let run = ["run", "--job", "job", "--persist", &out, when, "--newest-only"];
        let show = format!("{show}; exit 3");
        let run = sandbox.cairn(&[&run[..], &["--", "bash", "-c", &show]].concat());
        run.ends_with(3).prints(newest);
        sandbox.cairn(&["rm", "job", "--discard"]).succeeds();
    }
}

/// Mechanism: files in the manifest that belonged to none of its checkpoints were brought in as
/// plain files.
///
/// Consequence: if the node was lost while a checkpoint was being drained, a part of it came back
/// beside the whole one before it, and counted as a checkpoint of its own. If a checkpoint was
/// being rewritten, files of both versions came back.
///
/// Fix: the manifest says which files are parts of incomplete checkpoints.
#[test]
fn checkpoint_comes_back_without_the_files_that_were_never_to_be_drained() {
    let sandbox = Sandbox::new();
    let out = sandbox.out().display().to_string();
    let write = "for step in 1 2; do mkdir /cairn/ckpt-$step;
        for file in a b lock.tmp; do echo $step >/cairn/ckpt-$step/$file; done; done";
    let run = ["run", "--job", "job", "--persist", &out, "--temporary", "**/*.tmp"];
    sandbox.cairn(&[&run[..], &["--", "bash", "-c", write]].concat()).succeeds();
    sandbox.cairn(&["rm", "job", "--discard"]);
    staged(&sandbox, "cd /cairn; ls ckpt-*").succeeds().prints("a\nb\n");
}

/// Mechanism: each path of the manifest was brought in by itself.
///
/// Consequence: a file with two names became two files, so writes to one of them, such as
/// `last.ckpt`, did not appear in the other.
///
/// Fix: names of one file outside are names of one file in the new store.
#[test]
fn file_with_several_names_has_them_in_the_next_store() {
    let sandbox = Sandbox::new();
    let write = "cd /cairn; mkdir d; echo one >a; ln a d/b; ln a c; echo two >twice; cp -p twice d/twice
        echo x >x; ln x y; chmod 600 x; for step in 1 2; do head -c 70000 /dev/zero >ckpt.$step; done; ln ckpt.2 last.ckpt";
    sandbox.run("job", write).succeeds().says("store removed");
    // Somebody turns one file with two names into two files outside.
    fs::copy(sandbox.out().join("c"), sandbox.out().join("c.new")).expect("copies");
    fs::rename(sandbox.out().join("c.new"), sandbox.out().join("c")).expect("renames");
    let out = sandbox.out().display().to_string();
    let show = "cd /cairn; stat -c '%h %n' a d/b c twice d/twice x y ckpt.2 last.ckpt; stat -c %a y
        test a -ef d/b && test x -ef y && test ckpt.2 -ef last.ckpt && echo same; echo more >>d/b; cat a";
    let shown = "2 a\n2 d/b\n1 c\n1 twice\n1 d/twice\n2 x\n2 y\n2 ckpt.2\n2 last.ckpt\n600\nsame\n";
    let mut more = "one\nmore\n".to_string();
    for stage in [&["--stage"][..], &["--stage", "--newest-only"], &["--stage=on-demand"]] {
        let options = [&["run", "--job", "job", "--persist", &out], stage].concat();
        let ran = sandbox.cairn(&[&options[..], &["--", "bash", "-c", show]].concat());
        ran.succeeds().prints(&format!("{shown}{more}"));
        more += "more\n";
        assert_eq!(sandbox.drained("a"), more[..more.len() - 5], "{stage:?}");
        assert_eq!(sandbox.drained("d/b"), sandbox.drained("a"), "{stage:?}");
    }
}
