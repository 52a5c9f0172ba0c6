//! File data: plans of reads and writes, extents, packs, mappings, absent data.

pub(crate) mod absent;
pub(crate) mod changes;
pub(crate) mod coalesce;
pub(crate) mod map;
pub(crate) mod mapped;
pub(crate) mod overwrite;
pub(crate) mod pack;
pub(crate) mod promote;
pub(crate) mod punch;
pub(crate) mod quiet;
pub(crate) mod read;
pub(crate) mod regions;
pub(crate) mod settle;
pub(crate) mod small;
pub(crate) mod streams;
pub(crate) mod truncate;
pub(crate) mod upkeep;
pub(crate) mod write;
