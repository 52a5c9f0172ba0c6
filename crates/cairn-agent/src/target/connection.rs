//! One connection of a host, as what its loop calls when something has arrived, can be sent, or was done.
//!
//! Must stay true: nothing here waits. Of what a connection holds, everything but a few KiB comes from the pool: a command that
//! needs memory which is not there waits for it, and while it does the connection goes on; a PDU that does not fit ends the
//! connection and says why (TCP 3.5). A command whose data came with a wrong digest is not done. Nothing is done, and no data
//! are asked for, for a host that has yet to prove who it is.
//! Does not know commands; `admin` and `io` do.

use super::admin::Admin;
use super::directory::Directory;
use super::event_loop::{Hands, Letter};
use super::guard::{Check, Progress};
use super::intake::{Body, Intake, Place, whole};
use super::io;
use super::metrics::Counters;
use super::outbox::Outbox;
use super::pool::Buffer;
use super::socket::Socket;
use super::subsystem::{Controller, Limits, Subsystem};
use super::transfer::{Transfers, Waiting};
use super::workers::{Begin, Job};
use cairn_device::checksum;
use cairn_device::nvme::wire::auth::MESSAGE_BYTES_MAX;
use cairn_device::nvme::wire::command::{Blocks, QueueKind, RANGE_BYTES, RANGES_MAX};
use cairn_device::nvme::wire::fabrics::{
    ANY_CONTROLLER, AUTHENTICATION_ALONE, CONNECT_DATA_BYTES, ConnectData,
};
use cairn_device::nvme::wire::pdu::{
    ADMIN_CAPSULE_DATA_BYTES, Fault, Frame, Framing, Header, InitializeRequest, InitializeResponse,
    Malformed, Terminate, Transfer,
};
use cairn_device::nvme::wire::{Command, Completion, DataPointer, Entry, Status};
use std::io::IoSliceMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a host may take until it has connected a queue and proven who it is.
const GREETING: Duration = Duration::from_secs(30);
/// Beyond the time that a host asked for it is forgiven so much.
const KEEP_ALIVE_GRACE: Duration = Duration::from_secs(1);
/// Most entries of an admin queue.
const ADMIN_ENTRIES_MAX: u32 = 128;
/// Most data of a command that deallocates.
const RANGES_BYTES_MAX: u64 = (RANGES_MAX * RANGE_BYTES) as u64;
/// SQHD of a queue without flow control.
const NO_FLOW_CONTROL: u16 = 0xffff;
/// How often is received before others have their turn.
const RECEIVES_MAX: usize = 16;
/// What is received behind data that go to their place at once.
const AHEAD_BYTES: usize = 4 << 10;
/// Data that wait to be sent are sent before more commands are done once they are so many bytes.
const FLUSH_BYTES: usize = 256 << 10;
/// What a host may leave of answers without data before it is heard again, bytes: more than those to a full queue.
const SMALL_BYTES_MAX: usize = 64 << 10;
/// Data of namespaces in memory are sent without a copy, from so many bytes on.
const STORED_BYTES_MIN: u64 = 32 << 10;

/// Why a connection ends.
#[derive(Debug)]
pub(super) enum End {
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
    Io(Arc<Subsystem>, Arc<Controller>, u16),
}

/// What the host has to prove before it is served.
enum Proof {
    /// Nothing, or it has.
    None,
    Owed(Box<Check>),
    /// What it has sent is being checked.
    Checking,
}

/// How far a submission queue is.
struct Flow {
    entries: u32,
    head: u32,
    is_controlled: bool,
    /// Commands that were not answered yet.
    under_way: u32,
}

/// What comes with a command, or room for what goes back.
enum Data<'a> {
    /// It is in what was just received.
    InCapsule(&'a [u8]),
    /// The first bytes of a buffer.
    Received(Buffer, usize),
    Room(Buffer),
}

impl Data<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Data::InCapsule(bytes) => bytes,
            Data::Received(buffer, length) => &buffer[..*length],
            Data::Room(_) => &[],
        }
    }

    fn into_buffer(self) -> Buffer {
        match self {
            Data::InCapsule(_) => Buffer::default(),
            Data::Received(buffer, _) | Data::Room(buffer) => buffer,
        }
    }
}

/// What a worker has done for a connection.
pub(super) enum Outcome {
    /// A command of an I/O queue; how many bytes of the buffer go back.
    Io { entry: Entry, buffer: Buffer, result: Result<usize, Status> },
    /// What a host has sent to prove who it is was looked at.
    Checked { entry: Entry, check: Box<Check> },
}

/// A connection.
pub(super) struct Connection {
    socket: Arc<Socket>,
    directory: Arc<Directory>,
    /// By which its loop knows it.
    token: u64,
    is_over: Arc<AtomicBool>,
    incoming: Framing,
    outgoing: Framing,
    is_initialized: bool,
    role: Role,
    proof: Proof,
    flow: Flow,
    intake: Intake,
    outbox: Outbox,
    transfers: Transfers,
    /// Buffers that workers have.
    busy_bytes: usize,
    is_hungry: bool,
    /// No more commands are begun.
    is_draining: bool,
    /// How long the host may be silent, if not for ever.
    silence_max: Option<Duration>,
    heard: Instant,
    /// Since when it has taken nothing of what there is for it.
    stuck: Option<Instant>,
}

impl Connection {
    pub(super) fn new(
        socket: Arc<Socket>,
        directory: Arc<Directory>,
        token: u64,
        now: Instant,
    ) -> Connection {
        Connection {
            socket,
            directory,
            token,
            is_over: Arc::default(),
            incoming: Framing::PLAIN,
            outgoing: Framing::PLAIN,
            is_initialized: false,
            role: Role::New,
            proof: Proof::None,
            flow: Flow { entries: 2, head: 0, is_controlled: true, under_way: 0 },
            intake: Intake::default(),
            outbox: Outbox::default(),
            transfers: Transfers::default(),
            busy_bytes: 0,
            is_hungry: false,
            is_draining: false,
            silence_max: Some(GREETING),
            heard: now,
            stuck: None,
        }
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Whether it is to be heard, and whether it has something to say.
    pub(super) fn interest(&self) -> (bool, bool) {
        (self.outbox.small_bytes() <= SMALL_BYTES_MAX, !self.outbox.is_empty())
    }

    /// Whether a command waits for memory that others have.
    pub(super) fn is_hungry(&self) -> bool {
        self.is_hungry
    }

    /// Begins no more commands; what waits for events is told that there will be none.
    pub(super) fn drain(&mut self) {
        self.is_draining = true;
        let Role::Admin(admin) = &mut self.role else { return };
        for id in admin.take_event_requests() {
            let mut entry = Command::AsyncEventRequest.encode();
            entry.set_command_id(id);
            self.answer(&entry, Err(Status::QUEUE_ENDED));
        }
    }

    /// Whether everything that it has begun has ended, and the host has been told.
    pub(super) fn is_drained(&self) -> bool {
        self.is_draining && self.flow.under_way == 0 && self.outbox.is_empty()
    }

    /// When it ends if nothing happens, where hosts may be so slow.
    pub(super) fn deadline(&self, patience: Duration) -> Option<Instant> {
        let silence = self.silence_max.map(|most| self.heard + most);
        let slow = [self.transfers.awaited_since(), self.intake.awaited_since(), self.stuck];
        let slow = slow.into_iter().flatten().map(|since| since + patience);
        slow.chain(silence).min()
    }

    /// Sends what can be sent now, and goes on with what waited for that.
    pub(super) fn flush(&mut self, hands: &mut Hands) -> Result<(), End> {
        while !self.outbox.is_empty() {
            let is_progress = self.outbox.flush(&self.socket, &mut hands.pool)?;
            self.stuck = match self.outbox.is_empty() {
                true => None,
                false if is_progress => Some(hands.now),
                false => self.stuck.or(Some(hands.now)),
            };
            if !is_progress || self.transfers.waiting.is_empty() {
                break;
            }
            self.resume(hands)?;
        }
        Ok(())
    }

    /// Receives what has arrived, and does what it says.
    pub(super) fn receive(&mut self, hands: &mut Hands) -> Result<(), End> {
        let mut scratch = std::mem::take(&mut hands.scratch);
        let received = self.receive_by(&mut scratch, hands);
        hands.scratch = scratch;
        received
    }

    fn receive_by(&mut self, scratch: &mut [u8], hands: &mut Hands) -> Result<(), End> {
        for _ in 0..RECEIVES_MAX {
            let is_awaiting = self.transfers.is_awaiting() || self.intake.is_in_body();
            let ahead = if is_awaiting { AHEAD_BYTES } else { scratch.len() };
            let target = self.intake.target();
            let direct = target.len();
            let parts = &mut [IoSliceMut::new(target), IoSliceMut::new(&mut scratch[..ahead])];
            let Some(count) = self.socket.receive(parts)? else { break };
            if count == 0 {
                return Err(End::Gone);
            }
            if !matches!(self.role, Role::New) && matches!(self.proof, Proof::None) {
                self.heard = hands.now;
            }
            self.intake.advance(count.min(direct));
            self.take(&scratch[..count.saturating_sub(direct)], hands)?;
            if self.outbox.buffer_bytes() >= FLUSH_BYTES {
                self.flush(hands)?;
            }
            if count < direct + ahead || !self.interest().0 {
                break;
            }
        }
        Ok(())
    }

    /// Goes on where memory was lacking.
    pub(super) fn resume(&mut self, hands: &mut Hands) -> Result<(), End> {
        while let Some(next) = self.transfers.waiting.front() {
            let bytes_max = self.limits().awaited_bytes;
            let answers_bytes = self.outbox.buffer_bytes() + self.busy_bytes;
            let has_room = match next.ask_bytes {
                0 => answers_bytes == 0 || answers_bytes + next.answer_bytes <= bytes_max,
                asked => self.transfers.has_room(asked, bytes_max),
            };
            if !has_room {
                break;
            }
            let Some(buffer) = hands.pool.take(next.ask_bytes + next.answer_bytes) else {
                self.directory.totals().waits.add(u64::from(!self.is_hungry));
                self.is_hungry = true;
                return Ok(());
            };
            let Some(next) = self.transfers.waiting.pop_front() else { break };
            match next.ask_bytes {
                0 => self.execute(&next.entry, &next.command, Data::Room(buffer), hands)?,
                _ => {
                    let transfer = self.transfers.ask(&next, buffer, hands.now);
                    self.say(&Header::ReadyToTransfer(transfer));
                }
            }
        }
        self.is_hungry = false;
        Ok(())
    }

    /// Goes on where a worker has ended.
    pub(super) fn finish(&mut self, outcome: Outcome, hands: &mut Hands) -> Result<(), End> {
        match outcome {
            Outcome::Io { entry, buffer, result } => {
                self.busy_bytes -= buffer.len();
                self.answer_io(&entry, buffer, result, hands);
            }
            Outcome::Checked { entry, check } => {
                self.answer(&entry, Ok(0));
                self.conclude(check)?;
            }
        }
        self.resume(hands)
    }

    /// Ends it: tells the host what it did wrong, with the header that shows it, and gives back what it had.
    pub(super) fn end(mut self, end: End, hands: &mut Hands) {
        self.is_over.store(true, Ordering::Relaxed);
        self.directory.totals().ended.add(1);
        if let End::Malformed(malformed) = end {
            self.directory.totals().malformed.add(1);
            let (status, information) = malformed.fault.encode();
            let terminate = Header::ControllerTerminate(Terminate { status, information });
            let header = self.intake.header();
            self.outbox.push(terminate.encode(header.len(), Framing::PLAIN).bytes());
            self.outbox.push(header);
        }
        // Who does not listen has lost nothing.
        let _ = self.flush(hands);
        self.outbox.clear(&mut hands.pool);
        self.transfers.abandon().for_each(|buffer| hands.pool.give(buffer));
        if let Some(awaited) = self.intake.abandon() {
            hands.pool.give(awaited.buffer);
        }
        match &self.role {
            Role::New => {}
            Role::Admin(admin) => admin.subsystem().remove_controller(admin.controller()),
            Role::Io(_, controller, number) => controller.remove_queue(*number),
        }
    }

    fn limits(&self) -> &Limits {
        self.directory.limits()
    }

    /// Takes what was received, PDU after PDU.
    fn take(&mut self, mut bytes: &[u8], hands: &mut Hands) -> Result<(), End> {
        loop {
            if let Some(body) = self.intake.take_body(&mut bytes) {
                self.take_whole_body(body, hands)?;
            }
            if self.intake.is_in_body() || bytes.is_empty() {
                return Ok(());
            }
            let pdu = self.intake.take_header(&mut bytes, self.incoming)?;
            let Some((frame, header)) = pdu else { return Ok(()) };
            bytes = self.take_pdu(&frame, header, bytes, hands)?;
        }
    }

    /// Begins a PDU with that header; what is behind it in `bytes`.
    fn take_pdu<'a>(
        &mut self,
        frame: &Frame,
        header: Header,
        bytes: &'a [u8],
        hands: &mut Hands,
    ) -> Result<&'a [u8], End> {
        match header {
            Header::InitializeRequest(request) if !self.is_initialized => self.initialize(&request),
            Header::HostTerminate(_) => return Err(End::Gone),
            _ if !self.is_initialized => {
                let what = "a PDU before the connection was initialized";
                return Err(malformed(Fault::Sequence, what));
            }
            Header::Command(entry) => return self.take_capsule(frame, entry, bytes, hands),
            Header::HostData { transfer, is_last } => {
                let bytes_max = self.limits().host_data_bytes;
                let (awaited, start) = self.transfers.begin(&transfer, is_last, bytes_max)?;
                self.intake.expect(Body::new(frame, Place::Transfer(awaited), start));
            }
            _ => return Err(malformed(Fault::Sequence, "a PDU that cannot come now")),
        }
        Ok(bytes)
    }

    fn initialize(&mut self, request: &InitializeRequest) {
        let response = InitializeResponse {
            data_alignment: Framing::PLAIN.data_alignment,
            header_digest: request.header_digest,
            data_digest: request.data_digest,
            data_bytes_max: self.limits().host_data_bytes,
        };
        self.say(&Header::InitializeResponse(response));
        let InitializeRequest { header_digest, data_digest, data_alignment, .. } = *request;
        self.incoming = Framing { header_digest, data_digest, ..Framing::PLAIN };
        self.outgoing = Framing { header_digest, data_digest, data_alignment };
        self.is_initialized = true;
    }

    fn take_capsule<'a>(
        &mut self,
        frame: &Frame,
        entry: Entry,
        bytes: &'a [u8],
        hands: &mut Hands,
    ) -> Result<&'a [u8], End> {
        let bytes_max = match self.role {
            Role::Io(..) => self.limits().capsule_data_bytes as usize,
            _ => ADMIN_CAPSULE_DATA_BYTES,
        };
        if frame.data_bytes > bytes_max {
            let what = "more data in a capsule than it may have";
            return Err(malformed(Fault::HeaderField(4), what));
        }
        if frame.data_bytes == 0 {
            self.begin(&entry, &[], true, hands)?;
        } else if let Some((data, is_intact, rest)) = whole(frame, bytes) {
            self.begin(&entry, data, is_intact, hands)?;
            return Ok(rest);
        } else {
            let place = Place::Capsule(entry, vec![0; frame.data_bytes]);
            self.intake.expect(Body::new(frame, place, 0));
        }
        Ok(bytes)
    }

    fn take_whole_body(&mut self, body: Body, hands: &mut Hands) -> Result<(), End> {
        match body.end() {
            (Place::Capsule(entry, data), is_intact) => self.begin(&entry, &data, is_intact, hands),
            (Place::Transfer(awaited), is_intact) => match self.transfers.end(awaited, is_intact) {
                None => Ok(()),
                Some((awaited, true)) => {
                    let data = Data::Received(awaited.buffer, awaited.length);
                    self.execute(&awaited.entry, &awaited.command, data, hands)?;
                    self.resume(hands)
                }
                Some((awaited, false)) => {
                    hands.pool.give(awaited.buffer);
                    self.answer(&awaited.entry, Err(Status::TRANSIENT_TRANSPORT));
                    self.resume(hands)
                }
            },
        }
    }

    /// Does a command that came with these data, or sees to what it needs.
    fn begin(
        &mut self,
        entry: &Entry,
        data: &[u8],
        is_intact: bool,
        hands: &mut Hands,
    ) -> Result<(), End> {
        if self.is_draining {
            // The host will repeat it when it has connected again.
            return Ok(());
        }
        self.flow.advance()?;
        match self.needs(entry, data.len()) {
            Err(status) => self.answer(entry, Err(status)),
            Ok(_) if !is_intact => self.answer(entry, Err(Status::TRANSIENT_TRANSPORT)),
            Ok(needs) if needs.ask_bytes == 0 && needs.answer_bytes == 0 => {
                self.execute(entry, &needs.command, Data::InCapsule(data), hands)?;
            }
            Ok(needs) => {
                self.transfers.waiting.push_back(needs);
                self.resume(hands)?;
            }
        }
        Ok(())
    }

    /// What a command with so many bytes of data needs yet. Errors: it cannot be done, or not now.
    fn needs(&self, entry: &Entry, in_capsule: usize) -> Result<Waiting, Status> {
        let kind = match self.role {
            Role::Io(..) => QueueKind::Io,
            _ => QueueKind::Admin,
        };
        let command = Command::decode(entry, kind).map_err(Status::for_good)?;
        self.admit(&command)?;
        let (ask_bytes, mut answer_bytes) = self.placement(entry, &command, in_capsule)?;
        if self.is_sent_as_stored(&command, answer_bytes) {
            answer_bytes = 0;
        }
        let (entry, answer_bytes) = (*entry, answer_bytes as usize);
        Ok(Waiting { entry, command, ask_bytes, answer_bytes })
    }

    /// Errors: the host has to prove who it is before it may send that.
    fn admit(&self, command: &Command) -> Result<(), Status> {
        match (command, &self.proof) {
            (_, Proof::None) => Ok(()),
            (
                Command::AuthenticationSend { bytes } | Command::AuthenticationReceive { bytes },
                Proof::Owed(_),
            ) => {
                let fits = *bytes as usize <= MESSAGE_BYTES_MAX;
                if fits { Ok(()) } else { Err(Status::INVALID_FIELD.for_good()) }
            }
            _ => Err(Status::AUTHENTICATION_REQUIRED.for_good()),
        }
    }

    /// How many bytes of data the host must be asked for, and how many it is sent. Errors: what the entry says of its data is
    /// not what the command has.
    fn placement(
        &self,
        entry: &Entry,
        command: &Command,
        in_capsule: usize,
    ) -> Result<(usize, u64), Status> {
        let block_bytes = match (command, &self.role) {
            (
                Command::Read { namespace, .. } | Command::Write { namespace, .. },
                Role::Io(subsystem, ..),
            ) => subsystem.namespace(*namespace)?.shape().block_bytes(),
            _ => 1,
        };
        let (bytes_out, bytes_in) = (command.bytes_out(block_bytes), command.bytes_in(block_bytes));
        if bytes_out.max(bytes_in) > self.limits().transfer_bytes() {
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
                if is_there { Ok((0, 0)) } else { Err(Status::DATA_LENGTH_INVALID.for_good()) }
            }
            DataPointer::Transport { length } if fits(length) => {
                Ok(if bytes_out > 0 { (length as usize, 0) } else { (0, bytes_in) })
            }
            // What has no data need not say so.
            _ if bytes_out == 0 && bytes_in == 0 => Ok((0, 0)),
            _ => Err(Status::DATA_LENGTH_INVALID.for_good()),
        }
    }

    /// Whether what a command returns goes from where it stands right to the host.
    fn is_sent_as_stored(&self, command: &Command, bytes: u64) -> bool {
        let (Command::Read { namespace, .. }, Role::Io(subsystem, ..)) = (command, &self.role)
        else {
            return false;
        };
        bytes >= STORED_BYTES_MIN
            && !self.outgoing.data_digest
            && subsystem.namespace(*namespace).is_ok_and(|namespace| namespace.is_memory())
    }

    /// Does a command all of whose data are here, or for whose answer there is room.
    fn execute(
        &mut self,
        entry: &Entry,
        command: &Command,
        data: Data<'_>,
        hands: &mut Hands,
    ) -> Result<(), End> {
        if let Err(status) = self.admit(command) {
            hands.pool.give(data.into_buffer());
            self.answer(entry, Err(status));
            return Ok(());
        }
        if let Command::Connect { .. } = command {
            let connected = self.connect(command, data.bytes(), hands.now);
            hands.pool.give(data.into_buffer());
            self.answer(entry, connected);
            return Ok(());
        }
        match std::mem::replace(&mut self.proof, Proof::None) {
            Proof::Owed(check) => return self.authenticate(entry, command, data, check, hands),
            proof => self.proof = proof,
        }
        match &mut self.role {
            Role::New => {
                hands.pool.give(data.into_buffer());
                self.answer(entry, Err(Status::SEQUENCE_ERROR));
            }
            Role::Admin(_) => self.execute_admin(entry, command, data.into_buffer(), hands),
            Role::Io(_, controller, _) if !controller.is_enabled() => {
                hands.pool.give(data.into_buffer());
                self.answer(entry, Err(Status::SEQUENCE_ERROR));
            }
            Role::Io(subsystem, controller, _) => {
                let (subsystem, controller) = (Arc::clone(subsystem), Arc::clone(controller));
                self.execute_io(entry, command, data, (subsystem, controller), hands);
            }
        }
        Ok(())
    }

    fn execute_admin(
        &mut self,
        entry: &Entry,
        command: &Command,
        mut buffer: Buffer,
        hands: &mut Hands,
    ) {
        let Role::Admin(admin) = &mut self.role else { return };
        let mut page = Vec::new();
        match admin.execute(entry.command_id(), command, self.socket.local(), &mut page) {
            // It is answered when something happens.
            Ok(None) => hands.pool.give(buffer),
            Ok(Some(result)) if !page.is_empty() => {
                buffer[..page.len()].copy_from_slice(&page);
                self.answer_with(entry, result, buffer, page.len());
            }
            result => {
                hands.pool.give(buffer);
                self.answer(entry, result.map(Option::unwrap_or_default));
            }
        }
    }

    fn execute_io(
        &mut self,
        entry: &Entry,
        command: &Command,
        data: Data<'_>,
        (subsystem, controller): (Arc<Subsystem>, Arc<Controller>),
        hands: &mut Hands,
    ) {
        subsystem.count(command);
        if let (Command::Read { namespace, blocks }, Data::InCapsule(_)) = (*command, &data) {
            // It has no buffer because it needs none.
            return self.answer_as_stored(entry, &subsystem, namespace, blocks);
        }
        let task = io::Task { subsystem, host: *controller.host_id(), command: *command };
        let data = if task.is_quick() { data } else { data.kept(hands) };
        match data {
            Data::InCapsule(bytes) => self.answer(entry, task.execute(bytes, &mut []).map(|_| 0)),
            Data::Received(buffer, length) if task.is_quick() => {
                let result = task.execute(&buffer[..length], &mut []);
                self.answer_io(entry, buffer, result, hands);
            }
            Data::Room(mut buffer) if task.is_quick() => {
                let result = task.execute(&[], &mut buffer);
                self.answer_io(entry, buffer, result, hands);
            }
            data => self.have_done(entry, task, data, hands),
        }
    }

    /// Has a command done by a worker.
    fn have_done(&mut self, entry: &Entry, task: io::Task, data: Data<'_>, hands: &mut Hands) {
        let length = data.bytes().len();
        let (entry, mut buffer) = (*entry, data.into_buffer());
        self.busy_bytes += buffer.len();
        self.submit(hands, move |begin| {
            let result = match begin {
                Begin::LetGo => Err(Status::INTERNAL_ERROR),
                Begin::Work if length > 0 => task.execute(&buffer[..length], &mut []),
                Begin::Work => task.execute(&[], &mut buffer),
            };
            Outcome::Io { entry, buffer, result }
        });
    }

    fn submit(&self, hands: &Hands, work: impl FnOnce(Begin) -> Outcome + Send + 'static) {
        let (mailbox, token) = (Arc::clone(&hands.mailbox), self.token);
        let work = move |begin| mailbox.post(Letter::Done(token, work(begin)));
        hands.workers.submit(Job { is_over: Arc::clone(&self.is_over), work: Box::new(work) });
    }

    /// Carries a message of the authentication.
    fn authenticate(
        &mut self,
        entry: &Entry,
        command: &Command,
        data: Data<'_>,
        mut check: Box<Check>,
        hands: &mut Hands,
    ) -> Result<(), End> {
        if let Command::AuthenticationReceive { bytes } = *command {
            self.answer_proof(entry, data.into_buffer(), bytes as usize, &mut check, hands);
            return self.conclude(check);
        }
        let is_costly = check.is_costly();
        let (entry, message) = (*entry, data.bytes().to_vec());
        hands.pool.give(data.into_buffer());
        let work = move |begin| {
            if begin == Begin::Work {
                check.take(&message);
            }
            Outcome::Checked { entry, check }
        };
        if is_costly {
            self.proof = Proof::Checking;
            self.submit(hands, work);
            return Ok(());
        }
        self.finish(work(Begin::Work), hands)
    }

    fn answer_proof(
        &mut self,
        entry: &Entry,
        mut buffer: Buffer,
        bytes: usize,
        check: &mut Check,
        hands: &mut Hands,
    ) {
        match check.answer(bytes) {
            Ok(message) => {
                buffer[..bytes].fill(0);
                buffer[..message.len()].copy_from_slice(&message);
                self.answer_with(entry, 0, buffer, bytes);
            }
            Err(status) => {
                hands.pool.give(buffer);
                self.answer(entry, Err(status));
            }
        }
    }

    /// Sees how far the host is, after which it may be served, or has lost the connection.
    fn conclude(&mut self, check: Box<Check>) -> Result<(), End> {
        match check.progress() {
            Progress::Going => self.proof = Proof::Owed(check),
            Progress::Failed => {
                self.counted(|counters| counters.strangers.add(1));
                return Err(End::Gone);
            }
            Progress::Passed => self.let_in(),
        }
        Ok(())
    }

    /// Makes the connection a queue.
    fn connect(&mut self, command: &Command, data: &[u8], now: Instant) -> Result<u64, Status> {
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
        let limits = self.limits();
        let entries_max = if queue == 0 { ADMIN_ENTRIES_MAX } else { limits.entries };
        if queue > limits.queues || entries > entries_max {
            return Err(invalid);
        }
        let subsystem = self.directory.find(&host.subsystem).ok_or(invalid)?;
        let check = match subsystem.guard() {
            Some(guard) => guard
                .check(&host.host, &host.subsystem)
                .inspect_err(|_| subsystem.counters().strangers.add(1))?,
            None => None,
        };
        let id = match queue {
            0 if host.controller != ANY_CONTROLLER => return Err(invalid),
            0 => self.connect_admin(subsystem, &host, keep_alive_ms)?,
            _ => self.connect_io(subsystem, &host, queue)?,
        };
        let under_way = self.flow.under_way;
        self.flow = Flow { entries, head: 1, is_controlled: !without_flow_control, under_way };
        self.heard = now;
        match check {
            Some(check) => {
                self.proof = Proof::Owed(Box::new(check));
                Ok(u64::from(id) | AUTHENTICATION_ALONE)
            }
            None => {
                self.let_in();
                Ok(id.into())
            }
        }
    }

    fn connect_admin(
        &mut self,
        subsystem: Arc<Subsystem>,
        host: &ConnectData,
        keep_alive_ms: u32,
    ) -> Result<u16, Status> {
        let socket = Arc::clone(&self.socket);
        let controller = subsystem.add_controller(host, keep_alive_ms, socket)?;
        let id = controller.id;
        self.role = Role::Admin(Admin::new(&self.directory, subsystem, controller));
        Ok(id)
    }

    fn connect_io(
        &mut self,
        subsystem: Arc<Subsystem>,
        host: &ConnectData,
        queue: u16,
    ) -> Result<u16, Status> {
        let controller = subsystem.controller(host).ok_or(Status::CONNECT_INVALID.for_good())?;
        controller.add_queue(queue, Arc::clone(&self.socket))?;
        let id = controller.id;
        self.role = Role::Io(subsystem, controller, queue);
        Ok(id)
    }

    /// From now on the host may be silent as long as it said, which is for ever on I/O queues.
    fn let_in(&mut self) {
        let keep_alive_ms = match &self.role {
            Role::Admin(admin) => admin.controller().keep_alive_ms,
            _ => 0,
        };
        let time = Duration::from_millis(keep_alive_ms.into()) + KEEP_ALIVE_GRACE;
        self.silence_max = (keep_alive_ms > 0).then_some(time);
    }

    /// Counts something of the subsystem that the connection is for.
    fn counted(&self, count: impl FnOnce(&Counters)) {
        match &self.role {
            Role::New => {}
            Role::Admin(admin) => count(admin.subsystem().counters()),
            Role::Io(subsystem, ..) => count(subsystem.counters()),
        }
    }

    /// Ends a command that returns no data.
    fn answer(&mut self, entry: &Entry, result: Result<u64, Status>) {
        let (result, status) = match result {
            Ok(result) => (result, Status::SUCCESS),
            Err(status) => {
                self.counted(|counters| counters.errors.add(1));
                (0, status)
            }
        };
        let queue_head = self.flow.end();
        let command_id = entry.command_id();
        self.say(&Header::Response(Completion { result, queue_head, command_id, status }));
    }

    /// Ends a command of an I/O queue, which returns so much of the buffer.
    fn answer_io(
        &mut self,
        entry: &Entry,
        buffer: Buffer,
        result: Result<usize, Status>,
        hands: &mut Hands,
    ) {
        match result {
            Ok(length) if length > 0 => self.answer_with(entry, 0, buffer, length),
            result => {
                hands.pool.give(buffer);
                self.answer(entry, result.map(|_| 0));
            }
        }
    }

    /// Ends a command that returns the first bytes of a buffer.
    fn answer_with(&mut self, entry: &Entry, result: u64, buffer: Buffer, length: usize) {
        let digest = self.outgoing.data_digest.then(|| checksum::crc32c(0, &buffer[..length]));
        self.say_data_follow(entry, length);
        self.outbox.push_buffer(buffer, length);
        if let Some(digest) = digest {
            self.outbox.push(&digest.to_le_bytes());
        }
        self.end_data(entry, result);
    }

    /// Ends a command that returns these blocks of a namespace in memory.
    fn answer_as_stored(
        &mut self,
        entry: &Entry,
        subsystem: &Subsystem,
        number: u32,
        blocks: Blocks,
    ) {
        let namespace = subsystem.namespace(number);
        let found = namespace.and_then(|found| found.range(blocks).map(|range| (found, range)));
        match found {
            Err(status) => self.answer(entry, Err(status)),
            Ok((namespace, (offset, length))) => {
                self.say_data_follow(entry, length as usize);
                self.outbox.push_stored(Arc::clone(namespace), offset, length as usize);
                self.end_data(entry, 0);
            }
        }
    }

    /// Says that so many bytes follow, and that they are all, and, if that is agreed on, that with them the command has ended.
    fn say_data_follow(&mut self, entry: &Entry, length: usize) {
        let command_id = entry.command_id();
        let transfer = Transfer { command_id, tag: 0, offset: 0, length: length as u32 };
        let is_success = !self.flow.is_controlled;
        let header = Header::ControllerData { transfer, is_last: true, is_success };
        self.outbox.push(header.encode(length, self.outgoing).bytes());
    }

    fn end_data(&mut self, entry: &Entry, result: u64) {
        match self.flow.is_controlled {
            true => self.answer(entry, Ok(result)),
            false => drop(self.flow.end()),
        }
    }

    /// Has a PDU without data sent.
    fn say(&mut self, header: &Header) {
        self.outbox.push(header.encode(0, self.outgoing).bytes());
    }
}

impl Data<'_> {
    /// The same, in a buffer if there is one for it.
    fn kept(self, hands: &mut Hands) -> Self {
        let Data::InCapsule(bytes) = self else { return self };
        match hands.pool.take(bytes.len()) {
            Some(mut buffer) => {
                buffer[..bytes.len()].copy_from_slice(bytes);
                Data::Received(buffer, bytes.len())
            }
            None => self,
        }
    }
}

impl Flow {
    /// An entry of the queue was taken. Errors: the host has sent more commands than its queue holds.
    fn advance(&mut self) -> Result<(), End> {
        if self.under_way == self.entries {
            return Err(malformed(Fault::Sequence, "more commands than its queue holds"));
        }
        self.head = (self.head + 1) % self.entries;
        self.under_way += 1;
        Ok(())
    }

    /// A command was answered; SQHD.
    fn end(&mut self) -> u16 {
        self.under_way -= 1;
        if self.is_controlled { self.head as u16 } else { NO_FLOW_CONTROL }
    }
}
