//! Names of checkpoints: a family, and the step within it.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

use crate::model::path::{deserialize_bytes, serialize_bytes};

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
    pub step: Option<u64>,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = self.family.to_string();
        match self.step {
            Some(step) if family.contains("{step}") => {
                let family = family.replace("{step}", &step.to_string());
                f.write_str(&family.replace("{any}", "*").replace("{rank}", "*"))
            }
            Some(step) => write!(f, "{family} {step}"),
            None => f.write_str(&family),
        }
    }
}
