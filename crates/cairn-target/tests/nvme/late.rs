//! Commands that arrive long after their connection was given up. Only Cairn's target.

use cairn_nvme::controller::Settings;
use cairn_nvme::remote::Remote;
use cairn_nvme::tcp::TcpFabric;
use cairn_target::{Limits, Namespace, Subsystem};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::peer::{Peer, open, pattern, settings, subsystem};

const PATIENCE: Duration = Duration::from_secs(20);
const PAGE: usize = 4096;
/// Connections of the host's first controller, in the order in which they are made.
const ADMIN: usize = 0;
const IO: usize = 1;

/// A proxy that forwards everything. What a host sends on its first two connections passes only
/// while the lock of that connection is free.
struct Delay {
    address: SocketAddr,
    locks: Arc<[Mutex<()>; 2]>,
    /// Number of messages from the target on the second connection, its end included.
    heard: Arc<AtomicUsize>,
}

impl Delay {
    fn start(target: SocketAddr) -> Delay {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("there is a port");
        let address = listener.local_addr().expect("it listens");
        let delay = Delay { address, locks: Arc::default(), heard: Arc::default() };
        let (locks, heard) = (Arc::clone(&delay.locks), Arc::clone(&delay.heard));
        thread::spawn(move || {
            for (number, host) in listener.incoming().map_while(Result::ok).enumerate() {
                let Ok(target) = TcpStream::connect(target) else { break };
                let clones = host.try_clone().and_then(|host| Ok((host, target.try_clone()?)));
                let (from, to) = clones.expect("there are descriptors");
                let (locks, heard) = (Arc::clone(&locks), Arc::clone(&heard));
                let wait = move || drop(locks.get(number).map(|lock| lock.lock()));
                let count = move || {
                    heard.fetch_add(usize::from(number == IO), Ordering::SeqCst);
                };
                thread::spawn(move || pass(&from, &to, wait));
                thread::spawn(move || pass(&target, &host, count));
            }
        });
        delay
    }
}

fn pass(mut from: &TcpStream, mut to: &TcpStream, each: impl Fn()) {
    let mut buffer = vec![0; 1 << 17];
    loop {
        let received = from.read(&mut buffer);
        each();
        match received {
            Ok(count @ 1..) if to.write_all(&buffer[..count]).is_ok() => {}
            _ => break,
        }
    }
    // PDUs that were forwarded may still be answered.
    let _ = (from.shutdown(Shutdown::Read), to.shutdown(Shutdown::Write));
}

/// Holds back a host's write until the host has given up its connection and has written other bytes
/// on another one. Returns the content after the target has received the late write.
fn what_is_there_after_a_late_write(target: Subsystem, namespace: u32) -> Vec<u8> {
    let peer = Peer::of_one(target);
    let delay = Delay::start(peer.address);
    let settings = Settings { timeout: Duration::from_millis(500), ..settings() };
    let fabric = TcpFabric::new(delay.address);
    let mut host =
        Remote::connect(fabric, &subsystem(), namespace, &settings, PATIENCE).expect("connected");
    host.write(0, &pattern(1, PAGE)).expect("written");
    let admin = delay.locks[ADMIN].lock().expect("nobody panics");
    let io = delay.locks[IO].lock().expect("nobody panics");
    let before = delay.heard.load(Ordering::SeqCst);
    host.write(0, &pattern(2, PAGE)).expect("written again, on another connection");
    host.write(0, &pattern(3, PAGE)).expect("written");
    drop(io);
    let deadline = Instant::now() + PATIENCE;
    while delay.heard.load(Ordering::SeqCst) == before {
        assert!(Instant::now() < deadline, "the target says nothing of it");
        thread::yield_now();
    }
    drop(admin);
    let mut found = vec![0; PAGE];
    host.read(0, &mut found).expect("read");
    found
}

/// Mechanism: a host that gave up a connection repeated its write on another one and continued,
/// while the first copy of the write could still be on its way.
///
/// Consequence: the target executed that copy when it arrived, over later writes.
///
/// Fix: on its next connection the host has its previous controller ended, and continues when none
/// of its commands is in progress any more.
#[test]
fn write_that_was_given_up_with_its_connection_is_not_done_over_later_ones() {
    if !Peer::is_ours() {
        return;
    }
    assert!(what_is_there_after_a_late_write(open(Limits::default()), 2) == pattern(3, PAGE));
    let path = std::env::temp_dir().join(format!("cairn-nvme-late-{}", std::process::id()));
    std::fs::File::create(&path).and_then(|file| file.set_len(1 << 20)).expect("has room");
    let namespace = Namespace::in_file(&path, PAGE as u64).expect("is there");
    let of_file = Subsystem::new(subsystem(), vec![namespace], Limits::default());
    assert!(what_is_there_after_a_late_write(of_file, 1) == pattern(3, PAGE), "in a file");
    std::fs::remove_file(&path).expect("is there");
}
