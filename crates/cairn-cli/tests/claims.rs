//! A refused run changes nothing of a namespace that other machines use or want to use.
//!
//! Machines are mount namespaces here, as in `partitions.rs`.

mod common;
#[path = "common/exported.rs"]
mod exported;
#[path = "common/machine.rs"]
mod machine;

use cairn_nvme::claim::Claim;
use cairn_nvme::controller::Settings;
use cairn_nvme::remote::Remote;
use cairn_nvme::tcp::TcpFabric;
use cairn_nvme::wire::Nqn;
use common::loop_device::LoopDevice;
use common::{Ran, Sandbox};
use exported::{NAME, READ, Target, WRITE, exporting, lose_memory};
use machine::{Machine, ran};
use std::fs;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command};
use std::time::Duration;

/// Two machines, and a target on a third.
struct Place {
    exporter: Sandbox,
    target: Target,
    machines: [(Machine, Sandbox); 2],
}

impl Place {
    /// Prints a message and returns None where mount namespaces are not allowed.
    fn new() -> Option<Place> {
        let machines = [(Machine::start()?, Sandbox::new()), (Machine::start()?, Sandbox::new())];
        let exporter = exporting();
        let target = Target::start(&exporter, "127.0.0.1:0");
        Some(Place { exporter, target, machines })
    }

    fn tier(&self, options: &str) -> String {
        format!("{}{options}", self.target.tier)
    }

    /// Command of `cairn run` for the job `job` on a machine, not started yet.
    fn command(&self, machine: usize, options: &[&str], script: &str) -> Command {
        let (machine, sandbox) = &self.machines[machine];
        let command = ["--", "bash", "-c", script];
        machine.cairn(sandbox, &[&["run", "--job", "job"], options, &command].concat())
    }

    fn run(&self, machine: usize, options: &[&str], script: &str) -> Ran {
        ran(&mut self.command(machine, options, script))
    }

    /// Starts a run on the second machine that has written, and writes again when told to.
    fn living(&self, tier: &str) -> Living {
        let [begun, go] = ["begun", "go"].map(|name| self.exporter.work().join(name));
        // Left by an earlier run.
        let _ = [&begun, &go].map(fs::remove_file);
        let script = format!(
            "cd /cairn && echo one >f && sync f && touch {} && until [ -e {} ]; do sleep 0.05; done; \
             echo two >>f && sync f && cat f",
            begun.display(),
            go.display()
        );
        let mut run = self.command(1, &["--tier", tier], &script);
        let run = run.spawn().expect("starts");
        common::eventually("it has written", || begun.exists());
        Living { run, go }
    }

    /// Makes the target forget the reservations on its export.
    fn forget_reservations(&mut self) {
        self.target.end();
        let address = self.target.address.clone();
        self.target = Target::start(&self.exporter, &address);
    }

    /// Writes bytes to the export.
    fn put(&self, at: u64, bytes: &[u8]) {
        let exported = self.exporter.work().join("export");
        let exported = fs::File::options().write(true).open(exported).expect("is there");
        exported.write_all_at(bytes, at).expect("has room");
    }

    /// Connects as another host that claims the whole namespace.
    fn claim(&self, claim: Claim) -> Remote<TcpFabric> {
        let fabric = TcpFabric::new(self.target.address.parse().expect("an address"));
        let settings = Settings { claim, ..Settings::new(*b"another machine!") };
        let name = Nqn::new(NAME).expect("a name");
        Remote::connect(fabric, &name, 1, &settings, Duration::from_secs(5)).expect("claimed")
    }
}

/// A run that waits before it writes again.
struct Living {
    run: Child,
    go: std::path::PathBuf,
}

impl Living {
    fn writes_again(self) {
        fs::write(&self.go, "").expect("has room");
        let output = self.run.wait_with_output().expect("ends");
        Ran::of(output, "the run that goes on".to_string()).succeeds().prints("one\ntwo\n");
    }
}

/// Mechanism: reading the contents of a namespace reserved it.
///
/// Consequence: a run that was refused because `part=` was forgotten took the namespace from the
/// stores in its parts. Each of their writes failed with EIO from then on.
///
/// Fix: only making or recovering a tier claims the namespace.
#[test]
fn refused_run_on_all_of_a_divided_namespace_leaves_running_stores_in_its_parts_alone() {
    let Some(place) = Place::new() else { return };
    let living = place.living(&place.tier("&part=1/2"));
    place.run(0, &["--tier", &place.tier("")], "true").ends_with(2).says("divided into parts");
    living.writes_again();
    place.run(0, &["--tier", &place.tier("&part=2/2")], WRITE).succeeds();
}

/// As above.
///
/// Consequence: the namespace was refused to every other machine, with `--yes` or without.
#[test]
fn refused_run_leaves_a_namespace_free_for_other_machines() {
    let Some(place) = Place::new() else { return };
    let second = format!("file:{}:1T", place.exporter.work().join("second").display());
    let tiers = ["--tier", &place.tier(""), "--tier", &second];
    place.run(0, &tiers, "true").ends_with(2).says("are free there");
    place.claim(Claim::Exclusive).release().expect("given back");
    // The magic number of ext4.
    place.put(0x438, b"\x53\xef");
    place.run(0, &tiers[..2], "true").ends_with(2).says("ext4");
    place.run(1, &[&tiers[..2], &["--yes"]].concat(), WRITE).succeeds();
}

/// As above.
///
/// Consequence: the machine that had left the tier did not get it back.
#[test]
fn run_that_contradicts_a_tier_leaves_it_to_the_machine_that_has_left_it() {
    let Some(mut place) = Place::new() else { return };
    let tier = place.tier("");
    let written = place.run(1, &["--tier", &tier], WRITE).succeeds().stdout;
    lose_memory(&place.machines[1].1, "job");
    place.forget_reservations();
    place.run(0, &["--tier", &tier, "--mount", "/other"], "true").ends_with(2).says("--mount");
    assert_eq!(place.run(1, &["--tier", &tier], READ).succeeds().stdout, written);
}

/// Mechanism: a run claimed a tier to recover it, and did not release it when recovery failed.
///
/// Fix: a run releases its claims unless there is a store.
#[test]
fn run_that_cannot_recover_a_tier_gives_back_what_it_has_claimed() {
    let Some(mut place) = Place::new() else { return };
    for options in ["", "&part=1/2"] {
        let tier = place.tier(options);
        place.run(1, &["--tier", &tier], WRITE).succeeds();
        lose_memory(&place.machines[1].1, "job");
        place.forget_reservations();
        // All but the superblock and its copy.
        place.put(16 << 10, &vec![0xff; 8 << 20]);
        let taking = format!("{tier}&take-over=yes");
        place.run(0, &["--tier", &taking], "true").ends_with(2).says("is damaged");
        let refused = place.run(1, &["--tier", &tier], "true").ends_with(2);
        refused.says("is damaged");
        place.claim(Claim::Exclusive).release().expect("given back");
        place.put(0, &vec![0; 64 << 20]);
    }
}

/// As above, for `cairn fsck`.
#[test]
fn namespace_that_was_repaired_is_as_free_as_before() {
    let Some(mut place) = Place::new() else { return };
    let tier = place.tier("");
    let written = place.run(1, &["--tier", &tier], WRITE).succeeds().stdout;
    lose_memory(&place.machines[1].1, "job");
    place.forget_reservations();
    // The superblock.
    place.put(100, b"\xff");
    let (machine, sandbox) = &place.machines[0];
    ran(&mut machine.cairn(sandbox, &["fsck", &tier])).ends_with(1);
    assert_eq!(place.run(1, &["--tier", &tier], READ).succeeds().stdout, written);
}

#[test]
fn part_of_a_namespace_that_another_machine_has_reserved_is_had_by_who_takes_it_over() {
    let Some(place) = Place::new() else { return };
    let mut other = place.claim(Claim::Exclusive);
    let tier = place.tier("&part=1/2");
    let refused = place.run(0, &["--tier", &tier], "true").ends_with(2);
    refused.says("if that machine is dead, add take-over=yes");
    let taking = format!("{tier}&take-over=yes");
    place.run(0, &["--tier", &taking], WRITE).succeeds();
    other.write(0, &[1; 4096]).expect_err("it was put out");
    place.run(1, &["--tier", &place.tier("&part=2/2")], WRITE).succeeds();
}

/// Leaves a store whose run was killed between the label of its first tier and the metadata there.
fn leave_unfinished(place: &Place, machine: usize, options: &str) {
    place.run(machine, &["--tier", &place.tier(options)], "echo >/cairn/f").succeeds();
    undo(place, &place.machines[machine].1);
}

/// Undoes all of a store except its description, its list of tiers, and their labels.
fn undo(place: &Place, sandbox: &Sandbox) {
    if let Some(agent) = sandbox.agent_if_any("job") {
        common::kill("KILL", agent.into());
    }
    for entry in fs::read_dir(sandbox.store("job")).expect("it is kept").flatten() {
        let name = entry.file_name().into_string().expect("UTF-8");
        if name.starts_with("node.") && name != "node.tiers" {
            fs::remove_file(entry.path()).expect("was there");
        }
    }
    place.put(0, &vec![0; 30 << 20]);
}

/// Mechanism: a label without a superblock counted as damage before anybody checked whether a store
/// had begun to make that tier.
///
/// Consequence: a run that was killed in the seconds in which it claimed a part left a job that
/// nobody could start again.
///
/// Fix: a tier that its store has not finished is removed before it is inspected.
#[test]
fn store_whose_run_was_killed_while_it_claimed_a_part_is_begun_anew() {
    let Some(place) = Place::new() else { return };
    let tier = place.tier("&part=1/2");
    let mut run = place.command(0, &["--tier", &tier], "true").spawn().expect("starts");
    let exported = fs::File::open(place.exporter.work().join("export")).expect("is there");
    common::eventually("its label is there", || {
        let mut magic = [0; 8];
        exported.read_exact_at(&mut magic, (31 << 20) - 4096).expect("reads");
        magic != [0; 8]
    });
    run.kill().and_then(|()| run.wait()).expect("is killed");
    place.run(0, &["--tier", &tier], WRITE).succeeds();
}

/// The same, killed at the last moment, for each way to start the run again.
#[test]
fn store_of_which_a_tier_was_not_finished_is_begun_anew() {
    let Some(place) = Place::new() else { return };
    for options in ["", "&part=1/2"] {
        let tier = place.tier(options);
        for again in [&["--tier", &tier][..], &[]] {
            leave_unfinished(&place, 0, options);
            ran(place.command(0, again, WRITE).env_remove("CAIRN_RUN_TIER")).succeeds();
            let (machine, sandbox) = &place.machines[0];
            ran(&mut machine.cairn(sandbox, &["rm", "job", "--discard"])).succeeds();
        }
    }
}

#[test]
fn store_of_which_a_tier_was_not_finished_beside_a_device_is_begun_anew() {
    let Some(place) = Place::new() else { return };
    let sandbox = Sandbox::new();
    let Some(device) = LoopDevice::new(&sandbox.work(), 32 << 20) else { return };
    let (part, block) = (place.tier("&part=1/2"), format!("block:{}", device.path().display()));
    for [first, second] in [[&part, &block], [&block, &part]] {
        let run = |script: &str| {
            let tiers = ["--tier", first, "--tier", second, "--", "bash", "-c", script];
            sandbox.cairn(&[&["run", "--job", "job"], &tiers[..]].concat()).succeeds()
        };
        run("echo >/cairn/f");
        undo(&place, &sandbox);
        let file = fs::File::options().write(true).open(device.path()).expect("opens");
        file.write_all_at(&vec![0; 31 << 20], 0).and_then(|()| file.sync_all()).expect("writes");
        run(WRITE);
        sandbox.cairn(&["rm", "job", "--discard"]).succeeds();
    }
}

/// The same, after the store has been lost: the machine that had it begins anew, or one that takes
/// it over.
#[test]
fn tier_that_was_not_finished_is_begun_anew_by_any_store_if_none_has_it() {
    let Some(place) = Place::new() else { return };
    for options in ["", "&part=1/2"] {
        let tier = place.tier(options);
        let taking = format!("{tier}&take-over=yes");
        leave_unfinished(&place, 0, options);
        let (machine, sandbox) = &place.machines[0];
        let other = ["run", "--job", "other", "--tier", &tier, "--", "true"];
        let other = || ran(&mut machine.cairn(sandbox, &other));
        other().ends_with(2).says("it is a tier of the job job");
        fs::remove_dir_all(sandbox.store("job")).expect("removes");
        other().succeeds();
        leave_unfinished(&place, 0, options);
        fs::remove_dir_all(sandbox.store("job")).expect("removes");
        place.run(1, &["--tier", &tier], "true").ends_with(2).says("another machine uses it");
        place.run(1, &["--tier", &taking], WRITE).succeeds();
        let (machine, sandbox) = &place.machines[1];
        ran(&mut machine.cairn(sandbox, &["rm", "job", "--discard"])).succeeds();
    }
}

/// A tier that nothing was written to, and whose metadata is elsewhere, looks like one that was not
/// finished.
#[test]
fn tier_in_which_nothing_stands_is_begun_anew_by_nobody_but_its_store() {
    let Some(mut place) = Place::new() else { return };
    let tier = place.tier("");
    let spilling = ["--tier", "ram:2M", "--tier", &tier];
    place.run(0, &spilling, "echo kept >/cairn/f").succeeds();
    let (_, sandbox) = &place.machines[0];
    if let Some(agent) = sandbox.agent_if_any("job") {
        common::kill("KILL", agent.into());
    }
    let refused = |place: &Place, machine: usize| {
        let (machine, sandbox) = &place.machines[machine];
        let other = ["run", "--job", "other", "--tier", &tier, "--", "true"];
        ran(&mut machine.cairn(sandbox, &other)).ends_with(2)
    };
    refused(&place, 0).says("it is a tier of the job job");
    place.forget_reservations();
    refused(&place, 1);
    place.run(0, &spilling, "cat /cairn/f; seq 1000000 >/cairn/g").succeeds().prints("kept\n");
}

/// Mechanism: a namespace was taken over as soon as its option had been read.
///
/// Consequence: a run that was then refused for another reason had evicted the machine whose store
/// was there, and every write of that machine failed with EIO.
///
/// Fix: takeover happens after all checks have passed.
#[test]
fn run_that_is_refused_takes_nothing_over() {
    let Some(place) = Place::new() else { return };
    for options in ["", "&part=1/2"] {
        let living = place.living(&place.tier(options));
        let taking = place.tier(&format!("{options}&take-over=yes"));
        let refused = |options: &[&str], what: &str| {
            let options = [&["--tier", &taking], options].concat();
            place.run(0, &options, "true").ends_with(2).says(what);
        };
        refused(&["--persist", "/nonexistent/dir"], "does not exist");
        refused(&["--tier", "file:/nonexistent/x:10M"], "a directory that does not exist");
        refused(&["--mount", "/etc"], "/etc");
        refused(&["--mount", "/other"], "--mount");
        refused(&["--tier", "ram:1M"], "--tier");
        living.writes_again();
        let (_, sandbox) = &place.machines[1];
        ran(&mut place.machines[1].0.cairn(sandbox, &["rm", "job", "--discard"])).succeeds();
    }
}

/// The same for a part of a namespace that belongs to a store as a whole.
#[test]
fn part_of_a_namespace_that_a_store_has_is_not_taken_over() {
    let Some(place) = Place::new() else { return };
    let living = place.living(&place.tier(""));
    let taking = place.tier("&part=1/2&take-over=yes");
    place.run(0, &["--tier", &taking], "true").ends_with(2).says("not part of a store");
    living.writes_again();
}
