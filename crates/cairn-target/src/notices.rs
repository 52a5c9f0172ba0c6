//! Events for the host of an admin queue: namespaces or subsystems have changed (Base 5.2).
//!
//! Must stay true: one event of each kind is reported, and the next one only after the host has
//! read the log page with the details. Changes that the host has not read are reported until it
//! has, however few event requests there are.

use std::collections::BTreeSet;
use std::ops::Range;

use cairn_nvme::wire::identify::{
    self, EVENT_DISCOVERY_CHANGED, EVENT_NAMESPACE_CHANGED, PAGE_BYTES, Page,
};

/// Log pages.
pub(super) const LOG_CHANGED_NAMESPACES: u8 = 0x04;
pub(super) const LOG_DISCOVERY: u8 = 0x70;
/// Entry of the list of changed namespaces when there are more than it has room for.
const ANY_NAMESPACE: u32 = 0xffff_ffff;
const NUMBER_BYTES: usize = size_of::<u32>();
/// Asynchronous Event Type: a notice.
const NOTICE: u64 = 2;

/// A change to report.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// Subsystems were added or removed.
    Subsystems,
    /// Namespaces of the subsystem with this name changed their size or disappeared.
    Namespaces(String, Vec<u32>),
}

/// A kind of event.
#[derive(Debug)]
struct Notice {
    /// Bit with which hosts enable the event.
    event: u32,
    information: u64,
    log_page: u8,
    is_due: bool,
    /// Whether the event was reported, and the page was not read yet.
    is_told: bool,
}

impl Notice {
    const fn new(event: u32, information: u64, log_page: u8) -> Notice {
        Notice { event, information, log_page, is_due: false, is_told: false }
    }
}

/// Events of an admin queue.
#[derive(Debug)]
pub(super) struct Notices {
    /// Mask of the events that the host has enabled.
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
    /// Records that subsystems were added or removed.
    pub(super) fn subsystems_changed(&mut self) {
        self.subsystems.is_due = true;
    }

    /// Records that these namespaces have changed.
    pub(super) fn namespaces_changed(&mut self, numbers: &[u32]) {
        self.changed.extend(numbers);
        self.namespaces.is_due = true;
    }

    /// Takes the next event to report. Returns the result of its event request.
    pub(super) fn next(&mut self) -> Option<u64> {
        let wanted = self.wanted;
        let mut all = [&mut self.namespaces, &mut self.subsystems].into_iter();
        let next = all.find(|one| one.is_due && !one.is_told && wanted & one.event != 0)?;
        (next.is_due, next.is_told) = (false, true);
        Some(u64::from(next.log_page) << 16 | next.information << 8 | NOTICE)
    }

    /// Records that the host has read these bytes of a log page, which permits the next event of
    /// that kind.
    pub(super) fn acknowledge(&mut self, log_page: u8, read: Range<usize>) {
        for notice in [&mut self.namespaces, &mut self.subsystems] {
            notice.is_told &= notice.log_page != log_page;
        }
        if log_page == LOG_CHANGED_NAMESPACES {
            let is_read = read.start.div_ceil(NUMBER_BYTES)..read.end / NUMBER_BYTES;
            match self.is_too_long() {
                true if is_read.contains(&0) => self.changed.clear(),
                true => {}
                false => {
                    let mut place = 0..;
                    self.changed.retain(|_| place.next().is_none_or(|at| !is_read.contains(&at)));
                }
            }
            self.namespaces.is_due = !self.changed.is_empty();
        }
    }

    /// List of the namespaces that changed since the host last read it.
    pub(super) fn changed(&self) -> Box<Page> {
        Box::new(match self.is_too_long() {
            true => identify::encode_list(core::iter::once(ANY_NAMESPACE)),
            false => identify::encode_list(self.changed.iter().copied()),
        })
    }

    fn is_too_long(&self) -> bool {
        self.changed.len() > PAGE_BYTES / NUMBER_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGED: Option<u64> = Some(0x04_0002);
    const WHOLE: Range<usize> = 0..PAGE_BYTES;

    fn wanted() -> Notices {
        Notices { wanted: EVENT_NAMESPACE_CHANGED, ..Notices::default() }
    }

    fn listed(notices: &Notices) -> Vec<u32> {
        identify::decode_list(&notices.changed()).unwrap()
    }

    #[test]
    fn change_is_kept_until_it_is_wanted_and_told_again_only_after_it_was_read_of() {
        let mut notices = Notices::default();
        notices.namespaces_changed(&[2]);
        assert_eq!(notices.next(), None);
        notices.wanted = EVENT_NAMESPACE_CHANGED;
        assert_eq!(notices.next(), CHANGED);
        notices.namespaces_changed(&[5]);
        assert_eq!(notices.next(), None, "it was told, and not read of");
        assert_eq!(listed(&notices), [2, 5]);
        notices.acknowledge(LOG_CHANGED_NAMESPACES, WHOLE);
        assert_eq!((notices.next(), listed(&notices)), (None, vec![]), "the host has read of both");
        notices.namespaces_changed(&[2]);
        assert_eq!(notices.next(), CHANGED);
    }

    /// Mechanism: the whole list was forgotten, whatever part of it a host had read.
    ///
    /// Consequence: the host never learned about the rest.
    ///
    /// Fix: what was not read stays, and is reported again.
    #[test]
    fn what_a_host_has_not_read_of_the_list_is_told_again() {
        let mut notices = wanted();
        notices.namespaces_changed(&[2, 5, 9]);
        assert_eq!(notices.next(), CHANGED);
        notices.acknowledge(LOG_CHANGED_NAMESPACES, 0..6);
        assert_eq!((notices.next(), listed(&notices)), (CHANGED, vec![5, 9]));
        notices.acknowledge(LOG_CHANGED_NAMESPACES, WHOLE);
        assert_eq!(notices.next(), None);
    }

    /// Mechanism: a list without room for all namespaces named the first ones.
    ///
    /// Consequence: hosts of the others did not learn that theirs had changed.
    ///
    /// Fix: such a list says that any namespace may have changed (Base 5.16.1.5).
    #[test]
    fn list_of_more_namespaces_than_it_has_room_for_says_that_any_may_have_changed() {
        let mut notices = wanted();
        let all: Vec<u32> = (1..=1024).collect();
        notices.namespaces_changed(&all);
        assert_eq!(listed(&notices), all);
        notices.namespaces_changed(&[2000]);
        assert_eq!(listed(&notices), [ANY_NAMESPACE]);
        notices.acknowledge(LOG_CHANGED_NAMESPACES, WHOLE);
        assert_eq!(listed(&notices), [0; 0]);
    }
}
