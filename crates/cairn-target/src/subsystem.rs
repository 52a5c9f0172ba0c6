//! A subsystem: state that connections share, such as namespaces and controllers.
//!
//! Invariant: a controller lives exactly as long as its admin connection. When that ends, so do its
//! I/O connections. No two admitted hosts have the same identifier, because reservations identify
//! hosts by it.

pub(crate) mod flushes;
pub(crate) mod identity;
pub(crate) mod io;
pub(crate) mod namespace;
pub(crate) mod reservation;

use cairn_nvme::wire::fabrics::{
    CONFIGURATION_ENABLE, CONFIGURATION_SHUTDOWN_MASK, ConnectData, INVALID_HOST_ID, STATUS_READY,
    STATUS_SHUT_DOWN,
};
use cairn_nvme::wire::{Command, Nqn, Status};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::counters::Counters;
use crate::socket::Socket;
use crate::subsystem::reservation::{Host, HostId};
use crate::{Guard, Namespace};

/// Largest controller identifier that is given out.
const CONTROLLERS_MAX: u16 = 0xffef;

/// Limits for hosts.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most data in a capsule of an I/O queue, bytes: a multiple of 16.
    pub capsule_data_bytes: u32,
    /// Most data of one PDU from a host (MAXH2CDATA), bytes: a multiple of 4, at least 4096.
    pub host_data_bytes: u32,
    /// Most data of a command (MDTS): 4 KiB times two to this power.
    pub transfer_shift: u8,
    /// Most entries of a queue.
    pub entries: u32,
    /// Most I/O queues of a controller.
    pub queues: u16,
    /// Most data of a connection that were requested and have not arrived, bytes. A single command
    /// may exceed it.
    pub awaited_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            capsule_data_bytes: 16 << 10,
            host_data_bytes: 1 << 20,
            transfer_shift: 8,
            entries: 128,
            queues: 64,
            awaited_bytes: 16 << 20,
        }
    }
}

impl Limits {
    /// Most data of a command, bytes.
    pub fn transfer_bytes(&self) -> u64 {
        4096 << self.transfer_shift
    }
}

/// Refusal of a connection, as the host is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    pub(crate) status: Status,
    pub(crate) result: u64,
}

impl Refusal {
    /// Refusal of a host whose identifier belongs to another host.
    fn of_impostor() -> Refusal {
        Refusal { status: Status::CONNECT_INVALID.for_good(), result: INVALID_HOST_ID }
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Refusal {
        Refusal { status, result: 0 }
    }
}

/// Namespaces that are exported under one name.
#[derive(Debug)]
pub struct Subsystem {
    name: Nqn,
    namespaces: Vec<Arc<Namespace>>,
    limits: Limits,
    guard: Option<Guard>,
    controllers: Mutex<HashMap<u16, Arc<Controller>>>,
    /// Whether hosts can no longer connect.
    is_closed: AtomicBool,
    counters: Counters,
}

impl Subsystem {
    /// Subsystem with these namespaces, which are numbered from 1.
    pub fn new(name: Nqn, namespaces: Vec<Namespace>, limits: Limits) -> Subsystem {
        let namespaces = namespaces.into_iter().map(Arc::new).collect();
        Subsystem {
            name,
            namespaces,
            limits,
            guard: None,
            controllers: Mutex::default(),
            is_closed: AtomicBool::new(false),
            counters: Counters::default(),
        }
    }

    /// Restricts the subsystem to the hosts that `guard` admits. Others do not see it.
    pub fn guarded(self, guard: Guard) -> Subsystem {
        Subsystem { guard: Some(guard), ..self }
    }

    /// Whether the host may use it, judging by its name.
    pub(crate) fn is_for(&self, host: &Nqn) -> bool {
        self.guard.as_ref().is_none_or(|guard| !guard.is_stranger(host))
    }

    /// Disconnects all hosts and lets no more connect.
    pub(crate) fn close(&self) {
        let controllers: Vec<_> = {
            let mut controllers = self.controllers();
            self.is_closed.store(true, Ordering::Relaxed);
            controllers.drain().map(|(_, controller)| controller).collect()
        };
        for controller in controllers {
            controller.end();
        }
    }

    /// Counts a command of an I/O queue.
    pub(crate) fn count(&self, command: &Command) {
        let bytes = match *command {
            Command::Read { namespace, blocks } | Command::Write { namespace, blocks, .. } => {
                let shape = self.namespace(namespace).map(|found| found.shape());
                shape.map_or(0, |shape| u64::from(blocks.count) << shape.block_shift)
            }
            _ => 0,
        };
        self.counters.count(command, bytes);
    }

    /// Counters of the subsystem.
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Number of controllers.
    pub fn controllers_count(&self) -> usize {
        self.controllers().len()
    }

    /// Guard of the subsystem; `None`: every host may use it.
    pub fn guard(&self) -> Option<&Guard> {
        self.guard.as_ref()
    }

    /// Name of the subsystem.
    pub fn name(&self) -> &Nqn {
        &self.name
    }

    /// Limits for hosts.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Namespaces with their numbers.
    pub fn namespaces(&self) -> impl Iterator<Item = (u32, &Arc<Namespace>)> {
        (1..).zip(&self.namespaces)
    }

    /// Returns the namespace with that number.
    pub fn namespace(&self, number: u32) -> Result<&Arc<Namespace>, Status> {
        let index = (number as usize).wrapping_sub(1);
        self.namespaces.get(index).ok_or(Status::INVALID_NAMESPACE.for_good())
    }

    /// Creates a controller for this host. `is_let_in`: the host has nothing to prove. Errors:
    /// there are too many controllers; the host's identifier belongs to another host.
    pub(crate) fn add_controller(
        &self,
        host: &ConnectData,
        keep_alive_ms: u32,
        admin: Arc<Socket>,
        is_let_in: bool,
    ) -> Result<Arc<Controller>, Refusal> {
        let mut controllers = self.controllers();
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(Status::CONNECT_INVALID.into());
        }
        let host = Host { id: host.host_id, name: host.host.clone() };
        self.check_identifier(&controllers, &host)?;
        let id = (1..=CONTROLLERS_MAX).find(|id| !controllers.contains_key(id));
        let id = id.ok_or(Status::INTERNAL_ERROR)?;
        let instance = crate::subsystem::identity::number().map_err(|_| Status::INTERNAL_ERROR)?;
        let controller = Arc::new(Controller {
            id,
            instance,
            host,
            is_let_in: AtomicBool::new(is_let_in),
            keep_alive_ms,
            configuration: AtomicU32::new(0),
            admin,
            queues: Mutex::default(),
        });
        controllers.insert(id, Arc::clone(&controller));
        Ok(controller)
    }

    /// Records that the host of a controller has proven who it is. Errors: its identifier belongs
    /// to another host by now.
    pub(crate) fn let_in(&self, controller: &Controller) -> Result<(), Refusal> {
        let controllers = self.controllers();
        self.check_identifier(&controllers, &controller.host)?;
        controller.is_let_in.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Errors: the identifier belongs to a host with another name that was admitted or is
    /// registered. Without namespaces there is nothing to reserve, and identifiers do not matter.
    fn check_identifier(
        &self,
        controllers: &HashMap<u16, Arc<Controller>>,
        host: &Host,
    ) -> Result<(), Refusal> {
        let has_it = |other: &Arc<Controller>| {
            other.host.id == host.id
                && other.host.name != host.name
                && other.is_let_in.load(Ordering::Relaxed)
        };
        let registered = |namespace: &Arc<Namespace>| namespace.reservations().name_of(&host.id);
        let is_taken = !self.namespaces.is_empty() && controllers.values().any(has_it)
            || self.namespaces.iter().filter_map(registered).any(|name| name != host.name);
        if is_taken {
            self.counters.strangers.add(1);
            return Err(Refusal::of_impostor());
        }
        Ok(())
    }

    /// Returns the controller with the number in `host`, if it belongs to that host.
    pub(crate) fn controller(&self, host: &ConnectData) -> Option<Arc<Controller>> {
        let controllers = self.controllers();
        let controller = controllers.get(&host.controller)?;
        let is_same = controller.host.name == host.host && controller.host.id == host.host_id;
        is_same.then(|| Arc::clone(controller))
    }

    /// Removes a controller whose admin connection has ended.
    pub(crate) fn remove_controller(&self, controller: &Controller) {
        self.controllers().remove(&controller.id);
        controller.end();
    }

    /// Ends all controllers. Hosts may connect again.
    pub(crate) fn end_controllers(&self) {
        let all: Vec<_> = self.controllers().values().cloned().collect();
        all.iter().for_each(|controller| controller.end());
    }

    /// Ends the controller with that instance number, if there is one and it belongs to `host`.
    pub(crate) fn end_controller(&self, instance: u64, host: &Host) {
        let is_it = |one: &&Arc<Controller>| one.instance == instance && one.host == *host;
        let found = self.controllers().values().find(is_it).cloned();
        found.iter().for_each(|controller| controller.end());
    }

    /// Ends all controllers of these hosts. None of their commands begins any more.
    pub(crate) fn end_controllers_of(&self, hosts: &[HostId]) {
        if hosts.is_empty() {
            return;
        }
        let is_theirs = |controller: &&Arc<Controller>| hosts.contains(&controller.host.id);
        let theirs: Vec<_> = self.controllers().values().filter(is_theirs).cloned().collect();
        // Their connections remove them.
        theirs.iter().for_each(|controller| controller.end());
    }

    fn controllers(&self) -> MutexGuard<'_, HashMap<u16, Arc<Controller>>> {
        self.controllers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Controller of a host that has connected an admin queue.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) id: u16,
    /// Number that no other controller of any target ever has.
    pub(crate) instance: u64,
    host: Host,
    /// Whether the host has proven who it is, or need not.
    is_let_in: AtomicBool,
    pub(crate) keep_alive_ms: u32,
    configuration: AtomicU32,
    admin: Arc<Socket>,
    queues: Mutex<HashMap<u16, Arc<Socket>>>,
}

impl Controller {
    /// Returns CC.
    pub(crate) fn configuration(&self) -> u32 {
        self.configuration.load(Ordering::Relaxed)
    }

    /// Sets CC. Disabling ends the I/O queues.
    pub(crate) fn configure(&self, value: u32) {
        self.configuration.store(value, Ordering::Relaxed);
        if value & CONFIGURATION_ENABLE == 0 {
            self.end_queues();
        }
    }

    /// Returns CSTS.
    pub(crate) fn status(&self) -> u32 {
        let configuration = self.configuration();
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        flag(configuration & CONFIGURATION_ENABLE != 0, STATUS_READY)
            | flag(configuration & CONFIGURATION_SHUTDOWN_MASK != 0, STATUS_SHUT_DOWN)
    }

    /// Host of the controller.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.status() == STATUS_READY
    }

    /// Makes a connection the I/O queue `number`. Errors: there is such a queue; the controller is
    /// not enabled.
    pub(crate) fn add_queue(&self, number: u16, socket: Arc<Socket>) -> Result<(), Status> {
        let mut queues = self.queues();
        if !self.is_enabled() {
            return Err(Status::SEQUENCE_ERROR);
        }
        if queues.contains_key(&number) {
            return Err(Status::CONNECT_INVALID.for_good());
        }
        queues.insert(number, socket);
        Ok(())
    }

    /// Removes the I/O queue `number`, unless another connection has that number by now.
    pub(crate) fn remove_queue(&self, number: u16, socket: &Arc<Socket>) {
        let mut queues = self.queues();
        if queues.get(&number).is_some_and(|found| Arc::ptr_eq(found, socket)) {
            queues.remove(&number);
        }
    }

    /// Ends the controller for good.
    fn end(&self) {
        self.configure(0);
        self.admin.hang_up();
    }

    fn end_queues(&self) {
        for (_, socket) in self.queues().drain() {
            // The loop that serves the connection notices, unless it has noticed an earlier end.
            socket.hang_up();
        }
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<u16, Arc<Socket>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_nvme::wire::fabrics::{ANY_CONTROLLER, CONFIGURATION_ENABLED};
    use std::net::{Ipv4Addr, SocketAddr};
    use std::os::unix::net::UnixStream;

    fn socket() -> Arc<Socket> {
        let (stream, _) = UnixStream::pair().unwrap();
        Arc::new(Socket::over(stream.into(), SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap())
    }

    /// Two hosts may authenticate at the same time under one identifier.
    #[test]
    fn identifier_is_of_the_host_that_was_let_in_first() {
        let name = Nqn::new("nqn.2026-11.test:names").unwrap();
        let namespace = Namespace::in_memory(1 << 16, 4096).unwrap();
        let subsystem = Subsystem::new(name.clone(), vec![namespace], Limits::default());
        let connect = |host, is_let_in| {
            let (host_id, controller) = ([1; 16], ANY_CONTROLLER);
            let host = Nqn::of_host(&[host; 16]);
            let data = ConnectData { host_id, controller, subsystem: name.clone(), host };
            subsystem.add_controller(&data, 0, socket(), is_let_in)
        };
        let [one, other] = [1, 2].map(|host| connect(host, false).unwrap());
        subsystem.let_in(&other).unwrap();
        assert_eq!(subsystem.let_in(&one), Err(Refusal::of_impostor()));
        connect(1, false).expect_err("it is not asked for a proof any more");
        connect(2, true).expect("another process");
    }

    /// Mechanism: a host reset its controller and reconnected its queue before the loop noticed the
    /// end of the old connection. The old connection then removed the number.
    ///
    /// Consequence: the new connection outlived its controller.
    ///
    /// Fix: a connection removes only its own entry.
    #[test]
    fn queue_that_has_ended_leaves_its_successor_alone() {
        let name = Nqn::new("nqn.2026-11.test:queues").unwrap();
        let subsystem = Subsystem::new(name.clone(), Vec::new(), Limits::default());
        let (host_id, controller) = ([1; 16], ANY_CONTROLLER);
        let host = ConnectData { host_id, controller, subsystem: name.clone(), host: name };
        let controller = subsystem.add_controller(&host, 0, socket(), true).unwrap();
        let [old, new] = [socket(), socket()];
        controller.configure(CONFIGURATION_ENABLED);
        controller.add_queue(1, Arc::clone(&old)).unwrap();
        controller.configure(0);
        controller.configure(CONFIGURATION_ENABLED);
        controller.add_queue(1, Arc::clone(&new)).unwrap();
        controller.remove_queue(1, &old);
        controller.add_queue(1, socket()).expect_err("the new one is there");
        controller.remove_queue(1, &new);
        controller.add_queue(1, socket()).unwrap();
    }
}
