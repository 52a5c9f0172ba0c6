//! The microfs: names, inodes, extents, block pools, open-file descriptions, process slots and the
//! operation log of one namespace, in a segment shared by every process of a job (NVMe-CR, section
//! III-A).
//!
//! The core plans and never moves a byte of file data. It has no clock, thread, socket, file or
//! random source. All its state is 64-bit words, reached by index under one lock. A change is
//! undone as a whole if its process dies half-way. So the same code runs inside an application, in
//! the agent and in a simulator.
#![forbid(unsafe_code)]

mod data;
mod engine;
mod format;
mod image;
mod namespace;
mod process;
mod recovery;
mod space;

pub use data::mapped::MappedState;
pub use data::pack::{Pack, SmallFile, Unpacking};
pub use data::promote::Promotion;
pub use data::read::{ReadPlan, ReadRun};
pub use data::regions::{Look, Region, Survey};
pub use data::settle::SettlePlan;
pub use data::small::SMALL_BYTES_MAX;
pub use data::truncate::Truncation;
pub use data::upkeep::{StaleBlock, Usage};
pub use data::write::{Committed, LeasedWrite, WRITE_BYTES_MAX, WriteKind, WritePiece, WritePlan};
pub use engine::fs::Microfs;
pub use engine::shadow::ImageLoss;
pub use format::error::{Error, Result};
pub use format::layout::shadow_words;
pub use format::layout::{
    Checksum, Durability, FORMAT_VERSION, Geometry, HUGEBLOCK_BYTES_DEFAULT, HUGEBLOCK_BYTES_MAX,
    HUGEBLOCK_BYTES_MIN, MAGIC, MOUNT_BYTES_MAX,
};
pub use format::media::{MEDIA_BLOCK_BYTES, Media, SECTOR_BYTES};
pub use format::memory::{Acquired, HeapMemory, LOCK_WORDS, Memory};
pub use format::note;
pub use format::placement::{NumaPolicy, Placement};
pub use format::record::Operation;
pub use format::superblock::{FurtherTier, MEDIA_MAGIC, MEDIA_VERSION, MediaOptions, Superblock};
pub use format::types::*;
pub use image::{Barriers, ImageMemory, ImageState, PrivateWords, Rendezvous};
pub use namespace::extended::{
    EXTENDED_NAME_BYTES_MAX, EXTENDED_VALUE_BYTES_MAX, ExtendedAttributes,
};
pub use recovery::check::Report;
pub use recovery::flush::LogUsage;
pub use recovery::inspect::{
    Condition, Inspection, LogEnd, LogState, SlotState, SnapshotState, inspect, repair_superblock,
};
pub use recovery::media_check::MediaCheck;
pub use recovery::oplog::{LogRead, LogRecord};
pub use recovery::recover::{Recovered, format_media, recover, recover_placed, recover_read_only};
pub use space::parts::PartUsage;
pub use space::{Moment, Prospect, SpaceWaiter, SpaceWaiters};
