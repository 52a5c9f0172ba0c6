//! Delivery: in the end a user never has less than on a disk. The contract is at the head of
//! docs/SEMANTICS.md.

mod common;

use common::session::Session;
use common::{Ran, Sandbox, eventually};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

/// Opens a file in one of several ways, writes, and dies with the file open, unless it is the last
/// run.
const WRITER: &str = "\
import mmap, os, signal, sys
how, name, is_last = sys.argv[1], '/cairn/' + sys.argv[2], len(sys.argv) > 3
if how == 'append':
    f = open(name, 'ab', 0)
elif how == 'cut':
    f = os.fdopen(os.open(name, os.O_RDWR | os.O_CREAT, 0o644), 'r+b', 0)
    f.truncate(100)
    f.seek(0, 2)
elif how == 'anew':
    f = open(name, 'wb', 0)
else:
    f = os.fdopen(os.open(name, os.O_RDWR | os.O_CREAT, 0o644), 'r+b', 0)
if how == 'empty' and not is_last:
    os.kill(os.getpid(), signal.SIGKILL)
if how == 'mapped':
    f.truncate(8192)
    m = mmap.mmap(f.fileno(), 8192)
    m[:2000] = b'm' * 2000
    m.flush()
else:
    f.write(b'x' * 1000)
    os.fsync(f.fileno())
if not is_last:
    f.write(b'y' * 500)
    os.kill(os.getpid(), signal.SIGKILL)
f.close()
";

const WAYS: [(&str, u64); 6] = [
    ("append", 2500),
    ("update", 1500),
    ("cut", 1100),
    ("empty", 1000),
    ("anew", 1000),
    ("mapped", 8192),
];

fn with_writer() -> Sandbox {
    let sandbox = Sandbox::new();
    fs::write(sandbox.work().join("writer.py"), WRITER).expect("writes");
    sandbox
}

/// Runs the writer once for each of `ways`. `last` is an additional argument, or empty.
fn write(sandbox: &Sandbox, ways: &[&str], last: &str) -> Ran {
    let each = |how: &&str| format!("python3 writer.py {how} {how} {last}; ");
    let end = if last.is_empty() { "exit 9" } else { "exit 0" };
    sandbox.run("job", &format!("{}{end}", ways.iter().map(each).collect::<String>()))
}

/// Names and contents of the files below a directory, without Cairn's own files.
fn files_below(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    fn collect(directory: &Path, prefix: &str, found: &mut BTreeMap<String, Vec<u8>>) {
        for entry in fs::read_dir(directory).expect("a directory").flatten() {
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if name.contains("cairn-") {
                continue;
            }
            match entry.file_type().expect("a type").is_dir() {
                true => collect(&entry.path(), &format!("{name}/"), found),
                false => _ = found.insert(name, fs::read(entry.path()).unwrap_or_default()),
            }
        }
    }
    let mut found = BTreeMap::new();
    collect(directory, "", &mut found);
    found
}

fn names_below(directory: &Path) -> Vec<String> {
    files_below(directory).into_keys().collect()
}

/// Mechanism: a file stayed unclean from the death of a writer until it was truncated to zero.
///
/// Consequence: a file that the next run continued and closed in order was never drained. Its
/// store, or its only copy in memory, was removed with exit code 0.
///
/// Fix: unclean is a state of the last writer, and a later writer ends it.
#[test]
fn file_that_a_later_run_takes_over_is_delivered() {
    let sandbox = with_writer();
    let ways = WAYS.map(|(how, _)| how);
    write(&sandbox, &ways, "").ends_with(9);
    write(&sandbox, &ways, "last").succeeds().says("store removed");
    let found = files_below(&sandbox.out());
    for (how, bytes) in WAYS {
        assert_eq!(found.get(how).map(|content| content.len() as u64), Some(bytes), "{how}");
    }
}

/// The same within one run, where the next writer came before anybody had reaped the dead one.
#[test]
fn file_that_is_written_anew_right_after_its_writer_died_is_clean() {
    let sandbox = with_writer();
    let script =
        "for i in 1 2 3 4 5; do python3 writer.py anew anew; python3 writer.py update update; done
        python3 writer.py anew anew last; python3 writer.py update update last; cairn ls";
    let run = sandbox.run("job", &script.replace("cairn ls", &format!("{} ls job", common::CAIRN)));
    let run = run.succeeds().says("store removed");
    assert!(!run.stdout.contains("unclean"), "{}", run.stdout);
    assert_eq!(files_below(&sandbox.out())["anew"], b"x".repeat(1000));
}

/// Mechanism: a file whose writer died was never drained.
///
/// Consequence: a run that succeeded although one of its processes was killed ended with 0, and the
/// file was only in memory.
///
/// Fix: at the end of such a run every file is drained as it is.
#[test]
fn file_that_nobody_took_over_is_delivered_as_it_is_when_the_run_succeeds() {
    let sandbox = with_writer();
    sandbox
        .run(
            "job",
            "python3 writer.py append log; mkdir /cairn/ckpt-1; echo a >/cairn/ckpt-1/a; true",
        )
        .succeeds()
        .says("store removed");
    let found = files_below(&sandbox.out());
    assert_eq!(found["log"], [b"x".repeat(1000), b"y".repeat(500)].concat());
    assert_eq!(found["ckpt-1/a"], b"a\n");
    assert_eq!(sandbox.entry("job", "log")["torn"], true);
}

/// Mechanism: small texts that contain a number, with names like those of pointers to checkpoints,
/// waited for these checkpoints.
///
/// Consequence: they were left out "as was asked for" and removed with the store.
///
/// Fix: they are ordinary files.
#[test]
fn no_name_keeps_a_file_from_being_delivered() {
    let sandbox = Sandbox::new();
    let script = "cd /cairn; echo a >model.0; echo b >model.1; echo 7 >last_step; echo 99 >blastp.count; echo 40 >latest
        echo 3 >last_iteration.txt; ln -s ckpt-9 last.ckpt; echo i >ckpt-7.index; mkdir -p global_step3; echo m >global_step3/m";
    sandbox.run("job", script).succeeds().says("store removed");
    let expected = [
        "blastp.count",
        "ckpt-7.index",
        "global_step3/m",
        "last.ckpt",
        "last_iteration.txt",
        "last_step",
        "latest",
        "model.0",
        "model.1",
    ];
    assert_eq!(names_below(&sandbox.out()), expected);
}

/// Mechanism: files whose numbers differ count as checkpoints, of which `--pfs-every` drains some.
///
/// Consequence: results with numbers in their names had no copy when the store went.
///
/// Fix: `--pfs-every` decides only what is copied while the job runs.
#[test]
fn numbered_results_are_all_delivered_where_only_some_checkpoints_are_drained() {
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    let options =
        ["run", "--job", "job", "--persist", out.to_str().expect("UTF-8"), "--pfs-every", "3"];
    let script = "for i in 1 2 3 4 5; do echo $i >/cairn/result.$i; done";
    sandbox.cairn(&[&options[..], &["--", "bash", "-c", script]].concat()).succeeds();
    assert_eq!(names_below(&out), [1, 2, 3, 4, 5].map(|number| format!("result.{number}")));
}

/// Mechanism: of checkpoints that alternate between two slots only one was staged, and the text
/// that named the other was rewritten.
///
/// Consequence: the program began again at the first step.
///
/// Fix: all files are staged unchanged; fewer only on request.
#[test]
fn staging_brings_every_file_as_it_is() {
    let write = "cd /cairn; for step in 0 1 2 3; do for rank in 0 1; do echo $step >state.$((step % 2)).$rank; done
        echo $((step % 2)) >latest; done; for step in 1 2; do echo $step >dump.$step; done";
    for stage in ["--stage", "--stage=on-demand"] {
        let sandbox = Sandbox::new();
        sandbox.run("job", write).succeeds().says("store removed");
        let before = files_below(&sandbox.out());
        let out = sandbox.out();
        let options = ["run", "--job", "job", "--persist", out.to_str().expect("UTF-8"), stage];
        let show = "cd /cairn; for file in *; do echo $file $(cat $file); done";
        let shown = sandbox.cairn(&[&options[..], &["--", "bash", "-c", show]].concat()).succeeds();
        let expected: String = before
            .iter()
            .map(|(name, content)| format!("{name} {}", String::from_utf8_lossy(content)))
            .collect();
        assert_eq!(shown.stdout, expected, "{stage}");
        assert_eq!(files_below(&out), before, "{stage}");
    }
}

#[test]
fn staging_of_the_newest_only_leaves_older_checkpoints_where_they_are() {
    let sandbox = Sandbox::new();
    sandbox.run("job", "for step in 1 2 3; do echo $step >/cairn/dump.$step; done").succeeds();
    let out = sandbox.out();
    let persist = out.to_str().expect("UTF-8");
    let options = ["run", "--job", "job", "--persist", persist, "--stage", "--newest-only"];
    let run = sandbox.cairn(&[&options[..], &["--", "ls", "/cairn"]].concat());
    run.succeeds().prints("dump.3\n");
    assert_eq!(names_below(&out), ["dump.1", "dump.2", "dump.3"]);
}

/// Leaves a killed job with a file that was open, a file of an unfinished checkpoint, and a log
/// that is always drained.
fn killed(sandbox: &Sandbox) {
    let out = sandbox.out();
    let options =
        ["run", "--job", "job", "--persist", out.to_str().expect("UTF-8"), "--persistent", "*.log"];
    let script = "echo done >/cairn/results; mkdir -p /cairn/ckpt-1 && echo a >/cairn/ckpt-1/a
        python3 writer.py append train.log; python3 writer.py append md.trr; kill -9 $$";
    sandbox.cairn(&[&options[..], &["--", "bash", "-c", script]].concat()).ends_with(137);
}

fn whole_log() -> Vec<u8> {
    [b"x".repeat(1000), b"y".repeat(500)].concat()
}

/// Mechanism: files that were open when a job was killed, and files of unfinished checkpoints, were
/// never drained.
///
/// Consequence: unless `cairn cp` saved them one by one, they were lost with the store.
///
/// Fix: the persist directory shows the store as the kill left it.
#[test]
fn everything_of_a_killed_job_is_outside_as_the_kill_left_it() {
    let sandbox = with_writer();
    killed(&sandbox);
    let found = files_below(&sandbox.out());
    let names: Vec<&String> = found.keys().collect();
    assert_eq!(names, ["ckpt-1/a", "md.trr", "results", "train.log"]);
    assert_eq!([&found["train.log"], &found["md.trr"]], [&whole_log(), &whole_log()]);
    let drain = sandbox.cairn(&["drain", "job"]).succeeds();
    drain.says("2 files drained as they are").says("md.trr");
    assert_eq!(files_below(&sandbox.out()), found);
    sandbox.cairn(&["rm", "job"]).succeeds();
}

/// Mechanism: the newest checkpoint outside stayed as long as there was no newer one.
///
/// Consequence: after a kill, files that the program had removed were there.
///
/// Fix: what lies outside is the store as it was at one moment.
#[test]
fn what_a_killed_job_had_removed_is_gone() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "job", &[]);
    session.shell("echo state >/cairn/step.1");
    eventually("it is outside", || sandbox.out().join("step.1").exists());
    session.shell("rm /cairn/step.1; echo more >/cairn/log; exec 7>>/cairn/step.2; echo torn >&7");
    session.kill_all();
    eventually("it is as on a disk", || names_below(&sandbox.out()) == ["log", "step.2"]);
}

/// Mechanism: every run that ended with 0 ended its job.
///
/// Consequence: a user who looked at a killed job's files with `cairn run --job J -- ls` had them
/// drained as if the job had succeeded, and the store removed.
///
/// Fix: only a run of the program that failed ends the job.
#[test]
fn run_of_another_program_does_not_end_a_job_that_failed() {
    let sandbox = with_writer();
    write(&sandbox, &["append"], "").ends_with(9);
    let out = sandbox.out();
    let persist = out.to_str().expect("UTF-8");
    let look = sandbox.cairn(&["run", "--job", "job", "--persist", persist, "--", "ls", "/cairn"]);
    look.ends_with(75)
        .says("append")
        .says("an earlier run of bash failed and has not been resumed");
    assert!(sandbox.store("job").exists());
    write(&sandbox, &["append"], "last").succeeds().says("store removed");
    assert_eq!(files_below(&out)["append"].len(), 2500);
}

/// A torn checkpoint stays torn for every query for a whole one, although a later program closed
/// its file.
#[test]
fn torn_checkpoint_is_not_whole_until_it_is_written_anew() {
    let sandbox = with_writer();
    let listed = |sandbox: &Sandbox| {
        let rows = sandbox.cairn(&["ls", "--checkpoints", "job", "--json"]).succeeds().json();
        let rows = rows.as_array().cloned().unwrap_or_default();
        let level = |row: &serde_json::Value| row["level"].as_str().map(str::to_string);
        rows.iter().map(|row| (row["step"].as_u64(), level(row).is_some())).collect::<Vec<_>>()
    };
    let script = "echo 1 >/cairn/ckpt.1; python3 writer.py append ckpt.2; exit 9";
    sandbox.run("job", script).ends_with(9);
    let run = sandbox.run("job", "python3 writer.py append ckpt.2 last; exit 9").ends_with(9);
    run.says("cairn: job: resuming: newest whole checkpoint ckpt.1, written ")
        .says(" ago; not complete: ckpt.2 (");
    assert_eq!(listed(&sandbox), [(Some(1), true), (Some(2), false)]);
    sandbox.run("job", "python3 writer.py anew ckpt.2 last; exit 9").ends_with(9);
    assert_eq!(listed(&sandbox), [(Some(1), true), (Some(2), true)]);
}

/// Mechanism: the record that blocks are overwritten did not say that the file has a writer. After
/// the loss of memory, a file that had been closed, reopened and partly overwritten counted as
/// closed.
///
/// Consequence: a file that was half old and half new was "clean" and "intact".
#[test]
fn file_that_was_half_overwritten_when_memory_was_lost_is_unclean() {
    let sandbox = Sandbox::new();
    let tier = sandbox.work().join("tier");
    let tier = format!("file:{}:16M", tier.display());
    let options = ["run", "--job", "job", "--tier", &tier, "--", "bash", "-c"];
    let script = "import os, signal, sys
f = open('/cairn/state', 'wb'); f.write(b'a' * 300000); f.close()
f = open('/cairn/state', 'r+b', 0); f.write(b'b' * 150000); os.fsync(f.fileno()); open('ready', 'w').close(); signal.pause()";
    fs::write(sandbox.work().join("half.py"), script).expect("writes");
    let mut run = sandbox
        .command(&[&options[..], &["exec python3 half.py"]].concat())
        .spawn()
        .expect("starts");
    eventually("half of it is overwritten", || sandbox.work().join("ready").exists());
    lose_memory(&sandbox, "job");
    run.wait().expect("ends");
    let run = sandbox.cairn(&[&options[..], &["exit 3"]].concat());
    run.ends_with(3).says("recovered");
    sandbox.cairn(&["ls", "job"]).succeeds().says("unclean");
}

/// Appends numbered records to two files in turn, and renames a new file with the number over the
/// third, until killed.
const RECORDS: &str = "\
import os, sys, time
os.chdir('/cairn')
first, second = (open(name, 'ab', 0) for name in ('first', 'second'))
number = 0
while True:
    number += 1
    for log in (first, second):
        log.write(b'%019d\\n' % number)
    with open('.new', 'w') as new:
        new.write(str(number))
    os.rename('.new', 'newest')
    if number == 100:
        open(sys.argv[1], 'w').close()
    time.sleep(0.0005)
";

/// Mechanism: files that stay open for the whole run were drained when it ended, and all others one
/// by one.
///
/// Consequence: after the loss of the node, what lay outside was a mixture of moments.
///
/// Fix: each pass is a cut.
#[test]
fn what_lies_outside_is_the_store_at_one_moment() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.work().join("records.py"), RECORDS).expect("writes");
    let out = sandbox.out();
    let options =
        ["run", "--job", "job", "--persist", out.to_str().expect("UTF-8"), "--temporary", "*.new"];
    let ready = sandbox.work().join("ready").display().to_string();
    let arguments = [&options[..], &["--", "python3", "records.py", &ready]].concat();
    let mut run = sandbox.command(&arguments).spawn().expect("starts");
    eventually("it writes", || sandbox.work().join("ready").exists());
    let agent = sandbox.agent("job");
    let signal = |name: &str| {
        let sent = Command::new("kill").args(["-s", name, &agent.to_string()]).status();
        assert!(sent.expect("runs").success());
    };
    // A turn that is cut off is finished by whoever opens the directory next.
    let is_turning = || {
        let names = fs::read_dir(&out).expect("lists").flatten().map(|entry| entry.file_name());
        names.into_iter().any(|name| {
            let name = name.to_string_lossy().into_owned();
            name.starts_with(".cairn-") && !name.ends_with(".new")
        })
    };
    let mut last = 0;
    for round in 0..10 {
        sandbox.cairn(&["drain", "job"]).succeeds();
        loop {
            signal("STOP");
            if !is_turning() {
                break;
            }
            signal("CONT");
        }
        let found = files_below(&out);
        signal("CONT");
        assert_eq!(found.keys().collect::<Vec<_>>(), ["first", "newest", "second"], "{round}");
        let count = |name: &str| found[name].len() / 20;
        for name in ["first", "second"] {
            let whole: String = (1..=count(name)).map(|number| format!("{number:019}\n")).collect();
            assert_eq!(String::from_utf8_lossy(&found[name]), whole, "{round} {name}");
        }
        let newest: usize = String::from_utf8_lossy(&found["newest"]).parse().expect("a number");
        // Every record written before the newest one is there, too.
        assert!(newest <= count("second") && count("second") <= count("first"), "{round}");
        assert!(count("first") <= newest + 1 && newest > last, "{round}: {newest} after {last}");
        last = newest;
    }
    lose_memory(&sandbox, "job");
    run.wait().expect("ends");
    let show = ["--stage", "--", "bash", "-c", "cd /cairn; wc -l <first; cat newest"];
    let shown = sandbox.cairn(&[&options[..5], &show].concat());
    let shown = shown.says("2 files as the program left them, not closed: first, second");
    let numbers: Vec<usize> =
        shown.stdout.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(
        numbers[1] >= last && (numbers[1]..=numbers[1] + 1).contains(&numbers[0]),
        "{numbers:?}"
    );
}

/// Files that a program keeps open are outside soon, and follow what is written to them.
#[test]
fn open_files_follow_what_is_written_to_them() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "job", &[]);
    session.shell("exec 7>>/cairn/log; echo one >&7; echo state >/cairn/ckpt.1");
    let log = || fs::read(sandbox.out().join("log")).unwrap_or_default();
    eventually("it is outside", || log() == b"one\n");
    for more in ["two", "three"] {
        session.shell(&format!("echo {more} >&7"));
        eventually("so is what came later", || log().ends_with(format!("{more}\n").as_bytes()));
    }
    let status = sandbox.cairn(&["status", "job"]).succeeds();
    status.says("the store as it was ");
    sandbox.cairn(&["drain", "job"]).succeeds().says("1 file open for writing");
    assert_eq!(session.end(), Some(0));
    assert_eq!(sandbox.drained_names(), ["ckpt.1", "log"]);
}

/// Mechanism: a torn version replaced the only whole one outside, was called clean when it came
/// back, and the next run, whatever it ran, drained it as verified and ended the job.
///
/// Consequence: no whole version existed any more.
///
/// Fix: the whole one stays beside it. A new store knows that the file was not closed, and that the
/// job has failed.
#[test]
fn whole_version_outlives_a_torn_one_and_a_failed_job_its_node() {
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    let persist = out.to_str().expect("UTF-8");
    let options = ["run", "--job", "job", "--persist", persist];
    let mut session = Session::start(&sandbox, "job", &[]);
    session.shell("echo whole >/cairn/last.ckpt; echo line >/cairn/log");
    eventually("they are outside", || out.join("log").exists());
    session.shell("exec 7>/cairn/last.ckpt 8>>/cairn/log; printf ha >&7; echo more >&8");
    let text = |name: &str| fs::read_to_string(out.join(name)).unwrap_or_default();
    eventually("it is being written", || text("last.ckpt") == "ha");
    assert_eq!(text("cairn-whole.job/last.ckpt"), "whole\n");
    assert!(!out.join("cairn-whole.job/log").exists(), "it was only continued");
    lose_memory(&sandbox, "job");
    drop(session);
    let stage = |script: &str| {
        let words = [&options[..], &["--stage", "--", "sh", "-c", script]].concat();
        sandbox.cairn(&words)
    };
    let look = sandbox.cairn(&[&options[..], &["--stage", "--", "ls", "/cairn"]].concat());
    look.ends_with(75)
        .says("not closed: last.ckpt, log; the last whole versions are kept outside: last.ckpt")
        .says("an earlier run of bash failed and has not been resumed")
        .says("the last whole version of 1 file is in");
    assert!(sandbox.cairn(&["ls", "job"]).succeeds().stdout.contains("unclean"));
    assert_eq!(
        (text("last.ckpt"), text("cairn-whole.job/last.ckpt")),
        ("ha".into(), "whole\n".into())
    );
    sandbox.cairn(&["rm", "job", "--discard"]).succeeds();
    stage("exit 3").ends_with(3);
    assert_eq!(text("cairn-whole.job/last.ckpt"), "whole\n");
    let command = ["bash", "-c", "echo newer >/cairn/last.ckpt; echo end >>/cairn/log"];
    sandbox.cairn(&[&options[..], &["--"], &command].concat()).succeeds().says("store removed");
    assert_eq!((text("last.ckpt"), text("log")), ("newer\n".into(), "line\nmore\nend\n".into()));
    assert!(!out.join("cairn-whole.job").exists());
}

/// A run that resumes from what is outside owns the places of its files. When the program removes
/// or changes such a file, the copy outside is removed or replaced, even if other jobs drain to the
/// directory.
#[test]
fn run_that_goes_on_in_a_new_store_has_the_places_of_its_files() {
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    let options = ["run", "--job", "job", "--persist", out.to_str().expect("UTF-8"), "--shared"];
    let mut session = Session::start(&sandbox, "job", &["--shared"]);
    session.shell("for name in kept changed removed open; do echo 1 >/cairn/$name; done");
    session.shell("exec 7>>/cairn/open; for step in 1 2; do echo state >/cairn/ckpt.$step; done");
    sandbox.cairn(&["drain", "job"]).succeeds();
    lose_memory(&sandbox, "job");
    drop(session);
    let script = "cd /cairn; ls; cat changed; echo 3 >>changed; rm removed; echo 2 >>open
        echo again >later; rm later; echo anew >again";
    let go_on = [&options[..], &["--stage", "--", "bash", "-c", script]].concat();
    let ran = sandbox.cairn(&go_on).succeeds();
    ran.prints("changed\nckpt.1\nckpt.2\nkept\nopen\nremoved\n1\n");
    let all = ["again", "changed", "ckpt.1", "ckpt.2", "kept", "open"];
    assert_eq!(sandbox.drained_names(), all);
    assert_eq!(sandbox.drained("again"), "anew\n");
    assert_eq!([sandbox.drained("changed"), sandbox.drained("open")], ["1\n3\n", "1\n2\n"]);
}

/// Mechanism: of several processes that share one description, the last one found gone decided
/// whether the description was closed in order.
///
/// Consequence: a file whose writer was killed counted as sound and was drained as verified, if a
/// shell or a helper had inherited the descriptor and ended in order. The same happened after a
/// kill of all processes, if somebody looked later.
///
/// Fix: the kill of any of them makes the file unclean, unless that process has not used any file.
#[test]
fn writer_is_killed_then_the_file_is_unclean_whoever_else_had_it_open() {
    const WRITE: &str = "
import os, signal, sys, time
file = os.open('/cairn/' + sys.argv[1], os.O_CREAT | os.O_WRONLY)
os.write(file, b'half')
child = os.fork()
if child == 0:
    while not os.path.exists('go'):
        time.sleep(0.01)
    os._exit(0)
if sys.argv[1] == 'torn':
    os.kill(os.getpid(), signal.SIGKILL)
os.kill(child, signal.SIGKILL)
os.wait()
os.write(file, b'whole')
";
    let sandbox = Sandbox::new();
    fs::write(sandbox.work().join("write.py"), WRITE).expect("writes");
    let mut session = Session::start(&sandbox, "job", &[]);
    session.shell("python3 write.py torn; python3 write.py whole; touch go");
    let listed = |state: &str, name: &str| {
        let all = sandbox.cairn(&["ls", "job"]).succeeds().stdout;
        all.lines().any(|line| line.contains(state) && line.ends_with(name))
    };
    eventually("nobody has them open", || !listed(" open ", "torn") && !listed(" open ", "whole"));
    assert!(listed(" unclean ", " torn") && !listed(" unclean ", " whole"));
    session.kill_all();
}

/// Mechanism: a changed file was copied whole each time.
///
/// Consequence: for a growing trajectory, or a database, the whole file was written again and
/// again.
///
/// Fix: two copies of a file that changes in its place take turns, and only the differences are
/// written.
#[test]
fn file_that_changes_in_its_place_is_made_from_an_earlier_copy() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "job", &["--tier", "ram:96M"]);
    session
        .shell("exec 5<>/cairn/cut 6<>/cairn/base 7>>/cairn/grows 8>>/cairn/front 9>>/cairn/holes");
    session.shell("head -c 9000000 /dev/urandom | (cd /cairn; tee base cut >other)");
    let names = ["grows", "front", "holes", "base", "cut", "other"];
    for number in 0..6 {
        let mut script = format!(
            "head -c 300001 /dev/urandom >&7; head -c 300001 /dev/urandom >&8; cd /cairn
            truncate -s +5000011 holes; echo end >>holes
            truncate -s $((9000000 - 1000001 * {number} % 3000000)) cut
            head -c 9000000 /dev/urandom >other.new; mv other.new other\n"
        );
        if number == 3 {
            script += "echo x | dd of=front bs=1 seek=1000 conv=notrunc status=none
                fallocate -p -o 4194000 -l 4200000 base\n";
        }
        for place in [number * 70_001, 5_000_000 + number * 400_000] {
            script +=
                &format!("echo {number} | dd of=base bs=1 seek={place} conv=notrunc status=none\n");
        }
        script += &format!("for name in {}; do cp $name $OLDPWD/is-$name; done", names.join(" "));
        session.shell(&format!("(set -e; {script}) || touch failed"));
        assert!(!sandbox.work().join("failed").exists(), "{number}");
        sandbox.cairn(&["drain", "job"]).succeeds();
        for name in names {
            let is = fs::read(sandbox.work().join(format!("is-{name}"))).expect("is there");
            let found = fs::read(sandbox.out().join(name)).expect("is there");
            assert!(found == is, "{name} of {number}");
        }
    }
    assert_eq!(session.end(), Some(0));
    assert_eq!(sandbox.drained_names(), ["base", "cut", "front", "grows", "holes", "other"]);
}

/// Mechanism: each name of a file was copied.
///
/// Consequence: a hard-linked file, such as a checkpoint linked under the name of the newest, took
/// its space twice outside and became two files.
///
/// Fix: the copy has the same hard links.
#[test]
fn file_has_all_its_names_outside() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "job", &[]);
    let inode = |name: &str| fs::metadata(sandbox.out().join(name)).expect("is there").ino();
    let mut drained = |script: &str| {
        session.shell(script);
        sandbox.cairn(&["drain", "job"]).succeeds();
    };
    drained("echo one >/cairn/a; ln /cairn/a /cairn/b; mkdir /cairn/d; ln /cairn/a /cairn/d/c");
    assert_eq!([inode("b"), inode("d/c")], [inode("a"); 2]);
    drained("ln /cairn/b /cairn/later; chmod 600 /cairn/a; mv /cairn/d /cairn/e");
    assert_eq!([inode("b"), inode("e/c"), inode("later")], [inode("a"); 3]);
    let mode = fs::metadata(sandbox.out().join("e/c")).expect("is there").mode();
    assert_eq!(mode & 0o777, 0o600);
    drained("echo two >>/cairn/later; rm /cairn/b; rm /cairn/a; ln /cairn/e/c /cairn/a");
    assert_eq!(sandbox.drained("a"), "one\ntwo\n");
    assert_eq!([inode("e/c"), inode("later")], [inode("a"); 2]);
    drained("cp /cairn/a /cairn/new; mv /cairn/new /cairn/later; echo three >>/cairn/a");
    assert_eq!(["a", "e/c"].map(|name| sandbox.drained(name)), ["one\ntwo\nthree\n"; 2]);
    assert_eq!(sandbox.drained("later"), "one\ntwo\n");
    assert_eq!(inode("e/c"), inode("a"));
    assert_eq!(session.end(), Some(0));
    assert_eq!(sandbox.drained_names(), ["a", "e", "e/c", "later"]);
}

/// Mechanism: what lay outside had files of an earlier store, and staging resumes from all of it.
///
/// Consequence: files that the program had removed came back. So did files of an earlier start
/// after `--fresh`.
///
/// Fix: files that came from outside are the store's own, and go with it.
#[test]
fn nothing_of_an_earlier_store_comes_back() {
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    let options = ["run", "--job", "job", "--persist", out.to_str().expect("UTF-8")];
    let begin = |options: &[&str], script: &str| {
        let _ = fs::remove_file(sandbox.work().join("ready"));
        let script = format!("{script}; touch ready; exec sleep 60");
        let arguments = [options, &["--", "bash", "-c", &script]].concat();
        let run = sandbox.command(&arguments).spawn().expect("starts");
        eventually("it has written", || sandbox.work().join("ready").exists());
        sandbox.cairn(&["drain", "job"]).succeeds();
        run
    };
    let mut run = begin(&options, "exec 7>>/cairn/log; echo 1 >&7; echo 1 >/cairn/old");
    lose_memory(&sandbox, "job");
    run.wait().expect("ends");
    let stage = [&options[..], &["--stage"]].concat();
    let mut run = begin(&stage, "exec 7>>/cairn/log; echo 2 >&7; rm /cairn/old");
    lose_memory(&sandbox, "job");
    run.wait().expect("ends");
    let show = [&stage[..], &["--", "bash", "-c", "ls /cairn; cat /cairn/log; exit 3"]].concat();
    sandbox.cairn(&show).ends_with(3).prints("log\n1\n2\n");
    sandbox.cairn(&["rm", "job", "--discard"]).succeeds();
    let fresh = [&options[..], &["--fresh", "--", "bash", "-c", "ls /cairn; exit 3"]].concat();
    sandbox.cairn(&fresh).ends_with(3).says("cairn-aside.job.1").prints("");
    sandbox.cairn(&["rm", "job", "--discard"]).succeeds();
    let show = [&stage[..], &["--", "ls", "/cairn"]].concat();
    sandbox.cairn(&show).succeeds().prints("");
}

/// The same at an end without a wait for the drain.
#[test]
fn links_and_directories_alone_are_delivered_in_the_background() {
    let sandbox = Sandbox::new();
    let out = sandbox.out().display().to_string();
    let run =
        ["run", "--job", "job", "--persist", &out, "--drain", "background", "--", "bash", "-c"];
    let script = "ln -s nowhere /cairn/link; mkdir /cairn/empty";
    sandbox.cairn(&[&run[..], &[script]].concat()).succeeds();
    sandbox.cairn(&["status", "--wait", "job"]).succeeds();
    assert_eq!(fs::read_link(sandbox.out().join("link")).expect("a link"), Path::new("nowhere"));
    assert!(sandbox.out().join("empty").is_dir());
}

/// Mechanism: a store without regular files counted as empty, whatever else was in it.
///
/// Consequence: a link that could not be drained was lost, and the run succeeded.
///
/// Fix: the run checks whether everything is outside.
#[test]
fn link_that_cannot_be_delivered_is_said() {
    let sandbox = Sandbox::new();
    let run = sandbox.run("job", "ln -s nowhere /cairn/cairn-whole.x").ends_with(75);
    run.says("cairn-whole.x").says("the store is kept");
    assert!(sandbox.store("job").exists());
}

/// Kills all processes of a job and its agent, and removes the store's memory.
fn lose_memory(sandbox: &Sandbox, job: &str) {
    let store = sandbox.store(job);
    let mark = format!("CAIRN_STORE={}", store.display());
    let mut users = vec![sandbox.agent(job)];
    for process in fs::read_dir("/proc").expect("lists").flatten() {
        let environment = fs::read(process.path().join("environ")).unwrap_or_default();
        let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let is_run = command.windows(5).any(|part| part == b"\0run\0")
            && environment.split(|byte| *byte == 0).any(|variable| {
                variable == format!("CAIRN_STORE_ROOT={}", sandbox.root().display()).as_bytes()
            });
        let is_of_it = environment.split(|byte| *byte == 0).any(|it| it == mark.as_bytes());
        if is_run || is_of_it {
            users.extend(process.file_name().to_string_lossy().parse::<u32>());
        }
    }
    // A process that has ended by itself needs no signal.
    users.iter().for_each(|pid| {
        let _ = Command::new("kill").args(["-s", "KILL", &pid.to_string()]).output();
    });
    fs::remove_dir_all(store).expect("removes");
}

/// A file with several names comes back as one, with its attributes.
#[test]
fn attributes_of_a_file_with_several_names_come_back() {
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    let options = ["run", "--job", "job", "--persist", out.to_str().expect("UTF-8")];
    let mut session = Session::start(&sandbox, "job", &[]);
    session.shell("cd /cairn; echo one >a; ln a step.1; ln a z; chmod 755 a; cd - >/dev/null");
    sandbox.cairn(&["drain", "job"]).succeeds();
    session.shell("chmod 600 /cairn/a");
    sandbox.cairn(&["drain", "job"]).succeeds();
    lose_memory(&sandbox, "job");
    drop(session);
    let go_on = [&options[..], &["--stage", "--", "stat", "-c", "%a %h", "/cairn/z"]].concat();
    sandbox.cairn(&go_on).succeeds().prints("600 3\n");
    let found = |name: &str| fs::metadata(out.join(name)).expect("is there");
    for name in ["a", "step.1", "z"] {
        assert_eq!(found(name).mode() & 0o777, 0o600, "{name}");
        assert_eq!(found(name).ino(), found("a").ino(), "{name}");
    }
}

/// Mechanism: a program that writes each checkpoint over the one before was killed in the middle of
/// one. The torn file stayed, although the whole one was outside.
///
/// Consequence: each start of the program failed.
///
/// Fix: a torn file that stands alone gives its place to its last whole version.
#[test]
fn torn_file_that_stands_alone_is_whole_again_when_its_program_goes_on() {
    for loses_node in [false, true] {
        let sandbox = Sandbox::new();
        let write = "mkdir /cairn/ck; head -c 100000 /dev/zero >/cairn/ck/last
            is_whole() { grep -qs '\"bytes\": 100000' $1 && ! grep -q unclosed $1; }
            until is_whole ../out/cairn-manifest.over.json; do sleep 0.01; done
            exec 5>/cairn/ck/last; echo torn >&5
            until grep -qs unclosed ../out/cairn-manifest.over.json; do sleep 0.01; done; kill -9 $$";
        sandbox.run("over", write).ends_with(137);
        if loses_node {
            fs::remove_dir_all(sandbox.root()).expect("the node loses its memory");
            fs::create_dir(sandbox.root()).expect("makes");
        }
        let out = sandbox.out().display().to_string();
        let stage = if loses_node { "--stage" } else { "--resume=checked" };
        let run = |command: &[&str]| {
            let head = ["run", "--job", "over", "--persist", &out, stage, "--"];
            sandbox.cairn(&[&head[..], command].concat())
        };
        if !loses_node {
            // Another program finds what there is.
            run(&["wc", "-c", "/cairn/ck/last"]).prints("5 /cairn/ck/last\n");
        }
        let ran = run(&["bash", "-c", "wc -c </cairn/ck/last; cat /cairn/.cairn-damaged/ck/last"]);
        ran.succeeds().says("its last whole version takes its place").prints("100000\ntorn\n");
        assert_eq!(sandbox.drained("ck/last").len(), 100_000);
        assert!(!sandbox.out().join("cairn-whole.over").exists());
    }
}
