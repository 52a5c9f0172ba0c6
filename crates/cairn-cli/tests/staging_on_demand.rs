//! New stores whose files arrive while the command runs (`--stage=on-demand`): how absent files
//! look, who waits for them, and what happens to them on other events meanwhile.
//!
//! The tests hold copies up, so that no result depends on speed: this process has a lease on each
//! copy (`fcntl(2)`), which keeps the agent from opening it. The kernel breaks the lease 45 seconds
//! after somebody has asked for the file. Where there are no leases, a test that needs them prints
//! a message and passes.

mod common;

use common::{CAIRN, Ran, Sandbox, kill};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Writes three checkpoints of two files each, a single file, and many small ones.
const WRITE: &str = "
for step in 1 2 3; do
    mkdir /cairn/ckpt-$step
    for rank in x y; do head -c 300000 /dev/zero | tr '\\0' $step >/cairn/ckpt-$step/$rank
        echo $rank >>/cairn/ckpt-$step/$rank; done
done
echo input >/cairn/input; chmod 640 /cairn/input; ln -s input /cairn/link
mkdir /cairn/many; for n in {a..p}; do echo $n >/cairn/many/$n; done";

/// Shell functions: `await` waits until a command succeeds. `waits` tests whether programs wait for
/// this number of files. `is_whole` tests that no file is absent.
const UNTIL: &str = r#"
    await() { for _ in $(seq 1200); do "$@" && return; sleep 0.05; done; echo "in vain: $*"; exit 9; }
    waits() { "$CAIRN" status job | grep -q "^  absent .*; programs wait for $1 of them"; }
    is_whole() { ! "$CAIRN" status job | grep -q "^  absent"; }
    cd /cairn
"#;

/// A persist directory whose copies can be held up.
struct Stage {
    sandbox: Sandbox,
    /// Thread that gives up the lease on a copy once the copy's name is gone from `$HOLD`.
    keeper: Option<JoinHandle<()>>,
}

impl Stage {
    fn new() -> Stage {
        let sandbox = Sandbox::new();
        sandbox.run("job", WRITE).succeeds().says("store removed");
        fs::create_dir(sandbox.work().join("hold")).expect("a directory");
        Stage { sandbox, keeper: None }
    }

    /// As `new`, but each copy is held up until its name is gone from `$HOLD`. Returns None without
    /// leases.
    fn held_up() -> Option<Stage> {
        let mut stage = Stage::new();
        let mut held = Vec::new();
        for name in stage.sandbox.drained_names() {
            let path = stage.sandbox.out().join(&name);
            let is_held =
                name.starts_with("many/") || name.starts_with("ckpt-3/") || name == "input";
            if path.is_file() && is_held {
                let Some(file) = lease(&path) else {
                    println!("no leases on files here: nothing is tested");
                    return None;
                };
                let gate = stage.hold().join(path.file_name().expect("it has a name"));
                fs::write(&gate, "").expect("writes");
                held.push((gate, file));
            }
        }
        assert_eq!(held.len(), 19);
        stage.keeper = Some(thread::spawn(move || {
            while !held.is_empty() {
                held.retain(|(gate, _)| gate.exists());
                thread::sleep(Duration::from_millis(2));
            }
        }));
        Some(stage)
    }

    fn hold(&self) -> PathBuf {
        self.sandbox.work().join("hold")
    }

    fn let_go(&mut self) {
        fs::remove_dir_all(self.hold()).expect("removes");
        if let Some(keeper) = self.keeper.take() {
            keeper.join().expect("ends");
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.sandbox.command(arguments);
        command.env("HOLD", self.hold()).env("CAIRN", CAIRN);
        command
    }

    /// Runs a script in a store that is, or was, filled while it runs.
    fn run_with(&self, options: &[&str], script: &str) -> Ran {
        let out = self.sandbox.out().display().to_string();
        let script = format!("{UNTIL}{script}");
        let first = ["run", "--job", "job", "--persist", &out, "--stage=on-demand"];
        let words =
            [&first[..], &["--newest-only"], options, &["--", "bash", "-c", &script]].concat();
        Ran::of(self.command(&words).output().expect("cairn starts"), words.join(" "))
    }

    fn run(&self, script: &str) -> Ran {
        self.run_with(&[], script)
    }

    /// Changes a byte of a copy, and keeps its length and times.
    fn spoil(&self, path: &str) {
        let path = self.sandbox.out().join(path);
        let modified = fs::metadata(&path).and_then(|found| found.modified()).expect("it is there");
        let mut content = fs::read(&path).expect("is drained");
        let middle = content.len() / 2;
        content[middle] ^= 1;
        fs::write(&path, content).expect("writes");
        let file = File::options().write(true).open(&path).expect("it is there");
        file.set_modified(modified).expect("it has times");
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.keeper.is_some() && self.hold().exists() {
            self.let_go();
        }
    }
}

/// Takes a lease, so that nobody else can open the file until the result is dropped. Returns None
/// if the file system has no leases.
fn lease(path: &Path) -> Option<File> {
    let file = File::options().read(true).write(true).open(path).expect("it is there");
    // SAFETY: the first call ignores the signal that announces another opener; the second takes
    // only integers.
    let leased = unsafe {
        libc::signal(libc::SIGIO, libc::SIG_IGN);
        libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
    };
    (leased == 0).then_some(file)
}

#[test]
fn files_look_as_they_will_and_who_opens_one_waits_for_its_data() {
    let Some(stage) = Stage::held_up() else { return };
    let ran = stage.run(
        r#"
        ls -A | tr '\n' ' '; ls ckpt-3 many | wc -l; stat -c '%s %a' ckpt-3/x input
        before=$(stat -c '%i %s %b %y %z %a' ckpt-3/x)
        cat ckpt-3/x >"$HOLD/../got" & reader=$!
        await waits 1; "$CAIRN" ls job:/ckpt-3 | grep -c absent
        "$CAIRN" status job --json | grep -o '"waited_for": *[0-9]*' | uniq
        [ ! -s "$HOLD/../got" ] || echo early
        rm "$HOLD"/*; wait $reader; cmp "$HOLD/../got" ckpt-3/x && tr -d 3 <ckpt-3/x
        [ "$before" = "$(stat -c '%i %s %b %y %z %a' ckpt-3/x)" ] && echo same
        cat link; await is_whole; cp -a many copy; diff -r many copy; cat many/* | tr -d '\n'"#,
    );
    let ran = ran
        .succeeds()
        .says("19 files")
        .says("to be brought in while the command runs, with ckpt-3");
    ran.prints(
        "ckpt-3 input link many 21\n300002 644\n6 640\n2\n\"waited_for\": 1\nx\nsame\ninput\n\
         abcdefghijklmnop",
    );
}

#[test]
fn what_is_opened_comes_although_all_others_hang() {
    let Some(stage) = Stage::held_up() else { return };
    let ran = stage.run(
        r#"rm "$HOLD/k"; cat many/k; rm "$HOLD/y"; head -c 1 ckpt-3/y; echo
        "$CAIRN" status job | grep -c '^  absent'; rm "$HOLD"/*; cat many/a"#,
    );
    ran.succeeds().prints("k\n3\n1\na\n");
}

/// Mechanism: a file that was not brought in yet kept an image from becoming whole.
///
/// Consequence: after the loss of the node there was no image.
///
/// Fix: the file's copy is on the image's file system, and gets another hard link in the image.
#[test]
fn drain_keeps_files_outside_that_are_yet_to_be_brought_in() {
    let Some(stage) = Stage::held_up() else { return };
    let ran = stage.run(
        r#""$CAIRN" drain job >/dev/null; "$CAIRN" status job | grep -c '^  absent'; rm "$HOLD"/*; await is_whole
        cd "$HOLD/../../out"; cat input many/a; head -c 1 ckpt-3/x; exit 3"#,
    );
    let lines = ran.ends_with(3).stdout.lines().map(str::to_string).collect::<Vec<_>>();
    assert_eq!(lines, ["1", "input", "a", "3"]);
}

#[test]
fn damaged_copy_fails_who_opens_it_and_the_next_run_takes_the_older_checkpoint() {
    let stage = Stage::new();
    stage.spoil("ckpt-3/y");
    stage.spoil("many/g");
    let show =
        "cat ckpt-*/y many/g >/dev/null; ls -d ckpt-*; head -c 1 ckpt-*/x; echo; ls many | wc -l";
    let ran = stage.run(&format!("{show}; cat many/f; exit 3"));
    let ran =
        ran.ends_with(3).says("ckpt-3/y: Input/output error").says("many/g: Input/output error");
    let ran =
        ran.says("not brought in: ckpt-3/y: its copy in the persist directory is damaged or gone");
    ran.prints("ckpt-3\n3\n16\nf\n");
    let status = stage.sandbox.cairn(&["status", "job"]).succeeds();
    assert!(status.stdout.contains("ckpt-3/y: its copy"), "{}", status.stdout);
    stage.sandbox.cairn(&["rm", "job", "--discard"]).succeeds();
    let ran = stage.run(show).succeeds();
    let ran = ran.says("checkpoint ckpt-3 is left out").says("damaged, left out: many/g");
    ran.says("many/g: No such file").prints("ckpt-2\n2\n15\n");
    // `--stage` reads every copy before the start, and a repaired copy counts again.
    stage.spoil("ckpt-3/y");
    let out = stage.sandbox.out().display().to_string();
    let whole =
        ["run", "--job", "job", "--persist", &out, "--stage", "--", "ls", "-d", "/cairn/ckpt-3"];
    stage.sandbox.cairn(&whole).succeeds().prints("/cairn/ckpt-3\n");
    stage.run("head -c 1 ckpt-3/y").succeeds().prints("3");
}

/// Mechanism: a file with absent data said nothing of its checkpoint, even after the agent had
/// found that its copy is damaged.
///
/// Consequence: every later run in the store failed at the same file, although older checkpoints
/// were outside, and its end reported all files as verified.
///
/// Fix: data known to be lost count as damage, and their file as not drained.
#[test]
fn next_run_in_the_store_sets_a_checkpoint_aside_whose_copy_was_found_damaged() {
    let stage = Stage::new();
    stage.spoil("ckpt-3/y");
    stage.spoil("many/g");
    let show = "ls -d ckpt-*; head -c 1 ckpt-*/y; echo; exit 3";
    let ran = stage.run(&format!("cat many/g; {show}")).ends_with(3);
    let ran = ran.says("ckpt-3/y' for reading: Input/output error");
    ran.says("not brought in: ckpt-3/y").says("17 files, 293 KiB, drained to").prints("ckpt-3\n\n");
    let listed = stage.sandbox.cairn(&["ls", "--checkpoints", "job"]).succeeds().stdout;
    assert!(listed.contains("node, not verified"), "{listed}");
    let ran = stage.run(show).ends_with(3);
    let ran =
        ran.says("/ckpt-3/y cannot be brought in: its copy in the persist directory is damaged");
    let ran = ran.says("checkpoint ckpt-3 is damaged and set aside");
    ran.says("goes on from ckpt-2, which was brought in").prints("ckpt-2\n2\n");
    // The rest of it does not count as newer, and removing the store loses nothing.
    stage.run(show).ends_with(3).prints("ckpt-2\n2\n");
    stage.sandbox.cairn(&["rm", "job"]).succeeds();
    stage.run(show).ends_with(3).prints("ckpt-2\n2\n");
}

/// The copy may have been repaired since.
#[test]
fn lost_file_is_put_right_from_a_copy_that_is_one_again() {
    let stage = Stage::new();
    stage.spoil("ckpt-3/y");
    stage.run("cat ckpt-3/y; exit 3").ends_with(3).says("Input/output error");
    stage.spoil("ckpt-3/y");
    let ran = stage.run("ls -d ckpt-*; head -c 1 ckpt-3/y; exit 3").ends_with(3);
    let ran = ran.says("/ckpt-3/y is repaired from").says("19 files, 586 KiB, drained to");
    ran.prints("ckpt-3\n3");
    let listed = stage.sandbox.cairn(&["ls", "--checkpoints", "job"]).succeeds().stdout;
    assert!(listed.contains("node and pfs, verified"), "{listed}");
}

#[test]
fn copy_that_is_missing_or_short_is_noticed_before_the_command_starts() {
    let stage = Stage::new();
    fs::remove_file(stage.sandbox.out().join("ckpt-3/x")).expect("removes");
    fs::write(stage.sandbox.out().join("ckpt-2/y"), "short").expect("writes");
    let ran = stage.run("echo ckpt-*; head -c 1 ckpt-1/y").succeeds();
    ran.says("ckpt-3 is left out").says("ckpt-2 is left out").prints("ckpt-1\n1");
}

#[test]
fn agent_that_is_killed_is_replaced_by_one_that_goes_on() {
    let Some(stage) = Stage::held_up() else { return };
    let ran = stage.run(
        r#"cat many/c ckpt-3/x >"$HOLD/../got" & reader=$!; await waits 1
        agent=$("$CAIRN" status job | sed -n 's/.*process \([0-9]*\),.*/\1/p'); kill -KILL $agent
        rm "$HOLD"/*; wait $reader; head -c 3 "$HOLD/../got"; await is_whole; cat many/* | wc -c"#,
    );
    ran.succeeds().prints("c\n332\n");
}

#[test]
fn what_programs_do_to_absent_files_is_what_is_drained() {
    let Some(stage) = Stage::held_up() else { return };
    let ran = stage.run(
        r#": >ckpt-3/x; echo new >many/a; rm many/b; mv many/c moved; mv many/d many/e; python3 -c 'import os; os.truncate("many/f", 0)'
        mv many/g many/t; mv many/h many/g; mv many/t many/h; ln many/p linked; chmod 600 many/o
        echo more >>many/i & truncate -s 1 many/j & truncate -s 4 many/k & await waits 3
        mkdir out; mv many/l out; rm -r ckpt-3; mv input link; echo other >input
        rm "$HOLD"/*; wait; await is_whole; cat moved many/e many/g many/h link; od -c many/k | head -1"#,
    );
    let ran = ran.succeeds().says("store removed");
    ran.prints("c\nd\nh\ng\ninput\n0000000   k  \\n  \\0  \\0\n");
    let drained = |path: &str| stage.sandbox.drained(path);
    assert_eq!(drained("many/a"), "new\n");
    assert_eq!(
        (drained("moved"), drained("many/e"), drained("many/f")),
        ("c\n".into(), "d\n".into(), String::new())
    );
    assert_eq!((drained("many/g"), drained("many/h")), ("h\n".into(), "g\n".into()));
    assert_eq!(
        (drained("many/i"), drained("many/j"), drained("many/k")),
        ("i\nmore\n".into(), "j".into(), "k\n\0\0".into())
    );
    assert_eq!(
        (drained("linked"), drained("many/p"), drained("out/l")),
        ("p\n".into(), "p\n".into(), "l\n".into())
    );
    assert_eq!((drained("input"), drained("link")), ("other\n".into(), "input\n".into()));
    let names = stage.sandbox.drained_names();
    for gone in ["many/b", "many/c", "many/d", "many/l", "many/t", "ckpt-3/x"] {
        assert!(!names.contains(&gone.to_string()), "{gone} in {names:?}");
    }
    stage
        .sandbox
        .cairn(&["verify", "--persist", &stage.sandbox.out().display().to_string()])
        .succeeds();
}

#[test]
fn signal_ends_the_wait_of_an_open() {
    let Some(stage) = Stage::held_up() else { return };
    let ran = stage.run(
        r#"python3 -c '
import signal
class Alarm(Exception): pass
def ring(number, frame): raise Alarm
signal.signal(signal.SIGALRM, ring)
for call in (lambda: open("many/a"), lambda: open("many/b", "ab"), lambda: __import__("os").truncate("many/c", 1)):
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try: call(); print("opened")
    except Alarm: print("interrupted")'
        rm "$HOLD"/*; cat many/a many/b many/c"#,
    );
    ran.succeeds().prints("interrupted\ninterrupted\ninterrupted\na\nb\nc\n");
}

#[test]
fn what_was_brought_is_not_drained_again() {
    let stage = Stage::new();
    let look = |stage: &Stage| {
        let script = "cd \"$0\"; find . -type f ! -name '.*' ! -name 'cairn-*' | sort | xargs stat -c '%n %i %Z %s'";
        let out = stage.sandbox.out();
        let found = Command::new("bash").args(["-c", script]).arg(out).output().expect("starts");
        String::from_utf8(found.stdout).expect("UTF-8")
    };
    let before = look(&stage);
    assert_eq!(before.lines().count(), 23, "{before}");
    stage.run("await is_whole; \"$CAIRN\" drain job >/dev/null 2>&1; true").succeeds();
    assert_eq!(look(&stage), before);
}

#[test]
fn command_that_ends_first_leaves_copies_as_they_are_and_a_kept_store_gets_the_rest_later() {
    let Some(mut stage) = Stage::held_up() else { return };
    stage.run("cat many/z 2>&1; echo new >new").succeeds().says("store removed");
    assert_eq!(stage.sandbox.manifest("job")["complete"], true);
    assert_eq!(stage.sandbox.drained("new"), "new\n");
    stage.run("exit 3").ends_with(3).says("the store is kept");
    kill("KILL", i64::from(stage.sandbox.agent("job")));
    stage.let_go();
    assert_eq!(stage.sandbox.drained("many/h"), "h\n");
    let ran = stage.run("cat many/h new; tr -d 3 <ckpt-3/y");
    ran.succeeds().prints("h\nnew\ny\n");
}

#[test]
fn store_that_is_given_up_before_all_came_is_staged_again_with_what_the_drain_has_made_of_it() {
    let Some(mut stage) = Stage::held_up() else { return };
    stage.run("mv many/a moved; echo new >many/b; rm many/c; exit 3").ends_with(3);
    kill("KILL", i64::from(stage.sandbox.agent("job")));
    stage.run("mv moved twice; exit 3").ends_with(3).says("the store is kept");
    kill("KILL", i64::from(stage.sandbox.agent("job")));
    stage.sandbox.cairn(&["rm", "job", "--discard"]).succeeds();
    let ran = stage.run("ls many | wc -l; exit 3").ends_with(3).says("to be brought in while");
    ran.prints("14\n");
    kill("KILL", i64::from(stage.sandbox.agent("job")));
    stage.let_go();
    let ran = stage.run("cat twice many/b many/d; await is_whole; tr -d 3 <ckpt-3/x; cat many/p");
    ran.succeeds().prints("a\nnew\nd\nx\np\n");
    assert_eq!(stage.sandbox.drained("twice"), "a\n");
}

#[test]
fn full_store_fails_who_opens_a_file_until_there_is_room() {
    let Some(stage) = Stage::held_up() else { return };
    let ran = stage.run_with(
        &["--space-wait", "1"],
        r#"is_told() { "$CAIRN" status job --json | grep -q '"brought_files": *19'; }
        head -c 64M /dev/zero >big; cat ckpt-3/x >/dev/null & reader=$!; await waits 1
        rm "$HOLD"/*; wait $reader || echo failed
        "$CAIRN" status job | grep -c '^  absent .*ckpt-3/x: the store is full'
        rm big; tr -d 3 <ckpt-3/x; cat many/*; tr -d 3 <ckpt-3/y; cat input; is_whole && echo whole
        await is_told"#,
    );
    let ran = ran.succeeds().says("No space left").says("cat: ckpt-3/x: Input/output error");
    assert_eq!(ran.stderr.matches("Input/output error").count(), 1, "{}", ran.stderr);
    let all = ('a'..='p').map(|name| format!("{name}\n")).collect::<String>();
    ran.prints(&format!("failed\n1\nx\n{all}y\ninput\nwhole\n"));
}

/// A checkpoint that need not be kept cannot be drained until the script permits it, because its
/// place outside is taken. Files that are open do not give up their data.
#[test]
fn reader_waits_for_room_until_a_checkpoint_that_need_not_be_kept_has_left() {
    let Some(stage) = Stage::held_up() else { return };
    let out = stage.sandbox.out().display().to_string();
    let script = r#"
        : >"$OUT/cairn-before.job"; mkdir -p "$OUT/step.1/taken"
        head -c 6M /dev/zero >step.1; head -c 4M /dev/zero >step.2
        python3 -c "
import os
file, room = os.open('rest', os.O_WRONLY | os.O_CREAT), os.statvfs('.')
os.posix_fallocate(file, 0, room.f_bfree * room.f_frsize)"
        exec 7<step.2 8<rest
        tr -d 3 <ckpt-3/x & reader=$!; await waits 1
        rm "$HOLD"/*
        are_waiting() { "$CAIRN" status job | grep -q 'for space, for'; }
        await are_waiting
        "$CAIRN" status job | grep -c '^  absent .*the store is full'
        rm -r "$OUT/step.1"; wait $reader; ls -d step.*"#
        .replace("$OUT", &out);
    let options =
        ["--retain", "count=1", "--space-wait", "120", "--checkpoint-pattern", "/step.{step}"];
    stage.run_with(&options, &script).succeeds().prints("0\nx\nstep.2\n");
    assert!(stage.sandbox.out().join("step.1").is_file());
}

#[test]
fn ranks_with_trees_of_their_own_and_a_job_without_a_source_are_refused() {
    let stage = Stage::new();
    let out = stage.sandbox.out().display().to_string();
    for when in ["--stage", "--stage=on-demand"] {
        let words = ["run", "--job", "job", "--persist", &out, "--scope", "rank", when];
        let words = [&words[..], &["--", "true"]].concat();
        stage.sandbox.cairn(&words).refused_with("--scope rank");
        let nowhere = ["run", "--job", "other", when, "--", "true"];
        stage.sandbox.cairn(&nowhere).refused_with("--persist");
    }
    assert!(!stage.sandbox.store("job").exists());
}

#[test]
fn node_that_is_lost_with_absent_files_has_them_brought_after_the_recovery() {
    let Some(stage) = Stage::held_up() else { return };
    let tier = format!("file:{}:64M", stage.sandbox.work().join("tier").display());
    let options = ["--tier", &tier, "--durability", "op"];
    let ran = stage.run_with(
        &options,
        "mv many/d moved; echo new >many/e; : >many/f; chmod 600 many/g; exit 3",
    );
    ran.ends_with(3);
    kill("KILL", i64::from(stage.sandbox.agent("job")));
    fs::remove_dir_all(stage.sandbox.store("job")).expect("the store is there");
    let show = r#"stat -c '%s %a' many/g moved many/h; cat moved many/e many/f & reader=$!; await waits 1
        rm "$HOLD"/*; wait $reader; cat many/g many/h; await is_whole; tr -d 3 <ckpt-3/x"#;
    let ran = stage.run_with(&options, show).succeeds().says("recovered");
    ran.prints("2 600\n2 644\n2 644\nd\nnew\ng\nh\nx\n");
    let drained = |path: &str| stage.sandbox.drained(path);
    assert_eq!(
        (drained("moved"), drained("many/e"), drained("many/f")),
        ("d\n".into(), "new\n".into(), String::new())
    );
}

#[test]
fn when_files_come_is_said_by_option_variable_or_file() {
    let stage = Stage::new();
    let out = stage.sandbox.out().display().to_string();
    let run = |options: &[&str], variable: Option<&str>| {
        let first = ["run", "--job", "job", "--persist", &out];
        let words = [&first[..], options, &["--", "true"]].concat();
        let mut command = stage.command(&words);
        command.env("CAIRN_RUN_NEWEST_ONLY", "yes");
        if let Some(value) = variable {
            command.env("CAIRN_RUN_STAGE", value);
        }
        Ran::of(command.output().expect("cairn starts"), words.join(" "))
    };
    let (now, later) = ("19 files, 600 KiB, brought in", "to be brought in while the command runs");
    let (now, later) = (now.replace("600 KiB", "586 KiB"), later.to_string());
    run(&["--stage"], None).succeeds().says(&now);
    run(&["--stage=whole"], Some("on-demand")).succeeds().says(&now);
    run(&["--stage=on-demand"], None).succeeds().says(&later);
    run(&[], Some("on-demand")).succeeds().says(&later);
    run(&[], Some("true")).succeeds().says(&now);
    run(&[], Some("false")).refused_with("to continue from them: --stage");
    run(&["--stage=soon"], None).ends_with(2).says("on-demand");
    for (setting, said) in [("true", &now), ("\"whole\"", &now), ("\"on-demand\"", &later)] {
        fs::write(stage.sandbox.work().join("cairn.toml"), format!("[run]\nstage = {setting}\n"))
            .expect("writes");
        run(&[], None).succeeds().says(said);
    }
    fs::write(stage.sandbox.work().join("cairn.toml"), "[run]\nstage = \"soon\"\n")
        .expect("writes");
    run(&[], None).refused_with("run.stage");
}

#[test]
fn commands_that_look_into_a_store_take_absent_files_for_what_they_are() {
    let Some(stage) = Stage::held_up() else { return };
    let ran = stage.run(
        r#""$CAIRN" verify job | tail -1
        "$CAIRN" cp job:/many/m "$HOLD/../m" & reader=$!; await waits 1; rm "$HOLD/m"; wait $reader; cat "$HOLD/../m"
        "$CAIRN" ls --newest 'many/n' & reader=$!; await waits 1; rm "$HOLD/n"; wait $reader
        "$CAIRN" ls job:/many | grep -c absent; rm "$HOLD"/*; await is_whole; "$CAIRN" verify job"#,
    );
    ran.succeeds().prints(
        "19 files yet to be brought in, not compared\n1 file, 2 B copied\nm\n/cairn/many/n\n14\n\
         19 files, 586 KiB: 19 intact\n",
    );
}
