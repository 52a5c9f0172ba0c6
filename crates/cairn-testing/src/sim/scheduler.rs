//! Actors that take turns on a virtual clock. The seed decides who is next, who dies and when the
//! power fails.
//!
//! An actor is a thread, and one of them runs: the one with the baton. At every switch point it
//! hands the baton to an actor that the seed picks among those whose time has come. If there is
//! none, the clock advances to the next one. A killed actor is never picked again, so no code of it
//! runs any more; its thread ends with its node.
//!
//! Must stay true: between two switch points no actor waits for another; every choice is the
//! seed's.
//!
//! Does not know what actors do.

use cairn_core::{Acquired, ProcessIdentity};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::trace::Trace;
use crate::driver::Clock;
use crate::random::Random;

/// Longest permitted operation, in nanoseconds, whatever happens to others.
const OPERATION_MAX: u64 = 500_000_000;
/// One switch in so many kills an actor.
const KILL_ODDS: u64 = 300;
/// Of the switches at which an actor has the lock, one in so many kills it.
const KILL_ODDS_IN_LOCK: u64 = 60;
/// The power fails at one switch in so many.
const POWER_ODDS: u64 = 2000;
/// Most switches of a run; a longer run does not end.
const SWITCHES_MAX: u64 = 1_000_000;

/// How a node ended.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// All work is done.
    Done,
    /// The power failed, or the media did.
    PowerFailed,
    /// Something happened that must not; with a description.
    Broken(String),
}

/// Events injected into a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of switch points.
    pub switches: u64,
    /// Number of kills.
    pub kills: u64,
    /// Number of killed actors that held the lock of the namespace.
    pub kills_in_lock: u64,
    /// Number of power failures, and of restarts after media errors.
    pub power_failures: u64,
    /// Longest operation, in virtual nanoseconds.
    pub longest: u64,
}

/// Panic payload that ends the thread of an actor whose node is gone.
struct Released;

enum Status {
    /// Goes on at this time.
    Waits(u64),
    /// Goes on when the lock of the namespace is free.
    WaitsForLock,
    /// Killed or finished.
    Gone,
}

struct Actor {
    name: String,
    identity: ProcessIdentity,
    status: Status,
    mortal: bool,
    /// Time at which its operation began.
    began: u64,
    baton: Arc<Condvar>,
}

impl Actor {
    fn is_alive(&self) -> bool {
        !matches!(self.status, Status::Gone)
    }

    fn is_mortal(&self) -> bool {
        self.mortal && self.is_alive()
    }
}

enum Lock {
    Free,
    Held(usize),
    OwnerDied,
}

struct State {
    random: Random,
    trace: Trace,
    counts: Counts,
    actors: Vec<Actor>,
    threads: Vec<JoinHandle<()>>,
    running: Option<usize>,
    lock: Lock,
    end: Option<End>,
    released: bool,
}

/// The scheduler of a run.
pub(super) struct Scheduler {
    state: Mutex<State>,
    ended: Condvar,
    /// The virtual clock.
    pub clock: Clock,
}

thread_local! {
    /// The actor whose thread this is.
    static ME: RefCell<Option<(Arc<Scheduler>, usize)>> = const { RefCell::new(None) };
    /// Whether it holds the lock of the namespace.
    static HOLDS_LOCK: Cell<bool> = const { Cell::new(false) };
}

/// Returns the scheduler and the number of the actor whose thread this is; none outside the
/// simulation, and in a thread that unwinds.
fn me() -> Option<(Arc<Scheduler>, usize)> {
    if std::thread::panicking() { None } else { ME.with(|me| me.borrow().clone()) }
}

/// A switch point: this actor goes on after `nanoseconds`, or later.
pub(super) fn pause(nanoseconds: u64) {
    if let Some((scheduler, number)) = me() {
        let at = scheduler.clock.now() + nanoseconds;
        scheduler.switch(number, Status::Waits(at));
    }
}

/// Draws a number below `bound` from the seed; 0 outside the simulation.
pub(super) fn draw(bound: u64) -> u64 {
    me().map_or(0, |(scheduler, _)| scheduler.lock().random.below(bound))
}

/// Adds an event of this actor to the trace.
pub(super) fn tell(what: fmt::Arguments<'_>) {
    if let Some((scheduler, number)) = me() {
        scheduler.lock().tell(&scheduler.clock, number, what);
    }
}

/// Takes the lock of the namespace, waiting until it is free.
pub(super) fn take_lock() -> Acquired {
    let Some((scheduler, number)) = me() else { return Acquired::Clean };
    pause(0);
    loop {
        let mut state = scheduler.lock();
        if !matches!(state.lock, Lock::Held(_)) {
            HOLDS_LOCK.set(true);
            return match std::mem::replace(&mut state.lock, Lock::Held(number)) {
                Lock::OwnerDied => Acquired::OwnerDied,
                _ => Acquired::Clean,
            };
        }
        drop(state);
        scheduler.switch(number, Status::WaitsForLock);
    }
}

/// Releases the lock of the namespace.
pub(super) fn release_lock() {
    if let Some((scheduler, _)) = me() {
        HOLDS_LOCK.set(false);
        scheduler.lock().lock = Lock::Free;
    }
}

/// Whether this actor holds the lock.
pub(super) fn holds_lock() -> bool {
    HOLDS_LOCK.get()
}

/// Whether any actor of a process is alive.
pub(super) fn is_alive(identity: ProcessIdentity) -> bool {
    me().is_some_and(|(scheduler, _)| scheduler.is_alive(identity))
}

/// Begins an operation of this actor and its time limit.
pub(super) fn begin_operation() {
    if let Some((scheduler, number)) = me() {
        let mut state = scheduler.lock();
        state.note_length(number, scheduler.clock.now());
        state.actors[number].began = scheduler.clock.now();
    }
}

/// Ends this process at once, as if it were killed.
pub(super) fn die() -> ! {
    let (scheduler, number) = me().expect("an actor dies");
    let mut state = scheduler.lock();
    let identity = state.actors[number].identity;
    state.kill(&scheduler.clock, identity);
    drop(state);
    scheduler.switch(number, Status::Gone);
    unreachable!("the dead are not picked")
}

/// Ends the node.
pub(super) fn end_node(end: End) -> ! {
    let (scheduler, number) = me().expect("an actor ends it");
    scheduler.lock().end(end);
    scheduler.switch(number, Status::Gone);
    unreachable!("nobody is picked after the end")
}

impl Scheduler {
    /// Returns a scheduler without actors.
    pub fn new(seed: u64, verbose: bool) -> Arc<Scheduler> {
        Arc::new(Scheduler {
            state: Mutex::new(State {
                random: Random::new(seed),
                trace: Trace::new(verbose),
                counts: Counts::default(),
                actors: Vec::new(),
                threads: Vec::new(),
                running: None,
                lock: Lock::Free,
                end: None,
                released: false,
            }),
            ended: Condvar::new(),
            clock: Clock::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an actor: a thread of the process `identity`. It runs when it is picked.
    pub fn spawn(
        self: &Arc<Self>,
        name: String,
        identity: ProcessIdentity,
        mortal: bool,
        act: impl FnOnce() + Send + 'static,
    ) {
        let mut state = self.lock();
        let number = state.actors.len();
        let now = self.clock.now();
        let baton = Arc::new(Condvar::new());
        let status = Status::Waits(now);
        state.actors.push(Actor { name, identity, status, mortal, began: now, baton });
        let scheduler = self.clone();
        state.threads.push(std::thread::spawn(move || {
            ME.with(|me| *me.borrow_mut() = Some((scheduler.clone(), number)));
            let ended = catch_unwind(AssertUnwindSafe(|| {
                scheduler.wait_for_baton(scheduler.lock(), number);
                act();
            }));
            scheduler.finish(number, ended);
        }));
    }

    /// Whether any actor of a process is alive.
    pub fn is_alive(&self, identity: ProcessIdentity) -> bool {
        self.lock().living().any(|actor| actor.identity == identity)
    }

    /// Whether a living process has this pid.
    pub fn is_pid_used(&self, pid: u32) -> bool {
        self.lock().living().any(|actor| actor.identity.pid == pid)
    }

    /// Runs the actors until their node ends, and waits for their threads.
    pub fn run(&self) -> End {
        let mut state = self.lock();
        state.pick(&self.clock);
        while state.end.is_none() {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.released = true;
        state.actors.iter().for_each(|actor| actor.baton.notify_all());
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        for thread in threads {
            thread.join().expect("an actor's thread catches its panics");
        }
        let mut state = self.lock();
        state.released = false;
        state.actors.clear();
        state.lock = Lock::Free;
        state.running = None;
        state.end.take().expect("it ended")
    }

    /// Adds an event of the scheduler itself to the trace.
    pub fn tell(&self, what: fmt::Arguments<'_>) {
        self.lock().trace.add(self.clock.now(), "-", what);
    }

    /// Counts a power failure.
    pub fn count_power_failure(&self) {
        self.tell(format_args!("the power fails"));
        self.lock().counts.power_failures += 1;
    }

    /// Draws a number below `bound` from the seed.
    pub fn draw(&self, bound: u64) -> u64 {
        self.lock().random.below(bound)
    }

    /// Returns the injected events, the number of trace events, and the hash of the trace.
    pub fn counts(&self) -> (Counts, u64, u64) {
        let state = self.lock();
        (state.counts, state.trace.events, state.trace.hash)
    }

    /// Returns the last events of the trace.
    pub fn recent(&self) -> String {
        self.lock().trace.to_string()
    }

    fn switch(&self, number: usize, status: Status) {
        let mut state = self.lock();
        if state.actors[number].is_alive() {
            state.actors[number].status = status;
        }
        state.pick(&self.clock);
        if state.end.is_some() {
            self.ended.notify_all();
        }
        self.wait_for_baton(state, number);
    }

    fn wait_for_baton(&self, mut state: MutexGuard<'_, State>, number: usize) {
        let baton = state.actors[number].baton.clone();
        while state.running != Some(number) {
            if state.released {
                drop(state);
                resume_unwind(Box::new(Released));
            }
            state = baton.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Handles the end of an actor's thread.
    fn finish(&self, number: usize, ended: Result<(), Box<dyn Any + Send>>) {
        let mut state = self.lock();
        match ended {
            Err(payload) if payload.is::<Released>() => return,
            Err(payload) => state.end(End::Broken(said(payload.as_ref()))),
            Ok(()) => state.note_length(number, self.clock.now()),
        }
        state.actors[number].status = Status::Gone;
        state.pick(&self.clock);
        if state.end.is_some() {
            self.ended.notify_all();
        }
    }
}

impl State {
    fn living(&self) -> impl Iterator<Item = &Actor> {
        self.actors.iter().filter(|actor| actor.is_alive())
    }

    fn tell(&mut self, clock: &Clock, number: usize, what: fmt::Arguments<'_>) {
        self.trace.add(clock.now(), &self.actors[number].name, what);
    }

    fn end(&mut self, end: End) {
        self.end.get_or_insert(end);
    }

    fn note_length(&mut self, number: usize, now: u64) {
        let length = now - self.actors[number].began;
        self.counts.longest = self.counts.longest.max(length);
    }

    /// Hands the baton to the next actor, or to nobody if the node ended.
    fn pick(&mut self, clock: &Clock) {
        self.running = None;
        self.misfortune(clock);
        while self.end.is_none() {
            let ready = self.ready(clock.now());
            if !ready.is_empty() {
                let number = *self.random.pick(&ready);
                self.running = Some(number);
                self.actors[number].baton.notify_all();
                return;
            }
            let moments = self.actors.iter().filter_map(|actor| match actor.status {
                Status::Waits(moment) => Some(moment),
                _ => None,
            });
            match moments.min() {
                Some(moment) => clock.advance_to(moment),
                None => self.end(End::Broken("everybody waits for everybody".into())),
            }
            self.check_progress(clock.now());
        }
    }

    fn ready(&self, now: u64) -> Vec<usize> {
        let is_ready = |number: &usize| match self.actors[*number].status {
            Status::Waits(moment) => moment <= now,
            Status::WaitsForLock => !matches!(self.lock, Lock::Held(_)),
            Status::Gone => false,
        };
        (0..self.actors.len()).filter(is_ready).collect()
    }

    /// Injects faults at a switch: a power failure, a kill.
    fn misfortune(&mut self, clock: &Clock) {
        self.counts.switches += 1;
        if self.counts.switches > SWITCHES_MAX {
            self.end(End::Broken("the run does not come to an end".into()));
        }
        if self.random.one_in(POWER_ODDS) {
            self.end(End::PowerFailed);
        }
        let mut mortal: Vec<usize> =
            (0..self.actors.len()).filter(|&number| self.actors[number].is_mortal()).collect();
        let mut odds = KILL_ODDS;
        if let Lock::Held(owner) = self.lock {
            odds = KILL_ODDS_IN_LOCK;
            mortal.retain(|&number| number == owner);
        }
        if !mortal.is_empty() && self.random.one_in(odds) {
            let victim = *self.random.pick(&mortal);
            self.kill(clock, self.actors[victim].identity);
        }
    }

    /// Kills all threads of a process. The next owner of its lock learns that the owner died, as
    /// from the kernel.
    fn kill(&mut self, clock: &Clock, identity: ProcessIdentity) {
        self.counts.kills += 1;
        for number in 0..self.actors.len() {
            let actor = &mut self.actors[number];
            if actor.identity != identity || !actor.is_alive() {
                continue;
            }
            actor.status = Status::Gone;
            let holds = matches!(self.lock, Lock::Held(owner) if owner == number);
            if holds {
                self.lock = Lock::OwnerDied;
                self.counts.kills_in_lock += 1;
            }
            let place = if holds { " in the lock" } else { "" };
            self.tell(clock, number, format_args!("dies{place}"));
        }
    }

    fn check_progress(&mut self, now: u64) {
        let late = |actor: &&Actor| now > actor.began + OPERATION_MAX;
        let late = self.living().find(late).map(|actor| actor.name.clone());
        if let Some(name) = late {
            self.end(End::Broken(format!("{name} gets nowhere")));
        }
    }
}

/// Returns the message of a panic.
fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").into()
}
