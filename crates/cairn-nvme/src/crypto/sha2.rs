//! SHA-256, SHA-384 and SHA-512 (FIPS 180-4), and HMAC over them (RFC 2104).
//!
//! Invariant: hashed bytes are wiped from the buffers; both crates have a feature for that.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};

use super::wiped::Wiped;

/// A hash function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl Hash {
    /// Length of a digest, bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => 64,
        }
    }

    /// Digest of the concatenated parts.
    pub fn of(self, parts: &[&[u8]]) -> Wiped {
        match self {
            Hash::Sha256 => digest::<Sha256>(parts),
            Hash::Sha384 => digest::<Sha384>(parts),
            Hash::Sha512 => digest::<Sha512>(parts),
        }
    }

    /// HMAC of the concatenated parts under `key`.
    pub fn mac(self, key: &[u8], parts: &[&[u8]]) -> Wiped {
        match self {
            Hash::Sha256 => mac::<Hmac<Sha256>>(key, parts),
            Hash::Sha384 => mac::<Hmac<Sha384>>(key, parts),
            Hash::Sha512 => mac::<Hmac<Sha512>>(key, parts),
        }
    }
}

fn digest<D: Digest>(parts: &[&[u8]]) -> Wiped {
    let mut state = D::new();
    parts.iter().for_each(|part| state.update(part));
    Wiped::taken_from(&mut state.finalize())
}

fn mac<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Wiped {
    let mut state = <M as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| state.update(part));
    Wiped::taken_from(&mut state.finalize().into_bytes())
}

#[cfg(test)]
mod tests;
