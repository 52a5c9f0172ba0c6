//! A controller on another machine: from the first connection to its identity, its namespaces and
//! its I/O queues (Base 3.5).
//!
//! Must stay true: a connected controller is enabled, and its pages were understood. If there are
//! secrets, every queue was authenticated with them. The caller serves the Keep Alive timer: it
//! calls `keep_alive` more often than the timeout. A queue that waits for a command serves the
//! timer meanwhile.
//!
//! Does not read or write namespaces; `queue` does. Does not reconnect; `remote` does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::admin::Admin;
use super::auth;
use super::claim::Claim;
use super::error::{Error, Result};
use super::queue::{Alive, Queue, Traits, check_status};
use super::secret::{CachedSecrets, Secrets};
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
/// Length of the list of changed namespaces, bytes.
const CHANGED_BYTES: usize = 4096;
/// Type of an event that is a notice, and its information when namespaces have changed.
const NOTICE: u8 = 2;
const NAMESPACES_CHANGED: u8 = 0;
/// Most events handled in one call, however many a controller reports.
const EVENTS_AT_ONCE: u32 = 8;
/// Most commands of an admin queue under way: the event request, one more, and spares.
const ADMIN_DEPTH: usize = 4;
/// Entries of an admin queue.
const ADMIN_ENTRIES: u32 = 32;
/// Most data of a command if the controller sets no limit, bytes.
const TRANSFER_BYTES_MAX: u64 = 1 << 20;
/// Number of attempts to read a discovery log that changes meanwhile.
const DISCOVERY_TRIES: u32 = 5;

/// Connects queues of a controller, over TCP or another transport.
pub trait Fabric {
    /// Connection of a queue.
    type Transport: Transport;

    /// Connects the transport for queue number `queue`; 0 is the admin queue. Errors: also if it is
    /// not connected by `deadline`.
    fn connect(
        &self,
        queue: u16,
        depth: usize,
        capsule_data_bytes: usize,
        deadline: Instant,
    ) -> Result<Self::Transport>;
}

/// This host's identity and what it asks of controllers.
#[derive(Clone, Debug)]
pub struct Settings {
    /// HOSTID.
    pub host_id: [u8; 16],
    /// HOSTNQN.
    pub host: Nqn,
    /// Keep Alive timeout: silence after which the controller drops this host; zero: never.
    pub keep_alive: Duration,
    /// Time limit of a command, and of connecting.
    pub timeout: Duration,
    /// Most commands of an I/O queue under way.
    pub depth: usize,
    /// Whether submission queue flow control is off. A read may then be answered by its data alone.
    pub without_flow_control: bool,
    /// How namespaces are claimed.
    pub claim: Claim,
    /// Source of this host's name and secrets. With secrets, controllers that do not demand
    /// authentication are refused.
    pub secrets: Option<CachedSecrets>,
}

impl Settings {
    /// Defaults for a tier, for the host `host_id`.
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
        self.secrets.as_ref().map(CachedSecrets::get).transpose()
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
    /// Connects to a controller of `subsystem`, enables it and identifies it.
    pub fn connect(fabric: F, subsystem: &Nqn, settings: &Settings) -> Result<Controller<F>> {
        let deadline = Instant::now() + settings.timeout;
        let mut controller = Controller::connect_by(fabric, subsystem, settings, deadline)?;
        controller.set_deadline(None);
        Ok(controller)
    }

    /// As `connect`. Every command until `set_deadline` must have ended by `deadline`. Errors: also
    /// if one has not.
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

    /// Sets the deadline for all commands from now on; `None`: only the limit of each command
    /// applies.
    pub(super) fn set_deadline(&mut self, all: Option<Instant>) {
        self.admin().set_deadline(all);
    }

    fn admin(&self) -> MutexGuard<'_, Admin<F::Transport>> {
        self.admin.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Identify data of the controller.
    pub fn identity(&self) -> &identify::Controller {
        &self.identity
    }

    /// Reads the numbers of its active namespaces.
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

    /// Identifies a namespace. Errors: it does not exist, or its blocks are not supported.
    pub fn namespace(&mut self, number: u32) -> Result<identify::Namespace> {
        let page = self.admin().identify(identify::CNS_NAMESPACE, number)?;
        identify::Namespace::decode(&page).ok_or(Error::Unsuitable {
            why: "there is no such namespace, or its blocks have metadata or an unsupported size",
        })
    }

    /// Connects an I/O queue for namespace `number`.
    pub fn queue(&mut self, number: u32) -> Result<Queue<F::Transport>> {
        let shape = self.namespace(number)?;
        let traits = self.traits(number, shape);
        self.request_queues(self.queues + 1)?;
        let deadline = self.admin().deadline();
        let capsule = self.identity.capsule_data_bytes as usize;
        // One entry of a queue always stays empty.
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

    /// Requests `count` I/O queues. Errors: the controller has fewer.
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

    /// Sends Keep Alive if half of the timeout has passed since the last command. Returns whether
    /// namespaces have changed since the last call.
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

    /// Shuts the controller down.
    pub fn shut_down(&mut self) -> Result<()> {
        self.admin().shut_down()
    }

    /// Reads the log of a discovery controller.
    fn discovery_log(&mut self) -> Result<Vec<DiscoveryEntry>> {
        for _ in 0..DISCOVERY_TRIES {
            let head = self.discovery_head()?;
            let mut entries = Vec::new();
            for index in 1..=head.entries.min(DISCOVERY_ENTRIES_MAX) {
                let mut bytes = [0; DISCOVERY_ENTRY_BYTES];
                let offset = index * DISCOVERY_ENTRY_BYTES as u64;
                self.admin().log_page(LOG_DISCOVERY, offset, &mut bytes)?;
                // An entry that is not understood does not spoil the others.
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

/// Returns the subsystems that the discovery controller at the other end of `fabric` lists.
pub fn discover<F: Fabric>(fabric: F, settings: &Settings) -> Result<Vec<DiscoveryEntry>> {
    let name = Nqn::new(fabrics::DISCOVERY_NQN).expect("the name is well-known");
    let settings = Settings { keep_alive: Duration::ZERO, ..settings.clone() };
    let deadline = Instant::now() + settings.timeout;
    let mut controller = Controller::connect_by(fabric, &name, &settings, deadline)?;
    let entries = controller.discovery_log()?;
    // The entries are here; a failed shutdown does no harm.
    let _ = controller.shut_down();
    Ok(entries)
}

/// Executes a command on a queue without other commands. `name` names it in errors. Errors: also if
/// the command fails.
fn execute(
    transport: &mut impl Transport,
    name: &'static str,
    command: &Command,
    data: Data,
    deadline: Instant,
) -> Result<u64> {
    // SAFETY: the caller lends the data until this function returns; without an answer the
    // transport is abandoned.
    unsafe { transport.submit(command.encode(), data) }?;
    match transport.poll(deadline)? {
        Some(ended) => check_status(name, &ended).map(|()| ended.result),
        None => {
            transport.abandon();
            Err(Error::TimedOut { awaited: "answer on a new queue" })
        }
    }
}
