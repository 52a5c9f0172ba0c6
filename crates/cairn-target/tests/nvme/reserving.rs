//! Hosts that claim the same namespace. Only Cairn's target: with another peer, other tests use the
//! namespace at the same time.

use cairn_nvme::Error;
use cairn_nvme::claim::{self, Claim};
use cairn_nvme::controller::{Controller, Settings};
use cairn_nvme::remote::Remote;
use cairn_nvme::shared::{RemotePath, SharedRemote};
use cairn_nvme::tcp::TcpFabric;
use cairn_nvme::wire::reservation::{Step, UNREGISTER};
use cairn_nvme::wire::{Command, Status};
use cairn_target::Limits;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::peer::{Exported, Peer, pattern, settings, subsystem};
use crate::proxy::{Harm, Proxy};
use crate::watched::Watched;

const PATIENCE: Duration = Duration::from_secs(5);
const PIECE: usize = 64 << 10;

type Host = Remote<TcpFabric>;

fn connect(address: SocketAddr, settings: &Settings) -> Result<Host, Error> {
    Remote::connect(TcpFabric::new(address), &subsystem(), 2, settings, PATIENCE)
}

/// Returns the settings of a new host with this claim.
fn wanting(claim: Claim) -> Settings {
    Settings { claim, ..settings() }
}

/// Whether the host was refused, or was told on its new connection who holds the namespace.
fn is_reserved(result: &Result<(), Error>) -> bool {
    match result {
        Err(Error::Refused { status, .. }) => status.code() == Status::RESERVATION_CONFLICT,
        Err(Error::Reserved { .. }) => true,
        _ => false,
    }
}

#[test]
fn one_of_the_hosts_that_claim_a_namespace_at_the_same_time_gets_it() {
    let Some(peer) = Peer::limited(Limits::default()) else { return };
    for round in 0..20 {
        let start = Barrier::new(4);
        let hosts: Vec<_> = (0..4).map(|_| wanting(Claim::Exclusive)).collect();
        let claims = thread::scope(|scope| {
            let claim = |settings| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    connect(peer.address, settings)
                })
            };
            let claiming: Vec<_> = hosts.iter().map(claim).collect();
            claiming.into_iter().map(|one| one.join().expect("ends")).collect::<Vec<_>>()
        });
        let (mut winners, losers): (Vec<_>, Vec<_>) = claims.into_iter().partition(Result::is_ok);
        assert_eq!(winners.len(), 1, "round {round}");
        for loser in losers {
            assert!(matches!(loser, Err(Error::Reserved { .. })));
        }
        let winner = winners.pop().and_then(Result::ok);
        winner.expect("there is one").release().expect("given back");
    }
}

#[test]
fn second_host_is_told_whose_the_namespace_is_and_may_read_it() {
    let Some(peer) = Peer::limited(Limits::default()) else { return };
    let first = wanting(Claim::Exclusive);
    let mut holder = connect(peer.address, &first).expect("claimed");
    let mut process = connect(peer.address, &first).expect("another process of that host");
    let refused = connect(peer.address, &wanting(Claim::Exclusive)).map(drop);
    assert!(
        matches!(refused, Err(Error::Reserved { holder }) if holder.host == first.host_id),
        "{refused:?}"
    );
    let mut reader = connect(peer.address, &settings()).expect("connected");
    let bytes = pattern(3, PIECE);
    process.write(0, &bytes).expect("its own");
    let mut again = vec![0; PIECE];
    reader.read(0, &mut again).expect("reads");
    assert!(again == bytes);
    let changes = [
        reader.write(0, &again),
        reader.write_zeroes(0, PIECE as u64, true),
        reader.discard(0, PIECE as u64),
        reader.flush(),
    ];
    assert!(changes.iter().all(is_reserved), "{changes:?}");
    holder.release().expect("given back");
    reader.write(0, &again).expect("it is nobody's");
    connect(peer.address, &wanting(Claim::Exclusive)).expect("it is free");
}

/// A proxy that forwards everything except what the host sends while the gate is locked.
struct Gate {
    address: SocketAddr,
    lock: Arc<Mutex<()>>,
    arrived: Arc<AtomicUsize>,
}

impl Gate {
    fn start(target: SocketAddr) -> Gate {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("there is a port");
        let address = listener.local_addr().expect("it listens");
        let gate = Gate { address, lock: Arc::default(), arrived: Arc::default() };
        let (lock, arrived) = (Arc::clone(&gate.lock), Arc::clone(&gate.arrived));
        thread::spawn(move || {
            for host in listener.incoming().map_while(Result::ok) {
                let Ok(target) = TcpStream::connect(target) else { break };
                let clones = host.try_clone().and_then(|host| Ok((host, target.try_clone()?)));
                let (from, to) = clones.expect("there are descriptors");
                thread::spawn(move || pass(&target, &host, || ()));
                let (lock, arrived) = (Arc::clone(&lock), Arc::clone(&arrived));
                let wait = move || {
                    arrived.fetch_add(1, Ordering::SeqCst);
                    drop(lock.lock());
                };
                thread::spawn(move || pass(&from, &to, wait));
            }
        });
        gate
    }
}

fn pass(mut from: &TcpStream, mut to: &TcpStream, wait: impl Fn()) {
    let mut buffer = vec![0; 1 << 17];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        wait();
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

#[test]
fn late_write_of_a_host_whose_namespace_was_taken_over_is_refused() {
    let Some(peer) = Peer::limited(Limits::default()) else { return };
    let gate = Gate::start(peer.address);
    let mut dead = connect(gate.address, &wanting(Claim::Exclusive)).expect("claimed");
    let (old, new) = (pattern(1, PIECE), pattern(2, PIECE));
    dead.write(0, &old).expect("its own");
    let closed = gate.lock.lock().expect("nobody panics");
    let before = gate.arrived.load(Ordering::SeqCst);
    let late = thread::spawn(move || (dead.write(0, &old), dead.keep_alive(), dead));
    while gate.arrived.load(Ordering::SeqCst) == before {
        thread::yield_now();
    }
    let mut heir = connect(peer.address, &wanting(Claim::TakeOver)).expect("taken over");
    heir.write(0, &new).expect("its own");
    drop(closed);
    let (late, _, mut dead) = late.join().expect("ends");
    assert!(is_reserved(&late), "{late:?}");
    assert!(is_reserved(&dead.write(0, &new)) && is_reserved(&dead.flush()), "never again");
    let mut again = vec![0; PIECE];
    heir.read(0, &mut again).expect("reads");
    assert!(again == new);
}

/// Mechanism: a host that reconnects claims the namespace again, and found no holder when the host
/// that had evicted it was gone, too. Consequence: it went on writing to a namespace that was
/// emptied, or belonged to somebody else by then. Fix: the host remembers its key. If a target that
/// was not restarted does not know that key, the host was evicted.
#[test]
fn host_that_was_put_out_while_it_was_away_does_not_claim_the_namespace_again() {
    let Some(peer) = Peer::limited(Limits::default()) else { return };
    let proxy = Proxy::calm(peer.address);
    let mut away = connect(proxy.address, &wanting(Claim::Exclusive)).expect("claimed");
    away.write(0, &pattern(1, PIECE)).expect("its own");
    let mut heir = connect(peer.address, &wanting(Claim::TakeOver)).expect("taken over");
    heir.release().expect("given back");
    proxy.arm(Harm::Break, 1);
    let late = away.write(0, &pattern(2, PIECE));
    assert!(matches!(late, Err(Error::Unsuitable { .. })), "{late:?}");
    away.write(0, &pattern(2, PIECE)).expect_err("never again");
    connect(peer.address, &wanting(Claim::Exclusive)).expect("nobody has claimed it");
}

/// Mechanism: an evicted host kept its connection, on which anybody can write while nobody holds
/// the namespace. Consequence: a host that noticed nothing wrote to an emptied namespace. Fix: its
/// connections end, and a new connection tells it that it was evicted.
#[test]
fn host_that_stays_connected_while_it_is_put_out_does_not_write_when_nobody_has_the_namespace() {
    let Some(peer) = Peer::limited(Limits::default()) else { return };
    let mut late = connect(peer.address, &wanting(Claim::Exclusive)).expect("claimed");
    late.write(0, &pattern(1, PIECE)).expect("its own");
    let mut heir = connect(peer.address, &wanting(Claim::TakeOver)).expect("taken over");
    heir.release().expect("given back");
    let written = late.write(0, &pattern(2, PIECE));
    assert!(matches!(written, Err(Error::Unsuitable { .. })), "{written:?}");
    late.write(0, &pattern(2, PIECE)).expect_err("never again");
    let mut again = vec![0; PIECE];
    heir.read(0, &mut again).expect("reads");
    assert!(again == pattern(1, PIECE));
}

#[test]
fn host_whose_target_was_started_again_claims_the_namespace_again() {
    if !Peer::is_ours() {
        return;
    }
    // A file, so that it is the same namespace.
    let path = std::env::temp_dir().join(format!("cairn-nvme-again-{}", std::process::id()));
    std::fs::File::create(&path).and_then(|file| file.set_len(1 << 20)).expect("has room");
    let exported = Exported::start(&path);
    let proxy = Proxy::calm(exported.address);
    let mut host = connect(proxy.address, &wanting(Claim::Exclusive)).expect("claimed");
    exported.end();
    let again = Exported::start(&path);
    proxy.retarget(again.address);
    proxy.arm(Harm::Break, 1);
    host.write(0, &pattern(1, PIECE)).expect("its own");
    connect(again.address, &wanting(Claim::Exclusive)).map(drop).expect_err("it is claimed");
    std::fs::remove_file(&path).expect("is there");
}

/// Mechanism: a host that reconnected claimed the namespace before it looked whether the namespace
/// was still its own. Consequence: after a take-over and a restart of the target, the evicted host
/// held the namespace for a moment, and the new holder failed if it connected just then. Fix: the
/// host looks first, and claims nothing that is not its own.
#[test]
fn host_that_was_put_out_claims_nothing_of_a_target_that_was_started_again() {
    if !Peer::is_ours() {
        return;
    }
    let path = std::env::temp_dir().join(format!("cairn-nvme-out-{}", std::process::id()));
    std::fs::File::create(&path).and_then(|file| file.set_len(1 << 20)).expect("has room");
    let exported = Exported::start(&path);
    let proxy = Proxy::calm(exported.address);
    let place = format!("//{}/{}?nsid=2", proxy.address, subsystem());
    let place = RemotePath::parse(Path::new(&place)).expect("a path");
    let late = SharedRemote::open(&place, [9; 16], Claim::Exclusive).expect("claimed");
    let is_anothers = Arc::new(AtomicBool::new(false));
    let found = Arc::clone(&is_anothers);
    late.check_first(Box::new(move |_| Ok(!found.load(Ordering::SeqCst))));
    late.flush().expect("its own");
    exported.end();
    let again = Exported::start(&path);
    proxy.retarget(again.address);
    proxy.arm(Harm::Break, 1);
    is_anothers.store(true, Ordering::SeqCst);
    let refused = late.flush();
    assert!(matches!(refused, Err(Error::Unsuitable { .. })), "{refused:?}");
    let fabric = TcpFabric::new(again.address);
    let mut controller = Controller::connect(fabric, &subsystem(), &settings()).expect("there");
    let report = claim::report(&mut controller.queue(2).expect("a queue")).expect("a report");
    assert_eq!((report.generation, report.hosts.len()), (0, 0), "nobody has registered there");
    std::fs::remove_file(&path).expect("is there");
}

/// Mechanism: a host that lost the race for a namespace stayed registered. Consequence: once a
/// target had its maximum of hosts, nobody could claim any more. Fix: the loser gives its
/// registration back.
#[test]
fn host_that_has_lost_the_race_for_a_namespace_does_not_stay_registered() {
    let Some(peer) = Peer::limited(Limits::default()) else { return };
    let winner = wanting(Claim::Exclusive);
    let (address, faster) = (peer.address, winner.clone());
    // The faster host connects between the slower host's registration and its reservation.
    let watched = Watched::new(peer.fabric(), move |command| {
        if let Command::Reserve { step: Step::Acquire(_), .. } = command {
            connect(address, &faster).expect("claimed");
        }
    });
    let slower = wanting(Claim::Exclusive);
    let lost = Remote::connect(watched, &subsystem(), 2, &slower, PATIENCE).map(drop);
    assert!(matches!(lost, Err(Error::Reserved { holder }) if holder.host == winner.host_id));
    let mut controller: Controller<TcpFabric> = peer.controller();
    let report = claim::report(&mut controller.queue(2).expect("a queue")).expect("a report");
    let hosts: Vec<_> = report.hosts.iter().map(|registrant| registrant.host).collect();
    assert_eq!(hosts, [winner.host_id]);
}

/// Mechanism: a process that was refused gave back the registration of its host, whichever process
/// had made it. Consequence: a process that took the namespace over at that moment lost it again.
/// Fix: a process gives back only its own registration.
#[test]
fn process_that_was_refused_leaves_its_host_what_another_process_took_over() {
    let Some(peer) = Peer::limited(Limits::default()) else { return };
    let _holder = connect(peer.address, &wanting(Claim::Exclusive)).expect("claimed");
    let heir = wanting(Claim::TakeOver);
    let late = Settings { claim: Claim::Exclusive, ..heir.clone() };
    let [(registered, is_registered), (go_on, goes_on), (taken_over, is_taken_over)] =
        [(); 3].map(|()| mpsc::channel::<()>());
    let [goes_on, is_taken_over] = [goes_on, is_taken_over].map(Mutex::new);
    let heir_is_there = thread::spawn({
        let fabric = peer.fabric();
        move || {
            let watched = Watched::new(fabric, move |command| {
                if let Command::Reserve { step: Step::Acquire(_), .. } = command {
                    let _ = registered.send(());
                    let _ = goes_on.lock().expect("nobody panics").recv();
                }
            });
            let heir = Remote::connect(watched, &subsystem(), 2, &heir, PATIENCE);
            let _ = taken_over.send(());
            heir.map(drop)
        }
    });
    is_registered.recv().expect("is about to take it over");
    let go_on_early = go_on.clone();
    let watched = Watched::new(peer.fabric(), move |command| {
        if let Command::Reserve { step: Step::Register(UNREGISTER), .. } = command {
            let _ = go_on_early.send(());
            let _ = is_taken_over.lock().expect("nobody panics").recv();
        }
    });
    let refused = Remote::connect(watched, &subsystem(), 2, &late, PATIENCE).map(drop);
    assert!(matches!(refused, Err(Error::Reserved { .. })), "{refused:?}");
    drop(go_on);
    heir_is_there.join().expect("ends").expect("taken over");
    let mut controller: Controller<TcpFabric> = peer.controller();
    let report = claim::report(&mut controller.queue(2).expect("a queue")).expect("a report");
    assert_eq!(report.holder().map(|holder| holder.host), Some(late.host_id));
}
