//! Names of checkpoints: a family, and the step within it.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use crate::file::path::{FilePath, deserialize_bytes, serialize_bytes};

/// Checkpoints that supersede each other: a path with `{step}` in place of the number, or a name
/// that a program gave.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Family(pub Vec<u8>);

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl Serialize for Family {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize_bytes(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for Family {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Family, D::Error> {
        deserialize_bytes(deserializer).map(Family)
    }
}

/// Identity of a checkpoint within a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Name {
    /// Family of the checkpoint.
    pub family: Family,
    /// Step; None where all checkpoints of the family have the same name.
    pub step: Option<Step>,
}

impl Name {
    /// Returns the name for a message: a name that is there. That of a checkpoint of one file is
    /// the file's path, where the family leaves something open.
    pub fn shown(&self, files: u64, place: &FilePath) -> String {
        let family = self.family.to_string();
        let is_open = family.contains("{any}") || family.contains("{rank}");
        if files == 1 && is_open { place.to_string() } else { self.to_string() }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = self.family.to_string();
        match &self.step {
            Some(step) if family.contains("{step}") => {
                let family = family.replace("{step}", &step.0);
                f.write_str(&family.replace("{any}", "*").replace("{rank}", "*"))
            }
            Some(step) => write!(f, "{family} {step}"),
            None => f.write_str(&family),
        }
    }
}

/// Step of a checkpoint, as its name has it: `10`, `00007`, `0.25`, `2026-11-23T17-05-09`.
///
/// Steps are ordered by value: a single point begins decimals; all digits of anything else, such as
/// a date, are one number. Steps of one value are ordered by their text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Step(String);

impl Step {
    /// Returns the step with this text; None if it is longer than [`Step::BYTES_MAX`], or does not
    /// begin and end with a digit.
    pub fn parse(text: &[u8]) -> Option<Step> {
        let ends = [text.first()?, text.last()?];
        let is_step = text.len() <= Self::BYTES_MAX
            && text.is_ascii()
            && ends.into_iter().all(u8::is_ascii_digit);
        Some(Step(String::from_utf8(text.to_vec()).ok().filter(|_| is_step)?))
    }

    /// Maximum length of a step.
    pub const BYTES_MAX: usize = 40;

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the value; None if it has decimals or is too large.
    pub fn whole_number(&self) -> Option<u64> {
        match self.parts() {
            (whole, "") if whole.is_empty() => Some(0),
            (whole, "") => whole.parse().ok(),
            _ => None,
        }
    }

    /// Returns the value for a chart.
    pub fn approximate(&self) -> f64 {
        let (whole, decimals) = self.parts();
        format!("0{whole}.{decimals}0").parse().unwrap_or(f64::INFINITY)
    }

    /// Returns the value: `7` and `007` have the same.
    pub fn value(&self) -> Value {
        let (whole, decimals) = self.parts();
        Value { length: whole.len(), whole: whole.into_owned(), decimals: decimals.to_string() }
    }

    /// Returns the digits before the point without leading zeros, and those behind it without
    /// trailing ones.
    fn parts(&self) -> (Cow<'_, str>, &str) {
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let (whole, decimals) = match self.0.split_once('.') {
            Some((whole, decimals)) if is_number(whole) && is_number(decimals) => (whole, decimals),
            _ => (&self.0[..], ""),
        };
        let decimals = decimals.trim_end_matches('0');
        if is_number(whole) {
            return (Cow::Borrowed(whole.trim_start_matches('0')), decimals);
        }
        let digits: String = whole.chars().filter(char::is_ascii_digit).collect();
        (Cow::Owned(digits.trim_start_matches('0').to_string()), decimals)
    }
}

/// Value of a step.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Value {
    length: usize,
    whole: String,
    decimals: String,
}

impl Ord for Step {
    fn cmp(&self, other: &Step) -> Ordering {
        let (one, two) = (self.parts(), other.parts());
        let by_length = one.0.len().cmp(&two.0.len());
        by_length.then_with(|| one.cmp(&two)).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for Step {
    fn partial_cmp(&self, other: &Step) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl From<u64> for Step {
    fn from(number: u64) -> Step {
        Step(number.to_string())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A number where its digits are the text, as older versions have it; else a string.
impl Serialize for Step {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.parse::<u64>() {
            Ok(number) if number.to_string() == self.0 => serializer.serialize_u64(number),
            _ => serializer.serialize_str(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Step {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Step, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(number) => Ok(Step::from(number)),
            Written::Text(text) => Step::parse(text.as_bytes())
                .ok_or_else(|| serde::de::Error::custom(format!("{text:?} is no step"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(text: &str) -> Step {
        Step::parse(text.as_bytes()).expect("a step")
    }

    #[test]
    fn steps_are_ordered_by_value_and_then_by_text() {
        let ordered = [
            "0",
            "0.0",
            "0.01",
            "0.05",
            "0.1",
            "0.25",
            "1",
            "1.0",
            "01",
            "1.5",
            "9",
            "00010",
            "10",
            "2026-11-23",
            "20261124",
            "2026-11-23T17-05-09",
            "99999999999999999999999",
        ];
        let mut sorted: Vec<Step> = ordered.iter().rev().map(|text| step(text)).collect();
        sorted.sort();
        let of_one_value = |one: &str, other: &str| step(one).value() == step(other).value();
        let texts: Vec<&str> = sorted.iter().map(Step::as_str).collect();
        for pair in ordered.windows(2).filter(|pair| !of_one_value(pair[0], pair[1])) {
            let place = |text| texts.iter().position(|one| *one == text);
            assert!(place(pair[0]) < place(pair[1]), "{pair:?} {texts:?}");
        }
        assert!(of_one_value("7", "007") && of_one_value("0.1", "0.10"));
        assert!(step("7") != step("007") && step("0.1") != step("0.01"));
        assert_eq!(step("007").whole_number(), Some(7));
        assert_eq!((step("000").whole_number(), step("0.5").whole_number()), (Some(0), None));
        assert_eq!((step("0.25").approximate(), step("0").approximate()), (0.25, 0.0));
    }

    #[test]
    fn steps_are_read_as_they_were_written_also_by_older_versions() {
        for (text, json) in [("7", "7"), ("007", "\"007\""), ("0.25", "\"0.25\""), ("0", "0")] {
            assert_eq!(serde_json::to_string(&step(text)).expect("is written"), json);
            assert_eq!(serde_json::from_str::<Step>(json).expect("is read"), step(text));
        }
        for no_step in ["", "a", "1a", ".1", "1."] {
            assert_eq!(Step::parse(no_step.as_bytes()), None, "{no_step}");
        }
        assert_eq!(Step::parse(&[b'1'; Step::BYTES_MAX + 1]), None);
    }

    #[test]
    fn names_are_those_that_files_have() {
        let name = |family: &str, text| Name {
            family: Family(family.as_bytes().to_vec()),
            step: Some(step(text)),
        };
        assert_eq!(name("ck_{step}", "00007").to_string(), "ck_00007");
        assert_eq!(name("{step}/U", "0.02").to_string(), "0.02/U");
        assert_eq!(name("saved", "3").to_string(), "saved 3");
        let path = FilePath::parse(b"run/epoch=1-step=20.ckpt").expect("a path");
        let lightning = name("run/epoch={any}-step={step}{any}.ckpt", "20");
        assert_eq!(lightning.shown(1, &path), "run/epoch=1-step=20.ckpt");
        assert_eq!(lightning.shown(2, &path), "run/epoch=*-step=20*.ckpt");
    }
}
