//! The microfs: names, inodes, extents, block pools, open-file descriptions, process slots and the operation log
//! of one namespace, in a segment shared by every process of a job (NVMe-CR, section III-A).
//!
//! The core plans and never moves a byte of file data; it has no clock, thread, socket, file or random source.
//! Everything it knows lives in 64-bit words reached by index under one lock, and every change is undone as a whole
//! if its process dies half-way. So the same code runs inside an application, in the agent and in a simulator.
#![forbid(unsafe_code)]

mod absent;
mod attributes;
mod changes;
mod check;
mod claim;
mod coalesce;
mod directory;
mod error;
mod extended;
mod fields;
mod flight;
mod flush;
mod fs;
mod handle;
mod image;
mod inode;
mod inspect;
mod layout;
mod log_media;
mod map;
mod mapped;
mod media;
mod memory;
mod meta_sum;
mod name_cache;
mod namei;
mod names;
mod open;
mod oplog;
mod overwrite;
mod pack;
mod parts;
mod pin;
mod pool;
mod process;
mod promote;
mod punch;
mod quiet;
mod read;
mod record;
mod recover;
mod regions;
mod rename;
mod replay;
mod settle;
mod slab;
mod small;
mod snapshot;
mod space;
mod streams;
mod superblock;
mod text;
mod transaction;
mod tree;
mod truncate;
mod types;
mod upkeep;
mod walk;
mod write;

pub use check::Report;
pub use error::{Error, Result};
pub use extended::{EXTENDED_NAME_BYTES_MAX, EXTENDED_VALUE_BYTES_MAX, ExtendedAttributes};
pub use flush::LogUsage;
pub use fs::{MediaCheck, Microfs};
pub use image::{
    Barriers, ImageLoss, ImageMemory, ImageState, PrivateWords, Rendezvous, shadow_words,
};
pub use inspect::{
    Condition, Inspection, LogEnd, LogState, SlotState, SnapshotState, inspect, repair_superblock,
};
pub use layout::{
    Checksum, Durability, FORMAT_VERSION, Geometry, HUGEBLOCK_BYTES_DEFAULT, HUGEBLOCK_BYTES_MAX,
    HUGEBLOCK_BYTES_MIN, MAGIC, MOUNT_BYTES_MAX,
};
pub use mapped::MappedState;
pub use media::{MEDIA_BLOCK_BYTES, Media, SECTOR_BYTES};
pub use memory::{Acquired, HeapMemory, LOCK_WORDS, Memory};
pub use oplog::{LogRead, LogRecord};
pub use pack::{Pack, SmallFile, Unpacking};
pub use parts::{NumaPolicy, PartUsage, Placement};
pub use promote::Promotion;
pub use read::{ReadPlan, ReadRun};
pub use record::Operation;
pub use recover::{Recovered, format_media, recover, recover_placed, recover_read_only};
pub use regions::{Look, Region, Survey};
pub use settle::SettlePlan;
pub use small::SMALL_BYTES_MAX;
pub use space::{Hope, Moment, SpaceWaiter, SpaceWaiters};
pub use superblock::{FurtherTier, MEDIA_MAGIC, MEDIA_VERSION, MediaOptions, Superblock};
pub use truncate::Truncation;
pub use types::*;
pub use upkeep::{StaleBlock, Usage};
pub use write::{Committed, LeasedWrite, WRITE_BYTES_MAX, WriteKind, WritePiece, WritePlan};
