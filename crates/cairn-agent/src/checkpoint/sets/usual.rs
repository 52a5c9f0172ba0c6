//! Usual content of a checkpoint of a family: whether a set has all files that its predecessor had.
//!
//! Pure. A file has a successor in a set of another step if that set has a file of the same name,
//! in which numbers equal to the old step may be replaced by the new one. Must stay true: other
//! files, however many, do not make up for a missing one.

use super::Member;
use crate::model::path::FilePath;
use std::collections::HashSet;
use std::ops::Range;

/// Newest complete set of a family.
#[derive(Clone, Copy, Debug)]
pub struct Usual<'a> {
    /// Step of the set.
    pub step: Option<u64>,
    /// Files of the set, ordered by path.
    pub files: &'a [Member],
}

impl Usual<'_> {
    /// Whether a set of `step` has a successor of each file. The first `depth` components of paths
    /// are the directories that the two sets are.
    pub fn is_all_in(&self, step: Option<u64>, members: &[Member], depth: usize) -> bool {
        let names: HashSet<Vec<u8>> =
            members.iter().map(|member| name_in(&member.path, depth)).collect();
        self.files.iter().all(|file| {
            let name = name_in(&file.path, depth);
            names.contains(&name)
                || self.step.zip(step).is_some_and(|(from, to)| {
                    successors(&name, from, to).iter().any(|name| names.contains(name))
                })
        })
    }
}

/// Returns the name of a file below a directory of `depth` components.
fn name_in(path: &FilePath, depth: usize) -> Vec<u8> {
    path.components().skip(depth).collect::<Vec<_>>().join(&b'/')
}

/// Returns variants of `name` with `to` in place of `from`: at all places together, and at each
/// single place, because an equal number may be that of a process.
fn successors(name: &[u8], from: u64, to: u64) -> Vec<Vec<u8>> {
    let places: Vec<Range<usize>> =
        numbers(name).filter(|place| value(&name[place.clone()]) == Some(from)).collect();
    let mut found: Vec<Vec<u8>> =
        places.iter().map(|place| replaced(name, std::slice::from_ref(place), to)).collect();
    found.push(replaced(name, &places, to));
    found
}

/// Returns the ranges of digits.
fn numbers(name: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let begin = at + name[at..].iter().position(u8::is_ascii_digit)?;
        let length = name[begin..].iter().position(|byte| !byte.is_ascii_digit());
        at = length.map_or(name.len(), |length| begin + length);
        Some(begin..at)
    })
}

fn value(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Returns `name` with `number` at those places, padded with zeros where the old number was.
fn replaced(name: &[u8], places: &[Range<usize>], number: u64) -> Vec<u8> {
    let (mut whole, mut copied) = (Vec::with_capacity(name.len()), 0);
    for place in places {
        let width = if name[place.start] == b'0' { place.len() } else { 0 };
        whole.extend_from_slice(&name[copied..place.start]);
        whole.extend_from_slice(format!("{number:0width$}").as_bytes());
        copied = place.end;
    }
    whole.extend_from_slice(&name[copied..]);
    whole
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

    #[test]
    fn files_are_all_there_whose_names_differ_in_the_step_alone() {
        let has_all = |depth, before: &[&str], from, now: &[&str], to| {
            let usual = Usual { step: Some(from), files: &members(before) };
            usual.is_all_in(Some(to), &members(now), depth)
        };
        let parts = ["ckpt-10/model", "ckpt-10/optim"];
        assert!(has_all(1, &parts, 10, &["ckpt-20/model", "ckpt-20/optim", "ckpt-20/more"], 20));
        assert!(!has_all(1, &parts, 10, &["ckpt-20/model", "ckpt-20/a", "ckpt-20/b"], 20));
        // The names of the directories do not matter.
        assert!(has_all(1, &["2026-10-01/x"], 20261001, &["2026-10-02/x"], 20261002));
        // Zeros, several places, and processes whose number equals the step.
        assert!(has_all(0, &["iter_0009.a"], 9, &["iter_0010.a"], 10));
        assert!(has_all(0, &["iter_99.a"], 99, &["iter_100.a"], 100));
        assert!(has_all(0, &["s10/f.10"], 10, &["s20/f.20"], 20));
        assert!(has_all(0, &["rank10_step10"], 10, &["rank10_step20"], 20));
        assert!(!has_all(0, &["rank3_step10"], 10, &["rank4_step20"], 20));
    }

    #[test]
    fn sets_without_steps_are_compared_as_they_are() {
        let files = members(&["state.0", "state.1"]);
        let usual = Usual { step: None, files: &files };
        assert!(usual.is_all_in(None, &members(&["state.0", "state.1"]), 0));
        assert!(!usual.is_all_in(None, &members(&["state.0", "state.2"]), 0));
    }
}
