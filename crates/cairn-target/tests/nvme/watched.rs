//! Connections to a target on which a test sees every command before it is sent, and the deadline
//! of every wait.

use cairn_nvme::Error;
use cairn_nvme::controller::Fabric;
use cairn_nvme::tcp::{TcpFabric, TcpTransport};
use cairn_nvme::transport::{CommandId, Data, Transport};
use cairn_nvme::wire::command::QueueKind;
use cairn_nvme::wire::{Command, Completion, Entry};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Called with each command of an I/O queue.
type See = dyn Fn(&Command) + Send + Sync;

/// Makes watched connections.
#[derive(Clone)]
pub struct Watched {
    fabric: TcpFabric,
    see: Arc<See>,
    deadlines: Arc<Mutex<Vec<Instant>>>,
}

impl Watched {
    pub fn new(fabric: TcpFabric, see: impl Fn(&Command) + Send + Sync + 'static) -> Watched {
        Watched { fabric, see: Arc::new(see), deadlines: Arc::default() }
    }

    /// Returns the deadlines of all waits.
    pub fn deadlines(&self) -> Vec<Instant> {
        self.deadlines.lock().expect("nobody panics").clone()
    }

    fn note(&self, deadline: Instant) {
        self.deadlines.lock().expect("nobody panics").push(deadline);
    }
}

impl Fabric for Watched {
    type Transport = WatchedTransport;

    fn connect(
        &self,
        queue: u16,
        depth: usize,
        capsule_data_bytes: usize,
        deadline: Instant,
    ) -> Result<WatchedTransport, Error> {
        self.note(deadline);
        let transport = self.fabric.connect(queue, depth, capsule_data_bytes, deadline)?;
        Ok(WatchedTransport { transport, watched: self.clone(), is_admin: queue == 0 })
    }
}

/// A watched connection.
pub struct WatchedTransport {
    transport: TcpTransport,
    watched: Watched,
    is_admin: bool,
}

impl Transport for WatchedTransport {
    fn depth(&self) -> usize {
        self.transport.depth()
    }

    fn under_way(&self) -> usize {
        self.transport.under_way()
    }

    unsafe fn submit(&mut self, entry: Entry, data: Data) -> Result<CommandId, Error> {
        let command = Command::decode(&entry, QueueKind::Io).ok().filter(|_| !self.is_admin);
        command.iter().for_each(|command| (self.watched.see)(command));
        // SAFETY: promised by the caller.
        unsafe { self.transport.submit(entry, data) }
    }

    fn poll(&mut self, deadline: Instant) -> Result<Option<Completion>, Error> {
        self.watched.note(deadline);
        self.transport.poll(deadline)
    }

    fn abandon(&mut self) {
        self.transport.abandon();
    }
}
