//! One connection of a host, as what its loop calls when something has arrived, can be sent, or was
//! done.
//!
//! Must stay true: nothing here waits. Of what a connection holds, everything but a few KiB comes
//! from the pool: a command that needs memory which is not there waits for it, and while it does
//! the connection goes on; a PDU that does not fit ends the connection and says why (TCP 3.5). A
//! command whose data came with a wrong digest is not done. Nothing is done, and no data are asked
//! for, for a host that has yet to prove who it is.
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
use crate::mailbox::{Hands, Outcome};
use crate::notices::Change;
use crate::pool::{Buffer, Lack};
use crate::socket::Socket;
use crate::subsystem::{Controller, Limits, Subsystem};

/// How long a host may take until it has connected a queue and proven who it is.
const GREETING: Duration = Duration::from_secs(30);
/// How long a host may be silent that asks what there is, unless it has said how long.
const DISCOVERY_SILENCE: Duration = Duration::from_secs(120);
/// Beyond the time that a host asked for it is forgiven so much.
const KEEP_ALIVE_GRACE: Duration = Duration::from_secs(1);
/// SQHD of a queue without flow control.
const NO_FLOW_CONTROL: u16 = 0xffff;
/// How often is received before others have their turn.
const RECEIVES_MAX: usize = 16;
/// What is received behind data that go to their place at once.
const AHEAD_BYTES: usize = 4 << 10;
/// Data that wait to be sent are sent before more commands are done once they are so many bytes.
const FLUSH_BYTES: usize = 256 << 10;
/// What a host may leave of answers without data before it is heard again, bytes: more than those
/// to a full queue.
const SMALL_BYTES_MAX: usize = 64 << 10;

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
    /// Those of them that are beside the pool. While there are any the host is not heard: no more
    /// of it than was received at once.
    beside_bytes: usize,
    /// What it waits for.
    hunger: Option<Lack>,
    /// No more commands are begun.
    is_draining: bool,
    /// How long the host may be silent, if not for ever.
    silence_max: Option<Duration>,
    came: Instant,
    heard: Instant,
    /// That it takes what there is for it.
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
            hunger: None,
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

    /// Whether it is to be heard, and whether it has something to say.
    pub(super) fn interest(&self) -> (bool, bool) {
        let hears = self.outbox.small_bytes() <= SMALL_BYTES_MAX && self.beside_bytes == 0;
        (hears, !self.outbox.is_empty())
    }

    /// When it came, if its host has not proven who it is where it has to, or only asks what there
    /// is, as anybody may.
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
        self.hunger.is_some()
    }

    /// Which namespace has all the memory that it may have, so that it waits.
    pub(super) fn awaits_share_of(&self) -> Option<usize> {
        match self.hunger {
            Some(Lack::Share(namespace)) => Some(namespace),
            _ => None,
        }
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

    /// Something has changed, of which the host may want to hear.
    pub(super) fn notice(&mut self, change: &Change) {
        if let Role::Admin(admin) = &mut self.role {
            admin.notice(change);
        }
        self.tell_events();
    }

    /// Whether everything that it has begun has ended, and the host has been told.
    pub(super) fn is_drained(&self) -> bool {
        self.is_draining && self.flow.under_way == 0 && self.outbox.is_empty()
    }

    /// When it ends if nothing happens, where hosts may be so slow.
    pub(super) fn deadline(&self, patience: Duration) -> Option<Instant> {
        let silence = self.silence_max.map(|most| self.heard + most);
        let slow = [self.transfers.awaited_since(), self.untaken.since()];
        let slow = slow.into_iter().flatten().map(|since| since + patience);
        slow.chain(silence).min()
    }

    /// Sends what can be sent now, and goes on with what waited for that.
    pub(super) fn flush(&mut self, hands: &mut Hands) -> Result<(), End> {
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
            let place = self.place_of(&next.command);
            let buffer = match hands.pool.take(next.ask_bytes + next.answer_bytes, place) {
                Ok(buffer) => buffer,
                Err(lack) => {
                    self.directory.totals().waits.add(u64::from(self.hunger.is_none()));
                    self.hunger = Some(lack);
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
        self.hunger = None;
        Ok(())
    }

    /// Where the namespace stands in memory that a command has to wait for.
    fn place_of(&self, command: &Command) -> Option<usize> {
        match &self.role {
            Role::Io(subsystem, ..) => crate::subsystem::io::place_of(subsystem, command),
            _ => None,
        }
    }

    /// Goes on where a worker has ended.
    pub(super) fn finish(&mut self, outcome: Outcome, hands: &mut Hands) -> Result<(), End> {
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

    /// Ends it: tells the host what it did wrong, with the header that shows it, and gives back
    /// what it had.
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
        // Who does not listen has lost nothing; and what waits for room is not begun any more.
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
    /// An entry of the queue was taken. Errors: the host has sent more commands than its queue
    /// holds.
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
