//! Drains of large data: copies that resume after the agent was killed, holes that are never read,
//! and a checkpoint of very many files (100 000 if `CAIRN_SOAK` is set).

mod common;

use common::session::Session;
use common::{Sandbox, eventually, kill};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::{Child, Stdio};

const MIB: u64 = 1 << 20;
/// Length of the file in bytes.
const FILE_BYTES: u64 = 160 * MIB;
/// Bytes between two progress marks.
const MARK_BYTES: u64 = 32 * MIB;

/// A run that made a large file, copied slowly enough that its agent can be killed on the way. The
/// copy takes longer between two marks than the least time between marks, whatever allowance the
/// rate limit saves up, so that no mark is left out.
struct Slow {
    sandbox: Sandbox,
    child: Child,
}

impl Slow {
    fn start() -> Slow {
        let sandbox = Sandbox::new();
        let out = sandbox.out();
        // It gets its name when it is whole: a file that is written is drained as it is.
        let script = "head -c 160M /dev/urandom | tee copy >/cairn/part; mv /cairn/part /cairn/large; : >written
            until [ -e seen ]; do sleep 0.01; done; exit 1";
        let head = ["run", "--job", "large", "--tier", "ram:256M", "--drain-rate", "32M"];
        let tail = [
            "--temporary",
            "part",
            "--persist",
            out.to_str().expect("UTF-8"),
            "--",
            "bash",
            "-c",
            script,
        ];
        let mut command = sandbox.command(&[&head[..], &tail].concat());
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("starts");
        let slow = Slow { sandbox, child };
        eventually("it is written", || slow.sandbox.work().join("written").exists());
        slow
    }

    /// Bytes copied according to the mark; 0 without a mark.
    fn marked_bytes(&self) -> u64 {
        let text = fs::read(self.sandbox.store("large").join("drain.json")).unwrap_or_default();
        let marks: Value = serde_json::from_slice(&text).unwrap_or_default();
        marks[0][1]["offset"].as_u64().unwrap_or(0)
    }

    /// Kills the agent once `bytes` bytes are marked; returns the number marked by then.
    fn kill_at(&self, bytes: u64) -> u64 {
        let agent = self.sandbox.agent("large");
        eventually("it is marked", || self.marked_bytes() >= bytes);
        kill("KILL", i64::from(agent));
        eventually("the agent ends", || fs::read_link(format!("/proc/{agent}/exe")).is_err());
        self.marked_bytes()
    }

    /// Ends the run and returns the last agent's report of its pace.
    fn end(mut self) -> Value {
        fs::write(self.sandbox.work().join("seen"), "").expect("writes");
        assert_eq!(self.child.wait().expect("ends").code(), Some(1));
        let copy = fs::read(self.sandbox.work().join("copy")).expect("reads");
        assert!(copy == fs::read(self.sandbox.out().join("large")).expect("reads"));
        assert_eq!(self.sandbox.manifest("large")["complete"], true);
        assert_eq!(self.sandbox.drained_names(), ["large"]);
        assert_eq!(self.marked_bytes(), 0, "nothing is under way");
        let status = self.sandbox.cairn(&["status", "large", "--json"]).succeeds().json();
        status[0]["agent"]["pace"].clone()
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            kill("TERM", i64::from(self.child.id()));
            self.child.wait().expect("ends");
        }
    }
}

/// Copies that are not in their places yet.
fn on_shelf(sandbox: &Sandbox) -> Vec<PathBuf> {
    let below = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten();
    let is_shelf = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().ends_with(".new");
    let shelves = below(sandbox.out()).filter(is_shelf);
    shelves.flat_map(|shelf| below(shelf.path())).map(|entry| entry.path()).collect()
}

#[test]
fn copy_goes_on_where_the_agent_was_killed_each_time() {
    let slow = Slow::start();
    let mut marked = 0;
    for mark in 1..=4 {
        let now = slow.kill_at(mark * MARK_BYTES);
        assert!(now >= mark * MARK_BYTES && now >= marked, "{now} after {marked}");
        marked = now;
    }
    let pace = slow.end();
    let copied = pace["admitted_bytes"].as_u64().expect("a number");
    // The end of the run asks for a cut of its own: what was copied since the last mark is copied
    // again.
    assert!(copied <= FILE_BYTES - marked + MARK_BYTES, "{copied} after {marked} were there");
}

#[test]
fn what_was_damaged_behind_a_mark_is_copied_again() {
    let slow = Slow::start();
    slow.kill_at(MARK_BYTES);
    let largest = |path: &PathBuf| fs::metadata(path).expect("is there").len();
    let path = on_shelf(&slow.sandbox).into_iter().max_by_key(largest).expect("it is there");
    let file = fs::File::options().write(true).read(true).open(path).expect("opens");
    let mut byte = [0];
    file.read_exact_at(&mut byte, MIB).expect("reads");
    file.write_all_at(&[!byte[0]], MIB).expect("writes");
    let pace = slow.end();
    assert!(pace["admitted_bytes"].as_u64().expect("a number") > FILE_BYTES, "from the beginning");
}

#[test]
fn very_many_files_are_one_checkpoint_however_often_the_agent_is_killed() {
    let is_soak = std::env::var_os("CAIRN_SOAK").is_some();
    let (files, tier) = if is_soak { (100_000, "ram:4G") } else { (1_500, "ram:128M") };
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "many", &["--tier", tier]);
    session.begin(&format!(
        "mkdir /cairn/new; for i in {{1..{files}}}; do echo $i >/cairn/new/part.$i; done
        mv /cairn/new /cairn/ckpt-7"
    ));
    let drained = || fs::read_dir(sandbox.out().join("ckpt-7")).map_or(0, Iterator::count);
    for part in 1..=3 {
        // Without one, all that there was is outside.
        let Some(agent) = sandbox.agent_if_any("many").map(i64::from) else { continue };
        eventually("a part is copied", || drained() + on_shelf(&sandbox).len() >= part * files / 8);
        kill("KILL", agent);
        eventually("it has ended", || fs::read_link(format!("/proc/{agent}/exe")).is_err());
    }
    assert_eq!(session.end(), Some(0));
    assert_eq!(drained(), files);
    for part in [1, files / 2, files] {
        assert_eq!(sandbox.drained(&format!("ckpt-7/part.{part}")), format!("{part}\n"));
    }
    let manifest = sandbox.manifest("many");
    assert_eq!(manifest["complete"], true);
    let known = manifest["checkpoints"].as_array().expect("a list");
    assert_eq!(known.len(), 1);
    assert_eq!(known[0]["files"].as_array().map(Vec::len), Some(files));
    sandbox.cairn(&["verify", "--persist", sandbox.out().to_str().expect("UTF-8")]).succeeds();
}

#[test]
fn holes_of_a_sparse_file_are_neither_read_nor_written() {
    let sandbox = Sandbox::new();
    let script = "truncate -s 50G /cairn/sparse
        for at in 0 7000000123 53687091199; do
            printf x | dd of=/cairn/sparse conv=notrunc oflag=seek_bytes seek=$at status=none
        done";
    sandbox.run("sparse", script).succeeds();
    let copy = fs::File::open(sandbox.out().join("sparse")).expect("opens");
    let metadata = copy.metadata().expect("is there");
    assert_eq!(metadata.len(), 50 << 30);
    assert!(metadata.blocks() * 512 <= 16 * MIB, "{} blocks", metadata.blocks());
    for at in [0, 7_000_000_123, 53_687_091_199] {
        let mut byte = [0];
        copy.read_exact_at(&mut byte, at).expect("reads");
        assert_eq!(&byte, b"x", "at {at}");
    }
    let out = sandbox.out();
    sandbox.cairn(&["verify", "--persist", out.to_str().expect("UTF-8")]).succeeds();
}

/// A manifest of many files is not written anew for each change.
#[test]
fn node_is_lost_while_a_log_continues_the_manifest_then_the_last_cut_comes_back() {
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    let script = "mkdir /cairn/d; for n in {1..1100}; do echo $n >/cairn/d/$n; done; : >made
        until [ -e go ]; do sleep 0.01; done
        echo new >/cairn/d/7; rm /cairn/d/8; mv /cairn/d/9 /cairn/nine; echo more >/cairn/more; sleep 300";
    let persist = out.to_str().expect("UTF-8");
    let arguments = ["run", "--job", "many", "--tier", "ram:64M", "--persist", persist];
    let mut command = sandbox.command(&[&arguments[..], &["--", "bash", "-c", script]].concat());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts");
    let logs = || {
        let names = fs::read_dir(&out).expect("lists").flatten().map(|entry| entry.file_name());
        let names = names.map(|name| name.into_string().expect("UTF-8"));
        names.filter(|name| name.ends_with(".changes")).collect::<Vec<_>>()
    };
    let is_whole = || out.join("d/1100").exists() && logs().len() == 1;
    eventually("all are outside", || sandbox.work().join("made").exists() && is_whole());
    fs::write(sandbox.work().join("go"), "").expect("writes");
    eventually("the change is outside", || out.join("more").exists());
    eventually("the log tells of it", || {
        let name = logs().pop().unwrap_or_default();
        fs::read_to_string(out.join(name)).is_ok_and(|text| text.contains("\"nine\""))
    });
    kill("KILL", i64::from(sandbox.agent("many")));
    kill("KILL", i64::from(child.id()));
    child.wait().expect("ends");
    fs::remove_dir_all(sandbox.store("many")).expect("removes");
    sandbox.cairn(&["verify", "--persist", persist]).succeeds();
    let show = "cd /cairn; cat d/7 nine more d/1100; ls d | wc -l";
    let stage = [&arguments[..], &["--stage", "--", "bash", "-c", show]].concat();
    sandbox.cairn(&stage).succeeds().prints("new\n9\nmore\n1100\n1098\n");
    assert_eq!(logs(), [""; 0], "the manifest is one file again");
    assert_eq!(sandbox.manifest("many")["everything"], true);
}

/// Mechanism: see `holes_of_any_length_are_as_many_shorter_ones`.
#[test]
fn sparse_file_longer_than_any_tier_arrives_as_it_is_and_one_too_long_for_the_disk_alone_stays() {
    let sandbox = Sandbox::new();
    let script =
        "echo result >/cairn/result; truncate -s 1T /cairn/sparse; echo end >>/cairn/sparse";
    sandbox.run("job", script).succeeds().says("store removed");
    let copy = fs::metadata(sandbox.out().join("sparse")).expect("is drained");
    assert_eq!(copy.len(), (1 << 40) + 4);
    assert!(copy.blocks() < 1 << 20, "the hole is one outside, too");
    assert_eq!(sandbox.drained("result"), "result\n");
    let sandbox = Sandbox::new();
    let script = "echo more >/cairn/more; truncate -s 64T /cairn/longest";
    let ran = sandbox.run("other", script);
    let is_there = sandbox.out().join("longest").exists();
    assert_eq!(ran.code, Some(if is_there { 0 } else { 75 }), "{}", ran.stderr);
    assert!(is_there || ran.stderr.contains("longest"), "{}", ran.stderr);
    assert_eq!(sandbox.drained("more"), "more\n");
}
