//! An admin queue: one command at a time, beside an Asynchronous Event Request that the controller
//! completes when an event occurs.
//!
//! Must stay true: the event request is sent again each time it was answered. An event is kept
//! until somebody asks for it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use cairn_platform::sys;

use super::error::{Error, Result};
use super::queue::check_status;
use super::transport::{CommandId, Data, Limit, Transport};
use super::wire::fabrics::{
    self, CONFIGURATION_ENABLED, CONFIGURATION_SHUTDOWN, Capabilities, PROPERTY_CAPABILITIES,
    PROPERTY_CONFIGURATION, PROPERTY_STATUS,
};
use super::wire::identify::{self, PAGE_BYTES};
use super::wire::{Command, Completion};

/// Feature: Asynchronous Event Configuration.
const FEATURE_EVENTS: u8 = 0x0b;
/// Most distinct events kept until somebody asks for them. Controllers have fewer.
const EVENTS_MAX: usize = 32;
/// Time between two checks of a controller that is being enabled or shut down.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A connected admin queue.
#[derive(Debug)]
pub struct Admin<T> {
    transport: T,
    limit: Limit,
    /// Keep Alive timeout: silence after which the controller drops this host; zero: never.
    keep_alive: Duration,
    event_request: Option<CommandId>,
    events: VecDeque<Event>,
    last_contact: Instant,
}

/// Event that a controller has reported (Base 5.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// Asynchronous Event Type; 2 is a notice.
    pub kind: u8,
    /// Asynchronous Event Information.
    pub information: u8,
    /// Log page with details. Reading it permits the next event of this kind.
    pub log_page: u8,
}

impl<T: Transport> Admin<T> {
    /// Admin queue over a transport on which nothing was sent yet.
    pub fn new(transport: T, limit: Limit, keep_alive: Duration) -> Admin<T> {
        let (events, last_contact) = (VecDeque::new(), Instant::now());
        Admin { transport, limit, keep_alive, event_request: None, events, last_contact }
    }

    /// Sets the deadline for all commands from now on; `None`: only the limit of each command
    /// applies.
    pub fn set_deadline(&mut self, all: Option<Instant>) {
        self.limit.all = all;
    }

    /// Deadline of a command that is sent now.
    pub fn deadline(&self) -> Instant {
        self.limit.deadline(Instant::now())
    }

    /// Executes a command. Returns its result. `name` names it in errors. Errors: also if the
    /// command fails.
    pub fn execute(&mut self, name: &'static str, command: &Command, data: Data) -> Result<u64> {
        // SAFETY: the caller lends the data until this function returns; every error ends the
        // connection.
        let id = unsafe { self.transport.submit(command.encode(), data) }?;
        self.last_contact = Instant::now();
        let deadline = self.limit.deadline(self.last_contact);
        loop {
            match self.transport.poll(deadline)? {
                Some(ended) if ended.command_id == id.0 => {
                    check_status(name, &ended)?;
                    return Ok(ended.result);
                }
                Some(ended) => self.take_event(&ended)?,
                None => {
                    self.transport.abandon();
                    return Err(Error::TimedOut { awaited: "answer to an admin command" });
                }
            }
        }
    }

    /// Reads an Identify page.
    pub fn identify(&mut self, page: u8, namespace: u32) -> Result<Box<identify::Page>> {
        let mut target = Box::new([0; PAGE_BYTES]);
        let identify = Command::Identify { page, namespace };
        self.execute("identify", &identify, Data::into(&mut target[..]))?;
        Ok(target)
    }

    /// Reads part of a log page.
    pub fn log_page(&mut self, page: u8, offset: u64, target: &mut [u8]) -> Result<()> {
        let bytes = target.len() as u64;
        let log = Command::GetLogPage { page, bytes, offset, retains_event: false };
        self.execute("get log page", &log, Data::into(target)).map(drop)
    }

    /// Enables the controller. Returns its capabilities.
    pub fn enable(&mut self) -> Result<Capabilities> {
        let capabilities = self.property(PROPERTY_CAPABILITIES, true)?;
        let capabilities = Capabilities::decode(capabilities);
        self.configure(CONFIGURATION_ENABLED)?;
        let limit = Duration::from_millis(capabilities.timeout_ms) + self.limit.each;
        self.wait_for_status(fabrics::STATUS_READY, fabrics::STATUS_READY, limit)?;
        Ok(capabilities)
    }

    /// Shuts the controller down.
    pub fn shut_down(&mut self) -> Result<()> {
        self.configure(CONFIGURATION_ENABLED | CONFIGURATION_SHUTDOWN)?;
        let mask = fabrics::STATUS_SHUTDOWN_MASK;
        self.wait_for_status(mask, fabrics::STATUS_SHUT_DOWN, self.limit.each)
    }

    fn property(&mut self, property: u32, is_wide: bool) -> Result<u64> {
        let get = Command::PropertyGet { property, is_wide };
        self.execute("property get", &get, Data::None)
    }

    fn configure(&mut self, value: u32) -> Result<()> {
        let set = Command::PropertySet { property: PROPERTY_CONFIGURATION, value };
        self.execute("property set", &set, Data::None).map(drop)
    }

    fn wait_for_status(&mut self, mask: u32, wanted: u32, limit: Duration) -> Result<()> {
        let deadline = Limit { each: limit, ..self.limit }.deadline(Instant::now());
        loop {
            let status = self.property(PROPERTY_STATUS, false)? as u32;
            if status & fabrics::STATUS_FATAL != 0 {
                return Err(Error::Unsuitable { why: "the controller has failed" });
            }
            if status & mask == wanted {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(Error::TimedOut { awaited: "change of the controller's state" });
            }
            // A sleep that is cut short is fine.
            let _ = sys::nanosleep(LOOK_EVERY);
        }
    }

    /// Sends Keep Alive if half of the timeout has passed since the last command.
    pub fn keep_alive(&mut self) -> Result<()> {
        let interval = self.keep_alive / 2;
        match !interval.is_zero() && self.last_contact.elapsed() >= interval {
            true => self.execute("keep alive", &Command::KeepAlive, Data::None).map(drop),
            false => Ok(()),
        }
    }

    /// Asks the controller to report the events of mask `events`.
    pub fn ask_for_events(&mut self, events: u32) -> Result<()> {
        let configure = Command::SetFeatures { feature: FEATURE_EVENTS, value: events };
        self.execute("set features", &configure, Data::None)?;
        self.request_event()
    }

    /// Returns the next event that was not returned before, if there is one.
    pub fn event(&mut self) -> Result<Option<Event>> {
        if self.events.is_empty() {
            if let Some(ended) = self.transport.poll(Instant::now())? {
                self.take_event(&ended)?;
            }
        }
        Ok(self.events.pop_front())
    }

    fn take_event(&mut self, ended: &Completion) -> Result<()> {
        if self.event_request != Some(CommandId(ended.command_id)) {
            return Err(Error::Malformed { what: "an answer that nobody waits for" });
        }
        self.event_request = None;
        check_status("asynchronous event request", ended)?;
        let [kind, information, log_page, ..] = ended.result.to_le_bytes();
        let event = Event { kind: kind & 7, information, log_page };
        if !self.events.contains(&event) {
            if self.events.len() == EVENTS_MAX {
                return Err(Error::Malformed { what: "more events than there are" });
            }
            self.events.push_back(event);
        }
        self.request_event()
    }

    fn request_event(&mut self) -> Result<()> {
        let request = Command::AsyncEventRequest.encode();
        // SAFETY: the command has no data.
        let id = unsafe { self.transport.submit(request, Data::None) }?;
        self.event_request = Some(id);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Entry;

    /// Transport that returns prepared answers in order, whatever it is asked.
    #[derive(Default)]
    struct Script {
        submitted: u16,
        ended: VecDeque<Completion>,
    }

    impl Transport for Script {
        fn depth(&self) -> usize {
            4
        }

        fn under_way(&self) -> usize {
            0
        }

        unsafe fn submit(&mut self, _: Entry, _: Data) -> Result<CommandId> {
            self.submitted += 1;
            Ok(CommandId(self.submitted))
        }

        fn poll(&mut self, _: Instant) -> Result<Option<Completion>> {
            Ok(self.ended.pop_front())
        }

        fn abandon(&mut self) {}
    }

    fn ended(command_id: u16, result: u64) -> Completion {
        Completion { command_id, result, ..Completion::default() }
    }

    /// Mechanism: there was room for one unread event.
    ///
    /// Consequence: a second event that arrived before anybody asked replaced the first. The
    /// controller does not report an event again before its log page was read, so a namespace that
    /// had shrunk stayed in use.
    ///
    /// Fix: every event is kept.
    #[test]
    fn events_that_come_before_anybody_asks_are_all_told_once() {
        let limit = Limit { each: Duration::from_secs(1), all: None };
        let mut admin = Admin::new(Script::default(), limit, Duration::ZERO);
        admin.transport.ended.push_back(ended(1, 0));
        admin.ask_for_events(1 << 8 | 1 << 11).unwrap();
        let [namespaces, access] = [0x04_0002, 0x0c_0302];
        // Two events, and the first one again, arrive before a command ends.
        let answers = [(2, namespaces), (4, access), (5, namespaces), (3, 0)];
        admin.transport.ended.extend(answers.map(|(id, result)| ended(id, result)));
        admin.execute("keep alive", &Command::KeepAlive, Data::None).unwrap();
        let told: Vec<_> = (0..3).map(|_| admin.event().unwrap()).collect();
        let event = |information, log_page| Some(Event { kind: 2, information, log_page });
        assert_eq!(told, [event(0, 4), event(3, 0x0c), None]);
        let endless = (0..).map(|number| ended(6 + number, u64::from(number) << 8 | 2));
        admin.transport.ended.extend(endless.take(2 * EVENTS_MAX));
        let refused = (0..2 * EVENTS_MAX).find_map(|_| {
            admin
                .transport
                .poll(Instant::now())
                .unwrap()
                .and_then(|one| admin.take_event(&one).err())
        });
        assert!(matches!(refused, Some(Error::Malformed { .. })), "{refused:?}");
    }
}
