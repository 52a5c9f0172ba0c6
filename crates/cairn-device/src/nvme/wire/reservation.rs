//! Reservations of namespaces (Base 7.2 to 7.5, 8.19): who may write, as keys and reports on the
//! wire.
//!
//! Must stay true: a report that is accepted names at most one holder, and as many hosts as it
//! says.
//! Does not know types of reservations but Write Exclusive: the holder writes, everybody reads.

use super::{array_at, put, u16_at, u32_at, u64_at};

/// What is to be done with a registration or reservation; the number is CDW10.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Reservation Register: carries the key of before and the new one.
    Register(u32),
    /// Reservation Acquire: carries one's own key and that of the host that is put out.
    Acquire(u32),
    /// Reservation Release: carries one's own key.
    Release(u32),
}

/// RREGA: register a key, remove it, or replace it by another one.
pub const REGISTER: u32 = 0;
/// As above.
pub const UNREGISTER: u32 = 1;
/// As above.
pub const REPLACE: u32 = 2;
/// RACQA: acquire the reservation, take it from its holder, and the same after which nothing of
/// that host is under way.
pub const ACQUIRE: u32 = 0;
/// As above.
pub const PREEMPT: u32 = 1;
/// As above.
pub const PREEMPT_AND_ABORT: u32 = 2;
/// RRELA: release the reservation, or forget all registrations, too.
pub const RELEASE: u32 = 0;
/// As above.
pub const CLEAR: u32 = 1;
/// The bits of an action.
pub const ACTION: u32 = 7;
/// IEKEY: the key of before does not matter.
pub const ANY_KEY: u32 = 1 << 3;
/// CPTPL of Reservation Register: keep all over a loss of power.
pub const KEEP: u32 = 3 << 30;
/// The bits of a type.
pub const TYPE: u32 = 0xff << 8;
/// RTYPE: Write Exclusive.
pub const WRITE_EXCLUSIVE: u32 = 1 << 8;

/// Most hosts of a report that is read or written.
pub const HOSTS_MAX: usize = 63;
/// Length of the report of so many.
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
    /// RCSTS: the reservation is its.
    pub is_holder: bool,
}

/// What is known about the reservation of a namespace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// GEN: changes with the registrations.
    pub generation: u32,
    /// The hosts.
    pub hosts: Vec<Registrant>,
}

impl Report {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEAD_BYTES + self.hosts.len() * HOST_BYTES];
        put(&mut bytes, 0, &self.generation.to_le_bytes());
        bytes[4] = u8::from(self.holder().is_some());
        put(&mut bytes, 5, &(self.hosts.len() as u16).to_le_bytes());
        for (host, bytes) in self.hosts.iter().zip(bytes[HEAD_BYTES..].chunks_exact_mut(HOST_BYTES))
        {
            // CNTLID: controllers are made when hosts connect.
            put(bytes, 0, &0xffff_u16.to_le_bytes());
            bytes[2] = u8::from(host.is_holder);
            put(bytes, 8, &host.key.to_le_bytes());
            put(bytes, 16, &host.host);
        }
        bytes
    }

    /// Reads a report; none if it has more hosts than there is room for, or several holders.
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

    /// Whose the reservation is.
    pub fn holder(&self) -> Option<&Registrant> {
        self.hosts.iter().find(|host| host.is_holder)
    }

    /// The key of a host.
    pub fn key_of(&self, host: &[u8; 16]) -> Option<u64> {
        self.hosts.iter().find(|registrant| registrant.host == *host).map(|host| host.key)
    }
}

/// Two keys, or one and nothing, as a command carries them.
pub fn encode_keys(keys: [u64; 2]) -> [u8; 16] {
    let mut bytes = [0; 16];
    put(&mut bytes, 0, &keys[0].to_le_bytes());
    put(&mut bytes, 8, &keys[1].to_le_bytes());
    bytes
}

/// The keys that a command carries; what is missing is 0.
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
