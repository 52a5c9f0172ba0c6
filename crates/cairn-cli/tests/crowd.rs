//! `cairn target` with hundreds of hosts that request more memory than it has.

mod common;

use cairn_nvme::controller::{Fabric, Settings};
use cairn_nvme::tcp::{TcpFabric, TcpTransport};
use cairn_nvme::transport::{Data, Transport};
use cairn_nvme::wire::command::Blocks;
use cairn_nvme::wire::fabrics::{
    ANY_CONTROLLER, CONFIGURATION_ENABLED, ConnectData, PROPERTY_CONFIGURATION,
};
use cairn_nvme::wire::{Command, Completion, Nqn};
use common::Sandbox;
use common::target::start;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const HOSTS: u64 = 200;
const COMMANDS: usize = 16;
const PIECE: usize = 128 << 10;

fn execute(transport: &mut TcpTransport, command: &Command, data: Data) -> Completion {
    // SAFETY: the caller of `execute` keeps the buffer behind `data` valid until this returns.
    unsafe { transport.submit(command.encode(), data) }.expect("sent");
    let ended = transport.poll(Instant::now() + PATIENCE).expect("connected").expect("answered");
    assert!(ended.status.is_success(), "{ended:?}");
    ended
}

/// Connects a host's admin queue and I/O queue.
fn connect(address: SocketAddr, subsystem: &Nqn, number: u64) -> [TcpTransport; 2] {
    let mut host_id = [9; 16];
    host_id[..8].copy_from_slice(&number.to_le_bytes());
    let (host, deadline) = (Settings::new(host_id).host, Instant::now() + PATIENCE);
    let mut controller = ANY_CONTROLLER;
    [0, 1].map(|queue| {
        let fabric = TcpFabric::new(address);
        let mut transport = fabric.connect(queue, 32, 8192, deadline).expect("connected");
        let (entries, keep_alive_ms, without_flow_control) = (32, 0, true);
        let connect = Command::Connect { queue, entries, without_flow_control, keep_alive_ms };
        let (subsystem, host) = (subsystem.clone(), host.clone());
        let data = ConnectData { host_id, controller, subsystem, host }.encode();
        let ended = execute(&mut transport, &connect, Data::of(&data));
        if queue == 0 {
            controller = ended.result as u16;
            let (property, value) = (PROPERTY_CONFIGURATION, CONFIGURATION_ENABLED);
            execute(&mut transport, &Command::PropertySet { property, value }, Data::None);
        }
        transport
    })
}

/// Anonymous memory of a process in bytes, without shared memory such as namespaces.
fn own_memory(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("Linux says");
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().expect("a number");
    kib << 10
}

/// The hosts request buffers for 400 MiB at once, and the target has 8 MiB. Beside that, a
/// connection may cost 16 KiB of a capsule and its commands.
#[test]
fn hundreds_of_hosts_are_served_in_the_memory_that_was_given() {
    let sandbox = Sandbox::new();
    let (target, report) = start(&sandbox, &["--threads", "1", "--memory", "8M", "ram:64M"]);
    let address = report["address"].as_str().expect("an address").parse().expect("an address");
    let subsystem = Nqn::new(report["nqn"].as_str().expect("a name")).expect("a name");
    let before = own_memory(target.id());
    let mut hosts: Vec<_> = (0..HOSTS).map(|host| connect(address, &subsystem, host)).collect();
    let bytes = vec![7; PIECE];
    let count = (PIECE / 4096) as u32;
    for [_, queue] in &mut hosts {
        for index in 0..COMMANDS {
            let blocks = Blocks { first: index as u64 * u64::from(count), count };
            let write = Command::Write { namespace: 1, blocks, is_durable: false };
            // SAFETY: the bytes outlive the commands, and nobody changes them.
            unsafe { queue.submit(write.encode(), Data::of(&bytes)) }.expect("sent");
        }
    }
    let (mut left, mut most) = (hosts.len() * COMMANDS, 0);
    let deadline = Instant::now() + PATIENCE;
    while left > 0 {
        for [_, queue] in &mut hosts {
            while let Some(ended) = queue.poll(Instant::now()).expect("connected") {
                assert!(ended.status.is_success(), "{ended:?}");
                left -= 1;
            }
        }
        most = most.max(own_memory(target.id()));
        assert!(Instant::now() < deadline, "{left} commands do not end");
    }
    let grown = most.saturating_sub(before);
    assert!(grown < 24 << 20, "{HOSTS} hosts cost {grown} bytes");
}
