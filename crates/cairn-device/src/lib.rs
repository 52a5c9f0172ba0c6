//! Tiers in memory, in files and on devices; media and their labels; the store directory; the lock
//! in shared memory.
//!
//! Invariant: everything here runs inside other people's programs. So this crate starts no thread,
//! prints nothing and runs no constructor. Every system call goes through [`cairn_platform::sys`],
//! because the libc names of those calls may be Cairn's own hooks.
//!
//! Does not decide which bytes go where (`cairn-core` plans) nor which calls are ours
//! (`cairn-posix`).

pub mod device;
pub mod directory;
pub mod media;
pub mod memory;
pub mod store;

pub use device::{Device, Mappable};
pub use media::file::FileTier;
pub use media::media_file::MediaFile;
pub use media::medium::MediumKind;
pub use memory::ram::RamDevice;
pub use memory::segment::MetaSegment;
pub use memory::workspace::Workspace;
pub use store::namespace::Namespace;
pub use store::tiers::TierPlace;
pub use store::{Store, StoreError};
