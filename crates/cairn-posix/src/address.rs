//! Addresses that the application passes, as far as one look at the number tells: the kernel answers a bad one with
//! EFAULT, and touching it would end the process.
//!
//! Told are those that no program can have: in the first page, where null pointers with an offset point, and in the
//! upper half of the address space and what is next to it, where -1 points. What lies between and is not mapped is not
//! told: asking the kernel would cost more than most calls.

use crate::error::{Errno, Result};

/// The kernel maps nothing below (`vm.mmap_min_addr`).
const LOWEST: usize = 4096;
/// Processors give a process at most 56 bits.
const END: usize = 1 << 56;

/// Whether a process can have this address.
#[inline]
pub fn is_possible<T>(address: *const T) -> bool {
    (LOWEST..END).contains(&(address as usize))
}

/// Errors: `EFAULT` if no process can have this address.
#[inline]
pub fn check<T>(address: *const T) -> Result<()> {
    match is_possible(address) {
        true => Ok(()),
        false => Err(Errno(libc::EFAULT)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_are_possible_and_those_of_nobody_are_not() {
        let local = 0_u8;
        assert!(is_possible(&raw const local) && is_possible(vec![0_u8].as_ptr()));
        for nobodys in [0, 8, 4095, 1 << 56, 1 << 62, usize::MAX] {
            assert_eq!(check(nobodys as *const u8), Err(Errno(libc::EFAULT)), "{nobodys:#x}");
        }
    }
}
