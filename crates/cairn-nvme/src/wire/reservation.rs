//! Reservations of namespaces (Base 7.2 to 7.5, 8.19) on the wire: actions, keys and reports.
//!
//! Invariant: an accepted report names at most one holder, and as many hosts as it claims.
//!
//! Knows only reservations of type Write Exclusive: the holder writes, everybody reads.

use super::{array_at, put, u16_at, u32_at, u64_at};

/// Action on a registration or reservation. The number is CDW10.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Reservation Register: carries the current key and the new one.
    Register(u32),
    /// Reservation Acquire: carries the host's own key and that of the host to preempt.
    Acquire(u32),
    /// Reservation Release: carries the host's own key.
    Release(u32),
}

/// RREGA: register a key.
pub const REGISTER: u32 = 0;
/// RREGA: remove the registration.
pub const UNREGISTER: u32 = 1;
/// RREGA: replace the registered key.
pub const REPLACE: u32 = 2;
/// RACQA: acquire the reservation.
pub const ACQUIRE: u32 = 0;
/// RACQA: take the reservation from its holder.
pub const PREEMPT: u32 = 1;
/// RACQA: as `PREEMPT`, and abort all commands of the former holder.
pub const PREEMPT_AND_ABORT: u32 = 2;
/// RRELA: release the reservation.
pub const RELEASE: u32 = 0;
/// RRELA: release the reservation and remove all registrations.
pub const CLEAR: u32 = 1;
/// Mask of the action.
pub const ACTION: u32 = 7;
/// IEKEY: ignore the current key.
pub const ANY_KEY: u32 = 1 << 3;
/// CPTPL of Reservation Register: persist through a loss of power.
pub const KEEP: u32 = 3 << 30;
/// Mask of the type.
pub const TYPE: u32 = 0xff << 8;
/// RTYPE: Write Exclusive.
pub const WRITE_EXCLUSIVE: u32 = 1 << 8;

/// Most hosts in a report that is encoded or decoded.
pub const HOSTS_MAX: usize = 63;
/// Length of a report of `HOSTS_MAX` hosts, bytes.
pub const REPORT_BYTES: usize = HEAD_BYTES + HOSTS_MAX * HOST_BYTES;
const HEAD_BYTES: usize = 64;
const HOST_BYTES: usize = 64;

/// A host that has registered a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registrant {
    /// HOSTID.
    pub host: [u8; 16],
    /// RKEY.
    pub key: u64,
    /// RCSTS: whether the host holds the reservation.
    pub is_holder: bool,
}

/// Registrations and reservation of a namespace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// GEN: changes whenever a registration changes.
    pub generation: u32,
    /// Registered hosts.
    pub hosts: Vec<Registrant>,
}

impl Report {
    /// Encodes the report.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEAD_BYTES + self.hosts.len() * HOST_BYTES];
        put(&mut bytes, 0, &self.generation.to_le_bytes());
        bytes[4] = u8::from(self.holder().is_some());
        put(&mut bytes, 5, &(self.hosts.len() as u16).to_le_bytes());
        for (host, bytes) in self.hosts.iter().zip(bytes[HEAD_BYTES..].chunks_exact_mut(HOST_BYTES))
        {
            // CNTLID: controllers are dynamic; they come into being when hosts connect.
            put(bytes, 0, &0xffff_u16.to_le_bytes());
            bytes[2] = u8::from(host.is_holder);
            put(bytes, 8, &host.key.to_le_bytes());
            put(bytes, 16, &host.host);
        }
        bytes
    }

    /// Decodes a report. `None`: it has more hosts than there is room for, or several holders.
    pub fn decode(bytes: &[u8; REPORT_BYTES]) -> Option<Report> {
        let count = usize::from(u16_at(bytes, 5));
        let host = |bytes: &[u8]| Registrant {
            host: array_at(bytes, 16),
            key: u64_at(bytes, 8),
            is_holder: bytes[2] & 1 != 0,
        };
        let hosts: Vec<_> =
            bytes[HEAD_BYTES..].chunks_exact(HOST_BYTES).take(count).map(host).collect();
        let is_sound =
            hosts.len() == count && hosts.iter().filter(|host| host.is_holder).count() <= 1;
        is_sound.then(|| Report { generation: u32_at(bytes, 0), hosts })
    }

    /// Holder of the reservation.
    pub fn holder(&self) -> Option<&Registrant> {
        self.hosts.iter().find(|host| host.is_holder)
    }

    /// Registered key of `host`.
    pub fn key_of(&self, host: &[u8; 16]) -> Option<u64> {
        self.hosts.iter().find(|registrant| registrant.host == *host).map(|host| host.key)
    }
}

/// Encodes the two keys that a command carries. A command with one key carries the first half.
pub fn encode_keys(keys: [u64; 2]) -> [u8; 16] {
    let mut bytes = [0; 16];
    put(&mut bytes, 0, &keys[0].to_le_bytes());
    put(&mut bytes, 8, &keys[1].to_le_bytes());
    bytes
}

/// Decodes the keys that a command carries. A missing key is 0.
pub fn decode_keys(bytes: &[u8]) -> [u64; 2] {
    [0, 8].map(|at| if bytes.len() >= at + 8 { u64_at(bytes, at) } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_is_read_back_and_one_of_two_holders_or_too_many_hosts_is_refused() {
        let host = |number, is_holder| Registrant {
            host: [number; 16],
            key: u64::from(number) << 40,
            is_holder,
        };
        let report = Report { generation: 7, hosts: vec![host(1, false), host(2, true)] };
        let mut bytes = [0; REPORT_BYTES];
        let encoded = report.encode();
        bytes[..encoded.len()].copy_from_slice(&encoded);
        assert_eq!(Report::decode(&bytes).as_ref(), Some(&report));
        assert_eq!(report.key_of(&[1; 16]), Some(1 << 40));
        bytes[HEAD_BYTES + 2] = 1;
        assert_eq!(Report::decode(&bytes), None);
        bytes[HEAD_BYTES + 2] = 0;
        bytes[5] = HOSTS_MAX as u8 + 1;
        assert_eq!(Report::decode(&bytes), None);
    }

    #[test]
    fn keys_are_read_back() {
        assert_eq!(decode_keys(&encode_keys([1, u64::MAX])), [1, u64::MAX]);
        assert_eq!(decode_keys(&encode_keys([5, 9])[..8]), [5, 0]);
    }
}
