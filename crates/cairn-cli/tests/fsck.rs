//! `cairn fsck` and `cairn verify` of a durable tier's file: every kind of damage is named, parts
//! with a second copy are repaired, and nothing else is touched.

mod common;

use cairn_core::{
    Credentials, Durability, MEDIA_VERSION, MediaOptions, Superblock, Timestamp, format_media,
};
use cairn_device::MediaFile;
use cairn_device::media::media_file::Allocation;
use cairn_platform::checksum::{self, crc32c};
use common::{Ran, Sandbox, eventually, kill};
use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

const BLOCK: u64 = 4096;
/// Bytes that occur in one place of the tier only.
const MARK: &[u8] = b"here is the middle of the large file";

/// Makes a large file with a mark, directories, a link, and enough small files to fill several
/// blocks of the log.
const WRITE: &str = "
import os, random
large = bytearray(random.Random(3).randbytes(3 << 20))
mark = b'here is the middle of the large file'
large[2_000_000:2_000_000 + len(mark)] = mark
os.mkdir('/cairn/dir')
def write(path, content):
    with open(path, 'wb', buffering=0) as file:
        file.write(content)
        os.fsync(file.fileno())
write('/cairn/dir/large', large)
for number in range(200):
    write(f'/cairn/{number}', str(number).encode() * 3)
os.symlink('dir/large', '/cairn/link')
os.link('/cairn/dir/large', '/cairn/dir/other')
os.fsync(os.open('/cairn/dir/large', os.O_RDWR))
";

const CHECK: &str = "
import random
large = bytearray(random.Random(3).randbytes(3 << 20))
mark = b'here is the middle of the large file'
large[2_000_000:2_000_000 + len(mark)] = mark
assert open('/cairn/link', 'rb').read() == large
assert open('/cairn/dir/other', 'rb').read() == large
for number in range(200):
    assert open(f'/cairn/{number}').read() == str(number) * 3, number
";

/// A durable tier in a file of 32 MiB.
struct Place {
    sandbox: Sandbox,
}

impl Place {
    fn new() -> Place {
        Place { sandbox: Sandbox::new() }
    }

    /// A tier on which `WRITE` ran before the node lost its memory.
    fn written() -> Place {
        static CONTENT: OnceLock<Vec<u8>> = OnceLock::new();
        let content = CONTENT.get_or_init(|| {
            let durable = Place::new();
            durable.run("first", WRITE).succeeds();
            durable.lose_memory("first");
            durable.content()
        });
        let durable = Place::new();
        let mut file = fs::File::options();
        let file = file.write(true).create_new(true).mode(0o600).open(durable.file());
        file.expect("is made").write_all_at(content, 0).expect("writes");
        durable
    }

    /// Makes an empty tier with hugeblocks of another size than `cairn run` uses.
    fn make(&self, hugeblock_bytes: u32) {
        let path = self.file();
        let made = MediaFile::create(&path, 32 << 20, [7; 16], Allocation::AsWritten);
        made.expect("is made");
        let options = MediaOptions {
            hugeblock_bytes,
            durability: Durability::Sync,
            mount: b"/cairn".to_vec(),
            zero_block_checksum: checksum::zeros(u64::from(hugeblock_bytes)),
            identity: [u64::from_le_bytes([7; 8]); 2],
            now: Timestamp(0),
            further: Default::default(),
            holds_data: true,
        };
        let owner = Credentials { uid: rustix::process::geteuid().as_raw(), gid: 0 };
        let file = MediaFile::open_alone(&path).expect("opens");
        format_media(&file, &options, crc32c, owner).expect("is formatted");
    }

    fn file(&self) -> PathBuf {
        self.sandbox.work().join("tier")
    }

    fn run(&self, job: &str, script: &str) -> Ran {
        let tier = format!("file:{}:32M", self.file().display());
        self.sandbox.cairn(&["run", "--job", job, "--tier", &tier, "--", "python3", "-c", script])
    }

    fn lose_memory(&self, job: &str) {
        kill("KILL", i64::from(self.sandbox.agent(job)));
        fs::remove_dir_all(self.sandbox.store(job)).expect("is removed");
        eventually("the file is free", || MediaFile::open_alone(&self.file()).is_ok());
    }

    fn fsck(&self, options: &[&str]) -> Ran {
        let file = format!("file:{}", self.file().display());
        self.sandbox.cairn(&[&["fsck", &file], options].concat())
    }

    fn verify(&self) -> Ran {
        self.sandbox.cairn(&["verify", &format!("file:{}", self.file().display())])
    }

    fn superblock(&self) -> Superblock {
        let file = MediaFile::open_alone(&self.file()).expect("opens");
        Superblock::read(&file, crc32c).expect("is there")
    }

    fn snapshot_offset(&self, slot: u64) -> u64 {
        let superblock = self.superblock();
        (4 + superblock.log_blocks + slot * superblock.slot_blocks) * BLOCK
    }

    /// Offset of the mark in the tier's file.
    fn mark(&self) -> u64 {
        let content = self.content();
        let found = content.windows(MARK.len()).position(|window| window == MARK);
        found.expect("it was written") as u64
    }

    fn flip(&self, offset: u64) {
        let file = fs::File::options().read(true).write(true).open(self.file()).expect("opens");
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).expect("reads");
        file.write_all_at(&[byte[0] ^ 4], offset).expect("writes");
    }

    fn content(&self) -> Vec<u8> {
        fs::read(self.file()).expect("reads")
    }

    /// Asserts that nothing is lost: the tier is intact, and the next store reads everything back.
    fn recovers(&self) {
        self.verify().succeeds();
        self.run("second", CHECK).succeeds().says("recovered");
    }

    /// Asserts that one kind of damage is named, that a dry run writes nothing, and that the repair
    /// loses nothing.
    fn is_repaired(&self, named: &str) {
        let before = self.content();
        let ran = self.fsck(&["--dry-run"]).ends_with(4).says(named).says("lost by it: nothing");
        ran.says("can be repaired: ");
        assert!(self.content() == before, "a dry run writes nothing");
        let report = self.fsck(&["--json"]).ends_with(1).json();
        assert_eq!(
            (&report["state"], &report["findings"][0]["repaired"]),
            (&"repaired".into(), &true.into())
        );
        self.fsck(&[]).succeeds().says("clean");
        self.recovers();
    }

    /// Asserts that one kind of damage is named and left unchanged.
    fn is_beyond_repair(&self, named: &str) -> Ran {
        let before = self.content();
        let ran = self.fsck(&[]).ends_with(4).says(named).says("cannot be repaired");
        let ran = ran.says("is damaged beyond repair, nothing was changed");
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
        assert!(self.content() == before, "nothing was changed");
        ran
    }

    /// Asserts that every command refuses the file with one line that contains `named`, and changes
    /// nothing.
    fn is_refused(&self, named: &str) {
        let before = self.content();
        self.fsck(&[]).refused_with(named);
        self.fsck(&["--dry-run"]).refused_with(named);
        self.verify().refused_with(named);
        assert!(self.content() == before, "nothing was changed");
    }

    /// Asserts that `cairn run` refuses the file as well, and leaves no store.
    fn is_refused_to_jobs(&self, named: &str) {
        let before = self.content();
        self.run("refused", "raise SystemExit('it was started')").refused_with(named);
        assert!(!self.sandbox.store("refused").exists(), "a store is left");
        assert!(self.content() == before, "nothing was changed");
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let file = fs::File::options().write(true).open(self.file()).expect("opens");
        file.write_all_at(bytes, offset).expect("writes");
    }
}

#[test]
fn clean_tier_is_explained_and_left_as_it_is() {
    let durable = Place::written();
    let before = durable.content();
    let report = durable.fsck(&["--json"]).succeeds().json();
    assert_eq!(report["state"], "clean");
    assert_eq!(report["findings"].as_array().map(Vec::len), Some(0));
    let (tier, content) = (&report["tier"], &report["content"]);
    assert_eq!((&tier["format"], &tier["mount"]), (&MEDIA_VERSION.into(), &"/cairn".into()));
    assert_eq!((&tier["bytes"], &tier["durability"]), (&(32 << 20).into(), &"fsync".into()));
    assert_eq!(tier["snapshots"][1]["number"], 1);
    assert!(tier["log_used_bytes"].as_u64() > Some(8 * BLOCK), "{tier}");
    assert_eq!((&content["files"], &content["directories"]), (&202.into(), &1.into()));
    assert_eq!((&content["links"], &content["used_blocks"]), (&1.into(), &296.into()));
    assert_eq!(content["unclean"].as_array().map(Vec::len), Some(0));
    let text = durable.fsck(&[]).succeeds();
    let text = text
        .says(&format!("durable tier of 32.0 MiB, format {MEDIA_VERSION}"))
        .says("202 files, 1 directory");
    text.says("label       intact").says("superblock  intact; its copy: intact").says("clean\n");
    let ran = durable.verify().succeeds().says("202 files").says("202 intact");
    assert!(!ran.stdout.contains("damaged"), "{}", ran.stdout);
    assert!(durable.content() == before, "looking changes nothing");
    durable.recovers();
}

#[test]
fn file_that_was_open_is_named_and_its_open_blocks_are_counted() {
    let write = "import os, signal
file = os.open('/cairn/open', os.O_RDWR | os.O_CREAT)
os.write(file, bytes(range(250)) * 400)
os.fsync(file)
os.pwrite(file, b'again', 5)
open('ready', 'w').close()
signal.pause()";
    let durable = Place::new();
    let tier = format!("file:{}:32M", durable.file().display());
    let run = ["run", "--job", "first", "--tier", &tier, "--", "python3", "-c", write];
    let program = durable.sandbox.command(&run).stderr(Stdio::null()).spawn();
    let mut program = program.expect("starts");
    eventually("it has written", || durable.sandbox.work().join("ready").exists());
    // The state of the media if the node lost its memory at this moment.
    fs::copy(durable.file(), durable.sandbox.work().join("copy")).expect("copies");
    kill("TERM", i64::from(program.id()));
    program.wait().expect("ends");
    let report = durable.sandbox.cairn(&["fsck", "copy", "--json"]).succeeds().json();
    assert_eq!(report["content"]["unclean"][0], "/cairn/open", "{report}");
    let report = durable.sandbox.cairn(&["verify", "copy", "--json"]).succeeds().json();
    assert_eq!((&report["open_blocks"], &report["checked_blocks"]), (&4.into(), &0.into()));
}

#[test]
fn superblock_is_repaired_from_its_copy_and_the_copy_from_it() {
    let durable = Place::written();
    durable.flip(40);
    durable.is_repaired("damaged: superblock at offset 0: ");
    let durable = Place::written();
    durable.flip(BLOCK + 40);
    durable.is_repaired("damaged: superblock's copy at offset 4096: ");
}

#[test]
fn tier_without_a_superblock_is_beyond_repair() {
    let durable = Place::written();
    durable.flip(40);
    durable.flip(BLOCK + 40);
    durable.is_beyond_repair("damaged: superblock at offset 0: neither it nor its copy");
    durable
        .is_refused_to_jobs("is damaged: superblock checksum; nothing was changed; see cairn fsck");
}

#[test]
fn records_of_either_snapshot_are_replaced() {
    for slot in 0..2 {
        let durable = Place::written();
        let offset = durable.snapshot_offset(slot);
        durable.flip(offset + BLOCK + 24);
        durable.is_repaired(&format!("damaged: snapshot at offset {offset}: its records"));
    }
}

#[test]
fn first_block_of_the_older_snapshot_is_replaced() {
    let durable = Place::written();
    let offset = durable.snapshot_offset(0);
    durable.flip(offset + 8);
    durable.is_repaired(&format!("damaged: snapshot at offset {offset}: its first block"));
}

#[test]
fn first_block_of_the_newer_snapshot_that_the_log_needs_is_missed() {
    let durable = Place::written();
    let offset = durable.snapshot_offset(1);
    durable.flip(offset + 8);
    durable.is_beyond_repair(&format!("damaged: snapshot at offset {offset}: its first block"));
    durable.is_refused_to_jobs("is damaged: ");
    durable.verify().ends_with(1).says("see: cairn fsck");
}

#[test]
fn log_that_is_damaged_in_the_middle_is_not_taken_for_a_crash() {
    let durable = Place::written();
    // The log of a new store starts in the second block of the ring.
    let offset = (4 + 3) * BLOCK;
    durable.flip(offset + 999);
    let ran = durable.is_beyond_repair(&format!("damaged: log at offset {offset}: "));
    ran.says("lost by it: every operation after number ");
    durable.is_refused_to_jobs("is damaged: ");
    durable.verify().ends_with(1).says("see: cairn fsck");
}

#[test]
fn log_whose_last_flush_was_torn_is_an_ordinary_crash() {
    let durable = Place::written();
    let file = fs::File::options().read(true).write(true).open(durable.file()).expect("opens");
    let sequence = |tail: u64| {
        let mut words = [0; 16];
        file.read_exact_at(&mut words, tail * BLOCK).expect("reads");
        (words[8..].to_vec(), words)
    };
    // The newer of the two places for the partial block.
    let mut used = [2, 3].map(|tail| {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, tail * BLOCK + 16).expect("reads");
        (sequence(tail).0, u32::from_le_bytes([word[0], word[1], word[2], word[3]]), tail)
    });
    used.sort();
    file.write_all_at(&[0; 512], used[1].2 * BLOCK + 512).expect("writes");
    let torn = used[1].2 * BLOCK;
    let ran = durable.fsck(&[]).succeeds();
    ran.says(&format!("its last flush broke off at offset {torn}, as in a crash")).says("clean\n");
    durable.verify().succeeds();
}

#[test]
fn damaged_data_is_named_with_its_file_and_offset() {
    let durable = Place::written();
    let mark = durable.mark();
    durable.flip(mark);
    durable.fsck(&[]).succeeds();
    let before = durable.content();
    let ran = durable.verify().ends_with(1);
    let offset = 2_000_000 / 32768 * 32768;
    // The file has two names but is read once.
    let ran = ran.says(&format!("damaged: /cairn/dir/large: offset {offset}: its checksum is "));
    ran.says("1 of 202 files are damaged").says("201 intact");
    assert!(durable.content() == before, "nothing was changed");
}

#[test]
fn damaged_checksum_is_named_with_its_file_and_offset() {
    let durable = Place::written();
    let superblock = durable.superblock();
    let block = (durable.mark() - superblock.data_offset) / 32768;
    let table = durable.snapshot_offset(2);
    durable.flip(table + 4 * block);
    let ran = durable.verify().ends_with(1);
    let offset = 2_000_000 / 32768 * 32768;
    ran.says(&format!("damaged: /cairn/dir/large: offset {offset}: its checksum is "));
}

#[test]
fn file_that_is_in_use_is_refused() {
    let durable = Place::new();
    durable.run("first", "open('/cairn/f', 'w').write('data')").succeeds();
    durable.is_refused("another store uses it");
    durable.is_refused_to_jobs("another store uses it");
    durable.run("first", "assert open('/cairn/f').read() == 'data'").succeeds();
}

#[test]
fn file_of_another_kind_is_refused_and_left_as_it_is() {
    let durable = Place::new();
    for command in ["fsck", "verify"] {
        let missing = durable.sandbox.cairn(&[command, "file:nothing"]);
        missing.refused_with("the tier nothing cannot be opened: no such file");
        let directory = durable.sandbox.cairn(&[command, "file:."]);
        directory.refused_with("the tier . cannot be opened");
    }
    fs::write(durable.file(), "mine").expect("writes");
    durable.fsck(&[]).refused_with("others could have written it");
    Command::new("chmod").args(["600"]).arg(durable.file()).status().expect("starts");
    durable.fsck(&[]).refused_with("it is not a tier of Cairn");
    durable.verify().refused_with("it is not a tier of Cairn");
    assert_eq!(durable.content(), b"mine");
}

#[test]
fn tier_that_a_store_in_memory_spilled_to_is_refused() {
    let durable = Place::new();
    let tier = format!("file:{}:8M", durable.file().display());
    let run =
        ["run", "--job", "first", "--tier", "ram:2M", "--tier", &tier, "--", "touch", "/cairn/f"];
    durable.sandbox.cairn(&run).succeeds();
    durable.lose_memory("first");
    durable.fsck(&[]).refused_with("has no superblock");
    durable.verify().ends_with(1).says("see: cairn fsck");
}

#[test]
fn truncated_tier_is_refused_and_left_as_it_is() {
    for bytes in [20 << 20, (20 << 20) + 5, 32 << 20] {
        let durable = Place::written();
        let file = fs::File::options().write(true).open(durable.file()).expect("opens");
        file.set_len(bytes).expect("cuts");
        durable.is_refused(&format!("has {bytes} bytes instead of the 33558528 it was made with"));
        durable.is_refused_to_jobs("it is not a tier of Cairn");
    }
}

#[test]
fn tier_that_grew_is_refused_until_it_has_its_size_again() {
    let durable = Place::written();
    let file = fs::File::options().write(true).open(durable.file()).expect("opens");
    file.set_len(40 << 20).expect("grows");
    durable.is_refused("has 41943040 bytes instead of the 33558528 it was made with; give it");
    durable.is_refused_to_jobs("it is not a tier of Cairn");
    file.set_len(33558528).expect("cuts");
    durable.recovers();
}

#[test]
fn tier_of_a_newer_version_is_refused_and_left_as_it_is() {
    let durable = Place::written();
    let newer = MEDIA_VERSION + 1;
    for copy in [0, BLOCK] {
        durable.write(copy + 8, &u64::from(newer).to_le_bytes());
    }
    durable.is_refused(&format!("has format {newer}, this version knows {MEDIA_VERSION}"));
    durable.is_refused_to_jobs(&format!("format {newer}"));
    let durable = Place::written();
    durable.write((32 << 20) + 8, &u32::MAX.to_le_bytes());
    durable.is_refused("made by a newer version of cairn");
    durable.is_refused_to_jobs("made by a newer version of cairn");
}

#[test]
fn tier_of_another_hugeblock_size_is_used_explained_and_verified_as_it_is() {
    for hugeblock_bytes in [4096, 65536] {
        let durable = Place::new();
        durable.make(hugeblock_bytes);
        durable.run("first", WRITE).succeeds();
        durable.lose_memory("first");
        let report = durable.fsck(&["--json"]).succeeds().json();
        assert_eq!(report["tier"]["hugeblock_bytes"], hugeblock_bytes);
        durable.recovers();
        durable.lose_memory("second");
        durable.flip(durable.mark());
        let offset = 2_000_000 / hugeblock_bytes * hugeblock_bytes;
        let named = format!("damaged: /cairn/dir/large: offset {offset}: its checksum is ");
        durable.verify().ends_with(1).says(&named);
    }
}

#[test]
fn label_is_repaired_from_the_superblock() {
    // The magic, the tier's length, the identity, and unused bytes.
    for at in [3, 16, 30, 2000, 4095] {
        let durable = Place::written();
        durable.flip((32 << 20) + at);
        durable.is_refused_to_jobs("label");
        durable.verify().ends_with(1).says("see: cairn fsck");
        durable.is_repaired("damaged: label at offset 33554432: it is not what was written");
    }
}

#[test]
fn several_parts_are_repaired_at_once() {
    let durable = Place::written();
    durable.flip(40);
    durable.flip(durable.snapshot_offset(0) + BLOCK + 24);
    durable.flip((32 << 20) + 100);
    durable.is_repaired("damaged: label");
}

#[test]
fn tier_on_a_read_only_device_is_explained_and_left_as_it_is() {
    let durable = Place::written();
    let work = durable.sandbox.work();
    let mount = format!("mount --bind {0} {0}; mount -o remount,bind,ro {0}; ", work.display());
    let on_read_only = |command: &str| -> Ran {
        let text = format!("{mount} exec {} {command}", common::CAIRN);
        let mut launcher = Command::new("unshare");
        launcher.args(["--user", "--map-root-user", "--mount", "bash", "-ec", &text]);
        launcher.env("CAIRN_STORE_ROOT", durable.sandbox.root()).stdin(Stdio::null());
        Ran::of(launcher.output().expect("starts"), command.to_string())
    };
    if on_read_only("--version").code != Some(0) {
        eprintln!("skipped: this machine does not allow mount namespaces");
        return;
    }
    let file = durable.file();
    let file = file.display();
    let before = durable.content();
    on_read_only(&format!("fsck {file}")).succeeds().says("202 files").says("clean\n");
    on_read_only(&format!("verify {file}")).succeeds().says("202 intact");
    let run = format!("run --job refused --tier file:{file}:32M -- true");
    on_read_only(&run).refused_with("ead-only file system");
    assert!(!durable.sandbox.store("refused").exists(), "a store is left");
    assert!(durable.content() == before, "nothing was changed");

    durable.flip(40);
    let before = durable.content();
    let ran = on_read_only(&format!("fsck {file}")).ends_with(4).says("can be repaired: ");
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    ran.says("cannot be written to: read-only file system");
    on_read_only(&format!("verify {file}")).succeeds().says("202 intact");
    assert!(durable.content() == before, "nothing was changed");
}
