//! A tier of a new store that cannot be made.

use cairn_nvme::shared::RemotePath;
use std::borrow::Cow;
use std::path::PathBuf;

use crate::error::exit_code::EXIT_USAGE;
use crate::size;

/// A tier of a new store that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    /// Not a tier.
    #[error(
        "{text:?} is not a tier; write ram, file:PATH, dax:PATH, block:DEVICE or nvme-tcp://HOST/NQN, optionally with \
         a size, as in ram:8G, file:/nvme/cairn:100G, dax:/pmem/cairn:50G, block:/dev/nvme0n1 or \
         nvme-tcp://storage1/nqn.2026-11.io.cairn:target?nsid=1&size=100G"
    )]
    Tier {
        /// Value that the user gave.
        text: String,
    },
    /// Too many tiers.
    #[error("{count} tiers were given; a store has at most {most}")]
    TooManyTiers {
        /// Number of tiers.
        count: usize,
        /// Maximum number of tiers.
        most: usize,
    },
    /// Two tiers in the same place.
    #[error("{text:?} is the second tier in the same place; give it once")]
    TierTwice {
        /// Value that the user gave.
        text: String,
    },
    /// A tier's file that cannot be created, or a device that cannot be used.
    #[error("the tier {} {problem}; {advice}", RemotePath::shown(path))]
    TierFile {
        /// The file or device.
        path: PathBuf,
        /// The problem.
        problem: String,
        /// Advice.
        advice: Cow<'static, str>,
    },
    /// A file for metadata without a size.
    #[error(
        "--meta-tier {text} has no size; write {text}:SIZE (--help says how much metadata needs)"
    )]
    MetaWithoutSize {
        /// Value that the user gave.
        text: String,
    },
    /// A NUMA node that this machine does not have.
    #[error(
        "this machine has no memory node {node}; it has {nodes}: give --numa node:N, local or interleave"
    )]
    NoSuchNode {
        /// Requested node.
        node: u32,
        /// Existing nodes.
        nodes: String,
    },
    /// A tier below the minimum size.
    #[error("a tier of {bytes} bytes is too small; give at least {}", size::human(*least_bytes))]
    TierTooSmall {
        /// Requested size in bytes.
        bytes: u64,
        /// Minimum size in bytes.
        least_bytes: u64,
    },
    /// Too little space for the metadata of the other tiers.
    #[error(
        "--meta-tier {given} is too small: the metadata of these tiers needs {least}; give it at least \
         that, and more for over a thousand files"
    )]
    MetaTooSmall {
        /// Value that the user gave.
        given: String,
        /// Minimum size.
        least: String,
    },
    /// A tier larger than the memory.
    #[error(
        "a RAM tier of {wanted} is larger than {of_what}, {available}; give a smaller --tier \
         ram:SIZE"
    )]
    TierTooLarge {
        /// Requested size.
        wanted: String,
        /// The limit.
        of_what: String,
        /// Available size.
        available: String,
    },
    /// Tiers larger than the quota.
    #[error(
        "the tiers have {tiers} in total, more than the quota of {quota}; give smaller tiers, or a larger --quota"
    )]
    Quota {
        /// Size of the tiers.
        tiers: String,
        /// The quota.
        quota: String,
    },
    /// `--promote` would move blocks from a durable tier to memory.
    #[error(
        "--promote needs metadata in memory, but {tier} makes it durable; leave one of them out, \
         or add --meta-tier ram"
    )]
    Promote {
        /// Tier of the metadata.
        tier: String,
    },
}

impl TierError {
    /// Exit code of the process for this error. Every variant is named, so that whoever adds one
    /// decides whether anything was changed by then.
    pub(super) fn exit_code(&self) -> i32 {
        match self {
            TierError::Tier { .. }
            | TierError::TooManyTiers { .. }
            | TierError::TierTwice { .. }
            | TierError::TierFile { .. }
            | TierError::MetaWithoutSize { .. }
            | TierError::NoSuchNode { .. }
            | TierError::TierTooSmall { .. }
            | TierError::MetaTooSmall { .. }
            | TierError::TierTooLarge { .. }
            | TierError::Quota { .. }
            | TierError::Promote { .. } => EXIT_USAGE,
        }
    }

    /// Option that the error is about; of a key of the settings file, its name.
    pub(super) fn option(&self) -> Option<&'static str> {
        match self {
            TierError::MetaWithoutSize { .. } | TierError::MetaTooSmall { .. } => {
                Some("--meta-tier")
            }
            TierError::NoSuchNode { .. } => Some("--numa"),
            TierError::Quota { .. } => Some("--quota"),
            TierError::Promote { .. } => Some("--promote"),
            _ => None,
        }
    }
}
