//! A namespace on another machine, as a tier sees it: reads and writes in calls that survive broken
//! connections.
//!
//! Must stay true: a call succeeds only if all of it was done on one connection. A repeated call
//! moves the same bytes at the same place. After a reconnect the namespace must be the same one,
//! still be this host's, and pass the look; otherwise nothing is read or written any more. After a
//! restart of the target's machine nothing is read, written or flushed, because data that were not
//! flushed may be lost. Only `read_unverified` still reads, for callers that verify what they read.
//!
//! Does not notice a restart if the target does not say which start of its machine it belongs to.
//! If the target supports `Command::EndController`, as ours does, no command of an earlier
//! connection takes effect once the next connection exists. With other targets, and between
//! processes, nothing fences without a claim: a write that was under way may still be done for as
//! long as the network and the target hold it. Whoever writes other bytes there must be the one who
//! repeats that write, and must repeat it first.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_platform::sys;

use super::claim::{self, Claim, Own};
use super::controller::{Controller, Fabric, Settings};
use super::error::{Error, Result};
use super::queue::{Queue, Traits};
use super::wait_queue::{Line, Place};
use super::wire::{Nqn, Status};

/// Pause before connecting again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Time between two rounds of asking the controller for events and serving its Keep Alive timer.
/// Each round costs a system call, so not every command pays for one.
const ASK_EVERY: Duration = Duration::from_millis(100);

const FORGOTTEN: Error = Error::Unsuitable {
    why: "the target's machine was started again: what was written there before and not flushed may be gone",
};

/// Time between two checks by a process that waits in line for its turn to connect.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Inspects a namespace on a new connection. Errors: the namespace must not be used.
pub(super) type Look<F> =
    Arc<dyn Fn(&mut Queue<<F as Fabric>::Transport>) -> Result<()> + Send + Sync>;

/// A namespace with a connection that is made again when it is needed.
pub struct Remote<F: Fabric> {
    fabric: F,
    subsystem: Nqn,
    namespace: u32,
    settings: Settings,
    /// Time for which a call tries before it fails.
    patience: Duration,
    traits: Traits,
    connection: Option<Connection<F>>,
    /// What is remembered of the claim.
    own: Option<Own>,
    /// Instance of the controller whose connection broke, until a new connection has ended that
    /// controller: commands that it was sent may still be on their way.
    broken: Option<u64>,
    look: Option<Look<F>>,
    /// Line in which processes wait for a connection when the target grants no more, and the Keep
    /// Alive timeout of a connection that had to wait.
    line: Option<(Arc<Line>, Duration)>,
}

/// Whether data written before must still be there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Demand {
    Kept,
    Anything,
}

struct Connection<F: Fabric> {
    controller: Controller<F>,
    queue: Queue<F::Transport>,
    /// Whether the target's machine was started again since the namespace became known.
    may_be_stale: bool,
    /// Time at which it was made, and at which the controller was last asked for events.
    made: Instant,
    asked: Instant,
}

impl<F: Fabric> Connection<F> {
    /// Connects within the time limit of one command. Has the controller ended whose connection is
    /// `broken`, claims the namespace, which was claimed `before`, and lets `check` inspect it.
    fn new(
        fabric: F,
        subsystem: &Nqn,
        namespace: u32,
        settings: &Settings,
        (before, broken): (Option<Own>, Option<u64>),
        check: impl Fn(&mut Queue<F::Transport>) -> Result<()>,
    ) -> Result<(Self, Option<Own>)> {
        let deadline = Instant::now() + settings.timeout;
        let mut controller = Controller::connect_by(fabric, subsystem, settings, deadline)?;
        let mut queue = controller.queue(namespace)?;
        queue.set_deadline(Some(deadline));
        if let Some(instance) = broken.filter(|_| controller.identity().instance != 0) {
            queue.end_controller(instance)?;
        }
        let own = claim::claim(&mut queue, &settings.host_id, settings.claim, before, &check)?;
        if let Err(error) = check(&mut queue) {
            if own.is_some_and(|own| own.is_new) && !error.may_be_retried() {
                // Failure does no harm: the namespace is somebody else's, and its owner finds out
                // who holds the claim.
                let _ = claim::release(&mut queue, &settings.host_id);
            }
            return Err(error);
        }
        controller.set_deadline(None);
        queue.set_deadline(None);
        let (made, asked) = (Instant::now(), Instant::now());
        Ok((Connection { controller, queue, may_be_stale: false, made, asked }, own))
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
        let (connection, own) =
            Connection::new(fabric.clone(), subsystem, namespace, settings, (None, None), |_| {
                Ok(())
            })?;
        let remote =
            Remote::known(fabric, subsystem, settings, patience, connection.queue.traits());
        Ok(Remote { connection: Some(connection), own, namespace, ..remote })
    }

    /// A namespace whose traits are known. Connects when it is needed.
    pub fn known(
        fabric: F,
        subsystem: &Nqn,
        settings: &Settings,
        patience: Duration,
        traits: &Traits,
    ) -> Remote<F> {
        let (subsystem, settings, traits) = (subsystem.clone(), settings.clone(), *traits);
        let (namespace, connection, own) = (traits.namespace, None, None);
        let (broken, look, line) = (None, None, None);
        Remote {
            fabric,
            subsystem,
            namespace,
            settings,
            patience,
            traits,
            connection,
            own,
            broken,
            look,
            line,
        }
    }

    /// Makes each connection from now on pass `look` before it is used. Drops a connection made
    /// without it.
    pub(super) fn look_first(&mut self, look: &Look<F>) {
        if self.look.is_none() {
            self.connection = None;
            self.look = Some(Arc::clone(look));
        }
    }

    /// Makes processes connect in the order of `line`. `idle` is the Keep Alive timeout of a
    /// connection that had to wait.
    pub(super) fn wait_in(&mut self, line: &Arc<Line>, idle: Duration) {
        self.line = Some((Arc::clone(line), idle));
    }

    /// Sets the time for which a call tries before it fails.
    pub(super) fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Properties of the namespace and its controller.
    pub fn traits(&self) -> &Traits {
        &self.traits
    }

    /// Age of the connection; `None`: there is none.
    pub fn connected_for(&self) -> Option<Duration> {
        self.connection.as_ref().map(|connection| connection.made.elapsed())
    }

    /// Ends the connection. The next call connects again.
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

    /// Writes whole blocks on the current connection, without a retry. Errors: also if they were
    /// not written by `deadline`.
    pub fn write_once(&mut self, offset: u64, source: &[u8], deadline: Instant) -> Result<()> {
        let Some(connection) = &mut self.connection else { return Err(Error::Closed) };
        if connection.may_be_stale {
            return Err(FORGOTTEN);
        }
        if Instant::now() >= deadline {
            return Err(Error::TimedOut { awaited: "chance to write" });
        }
        connection.queue.set_deadline(Some(deadline));
        let result = connection.queue.write(offset, source);
        connection.queue.set_deadline(None);
        self.leave_if_broken(&result);
        result
    }

    /// As `read`.
    ///
    /// # Safety
    /// `target` is writable for `length` bytes, and nobody else uses them.
    pub unsafe fn read_to(&mut self, offset: u64, target: *mut u8, length: usize) -> Result<()> {
        // SAFETY: promised by the caller.
        self.insist(|queue| unsafe { queue.read_to(offset, target, length) })
    }

    /// As `read_to`, for callers that verify what they read. Returns whether the bytes may be older
    /// than what was written there.
    ///
    /// # Safety
    /// As `read_to`.
    pub unsafe fn read_unverified(
        &mut self,
        offset: u64,
        target: *mut u8,
        length: usize,
    ) -> Result<bool> {
        // SAFETY: promised by the caller.
        self.insist_on(Demand::Anything, |queue| unsafe { queue.read_to(offset, target, length) })?;
        Ok(self.may_be_stale())
    }

    /// Whether the target's machine is known to have been started again.
    pub fn may_be_stale(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.may_be_stale)
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

    /// Makes written data durable.
    pub fn flush(&mut self) -> Result<()> {
        self.insist(|queue| queue.flush())
    }

    /// Makes whole blocks read as zeros.
    pub fn write_zeroes(&mut self, offset: u64, length: u64, may_deallocate: bool) -> Result<()> {
        self.insist(|queue| queue.write_zeroes(offset, length, may_deallocate))
    }

    /// Tells the controller that the contents of whole blocks are not needed.
    pub fn discard(&mut self, offset: u64, length: u64) -> Result<()> {
        self.insist(|queue| queue.discard(offset, length))
    }

    /// Serves the controller's Keep Alive timer. Call it regularly while there are no other calls;
    /// otherwise the controller drops the connection.
    pub fn keep_alive(&mut self) -> Result<()> {
        self.insist_on(Demand::Anything, |_| Ok(()))
    }

    /// Whether this host was seen to hold the reservation of the namespace.
    pub fn is_reserved_here(&self) -> bool {
        self.own.is_some()
    }

    /// Whether this object made the claim, and no process of this host had made it before.
    pub fn was_free(&self) -> bool {
        self.own.is_some_and(|own| own.is_new)
    }

    /// Gives back the namespace, and does not claim it again.
    pub fn release(&mut self) -> Result<()> {
        (self.settings.claim, self.own) = (Claim::None, None);
        let host = self.settings.host_id;
        self.insist_on(Demand::Anything, |queue| claim::release(queue, &host))
    }

    /// Shuts the controller down.
    pub fn shut_down(mut self) -> Result<()> {
        self.connection.take().map_or(Ok(()), |mut connection| connection.controller.shut_down())
    }

    fn insist(&mut self, act: impl FnMut(&mut Queue<F::Transport>) -> Result<()>) -> Result<()> {
        self.insist_on(Demand::Kept, act)
    }

    /// Runs `act` on a sound connection. Repeats it on a new one if the connection breaks.
    fn insist_on(
        &mut self,
        demand: Demand,
        mut act: impl FnMut(&mut Queue<F::Transport>) -> Result<()>,
    ) -> Result<()> {
        let deadline = Instant::now() + self.patience;
        let mut pause = FIRST_PAUSE;
        loop {
            let result = self.try_once(demand, deadline, &mut act);
            if !result.is_err_and(|error| error.may_be_retried()) || Instant::now() >= deadline {
                return result;
            }
            self.leave_if_broken(&result);
            // A sleep that is cut short is fine.
            let _ = sys::nanosleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn try_once(
        &mut self,
        demand: Demand,
        deadline: Instant,
        act: &mut impl FnMut(&mut Queue<F::Transport>) -> Result<()>,
    ) -> Result<()> {
        if self.connection.is_none() {
            match self.line.clone() {
                Some((line, idle)) => self.connect_in_turn(&line, idle, deadline)?,
                None => self.connect_once(self.settings.keep_alive)?,
            }
        }
        let Some(connection) = &mut self.connection else { return Err(Error::Closed) };
        if connection.asked.elapsed() >= ASK_EVERY {
            connection.asked = Instant::now();
            if connection.controller.keep_alive()? {
                // A namespace that became another one must not be used. A new connection notices
                // that, too.
                self.check_unchanged().inspect_err(|_| self.connection = None)?;
            }
        }
        match &mut self.connection {
            Some(connection) if connection.may_be_stale && demand == Demand::Kept => Err(FORGOTTEN),
            Some(connection) => act(&mut connection.queue),
            None => Err(Error::Closed),
        }
    }

    fn leave_if_broken(&mut self, result: &Result<()>) {
        match result {
            Ok(()) => {}
            // A queue that has ended counts as broken.
            Err(Error::Refused { status, .. }) if status.code() != Status::QUEUE_ENDED => {}
            Err(_) => {
                let left = self.connection.take();
                let instance = left.map_or(0, |left| left.controller.identity().instance);
                self.broken = Some(instance).filter(|&instance| instance != 0).or(self.broken);
            }
        }
    }

    /// Connects. If the first attempt does not succeed, waits in line for the next one. Errors: not
    /// connected by `deadline`, or an error that a retry cannot cure.
    fn connect_in_turn(&mut self, line: &Line, idle: Duration, deadline: Instant) -> Result<()> {
        let mut place: Option<Place<'_>> = None;
        loop {
            let is_over = Instant::now() >= deadline;
            let (may_try, keep_alive) = match &place {
                None => (line.is_empty(), self.settings.keep_alive),
                Some(place) => (place.is_first(sys::uptime()), idle),
            };
            match may_try.then(|| self.connect_once(keep_alive)) {
                Some(Err(error)) if error.may_be_retried() && !is_over => {}
                Some(result) => return result,
                None if is_over => return Err(Error::TimedOut { awaited: "turn to connect" }),
                None => {}
            }
            place.get_or_insert_with(|| line.join(sys::uptime()));
            // A sleep that is cut short is fine.
            let _ = sys::nanosleep(LOOK_EVERY);
        }
    }

    /// Tries to connect once, with Keep Alive timeout `keep_alive`.
    fn connect_once(&mut self, keep_alive: Duration) -> Result<()> {
        let settings = Settings { keep_alive, ..self.settings.clone() };
        let (fabric, traits, look) = (self.fabric.clone(), &self.traits, &self.look);
        let check = |queue: &mut Queue<F::Transport>| {
            same(traits, queue.traits())?;
            look.as_ref().map_or(Ok(()), |look| look(queue))
        };
        let (subsystem, namespace) = (&self.subsystem, self.namespace);
        let known = (self.own, self.broken);
        let (mut connection, own) =
            Connection::new(fabric, subsystem, namespace, &settings, known, check)?;
        let [before, now] = [traits, connection.queue.traits()].map(|traits| traits.shape.start);
        connection.may_be_stale = before != [0; 16] && before != now;
        (self.connection, self.broken) = (Some(connection), None);
        self.own = own.or(self.own);
        Ok(())
    }

    /// Errors: our namespace has changed. Call it when the controller reports a change of some
    /// namespace.
    fn check_unchanged(&mut self) -> Result<()> {
        let Some(connection) = &mut self.connection else { return Err(Error::Closed) };
        let shape = connection.controller.namespace(self.namespace)?;
        same(&self.traits, &Traits { shape, ..self.traits })
    }
}

/// Errors: `now` is not the namespace that `before` describes, or is smaller.
fn same(before: &Traits, now: &Traits) -> Result<()> {
    let (old, new) = (&before.shape, &now.shape);
    let is_same = old.guid == new.guid
        && old.block_shift == new.block_shift
        && old.blocks <= new.blocks
        && before.transfer_bytes_max <= now.transfer_bytes_max;
    let why = "the namespace was replaced, or is smaller than before";
    if is_same { Ok(()) } else { Err(Error::Unsuitable { why }) }
}
