//! Drives a namespace as the POSIX layer does: plan, move the bytes, commit; seal; truncate in steps; reclaim.
//!
//! Every step can be taken alone, so that a test decides what happens between them.
//! Must stay true: checksums are computed from whole blocks as they are stored, independently of the algebra
//! that `cairn-device` uses.

use crate::tier::{CHECKSUM, Tier};
use cairn_core::{
    Caller, Committed, Credentials, Error, HandleId, InodeId, Microfs, Position, ProcessIdentity,
    Result, SlotId, StaleBlock, Timestamp, Truncation, TruncatePlan, WriteKind, WritePiece,
    WritePlan,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Attempts at something that other processes keep disturbing; in a test they cannot for long.
const ATTEMPTS_MAX: usize = 100;

/// The clock of a simulated node.
#[derive(Clone, Default)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    /// A moment later than all before.
    pub fn tick(&self) -> Timestamp {
        Timestamp(self.0.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// A process attached to a namespace.
pub struct Process {
    /// Its view of the namespace.
    pub fs: Microfs,
    /// Its slot.
    pub slot: SlotId,
    /// Its rights.
    pub credentials: Credentials,
    tier: Arc<dyn Tier>,
    clock: Clock,
}

/// A write whose bytes are not, or not all, part of the file yet.
#[derive(Debug)]
pub struct WriteInFlight {
    /// What the core planned last.
    pub plan: WritePlan,
    /// Place of the first byte.
    pub offset: u64,
    /// The bytes the first plan covered.
    pub bytes: Vec<u8>,
}

/// A truncation whose last block has been copied.
#[derive(Debug)]
pub struct TruncationInFlight {
    plan: TruncatePlan,
    checksum: u32,
}

impl Process {
    /// Attaches to a namespace.
    pub fn attach(
        fs: Microfs,
        identity: ProcessIdentity,
        credentials: Credentials,
        tier: Arc<dyn Tier>,
        clock: Clock,
    ) -> Result<Process> {
        let slot = fs.attach(identity)?.slot;
        Ok(Process { fs, slot, credentials, tier, clock })
    }

    /// Takes over a slot that was made for this process.
    pub fn with_slot(&self, fs: Microfs, slot: SlotId) -> Process {
        let (tier, clock) = (self.tier.clone(), self.clock.clone());
        Process { fs, slot, credentials: self.credentials, tier, clock }
    }

    /// Who calls, now.
    pub fn caller(&self) -> Caller {
        Caller { slot: self.slot, credentials: self.credentials, now: self.clock.tick() }
    }

    fn block_bytes(&self) -> u64 {
        u64::from(self.fs.geometry().hugeblock_bytes)
    }

    fn block(&self, block: u32) -> Vec<u8> {
        let mut bytes = vec![0; self.block_bytes() as usize];
        self.tier.read(u64::from(block) * self.block_bytes(), &mut bytes);
        bytes
    }

    /// Plans a write. When the store is full, frees what can be freed and tries once more.
    pub fn plan(
        &self,
        caller: &Caller,
        handle: HandleId,
        at: Position,
        length: u64,
    ) -> Result<WritePlan> {
        match self.fs.plan_write(caller, handle, at, length) {
            Err(Error::NoSpace) => {
                self.reclaim()?;
                self.fs.plan_write(caller, handle, at, length)
            }
            result => result,
        }
    }

    /// Plans a write of as many of `bytes` as one plan covers.
    pub fn begin_write(
        &self,
        caller: &Caller,
        handle: HandleId,
        at: Position,
        bytes: &[u8],
    ) -> Result<WriteInFlight> {
        let plan = self.plan(caller, handle, at, bytes.len() as u64)?;
        let bytes = bytes[..plan.length as usize].to_vec();
        Ok(WriteInFlight { offset: plan.offset, plan, bytes })
    }

    /// Moves the bytes of a plan.
    pub fn transfer(&self, write: &mut WriteInFlight) -> Result<()> {
        let pieces: Vec<WritePiece> = write.plan.pieces().collect();
        let mut source = &write.bytes[(write.plan.offset - write.offset) as usize..];
        for piece in pieces {
            let (bytes, rest) = source.split_at(piece.length as usize);
            source = rest;
            self.transfer_piece(&mut write.plan, &piece, bytes)?;
        }
        Ok(())
    }

    fn transfer_piece(
        &self,
        plan: &mut WritePlan,
        piece: &WritePiece,
        bytes: &[u8],
    ) -> Result<()> {
        let block_start = u64::from(piece.block) * self.block_bytes();
        let mut alone = vec![0; self.block_bytes() as usize];
        alone[piece.start as usize..][..bytes.len()].copy_from_slice(bytes);
        let checksum = CHECKSUM(0, &alone);
        if piece.kind == WriteKind::Fresh {
            self.tier.write(block_start, &alone);
        } else {
            self.tier.write(block_start + u64::from(piece.start), bytes);
        }
        let whole = bytes.len() as u64 == self.block_bytes();
        if piece.kind == WriteKind::Fill {
            plan.fold(piece, checksum ^ self.fs.geometry().zero_block_checksum);
        } else if piece.kind == WriteKind::Fresh || whole {
            self.fs.store_checksum(piece.tier, piece.block, checksum)?;
        }
        Ok(())
    }

    /// Commits a transferred write, repeating what others disturbed. Returns how many bytes became part of the
    /// file: fewer than the first plan covered if there was no space to repeat it.
    pub fn commit(&self, caller: &Caller, handle: HandleId, mut write: WriteInFlight) -> Result<u64> {
        let end = write.offset + write.bytes.len() as u64;
        for _ in 0..ATTEMPTS_MAX {
            let planned_end = write.plan.offset + write.plan.length;
            let next = match self.fs.commit_write(caller, &write.plan)? {
                Committed::Done if planned_end == end => return Ok(end - write.offset),
                Committed::Done => planned_end,
                Committed::Replan => write.plan.offset,
            };
            match self.plan(caller, handle, Position::Again(next), end - next) {
                Ok(plan) => write.plan = plan,
                Err(Error::NoSpace) if next > write.offset => return Ok(next - write.offset),
                Err(error) => return Err(error),
            }
            self.transfer(&mut write)?;
        }
        panic!("a write was disturbed {ATTEMPTS_MAX} times");
    }

    /// Gives up a write, whether or not some of its bytes were moved.
    pub fn abort(&self, caller: &Caller, write: &WriteInFlight) -> Result<()> {
        self.fs.abort_write(caller, &write.plan)
    }

    /// Writes bytes; returns where, and how many: fewer than asked if the store is full.
    pub fn write(
        &self,
        caller: &Caller,
        handle: HandleId,
        at: Position,
        bytes: &[u8],
    ) -> Result<(u64, u64)> {
        let mut done = 0;
        let mut first = 0;
        while done < bytes.len() {
            let position = match at {
                Position::Cursor => Position::Cursor,
                Position::At(offset) | Position::Again(offset) => {
                    Position::At(offset + done as u64)
                }
            };
            let written = self
                .begin_write(caller, handle, position, &bytes[done..])
                .and_then(|mut write| {
                    self.transfer(&mut write)?;
                    let offset = write.offset;
                    Ok((offset, self.commit(caller, handle, write)?))
                });
            match written {
                Ok((offset, length)) => {
                    first = if done == 0 { offset } else { first };
                    done += length as usize;
                }
                Err(Error::NoSpace) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok((first, done as u64))
    }

    /// Reads up to `length` bytes; returns where they start, too.
    pub fn read(
        &self,
        caller: &Caller,
        handle: HandleId,
        at: Position,
        length: u64,
    ) -> Result<(u64, Vec<u8>)> {
        let mut plan = self.fs.plan_read(caller, handle, at, length)?;
        let first = plan.offset;
        let mut bytes = Vec::new();
        for _ in 0..ATTEMPTS_MAX {
            let from = bytes.len();
            for run in plan.runs() {
                let start = bytes.len();
                bytes.resize(start + run.bytes as usize, 0);
                if let Some((_, offset)) = run.source {
                    self.tier.read(offset, &mut bytes[start..]);
                }
            }
            let left = length - bytes.len() as u64;
            let next = if !self.fs.read_is_valid(&plan) {
                bytes.truncate(from);
                Position::Again(plan.offset)
            } else if plan.length == 0 || left == 0 {
                return Ok((first, bytes));
            } else if at == Position::Cursor {
                Position::Cursor
            } else {
                Position::At(plan.offset + plan.length)
            };
            plan = self.fs.plan_read(caller, handle, next, length - bytes.len() as u64)?;
        }
        panic!("a read was disturbed {ATTEMPTS_MAX} times");
    }

    /// Truncates up to the point where a copied block must be committed; `None` if the file has its new size.
    pub fn begin_truncate(
        &self,
        caller: &Caller,
        inode: InodeId,
        size: u64,
    ) -> Result<Option<TruncationInFlight>> {
        loop {
            match self.fs.truncate(caller, inode, size)? {
                Truncation::Done => return Ok(None),
                Truncation::More => {}
                Truncation::Copy(plan) => {
                    let mut block = self.block(plan.from.1);
                    block[plan.keep_bytes as usize..].fill(0);
                    self.tier.write(u64::from(plan.to.1) * self.block_bytes(), &block);
                    return Ok(Some(TruncationInFlight { checksum: CHECKSUM(0, &block), plan }));
                }
            }
        }
    }

    /// Commits a truncation. Errors: as `begin_truncate`, if it has to be repeated.
    pub fn commit_truncate(&self, caller: &Caller, truncation: TruncationInFlight) -> Result<()> {
        let mut truncation = truncation;
        for _ in 0..ATTEMPTS_MAX {
            let (plan, checksum) = (&truncation.plan, truncation.checksum);
            if self.fs.commit_truncate(caller, plan, checksum)? == Committed::Done {
                return Ok(());
            }
            match self.begin_truncate(caller, plan.inode, plan.size)? {
                Some(next) => truncation = next,
                None => return Ok(()),
            }
        }
        panic!("a truncation was disturbed {ATTEMPTS_MAX} times");
    }

    /// Gives a file a new size.
    pub fn truncate(&self, caller: &Caller, inode: InodeId, size: u64) -> Result<()> {
        match self.begin_truncate(caller, inode, size)? {
            Some(truncation) => self.commit_truncate(caller, truncation),
            None => Ok(()),
        }
    }

    /// Computes the checksums of the file's stale blocks, a batch of them.
    pub fn stale(&self, inode: InodeId) -> Result<(u64, Vec<(StaleBlock, u32)>)> {
        let mut stale = Vec::new();
        let version = self.fs.stale_blocks(inode, &mut stale)?;
        let sealed = stale.iter().map(|block| (*block, CHECKSUM(0, &self.block(block.block))));
        Ok((version, sealed.collect()))
    }

    /// Seals the file; false if somebody is writing to it.
    pub fn seal(&self, inode: InodeId) -> Result<bool> {
        for _ in 0..ATTEMPTS_MAX {
            let (version, sealed) = self.stale(inode)?;
            if sealed.is_empty() {
                return Ok(true);
            }
            if !self.fs.seal(inode, version, &sealed)? {
                return Ok(false);
            }
        }
        panic!("a file has more than {ATTEMPTS_MAX} batches of stale blocks");
    }

    /// Closes this process's reference.
    pub fn close(&self, handle: HandleId) -> Result<()> {
        self.fs.release(self.slot, handle, self.clock.tick())
    }

    /// Frees every orphaned block that no write in flight protects.
    pub fn reclaim(&self) -> Result<()> {
        while self.fs.reclaim(Some(self.slot))? {}
        Ok(())
    }

    /// Checks every block of a file that has no write in flight: a stored checksum is that of the bytes, and the
    /// bytes past the end of the file are zero.
    pub fn verify_blocks(&self, inode: InodeId, handle: HandleId) -> Result<()> {
        let size = self.fs.attributes(inode)?.size;
        let block_bytes = self.block_bytes();
        let mut at = 0;
        while at < size {
            let plan = self.fs.plan_read(&self.caller(), handle, Position::At(at), size - at)?;
            for run in plan.runs() {
                if let Some((_, offset)) = run.source {
                    assert_eq!(at % block_bytes, 0, "data starts inside a block");
                    let blocks = run.bytes.div_ceil(block_bytes);
                    for index in 0..blocks {
                        let tier_block = (offset / block_bytes + index) as u32;
                        let file_block = (at / block_bytes + index) as u32;
                        self.verify_block(inode, file_block, tier_block, size)?;
                    }
                }
                at += run.bytes;
            }
            if plan.length == 0 {
                break;
            }
        }
        Ok(())
    }

    fn verify_block(&self, inode: InodeId, file_block: u32, block: u32, size: u64) -> Result<()> {
        let bytes = self.block(block);
        let visible = (size - u64::from(file_block) * self.block_bytes()).min(self.block_bytes());
        let past_end = &bytes[visible as usize..];
        assert!(
            past_end.iter().all(|&byte| byte == 0),
            "{inode:?}: block {file_block} has data past the end of the file at {size}"
        );
        let mut stored = [None];
        self.fs.checksums(inode, file_block, &mut stored)?;
        if let [Some(stored)] = stored {
            assert_eq!(
                stored,
                CHECKSUM(0, &bytes),
                "{inode:?}: checksum of block {file_block} (block {block} of the tier)"
            );
        }
        Ok(())
    }
}
