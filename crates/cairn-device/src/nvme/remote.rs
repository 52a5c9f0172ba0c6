//! A namespace on another machine, as a tier sees it: bytes that are read and written in calls, however often the connection
//! breaks meanwhile.
//!
//! Must stay true: a call succeeds only if all of it was done on one connection; what is repeated is the same bytes at the
//! same place. After a new connection the namespace is the same one, or nothing is read or written any more.
//! Does not notice that a target lost its memory between a write and the flush that follows on another connection.
//! Does not fence by itself: without a claim a write that was under way when a connection broke may still be done by the target, for as long as the
//! network and the target hold it. Whoever writes other bytes there must be the one who repeats it, and repeats it first.

use std::time::{Duration, Instant};

use crate::sys;

use super::claim::{self, Claim};
use super::controller::{Controller, Fabric, Settings};
use super::error::{Error, Result};
use super::queue::{Queue, Traits};
use super::wire::Nqn;

/// How long is waited before connecting again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How often the controller is asked what has happened, and told that we are there, if it is time: not with each command, for which
/// that would be one system call more.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// A namespace that is connected, or was and will be.
pub struct Remote<F: Fabric> {
    fabric: F,
    subsystem: Nqn,
    namespace: u32,
    settings: Settings,
    /// For how long a call tries before it fails.
    patience: Duration,
    traits: Traits,
    connection: Option<Connection<F>>,
}

struct Connection<F: Fabric> {
    controller: Controller<F>,
    queue: Queue<F::Transport>,
    /// When it was made, and when the controller was last asked what has happened.
    made: Instant,
    asked: Instant,
}

impl<F: Fabric> Connection<F> {
    fn new(fabric: F, subsystem: &Nqn, namespace: u32, settings: &Settings) -> Result<Self> {
        let mut controller = Controller::connect(fabric, subsystem, settings)?;
        let mut queue = controller.queue(namespace)?;
        claim::claim(&mut queue, &settings.host_id, settings.claim)?;
        let (made, asked) = (Instant::now(), Instant::now());
        Ok(Connection { controller, queue, made, asked })
    }
}

impl<F: Fabric + Clone> Remote<F> {
    /// Connects to a namespace.
    pub fn connect(
        fabric: F,
        subsystem: &Nqn,
        namespace: u32,
        settings: &Settings,
        patience: Duration,
    ) -> Result<Remote<F>> {
        let connection = Connection::new(fabric.clone(), subsystem, namespace, settings)?;
        let (subsystem, settings) = (subsystem.clone(), settings.clone());
        let traits = *connection.queue.traits();
        let connection = Some(connection);
        Ok(Remote { fabric, subsystem, namespace, settings, patience, traits, connection })
    }

    /// One that is known already, and will be connected when it is needed.
    pub fn known(
        fabric: F,
        subsystem: &Nqn,
        settings: &Settings,
        patience: Duration,
        traits: &Traits,
    ) -> Remote<F> {
        let (subsystem, settings, traits) = (subsystem.clone(), settings.clone(), *traits);
        let (namespace, connection) = (traits.namespace, None);
        Remote { fabric, subsystem, namespace, settings, patience, traits, connection }
    }

    /// What it is.
    pub fn traits(&self) -> &Traits {
        &self.traits
    }

    /// For how long it has been connected; None: it is not.
    pub fn connected_for(&self) -> Option<Duration> {
        self.connection.as_ref().map(|connection| connection.made.elapsed())
    }

    /// Tries to connect, if it is not connected, once.
    pub fn connect_once(&mut self) -> Result<()> {
        if self.connection.is_none() {
            self.connection = Some(self.reconnect()?);
        }
        Ok(())
    }

    /// Has connections that are made from now on end at the target when this host has been silent for so long.
    pub fn set_keep_alive(&mut self, time: Duration) {
        self.settings.keep_alive = time;
    }

    /// Ends the connection, until it is needed again.
    pub fn disconnect(&mut self) {
        self.connection = None;
    }

    /// Reads whole blocks.
    pub fn read(&mut self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.insist(|queue| queue.read(offset, target))
    }

    /// Writes whole blocks.
    pub fn write(&mut self, offset: u64, source: &[u8]) -> Result<()> {
        self.insist(|queue| queue.write(offset, source))
    }

    /// As `read`.
    ///
    /// # Safety
    /// `target` is writable for `length` bytes, and nobody else uses them.
    pub unsafe fn read_to(&mut self, offset: u64, target: *mut u8, length: usize) -> Result<()> {
        // SAFETY: promised by the caller.
        self.insist(|queue| unsafe { queue.read_to(offset, target, length) })
    }

    /// As `write`.
    ///
    /// # Safety
    /// `source` is readable for `length` bytes.
    pub unsafe fn write_from(
        &mut self,
        offset: u64,
        source: *const u8,
        length: usize,
    ) -> Result<()> {
        // SAFETY: promised by the caller.
        self.insist(|queue| unsafe { queue.write_from(offset, source, length) })
    }

    /// Makes durable what was written.
    pub fn flush(&mut self) -> Result<()> {
        self.insist(|queue| queue.flush())
    }

    /// Makes whole blocks read as zeros.
    pub fn write_zeroes(&mut self, offset: u64, length: u64, may_deallocate: bool) -> Result<()> {
        self.insist(|queue| queue.write_zeroes(offset, length, may_deallocate))
    }

    /// Tells the controller that nobody needs what whole blocks hold.
    pub fn discard(&mut self, offset: u64, length: u64) -> Result<()> {
        self.insist(|queue| queue.discard(offset, length))
    }

    /// To be called now and then while nothing else is: otherwise the controller forgets us.
    pub fn keep_alive(&mut self) -> Result<()> {
        self.insist(|_| Ok(()))
    }

    /// Lets other hosts have the namespace, and does not claim it any more.
    pub fn release(&mut self) -> Result<()> {
        self.settings.claim = Claim::None;
        let host = self.settings.host_id;
        self.insist(|queue| claim::release(queue, &host))
    }

    /// Ends the connection in an orderly way.
    pub fn shut_down(mut self) -> Result<()> {
        self.connection.take().map_or(Ok(()), |mut connection| connection.controller.shut_down())
    }

    /// Has `act` done on a sound connection, and again on another one if that breaks.
    fn insist(
        &mut self,
        mut act: impl FnMut(&mut Queue<F::Transport>) -> Result<()>,
    ) -> Result<()> {
        let deadline = Instant::now() + self.patience;
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match self.try_once(&mut act) {
                Err(error) if error.may_be_retried() && Instant::now() < deadline => error,
                result => return result,
            };
            if !matches!(error, Error::Refused { .. }) {
                self.connection = None;
            }
            // A sleep that is cut short is as good.
            let _ = sys::nanosleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn try_once(
        &mut self,
        act: &mut impl FnMut(&mut Queue<F::Transport>) -> Result<()>,
    ) -> Result<()> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => {
                let new = self.reconnect()?;
                self.connection.insert(new)
            }
        };
        if connection.asked.elapsed() >= ASK_EVERY {
            connection.asked = Instant::now();
            if connection.controller.keep_alive()? {
                // What is another one now is not used any more: a new connection finds that, too.
                self.check_unchanged().inspect_err(|_| self.connection = None)?;
            }
        }
        match &mut self.connection {
            Some(connection) => act(&mut connection.queue),
            None => Err(Error::Closed),
        }
    }

    fn reconnect(&self) -> Result<Connection<F>> {
        let fabric = self.fabric.clone();
        let connection = Connection::new(fabric, &self.subsystem, self.namespace, &self.settings)?;
        same(&self.traits, connection.queue.traits())?;
        Ok(connection)
    }

    /// Some namespace of the controller has changed; ours must not have.
    fn check_unchanged(&mut self) -> Result<()> {
        let Some(connection) = &mut self.connection else { return Err(Error::Closed) };
        let shape = connection.controller.namespace(self.namespace)?;
        same(&self.traits, &Traits { shape, ..self.traits })
    }
}

/// Errors: the namespace of before is not that of now.
fn same(before: &Traits, now: &Traits) -> Result<()> {
    let (old, new) = (&before.shape, &now.shape);
    let is_same = old.guid == new.guid
        && old.block_shift == new.block_shift
        && old.blocks <= new.blocks
        && before.transfer_bytes_max <= now.transfer_bytes_max;
    let why = "the namespace is another one than before, or smaller";
    if is_same { Ok(()) } else { Err(Error::Unsuitable { why }) }
}
