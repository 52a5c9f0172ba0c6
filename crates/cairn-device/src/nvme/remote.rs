//! A namespace on another machine, as a tier sees it: bytes that are read and written in calls,
//! however often the connection breaks meanwhile.
//!
//! Must stay true: a call succeeds only if all of it was done on one connection; what is repeated
//! is the same bytes at the same place. After a new connection the namespace is the same one, still
//! this host's, and looked at, or nothing is read or written any more. Once the target's machine
//! was started again nothing is read, written or flushed, but by who does not believe what he
//! reads: what was not flushed before may be gone.
//! Does not notice that where a target does not say which start of its machine it is of. Where a
//! target takes `Command::EndController`, as ours does, nothing that was sent on a connection is
//! done once there is the next one. Elsewhere, and between processes, nothing fences without a
//! claim: a write that was under way may still be done, for as long as the network and the target
//! hold it. Whoever writes other bytes there must be the one who repeats it, and repeats it first.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sys;

use super::claim::{self, Claim, Own};
use super::controller::{Controller, Fabric, Settings};
use super::error::{Error, Result};
use super::line::{Line, Place};
use super::queue::{Queue, Traits};
use super::wire::{Nqn, Status};

/// How long is waited before connecting again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How often the controller is asked what has happened, and told that we are there, if it is time:
/// not with each command, for which that would be one system call more.
const ASK_EVERY: Duration = Duration::from_millis(100);

const FORGOTTEN: Error = Error::Unsuitable {
    why: "the target's machine was started again: what was written there before and not flushed may be gone",
};

/// How often who waits in line looks whether it is its turn, or tries.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Looks at a namespace on a new connection. Errors: it is not to be used.
pub(super) type Look<F> =
    Arc<dyn Fn(&mut Queue<<F as Fabric>::Transport>) -> Result<()> + Send + Sync>;

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
    /// What is remembered of the claim.
    own: Option<Own>,
    /// The controller whose connection broke, if nobody has had it ended yet: what it was sent may
    /// still be on its way.
    broken: Option<u64>,
    look: Option<Look<F>>,
    /// Where processes wait for a connection when the target gives no more, and for how long one
    /// may be silent then.
    line: Option<(Arc<Line>, Duration)>,
}

/// Whether what was written before must be there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Demand {
    Kept,
    Anything,
}

struct Connection<F: Fabric> {
    controller: Controller<F>,
    queue: Queue<F::Transport>,
    /// It is to another start of the target's machine than that for which the namespace is known.
    is_doubted: bool,
    /// When it was made, and when the controller was last asked what has happened.
    made: Instant,
    asked: Instant,
}

impl<F: Fabric> Connection<F> {
    /// Makes all of it in the time of a command, has the controller ended whose connection is
    /// `broken`, and lets `check` have a look at what was claimed `before`.
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
                // It is somebody else's by now, who finds out what is claimed.
                let _ = claim::release(&mut queue, &settings.host_id);
            }
            return Err(error);
        }
        controller.set_deadline(None);
        queue.set_deadline(None);
        let (made, asked) = (Instant::now(), Instant::now());
        Ok((Connection { controller, queue, is_doubted: false, made, asked }, own))
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

    /// One that is known already, and will be connected when it is needed.
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

    /// Has each connection that is made from now on look at the namespace before it is used. A
    /// first one that did not is left.
    pub(super) fn look_first(&mut self, look: &Look<F>) {
        if self.look.is_none() {
            self.connection = None;
            self.look = Some(Arc::clone(look));
        }
    }

    /// Makes connections in the order in which processes have tried. The target may forget one that
    /// had to wait after so much silence.
    pub(super) fn wait_in(&mut self, line: &Arc<Line>, idle: Duration) {
        self.line = Some((Arc::clone(line), idle));
    }

    /// For how long a call tries from now on before it fails.
    pub(super) fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// What it is.
    pub fn traits(&self) -> &Traits {
        &self.traits
    }

    /// For how long it has been connected; None: it is not.
    pub fn connected_for(&self) -> Option<Duration> {
        self.connection.as_ref().map(|connection| connection.made.elapsed())
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

    /// Writes whole blocks on the connection that there is, and not again. Errors: they were not
    /// written at `deadline`.
    pub fn write_once(&mut self, offset: u64, source: &[u8], deadline: Instant) -> Result<()> {
        let Some(connection) = &mut self.connection else { return Err(Error::Closed) };
        if connection.is_doubted {
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

    /// As `read_to`, for who compares what he reads with what he knows of it; whether it may be
    /// older than what was written there.
    ///
    /// # Safety
    /// As `read_to`.
    pub unsafe fn read_doubted(
        &mut self,
        offset: u64,
        target: *mut u8,
        length: usize,
    ) -> Result<bool> {
        // SAFETY: promised by the caller.
        self.insist_on(Demand::Anything, |queue| unsafe { queue.read_to(offset, target, length) })?;
        Ok(self.is_doubted())
    }

    /// Whether it was found out that the target's machine was started again.
    pub fn is_doubted(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.is_doubted)
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
        self.insist_on(Demand::Anything, |_| Ok(()))
    }

    /// Whether it was seen that this host has reserved the namespace.
    pub fn is_reserved_here(&self) -> bool {
        self.own.is_some()
    }

    /// Whether the claim was made here, and by nobody for this host before.
    pub fn was_free(&self) -> bool {
        self.own.is_some_and(|own| own.is_new)
    }

    /// Lets other hosts have the namespace, and does not claim it any more.
    pub fn release(&mut self) -> Result<()> {
        (self.settings.claim, self.own) = (Claim::None, None);
        let host = self.settings.host_id;
        self.insist_on(Demand::Anything, |queue| claim::release(queue, &host))
    }

    /// Ends the connection in an orderly way.
    pub fn shut_down(mut self) -> Result<()> {
        self.connection.take().map_or(Ok(()), |mut connection| connection.controller.shut_down())
    }

    fn insist(&mut self, act: impl FnMut(&mut Queue<F::Transport>) -> Result<()>) -> Result<()> {
        self.insist_on(Demand::Kept, act)
    }

    /// Has `act` done on a sound connection, and again on another one if that breaks.
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
            // A sleep that is cut short is as good.
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
                // What is another one now is not used any more: a new connection finds that, too.
                self.check_unchanged().inspect_err(|_| self.connection = None)?;
            }
        }
        match &mut self.connection {
            Some(connection) if connection.is_doubted && demand == Demand::Kept => Err(FORGOTTEN),
            Some(connection) => act(&mut connection.queue),
            None => Err(Error::Closed),
        }
    }

    fn leave_if_broken(&mut self, result: &Result<()>) {
        match result {
            Ok(()) => {}
            // A queue that has ended is as good as broken.
            Err(Error::Refused { status, .. }) if status.code() != Status::QUEUE_ENDED => {}
            Err(_) => {
                let left = self.connection.take();
                let instance = left.map_or(0, |left| left.controller.identity().instance);
                self.broken = Some(instance).filter(|&instance| instance != 0).or(self.broken);
            }
        }
    }

    /// Connects, if that does not succeed at once then in the order in which processes have tried.
    /// Errors: it has not succeeded at `deadline`, or never will.
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
            // A sleep that is cut short is as good.
            let _ = sys::nanosleep(LOOK_EVERY);
        }
    }

    /// Tries to connect once, as a host that the target may forget after so long.
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
        connection.is_doubted = before != [0; 16] && before != now;
        (self.connection, self.broken) = (Some(connection), None);
        self.own = own.or(self.own);
        Ok(())
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
