//! Namespaces and subsystems that change while hosts use them. Hosts are notified and check again.
//! Only Cairn's target.

use cairn_nvme::Error;
use cairn_nvme::controller::Fabric;
use cairn_nvme::remote::Remote;
use cairn_nvme::tcp::{TcpFabric, TcpTransport};
use cairn_nvme::transport::{Data, Transport};
use cairn_nvme::wire::fabrics::{
    ANY_CONTROLLER, CONFIGURATION_ENABLED, ConnectData, DISCOVERY_NQN, PROPERTY_CONFIGURATION,
};
use cairn_nvme::wire::identify::EVENT_DISCOVERY_CHANGED;
use cairn_nvme::wire::{Command, Nqn};
use cairn_target::grants::{Grants, Room};
use cairn_target::{Directory, Limits, Namespace, Resources, Subsystem};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::habits::execute;
use crate::peer::{Peer, settings, subsystem};

const BYTES: u64 = 8 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

/// An exported file, with handles to change it.
struct Exported {
    path: PathBuf,
    file: File,
    directory: Arc<Directory>,
    peer: Peer,
}

impl Exported {
    fn new(name: &str) -> Exported {
        let path = std::env::temp_dir().join(format!("cairn-nvme-{name}-{}", std::process::id()));
        let file = File::create(&path).expect("makes");
        file.set_len(BYTES).expect("has room");
        let namespace = Namespace::in_file(&path, 4096).expect("is there");
        let directory = Arc::new(Directory::new(Limits::default()));
        let exported = Subsystem::new(subsystem(), vec![namespace], Limits::default());
        directory.add(Arc::new(exported)).expect("the only one");
        let peer = Peer::of(Arc::clone(&directory), Resources::default());
        Exported { path, file, directory, peer }
    }

    fn connect(&self) -> Remote<TcpFabric> {
        let fabric = TcpFabric::new(self.peer.address);
        Remote::connect(fabric, &subsystem(), 1, &settings(), PATIENCE).expect("connected")
    }

    fn change_to(&self, bytes: u64) {
        self.file.set_len(bytes).expect("has room");
        self.directory.look_again();
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).expect("is there");
    }
}

/// Writes until the host notices the change, which it must.
fn write_until_told(remote: &mut Remote<TcpFabric>) {
    let deadline = Instant::now() + PATIENCE;
    while !matches!(remote.write(0, &[1; 4096]), Err(Error::Unsuitable { .. })) {
        assert!(Instant::now() < deadline, "the host notices nothing");
    }
}

/// Returns the size that a new host is told.
fn bytes_now(exported: &Exported) -> u64 {
    exported.peer.controller().namespace(1).expect("is there").bytes()
}

/// Mechanism: a host that was notified of a change, and found its namespace smaller, reported that
/// once; its connection stayed, and no further notice came on it. Consequence: the next call wrote.
/// Fix: the connection ends, and a new one finds the same change.
#[test]
fn namespace_that_shrinks_or_vanishes_at_run_time_is_not_written_any_more() {
    if !Peer::is_ours() {
        return;
    }
    for bytes in [BYTES / 2, 0] {
        let exported = Exported::new("shrinks");
        let mut remote = exported.connect();
        remote.write(0, &[1; 4096]).expect("written");
        exported.change_to(bytes);
        write_until_told(&mut remote);
        let again = remote.write(0, &[1; 4096]);
        assert!(matches!(again, Err(Error::Unsuitable { .. })), "{bytes}: {again:?}");
    }
}

#[test]
fn namespace_that_grows_at_run_time_is_used_on_and_new_hosts_see_its_size() {
    if !Peer::is_ours() {
        return;
    }
    let exported = Exported::new("grows");
    let mut remote = exported.connect();
    exported.change_to(2 * BYTES);
    assert_eq!(bytes_now(&exported), 2 * BYTES);
    for _ in 0..100 {
        remote.write(0, &[1; 4096]).expect("it is the same one");
    }
    assert_eq!(exported.connect().traits().shape.bytes(), 2 * BYTES);
}

/// Connects the admin queue of a discovery controller.
fn discovery(peer: &Peer) -> TcpTransport {
    let (host, deadline) = (settings(), Instant::now() + PATIENCE);
    let mut transport = peer.fabric().connect(0, 4, 8192, deadline).expect("connected");
    let connect =
        Command::Connect { queue: 0, entries: 32, without_flow_control: false, keep_alive_ms: 0 };
    let subsystem = Nqn::new(DISCOVERY_NQN).expect("a name");
    let (host_id, controller) = (host.host_id, ANY_CONTROLLER);
    let data = ConnectData { host_id, controller, subsystem, host: host.host }.encode();
    let enable =
        Command::PropertySet { property: PROPERTY_CONFIGURATION, value: CONFIGURATION_ENABLED };
    let want = Command::SetFeatures { feature: 0x0b, value: EVENT_DISCOVERY_CHANGED };
    for (command, data) in [(connect, Data::of(&data)), (enable, Data::None), (want, Data::None)] {
        assert!(execute(&mut transport, &command, data).status.is_success());
    }
    transport
}

fn request_event(transport: &mut TcpTransport) {
    // SAFETY: the command has no data.
    let sent = unsafe { transport.submit(Command::AsyncEventRequest.encode(), Data::None) };
    sent.expect("there is room");
    // Nothing has happened yet, but this sends the command.
    assert_eq!(transport.poll(Instant::now()), Ok(None));
}

#[test]
fn host_that_asks_for_it_is_told_when_other_subsystems_can_be_found() {
    if !Peer::is_ours() {
        return;
    }
    let directory = Arc::new(Directory::new(Limits::default()));
    let grants = Grants::new(Arc::clone(&directory), &Room::Memory, BYTES, "node1");
    let grants = grants.expect("nothing was granted before");
    let mut transport = discovery(&Peer::of(directory, Resources::default()));
    let changed = u64::from(0x70_f002_u32);
    request_event(&mut transport);
    grants.grant("one", BYTES / 2, None).expect("room");
    let told = transport.poll(Instant::now() + PATIENCE).expect("connected").expect("told");
    assert_eq!(told.result, changed);
    request_event(&mut transport);
    grants.revoke("one").expect("granted");
    // No further event comes before the log was read, so the first completion belongs to this
    // command.
    let mut log = [0; 1024];
    let read = Command::GetLogPage { page: 0x70, bytes: 1024, offset: 0, retains_event: false };
    assert!(execute(&mut transport, &read, Data::into(&mut log)).result != changed);
    let told = transport.poll(Instant::now() + PATIENCE).expect("connected").expect("told");
    assert_eq!(told.result, changed);
}
