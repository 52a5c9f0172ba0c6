//! The platform under everything else: system calls, descriptors, memory mappings, processes, and
//! copies that compute a checksum on the way.
//!
//! Invariant: all of it may run inside other people's programs. No thread is started, nothing is
//! printed, no constructor runs, and every system call goes through [`sys`], because the C
//! library's names of those calls may be Cairn's own hooks.
//!
//! Knows no store and no tier.

const _: () = assert!(
    cfg!(all(target_os = "linux", target_endian = "little", target_pointer_width = "64")),
    "segments and the lock word are laid out for 64-bit little-endian Linux"
);

pub mod adaptive_spin;
pub mod address;
pub mod checksum;
pub mod copy;
pub mod descriptor;
pub mod direct;
pub mod dispatch;
pub mod elf;
#[cfg(target_arch = "x86_64")]
mod fold;
pub mod mapping;
pub mod mlock_exempt;
pub mod process;
pub mod prometheus;
pub mod short_path;
pub mod sys;
