//! Termination of `cairn target`, and its metrics until then.

mod common;

use cairn_nvme::controller::{Controller, Settings};
use cairn_nvme::queue::Queue;
use cairn_nvme::tcp::{TcpFabric, TcpTransport};
use cairn_nvme::wire::pdu::{Framing, Header, InitializeRequest};
use cairn_nvme::wire::{Command, DataPointer, Nqn};
use common::Sandbox;
use common::target::start;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const PIECE: usize = 128 << 10;

fn address(value: &Value) -> SocketAddr {
    value.as_str().expect("an address").parse().expect("an address")
}

fn connect(report: &Value) -> (Controller<TcpFabric>, Queue<TcpTransport>) {
    let name = Nqn::new(report["nqn"].as_str().expect("a name")).expect("a name");
    let fabric = TcpFabric::new(address(&report["address"]));
    let mut controller =
        Controller::connect(fabric, &name, &Settings::new([3; 16])).expect("there");
    let queue = controller.queue(1).expect("an I/O queue");
    (controller, queue)
}

/// Answer to an HTTP request, as a monitoring system gets it.
fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "{request} HTTP/1.1\r\nHost: here\r\n\r\n").expect("it listens");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

#[test]
fn what_was_accepted_is_finished_and_durable_when_the_target_is_told_to_end() {
    let sandbox = Sandbox::new();
    let file = sandbox.work().join("export");
    std::fs::write(&file, vec![0; 32 * PIECE]).expect("writes");
    let socket = sandbox.work().join("control").display().to_string();
    let export = format!("file:{}", file.display());
    let (target, report) = start(&sandbox, &["--control", &socket, "--memory", "1M", &export]);
    let (_controller, mut queue) = connect(&report);
    let bytes = vec![7; PIECE];
    let under_way = queue.depth().min(32);
    for index in 0..under_way {
        // SAFETY: the bytes outlive the commands, and nobody changes them.
        unsafe { queue.submit_write((index * PIECE) as u64, bytes.as_ptr(), PIECE) }.expect("sent");
    }
    // The target takes commands in order: when the first is done, all others that came before the
    // signal have begun or are waiting.
    assert!(queue.wait().expect("connected").status.is_success());
    target.signal(libc::SIGTERM);
    let ended = (1..under_way).map_while(|_| queue.wait().ok());
    let done = 1 + ended.filter(|ended| ended.status.is_success()).count();
    assert_eq!(target.end(), Some(0));
    let content = std::fs::read(&file).expect("reads");
    let written = content.chunks(PIECE).filter(|&piece| piece == bytes).count();
    assert!(written >= done, "{done} writes have ended, and {written} were done");
    assert!(!std::path::Path::new(&socket).exists());
    assert!(TcpStream::connect(address(&report["address"])).is_err(), "nobody is let in");
}

#[test]
fn file_that_has_another_size_is_looked_at_again_when_the_target_is_told_to() {
    let sandbox = Sandbox::new();
    let file = sandbox.work().join("export");
    std::fs::write(&file, vec![0; 32 * PIECE]).expect("writes");
    let export = format!("file:{}", file.display());
    let (target, report) = start(&sandbox, &[&export]);
    let (mut controller, mut queue) = connect(&report);
    let mut bytes = || controller.namespace(1).map_or(0, |shape| shape.bytes());
    assert_eq!(bytes(), 32 * PIECE as u64);
    let larger = std::fs::File::options().write(true).open(&file).expect("is there");
    larger.set_len(64 * PIECE as u64).expect("has room");
    target.signal(libc::SIGHUP);
    let deadline = Instant::now() + Duration::from_secs(30);
    while bytes() != 64 * PIECE as u64 {
        assert!(Instant::now() < deadline, "nothing has changed");
    }
    queue.write(0, &vec![7; PIECE]).expect("it is the same one");
    target.signal(libc::SIGTERM);
    assert_eq!(target.end(), Some(0));
}

/// A connection whose host was asked for a command's data and sends none.
fn stall(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let request = InitializeRequest {
        data_alignment: 4,
        header_digest: false,
        data_digest: false,
        transfers_max: 1,
    };
    let connect =
        Command::Connect { queue: 0, entries: 32, without_flow_control: false, keep_alive_ms: 0 };
    let mut entry = connect.encode();
    entry.set_data_pointer(DataPointer::Transport { length: 1024 });
    let parts = [Header::InitializeRequest(request), Header::Command(entry)];
    for (header, answer_bytes) in parts.iter().zip([128, 24]) {
        let start = header.encode(0, Framing::PLAIN);
        stream.write_all(start.bytes()).expect("it listens");
        stream.read_exact(&mut vec![0; answer_bytes]).expect("it answers");
    }
    stream
}

#[test]
fn second_signal_ends_a_target_that_waits_for_a_host() {
    let sandbox = Sandbox::new();
    let (target, report) = start(&sandbox, &["ram:16M"]);
    let address = address(&report["address"]);
    let _stalled = stall(address);
    let mut idle = TcpStream::connect(address).expect("it listens");
    target.signal(libc::SIGTERM);
    assert_eq!(idle.read(&mut [0]).expect("closed"), 0, "who wants nothing is sent away at once");
    target.signal(libc::SIGTERM);
    assert_eq!(target.end(), Some(128 + libc::SIGTERM));
}

#[test]
fn counters_say_what_was_done() {
    let sandbox = Sandbox::new();
    let options = ["--metrics", "127.0.0.1:0", "ram:16M"];
    let (_target, report) = start(&sandbox, &options);
    let (mut controller, mut queue) = connect(&report);
    let mut bytes = vec![7; PIECE];
    (0..3).for_each(|_| queue.write(0, &bytes).expect("written"));
    queue.read(0, &mut bytes).expect("read");
    queue.read(0, &mut bytes[..4096]).expect("read");
    queue.flush().expect("flushed");
    assert!(controller.namespace(9).is_err());
    let metrics = address(&report["metrics"]);
    let answer = ask(metrics, "GET /metrics");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let of = |name: &str, value: usize| {
        let nqn = report["nqn"].as_str().expect("a name");
        let line = format!("\ncairn_target_{name}{{subsystem=\"{nqn}\"}} {value}\n");
        assert!(answer.contains(&line), "{line} is not in {answer}");
    };
    of("writes_total", 3);
    of("written_bytes_total", 3 * PIECE);
    of("reads_total", 2);
    of("read_bytes_total", PIECE + 4096);
    of("flushes_total", 1);
    of("errors_total", 1);
    of("controllers", 1);
    of("size_bytes", 16 << 20);
    assert!(answer.contains("\ncairn_target_connections 2\n"), "{answer}");
    assert!(ask(metrics, "GET /other").starts_with("HTTP/1.1 404 "));
    assert!(ask(metrics, "POST /metrics").starts_with("HTTP/1.1 405 "));
}
