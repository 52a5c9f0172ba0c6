//! What proves to another machine who we are: SHA-2 and HMAC, Diffie-Hellman in the groups of RFC 7919, secrets that are wiped.
//!
//! ```text
//! sha2      SHA-256, SHA-384, SHA-512 (FIPS 180-4), HMAC over them (RFC 2104)
//! group     ffdhe2048 … ffdhe8192: exponents, shared values
//! wiped     bytes that are overwritten when they are dropped, and shown to nobody
//! ```
//! Must stay true: time and memory accesses do not depend on the value of an exponent, a key or a proof that is compared.
//! Written here because this crate is loaded into other people's programs, which need no further library for it.
//! Does not encrypt.

pub mod group;
pub mod sha2;
pub mod wiped;

pub use group::{Exchange, Group};
pub use sha2::Hash;
pub use wiped::Wiped;
