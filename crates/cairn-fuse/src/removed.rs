//! Files that were removed through the mount and that the kernel may still know.
//!
//! Must stay true: an inode is kept only until the kernel forgets it, so that its space is free
//! when nobody uses it any more. Files that preloaded programs remove are not kept: what the kernel
//! knows of them, but nobody has open, is `ESTALE`.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cairn_core::HandleId;
use fuser::INodeNo;

/// Descriptions that keep removed inodes, by the number that the kernel knows.
#[derive(Default)]
pub struct Removed(Mutex<HashMap<INodeNo, HandleId>>);

impl Removed {
    fn map(&self) -> MutexGuard<'_, HashMap<INodeNo, HandleId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a removed inode by `handle`. Returns the description that it does not need then.
    pub fn keep(&self, number: INodeNo, handle: HandleId) -> Option<HandleId> {
        self.map().insert(number, handle)
    }

    /// Returns the description that kept an inode that the kernel has forgotten.
    pub fn forget(&self, number: INodeNo) -> Option<HandleId> {
        self.map().remove(&number)
    }
}
