//! What touches the world: shared memory, the lock word, checksums, tiers and the store directory.
//!
//! Must stay true: everything here runs inside other people's programs. So no thread is started,
//! nothing is printed, no constructor runs, and every system call goes through [`sys`], because the
//! libc names of those calls may be Cairn's own hooks.
//! Does not decide which bytes go where (`cairn-core` plans) nor which calls are ours
//! (`cairn-posix`).

const _: () = assert!(
    cfg!(all(target_os = "linux", target_endian = "little", target_pointer_width = "64")),
    "segments and the lock word are laid out for 64-bit little-endian Linux"
);

pub mod address;
pub mod checksum;
pub mod copy;
pub mod crypto;
mod dax;
pub mod descriptor;
pub mod device;
pub mod directory;
pub mod dispatch;
mod fd_passing;
pub mod file;
#[cfg(target_arch = "x86_64")]
mod fold;
pub mod huge;
pub mod label;
pub mod lock;
pub mod lock_file;
pub mod looks;
pub mod mapping;
pub mod media_file;
pub mod medium;
pub mod namespace;
pub mod notes;
pub mod numa;
pub mod nvme;
pub mod process;
pub mod ram;
pub mod ranks;
pub mod segment;
pub mod short_path;
mod staging;
pub mod store;
pub mod sys;
pub mod tiers;
mod transit;
pub mod unlocked;
mod upkeep;
mod workspace;

pub use device::{Device, Mappable};
pub use file::FileTier;
pub use media_file::MediaFile;
pub use medium::MediumKind;
pub use namespace::Namespace;
pub use ram::RamDevice;
pub use segment::MetaSegment;
pub use store::{Store, StoreError};
pub use sys::Errno;
pub use tiers::TierPlace;
pub use workspace::Workspace;
