//! Behaviour of other initiators that ours does not have.

use cairn_nvme::controller::Fabric;
use cairn_nvme::tcp::TcpTransport;
use cairn_nvme::transport::{Data, Transport};
use cairn_nvme::wire::command::{Blocks, encode_range};
use cairn_nvme::wire::fabrics::{
    ANY_CONTROLLER, CONFIGURATION_ENABLED, ConnectData, PROPERTY_CONFIGURATION,
};
use cairn_nvme::wire::{Command, Completion};
use std::time::{Duration, Instant};

use crate::peer::{NAMESPACES, Peer, pattern, settings, subsystem};

/// Sends a command and waits for its completion.
pub fn execute(transport: &mut TcpTransport, command: &Command, data: Data) -> Completion {
    // SAFETY: the creator of `data` lent it until this returns.
    unsafe { transport.submit(command.encode(), data) }.expect("sent");
    let ended = transport.poll(Instant::now() + Duration::from_secs(20));
    ended.expect("connected").expect("answered")
}

/// Connects an admin queue and an I/O queue, step by step.
pub fn connect(peer: &Peer) -> [TcpTransport; 2] {
    let (host, deadline) = (settings(), Instant::now() + Duration::from_secs(20));
    let mut controller = ANY_CONTROLLER;
    [0, 1].map(|queue| {
        let mut transport = peer.fabric().connect(queue, 4, 8192, deadline).expect("connected");
        let (entries, keep_alive_ms, without_flow_control) = (32, 0, false);
        let connect = Command::Connect { queue, entries, without_flow_control, keep_alive_ms };
        let (host_id, subsystem, host) = (host.host_id, subsystem(), host.host.clone());
        let data = ConnectData { host_id, controller, subsystem, host }.encode();
        let ended = execute(&mut transport, &connect, Data::of(&data));
        assert!(ended.status.is_success(), "{ended:?}");
        if queue == 0 {
            controller = ended.result as u16;
            let (property, value) = (PROPERTY_CONFIGURATION, CONFIGURATION_ENABLED);
            let enable = Command::PropertySet { property, value };
            assert!(execute(&mut transport, &enable, Data::None).status.is_success());
        }
        transport
    })
}

/// Mechanism: Linux sends room for 256 ranges with every Dataset Management command, because some
/// devices fetch that many whatever the command says. Our target required exactly the bytes of the
/// ranges. Consequence: discarding failed, and a file system on our target saw I/O errors. Fix:
/// more data than ranges are accepted, and the rest is ignored.
#[test]
fn discard_that_comes_with_room_for_more_ranges_is_done() {
    let peer = Peer::start();
    let [_admin, mut queue] = connect(&peer);
    let (namespace, block_bytes) = NAMESPACES[1];
    let blocks = Blocks { first: 6000, count: 2 };
    let bytes = pattern(3, 2 * block_bytes as usize);
    let write = Command::Write { namespace, blocks, is_durable: false };
    assert!(execute(&mut queue, &write, Data::of(&bytes)).status.is_success());
    let mut ranges = [0xff; 4096];
    ranges[..16].copy_from_slice(&encode_range(Blocks { first: 6001, count: 1 }));
    let discard = Command::Deallocate { namespace, ranges: 1 };
    let ended = execute(&mut queue, &discard, Data::of(&ranges));
    assert!(ended.status.is_success(), "{ended:?}");
    let mut after = vec![1; bytes.len()];
    let read = Command::Read { namespace, blocks };
    assert!(execute(&mut queue, &read, Data::into(&mut after)).status.is_success());
    assert!(after[..block_bytes as usize] == bytes[..block_bytes as usize]);
}
