//! More hosts than the target has threads or memory for. Only Cairn's target: others have limits of
//! their own.

use cairn_nvme::controller::Controller;
use cairn_nvme::tcp::TcpTransport;
use cairn_nvme::transport::{Data, Transport};
use cairn_nvme::wire::Command;
use cairn_nvme::wire::command::Blocks;
use cairn_target::Resources;
use std::time::{Duration, Instant};

use crate::habits::connect;
use crate::peer::{NAMESPACES, Peer, pattern, round_trip, settings, subsystem};
use crate::proxy::{Harm, Proxy};

const PIECE: usize = 64 << 10;

fn peer(memory_bytes: usize, patience: Duration) -> Option<Peer> {
    let resources = Resources { threads: 1, memory_bytes, patience, ..Resources::default() };
    Peer::with(resources)
}

/// Returns the command that writes or reads a piece.
fn piece(index: usize, is_write: bool) -> Command {
    let (namespace, block_bytes) = NAMESPACES[1];
    let count = (PIECE as u64 / block_bytes) as u32;
    let blocks = Blocks { first: index as u64 * u64::from(count), count };
    match is_write {
        true => Command::Write { namespace, blocks, is_durable: false },
        false => Command::Read { namespace, blocks },
    }
}

/// Completes the commands of all hosts at the same time.
fn do_all(hosts: &mut [[TcpTransport; 2]]) {
    let mut left = hosts.iter().map(|[_, queue]| queue.under_way()).sum::<usize>();
    let deadline = Instant::now() + Duration::from_secs(60);
    while left > 0 {
        for [_, queue] in hosts.iter_mut() {
            while let Some(ended) = queue.poll(Instant::now()).expect("connected") {
                assert!(ended.status.is_success(), "{ended:?}");
                left -= 1;
            }
        }
        assert!(Instant::now() < deadline, "{left} commands do not end");
    }
}

#[test]
fn hundreds_of_hosts_that_want_more_memory_than_there_is_are_all_served() {
    const HOSTS: usize = 128;
    const EACH: usize = 4;
    let Some(peer) = peer(2 << 20, Duration::from_secs(60)) else { return };
    let mut hosts: Vec<_> = (0..HOSTS).map(|_| connect(&peer)).collect();
    let source: Vec<Vec<u8>> = (0..HOSTS).map(|host| pattern(host as u64, PIECE)).collect();
    let mut target = vec![vec![0; PIECE]; HOSTS * EACH];
    // Hosts take turns at the pieces, so that the last writer of each piece is known.
    for ([_, queue], bytes) in hosts.iter_mut().zip(&source) {
        for index in 0..EACH {
            // SAFETY: the source outlives the commands, and nobody changes it.
            unsafe { queue.submit(piece(index, true).encode(), Data::of(bytes)) }.expect("sent");
        }
    }
    do_all(&mut hosts);
    for (host, [_, queue]) in hosts.iter_mut().enumerate() {
        for (index, bytes) in target[host * EACH..][..EACH].iter_mut().enumerate() {
            // SAFETY: nobody looks at the target buffers before all commands have ended.
            unsafe { queue.submit(piece(index, false).encode(), Data::into(bytes)) }.expect("sent");
        }
    }
    do_all(&mut hosts);
    for (index, bytes) in target.iter().enumerate() {
        assert!(source.contains(bytes), "piece {} is a mixture", index % EACH);
        assert!(*bytes == target[index % EACH], "hosts see the same");
    }
}

#[test]
fn hosts_that_hold_memory_and_send_nothing_lose_it_to_one_that_needs_it() {
    let Some(peer) = peer(1 << 20, Duration::from_secs(6)) else { return };
    // The hosts send their commands, but not the data that the target requests.
    let proxy = Proxy::start(peer.address, Harm::Deafness, 1);
    let mut hoarders: Vec<_> = (0..8).map(|_| connect(&Peer { address: proxy.address })).collect();
    let bytes = pattern(1, PIECE);
    for [_, queue] in &mut hoarders {
        for index in 0..4 {
            // SAFETY: the bytes outlive the commands, and nobody changes them.
            unsafe { queue.submit(piece(index, true).encode(), Data::of(&bytes)) }.expect("sent");
        }
    }
    for [_, queue] in &mut hoarders {
        assert_eq!(queue.poll(Instant::now()).expect("connected"), None);
    }
    let mut controller =
        Controller::connect(peer.fabric(), &subsystem(), &settings()).expect("connected");
    let mut queue = controller.queue(2).expect("an I/O queue");
    round_trip(&mut queue, 0, &pattern(2, 1 << 20));
    let lost = hoarders.iter_mut().filter_map(|[_, queue]| {
        let deadline = Instant::now() + Duration::from_secs(20);
        queue.poll(deadline).err()
    });
    assert!(lost.count() > 0, "somebody had to give way");
}
