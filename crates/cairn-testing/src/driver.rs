//! Drives a namespace as the POSIX layer does: plan, transfer, commit; seal; truncate in stages;
//! reclaim.
//!
//! Every stage can be taken alone, so a test decides what happens between two of them.
//!
//! Invariant: checksums are computed from whole blocks as they are stored, independently of the
//! algebra that `cairn-device` uses.

use crate::tier::{CHECKSUM, Tier};
use cairn_core::{
    Caller, Committed, Credentials, Error, HandleId, InodeId, LeasedWrite, Microfs, Position,
    ProcessIdentity, Promotion, Result, SMALL_BYTES_MAX, SettlePlan, SlotId, SmallFile, StaleBlock,
    Timestamp, Truncation, Unpacking, WriteKind, WritePiece, WritePlan,
};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most attempts at an operation that other processes disturb. In a test they cannot disturb it for
/// long.
const ATTEMPTS_MAX: usize = 100;

/// The clock of a simulated node.
#[derive(Clone, Default)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    /// Advances the clock and returns the new time, later than every one before.
    pub fn tick(&self) -> Timestamp {
        Timestamp(self.0.fetch_add(1, Ordering::Relaxed) as i64 + 1)
    }

    /// Returns the time of the next tick, nanoseconds.
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Advances the clock to `moment`, nanoseconds. Does nothing if that has passed.
    pub fn advance_to(&self, moment: u64) {
        self.0.fetch_max(moment, Ordering::Relaxed);
    }
}

/// A process attached to a namespace.
pub struct Process {
    /// Its view of the namespace.
    pub fs: Microfs,
    /// Its slot in the namespace.
    pub slot: SlotId,
    /// Its credentials.
    pub credentials: Credentials,
    tier: Arc<dyn Tier>,
    clock: Clock,
}

/// A write that is not, or not completely, part of the file.
#[derive(Debug)]
pub struct WriteInFlight {
    /// Latest plan of the core.
    pub plan: WritePlan,
    /// Offset of the first byte.
    pub offset: u64,
    /// Bytes that the first plan covers.
    pub bytes: Vec<u8>,
    /// Number of bytes that are part of the file.
    pub done: u64,
    /// Whether `plan` is used up, so that the rest must be planned again.
    pub used_up: bool,
    /// The leased write behind `plan`, until it is committed, and the checksum term of its bytes.
    leased: Option<(LeasedWrite, u32)>,
}

impl WriteInFlight {
    /// Returns the offset behind the last byte.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

impl Process {
    /// Attaches to a namespace. Errors: those of `Microfs::attach`.
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

    /// Returns the process that owns `slot`, a slot made for it beforehand. It has the credentials
    /// of this one.
    pub fn with_slot(&self, fs: Microfs, slot: SlotId) -> Process {
        let (tier, clock) = (self.tier.clone(), self.clock.clone());
        Process { fs, slot, credentials: self.credentials, tier, clock }
    }

    /// Cleans up after the dead process in `slot`, as the agent does. Errors: `Invalid` if the slot
    /// is free.
    pub fn reap(&self, slot: SlotId) -> Result<()> {
        let found = self.fs.processes()?.into_iter().find(|(other, _)| *other == slot);
        let (_, dead) = found.ok_or(Error::Invalid)?;
        self.fs.reap(slot, dead, self.clock.tick()).map(drop)
    }

    /// Returns the caller of an operation at the present time.
    pub fn caller(&self) -> Caller {
        Caller {
            slot: self.slot,
            credentials: self.credentials,
            groups: &[],
            now: self.clock.tick(),
        }
    }

    fn block_bytes(&self) -> u64 {
        u64::from(self.fs.geometry().hugeblock_bytes)
    }

    /// Reads bytes at a byte offset over all tiers. Errors: `Io`.
    pub fn fetch(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.tier.read(offset, target)
    }

    /// Returns the offset of a tier, bytes. The tiers stand one behind the other in `self.tier`.
    pub fn start_of(&self, tier: u8) -> u64 {
        let before = &self.fs.geometry().tier_blocks[..usize::from(tier)];
        before.iter().map(|&blocks| u64::from(blocks)).sum::<u64>() * self.block_bytes()
    }

    fn start_of_block(&self, tier: u8, block: u32) -> u64 {
        self.start_of(tier) + u64::from(block) * self.block_bytes()
    }

    fn block(&self, tier: u8, block: u32) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.block_bytes() as usize];
        self.tier.read(self.start_of_block(tier, block), &mut bytes)?;
        Ok(bytes)
    }

    /// Plans a write. Reclaims orphaned blocks if the store is full, and settles the tail of the
    /// file if the core asks for it. Errors: `Busy` if settling has to wait for others.
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
            Err(Error::Unsettled) => {
                self.settle(caller, self.fs.handle(handle)?.inode)?;
                self.plan(caller, handle, at, length)
            }
            result => result,
        }
    }

    /// Begins a write under a lease. Returns `None` if this process has no lease for it.
    pub fn begin_leased(
        &self,
        caller: &Caller,
        handle: HandleId,
        at: Position,
        bytes: &[u8],
    ) -> Option<WriteInFlight> {
        let write = match at {
            Position::Cursor => self.fs.begin_leased(caller, handle, bytes.len() as u64)?,
            _ => return None,
        };
        let (plan, bytes, leased) = (write.into_plan(), bytes.to_vec(), Some((write, 0)));
        Some(WriteInFlight { offset: plan.offset, plan, bytes, done: 0, used_up: false, leased })
    }

    /// Plans a write of as many of `bytes` as one plan covers.
    pub fn begin_write(
        &self,
        caller: &Caller,
        handle: HandleId,
        at: Position,
        bytes: &[u8],
    ) -> Result<WriteInFlight> {
        if let Some(leased) = self.begin_leased(caller, handle, at, bytes) {
            return Ok(leased);
        }
        let plan = self.plan(caller, handle, at, bytes.len() as u64)?;
        let (offset, bytes) = (plan.offset, bytes[..plan.length as usize].to_vec());
        Ok(WriteInFlight { plan, offset, bytes, done: 0, used_up: false, leased: None })
    }

    /// Transfers the bytes of a plan to the tier.
    pub fn transfer(&self, write: &mut WriteInFlight) -> Result<()> {
        let pieces: Vec<WritePiece> = write.plan.pieces().collect();
        let mut source = &write.bytes[(write.plan.offset - write.offset) as usize..];
        for piece in pieces {
            let (bytes, rest) = source.split_at(piece.length as usize);
            source = rest;
            let term = self.transfer_piece(&mut write.plan, &piece, bytes)?;
            write.leased = write.leased.map(|(leased, _)| (leased, term));
        }
        Ok(())
    }

    /// Transfers one piece and returns its checksum term.
    fn transfer_piece(
        &self,
        plan: &mut WritePlan,
        piece: &WritePiece,
        bytes: &[u8],
    ) -> Result<u32> {
        let block_start = self.start_of_block(piece.tier, piece.block);
        let mut alone = vec![0; self.block_bytes() as usize];
        let (start, end) = (piece.start as usize, piece.start as usize + bytes.len());
        let mut from = start - piece.zero_before as usize;
        let copy_end = end + piece.copy_after as usize;
        if let Some((tier, block)) = piece.copy_from {
            let old = self.block(tier, block)?;
            alone[..copy_end].copy_from_slice(&old[..copy_end]);
            from = 0;
        }
        alone[start..end].copy_from_slice(bytes);
        let checksum = CHECKSUM(0, &alone);
        let to = copy_end + piece.zero_after as usize;
        self.tier.write(block_start + from as u64, &alone[from..to])?;
        let whole = bytes.len() as u64 == self.block_bytes();
        let term = checksum ^ self.fs.geometry().zero_block_checksum;
        if piece.kind == WriteKind::Fill {
            plan.fold(piece, term);
        } else if piece.kind == WriteKind::Fresh || whole {
            self.fs.store_checksum(piece.tier, piece.block, checksum)?;
        }
        Ok(term)
    }

    /// Commits a transferred plan. Returns true if the whole write is part of the file; otherwise
    /// the caller replans the rest.
    pub fn commit(&self, caller: &Caller, write: &mut WriteInFlight) -> Result<bool> {
        write.used_up = true;
        if let Some((leased, term)) = write.leased.take() {
            if self.fs.publish_leased(caller, &leased, term) {
                write.done = write.plan.length;
                return Ok(true);
            }
        }
        if self.fs.commit_write(caller, &write.plan)? == Committed::Done {
            write.done = write.plan.offset + write.plan.length - write.offset;
        }
        Ok(write.done == write.bytes.len() as u64)
    }

    /// Plans and transfers the rest of a write that others disturbed. After an error the caller
    /// must abort the write.
    pub fn replan(
        &self,
        caller: &Caller,
        handle: HandleId,
        write: &mut WriteInFlight,
    ) -> Result<()> {
        let next = write.offset + write.done;
        write.plan = self.plan(caller, handle, Position::Again(next), write.end() - next)?;
        write.used_up = false;
        self.transfer(write)
    }

    /// Aborts a write, whether or not some of its bytes were transferred.
    pub fn abort(&self, caller: &Caller, write: &WriteInFlight) -> Result<()> {
        if write.leased.is_some_and(|(leased, _)| self.fs.withdraw_leased(&leased)) {
            return Ok(());
        }
        self.fs.abort_write(caller, &write.plan)
    }

    /// Writes a few bytes under one lock if they continue the file. Returns their offset, or `None`
    /// if the ordinary path must write them.
    pub fn write_small(
        &self,
        caller: &Caller,
        handle: HandleId,
        at: Position,
        bytes: &[u8],
    ) -> Result<Option<u64>> {
        if bytes.is_empty() || bytes.len() > SMALL_BYTES_MAX {
            return Ok(None);
        }
        let store = |piece: &WritePiece| {
            let mut alone = vec![0; self.block_bytes() as usize];
            alone[piece.start as usize..][..bytes.len()].copy_from_slice(bytes);
            let block_start = self.start_of_block(piece.tier, piece.block);
            self.tier.write(block_start + u64::from(piece.start), bytes).ok()?;
            Some(CHECKSUM(0, &alone) ^ self.fs.geometry().zero_block_checksum)
        };
        self.fs.write_small(caller, handle, at, bytes.len() as u32, store)
    }

    /// Overwrites a few bytes under one lock if the checksum of their block is void. Returns their
    /// offset, or `None` if the ordinary path must write them.
    pub fn overwrite_small(
        &self,
        caller: &Caller,
        handle: HandleId,
        at: Position,
        bytes: &[u8],
    ) -> Result<Option<u64>> {
        let Position::At(offset) = at else { return Ok(None) };
        if bytes.is_empty() || bytes.len() > SMALL_BYTES_MAX {
            return Ok(None);
        }
        let store = |piece: &WritePiece| {
            let at = self.start_of_block(piece.tier, piece.block) + u64::from(piece.start);
            self.tier.write(at, bytes).is_ok()
        };
        let written = self.fs.overwrite_small(caller, handle, offset, bytes.len() as u32, store)?;
        Ok(written.then_some(offset))
    }

    /// Writes bytes. Returns offset and count. The count is smaller than asked if the store is full
    /// or others are in the way.
    pub fn write(
        &self,
        caller: &Caller,
        handle: HandleId,
        at: Position,
        bytes: &[u8],
    ) -> Result<(u64, u64)> {
        if let Some(write) = self.begin_leased(caller, handle, at, bytes) {
            return self.finish_write(caller, handle, write);
        }
        if let Some(offset) = self.write_small(caller, handle, at, bytes)? {
            return Ok((offset, bytes.len() as u64));
        }
        if let Some(offset) = self.overwrite_small(caller, handle, at, bytes)? {
            return Ok((offset, bytes.len() as u64));
        }
        let mut done = 0;
        let mut first = 0;
        while done < bytes.len() {
            let position = match at {
                Position::Cursor | Position::End => at,
                Position::At(offset) | Position::Again(offset) => {
                    Position::At(offset + done as u64)
                }
            };
            let written = self
                .begin_write(caller, handle, position, &bytes[done..])
                .and_then(|write| self.finish_write(caller, handle, write));
            match written {
                Ok((offset, length)) => {
                    first = if done == 0 { offset } else { first };
                    done += length as usize;
                }
                Err(Error::NoSpace | Error::Busy) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok((first, done as u64))
    }

    /// Transfers and commits a write. Returns its offset and length.
    pub fn finish_write(
        &self,
        caller: &Caller,
        handle: HandleId,
        mut write: WriteInFlight,
    ) -> Result<(u64, u64)> {
        if let Err(error) = self.transfer(&mut write) {
            self.abort(caller, &write)?;
            return Err(error);
        }
        for _ in 0..ATTEMPTS_MAX {
            if self.commit(caller, &mut write)? {
                return Ok((write.offset, write.done));
            }
            if let Err(error) = self.replan(caller, handle, &mut write) {
                self.abort(caller, &write)?;
                return if write.done > 0 { Ok((write.offset, write.done)) } else { Err(error) };
            }
        }
        panic!("a write was disturbed {ATTEMPTS_MAX} times");
    }

    /// Reads up to `length` bytes. Returns their offset, too.
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
                if let Some((tier, offset)) = run.source {
                    self.tier.read(self.start_of(tier) + offset, &mut bytes[start..])?;
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

    /// Sets the size of a file, bytes. Errors: `Busy` if the tail must be settled and others are in
    /// the way.
    pub fn truncate(&self, caller: &Caller, inode: InodeId, size: u64) -> Result<()> {
        let mut reclaimed = false;
        loop {
            match self.fs.truncate(caller, inode, size) {
                Ok(Truncation::Done) => return Ok(()),
                Ok(Truncation::More) => {}
                Err(Error::Unsettled) => self.settle(caller, inode)?,
                Err(Error::Packed { .. }) => self.unpack(inode)?,
                Err(Error::NoSpace) if !reclaimed => {
                    reclaimed = true;
                    self.reclaim()?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Zeroes the tail that a settle plan names, after the copy of the block that the plan may ask
    /// for.
    pub fn zero_tail(&self, plan: &SettlePlan) -> Result<()> {
        let block_start = self.start_of_block(plan.tier, plan.block);
        if let Some((tier, block)) = plan.copy_from {
            let kept = &self.block(tier, block)?[..plan.from as usize];
            self.tier.write(block_start, kept)?;
        }
        let zeros = vec![0; self.block_bytes() as usize - plan.from as usize];
        self.tier.write(block_start + u64::from(plan.from), &zeros)
    }

    /// Zeroes the tail of a file, so that the file can grow. Errors: `Busy` while others write to
    /// it.
    pub fn settle(&self, caller: &Caller, inode: InodeId) -> Result<()> {
        if let Some(plan) = self.fs.plan_settle(caller, inode)? {
            let zeroed = self.zero_tail(&plan);
            self.fs.commit_settle(caller, &plan, zeroed.is_ok())?;
            zeroed?;
        }
        Ok(())
    }

    /// Copies the blocks of a promotion. Returns false if a block does not match its checksum or
    /// the file is gone.
    pub fn copy_promoted(&self, promotion: &Promotion) -> Result<bool> {
        let mut stored = vec![None; promotion.count as usize];
        match self.fs.checksums(promotion.inode, promotion.file_block, &mut stored) {
            Err(Error::NotFound) => return Ok(false),
            result => result?,
        }
        let mut left = promotion.bytes as usize;
        for (index, stored) in (0..).zip(stored) {
            let mut bytes = self.block(promotion.from.0, promotion.from.1 + index)?;
            let used = left.min(bytes.len());
            bytes[used..].fill(0);
            left -= used;
            if stored != Some(CHECKSUM(0, &bytes)) {
                return Ok(false);
            }
            let (tier, block) = (promotion.to.0, promotion.to.1 + index);
            self.tier.write(self.start_of_block(tier, block), &bytes)?;
            self.fs.store_checksum(tier, block, CHECKSUM(0, &bytes))?;
        }
        Ok(true)
    }

    /// Promotes as many of these file blocks as possible to faster tiers. Returns the number of
    /// blocks moved.
    pub fn promote(&self, inode: InodeId, mut blocks: Range<u32>) -> Result<u32> {
        let (caller, mut moved) = (self.caller(), 0);
        while let Some(promotion) = self.fs.plan_promotion(&caller, inode, blocks.clone())? {
            assert!(self.copy_promoted(&promotion)?, "a block is damaged");
            let done = self.fs.commit_promotion(&caller, &promotion)?;
            assert!(done, "nobody is in the way");
            moved += promotion.count;
            blocks.start = promotion.file_block + promotion.count;
        }
        Ok(moved)
    }

    /// Copies a packed file or one to be packed to the byte offset `target.1` of tier `target.0`.
    /// Returns its checksum.
    pub fn copy_small(&self, file: &SmallFile, target: (u8, u64)) -> Result<u32> {
        let mut bytes = vec![0; self.block_bytes() as usize];
        let own = &mut bytes[..file.bytes as usize];
        self.tier.read(self.start_of(file.source.0) + file.source.1, own)?;
        self.tier.write(self.start_of(target.0) + target.1, own)?;
        Ok(CHECKSUM(0, &bytes))
    }

    /// Packs small files into a shared block. Returns the number of blocks freed.
    pub fn pack(&self) -> Result<u32> {
        let caller = self.caller();
        let Some((mut pack, first)) = self.fs.begin_pack(&caller)? else { return Ok(0) };
        let (mut next, mut freed) = (Some(first), 0);
        while let Some(file) = next {
            let sum = self.copy_small(&file, self.fs.pack_target(&pack, &file)?)?;
            freed += u32::from(self.fs.put_in_pack(&caller, &mut pack, (&file, sum))?);
            next = self.fs.next_for_pack(&pack)?;
        }
        self.fs.end_pack(&caller, &pack, true)?;
        Ok(freed)
    }

    /// Copies a packed file to its new block. Returns false if it does not match its checksum.
    pub fn copy_unpacked(&self, plan: &Unpacking) -> Result<bool> {
        let (tier, block) = plan.target;
        self.tier.write(self.start_of_block(tier, block), &vec![0; self.block_bytes() as usize])?;
        let offset = u64::from(block) * self.block_bytes();
        let sum = self.copy_small(&plan.file, (tier, offset))?;
        self.fs.store_checksum(tier, block, sum)?;
        Ok(plan.file.crc32c == Some(sum))
    }

    /// Gives a packed file a block of its own.
    pub fn unpack(&self, inode: InodeId) -> Result<()> {
        let caller = self.caller();
        while let Some(plan) = self.fs.plan_unpacking(&caller, inode)? {
            assert!(self.copy_unpacked(&plan)?, "a packed file is damaged");
            assert!(self.fs.commit_unpacking(&caller, &plan)?, "nobody is in the way");
        }
        Ok(())
    }

    /// Computes the checksums of one batch of the file's stale blocks. Returns the file's version,
    /// too.
    pub fn stale(&self, inode: InodeId) -> Result<(u64, Vec<(StaleBlock, u32)>)> {
        let mut stale = Vec::new();
        let version = self.fs.stale_blocks(inode, &mut stale)?;
        let sealed = stale.iter().map(|block| {
            let mut bytes = self.block(block.tier, block.block)?;
            bytes[block.bytes as usize..].fill(0);
            Ok((*block, CHECKSUM(0, &bytes)))
        });
        Ok((version, sealed.collect::<Result<_>>()?))
    }

    /// Seals the file. Returns false if another process is writing to it.
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

    /// Releases this process's reference to a handle.
    pub fn close(&self, handle: HandleId) -> Result<()> {
        self.fs.release(self.slot, handle, self.clock.tick())
    }

    /// Frees every orphaned block that no write in flight protects.
    pub fn reclaim(&self) -> Result<()> {
        while self.fs.reclaim(Some(self.slot))? {}
        Ok(())
    }

    /// Verifies the checksum of every block of a file that has no write in flight. Bytes past the
    /// end of the file count as zeros. Errors: `Corrupt`.
    pub fn verify_blocks(&self, inode: InodeId, handle: HandleId) -> Result<()> {
        let size = self.fs.attributes(inode)?.size;
        let block_bytes = self.block_bytes();
        let mut at = 0;
        while at < size {
            let plan = self.fs.plan_read(&self.caller(), handle, Position::At(at), size - at)?;
            for run in plan.runs() {
                if let Some((tier, offset)) = run.source {
                    assert_eq!(at % block_bytes, 0, "data starts inside a block");
                    let blocks = run.bytes.div_ceil(block_bytes);
                    for index in 0..blocks {
                        let place = (tier, offset + index * block_bytes);
                        let file_block = (at / block_bytes + index) as u32;
                        self.verify_block(inode, file_block, place, size)?;
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

    fn verify_block(
        &self,
        inode: InodeId,
        file_block: u32,
        place: (u8, u64),
        size: u64,
    ) -> Result<()> {
        self.verify_block_of(&self.fs, inode, file_block, place, size)
    }

    /// Verifies a block of a file as another view `fs` of the namespace shows it. Errors:
    /// `Corrupt`.
    pub fn verify_block_of(
        &self,
        fs: &Microfs,
        inode: InodeId,
        file_block: u32,
        (tier, offset): (u8, u64),
        size: u64,
    ) -> Result<()> {
        let mut bytes = vec![0; self.block_bytes() as usize];
        let visible = (size - u64::from(file_block) * self.block_bytes()).min(self.block_bytes());
        self.tier.read(self.start_of(tier) + offset, &mut bytes[..visible as usize])?;
        let mut stored = [None];
        fs.checksums(inode, file_block, &mut stored)?;
        if stored[0].is_some_and(|stored| stored != CHECKSUM(0, &bytes)) {
            println!("{inode:?}: checksum of block {file_block} (byte {offset} of tier {tier})");
            return Err(Error::Corrupt { what: "checksum of a block" });
        }
        Ok(())
    }
}
