//! Failing targets and networks: connections that end between two PDUs or go silent, and targets
//! that are silent, change, or forget hosts.

use cairn_nvme::Error;
use cairn_nvme::claim::Claim;
use cairn_nvme::controller::{Fabric, Settings, discover};
use cairn_nvme::remote::Remote;
use cairn_nvme::tcp::TcpFabric;
use cairn_nvme::transport::{Data, Transport};
use cairn_nvme::wire::Command;
use cairn_nvme::wire::fabrics::{ANY_CONTROLLER, ConnectData};
use cairn_target::{Directory, Limits, Namespace, Resources, Subsystem};
use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::habits::execute;
use crate::peer::{
    Exported, NAMESPACE_BYTES, PART_BYTES, Peer, open, pattern, settings, subsystem,
};
use crate::proxy::{Harm, Proxy, receive};
use crate::watched::Watched;

/// Timeout of a command or a connection attempt in tests that exceed it.
const SHORT: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(60);

fn connect(address: SocketAddr, settings: &Settings, patience: Duration) -> Remote<TcpFabric> {
    let fabric = TcpFabric::new(address);
    Remote::connect(fabric, &subsystem(), 2, settings, patience).expect("connected")
}

/// Writes the bytes of a seed to a part of the namespace and reads them back.
fn round_trip(remote: &mut Remote<TcpFabric>, part: u64, seed: u64) {
    let bytes = pattern(seed, 300 << 10);
    remote.write(part * PART_BYTES, &bytes).expect("written");
    remote.flush().expect("flushed");
    let mut again = vec![0; bytes.len()];
    remote.read(part * PART_BYTES, &mut again).expect("read");
    assert!(again == bytes);
}

#[test]
fn connection_that_ends_between_any_two_pdus_is_made_again_and_nothing_is_lost() {
    let peer = Peer::start();
    for pdus in 1.. {
        let proxy = Proxy::calm(peer.address);
        let mut remote = connect(proxy.address, &settings(), PATIENCE);
        proxy.arm(Harm::BreakAfterPdus, pdus);
        round_trip(&mut remote, 1, pdus as u64);
        if !proxy.is_done() {
            assert!(pdus > 8, "a command, data that are asked for, an answer");
            break;
        }
    }
}

#[test]
fn connection_that_goes_silent_is_left_after_the_time_of_a_command_and_nothing_is_lost() {
    let peer = Peer::start();
    for bytes in [1, 100_000, 400_000] {
        let proxy = Proxy::calm(peer.address);
        let settings = Settings { timeout: SHORT, ..settings() };
        let mut remote = connect(proxy.address, &settings, PATIENCE);
        proxy.arm(Harm::Silence, bytes);
        round_trip(&mut remote, 2, bytes as u64);
        assert!(proxy.is_done());
    }
}

#[test]
fn target_that_goes_silent_is_given_up_in_the_time_that_was_granted_and_a_command_more() {
    let peer = Peer::start();
    let proxy = Proxy::calm(peer.address);
    let settings = Settings { timeout: SHORT, ..settings() };
    let patience = Duration::from_secs(1);
    let mut remote = connect(proxy.address, &settings, patience);
    proxy.arm(Harm::SilenceForEver, 1);
    let started = Instant::now();
    let given_up = remote.write(0, &[0; 4096]);
    assert!(matches!(given_up, Err(Error::TimedOut { .. })), "{given_up:?}");
    assert!(started.elapsed() >= patience);
    // A busy machine may take a little longer, but not as long as the usual timeout of a command.
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

/// Redirects a host to the target `other` from its next connection on. Returns the result of its
/// next call.
fn find_instead(other: Subsystem) -> Result<(), Error> {
    let old = Peer::of_one(open(Limits::default()));
    let new = Peer::of_one(other);
    let proxy = Proxy::calm(old.address);
    let mut remote = connect(proxy.address, &settings(), Duration::from_secs(1));
    round_trip(&mut remote, 0, 5);
    proxy.retarget(new.address);
    proxy.arm(Harm::Break, 1);
    remote.write(0, &[1; 4096])
}

#[test]
fn namespace_that_has_become_another_one_or_smaller_or_is_gone_is_not_written_any_more() {
    if !Peer::is_ours() {
        return;
    }
    let in_memory = |bytes| Namespace::in_memory(bytes, 4096).expect("there is memory");
    let of = |namespaces| Subsystem::new(subsystem(), namespaces, Limits::default());
    let first = || Namespace::in_memory(1 << 20, 512).expect("there is memory");
    for (name, other) in [
        ("another one", of(vec![first(), in_memory(NAMESPACE_BYTES)])),
        ("a smaller one", of(vec![first(), in_memory(NAMESPACE_BYTES / 2)])),
    ] {
        let found = find_instead(other);
        assert!(matches!(found, Err(Error::Unsuitable { .. })), "{name}: {found:?}");
    }
    find_instead(of(vec![first()])).expect_err("it is not there");
}

#[test]
fn file_that_became_smaller_under_its_namespace_is_not_written_any_more() {
    if !Peer::is_ours() {
        return;
    }
    let path = std::env::temp_dir().join(format!("cairn-nvme-shrinking-{}", std::process::id()));
    let file = std::fs::File::create(&path).expect("makes");
    file.set_len(NAMESPACE_BYTES).expect("has room");
    let mut exported = Some(Exported::start(&path));
    let proxy = Proxy::calm(exported.as_ref().expect("just made").address);
    let mut remote = connect(proxy.address, &settings(), PATIENCE);
    let mut change_to = |bytes| {
        exported.take().expect("there is always one").end();
        file.set_len(bytes).expect("has room");
        proxy.retarget(exported.insert(Exported::start(&path)).address);
        proxy.arm(Harm::Break, 1);
        remote.write(0, &[1; 4096])
    };
    assert_eq!(change_to(NAMESPACE_BYTES * 2), Ok(()), "what was there is there");
    let refused = change_to(NAMESPACE_BYTES / 2);
    assert!(matches!(refused, Err(Error::Unsuitable { .. })), "{refused:?}");
    std::fs::remove_file(&path).expect("is there");
}

#[test]
fn subsystem_that_is_taken_away_at_run_time_fails_its_hosts_and_nobody_waits() {
    if !Peer::is_ours() {
        return;
    }
    let directory = Arc::new(Directory::new(Limits::default()));
    directory.add(Arc::new(open(Limits::default()))).expect("the only one");
    let peer = Peer::of(Arc::clone(&directory), Resources::default());
    let mut remote = connect(peer.address, &settings(), Duration::from_secs(1));
    round_trip(&mut remote, 0, 6);
    assert!(directory.remove(&subsystem()));
    let started = Instant::now();
    remote.write(0, &[1; 4096]).expect_err("it is gone");
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
}

/// Connects an admin queue that then sends nothing; returns when the target has dropped the host.
fn wait_until_forgotten(peer: &Peer, host: &Settings) {
    let deadline = Instant::now() + PATIENCE;
    let mut admin = peer.fabric().connect(0, 4, 8192, deadline).expect("connected");
    let keep_alive_ms = host.keep_alive.as_millis() as u32;
    let connect =
        Command::Connect { queue: 0, entries: 32, without_flow_control: true, keep_alive_ms };
    let (host_id, host, subsystem) = (host.host_id, host.host.clone(), subsystem());
    let data = ConnectData { host_id, controller: ANY_CONTROLLER, subsystem, host }.encode();
    assert!(execute(&mut admin, &connect, Data::of(&data)).status.is_success());
    let end = admin.poll(deadline);
    assert!(end.is_err(), "still there: {end:?}");
}

#[test]
fn host_that_is_silent_beyond_its_keep_alive_time_is_forgotten_and_connects_again() {
    let peer = Peer::start();
    let settings = Settings { keep_alive: Duration::from_millis(500), ..settings() };
    let mut remote = connect(peer.address, &settings, PATIENCE);
    round_trip(&mut remote, 3, 7);
    wait_until_forgotten(&peer, &settings);
    round_trip(&mut remote, 3, 8);
}

/// Mechanism: each step of connecting had the full timeout of a command. Consequence: a target that
/// was slow in all steps held a thread for minutes. Fix: all steps together have that timeout.
#[test]
fn all_steps_of_connecting_together_have_the_time_of_a_command() {
    let peer = Peer::start();
    let watched = Watched::new(peer.fabric(), |_| ());
    let settings = Settings { claim: Claim::Beside, ..settings() };
    Remote::connect(watched.clone(), &subsystem(), 2, &settings, PATIENCE).expect("connected");
    let deadlines = watched.deadlines();
    assert!(deadlines.len() > 10 && deadlines.iter().all(|&one| one <= deadlines[0]));
    let watched = Watched::new(peer.fabric(), |_| ());
    discover(watched.clone(), &settings).expect("discovered");
    let deadlines = watched.deadlines();
    assert!(deadlines.len() > 10 && deadlines.iter().all(|&one| one <= deadlines[0]));
}

/// Mechanism: one command discarded as much as a command can name. Consequence: with terabytes that
/// took longer than the timeout of a command. Fix: such commands are small enough to be finished in
/// time.
#[test]
fn what_is_discarded_is_discarded_in_pieces() {
    if !Peer::is_ours() {
        return;
    }
    let path = std::env::temp_dir().join(format!("cairn-nvme-pieces-{}", std::process::id()));
    let file = std::fs::File::create(&path).expect("makes");
    let bytes = (5 << 30) + 4096;
    file.set_len(bytes).expect("has room");
    let namespace = Namespace::in_file(&path, 4096).expect("is there");
    let peer = Peer::of_one(Subsystem::new(subsystem(), vec![namespace], Limits::default()));
    let seen = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&seen);
    let watched = Watched::new(peer.fabric(), move |command| {
        if let Command::Deallocate { ranges, .. } = command {
            assert_eq!(*ranges, 1);
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let mut remote =
        Remote::connect(watched, &subsystem(), 1, &settings(), PATIENCE).expect("connected");
    remote.write(bytes - 4096, &[7; 4096]).expect("written");
    remote.discard(0, bytes).expect("discarded");
    assert_eq!(seen.load(Ordering::SeqCst), 6);
    let mut last = [1; 4096];
    remote.read(bytes - 4096, &mut last).expect("read");
    assert_eq!(last, [0; 4096]);
    std::fs::remove_file(&path).expect("is there");
}

#[test]
fn write_that_is_tried_once_is_not_done_on_another_connection_or_too_late() {
    let peer = Peer::start();
    let proxy = Proxy::calm(peer.address);
    let mut remote = connect(proxy.address, &settings(), PATIENCE);
    let (at, old, new) = (4 * PART_BYTES, [1; 4096], [2; 4096]);
    let read = |remote: &mut Remote<TcpFabric>| {
        let mut page = [0; 4096];
        remote.read(at, &mut page).map(|()| page)
    };
    remote.write(at, &old).expect("written");
    let late = remote.write_once(at, &new, Instant::now());
    assert!(matches!(late, Err(Error::TimedOut { .. })), "{late:?}");
    proxy.arm(Harm::Break, 1);
    let deadline = Instant::now() + PATIENCE;
    remote.write_once(at, &new, deadline).expect_err("its connection broke");
    remote.write_once(at, &new, deadline).expect_err("there is none");
    assert_eq!(read(&mut remote), Ok(old));
    remote.write_once(at, &new, deadline).expect("written");
    assert_eq!(read(&mut remote), Ok(new));
}

/// A proxy that forwards everything. Once `wanted` is set, it holds back the answers of I/O queues
/// until hosts have sent that many PDUs on admin queues.
struct Withholding {
    address: SocketAddr,
    connections: Arc<AtomicU32>,
    wanted: Arc<AtomicU32>,
}

impl Withholding {
    fn start(target: SocketAddr) -> Withholding {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("there is a port");
        let address = listener.local_addr().expect("it listens");
        let (connections, wanted) = <(Arc<AtomicU32>, Arc<AtomicU32>)>::default();
        let proxy = Withholding { address, connections, wanted };
        let (connections, wanted) = (Arc::clone(&proxy.connections), Arc::clone(&proxy.wanted));
        std::thread::spawn(move || {
            for host in listener.incoming().map_while(Result::ok) {
                // Connections alternate between admin and I/O queues.
                let is_admin = connections.fetch_add(1, Ordering::SeqCst) % 2 == 0;
                let Ok(target) = TcpStream::connect(target) else { break };
                let clones = host.try_clone().and_then(|host| Ok((host, target.try_clone()?)));
                let (from, to) = clones.expect("there are descriptors");
                let (seen, needed) = (Arc::clone(&wanted), Arc::clone(&wanted));
                let count = move || {
                    let less = |wanted: u32| wanted.checked_sub(1).filter(|_| is_admin);
                    let _ = seen.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
                };
                let withhold = move || {
                    while !is_admin && needed.load(Ordering::SeqCst) > 0 {
                        std::thread::yield_now();
                    }
                };
                std::thread::spawn(move || pass(from, to, count));
                std::thread::spawn(move || pass(target, host, withhold));
            }
        });
        proxy
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, each: impl Fn()) {
    let mut buffer = Vec::new();
    while receive(&mut from, &mut buffer).is_ok() {
        each();
        if to.write_all(&buffer).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// Mechanism: hosts sent Keep Alive only between commands. Consequence: a command that took longer
/// than the target's keep-alive timeout lost its connection, again and again. Fix: hosts send it
/// while they wait, too.
#[test]
fn host_keeps_itself_alive_while_a_command_is_under_way() {
    let peer = Peer::start();
    let proxy = Withholding::start(peer.address);
    let settings = Settings { keep_alive: Duration::from_secs(4), ..settings() };
    let mut remote = connect(proxy.address, &settings, PATIENCE);
    proxy.wanted.store(2, Ordering::SeqCst);
    remote.read(0, &mut [0; 4096]).expect("answered");
    assert_eq!(proxy.wanted.load(Ordering::SeqCst), 0);
    assert_eq!(proxy.connections.load(Ordering::SeqCst), 2, "the first ones");
}
