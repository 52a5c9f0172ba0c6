//! What other initiators do, and ours does not.

use crate::peer::{NAMESPACES, Peer, pattern, settings, subsystem};
use cairn_device::nvme::controller::Fabric;
use cairn_device::nvme::tcp::TcpTransport;
use cairn_device::nvme::transport::{Data, Transport};
use cairn_device::nvme::wire::command::{Blocks, encode_range};
use cairn_device::nvme::wire::fabrics::{
    ANY_CONTROLLER, CONFIGURATION_ENABLED, ConnectData, PROPERTY_CONFIGURATION,
};
use cairn_device::nvme::wire::{Command, Completion};
use std::time::{Duration, Instant};

/// Sends a command and waits for its end.
pub fn execute(transport: &mut TcpTransport, command: &Command, data: Data) -> Completion {
    // SAFETY: whoever made `data` lent it until this returns.
    unsafe { transport.submit(command.encode(), data) }.expect("sent");
    let ended = transport.poll(Instant::now() + Duration::from_secs(20));
    ended.expect("connected").expect("answered")
}

/// An I/O queue, connected step by step; and the admin queue that it needs.
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
/// devices fetch that many whatever the command says; our target wanted as many bytes as the ranges
/// have. Consequence: discarding failed, and a file system on our target saw I/O errors. Fix: there
/// may be more data than ranges, and the rest means nothing.
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
