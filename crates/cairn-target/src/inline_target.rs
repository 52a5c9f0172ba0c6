//! A target for tests: no port, no thread and no clock. The caller takes their place.
//!
//! Invariant: connections, commands and proofs are those of a `Target`; only its event loops are
//! missing. Nothing that a host sends makes a call here block. A panic reaches the caller.

use cairn_nvme::secret::HostSecrets;
use std::io::Result;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::connection::{Connection, End};
use crate::directory::Directory;
use crate::guard::Guard;
use crate::mailbox::Outcome;
use crate::mailbox::{Letter, LoopContext, Mailbox};
use crate::socket::Socket;
use crate::subsystem::namespace::Namespace;
use crate::workers::Workers;

/// Time that slow hosts have, as with `Resources::default`.
const PATIENCE: Duration = Duration::from_secs(60);

/// A target and its connections.
pub struct InlineTarget {
    directory: Arc<Directory>,
    hands: LoopContext,
    connections: Vec<Option<Connection>>,
    is_draining: bool,
}

impl InlineTarget {
    /// Target with `memory_bytes` for data on their way. Errors: the system's.
    pub fn new(directory: Arc<Directory>, memory_bytes: usize) -> Result<InlineTarget> {
        let workers = Workers::new(0);
        let hands = LoopContext::new(memory_bytes, Arc::clone(&workers), workers, Mailbox::new()?);
        directory.inform(&hands.mailbox);
        Ok(InlineTarget { directory, hands, connections: Vec::new(), is_draining: false })
    }

    /// Admits the host at the other end of a socket. Returns the connection's number.
    pub fn admit(&mut self, socket: OwnedFd) -> Result<usize> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 4420));
        let socket = Arc::new(Socket::over(socket, address)?);
        let token = self.connections.len();
        let directory = Arc::clone(&self.directory);
        let connection = Connection::new(socket, directory, token as u64, self.hands.now);
        self.connections.push(Some(connection).filter(|_| !self.is_draining));
        Ok(token)
    }

    /// Receives what has arrived on a connection, executes it, and sends what can be sent. Returns
    /// whether the connection continues.
    pub fn serve(&mut self, number: usize) -> bool {
        self.with(number, |connection, hands| {
            connection.flush(hands)?;
            connection.resume(hands)?;
            match connection.interest() {
                (true, _) => connection.receive(hands),
                _ => Ok(()),
            }
        })
    }

    /// Delivers outcomes of workers and changes, and serves connections that wait for memory.
    pub fn deliver(&mut self) {
        for letter in self.hands.mailbox.take() {
            match letter {
                Letter::Done(token, outcome) => self.finish(token as usize, outcome),
                Letter::Change(change) => self.each(|connection| connection.notice(&change)),
                _ => {}
            }
        }
        for number in 0..self.connections.len() {
            if self.connections[number].as_ref().is_some_and(Connection::is_hungry) {
                self.with(number, |connection, hands| connection.resume(hands));
            }
        }
    }

    /// Advances the clock, and ends connections that have exceeded their time.
    pub fn wait(&mut self, time: Duration) {
        self.hands.now += time;
        let now = self.hands.now;
        for number in 0..self.connections.len() {
            let connection = self.connections[number].as_ref();
            let deadline = connection.and_then(|connection| connection.deadline(PATIENCE));
            if deadline.is_some_and(|deadline| deadline <= now) {
                self.end(number);
            }
        }
    }

    /// Ends a connection as if its host were gone.
    pub fn end(&mut self, number: usize) {
        self.with(number, |_, _| Err(End::Gone));
    }

    /// Admits no more hosts, and ends each connection when its commands have ended.
    pub fn drain(&mut self) {
        self.is_draining = true;
        self.each(Connection::drain);
    }

    /// Unused memory of the pool, bytes.
    pub fn unused_bytes(&self) -> usize {
        self.hands.pool.unused_bytes()
    }

    /// Reservation report of a namespace, as its hosts get it.
    pub fn reservations(namespace: &Namespace) -> Vec<u8> {
        namespace.reservations().report()
    }

    /// As `Guard::new`, but without a key exchange, which takes milliseconds of arithmetic.
    pub fn guard(hosts: HostSecrets) -> Guard {
        Guard::new(hosts).without_exchange()
    }

    fn finish(&mut self, number: usize, outcome: Outcome) {
        let mut outcome = Some(outcome);
        self.with(number, |connection, hands| match outcome.take() {
            Some(outcome) => connection.finish(outcome, hands),
            None => Ok(()),
        });
        if let Some(buffer) = outcome.and_then(Outcome::into_buffer) {
            self.hands.pool.give(buffer);
        }
    }

    fn each(&mut self, act: impl Fn(&mut Connection)) {
        for number in 0..self.connections.len() {
            self.with(number, |connection, _| {
                act(connection);
                Ok(())
            });
        }
    }

    fn with(
        &mut self,
        number: usize,
        act: impl FnOnce(&mut Connection, &mut LoopContext) -> std::result::Result<(), End>,
    ) -> bool {
        let Some(mut connection) = self.connections[number].take() else { return false };
        let hands = &mut self.hands;
        let served = act(&mut connection, hands).and_then(|()| connection.flush(hands));
        match served {
            Ok(()) if connection.is_drained() => connection.end(End::Gone, hands),
            Ok(()) => self.connections[number] = Some(connection),
            Err(end) => connection.end(end, hands),
        }
        self.connections[number].is_some()
    }
}
