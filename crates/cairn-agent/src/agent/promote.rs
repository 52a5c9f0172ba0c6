//! Moves blocks that programs have read on slower tiers to a faster one (`cairn run --promote`), so
//! that the next read finds them there.
//!
//! Must stay true: no program waits for a promotion. While programs read on slower tiers, the
//! promoter takes little of their bandwidth; it works at full speed only when such reads pause. A
//! block whose checksum does not match is not moved. Does not choose the target tier, nor decide
//! whether a file changed meanwhile; the core does.

use cairn_core::{Error, InodeId, Promotion, Result};
use cairn_platform::checksum;
use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use crate::agent::shared::Shared;
use crate::model::job::Job;
use crate::store::volume::Volume;

/// Interval at which read notes are polled.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Pending promotions of one namespace.
#[derive(Default)]
struct Promoter {
    /// Value of `reads_noted` at the last look.
    noted: u64,
    /// A file and the range of blocks read from it that is not examined yet.
    rest: Option<(InodeId, Range<u32>)>,
    buffer: Vec<u8>,
}

/// Runs until the agent ends. Returns at once if the job does not want promotion.
pub fn run(shared: &Shared) {
    if !Job::load(shared.directory()).is_ok_and(|job| job.promote) {
        return;
    }
    let mut promoters: HashMap<String, Promoter> = HashMap::new();
    while !shared.is_stopping() {
        shared.sleep(LOOK_EVERY);
        for volume in shared.volumes().0 {
            let promoter = promoters.entry(volume.name().to_string()).or_default();
            // Refused where metadata are durable. Readers leave no notes there.
            if volume.fs().promote_reads(true).is_ok() {
                promoter.turn(shared, &volume);
            }
        }
    }
}

impl Promoter {
    /// Does one step if a program has read on a slower tier since the last look; otherwise does
    /// steps until no work is left or a program reads there again.
    fn turn(&mut self, shared: &Shared, volume: &Volume) {
        let noted = volume.fs().reads_noted();
        let is_quiet = self.noted == noted;
        self.noted = noted;
        while self.step(volume)
            && is_quiet
            && volume.fs().reads_noted() == noted
            && !shared.is_stopping()
        {}
    }

    /// Moves a few blocks. Returns false if there is no work.
    fn step(&mut self, volume: &Volume) -> bool {
        let Some((inode, blocks)) = self.rest.take().or_else(|| volume.fs().take_read_note())
        else {
            return false;
        };
        let end = blocks.end;
        // After an error the blocks stay where they are. A program that reads them gets the error.
        if let Ok(Some(next)) = self.promote(volume, inode, blocks) {
            self.rest = Some((inode, next..end));
        }
        true
    }

    /// Moves the first of these blocks that can be moved. Returns the block at which to go on, or
    /// None if nothing more is to be done.
    fn promote(
        &mut self,
        volume: &Volume,
        inode: InodeId,
        blocks: Range<u32>,
    ) -> Result<Option<u32>> {
        let (fs, caller) = (volume.fs(), volume.caller());
        let Some(promotion) = fs.plan_promotion(&caller, inode, blocks)? else { return Ok(None) };
        let next = promotion.file_block + promotion.count;
        let moved =
            self.copy(volume, &promotion).and_then(|()| fs.commit_promotion(&caller, &promotion));
        match moved {
            Ok(true) => Ok(Some(next)),
            Ok(false) => Ok(None),
            Err(error) => fs.abort_promotion(&caller, &promotion).and(Err(error)),
        }
    }

    /// Copies blocks with their checksums. Errors: `Corrupt` if a block does not match its
    /// checksum: it is damaged, or was overwritten meanwhile.
    fn copy(&mut self, volume: &Volume, promotion: &Promotion) -> Result<()> {
        let (fs, block_bytes) = (volume.fs(), volume.hugeblock_bytes() as usize);
        let count = promotion.count as usize;
        let [from, to] = [promotion.from, promotion.to];
        let source = volume.tier(from.0)?;
        self.buffer.resize(count * block_bytes, 0);
        let (data, rest) = self.buffer.split_at_mut(promotion.bytes as usize);
        rest.fill(0);
        let at = |block: u32| u64::from(block) * block_bytes as u64;
        // SAFETY: `data` is writable for its whole length, is not part of a device, and has no
        // other reference.
        unsafe { source.read(at(from.1), data.as_mut_ptr(), data.len())? };
        let mut stored = vec![None; count];
        fs.checksums(promotion.inode, promotion.file_block, &mut stored)?;
        let mut blocks = (to.1..).zip(stored);
        let mut take = |raw: u32| {
            let sum = checksum::of_sparse_block(raw, 0, block_bytes as u64);
            match blocks.next() {
                Some((block, Some(stored))) if stored == sum => fs.store_checksum(to.0, block, sum),
                _ => Err(Error::Corrupt { what: "block that is promoted" }),
            }
        };
        let copy = self.buffer.as_ptr();
        // SAFETY: the buffer holds `count` blocks of `block_bytes` and is not part of a device.
        unsafe { volume.tier(to.0)?.write_blocks(at(to.1), copy, block_bytes, count, &mut take) }
    }
}
