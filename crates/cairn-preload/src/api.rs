//! The functions of `cairn.h`: what a program can tell a store and ask it, beyond reading and
//! writing files.
//!
//! Pointers, sizes and numbers that a caller passes are checked as far as possible. A call fails
//! with -1 and errno; other return values are described in the header. If the program has the
//! library twice, these functions call the copy that is in charge (`next.rs`).

use core::ffi::{c_char, c_int, c_uint};
use std::time::Duration;

use cairn_posix::data::regions::{self, Placed, Region, TIERS_MAX};
use cairn_posix::files::file;
use cairn_posix::files::path::Route;
use cairn_posix::kernel::{address, configuration};
use cairn_posix::process::job::{self, HINTS, Kind};
use cairn_posix::{Errno, HandleId, PathError, Result};
use libc::size_t;

use crate::answer::{deliver, errno, guarded, set_errno};
use crate::{hooks, next};

/// Maximum length of a mark's name or a hint's path, in bytes.
const TEXT_MAX: usize = 4095;
/// Maximum size of a caller's structure, in bytes. A later version of the header may have larger
/// structures than ours.
const STRUCTURE_MAX: usize = 4096;
/// Maximum number of regions returned by one call.
const REGIONS_BATCH: usize = 64;

/// `struct cairn_tier_status`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct TierStatus {
    total_bytes: u64,
    used_bytes: u64,
}

/// `struct cairn_status`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Status {
    size: size_t,
    flags: u32,
    tiers: u32,
    total_bytes: u64,
    free_bytes: u64,
    files: u64,
    file_bytes: u64,
    undrained_files: u64,
    undrained_bytes: u64,
    unclean_files: u64,
    tier: [TierStatus; TIERS_MAX],
}

const PERSISTS: u32 = 1;
const AGENT: u32 = 2;

/// `struct cairn_region`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CRegion {
    offset: u64,
    length: u64,
    address: *const u8,
    segment_offset: u64,
    segment: u32,
    flags: u32,
    crc32c: u32,
    padded_length: u32,
}

const IN_MEMORY: u32 = 1;
const HAS_CRC32C: u32 = 2;

const _: () = assert!(size_of::<Status>() == 72 + 16 * TIERS_MAX && size_of::<CRegion>() == 48);

/// Runs a call and returns its answer. Changes errno only if the call fails.
fn reply(act: impl FnOnce() -> Result<c_int>) -> c_int {
    let before = errno();
    let (value, number) = match guarded(act) {
        Ok(value) => (value, before),
        Err(Errno(number)) => (-1, number),
    };
    set_errno(number);
    value
}

macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $type:ty),*) = $act:expr;)*) => {$(
        /// As `cairn.h` says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            if next::is_superseded() {
                // SAFETY: the caller's own arguments, for the same function of the other copy.
                return unsafe { library!($name: fn($($type),*) -> c_int)($($argument),*) };
            }
            // SAFETY: the caller's arguments are as the header demands.
            #[allow(unused_unsafe, reason = "some functions take no pointer")]
            reply(|| unsafe { $act })
        }
    )*};
}

functions! {
    fn cairn_mount(job: *const c_char, prefix: *const c_char) = mount(job, prefix);
    fn cairn_unmount() = job::detach().map(|()| 0);
    fn cairn_job(target: *mut c_char, size: size_t) = name(job::name()?, target, size);
    fn cairn_prefix(target: *mut c_char, size: size_t) = name(job::prefix()?, target, size);
    fn cairn_status(status: *mut Status) = fill_status(status);
    fn cairn_checkpoint_begin(name: *const c_char, step: u64) = mark(Kind::Begin, name, step);
    fn cairn_checkpoint_end(name: *const c_char, step: u64) = mark(Kind::End, name, step);
    fn cairn_hint(path: *const c_char, kind: c_int) = hint(path, kind);
    fn cairn_wait_safe(path: *const c_char, level: c_int, timeout_ms: i64) = wait(path, level, timeout_ms);
    fn cairn_regions(descriptor: c_int, offset: u64, target: *mut u8, stride: size_t, count: size_t, generation: *mut u64)
        = list_regions(file_of(descriptor)?, offset, (target, stride, count), generation);
    fn cairn_generation(descriptor: c_int, generation: *mut u64)
        = deliver(generation, regions::generation(file_of(descriptor)?)?).map(|()| 0);
    fn cairn_segment(segment: u32) = regions::segment(segment);
}

/// As `cairn.h` says.
#[unsafe(no_mangle)]
pub extern "C" fn cairn_version() -> c_uint {
    const PARTS: [&str; 3] = [
        env!("CARGO_PKG_VERSION_MAJOR"),
        env!("CARGO_PKG_VERSION_MINOR"),
        env!("CARGO_PKG_VERSION_PATCH"),
    ];
    PARTS.into_iter().fold(0, |version, part| 100 * version + part.parse().unwrap_or(0))
}

/// Borrows a string of the caller's. Errors: `EFAULT`; `ENAMETOOLONG`.
///
/// # Safety
/// `start` is null or points to a NUL-terminated string that lives for the call.
unsafe fn text<'a>(start: *const c_char) -> Result<&'a [u8]> {
    address::check_readable(start, 1)?;
    // SAFETY: promised by the caller; no byte after the NUL is read.
    let length = unsafe { libc::strnlen(start, TEXT_MAX + 1) };
    match length > TEXT_MAX {
        true => Err(Errno(libc::ENAMETOOLONG)),
        // SAFETY: that many bytes precede the NUL.
        false => Ok(unsafe { core::slice::from_raw_parts(start.cast(), length) }),
    }
}

unsafe fn mount(job: *const c_char, prefix: *const c_char) -> Result<c_int> {
    // SAFETY: as `text` demands it.
    let (job, prefix) =
        unsafe { (text(job)?, if prefix.is_null() { None } else { Some(text(prefix)?) }) };
    job::attach(job, prefix).map(|()| 0)
}

/// Copies `text` to the caller, NUL-terminated. Returns its length. Errors: `ERANGE` if it does not
/// fit.
unsafe fn name(text: &[u8], target: *mut c_char, size: size_t) -> Result<c_int> {
    address::check_writable(target, 1)?;
    if text.len() >= size {
        return Err(Errno(libc::ERANGE));
    }
    // SAFETY: the caller passes room for `size` bytes.
    unsafe {
        core::ptr::copy_nonoverlapping(text.as_ptr(), target.cast(), text.len());
        target.add(text.len()).write(0);
    }
    Ok(text.len() as c_int)
}

unsafe fn fill_status(target: *mut Status) -> Result<c_int> {
    address::check_writable(target, size_of::<usize>())?;
    // SAFETY: the caller passes a structure that begins with its size, and that can be read.
    let size = unsafe { (&raw const (*target).size).read_unaligned() };
    if !(size_of::<Status>()..=STRUCTURE_MAX).contains(&size) {
        return Err(Errno(libc::EINVAL));
    }
    address::check_writable(target, size)?;
    let found = job::status()?;
    let mut status = Status { size, ..Status::default() };
    status.flags =
        if found.persists { PERSISTS } else { 0 } | if found.has_agent { AGENT } else { 0 };
    status.tiers = found.tiers as u32;
    let tiers = found.total_bytes.iter().zip(&found.used_bytes).take(found.tiers);
    for (tier, (&total_bytes, &used_bytes)) in status.tier.iter_mut().zip(tiers) {
        *tier = TierStatus { total_bytes, used_bytes };
        status.total_bytes += total_bytes;
        status.free_bytes += total_bytes.saturating_sub(used_bytes);
    }
    let survey = found.survey;
    (status.files, status.file_bytes) = (survey.files, survey.bytes);
    (status.undrained_files, status.undrained_bytes) =
        (survey.undrained_files, survey.undrained_bytes);
    status.unclean_files = survey.unclean_files;
    // SAFETY: there is room for `size` bytes. Those that this version does not know become zeros.
    unsafe {
        target.cast::<u8>().write_bytes(0, size);
        target.write_unaligned(status);
    }
    Ok(0)
}

unsafe fn mark(kind: Kind, name: *const c_char, step: u64) -> Result<c_int> {
    // SAFETY: as `text` demands it.
    job::note(kind, step, unsafe { text(name)? }).map(|()| 0)
}

unsafe fn hint(path: *const c_char, kind: c_int) -> Result<c_int> {
    // SAFETY: as `text` demands it.
    let path = unsafe { text(path)? };
    let known = (1..=HINTS.len() as c_int).contains(&kind);
    let prefix = job::prefix()?;
    let is_below = path.strip_prefix(prefix).is_some_and(|rest| rest.len() > 1 && rest[0] == b'/');
    match known && is_below {
        true => job::note(Kind::Hint, kind as u64, path).map(|()| 0),
        false => Err(Errno(libc::EINVAL)),
    }
}

const LEVEL_NODE: c_int = 1;
const LEVEL_REDUNDANT: c_int = 2;
const LEVEL_PERSIST: c_int = 3;

unsafe fn wait(path: *const c_char, level: c_int, timeout_ms: i64) -> Result<c_int> {
    configuration::get().ok_or(Errno(libc::ENODEV))?;
    let timeout = match timeout_ms {
        -1 => None,
        given => {
            Some(Duration::from_millis(u64::try_from(given).map_err(|_| Errno(libc::EINVAL))?))
        }
    };
    let place = match path.is_null() {
        true => None,
        false => {
            // SAFETY: as `text` demands it.
            unsafe { text(path)? };
            // SAFETY: `text` has found the terminator.
            match unsafe { cairn_posix::files::path::route(path) } {
                Route::Libc => return Err(Errno(libc::EINVAL)),
                route => Some(hooks::ours(route, true).ok_or(Errno(libc::EINVAL))?),
            }
        }
    };
    let waited = match level {
        LEVEL_NODE => place
            .map_or(Ok(()), |place| file::stat(&place, true).map(drop))
            .and_then(|()| Ok(job::settle()?)),
        LEVEL_PERSIST => job::wait_drained(place.as_ref(), timeout),
        LEVEL_REDUNDANT => Err(Errno(libc::ENOTSUP).into()),
        _ => Err(Errno(libc::EINVAL).into()),
    };
    waited.map(|()| 0).map_err(|error| match error {
        PathError::Errno(errno) => errno,
        PathError::Elsewhere(_) => Errno(libc::EINVAL),
    })
}

/// Handle of the Cairn file behind a descriptor. Errors: `EBADF`; `EINVAL` if it is not Cairn's;
/// `ENODEV` if the process has no mount.
fn file_of(descriptor: c_int) -> Result<HandleId> {
    configuration::get().ok_or(Errno(libc::ENODEV))?;
    match hooks::known(descriptor) {
        Some(handle) => Ok(handle),
        None => {
            cairn_posix::kernel::fcntl(descriptor, libc::F_GETFD, 0)?;
            Err(Errno(libc::EINVAL))
        }
    }
}

unsafe fn list_regions(
    handle: HandleId,
    offset: u64,
    (target, stride, count): (*mut u8, size_t, size_t),
    generation: *mut u64,
) -> Result<c_int> {
    if !(size_of::<CRegion>()..=STRUCTURE_MAX).contains(&stride) || stride % 8 != 0 {
        return Err(Errno(libc::EINVAL));
    }
    if count > 0 {
        address::check_writable(target, 1)?;
    }
    address::check_writable(generation, size_of::<u64>())?;
    let mut found = [Region::default(); REGIONS_BATCH];
    let most = count.min(REGIONS_BATCH);
    let put = |index: usize, placed: Placed| {
        // SAFETY: the caller passes room for `count` structures of `stride` bytes, and no more than
        // `count` are written.
        unsafe {
            let place = target.add(index * stride);
            place.write_bytes(0, stride);
            place.cast::<CRegion>().write_unaligned(region(&placed));
        }
    };
    let look = regions::regions(handle, offset, &mut found[..most], put)?;
    // SAFETY: the caller passes room for it.
    unsafe { deliver(generation, look.generation)? };
    Ok(look.count as c_int)
}

fn region(placed: &Placed) -> CRegion {
    let Placed { region, address, segment_offset, padded_length } = *placed;
    CRegion {
        offset: region.offset,
        length: region.length.into(),
        address: address.unwrap_or(core::ptr::null()),
        segment_offset: if address.is_some() { segment_offset } else { 0 },
        segment: region.tier.into(),
        flags: if address.is_some() { IN_MEMORY } else { 0 }
            | if region.crc32c.is_some() { HAS_CRC32C } else { 0 },
        crc32c: region.crc32c.unwrap_or(0),
        padded_length,
    }
}
