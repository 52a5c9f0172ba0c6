//! Lag of the persist directory behind the store: the newest checkpoint of each family there, and
//! the later ones that were complete and wanted there but were removed before they were copied.
//!
//! Must stay true: a checkpoint in the persist directory is not missed, nor is one that is older
//! than one there. Does not find out which checkpoints are gone; `register.rs` does. Checkpoints
//! that appear and vanish between two looks are unknown, so the counts are lower bounds.

use crate::checkpoint::name::{Family, Name};
use serde::{Deserialize, Serialize};
use std::fmt;

const NANOSECONDS_PER_SECOND: i64 = 1_000_000_000;

/// Newest checkpoint of a family in the persist directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Outside {
    name: String,
    modified_ns: i64,
}

/// Lag of one family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Lag {
    family: Family,
    outside: Option<Outside>,
    /// Ids of the missed checkpoints, ascending.
    missed: Vec<u64>,
}

/// Lags of all families that have had a checkpoint wanted in the persist directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lags(Vec<Lag>);

/// Checkpoints of a family that were lost before they were copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Behind {
    /// Name of the family.
    pub family: Family,
    /// Lower bound of the number of complete checkpoints that were removed before they were in the
    /// persist directory, since the newest one there.
    pub missed: u64,
    /// Newest checkpoint in the persist directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outside: Option<String>,
    /// When that one was written, seconds since the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outside_written: Option<i64>,
}

impl fmt::Display for Behind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Behind { family, missed, outside, .. } = self;
        let noun = if *missed == 1 { "checkpoint" } else { "checkpoints" };
        write!(
            f,
            "{missed} complete {noun} of {family} were removed before the drain copied them; "
        )?;
        match outside {
            Some(newest) => write!(f, "the newest drained one is {newest}"),
            None => f.write_str("none is drained"),
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

    /// Records that checkpoint `id` is gone before it was copied.
    pub fn miss(&mut self, family: &Family, id: u64) {
        let missed = &mut self.of(family).missed;
        if let Err(place) = missed.binary_search(&id) {
            missed.insert(place, id);
        }
    }

    /// Clears the missed checkpoints of families of which none exist any more (`are` is false): the
    /// program has cleaned up.
    pub fn forgive(&mut self, are: impl Fn(&Family) -> bool) {
        let cleared = self.0.iter_mut().filter(|lag| !are(&lag.family));
        cleared.for_each(|lag| lag.missed.clear());
    }

    /// Records that checkpoint `name` is in the persist directory, the newest of its family there.
    /// `id` is its number in this store, if it comes from this store; missed ones that are older
    /// are forgotten.
    pub fn note_outside(&mut self, name: &Name, modified_ns: i64, id: Option<u64>) {
        let lag = self.of(&name.family);
        lag.outside = Some(Outside { name: name.to_string(), modified_ns });
        lag.missed.retain(|missed| id.is_none_or(|id| *missed > id));
    }

    /// Adds `by` to all ids.
    pub fn raise(&mut self, by: u64) {
        self.0.iter_mut().flat_map(|lag| &mut lag.missed).for_each(|id| *id += by);
    }

    /// Returns the families that have missed checkpoints.
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
