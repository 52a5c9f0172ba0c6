//! Pages of Identify (Base 5.17.2, NVM 4.1.5), limited to the fields that are used here.
//!
//! Invariant: an accepted page describes a usable controller or namespace. Arithmetic elsewhere may
//! rely on every size in it.

use super::{Nqn, array_at, put, u16_at, u32_at, u64_at};

/// Length of a page, bytes.
pub const PAGE_BYTES: usize = 4096;
/// A page.
pub type Page = [u8; PAGE_BYTES];

/// CNS of the page of a namespace.
pub const CNS_NAMESPACE: u8 = 0;
/// CNS of the page of the controller.
pub const CNS_CONTROLLER: u8 = 1;
/// CNS of the list of active namespaces.
pub const CNS_ACTIVE_NAMESPACES: u8 = 2;
/// CNS of the identification descriptors of a namespace.
pub const CNS_DESCRIPTORS: u8 = 3;

/// Bit of OAES and of the feature that enables the event: a namespace has changed.
pub const EVENT_NAMESPACE_CHANGED: u32 = 1 << 8;
/// The same bit for changes of asymmetric access.
pub const EVENT_ACCESS_CHANGED: u32 = 1 << 11;
/// The same bit for changes of a discovery log.
pub const EVENT_DISCOVERY_CHANGED: u32 = 1 << 31;

/// ONCS: Dataset Management.
const HAS_DATASET_MANAGEMENT: u16 = 1 << 2;
/// ONCS: Write Zeroes.
const HAS_WRITE_ZEROES: u16 = 1 << 3;
/// ONCS: Reservations.
const HAS_RESERVATIONS: u16 = 1 << 5;
/// RESCAP: Write Exclusive, and Ignore Existing Key as in version 1.3.
const RESERVATION_TYPES: u8 = 1 << 1 | 1 << 7;
/// CMIC: asymmetric access is reported.
const HAS_ASYMMETRIC_ACCESS: u8 = 1 << 3;
/// Start of the vendor-specific part of a controller's page if it supports
/// `Command::EndController`: "cairnct1".
const INSTANCE_MAGIC: [u8; 8] = *b"cairnct1";
const AT_INSTANCE: usize = 3072;
/// Start of the vendor-specific part of a namespace's page if the target says which start of its
/// machine it belongs to: "cairnst1".
const START_MAGIC: [u8; 8] = *b"cairnst1";
const AT_START: usize = 384;

/// Smallest and largest logical block, as powers of two.
const BLOCK_SHIFTS: core::ops::RangeInclusive<u8> = 9..=16;

/// Identity of a controller (Base figure 275).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Controller {
    /// SN, for people.
    pub serial: String,
    /// MN, for people.
    pub model: String,
    /// FR, for people.
    pub firmware: String,
    /// CNTLID.
    pub id: u16,
    /// MDTS: most data of a command are the smallest page times two to this power; `None`: no
    /// limit.
    pub transfer_shift: Option<u8>,
    /// OAES.
    pub events: u32,
    /// KAS: granularity of Keep Alive, milliseconds; 0: not supported.
    pub keep_alive_ms: u32,
    /// CNTRLTYPE: whether it is a discovery controller.
    pub is_discovery: bool,
    /// NN: largest possible number of a namespace.
    pub namespaces_max: u32,
    /// ONCS: whether Dataset Management is supported.
    pub can_deallocate: bool,
    /// ONCS: whether Write Zeroes is supported.
    pub can_write_zeroes: bool,
    /// ONCS: whether reservations are supported.
    pub can_reserve: bool,
    /// VWC: whether written data may be lost until they are flushed.
    pub has_volatile_cache: bool,
    /// CMIC: whether asymmetric access is reported: some paths to a namespace are better than
    /// others.
    pub has_asymmetric_access: bool,
    /// SUBNQN.
    pub subsystem: Option<Nqn>,
    /// IOCCSZ: most data in a command capsule of an I/O queue, bytes.
    pub capsule_data_bytes: u32,
    /// MAXCMD: most commands of a queue under way; 0: not reported.
    pub commands_max: u16,
    /// Unique number by which the host can end this controller (`Command::EndController`); no other
    /// controller ever has it. 0: not supported.
    pub instance: u64,
}

impl Controller {
    /// Decodes the page. `None`: it is unusable, because capsules cannot hold an entry or have a
    /// layout that TCP does not use (ICDOFF).
    pub fn decode(page: &Page) -> Option<Controller> {
        let is_discovery = page[111] == 2;
        let capsule = u32_at(page, 1792).checked_mul(16)?;
        // A discovery controller has no I/O queues and need not report a capsule size.
        let capsule_data_bytes = match capsule.checked_sub(64) {
            None if is_discovery => 0,
            result => result?,
        };
        let optional = u16_at(page, 520);
        let shift = page[77];
        let is_usable = u16_at(page, 1800) == 0 && shift <= 32;
        let has_instance = page[AT_INSTANCE..].starts_with(&INSTANCE_MAGIC);
        is_usable.then(|| Controller {
            serial: printable(&page[4..24]),
            model: printable(&page[24..64]),
            firmware: printable(&page[64..72]),
            id: u16_at(page, 78),
            transfer_shift: (shift > 0).then_some(shift),
            events: u32_at(page, 92),
            keep_alive_ms: u32::from(u16_at(page, 320)) * 100,
            is_discovery,
            namespaces_max: u32_at(page, 516),
            can_deallocate: optional & HAS_DATASET_MANAGEMENT != 0,
            can_write_zeroes: optional & HAS_WRITE_ZEROES != 0,
            can_reserve: optional & HAS_RESERVATIONS != 0,
            has_volatile_cache: page[525] & 1 != 0,
            has_asymmetric_access: page[76] & HAS_ASYMMETRIC_ACCESS != 0,
            subsystem: Nqn::decode(&page[768..1024]),
            capsule_data_bytes,
            commands_max: u16_at(page, 514),
            instance: if has_instance { u64_at(page, AT_INSTANCE + 8) } else { 0 },
        })
    }

    /// Encodes the page of a controller of version 1.4.
    pub fn encode(&self) -> Page {
        let flag = |is_set: bool, flag: u16| if is_set { flag } else { 0 };
        let mut page = [0; PAGE_BYTES];
        put_text(&mut page[4..24], &self.serial);
        put_text(&mut page[24..64], &self.model);
        put_text(&mut page[64..72], &self.firmware);
        page[76] = flag(self.has_asymmetric_access, u16::from(HAS_ASYMMETRIC_ACCESS)) as u8;
        page[77] = self.transfer_shift.unwrap_or(0);
        put(&mut page, 78, &self.id.to_le_bytes());
        put(&mut page, 80, &VERSION.to_le_bytes());
        put(&mut page, 92, &self.events.to_le_bytes());
        page[111] = if self.is_discovery { 2 } else { 1 };
        // LPA: log pages may be read from an offset. AERL: four event requests at a time.
        (page[259], page[261]) = (3, 1 << 2);
        put(&mut page, 320, &((self.keep_alive_ms / 100) as u16).to_le_bytes());
        // SQES and CQES: entries of 64 and 16 bytes only.
        (page[512], page[513]) = (0x66, 0x44);
        put(&mut page, 514, &self.commands_max.to_le_bytes());
        put(&mut page, 516, &self.namespaces_max.to_le_bytes());
        let optional = flag(self.can_deallocate, HAS_DATASET_MANAGEMENT)
            | flag(self.can_write_zeroes, HAS_WRITE_ZEROES)
            | flag(self.can_reserve, HAS_RESERVATIONS);
        put(&mut page, 520, &optional.to_le_bytes());
        page[525] = u8::from(self.has_volatile_cache);
        // SGLS: SGLs, offsets into the capsule, and Transport SGL descriptors.
        put(&mut page, 536, &(1_u32 | 1 << 20 | 1 << 21).to_le_bytes());
        if let Some(subsystem) = &self.subsystem {
            put(&mut page, 768, subsystem.as_str().as_bytes());
        }
        put(&mut page, 1792, &((self.capsule_data_bytes + 64) / 16).to_le_bytes());
        // IORCSZ: one completion. MSDBD: one data descriptor.
        put(&mut page, 1796, &1_u32.to_le_bytes());
        page[1803] = 1;
        if self.instance != 0 {
            put(&mut page, AT_INSTANCE, &INSTANCE_MAGIC);
            put(&mut page, AT_INSTANCE + 8, &self.instance.to_le_bytes());
        }
        page
    }
}

/// VS: version 1.4.
pub const VERSION: u32 = 0x0001_0400;

/// Identity of a namespace (NVM figure 97).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Namespace {
    /// NSZE, logical blocks.
    pub blocks: u64,
    /// LBADS of the format in use: a block has two to this power bytes.
    pub block_shift: u8,
    /// NSATTR: whether it is write-protected.
    pub is_write_protected: bool,
    /// NGUID; zeros: none.
    pub guid: [u8; 16],
    /// ANAGRPID.
    pub access_group: u32,
    /// Identifier of the start of the target's machine; zeros: not reported. A change means that
    /// written data which were not flushed may be lost.
    pub start: [u8; 16],
}

impl Namespace {
    /// Decodes the page. `None`: the namespace is not active, or has an unsupported block size, or
    /// metadata.
    pub fn decode(page: &Page) -> Option<Namespace> {
        let format = usize::from(page[26] & 0xf | (page[26] >> 5 & 3) << 4);
        let format = u32_at(page, 128 + 4 * format);
        let (metadata_bytes, block_shift) = (format as u16, (format >> 16) as u8);
        let blocks = u64_at(page, 0);
        let is_usable = metadata_bytes == 0
            && page[29] & 7 == 0
            && BLOCK_SHIFTS.contains(&block_shift)
            && (1..=u64::MAX >> block_shift).contains(&blocks);
        let says_start = page[AT_START..].starts_with(&START_MAGIC);
        is_usable.then(|| Namespace {
            blocks,
            block_shift,
            is_write_protected: page[99] & 1 != 0,
            guid: array_at(page, 104),
            access_group: u32_at(page, 92),
            start: if says_start { array_at(page, AT_START + 8) } else { [0; 16] },
        })
    }

    /// Encodes the page.
    pub fn encode(&self) -> Page {
        let mut page = [0; PAGE_BYTES];
        for at in [0, 8, 16] {
            put(&mut page, at, &self.blocks.to_le_bytes());
        }
        page[31] = RESERVATION_TYPES;
        // DLFEAT: deallocated blocks read as zeros.
        page[33] = 1;
        put(&mut page, 92, &self.access_group.to_le_bytes());
        page[99] = u8::from(self.is_write_protected);
        put(&mut page, 104, &self.guid);
        page[130] = self.block_shift;
        if self.start != [0; 16] {
            put(&mut page, AT_START, &START_MAGIC);
            put(&mut page, AT_START + 8, &self.start);
        }
        page
    }

    /// Size of the namespace, bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks << self.block_shift
    }

    /// Size of a logical block, bytes.
    pub fn block_bytes(&self) -> u64 {
        1 << self.block_shift
    }
}

/// Decodes a list of active namespaces (Base 5.17.2.2). `None`: the numbers do not increase.
pub fn decode_list(page: &Page) -> Option<Vec<u32>> {
    let numbers = page.chunks_exact(4).map(|number| u32_at(number, 0));
    let numbers: Vec<u32> = numbers.take_while(|&number| number != 0).collect();
    numbers.is_sorted_by(|a, b| a < b).then_some(numbers)
}

/// Encodes such a list. Takes only the first 1024 numbers.
pub fn encode_list(numbers: impl Iterator<Item = u32>) -> Page {
    let mut page = [0; PAGE_BYTES];
    for (place, number) in page.chunks_exact_mut(4).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    page
}

/// Encodes the descriptors of a namespace that has a GUID (NIDT 2).
pub fn encode_descriptors(guid: &[u8; 16]) -> Page {
    let mut page = [0; PAGE_BYTES];
    (page[0], page[1]) = (2, 16);
    put(&mut page, 4, guid);
    page
}

/// Decodes text of printable ASCII. Other bytes become dots.
fn printable(field: &[u8]) -> String {
    let letter = |&byte: &u8| if (b' '..=b'~').contains(&byte) { char::from(byte) } else { '.' };
    let text: String = field.iter().map(letter).collect();
    text.trim_end_matches([' ', '.']).to_owned()
}

fn put_text(field: &mut [u8], text: &str) {
    field.fill(b' ');
    let length = text.len().min(field.len());
    field[..length].copy_from_slice(&text.as_bytes()[..length]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controller() -> Controller {
        Controller {
            serial: "0001".into(),
            model: "Cairn".into(),
            firmware: "1".into(),
            id: 3,
            transfer_shift: Some(8),
            events: EVENT_NAMESPACE_CHANGED,
            keep_alive_ms: 1000,
            is_discovery: false,
            namespaces_max: 1,
            can_deallocate: true,
            can_write_zeroes: true,
            can_reserve: true,
            has_volatile_cache: true,
            has_asymmetric_access: false,
            subsystem: Nqn::new("nqn.2026-11.example:store"),
            capsule_data_bytes: 8192,
            commands_max: 128,
            instance: 0,
        }
    }

    #[test]
    fn page_of_a_controller_is_read_back() {
        let controller = controller();
        let numbered = Controller { instance: 7, ..controller.clone() };
        assert_eq!(Controller::decode(&numbered.encode()), Some(numbered));
        assert_eq!(Controller::decode(&controller.encode()).as_ref(), Some(&controller));
    }

    #[test]
    fn controller_whose_capsules_hold_no_entry_is_refused() {
        let mut page = controller().encode();
        page[1792] = 3;
        page[1793] = 0;
        assert_eq!(Controller::decode(&page), None);
        page[1792..1796].fill(0xff);
        assert_eq!(Controller::decode(&page), None);
    }

    #[test]
    fn page_of_a_namespace_is_read_back_and_what_cannot_be_used_is_refused() {
        let namespace = Namespace {
            blocks: 1 << 20,
            block_shift: 12,
            is_write_protected: true,
            guid: [7; 16],
            access_group: 1,
            start: [8; 16],
        };
        let page = namespace.encode();
        assert_eq!(Namespace::decode(&page), Some(namespace));
        let silent = Namespace { start: [0; 16], ..namespace };
        assert_eq!(Namespace::decode(&silent.encode()), Some(silent));
        // Metadata, protection, blocks of 256 bytes and 128 KiB, too many bytes, no bytes, another
        // format.
        for (at, byte) in [(128, 8), (29, 1), (130, 8), (130, 17), (7, 0xff), (26, 0x21)] {
            let mut other = page;
            other[at] = byte;
            assert_eq!(Namespace::decode(&other), None, "{at}");
        }
        assert_eq!(Namespace::decode(&[0; PAGE_BYTES]), None);
    }

    #[test]
    fn list_of_namespaces_ends_at_the_first_zero_and_increases() {
        assert_eq!(decode_list(&encode_list([1, 5, 9].into_iter())), Some(vec![1, 5, 9]));
        assert_eq!(decode_list(&encode_list([5, 1].into_iter())), None);
        assert_eq!(decode_list(&encode_list(1..2000)).map(|list| list.len()), Some(1024));
    }
}
