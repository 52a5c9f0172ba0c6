//! The numbers in a name, and what the words before them say.
//!
//! Pure. A date with a time is one number, and so is a directory's name of digits with a decimal
//! point. A run of letters and digits that looks like a hash is no number, but stands where names
//! of one series differ.

use std::ops::Range;

/// Maximum number of digits of a number.
const DIGITS_MAX: usize = 19;
/// Minimum length of a hash, and how often letters and digits must alternate in it.
const HASH_BYTES_MIN: usize = 8;
const HASH_CHANGES_MIN: usize = 2;
/// Lengths of the groups of a UUID.
const UUID: [usize; 5] = [8, 4, 4, 4, 12];

/// Words before a number that make it a step, and words that make it the number of a part.
pub const STEP_WORDS: &[&str] = &["step", "iter", "iteration", "epoch", "cycle"];
pub const PART_WORDS: &[&str] = &[
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
pub const RUN_WORDS: &[&str] = &[
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
pub const STATE_WORDS: &[&str] = &[
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
/// Where names of a series may differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Where it is, bytes.
    pub range: Range<usize>,
    /// Whether it is a hash.
    pub is_hash: bool,
}

/// Value of a number: what is before the decimal point, and what is behind it, in units of
/// 10<sup>-18</sup>. Of a hash: any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(pub u64, pub u64);

/// Number of decimals that count.
const DECIMALS_MAX: usize = 18;

impl Amount {
    /// Returns the value of the text at a place.
    pub fn of(text: &[u8], is_hash: bool) -> Amount {
        if is_hash {
            // FNV-1a.
            let mix = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
            return Amount(text.iter().fold(0xcbf2_9ce4_8422_2325, mix), 0);
        }
        let point = text.iter().position(|&byte| byte == b'.').filter(|&at| is_plain(text, at));
        let (whole, decimals) = text.split_at(point.unwrap_or(text.len()));
        let digits = decimals.iter().skip(1).chain(std::iter::repeat(&b'0')).take(DECIMALS_MAX);
        let decimals = digits.fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
        Amount(number(whole), decimals)
    }
}

/// Whether `text` has digits, a point at `at`, and digits.
fn is_plain(text: &[u8], at: usize) -> bool {
    let are_digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    are_digits(&text[..at]) && are_digits(&text[at + 1..])
}

/// Returns the places of `path`.
pub fn places(path: &[u8]) -> Vec<Place> {
    let mut places = Vec::new();
    let mut at = 0;
    while at < path.len() {
        let starts = at == 0 || !path[at - 1].is_ascii_alphanumeric();
        let digits = path[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let hash = hash_length(&path[at..]).filter(|_| starts);
        let whole = date_length(&path[at..]).or_else(|| decimal_directory_length(path, at));
        let length = hash.or(whole).unwrap_or(digits);
        if hash.is_some() || whole.is_some() || (1..=DIGITS_MAX).contains(&digits) {
            places.push(Place { range: at..at + length, is_hash: hash.is_some() });
        }
        at += length.max(1);
    }
    places
}

/// Returns the length of the hash that `text` begins with: hexadecimal digits, or a UUID.
fn hash_length(text: &[u8]) -> Option<usize> {
    let is_hex = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    let length = |text: &[u8]| text.iter().take_while(|byte| is_hex(byte)).count();
    let ends = |at: usize| !text.get(at).is_some_and(u8::is_ascii_alphanumeric);
    let groups = text.splitn(UUID.len() + 1, |&byte| byte == b'-');
    if UUID.iter().eq(groups.take(UUID.len()).map(length).collect::<Vec<_>>().iter()) {
        return Some(UUID.iter().sum::<usize>() + UUID.len() - 1).filter(|&end| ends(end));
    }
    let end = length(text);
    let kinds = text[..end].windows(2).map(|pair| [pair[0], pair[1]].map(|it| it.is_ascii_digit()));
    let changes = kinds.filter(|[one, other]| one != other).count();
    (end >= HASH_BYTES_MIN && changes >= HASH_CHANGES_MIN && ends(end)).then_some(end)
}

/// Returns the length of the component at `at` if it is the name of a directory, and digits with a
/// point between them.
fn decimal_directory_length(path: &[u8], at: usize) -> Option<usize> {
    let starts = at == 0 || path[at - 1] == b'/';
    let length = path[at..].iter().position(|&byte| byte == b'/').filter(|_| starts)?;
    let point = path[at..at + length].iter().position(|&byte| byte == b'.')?;
    (length <= DIGITS_MAX && is_plain(&path[at..at + length], point)).then_some(length)
}

/// Returns the digits of `text` as a number. There are few enough to fit.
pub fn number(text: &[u8]) -> u64 {
    let digits = text.iter().filter(|byte| byte.is_ascii_digit());
    digits.fold(0u64, |number, digit| {
        number.saturating_mul(10).saturating_add(u64::from(digit - b'0'))
    })
}

/// Returns the length of the date that `text` begins with, including a time of day behind it:
/// `2026-11-23T17-05-09`, `20261123_170509`.
pub fn date_length(text: &[u8]) -> Option<usize> {
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

/// Whether the word before the number at `start` is one of `words`, or the plural of one.
pub fn is_behind(path: &[u8], start: usize, words: &[&str]) -> bool {
    let path = &path[..start];
    let separators = path.iter().rev().take_while(|byte| b"_-.=/".contains(byte)).count();
    let path = &path[..path.len() - separators];
    let length = path.iter().rev().take_while(|byte| byte.is_ascii_alphabetic()).count();
    let word = path[path.len() - length..].to_ascii_lowercase();
    let word = word.strip_suffix(b"s").unwrap_or(&word);
    words.iter().any(|known| known.as_bytes() == word)
}

/// Whether the number at `place` is the count of parts, or the number of one part of a count:
/// `model-00001-of-00005`.
pub fn is_of_count(path: &[u8], place: &Range<usize>) -> bool {
    let (before, behind) = (&path[..place.start], &path[place.end..]);
    let ends = |word: &[u8]| before.ends_with(word);
    let begins = |word: &[u8]| {
        let digit = behind.strip_prefix(word).and_then(|rest| rest.first());
        digit.is_some_and(u8::is_ascii_digit)
    };
    [&b"-of-"[..], b"_of_"].into_iter().any(|word| ends(word) || begins(word))
}

/// Whether the number at `place` is that of a part.
pub fn is_part(path: &[u8], place: &Range<usize>) -> bool {
    is_behind(path, place.start, PART_WORDS) || is_of_count(path, place)
}

/// Whether the number at `place` may be a step: it is not part of a word, such as `resnet50` or
/// `.h5`, and not the number of a run, a date or a part.
pub fn may_be_step(path: &[u8], place: &Range<usize>) -> bool {
    let before = &path[..place.start];
    let letters = before.iter().rev().take_while(|byte| byte.is_ascii_alphabetic()).count();
    let is_ending =
        letters > 0 && before[..before.len() - letters].ends_with(b".") && place.end == path.len();
    let is_word = letters > 1 && !is_behind(path, place.start, STATE_WORDS) || is_ending;
    // The date of a directory is that of a run.
    let is_date = date_length(&path[place.start..]).is_some() && path[place.end..].contains(&b'/');
    !is_word && !is_date && !is_part(path, place) && !is_behind(path, place.start, RUN_WORDS)
}
