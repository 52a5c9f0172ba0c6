//! Usual content of a checkpoint of a family: whether a set has all files that its predecessor had.
//!
//! Pure. Two files have the same *shape* if their names differ in numbers and hashes alone. A
//! number that the files of a shape have in common within their set is that of the step, or goes
//! with it: a time, a metric. It may differ in another set. Numbers that tell the files of a shape
//! apart, and those of parts, must occur there again. Must stay true: other files, however many, do
//! not make up for a missing one.

use super::Member;
use super::names::{Amount, PART_WORDS, Place, is_behind, places};
use crate::file::path::FilePath;
use std::collections::{BTreeMap, HashSet};

/// The files of a set, by shape.
pub struct Content {
    shapes: BTreeMap<Vec<u8>, Shape>,
}

/// Files of one shape: their numbers and hashes in the names of the directories that the set is,
/// and behind these.
#[derive(Default)]
struct Shape {
    above: Values,
    inside: Values,
}

/// Numbers and hashes of files.
#[derive(Default)]
struct Values {
    of_files: Vec<Vec<Amount>>,
    /// Places of hashes, and of numbers of parts.
    hashes: HashSet<usize>,
    parts: HashSet<usize>,
}

impl Content {
    /// Returns the content of a set of `members`. The first `depth` components of their paths are
    /// the directories that the set is: in them, only numbers count.
    pub fn of(members: &[Member], depth: usize) -> Content {
        let mut shapes: BTreeMap<Vec<u8>, Shape> = BTreeMap::new();
        for member in members {
            let (above, name) = split(&member.path, depth);
            let inside = places(&name);
            let shape = shapes.entry(without(&name, &inside)).or_default();
            shape.inside.add(&name, &inside);
            shape.above.add(&above, &places(&above));
        }
        Content { shapes }
    }

    /// Whether `other` has a successor of each file.
    pub fn is_all_in(&self, other: &Content) -> bool {
        self.shapes.iter().all(|(shape, here)| {
            other.shapes.get(shape).is_some_and(|there| {
                let (above, inside) = (here.above.told_apart(), here.inside.told_apart());
                let of = |shape: &Shape| -> HashSet<[Vec<Amount>; 2]> {
                    let files = shape.above.of_files.iter().zip(&shape.inside.of_files);
                    files.map(|pair| [chosen(pair.0, &above), chosen(pair.1, &inside)]).collect()
                };
                of(here).is_subset(&of(there))
            })
        })
    }
}

/// Returns the values at these places, as far as there are such.
fn chosen(values: &[Amount], places: &[usize]) -> Vec<Amount> {
    places.iter().filter_map(|&place| values.get(place).copied()).collect()
}

impl Values {
    fn add(&mut self, name: &[u8], places: &[Place]) {
        for (index, Place { range, is_hash }) in places.iter().enumerate() {
            if *is_hash {
                self.hashes.insert(index);
            } else if is_behind(name, range.start, PART_WORDS) {
                self.parts.insert(index);
            }
        }
        let value = |place: &Place| Amount::of(&name[place.range.clone()], place.is_hash);
        self.of_files.push(places.iter().map(value).collect());
    }

    /// Returns the places of the numbers that tell the files apart, or count parts.
    fn told_apart(&self) -> Vec<usize> {
        let first = &self.of_files[0];
        let differs =
            |place: usize| self.of_files.iter().any(|it| it.get(place) != first.get(place));
        let is_one = |place: &usize| {
            !self.hashes.contains(place) && (differs(*place) || self.parts.contains(place))
        };
        (0..first.len()).filter(is_one).collect()
    }
}

/// Returns the directories of `depth` components above a file, with a slash behind them, and its
/// name below these.
fn split(path: &FilePath, depth: usize) -> (Vec<u8>, Vec<u8>) {
    let components: Vec<&[u8]> = path.components().collect();
    let (above, name) = components.split_at(depth.min(components.len()));
    ([above.join(&b'/'), b"/".to_vec()].concat(), name.join(&b'/'))
}

/// Returns `name` with a byte that names do not contain in each of `places`.
fn without(name: &[u8], places: &[Place]) -> Vec<u8> {
    let (mut shape, mut at) = (Vec::with_capacity(name.len()), 0);
    for Place { range, .. } in places {
        shape.extend_from_slice(&name[at..range.start]);
        shape.push(0);
        at = range.end;
    }
    shape.extend_from_slice(&name[at..]);
    shape
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(names: &[&str]) -> Vec<Member> {
        let member = |name: &&str| {
            let path = FilePath::parse(name.as_bytes()).expect("a path");
            Member { path, inode: 1, version: 1, bytes: 1 }
        };
        names.iter().map(member).collect()
    }

    fn has_all(depth: usize, before: &[&str], now: &[&str]) -> bool {
        Content::of(&members(before), depth).is_all_in(&Content::of(&members(now), depth))
    }

    #[test]
    fn files_are_all_there_whose_names_differ_in_what_belongs_to_the_step() {
        let parts = ["ckpt-10/model", "ckpt-10/optim"];
        assert!(has_all(1, &parts, &["ckpt-20/model", "ckpt-20/optim", "ckpt-20/more"]));
        assert!(!has_all(1, &parts, &["ckpt-20/model", "ckpt-20/a", "ckpt-20/b"]));
        // The names of the directories do not matter.
        assert!(has_all(1, &["2026-10-01/x"], &["2026-10-02/x"]));
        // Zeros, several places, decimals, and numbers that go with the step.
        assert!(has_all(0, &["iter_0009.a"], &["iter_0010.a"]));
        assert!(has_all(0, &["s10/f.10"], &["s20/f.20"]));
        assert!(has_all(1, &["0.1/U_0.1", "0.1/p"], &["0.25/U_0.25", "0.25/p"]));
        let shared = ["proc0/1/U", "proc0/1/p", "proc1/1/U", "proc1/1/p"];
        assert!(has_all(2, &shared, &["proc0/2/U", "proc0/2/p", "proc1/2/U", "proc1/2/p"]));
        assert!(!has_all(2, &shared, &["proc0/2/U", "proc1/2/U", "proc1/2/p"]));
        let ranked = ["ep1-ba10-rank0.pt", "ep1-ba10-rank1.pt"];
        assert!(has_all(0, &ranked, &["ep2-ba20-rank0.pt", "ep2-ba20-rank1.pt"]));
        assert!(!has_all(0, &ranked, &["ep2-ba20-rank0.pt", "ep2-ba20-rank3.pt"]));
        // A process whose number equals the step, and one that is alone.
        assert!(has_all(0, &["rank10_step10"], &["rank10_step20"]));
        assert!(!has_all(0, &["rank3_step10"], &["rank4_step20"]));
    }

    #[test]
    fn hashes_are_new_in_each_step_and_parts_are_not() {
        let before = ["7/d/0a1b2c3d4e5f", "7/d/9f8e7d6c5b4a", "7/manifest"];
        assert!(has_all(1, &before, &["8/d/77aa88bb99cc", "8/manifest"]));
        assert!(!has_all(1, &before, &["8/manifest"]));
        let before = ["state.0", "state.1"];
        assert!(has_all(0, &before, &["state.0", "state.1"]));
        assert!(!has_all(0, &before, &["state.0", "state.2"]));
    }
}
