//! Lowest descriptor number that Cairn itself uses in this process. Most numbers of the application
//! are below it, so one comparison recognises them.
//!
//! Does not know which numbers above it are Cairn's; `descriptors/internal.rs` does.

use core::sync::atomic::{AtomicI32, Ordering};

static FLOOR: AtomicI32 = AtomicI32::new(i32::MAX);

/// Lowers the floor to `descriptor`.
pub(crate) fn note(descriptor: i32) {
    FLOOR.fetch_min(descriptor, Ordering::Relaxed);
}

/// Whether `descriptor` is at or above the floor.
#[inline]
pub(crate) fn is_reached_by(descriptor: i32) -> bool {
    descriptor >= FLOOR.load(Ordering::Relaxed)
}
