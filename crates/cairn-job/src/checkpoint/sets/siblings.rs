//! Comparisons between the sets of a family.
//!
//! Pure. Must stay true: the begin of a later step completes no set that lacks files of the later
//! one.

use super::usual::Content;
use super::{Draft, Member, member, newest_ns};
use crate::checkpoint::name::{Family, Name};
use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;

/// Maximum number of other sets that one is compared with, file by file.
const OTHERS_MAX: usize = 8;

/// All sets, by family and step.
pub(super) struct Siblings<'d, 'a> {
    drafts: &'d BTreeMap<Name, Draft<'a>>,
    superseded: HashSet<&'d Name>,
    families: HashMap<&'d Family, Relations<'d>>,
    contents: HashMap<&'d Name, Contents>,
}

/// What the files of a set are, once somebody asks: all of them, and those that are not
/// half-written.
#[derive(Default)]
struct Contents {
    all: OnceCell<Content>,
    sound: OnceCell<Content>,
}

/// The sets of a family.
struct Relations<'d> {
    /// When the first and the last file of each was changed, ordered by the first.
    spans: Vec<(i64, i64, &'d Name)>,
    /// For each of these, when the earliest end of it and of those behind it was.
    ends: Vec<i64>,
    /// Whether all have parts of the same ranks.
    have_same_ranks: bool,
    /// The content that is usual, seen from a set at this depth.
    usual: OnceCell<(usize, Content)>,
}

impl<'d> Relations<'d> {
    fn of(sets: &[(&'d Name, &Draft<'_>)]) -> Relations<'d> {
        let mut spans: Vec<(i64, i64, &Name)> =
            sets.iter().map(|(name, draft)| (first_ns(draft), newest_ns(draft), *name)).collect();
        spans.sort();
        let mut ends: Vec<i64> = spans.iter().map(|(_, end, _)| *end).collect();
        for place in (1..ends.len()).rev() {
            ends[place - 1] = ends[place - 1].min(ends[place]);
        }
        let have_same_ranks = sets.windows(2).all(|two| two[0].1.ranks == two[1].1.ranks);
        Relations { spans, ends, have_same_ranks, usual: OnceCell::new() }
    }

    /// Returns the place of the first set all of whose files were changed after `time_ns`.
    fn after(&self, time_ns: i64) -> usize {
        self.spans.partition_point(|(first, _, _)| *first <= time_ns)
    }
}

impl<'d, 'a> Siblings<'d, 'a> {
    pub(super) fn of(drafts: &'d BTreeMap<Name, Draft<'a>>) -> Siblings<'d, 'a> {
        let mut families: HashMap<&Family, Vec<(&Name, &Draft<'_>)>> = HashMap::new();
        for set @ (name, _) in drafts {
            families.entry(&name.family).or_default().push(set);
        }
        let families = families.iter().map(|(family, sets)| (*family, Relations::of(sets)));
        let (families, superseded) = (families.collect(), superseded(drafts));
        let contents = drafts.keys().map(|name| (name, Contents::default())).collect();
        Siblings { drafts, superseded, families, contents }
    }

    /// Whether a later step was begun after this one.
    pub(super) fn is_superseded(&self, name: &Name) -> bool {
        self.superseded.contains(name)
    }

    /// Whether this set has a successor of each of the `usual` files of its family.
    pub(super) fn has_usual(&self, name: &Name, usual: &[Member]) -> bool {
        let depth = self.drafts[name].depth();
        let of_family = &self.families[&name.family].usual;
        let (known, content) = of_family.get_or_init(|| (depth, Content::of(usual, depth)));
        match *known == depth {
            true => content.is_all_in(self.content(name)),
            false => Content::of(usual, depth).is_all_in(self.content(name)),
        }
    }

    /// Whether this set has a counterpart of every file of the next sets, except half-written
    /// files.
    pub(super) fn has_all_of_later(&self, name: &Name) -> bool {
        let mut later = self.later(name).take(OTHERS_MAX);
        later.all(|(other, later)| {
            let sound = self.contents[other].sound.get_or_init(|| {
                let files = later.files.iter().filter(|(_, node)| !(node.open || node.unclean));
                Content::of(&files.copied().map(member).collect::<Vec<_>>(), later.depth())
            });
            sound.is_all_in(self.content(name))
        })
    }

    /// Whether all writers of this set have moved on: another set has successors of all its files.
    /// That set is of one of the next steps, or was written entirely after this one and has no
    /// further files.
    pub(super) fn is_followed(&self, name: &Name) -> bool {
        let (content, last) = (self.content(name), newest_ns(&self.drafts[name]));
        let later = self.later(name).filter(|(_, later)| newest_ns(later) >= last);
        let mut later = later.take(OTHERS_MAX).map(|(other, _)| self.content(other));
        if later.any(|later| content.is_all_in(later)) {
            return true;
        }
        let family = &self.families[&name.family];
        let behind = family.spans[family.after(last)..].iter().map(|(_, _, other)| *other);
        let mut behind = behind.filter(|other| other.step <= name.step).take(OTHERS_MAX);
        behind.any(|other| {
            let other = self.content(other);
            content.is_all_in(other) && other.is_all_in(content)
        })
    }

    /// Whether all files of another set were changed after some of this set and before others: a
    /// part of this set was rewritten, and a part not yet.
    pub(super) fn is_straddling(&self, name: &Name) -> bool {
        let draft = &self.drafts[name];
        let family = &self.families[&name.family];
        family.ends.get(family.after(first_ns(draft))).is_some_and(|end| *end < newest_ns(draft))
    }

    /// Whether there are at least two other sets, and all have parts of the same ranks as this one.
    pub(super) fn have_same_ranks(&self, name: &Name) -> bool {
        self.families[&name.family].spans.len() > 2 && !self.has_other_ranks(name)
    }

    /// Whether another set has parts of other ranks than this one.
    pub(super) fn has_other_ranks(&self, name: &Name) -> bool {
        !self.families[&name.family].have_same_ranks
    }

    /// Returns the sets of later steps, in their order.
    fn later(&self, name: &Name) -> impl Iterator<Item = (&'d Name, &'d Draft<'a>)> {
        let later = self.drafts.range((Bound::Excluded(name), Bound::Unbounded));
        later.take_while(move |(other, _)| other.family == name.family)
    }

    fn content(&self, name: &Name) -> &Content {
        let draft = &self.drafts[name];
        self.contents[name].all.get_or_init(|| Content::of(&draft.members(), draft.depth()))
    }
}

/// Returns the time at which the first of its files was changed.
fn first_ns(draft: &Draft<'_>) -> i64 {
    draft.files.iter().map(|(_, node)| node.written_ns).min().unwrap_or(0)
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
