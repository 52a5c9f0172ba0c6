//! Hosts that present the identifier (HOSTID) of another host; reservations identify hosts by it.
//! Only Cairn's target.

use cairn_nvme::Error;
use cairn_nvme::claim::Claim;
use cairn_nvme::controller::{Fabric, Settings, discover};
use cairn_nvme::remote::Remote;
use cairn_nvme::tcp::TcpFabric;
use cairn_nvme::transport::Data;
use cairn_nvme::wire::fabrics::{ANY_CONTROLLER, ConnectData, DISCOVERY_NQN, INVALID_HOST_ID};
use cairn_nvme::wire::{Command, Completion, Nqn, Status};
use cairn_target::Limits;
use std::time::{Duration, Instant};

use crate::authentication::SecretFile;
use crate::habits::execute;
use crate::peer::{Peer, guarded, pattern, settings, subsystem};

const PATIENCE: Duration = Duration::from_secs(20);
/// Names of two hosts, and their secrets.
const HOSTS: [(&str, &str); 2] = [
    ("nqn.2026-11.io.cairn:honest", "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:"),
    (
        "nqn.2026-11.io.cairn:impostor",
        "DHHC-1:01:ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoOeXryU:",
    ),
];

fn lines() -> String {
    HOSTS.map(|(name, secret)| format!("{name} {secret}\n")).concat()
}

type Host = Remote<TcpFabric>;

fn connect(peer: &Peer, settings: &Settings) -> Result<Host, Error> {
    Remote::connect(peer.fabric(), &guarded(), 2, settings, PATIENCE)
}

fn assert_refused(result: Result<Host, Error>) {
    match result.map(drop) {
        Err(Error::Unauthenticated { why }) => assert!(why.contains("another name"), "{why}"),
        other => panic!("{other:?}"),
    }
}

/// Connects as soon as the target has noticed that other connections are gone.
fn connect_when_possible(peer: &Peer, settings: &Settings) -> Host {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match connect(peer, settings) {
            Err(Error::Unauthenticated { .. }) if Instant::now() < deadline => {}
            result => break result.expect("nobody uses the identifier"),
        }
    }
}

/// Mechanism: reservations identify hosts by the identifier they present, which nobody checked.
/// Consequence: a host that was authenticated under its own name wrote to a namespace that another
/// one had reserved, by presenting the other's identifier. Fix: while a host is connected or
/// registered, its identifier is refused under any other name.
#[test]
fn host_that_presents_the_identifier_of_another_one_is_refused() {
    if !Peer::is_ours() {
        return;
    }
    let peer = Peer::start_guarded(&lines());
    let [honest, impostor] = HOSTS.map(|(name, secret)| SecretFile::new(&[name, secret]));
    let first = Settings { claim: Claim::Exclusive, ..honest.settings() };
    let stolen = Settings { host_id: first.host_id, ..impostor.settings() };
    let mut holder = connect(&peer, &first).expect("claimed");
    assert_refused(connect(&peer, &stolen));
    let mut process = connect(&peer, &first).expect("another process of that host");
    let elsewhere = honest.settings();
    connect(&peer, &elsewhere).expect("another machine of that name");
    connect(&peer, &impostor.settings()).expect("as itself");
    process.write(0, &pattern(1, 4096)).expect("its own");
    holder.write(0, &pattern(2, 4096)).expect("its own");
    drop((holder, process));
    assert_refused(connect(&peer, &stolen));
    connect(&peer, &first).expect("it is registered").release().expect("given back");
    let mut late = connect_when_possible(&peer, &stolen);
    late.write(0, &pattern(3, 4096)).expect("it is nobody's");
    assert_refused(connect(&peer, &first));
}

/// Returns the target's answer to a host of this name with this identifier, and the connection,
/// which must stay open.
fn answer(peer: &Peer, subsystem: Nqn, host: &Nqn, host_id: [u8; 16]) -> (Completion, impl Sized) {
    let deadline = Instant::now() + PATIENCE;
    let mut transport = peer.fabric().connect(0, 4, 8192, deadline).expect("connected");
    let connect =
        Command::Connect { queue: 0, entries: 32, without_flow_control: false, keep_alive_ms: 0 };
    let (controller, host) = (ANY_CONTROLLER, host.clone());
    let data = ConnectData { host_id, controller, subsystem, host }.encode();
    (execute(&mut transport, &connect, Data::of(&data)), transport)
}

#[test]
fn identifier_that_is_another_hosts_is_named_as_what_is_wrong() {
    let Some(peer) = Peer::limited(Limits::default()) else { return };
    let [one, other] = HOSTS.map(|(name, _)| Nqn::new(name).expect("a name"));
    let (let_in, _stays) = answer(&peer, subsystem(), &one, [7; 16]);
    assert!(let_in.status.is_success());
    let (refused, _) = answer(&peer, subsystem(), &other, [7; 16]);
    assert_eq!(refused.status, Status::CONNECT_INVALID.for_good());
    assert_eq!(refused.result, INVALID_HOST_ID);
    let asking = Settings { host_id: [7; 16], host: other, ..settings() };
    discover(peer.fabric(), &asking).expect("anybody may");
    let discovery = Nqn::new(DISCOVERY_NQN).expect("a name");
    let names = [&one, &asking.host];
    let asked = names.map(|name| answer(&peer, discovery.clone(), name, [7; 16]));
    assert!(asked.iter().all(|(told, _)| told.status.is_success()));
}

/// Otherwise a host without a secret could keep other hosts out.
#[test]
fn identifier_belongs_to_nobody_who_has_not_proven_who_he_is() {
    if !Peer::is_ours() {
        return;
    }
    let peer = Peer::start_guarded(&lines());
    let [honest, _] = HOSTS.map(|(name, secret)| SecretFile::new(&[name, secret]));
    let settings = honest.settings();
    let stranger = Nqn::new(HOSTS[1].0).expect("a name");
    let (asked, _stays) = answer(&peer, guarded(), &stranger, settings.host_id);
    assert!(asked.status.is_success(), "it is asked for its proof");
    connect(&peer, &settings).expect("its own identifier");
}
