//! Mapped files in images of running jobs.
//!
//! Must stay true: an image has every store to a mapped file that happened before something else in
//! the image, and no store that happened after something that is not in the image. Otherwise it
//! names the files for which that is unknown. The contract is at the head of docs/SEMANTICS.md.

mod common;

use common::session::Session;
use common::{Sandbox, eventually};
use std::fs;

/// Mechanism: a store to mapped memory changes no version.
///
/// Consequence: an image had the content of the last image but one for a file that stayed mapped.
///
/// Fix: mapped files are always copied.
#[test]
fn image_has_what_was_stored_to_mapped_files_since_the_last_ones() {
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
        sandbox.cairn(&["drain", "job", "--image"]).succeeds();
        let place = sandbox.out().join(format!("cairn-image.job.{}/state", number % 2));
        assert_eq!(fs::read(place).expect("reads")[0], 65 + number);
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

/// Mechanism: a mapped file is copied in its turn, and stores up to then are in the image.
///
/// Consequence: a database that writes its log before its mapped pages had pages in the image that
/// its log did not know.
///
/// Fix: mapped files are copied first. If something becomes durable meanwhile, the image is taken
/// again. Files that are stored to all the time are named.
#[test]
fn mapped_files_in_an_image_are_no_newer_than_what_else_it_has_or_are_named() {
    let sandbox = Sandbox::new();
    let mut session =
        Session::start(&sandbox, "job", &["--tier", "ram:1G", "--image-every", "none"]);
    fs::write(sandbox.work().join("counter.py"), COUNTER).expect("writes");
    let number = |bytes: &[u8]| match bytes {
        [0, ..] | [] => 0,
        bytes => str::from_utf8(bytes).expect("digits").parse::<u64>().expect("a number"),
    };
    let check = |is_named: bool| {
        let newest = |index: &u8| {
            let manifest = format!("cairn-image.job.{index}/cairn-manifest.job.json");
            fs::metadata(sandbox.out().join(manifest)).and_then(|found| found.modified()).ok()
        };
        let place = format!("cairn-image.job.{}", (0..2).max_by_key(newest).expect("two"));
        let read = |name: &str| fs::read(sandbox.out().join(&place).join(name)).expect("is there");
        let (log, state) = (read("it.log"), read("it.state"));
        let (first, last) = (number(&state[..8]), number(&state[state.len() - 8..]));
        let logged = log.len() as u64 / 8;
        let is_sound = first == last && first <= logged;
        assert!(is_named || is_sound, "{first} and {last} are stored, {logged} in the log");
    };
    session.shell("python3 counter.py it seldom & echo $! >counter.pid");
    eventually("it counts", || sandbox.work().join("counting").exists());
    let mut images = 0;
    for _ in 0..8 {
        let made = sandbox.cairn(&["drain", "job", "--image"]);
        let is_named = made.code == Some(75);
        if is_named {
            assert!(made.stderr.contains("mapped, not stable"), "{}", made.stderr);
            assert!(made.stderr.contains("it.state"), "{}", made.stderr);
        } else {
            made.succeeds();
            images += 1;
        }
        check(is_named);
    }
    println!("{images} images are of one moment");
    session.shell("touch enough");
    eventually("it stops", || sandbox.work().join("stopped").exists());
    sandbox.cairn(&["drain", "job", "--image"]).succeeds();
    check(false);
    session.shell(
        "kill $(cat counter.pid); wait; rm enough stopped counting
        python3 counter.py it often & echo $! >counter.pid",
    );
    eventually("it counts again", || sandbox.work().join("counting").exists());
    let made = sandbox.cairn(&["drain", "job", "--image"]).ends_with(75);
    assert!(made.stderr.contains("1 file mapped, not stable"), "{}", made.stderr);
    sandbox.cairn(&["status", "job"]).says("mapped, not stable").says("it.state");
    session.shell("kill $(cat counter.pid); wait");
    session.end();
}

/// A file mapped read-only is like any other: an image gets it without another copy, and unchanged.
#[test]
fn file_that_is_mapped_to_be_read_is_in_an_image_as_it_was() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "job", &["--image-every", "none"]);
    let script = "import mmap, os, time
file = open('/cairn/weights', 'r+b')
memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
open('mapped', 'w').close()
while True:
    if os.path.exists('write'):
        os.pwrite(file.fileno(), b'new', 0); os.remove('write')
    os.close(os.open('/cairn/other', os.O_WRONLY | os.O_CREAT)); os.rename('/cairn/other', '/cairn/next')
    time.sleep(0.001)
";
    fs::write(sandbox.work().join("reader.py"), script).expect("writes");
    session.shell("printf %01000000d 1 >/cairn/weights");
    eventually("it is outside", || sandbox.out().join("weights").exists());
    session.shell("python3 reader.py & echo $! >reader.pid");
    eventually("it is mapped", || sandbox.work().join("mapped").exists());
    sandbox.cairn(&["drain", "job", "--image"]).succeeds();
    let place = |index: u8| sandbox.out().join(format!("cairn-image.job.{index}/weights"));
    let number =
        |path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).expect("it is there"));
    assert_eq!(number(place(0)), number(sandbox.out().join("weights")));
    fs::write(sandbox.work().join("write"), "").expect("writes");
    eventually("it is written", || !sandbox.work().join("write").exists());
    sandbox.cairn(&["drain", "job", "--image"]).succeeds();
    assert_eq!(&fs::read(place(1)).expect("is there")[..3], b"new");
    session.shell("kill $(cat reader.pid); wait");
    session.end();
}
