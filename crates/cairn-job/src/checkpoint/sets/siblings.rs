//! Comparisons between the sets of a family.
//!
//! Pure. Must stay true: the begin of a later step completes no set that lacks files of the later
//! one.

use super::usual::Usual;
use super::{Draft, Node, member, newest_ns};
use crate::checkpoint::name::{Family, Name};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;

/// Maximum number of later sets that one is compared with.
const LATER_MAX: usize = 8;

/// All sets, by family and step.
pub(super) struct Siblings<'d, 'a> {
    drafts: &'d BTreeMap<Name, Draft<'a>>,
    superseded: HashSet<&'d Name>,
    spans: HashMap<&'d Name, (i64, i64)>,
}

impl<'d, 'a> Siblings<'d, 'a> {
    pub(super) fn of(drafts: &'d BTreeMap<Name, Draft<'a>>) -> Siblings<'d, 'a> {
        let spans = drafts.iter().map(|(name, draft)| (name, span(draft))).collect();
        Siblings { drafts, superseded: superseded(drafts), spans }
    }

    /// Whether a later step was begun after this one.
    pub(super) fn is_superseded(&self, name: &Name) -> bool {
        self.superseded.contains(name)
    }

    /// Whether this set has a counterpart of every file of later sets, except half-written files.
    pub(super) fn has_all_of_later(&self, name: &Name) -> bool {
        let (draft, members) = (&self.drafts[name], self.drafts[name].members());
        let later = self.drafts.range((Bound::Excluded(name), Bound::Unbounded));
        let mut later = later.take_while(|(other, _)| other.family == name.family).take(LATER_MAX);
        later.all(|(_, later)| {
            let is_sound = |(_, node): &(_, &Node)| !(node.open || node.unclean);
            let files = later.files.iter().copied().filter(is_sound);
            let usual = Usual { files: &files.map(member).collect::<Vec<_>>() };
            usual.is_all_in(&members, draft.depth())
        })
    }

    /// Whether all writers of this set have moved on: another set has successors of all its files.
    /// That set is of a later step, or was written entirely after this one and has no further
    /// files.
    pub(super) fn is_followed(&self, name: &Name) -> bool {
        let (draft, (_, last)) = (&self.drafts[name], span(&self.drafts[name]));
        let members = draft.members();
        let usual = Usual { files: &members };
        self.family(&name.family).any(|(other, later)| {
            let ((first, newest), files) = (span(later), later.members());
            let has_no_more = || Usual { files: &files }.is_all_in(&members, draft.depth());
            let is_after = match other.step > name.step {
                true => newest >= last,
                false => first > last && has_no_more(),
            };
            is_after && usual.is_all_in(&files, later.depth())
        })
    }

    /// Whether all files of another set were changed after some of this set and before others: a
    /// part of this set was rewritten, and a part not yet.
    pub(super) fn is_straddling(&self, name: &Name) -> bool {
        let (first, last) = self.spans[name];
        self.family(&name.family).any(|(other, _)| {
            let (begin, end) = self.spans[other];
            first < begin && end < last
        })
    }

    /// Whether there are at least two other sets, and all have parts of the same ranks as this one.
    pub(super) fn have_same_ranks(&self, name: &Name) -> bool {
        self.family(&name.family).count() > 2 && !self.has_other_ranks(name)
    }

    /// Whether another set has parts of other ranks than this one.
    pub(super) fn has_other_ranks(&self, name: &Name) -> bool {
        let ranks = &self.drafts[name].ranks;
        self.family(&name.family).any(|(_, other)| other.ranks != *ranks)
    }

    fn family(&self, family: &Family) -> impl Iterator<Item = (&'d Name, &'d Draft<'a>)> {
        let first = Name { family: family.clone(), step: None };
        self.drafts.range(first..).take_while(move |(name, _)| name.family == *family)
    }
}

/// Returns the times at which the first and the last of its files were changed.
fn span(draft: &Draft<'_>) -> (i64, i64) {
    let times = draft.files.iter().map(|(_, node)| node.written_ns);
    (times.min().unwrap_or(0), newest_ns(draft))
}

/// Returns the sets after which a later step was begun. A later step with older files does not
/// count: the program has gone back to an earlier step.
fn superseded<'d>(drafts: &'d BTreeMap<Name, Draft<'_>>) -> HashSet<&'d Name> {
    let mut later: HashMap<&Family, i64> = HashMap::new();
    let mut superseded = HashSet::new();
    for (name, draft) in drafts.iter().rev().filter(|(name, _)| name.step.is_some()) {
        let newest_ns = newest_ns(draft);
        match later.get_mut(&name.family) {
            None => _ = later.insert(&name.family, newest_ns),
            Some(later_ns) if *later_ns < newest_ns => *later_ns = newest_ns,
            Some(_) => _ = superseded.insert(name),
        }
    }
    superseded
}
