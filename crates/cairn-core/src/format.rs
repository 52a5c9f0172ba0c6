//! Layout of the segment and of the media: records, checksums, and the types of both.

pub(crate) mod error;
pub(crate) mod layout;
pub(crate) mod log_media;
pub(crate) mod media;
pub(crate) mod memory;
pub mod note;
pub(crate) mod placement;
pub(crate) mod record;
pub(crate) mod superblock;
pub(crate) mod text;
pub(crate) mod types;
