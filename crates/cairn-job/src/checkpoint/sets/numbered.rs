//! Recognises checkpoints without a pattern: files whose names differ only in numbers, such as
//! `dump.100`, `dump.200`.
//!
//! Pure, and decided from all names at once. The rules:
//! - A number behind a step word is the step. A number behind a part word, such as `rank3`, is not.
//! - Without such words, a single varying number is the step.
//! - Of several varying numbers, the step is the one that separates files written together, and
//!   that grows with time; a number that counts the ranks is the rank.
//! - Names that differ in exactly as many numbers as there are ranks are the parts of one
//!   checkpoint that is always written to the same names.
//! - Two numbers with a point between them are one with decimals, if that is how they grow.
//! - A directory that was renamed into place is a step if its name has a number: what is in it does
//!   not matter.
//!
//! Must stay true: a known family of checkpoints stays one, down to its last member. A series with
//! more members than any program keeps checkpoints is data.
//!
//! Limits: without a word or a launcher, a rank's part is not recognised; a pattern is needed. A
//! dense varying number may count parts while another number is the step: `dump.100.0`,
//! `dump.100.1` may be the parts of one checkpoint or a series. Such a position is marked as not
//! certain.

use super::Ranks;
use super::names::{Amount, Place, STEP_WORDS, is_behind, is_part, may_be_step, places};
use super::pattern::Position;
use crate::checkpoint::name::{Family, Step};
use crate::file::path::FilePath;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Maximum length of a series, and maximum number of parts of a checkpoint without a step.
const SERIES_MAX: usize = 4096;

/// Parts of one checkpoint are written within this time.
const TOGETHER_NS: u64 = 600_000_000_000;

/// Maximum length of each part of a number with decimals.
const DECIMALS_MAX: usize = 18;

/// Numbers are dense if more than 1 / `DENSE` of those up to the largest one occur.
const DENSE: u64 = 4;

/// Input: a file, or a directory that was renamed into place with all in it.
pub struct File<'a, Key> {
    /// Caller's key of the file.
    pub key: Key,
    /// Path of the file; of a directory, with a slash behind it.
    pub path: &'a [u8],
    /// When it was last written.
    pub written_ns: i64,
    /// Whether a run that has ended left it in this state.
    pub is_left: bool,
    /// Whether it is such a directory.
    pub is_directory: bool,
}

/// A file with the numbers in its name.
struct Numbered<'a, Key> {
    key: Key,
    path: &'a [u8],
    written_ns: i64,
    is_left: bool,
    is_directory: bool,
    numbers: Vec<Amount>,
    places: Vec<Place>,
}

impl<Key> Numbered<'_, Key> {
    /// Returns the text at a place.
    fn text(&self, index: usize) -> &[u8] {
        &self.path[self.places[index].range.clone()]
    }
}

/// Returns the positions of those `files` that are part of a series. `ranks` are those of a running
/// MPI program. `is_known` says which families have had checkpoints.
pub fn positions<'a, Key>(
    files: impl Iterator<Item = File<'a, Key>>,
    ranks: Option<&Ranks>,
    is_known: &dyn Fn(&Family) -> bool,
) -> Vec<(Key, Position)> {
    let ranks = ranks.filter(|ranks| ranks.count > 1);
    let mut series: BTreeMap<Vec<u8>, Vec<Numbered<'a, Key>>> = BTreeMap::new();
    for File { key, path, written_ns, is_left, is_directory } in files {
        let places = places(path);
        let amount = |place: &Place| Amount::of(&path[place.range.clone()], place.is_hash);
        let numbers: Vec<Amount> = places.iter().map(amount).collect();
        if places.iter().any(|place| !place.is_hash) {
            // No path contains this byte, so all members of a series have equally many numbers.
            let template = replaced(path, &places, |_| Some("\0"));
            let numbered =
                Numbered { key, path, written_ns, is_left, is_directory, numbers, places };
            series.entry(template).or_default().push(numbered);
        }
    }
    let roles_of = |mut members: Vec<_>| {
        join_decimals(&mut members, ranks);
        (roles_in(&members, ranks, is_known), members)
    };
    let series: Vec<_> = series.into_values().map(roles_of).collect();
    let mut steps: BTreeMap<&[u8], BTreeSet<Amount>> = BTreeMap::new();
    for (roles, members) in &series {
        let step = roles.as_ref().and_then(|roles| roles.step);
        for (step, member) in step.iter().flat_map(|step| members.iter().map(move |it| (step, it)))
        {
            steps.entry(directory(member.path)).or_default().insert(member.numbers[*step]);
        }
    }
    let place = |(roles, members): (Option<Roles>, Vec<Numbered<'a, Key>>)| {
        let is_without = roles.as_ref().is_none_or(|roles| roles.step.is_none());
        let beside = || roles_beside(&members, ranks, steps.get(directory(members[0].path))?);
        let published =
            || members.iter().any(|it| it.is_directory).then(|| roles_of_lone(&members));
        let found = is_without.then(|| beside().or_else(|| published()?)).flatten();
        place_series(found.or(roles), members)
    };
    in_directories(series.into_iter().flat_map(place).collect())
}

/// Gives everything in a directory that is a step the position of that step.
fn in_directories<Key>(files: Vec<(Key, &[u8], Option<Position>)>) -> Vec<(Key, Position)> {
    let mut directories: HashMap<Vec<u8>, Position> = HashMap::new();
    let is_step = |it: &&Position| it.is_directory && it.step.is_some();
    for (_, path, position) in &files {
        if let Some(position) = position.as_ref().filter(is_step) {
            let depth = position.family.0.iter().filter(|&&byte| byte == b'/').count();
            let end = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').nth(depth);
            let directory = path[..end.map_or(path.len(), |(at, _)| at)].to_vec();
            let known = directories.entry(directory).or_insert_with(|| position.clone());
            known.is_certain |= position.is_certain;
        }
    }
    let above = |path: &[u8]| {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        ends.into_iter().find_map(|at| directories.get(&path[..at]))
    };
    let place = |(key, path, position): (Key, &[u8], Option<Position>)| {
        let rank = position.as_ref().and_then(|position| position.rank);
        let inside = above(path).map(|directory| Position { rank, ..directory.clone() });
        Some((key, inside.or(position)?))
    };
    files.into_iter().filter_map(place).collect()
}

/// Whether the last component of a directory's path has a number that may be a step.
pub fn has_step(path: &FilePath) -> bool {
    !steps_of(path).1.is_empty()
}

/// Returns the families that a directory may be of: its path with a number of its last component as
/// the step.
pub fn families_of(path: &FilePath) -> Vec<Family> {
    let (text, steps) = steps_of(path);
    let family =
        |place: &Place| Family(replaced(&text, std::slice::from_ref(place), |_| Some("{step}")));
    steps.iter().map(family).collect()
}

/// Returns the text of a directory's path, and the places in its last component that may be a step.
fn steps_of(path: &FilePath) -> (Vec<u8>, Vec<Place>) {
    let text = [path.as_bytes(), b"/"].concat();
    let name = path.split().map_or(0, |(_, name)| name.len());
    let mut steps = places(&text);
    steps.retain(|place| {
        place.range.start >= path.as_bytes().len() - name
            && !place.is_hash
            && !is_part(&text, &place.range)
    });
    (path.as_bytes().to_vec(), steps)
}

/// Returns the path of the directory that contains a file or a directory.
fn directory(path: &[u8]) -> &[u8] {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    &path[..path.iter().rposition(|&byte| byte == b'/').unwrap_or(0)]
}

/// Returns `path` with words in place of those numbers for which `word` returns one.
fn replaced(
    path: &[u8],
    places: &[Place],
    word: impl Fn(usize) -> Option<&'static str>,
) -> Vec<u8> {
    let (mut text, mut at) = (Vec::with_capacity(path.len()), 0);
    for (index, place) in places.iter().enumerate() {
        let Some(word) = word(index) else { continue };
        text.extend_from_slice(&path[at..place.range.start]);
        text.extend_from_slice(word.as_bytes());
        at = place.range.end;
    }
    text.extend_from_slice(&path[at..]);
    text
}

/// Meaning of the numbers in the names of a series.
struct Roles {
    step: Option<usize>,
    rank: Option<usize>,
    varying: Vec<usize>,
    /// Whether the varying numbers cannot be the parts of one step.
    is_certain: bool,
}

impl Roles {
    fn with<Key>(
        step: Option<usize>,
        members: &[Numbered<'_, Key>],
        ranks: Option<&Ranks>,
    ) -> Roles {
        let is_certain = step.is_none_or(|step| {
            let said = is_behind(members[0].path, members[0].places[step].range.start, STEP_WORDS);
            said || !may_be_parts(members, step) && !may_be_another(members, step, ranks)
        });
        Roles { is_certain, ..Roles::named(step, members, ranks) }
    }

    /// Returns the same for a step that is certain.
    fn named<Key>(
        step: Option<usize>,
        members: &[Numbered<'_, Key>],
        ranks: Option<&Ranks>,
    ) -> Roles {
        let mut varying = varying(members);
        let is_rank = |&index: &usize| {
            Some(index) != step && ranks.is_some_and(|it| are_ranks(members, index, it))
        };
        let rank = varying.iter().copied().find(is_rank);
        varying.extend(step.filter(|step| !varying.contains(step)));
        // Other parts may exist although none is here.
        let path = members[0].path;
        let is_part = |index: &usize| is_part(path, &members[0].places[*index].range);
        let parts: Vec<usize> = (0..members[0].places.len()).filter(is_part).collect();
        varying.extend(parts);
        Roles { step, rank, varying, is_certain: true }
    }

    /// Returns the placeholder for a number in the family's name.
    fn word(&self, index: usize) -> Option<&'static str> {
        match index {
            _ if Some(index) == self.step => Some("{step}"),
            _ if Some(index) == self.rank => Some("{rank}"),
            _ if self.varying.contains(&index) => Some("{any}"),
            _ => None,
        }
    }

    fn position<Key>(&self, member: &Numbered<'_, Key>) -> Position {
        let path = member.path;
        let step_end = self.step.map_or(path.len(), |step| member.places[step].range.end);
        let directory_end =
            path[step_end..].iter().position(|&byte| byte == b'/').map(|length| step_end + length);
        let end = directory_end.unwrap_or(path.len());
        let places: Vec<_> =
            member.places.iter().filter(|place| place.range.end <= end).cloned().collect();
        Position {
            family: Family(replaced(&path[..end], &places, |index| self.word(index))),
            step: self.step.and_then(|step| Step::parse(member.text(step))),
            rank: self.rank.map(|rank| member.numbers[rank].0),
            is_directory: directory_end.is_some() || member.is_directory,
            is_certain: self.is_certain || member.is_directory,
        }
    }
}

/// Makes one number of two that have a point between them, where they are one with decimals.
fn join_decimals<Key>(members: &mut [Numbered<'_, Key>], ranks: Option<&Ranks>) {
    let mut index = 0;
    while index + 1 < members[0].places.len() {
        if are_decimals(members, index, ranks) {
            for member in &mut *members {
                let end = member.places.remove(index + 1).range.end;
                member.numbers.remove(index + 1);
                member.places[index].range.end = end;
                member.numbers[index] = Amount::of(member.text(index), false);
            }
        }
        index += 1;
    }
}

/// Whether the numbers at `index` and behind it are one with decimals: `0.05`, `0.1`, `1.25`, but
/// not `dump.100.3`, nor a step and a part of it.
fn are_decimals<Key>(members: &[Numbered<'_, Key>], index: usize, ranks: Option<&Ranks>) -> bool {
    let (first, path) = (&members[0], members[0].path);
    let (one, two) = (&first.places[index], &first.places[index + 1]);
    let begins = one.range.start == 0 || path[one.range.start - 1] != b'.';
    let is_pair = two.range.start == one.range.end + 1 && path[one.range.end] == b'.';
    let is_number = |member: &Numbered<'_, Key>, index: usize| {
        let text = member.text(index);
        text.len() <= DECIMALS_MAX && text.iter().all(u8::is_ascii_digit)
    };
    let numbers = members.iter().all(|it| is_number(it, index) && is_number(it, index + 1));
    let (wholes, behind) = (values(members, index), values(members, index + 1));
    let have_ranks = ranks.is_some_and(|it| are_ranks(members, index + 1, it));
    if !begins || !is_pair || !numbers || behind.len() < 2 || have_ranks {
        return false;
    }
    let are_parts = wholes.len() > 1 && are_parts(members, index);
    let begins_with_zero = |member: &Numbered<'_, Key>| {
        member.text(index + 1).len() > 1 && member.text(index + 1)[0] == b'0'
    };
    let as_decimals = |member: &Numbered<'_, Key>| {
        let text =
            &member.path[member.places[index].range.start..member.places[index + 1].range.end];
        Amount::of(text, false)
    };
    let as_numbers =
        |member: &Numbered<'_, Key>| (member.numbers[index], member.numbers[index + 1]);
    let falls = (falls(members, &as_decimals), falls(members, &as_numbers));
    let is_decimal = match wholes.len() {
        1 => members.iter().any(begins_with_zero) || falls.0 < falls.1,
        _ => members.iter().any(begins_with_zero) || falls.0 <= falls.1,
    };
    is_decimal && !are_parts
}

/// Whether the numbers behind that at `index` may count parts: they count from 0 or 1, and each
/// step has the parts of the one before, or is still to get some.
fn are_parts<Key>(members: &[Numbered<'_, Key>], index: usize) -> bool {
    let mut steps: BTreeMap<Amount, (i64, BTreeSet<u64>)> = BTreeMap::new();
    for member in members {
        let step = steps.entry(member.numbers[index]).or_insert((i64::MAX, BTreeSet::new()));
        step.0 = step.0.min(member.written_ns);
        step.1.insert(member.numbers[index + 1].0);
    }
    let mut steps: Vec<(i64, BTreeSet<u64>)> = steps.into_values().collect();
    steps.sort();
    let all: BTreeSet<u64> = steps.iter().flat_map(|(_, parts)| parts).copied().collect();
    let counts = |first: u64| all.iter().copied().eq(first..first + all.len() as u64);
    (counts(0) || counts(1)) && steps.windows(2).all(|pair| pair[1].1.is_subset(&pair[0].1))
}

/// How often a value is smaller than that of the file written before.
fn falls<Key, Value: Ord>(
    members: &[Numbered<'_, Key>],
    value: &dyn Fn(&Numbered<'_, Key>) -> Value,
) -> usize {
    let mut by_time: Vec<&Numbered<'_, Key>> = members.iter().collect();
    by_time.sort_by_key(|member| member.written_ns);
    by_time.windows(2).filter(|pair| value(pair[1]) < value(pair[0])).count()
}

/// Returns the roles in the name of a directory that was renamed into place: its last number is the
/// step.
fn roles_of_lone<Key>(members: &[Numbered<'_, Key>]) -> Option<Roles> {
    let first = &members[0];
    let is_step = |index: &usize| {
        let place = &first.places[*index];
        let is_inside = place.range.start >= directory(first.path).len();
        is_inside && !place.is_hash && !is_part(first.path, &place.range)
    };
    let step = (0..first.places.len()).rev().find(is_step)?;
    Some(Roles::with(Some(step), members, None))
}

/// Whether files that differ in the number at `index` may be the parts of one step, which is
/// another number then: one that they have in common.
fn may_be_parts<Key>(members: &[Numbered<'_, Key>], index: usize) -> bool {
    let (path, places) = (members[0].path, &members[0].places);
    let values = values(members, index);
    let most = values.last().map_or(0, |most| most.0);
    // Parts of one step are written together.
    let is_dense = values.len() as u64 * DENSE > most && taken_ns(members) < TOGETHER_NS;
    let varying = varying(members);
    let mut common = (0..places.len()).filter(|other| !varying.contains(other) && *other != index);
    let is_step = |other: usize| !places[other].is_hash && may_be_step(path, &places[other].range);
    varying.contains(&index) && is_dense && common.any(is_step)
}

/// Whether another varying number may be the step as well as that at `index`: it grows with time,
/// too, and groups the files in another way.
fn may_be_another<Key>(members: &[Numbered<'_, Key>], index: usize, ranks: Option<&Ranks>) -> bool {
    let (path, places) = (members[0].path, &members[0].places);
    let count = |chosen: &[usize]| {
        let values = members.iter().map(|it| chosen.iter().map(|&at| it.numbers[at]).collect());
        values.collect::<BTreeSet<Vec<Amount>>>().len()
    };
    let groups_differently = |other: usize| {
        let both = count(&[index, other]);
        (count(&[index]), count(&[other])) != (both, both)
    };
    varying(members).into_iter().any(|other| {
        other != index
            && !places[other].is_hash
            && !is_part(path, &places[other].range)
            && !ranks.is_some_and(|ranks| are_ranks(members, other, ranks))
            && falls(members, &|member| member.numbers[other]) == 0
            && groups_differently(other)
    })
}

fn roles_in<Key>(
    members: &[Numbered<'_, Key>],
    ranks: Option<&Ranks>,
    is_known: &dyn Fn(&Family) -> bool,
) -> Option<Roles> {
    let named = |step: usize| Roles::named(Some(step), members, ranks);
    let mut known = (0..members[0].places.len()).map(named);
    let known = known.find(|roles| is_known(&roles.position(&members[0]).family));
    known.or_else(|| roles(members, ranks))
}

/// Returns the roles in a series with one step throughout, if other series in its directory have
/// that step.
fn roles_beside<Key>(
    members: &[Numbered<'_, Key>],
    ranks: Option<&Ranks>,
    steps: &BTreeSet<Amount>,
) -> Option<Roles> {
    let varying = varying(members);
    let first = &members[0];
    let in_name = |place: &Place| place.range.start >= directory(first.path).len();
    let is_step = |&index: &usize| {
        let place = &first.places[index];
        in_name(place)
            && !place.is_hash
            && !varying.contains(&index)
            && !is_part(first.path, &place.range)
            && steps.contains(&first.numbers[index])
    };
    let step = (0..first.places.len()).find(is_step)?;
    Some(Roles::with(Some(step), members, ranks))
}

/// Returns the members with their positions. More parts than a checkpoint can have are none.
fn place_series<'a, Key>(
    roles: Option<Roles>,
    members: Vec<Numbered<'a, Key>>,
) -> Vec<(Key, &'a [u8], Option<Position>)> {
    let parts = |roles: &Roles| roles.step.map_or(members.len(), |it| values(&members, it).len());
    let roles = roles.filter(|roles| parts(roles) <= SERIES_MAX);
    let place = |member: Numbered<'a, Key>| {
        let position = roles.as_ref().map(|roles| roles.position(&member));
        (member.key, member.path, position)
    };
    members.into_iter().map(place).collect()
}

/// Returns the numbers at `index`.
fn values<Key>(members: &[Numbered<'_, Key>], index: usize) -> BTreeSet<Amount> {
    members.iter().map(|member| member.numbers[index]).collect()
}

/// Whether the numbers at `index` are among those of the ranks.
fn are_ranks<Key>(members: &[Numbered<'_, Key>], index: usize, ranks: &Ranks) -> bool {
    whole(members, index).is_some_and(|values| ranks.among(&values) as usize == values.len())
}

/// Returns the numbers at `index`; None if they have decimals, or are hashes.
fn whole<Key>(members: &[Numbered<'_, Key>], index: usize) -> Option<BTreeSet<u64>> {
    let is_plain = |it: &Numbered<'_, Key>| it.text(index).iter().all(u8::is_ascii_digit);
    let numbers = members.iter().map(|member| member.numbers[index].0);
    members.iter().all(is_plain).then(|| numbers.collect())
}

/// Derives the roles from names and times. Returns None if they tell nothing.
fn roles<Key>(members: &[Numbered<'_, Key>], ranks: Option<&Ranks>) -> Option<Roles> {
    let (path, places) = (members[0].path, &members[0].places);
    let varying = varying(members);
    let is_number = |index: &usize| !places[*index].is_hash;
    let mut may_be_steps = varying.clone();
    may_be_steps.retain(|index| is_number(index) && !is_part(path, &places[*index].range));
    let is_said =
        |index: &usize| is_number(index) && is_behind(path, places[*index].range.start, STEP_WORDS);
    let said: Vec<usize> = (0..places.len()).filter(is_said).collect();
    let counts_ranks =
        |index| ranks.is_some_and(|ranks| whole(members, index).is_some_and(|it| ranks.are(&it)));
    let are_ranks = |index| ranks.is_some_and(|ranks| are_ranks(members, index, ranks));
    let step = match (&said[..], &may_be_steps[..]) {
        (&[said], _) => Some(said),
        (_, []) => None,
        (_, &[only]) => Some(only).filter(|_| {
            let may_be_parts = are_ranks(only) && taken_ns(members) < TOGETHER_NS;
            varying.len() > 1 || !counts_ranks(only) && !may_be_parts
        }),
        _ => may_be_steps.into_iter().min_by_key(|&index| {
            let falls = falls(members, &|member| member.numbers[index]);
            let has_decimals = places[index].range.len() > 1 && whole(members, index).is_none();
            let is_ranks = (counts_ranks(index), are_ranks(index));
            (is_ranks, falls, spread(members, index), has_decimals, index)
        }),
    };
    (step.is_some() || !varying.is_empty()).then(|| Roles::with(step, members, ranks))
}

/// Returns the indexes of the numbers that differ between names.
fn varying<Key>(members: &[Numbered<'_, Key>]) -> Vec<usize> {
    let places = 0..members[0].places.len();
    places.filter(|&index| values(members, index).len() > 1).collect()
}

/// Returns the time it took to write all files, without those that an earlier run left.
fn taken_ns<Key>(members: &[Numbered<'_, Key>]) -> u64 {
    let written = members.iter().filter(|member| !member.is_left);
    let times = || written.clone().map(|member| member.written_ns);
    times().max().zip(times().min()).map_or(0, |(last, first)| last.abs_diff(first))
}

/// Returns the total time it took to write the files, summed over groups with the same number at
/// `index`.
fn spread<Key>(members: &[Numbered<'_, Key>], index: usize) -> u128 {
    let mut times: BTreeMap<Amount, (i64, i64)> = BTreeMap::new();
    for member in members {
        let range = times.entry(member.numbers[index]).or_insert((i64::MAX, i64::MIN));
        *range = (range.0.min(member.written_ns), range.1.max(member.written_ns));
    }
    times.values().map(|(first, last)| u128::from(last.abs_diff(*first))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns family, step and rank of each name that has a position; the inputs are names with
    /// times.
    fn found(files: &[(&str, i64)], ranks: Option<u32>) -> Vec<(String, Option<u64>, Option<u64>)> {
        let ranks = ranks.map(|count| Ranks { count, numbers: (0..count.into()).collect() });
        found_by(files, ranks.as_ref())
    }

    fn found_by(
        files: &[(&str, i64)],
        ranks: Option<&Ranks>,
    ) -> Vec<(String, Option<u64>, Option<u64>)> {
        found_beside(files, ranks, &[])
    }

    fn found_beside(
        files: &[(&str, i64)],
        ranks: Option<&Ranks>,
        known: &[&str],
    ) -> Vec<(String, Option<u64>, Option<u64>)> {
        let named = files.iter().map(|&(name, mtime_ns)| File {
            key: name,
            path: name.as_bytes(),
            written_ns: mtime_ns,
            is_left: false,
            is_directory: false,
        });
        let is_known = |family: &Family| known.contains(&family.to_string().as_str());
        let positions = positions(named, ranks, &is_known);
        let plain = |position: Position| {
            let step = position.step.and_then(|step| step.whole_number());
            (position.family.to_string(), step, position.rank)
        };
        positions.into_iter().map(|(_, position)| plain(position)).collect()
    }

    #[test]
    fn single_number_that_varies_is_the_step() {
        let family = |step| ("run2/f.{step}.h5".to_string(), Some(step), None);
        assert_eq!(
            found(&[("run2/f.100.h5", 1), ("run2/f.200.h5", 2), ("log.1", 3)], None),
            [family(100), family(200)]
        );
    }

    /// Mechanism: the placeholder for numbers in templates was a character that names may contain,
    /// so names with different counts of numbers formed one series. Consequence: the agent's drain
    /// died of them. Fix: a byte that no name contains.
    #[test]
    fn names_with_more_numbers_than_others_are_of_another_series() {
        assert_eq!(found(&[("1#2", 1), ("#1#", 2), ("##3", 3)], None), []);
    }

    #[test]
    fn step_is_what_tells_apart_what_was_written_together() {
        let files = [("s.0.10", 1), ("s.1.10", 2), ("s.0.20", 50), ("s.1.20", 51)];
        let member = |step, rank| ("s.{rank}.{step}".to_string(), Some(step), Some(rank));
        assert_eq!(
            found(&files, Some(2)),
            [member(10, 0), member(10, 1), member(20, 0), member(20, 1)]
        );
        // Without a launcher that tells the number of ranks, every file is a part of its step.
        let part = |step| ("s.{any}.{step}".to_string(), Some(step), None);
        assert_eq!(found(&files, None), [part(10), part(10), part(20), part(20)]);
    }

    /// Mechanism: the names of one step differ only in the ranks, and these were taken for steps.
    /// Consequence: each part was a checkpoint; all but one were left out of a restart, or removed
    /// as older ones. Fix: words tell steps from parts.
    #[test]
    fn words_before_numbers_tell_steps_from_parts() {
        let part = |family: &str, step| (family.to_string(), step, None);
        let family = "ckpt_rank{any}_step{step}.pt";
        let one = [("ckpt_rank0_step10.pt", 1), ("ckpt_rank1_step10.pt", 9)];
        assert_eq!(found(&one, None), [part(family, Some(10)), part(family, Some(10))]);
        let two = [one[0], one[1], ("ckpt_rank0_step20.pt", 9), ("ckpt_rank1_step20.pt", 9)];
        let expected = [10, 10, 20, 20].map(|step| part(family, Some(step)));
        assert_eq!(found(&two, None), expected);
        for (names, family) in [
            (["state_rank0.bin", "state_rank1.bin"], "state_rank{any}.bin"),
            (["rank0/state.bin", "rank1/state.bin"], "rank{any}/state.bin"),
            (["part-00000.parquet", "part-00001.parquet"], "part-{any}.parquet"),
            (["Shards/7", "Shards/8"], "Shards/{any}"),
        ] {
            let files = names.map(|name| (name, 1));
            assert_eq!(found(&files, None), [part(family, None), part(family, None)]);
        }
        let ranked = ("state_rank{rank}.bin".to_string(), None, Some(1));
        let files = [("state_rank0.bin", 1), ("state_rank1.bin", 1)];
        assert_eq!(found(&files, Some(2))[1], ranked);
    }

    /// Mechanism: while there is only one step, names differ only in the parts, and each part was a
    /// whole checkpoint. Consequence: a quarter of a checkpoint was offered, and `--retain` took
    /// the other parts from a program that was about to rename them. Fix: files that may be either
    /// are not complete.
    #[test]
    fn parts_of_the_first_step_are_not_certain_to_be_checkpoints() {
        let is_certain = |names: &[&str]| {
            let file = |(at, name): (usize, &&'static str)| -> File<'static, usize> {
                let (key, path, written_ns) = (at, name.as_bytes(), at as i64);
                File { key, path, written_ns, is_left: false, is_directory: false }
            };
            let names: Vec<&'static str> =
                names.iter().map(|name| &*name.to_string().leak()).collect();
            let found = positions(names.iter().enumerate().map(file), None, &|_| false);
            assert_eq!(found.len(), names.len(), "{names:?}");
            let all: BTreeSet<bool> =
                found.iter().map(|(_, position)| position.is_certain).collect();
            assert_eq!(all.len(), 1, "{names:?}");
            all.contains(&true)
        };
        for names in [
            ["ckpt_000100_000.h5.part", "ckpt_000100_001.h5.part"],
            ["st.100.r0", "st.100.r1"],
            ["dump/100.0", "dump/100.1"],
            ["100/f.0", "100/f.1"],
            ["dump100.1", "dump100.2"],
            ["s7_2.npy", "s7_5.npy"],
        ] {
            assert!(!is_certain(&names), "{names:?}");
        }
        for names in [
            ["f.1.h5", "f.2.h5"],
            ["run2/f.1", "run2/f.2"],
            ["resnet50-1.pt", "resnet50-2.pt"],
            ["st.100.r0", "st.200.r0"],
            ["run_100_rank0", "run_200_rank0"],
            ["2026-11-26/f.1", "2026-11-26/f.2"],
            ["a3-step1.pt", "a3-step2.pt"],
            ["version_0/f.1.ckpt", "version_0/f.2.ckpt"],
        ] {
            assert!(is_certain(&names), "{names:?}");
        }
        assert!(is_certain(&["st.100.r0", "st.100.r1", "st.200.r0"]), "it is known by then");
        // Parts are written together, and a family that has had checkpoints is a series.
        let file = |key: usize, second: i64| -> File<'static, usize> {
            let path: &[u8] = if key == 0 { b"h2o.1" } else { b"h2o.2" };
            let written_ns = second * 1_000_000_000;
            File { key, path, written_ns, is_left: false, is_directory: false }
        };
        let certain = |seconds: [i64; 2], is_known: &dyn Fn(&Family) -> bool| {
            let files = [file(0, seconds[0]), file(1, seconds[1])].into_iter();
            positions(files, None, is_known).iter().all(|(_, position)| position.is_certain)
        };
        assert!(!certain([1, 2], &|_| false) && certain([1, 700], &|_| false));
        assert!(certain([1, 2], &|family| family.to_string() == "h2o.{step}"));
    }

    #[test]
    fn lone_file_is_of_a_series_only_if_a_word_says_so() {
        let of_step = |family: &str, step| (family.to_string(), Some(step), None);
        assert_eq!(found(&[("f.10", 1)], None), []);
        assert_eq!(found(&[("rank0", 1)], None), []);
        assert_eq!(found(&[("net-step10.pt", 1)], None), [of_step("net-step{step}.pt", 10)]);
        assert_eq!(found(&[("a2/iter_7/b3", 1)], None), [of_step("a2/iter_{step}", 7)]);
        let several = [("epoch1-step10", 1), ("epoch1-step20", 9)];
        let family = "epoch1-step{step}";
        assert_eq!(found(&several, None), [of_step(family, 10), of_step(family, 20)]);
    }

    #[test]
    fn directories_and_files_of_processes_are_parts() {
        let files =
            ["processor0/100/U", "processor1/100/U", "processor0/200/U", "processor1/200/U"];
        let files: Vec<(&str, i64)> = files.into_iter().zip([1, 9, 10, 11]).collect();
        let part = |step| ("processor{any}/{step}".to_string(), Some(step), None);
        assert_eq!(found(&files, None), [part(100), part(100), part(200), part(200)]);
        let shards = [("m-00001-of-00002.bin", 1), ("m-00002-of-00002.bin", 9)];
        let shard = ("m-{any}-of-{any}.bin".to_string(), None, None);
        assert_eq!(found(&shards, None), [shard.clone(), shard]);
    }

    /// Mechanism: one part of a number with decimals, or of a date, was taken for the step.
    /// Consequence: checkpoints that had this part in common became one. Fix: dates are numbers,
    /// and decimals belong to their number.
    #[test]
    fn dates_and_decimals_are_numbers() {
        let dated = [("c-2026-11-23T17-05-09.pt", 1), ("c-2026-11-23T18-05-40.pt", 9)];
        let of = |step| ("c-{step}.pt".to_string(), Some(step), None);
        assert_eq!(found(&dated, None), [of(20_261_123_170_509), of(20_261_123_180_540)]);
        let short = [("c-20261123_170509.pt", 1), ("c-20261123_180509.pt", 9)];
        assert_eq!(found(&short, None), [of(20_261_123_170_509), of(20_261_123_180_509)]);
        for (files, family, steps) in [
            (
                &[("out_0.5.h5", 1), ("out_1.0.h5", 2), ("out_1.5.h5", 3)][..],
                "out_{step}.h5",
                &["0.5", "1.0", "1.5"][..],
            ),
            (
                &[("0.5/U", 1), ("1.5/U", 2), ("1.25/U", 3), ("2/U", 4)],
                "{step}",
                &["0.5", "1.5", "1.25", "2"],
            ),
            (&[("p0/0.1/U", 1), ("p0/0.01/U", 2)], "p0/{step}", &["0.1", "0.01"]),
            (&[("st_0.05.nc", 1), ("st_0.1.nc", 2)], "st_{step}.nc", &["0.05", "0.1"]),
            (
                &[("m_1_0.91.pt", 1), ("m_2_1.04.pt", 2), ("m_3_0.87.pt", 3)],
                "m_{step}_{any}.pt",
                &["1", "2", "3"],
            ),
            (
                &[("acc0.91-12.pt", 1), ("acc1.02-13.pt", 2), ("acc0.95-14.pt", 3)],
                "acc{any}-{step}.pt",
                &["12", "13", "14"],
            ),
            (
                &[("ck-7-9f8e7d6c5b4a.pt", 1), ("ck-8-00aa11bb22cc.pt", 2)],
                "ck-{step}-{any}.pt",
                &["7", "8"],
            ),
            (&[("v1.9.pt", 1), ("v1.10.pt", 2)], "v1.{step}.pt", &["9", "10"]),
        ] {
            let named = files.iter().map(|&(name, written_ns)| File {
                key: name,
                path: name.as_bytes(),
                written_ns,
                is_left: false,
                is_directory: false,
            });
            let mut found = positions(named, None, &|_| false);
            found.sort_by_key(|(name, _)| files.iter().position(|file| file.0 == *name));
            let found: Vec<(String, String)> = found
                .into_iter()
                .map(|(_, it)| {
                    (
                        it.family.to_string(),
                        it.step.map(|step| step.to_string()).unwrap_or_default(),
                    )
                })
                .collect();
            let expected: Vec<_> =
                steps.iter().map(|step| (family.to_string(), step.to_string())).collect();
            assert_eq!(found, expected);
        }
        let ranked = [("s100.0", 1), ("s100.1", 1), ("s200.0", 9), ("s200.1", 9)];
        assert_eq!(found(&ranked, Some(2))[3], ("s{step}.{rank}".to_string(), Some(200), Some(1)));
        let no_days = ["20000000-000003", "20001301_0000", "20001201_2400", "2000-00-10"];
        let no_dates = ["2026-11", "2026-11-2", "12026-11-23", "202611231-170509", "1826-11-23"];
        for plain in no_dates.into_iter().chain(no_days) {
            assert_eq!(super::super::names::date_length(plain.as_bytes()), None, "{plain}");
        }
    }

    /// Mechanism: a single file formed no series, and once one step was left, its ranks were taken
    /// for steps. Consequence: it was drained however rarely the policy wanted it, and parts were
    /// checkpoints. Fix: families that have had checkpoints are known.
    #[test]
    fn last_member_of_a_family_stays_one() {
        let known = ["dump.{step}", "s.{any}.{step}", "t{step}"];
        let found = |files: &[(&str, i64)]| found_beside(files, None, &known);
        let of = |family: &str, step| (family.to_string(), Some(step), None);
        assert_eq!(found(&[("dump.7", 1)]), [of("dump.{step}", 7)]);
        assert_eq!(found(&[("t5/a1", 1)]), [of("t{step}", 5)]);
        let part = of("s.{any}.{step}", 20);
        assert_eq!(found(&[("s.0.20", 1), ("s.1.20", 900)]), [part.clone(), part]);
        assert_eq!(found(&[("dumps.7", 1)]), []);
    }

    /// Mechanism: a single file formed no series, and the first of several parts was one file.
    /// Consequence: `model.20` was complete before `optim.20`, and a part before the others. Fix: a
    /// step of other files beside it is its step; words for parts and ranks tell what has parts.
    #[test]
    fn first_files_of_a_step_are_not_all_of_it() {
        let of = |family: &str, step| (family.to_string(), Some(step), None);
        let beside = [("model.10", 1), ("model.20", 9), ("optim.10", 2), ("other.11", 2)];
        let expected = [of("model.{step}", 10), of("model.{step}", 20), of("optim.{step}", 10)];
        assert_eq!(found(&beside, None), expected);
        let part = of("epoch{step}_part{any}.bin", 10);
        assert_eq!(found(&[("epoch10_part1.bin", 1)], None), [part]);
        let ranked = [("s.10.0", 1), ("s.10.1", 9), ("s.20.1", 10)];
        let place = |step, rank| ("s.{step}.{rank}".to_string(), Some(step), Some(rank));
        assert_eq!(found(&ranked, Some(2)), [place(10, 0), place(10, 1), place(20, 1)]);
    }

    #[test]
    fn more_names_than_anybody_keeps_checkpoints_are_no_series() {
        let names: Vec<String> = (0..=SERIES_MAX).map(|step| format!("part.{step}")).collect();
        let files: Vec<(&str, i64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        assert_eq!(found(&files, None), []);
        assert_eq!(found(&files[1..], None).len(), SERIES_MAX);
    }

    #[test]
    fn directory_that_has_the_step_in_its_name_is_one_family_with_all_in_it() {
        let files = [("t5/a", 1), ("t5/b1", 1), ("t6/a", 2), ("t6/b1", 2)];
        let member = |step| ("t{step}".to_string(), Some(step), None);
        assert_eq!(found(&files, None), [member(5), member(6), member(5), member(6)]);
    }

    #[test]
    fn as_many_parts_as_ranks_are_one_checkpoint_without_a_step() {
        let files = |last_s: i64| [("s.0", 1), ("s.1", 1), ("s.2", last_s * 1_000_000_000)];
        let part = |rank| ("s.{rank}".to_string(), None, Some(rank));
        let step = |step| ("s.{step}".to_string(), Some(step), None);
        assert_eq!(found(&files(1000), Some(3)), [0, 1, 2].map(part));
        // One rank may be late, but only within the time limit.
        assert_eq!(found(&files(500), Some(4)), [0, 1, 2].map(part));
        assert_eq!(found(&files(1000), Some(4)), [0, 1, 2].map(step));
        assert_eq!(found(&files(1), Some(2)), [0, 1, 2].map(step));
    }

    /// Mechanism: rank numbers were expected to be below the number of ranks on this node.
    /// Consequence: on every node but the first, parts were steps. Fix: the rank numbers are known.
    #[test]
    fn ranks_of_a_node_that_is_not_the_first_are_known_by_their_numbers_or_by_their_places() {
        let ranks = Ranks { count: 2, numbers: BTreeSet::from([4, 5]) };
        let part = |rank| ("state.{rank}".to_string(), None, Some(rank));
        assert_eq!(found_by(&[("state.4", 1), ("state.5", 2)], Some(&ranks)), [part(4), part(5)]);
        assert_eq!(found_by(&[("state.0", 1), ("state.1", 2)], Some(&ranks)), [part(0), part(1)]);
        let step = |step| ("state.{step}".to_string(), Some(step), None);
        assert_eq!(found_by(&[("state.4", 1), ("state.6", 2)], Some(&ranks)), [step(4), step(6)]);
        let files = [("s.4.10", 1), ("s.5.10", 2), ("s.4.20", 50), ("s.5.20", 51)];
        let member = |step, rank| ("s.{rank}.{step}".to_string(), Some(step), Some(rank));
        let expected = [member(10, 4), member(10, 5), member(20, 4), member(20, 5)];
        assert_eq!(found_by(&files, Some(&ranks)), expected);
    }
}
