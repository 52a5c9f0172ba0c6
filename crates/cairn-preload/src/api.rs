//! The functions of `cairn.h`: what a program can tell a store, and ask it, beyond reading and writing files.
//!
//! Every pointer, size and number that a caller passes is checked as far as that is possible. An answer is -1 with errno, or
//! what the header says. In a program that has the library twice, these hand on to the copy that is in charge (`next.rs`).

use core::ffi::c_uint;

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
