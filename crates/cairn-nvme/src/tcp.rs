//! NVMe/TCP: the host's side of one connection, which is one queue (TCP 3).
//!
//! Invariant: data move between the socket and the memory of their command without an intermediate
//! copy, except for bytes that a receive brings in behind a header. What the controller sends is
//! accepted only if it matches a command under way. After an error the connection is closed, and no
//! command's memory is touched any more.
//!
//! Does not know what commands mean.

mod commands;
mod receiver;
mod sender;
mod socket;

use core::time::Duration;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Instant;

use cairn_platform::adaptive_spin::AdaptiveSpin;
use cairn_platform::checksum;
use cairn_platform::descriptor::Descriptor;
use cairn_platform::sys::SysResult;

use super::controller::Fabric;
use super::error::{Error, Result};
use super::transport::{CommandId, Data, Transport};
use super::wire::pdu::{
    COMMON_BYTES, DIGEST_BYTES, Fault, Frame, Framing, HEADER_BYTES_MAX, Header, InitializeRequest,
    InitializeResponse, Malformed, Terminate, Transfer,
};
use super::wire::{Completion, DataPointer, Entry, Status};

use commands::Commands;
use receiver::Receiver;
use sender::{Outgoing, Sender};
use socket::Socket;

pub use commands::DEPTH_MAX;

/// Most R2T of a command that a controller may have outstanding.
const TRANSFERS_MAX: u32 = 4;
/// Longest time spent on sending the reason before a connection is closed.
const TERMINATE_TIMEOUT: Duration = Duration::from_millis(10);

/// What a host asks of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Whether to use header digests, if the controller supports them.
    pub header_digest: bool,
    /// Whether to use data digests, if the controller supports them.
    pub data_digest: bool,
    /// Most R2T outstanding per command.
    pub transfers_max: u32,
    /// Most commands under way.
    pub depth: usize,
    /// Most data that are sent in a command's capsule, bytes.
    pub capsule_data_bytes: usize,
}

/// A connection to a controller.
#[derive(Debug)]
pub struct TcpTransport {
    socket: Option<Socket>,
    terms: Terms,
    agreed: Option<InitializeResponse>,
    commands: Commands,
    sender: Sender,
    receiver: Receiver,
    expected: Expected,
    /// Last header received. It goes into the H2CTermReq that tells the controller what was wrong.
    header: Vec<u8>,
    ended: VecDeque<Completion>,
    failure: Option<Error>,
    looks: AdaptiveSpin,
}

/// What the next byte received belongs to.
#[derive(Clone, Copy, Debug)]
enum Expected {
    Common,
    Header(Frame),
    /// Bytes between a header and its data.
    Padding(usize, Arrival),
    Data(Arrival),
    Digest(Arrival),
}

/// Data of a PDU that are being received.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    command_id: u16,
    start: *mut u8,
    bytes: usize,
    done: usize,
    has_digest: bool,
    is_success: bool,
}

// SAFETY: the pointers are to memory that, as the submitters of the commands promised, nobody else
// uses. It does not matter which thread moves the bytes.
unsafe impl Send for TcpTransport {}

impl TcpTransport {
    /// Connects and agrees on terms. With a `number`, made by `reserve`, the socket takes that
    /// descriptor number. Errors: also if this is not finished by `deadline`.
    pub fn connect(
        address: &SocketAddr,
        number: Option<i32>,
        terms: Terms,
        deadline: Instant,
    ) -> Result<TcpTransport> {
        let socket = Socket::connect(address, number, deadline)
            .map_err(|errno| Error::System { action: "connect", errno })?;
        TcpTransport::agree_over(socket, terms, deadline)
    }

    /// Agrees on terms over a stream that is already connected, of any kind.
    pub fn over(stream: Descriptor, terms: Terms, deadline: Instant) -> Result<TcpTransport> {
        TcpTransport::agree_over(Socket::over(stream), terms, deadline)
    }

    fn agree_over(socket: Socket, terms: Terms, deadline: Instant) -> Result<TcpTransport> {
        let mut transport = TcpTransport {
            socket: Some(socket),
            terms,
            agreed: None,
            commands: Commands::new(terms.depth),
            sender: Sender::default(),
            receiver: Receiver::new(),
            expected: Expected::Common,
            header: Vec::with_capacity(HEADER_BYTES_MAX),
            ended: VecDeque::with_capacity(terms.depth),
            failure: None,
            looks: AdaptiveSpin::default(),
        };
        let request = Header::InitializeRequest(InitializeRequest {
            data_alignment: Framing::PLAIN.data_alignment,
            header_digest: terms.header_digest,
            data_digest: terms.data_digest,
            transfers_max: terms.transfers_max.into(),
        });
        transport.sender.push(Outgoing::alone(request.encode(0, Framing::PLAIN)));
        transport.advance(deadline, |transport| transport.agreed.is_some())?;
        match transport.agreed {
            Some(_) => Ok(transport),
            None => Err(Error::TimedOut { awaited: "answer to ICReq" }),
        }
    }

    /// Whether headers and data are protected by digests.
    pub fn digests(&self) -> (bool, bool) {
        let framing = self.incoming();
        (framing.header_digest, framing.data_digest)
    }

    fn incoming(&self) -> Framing {
        Framing { data_alignment: Framing::PLAIN.data_alignment, ..self.outgoing() }
    }

    fn outgoing(&self) -> Framing {
        self.agreed.map_or(Framing::PLAIN, |agreed| Framing {
            header_digest: agreed.header_digest,
            data_digest: agreed.data_digest,
            data_alignment: agreed.data_alignment,
        })
    }

    /// Sends and receives until `is_enough` or until `deadline`. Errors: the connection has ended.
    fn advance(&mut self, deadline: Instant, is_enough: impl Fn(&Self) -> bool) -> Result<()> {
        let result = self.advance_while_sound(deadline, is_enough);
        if let Err(error) = result {
            self.fail(error);
        }
        result
    }

    fn advance_while_sound(
        &mut self,
        deadline: Instant,
        is_enough: impl Fn(&Self) -> bool,
    ) -> Result<()> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let mut wait = None;
        loop {
            self.send()?;
            if is_enough(self) {
                return Ok(());
            }
            if self.receive()? {
                if let Some(wait) = wait.take() {
                    self.looks.came(&wait, Instant::now());
                }
                continue;
            }
            let now = Instant::now();
            if now >= deadline {
                return Ok(());
            }
            let wait = wait.get_or_insert_with(|| self.looks.begin(now));
            if !self.looks.go_on(wait, now) {
                self.sleep(deadline)?;
            }
        }
    }

    fn sleep(&self, deadline: Instant) -> Result<()> {
        let events =
            if self.sender.is_empty() { libc::POLLIN } else { libc::POLLIN | libc::POLLOUT };
        let Some(socket) = &self.socket else { return Err(Error::Closed) };
        let slept = socket.wait(events, deadline);
        slept.map(drop).map_err(|errno| Error::System { action: "wait", errno })
    }

    fn send(&mut self) -> Result<()> {
        let Some(socket) = &self.socket else { return Err(Error::Closed) };
        let commands = &mut self.commands;
        let sent = self.sender.send(socket, |outgoing| {
            let command = outgoing.command_id.and_then(|id| commands.get(id).ok());
            if let Some(command) = command {
                command.unsent -= 1;
                command.transfers -= u32::from(outgoing.ends_transfer);
            }
        });
        broken("send", sent)
    }

    /// Receives what is available; false if there was nothing.
    fn receive(&mut self) -> Result<bool> {
        let Some(socket) = &self.socket else { return Err(Error::Closed) };
        let (target, count) = match self.expected {
            Expected::Data(arrival) => {
                (arrival.start.wrapping_add(arrival.done), arrival.bytes - arrival.done)
            }
            _ => (core::ptr::null_mut(), 0),
        };
        // SAFETY: `target` is the rest of the command's memory for these data. The buffer is empty
        // while data are expected, because `digest` has moved its bytes out.
        let received = broken("receive", unsafe { self.receiver.receive(socket, target, count) })?;
        let Some((in_target, total)) = received else { return Ok(false) };
        if total == 0 {
            return Err(Error::Closed);
        }
        if let Expected::Data(arrival) = &mut self.expected {
            arrival.done += in_target;
        }
        while self.failure.is_none() && self.digest().map_err(|what| self.send_termination(what))? {
        }
        self.failure.map_or(Ok(true), Err)
    }

    /// Tells the controller what it did wrong, as far as the socket takes that within
    /// `TERMINATE_TIMEOUT`. Returns the same as our error.
    fn send_termination(&mut self, malformed: Malformed) -> Error {
        let (status, information) = malformed.fault.encode();
        let terminate = Header::HostTerminate(Terminate { status, information });
        self.sender.clear_unsent();
        self.sender.push(Outgoing {
            data: self.header.as_ptr(),
            length: self.header.len(),
            ..Outgoing::alone(terminate.encode(self.header.len(), Framing::PLAIN))
        });
        let deadline = Instant::now() + TERMINATE_TIMEOUT;
        while self.send().is_ok() && !self.sender.is_empty() && Instant::now() < deadline {
            let _ = self.sleep(deadline);
        }
        malformed.into()
    }

    /// Processes one item from the buffer; false if the buffer does not hold a whole one.
    fn digest(&mut self) -> core::result::Result<bool, Malformed> {
        match self.expected {
            Expected::Common => {
                let Some(common) = self.receiver.peek(COMMON_BYTES) else { return Ok(false) };
                self.header.clear();
                self.header.extend_from_slice(common);
                let common = common.first_chunk().expect("as many were asked for");
                self.expected = Expected::Header(Frame::decode(common, self.incoming())?);
            }
            Expected::Header(frame) => {
                let Some(bytes) = self.receiver.peek(frame.header_bytes) else { return Ok(false) };
                self.header.clear();
                self.header.extend_from_slice(bytes);
                let header = Header::decode(&frame, bytes)?;
                self.receiver.skip(frame.header_bytes);
                self.expected = self.take_header(&frame, &header)?;
            }
            Expected::Padding(left, arrival) => {
                self.expected = match left - self.receiver.skip(left) {
                    0 => Expected::Data(arrival),
                    left => {
                        self.expected = Expected::Padding(left, arrival);
                        return Ok(false);
                    }
                };
            }
            Expected::Data(mut arrival) => {
                let left = arrival.bytes - arrival.done;
                // SAFETY: the command's memory has room for these data.
                arrival.done +=
                    unsafe { self.receiver.take(arrival.start.wrapping_add(arrival.done), left) };
                self.expected = Expected::Data(arrival);
                if arrival.done < arrival.bytes {
                    return Ok(false);
                }
                match arrival.has_digest {
                    true => self.expected = Expected::Digest(arrival),
                    false => self.finish_data(&arrival)?,
                }
            }
            Expected::Digest(arrival) => {
                let Some(bytes) = self.receiver.peek(DIGEST_BYTES) else { return Ok(false) };
                // SAFETY: the data have arrived there, and nobody else uses the command's memory.
                let data = unsafe { core::slice::from_raw_parts(arrival.start, arrival.bytes) };
                let is_intact = bytes == checksum::crc32c(0, data).to_le_bytes();
                self.receiver.skip(DIGEST_BYTES);
                self.commands.get(arrival.command_id)?.is_damaged |= !is_intact;
                self.finish_data(&arrival)?;
            }
        }
        Ok(true)
    }

    /// Acts on a header. Returns what comes next.
    fn take_header(
        &mut self,
        frame: &Frame,
        header: &Header,
    ) -> core::result::Result<Expected, Malformed> {
        let unexpected = Malformed { fault: Fault::Sequence, what: "a PDU that cannot come now" };
        match header {
            Header::InitializeResponse(response) if self.agreed.is_none() => {
                self.agree(response)?;
            }
            // The rest of this PDU is not worth reading.
            Header::ControllerTerminate(why) => {
                self.failure = Some(Error::Terminated { why: *why });
            }
            _ if self.agreed.is_none() => return Err(unexpected),
            Header::Response(completion) => self.end(*completion)?,
            Header::ReadyToTransfer(transfer) => self.send_data(transfer)?,
            Header::ControllerData { transfer, is_last, is_success } => {
                self.receiver.expect(frame.data_bytes);
                let command = self.commands.get(transfer.command_id)?;
                let arrival = Arrival {
                    command_id: transfer.command_id,
                    start: command.receive(transfer, *is_last)?,
                    bytes: frame.data_bytes,
                    done: 0,
                    has_digest: frame.has_data_digest,
                    is_success: *is_success,
                };
                return Ok(Expected::Padding(frame.data_at - frame.header_bytes, arrival));
            }
            _ => return Err(unexpected),
        }
        Ok(Expected::Common)
    }

    fn agree(&mut self, response: &InitializeResponse) -> core::result::Result<(), Malformed> {
        let is_wanted = |is_wanted: bool, is_used: bool| is_wanted || !is_used;
        let is_agreeable = is_wanted(self.terms.header_digest, response.header_digest)
            && is_wanted(self.terms.data_digest, response.data_digest);
        if !is_agreeable {
            let what = "digests that this host did not ask for";
            return Err(Malformed { fault: Fault::HeaderField(11), what });
        }
        self.agreed = Some(*response);
        Ok(())
    }

    fn finish_data(&mut self, arrival: &Arrival) -> core::result::Result<(), Malformed> {
        self.expected = Expected::Common;
        match arrival.is_success {
            true => {
                self.end(Completion { command_id: arrival.command_id, ..Completion::default() })
            }
            false => Ok(()),
        }
    }

    /// Records that a command has ended.
    fn end(&mut self, mut completion: Completion) -> core::result::Result<(), Malformed> {
        let id = completion.command_id;
        let command = self.commands.get(id)?;
        let is_success = completion.status.is_success();
        command.check_end(is_success)?;
        if is_success && command.is_damaged {
            completion.status = Status::TRANSIENT_TRANSPORT;
        }
        self.commands.remove(id);
        self.ended.push_back(completion);
        Ok(())
    }

    /// Sends the data that an R2T asks for.
    fn send_data(&mut self, asked: &Transfer) -> core::result::Result<(), Malformed> {
        let framing = self.outgoing();
        let most = self.agreed.map_or(0, |agreed| agreed.data_bytes_max) as usize;
        let command = self.commands.get(asked.command_id)?;
        let start = command.request(asked, self.terms.transfers_max)?;
        let length = asked.length as usize;
        for at in (0..length).step_by(most) {
            let bytes = most.min(length - at);
            let is_last = at + bytes == length;
            let transfer =
                Transfer { offset: asked.offset + at as u32, length: bytes as u32, ..*asked };
            let data = start.wrapping_add(at);
            command.unsent += 1;
            self.sender.push(Outgoing {
                start: Header::HostData { transfer, is_last }.encode(bytes, framing),
                data,
                length: bytes,
                // SAFETY: the data belong to the command, and its submitter vouches for them.
                digest: unsafe { data_digest(framing, data, bytes) },
                command_id: Some(asked.command_id),
                ends_transfer: is_last,
            });
        }
        Ok(())
    }

    fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error);
        self.socket = None;
        self.sender.clear();
        self.ended.clear();
        self.expected = Expected::Common;
    }
}

impl Transport for TcpTransport {
    fn depth(&self) -> usize {
        self.commands.depth()
    }

    fn under_way(&self) -> usize {
        self.commands.under_way()
    }

    unsafe fn submit(&mut self, mut entry: Entry, data: Data) -> Result<CommandId> {
        assert!(data.length() % 4 == 0, "data are counted in dwords");
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let framing = self.outgoing();
        let length = data.length();
        let is_in_capsule =
            matches!(data, Data::Out { .. }) && length <= self.terms.capsule_data_bytes;
        let id = self.commands.add(data, is_in_capsule);
        entry.set_command_id(id.0);
        let (in_capsule, address) = match data {
            Data::Out { address, .. } if is_in_capsule => (length, address),
            _ => (0, core::ptr::null()),
        };
        entry.set_data_pointer(match is_in_capsule {
            true => DataPointer::InCapsule { offset: 0, length: length as u32 },
            false => DataPointer::Transport { length: length as u32 },
        });
        self.sender.push(Outgoing {
            start: Header::Command(entry).encode(in_capsule, framing),
            data: address,
            length: in_capsule,
            // SAFETY: the caller vouches for the data.
            digest: unsafe { data_digest(framing, address, in_capsule) },
            command_id: Some(id.0),
            ends_transfer: false,
        });
        Ok(id)
    }

    fn poll(&mut self, deadline: Instant) -> Result<Option<Completion>> {
        // Commands submitted while these completions are handled leave together, in one system
        // call.
        if self.ended.is_empty() {
            self.advance(deadline, |transport| !transport.ended.is_empty())?;
        }
        Ok(self.ended.pop_front())
    }

    fn abandon(&mut self) {
        self.fail(Error::Closed);
    }
}

/// Digest that follows data that are sent.
///
/// # Safety
/// The data are readable.
unsafe fn data_digest(
    framing: Framing,
    data: *const u8,
    bytes: usize,
) -> Option<[u8; DIGEST_BYTES]> {
    (framing.data_digest && bytes > 0).then(|| {
        // SAFETY: promised by the caller.
        let data = unsafe { core::slice::from_raw_parts(data, bytes) };
        checksum::crc32c(0, data).to_le_bytes()
    })
}

/// Converts the error of a system call on the connection.
fn broken<T>(action: &'static str, result: SysResult<T>) -> Result<T> {
    result.map_err(|errno| match errno.0 {
        libc::ECONNRESET | libc::EPIPE => Error::Closed,
        _ => Error::System { action, errno },
    })
}

/// Controllers reached over TCP.
#[derive(Clone, Copy, Debug)]
pub struct TcpFabric {
    /// Address of the controllers.
    pub address: SocketAddr,
    /// Whether to use header digests, if the controller supports them.
    pub header_digest: bool,
    /// Whether to use data digests, if the controller supports them.
    pub data_digest: bool,
    /// Descriptor numbers, made by `reserve`, for the sockets of the admin queue and of the only
    /// I/O queue. They stay open when a connection ends.
    pub numbers: Option<[i32; 2]>,
}

impl TcpFabric {
    /// Controllers at `address`; connections without digests.
    pub fn new(address: SocketAddr) -> TcpFabric {
        TcpFabric { address, header_digest: false, data_digest: false, numbers: None }
    }
}

/// Reserves a descriptor number. Sockets take it in turn, and nothing else can get it meanwhile.
pub fn reserve() -> SysResult<Descriptor> {
    Socket::unconnected(libc::AF_INET)
}

impl Fabric for TcpFabric {
    type Transport = TcpTransport;

    fn connect(
        &self,
        queue: u16,
        depth: usize,
        capsule_data_bytes: usize,
        deadline: Instant,
    ) -> Result<TcpTransport> {
        let TcpFabric { header_digest, data_digest, .. } = *self;
        let transfers_max = TRANSFERS_MAX;
        let terms = Terms { header_digest, data_digest, transfers_max, depth, capsule_data_bytes };
        let number = self.numbers.map(|[admin, io]| if queue == 0 { admin } else { io });
        TcpTransport::connect(&self.address, number, terms, deadline)
    }
}
