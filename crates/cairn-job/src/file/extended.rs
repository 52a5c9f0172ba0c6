//! Extended attributes of files: names and values, and the record of them in a manifest.

use crate::file::json_text::{read_checksum, write_checksum};
use crate::file::path::{deserialize_bytes, serialize_bytes};
use cairn_core::ExtendedAttributes;
use cairn_platform::checksum;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Extended attributes that a file had in the store when they were set on its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// CRC32C of names and values.
    #[serde(serialize_with = "write_checksum", deserialize_with = "read_checksum")]
    pub crc32c: u32,
    /// Whether the copy has all of them: its file system supports them and had room.
    pub kept: bool,
}

/// Extended attributes: names and values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(Bytes, Bytes)>", into = "Vec<(Bytes, Bytes)>")]
pub struct Extended(BTreeMap<Vec<u8>, Vec<u8>>);

/// Bytes of a name or a value in a file of ours.
#[derive(Clone, Serialize, Deserialize)]
struct Bytes(
    #[serde(serialize_with = "serialize_bytes", deserialize_with = "deserialize_bytes")] Vec<u8>,
);

impl From<Vec<(Bytes, Bytes)>> for Extended {
    fn from(pairs: Vec<(Bytes, Bytes)>) -> Extended {
        Extended(pairs.into_iter().map(|(name, value)| (name.0, value.0)).collect())
    }
}

impl From<Extended> for Vec<(Bytes, Bytes)> {
    fn from(extended: Extended) -> Vec<(Bytes, Bytes)> {
        extended.0.into_iter().map(|(name, value)| (Bytes(name), Bytes(value))).collect()
    }
}

impl Extended {
    /// Returns the attributes of a file in a store.
    pub fn of(attributes: &ExtendedAttributes) -> Extended {
        attributes.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
    }

    /// Names and values, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.iter().map(|(name, value)| (name.as_slice(), value.as_slice()))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns their record for the manifest; `kept` says whether the copy has them.
    pub fn carried(&self, kept: bool) -> Option<Carried> {
        let summed = |crc32c, bytes: &Vec<u8>| {
            let length = (bytes.len() as u64).to_le_bytes();
            checksum::crc32c(checksum::crc32c(crc32c, &length), bytes)
        };
        let attributes = self.0.iter();
        let crc32c =
            attributes.fold(0, |crc32c, (name, value)| summed(summed(crc32c, name), value));
        (!self.is_empty()).then_some(Carried { crc32c, kept })
    }
}

impl FromIterator<(Vec<u8>, Vec<u8>)> for Extended {
    fn from_iter<T: IntoIterator<Item = (Vec<u8>, Vec<u8>)>>(attributes: T) -> Extended {
        Extended(attributes.into_iter().collect())
    }
}
