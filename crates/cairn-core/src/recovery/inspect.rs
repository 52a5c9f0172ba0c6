//! Condition of each part of a durable tier's media: for `cairn fsck`.
//!
//! Reads every block of metadata and changes nothing, except for `repair_superblock`. A crash
//! leaves a torn last flush and an unfinished snapshot. Neither is damage: everything that was
//! promised is there nevertheless. Whether the parts together give a namespace is for recovery to
//! say.

use crate::format::error::{Error, Result};
use crate::format::layout::Checksum;
use crate::format::log_media::{Stream, Survey, block_of, block_start};
use crate::format::media::{MEDIA_BLOCK_BYTES, Media};
use crate::format::superblock::{COPIES, NO_MAGIC, Superblock};
use crate::recovery::flush::BLOCKS_SPARE;
use crate::recovery::snapshot::{self, Header, Rebuilt};

/// Condition of a part of the media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// As it was written.
    Intact,
    /// Never written.
    Blank,
    /// The block that describes the part does not match its checksum.
    Damaged,
    /// Only the records of a snapshot do not match theirs: they are damaged, or a crash interrupted
    /// the next snapshot.
    RecordsDamaged,
}

/// Contents of the media, part by part.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The superblock, or its copy.
    pub superblock: Superblock,
    /// Offset and condition of the superblock and its copy.
    pub superblocks: [(u64, Condition); 2],
    /// The two snapshot slots.
    pub slots: [SlotState; 2],
    /// The log after the newest snapshot whose first block is intact; none without such a snapshot.
    pub log: Option<LogState>,
    /// Whether a damaged snapshot is newer than all others: the log that continues it is on the
    /// media.
    pub lost_snapshot: bool,
}

impl Inspection {
    /// Whether recovery would miss something that was flushed; recovery then refuses the media.
    pub fn has_lost_writes(&self) -> bool {
        self.lost_snapshot || self.log.is_some_and(|log| matches!(log.end, LogEnd::Broken { .. }))
    }
}

/// One snapshot slot.
#[derive(Clone, Copy, Debug)]
pub struct SlotState {
    /// Offset on the media, bytes.
    pub offset: u64,
    /// Condition of the slot.
    pub condition: Condition,
    /// Contents of its first block, unless that is blank or damaged.
    pub snapshot: Option<SnapshotState>,
}

/// A snapshot.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotState {
    /// Number of the snapshot; the greater is the newer.
    pub number: u64,
    /// Position in the log at which it was taken, words.
    pub position: u64,
    /// Bytes of its records.
    pub bytes: u64,
}

/// The log.
#[derive(Clone, Copy, Debug)]
pub struct LogState {
    /// Bytes of the blocks that recovery reads.
    pub used_bytes: u64,
    /// Bytes of the whole ring.
    pub total_bytes: u64,
    /// How the log ends.
    pub end: LogEnd,
}

/// How a log ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogEnd {
    /// No block is behind its end.
    Whole,
    /// The last flush did not arrive whole: an ordinary crash, or damage that cannot be told from
    /// one.
    Torn {
        /// Offset on the media, bytes.
        offset: u64,
    },
    /// A block is damaged, and blocks that were flushed after it are behind it.
    Broken {
        /// Offset of the damaged block on the media, bytes.
        offset: u64,
        /// Intact blocks behind it that cannot be used.
        lost_blocks: u64,
    },
}

/// Inspects all metadata of `media`, which nobody else may use meanwhile. Returns `None` if there
/// is no superblock at all. Errors: `Corrupt`: superblock and copy are damaged;
/// `UnsupportedVersion`; `Io`.
pub fn inspect(media: &dyn Media, checksum: Checksum) -> Result<Option<Inspection>> {
    let copies = COPIES.map(|offset| Superblock::read_at(media, checksum, offset));
    let superblock = match &copies {
        [Ok(superblock), _] | [_, Ok(superblock)] => superblock.clone(),
        [Err(first), Err(second)] if *first == NO_MAGIC && *second == NO_MAGIC => return Ok(None),
        [Err(first), Err(second)] => return Err(if *first == NO_MAGIC { *second } else { *first }),
    };
    let condition = |at: usize| match &copies[at] {
        Ok(copy) if *copy == superblock => (COPIES[at], Condition::Intact),
        _ => (COPIES[at], Condition::Damaged),
    };
    let slots = [0, 1].map(|slot| inspect_slot(media, &superblock, checksum, slot));
    let newest = slots.iter().filter_map(|(_, header)| *header).max_by_key(|header| header.number);
    let log = match newest {
        Some(header) => Some(inspect_log(media, &superblock, checksum, &header)?),
        None => None,
    };
    let slots = slots.map(|(state, _)| state);
    let header_damaged = slots.iter().any(|slot| slot.condition == Condition::Damaged);
    let lost_snapshot = header_damaged
        && newest.is_some_and(|header| {
            let brand = (superblock.brand(header.epoch + 1), checksum);
            let goes_on = Survey::take(media, &superblock, brand).count() > 0;
            goes_on || log.is_some_and(|log| matches!(log.end, LogEnd::Broken { .. }))
        });
    let superblocks = [condition(0), condition(1)];
    Ok(Some(Inspection { superblock, superblocks, slots, log, lost_snapshot }))
}

/// Checks that nothing that was flushed is behind `rebuilt`, which is all that recovery can make of
/// the media. Otherwise that state is not just old: blocks of its files have been used for others
/// since. Errors: `Corrupt`.
pub(crate) fn refuse_loss(
    media: &dyn Media,
    superblock: &Superblock,
    checksum: Checksum,
    rebuilt: &Rebuilt,
) -> Result<()> {
    let epoch = rebuilt.newest.epoch;
    let tails = Survey::of_tails(media, superblock, (superblock.brand(epoch), checksum));
    if let LogEnd::Broken { .. } = end_of(superblock, block_of(rebuilt.end), &tails) {
        return Err(Error::Corrupt { what: "log before its end" });
    }
    let is_damaged = |slot| {
        let header = Header::read(media, superblock, checksum, slot)?;
        Ok(header.is_none() && !snapshot::is_blank(media, superblock, slot))
    };
    let next = (superblock.brand(epoch + 1), checksum);
    match (is_damaged(0)? || is_damaged(1)?) && Survey::take(media, superblock, next).count() > 0 {
        true => Err(Error::Corrupt { what: "first block of the newest snapshot" }),
        false => Ok(()),
    }
}

/// Writes the superblock and its copy again, from whichever is intact. Errors: neither is intact;
/// `Io`.
pub fn repair_superblock(media: &dyn Media, checksum: Checksum) -> Result<()> {
    Superblock::read(media, checksum)?.write(media, checksum)?;
    media.flush()
}

fn inspect_slot(
    media: &dyn Media,
    superblock: &Superblock,
    checksum: Checksum,
    slot: u64,
) -> (SlotState, Option<Header>) {
    // An unreadable slot counts as damaged.
    let header = Header::read(media, superblock, checksum, slot).unwrap_or(None);
    let condition = match &header {
        None if snapshot::is_blank(media, superblock, slot) => Condition::Blank,
        None => Condition::Damaged,
        Some(header) => match snapshot::read(media, superblock, checksum, header) {
            Ok(_) => Condition::Intact,
            Err(_) => Condition::RecordsDamaged,
        },
    };
    let snapshot = header.map(|header| SnapshotState {
        number: header.number,
        position: header.position,
        bytes: header.words * 8,
    });
    (SlotState { offset: superblock.slot(slot), condition, snapshot }, header)
}

/// Inspects the log after `header`.
fn inspect_log(
    media: &dyn Media,
    superblock: &Superblock,
    checksum: Checksum,
    header: &Header,
) -> Result<LogState> {
    let block_bytes = MEDIA_BLOCK_BYTES as u64;
    let brand = (superblock.brand(header.epoch), checksum);
    let stream = Stream::read(media, superblock, brand, header.position)?;
    let words = stream.words.len() as u64;
    let end = block_of(stream.start + words);
    let used = end - block_of(header.position)
        + u64::from(block_start(stream.start + words) != stream.start + words);
    let survey = Survey::take(media, superblock, brand);
    Ok(LogState {
        used_bytes: used * block_bytes,
        total_bytes: superblock.log_blocks * block_bytes,
        end: end_of(superblock, end, &survey),
    })
}

/// Returns how the log ends, by the blocks behind `end`, where the stream breaks off.
fn end_of(superblock: &Superblock, end: u64, survey: &Survey) -> LogEnd {
    let tails = survey.tails;
    let behind = || survey.full.iter().chain(tails.iter().flatten()).filter(|&&at| at > end);
    let offset = superblock.log_block(end);
    // The older of two partial blocks, and all before it, was durable before the newer one was
    // written. And one flush reaches only so far.
    let flushed = matches!(tails, [Some(one), Some(other)] if one.min(other) > end)
        || behind().any(|&at| at > end + BLOCKS_SPARE);
    match (flushed, behind().count() as u64, survey.torn_tail) {
        (true, lost_blocks, _) => LogEnd::Broken { offset, lost_blocks },
        (false, 0, None) => LogEnd::Whole,
        (false, 0, Some(offset)) => LogEnd::Torn { offset },
        (false, ..) => LogEnd::Torn { offset },
    }
}
