//! Commands of admin queues: properties, Identify, features, log pages.
//!
//! Does not send events; decides which event is sent next.

use cairn_nvme::wire::fabrics::{
    Capabilities, DiscoveryEntry, DiscoveryHead, FAMILY_IPV4, FAMILY_IPV6, PROPERTY_CAPABILITIES,
    PROPERTY_CONFIGURATION, PROPERTY_STATUS, PROPERTY_VERSION, SUBSYSTEM_NVM, TRANSPORT_TCP,
};
use cairn_nvme::wire::identify::{
    self, CNS_ACTIVE_NAMESPACES, CNS_CONTROLLER, CNS_DESCRIPTORS, CNS_NAMESPACE,
    EVENT_DISCOVERY_CHANGED, EVENT_NAMESPACE_CHANGED, PAGE_BYTES, VERSION,
};
use cairn_nvme::wire::{Command, Nqn, Status};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::directory::Directory;
use crate::notices::{Change, LOG_CHANGED_NAMESPACES, LOG_DISCOVERY, Notices};
use crate::subsystem::{Controller, Subsystem};

/// Most pending event requests, as the controller's page says.
const EVENT_REQUESTS_MAX: usize = 4;
/// Namespace number that stands for all namespaces.
const ALL_NAMESPACES: u32 = 0xffff_ffff;
/// Longest time that enabling takes, milliseconds.
const ENABLE_MS: u64 = 500;
/// Granularity of the Keep Alive timer, milliseconds.
const KEEP_ALIVE_MS: u32 = 1000;

// Features.
const FEATURE_QUEUES: u8 = 0x07;
const FEATURE_EVENTS: u8 = 0x0b;
const FEATURE_KEEP_ALIVE: u8 = 0x0f;

/// An admin queue.
pub(crate) struct Admin {
    /// On a discovery controller: the subsystems to report.
    directory: Option<Arc<Directory>>,
    subsystem: Arc<Subsystem>,
    controller: Arc<Controller>,
    event_requests: VecDeque<u16>,
    notices: Notices,
}

impl Admin {
    pub(crate) fn new(
        directory: &Arc<Directory>,
        subsystem: Arc<Subsystem>,
        controller: Arc<Controller>,
    ) -> Admin {
        let is_discovery = Arc::ptr_eq(directory.discovery(), &subsystem);
        let directory = is_discovery.then(|| Arc::clone(directory));
        let (event_requests, notices) = (VecDeque::new(), Notices::default());
        Admin { directory, subsystem, controller, event_requests, notices }
    }

    /// Whether it belongs to a discovery controller.
    pub(crate) fn is_discovery(&self) -> bool {
        self.directory.is_some()
    }

    pub(crate) fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Subsystem of the controller.
    pub(crate) fn subsystem(&self) -> &Subsystem {
        &self.subsystem
    }

    /// Takes the identifiers of the pending event requests, which will not get an event.
    pub(crate) fn take_event_requests(&mut self) -> VecDeque<u16> {
        std::mem::take(&mut self.event_requests)
    }

    /// Records a change, if it concerns the host.
    pub(crate) fn notice(&mut self, change: &Change) {
        match change {
            Change::Subsystems if self.directory.is_some() => self.notices.subsystems_changed(),
            Change::Namespaces(name, numbers) if name == self.subsystem.name().as_str() => {
                self.notices.namespaces_changed(numbers);
            }
            _ => {}
        }
    }

    /// Returns the identifier and the result of the event request to complete next, if there is
    /// one.
    pub(crate) fn next_event(&mut self) -> Option<(u16, u64)> {
        let id = *self.event_requests.front()?;
        let event = self.notices.next()?;
        self.event_requests.pop_front();
        Some((id, event))
    }

    /// Executes a command. Writes the data that it returns to `answer`, which must be empty.
    /// Returns its result; `None`: it completes later.
    pub(crate) fn execute(
        &mut self,
        id: u16,
        command: &Command,
        local: SocketAddr,
        answer: &mut Vec<u8>,
    ) -> Result<Option<u64>, Status> {
        match *command {
            Command::PropertyGet { property, is_wide } => {
                self.property(property, is_wide).map(Some)
            }
            Command::PropertySet { property: PROPERTY_CONFIGURATION, value } => {
                self.controller.configure(value);
                Ok(Some(0))
            }
            // A controller that is not enabled accepts nothing else.
            Command::PropertySet { .. } => Err(Status::INVALID_FIELD.for_good()),
            _ if self.controller.configuration() == 0 => Err(Status::SEQUENCE_ERROR.for_good()),
            Command::Identify { page, namespace } => {
                answer.extend_from_slice(&self.identify(page, namespace)?[..]);
                Ok(Some(0))
            }
            Command::GetLogPage { page, bytes, offset, retains_event } => {
                let log = self.log_page(page, local)?;
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(log.len());
                let length = (bytes as usize).min(log.len() - start);
                if !retains_event {
                    self.notices.acknowledge(page, start..start + length);
                }
                answer.extend_from_slice(&log[start..start + length]);
                // Zeros follow the end of the page.
                answer.resize(bytes as usize, 0);
                Ok(Some(0))
            }
            Command::SetFeatures { feature, value } => self.set_feature(feature, value).map(Some),
            Command::GetFeatures { feature } => self.feature(feature).map(Some),
            Command::KeepAlive => Ok(Some(0)),
            Command::AsyncEventRequest if self.event_requests.len() == EVENT_REQUESTS_MAX => {
                Err(Status::TOO_MANY_EVENT_REQUESTS.for_good())
            }
            Command::AsyncEventRequest => {
                self.event_requests.push_back(id);
                Ok(None)
            }
            _ => Err(Status::INVALID_OPCODE.for_good()),
        }
    }

    fn property(&self, property: u32, is_wide: bool) -> Result<u64, Status> {
        match (property, is_wide) {
            (PROPERTY_CAPABILITIES, true) => {
                Ok(Capabilities::encode(self.subsystem.limits().entries, ENABLE_MS))
            }
            (PROPERTY_VERSION, false) => Ok(VERSION.into()),
            (PROPERTY_CONFIGURATION, false) => Ok(self.controller.configuration().into()),
            (PROPERTY_STATUS, false) => Ok(self.controller.status().into()),
            _ => Err(Status::INVALID_FIELD.for_good()),
        }
    }

    fn identify(&self, page: u8, number: u32) -> Result<Box<identify::Page>, Status> {
        let namespace = || self.subsystem.namespace(number);
        let there = self.subsystem.namespaces().filter(|(_, one)| one.is_there());
        let numbers = there.map(|(number, _)| number);
        Ok(Box::new(match page {
            CNS_CONTROLLER => self.identity().encode(),
            _ if self.directory.is_some() => return Err(Status::INVALID_FIELD.for_good()),
            // Capabilities common to all namespaces. No host needs any of them.
            CNS_NAMESPACE if number == ALL_NAMESPACES => [0; PAGE_BYTES],
            // The page of a namespace that does not exist is all zeros.
            CNS_NAMESPACE if !namespace()?.is_there() => [0; PAGE_BYTES],
            CNS_NAMESPACE => namespace()?.shape().encode(),
            CNS_ACTIVE_NAMESPACES => identify::encode_list(numbers.filter(|&other| other > number)),
            CNS_DESCRIPTORS => identify::encode_descriptors(&namespace()?.shape().guid),
            _ => return Err(Status::INVALID_FIELD.for_good()),
        }))
    }

    fn identity(&self) -> identify::Controller {
        let limits = self.subsystem.limits();
        let name = self.subsystem.name().as_str();
        identify::Controller {
            serial: format!("{:08x}", cairn_platform::checksum::crc32c(0, name.as_bytes())),
            model: "Cairn".into(),
            firmware: env!("CARGO_PKG_VERSION").into(),
            id: self.controller.id,
            transfer_shift: Some(limits.transfer_shift),
            events: match self.directory {
                Some(_) => EVENT_DISCOVERY_CHANGED,
                None => EVENT_NAMESPACE_CHANGED,
            },
            keep_alive_ms: KEEP_ALIVE_MS,
            is_discovery: self.directory.is_some(),
            namespaces_max: self.subsystem.namespaces().count() as u32,
            can_deallocate: true,
            can_write_zeroes: true,
            can_reserve: true,
            has_volatile_cache: true,
            has_asymmetric_access: false,
            subsystem: Some(self.subsystem.name().clone()),
            capsule_data_bytes: limits.capsule_data_bytes,
            commands_max: limits.entries as u16,
            instance: if self.directory.is_some() { 0 } else { self.controller.instance },
        }
    }

    fn set_feature(&mut self, feature: u8, value: u32) -> Result<u64, Status> {
        match feature {
            FEATURE_QUEUES => self.feature(feature),
            FEATURE_EVENTS => {
                self.notices.wanted = value;
                Ok(0)
            }
            // Connect has set the timeout.
            FEATURE_KEEP_ALIVE if value == self.controller.keep_alive_ms => Ok(0),
            _ => Err(Status::INVALID_FIELD.for_good()),
        }
    }

    fn feature(&self, feature: u8) -> Result<u64, Status> {
        match feature {
            FEATURE_QUEUES => {
                let queues = u64::from(self.subsystem.limits().queues - 1);
                Ok(queues << 16 | queues)
            }
            FEATURE_EVENTS => Ok(self.notices.wanted.into()),
            FEATURE_KEEP_ALIVE => Ok(self.controller.keep_alive_ms.into()),
            _ => Err(Status::INVALID_FIELD.for_good()),
        }
    }

    fn log_page(&self, page: u8, local: SocketAddr) -> Result<Vec<u8>, Status> {
        match (page, &self.directory) {
            (LOG_DISCOVERY, Some(directory)) => {
                Ok(discovery_log(directory, &self.controller.host().name, local))
            }
            (LOG_CHANGED_NAMESPACES, None) => Ok(self.notices.changed().to_vec()),
            _ => Err(Status::INVALID_LOG_PAGE.for_good()),
        }
    }
}

/// Log of the subsystems that the host may use, at the address at which it has reached us.
fn discovery_log(directory: &Directory, host: &Nqn, local: SocketAddr) -> Vec<u8> {
    let entry = |subsystem: &Arc<Subsystem>| DiscoveryEntry {
        transport: TRANSPORT_TCP,
        family: if local.is_ipv4() { FAMILY_IPV4 } else { FAMILY_IPV6 },
        kind: SUBSYSTEM_NVM,
        port_id: 1,
        address: local.ip().to_string(),
        service: local.port().to_string(),
        subsystem: subsystem.name().clone(),
    };
    let mut subsystems = directory.all();
    subsystems.retain(|subsystem| subsystem.is_for(host));
    let (generation, entries) = (directory.generation(), subsystems.len() as u64);
    let head = DiscoveryHead { generation, entries };
    let mut log = head.encode().to_vec();
    subsystems.iter().for_each(|subsystem| log.extend(entry(subsystem).encode()));
    log
}
