//! Jobs with namespaces granted on one target: each reaches its own and no other. Only Cairn's
//! target.

use cairn_nvme::Error;
use cairn_nvme::controller::{Controller, Settings, discover};
use cairn_nvme::tcp::TcpFabric;
use cairn_nvme::wire::{Nqn, Status};
use cairn_target::grants::control::{Answer, Control, Request, ask};
use cairn_target::grants::{Grant, GrantError, Grants, Room};
use cairn_target::{Directory, Limits, Resources, Subsystem};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use crate::authentication::SecretFile;
use crate::peer::{Peer, pattern, round_trip, settings};

const BYTES: u64 = 8 << 20;
const PIECE: usize = 64 << 10;

/// Starts a target that grants memory.
fn start(bytes_max: u64) -> Option<(Peer, Arc<Grants>)> {
    let directory = Arc::new(Directory::new(Limits::default()));
    let grants = Grants::new(Arc::clone(&directory), &Room::Memory, bytes_max, "node1");
    let grants = grants.expect("nothing was granted before");
    Peer::is_ours().then(|| (Peer::of(directory, Resources::default()), Arc::new(grants)))
}

fn connect(address: SocketAddr, nqn: &str, settings: &Settings) -> Result<Connected, Error> {
    Controller::connect(TcpFabric::new(address), &Nqn::new(nqn).expect("a name"), settings)
}

type Connected = Controller<TcpFabric>;

/// The host of a job, with its file of secrets.
struct Host {
    _file: SecretFile,
    settings: Settings,
}

impl Host {
    fn new(name: &str, secret: &str, target_secret: &str) -> Host {
        let file = SecretFile::new(&[name, secret, target_secret]);
        Host { settings: file.settings(), _file: file }
    }

    fn of(grant: &Grant) -> Host {
        Host::new(&grant.host, &grant.secret, &grant.target_secret)
    }
}

fn is_refused(result: Result<Connected, Error>, expected: Status) -> bool {
    matches!(result, Err(Error::Refused { status, .. }) if status.code() == expected)
}

fn is_unauthenticated(result: Result<Connected, Error>) -> bool {
    matches!(result, Err(Error::Unauthenticated { .. }))
}

#[test]
fn job_reaches_its_own_namespace_and_that_of_no_other() {
    let Some((peer, grants)) = start(1 << 30) else { return };
    let [one, other] = ["one", "other"].map(|job| grants.grant(job, BYTES, None).expect("room"));
    let [host, neighbour] = [&one, &other].map(Host::of);
    let mut controller = connect(peer.address, &one.nqn, &host.settings).expect("its own");
    assert_eq!(controller.namespaces().expect("listed"), [1]);
    let mut queue = controller.queue(1).expect("an I/O queue");
    round_trip(&mut queue, 0, &pattern(1, PIECE));
    connect(peer.address, &other.nqn, &neighbour.settings).expect("its own");
    let disallowed = connect(peer.address, &other.nqn, &host.settings);
    assert!(is_refused(disallowed, Status::HOST_INVALID), "a host that is not on the list");
    let stolen = Host::new(&other.host, &one.secret, &other.target_secret);
    assert!(is_unauthenticated(connect(peer.address, &other.nqn, &stolen.settings)), "its name");
    let half = Host::new(&other.host, &other.secret, &one.target_secret);
    assert!(is_unauthenticated(connect(peer.address, &other.nqn, &half.settings)), "the target's");
    let name = Nqn::new(&other.host).expect("a name");
    let nameless = Settings { host: name, ..settings() };
    assert!(is_unauthenticated(connect(peer.address, &other.nqn, &nameless)), "without a secret");
}

/// Mechanism: grants were listed in the order of granting, but after a restart of the target in the
/// order of the directory's entries.
#[test]
fn what_was_granted_is_listed_by_job() {
    let directory = Arc::new(Directory::new(Limits::default()));
    let grants = Grants::new(directory, &Room::Memory, 4 * BYTES, "node1").expect("room");
    for job in ["b", "c", "a"] {
        grants.grant(job, BYTES, None).expect("room");
    }
    let jobs: Vec<_> = grants.list().into_iter().filter_map(|one| one.job).collect();
    assert_eq!(jobs, ["a", "b", "c"]);
}

#[test]
fn hosts_discover_what_they_may_use() {
    let Some((peer, grants)) = start(1 << 30) else { return };
    let [one, _other] = ["one", "other"].map(|job| grants.grant(job, BYTES, None).expect("room"));
    assert!(discover(peer.fabric(), &settings()).expect("answered").is_empty(), "a stranger");
    let host = Settings { host: Nqn::new(&one.host).expect("a name"), ..settings() };
    let found = discover(peer.fabric(), &host).expect("answered");
    let names: Vec<_> = found.iter().map(|entry| entry.subsystem.as_str()).collect();
    assert_eq!(names, [&one.nqn]);
}

#[test]
fn revoked_namespace_is_gone_with_its_connections_and_comes_back_empty() {
    let Some((peer, grants)) = start(2 * BYTES) else { return };
    let [one, other] = ["one", "other"].map(|job| grants.grant(job, BYTES, None).expect("room"));
    let full = grants.grant("third", BYTES, None);
    assert!(matches!(full, Err(GrantError::Full { free_bytes: 0, .. })), "{full:?}");
    assert!(matches!(grants.grant("one", 4096, None), Err(GrantError::Taken { .. })));
    assert!(matches!(grants.grant("a/b", 4096, None), Err(GrantError::Job { .. })));
    assert!(matches!(grants.grant("c", 4096, Some("host")), Err(GrantError::Host { .. })));
    let [host, neighbour] = [&one, &other].map(Host::of);
    let mut controller = connect(peer.address, &one.nqn, &host.settings).expect("its own");
    let mut queue = controller.queue(1).expect("an I/O queue");
    queue.write(0, &pattern(1, PIECE)).expect("its own");
    let mut kept = connect(peer.address, &other.nqn, &neighbour.settings).expect("its own");
    grants.revoke("one").expect("it was granted");
    assert!(matches!(grants.revoke("one"), Err(GrantError::Unknown { .. })));
    assert!(queue.read(0, &mut [0; 4096]).is_err() && controller.keep_alive().is_err());
    let gone = connect(peer.address, &one.nqn, &host.settings);
    assert!(is_refused(gone, Status::CONNECT_INVALID));
    kept.keep_alive().expect("others notice nothing");
    let again = grants.grant("one", BYTES, None).expect("there is room again");
    assert!(is_unauthenticated(connect(peer.address, &again.nqn, &host.settings)), "an old secret");
    let host = Host::of(&again);
    let mut controller = connect(peer.address, &again.nqn, &host.settings).expect("its own");
    let mut bytes = vec![1; PIECE];
    controller.queue(1).expect("an I/O queue").read(0, &mut bytes).expect("its own");
    assert!(bytes.iter().all(|&byte| byte == 0), "nothing of the last one is left");
    let listed = grants.list();
    assert_eq!(listed.iter().filter(|one| one.job.is_some()).count(), 2);
    assert!(!format!("{listed:?}").contains("DHHC"));
}

/// Bytes that the host has sent, by connection.
type Sent = Arc<Mutex<Vec<Vec<u8>>>>;

/// Starts a proxy that forwards everything and records what the host sends.
fn overhear(target: SocketAddr) -> (SocketAddr, Sent) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("there is a port");
    let address = listener.local_addr().expect("it listens");
    let sent = Sent::default();
    let kept = Arc::clone(&sent);
    thread::spawn(move || {
        for mut host in listener.incoming().flatten() {
            let mut target = TcpStream::connect(target).expect("it listens");
            let number = {
                let mut kept = kept.lock().expect("nobody panics");
                kept.push(Vec::new());
                kept.len() - 1
            };
            let back = (target.try_clone().expect("cloned"), host.try_clone().expect("cloned"));
            thread::spawn(move || {
                let (mut from, mut to) = back;
                let _ = std::io::copy(&mut from, &mut to);
                to.shutdown(Shutdown::Both)
            });
            let kept = Arc::clone(&kept);
            thread::spawn(move || {
                let mut buffer = vec![0; 1 << 16];
                while let Ok(count @ 1..) = host.read(&mut buffer) {
                    kept.lock().expect("nobody panics")[number].extend(&buffer[..count]);
                    if target.write_all(&buffer[..count]).is_err() {
                        break;
                    }
                }
                let _ = target.shutdown(Shutdown::Both);
            });
        }
    });
    (address, sent)
}

/// Receives one PDU; `None` at the end of the connection.
fn receive(stream: &mut impl Read) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 8];
    stream.read_exact(&mut bytes).ok()?;
    let length = u32::from_le_bytes(bytes[4..].try_into().expect("four bytes"));
    bytes.resize(length as usize, 0);
    stream.read_exact(&mut bytes[8..]).ok()?;
    Some(bytes)
}

/// Replays recorded PDUs, each after the one before was answered.
fn repeat(address: SocketAddr, mut overheard: &[u8]) {
    const IS_SUCCESS: u8 = 1 << 3;
    let mut stream = TcpStream::connect(address).expect("it listens");
    while let Some(bytes) = receive(&mut overheard) {
        // The target may have hung up.
        let _ = stream.write_all(&bytes);
        loop {
            match receive(&mut stream) {
                None => return,
                // The response to ICReq, to a command, or to a command that returns data.
                Some(answer) if matches!(answer[0], 1 | 5) => break,
                Some(answer) if answer[0] == 7 && answer[1] & IS_SUCCESS != 0 => break,
                Some(_) => {}
            }
        }
    }
}

#[test]
fn everything_that_a_host_has_said_does_nothing_when_somebody_says_it_again() {
    let Some((peer, grants)) = start(1 << 30) else { return };
    let grant = grants.grant("one", BYTES, None).expect("room");
    let host = Host::of(&grant);
    let (address, sent) = overhear(peer.address);
    let (before, after) = (pattern(1, 4096), pattern(2, 4096));
    let mut controller = connect(address, &grant.nqn, &host.settings).expect("its own");
    controller.queue(1).expect("an I/O queue").write(0, &before).expect("its own");
    let mut queue = controller.queue(1).expect("an I/O queue");
    queue.write(0, &after).expect("its own");
    let overheard = sent.lock().expect("nobody panics").clone();
    assert!(overheard.len() >= 3 && overheard.iter().all(|bytes| bytes.len() > 1000));
    for bytes in &overheard {
        repeat(peer.address, bytes);
    }
    let mut found = vec![0; 4096];
    queue.read(0, &mut found).expect("its own");
    assert!(found == after, "what was overheard was written again");
}

/// Starts a target that grants room in this directory.
fn start_in(path: &Path) -> (Peer, Grants) {
    let directory = Arc::new(Directory::new(Limits::default()));
    let room = Room::Directory(path.to_path_buf());
    let grants = Grants::new(Arc::clone(&directory), &room, 2 * BYTES, "node1").expect("restored");
    (Peer::of(directory, Resources::default()), grants)
}

fn names(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).expect("read");
    let name = |entry: std::fs::DirEntry| entry.file_name().into_string().expect("a name");
    let mut names: Vec<_> = entries.map(|entry| name(entry.expect("read"))).collect();
    names.sort();
    names
}

/// Mechanism: files of a grant that failed stayed in the directory. Consequence: the job was
/// refused a grant until the target was restarted; and if another subsystem had the grant's name,
/// the target did not start again at all. Fix: all files of a failed grant are removed.
#[test]
fn grant_that_cannot_be_made_leaves_nothing_behind() {
    let path = std::env::temp_dir().join(format!("cairn-test-no-grant-{}", std::process::id()));
    std::fs::create_dir_all(&path).expect("made");
    let directory = Arc::new(Directory::new(Limits::default()));
    let room = Room::Directory(path.clone());
    let grants = Grants::new(Arc::clone(&directory), &room, BYTES, "node1").expect("is empty");
    std::fs::write(path.join("cairn-one.new"), "in the way").expect("written");
    grants.grant("one", BYTES, None).expect_err("it cannot be kept");
    assert!(names(&path).is_empty());
    grants.grant("one", BYTES, None).expect("room");
    grants.revoke("one").expect("it was granted");
    let name = Nqn::new("nqn.2026-11.io.cairn:node1.job.two").expect("a name");
    let other = Subsystem::new(name, Vec::new(), Limits::default());
    directory.add(Arc::new(other)).expect("the first of that name");
    grants.grant("two", BYTES, None).expect_err("its name is taken");
    assert!(names(&path).is_empty());
    std::fs::remove_dir_all(path).expect("removed");
}

#[test]
fn what_was_granted_in_a_directory_is_granted_again_and_what_was_revoked_is_not() {
    if !Peer::is_ours() {
        return;
    }
    let path = std::env::temp_dir().join(format!("cairn-test-grants-{}", std::process::id()));
    std::fs::create_dir_all(&path).expect("made");
    let (peer, grants) = start_in(&path);
    let grant = grants.grant("one", BYTES, Some("nqn.2026-11.test:mine")).expect("room");
    let gone = grants.grant("gone", BYTES, None).expect("room");
    assert_eq!(grant.host, "nqn.2026-11.test:mine");
    let host = Host::of(&grant);
    let mut controller = connect(peer.address, &grant.nqn, &host.settings).expect("its own");
    let mut queue = controller.queue(1).expect("an I/O queue");
    round_trip(&mut queue, 4096, &pattern(3, 300 << 10));
    queue.write_zeroes(8192, 8192, false).expect("its own");
    queue.flush().expect("its own");
    let guid = queue.traits().shape.guid;
    grants.revoke("gone").expect("it was granted");
    let directory = Arc::new(Directory::new(Limits::default()));
    let other = Grants::new(directory, &Room::Directory(path.clone()), BYTES, "node1");
    assert!(other.is_err(), "two targets would write over each other");
    drop(grants);
    // Files of a target that died during a grant, and during a revocation.
    std::fs::write(path.join("cairn-half.namespace"), [0; 4096]).expect("written");
    std::fs::write(path.join("cairn-half.new"), "{").expect("written");
    let (peer, grants) = start_in(&path);
    assert_eq!(names(&path), ["cairn-one.grant", "cairn-one.namespace"]);
    let mut controller = connect(peer.address, &grant.nqn, &host.settings).expect("its own");
    let mut queue = controller.queue(1).expect("an I/O queue");
    let mut found = vec![1; 300 << 10];
    queue.read(4096, &mut found).expect("its own");
    let mut expected = pattern(3, 300 << 10);
    expected[4 << 10..12 << 10].fill(0);
    assert!(found == expected && queue.traits().shape.guid == guid, "it is the same one");
    let refused = connect(peer.address, &gone.nqn, &Host::of(&gone).settings);
    assert!(is_refused(refused, Status::CONNECT_INVALID), "what was revoked stays so");
    grants.grant("one", 4096, None).expect_err("it is granted");
    grants.grant("two", BYTES + 4096, None).expect_err("there is no room");
    grants.revoke("one").expect("it was granted");
    assert!(names(&path).is_empty());
    std::fs::remove_dir_all(&path).expect("removed");
}

/// Mechanism: a size that is no multiple of a block was recorded as requested, and compared with
/// the size of the namespace, which is a multiple. Consequence: the target did not start again,
/// with none of its grants. Fix: grants are whole blocks, and a grant that has changed is left
/// alone, with a message.
#[test]
fn grant_of_any_size_is_granted_again_and_a_damaged_one_hinders_no_other() {
    let path = std::env::temp_dir().join(format!("cairn-test-odd-grants-{}", std::process::id()));
    std::fs::create_dir_all(&path).expect("made");
    let (_, grants) = start_in(&path);
    let granted = grants.grant("odd", 1_000_000, None).expect("room");
    assert_eq!(granted.bytes, 245 * 4096);
    grants.grant("damaged", 4096, None).expect("room");
    grants.grant("shorter", 8192, None).expect("room");
    assert!(matches!(grants.grant("all", u64::MAX, None), Err(GrantError::Full { .. })));
    drop(grants);
    std::fs::write(path.join("cairn-damaged.grant"), "{").expect("written");
    let shorter = std::fs::File::options().write(true).open(path.join("cairn-shorter.namespace"));
    shorter.expect("is there").set_len(4096).expect("cut");
    let (_, grants) = start_in(&path);
    let jobs: Vec<_> = grants.list().into_iter().filter_map(|one| one.job).collect();
    assert_eq!(jobs, ["odd"]);
    let mut set_aside = grants.set_aside().to_vec();
    set_aside.sort();
    assert!(matches!(&set_aside[..], [one, other]
        if one.contains("\"damaged\"") && other.contains("\"shorter\"")));
    grants.grant("damaged", 4096, None).expect_err("what there is is left alone");
    assert_eq!(names(&path).len(), 6);
    std::fs::remove_dir_all(&path).expect("removed");
}

#[test]
fn grant_that_is_half_revoked_already_is_revoked() {
    let path = std::env::temp_dir().join(format!("cairn-test-half-{}", std::process::id()));
    std::fs::create_dir_all(&path).expect("made");
    let (_, grants) = start_in(&path);
    grants.grant("one", 4096, None).expect("room");
    // The state after a revocation whose directory could not be made durable.
    std::fs::remove_file(path.join("cairn-one.grant")).expect("is there");
    grants.revoke("one").expect("it was granted");
    assert!(names(&path).is_empty());
    std::fs::remove_dir_all(&path).expect("removed");
}

#[test]
fn grant_whose_secrets_nobody_takes_is_revoked() {
    let Some((_, grants)) = start(1 << 30) else { return };
    let path = std::env::temp_dir().join(format!("cairn-test-nobody-{}", std::process::id()));
    let control = Control::bind(&path).expect("a socket");
    thread::spawn(move || control.serve(&grants, &[]));
    let mut deaf = UnixStream::connect(&path).expect("it listens");
    deaf.shutdown(Shutdown::Read).expect("connected");
    let request = Request::Grant { job: "one".to_string(), bytes: 4096, host: None };
    let line = serde_json::to_string(&request).expect("JSON") + "\n";
    deaf.write_all(line.as_bytes()).expect("connected");
    // Requests are served one after the other.
    let Answer::Listed { exported } = ask(&path, &Request::List).expect("answered") else {
        panic!("not a list");
    };
    assert!(exported.is_empty(), "{exported:?}");
    std::fs::remove_file(&path).expect("is there");
}
