//! Open files of each process, and processes that serve the store, through the public interface.

use cairn_core::{
    Caller, Credentials, Geometry, HeapMemory, Microfs, OpenOptions, ProcessIdentity, ROOT,
    Timestamp,
};
use std::collections::BTreeSet;

/// More files than are found, and more processes than are examined, under one lock.
const FILES: u32 = 600;
const PROCESSES: u32 = 40;

fn checksum(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |sum, &byte| sum.rotate_left(5) ^ u32::from(byte))
}

fn identity(pid: u32) -> ProcessIdentity {
    ProcessIdentity { pid, pid_namespace: 1, start_time: 9 }
}

#[test]
fn every_open_file_of_every_process_is_found_once() {
    let mut geometry = Geometry::new(b"/cairn", [1024, 0, 0, 0], 0);
    geometry.inode_capacity = 2 * FILES;
    let memory = HeapMemory::new(geometry.segment_bytes() as usize / 8);
    let owner = Credentials { uid: 1000, gid: 1000 };
    Microfs::format(&memory, &geometry, checksum, owner, Timestamp(1)).expect("format");
    let fs = Microfs::open(Box::new(memory), checksum).expect("open");
    assert_eq!(fs.holdings(), Ok(Vec::new()));

    let mut opened = BTreeSet::new();
    let mut open = |pid: u32, file: u32, write: bool| {
        let slot = fs.attach(identity(pid)).expect("attach").slot;
        let caller = Caller { slot, credentials: owner, groups: &[], now: Timestamp(2) };
        let options = OpenOptions { read: true, write, create: true, ..OpenOptions::default() };
        let name = format!("file.{file}");
        let file = fs.open_file(&caller, ROOT, name.as_bytes(), options, 0o644).expect("open");
        opened.insert((pid, file.inode.0, write));
        (slot, file)
    };
    let (slot, first) = open(1, 0, true);
    (1..FILES).for_each(|file| _ = open(1, file, true));
    (2..=PROCESSES).for_each(|pid| _ = open(pid, pid, false));

    let found = fs.holdings().expect("found");
    assert_eq!(found.len() as u32, FILES + PROCESSES - 1);
    let seen = found.iter().map(|one| (one.process.pid, one.inode.0, one.write)).collect();
    assert_eq!(opened, seen);
    fs.release(slot, first.handle, Timestamp(3)).expect("release");
    assert_eq!(fs.holdings().expect("found").len() as u32, FILES + PROCESSES - 2);
}

#[test]
fn who_looks_after_the_store_is_a_process_and_no_program() {
    let geometry = Geometry::new(b"/cairn", [64, 0, 0, 0], 0);
    let memory = HeapMemory::new(geometry.segment_bytes() as usize / 8);
    let owner = Credentials { uid: 1000, gid: 1000 };
    Microfs::format(&memory, &geometry, checksum, owner, Timestamp(1)).expect("format");
    let fs = Microfs::open(Box::new(memory), checksum).expect("open");
    let pids = |found: cairn_core::Result<Vec<(_, ProcessIdentity)>>| {
        found.expect("found").into_iter().map(|(_, process)| process.pid).collect::<Vec<_>>()
    };
    fs.attach(identity(1)).expect("attach");
    fs.attach_service(identity(2)).expect("attach");
    assert_eq!((pids(fs.processes()), pids(fs.programs())), (vec![1, 2], vec![1]));
    // A command that a program executes still counts as the program. A command that executes a
    // program becomes that program.
    fs.attach_service(identity(1)).expect("attach");
    assert_eq!(pids(fs.programs()), [1]);
    fs.attach(identity(2)).expect("attach");
    assert_eq!(pids(fs.programs()), [1, 2]);
}

#[test]
fn file_that_services_share_is_unclean_when_its_writer_or_the_last_of_them_dies() {
    let geometry = Geometry::new(b"/cairn", [64, 0, 0, 0], 0);
    let memory = HeapMemory::new(geometry.segment_bytes() as usize / 8);
    let owner = Credentials { uid: 1000, gid: 1000 };
    Microfs::format(&memory, &geometry, checksum, owner, Timestamp(1)).expect("format");
    let fs = Microfs::open(Box::new(memory), checksum).expect("open");
    let service = |pid| fs.attach_service(identity(pid)).expect("attach").slot;
    let (keeper, server) = (service(1), service(2));
    let caller = Caller { slot: server, credentials: owner, groups: &[], now: Timestamp(2) };
    let open = |name: &[u8]| {
        let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
        let opened = fs.open_file(&caller, ROOT, name, options, 0o644).expect("open");
        fs.note_change(opened.handle).expect("is open");
        fs.retain(keeper, opened.handle).expect("is open");
        opened
    };
    let is_unclean = |inode| fs.attributes(inode).expect("is there").unclean;
    let [kept, closed, killed] = [&b"kept"[..], b"closed", b"killed"].map(open);

    // One of two services dies: the files live on with the other, and with the next one.
    assert_eq!(fs.reap(server, identity(2), Timestamp(3)), Ok(true));
    assert!([kept, closed, killed].iter().all(|opened| !is_unclean(opened.inode)));
    let next = service(3);
    fs.share_handles(keeper, next).expect("shares");
    for opened in [closed, killed] {
        if opened.inode == killed.inode {
            fs.note_death(opened.handle).expect("is open");
            assert!(is_unclean(opened.inode), "whoever closes it last");
        }
        fs.release(next, opened.handle, Timestamp(4)).expect("is held");
        fs.release(keeper, opened.handle, Timestamp(4)).expect("is held");
        assert_eq!(fs.handle(opened.handle).map(drop), Err(cairn_core::Error::BadHandle));
    }
    assert!(!is_unclean(closed.inode) && is_unclean(killed.inode));

    // Both die.
    assert_eq!(fs.reap(keeper, identity(1), Timestamp(5)), Ok(true));
    assert!(!is_unclean(kept.inode));
    assert_eq!(fs.reap(next, identity(3), Timestamp(5)), Ok(true));
    assert!(is_unclean(kept.inode));
}
