//! Moves what programs have read on slower tiers to a faster one (`cairn run --promote`), so that
//! the next read finds it there.
//!
//! Must stay true: no program waits for it. While programs read on slower tiers, it takes little of
//! them; what it moves is at full speed only once they do not. Nothing is moved that is not what
//! its checksum says.
//! Does not choose where there is room, nor decide whether a file changed meanwhile; the core does.

use crate::agent::shared::Shared;
use crate::model::job::Job;
use crate::store::volume::Volume;
use cairn_core::{Error, InodeId, Promotion, Result};
use cairn_device::checksum;
use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

/// How often notes of readers are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What is left to do in one namespace.
#[derive(Default)]
struct Promoter {
    /// Notes that were left at the last look.
    noted: u64,
    /// A file, and what of it was read and is not looked at yet.
    rest: Option<(InodeId, Range<u32>)>,
    buffer: Vec<u8>,
}

/// Runs until the agent ends, if the job wants that.
pub fn run(shared: &Shared) {
    if !Job::load(shared.directory()).is_ok_and(|job| job.promote) {
        return;
    }
    let mut promoters: HashMap<String, Promoter> = HashMap::new();
    while !shared.is_stopping() {
        shared.sleep(LOOK_EVERY);
        for volume in shared.volumes().0 {
            let promoter = promoters.entry(volume.name().to_string()).or_default();
            // Refused where metadata are durable; then nobody leaves notes.
            if volume.fs().promote_reads(true).is_ok() {
                promoter.turn(shared, &volume);
            }
        }
    }
}

impl Promoter {
    /// One step if somebody has just read on a slower tier, else all there is to do until somebody
    /// does.
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

    /// Moves a few blocks; false if there are none.
    fn step(&mut self, volume: &Volume) -> bool {
        let Some((inode, blocks)) = self.rest.take().or_else(|| volume.fs().take_read_note())
        else {
            return false;
        };
        let end = blocks.end;
        // What fails is left where it is: whoever reads it hears of it.
        if let Ok(Some(next)) = self.promote(volume, inode, blocks) {
            self.rest = Some((inode, next..end));
        }
        true
    }

    /// Moves the first of these blocks that can be; where to go on, if there is more to do.
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

    /// Copies blocks with their checksums. Errors: `Corrupt` if one is not what its checksum says:
    /// it is damaged, or was written to.
    fn copy(&mut self, volume: &Volume, promotion: &Promotion) -> Result<()> {
        let (fs, block_bytes) = (volume.fs(), volume.hugeblock_bytes() as usize);
        let count = promotion.count as usize;
        let [from, to] = [promotion.from, promotion.to];
        let source = volume.tier(from.0)?;
        self.buffer.resize(count * block_bytes, 0);
        let (data, rest) = self.buffer.split_at_mut(promotion.bytes as usize);
        rest.fill(0);
        let at = |block: u32| u64::from(block) * block_bytes as u64;
        // SAFETY: `data` is writable for its whole length, no part of a device, and nobody else
        // refers to it.
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
        // SAFETY: the buffer has so many blocks and is no part of a device.
        unsafe { volume.tier(to.0)?.write_blocks(at(to.1), copy, block_bytes, count, &mut take) }
    }
}
