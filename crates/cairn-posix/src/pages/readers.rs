//! Read-only descriptors of tiers. They permit no write, not even through a mapping that `mprotect`
//! changes.
//!
//! They are opened when needed, by a name in /proc that only a process with the right credentials
//! can open. So a process that is about to change its credentials opens them before and keeps them.
//!
//! Must stay true: a kept descriptor refers to the same file as the tier's descriptor stored with
//! it, and counts among Cairn's own numbers.

use core::sync::atomic::{AtomicU64, Ordering};
use std::ffi::CString;

use cairn_core::TIERS_MAX;
use cairn_platform::descriptor::Descriptor;
use cairn_platform::sys;

use crate::error::{Errno, Result};
use crate::mount::Mount;
use crate::task::internal_floor;

/// For each tier the descriptor that it was opened by and the read-only one, packed in one word; 0
/// if none is kept.
static KEPT: [AtomicU64; TIERS_MAX] = [const { AtomicU64::new(0) }; TIERS_MAX];

fn kept() -> impl Iterator<Item = (i32, i32)> {
    let words = KEPT.iter().map(|place| place.load(Ordering::Acquire)).filter(|&word| word != 0);
    words.map(|word| ((word >> 32) as i32, word as u32 as i32))
}

/// Opens and keeps the descriptors of all tiers that can be mapped. What fails here fails again
/// when it is needed.
pub(crate) fn keep(mount: &Mount) {
    for (tier, place) in (0..).zip(&KEPT) {
        let Some(memory) = mount.tier(tier).ok().and_then(|tier| tier.mappable()) else { continue };
        let file = memory.descriptor;
        if kept().any(|(known, _)| known == file) {
            continue;
        }
        let Ok(reader) = open(file) else { continue };
        let reader = reader.raise().into_raw();
        internal_floor::note(reader);
        let word = u64::from(file as u32) << 32 | u64::from(reader as u32);
        // Another thread may be using the descriptor that is kept already.
        if place.compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            let _ = sys::close(reader);
        }
    }
}

/// Clears stale entries in a child just forked. The child's descriptors are those that its parent
/// had a moment before its memory was copied, so one that another thread kept meanwhile is missing,
/// or is something else.
pub(crate) fn forked() {
    let identity = |number| sys::fstat(number).map(|stat| (stat.st_dev, stat.st_ino));
    for place in &KEPT {
        let word = place.load(Ordering::Relaxed);
        let (file, reader) = ((word >> 32) as i32, word as u32 as i32);
        let is_there = || identity(file).is_ok() && identity(file) == identity(reader);
        if word != 0 && !is_there() {
            place.store(0, Ordering::Relaxed);
        }
    }
}

/// Returns a new read-only descriptor of the file behind `file`, a descriptor of a tier. Errors:
/// those of opening it.
pub(crate) fn reader(file: i32) -> Result<Descriptor> {
    match kept().find(|&(known, _)| known == file) {
        Some((_, reader)) => {
            Ok(Descriptor::from_raw(sys::fcntl(reader, libc::F_DUPFD_CLOEXEC, 0)?))
        }
        None => open(file),
    }
}

fn open(file: i32) -> Result<Descriptor> {
    let path = CString::new(format!("/proc/self/fd/{file}")).map_err(|_| Errno(libc::EINVAL))?;
    Ok(Descriptor::open(libc::AT_FDCWD, &path, libc::O_RDONLY, 0)?)
}

/// Calls `visit` with each kept number.
pub(crate) fn for_each_descriptor(visit: &mut dyn FnMut(i32)) {
    kept().for_each(|(_, reader)| visit(reader));
}
