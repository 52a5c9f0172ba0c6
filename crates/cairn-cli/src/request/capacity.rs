//! Capacity of the machine for the tiers of a new store: chooses sizes that the user did not give,
//! and refuses tiers that do not fit.
//!
//! Must stay true: everything is refused before anything is created. Tiers on one file system share
//! its free space.
//!
//! Does not create tiers, and does not know tiers that an earlier store has left.

use cairn_agent::model::job::TierSpec;
use cairn_agent::store::memory::Memory;
use cairn_device::store::free_bytes;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::{Error, Result, TierError};
use crate::size;
use crate::store::refuse;
use crate::store::tier::{self, TIER_BYTES_MIN, TierRequest};

/// Default size of a tier, as a fraction of the free space: one part in this number.
const DEFAULT_SHARE: u64 = 2;
/// Maximum default size of a file. Its space is allocated at once, perhaps from many users.
const FILE_BYTES_DEFAULT_MAX: u64 = 1 << 40;
/// Default sizes are multiples of this, so that they are easy to read.
const MIB: u64 = 1 << 20;
/// Default size of a tier, as a fraction of a limited address space: one part in this number.
const ADDRESSES_DEFAULT_SHARE: u64 = 4;
/// Share of a limited address space that the meta segment may have: one part in this number.
pub const ADDRESSES_SEGMENT_SHARE: u64 = 8;
/// Share of a limited address space that is left to the program: one part in this number.
const ADDRESSES_PROGRAM_SHARE: u64 = 4;

/// Space that is left for the next tier.
pub struct Room<'a> {
    /// Directory in which the store is created.
    root: &'a Path,
    memory: &'a Memory,
    /// Address space limit of a process in bytes, if there is one.
    addresses: Option<u64>,
    /// Bytes that the tiers so far will take from each file system, by device number.
    taken: HashMap<u64, u64>,
}

impl<'a> Room<'a> {
    /// Creates the account for a store below `root` on a machine with this memory.
    pub fn new(root: &'a Path, memory: &'a Memory, addresses: Option<u64>) -> Room<'a> {
        Room { root, memory, addresses, taken: HashMap::new() }
    }

    /// Reserves space for a tier in memory. Errors: the machine has less.
    pub fn for_memory(&mut self, tier: &TierRequest) -> Result<TierSpec> {
        let free = self.free_in(self.root)?;
        let mapped = self.addresses.map_or(u64::MAX, |all| all / ADDRESSES_DEFAULT_SHARE);
        let share = half(self.memory.available_bytes.min(free)).min(mapped);
        let spec = tier.or_of(rounded(share));
        check_memory(spec.bytes, free, self.root, self.memory)?;
        check_addresses(spec.bytes, self.addresses)?;
        self.take(self.root, spec.bytes)?;
        Ok(spec)
    }

    /// Reserves space for a new file at `path`. Errors: the file cannot be created, or not with
    /// this size.
    pub fn for_file(&mut self, tier: &TierRequest, path: &Path, mount: &str) -> Result<TierSpec> {
        let directory = tier::directory_of(path);
        let free = self.free_in(directory)?;
        let spec = tier.or_of(rounded(half(free).min(FILE_BYTES_DEFAULT_MAX)));
        tier::check_new_file(path, spec.bytes, free, mount)?;
        self.take(directory, spec.bytes)?;
        Ok(spec)
    }

    /// Refuses a mapped file that does not fit into the address space.
    pub fn check_mapping(&self, bytes: u64) -> Result<()> {
        check_addresses(bytes, self.addresses)
    }

    fn free_in(&self, directory: &Path) -> Result<u64> {
        let taken = self.taken.get(&file_system(directory)?).copied().unwrap_or(0);
        Ok(free_bytes(directory).map_err(refuse)?.saturating_sub(taken))
    }

    fn take(&mut self, directory: &Path, bytes: u64) -> Result<()> {
        *self.taken.entry(file_system(directory)?).or_default() += bytes;
        Ok(())
    }
}

fn half(free_bytes: u64) -> u64 {
    free_bytes / DEFAULT_SHARE
}

fn rounded(bytes: u64) -> u64 {
    (bytes / MIB * MIB).max(TIER_BYTES_MIN)
}

fn file_system(directory: &Path) -> Result<u64> {
    directory.metadata().map(|state| state.dev()).map_err(Error::file("look at", directory))
}

fn check_memory(bytes: u64, free: u64, root: &Path, memory: &Memory) -> Result<()> {
    let limits = [
        (memory.total_bytes, "the memory of this machine".to_string()),
        (memory.limit_bytes, "the memory limit of this job".to_string()),
        (Some(free), format!("what is free in {}", root.display())),
    ];
    for (limit, of_what) in limits {
        if let Some(limit) = limit.filter(|&limit| bytes > limit) {
            let (wanted, available) = (size::human(bytes), size::human(limit));
            return Err(Error::Tier(TierError::TierTooLarge { wanted, of_what, available }));
        }
    }
    Ok(())
}

/// Refuses a tier that does not fit into the address space. Every process of the job maps the tier
/// and the meta segment, and needs space of its own.
fn check_addresses(bytes: u64, addresses: Option<u64>) -> Result<()> {
    let Some(addresses) = addresses else { return Ok(()) };
    let limit =
        addresses - addresses / ADDRESSES_PROGRAM_SHARE - addresses / ADDRESSES_SEGMENT_SHARE;
    match bytes <= limit {
        true => Ok(()),
        false => Err(Error::Tier(TierError::TierTooLarge {
            wanted: size::human(bytes),
            of_what: "what the limit on address space (ulimit -v) leaves for it".to_string(),
            available: size::human(limit),
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_agent::model::job::DeviceKind;

    const GIB: u64 = 1 << 30;

    fn memory(total: u64, limit: Option<u64>, available: u64) -> Memory {
        Memory { total_bytes: Some(total), limit_bytes: limit, available_bytes: available }
    }

    /// Returns the size of a tier in memory, or the refusal. The free space of `/dev/shm` is
    /// assumed not to be the limit.
    fn in_memory(bytes: Option<u64>, memory: Memory, addresses: Option<u64>) -> Result<u64> {
        let tier = TierRequest { bytes, ..TierRequest::MEMORY };
        let mut room = Room::new(Path::new("/dev/shm"), &memory, addresses);
        room.for_memory(&tier).map(|spec| spec.bytes)
    }

    #[test]
    fn memory_without_a_size_is_half_of_what_can_be_had() {
        const MIB: u64 = 1 << 20;
        let chosen = |memory, addresses| in_memory(None, memory, addresses).expect("fits");
        assert_eq!(chosen(memory(64 * GIB, None, 33 * MIB + 7), None), 16 * MIB);
        assert_eq!(chosen(memory(64 * GIB, None, 0), None), TIER_BYTES_MIN);
        assert_eq!(chosen(memory(64 * GIB, None, GIB), Some(40 * MIB)), 10 * MIB);
        let all = memory(u64::MAX, None, u64::MAX);
        let free = free_bytes(Path::new("/dev/shm")).expect("is there");
        let chosen = chosen(all, None);
        assert!(chosen <= free && chosen > free / 4, "{chosen} of {free}");
    }

    #[test]
    fn memory_beyond_what_the_machine_or_the_job_has_is_refused_with_one_line() {
        for (memory, addresses, part) in [
            (memory(GIB, None, GIB), None, "the memory of this machine, 1.00 GiB"),
            (memory(8 * GIB, Some(GIB), GIB), None, "the memory limit of this job, 1.00 GiB"),
            (memory(8 * GIB, None, GIB), Some(3 * GIB), "(ulimit -v)"),
        ] {
            let error = in_memory(Some(2 * GIB), memory, addresses).expect_err(part);
            let text = error.to_string();
            assert!(text.contains(part) && !text.contains('\n'), "{text}");
            assert_eq!(error.exit_code(), 2, "{text}");
        }
        let full = in_memory(Some(1 << 60), memory(u64::MAX, None, 0), None).expect_err("is full");
        assert!(full.to_string().contains("what is free in /dev/shm"), "{full}");
    }

    #[test]
    fn tier_fits_a_small_address_space() {
        let addresses = 4_000_000 << 10;
        check_addresses(GIB, Some(addresses)).expect("fits");
        check_addresses(1 << 50, None).expect("is not limited");
        let error = check_addresses(3 * GIB, Some(addresses)).expect_err("is too large");
        assert!(error.to_string().contains("ulimit -v"), "{error}");
    }

    #[test]
    fn files_share_the_room_of_their_file_system() {
        let memory = memory(GIB, None, GIB);
        let directory = std::env::temp_dir();
        let mut room = Room::new(Path::new("/dev/shm"), &memory, None);
        let mut file = |name: &str, bytes| {
            let path = directory.join(name);
            let device = DeviceKind::File;
            let tier =
                TierRequest { device, path: Some(path.clone()), bytes, ..TierRequest::MEMORY };
            room.for_file(&tier, &path, "/cairn").map(|spec| spec.bytes)
        };
        let first = file("cairn-no-such-tier-1", None).expect("fits");
        let second = file("cairn-no-such-tier-2", None).expect("fits");
        assert!(second <= first && first + second <= free_bytes(&directory).expect("is there"));
        let rest = FILE_BYTES_DEFAULT_MAX;
        file("cairn-no-such-tier-3", Some(first.max(rest))).expect_err("is not there twice");
    }
}
