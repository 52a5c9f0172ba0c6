//! Files that this process holds open so that their data stay while they are copied.
//!
//! Does not decide what is held, nor for how long: `drain/hold.rs` does.

use cairn_core::{HandleId, InodeId};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::store::reaper;
use crate::store::volume::{Volume, now};

/// Files of one namespace that are held open.
#[derive(Default)]
pub struct Hold(Mutex<Held>);

#[derive(Default)]
pub(crate) struct Held {
    pub(crate) files: HashMap<InodeId, HandleId>,
    pub(crate) bytes: u64,
}

impl Hold {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Held> {
        // A thread that panicked had inserted its file or not: both states are valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Volume {
    /// Whether this process holds the file open.
    pub fn holds(&self, inode: InodeId) -> bool {
        self.hold.lock().files.contains_key(&inode)
    }

    /// Calls `act` with the handle of a held file, which cannot be released meanwhile. None if the
    /// file is not held.
    pub fn while_held<T>(&self, inode: InodeId, act: impl FnOnce(HandleId) -> T) -> Option<T> {
        let held = self.hold.lock();
        held.files.get(&inode).map(|handle| act(*handle))
    }

    /// Whether any file is held.
    pub fn is_holding(&self) -> bool {
        !self.hold.lock().files.is_empty()
    }

    /// Whether there is still enough room to keep the hold.
    pub fn may_hold(&self) -> bool {
        let bytes = self.hold.lock().bytes;
        bytes == 0 || self.has_room(bytes)
    }

    /// Releases all held files. The data of those without a name are freed.
    pub fn let_go(&self) {
        let mut held = self.hold.lock();
        let files = std::mem::take(&mut *held).files;
        for handle in files.values() {
            // If this fails, the handle is released with the process slot.
            let _ = self.fs().release(self.slot(), *handle, now());
        }
        // A failure is retried at the next visit.
        let _ = reaper::reclaim(self, None);
    }

    /// Whether the first tier with data has room for `bytes` more. The next tier does not count: a
    /// program would be slower there.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let Ok(usage) = self.fs().usage() else { return false };
        let tiers = usage.total_blocks.iter().zip(&usage.used_blocks);
        let free = tiers.map(|(total, used)| (*total, total.saturating_sub(*used)));
        let (_, free) = free.into_iter().find(|(total, _)| *total > 0).unwrap_or_default();
        let barred: u64 = usage.parts.iter().map(|part| u64::from(part.barred_blocks)).sum();
        free.saturating_sub(barred).saturating_mul(usage.hugeblock_bytes) >= bytes
    }
}
