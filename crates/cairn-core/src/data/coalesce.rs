//! Coalescing: one record for many writes through one description (NVMe-CR, section III-E).
//!
//! Two patterns share a record: a write that begins where the last one ended, and *strides*.
//! Strides are pieces of equal length at equal distances, as processes that share one file write
//! them. In both, the added blocks continue those of the record on the tier.
//!
//! Invariant: both kinds of records have the same number of words, so one can become the other in
//! place.
//!
//! Does not know where a record is, or whether it may still be changed; `oplog.rs` does.

use crate::data::map::Extent;
use crate::engine::run::{BlockRun, RUN_BLOCKS_MAX};
use crate::format::record::Operation;

/// Parameters of either kind of record. Inode, offset, length and packed run have the same
/// positions in both.
pub(crate) type Parameters = [u64; 6];

/// A write as a record describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Length, bytes.
    pub length: u64,
    /// Blocks that it adds to the file.
    pub added: Option<Extent>,
    /// Seal of the file's last block.
    pub seal: u64,
}

impl Written {
    /// Returns the parameters of a record of this write alone.
    pub(crate) fn parameters(&self, inode: u32) -> Parameters {
        let (file_block, run) =
            self.added.map_or((0, 0), |added| (u64::from(added.file_block), added.blocks.pack()));
        [u64::from(inode), self.offset, self.length, file_block, run, self.seal]
    }

    /// Returns the added extent if the write covers exactly its blocks.
    fn whole_blocks(&self, shift: u32) -> Option<Extent> {
        let is_whole = |added: &Extent| {
            u64::from(added.file_block) << shift == self.offset
                && u64::from(added.blocks.count) << shift == self.length
        };
        self.added.filter(is_whole)
    }
}

/// Returns the record that says what the record of `operation` said and `next` too; `None` if no
/// record can.
pub(crate) fn continued(
    operation: Operation,
    old: &Parameters,
    next: &Written,
    hugeblock_shift: u32,
) -> Option<(Operation, Parameters)> {
    let strides = match operation {
        Operation::Strides => Strides::decode(old, hugeblock_shift)?.and(next, hugeblock_shift)?,
        Operation::Write => match in_sequence(old, next) {
            Some(parameters) => return Some((Operation::Write, parameters)),
            None => Strides::begin(old, next, hugeblock_shift)?,
        },
        _ => return None,
    };
    Some((Operation::Strides, strides.encode(old[0], hugeblock_shift)))
}

/// Extends a write record by a write that begins where it ends.
fn in_sequence(old: &Parameters, next: &Written) -> Option<Parameters> {
    let [inode, offset, length, file_block, run, _] = *old;
    if offset.checked_add(length)? != next.offset {
        return None;
    }
    let length = length.checked_add(next.length)?;
    let (file_block, run) = match next.added {
        None => (file_block, run),
        Some(added) if run == 0 => (u64::from(added.file_block), added.blocks.pack()),
        Some(added) => {
            let blocks = BlockRun::unpack(run);
            let follows =
                file_block.checked_add(u64::from(blocks.count))? == u64::from(added.file_block);
            (file_block, joined(blocks, added.blocks).filter(|_| follows)?.pack())
        }
    };
    Some([inode, offset, length, file_block, run, next.seal])
}

/// Joins two runs if `next` continues `run`.
fn joined(run: BlockRun, next: BlockRun) -> Option<BlockRun> {
    let count = run.count + next.count;
    let joins = run.tier == next.tier && run.end() == next.first && count <= RUN_BLOCKS_MAX;
    joins.then_some(BlockRun { count, ..run })
}

/// Pieces of whole hugeblocks, of equal length and at equal distances; the last one may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strides {
    /// File block of the first piece.
    first: u32,
    /// Blocks per piece.
    piece: u32,
    /// Blocks from the beginning of a piece to that of the next one.
    stride: u32,
    /// Blocks of all pieces.
    run: BlockRun,
}

impl Strides {
    /// Decodes a record. Returns `None` unless there is more than one piece, the pieces do not
    /// touch, and all block numbers are in range.
    pub(crate) fn decode(parameters: &Parameters, hugeblock_shift: u32) -> Option<Strides> {
        let [_, offset, length, stride, run, piece] = *parameters;
        let blocks = |bytes: u64| {
            let count = bytes >> hugeblock_shift;
            u32::try_from(count).ok().filter(|_| count << hugeblock_shift == bytes)
        };
        let (first, piece, stride) = (blocks(offset)?, blocks(piece)?, blocks(stride)?);
        let strides = Strides { first, piece, stride, run: BlockRun::unpack(run) };
        let count = strides.run.count;
        let proper = piece > 0
            && stride > piece
            && count > piece
            && count <= RUN_BLOCKS_MAX
            && blocks(length)? == count
            && strides.run.first.checked_add(count).is_some();
        strides.checked_end().filter(|_| proper)?;
        Some(strides)
    }

    fn encode(&self, inode: u64, hugeblock_shift: u32) -> Parameters {
        let [first, length, stride, piece] = [self.first, self.run.count, self.stride, self.piece]
            .map(|blocks| u64::from(blocks) << hugeblock_shift);
        [inode, first, length, stride, self.run.pack(), piece]
    }

    /// Returns the strides that a write of one piece and the next write form.
    fn begin(old: &Parameters, next: &Written, hugeblock_shift: u32) -> Option<Strides> {
        let [_, offset, length, file_block, run, seal] = *old;
        let run = Some(BlockRun::unpack(run)).filter(|run| run.count > 0)?;
        let first = u32::try_from(file_block).ok()?;
        let added = Some(Extent { file_block: first, blocks: run });
        Written { offset, length, added, seal }.whole_blocks(hugeblock_shift)?;
        let second = next.added?.file_block;
        let stride = second.checked_sub(first).filter(|&stride| stride > run.count)?;
        Strides { first, piece: run.count, stride, run }.and(next, hugeblock_shift)
    }

    /// Adds the next write, if it is the rest of the last piece, a part of that rest, or the next
    /// piece.
    fn and(self, next: &Written, hugeblock_shift: u32) -> Option<Strides> {
        let added = next.whole_blocks(hugeblock_shift)?;
        let (pieces, filled) = (self.run.count / self.piece, self.run.count % self.piece);
        let expected =
            u64::from(self.first) + u64::from(pieces) * u64::from(self.stride) + u64::from(filled);
        let fits =
            u64::from(added.file_block) == expected && added.blocks.count <= self.piece - filled;
        let run = joined(self.run, added.blocks).filter(|_| fits)?;
        Some(Strides { run, ..self })
    }

    fn checked_end(&self) -> Option<u32> {
        let last = self.run.count.checked_sub(1)?.checked_div(self.piece)?;
        let filled = self.run.count - last * self.piece;
        self.first.checked_add(last.checked_mul(self.stride)?)?.checked_add(filled)
    }

    /// Returns the file block behind the last piece.
    pub(crate) fn end(&self) -> u32 {
        self.checked_end().expect("it was checked when this was made")
    }

    /// Returns the pieces in file order.
    pub(crate) fn pieces(self) -> impl Iterator<Item = Extent> {
        (0..self.run.count.div_ceil(self.piece)).map(move |index| {
            let before = index * self.piece;
            let count = self.piece.min(self.run.count - before);
            let blocks = BlockRun { first: self.run.first + before, count, ..self.run };
            Extent { file_block: self.first + index * self.stride, blocks }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIFT: u32 = 12;
    const INODE: u32 = 5;

    /// A write of whole blocks at a file block, to fresh blocks of the tier.
    fn blocks(file_block: u32, first: u32, count: u32) -> Written {
        let added = Some(Extent { file_block, blocks: BlockRun { tier: 0, first, count } });
        let (offset, length) = (u64::from(file_block) << SHIFT, u64::from(count) << SHIFT);
        Written { offset, length, added, seal: 0 }
    }

    /// Returns the record of these writes, if they fit into one.
    fn record_of(writes: &[Written]) -> Option<(Operation, Parameters)> {
        let first = (Operation::Write, writes[0].parameters(INODE));
        writes[1..].iter().try_fold(first, |(operation, parameters), next| {
            continued(operation, &parameters, next, SHIFT)
        })
    }

    fn pieces_of(writes: &[Written]) -> Vec<(u32, u32, u32)> {
        let (operation, parameters) = record_of(writes).expect("they fit into one record");
        assert_eq!(operation, Operation::Strides);
        let strides = Strides::decode(&parameters, SHIFT).expect("it makes sense");
        let pieces = strides.pieces();
        pieces.map(|at| (at.file_block, at.blocks.first, at.blocks.count)).collect()
    }

    #[test]
    fn pieces_are_equally_far_apart_then_they_are_one_record() {
        let writes = [blocks(3, 100, 2), blocks(11, 102, 2), blocks(19, 104, 2)];
        assert_eq!(pieces_of(&writes), [(3, 100, 2), (11, 102, 2), (19, 104, 2)]);
    }

    #[test]
    fn pieces_are_written_in_parts_then_they_are_one_record() {
        let writes = [
            [blocks(0, 100, 1), blocks(1, 101, 2)],
            [blocks(9, 103, 2), blocks(11, 105, 1)],
            [blocks(18, 106, 1), blocks(19, 107, 1)],
        ];
        assert_eq!(pieces_of(&writes.concat()), [(0, 100, 3), (9, 103, 3), (18, 106, 2)]);
    }

    #[test]
    fn write_does_not_continue_the_strides_then_it_is_not_part_of_them() {
        let begun = [blocks(0, 100, 2), blocks(8, 102, 2)];
        let pinned = |write: Written| record_of(&[&begun[..], &[write]].concat());
        assert!(pinned(blocks(16, 104, 2)).is_some());
        for other in [
            blocks(15, 104, 2),
            blocks(17, 104, 2),
            blocks(16, 105, 2),
            blocks(16, 104, 3),
            blocks(10, 104, 1),
            Written { added: None, ..blocks(16, 104, 2) },
            Written { length: 100, ..blocks(16, 104, 2) },
            Written { offset: (16 << SHIFT) + 1, ..blocks(16, 104, 2) },
        ] {
            assert!(pinned(other).is_none(), "{other:?}");
        }
    }

    #[test]
    fn second_write_is_no_piece_then_there_are_no_strides() {
        let first = blocks(8, 100, 2);
        for other in [blocks(0, 102, 2), blocks(9, 102, 2), blocks(16, 103, 2), blocks(16, 102, 3)]
        {
            assert!(record_of(&[first, other]).is_none(), "{other:?}");
        }
        let partial = Written { length: 5000, ..first };
        assert!(record_of(&[partial, blocks(16, 102, 2)]).is_none());
    }

    #[test]
    fn record_of_strides_contradicts_itself_then_it_is_not_decoded() {
        let (_, proper) = record_of(&[blocks(3, 100, 2), blocks(11, 102, 2)]).unwrap();
        assert!(Strides::decode(&proper, SHIFT).is_some());
        let run = |first, count| BlockRun { tier: 0, first, count }.pack();
        for (place, value) in [
            (1, 100),
            (1, u64::MAX << SHIFT),
            (1, (u64::from(u32::MAX) - 3) << SHIFT),
            (2, 3 << SHIFT),
            (2, 0),
            (3, 0),
            (3, 2 << SHIFT),
            (3, 100),
            (3, u64::MAX << SHIFT),
            (4, 0),
            (4, run(100, 5)),
            (4, run(u32::MAX, 4)),
            (5, 0),
            (5, 1),
            (5, 4 << SHIFT),
            (5, u64::MAX << SHIFT),
        ] {
            let mut parameters = proper;
            parameters[place] = value;
            assert_eq!(Strides::decode(&parameters, SHIFT), None, "{place} {value:#x}");
        }
    }
}
