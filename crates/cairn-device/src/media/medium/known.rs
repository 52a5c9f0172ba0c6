//! Recorded knowledge about a namespace on another machine, `<ns>.known<tier>`, a file of the
//! store. The process that first connects writes it. With it another process opens the tier without
//! a connection, and checks the namespace itself before it first uses it.
//!
//! ```text
//! magic, checksum, traits | description of the namespace (Identify) | label | superblock        a page each
//! ```
//! Behind the traits is the line of processes that wait for a connection (`wait_queue.rs`).
//!
//! Invariant: a file that is damaged, or was not written whole, counts as missing. A process that
//! finds none connects.

use core::ffi::CStr;

use cairn_core::{Error, Media, Result};
use cairn_nvme::queue::Traits;
use cairn_nvme::wait_queue::Line;
use cairn_nvme::wire::identify;
use cairn_platform::checksum;
use cairn_platform::mapping::{Mapping, Populate};
use cairn_platform::sys;

use crate::directory::{Directory, StoreResult};
use crate::media::label::{self, Label};
use crate::memory::segment;

const PAGE: usize = super::PAGE as usize;
const BYTES: usize = 4 * PAGE;
const MAGIC: [u8; 8] = *b"cairnkn1";
// Fields of the first page, by their offsets.
const AT_CHECKSUM: usize = 8;
const AT_NAMESPACE: usize = 12;
const AT_TRANSFER: usize = 16;
const AT_FLAGS: usize = 24;
/// End of the traits. The rest of the first page may hold anything.
const TRAITS_END: usize = 64;
/// First word of the line of waiting processes.
const W_LINE: usize = TRAITS_END / size_of::<u64>();
// Flags.
const HAS_VOLATILE_CACHE: u8 = 1;
const CAN_WRITE_ZEROES: u8 = 2;
const CAN_DEALLOCATE: u8 = 4;
const CAN_RESERVE: u8 = 8;

/// Content of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Known {
    pub(crate) traits: Traits,
    pub(crate) label: Label,
    /// The tier's first page: its superblock, if it has one.
    pub(crate) first_page: [u8; PAGE],
}

impl Known {
    /// Reads the file; `None` if it is missing or damaged.
    pub(crate) fn read(directory: &Directory, name: &CStr) -> Option<Known> {
        let (file, bytes) = segment::open_file(directory, name).ok()?;
        let mut all = [0; BYTES];
        let is_whole = bytes == BYTES as u64 && sys::read(file.raw(), &mut all) == Ok(BYTES);
        if is_whole { decode(&all) } else { None }
    }

    /// Maps the line of waiting processes in a file that was read. Errors: no memory or
    /// descriptors.
    pub(crate) fn line(directory: &Directory, name: &CStr) -> StoreResult<Line> {
        let failed = |errno| directory.error("open", name, errno);
        let (file, bytes) = segment::open_file(directory, name)?;
        let mapping = Mapping::new(file, PAGE.min(bytes as usize)).map_err(failed)?;
        let backed = mapping.populate(0, PAGE, Populate::Write);
        backed.map_err(|error| directory.error("open", name, error))?;
        Ok(Line::new(mapping, W_LINE))
    }

    /// Writes the file, unless there is one. Ignores failures: processes can do without it.
    pub(crate) fn leave(&self, directory: &Directory, name: &CStr) {
        if let Ok(file) = segment::create_file(directory, name, BYTES as u64) {
            let _ = sys::write(file.raw(), &self.encode());
        }
    }

    /// Compares the namespace's label with the recorded one. Errors: `Corrupt` if it has another
    /// one.
    pub(crate) fn check(&self, media: &dyn Media) -> Result<()> {
        let mut page = [0; PAGE];
        let label_at = (media.bytes() / PAGE as u64 * PAGE as u64).saturating_sub(PAGE as u64);
        media.read(label_at, &mut page)?;
        match label::decode(&page) == Ok(self.label) {
            true => Ok(()),
            false => Err(Error::Corrupt { what: "another label than before" }),
        }
    }

    fn encode(&self) -> [u8; BYTES] {
        let Traits { namespace, shape, transfer_bytes_max, .. } = self.traits;
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let mut all = [0; BYTES];
        all[..MAGIC.len()].copy_from_slice(&MAGIC);
        all[AT_NAMESPACE..][..4].copy_from_slice(&namespace.to_le_bytes());
        all[AT_TRANSFER..][..8].copy_from_slice(&transfer_bytes_max.to_le_bytes());
        all[AT_FLAGS] = flag(self.traits.has_volatile_cache, HAS_VOLATILE_CACHE)
            | flag(self.traits.can_write_zeroes, CAN_WRITE_ZEROES)
            | flag(self.traits.can_deallocate, CAN_DEALLOCATE)
            | flag(self.traits.can_reserve, CAN_RESERVE);
        all[PAGE..2 * PAGE].copy_from_slice(&shape.encode()[..]);
        all[2 * PAGE..3 * PAGE].copy_from_slice(&label::encode(&self.label));
        all[3 * PAGE..].copy_from_slice(&self.first_page);
        let sum = sum(&all);
        all[AT_CHECKSUM..][..4].copy_from_slice(&sum.to_le_bytes());
        all
    }
}

fn decode(all: &[u8; BYTES]) -> Option<Known> {
    let word = |at: usize| all[at..].first_chunk().copied().map(u32::from_le_bytes);
    if !all.starts_with(&MAGIC) || word(AT_CHECKSUM) != Some(sum(all)) {
        return None;
    }
    let page = |index: usize| all[index * PAGE..].first_chunk::<PAGE>();
    let shape = identify::Namespace::decode(page(1)?)?;
    let transfer_bytes_max = u64::from_le_bytes(*all[AT_TRANSFER..].first_chunk()?);
    let has = |flag: u8| all[AT_FLAGS] & flag != 0;
    let traits = Traits {
        namespace: word(AT_NAMESPACE)?,
        shape,
        transfer_bytes_max,
        has_volatile_cache: has(HAS_VOLATILE_CACHE),
        can_write_zeroes: has(CAN_WRITE_ZEROES),
        can_deallocate: has(CAN_DEALLOCATE),
        can_reserve: has(CAN_RESERVE),
    };
    let is_whole_blocks = transfer_bytes_max > 0 && transfer_bytes_max % shape.block_bytes() == 0;
    let (label, first_page) = (label::decode(page(2)?).ok()?, *page(3)?);
    is_whole_blocks.then_some(Known { traits, label, first_page })
}

/// Returns the checksum of the traits and the other pages.
fn sum(all: &[u8; BYTES]) -> u32 {
    let traits = checksum::crc32c(0, &all[AT_NAMESPACE..TRAITS_END]);
    checksum::crc32c(traits, &all[PAGE..])
}

/// The first page alone, which is all that reading a superblock needs.
impl Media for Known {
    fn bytes(&self) -> u64 {
        self.label.bytes
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        match target.len() == PAGE && offset == 0 {
            true => target.copy_from_slice(&self.first_page),
            false => return Err(Error::Io),
        }
        Ok(())
    }

    fn write(&self, _offset: u64, _source: &[u8]) -> Result<()> {
        Err(Error::Invalid)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::tests::Scratch;

    fn known() -> Known {
        let shape = identify::Namespace {
            blocks: 1 << 20,
            block_shift: 9,
            is_write_protected: false,
            guid: [7; 16],
            access_group: 0,
            start: [3; 16],
        };
        let traits = Traits {
            namespace: 3,
            shape,
            transfer_bytes_max: 1 << 20,
            has_volatile_cache: true,
            can_write_zeroes: false,
            can_deallocate: true,
            can_reserve: false,
        };
        let label = Label { bytes: 1 << 28, identity: [9; 16], claim: None, start: [3; 16] };
        Known { traits, label, first_page: [5; PAGE] }
    }

    #[test]
    fn what_one_process_leaves_others_know_and_the_first_one_counts() {
        let scratch = Scratch::new();
        assert_eq!(Known::read(&scratch.0, c"known"), None);
        known().leave(&scratch.0, c"known");
        Known { first_page: [6; PAGE], ..known() }.leave(&scratch.0, c"known");
        assert_eq!(Known::read(&scratch.0, c"known"), Some(known()));
    }

    #[test]
    fn file_with_any_byte_changed_or_missing_says_nothing() {
        let all = known().encode();
        assert_eq!(decode(&all), Some(known()));
        for at in (0..AT_FLAGS + 8).chain((PAGE..BYTES).step_by(509)) {
            let mut damaged = all;
            damaged[at] ^= 1;
            assert_eq!(decode(&damaged), None, "{at}");
        }
        let scratch = Scratch::new();
        std::fs::write(scratch.0.path().join("known"), &all[..BYTES - 1]).unwrap();
        assert_eq!(Known::read(&scratch.0, c"known"), None);
    }
}
