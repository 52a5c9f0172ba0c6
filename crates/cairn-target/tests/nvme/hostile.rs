//! Peers that violate the protocol: each is told so and loses its connection, without effect on
//! others.

use cairn_nvme::Error;
use cairn_nvme::controller::{Controller, Settings};
use cairn_nvme::tcp::TcpFabric;
use cairn_nvme::wire::fabrics::{
    ANY_CONTROLLER, CONFIGURATION_ENABLED, ConnectData, DISCOVERY_NQN, PROPERTY_CONFIGURATION,
};
use cairn_nvme::wire::identify::CNS_CONTROLLER;
use cairn_nvme::wire::pdu::{
    COMMON_BYTES, Frame, Framing, Header, InitializeRequest, InitializeResponse, Terminate,
    Transfer,
};
use cairn_nvme::wire::{Command, Completion, DataPointer, Entry, Nqn, Status};
use cairn_target::inline_target::InlineTarget;
use cairn_target::{Directory, Limits, Resources};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use crate::peer::{Peer, open, settings, subsystem};

/// Receives a PDU; returns its header, and its data without digest.
pub fn receive(stream: &mut impl Read) -> (Header, Vec<u8>) {
    let mut bytes = vec![0; COMMON_BYTES];
    stream.read_exact(&mut bytes).expect("a PDU");
    let frame = Frame::decode(bytes.first_chunk().unwrap(), Framing::PLAIN).expect("a PDU");
    bytes.resize(frame.header_bytes, 0);
    stream.read_exact(&mut bytes[COMMON_BYTES..]).unwrap();
    let mut data = vec![0; frame.data_at - frame.header_bytes + frame.data_bytes];
    stream.read_exact(&mut data).unwrap();
    let data = data.split_off(frame.data_at - frame.header_bytes);
    (Header::decode(&frame, &bytes).expect("a header"), data)
}

/// Sends a PDU.
pub fn send(stream: &mut impl Write, header: &Header, data: &[u8]) {
    stream.write_all(header.encode(data.len(), Framing::PLAIN).bytes()).unwrap();
    stream.write_all(data).unwrap();
}

/// Accepts a host and initialises the connection.
pub fn accept(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = listener.accept().unwrap();
    receive(&mut stream);
    let response = InitializeResponse {
        data_alignment: 4,
        header_digest: false,
        data_digest: false,
        data_bytes_max: 4096,
    };
    send(&mut stream, &Header::InitializeResponse(response), &[]);
    stream
}

fn initialize_request() -> Header {
    Header::InitializeRequest(InitializeRequest {
        data_alignment: 4,
        header_digest: false,
        data_digest: false,
        transfers_max: 1,
    })
}

/// Sends `bytes` on a new connection, after its initialisation if `is_initialized`. Returns the
/// target's reason to end the connection, and the header it returns.
fn provoke(peer: &Peer, is_initialized: bool, bytes: &[u8]) -> (Terminate, Vec<u8>) {
    let mut stream = TcpStream::connect(peer.address).unwrap();
    if is_initialized {
        send(&mut stream, &initialize_request(), &[]);
        receive(&mut stream);
    }
    stream.write_all(bytes).unwrap();
    let (Header::ControllerTerminate(why), header) = receive(&mut stream) else {
        panic!("not the end")
    };
    let mut rest = Vec::new();
    // The connection may be reset if more was sent than the target has read.
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.is_empty(), "nothing follows");
    (why, header)
}

#[test]
fn host_that_breaks_the_rules_is_told_which_field_and_loses_its_connection() {
    // Another target may report more or less.
    let Some(peer) = Peer::limited(Default::default()) else { return };
    let command = Header::Command(Command::KeepAlive.encode());
    let transfer = Transfer { command_id: 1, tag: 9, offset: 0, length: 4 };
    let unasked = Header::HostData { transfer, is_last: true };
    let plain = |header: &Header, data: &[u8]| {
        [header.encode(data.len(), Framing::PLAIN).bytes(), data].concat()
    };
    let too_much = plain(&command, &vec![0; 8196]);
    let cases = [
        ("nonsense", false, b"GET / HTTP/1.1\r\n\r\n".to_vec(), 1, 0),
        ("a command first", false, plain(&command, &[]), 2, 0),
        ("a second start", true, plain(&initialize_request(), &[]), 2, 0),
        ("data that nobody asked for", true, plain(&unasked, &[0; 4]), 1, 10),
        ("more than a capsule holds", true, too_much, 1, 4),
        ("a response", true, plain(&Header::Response(Completion::default()), &[]), 2, 0),
    ];
    for (name, is_initialized, bytes, status, information) in cases {
        let (why, header) = provoke(&peer, is_initialized, &bytes);
        assert_eq!(why, Terminate { status, information }, "{name}");
        assert_eq!(header, bytes[..header.len()], "{name}: the header that was wrong");
    }
    peer.controller().keep_alive().unwrap();
}

/// Mechanism: before a connection ended, its pending output was sent, and that gave memory to
/// waiting commands, which then began.
///
/// Consequence: answers and requests for data followed the final PDU, and commands were executed
/// for a host that had lost its connection.
///
/// Fix: the output is sent, and no command begins.
#[test]
fn commands_that_wait_when_their_connection_ends_are_not_done() {
    let limits = Limits { awaited_bytes: 4096, ..Limits::default() };
    let Some(peer) = Peer::limited(limits) else { return };
    let mut stream = TcpStream::connect(peer.address).unwrap();
    send(&mut stream, &initialize_request(), &[]);
    receive(&mut stream);
    let host = settings();
    let connect =
        Command::Connect { queue: 0, entries: 32, without_flow_control: false, keep_alive_ms: 0 };
    let (host_id, subsystem, host) = (host.host_id, subsystem(), host.host);
    let data = ConnectData { host_id, controller: ANY_CONTROLLER, subsystem, host }.encode();
    let mut entry = connect.encode();
    entry.set_data_pointer(DataPointer::InCapsule { offset: 0, length: data.len() as u32 });
    send(&mut stream, &Header::Command(entry), &data);
    receive(&mut stream);
    let (property, value) = (PROPERTY_CONFIGURATION, CONFIGURATION_ENABLED);
    let mut enable = Command::PropertySet { property, value }.encode();
    enable.set_data_pointer(DataPointer::Transport { length: 0 });
    send(&mut stream, &Header::Command(enable), &[]);
    receive(&mut stream);
    let mut identify = Command::Identify { page: CNS_CONTROLLER, namespace: 0 }.encode();
    identify.set_data_pointer(DataPointer::Transport { length: 4096 });
    let identify = Header::Command(identify).encode(0, Framing::PLAIN);
    // There is room for one answer; the second command waits.
    stream.write_all(&[identify.bytes(), identify.bytes(), b"nonsense"].concat()).unwrap();
    assert!(matches!(receive(&mut stream).0, Header::ControllerData { .. }));
    assert!(matches!(receive(&mut stream).0, Header::Response(_)));
    assert!(matches!(receive(&mut stream).0, Header::ControllerTerminate(_)));
    let mut rest = Vec::new();
    // The connection may be reset if more was sent than the target has read.
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.is_empty(), "{} bytes follow the end", rest.len());
}

#[test]
fn host_that_sends_more_commands_than_its_queue_holds_loses_its_connection() {
    let Some(peer) = Peer::limited(Default::default()) else { return };
    let mut stream = TcpStream::connect(peer.address).unwrap();
    send(&mut stream, &initialize_request(), &[]);
    receive(&mut stream);
    let connect =
        Command::Connect { queue: 0, entries: 32, without_flow_control: false, keep_alive_ms: 0 };
    let mut entry = connect.encode();
    // The target has to request the data, and keeps the command meanwhile.
    entry.set_data_pointer(DataPointer::Transport { length: 1024 });
    for _ in 0..2 {
        send(&mut stream, &Header::Command(entry), &[]);
        assert!(matches!(receive(&mut stream).0, Header::ReadyToTransfer(_)));
    }
    send(&mut stream, &Header::Command(entry), &[]);
    let Header::ControllerTerminate(why) = receive(&mut stream).0 else { panic!("not the end") };
    assert_eq!(why, Terminate { status: 2, information: 0 });
}

#[test]
fn commands_before_a_queue_is_connected_are_refused_and_the_connection_goes_on() {
    // Another target may end the connection.
    let Some(peer) = Peer::limited(Default::default()) else { return };
    let mut stream = TcpStream::connect(peer.address).unwrap();
    send(&mut stream, &initialize_request(), &[]);
    receive(&mut stream);
    for command in [Command::KeepAlive, Command::Identify { page: 1, namespace: 0 }] {
        let mut entry = command.encode();
        entry.set_command_id(77);
        send(&mut stream, &Header::Command(entry), &[]);
        let (Header::Response(completion), _) = receive(&mut stream) else { panic!() };
        assert_eq!(completion.command_id, 77);
        assert!(!completion.status.is_success(), "{completion:?}");
    }
}

/// Mechanism: a host that only used discovery, which is open to everybody, and gave no Keep Alive
/// timeout could stay connected for ever.
///
/// Consequence: a host without a secret took all connections of a target.
///
/// Fix: such a connection ends after two minutes of silence.
#[test]
fn who_only_asks_what_there_is_cannot_stay_for_ever_in_silence() {
    let directory = Arc::new(Directory::new(Limits::default()));
    directory.add(Arc::new(open(Limits::default()))).unwrap();
    let mut target = InlineTarget::new(directory, 1 << 20).unwrap();
    let discovery = Nqn::new(DISCOVERY_NQN).unwrap();
    for (name, stays) in [(discovery, false), (subsystem(), true)] {
        let (mut stream, other) = UnixStream::pair().unwrap();
        let number = target.admit(other.into()).unwrap();
        send(&mut stream, &initialize_request(), &[]);
        target.serve(number);
        receive(&mut stream);
        let connect = Command::Connect {
            queue: 0,
            entries: 32,
            without_flow_control: false,
            keep_alive_ms: 0,
        };
        let Settings { host_id, host, .. } = settings();
        let (controller, subsystem) = (ANY_CONTROLLER, name);
        let data = ConnectData { host_id, controller, subsystem, host }.encode();
        let mut entry = connect.encode();
        entry.set_data_pointer(DataPointer::InCapsule { offset: 0, length: data.len() as u32 });
        send(&mut stream, &Header::Command(entry), &data);
        target.serve(number);
        let (Header::Response(completion), _) = receive(&mut stream) else { panic!() };
        assert!(completion.status.is_success(), "{completion:?}");
        target.wait(Duration::from_secs(100));
        assert!(target.serve(number), "it may think a while");
        target.wait(Duration::from_secs(100));
        assert_eq!(target.serve(number), stays);
    }
}

/// Mechanism: connections of unauthenticated hosts took the places of authenticated ones.
/// Consequence: a host without a secret kept all others out. Fix: unauthenticated connections get
/// half of the places, and each new one ends the oldest.
#[test]
fn who_has_proven_nothing_for_a_while_gives_way_to_who_comes() {
    let resources = Resources { threads: 1, connections_max: 16, ..Resources::default() };
    let Some(peer) = Peer::with(resources) else { return };
    let mut silent: Vec<_> =
        (0..9).map(|_| TcpStream::connect(peer.address).expect("it listens")).collect();
    silent[0].set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let is_ended = (0..200).any(|_| {
        drop(TcpStream::connect(peer.address).expect("it listens"));
        !matches!(silent[0].read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
    });
    assert!(is_ended, "the oldest of nine, where eight may stay");
    peer.controller().keep_alive().expect("there is room");
}

/// What a controller does with the entry of a host's first command.
type Trick = fn(&mut TcpStream, Entry);

/// Connects to a controller that plays a trick. Returns the host's error, and the reason that the
/// host sends to the controller.
fn be_tricked(trick: Trick) -> (Error, Option<Terminate>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let controller = std::thread::spawn(move || {
        let mut stream = accept(&listener);
        let (Header::Command(entry), _) = receive(&mut stream) else { panic!("no command") };
        trick(&mut stream, entry);
        let mut told = Vec::new();
        let _ = stream.read_to_end(&mut told);
        let common = told.first_chunk()?;
        let frame = Frame::decode(common, Framing::PLAIN).ok()?;
        match Header::decode(&frame, &told[..frame.header_bytes]) {
            Ok(Header::HostTerminate(why)) => {
                assert!(frame.data_bytes >= COMMON_BYTES, "the header that was wrong");
                Some(why)
            }
            _ => None,
        }
    });
    let fabric = TcpFabric::new(address);
    let settings = Settings { timeout: Duration::from_secs(20), ..settings() };
    let connected = Controller::connect(fabric, &subsystem(), &settings).map(|_| ());
    (connected.unwrap_err(), controller.join().unwrap())
}

#[test]
fn controller_that_breaks_the_rules_is_told_and_left() {
    fn respond(stream: &mut TcpStream, command_id: u16) {
        let completion = Completion { command_id, ..Completion::default() };
        send(stream, &Header::Response(completion), &[]);
    }
    fn transfer(entry: &Entry) -> Transfer {
        Transfer { command_id: entry.command_id(), tag: 0, offset: 0, length: 512 }
    }
    let tricks: [(&str, Trick, u16, u32); 5] = [
        ("answers another command", |stream, entry| respond(stream, entry.command_id() + 1), 1, 8),
        (
            "sends data for a command that has none",
            |stream, entry| {
                let (transfer, is_last, is_success) = (transfer(&entry), true, true);
                let header = Header::ControllerData { transfer, is_last, is_success };
                send(stream, &header, &[1; 512]);
            },
            2,
            0,
        ),
        (
            "asks for data that it has",
            |stream, entry| send(stream, &Header::ReadyToTransfer(transfer(&entry)), &[]),
            2,
            0,
        ),
        ("sends what hosts send", |stream, entry| send(stream, &Header::Command(entry), &[]), 2, 0),
        ("sends nonsense", |stream, _| stream.write_all(&[0xff; 64]).unwrap(), 1, 0),
    ];
    for (name, trick, status, information) in tricks {
        let (error, told) = be_tricked(trick);
        assert!(matches!(error, Error::Malformed { .. }), "{name}: {error:?}");
        assert_eq!(told, Some(Terminate { status, information }), "{name}");
    }
}

#[test]
fn reasons_of_a_controller_are_passed_on() {
    let why = Terminate { status: 3, information: 7 };
    let (error, _) = be_tricked(|stream, _| {
        let why = Terminate { status: 3, information: 7 };
        send(stream, &Header::ControllerTerminate(why), &[]);
    });
    assert_eq!(error, Error::Terminated { why });
    let (error, _) = be_tricked(|stream, entry| {
        let status = Status(0x184).for_good();
        let completion =
            Completion { command_id: entry.command_id(), status, ..Default::default() };
        send(stream, &Header::Response(completion), &[]);
    });
    assert_eq!(
        error.to_string(),
        "connect failed: connect: this host may not use the subsystem (1h/84h)"
    );
    let (error, _) = be_tricked(|stream, _| {
        stream.shutdown(std::net::Shutdown::Both).unwrap();
    });
    assert_eq!(error, Error::Closed);
}
