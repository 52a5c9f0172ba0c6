//! Transfer of extended attributes between a store and ordinary files.
//!
//! Must stay true: extended attributes keep no file from being drained or restored. An attribute
//! that a file system does not accept is left out, and the caller is told.

use cairn_core::{ExtendedAttributes, ExtendedUpdate, InodeId};
use cairn_platform::checksum;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};

use crate::model::format::{read_checksum, write_checksum};
use crate::model::path::{deserialize_bytes, serialize_bytes};
use crate::store::volume::Volume;

/// The only attribute namespace that a store supports.
const NAMESPACE: &[u8] = b"user.";
/// Longest list of names and longest value that the kernel returns, bytes.
const BYTES_MAX: usize = 64 << 10;

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

    /// Reads the attributes of an ordinary file; empty if its file system has none or does not
    /// return them.
    pub fn read(file: impl AsFd) -> Extended {
        let path = path_of(&file);
        let mut value = vec![0; BYTES_MAX];
        let mut found = BTreeMap::new();
        for name in names(&path) {
            if let Ok(length) = rustix::fs::getxattr(&path, name.as_slice(), &mut value) {
                found.insert(name, value[..length].to_vec());
            }
        }
        Extended(found)
    }

    /// Sets exactly these attributes on an ordinary file and removes all others. Returns whether
    /// that succeeded.
    pub fn give(&self, file: impl AsFd) -> bool {
        let path = path_of(&file);
        let others = names(&path).into_iter().filter(|name| !self.0.contains_key(name));
        let mut is_whole = true;
        for name in others {
            is_whole &= rustix::fs::removexattr(&path, name.as_slice()).is_ok();
        }
        for (name, value) in &self.0 {
            let set = rustix::fs::setxattr(&path, name.as_slice(), value, XattrFlags::empty());
            is_whole &= set.is_ok();
            if set == Err(Errno::NOTSUP) {
                break;
            }
        }
        is_whole
    }

    /// Sets these attributes on a file of a store, as far as there is room.
    pub fn put(&self, volume: &Volume, inode: InodeId) -> cairn_core::Result<()> {
        use cairn_core::Error::{Invalid, NoSpace, NotSupported};
        for (name, value) in self.iter() {
            let update = ExtendedUpdate::default();
            match volume.fs().set_extended(&volume.caller(), inode, name, value, update) {
                Ok(()) | Err(NoSpace | NotSupported | Invalid) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
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

/// Returns a path that leads to exactly this open file, whatever the mode it was opened in.
fn path_of(file: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

fn names(path: &str) -> Vec<Vec<u8>> {
    let mut list = vec![0; BYTES_MAX];
    let length = rustix::fs::listxattr(path, &mut list).unwrap_or(0);
    let names = list[..length].split(|&byte| byte == 0);
    names.filter(|name| name.starts_with(NAMESPACE)).map(<[u8]>::to_vec).collect()
}
