//! A host's end of a connection. It sends anything and trusts nothing it receives.
//!
//! Invariant: whatever was sent, the target answers with valid PDUs and completes no command twice.

use cairn_nvme::wire::command::{Command, DataPointer, Entry};
use cairn_nvme::wire::completion::Completion;
use cairn_nvme::wire::pdu::{
    COMMON_BYTES, DIGEST_BYTES, Frame, Framing, Header, InitializeRequest, Transfer,
};
use cairn_platform::checksum::crc32c;
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use crate::random::Random;

/// Length of PDU headers without digest, bytes: of the first PDU, and of commands.
const INITIALIZE_BYTES: usize = 128;
const COMMAND_BYTES: usize = 72;
/// Only this many bytes of a PDU may be damaged: its header and the beginning of its data.
const DAMAGED_BYTES_MAX: usize = 192;
/// Most bytes changed in a PDU.
const CHANGES_MAX: u64 = 3;
/// Most bytes received at a time.
const PIECE_BYTES: usize = 16 << 10;

/// A connection to the target.
pub(super) struct Line {
    stream: UnixStream,
    /// Number of the connection at the target.
    pub(super) number: usize,
    /// Host that owns the connection.
    pub(super) host: u8,
    /// Controller that the target named last.
    pub(super) controller: u16,
    unsent: Vec<u8>,
    outgoing: Framing,
    received: Vec<u8>,
    incoming: Framing,
    is_initialized: bool,
    /// Whether the target has terminated the connection.
    is_over: bool,
    /// Whether the agreed framing is known.
    is_understood: bool,
    /// Whether every command sent is known.
    is_exact: bool,
    /// Number of responses still allowed, by command identifier.
    owed: HashMap<u16, u32>,
    next_id: u16,
    /// Transfers that the target has asked for and that were not sent.
    pub(super) asked: Vec<Transfer>,
    /// Latest response.
    pub(super) answer: Option<Completion>,
    /// Latest data.
    pub(super) data: Vec<u8>,
}

impl Line {
    pub(super) fn new(stream: UnixStream, number: usize, host: u8) -> Line {
        stream.set_nonblocking(true).expect("a socket of ours");
        Line {
            stream,
            number,
            host,
            controller: 0,
            unsent: Vec::new(),
            outgoing: Framing::PLAIN,
            received: Vec::new(),
            incoming: Framing::PLAIN,
            is_initialized: false,
            is_over: false,
            is_understood: true,
            is_exact: true,
            owed: HashMap::new(),
            next_id: 0,
            asked: Vec::new(),
            answer: None,
            data: Vec::new(),
        }
    }

    /// Whether everything sent on the connection was undamaged.
    pub(super) fn is_exact(&self) -> bool {
        self.is_exact
    }

    /// Sends the request that sets the framing of PDUs.
    pub(super) fn initialize(&mut self, request: InitializeRequest, choices: &mut Random) {
        if !self.is_initialized {
            self.incoming.data_alignment = request.data_alignment;
        }
        let header = Header::InitializeRequest(request);
        let mut bytes = header.encode(0, Framing::PLAIN).bytes().to_vec();
        self.damage(&mut bytes, INITIALIZE_BYTES, choices);
        self.unsent.extend(bytes);
    }

    /// Sends a command. Its data are in the capsule, follow when the target asks for them, or are
    /// what comes back.
    pub(super) fn command(
        &mut self,
        command: &Command,
        block_bytes: u64,
        data: &[u8],
        choices: &mut Random,
    ) {
        let mut entry = command.encode();
        let (out, into) = (command.bytes_out(block_bytes), command.bytes_in(block_bytes));
        entry.set_data_pointer(match data.is_empty() {
            true => DataPointer::Transport { length: out.max(into) as u32 },
            false => DataPointer::InCapsule { offset: 0, length: data.len() as u32 },
        });
        self.entry(entry, data, choices);
    }

    /// Sends an arbitrary submission queue entry.
    pub(super) fn entry(&mut self, mut entry: Entry, data: &[u8], choices: &mut Random) {
        // Sometimes this is the identifier of a command in flight.
        self.next_id += u16::from(choices.below(16) != 15);
        entry.set_command_id(self.next_id);
        *self.owed.entry(self.next_id).or_default() += 1;
        self.pdu(&Header::Command(entry), data, COMMAND_BYTES, choices);
    }

    /// Sends data, requested or not.
    pub(super) fn host_data(&mut self, transfer: Transfer, is_last: bool, choices: &mut Random) {
        let data = vec![!transfer.tag as u8; transfer.length as usize];
        let header = Header::HostData { transfer, is_last };
        self.pdu(&header, &data, 24, choices);
    }

    /// Sends arbitrary bytes.
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.spoil();
        self.unsent.extend(bytes);
    }

    fn pdu(&mut self, header: &Header, data: &[u8], header_bytes: usize, choices: &mut Random) {
        let mut bytes = header.encode(data.len(), self.outgoing).bytes().to_vec();
        bytes.extend(data);
        if self.outgoing.data_digest && !data.is_empty() {
            let wrong = u32::from(choices.below(16) == 15);
            bytes.extend((crc32c(0, data) ^ wrong).to_le_bytes());
        }
        self.damage(&mut bytes, header_bytes, choices);
        self.unsent.extend(bytes);
    }

    /// Damages a few bytes if the input says so. Afterwards the header digest may be made correct
    /// again.
    fn damage(&mut self, bytes: &mut [u8], header_bytes: usize, choices: &mut Random) {
        if choices.below(8) != 7 {
            return;
        }
        self.spoil();
        for _ in 0..=choices.below(CHANGES_MAX) {
            let at = choices.below(bytes.len().min(DAMAGED_BYTES_MAX) as u64) as usize;
            bytes[at] = choices.below(256) as u8;
        }
        let is_digested = self.outgoing.header_digest && header_bytes < INITIALIZE_BYTES;
        if is_digested && choices.below(4) != 3 {
            let digest = crc32c(0, &bytes[..header_bytes]).to_le_bytes();
            bytes[header_bytes..header_bytes + DIGEST_BYTES].copy_from_slice(&digest);
        }
    }

    fn spoil(&mut self) {
        self.is_exact = false;
        // Nobody knows what the target has understood of a damaged first PDU.
        self.is_understood &= self.is_initialized;
    }

    /// Sends at most `most` of the pending bytes.
    pub(super) fn send(&mut self, most: usize) {
        let most = most.min(self.unsent.len());
        match self.stream.write(&self.unsent[..most]) {
            Ok(sent) => drop(self.unsent.drain(..sent)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // The target has hung up.
            Err(_) => self.unsent.clear(),
        }
    }

    /// Hangs up, in one direction or in both.
    pub(super) fn hang_up(&self, how: std::net::Shutdown) {
        // The target may have hung up before.
        let _ = self.stream.shutdown(how);
    }

    /// Receives what the target has sent, and shows all data to `see`.
    pub(super) fn receive(&mut self, see: impl Fn(&[u8])) {
        let mut piece = [0; PIECE_BYTES];
        while let Ok(count @ 1..) = self.stream.read(&mut piece) {
            self.received.extend(&piece[..count]);
        }
        if !self.is_understood {
            self.received.clear();
            return;
        }
        let received = std::mem::take(&mut self.received);
        let mut rest = &received[..];
        while let Some(behind) = self.take_pdu(rest, &see) {
            rest = behind;
        }
        self.received = rest.to_vec();
    }

    /// Takes one PDU if it is complete. Returns the bytes behind it.
    fn take_pdu<'a>(&mut self, bytes: &'a [u8], see: &impl Fn(&[u8])) -> Option<&'a [u8]> {
        let common = bytes.first_chunk::<COMMON_BYTES>()?;
        assert!(!self.is_over, "the target goes on after it has ended the connection");
        let frame = Frame::decode(common, self.incoming).expect("the target's PDUs are sound");
        let header = bytes.get(..frame.header_bytes)?;
        let header = Header::decode(&frame, header).expect("the target's headers are sound");
        let data = bytes.get(frame.data_at..frame.data_at + frame.data_bytes)?;
        let mut end = frame.data_at + frame.data_bytes;
        if frame.has_data_digest {
            let digest = bytes.get(end..end + DIGEST_BYTES)?;
            assert_eq!(digest, crc32c(0, data).to_le_bytes(), "the target's digests are right");
            end += DIGEST_BYTES;
        }
        see(data);
        self.take_header(&header, data);
        Some(&bytes[end..])
    }

    fn take_header(&mut self, header: &Header, data: &[u8]) {
        match *header {
            Header::InitializeResponse(response) => {
                assert!(!self.is_initialized, "a connection is initialized once");
                self.is_initialized = true;
                let (header_digest, data_digest) = (response.header_digest, response.data_digest);
                self.incoming = Framing { header_digest, data_digest, ..self.incoming };
                let data_alignment = response.data_alignment;
                self.outgoing = Framing { header_digest, data_digest, data_alignment };
            }
            Header::Response(completion) => {
                self.count_answer(completion.command_id);
                self.answer = Some(completion);
            }
            Header::ReadyToTransfer(transfer) => self.asked.push(transfer),
            Header::ControllerData { transfer, is_success, .. } => {
                self.data = data.to_vec();
                if is_success {
                    self.count_answer(transfer.command_id);
                    let command_id = transfer.command_id;
                    self.answer = Some(Completion { command_id, ..Completion::default() });
                }
            }
            Header::ControllerTerminate(_) => self.is_over = true,
            _ => panic!("a PDU that only hosts send"),
        }
    }

    fn count_answer(&mut self, id: u16) {
        if !self.is_exact {
            return;
        }
        let left = self.owed.get_mut(&id).filter(|left| **left > 0);
        *left.expect("an answer for every command, and no more") -= 1;
    }
}
