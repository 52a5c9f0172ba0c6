//! Mutual authentication of hosts and targets.
//!
//! The peer exports the same namespaces a second time under another name, only to authenticated
//! hosts: one host for each hash and group, named after them. Linux uses these; our target chooses
//! for itself.

use cairn_nvme::Error;
use cairn_nvme::controller::{Controller, Fabric, Settings};
use cairn_nvme::remote::Remote;
use cairn_nvme::secret::SecretSource;
use cairn_nvme::tcp::TcpFabric;
use cairn_nvme::transport::{Data, Transport};
use cairn_nvme::wire::auth::{Content, Failure, Message};
use cairn_nvme::wire::fabrics::{
    ANY_CONTROLLER, AUTHENTICATION_ALONE, AUTHENTICATION_DEMANDED, CONFIGURATION_ENABLED,
    ConnectData, PROPERTY_CONFIGURATION,
};
use cairn_nvme::wire::{Command, Nqn, Status};
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::habits::execute;
use crate::peer::{Peer, guarded, pattern, round_trip, settings, subsystem};
use crate::proxy::{Harm, Proxy};

/// Names of hashes and groups, with the secret of each hash's hosts, as in scripts/interop.sh.
const HASHES: [(&str, &str); 3] = [
    ("sha256", "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:"),
    (
        "sha384",
        "DHHC-1:02:AgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4fICEiIyQlJicoKSorLC0uLzAxZ5lb1w==:",
    ),
    (
        "sha512",
        "DHHC-1:00:AwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+P0BBQgHVOkA=:",
    ),
];
const GROUPS: [&str; 6] = ["null", "ffdhe2048", "ffdhe3072", "ffdhe4096", "ffdhe6144", "ffdhe8192"];
/// The target's secret, and one that it does not know.
const OF_TARGET: &str = "DHHC-1:01:ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoOeXryU:";
const STRANGE: &str = "DHHC-1:01:CQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJyg+WyJc:";

fn host(hash: &str, group: &str) -> String {
    format!("nqn.2026-11.io.cairn:host-{hash}-{group}")
}

/// Returns the file by which our target knows the hosts.
fn hosts() -> String {
    let all = HASHES.iter().flat_map(|pair| GROUPS.map(|group| (pair, group)));
    all.map(|((hash, secret), group)| format!("{} {secret} {OF_TARGET}\n", host(hash, group)))
        .collect()
}

/// A file of secrets that is removed with the test.
pub struct SecretFile(PathBuf);

impl SecretFile {
    pub fn new(lines: &[&str]) -> SecretFile {
        static FILES: AtomicU64 = AtomicU64::new(0);
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let name = format!("cairn-test-secret-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&path).expect("made");
        file.write_all(lines.join("\n").as_bytes()).expect("written");
        SecretFile(path)
    }

    pub fn settings(&self) -> Settings {
        Settings { secrets: Some(SecretSource::File(self.0.clone()).into()), ..settings() }
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn connect(peer: &Peer, settings: &Settings) -> Result<Controller<TcpFabric>, Error> {
    Controller::connect(peer.fabric(), &guarded(), settings)
}

fn why(result: Result<Controller<TcpFabric>, Error>) -> &'static str {
    match result {
        Err(Error::Unauthenticated { why }) => why,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("connected"),
    }
}

#[test]
fn hosts_are_authenticated_with_every_hash_and_group_and_so_is_the_target() {
    let peer = Peer::start_guarded(&hosts());
    // Our target chooses hash and group for itself: see its own tests.
    let groups = if Peer::is_ours() { &GROUPS[..1] } else { &GROUPS[..] };
    for (hash, secret) in HASHES {
        for (index, group) in groups.iter().enumerate() {
            for of_target in [&[][..], &[OF_TARGET]] {
                let host = host(hash, group);
                let file = SecretFile::new(&[&[&host, secret], of_target].concat());
                let mut controller = connect(&peer, &file.settings())
                    .unwrap_or_else(|error| panic!("{host}, {}: {error}", of_target.len()));
                let mut queue = controller.queue(1).expect("an I/O queue");
                round_trip(&mut queue, 60 << 20, &pattern(index as u64, 4096));
                controller.shut_down().expect("ends");
            }
        }
    }
}

#[test]
fn wrong_secrets_are_refused_on_both_sides() {
    let peer = Peer::start_guarded(&hosts());
    let (host, [(_, secret), ..]) = (host("sha256", "ffdhe2048"), HASHES);
    let wrong_host = SecretFile::new(&[&host, STRANGE]);
    match connect(&peer, &wrong_host.settings()) {
        // Linux may end the connection before its reason arrives.
        Err(Error::Closed) if !Peer::is_ours() => {}
        refused => assert!(why(refused).contains("are not the same")),
    }
    let wrong_target = SecretFile::new(&[&host, secret, STRANGE]);
    let error = why(connect(&peer, &wrong_target.settings()));
    assert!(error.contains("could not prove who it is"), "{error}");
}

#[test]
fn hosts_without_a_secret_or_a_name_that_the_target_knows_are_refused() {
    let peer = Peer::start_guarded(&hosts());
    let known = Settings { host: Nqn::new(&host("sha256", "null")).unwrap(), ..settings() };
    let error = why(connect(&peer, &known));
    assert!(error.contains("?auth=FILE"), "{error}");
    let (stranger, [(_, secret), ..]) = ("nqn.2026-11.io.cairn:stranger", HASHES);
    let file = SecretFile::new(&[stranger, secret]);
    let refused = connect(&peer, &file.settings()).unwrap_err();
    let is_refused =
        |status: Status| [Status::HOST_INVALID, Status::CONNECT_INVALID].contains(&status.code());
    assert!(matches!(refused, Error::Refused { status, .. } if is_refused(status)), "{refused}");
}

#[test]
fn target_that_does_not_ask_for_the_secret_that_was_given_is_refused() {
    let peer = Peer::start();
    let [(_, secret), ..] = HASHES;
    let file = SecretFile::new(&[&host("sha256", "null"), secret]);
    let open = subsystem();
    let error = why(Controller::connect(peer.fabric(), &open, &file.settings()));
    assert!(error.contains("does not ask"), "{error}");
}

#[test]
fn nothing_is_done_before_the_host_has_proven_itself() {
    // Another target may end the connection.
    if !Peer::is_ours() {
        return;
    }
    let peer = Peer::start_guarded(&hosts());
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut transport = peer.fabric().connect(0, 4, 8192, deadline).expect("connected");
    let host = Nqn::new(&host("sha256", "null")).unwrap();
    let (controller, host_id) = (ANY_CONTROLLER, [7; 16]);
    let data = ConnectData { host_id, controller, subsystem: guarded(), host }.encode();
    let connect =
        Command::Connect { queue: 0, entries: 32, without_flow_control: false, keep_alive_ms: 0 };
    let connected = execute(&mut transport, &connect, Data::of(&data));
    assert!(connected.status.is_success());
    assert_eq!(connected.result & AUTHENTICATION_DEMANDED, AUTHENTICATION_ALONE);
    let (property, value) = (PROPERTY_CONFIGURATION, CONFIGURATION_ENABLED);
    let mut page = vec![0; 4096];
    for (command, data) in [
        (Command::PropertySet { property, value }, Data::None),
        (Command::PropertyGet { property, is_wide: false }, Data::None),
        (Command::Identify { page: 1, namespace: 0 }, Data::into(&mut page)),
        (Command::KeepAlive, Data::None),
    ] {
        let ended = execute(&mut transport, &command, data);
        assert_eq!(ended.status.code(), Status::AUTHENTICATION_REQUIRED, "{command:?}");
    }
    let mut too_much = vec![0; 8192];
    let receive = Command::AuthenticationReceive { bytes: 8192 };
    let ended = execute(&mut transport, &receive, Data::into(&mut too_much));
    assert_eq!(ended.status.code(), Status::INVALID_FIELD);
    let nonsense = [0xff; 64];
    let send = Command::AuthenticationSend { bytes: 64 };
    assert!(execute(&mut transport, &send, Data::of(&nonsense)).status.is_success());
    let mut answer = vec![0; 4096];
    let receive = Command::AuthenticationReceive { bytes: 4096 };
    execute(&mut transport, &receive, Data::into(&mut answer));
    let told = Message::decode(&answer).expect("a message").content;
    assert_eq!(told, Content::Failure1(Failure::MESSAGE));
    let ended = transport.poll(Instant::now() + Duration::from_secs(20));
    assert_eq!(ended, Err(Error::Closed), "who fails has lost the connection");
}

/// Mechanism: secrets were read again whenever a connection broke. Consequence: a program that had
/// changed its user or its environment since could not reconnect, and one that changed its
/// environment at that moment raced with the read. Fix: secrets are kept.
#[test]
fn host_whose_secrets_cannot_be_read_any_more_connects_again() {
    let peer = Peer::start_guarded(&hosts());
    let proxy = Proxy::calm(peer.address);
    let (hash, secret) = HASHES[0];
    let file = SecretFile::new(&[&host(hash, GROUPS[0]), secret]);
    let settings = file.settings();
    let fabric = TcpFabric::new(proxy.address);
    let patience = Duration::from_secs(5);
    let mut remote =
        Remote::connect(fabric, &guarded(), 1, &settings, patience).expect("connected");
    drop(file);
    proxy.arm(Harm::Break, 1);
    remote.read(0, &mut [0; 4096]).expect("connected again");
    assert!(proxy.is_done());
}
