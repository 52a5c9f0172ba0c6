//! How a connection becomes a queue: Connect and authentication.

use cairn_nvme::wire::fabrics::{
    ANY_CONTROLLER, AUTHENTICATION_ALONE, CONNECT_DATA_BYTES, ConnectData,
};
use cairn_nvme::wire::{Command, Entry, Status};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Connection, DISCOVERY_SILENCE, Data, End, Flow, KEEP_ALIVE_GRACE, Proof, Role};
use crate::connection::admin::Admin;
use crate::guard::{Check, Progress};
use crate::mailbox::LoopContext;
use crate::mailbox::Outcome;
use crate::pool::Buffer;
use crate::subsystem::{Refusal, Subsystem};
use crate::workers::{Begin, Lane};

/// Most entries of an admin queue.
const ADMIN_ENTRIES_MAX: u32 = 128;

impl Connection {
    /// Handles a message of the authentication.
    pub(super) fn authenticate(
        &mut self,
        entry: &Entry,
        command: &Command,
        data: Data<'_>,
        mut check: Box<Check>,
        hands: &mut LoopContext,
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
            self.submit(&hands.provers, Lane::Any, &hands.mailbox, work);
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
        hands: &mut LoopContext,
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

    /// Checks the progress of the authentication: serves the host, or ends its connection.
    pub(super) fn conclude(&mut self, check: Box<Check>) -> Result<(), End> {
        match check.progress() {
            Progress::Going => self.proof = Proof::Owed(check),
            Progress::Failed => {
                self.counted(|counters| counters.strangers.add(1));
                return Err(End::Gone);
            }
            Progress::Passed => self.let_in()?,
        }
        Ok(())
    }

    /// Executes Connect: makes the connection a queue.
    pub(super) fn connect(
        &mut self,
        command: &Command,
        data: &[u8],
        now: Instant,
    ) -> Result<u64, Refusal> {
        let invalid = Status::CONNECT_INVALID.for_good();
        let bytes: Option<&[u8; CONNECT_DATA_BYTES]> = data.first_chunk();
        let host = bytes.and_then(ConnectData::decode).ok_or(invalid)?;
        let &Command::Connect { queue, entries, without_flow_control, keep_alive_ms } = command
        else {
            return Err(Status::INTERNAL_ERROR.into());
        };
        if !matches!(self.role, Role::New) {
            return Err(Status::SEQUENCE_ERROR.for_good().into());
        }
        let limits = self.limits();
        let entries_max = if queue == 0 { ADMIN_ENTRIES_MAX } else { limits.entries };
        if queue > limits.queues || entries > entries_max {
            return Err(invalid.into());
        }
        let subsystem = self.directory.find(&host.subsystem).ok_or(invalid)?;
        let check = match subsystem.guard() {
            Some(guard) => guard
                .check(&host.host, &host.subsystem)
                .inspect_err(|_| subsystem.counters().strangers.add(1))?,
            None => None,
        };
        let id = match queue {
            0 if host.controller != ANY_CONTROLLER => return Err(invalid.into()),
            0 => self.connect_admin(subsystem, &host, keep_alive_ms, check.is_none())?,
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
                self.settle();
                Ok(id.into())
            }
        }
    }

    fn connect_admin(
        &mut self,
        subsystem: Arc<Subsystem>,
        host: &ConnectData,
        keep_alive_ms: u32,
        is_let_in: bool,
    ) -> Result<u16, Refusal> {
        let socket = Arc::clone(&self.socket);
        let controller = subsystem.add_controller(host, keep_alive_ms, socket, is_let_in)?;
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

    /// Serves a host that has proven who it is. Errors: another host has got its identifier
    /// meanwhile.
    fn let_in(&mut self) -> Result<(), End> {
        if let Role::Admin(admin) = &self.role {
            admin.subsystem().let_in(admin.controller()).map_err(|_| End::Gone)?;
        }
        self.settle();
        Ok(())
    }

    /// Sets the longest silence to the host's Keep Alive timeout. I/O queues may be silent for
    /// ever. A discovery controller, which is open to everybody, always has a limit.
    fn settle(&mut self) {
        let keep_alive_ms = match &self.role {
            Role::Admin(admin) => admin.controller().keep_alive_ms,
            _ => 0,
        };
        let time = Duration::from_millis(keep_alive_ms.into()) + KEEP_ALIVE_GRACE;
        let is_discovery = matches!(&self.role, Role::Admin(admin) if admin.is_discovery());
        let unsaid = is_discovery.then_some(DISCOVERY_SILENCE);
        self.silence_max = if keep_alive_ms > 0 { Some(time) } else { unsaid };
    }
}
