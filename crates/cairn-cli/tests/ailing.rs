//! A tier's device that vanishes while a program writes and comes back, and a device that is slow
//! by seconds. The tier is on the device itself, or in a file of a file system on the device.
//!
//! Without loop devices, each test prints a message and passes.

mod common;

use common::loop_device::LoopDevice;
use common::{Ran, Sandbox, eventually, kill};
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

const BYTES: u64 = 96 << 20;
const INNER_BYTES: u64 = 48 << 20;
/// Size of a device that is as good as gone, in bytes.
const GONE_BYTES: u64 = 4096;
/// Delay of an operation on a slow device. Longer than any wait that does not check a second time.
const SLOW: Duration = Duration::from_secs(2);

const WRITE: &str = "
import os, random, sys
safe = random.Random(5).randbytes(6 << 20)
def write(name, content):
    with open('/cairn/' + name, 'wb', buffering=0) as file:
        at = 0
        while at < len(content):
            at += file.write(content[at:at + (1 << 20)])
        os.fsync(file.fileno())
def until_told(what):
    print(what, flush=True)
    sys.stdin.readline()
";
/// Files written before the device vanishes are safe; some later writes then fail.
const WRITE_ON: &str = "
write('safe', safe)
until_told('safe')
try:
    for number in range(40):
        write(f'late{number}', bytes([number]) * (1 << 20))
    until_told('no error')
except OSError as error:
    until_told(f'errno {error.errno}')
";
/// Writes and removes files as long as the device is slow, then does it once more.
const WRITE_ALL_THE_TIME: &str = "
print('writing', flush=True)
round = 0
while not os.path.exists('quick-again'):
    round += 1
    for number in range(3):
        write(f'file{number}', bytes([(round + number) % 256]) * (3 << 20))
    os.remove('/cairn/file0')
write('safe', safe)
";
const CHECK: &str = "
assert open('/cairn/safe', 'rb').read() == safe
print('intact')
";

/// Location of the tier.
#[derive(Clone, Copy)]
enum Kind {
    Device,
    FileOnDevice,
    MappedFileOnDevice,
}

impl Kind {
    /// Tier option for a tier in a file below `mounted`; None for a tier on the device itself.
    fn file(self, mounted: &Path) -> Option<String> {
        let kind = match self {
            Kind::Device => return None,
            Kind::FileOnDevice => "file",
            Kind::MappedFileOnDevice => "dax",
        };
        Some(format!("{kind}:{}:40M", mounted.join("tier").display()))
    }
}

/// Store of a job.
struct Store {
    sandbox: Sandbox,
    tiers: String,
    persist: Option<PathBuf>,
}

impl Store {
    fn command(&self, script: &str) -> Command {
        let script = format!("{WRITE}{script}");
        let persist = self.persist.as_ref().map(|path| format!("--persist={}", path.display()));
        let mut arguments = vec!["run", "--job", "job", "--tier", &self.tiers];
        arguments.extend(persist.as_deref());
        arguments.extend(["--", "python3", "-c", &script]);
        self.sandbox.command(&arguments)
    }

    fn start(&self, script: &str) -> Program {
        let mut command = self.command(script);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().expect("starts");
        let said = BufReader::new(child.stdout.take().expect("piped")).lines();
        Program { child, said }
    }

    /// Asserts that the file `safe` can be read back unchanged.
    fn is_intact(&self) -> Ran {
        let output = self.command(CHECK).output().expect("starts");
        Ran::of(output, "run".to_string()).succeeds().prints("intact\n")
    }

    fn status(&self) -> Ran {
        self.sandbox.cairn(&["status", "job"]).succeeds()
    }

    fn memory_free_bytes(&self) -> u64 {
        let status = self.sandbox.cairn(&["status", "job", "--json"]).succeeds().json();
        let bytes = |what: &str| status[0]["tiers"][0][what].as_u64().expect("a number");
        bytes("bytes") - bytes("used_bytes")
    }

    fn lose_memory(&self) {
        kill("KILL", i64::from(self.sandbox.agent("job")));
        fs::remove_dir_all(self.sandbox.store("job")).expect("the store is there");
    }

    /// Asserts that nothing fails and nothing is lost while `slow` runs.
    fn bears(&self, slow: impl FnOnce()) {
        let mut program = self.start(WRITE_ALL_THE_TIME);
        program.says("writing");
        slow();
        fs::write(self.sandbox.work().join("quick-again"), "").expect("is told");
        program.succeeds();
        self.is_intact();
        if !self.tiers.starts_with("ram:") {
            self.lose_memory();
            self.is_intact();
        }
    }
}

/// A failing device, and a store with a tier on it.
struct Place {
    store: Store,
    device: LoopDevice,
    /// File system on the device, and a loop device in a file of that file system.
    mounted: Option<PathBuf>,
    inner: Option<LoopDevice>,
}

impl Place {
    /// Returns None where loop devices are not available.
    fn new() -> Option<Place> {
        let (tiers, persist) = (String::new(), None);
        let store = Store { sandbox: Sandbox::new(), tiers, persist };
        let device = LoopDevice::new(&store.sandbox.work(), BYTES)?;
        Some(Place { store, device, mounted: None, inner: None })
    }

    /// Adds a tier after `before` that vanishes with the device.
    fn that_vanishes(kind: Kind, before: &str) -> Option<Place> {
        let mut place = Place::new()?;
        let tier = match kind {
            Kind::Device => format!("block:{}", place.device.path().display()),
            kind => kind.file(&place.mount()?)?,
        };
        place.store.tiers = format!("{before}{tier}");
        Some(place)
    }

    /// Adds a tier after `before` whose writes wait while the file system on the device is frozen.
    fn that_is_slow(kind: Kind, before: &str) -> Option<Place> {
        let mut place = Place::new()?;
        let mounted = place.mount()?;
        let tier = match kind {
            Kind::Device => {
                place.inner = Some(LoopDevice::new(&mounted, INNER_BYTES)?);
                format!("block:{}", place.inner.as_ref()?.path().display())
            }
            kind => kind.file(&mounted)?,
        };
        place.store.tiers = format!("{before}{tier}");
        Some(place)
    }

    fn mount(&mut self) -> Option<PathBuf> {
        let at = self.store.sandbox.work().join("mounted");
        fs::create_dir(&at).expect("is made");
        let device = self.device.path();
        let is_made = succeeds(Command::new("mkfs.ext4").arg("-q").arg(device));
        if !(is_made && succeeds(Command::new("mount").arg(device).arg(&at))) {
            eprintln!("not tested: no file system can be made and mounted here");
            return None;
        }
        self.mounted = Some(at.clone());
        Some(at)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.device.limit(0);
        self.store.sandbox.cairn(&["rm", "job", "--discard"]);
        self.inner = None;
        if let Some(at) = &self.mounted {
            succeeds(Command::new("umount").arg("--lazy").arg(at));
        }
    }
}

/// A program that prints a line and waits for an answer.
struct Program {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn says(&mut self, line: &str) {
        assert_eq!(self.said.next().expect("says something").expect("text"), line);
    }

    fn goes_on(&mut self) {
        self.child.stdin.as_mut().expect("piped").write_all(b"\n").expect("is told");
    }

    fn succeeds(&mut self) {
        assert!(self.child.wait().expect("ends").success());
    }
}

fn succeeds(command: &mut Command) -> bool {
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The program gets EIO, never a signal and never a false success, and `status` reports the reason.
/// When the device is back, the safe files are intact.
fn device_vanishes(kind: Kind, before: &str) {
    let Some(place) = Place::that_vanishes(kind, before) else { return };
    let mut program = place.store.start(WRITE_ON);
    program.says("safe");
    place.device.limit(GONE_BYTES);
    program.goes_on();
    program.says(&format!("errno {}", libc::EIO));
    place.store.status().says("  trouble   the store cannot be used: cannot open tier");
    place.device.limit(0);
    program.goes_on();
    program.succeeds();
    if !before.is_empty() {
        place.store.is_intact();
    } else {
        let trouble = "  trouble   writing to it failed: nothing becomes durable any more";
        place.store.status().says(trouble);
        place.store.is_intact().says("going on with the data that is durable there");
        let status = place.store.status();
        assert!(!status.stdout.contains("trouble"), "{}", status.stdout);
        place.store.lose_memory();
        place.store.is_intact();
    }
}

#[test]
fn device_vanishes_then_writers_get_eio_and_what_was_durable_is_there_when_it_is_back() {
    device_vanishes(Kind::Device, "");
}

#[test]
fn device_vanishes_under_a_file_then_what_was_durable_is_there_when_it_is_back() {
    device_vanishes(Kind::FileOnDevice, "");
}

#[test]
fn device_vanishes_under_what_spilled_then_what_was_safe_is_there_when_it_is_back() {
    device_vanishes(Kind::Device, "ram:2M,");
    device_vanishes(Kind::FileOnDevice, "ram:2M,");
}

/// The part of a file that is on the device cannot be read any more. Files in memory still reach
/// the persist directory.
const OVERWRITE_AND_WRITE: &str = "
write('room', bytes(1 << 20))
write('spilled', safe)
os.remove('/cairn/room')
until_told('safe')
try:
    with open('/cairn/spilled', 'r+b', buffering=0) as file:
        file.seek(5 << 20)
        file.write(b'other')
except OSError:
    pass
with open('/cairn/late', 'wb', buffering=0) as file:
    file.write(b'in memory')
until_told('written')
";

#[test]
fn device_vanishes_under_what_spilled_then_what_is_in_memory_is_drained() {
    let Some(mut place) = Place::that_vanishes(Kind::Device, "ram:2M,") else { return };
    let out = place.store.sandbox.work().join("out");
    fs::create_dir(&out).expect("is made");
    place.store.persist = Some(out.clone());
    let mut program = place.store.start(OVERWRITE_AND_WRITE);
    program.says("safe");
    // The drain may still be reading the removed file.
    eventually("memory is free", || place.store.memory_free_bytes() >= 512 << 10);
    place.device.limit(GONE_BYTES);
    program.goes_on();
    program.says("written");
    let is_there = || fs::read(out.join("late")).is_ok_and(|found| found == b"in memory");
    eventually("the file in memory is drained", is_there);
    place.device.limit(0);
    program.goes_on();
    program.succeeds();
}

fn device_is_slow(kind: Kind, before: &str) {
    let Some(place) = Place::that_is_slow(kind, before) else { return };
    let mounted = place.mounted.as_deref().expect("was mounted");
    place.store.bears(|| {
        if !succeeds(&mut freeze(mounted)) {
            eprintln!("not tested: no file system can be frozen here");
        }
    });
}

/// Command that makes every write to a file system wait for `SLOW`. It thaws the file system even
/// if the test dies.
fn freeze(mounted: &Path) -> Command {
    let (at, seconds) = (mounted.display(), SLOW.as_secs());
    let mut command = Command::new("sh");
    command.args(["-c", &format!("fsfreeze -f {at} && {{ sleep {seconds}; fsfreeze -u {at}; }}")]);
    command
}

#[test]
fn device_is_slow_by_seconds_then_nothing_fails() {
    device_is_slow(Kind::Device, "");
    device_is_slow(Kind::Device, "ram:2M,");
}

#[test]
fn device_under_a_file_is_slow_by_seconds_then_nothing_fails() {
    device_is_slow(Kind::FileOnDevice, "");
    device_is_slow(Kind::FileOnDevice, "ram:2M,");
}

#[test]
fn device_under_a_mapped_file_is_slow_by_seconds_then_nothing_fails() {
    device_is_slow(Kind::MappedFileOnDevice, "");
    device_is_slow(Kind::MappedFileOnDevice, "ram:2M,");
}

/// A process that needs bytes which the agent has not written yet writes them itself, or waits.
#[test]
fn agent_gets_no_processor_for_seconds_while_it_writes_behind_then_nothing_fails() {
    for before in ["", "ram:2M,"] {
        let sandbox = Sandbox::new();
        let tiers = format!("{before}file:{}:40M", sandbox.work().join("tier").display());
        let store = Store { sandbox, tiers, persist: None };
        store.bears(|| {
            let agent = i64::from(store.sandbox.agent("job"));
            kill("STOP", agent);
            std::thread::sleep(SLOW);
            kill("CONT", agent);
        });
    }
}
