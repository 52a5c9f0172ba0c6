//! Addresses of a file's bytes in memory, for programs that copy them without the store.
//!
//! A tier in memory is mapped a second time, read-only, when it is first asked for. It stays
//! mapped, so addresses that were handed out stay valid, whoever uses the blocks later. A
//! generation tells whether the copied bytes are the file's.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use cairn_core::{HandleId, Look};
pub use cairn_core::{Region, TIERS_MAX};
use cairn_device::Mappable;
use cairn_platform::{mlock_exempt, sys};

use crate::data::absent;
use crate::error::{Errno, Result};
use crate::kernel::latch::Latch;
use crate::mount::{self, Mount};
use crate::pages::readers;

/// Read-only mapping of each tier, of the one store that a process can have.
static TIERS: [AtomicPtr<u8>; TIERS_MAX] = [const { AtomicPtr::new(ptr::null_mut()) }; TIERS_MAX];
static MAPPING: Latch = Latch::new();

/// A region and its address.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    /// The region.
    pub region: Region,
    /// Its address in this process; none if the tier is not memory.
    pub address: Option<*const u8>,
    /// Its offset in the file that [`segment`] opens.
    pub segment_offset: u64,
    /// Size of the hugeblock in bytes, which is the length that its checksum covers.
    pub padded_length: u32,
}

/// Finds the regions of an open file from `offset` on, as many as `found` holds, and passes each to
/// `take`. Errors: `EISDIR`; `EIO`; `ENOMEM`; `ENOSPC` and `EINTR` for a packed file.
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

/// Returns the generation of an open file; see `cairn_core::Look`.
pub fn generation(handle: HandleId) -> Result<u64> {
    let mount = mount::current()?;
    let inode = mount.inode_of(handle)?;
    Ok(absent::wait(mount, || mount.fs().regions(inode, 0, &mut []))??.generation)
}

/// Returns a new read-only descriptor of the file of a tier in memory. Errors: `EINVAL`: there is
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

/// Returns the address at which a tier is mapped read-only.
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
    let new = mlock_exempt::map(bytes, libc::PROT_READ, shared, file, memory.offset)?;
    // SAFETY: the new mapping is ours. Leaving it out of core dumps changes nothing else; if that
    // fails, core dumps are larger.
    let _ = unsafe { sys::madvise(new, bytes, libc::MADV_DONTDUMP) };
    place.store(new, Ordering::Release);
    Ok(new)
}
