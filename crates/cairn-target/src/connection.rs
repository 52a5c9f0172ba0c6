//! One connection of a host. Its loop calls it when bytes have arrived, when bytes can be sent, or
//! when a worker has finished.
//!
//! Must stay true: nothing here blocks. Except for a few KiB, all memory of a connection comes from
//! the pool. A command for which the pool has no memory waits, and the connection goes on
//! meanwhile. A PDU that violates the protocol ends the connection, with a reason for the host (TCP
//! 3.5). A command whose data came with a wrong digest is not executed. For a host that still has
//! to prove who it is, nothing is executed, and no data are requested.
//!
//! Does not know commands; `admin` and `io` do.

mod admin;
mod answers;
mod commands;
pub(crate) mod debt;
pub(crate) mod intake;
pub(crate) mod outbox;
mod pdus;
pub(crate) mod transfer;
mod welcome;

use cairn_nvme::wire::pdu::{Fault, Framing, Header, Malformed, Terminate};
use cairn_nvme::wire::{Command, Status};
use std::io::IoSliceMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::connection::admin::Admin;
use crate::connection::debt::Debt;
use crate::connection::intake::Intake;
use crate::connection::outbox::Outbox;
use crate::connection::transfer::Transfers;
use crate::directory::Directory;
use crate::guard::Check;
use crate::mailbox::{LoopContext, Outcome};
use crate::notices::Change;
use crate::pool::{Buffer, Lack};
use crate::socket::Socket;
use crate::subsystem::{Controller, Limits, Subsystem};

/// Time for a host to connect a queue and prove who it is.
const GREETING: Duration = Duration::from_secs(30);
/// Longest silence of a host on a discovery controller, unless it has set a Keep Alive timeout.
const DISCOVERY_SILENCE: Duration = Duration::from_secs(120);
/// Time that a host is granted beyond its Keep Alive timeout.
const KEEP_ALIVE_GRACE: Duration = Duration::from_secs(1);
/// SQHD of a queue without flow control.
const NO_FLOW_CONTROL: u16 = 0xffff;
/// Most receives before other connections have their turn.
const RECEIVES_MAX: usize = 16;
/// Most bytes received behind data that go straight to their buffer.
const AHEAD_BYTES: usize = 4 << 10;
/// Number of bytes waiting to be sent from which they are sent before more commands are executed.
const FLUSH_BYTES: usize = 256 << 10;
/// Most bytes of answers without data that a host may leave unread before nothing more is received
/// from it. More than the answers to a full queue.
const SMALL_BYTES_MAX: usize = 64 << 10;

/// Reason for which a connection ends.
#[derive(Debug)]
pub(super) enum End {
    /// The host is gone, or exceeded its time.
    Gone,
    /// The host violates the protocol.
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

/// Purpose of a connection.
enum Role {
    /// Not decided yet.
    New,
    /// An admin queue, possibly of a discovery controller.
    Admin(Admin),
    /// An I/O queue with that number.
    Io(Arc<Subsystem>, Arc<Controller>, u16),
}

/// Proof that the host owes before it is served.
enum Proof {
    /// No proof is needed, or the host has given it.
    None,
    Owed(Box<Check>),
    /// A worker is checking what the host has sent.
    Checking,
}

/// State of a submission queue.
struct Flow {
    entries: u32,
    head: u32,
    is_controlled: bool,
    /// Number of commands without an answer.
    under_way: u32,
}

/// Data of a command, or room for its answer.
enum Data<'a> {
    /// In the bytes that were just received.
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

/// A connection.
pub(super) struct Connection {
    socket: Arc<Socket>,
    directory: Arc<Directory>,
    /// Name of the connection in its loop.
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
    /// Size of the buffers that workers have, bytes.
    busy_bytes: usize,
    /// Part of `busy_bytes` that is outside of the pool. While it is not 0, nothing is received
    /// from the host, so it never exceeds what was received at once.
    beside_bytes: usize,
    /// Memory that the connection waits for.
    memory_shortage: Option<Lack>,
    /// Whether no more commands are begun.
    is_draining: bool,
    /// Longest silence of the host; `None`: unlimited.
    silence_max: Option<Duration>,
    came: Instant,
    heard: Instant,
    /// Debt of the host for answers that it has not read.
    untaken: Debt,
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
            beside_bytes: 0,
            memory_shortage: None,
            is_draining: false,
            silence_max: Some(GREETING),
            came: now,
            heard: now,
            untaken: Debt::default(),
        }
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Whether to receive from the host, and whether there is something to send.
    pub(super) fn interest(&self) -> (bool, bool) {
        let hears = self.outbox.small_bytes() <= SMALL_BYTES_MAX && self.beside_bytes == 0;
        (hears, !self.outbox.is_empty())
    }

    /// Time at which the connection came, if it is a guest: its host still has to prove who it is,
    /// or only uses discovery, which is open to everybody.
    pub(super) fn guest_since(&self) -> Option<Instant> {
        let is_guest = match &self.role {
            Role::New => true,
            Role::Admin(admin) if admin.is_discovery() => true,
            _ => !matches!(self.proof, Proof::None),
        };
        is_guest.then_some(self.came)
    }

    /// Whether a command waits for memory that others have.
    pub(super) fn is_hungry(&self) -> bool {
        self.memory_shortage.is_some()
    }

    /// Namespace whose share of memory is used up, if a command waits for that.
    pub(super) fn awaits_share_of(&self) -> Option<usize> {
        match self.memory_shortage {
            Some(Lack::Share(namespace)) => Some(namespace),
            _ => None,
        }
    }

    /// Begins no more commands. Completes pending event requests, because no events will follow.
    pub(super) fn drain(&mut self) {
        self.is_draining = true;
        let Role::Admin(admin) = &mut self.role else { return };
        for id in admin.take_event_requests() {
            let mut entry = Command::AsyncEventRequest.encode();
            entry.set_command_id(id);
            self.answer(&entry, Err(Status::QUEUE_ENDED));
        }
    }

    /// Records a change that may concern the host, and reports it.
    pub(super) fn notice(&mut self, change: &Change) {
        if let Role::Admin(admin) = &mut self.role {
            admin.notice(change);
        }
        self.tell_events();
    }

    /// Whether all commands have ended and the host has received all answers.
    pub(super) fn is_drained(&self) -> bool {
        self.is_draining && self.flow.under_way == 0 && self.outbox.is_empty()
    }

    /// Time at which the connection ends unless something happens. `patience` is the time that slow
    /// hosts have.
    pub(super) fn deadline(&self, patience: Duration) -> Option<Instant> {
        let silence = self.silence_max.map(|most| self.heard + most);
        let slow = [self.transfers.awaited_since(), self.untaken.since()];
        let slow = slow.into_iter().flatten().map(|since| since + patience);
        slow.chain(silence).min()
    }

    /// Sends what can be sent, and resumes commands that waited for room.
    pub(super) fn flush(&mut self, hands: &mut LoopContext) -> Result<(), End> {
        while !self.outbox.is_empty() {
            let sent = self.outbox.flush(&self.socket, &mut hands.pool)?;
            match self.outbox.is_empty() {
                true => self.untaken.end(),
                false => {
                    self.untaken.begin(hands.now);
                    self.untaken.pay(sent, hands.now);
                }
            }
            if sent == 0 || self.transfers.waiting.is_empty() {
                break;
            }
            self.resume(hands)?;
        }
        Ok(())
    }

    /// Receives what has arrived, and acts on it.
    pub(super) fn receive(&mut self, hands: &mut LoopContext) -> Result<(), End> {
        let mut scratch = std::mem::take(&mut hands.scratch);
        let received = self.receive_by(&mut scratch, hands);
        hands.scratch = scratch;
        received
    }

    fn receive_by(&mut self, scratch: &mut [u8], hands: &mut LoopContext) -> Result<(), End> {
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
            self.transfers.arrived(count.min(direct), hands.now);
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

    /// Resumes commands that waited for memory.
    pub(super) fn resume(&mut self, hands: &mut LoopContext) -> Result<(), End> {
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
            let place = self.place_of(&next.command);
            let buffer = match hands.pool.take(next.ask_bytes + next.answer_bytes, place) {
                Ok(buffer) => buffer,
                Err(lack) => {
                    self.directory.totals().waits.add(u64::from(self.memory_shortage.is_none()));
                    self.memory_shortage = Some(lack);
                    return Ok(());
                }
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
        self.memory_shortage = None;
        Ok(())
    }

    /// Address of the namespace that a command is for, which identifies its share of memory.
    fn place_of(&self, command: &Command) -> Option<usize> {
        match &self.role {
            Role::Io(subsystem, ..) => crate::subsystem::io::place_of(subsystem, command),
            _ => None,
        }
    }

    /// Handles the outcome of a worker.
    pub(super) fn finish(&mut self, outcome: Outcome, hands: &mut LoopContext) -> Result<(), End> {
        match outcome {
            Outcome::Io { entry, buffer, result } => {
                self.busy_bytes -= buffer.len();
                self.beside_bytes -= buffer.beside_bytes();
                self.answer_io(&entry, buffer, result, hands);
            }
            Outcome::Checked { entry, check } => {
                self.answer(&entry, Ok(0));
                self.conclude(check)?;
            }
        }
        self.resume(hands)
    }

    /// Ends the connection and gives back its resources. A host that violated the protocol gets a
    /// C2HTermReq with the offending header.
    pub(super) fn end(mut self, end: End, hands: &mut LoopContext) {
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
        // A host that does not listen loses nothing. Commands that wait for memory are not begun
        // any more.
        let _ = self.outbox.flush(&self.socket, &mut hands.pool);
        self.outbox.clear(&mut hands.pool);
        self.transfers.abandon().for_each(|buffer| hands.pool.give(buffer));
        if let Some(awaited) = self.intake.abandon() {
            hands.pool.give(awaited.buffer);
        }
        match &self.role {
            Role::New => {}
            Role::Admin(admin) => admin.subsystem().remove_controller(admin.controller()),
            Role::Io(_, controller, number) => controller.remove_queue(*number, &self.socket),
        }
    }

    fn limits(&self) -> &Limits {
        self.directory.limits()
    }
}

impl Flow {
    /// Records a new command. Errors: the host has sent more commands than its queue holds.
    fn advance(&mut self) -> Result<(), End> {
        if self.under_way == self.entries {
            return Err(malformed(Fault::Sequence, "more commands than its queue holds"));
        }
        self.head = (self.head + 1) % self.entries;
        self.under_way += 1;
        Ok(())
    }

    /// Records that a command was answered. Returns SQHD.
    fn end(&mut self) -> u16 {
        self.under_way -= 1;
        if self.is_controlled { self.head as u16 } else { NO_FLOW_CONTROL }
    }
}
