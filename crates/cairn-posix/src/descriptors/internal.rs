//! Descriptor numbers that Cairn itself uses in this process: parked placeholders, those of the
//! store, of locks and of tiers opened for reading. The application must not close or replace them.
//!
//! Must stay true: whoever opens a descriptor for Cairn notes it in `task/internal_floor.rs`.

use crate::descriptors::{locks, placeholder};
use crate::mount;
use crate::pages::readers;
use crate::task::internal_floor;

/// Most numbers that Cairn uses itself. Further locks are not protected from the application.
const INTERNAL_MAX: usize = placeholder::PARKED_MAX + 192;

/// Whether Cairn itself uses this number. The application must not close or replace it.
#[inline]
pub fn is_internal(descriptor: i32) -> bool {
    internal_floor::is_reached_by(descriptor) && is_internal_slow(descriptor)
}

#[cold]
fn is_internal_slow(descriptor: i32) -> bool {
    numbers().any(|internal| internal == descriptor as u32)
}

/// Returns the numbers that Cairn itself uses, in ascending order.
pub(crate) fn numbers() -> impl Iterator<Item = u32> {
    let mut numbers = [u32::MAX; INTERNAL_MAX];
    let mut count = 0;
    let mut note = |descriptor: i32| {
        let number = descriptor as u32;
        if number != u32::MAX && count < INTERNAL_MAX {
            numbers[count] = number;
            count += 1;
        }
    };
    placeholder::for_each_parked(&mut note);
    if let Some(mount) = mount::attached() {
        mount.internal_descriptors(&mut note);
    }
    locks::for_each_descriptor(&mut note);
    readers::for_each_descriptor(&mut note);
    numbers[..count].sort_unstable();
    numbers.into_iter().take(count)
}

/// Gives up a parked descriptor because the application wants its number. Returns false if Cairn
/// needs the number.
pub fn vacate(descriptor: i32) -> bool {
    placeholder::unpark(descriptor).unwrap_or_else(|| !is_internal(descriptor))
}
