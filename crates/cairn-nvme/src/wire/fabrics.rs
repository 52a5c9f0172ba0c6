//! Parts specific to fabrics: names, the data of Connect, properties, the discovery log (Base
//! 3.1.4, 4.5, 5.16.1.23, 6.3).

use core::fmt;

use super::{array_at, put, u16_at, u64_at};

/// Longest name, bytes.
pub const NQN_BYTES_MAX: usize = 223;
/// Subsystem name of every discovery controller.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Length of the data of Connect, bytes.
pub const CONNECT_DATA_BYTES: usize = 1024;
/// Controller identifier with which a host asks for a new controller.
pub const ANY_CONTROLLER: u16 = 0xffff;

/// Bits in the result of Connect that demand authentication first (AUTHREQ): ASCR and ATR.
pub const AUTHENTICATION_DEMANDED: u64 = 3 << 17;
/// ATR: authentication without TLS.
pub const AUTHENTICATION_ALONE: u64 = 1 << 17;

/// Result of a Connect that fails with `Status::CONNECT_INVALID` because of HOSTID. IATTR names the
/// data; IPO is their beginning.
pub const INVALID_HOST_ID: u64 = 1 << 16;

/// Controller Capabilities (CAP).
pub const PROPERTY_CAPABILITIES: u32 = 0x00;
/// Version (VS).
pub const PROPERTY_VERSION: u32 = 0x08;
/// Controller Configuration (CC).
pub const PROPERTY_CONFIGURATION: u32 = 0x14;
/// Controller Status (CSTS).
pub const PROPERTY_STATUS: u32 = 0x1c;

/// CC of an enabled controller: entries of 64 and 16 bytes, pages of 4 KiB, the NVM command set.
pub const CONFIGURATION_ENABLED: u32 = 4 << 20 | 6 << 16 | CONFIGURATION_ENABLE;
/// CC.EN.
pub const CONFIGURATION_ENABLE: u32 = 1;
/// CC.SHN: normal shutdown.
pub const CONFIGURATION_SHUTDOWN: u32 = 1 << 14;
/// Mask of CC.SHN.
pub const CONFIGURATION_SHUTDOWN_MASK: u32 = 3 << 14;
/// CSTS.RDY.
pub const STATUS_READY: u32 = 1;
/// CSTS.CFS.
pub const STATUS_FATAL: u32 = 1 << 1;
/// CSTS.SHST: the shutdown is complete.
pub const STATUS_SHUT_DOWN: u32 = 2 << 2;
/// Mask of CSTS.SHST.
pub const STATUS_SHUTDOWN_MASK: u32 = 3 << 2;

/// Controller Capabilities.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Most entries of a queue (MQES), at least 2.
    pub entries_max: u32,
    /// Longest time that enabling or disabling takes (TO), milliseconds.
    pub timeout_ms: u64,
    /// Smallest page (MPSMIN), the unit of MDTS, bytes.
    pub page_bytes_min: u64,
}

impl Capabilities {
    /// Decodes CAP.
    pub fn decode(value: u64) -> Capabilities {
        Capabilities {
            entries_max: (value as u16 as u32 + 1).max(2),
            timeout_ms: (value >> 24 & 0xff) * 500,
            page_bytes_min: 1 << (12 + (value >> 48 & 0xf)),
        }
    }

    /// Encodes CAP of a controller with the NVM command set, contiguous queues and pages of 4 KiB.
    pub fn encode(entries_max: u32, timeout_ms: u64) -> u64 {
        let entries = u64::from(entries_max.clamp(2, 1 << 16) - 1);
        let timeout = timeout_ms.div_ceil(500).clamp(1, 0xff);
        entries | 1 << 16 | timeout << 24 | 1 << 37
    }
}

/// Name of a host or subsystem (NVMe Qualified Name).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nqn(String);

impl Nqn {
    /// Checks a name: it begins with `nqn.`, has at most 223 bytes and no control characters.
    pub fn new(text: &str) -> Option<Nqn> {
        let is_name = text.starts_with("nqn.")
            && text.len() <= NQN_BYTES_MAX
            && !text.contains(|letter: char| letter.is_control());
        is_name.then(|| Nqn(text.to_owned()))
    }

    /// Name of the host with this identifier (Base 4.5.1).
    pub fn of_host(id: &[u8; 16]) -> Nqn {
        let digits: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let (a, b, c) = (&digits[..8], &digits[8..12], &digits[12..16]);
        let (d, e) = (&digits[16..20], &digits[20..]);
        Nqn(format!("nqn.2014-08.org.nvmexpress:uuid:{a}-{b}-{c}-{d}-{e}"))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Decodes a field that is padded with zeros.
    pub fn decode(field: &[u8]) -> Option<Nqn> {
        Nqn::new(core::str::from_utf8(text(field, 0)).ok()?)
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Text of a field, without padding by `filler` or NUL.
fn text(field: &[u8], filler: u8) -> &[u8] {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    let text = &field[..end];
    let length = text.iter().rposition(|&byte| byte != filler).map_or(0, |last| last + 1);
    &text[..length]
}

/// Data of Connect: the host's identity, and the controller that it wants (Base 6.3).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectData {
    /// HOSTID.
    pub host_id: [u8; 16],
    /// CNTLID; `ANY_CONTROLLER` asks for a new one.
    pub controller: u16,
    /// SUBNQN.
    pub subsystem: Nqn,
    /// HOSTNQN.
    pub host: Nqn,
}

impl ConnectData {
    /// Encodes the data.
    pub fn encode(&self) -> [u8; CONNECT_DATA_BYTES] {
        let mut bytes = [0; CONNECT_DATA_BYTES];
        put(&mut bytes, 0, &self.host_id);
        put(&mut bytes, 16, &self.controller.to_le_bytes());
        put(&mut bytes, 256, self.subsystem.0.as_bytes());
        put(&mut bytes, 512, self.host.0.as_bytes());
        bytes
    }

    /// Decodes the data. `None`: a name is invalid.
    pub fn decode(bytes: &[u8; CONNECT_DATA_BYTES]) -> Option<ConnectData> {
        Some(ConnectData {
            host_id: array_at(bytes, 0),
            controller: u16_at(bytes, 16),
            subsystem: Nqn::decode(&bytes[256..512])?,
            host: Nqn::decode(&bytes[512..768])?,
        })
    }
}

/// Length of the head of the discovery log, and of each of its entries, bytes.
pub const DISCOVERY_ENTRY_BYTES: usize = 1024;
/// Most entries that are read from a discovery log.
pub const DISCOVERY_ENTRIES_MAX: u64 = 1024;

/// The head of the discovery log (Base 5.16.1.23).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiscoveryHead {
    /// GENCTR: changes whenever the log changes.
    pub generation: u64,
    /// NUMREC.
    pub entries: u64,
}

impl DiscoveryHead {
    /// Decodes the head. `None`: the entries have an unknown format.
    pub fn decode(bytes: &[u8; DISCOVERY_ENTRY_BYTES]) -> Option<DiscoveryHead> {
        let head = DiscoveryHead { generation: u64_at(bytes, 0), entries: u64_at(bytes, 8) };
        (u16_at(bytes, 16) == 0).then_some(head)
    }

    /// Encodes the head.
    pub fn encode(&self) -> [u8; DISCOVERY_ENTRY_BYTES] {
        let mut bytes = [0; DISCOVERY_ENTRY_BYTES];
        put(&mut bytes, 0, &self.generation.to_le_bytes());
        put(&mut bytes, 8, &self.entries.to_le_bytes());
        bytes
    }
}

/// TRTYPE of TCP.
pub const TRANSPORT_TCP: u8 = 3;
/// ADRFAM of IPv4.
pub const FAMILY_IPV4: u8 = 1;
/// ADRFAM of IPv6.
pub const FAMILY_IPV6: u8 = 2;
/// SUBTYPE of a subsystem with namespaces.
pub const SUBSYSTEM_NVM: u8 = 2;
/// SUBTYPE of the discovery subsystem itself.
pub const SUBSYSTEM_CURRENT_DISCOVERY: u8 = 3;

/// Address of a subsystem (Base 5.16.1.23).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiscoveryEntry {
    /// TRTYPE.
    pub transport: u8,
    /// ADRFAM.
    pub family: u8,
    /// SUBTYPE.
    pub kind: u8,
    /// PORTID.
    pub port_id: u16,
    /// TRADDR.
    pub address: String,
    /// TRSVCID; the port, for TCP.
    pub service: String,
    /// SUBNQN.
    pub subsystem: Nqn,
}

impl DiscoveryEntry {
    /// Decodes an entry. `None`: a text in it is invalid.
    pub fn decode(bytes: &[u8; DISCOVERY_ENTRY_BYTES]) -> Option<DiscoveryEntry> {
        let string = |field: &[u8]| {
            let string = core::str::from_utf8(text(field, b' ')).ok()?;
            (!string.contains(|letter: char| letter.is_control())).then(|| string.to_owned())
        };
        Some(DiscoveryEntry {
            transport: bytes[0],
            family: bytes[1],
            kind: bytes[2],
            port_id: u16_at(bytes, 4),
            address: string(&bytes[512..768])?,
            service: string(&bytes[32..64])?,
            subsystem: Nqn::decode(&bytes[256..512])?,
        })
    }

    /// Encodes the entry. Address and service must fit into their fields of 256 and 32 bytes.
    pub fn encode(&self) -> [u8; DISCOVERY_ENTRY_BYTES] {
        let mut bytes = [0; DISCOVERY_ENTRY_BYTES];
        (bytes[0], bytes[1], bytes[2]) = (self.transport, self.family, self.kind);
        put(&mut bytes, 4, &self.port_id.to_le_bytes());
        put(&mut bytes, 6, &ANY_CONTROLLER.to_le_bytes());
        // ASQSZ: an admin queue of 32 entries is large enough.
        put(&mut bytes, 8, &32_u16.to_le_bytes());
        bytes[32..64].fill(b' ');
        bytes[512..768].fill(b' ');
        put(&mut bytes, 32, self.service.as_bytes());
        put(&mut bytes, 256, self.subsystem.0.as_bytes());
        put(&mut bytes, 512, self.address.as_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nqn(text: &str) -> Nqn {
        Nqn::new(text).unwrap()
    }

    #[test]
    fn data_of_connect_are_read_back_and_bad_names_are_refused() {
        let data = ConnectData {
            host_id: *b"0123456789abcdef",
            controller: 7,
            subsystem: nqn("nqn.2026-11.example:store"),
            host: Nqn::of_host(b"0123456789abcdef"),
        };
        let bytes = data.encode();
        assert_eq!(ConnectData::decode(&bytes).as_ref(), Some(&data));
        for (at, byte) in [(256, b'x'), (257, 0xff), (260, b'\n'), (512, 0)] {
            let mut other = bytes;
            other[at] = byte;
            assert_eq!(ConnectData::decode(&other), None, "{at}");
        }
        let mut endless = bytes;
        endless[256 + 25..512].fill(b'x');
        assert_eq!(ConnectData::decode(&endless), None);
    }

    #[test]
    fn host_is_named_by_its_identifier() {
        let id = *b"\x11\x11\x11\x11\x22\x22\x33\x33\x44\x44\x55\x55\x55\x55\x55\x55";
        let name = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
        assert_eq!(Nqn::of_host(&id).as_str(), name);
        assert_eq!(Nqn::new(&format!("nqn.{}", "x".repeat(220))), None);
    }

    #[test]
    fn discovery_log_is_read_back() {
        let head = DiscoveryHead { generation: 5, entries: 1 };
        assert_eq!(DiscoveryHead::decode(&head.encode()), Some(head));
        let entry = DiscoveryEntry {
            transport: TRANSPORT_TCP,
            family: FAMILY_IPV6,
            kind: SUBSYSTEM_NVM,
            port_id: 1,
            address: "fe80::1".into(),
            service: "4420".into(),
            subsystem: nqn("nqn.2026-11.example:store"),
        };
        assert_eq!(DiscoveryEntry::decode(&entry.encode()), Some(entry));
    }

    #[test]
    fn capabilities_are_read_back() {
        let capabilities = Capabilities::decode(Capabilities::encode(128, 1200));
        let expected = Capabilities { entries_max: 128, timeout_ms: 1500, page_bytes_min: 4096 };
        assert_eq!(capabilities, expected);
    }
}
