//! A controller that sends anything to the initiator's connection: responses, data and requests for
//! data, of commands that are in flight, completed or were never sent, damaged PDUs and rubbish.
//!
//! Must stay true, whatever it sends: memory is written only where a command in flight wants data.
//! A command completes once. What the host sends is sound and consists of the command's own data.
//! After an error nothing goes on.

use cairn_nvme::tcp::{TcpTransport, Terms};
use cairn_nvme::transport::{Data, Transport};
use cairn_nvme::wire::command::Blocks;
use cairn_nvme::wire::pdu::{
    COMMON_BYTES, DIGEST_BYTES, Frame, Framing, Header, InitializeResponse, Terminate, Transfer,
};
use cairn_nvme::wire::{Command, Completion, Status};
use cairn_platform::checksum::crc32c;
use cairn_platform::descriptor::Descriptor;
use std::io::{Read, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use crate::random::Random;

/// Most actions of one run.
const ACTIONS_MAX: usize = 128;
/// Number of commands in flight. Each has a place in the memory, with bytes around it that belong
/// to no command.
const DEPTH: usize = 4;
const PLACE_BYTES: usize = 1024;
const BETWEEN_BYTES: usize = 64;
const MEMORY_BYTES: usize = DEPTH * (PLACE_BYTES + BETWEEN_BYTES) + BETWEEN_BYTES;
/// Most data in a capsule, bytes.
const CAPSULE_BYTES: usize = 256;
/// Length of the header of a PDU that carries a transfer or a response, bytes.
const HEADER_BYTES: usize = 24;
/// Only this many bytes at the start of a PDU may be damaged.
const DAMAGED_BYTES_MAX: usize = 160;

/// Plays the controller that the input describes.
pub(super) fn run(input: &[u8]) {
    let mut choices = Random::from_choices(input);
    let (ours, theirs) = UnixStream::pair().expect("two sockets");
    theirs.set_nonblocking(true).expect("a socket of ours");
    let digests = choices.below(4);
    let terms = Terms {
        header_digest: digests & 1 != 0,
        data_digest: digests & 2 != 0,
        transfers_max: 2,
        depth: DEPTH,
        capsule_data_bytes: CAPSULE_BYTES,
    };
    let mut peer = Peer { stream: theirs, received: Vec::new(), framing: Framing::PLAIN };
    peer.answer(terms, &mut choices);
    let stream = Descriptor::from_raw(ours.into_raw_fd());
    let Ok(transport) = TcpTransport::over(stream, terms, Instant::now()) else { return };
    let memory = vec![0; MEMORY_BYTES];
    let mut world = World {
        transport,
        peer,
        shadow: memory.clone(),
        memory,
        under_way: [None; DEPTH],
        ended: None,
        is_broken: false,
    };
    for _ in 0..ACTIONS_MAX {
        if choices.is_used_up() {
            break;
        }
        world.act(&mut choices);
    }
}

/// A command in flight.
#[derive(Clone, Copy)]
struct Pending {
    id: u16,
    length: usize,
    is_read: bool,
}

struct World {
    transport: TcpTransport,
    peer: Peer,
    memory: Vec<u8>,
    /// Expected content of the memory.
    shadow: Vec<u8>,
    /// Commands in flight by place.
    under_way: [Option<Pending>; DEPTH],
    /// A completed command.
    ended: Option<u16>,
    is_broken: bool,
}

impl World {
    fn act(&mut self, choices: &mut Random) {
        match choices.below(16) {
            0..=3 => self.submit(choices),
            4..=6 => self.poll(),
            7 if choices.below(8) == 7 => {
                self.transport.abandon();
                self.is_broken = true;
                self.under_way = [None; DEPTH];
            }
            8 if choices.below(8) == 7 => self.peer.hang_up(),
            action => self.misbehave(action, choices),
        }
    }

    fn submit(&mut self, choices: &mut Random) {
        let Some(place) = self.under_way.iter().position(Option::is_none) else { return };
        let length = *choices.pick(&[512, 4, 256, 260, PLACE_BYTES]);
        let kind = choices.below(3);
        let start = start_of(place);
        let blocks = Blocks { first: 0, count: 1 };
        let (command, is_read) = match kind {
            0 => (Command::Read { namespace: 1, blocks }, true),
            1 => (Command::Write { namespace: 1, blocks, is_durable: false }, false),
            _ => (Command::Flush { namespace: 1 }, false),
        };
        let length = if kind < 2 { length } else { 0 };
        let address = self.memory[start..].as_mut_ptr();
        let data = match kind {
            0 => Data::In { address, length },
            1 => {
                let pattern = choices.below(256) as u8;
                let bytes = start..start + length;
                for (at, (byte, shadow)) in
                    self.memory[bytes.clone()].iter_mut().zip(&mut self.shadow[bytes]).enumerate()
                {
                    (*byte, *shadow) = (pattern ^ at as u8, pattern ^ at as u8);
                }
                Data::Out { address, length }
            }
            _ => Data::None,
        };
        // SAFETY: the place lies in memory that outlives the transport. No other command has it
        // until `poll` returns this one. Until then it is only read, for comparison, and never
        // while the transport runs.
        let submitted = unsafe { self.transport.submit(command.encode(), data) };
        assert_eq!(
            submitted.is_err(),
            self.is_broken,
            "what has broken stays so, and nothing else"
        );
        self.under_way[place] = submitted.ok().map(|id| Pending { id: id.0, length, is_read });
    }

    fn poll(&mut self) {
        let polled = self.transport.poll(Instant::now());
        self.compare();
        self.peer.receive(&self.shadow, &self.under_way);
        match polled {
            Err(_) => {
                self.is_broken = true;
                self.under_way = [None; DEPTH];
            }
            Ok(None) => assert!(!self.is_broken, "what has broken stays so"),
            Ok(Some(Completion { command_id, .. })) => {
                let is_it =
                    |pending: &Option<Pending>| pending.is_some_and(|it| it.id == command_id);
                let place = self.under_way.iter().position(is_it);
                self.under_way[place.expect("what ends was under way")] = None;
                self.ended = Some(command_id);
            }
        }
    }

    /// Checks that only the places of reads in flight have changed.
    fn compare(&mut self) {
        for (place, pending) in self.under_way.iter().enumerate() {
            let Some(Pending { length, is_read: true, .. }) = *pending else { continue };
            let bytes = start_of(place)..start_of(place) + length;
            self.shadow[bytes.clone()].copy_from_slice(&self.memory[bytes]);
        }
        assert!(self.shadow == self.memory, "nothing else was written to");
    }

    /// Sends a PDU, mostly one that could come at this point.
    fn misbehave(&mut self, action: u64, choices: &mut Random) {
        let pending = self.under_way[choices.below(DEPTH as u64) as usize];
        let command_id = match choices.below(8) {
            6 => self.ended.unwrap_or(7),
            7 => choices.below(1 << 16) as u16,
            _ => pending.map_or(0, |pending| pending.id),
        };
        let length = pending.map_or(512, |pending| pending.length) as u32;
        let offset = *choices.pick(&[0, 0, 256, 4, u32::MAX]);
        let piece = *choices.pick(&[u32::MAX, 256, 4, 0]);
        let beyond = *choices.pick(&[0, 0, 0, 4]);
        let length = piece.min(length.saturating_sub(offset)).min(PLACE_BYTES as u32) + beyond;
        let transfer = Transfer { command_id, tag: choices.below(3) as u16, offset, length };
        let (is_last, is_success) = (choices.below(2) == 0, choices.below(2) == 1);
        let header = match action {
            7 | 8 => return self.peer.raw(choices),
            9 | 10 => {
                let status =
                    *choices.pick(&[Status::SUCCESS, Status::SUCCESS, Status(2), Status(!0)]);
                Header::Response(Completion { command_id, status, ..Completion::default() })
            }
            11 | 12 => Header::ReadyToTransfer(transfer),
            13 | 14 => {
                let data = vec![choices.below(256) as u8; length as usize];
                let is_success = is_last && is_success;
                let header = Header::ControllerData { transfer, is_last, is_success };
                return self.peer.send(&header, &data, choices);
            }
            _ if choices.below(8) == 7 => {
                Header::ControllerTerminate(Terminate { status: 1, information: 2 })
            }
            _ => Header::InitializeResponse(InitializeResponse {
                data_alignment: 4,
                header_digest: false,
                data_digest: false,
                data_bytes_max: 4096,
            }),
        };
        self.peer.send(&header, &[], choices);
    }
}

fn start_of(place: usize) -> usize {
    BETWEEN_BYTES + place * (PLACE_BYTES + BETWEEN_BYTES)
}

/// The controller's end of the connection.
struct Peer {
    stream: UnixStream,
    received: Vec<u8>,
    /// Agreed framing. It is the same in both directions, except for the alignment of data sent to
    /// us.
    framing: Framing,
}

impl Peer {
    /// Answers the initialization, correctly or nearly so.
    fn answer(&mut self, terms: Terms, choices: &mut Random) {
        let digests = choices.below(4);
        let response = InitializeResponse {
            data_alignment: *choices.pick(&[4, 8, 128]),
            header_digest: terms.header_digest && digests & 1 == 0,
            data_digest: terms.data_digest && digests & 2 == 0,
            data_bytes_max: *choices.pick(&[4096, u32::MAX, 4096]),
        };
        let header = Header::InitializeResponse(response);
        let mut bytes = header.encode(0, Framing::PLAIN).bytes().to_vec();
        damage(&mut bytes, None, choices);
        self.put(&bytes);
        // This is what a host has to understand of the response, if the response is sound.
        let frame = bytes.first_chunk().map(|common| Frame::decode(common, Framing::PLAIN));
        let Some(Ok(frame)) = frame else { return };
        let Some(header) = bytes.get(..frame.header_bytes) else { return };
        if let Ok(Header::InitializeResponse(response)) = Header::decode(&frame, header) {
            self.framing = Framing {
                header_digest: response.header_digest,
                data_digest: response.data_digest,
                data_alignment: response.data_alignment,
            };
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        // A host that has hung up or does not read does not get it.
        let _ = self.stream.write(bytes);
    }

    fn hang_up(&self) {
        // The host may have hung up before.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    fn raw(&mut self, choices: &mut Random) {
        let length = 1 + choices.below(64);
        let bytes: Vec<u8> = (0..length).map(|_| choices.below(256) as u8).collect();
        self.put(&bytes);
    }

    fn send(&mut self, header: &Header, data: &[u8], choices: &mut Random) {
        let framing = Framing { data_alignment: 4, ..self.framing };
        let mut bytes = header.encode(data.len(), framing).bytes().to_vec();
        bytes.extend(data);
        if framing.data_digest && !data.is_empty() {
            let wrong = u32::from(choices.below(8) == 7);
            bytes.extend((crc32c(0, data) ^ wrong).to_le_bytes());
        }
        let is_digested = framing.header_digest && bytes.len() >= HEADER_BYTES + DIGEST_BYTES;
        damage(&mut bytes, is_digested.then_some(HEADER_BYTES), choices);
        match choices.below(8) {
            // The rest may come later or never.
            7 => self.put(&bytes[..choices.below(bytes.len() as u64) as usize]),
            _ => self.put(&bytes),
        }
    }

    /// Receives what the host has sent. It must be sound, whatever the host got.
    fn receive(&mut self, memory: &[u8], under_way: &[Option<Pending>]) {
        let mut piece = [0; 4096];
        while let Ok(count @ 1..) = self.stream.read(&mut piece) {
            self.received.extend(&piece[..count]);
        }
        let received = std::mem::take(&mut self.received);
        let mut rest = &received[..];
        while let Some(behind) = self.take_pdu(rest, memory, under_way) {
            rest = behind;
        }
        self.received = rest.to_vec();
    }

    fn take_pdu<'a>(
        &self,
        bytes: &'a [u8],
        memory: &[u8],
        under_way: &[Option<Pending>],
    ) -> Option<&'a [u8]> {
        let common = bytes.first_chunk::<COMMON_BYTES>()?;
        let frame = Frame::decode(common, self.framing).expect("the host's PDUs are sound");
        let header = bytes.get(..frame.header_bytes)?;
        let header = Header::decode(&frame, header).expect("the host's headers are sound");
        let data = bytes.get(frame.data_at..frame.data_at + frame.data_bytes)?;
        let mut end = frame.data_at + frame.data_bytes;
        if frame.has_data_digest {
            let digest = bytes.get(end..end + DIGEST_BYTES)?;
            assert_eq!(digest, crc32c(0, data).to_le_bytes(), "the host's digests are right");
            end += DIGEST_BYTES;
        }
        match header {
            Header::HostData { transfer, .. } => check_data(&transfer, data, memory, under_way),
            Header::InitializeRequest(_) | Header::Command(_) | Header::HostTerminate(_) => {}
            _ => panic!("a PDU that only controllers send"),
        }
        Some(&bytes[end..])
    }
}

/// Checks that the host has sent data of the command, which may have completed meanwhile.
fn check_data(transfer: &Transfer, data: &[u8], memory: &[u8], under_way: &[Option<Pending>]) {
    for (place, pending) in under_way.iter().enumerate() {
        let Some(pending) = pending.filter(|pending| pending.id == transfer.command_id) else {
            continue;
        };
        let end = transfer.offset as usize + data.len();
        assert!(!pending.is_read && end <= pending.length, "only what it was given");
        let start = start_of(place) + transfer.offset as usize;
        assert!(memory[start..start + data.len()] == *data, "what it was given");
    }
}

/// Damages a few bytes if the input says so. Afterwards the header digest may be made correct
/// again.
fn damage(bytes: &mut [u8], header_bytes: Option<usize>, choices: &mut Random) {
    if choices.below(8) != 7 {
        return;
    }
    for _ in 0..=choices.below(3) {
        let at = choices.below(bytes.len().min(DAMAGED_BYTES_MAX) as u64) as usize;
        bytes[at] = choices.below(256) as u8;
    }
    let Some(header_bytes) = header_bytes.filter(|_| choices.below(4) != 3) else { return };
    let digest = crc32c(0, &bytes[..header_bytes]).to_le_bytes();
    bytes[header_bytes..header_bytes + DIGEST_BYTES].copy_from_slice(&digest);
}
