//! The drain: what arrives in the persist directory, when, and what never does.

mod common;

use common::session::Session;
use common::{Sandbox, eventually, kill};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

#[test]
fn file_that_is_mapped_to_be_stored_to_is_outside_as_it_is() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "mapped", &[]);
    session.shell("seq 100000 >/cairn/f; cp /cairn/f /cairn/g; mkfifo told");
    eventually("both arrive", || {
        sandbox.out().join("f").exists() && sandbox.out().join("g").exists()
    });
    session.shell(
        "python3 -c \"
import mmap
with open('/cairn/f', 'r+b') as file:
    m = mmap.mmap(file.fileno(), 0)
m[:6] = b'stored'
open('stored', 'w').close()
open('told').read()
m[300000:300006] = b'stored'
m.close()
\" & until [ -e stored ]; do sleep 0.01; done; echo more >>/cairn/g",
    );
    eventually("the other arrives again", || {
        fs::read(sandbox.out().join("g")).is_ok_and(|bytes| bytes.ends_with(b"more\n"))
    });
    // Stored before the other was written, so of its moment.
    let first = |bytes: &[u8]| bytes[..6].to_vec();
    assert_eq!(first(&fs::read(sandbox.out().join("f")).expect("it is there")), b"stored");
    session.shell("echo >told; wait");
    eventually("it arrives again", || {
        fs::read(sandbox.out().join("f")).is_ok_and(|bytes| bytes[300_000..300_006] == *b"stored")
    });
    assert_eq!(first(&fs::read(sandbox.out().join("f")).expect("it is there")), b"stored");
    assert_eq!(session.end(), Some(0));
    assert_eq!(sandbox.manifest("mapped")["complete"], true);
}

#[test]
fn closed_files_arrive_while_the_program_runs() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "live", &[]);
    session.shell("echo one >/cairn/a");
    eventually("a arrives", || sandbox.out().join("a").exists());
    session.shell("exec 5>/cairn/log; echo line >&5; echo two >/cairn/b");
    eventually("b arrives", || sandbox.out().join("b").exists());
    eventually("the log arrives, open", || sandbox.entry("live", "log")["unclosed"] == true);
    assert_eq!(sandbox.drained("log"), "line\n");
    session.shell("exec 5>&-");
    eventually("the manifest", || {
        let entry = sandbox.entry("live", "log");
        entry["state"] == "drained" && entry["unclosed"] != true
    });
    eventually("it counts as drained", || {
        sandbox.cairn(&["ls", "live"]).stdout.matches(" drained ").count() == 3
    });
    eventually("it is complete", || sandbox.manifest("live")["complete"] == true);
    assert_eq!(session.end(), Some(0));
}

/// Mechanism: opening a file leaves no record, and neither do writes to it. The agent knew a file
/// as open only if it was at the last cut.
///
/// Consequence: what a program wrote to a file that it had opened again was not outside before
/// the program ended.
///
/// Fix: the agent asks the store for writers.
#[test]
fn file_that_is_opened_again_is_followed_and_its_whole_version_stays() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "again", &[]);
    session.shell("echo whole >/cairn/f");
    eventually("it arrives", || sandbox.entry("again", "f")["state"] == "drained");
    // A cut in which it is open, and still whole.
    session.shell("exec 5<>/cairn/f");
    sandbox.cairn(&["drain", "again"]).succeeds().says("1 file open for writing");
    session.shell("echo torn >&5");
    eventually("it is followed", || sandbox.drained("f") == "torn\n\n");
    eventually("that is said", || sandbox.entry("again", "f")["unclosed"] == true);
    assert_eq!(sandbox.drained("cairn-whole.again/f"), "whole\n");
    session.shell("exec 5>&-");
    eventually("it is whole", || !sandbox.out().join("cairn-whole.again").exists());
    assert_eq!(session.end(), Some(0));
}

#[test]
fn file_that_is_rewritten_is_drained_again() {
    let sandbox = Sandbox::new();
    let script = "for i in $(seq 100); do
            head -c 200000 /dev/zero | tr '\\0' x >/cairn/f; echo $i >>/cairn/f
        done";
    let ran = sandbox.run("rewrite", script).succeeds();
    let content = fs::read(sandbox.out().join("f")).expect("reads");
    assert!(content.ends_with(b"x100\n"));
    assert_eq!(content.len(), 200_004);
    assert!(ran.stderr.contains("1 file"), "{}", ran.stderr);
}

#[test]
fn extended_attributes_arrive_and_come_back() {
    const SHOW: &str = "import os, sys
for path in sys.argv[1:]:
    print(os.path.basename(path), {name: os.getxattr(path, name) for name in sorted(os.listxattr(path))})";
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    let show = |below: &str, names: &[&str]| -> String {
        let paths = names.iter().map(|name| format!("{below}/{name}"));
        let ran = Command::new("python3").args(["-c", SHOW]).args(paths).output().expect("starts");
        String::from_utf8_lossy(&ran.stdout).into_owned()
    };
    let below = out.to_str().expect("UTF-8");
    fs::write(out.join("probe"), "").expect("writes");
    let probe = "import os, sys; os.setxattr(sys.argv[1] + '/probe', 'user.a', b'')";
    let probed = Command::new("python3").args(["-c", probe, below]).status().expect("starts");
    fs::remove_file(out.join("probe")).expect("removes");
    if !probed.success() {
        println!("{below} takes no extended attributes: nothing is tested");
        return;
    }
    let mut session = Session::start(&sandbox, "attributes", &[]);
    session.shell(
        "mkdir /cairn/d; echo text >/cairn/d/f; python3 -c \"
import os
os.setxattr('/cairn/d', 'user.of', b'directory')
os.setxattr('/cairn/d/f', 'user.a', b'one')
os.setxattr('/cairn/d/f', 'user.b', b'x' * 20)
os.chmod('/cairn/d/f', 0o444)\"",
    );
    eventually("it is complete", || sandbox.manifest("attributes")["complete"] == true);
    let first = format!(
        "d {{'user.of': b'directory'}}\nf {{'user.a': b'one', 'user.b': b'{}'}}\n",
        "x".repeat(20)
    );
    eventually("all arrive", || show(below, &["d", "d/f"]) == first);
    session.shell(
        "python3 -c \"
import os
os.removexattr('/cairn/d', 'user.of')
os.setxattr('/cairn/d', 'user.is', b'changed')
os.chmod('/cairn/d/f', 0o644)
os.removexattr('/cairn/d/f', 'user.b')
os.setxattr('/cairn/d/f', 'user.a', b'two')\"; mv /cairn/d/f /cairn/d/g",
    );
    let second = "d {'user.is': b'changed'}\ng {'user.a': b'two'}\n";
    eventually("the changes arrive", || show(below, &["d", "d/g"]) == second);
    assert_eq!(session.end(), Some(0));
    assert_eq!(sandbox.entry("attributes", "d/g")["extended"]["kept"], true);
    sandbox.cairn(&["restore", below]).succeeds();
    let copied = sandbox.work().join("copied");
    let target = copied.to_str().expect("UTF-8");
    sandbox.cairn(&["cp", "-r", "attributes:/d", target]).succeeds();
    assert_eq!(show(target, &["g"]), "g {'user.a': b'two'}\n");
    let run = ["run", "--job", "attributes", "--", "python3", "-c", SHOW, "/cairn/d", "/cairn/d/g"];
    sandbox.cairn(&run).succeeds().prints(second);
}

#[test]
fn names_in_the_persist_directory_follow_those_in_the_store() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "names", &[]);
    session.shell("mkdir /cairn/d; echo 1 >/cairn/d/ckpt; echo x >/cairn/gone");
    eventually("both arrive", || sandbox.drained_names() == ["d", "d/ckpt", "gone"]);
    eventually("it is complete", || sandbox.manifest("names")["complete"] == true);
    let inode = fs::metadata(sandbox.out().join("d/ckpt")).expect("is there").ino();
    session.shell("mv /cairn/d/ckpt /cairn/d/ckpt.1; echo 2 >/cairn/d/ckpt; rm /cairn/gone");
    eventually("they are renamed and removed", || {
        sandbox.drained_names() == ["d", "d/ckpt", "d/ckpt.1"]
    });
    let moved = fs::metadata(sandbox.out().join("d/ckpt.1")).expect("is there").ino();
    assert_eq!(moved, inode, "the copy was renamed, not made again");
    assert_eq!(
        (sandbox.drained("d/ckpt"), sandbox.drained("d/ckpt.1")),
        ("2\n".into(), "1\n".into())
    );
    session.shell("rm -r /cairn/d; echo end >/cairn/d");
    eventually("the directory became a file", || sandbox.drained_names() == ["d"]);
    assert_eq!(session.end(), Some(0));
    assert_eq!(sandbox.drained("d"), "end\n");
}

#[test]
fn names_of_any_bytes_arrive_as_they_are_and_the_manifest_can_say_them() {
    let sandbox = Sandbox::new();
    let script = r"mkdir $'/cairn/d\n\xff'; echo 1 >$'/cairn/d\n\xff/line\nbreak'; echo 2 >/cairn/-rf
        echo 3 >$'/cairn/\xc3'; echo 4 >$'/cairn/\e[31m'; echo 5 >'/cairn/*?['";
    sandbox.run("bytes", script).succeeds();
    let names: [&[u8]; 5] = [b"d\n\xff/line\nbreak", b"-rf", b"\xc3", b"\x1b[31m", b"*?["];
    for (content, name) in (1..).zip(names) {
        let copy = sandbox.out().join(OsStr::from_bytes(name));
        assert_eq!(fs::read_to_string(copy).expect("reads"), format!("{content}\n"));
    }
    let manifest = sandbox.manifest("bytes");
    assert_eq!(manifest["complete"], true);
    let entries = manifest["files"].as_array().expect("a list");
    let paths: Vec<String> = entries.iter().map(|entry| entry["path"].to_string()).collect();
    assert!(paths.contains(&r#"{"hex":"c3"}"#.to_owned()), "{paths:?}");
}

#[test]
fn files_whose_writer_died_are_outside_as_they_are_beside_their_last_whole_versions() {
    let sandbox = Sandbox::new();
    let script = "echo whole >/cairn/good; echo first >/cairn/both
        until grep -qs '\"both\"' ../out/cairn-manifest.unclean.json; do sleep 0.01; done
        bash -c 'exec 5>/cairn/half; echo half >&5; exec 6>/cairn/both; echo more >&6; kill -9 $$'; exit 3";
    let ran = sandbox.run("unclean", script).ends_with(3);
    ran.says("2 files drained as they are, although the writer died").says("the store is kept in");
    assert_eq!(sandbox.drained("good"), "whole\n");
    for (name, copy) in [("half", "half\n"), ("both", "more\n")] {
        assert_eq!(sandbox.drained(name), copy);
        let entry = sandbox.entry("unclean", name);
        assert_eq!((&entry["state"], &entry["unclosed"]), (&"drained".into(), &true.into()));
    }
    assert_eq!(sandbox.drained("cairn-whole.unclean/both"), "first\n");
    assert!(!sandbox.out().join("cairn-whole.unclean/half").exists());
    let rows = sandbox.cairn(&["ls", "unclean", "--json"]).succeeds().json();
    let state = |name: &str| {
        let rows = rows.as_array().expect("a list").iter();
        let mut found = rows.filter(|row| row["path"] == format!("/cairn/{name}"));
        found.next().expect("is listed")["state"].clone()
    };
    assert_eq!(
        (state("good"), state("half"), state("both")),
        ("drained".into(), "unclean".into(), "unclean".into())
    );
    sandbox.cairn(&["drain", "unclean"]).succeeds().says("cairn-whole.unclean");
}

#[test]
fn agent_that_was_killed_is_replaced_by_the_next_command_and_nothing_is_lost() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "immortal", &[]);
    session.shell("echo one >/cairn/a");
    // A cut may have had it while it was still open.
    let is_closed = |entry: &serde_json::Value| entry["bytes"] == 4 && entry["unclosed"].is_null();
    eventually("a arrives", || is_closed(&sandbox.entry("immortal", "a")));
    let inode = fs::metadata(sandbox.out().join("a")).expect("is there").ino();
    let first = sandbox.agent("immortal");
    kill("KILL", i64::from(first));
    eventually("the agent ends", || !is_running(first));
    session.shell("echo two >/cairn/b; rm -f /cairn/nothing");
    sandbox.cairn(&["drain", "immortal"]).succeeds();
    let second = sandbox.agent("immortal");
    assert_ne!(first, second);
    assert_eq!(sandbox.drained("b"), "two\n");
    let same = fs::metadata(sandbox.out().join("a")).expect("is there").ino();
    assert_eq!(same, inode, "what was verified is not copied again");

    kill("KILL", i64::from(second));
    eventually("the agent ends", || !is_running(second));
    session.shell("echo three >/cairn/c");
    assert_eq!(session.end(), Some(0), "the end of the run starts another one");
    assert_eq!(sandbox.drained("c"), "three\n");
}

#[test]
fn agent_that_is_killed_again_and_again_leaves_exactly_what_the_program_left() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "stress", &[]);
    for round in 0..8 {
        session.shell(&format!(
            "for i in 1 2 3 4 5; do
                head -c $((RANDOM * 9)) /dev/zero | tr '\\0' $i >/cairn/new
                [ -e /cairn/ckpt ] && mv /cairn/ckpt /cairn/ckpt.1; mv /cairn/new /cairn/ckpt
                mkdir -p /cairn/d$i; echo {round} >/cairn/d$i/f{round}
            done; rm -f /cairn/d{round}/f*"
        ));
        // At whatever point it is.
        kill("KILL", i64::from(sandbox.agent("stress")));
    }
    session.shell("cd /cairn; find . -type f | sort | xargs sha256sum >$OLDPWD/sums; cd $OLDPWD");
    assert_eq!(session.end(), Some(0));
    let listed = Command::new("bash")
        .args(["-c", "find . -type f ! -name 'cairn-manifest*' | sort | xargs sha256sum"])
        .current_dir(sandbox.out())
        .output()
        .expect("bash starts");
    let expected = fs::read_to_string(sandbox.work().join("sums")).expect("reads");
    assert_eq!(String::from_utf8_lossy(&listed.stdout), expected);
    let out = sandbox.out();
    sandbox.cairn(&["verify", "--persist", out.to_str().expect("UTF-8")]).succeeds();
}

/// Whether a process exists and is not a zombie.
fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| state != 'Z')
}

#[test]
fn temporary_files_of_a_killed_agent_are_swept() {
    let sandbox = Sandbox::new();
    sandbox.run("swept", "echo x >/cairn/f; exit 1").ends_with(1);
    let description = fs::read(sandbox.store("swept").join("job.json")).expect("reads");
    let description: serde_json::Value = serde_json::from_slice(&description).expect("JSON");
    let suffix = description["store"].as_str().expect("a name");
    let shelf = sandbox.out().join(format!(".cairn-{suffix}.new"));
    fs::create_dir_all(&shelf).expect("makes");
    fs::write(shelf.join("0123456789abcdef0123456789abcdef"), "half").expect("writes");
    common::kill("KILL", i64::from(sandbox.agent("swept")));
    sandbox.cairn(&["drain", "swept"]).succeeds();
    eventually("it is swept", || !shelf.exists());
}

#[test]
fn evicted_files_keep_their_drained_copy_and_undrained_ones_are_not_evicted() {
    let sandbox = Sandbox::new();
    sandbox
        .run("evict", "mkdir /cairn/d; echo x >/cairn/d/f; echo y >/cairn/g; exit 1")
        .ends_with(1);
    sandbox.cairn(&["rm", "evict:/d"]).refused_with("is a directory");
    sandbox.cairn(&["rm", "--recursive", "evict:/cairn/d"]).succeeds();
    sandbox.cairn(&["ls", "evict"]).succeeds().says(" g\n");
    sandbox.cairn(&["drain", "evict"]).succeeds();
    assert_eq!(sandbox.drained("d/f"), "x\n");
    assert_eq!(sandbox.entry("evict", "d/f")["detached"], true);

    // A copy that somebody has removed does not count.
    fs::remove_file(sandbox.out().join("g")).expect("removes");
    sandbox.cairn(&["rm", "evict:/g"]).ends_with(1).says("is not drained and would be lost");
    sandbox.cairn(&["drain", "evict"]).succeeds();
    sandbox.cairn(&["rm", "evict:/g"]).succeeds();
    assert_eq!(sandbox.drained("g"), "y\n");

    sandbox.run_undrained("only-here", "echo z >/cairn/h").succeeds();
    sandbox.cairn(&["rm", "only-here:/h"]).ends_with(1).says("is not drained and would be lost");
    sandbox.cairn(&["rm", "only-here"]).refused_with("files that are nowhere else (1)");
    sandbox.cairn(&["rm", "--force", "only-here:/h"]).succeeds();
    sandbox.cairn(&["rm", "only-here"]).succeeds();
}

/// Mechanism: copies outside of checkpoints that the program had removed were counted as drained
/// files of the store.
///
/// Consequence: a store was removed although its newest checkpoint had no other copy.
#[test]
fn store_with_a_checkpoint_that_is_nowhere_else_is_not_removed_for_the_copy_of_another() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "every", &["--pfs-every", "3"]);
    session.shell("for step in 1 2 3 4; do echo $step >/cairn/md_step$step.cpt; done");
    eventually("the third arrives", || sandbox.manifest("every")["complete"] == true);
    session.shell("rm /cairn/md_step[123].cpt");
    session.kill_all();
    sandbox.cairn(&["rm", "every"]).refused_with("files that are nowhere else (1)");
    assert_eq!(sandbox.drained("md_step3.cpt"), "3\n");
    sandbox.cairn(&["rm", "every", "--discard"]).succeeds();
}

#[test]
fn copies_of_an_earlier_run_stay_unless_the_program_writes_the_name_again() {
    let sandbox = Sandbox::new();
    sandbox.run("series", "echo 1 >/cairn/step.1; echo old >/cairn/latest").succeeds();
    let out = sandbox.out();
    let again = ["run", "--job", "series", "--persist", out.to_str().expect("UTF-8"), "--stage"];
    let script = "echo 2 >/cairn/step.2; echo new >/cairn/latest";
    sandbox.cairn(&[&again[..], &["--", "bash", "-c", script]].concat()).succeeds();
    assert_eq!(sandbox.drained_names(), ["latest", "step.1", "step.2"]);
    assert_eq!(
        (sandbox.drained("latest"), sandbox.drained("step.1")),
        ("new\n".into(), "1\n".into())
    );
    sandbox
        .cairn(&["verify", "--persist", out.to_str().expect("UTF-8")])
        .succeeds()
        .says("3 files");
}

#[test]
fn copy_that_somebody_changed_is_not_removed_with_its_file() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "theirs", &[]);
    session.shell("echo x >/cairn/f; echo y >/cairn/g");
    eventually("both arrive", || sandbox.drained_names() == ["f", "g"]);
    eventually("the manifest", || sandbox.manifest("theirs")["complete"] == true);
    fs::write(sandbox.out().join("f"), "edited by hand").expect("writes");
    session.shell("rm /cairn/f /cairn/g");
    eventually("g is removed", || !sandbox.out().join("g").exists());
    assert_eq!(session.end(), Some(0));
    assert_eq!(sandbox.drained("f"), "edited by hand");
}

/// Mechanism: a manifest without entries was never written.
///
/// Consequence: the manifest on disk still named the last files, which the program had removed, and
/// `cairn verify` reported them as missing.
///
/// Fix: only the first manifest waits for an entry.
#[test]
fn manifest_is_empty_when_the_program_removed_everything() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "empty", &[]);
    session.shell("echo x >/cairn/f");
    eventually("it is complete", || sandbox.manifest("empty")["complete"] == true);
    session.shell("rm /cairn/f");
    assert_eq!(session.end(), Some(0));
    assert_eq!(sandbox.drained_names(), [""; 0]);
    let out = sandbox.out();
    sandbox.cairn(&["verify", "--persist", out.to_str().expect("UTF-8")]).succeeds();
}

/// Mechanism: an error of the directory as a whole ended `cairn drain` like any other failure.
///
/// Consequence: exit code 1, which scripts take for a broken store, although the drain can be
/// repeated.
///
/// Fix: the exit code is 75, and the message says what is safe and what to do.
#[test]
fn drain_that_the_directory_stops_can_be_repeated() {
    let sandbox = Sandbox::new();
    sandbox.run_undrained("stuck", "echo x >/cairn/f").succeeds();
    let out = sandbox.out();
    let obstacle = out.join("cairn-manifest.stuck.json");
    fs::create_dir(&obstacle).expect("makes");
    let arguments = ["drain", "stuck", "--persist", out.to_str().expect("UTF-8")];
    sandbox
        .cairn(&arguments)
        .ends_with(75)
        .says("the store keeps its files: fix that and repeat the drain");
    fs::remove_dir(&obstacle).expect("removes");
    sandbox.cairn(&arguments).succeeds();
    assert_eq!(sandbox.drained("f"), "x\n");
}

#[test]
fn copy_that_somebody_removed_is_made_again_before_the_store_goes() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "again", &[]);
    session.shell("echo x >/cairn/f");
    eventually("f arrives", || sandbox.out().join("f").exists());
    eventually("the manifest", || sandbox.manifest("again")["complete"] == true);
    fs::remove_file(sandbox.out().join("f")).expect("removes");
    assert_eq!(session.end(), Some(0));
    assert_eq!(sandbox.drained("f"), "x\n");
}

/// Mechanism: a job's files were barred only from the name of its own manifest, and links and
/// directories from no name.
///
/// Consequence: a file with the name of another job's manifest replaced that manifest, and the
/// other job was staged with the wrong files.
///
/// Fix: no file, link or directory of a job is drained under a name that Cairn uses itself.
#[test]
fn files_with_names_of_cairns_own_stay_in_the_store_and_the_rest_arrives() {
    let sandbox = Sandbox::new();
    sandbox.run("ca", "echo first >/cairn/state").succeeds();
    let before = fs::read(sandbox.out().join("cairn-manifest.ca.json")).expect("reads");
    let script = "mkdir /cairn/.cairn-odd /cairn/below
        cp \"$0\" /cairn/cairn-manifest.ca.json; echo x >/cairn/below/cairn-manifest.ca.json
        echo x >/cairn/.cairn-odd/f; ln -s state /cairn/cairn-manifest.cd.json
        echo x >/cairn/named; mv /cairn/named /cairn/cairn-manifest.ca.timeline
        echo x >/cairn/cairn-manifest.txt; mkdir /cairn/.cairn-damaged; echo x >/cairn/.cairn-damaged/f";
    let (out, work) = (sandbox.out(), sandbox.work().join("odd"));
    fs::write(&work, "{}").expect("writes");
    let (out, work) = (out.to_str().expect("UTF-8"), work.to_str().expect("UTF-8"));
    let options = ["run", "--job", "cb", "--persist", out, "--shared"];
    let arguments = [&options[..], &["--", "bash", "-c", script, work]].concat();
    sandbox.cairn(&arguments).ends_with(75).says("reserves this name for its own files");
    let drained = sandbox.cairn(&["drain", "cb", "--json"]).ends_with(75);
    for name in [
        "cairn-manifest.ca.json",
        "cairn-manifest.ca.timeline",
        "cairn-manifest.cd.json",
        ".cairn-odd",
        ".cairn-odd/f",
    ] {
        let reason = format!("/{name} cannot be drained: Cairn reserves this name");
        assert!(drained.stdout.contains(&reason), "{reason} in {}", drained.stdout);
    }
    // This file may have arrived under its first name.
    let mut names = sandbox.drained_names();
    names.retain(|name| name != "named");
    assert_eq!(
        names,
        [".cairn-damaged", ".cairn-damaged/f", "below", "below/cairn-manifest.ca.json", "state"]
    );
    assert_eq!(sandbox.drained("cairn-manifest.txt"), "x\n");
    assert_eq!(fs::read(sandbox.out().join("cairn-manifest.ca.json")).expect("reads"), before);
    sandbox.cairn(&["verify", "--persist", out]).succeeds();
}

#[test]
fn links_in_the_persist_directory_are_not_followed_out_of_it() {
    let sandbox = Sandbox::new();
    let outside = sandbox.work().join("outside");
    fs::create_dir(&outside).expect("makes");
    fs::write(outside.join("f"), "precious").expect("writes");
    symlink(&outside, sandbox.out().join("d")).expect("links");
    symlink(outside.join("f"), sandbox.out().join("f")).expect("links");
    // The links that were there are set aside.
    sandbox.run("links", "mkdir /cairn/d; echo x >/cairn/d/f; echo y >/cairn/f").succeeds();
    assert_eq!(fs::read_to_string(outside.join("f")).expect("reads"), "precious");
    let is_link =
        |name: &str| fs::symlink_metadata(sandbox.out().join(name)).expect("is there").is_symlink();
    assert_eq!(
        ["d", "f", "cairn-before.links/d", "cairn-before.links/f"].map(is_link),
        [false, false, true, true]
    );
    assert_eq!([sandbox.drained("d/f"), sandbox.drained("f")], ["x\n", "y\n"]);
    // A link made while the job runs is not followed, either.
    let script = format!(
        "mkdir /cairn/d; ln -s {} $OUT/d; echo x >/cairn/d/f; rm $OUT/d 2>/dev/null; true",
        outside.display()
    );
    let script = format!("OUT={}; {script}", sandbox.out().display());
    sandbox.cairn(&[
        "run",
        "--job",
        "links",
        "--persist",
        sandbox.out().to_str().expect("UTF-8"),
        "--stage",
        "--",
        "bash",
        "-c",
        &script,
    ]);
    assert_eq!(fs::read_to_string(outside.join("f")).expect("reads"), "precious");
}

#[test]
fn directory_that_comes_back_is_drained_to_without_being_asked() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "back", &[]);
    let away = sandbox.out().with_file_name("away");
    fs::rename(sandbox.out(), &away).expect("renames");
    session.shell("echo x >/cairn/f");
    eventually("the agent says what is wrong", || {
        let status = sandbox.cairn(&["status", "back", "--json"]).succeeds().json();
        status[0]["agent"]["phase"] == "retrying"
    });
    sandbox.cairn(&["status", "back"]).says("no such file or directory");
    fs::rename(&away, sandbox.out()).expect("renames");
    eventually("f arrives", || sandbox.out().join("f").exists());
    assert_eq!(session.end(), Some(0));
}

#[test]
fn damaged_data_is_quarantined_and_the_rest_drained() {
    let sandbox = Sandbox::new();
    let script =
        "head -c 100000 /dev/zero | tr '\\0' Q >/cairn/bad; echo fine >/cairn/good; exit 1";
    sandbox.run_undrained("rot", script).ends_with(1);
    let path = sandbox.store("rot").join("node.ram0");
    let content = fs::read(&path).expect("reads");
    let at = content.windows(64).position(|window| window == [b'Q'; 64]).expect("the data") as u64;
    let file = fs::File::options().write(true).open(&path).expect("opens");
    file.write_all_at(b"R", at + 40_000).expect("writes");

    let ran = sandbox.cairn(&["verify", "rot"]).ends_with(1);
    ran.says("/cairn/bad").says("offset 32768").says("1 of 2 files are damaged");
    let newest = sandbox.cairn(&["ls", "rot", "--newest", "*"]);
    newest.prints("/cairn/good\n");
    let out = sandbox.out();
    let arguments = ["drain", "rot", "--persist", out.to_str().expect("UTF-8")];
    sandbox.cairn(&arguments).ends_with(75).says("bad is damaged in the store at offset 32768");
    assert_eq!(sandbox.drained_names(), ["good"]);
    assert_eq!(sandbox.entry("rot", "bad")["state"], "quarantined");
    assert_eq!(sandbox.manifest("rot")["complete"], false);
    sandbox.cairn(&["cp", "rot:/bad", "copy"]).ends_with(1).says("is damaged");
    assert!(!Path::new(&sandbox.work().join("copy")).exists());
}

#[test]
fn damage_in_the_persist_directory_is_found() {
    let sandbox = Sandbox::new();
    sandbox.run("disk", "echo one >/cairn/a; echo two >/cairn/b; echo three >/cairn/c").succeeds();
    fs::write(sandbox.out().join("a"), "onE\n").expect("writes");
    fs::write(sandbox.out().join("b"), "longer").expect("writes");
    let out = sandbox.out();
    let ran = sandbox.cairn(&["verify", "disk", "--persist", out.to_str().expect("UTF-8")]);
    ran.ends_with(1).says("its checksum is").says("6 bytes instead of 4").says("2 of 3 files");
}

#[test]
fn every_rank_drains_to_a_directory_of_its_own() {
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    let out = out.to_str().expect("UTF-8");
    let rank = "echo $OMPI_COMM_WORLD_RANK >/cairn/mine; $CAIRN ls --newest 'm*'";
    let script = format!(
        "export OMPI_COMM_WORLD_LOCAL_SIZE=2 CAIRN={}
        for r in 0 1; do OMPI_COMM_WORLD_RANK=$r bash -c \"$0\"; done",
        common::CAIRN
    );
    let arguments = [
        "run",
        "--job",
        "ranks",
        "--scope",
        "rank",
        "--persist",
        out,
        "--",
        "bash",
        "-c",
        &script,
        rank,
    ];
    sandbox.cairn(&arguments).succeeds().prints("/cairn/mine\n/cairn/mine\n");
    assert_eq!(sandbox.drained("rank-0/mine"), "0\n");
    assert_eq!(sandbox.drained("rank-1/mine"), "1\n");
}

/// Mechanism: a directory that a file was to replace was removed before its contents, which failed
/// and was forgotten. And the newest checkpoint outside stayed even if a file had its name.
///
/// Consequence: the file was never drained, whatever was tried, or a directory stayed that the
/// program had removed.
///
/// Fix: the contents are removed first. A file in the place of a checkpoint replaces it.
#[test]
fn file_comes_in_the_place_of_a_directory_that_was_drained() {
    for (script, expected) in [
        ("mkdir -p d/s; arrives d/s; rm -r d; echo x >d", &["d"][..]),
        (
            "mkdir -p d/s/t; echo x >d/s/t/f; arrives d/s/t/f; mv d old; echo x >d",
            &["d", "old", "old/s", "old/s/t", "old/s/t/f"],
        ),
        ("mkdir -p d/s; arrives d/s; mv d y; echo x >d; arrives d -f; mv d z", &["y", "y/s", "z"]),
        (
            "mkdir d10 d20; echo x | tee d10/a d10/b d20/a >d20/b; sleep 0.5; arrives d20/b; rm -r d20; echo x >d20",
            &["d10", "d10/a", "d10/b", "d20"],
        ),
    ] {
        let sandbox = Sandbox::new();
        let arrives =
            "out=$PWD/../out; arrives() { until test ${2:--e} $out/$1; do sleep 0.02; done; }";
        let script = format!("{arrives}; cd /cairn; {script}");
        sandbox.run("job", &script).succeeds();
        assert_eq!(all_below(&sandbox.out()), expected, "{script}");
    }
}

/// Paths of everything below the persist directory.
fn all_below(root: &Path) -> Vec<String> {
    let (mut found, mut left) = (Vec::new(), vec![root.to_path_buf()]);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).expect("it is a directory").flatten() {
            let path = entry.path();
            let name = path.strip_prefix(root).expect("below it").to_string_lossy().into_owned();
            if name.starts_with("cairn-") || name.starts_with(".cairn-") {
                continue;
            }
            if path.is_dir() {
                left.push(path);
            }
            found.push(name);
        }
    }
    found.sort();
    found
}

/// Mechanism: every file whose writer died counted as one that the persist directory lacks.
///
/// Consequence: a temporary file of a killed program kept the store of the next, successful run,
/// and made its exit code 75.
///
/// Fix: files that are never drained are not missed.
#[test]
fn temporary_file_of_a_killed_program_is_not_missed() {
    let sandbox = Sandbox::new();
    let out = sandbox.out().display().to_string();
    let run = |script: &str| {
        let options = ["run", "--job", "job", "--persist", &out, "--temporary", "scratch/**"];
        sandbox.cairn(&[&options[..], &["--", "bash", "-c", script]].concat())
    };
    run("mkdir /cairn/scratch; exec 3>/cairn/scratch/a; echo x >&3; kill -9 $$").ends_with(137);
    run("echo y >/cairn/y").succeeds().says("store removed");
    assert_eq!(sandbox.drained("y"), "y\n");
    assert!(!sandbox.out().join("scratch/a").exists());
}
