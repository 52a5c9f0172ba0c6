//! An admin queue: one command at a time, beside a request that is answered when something happens.
//!
//! Must stay true: the event request is sent again whenever it was answered.

use std::time::{Duration, Instant};

use crate::sys;

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
/// How often a controller that is being enabled is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A connected admin queue.
#[derive(Debug)]
pub struct Admin<T> {
    transport: T,
    limit: Limit,
    /// After how long without a sign of life the controller forgets us; zero: never.
    keep_alive: Duration,
    event_request: Option<CommandId>,
    event: Option<Event>,
    last_contact: Instant,
}

/// What a controller has told without being asked (Base 5.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// Asynchronous Event Type; 2 is a notice.
    pub kind: u8,
    /// Asynchronous Event Information.
    pub information: u8,
    /// The log page that says more, and whose reading lets the next such event come.
    pub log_page: u8,
}

impl<T: Transport> Admin<T> {
    /// The queue over a transport on which nothing was sent yet.
    pub fn new(transport: T, limit: Limit, keep_alive: Duration) -> Admin<T> {
        let last_contact = Instant::now();
        Admin { transport, limit, keep_alive, event_request: None, event: None, last_contact }
    }

    /// Until when all commands must have ended from now on; None: each has its time.
    pub fn set_deadline(&mut self, all: Option<Instant>) {
        self.limit.all = all;
    }

    /// When a command that is sent now must have ended.
    pub fn deadline(&self) -> Instant {
        self.limit.deadline(Instant::now())
    }

    /// Sends a command and waits for its end, which must be a success. `name` is for people.
    pub fn execute(&mut self, name: &'static str, command: &Command, data: Data) -> Result<u64> {
        // SAFETY: whoever made `data` lent it until this returns; all errors end the connection.
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

    /// Reads a page of Identify.
    pub fn identify(&mut self, page: u8, namespace: u32) -> Result<Box<identify::Page>> {
        let mut target = Box::new([0; PAGE_BYTES]);
        let identify = Command::Identify { page, namespace };
        self.execute("identify", &identify, Data::into(&mut target[..]))?;
        Ok(target)
    }

    /// Reads a part of a log page.
    pub fn log_page(&mut self, page: u8, offset: u64, target: &mut [u8]) -> Result<()> {
        let bytes = target.len() as u64;
        let log = Command::GetLogPage { page, bytes, offset, retains_event: false };
        self.execute("get log page", &log, Data::into(target)).map(drop)
    }

    /// Enables the controller; what it can do.
    pub fn enable(&mut self) -> Result<Capabilities> {
        let capabilities = self.property(PROPERTY_CAPABILITIES, true)?;
        let capabilities = Capabilities::decode(capabilities);
        self.configure(CONFIGURATION_ENABLED)?;
        let limit = Duration::from_millis(capabilities.timeout_ms) + self.limit.each;
        self.wait_for_status(fabrics::STATUS_READY, fabrics::STATUS_READY, limit)?;
        Ok(capabilities)
    }

    /// Ends what the controller does for us, in an orderly way.
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
            // A sleep that is cut short is as good.
            let _ = sys::nanosleep(LOOK_EVERY);
        }
    }

    /// Lets the controller know that we are there, if half of the time is over after which it would forget us.
    pub fn keep_alive(&mut self) -> Result<()> {
        let interval = self.keep_alive / 2;
        match !interval.is_zero() && self.last_contact.elapsed() >= interval {
            true => self.execute("keep alive", &Command::KeepAlive, Data::None).map(drop),
            false => Ok(()),
        }
    }

    /// Asks to be told of these events.
    pub fn ask_for_events(&mut self, events: u32) -> Result<()> {
        let configure = Command::SetFeatures { feature: FEATURE_EVENTS, value: events };
        self.execute("set features", &configure, Data::None)?;
        self.request_event()
    }

    /// An event that has come since the last time.
    pub fn event(&mut self) -> Result<Option<Event>> {
        if self.event.is_none() {
            if let Some(ended) = self.transport.poll(Instant::now())? {
                self.take_event(&ended)?;
            }
        }
        Ok(self.event.take())
    }

    fn take_event(&mut self, ended: &Completion) -> Result<()> {
        if self.event_request != Some(CommandId(ended.command_id)) {
            return Err(Error::Malformed { what: "an answer that nobody waits for" });
        }
        self.event_request = None;
        check_status("asynchronous event request", ended)?;
        let [kind, information, log_page, ..] = ended.result.to_le_bytes();
        self.event = Some(Event { kind: kind & 7, information, log_page });
        self.request_event()
    }

    fn request_event(&mut self) -> Result<()> {
        let request = Command::AsyncEventRequest.encode();
        // SAFETY: it has no data.
        let id = unsafe { self.transport.submit(request, Data::None) }?;
        self.event_request = Some(id);
        Ok(())
    }
}
