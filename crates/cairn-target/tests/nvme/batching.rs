//! Number of system calls that commands take.

use cairn_nvme::controller::Fabric;
use cairn_nvme::tcp::{TcpFabric, TcpTransport};
use cairn_nvme::transport::{Data, Transport};
use cairn_nvme::wire::pdu::{Framing, Header};
use cairn_nvme::wire::{Command, Completion};
use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::hostile::{accept, receive};

const DEPTH: usize = 4;

/// Returns a queue and its other end.
fn pair() -> (TcpTransport, TcpStream) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let fabric = TcpFabric::new(listener.local_addr().unwrap());
    let controller = std::thread::spawn(move || accept(&listener));
    let queue = fabric.connect(1, DEPTH, 0, deadline()).unwrap();
    (queue, controller.join().unwrap())
}

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn submit(queue: &mut TcpTransport) {
    // SAFETY: the command has no data.
    unsafe { queue.submit(Command::KeepAlive.encode(), Data::None) }.unwrap();
}

/// Mechanism: each `poll` sent what had been submitted since the last one, even if answers were
/// waiting. Consequence: a caller that submits a command for each one that ended paid a system call
/// for each, at any depth. Fix: commands are sent when no answer is left.
#[test]
fn commands_that_follow_answers_which_came_together_leave_together() {
    let (mut queue, mut controller) = pair();
    (0..DEPTH).for_each(|_| submit(&mut queue));
    assert_eq!(queue.poll(Instant::now()), Ok(None), "sent, and not answered");
    let answers: Vec<u8> = (0..DEPTH)
        .flat_map(|_| {
            let (Header::Command(entry), _) = receive(&mut controller) else { panic!() };
            let command_id = entry.command_id();
            let answer = Header::Response(Completion { command_id, ..Completion::default() });
            answer.encode(0, Framing::PLAIN).bytes().to_vec()
        })
        .collect();
    controller.write_all(&answers).unwrap();
    for _ in 0..DEPTH {
        assert!(queue.poll(deadline()).unwrap().is_some());
        submit(&mut queue);
    }
    controller.set_nonblocking(true).unwrap();
    let early = controller.peek(&mut [0]).map_err(|error| error.kind());
    assert_eq!(early, Err(ErrorKind::WouldBlock), "some were sent alone");
    assert_eq!(queue.poll(Instant::now()), Ok(None));
    controller.set_nonblocking(false).unwrap();
    (0..DEPTH).for_each(|_| drop(receive(&mut controller)));
}
