//! A controller on another machine: from the first connection to its identity, its namespaces and
//! its I/O queues (Base 3.5).
//!
//! Must stay true: a controller that was connected is enabled, and its pages were understood; where
//! there is a secret, each of its queues knows it. The keep-alive timer is the caller's to serve:
//! `keep_alive` more often than that. While a queue is waited for, it is served.
//! Does not read or write namespaces; `queue` does. Does not reconnect; `remote` does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::admin::Admin;
use super::auth;
use super::claim::Claim;
use super::error::{Error, Result};
use super::queue::{Alive, Queue, Traits, check_status};
use super::secret::{KeptSecrets, Secrets};
use super::transport::{Data, Limit, Transport};
use super::wire::fabrics::{
    self, ANY_CONTROLLER, Capabilities, ConnectData, DISCOVERY_ENTRIES_MAX, DISCOVERY_ENTRY_BYTES,
    DiscoveryEntry, DiscoveryHead,
};
use super::wire::identify::{self, EVENT_ACCESS_CHANGED, EVENT_NAMESPACE_CHANGED};
use super::wire::pdu::ADMIN_CAPSULE_DATA_BYTES;
use super::wire::{Command, Nqn};

/// Feature: Number of Queues.
const FEATURE_QUEUES: u8 = 0x07;
/// Log pages: changed namespaces, discovery.
const LOG_CHANGED_NAMESPACES: u8 = 0x04;
const LOG_DISCOVERY: u8 = 0x70;
/// Length of the list of changed namespaces.
const CHANGED_BYTES: usize = 4096;
/// An event that is a notice, and what it says if namespaces have changed.
const NOTICE: u8 = 2;
const NAMESPACES_CHANGED: u8 = 0;
/// How many events are looked at in one call, of however many a controller tells.
const EVENTS_AT_ONCE: u32 = 8;
/// Commands of an admin queue under way: the event request and one more.
const ADMIN_DEPTH: usize = 4;
/// Entries of an admin queue.
const ADMIN_ENTRIES: u32 = 32;
/// Most data of a command for a controller without a limit of its own.
const TRANSFER_BYTES_MAX: u64 = 1 << 20;
/// How often a discovery log that changes while it is read is read again.
const DISCOVERY_TRIES: u32 = 5;

/// How queues of a controller are connected: over TCP, or something else.
pub trait Fabric {
    /// A queue's connection.
    type Transport: Transport;

    /// Connects what is to be the queue of that number, 0 for the admin queue. Errors: it is not so
    /// far at `deadline`.
    fn connect(
        &self,
        queue: u16,
        depth: usize,
        capsule_data_bytes: usize,
        deadline: Instant,
    ) -> Result<Self::Transport>;
}

/// Who we are to controllers, and what we want of them.
#[derive(Clone, Debug)]
pub struct Settings {
    /// HOSTID.
    pub host_id: [u8; 16],
    /// HOSTNQN.
    pub host: Nqn,
    /// After how long without a sign of life the controller forgets us; zero: never.
    pub keep_alive: Duration,
    /// How long a command, or connecting, may take.
    pub timeout: Duration,
    /// Most commands of an I/O queue under way.
    pub depth: usize,
    /// Reads may be answered by their data alone.
    pub without_flow_control: bool,
    /// How namespaces are wanted.
    pub claim: Claim,
    /// Where it is read who we are and how we prove that; controllers that do not want a proof are
    /// refused then.
    pub secrets: Option<KeptSecrets>,
}

impl Settings {
    /// What suits a tier, for the host with this identifier.
    pub fn new(host_id: [u8; 16]) -> Settings {
        Settings {
            host_id,
            host: Nqn::of_host(&host_id),
            keep_alive: Duration::from_secs(15),
            timeout: Duration::from_secs(10),
            depth: 32,
            without_flow_control: true,
            claim: Claim::None,
            secrets: None,
        }
    }

    fn secrets(&self) -> Result<Option<&Secrets>> {
        self.secrets.as_ref().map(KeptSecrets::get).transpose()
    }
}

/// A connected controller.
#[derive(Debug)]
pub struct Controller<F: Fabric> {
    fabric: F,
    settings: Settings,
    subsystem: Nqn,
    admin: Arc<Mutex<Admin<F::Transport>>>,
    id: u16,
    capabilities: Capabilities,
    identity: identify::Controller,
    queues: u16,
}

impl<F: Fabric> Controller<F> {
    /// Connects to a controller of `subsystem`, enables it and learns what it is.
    pub fn connect(fabric: F, subsystem: &Nqn, settings: &Settings) -> Result<Controller<F>> {
        let deadline = Instant::now() + settings.timeout;
        let mut controller = Controller::connect_by(fabric, subsystem, settings, deadline)?;
        controller.set_deadline(None);
        Ok(controller)
    }

    /// The same. Errors: not all that follows has ended at `deadline`, up to `set_deadline`.
    pub(super) fn connect_by(
        fabric: F,
        subsystem: &Nqn,
        settings: &Settings,
        deadline: Instant,
    ) -> Result<Controller<F>> {
        let secrets = settings.secrets()?;
        let host = secrets.map_or(&settings.host, |secrets| &secrets.name);
        let settings = Settings { host: host.clone(), ..settings.clone() };
        let transport = fabric.connect(0, ADMIN_DEPTH, ADMIN_CAPSULE_DATA_BYTES, deadline)?;
        let keep_alive_ms = settings.keep_alive.as_millis().try_into().unwrap_or(u32::MAX);
        let connect = Command::Connect {
            queue: 0,
            entries: ADMIN_ENTRIES,
            without_flow_control: settings.without_flow_control,
            keep_alive_ms,
        };
        let limit = Limit { each: settings.timeout, all: Some(deadline) };
        let mut admin = Admin::new(transport, limit, settings.keep_alive);
        let data = ConnectData {
            host_id: settings.host_id,
            controller: ANY_CONTROLLER,
            subsystem: subsystem.clone(),
            host: settings.host.clone(),
        };
        let result = admin.execute("connect", &connect, Data::of(&data.encode()))?;
        let id = result as u16;
        auth::settle(result, subsystem, secrets, |name, command, data| {
            admin.execute(name, command, data)
        })?;
        let capabilities = admin.enable()?;
        let page = admin.identify(identify::CNS_CONTROLLER, 0)?;
        let identity = identify::Controller::decode(&page)
            .ok_or(Error::Unsuitable { why: "the controller's description makes no sense" })?;
        let events = identity.events & (EVENT_NAMESPACE_CHANGED | EVENT_ACCESS_CHANGED);
        if events != 0 && !identity.is_discovery {
            admin.ask_for_events(events)?;
        }
        let (subsystem, admin) = (subsystem.clone(), Arc::new(Mutex::new(admin)));
        Ok(Controller { fabric, settings, subsystem, admin, id, capabilities, identity, queues: 0 })
    }

    /// Until when all commands must have ended from now on; None: each has its time.
    pub(super) fn set_deadline(&mut self, all: Option<Instant>) {
        self.admin().set_deadline(all);
    }

    fn admin(&self) -> MutexGuard<'_, Admin<F::Transport>> {
        self.admin.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it says of itself.
    pub fn identity(&self) -> &identify::Controller {
        &self.identity
    }

    /// The numbers of its namespaces.
    pub fn namespaces(&mut self) -> Result<Vec<u32>> {
        let nonsense =
            Error::Unsuitable { why: "the controller's list of namespaces makes no sense" };
        let (mut all, mut last) = (Vec::new(), 0);
        loop {
            let page = self.admin().identify(identify::CNS_ACTIVE_NAMESPACES, last)?;
            let some = identify::decode_list(&page).ok_or(nonsense)?;
            if some.first().is_some_and(|&first| first <= last) {
                return Err(nonsense);
            }
            let is_full = some.len() == identify::PAGE_BYTES / size_of::<u32>();
            last = some.last().copied().unwrap_or(last);
            all.extend(some);
            if !is_full || last >= 0xffff_fffe {
                return Ok(all);
            }
        }
    }

    /// What a namespace is. Errors: it does not exist, or has blocks that are not supported.
    pub fn namespace(&mut self, number: u32) -> Result<identify::Namespace> {
        let page = self.admin().identify(identify::CNS_NAMESPACE, number)?;
        identify::Namespace::decode(&page).ok_or(Error::Unsuitable {
            why: "there is no such namespace, or its blocks have metadata or an unsupported size",
        })
    }

    /// Connects an I/O queue for a namespace.
    pub fn queue(&mut self, number: u32) -> Result<Queue<F::Transport>> {
        let shape = self.namespace(number)?;
        let traits = self.traits(number, shape);
        self.request_queues(self.queues + 1)?;
        let deadline = self.admin().deadline();
        let capsule = self.identity.capsule_data_bytes as usize;
        // One entry of the queue always stays empty.
        let depth = self.settings.depth.min(self.capabilities.entries_max as usize - 1);
        let depth = match self.identity.commands_max {
            0 => depth,
            most => depth.min(usize::from(most)),
        };
        let mut transport = self.fabric.connect(self.queues + 1, depth, capsule, deadline)?;
        let connect = Command::Connect {
            queue: self.queues + 1,
            entries: depth as u32 + 1,
            without_flow_control: self.settings.without_flow_control,
            keep_alive_ms: 0,
        };
        let data = ConnectData {
            host_id: self.settings.host_id,
            controller: self.id,
            subsystem: self.subsystem.clone(),
            host: self.settings.host.clone(),
        };
        let mut execute =
            |name, command: &Command, data| execute(&mut transport, name, command, data, deadline);
        let result = execute("connect", &connect, Data::of(&data.encode()))?;
        if result as u16 != self.id {
            return Err(Error::Malformed { what: "the queue of another controller" });
        }
        auth::settle(result, &self.subsystem, self.settings.secrets()?, execute)?;
        self.queues += 1;
        let limit = Limit { each: self.settings.timeout, all: None };
        let alive = Alive::new(Arc::clone(&self.admin), self.settings.keep_alive);
        Ok(Queue::new(transport, traits, limit, alive))
    }

    fn traits(&self, namespace: u32, shape: identify::Namespace) -> Traits {
        let blocks = u64::from(super::wire::command::BLOCKS_MAX) << shape.block_shift;
        let limit = self.identity.transfer_shift.and_then(|shift| {
            self.capabilities.page_bytes_min.checked_shl(shift.into()).filter(|&bytes| bytes > 0)
        });
        let most = limit.unwrap_or(u64::MAX).min(TRANSFER_BYTES_MAX).min(blocks);
        Traits {
            namespace,
            shape,
            transfer_bytes_max: most.max(shape.block_bytes()) >> shape.block_shift
                << shape.block_shift,
            has_volatile_cache: self.identity.has_volatile_cache,
            can_write_zeroes: self.identity.can_write_zeroes,
            can_deallocate: self.identity.can_deallocate,
            can_reserve: self.identity.can_reserve,
        }
    }

    /// Asks for so many I/O queues. Errors: it has fewer.
    fn request_queues(&mut self, count: u16) -> Result<()> {
        let value = u32::from(count - 1) << 16 | u32::from(count - 1);
        let set = Command::SetFeatures { feature: FEATURE_QUEUES, value };
        let granted = self.admin().execute("set features", &set, Data::None)?;
        let granted = (granted as u16).min((granted >> 16) as u16);
        match granted >= count - 1 {
            true => Ok(()),
            false => Err(Error::Unsuitable { why: "the controller has no more queues" }),
        }
    }

    /// Lets the controller know that we are there, if half of the time is over after which it would
    /// forget us. Whether namespaces have changed since the last call.
    pub fn keep_alive(&mut self) -> Result<bool> {
        let mut admin = self.admin();
        admin.keep_alive()?;
        let mut has_changed = false;
        for _ in 0..EVENTS_AT_ONCE {
            let Some(event) = admin.event()? else { break };
            if event.kind == NOTICE && event.information == NAMESPACES_CHANGED {
                let mut changed = vec![0; CHANGED_BYTES];
                admin.log_page(LOG_CHANGED_NAMESPACES, 0, &mut changed)?;
                has_changed = true;
            }
        }
        Ok(has_changed)
    }

    /// Ends what the controller does for us, in an orderly way.
    pub fn shut_down(&mut self) -> Result<()> {
        self.admin().shut_down()
    }

    /// Reads the discovery log of a discovery controller.
    fn discovery_log(&mut self) -> Result<Vec<DiscoveryEntry>> {
        for _ in 0..DISCOVERY_TRIES {
            let head = self.discovery_head()?;
            let mut entries = Vec::new();
            for index in 1..=head.entries.min(DISCOVERY_ENTRIES_MAX) {
                let mut bytes = [0; DISCOVERY_ENTRY_BYTES];
                let offset = index * DISCOVERY_ENTRY_BYTES as u64;
                self.admin().log_page(LOG_DISCOVERY, offset, &mut bytes)?;
                // One that is not understood does not spoil the others.
                entries.extend(DiscoveryEntry::decode(&bytes));
            }
            if self.discovery_head()? == head {
                return Ok(entries);
            }
        }
        Err(Error::Unsuitable { why: "the discovery log changes all the time" })
    }

    fn discovery_head(&mut self) -> Result<DiscoveryHead> {
        let mut bytes = [0; DISCOVERY_ENTRY_BYTES];
        self.admin().log_page(LOG_DISCOVERY, 0, &mut bytes)?;
        DiscoveryHead::decode(&bytes)
            .ok_or(Error::Unsuitable { why: "the discovery log has an unknown format" })
    }
}

/// Asks the discovery controller at the other end of `fabric` which subsystems there are.
pub fn discover<F: Fabric>(fabric: F, settings: &Settings) -> Result<Vec<DiscoveryEntry>> {
    let name = Nqn::new(fabrics::DISCOVERY_NQN).expect("the name is well-known");
    let settings = Settings { keep_alive: Duration::ZERO, ..settings.clone() };
    let deadline = Instant::now() + settings.timeout;
    let mut controller = Controller::connect_by(fabric, &name, &settings, deadline)?;
    let entries = controller.discovery_log()?;
    // What is to be known is known.
    let _ = controller.shut_down();
    Ok(entries)
}

/// Has a command done on a queue that does nothing else, and must succeed. `name` is for people.
fn execute(
    transport: &mut impl Transport,
    name: &'static str,
    command: &Command,
    data: Data,
    deadline: Instant,
) -> Result<u64> {
    // SAFETY: whoever made `data` lent it until this returns; without an answer the transport is
    // abandoned.
    unsafe { transport.submit(command.encode(), data) }?;
    match transport.poll(deadline)? {
        Some(ended) => check_status(name, &ended).map(|()| ended.result),
        None => {
            transport.abandon();
            Err(Error::TimedOut { awaited: "answer on a new queue" })
        }
    }
}
