//! What an admin queue's host is told without having asked at that moment: that namespaces or subsystems have changed (Base 5.2).
//!
//! Must stay true: of each kind one event is told, and the next one after the host has read the log page that says more.

use std::collections::BTreeSet;

use cairn_device::nvme::wire::identify::{EVENT_DISCOVERY_CHANGED, EVENT_NAMESPACE_CHANGED};

/// Log pages.
pub(super) const LOG_CHANGED_NAMESPACES: u8 = 0x04;
pub(super) const LOG_DISCOVERY: u8 = 0x70;
/// Asynchronous Event Type: a notice.
const NOTICE: u64 = 2;

/// What there is to tell.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// There are other subsystems.
    Subsystems,
    /// Of the subsystem with this name these namespaces have other sizes, or are not there any more.
    Namespaces(String, Vec<u32>),
}

/// A kind of event.
#[derive(Debug)]
struct Notice {
    /// The bit by which hosts ask for it.
    event: u32,
    information: u64,
    log_page: u8,
    is_due: bool,
    /// It was told, and the page was not read yet.
    is_told: bool,
}

impl Notice {
    const fn new(event: u32, information: u64, log_page: u8) -> Notice {
        Notice { event, information, log_page, is_due: false, is_told: false }
    }
}

/// Those of an admin queue.
#[derive(Debug)]
pub(super) struct Notices {
    /// What the host wants to be told.
    pub(super) wanted: u32,
    namespaces: Notice,
    subsystems: Notice,
    changed: BTreeSet<u32>,
}

impl Default for Notices {
    fn default() -> Notices {
        Notices {
            wanted: 0,
            namespaces: Notice::new(EVENT_NAMESPACE_CHANGED, 0, LOG_CHANGED_NAMESPACES),
            subsystems: Notice::new(EVENT_DISCOVERY_CHANGED, 0xf0, LOG_DISCOVERY),
            changed: BTreeSet::new(),
        }
    }
}

impl Notices {
    /// Other subsystems can be found.
    pub(super) fn subsystems_changed(&mut self) {
        self.subsystems.is_due = true;
    }

    /// These namespaces have changed.
    pub(super) fn namespaces_changed(&mut self, numbers: &[u32]) {
        self.changed.extend(numbers);
        self.namespaces.is_due = true;
    }

    /// The result of the event request that is answered next, if one is.
    pub(super) fn next(&mut self) -> Option<u64> {
        let wanted = self.wanted;
        let mut all = [&mut self.namespaces, &mut self.subsystems].into_iter();
        let next = all.find(|one| one.is_due && !one.is_told && wanted & one.event != 0)?;
        (next.is_due, next.is_told) = (false, true);
        Some(u64::from(next.log_page) << 16 | next.information << 8 | NOTICE)
    }

    /// The host has read that page, and the next event of the kind may come.
    pub(super) fn acknowledge(&mut self, log_page: u8) {
        for notice in [&mut self.namespaces, &mut self.subsystems] {
            notice.is_told &= notice.log_page != log_page;
        }
        if log_page == LOG_CHANGED_NAMESPACES {
            self.changed.clear();
        }
    }

    /// The namespaces that have changed since the host has read of them.
    pub(super) fn changed(&self) -> impl Iterator<Item = u32> {
        self.changed.iter().copied()
    }
}
