//! One connection of a host: PDUs come in, commands are done one after the other, answers go out.
//!
//! Must stay true: of the data that a command has yet to receive, the host was asked for at most `awaited_bytes`; a PDU that
//! does not fit ends the connection and says why (TCP 3.5). A command whose data came with a wrong digest is not done. Nothing
//! is done, and no data are asked for, for a host that has yet to prove who it is.
//! Does not know commands; `admin` and `io` do.

use super::admin::Admin;
use super::buffers::Buffers;
use super::guard::{Check, Progress};
use super::io;
use super::subsystem::{Controller, Subsystem};
use cairn_device::checksum;
use cairn_device::nvme::wire::auth::MESSAGE_BYTES_MAX;
use cairn_device::nvme::wire::command::{QueueKind, RANGE_BYTES, RANGES_MAX};
use cairn_device::nvme::wire::fabrics::{
    ANY_CONTROLLER, AUTHENTICATION_ALONE, CONNECT_DATA_BYTES, ConnectData, DISCOVERY_NQN,
};
use cairn_device::nvme::wire::pdu::{
    ADMIN_CAPSULE_DATA_BYTES, COMMON_BYTES, DIGEST_BYTES, Fault, Frame, Framing, Header,
    InitializeRequest, InitializeResponse, Malformed, Terminate, Transfer,
};
use cairn_device::nvme::wire::{Command, Completion, DataPointer, Entry, Status};
use std::collections::{HashMap, VecDeque};
use std::io::{BufReader, IoSlice, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

/// What is read beside data.
const BUFFER_BYTES: usize = 64 << 10;
/// How long a host may take until it has connected a queue, and between its proofs.
const GREETING: Duration = Duration::from_secs(30);
/// Beyond the time that a host asked for it is forgiven so much.
const KEEP_ALIVE_GRACE: Duration = Duration::from_secs(1);
/// Most entries of an admin queue.
const ADMIN_ENTRIES_MAX: u32 = 128;
/// Most data of a command that deallocates.
const RANGES_BYTES_MAX: u64 = (RANGES_MAX * RANGE_BYTES) as u64;
/// SQHD of a queue without flow control.
const NO_FLOW_CONTROL: u16 = 0xffff;

/// Why a connection ends.
enum End {
    /// The host is gone, or was silent for too long.
    Gone,
    /// The host does not keep to the protocol.
    Malformed(Malformed),
}

impl From<std::io::Error> for End {
    fn from(_: std::io::Error) -> End {
        End::Gone
    }
}

impl From<Malformed> for End {
    fn from(malformed: Malformed) -> End {
        End::Malformed(malformed)
    }
}

fn malformed(fault: Fault, what: &'static str) -> End {
    End::Malformed(Malformed { fault, what })
}

/// What a connection is for.
enum Role {
    /// Nothing yet.
    New,
    /// An admin queue; of a discovery controller, too.
    Admin(Admin),
    /// An I/O queue of that number.
    Io(Arc<Controller>, u16),
}

/// A command whose data were asked for.
struct Awaited {
    entry: Entry,
    command: Command,
    data: Vec<u8>,
    length: usize,
    arrived: usize,
    is_damaged: bool,
}

/// How far a submission queue is.
struct Flow {
    entries: u32,
    head: u32,
    is_controlled: bool,
}

/// A connection.
pub(super) struct Connection {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    subsystem: Arc<Subsystem>,
    incoming: Framing,
    outgoing: Framing,
    is_initialized: bool,
    role: Role,
    /// What the host has to prove before it is served.
    check: Option<Check>,
    flow: Flow,
    /// The last header, for a host that is told what was wrong with it.
    header: Vec<u8>,
    /// By the tag of their R2T.
    awaited: HashMap<u16, Awaited>,
    awaited_bytes: usize,
    next_tag: u16,
    /// Commands whose data were not asked for yet.
    waiting: VecDeque<(Entry, Command, usize)>,
    buffers: Buffers,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, subsystem: Arc<Subsystem>) -> std::io::Result<Connection> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(GREETING))?;
        let reader = BufReader::with_capacity(BUFFER_BYTES, stream.try_clone()?);
        Ok(Connection {
            stream,
            reader,
            subsystem,
            incoming: Framing::PLAIN,
            outgoing: Framing::PLAIN,
            is_initialized: false,
            role: Role::New,
            check: None,
            flow: Flow { entries: 2, head: 0, is_controlled: true },
            header: Vec::new(),
            awaited: HashMap::new(),
            awaited_bytes: 0,
            next_tag: 0,
            waiting: VecDeque::new(),
            buffers: Buffers::default(),
        })
    }

    /// Serves the host until one of both has enough.
    pub(super) fn serve(mut self) {
        let end = loop {
            if let Err(end) = self.serve_one() {
                break end;
            }
        };
        if let End::Malformed(malformed) = end {
            self.accuse(malformed);
        }
        match &self.role {
            Role::New => {}
            Role::Admin(admin) => self.subsystem.remove_controller(admin.controller()),
            Role::Io(controller, number) => controller.remove_queue(*number),
        }
    }

    /// Tells the host what it did wrong, with the header that shows it.
    fn accuse(&mut self, malformed: Malformed) {
        let (status, information) = malformed.fault.encode();
        let terminate = Header::ControllerTerminate(Terminate { status, information });
        let header = core::mem::take(&mut self.header);
        let start = terminate.encode(header.len(), Framing::PLAIN);
        // Who does not listen has lost nothing.
        let _ = self.write(&[start.bytes(), &header]);
    }

    /// Receives a PDU and does what it says.
    fn serve_one(&mut self) -> Result<(), End> {
        self.header.clear();
        self.header.resize(COMMON_BYTES, 0);
        self.reader.read_exact(&mut self.header)?;
        let common = self.header.first_chunk().expect("as many were read");
        let frame = Frame::decode(common, self.incoming)?;
        self.header.resize(frame.header_bytes, 0);
        self.reader.read_exact(&mut self.header[COMMON_BYTES..])?;
        let header = Header::decode(&frame, &self.header)?;
        match header {
            Header::InitializeRequest(request) if !self.is_initialized => self.initialize(&request),
            Header::HostTerminate(_) => Err(End::Gone),
            _ if !self.is_initialized => {
                Err(malformed(Fault::Sequence, "a PDU before the connection was initialized"))
            }
            Header::Command(entry) => self.take_command(&frame, entry),
            Header::HostData { transfer, is_last } => self.take_data(&frame, &transfer, is_last),
            _ => Err(malformed(Fault::Sequence, "a PDU that cannot come now")),
        }
    }

    fn initialize(&mut self, request: &InitializeRequest) -> Result<(), End> {
        let response = InitializeResponse {
            data_alignment: Framing::PLAIN.data_alignment,
            header_digest: request.header_digest,
            data_digest: request.data_digest,
            data_bytes_max: self.subsystem.limits().host_data_bytes,
        };
        self.send(&Header::InitializeResponse(response), &[])?;
        let InitializeRequest { header_digest, data_digest, data_alignment, .. } = *request;
        self.incoming = Framing { header_digest, data_digest, ..Framing::PLAIN };
        self.outgoing = Framing { header_digest, data_digest, data_alignment };
        self.is_initialized = true;
        Ok(())
    }

    fn take_command(&mut self, frame: &Frame, entry: Entry) -> Result<(), End> {
        let (kind, most) = match self.role {
            Role::Io(..) => (QueueKind::Io, self.subsystem.limits().capsule_data_bytes as usize),
            _ => (QueueKind::Admin, ADMIN_CAPSULE_DATA_BYTES),
        };
        if frame.data_bytes > most {
            return Err(malformed(
                Fault::HeaderField(4),
                "more data in a capsule than it may have",
            ));
        }
        let length = frame.data_bytes;
        let mut data = self.buffers.take(length);
        let is_intact = self.receive_data(frame, &mut data[..length])?;
        self.flow.advance();
        let done = match Command::decode(&entry, kind) {
            Ok(command) => self.begin(&entry, &command, &data[..length], is_intact),
            Err(status) => self.answer(&entry, Err(status.for_good())),
        };
        self.buffers.give(data);
        done
    }

    /// Does a command that came with these data, or asks for those that did not.
    fn begin(
        &mut self,
        entry: &Entry,
        command: &Command,
        data: &[u8],
        is_intact: bool,
    ) -> Result<(), End> {
        if let Err(status) = self.admit(command) {
            return self.answer(entry, Err(status));
        }
        match self.placement(entry, command, data.len()) {
            Err(status) => self.answer(entry, Err(status)),
            Ok(_) if !is_intact => self.answer(entry, Err(Status::TRANSIENT_TRANSPORT)),
            Ok(0) => self.execute(entry, command, data),
            Ok(length) => {
                self.waiting.push_back((*entry, *command, length));
                self.ask_for_data()
            }
        }
    }

    /// Errors: the host has to prove who it is before it may send that.
    fn admit(&self, command: &Command) -> Result<(), Status> {
        match command {
            _ if self.check.is_none() => Ok(()),
            Command::AuthenticationSend { bytes } | Command::AuthenticationReceive { bytes } => {
                let fits = *bytes as usize <= MESSAGE_BYTES_MAX;
                if fits { Ok(()) } else { Err(Status::INVALID_FIELD.for_good()) }
            }
            _ => Err(Status::AUTHENTICATION_REQUIRED.for_good()),
        }
    }

    /// How many bytes of data the host must be asked for. Errors: what the entry says of its data is not what the command
    /// has.
    fn placement(
        &self,
        entry: &Entry,
        command: &Command,
        in_capsule: usize,
    ) -> Result<usize, Status> {
        let block_bytes = match command {
            Command::Read { namespace, .. } | Command::Write { namespace, .. } => {
                self.subsystem.namespace(*namespace)?.shape().block_bytes()
            }
            _ => 1,
        };
        let (bytes_out, bytes_in) = (command.bytes_out(block_bytes), command.bytes_in(block_bytes));
        if bytes_out.max(bytes_in) > self.subsystem.limits().transfer_bytes() {
            return Err(Status::INVALID_FIELD.for_good());
        }
        // Linux sends room for the most ranges that there can be, however few it means.
        let room = match command {
            Command::Deallocate { .. } => RANGES_BYTES_MAX,
            _ => bytes_out.max(bytes_in),
        };
        let fits = |length: u32| (bytes_out.max(bytes_in)..=room).contains(&length.into());
        match entry.data_pointer()? {
            DataPointer::InCapsule { offset: 0, length } if bytes_out > 0 => {
                let is_there = length as usize == in_capsule && fits(length);
                if is_there { Ok(0) } else { Err(Status::DATA_LENGTH_INVALID.for_good()) }
            }
            DataPointer::Transport { length } if fits(length) => {
                Ok(if bytes_out > 0 { length as usize } else { 0 })
            }
            // What has no data need not say so.
            _ if bytes_out == 0 && bytes_in == 0 => Ok(0),
            _ => Err(Status::DATA_LENGTH_INVALID.for_good()),
        }
    }

    /// Asks for the data of waiting commands, as far as there is room for them.
    fn ask_for_data(&mut self) -> Result<(), End> {
        while let Some((_, _, length)) = self.waiting.front() {
            let is_room = self.awaited_bytes + length <= self.subsystem.limits().awaited_bytes;
            if !is_room && !self.awaited.is_empty() {
                break;
            }
            let Some((entry, command, length)) = self.waiting.pop_front() else { break };
            while self.awaited.contains_key(&self.next_tag) {
                self.next_tag = self.next_tag.wrapping_add(1);
            }
            let (tag, data) = (self.next_tag, self.buffers.take(length));
            self.next_tag = self.next_tag.wrapping_add(1);
            self.awaited_bytes += length;
            let awaited = Awaited { entry, command, data, length, arrived: 0, is_damaged: false };
            self.awaited.insert(tag, awaited);
            let command_id = entry.command_id();
            let transfer = Transfer { command_id, tag, offset: 0, length: length as u32 };
            self.send(&Header::ReadyToTransfer(transfer), &[])?;
        }
        Ok(())
    }

    fn take_data(&mut self, frame: &Frame, transfer: &Transfer, is_last: bool) -> Result<(), End> {
        let unknown = || malformed(Fault::HeaderField(10), "data that nobody asked for");
        let mut awaited = self.awaited.remove(&transfer.tag).ok_or_else(unknown)?;
        if awaited.entry.command_id() != transfer.command_id {
            return Err(malformed(Fault::HeaderField(8), "data of another command"));
        }
        if transfer.length > self.subsystem.limits().host_data_bytes {
            return Err(malformed(Fault::LimitExceeded, "more data in a PDU than MAXH2CDATA"));
        }
        if transfer.offset as usize != awaited.arrived {
            return Err(malformed(Fault::Sequence, "data that do not follow the last ones"));
        }
        let end = awaited.arrived + transfer.length as usize;
        let is_end = end == awaited.length;
        let place = awaited.data[..awaited.length].get_mut(awaited.arrived..end);
        let place =
            place.ok_or_else(|| malformed(Fault::OutOfRange, "data that were not asked for"))?;
        if is_last != is_end {
            return Err(malformed(Fault::Sequence, "LAST_PDU where the data do not end"));
        }
        awaited.is_damaged |= !self.receive_data(frame, place)?;
        awaited.arrived = end;
        if !is_end {
            self.awaited.insert(transfer.tag, awaited);
            return Ok(());
        }
        self.awaited_bytes -= awaited.length;
        match awaited.is_damaged {
            true => self.answer(&awaited.entry, Err(Status::TRANSIENT_TRANSPORT))?,
            false => {
                let data = &awaited.data[..awaited.length];
                self.execute(&awaited.entry, &awaited.command, data)?;
            }
        }
        self.buffers.give(awaited.data);
        self.ask_for_data()
    }

    /// Receives the data of a PDU; whether they are what their digest says.
    fn receive_data(&mut self, frame: &Frame, target: &mut [u8]) -> Result<bool, End> {
        let mut padding = [0; u8::MAX as usize];
        self.reader.read_exact(&mut padding[..frame.data_at - frame.header_bytes])?;
        self.reader.read_exact(target)?;
        let mut digest = [0; DIGEST_BYTES];
        if frame.has_data_digest {
            self.reader.read_exact(&mut digest)?;
        }
        Ok(!frame.has_data_digest || digest == checksum::crc32c(0, target).to_le_bytes())
    }

    /// Does a command all of whose data are here.
    fn execute(&mut self, entry: &Entry, command: &Command, data: &[u8]) -> Result<(), End> {
        if let Command::Connect { .. } = command {
            let connected = self.connect(command, data);
            return self.answer(entry, connected);
        }
        if let Some(check) = self.check.take() {
            return self.authenticate(entry, command, data, check);
        }
        match &mut self.role {
            Role::New => self.answer(entry, Err(Status::SEQUENCE_ERROR)),
            Role::Admin(admin) => {
                let (local, mut page) = (self.stream.local_addr()?, Vec::new());
                match admin.execute(entry.command_id(), command, local, &mut page) {
                    // It is answered when something happens.
                    Ok(None) => Ok(()),
                    Ok(Some(result)) if !page.is_empty() => self.answer_with(entry, result, &page),
                    Ok(Some(result)) => self.answer(entry, Ok(result)),
                    Err(status) => self.answer(entry, Err(status)),
                }
            }
            Role::Io(controller, _) if !controller.is_enabled() => {
                self.answer(entry, Err(Status::SEQUENCE_ERROR))
            }
            Role::Io(controller, _) => {
                let mut answer = self.buffers.take(0);
                let asked = io::Asked { host: controller.host_id(), command, data };
                let done = match io::execute(&self.subsystem, &asked, &mut answer) {
                    Ok(0) => self.answer(entry, Ok(0)),
                    Ok(length) => self.answer_with(entry, 0, &answer[..length]),
                    Err(status) => self.answer(entry, Err(status)),
                };
                self.buffers.give(answer);
                done
            }
        }
    }

    /// Carries a message of the authentication, after which the host may be served, or has lost the connection.
    fn authenticate(
        &mut self,
        entry: &Entry,
        command: &Command,
        data: &[u8],
        mut check: Check,
    ) -> Result<(), End> {
        match *command {
            Command::AuthenticationReceive { bytes } => match check.answer(bytes as usize) {
                Ok(mut message) => {
                    message.resize(bytes as usize, 0);
                    self.answer_with(entry, 0, &message)?;
                }
                Err(status) => self.answer(entry, Err(status))?,
            },
            _ => {
                check.take(data);
                self.answer(entry, Ok(0))?;
            }
        }
        match check.progress() {
            Progress::Going => self.check = Some(check),
            Progress::Failed => return Err(End::Gone),
            Progress::Passed => self.set_timeout().map_err(|_| End::Gone)?,
        }
        Ok(())
    }

    /// Makes the connection a queue.
    fn connect(&mut self, command: &Command, data: &[u8]) -> Result<u64, Status> {
        let invalid = Status::CONNECT_INVALID.for_good();
        let bytes: Option<&[u8; CONNECT_DATA_BYTES]> = data.first_chunk();
        let host = bytes.and_then(ConnectData::decode).ok_or(invalid)?;
        let &Command::Connect { queue, entries, without_flow_control, keep_alive_ms } = command
        else {
            return Err(Status::INTERNAL_ERROR);
        };
        if !matches!(self.role, Role::New) {
            return Err(Status::SEQUENCE_ERROR.for_good());
        }
        let limits = self.subsystem.limits();
        let entries_max = if queue == 0 { ADMIN_ENTRIES_MAX } else { limits.entries };
        if queue > limits.queues || entries > entries_max {
            return Err(invalid);
        }
        let is_discovery = host.subsystem.as_str() == DISCOVERY_NQN;
        let is_ours = is_discovery || host.subsystem == *self.subsystem.name();
        let check = match self.subsystem.guard() {
            _ if !is_ours => return Err(invalid),
            Some(guard) if !is_discovery => Some(guard.check(&host.host, &host.subsystem)?),
            _ => None,
        };
        let id = match queue {
            0 if host.controller != ANY_CONTROLLER => return Err(invalid),
            0 => self.connect_admin(&host, is_discovery, keep_alive_ms)?,
            _ => {
                let controller = self.subsystem.controller(&host).ok_or(invalid)?;
                let stream = self.stream.try_clone().map_err(|_| Status::INTERNAL_ERROR)?;
                if !controller.is_enabled() {
                    return Err(Status::SEQUENCE_ERROR);
                }
                controller.add_queue(queue, stream)?;
                let id = controller.id;
                self.role = Role::Io(controller, queue);
                id
            }
        };
        self.flow = Flow { entries, head: 1, is_controlled: !without_flow_control };
        self.check = check;
        match self.check {
            Some(_) => Ok(u64::from(id) | AUTHENTICATION_ALONE),
            None => self.set_timeout().map(|()| id.into()),
        }
    }

    fn connect_admin(
        &mut self,
        host: &ConnectData,
        is_discovery: bool,
        keep_alive_ms: u32,
    ) -> Result<u16, Status> {
        let controller = self.subsystem.add_controller(host, keep_alive_ms)?;
        let id = controller.id;
        self.role = Role::Admin(Admin::new(Arc::clone(&self.subsystem), controller, is_discovery));
        Ok(id)
    }

    /// Sets how long the host of a queue may be silent: as it said, which is for ever on I/O queues.
    fn set_timeout(&self) -> Result<(), Status> {
        let keep_alive_ms = match &self.role {
            Role::Admin(admin) => admin.controller().keep_alive_ms,
            _ => 0,
        };
        let time = Duration::from_millis(keep_alive_ms.into()) + KEEP_ALIVE_GRACE;
        let time = (keep_alive_ms > 0).then_some(time);
        self.stream.set_read_timeout(time).map_err(|_| Status::INTERNAL_ERROR)
    }

    /// Ends a command that returns no data.
    fn answer(&mut self, entry: &Entry, result: Result<u64, Status>) -> Result<(), End> {
        let (result, status) = match result {
            Ok(result) => (result, Status::SUCCESS),
            Err(status) => (0, status),
        };
        let queue_head =
            if self.flow.is_controlled { self.flow.head as u16 } else { NO_FLOW_CONTROL };
        let command_id = entry.command_id();
        let completion = Completion { result, queue_head, command_id, status };
        Ok(self.send(&Header::Response(completion), &[])?)
    }

    /// Ends a command that returns data, by these alone if that is agreed on.
    fn answer_with(&mut self, entry: &Entry, result: u64, data: &[u8]) -> Result<(), End> {
        let command_id = entry.command_id();
        let transfer = Transfer { command_id, tag: 0, offset: 0, length: data.len() as u32 };
        let is_success = !self.flow.is_controlled;
        self.send(&Header::ControllerData { transfer, is_last: true, is_success }, data)?;
        if is_success { Ok(()) } else { self.answer(entry, Ok(result)) }
    }

    fn send(&mut self, header: &Header, data: &[u8]) -> std::io::Result<()> {
        let start = header.encode(data.len(), self.outgoing);
        let digest = match self.outgoing.data_digest && !data.is_empty() {
            true => &checksum::crc32c(0, data).to_le_bytes()[..],
            false => &[],
        };
        self.write(&[start.bytes(), data, digest])
    }

    fn write(&mut self, parts: &[&[u8]]) -> std::io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut slices = &mut slices[..];
        IoSlice::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            match self.stream.write_vectored(slices) {
                Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
                Ok(count) => IoSlice::advance_slices(&mut slices, count),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Flow {
    /// An entry of the queue was taken.
    fn advance(&mut self) {
        self.head = (self.head + 1) % self.entries;
    }
}
