//! Recognises checkpoints without a pattern: files whose names differ only in numbers, such as
//! `dump.100`, `dump.200`.
//!
//! Pure, and decided from all names at once. The rules:
//! - A number behind a step word is the step. A number behind a part word, such as `rank3`, is not.
//! - Without such words, a single varying number is the step.
//! - Of several varying numbers, the step is the one that separates files written together; a
//!   number that counts the ranks is the rank.
//! - Names that differ in exactly as many numbers as there are ranks are the parts of one
//!   checkpoint that is always written to the same names.
//! - A date with a time is one number.
//! - Numbers with decimals form no series, because a step is a whole number.
//!
//! Must stay true: a known family of checkpoints stays one, down to its last member. A series with
//! more members than any program keeps checkpoints is data.
//!
//! Limits: without a word or a launcher, a rank's part is not recognised; a pattern is needed. A
//! dense varying number may count parts while another number is the step: `dump.100.0`,
//! `dump.100.1` may be the parts of one checkpoint or a series. Such a position is marked as not
//! certain.

use super::Ranks;
use super::pattern::Position;
use crate::model::checkpoint_name::Family;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Maximum number of digits of a number.
const DIGITS_MAX: usize = 19;

/// Maximum length of a series, and maximum number of parts of a checkpoint without a step.
const SERIES_MAX: usize = 4096;

/// Parts of one checkpoint are written within this time.
const TOGETHER_NS: u64 = 600_000_000_000;

/// Words before a number that make it a step, and words that make it the number of a part.
const STEP_WORDS: &[&str] = &["step", "iter", "iteration", "epoch", "cycle"];
const PART_WORDS: &[&str] = &[
    "rank",
    "part",
    "shard",
    "chunk",
    "piece",
    "proc",
    "process",
    "processor",
    "pe",
    "worker",
    "node",
    "host",
    "task",
    "thread",
    "gpu",
    "device",
    "domain",
    "subdomain",
    "block",
    "tile",
    "level",
    "layer",
    "replica",
    "expert",
    "mp",
    "tp",
    "pp",
    "dp",
];

/// Words before a number that tells runs or models apart, so that it is never a step; and words
/// before which a number may be a step without a separator.
const RUN_WORDS: &[&str] = &[
    "run",
    "exp",
    "experiment",
    "job",
    "trial",
    "seed",
    "fold",
    "case",
    "test",
    "sim",
    "version",
    "v",
    "model",
    "stage",
    "phase",
    "attempt",
    "group",
    "config",
    "dataset",
];
const STATE_WORDS: &[&str] = &[
    "ckpt",
    "chk",
    "chkpt",
    "checkpoint",
    "dump",
    "state",
    "restart",
    "snap",
    "snapshot",
    "save",
    "plt",
    "out",
    "output",
    "data",
    "field",
    "file",
    "time",
];
/// Numbers are dense if more than 1 / `DENSE` of those up to the largest one occur.
const DENSE: u64 = 4;

/// Input: a file.
pub struct File<'a, Key> {
    /// Caller's key of the file.
    pub key: Key,
    /// Path of the file.
    pub path: &'a [u8],
    /// Time of its last change.
    pub mtime_ns: i64,
    /// Whether a run that has ended left it in this state.
    pub is_left: bool,
}

/// A file with the numbers in its name.
struct Numbered<'a, Key> {
    key: Key,
    path: &'a [u8],
    mtime_ns: i64,
    is_left: bool,
    numbers: Vec<u64>,
    /// Byte ranges of the numbers in the path.
    places: Vec<Range<usize>>,
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
    for File { key, path, mtime_ns, is_left } in files {
        let places = numbers_in(path);
        let numbers: Vec<u64> = places.iter().map(|place| number(&path[place.clone()])).collect();
        if !numbers.is_empty() {
            // No path contains this byte, so all members of a series have equally many numbers.
            let template = replaced(path, &places, |_| Some("\0"));
            let numbered = Numbered { key, path, mtime_ns, is_left, numbers, places };
            series.entry(template).or_default().push(numbered);
        }
    }
    let roles_of = |members: Vec<_>| (roles_in(&members, ranks, is_known), members);
    let series: Vec<_> = series.into_values().map(roles_of).collect();
    let mut steps: BTreeMap<&[u8], BTreeSet<u64>> = BTreeMap::new();
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
        place_series(is_without.then(beside).flatten().or(roles)?, members)
    };
    series.into_iter().filter_map(place).flatten().collect()
}

/// Returns the path of the directory that contains a file.
fn directory(path: &[u8]) -> &[u8] {
    &path[..path.iter().rposition(|&byte| byte == b'/').unwrap_or(0)]
}

/// Whether the word before the number at `start` is one of `words`, or the plural of one.
fn is_behind(path: &[u8], start: usize, words: &[&str]) -> bool {
    let path = &path[..start];
    let separators = path.iter().rev().take_while(|byte| b"_-.=/".contains(byte)).count();
    let path = &path[..path.len() - separators];
    let length = path.iter().rev().take_while(|byte| byte.is_ascii_alphabetic()).count();
    let word = path[path.len() - length..].to_ascii_lowercase();
    let word = word.strip_suffix(b"s").unwrap_or(&word);
    words.iter().any(|known| known.as_bytes() == word)
}

/// Returns the ranges of digits that are numbers or dates.
fn numbers_in(path: &[u8]) -> Vec<Range<usize>> {
    let mut places = Vec::new();
    let mut at = 0;
    while at < path.len() {
        let date = date_length(&path[at..]);
        let digits = path[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let length = date.unwrap_or(digits);
        if date.is_some() || (1..=DIGITS_MAX).contains(&digits) {
            places.push(at..at + length);
        }
        at += length.max(1);
    }
    places
}

/// Returns the length of the date that `text` begins with, including a time of day behind it:
/// `2026-11-23T17-05-09`, `20261123_170509`.
fn date_length(text: &[u8]) -> Option<usize> {
    let is_whole = |at: usize, length: usize| {
        let digits = text.get(at..at + length).unwrap_or_default();
        let ends = !text.get(at + length).is_some_and(u8::is_ascii_digit);
        digits.len() == length && digits.iter().all(u8::is_ascii_digit) && ends
    };
    let is_any =
        |at: usize, separators: &[u8]| text.get(at).is_some_and(|it| separators.contains(it));
    let two = |at: usize| number(text.get(at..at + 2).unwrap_or_default());
    let is_day =
        |month: usize, day: usize| (1..=12).contains(&two(month)) && (1..=31).contains(&two(day));
    let is_time = |at: usize, length: usize| {
        let mut parts = (at..at + length).step_by(2);
        parts.next().is_some_and(|hour| two(hour) < 24) && parts.all(|part| two(part) < 60)
    };
    if !(text.starts_with(b"19") || text.starts_with(b"20")) {
        return None;
    }
    if is_whole(0, 8) && is_any(8, b"-_T") {
        let is_found = |length: &usize| is_whole(9, *length) && is_day(4, 6) && is_time(9, *length);
        return [6, 4].into_iter().find(is_found).map(|length| 9 + length);
    }
    let is_date = is_whole(0, 4)
        && is_any(4, b"-_")
        && is_whole(5, 2)
        && text[7..].first() == Some(&text[4])
        && is_whole(8, 2)
        && is_day(5, 8);
    let mut end = is_date.then_some(10)?;
    while end < 19 && is_any(end, b"-_:.T") && is_whole(end + 1, 2) {
        end += 3;
    }
    Some(end)
}

/// Returns the digits of `text` as a number. There are few enough to fit.
fn number(text: &[u8]) -> u64 {
    let digits = text.iter().filter(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
}

/// Whether the number at `place` is the count of parts, or the number of one part of a count:
/// `model-00001-of-00005`.
fn is_of_count(path: &[u8], place: &Range<usize>) -> bool {
    let (before, behind) = (&path[..place.start], &path[place.end..]);
    let ends = |word: &[u8]| before.ends_with(word);
    let begins = |word: &[u8]| {
        let digit = behind.strip_prefix(word).and_then(|rest| rest.first());
        digit.is_some_and(u8::is_ascii_digit)
    };
    [&b"-of-"[..], b"_of_"].into_iter().any(|word| ends(word) || begins(word))
}

/// Whether the number at `place` is that of a part.
fn is_part(path: &[u8], place: &Range<usize>) -> bool {
    is_behind(path, place.start, PART_WORDS) || is_of_count(path, place)
}

/// Returns `path` with words in place of those numbers for which `word` returns one.
fn replaced(
    path: &[u8],
    places: &[Range<usize>],
    word: impl Fn(usize) -> Option<&'static str>,
) -> Vec<u8> {
    let (mut text, mut at) = (Vec::with_capacity(path.len()), 0);
    for (index, place) in places.iter().enumerate() {
        let Some(word) = word(index) else { continue };
        text.extend_from_slice(&path[at..place.start]);
        text.extend_from_slice(word.as_bytes());
        at = place.end;
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
        let mut varying = varying(members);
        let is_certain = step.is_none_or(|step| varying != [step] || !may_be_parts(members, step));
        let is_rank = |&index: &usize| {
            let values = values(members, index);
            let are_some = |ranks: &Ranks| ranks.among(&values) as usize == values.len();
            Some(index) != step && ranks.is_some_and(are_some)
        };
        let rank = varying.iter().copied().find(is_rank);
        varying.extend(step.filter(|step| !varying.contains(step)));
        // Other parts may exist although none is here.
        let path = members[0].path;
        let is_part = |index: &usize| is_part(path, &members[0].places[*index]);
        let parts: Vec<usize> = (0..members[0].places.len()).filter(is_part).collect();
        varying.extend(parts);
        Roles { step, rank, varying, is_certain }
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
        let step_end = self.step.map_or(path.len(), |step| member.places[step].end);
        let directory_end =
            path[step_end..].iter().position(|&byte| byte == b'/').map(|length| step_end + length);
        let end = directory_end.unwrap_or(path.len());
        let places: Vec<_> =
            member.places.iter().filter(|place| place.end <= end).cloned().collect();
        Position {
            family: Family(replaced(&path[..end], &places, |index| self.word(index))),
            step: self.step.map(|step| member.numbers[step]),
            rank: self.rank.map(|rank| member.numbers[rank]),
            is_directory: directory_end.is_some(),
            is_certain: self.is_certain,
        }
    }
}

/// Whether files that differ only in the number at `index` may be the parts of one step, which is
/// another number then.
fn may_be_parts<Key>(members: &[Numbered<'_, Key>], index: usize) -> bool {
    let (path, places) = (members[0].path, &members[0].places);
    let values = values(members, index);
    let most = values.last().copied().unwrap_or(0);
    // Parts of one step are written together.
    let is_dense = values.len() as u64 * DENSE > most && taken_ns(members) < TOGETHER_NS;
    let is_said = is_behind(path, places[index].start, STEP_WORDS);
    let mut others = places.iter().enumerate().filter(|&(other, _)| other != index);
    is_dense && !is_said && others.any(|(_, place)| may_be_step(path, place))
}

/// Whether the number at `place` may be a step: it is not part of a word, such as `resnet50` or
/// `.h5`, and not the number of a run, a date or a part.
fn may_be_step(path: &[u8], place: &Range<usize>) -> bool {
    let before = &path[..place.start];
    let letters = before.iter().rev().take_while(|byte| byte.is_ascii_alphabetic()).count();
    let is_ending =
        letters > 0 && before[..before.len() - letters].ends_with(b".") && place.end == path.len();
    let is_word = letters > 1 && !is_behind(path, place.start, STATE_WORDS) || is_ending;
    let is_date = date_length(&path[place.start..]).is_some();
    !is_word && !is_date && !is_part(path, place) && !is_behind(path, place.start, RUN_WORDS)
}

fn roles_in<Key>(
    members: &[Numbered<'_, Key>],
    ranks: Option<&Ranks>,
    is_known: &dyn Fn(&Family) -> bool,
) -> Option<Roles> {
    let with = |step: usize| Roles::with(Some(step), members, ranks);
    let mut known = (0..members[0].places.len()).map(with);
    let known = known.find(|roles| is_known(&roles.position(&members[0]).family));
    let certain = known.map(|roles| Roles { is_certain: true, ..roles });
    certain.or_else(|| roles(members, ranks))
}

/// Returns the roles in a series with one step throughout, if other series in its directory have
/// that step.
fn roles_beside<Key>(
    members: &[Numbered<'_, Key>],
    ranks: Option<&Ranks>,
    steps: &BTreeSet<u64>,
) -> Option<Roles> {
    let varying = varying(members);
    let first = &members[0];
    let in_name = |place: &Range<usize>| place.start >= directory(first.path).len();
    let is_step = |&index: &usize| {
        let place = &first.places[index];
        in_name(place)
            && !varying.contains(&index)
            && !is_part(first.path, place)
            && steps.contains(&first.numbers[index])
    };
    let step = (0..first.places.len()).find(is_step)?;
    Some(Roles::with(Some(step), members, ranks))
}

fn place_series<Key>(
    roles: Roles,
    members: Vec<Numbered<'_, Key>>,
) -> Option<Vec<(Key, Position)>> {
    let parts = roles.step.map_or(members.len(), |step| values(&members, step).len());
    let place = |member: Numbered<'_, Key>| {
        let position = roles.position(&member);
        (member.key, position)
    };
    (parts <= SERIES_MAX).then(|| members.into_iter().map(place).collect())
}

/// Returns the numbers at `index`.
fn values<Key>(members: &[Numbered<'_, Key>], index: usize) -> BTreeSet<u64> {
    members.iter().map(|member| member.numbers[index]).collect()
}

/// Derives the roles from names and times. Returns None if they tell nothing.
fn roles<Key>(members: &[Numbered<'_, Key>], ranks: Option<&Ranks>) -> Option<Roles> {
    let (path, places) = (members[0].path, &members[0].places);
    let is_behind = |index: &usize, words| is_behind(path, places[*index].start, words);
    let varying = varying(members);
    let mut may_be_steps = varying.clone();
    may_be_steps.retain(|index| !is_part(path, &places[*index]));
    let said: Vec<usize> = (0..places.len()).filter(|index| is_behind(index, STEP_WORDS)).collect();
    let counts_ranks = |index| ranks.is_some_and(|ranks| ranks.are(&values(members, index)));
    let are_ranks = |index| {
        let values = values(members, index);
        ranks.is_some_and(|ranks| ranks.among(&values) as usize == values.len())
    };
    let has_ranks = varying.iter().any(|&index| counts_ranks(index));
    let is_decimal = |&index: &usize| !has_ranks && has_decimals(path, places, index, &varying);
    if said.iter().chain(&may_be_steps).any(is_decimal) {
        return None;
    }
    let step = match (&said[..], &may_be_steps[..]) {
        (&[said], _) => Some(said),
        (_, []) => None,
        (_, &[only]) => Some(only).filter(|_| {
            let may_be_parts = are_ranks(only) && taken_ns(members) < TOGETHER_NS;
            varying.len() > 1 || !counts_ranks(only) && !may_be_parts
        }),
        _ => may_be_steps.into_iter().min_by_key(|&index| {
            (counts_ranks(index), are_ranks(index), spread(members, index), index)
        }),
    };
    (step.is_some() || !varying.is_empty()).then(|| Roles::with(step, members, ranks))
}

/// Whether the number at `index` is followed by decimals, and both vary; in `dump.100.3` it is not,
/// because a dot precedes it.
fn has_decimals(path: &[u8], places: &[Range<usize>], index: usize, varying: &[usize]) -> bool {
    let Some(behind) = places.get(index + 1) else { return false };
    let start = places[index].start;
    let begins = start == 0 || path[start - 1] != b'.';
    let is_pair = behind.start == places[index].end + 1 && path[places[index].end] == b'.';
    begins && is_pair && [index, index + 1].iter().all(|it| varying.contains(it))
}

/// Returns the indexes of the numbers that differ between names.
fn varying<Key>(members: &[Numbered<'_, Key>]) -> Vec<usize> {
    let places = 0..members[0].places.len();
    places.filter(|&index| values(members, index).len() > 1).collect()
}

/// Returns the time it took to write all files, without those that an earlier run left.
fn taken_ns<Key>(members: &[Numbered<'_, Key>]) -> u64 {
    let written = members.iter().filter(|member| !member.is_left);
    let times = || written.clone().map(|member| member.mtime_ns);
    times().max().zip(times().min()).map_or(0, |(last, first)| last.abs_diff(first))
}

/// Returns the total time it took to write the files, summed over groups with the same number at
/// `index`.
fn spread<Key>(members: &[Numbered<'_, Key>], index: usize) -> u128 {
    let mut times: BTreeMap<u64, (i64, i64)> = BTreeMap::new();
    for member in members {
        let range = times.entry(member.numbers[index]).or_insert((i64::MAX, i64::MIN));
        *range = (range.0.min(member.mtime_ns), range.1.max(member.mtime_ns));
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
            mtime_ns,
            is_left: false,
        });
        let is_known = |family: &Family| known.contains(&family.to_string().as_str());
        let positions = positions(named, ranks, &is_known);
        let plain =
            |position: Position| (position.family.to_string(), position.step, position.rank);
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
                let (key, path, mtime_ns, is_left) = (at, name.as_bytes(), at as i64, false);
                File { key, path, mtime_ns, is_left }
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
            File { key, path, mtime_ns: second * 1_000_000_000, is_left: false }
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
    /// and decimals are recognised.
    #[test]
    fn dates_are_numbers_and_numbers_with_decimals_no_steps() {
        let dated = [("c-2026-11-23T17-05-09.pt", 1), ("c-2026-11-23T18-05-40.pt", 9)];
        let of = |step| ("c-{step}.pt".to_string(), Some(step), None);
        assert_eq!(found(&dated, None), [of(20_261_123_170_509), of(20_261_123_180_540)]);
        let short = [("c-20261123_170509.pt", 1), ("c-20261123_180509.pt", 9)];
        assert_eq!(found(&short, None), [of(20_261_123_170_509), of(20_261_123_180_509)]);
        assert_eq!(found(&[("out_0.5.h5", 1), ("out_1.0.h5", 2), ("out_1.5.h5", 3)], None), []);
        assert_eq!(found(&[("0.5/U", 1), ("1.5/U", 2), ("1.25/U", 3)], None), []);
        let ranked = [("s100.0", 1), ("s100.1", 1), ("s200.0", 9), ("s200.1", 9)];
        assert_eq!(found(&ranked, Some(2))[3], ("s{step}.{rank}".to_string(), Some(200), Some(1)));
        let no_days = ["20000000-000003", "20001301_0000", "20001201_2400", "2000-00-10"];
        let no_dates = ["2026-11", "2026-11-2", "12026-11-23", "202611231-170509", "1826-11-23"];
        for plain in no_dates.into_iter().chain(no_days) {
            assert_eq!(date_length(plain.as_bytes()), None, "{plain}");
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
