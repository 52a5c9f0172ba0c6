//! Where the bytes of a file stand in memory, for programs that copy them past the store.
//!
//! A tier in memory is mapped once more when it is first asked for, to be read only, and stays
//! mapped: addresses that were handed out stay valid, whoever uses the blocks meanwhile. A
//! generation tells whether what was copied is the file.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use cairn_core::{HandleId, Look};
pub use cairn_core::{Region, TIERS_MAX};
use cairn_device::Mappable;
use cairn_device::{sys, unlocked};

use crate::data::absent;
use crate::descriptors::readers;
use crate::error::{Errno, Result};
use crate::kernel::latch::Latch;
use crate::mount::{self, Mount};

/// Where each tier is mapped to be read; of the one store a process can have.
static TIERS: [AtomicPtr<u8>; TIERS_MAX] = [const { AtomicPtr::new(ptr::null_mut()) }; TIERS_MAX];
static MAPPING: Latch = Latch::new();

/// A region and where to read it.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    /// The region.
    pub region: Region,
    /// Its address in this process; none on a tier that is not memory.
    pub address: Option<*const u8>,
    /// Where it is in the file that [`segment`] opens.
    pub segment_offset: u64,
    /// Bytes of the hugeblock: what its checksum is of.
    pub padded_length: u32,
}

/// The regions of an open file from `offset` on; `take` gets each, as many as it wants. Errors:
/// `EISDIR`; `EIO`; `ENOMEM`; `ENOSPC` and `EINTR` of a packed file.
pub fn regions(
    handle: HandleId,
    offset: u64,
    found: &mut [Region],
    mut take: impl FnMut(usize, Placed),
) -> Result<Look> {
    let mount = mount::current()?;
    let inode = mount.inode_of(handle)?;
    let look = absent::wait(mount, || mount.fs().regions(inode, offset, found))??;
    let padded_length = mount.fs().geometry().hugeblock_bytes;
    for (index, region) in found[..look.count].iter().enumerate() {
        let memory = memory_of(mount, region.tier)?;
        let end = region.tier_offset.checked_add(padded_length.into());
        if end.is_none_or(|end| end > mount.tier(region.tier).map_or(0, |tier| tier.bytes())) {
            return Err(Errno(libc::EIO));
        }
        let address = match memory {
            Some(_) => Some(base(mount, region.tier)?.wrapping_add(region.tier_offset as usize)),
            None => None,
        };
        let segment_offset = memory.map_or(0, |at| at.offset) + region.tier_offset;
        let address = address.map(<*mut u8>::cast_const);
        take(index, Placed { region: *region, address, segment_offset, padded_length });
    }
    Ok(look)
}

/// The generation of an open file: see `cairn_core::Look`.
pub fn generation(handle: HandleId) -> Result<u64> {
    let mount = mount::current()?;
    let inode = mount.inode_of(handle)?;
    Ok(absent::wait(mount, || mount.fs().regions(inode, 0, &mut []))??.generation)
}

/// A new descriptor, to be read, of the file that a tier in memory is. Errors: `EINVAL`: there is
/// no such tier, or it is not memory.
pub fn segment(tier: u32) -> Result<i32> {
    let mount = mount::current()?;
    let tier = u8::try_from(tier).map_err(|_| Errno(libc::EINVAL))?;
    let memory = memory_of(mount, tier).ok().flatten().ok_or(Errno(libc::EINVAL))?;
    Ok(readers::reader(memory.descriptor)?.into_raw())
}

fn memory_of(mount: &Mount, tier: u8) -> Result<Option<Mappable>> {
    Ok(mount.tier(tier)?.mappable().filter(|mappable| mappable.in_memory))
}

/// Where a tier is mapped to be read.
fn base(mount: &Mount, tier: u8) -> Result<*mut u8> {
    let place = TIERS.get(usize::from(tier)).ok_or(Errno(libc::EIO))?;
    let known = place.load(Ordering::Acquire);
    if !known.is_null() {
        return Ok(known);
    }
    let _held = MAPPING.hold()?;
    let known = place.load(Ordering::Acquire);
    if !known.is_null() {
        return Ok(known);
    }
    let device = mount.tier(tier)?;
    let memory = device.mappable().ok_or(Errno(libc::EIO))?;
    let bytes = usize::try_from(device.bytes()).map_err(|_| Errno(libc::ENOMEM))?;
    let (shared, file) = (libc::MAP_SHARED, memory.descriptor);
    let new = unlocked::map(bytes, libc::PROT_READ, shared, file, memory.offset)?;
    // SAFETY: the new mapping is ours; leaving it out of core dumps changes nothing else. If that
    // fails, they are larger.
    let _ = unsafe { sys::madvise(new, bytes, libc::MADV_DONTDUMP) };
    place.store(new, Ordering::Release);
    Ok(new)
}
