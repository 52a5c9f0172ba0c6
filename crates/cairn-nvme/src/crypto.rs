//! Cryptography for authentication: SHA-2 and HMAC, Diffie-Hellman in the groups of RFC 7919, and
//! secrets that are wiped.
//!
//! ```text
//! sha2      SHA-256, SHA-384, SHA-512 (FIPS 180-4), HMAC over them (RFC 2104)
//! group     ffdhe2048 … ffdhe8192: exponents, shared values
//! wiped     bytes that are overwritten when they are dropped, and never shown
//! ```
//! The algorithms come from the crates `sha2`, `hmac`, `crypto-bigint`, `subtle` and `zeroize`.
//! They run in constant time, start no thread, and run nothing at load time.
//!
//! Invariant: time and memory accesses do not depend on the value of an exponent, of a key, or of a
//! proof that is compared.
//!
//! Does not encrypt.

pub mod group;
pub mod sha2;
pub mod wiped;

pub use group::{Exchange, Group};
pub use sha2::Hash;
pub use wiped::Wiped;
