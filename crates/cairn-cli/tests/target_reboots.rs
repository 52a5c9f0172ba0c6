//! A target's machine reboots under stores that use it: data that the target was not told to make
//! durable is gone there.
//!
//! The machine is a mount namespace here, with a file in place of the kernel's boot id. Without
//! mount namespaces, each test prints a message and passes.

mod common;
#[path = "common/exported.rs"]
mod exported;
#[path = "common/machine.rs"]
mod machine;

use common::{Ran, Sandbox, eventually};
use exported::{NAME, Target, exporting};
use machine::{Machine, ran};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::Stdio;

const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Writes a file, which another process syncs on request.
const WRITE: &str = "
import os, sys
file = os.open('/cairn/late', os.O_RDWR | os.O_CREAT)
os.write(file, b'late' * (1 << 20))
print('written', flush=True)
sys.stdin.readline()
if os.fork() == 0:
    try:
        os.fsync(os.open('/cairn/late', os.O_RDWR))
        print('synced', flush=True)
    except OSError as error:
        print(f'errno {error.errno}', flush=True)
    os._exit(0)
os.wait()
";

/// A target on a machine of its own, and a sandbox for stores on it.
struct Place {
    sandbox: Sandbox,
    machine: Machine,
    target: Target,
    starts: u32,
}

impl Place {
    fn new() -> Option<Place> {
        let machine = Machine::start()?;
        let sandbox = exporting();
        fs::write(sandbox.work().join("boot"), "1").expect("written");
        let boot = sandbox.work().join("boot");
        ran(machine.command("mount").arg("--bind").arg(boot).arg(BOOT)).succeeds();
        let target = Place::target(&sandbox, &machine, "127.0.0.1:0");
        Some(Place { sandbox, machine, target, starts: 1 })
    }

    fn target(sandbox: &Sandbox, machine: &Machine, address: &str) -> Target {
        let export = format!("file:{}", sandbox.work().join("export").display());
        let arguments = ["--json", "target", "--listen", address, "--nqn", NAME, &export];
        Target::spawn(&mut machine.cairn(sandbox, &arguments))
    }

    fn export(&self) -> PathBuf {
        self.sandbox.work().join("export")
    }

    /// Content of the target's disk.
    fn on_disk(&self) -> Vec<u8> {
        fs::read(self.export()).expect("is there")
    }

    /// Whether the target has received this text from a program.
    fn has(&self, text: &str) -> bool {
        ran(self.machine.command("grep").args(["-q", text]).arg(self.export())).code == Some(0)
    }

    /// Reboots the target's machine, with this content on its disk afterwards.
    fn is_started_again(&mut self, on_disk: &[u8]) {
        self.target.end();
        self.starts += 1;
        fs::write(self.sandbox.work().join("boot"), self.starts.to_string()).expect("written");
        fs::write(self.export(), on_disk).expect("written");
        self.target = Place::target(&self.sandbox, &self.machine, &self.target.address);
    }

    /// Removes the state of the target that processes of a store share.
    fn forget_what_is_known(&self, job: &str) {
        let names = fs::read_dir(self.sandbox.store(job)).expect("is there");
        let known = names.map(|entry| entry.expect("can be read").path());
        let is_known = |path: &PathBuf| path.to_string_lossy().contains(".known");
        let removed = known.filter(is_known).map(|path| fs::remove_file(path).expect("removed"));
        assert!(removed.count() > 0);
    }

    fn run(&self, job: &str, options: &[&str], script: &str) -> Ran {
        let tier = ["run", "--job", job, "--tier", &self.target.tier];
        self.sandbox.cairn(&[&tier[..], options, &["--", "bash", "-c", script]].concat())
    }
}

/// Mechanism: a flush on a new connection did not know what the target's machine had lost.
///
/// Consequence: a file synced by another process than its writer was gone, and recovery found a
/// file with other bytes, or none.
///
/// Fix: a store that has used the target before the reboot notices it. Nothing becomes durable and
/// nothing is read, until the next run rebuilds the store from the target's content.
#[test]
fn store_whose_target_has_forgotten_what_was_written_says_so_and_has_what_was_synced() {
    let Some(mut place) = Place::new() else { return };
    let kept = "seq 1 200000 | md5sum; md5sum </cairn/kept";
    place.run("job", &[], "seq 1 200000 >/cairn/kept && sync /cairn/kept").succeeds();
    let on_disk = place.on_disk();
    let run = ["run", "--job", "job", "--tier", &place.target.tier, "--", "python3", "-c", WRITE];
    let mut run = place.sandbox.command(&run);
    let run = run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut run = run.spawn().expect("starts");
    let mut said = BufReader::new(run.stdout.take().expect("piped")).lines();
    let mut says = || said.next().expect("says something").expect("text");
    assert_eq!(says(), "written");
    place.is_started_again(&on_disk);
    run.stdin.take().expect("piped").write_all(b"\n").expect("is told");
    assert_eq!(says(), format!("errno {}", libc::EIO));
    assert!(run.wait().expect("ends").success());
    let read = ["exec", "--job", "job", "--", "bash", "-c", "md5sum </cairn/kept || echo failed"];
    assert_eq!(place.sandbox.cairn(&read).stdout, "failed\n");
    place.sandbox.cairn(&["status", "job"]).succeeds().says("nothing becomes durable any more");
    let next =
        place.run("job", &[], kept).succeeds().says("going on with the data that is durable");
    let sums: Vec<&str> = next.stdout.lines().collect();
    assert_eq!(sums[0], sums[1], "what was synced is there");
    place
        .run("job", &[], "seq 1 300000 >/cairn/late && sync /cairn/late && cat /cairn/kept")
        .succeeds();
}

/// Mechanism: with metadata in memory nobody asks the target to make anything durable, and a
/// program's reads are not compared with checksums.
///
/// Consequence: after a reboot of the target's machine, files held stale bytes, and were drained
/// with them where they had no checksums.
///
/// Fix: programs no longer read from such a target, and the drain reads only what it can compare.
#[test]
fn file_whose_bytes_a_target_may_have_forgotten_is_not_read_and_drained_only_where_it_is_what_was_written()
 {
    let Some(mut place) = Place::new() else { return };
    let out = place.sandbox.out();
    let persist = format!("--persist={}", out.display());
    let options = ["--meta-tier", "ram", "--drain", "none", &persist];
    place
        .run("job", &options, "seq 1 200000 >/cairn/kept; echo end-of-kept >>/cairn/kept")
        .succeeds();
    // The parts of the file may arrive in any order.
    let parts = (0..200).map(|part| format!("^{}$", 1000 * part + 999)).collect::<Vec<_>>();
    let has_all = |texts: &[String]| texts.iter().all(|text| place.has(text));
    eventually("the target has it", || has_all(&parts) && place.has("end-of-kept"));
    let on_disk = place.on_disk();
    place
        .run("job", &options, "seq 300000 500000 >/cairn/late; echo end-of-late >>/cairn/late")
        .succeeds();
    eventually("the target has it", || place.has("^499999$") && place.has("end-of-late"));
    place.is_started_again(&on_disk);
    let read = "md5sum </cairn/kept || echo failed; md5sum </cairn/late || echo failed";
    let reads = || place.run("job", &[&options[..], &["--resume", "as-is"]].concat(), read).stdout;
    assert_eq!(reads(), "failed\nfailed\n");
    place.forget_what_is_known("job");
    assert_eq!(reads(), "failed\nfailed\n", "the label says it, too");
    let drained = place.sandbox.cairn(&["drain", "job"]);
    assert_ne!(drained.code, Some(0), "not all of it could be: {}", drained.stdout);
    // What had arrived before is what was written.
    if place.sandbox.out().join("late").exists() {
        let written: String = (300_000..=500_000).map(|number| format!("{number}\n")).collect();
        let late = place.sandbox.drained("late");
        assert!((written + "end-of-late\n").starts_with(&late), "{} bytes", late.len());
    }
    assert!(place.sandbox.drained("kept").ends_with("199999\n200000\nend-of-kept\n"));
    place.sandbox.cairn(&["status", "job"]).succeeds().says("a write to it was lost");
}
