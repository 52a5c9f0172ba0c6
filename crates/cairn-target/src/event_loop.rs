//! A thread that serves many connections. It serves each when bytes have arrived, when bytes can be
//! sent, or when a worker has finished.
//!
//! Must stay true: the thread waits in one place only, and there no longer than until the next host
//! exceeds its time. Whatever a host does ends at most its own connection.

use cairn_platform::adaptive_spin::AdaptiveSpin;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::collections::{HashSet, VecDeque};
use std::io::{ErrorKind, Result};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::Resources;
use crate::connection::{Connection, End};
use crate::directory::Directory;
use crate::mailbox::Outcome;
use crate::mailbox::{Letter, LoopContext, Mailbox};
use crate::socket::Socket;

/// Timeout that returns only events that are there already.
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// Most events handled per round.
const EVENTS_MAX: usize = 128;
/// Pause after a connection could not be accepted, until the cause may have passed.
const PAUSE: Duration = Duration::from_millis(100);
/// Hosts have this fraction of their time for sending or taking data while others wait for memory.
const HASTE: u32 = 6;
/// Time for which a guest may stay, whoever comes.
const GUEST_TIME: Duration = Duration::from_secs(1);
/// Token of the mailbox.
const MAILBOX: u64 = u64::MAX;
/// Token of the first listener; the next ones count down from it.
const LISTENER: u64 = u64::MAX - 1;
const FIRST_LISTENER: u64 = LISTENER - (1 << 16);

/// Listening ports, and the loops that share the accepted hosts.
pub(super) struct Entrance {
    pub(super) listeners: Vec<TcpListener>,
    pub(super) loops: Vec<Arc<Mailbox>>,
    pub(super) connections_max: usize,
}

impl Entrance {
    fn watch(&self, epoll: &OwnedFd) -> Result<()> {
        (0..).zip(&self.listeners).try_for_each(|(number, listener)| {
            let data = EventData::new_u64(LISTENER - number);
            Ok(epoll::add(epoll, listener, data, EventFlags::IN)?)
        })
    }

    fn ignore(&self, epoll: &OwnedFd) {
        for listener in &self.listeners {
            // The listener may be ignored already.
            let _ = epoll::delete(epoll, listener);
        }
    }
}

/// A connection, and the events that the kernel watches it for.
struct Slot {
    /// `None` while the connection is served.
    connection: Option<Connection>,
    token: u64,
    interest: EventFlags,
    is_queued: bool,
}

/// An event loop.
pub(super) struct EventLoop {
    epoll: OwnedFd,
    entrance: Option<Entrance>,
    /// Time at which hosts are accepted again; `None`: they are accepted.
    closed_until: Option<Instant>,
    directory: Arc<Directory>,
    hands: LoopContext,
    patience: Duration,
    /// Most guests, apart from those that have just come.
    guests_max: usize,
    slots: Vec<Option<Slot>>,
    vacant: Vec<usize>,
    /// Part of a token that tells a connection from its predecessor in the same slot.
    generation: u32,
    /// Tokens of the connections that wait for memory.
    hungry: VecDeque<u64>,
    /// Time of the next check for hosts that exceed their time.
    next_check: Option<Instant>,
    is_draining: bool,
    looks: AdaptiveSpin,
}

impl EventLoop {
    /// Creates a loop. The one with an `entrance` accepts hosts.
    pub(super) fn new(
        directory: Arc<Directory>,
        hands: LoopContext,
        resources: &Resources,
        entrance: Option<Entrance>,
    ) -> Result<EventLoop> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = hands.mailbox.bell.as_fd();
        epoll::add(&epoll, bell, EventData::new_u64(MAILBOX), EventFlags::IN)?;
        if let Some(entrance) = &entrance {
            entrance.listeners.iter().try_for_each(|listener| listener.set_nonblocking(true))?;
            entrance.watch(&epoll)?;
        }
        Ok(EventLoop {
            epoll,
            entrance,
            closed_until: None,
            directory,
            hands,
            patience: resources.patience,
            guests_max: (resources.connections_max / 2 / resources.threads.max(1)).max(1),
            slots: Vec::new(),
            vacant: Vec::new(),
            generation: 0,
            hungry: VecDeque::new(),
            next_check: None,
            is_draining: false,
            looks: AdaptiveSpin::default(),
        })
    }

    /// Serves hosts until it is told to stop and has no connections left.
    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        while !self.is_draining || self.slots.iter().any(Option::is_some) {
            self.wait(&mut events);
            for event in &events {
                match event.data.u64() {
                    MAILBOX => self.read_letters(),
                    place @ FIRST_LISTENER..=LISTENER => self.let_in((LISTENER - place) as usize),
                    token => self.serve(token, event.flags),
                }
            }
            self.look_around();
            self.serve_memory_waiters();
        }
        self.hands.mailbox.close();
    }

    /// Waits for events. Polls for a while first.
    fn wait(&mut self, events: &mut Vec<epoll::Event>) {
        self.hands.now = Instant::now();
        let mut wait = self.looks.begin(self.hands.now);
        let mut is_over = false;
        while !is_over {
            let is_last = !self.looks.go_on(&mut wait, self.hands.now);
            let timeout = if is_last { self.timeout() } else { Some(AT_ONCE) };
            events.clear();
            let room = rustix::buffer::spare_capacity(events);
            // An interrupted wait returns no events.
            let _ = epoll::wait(&self.epoll, room, timeout.as_ref());
            self.hands.now = Instant::now();
            is_over = is_last || !events.is_empty();
        }
        self.looks.came(&wait, self.hands.now);
    }

    /// Time until something must be done without an event; `None`: no such time.
    fn timeout(&self) -> Option<Timespec> {
        let until = [self.next_check, self.closed_until].into_iter().flatten().min()?;
        let left = until.saturating_duration_since(self.hands.now);
        // Rounding up avoids waking again and again a moment too early.
        Timespec::try_from(left + Duration::from_millis(1)).ok()
    }

    fn read_letters(&mut self) {
        for letter in self.hands.mailbox.take() {
            match letter {
                Letter::Connection(stream) => self.admit(stream),
                Letter::Done(token, outcome) => self.finish(token, outcome),
                Letter::Change(change) => self.each(|connection| connection.notice(&change)),
                Letter::Drain => self.drain(),
            }
        }
    }

    /// Stops accepting hosts, and ends each connection as soon as its commands have ended.
    fn drain(&mut self) {
        self.is_draining = true;
        if let Some(entrance) = self.entrance.take() {
            entrance.ignore(&self.epoll);
        }
        self.closed_until = None;
        self.each(Connection::drain);
    }

    /// Runs `act` on every connection.
    fn each(&mut self, act: impl Fn(&mut Connection)) {
        let tokens: Vec<u64> = self.slots.iter().flatten().map(|slot| slot.token).collect();
        for token in tokens {
            self.with(token, |connection, _| {
                act(connection);
                Ok(())
            });
        }
    }

    /// Accepts hosts, and gives each to the loop that has the fewest.
    fn let_in(&mut self, index: usize) {
        let Some(entrance) = &self.entrance else { return };
        let Some(listener) = entrance.listeners.get(index) else { return };
        let mut streams = Vec::new();
        let is_blocked = loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    let all: usize = entrance.loops.iter().map(|one| one.connections()).sum();
                    let quietest = entrance.loops.iter().min_by_key(|one| one.connections());
                    let Some(mailbox) = quietest.filter(|_| all < entrance.connections_max) else {
                        self.directory.totals().refused.add(1);
                        continue;
                    };
                    mailbox.connections.fetch_add(1, Ordering::Relaxed);
                    match Arc::ptr_eq(mailbox, &self.hands.mailbox) {
                        true => streams.push(stream),
                        false => mailbox.post(Letter::Connection(stream)),
                    }
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => break false,
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {}
                    // Out of descriptors, or the like. Connections that end elsewhere make room.
                    _ => break true,
                },
            }
        };
        if is_blocked {
            entrance.ignore(&self.epoll);
            self.closed_until = Some(self.hands.now + PAUSE);
        }
        streams.into_iter().for_each(|stream| self.admit(stream));
    }

    /// Begins to serve a host, which is counted already.
    fn admit(&mut self, stream: TcpStream) {
        self.directory.totals().accepted.add(1);
        if self.is_draining {
            self.directory.totals().ended.add(1);
            return;
        }
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.generation = self.generation.wrapping_add(1);
        let token = u64::from(self.generation) << 32 | index as u64;
        let interest = EventFlags::IN;
        let watched = Socket::new(stream).and_then(|socket| {
            epoll::add(&self.epoll, &socket, EventData::new_u64(token), interest)?;
            Ok(Arc::new(socket))
        });
        let Ok(socket) = watched else {
            self.directory.totals().ended.add(1);
            return self.vacate(index);
        };
        let directory = Arc::clone(&self.directory);
        let connection = Connection::new(socket, directory, token, self.hands.now);
        self.check_by(connection.deadline(self.patience));
        let connection = Some(connection);
        self.slots[index] = Some(Slot { connection, token, interest, is_queued: false });
        self.limit_guests();
    }

    /// Ends the oldest guest if there are too many, so that guests do not keep other hosts out.
    fn limit_guests(&mut self) {
        if self.slots.len() - self.vacant.len() <= self.guests_max {
            return;
        }
        let guest = |slot: &Slot| Some((slot.connection.as_ref()?.guest_since()?, slot.token));
        let guests: Vec<_> = self.slots.iter().flatten().filter_map(guest).collect();
        let oldest = guests.iter().min().filter(|_| guests.len() > self.guests_max);
        let Some(&(since, token)) = oldest else { return };
        if since + GUEST_TIME <= self.hands.now {
            self.with(token, |_, _| Err(End::Gone));
        }
    }

    fn vacate(&mut self, index: usize) {
        self.slots[index] = None;
        self.vacant.push(index);
        self.hands.mailbox.connections.fetch_sub(1, Ordering::Relaxed);
    }

    fn serve(&mut self, token: u64, flags: EventFlags) {
        self.with(token, |connection, hands| {
            if flags.contains(EventFlags::OUT) {
                connection.flush(hands)?;
                connection.resume(hands)?;
            }
            if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                connection.receive(hands)?;
            }
            Ok(())
        });
    }

    /// Delivers the outcome of a worker. The connection may be gone by now.
    fn finish(&mut self, token: u64, outcome: Outcome) {
        let mut outcome = Some(outcome);
        self.with(token, |connection, hands| match outcome.take() {
            Some(outcome) => connection.finish(outcome, hands),
            None => Ok(()),
        });
        if let Some(buffer) = outcome.and_then(Outcome::into_buffer) {
            self.hands.pool.give(buffer);
        }
    }

    /// Serves connections that wait for memory, in turn, until none is left. Skips connections
    /// whose namespace has used up its share.
    fn serve_memory_waiters(&mut self) {
        let (mut unfed, mut sated) = (Vec::new(), HashSet::new());
        for _ in 0..self.hungry.len() {
            let Some(token) = self.hungry.pop_front() else { break };
            let Some(slot) = slot(&mut self.slots, token) else { continue };
            let awaited = slot.connection.as_ref().and_then(Connection::awaits_share_of);
            if awaited.is_some_and(|namespace| sated.contains(&namespace)) {
                unfed.push(token);
                continue;
            }
            slot.is_queued = false;
            let is_fed = self.with(token, |connection, hands| connection.resume(hands));
            if is_fed {
                continue;
            }
            unfed.extend(self.hungry.pop_back());
            let connection = self.slots[token as u32 as usize].as_ref();
            let connection = connection.and_then(|slot| slot.connection.as_ref());
            match connection.and_then(Connection::awaits_share_of) {
                Some(namespace) => drop(sated.insert(namespace)),
                // The next ones cannot get memory, either.
                None => break,
            }
        }
        unfed.into_iter().rev().for_each(|token| self.hungry.push_front(token));
    }

    /// Runs `act` on a connection, sends what it has to send, and ends it if it must end. Returns
    /// whether it needs no memory.
    fn with(
        &mut self,
        token: u64,
        act: impl FnOnce(&mut Connection, &mut LoopContext) -> std::result::Result<(), End>,
    ) -> bool {
        let Some(slot) = slot(&mut self.slots, token) else { return true };
        let Some(mut connection) = slot.connection.take() else { return true };
        let hands = &mut self.hands;
        let served = catch_unwind(AssertUnwindSafe(|| {
            act(&mut connection, hands).and_then(|()| connection.flush(hands))?;
            if connection.is_drained() { Err(End::Gone) } else { Ok(()) }
        }));
        match served.unwrap_or(Err(End::Gone)) {
            Err(end) => {
                connection.end(end, hands);
                self.vacate(token as u32 as usize);
                true
            }
            Ok(()) => self.settle(token, connection),
        }
    }

    /// Puts a connection back, and arranges for what it waits for.
    fn settle(&mut self, token: u64, connection: Connection) -> bool {
        let Some(slot) = slot(&mut self.slots, token) else { return true };
        let (hears, speaks) = connection.interest();
        let mut interest = EventFlags::empty();
        interest.set(EventFlags::IN, hears);
        interest.set(EventFlags::OUT, speaks);
        if interest != slot.interest {
            slot.interest = interest;
            let data = EventData::new_u64(token);
            // If this fails, the deadline ends the connection.
            let _ = epoll::modify(&self.epoll, connection.socket(), data, interest);
        }
        let is_hungry = connection.is_hungry();
        let deadline = connection.deadline(self.patience);
        slot.connection = Some(connection);
        if is_hungry && !std::mem::replace(&mut slot.is_queued, true) {
            self.hungry.push_back(token);
            let hurried = self.hands.now + self.patience / HASTE;
            self.check_by(Some(hurried));
        }
        self.check_by(deadline);
        !is_hungry
    }

    fn check_by(&mut self, deadline: Option<Instant>) {
        self.next_check = [self.next_check, deadline].into_iter().flatten().min();
    }

    /// Ends connections that have exceeded their time. Accepts hosts again after a pause.
    fn look_around(&mut self) {
        let now = self.hands.now;
        if self.closed_until.is_some_and(|until| until <= now) {
            self.closed_until = None;
            if let Some(entrance) = &self.entrance {
                entrance.ignore(&self.epoll);
                self.closed_until = entrance.watch(&self.epoll).err().map(|_| now + PAUSE);
            }
        }
        if self.next_check.is_none_or(|check| check > now) {
            return;
        }
        self.next_check = None;
        let patience = match self.hungry.is_empty() {
            true => self.patience,
            false => self.patience / HASTE,
        };
        let deadline =
            |slot: &Slot| Some((slot.token, slot.connection.as_ref()?.deadline(patience)?));
        let deadlines: Vec<_> = self.slots.iter().flatten().filter_map(deadline).collect();
        for (token, deadline) in deadlines {
            match deadline <= now {
                true => drop(self.with(token, |_, _| Err(End::Gone))),
                false => self.check_by(Some(deadline)),
            }
        }
    }
}

fn slot(slots: &mut [Option<Slot>], token: u64) -> Option<&mut Slot> {
    slots.get_mut(token as u32 as usize)?.as_mut().filter(|slot| slot.token == token)
}
