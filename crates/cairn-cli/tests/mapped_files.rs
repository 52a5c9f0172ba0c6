//! Mapped files of running jobs in the persist directory.
//!
//! Must stay true: a cut has every store to a mapped file that happened before something else in
//! the cut, and no store that happened after something that is not in the cut. Otherwise the drain
//! names the files for which that is unknown. The contract is at the head of docs/SEMANTICS.md.

mod common;

use common::session::Session;
use common::{Sandbox, eventually};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Mechanism: a store to mapped memory changes no version.
///
/// Consequence: a file that stayed mapped was outside with earlier content.
///
/// Fix: mapped files are always copied.
#[test]
fn cut_has_what_was_stored_to_mapped_files_since_the_last_one() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "job", &[]);
    let script = "import mmap, os, time
file = open('/cairn/state', 'w+b'); file.truncate(4096)
memory = mmap.mmap(file.fileno(), 4096)
number = 0
while True:
    if os.path.exists(f'store.{number}'):
        memory[0] = 65 + number; open(f'stored.{number}', 'w').close(); number += 1
    time.sleep(0.001)
";
    fs::write(sandbox.work().join("mapped.py"), script).expect("writes");
    session.shell("python3 mapped.py & echo $! >mapped.pid");
    for number in 0..4 {
        fs::write(sandbox.work().join(format!("store.{number}")), "").expect("writes");
        let done = sandbox.work().join(format!("stored.{number}"));
        eventually("it is stored", || done.exists());
        sandbox.cairn(&["drain", "job"]).succeeds();
        assert_eq!(fs::read(sandbox.out().join("state")).expect("reads")[0], 65 + number);
    }
    session.shell("kill $(cat mapped.pid); wait");
    session.end();
}

/// Counts: appends the number to a log, makes the log durable, then stores the number at both ends
/// of a mapped file, which takes a while to copy. Counts continuously, or with pauses.
const COUNTER: &str = "\
import mmap, os, random, sys, time
name = '/cairn/' + sys.argv[1]
log = open(name + '.log', 'ab', 0)
state = open(name + '.state', 'w+b')
state.truncate(64 << 20)
memory = mmap.mmap(state.fileno(), 64 << 20)
number = 0
while not os.path.exists('enough'):
    number += 1
    log.write(b'%08d' % number)
    os.fsync(log.fileno())
    memory[:8] = memory[-8:] = b'%08d' % number
    open('counting', 'w').close()
    if sys.argv[2] == 'seldom':
        time.sleep(random.random() / 2)
open('stopped', 'w').close()
time.sleep(1000)
";

/// Mechanism: a mapped file is copied in its turn, and stores up to then are in the copy.
///
/// Consequence: a database that writes its log before its mapped pages had pages outside that its
/// log did not know.
///
/// Fix: mapped files are copied first. If something becomes durable meanwhile, another cut is
/// taken. Files that are stored to all the time are named.
#[test]
fn mapped_files_are_no_newer_outside_than_what_else_is_or_are_named() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "job", &["--tier", "ram:1G"]);
    fs::write(sandbox.work().join("counter.py"), COUNTER).expect("writes");
    let number = |bytes: &[u8]| match bytes {
        [0, ..] | [] => 0,
        bytes => str::from_utf8(bytes).expect("digits").parse::<u64>().expect("a number"),
    };
    let check = |is_named: bool| {
        let read = |name: &str| fs::read(sandbox.out().join(name)).expect("is there");
        let (log, state) = (read("it.log"), read("it.state"));
        let (first, last) = (number(&state[..8]), number(&state[state.len() - 8..]));
        let logged = log.len() as u64 / 8;
        let is_sound = first == last && first <= logged;
        assert!(is_named || is_sound, "{first} and {last} are stored, {logged} in the log");
    };
    session.shell("python3 counter.py it seldom & echo $! >counter.pid");
    eventually("it counts", || sandbox.work().join("counting").exists());
    let mut cuts = 0;
    for _ in 0..8 {
        let made = sandbox.cairn(&["drain", "job"]);
        let is_named = made.code == Some(75);
        if is_named {
            assert!(made.stderr.contains("mapped, not stable"), "{}", made.stderr);
            assert!(made.stderr.contains("it.state"), "{}", made.stderr);
        } else {
            made.succeeds();
            cuts += 1;
        }
        check(is_named);
    }
    println!("{cuts} cuts are of one moment");
    session.shell("touch enough");
    eventually("it stops", || sandbox.work().join("stopped").exists());
    sandbox.cairn(&["drain", "job"]).succeeds();
    check(false);
    session.shell(
        "kill $(cat counter.pid); wait; rm enough stopped counting
        python3 counter.py it often & echo $! >counter.pid",
    );
    eventually("it counts again", || sandbox.work().join("counting").exists());
    let made = sandbox.cairn(&["drain", "job"]).ends_with(75);
    assert!(made.stderr.contains("1 file mapped, not stable"), "{}", made.stderr);
    sandbox.cairn(&["status", "job"]).says("mapped, not stable").says("it.state");
    session.shell("kill $(cat counter.pid); wait");
    session.end();
}

/// A file mapped read-only is like any other: it is not copied again until somebody writes to it.
#[test]
fn file_that_is_mapped_to_be_read_is_copied_only_when_it_changes() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "job", &[]);
    let script = "import mmap, os, time
file = open('/cairn/weights', 'r+b')
memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
file.close()
open('mapped', 'w').close()
while True:
    if os.path.exists('write'):
        with open('/cairn/weights', 'r+b') as file: file.write(b'new')
        os.remove('write')
    os.close(os.open('/cairn/other', os.O_WRONLY | os.O_CREAT)); os.rename('/cairn/other', '/cairn/next')
    time.sleep(0.001)
";
    fs::write(sandbox.work().join("reader.py"), script).expect("writes");
    session.shell("printf %01000000d 1 >/cairn/weights");
    let weights = sandbox.out().join("weights");
    sandbox.cairn(&["drain", "job"]).succeeds();
    let inode = || fs::metadata(&weights).expect("it is there").ino();
    let first = inode();
    session.shell("python3 reader.py & echo $! >reader.pid");
    eventually("it is mapped", || sandbox.work().join("mapped").exists());
    sandbox.cairn(&["drain", "job"]).succeeds();
    assert_eq!(inode(), first);
    fs::write(sandbox.work().join("write"), "").expect("writes");
    eventually("it is written", || !sandbox.work().join("write").exists());
    sandbox.cairn(&["drain", "job"]).succeeds();
    assert_eq!(&fs::read(&weights).expect("is there")[..3], b"new");
    session.shell("kill $(cat reader.pid); wait");
    session.end();
}
