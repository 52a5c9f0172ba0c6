//! Block devices as tiers: what runs on them, what is refused, and what they hold before and after.
//!
//! Uses loop devices. Without them, each test prints a message and passes.

mod common;

use common::loop_device::LoopDevice;
use common::{CAIRN, Ran, Sandbox, kill};
use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

const BYTES: u64 = 64 << 20;
const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

/// A device, and a sandbox for the stores on it.
struct Place {
    // Field order: the sandbox ends the device's users before the device goes.
    sandbox: Sandbox,
    device: LoopDevice,
}

impl Place {
    /// Returns None where loop devices are not available.
    fn new() -> Option<Place> {
        let sandbox = Sandbox::new();
        let device = LoopDevice::new(&sandbox.work(), BYTES)?;
        Some(Place { sandbox, device })
    }

    fn path(&self) -> &str {
        self.device.path().to_str().expect("UTF-8")
    }

    /// Tier option for the device; `size` is `:SIZE` or empty.
    fn tier(&self, size: &str) -> String {
        format!("block:{}{size}", self.path())
    }

    fn run(&self, job: &str, options: &[&str], script: &str) -> Ran {
        let mut arguments = vec!["run", "--job", job];
        arguments.extend(options);
        arguments.extend(["--", "bash", "-c", script]);
        self.sandbox.cairn(&arguments)
    }

    /// Runs with the device as the only tier.
    fn run_on(&self, job: &str, script: &str) -> Ran {
        self.run(job, &["--tier", &self.tier("")], script)
    }

    /// Loses everything of the job that is in memory, as a crash of the node does.
    fn lose_memory(&self, job: &str) {
        kill("KILL", i64::from(self.sandbox.agent(job)));
        fs::remove_dir_all(self.sandbox.store(job)).expect("the store is there");
    }

    fn write_at(&self, at: u64, bytes: &[u8]) {
        let device = fs::File::options().write(true).open(self.path()).expect("opens");
        device.write_all_at(bytes, at).and_then(|()| device.sync_all()).expect("writes");
    }

    fn read_at(&self, at: u64, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        self.device.backing().read_exact_at(&mut bytes, at).expect("reads");
        bytes
    }

    fn content(&self) -> Vec<u8> {
        self.read_at(0, BYTES)
    }

    /// Whether both ends of the device are zero, so that it passes for a new device.
    fn is_blank(&self) -> bool {
        let ends = [self.read_at(0, MIB), self.read_at(BYTES - MIB, MIB)];
        ends.concat().iter().all(|&byte| byte == 0)
    }

    /// Asserts that a run is refused with one line and that no byte of the device changes.
    fn refuses(&self, options: &[&str], part: &str) {
        let before = self.content();
        let ran = self.run("refused", options, "true").refused_with(part);
        assert!(ran.stderr.contains(self.path()), "{}", ran.stderr);
        assert!(self.content() == before, "nothing was written");
        assert!(!self.sandbox.store("refused").exists(), "nothing was made");
    }
}

const WRITE: &str =
    "mkdir /cairn/d && seq 500000 >/cairn/d/numbers && echo one >/cairn/a && mv /cairn/a /cairn/b";
const CHECK: &str = "seq 500000 | cmp - /cairn/d/numbers && cat /cairn/b";

#[test]
fn everything_is_killed_and_memory_is_lost_then_the_next_job_finds_what_was_closed() {
    let Some(place) = Place::new() else { return };
    let tier = place.tier("");
    let script = format!("{WRITE}; echo written; sleep 1000");
    let arguments = ["run", "--job", "first", "--tier", &tier, "--", "bash", "-c", &script];
    let mut command = place.sandbox.command(&arguments);
    let run = command.stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0).spawn();
    let mut run = run.expect("starts");
    let mut said = [0; 8];
    std::io::Read::read_exact(run.stdout.as_mut().expect("piped"), &mut said).expect("is said");
    kill("KILL", -i64::from(run.id()));
    run.wait().expect("was killed");
    place.lose_memory("first");
    let again = place.run_on("second", CHECK).succeeds().says("recovered 3 files and directories");
    assert_eq!(again.stdout, "one\n");
    let again = place.run_on("second", CHECK).succeeds();
    assert_eq!(again.stdout, "one\n", "the store that was kept goes on");
    let status = place.sandbox.cairn(&["status", "second"]).succeeds();
    status.says(&format!("used, {}", place.path())).says("  device ");
    place.sandbox.cairn(&["rm", "second", "--discard"]).succeeds();
    assert!(place.is_blank(), "the device is as it was");
    place.run_on("third", "ls /cairn | wc -l").succeeds().prints("0\n");
}

#[test]
fn file_larger_than_the_memory_spills_to_a_device_and_is_drained() {
    let Some(place) = Place::new() else { return };
    let out = place.sandbox.out();
    let (out, tier) = (out.to_str().expect("UTF-8"), place.tier(":32M"));
    let options = ["--tier", "ram:2M", "--tier", &tier, "--persist", out];
    let script = "seq 2000000 >/cairn/large && seq 2000000 | cmp - /cairn/large && cairn status";
    let script = script.replace("cairn status", &format!("{CAIRN} status"));
    let ran = place.run("spill", &options, &script).succeeds().says("verified");
    ran.says("MiB of 32.0 MiB used");
    let drained = place.sandbox.drained("large");
    assert!(drained.lines().map(|line| line.parse()).eq((1..=2_000_000).map(Ok::<u32, _>)));
    assert!(place.is_blank(), "the device is as it was");
}

/// Two programs at a time write the round's byte to a whole file: one in records of odd sizes, one
/// in whole pages. The file is mapped, so nothing is written behind.
const WRITE_IN_RECORDS_AND_PAGES: &str = r#"
import mmap, os, random
PAGE = 4096
SIZE = 64 * PAGE
file = os.open("/cairn/shared", os.O_RDWR | os.O_CREAT)
os.pwrite(file, bytes(SIZE), 0)
seen = mmap.mmap(file, SIZE, mmap.MAP_SHARED, mmap.PROT_READ)
def write(number, step):
    if not (child := os.fork()):
        starts = list(range(0, SIZE, step))
        random.Random(number * SIZE + step).shuffle(starts)
        for start in starts:
            os.pwrite(file, bytes([number]) * min(step, SIZE - start), start)
        os._exit(0)
    return child
for number in range(1, 20):
    for child in [write(number, step) for step in (1237, 2 * PAGE)]:
        assert os.waitpid(child, 0)[1] == 0
    expected = bytes([number]) * SIZE
    assert os.pread(file, SIZE, 0) == expected and seen[:] == expected, number
    os.fsync(file)
"#;

#[test]
fn programs_that_write_records_and_pages_of_one_file_at_once_lose_nothing() {
    let Some(place) = Place::new() else { return };
    let tier = place.tier("");
    let options = ["run", "--job", "shared", "--tier", &tier, "--discard", "--", "python3"];
    let arguments = [&options[..], &["-c", WRITE_IN_RECORDS_AND_PAGES]].concat();
    place.sandbox.cairn(&arguments).succeeds();
}

#[test]
fn device_that_holds_something_is_refused_unless_that_may_be_lost() {
    let Some(place) = Place::new() else { return };
    for (at, mark, what) in [
        (0x438, &b"\x53\xef"[..], "an ext2, ext3 or ext4 file system"),
        (0, b"XFSB", "an XFS file system"),
        (512, b"LABELONE", "a physical volume of LVM2"),
        (0, b"LUKS\xba\xbe", "encrypted with LUKS"),
        (510, b"\x55\xaa", "an MBR partition table"),
        (BYTES - 512, b"EFI PART", "a GPT partition table"),
        (MIB - 1, b"x", "it holds data"),
    ] {
        place.write_at(at, mark);
        for tiers in
            [&["--tier", &place.tier("")][..], &["--tier", "ram:2M", "--tier", &place.tier(":8M")]]
        {
            place.refuses(tiers, what);
        }
        let yes = ["--tier", &place.tier(""), "--yes"];
        place.run("taken", &yes, "echo mine >/cairn/a").succeeds();
        place.sandbox.cairn(&["rm", "taken", "--discard"]).succeeds();
        assert!(place.is_blank(), "{what}");
    }
}

#[test]
fn file_system_is_refused_and_one_that_is_mounted_even_if_it_may_be_lost() {
    let Some(place) = Place::new() else { return };
    if !succeeds(Command::new("mkfs.ext4").args(["-q", place.path()])) {
        return eprintln!("not tested with a file system: no mkfs.ext4 here");
    }
    let tier = place.tier("");
    place.refuses(&["--tier", &tier], "an ext2, ext3 or ext4 file system");
    let at = place.sandbox.work().join("mounted");
    fs::create_dir(&at).expect("is made");
    if !succeeds(Command::new("mount").arg(place.path()).arg(&at)) {
        return eprintln!("not tested with a mounted device: this user may not mount");
    }
    let refused = place.run("refused", &["--tier", &tier, "--yes"], "true");
    let checked = place.sandbox.cairn(&["fsck", place.path()]);
    assert!(succeeds(Command::new("umount").arg(&at)));
    refused.refused_with("it is mounted");
    checked.refused_with("it is mounted");
    assert!(succeeds(Command::new("fsck.ext4").args(["-n", "-f", place.path()])), "it is unhurt");
}

fn succeeds(command: &mut Command) -> bool {
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[test]
fn device_in_use_of_a_store_is_refused_to_others_whatever_they_say() {
    let Some(place) = Place::new() else { return };
    place.run_on("first", "echo kept >/cairn/file").succeeds();
    for options in [&["--yes"][..], &[]] {
        for tiers in
            [&["--tier", &place.tier("")][..], &["--tier", "ram:2M", "--tier", &place.tier("")]]
        {
            let inner = [&["run", "--force", "--job", "second"], tiers, options, &["--", "true"]];
            let inner =
                format!("exec 3</cairn/file; {CAIRN} {}; echo $?", inner.concat().join(" "));
            let ran = place.run_on("first", &inner).succeeds().says("another store uses it");
            ran.prints("2\n");
        }
    }
    place.run_on("first", "cat /cairn/file").succeeds().prints("kept\n");
}

#[test]
fn tier_that_spilled_before_the_memory_was_lost_is_refused_unless_it_may_be_lost() {
    let Some(place) = Place::new() else { return };
    let tier = place.tier("");
    let tiers = ["--tier", "ram:2M", "--tier", &tier];
    place.run("first", &tiers, "seq 1000000 >/cairn/large").succeeds();
    place.lose_memory("first");
    place.refuses(&tiers, "it is a tier of another store");
    place.refuses(&["--tier", &tier], "nothing was changed");
    place.run("second", &[&tiers[..], &["--yes"]].concat(), "ls /cairn").succeeds().prints("");
    assert!(place.is_blank(), "the store went when nothing was in it");
}

#[test]
fn device_that_cannot_be_written_is_refused_and_looked_at_all_the_same() {
    let Some(place) = Place::new() else { return };
    place.run_on("first", WRITE).succeeds();
    place.lose_memory("first");
    let Some(read_only) = place.device.read_only() else { return };
    let path = read_only.path().to_str().expect("UTF-8");
    let tier = format!("block:{path}");
    place.sandbox.cairn(&["run", "--tier", &tier, "--", "true"]).refused_with("is read-only");
    place.sandbox.cairn(&["fsck", &tier]).succeeds().says("clean");
    place.sandbox.cairn(&["verify", path]).succeeds().says("intact");
    let nobody = place.sandbox.command(&["run", "--tier", &tier, "--", "true"]).uid(65534).output();
    match nobody {
        Ok(output) => drop(Ran::of(output, "run".to_string()).refused_with("the group disk")),
        Err(error) => eprintln!("not tested as another user: {error}"),
    }
}

#[test]
fn what_is_no_device_or_too_small_is_refused() {
    let Some(place) = Place::new() else { return };
    let run = |tier: &str| place.sandbox.cairn(&["run", "--tier", tier, "--", "true"]);
    run("block:/dev/null").refused_with("it is not a block device");
    run("block:/dev/none").refused_with("no such file");
    run("block:/etc/passwd:1M").refused_with("it is not a block device");
    run(&place.tier(":64M")).refused_with("room for");
    run(&place.tier(":4K")).refused_with("too small");
    run(&format!("file:{}:1M", place.path())).refused_with("write block:DEVICE");
    let arguments = ["run", "--scope", "rank", "--tier", &place.tier(""), "--", "true"];
    place.sandbox.cairn(&arguments).refused_with("ranks cannot divide");
    place.device.limit(MIB);
    run(&place.tier("")).refused_with("room for");
    place.device.limit(PAGE);
    run(&place.tier("")).refused_with("room for");
    place.device.limit(0);
    assert!(place.content().iter().all(|&byte| byte == 0), "nothing was written");
}

#[test]
fn device_that_became_smaller_is_refused_and_nothing_is_lost() {
    let Some(place) = Place::new() else { return };
    place.run_on("kept", WRITE).succeeds();
    place.device.limit(BYTES / 2);
    let tier = place.tier(":65504K");
    place.run("kept", &["--tier", &tier], CHECK).refused_with("has room for");
    place.run("kept", &[], CHECK).refused_with("give it that size again");
    place.sandbox.cairn(&["status", "kept"]).succeeds().says("trouble").says("had another size");
    place.device.limit(0);
    place.run_on("kept", CHECK).succeeds();
    place.lose_memory("kept");
    place.device.limit(BYTES / 2);
    place.refuses(&["--tier", &place.tier("")], "no label at its end");
    place.sandbox.cairn(&["fsck", place.path()]).refused_with("instead of");
    place.device.limit(0);
    place.run_on("again", CHECK).succeeds().says("recovered");
}

#[test]
fn device_that_became_larger_gets_its_label_back_by_fsck() {
    let Some(place) = Place::new() else { return };
    place.device.limit(BYTES / 2);
    place.run_on("first", WRITE).succeeds();
    place.lose_memory("first");
    place.device.limit(0);
    place.refuses(&["--tier", &place.tier("")], "no label at its end");
    place.sandbox.cairn(&["fsck", place.path()]).ends_with(1).says("repaired");
    place.run_on("second", CHECK).succeeds().says("recovered");
}

#[test]
fn damage_on_a_device_is_found_and_what_is_there_twice_is_repaired() {
    let Some(place) = Place::new() else { return };
    let tier = place.tier(":32M");
    place.run("first", &["--tier", &tier], WRITE).succeeds();
    place.lose_memory("first");
    let content = place.content();
    let flip = |at: u64| place.write_at(at, &[content[at as usize] ^ 1]);
    for at in [BYTES - PAGE + 24, 8, PAGE + 8] {
        flip(at);
        place.sandbox.cairn(&["fsck", &tier, "--dry-run"]).ends_with(4).says("lost by it: nothing");
        place.sandbox.cairn(&["fsck", &tier]).ends_with(1).says("clean now");
        assert!(place.content() == content, "repaired to the byte");
    }
    let numbers = content.windows(6).position(|bytes| bytes == b"\n4711\n").expect("was written");
    flip(numbers as u64 + 2);
    place.sandbox.cairn(&["verify", &tier]).ends_with(1).says("/cairn/d/numbers");
    flip_back(&place, &content, numbers as u64 + 2);
    place.sandbox.cairn(&["verify", place.path()]).succeeds().says("intact");
}

fn flip_back(place: &Place, content: &[u8], at: u64) {
    place.write_at(at, &content[at as usize..][..1]);
}

#[test]
fn device_is_named_by_a_link_as_well() {
    let Some(place) = Place::new() else { return };
    let link = place.sandbox.work().join("by-id:of-a-disk");
    std::os::unix::fs::symlink(place.path(), &link).expect("is made");
    let link = Path::new(&link).display();
    let tier = format!("block:{link}");
    place.run("first", &["--tier", &tier], WRITE).succeeds();
    place.run("first", &["--tier", &place.tier("")], CHECK).succeeds();
    place.lose_memory("first");
    place.sandbox.cairn(&["fsck", &tier]).succeeds().says("clean");
    place.run("second", &["--tier", &tier], CHECK).succeeds().says("recovered");
}
