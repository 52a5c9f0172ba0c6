//! How far what is outside is behind what was written: the newest checkpoint of each family there,
//! and those that were complete after it, were wanted outside, and went before they were there.
//!
//! Must stay true: one that is outside is none of these, nor is any that is older than one that is.
//! Does not find out what has gone; `register.rs` does. What came and went between two looks is not
//! known, so a number is the least.

use super::Family;
use crate::persist::manifest::Manifest;
use serde::{Deserialize, Serialize};
use std::fmt;

const NANOSECONDS_PER_SECOND: i64 = 1_000_000_000;

/// The newest checkpoint of a family in the persist directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Outside {
    name: String,
    modified_ns: i64,
}

/// How a family stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Lag {
    family: Family,
    outside: Option<Outside>,
    /// Numbers of those that went, the lowest first.
    missed: Vec<u64>,
}

/// How all families stand of which something was wanted outside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lags(Vec<Lag>);

/// Checkpoints of a family that are nowhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Behind {
    /// The family.
    pub family: Family,
    /// How many complete ones, or more, went before they were in the persist directory, since the
    /// newest one there.
    pub missed: u64,
    /// The newest one there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outside: Option<String>,
    /// When that was written, seconds since the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outside_written: Option<i64>,
}

impl fmt::Display for Behind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Behind { family, missed, outside, .. } = self;
        let noun = if *missed == 1 { "checkpoint" } else { "checkpoints" };
        write!(f, "{missed} complete {noun} of {family} went before the drain had copied them; ")?;
        match outside {
            Some(newest) => write!(f, "the newest one outside is {newest}"),
            None => f.write_str("none is outside"),
        }
    }
}

impl Lags {
    fn of(&mut self, family: &Family) -> &mut Lag {
        let known = self.0.iter().position(|lag| lag.family == *family);
        let index = known.unwrap_or(self.0.len());
        if known.is_none() {
            self.0.push(Lag { family: family.clone(), outside: None, missed: Vec::new() });
        }
        &mut self.0[index]
    }

    /// The checkpoint of this number has gone.
    pub fn miss(&mut self, family: &Family, id: u64) {
        let missed = &mut self.of(family).missed;
        if let Err(place) = missed.binary_search(&id) {
            missed.insert(place, id);
        }
    }

    /// Nothing of a family is missed of which there `are` none any more: the program has cleared
    /// up.
    pub fn forgive(&mut self, are: impl Fn(&Family) -> bool) {
        let cleared = self.0.iter_mut().filter(|lag| !are(&lag.family));
        cleared.for_each(|lag| lag.missed.clear());
    }

    /// Takes note of what `manifest` has.
    pub fn compare(&mut self, manifest: &Manifest) {
        for known in &manifest.checkpoints {
            let lag = self.of(&known.name.family);
            let (name, modified_ns) = (known.name.to_string(), known.modified_ns);
            // The newest is the last.
            lag.outside = Some(Outside { name, modified_ns });
            if known.store == manifest.store {
                lag.missed.retain(|id| *id > known.id);
            }
        }
    }

    /// All numbers are so much higher.
    pub fn raise(&mut self, by: u64) {
        self.0.iter_mut().flat_map(|lag| &mut lag.missed).for_each(|id| *id += by);
    }

    /// The families of which something was missed.
    pub fn behind(&self) -> Vec<Behind> {
        let behind = self.0.iter().filter(|lag| !lag.missed.is_empty());
        let plain = |lag: &Lag| Behind {
            family: lag.family.clone(),
            missed: lag.missed.len() as u64,
            outside: lag.outside.as_ref().map(|known| known.name.clone()),
            outside_written: lag
                .outside
                .as_ref()
                .map(|known| known.modified_ns.div_euclid(NANOSECONDS_PER_SECOND)),
        };
        behind.map(plain).collect()
    }
}
