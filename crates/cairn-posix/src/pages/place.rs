//! Places the pieces of a file in a mapping: blocks of a tier, zeros, and pages beyond the end of
//! the file.
//!
//! Each run of blocks is a mapping of the tier's own file, or of the file that shows the tier,
//! placed over the reservation with `MAP_FIXED`. Placing a piece of a shared mapping where it
//! already is changes nothing that a program can see, so placing can be repeated at any time.
//!
//! Invariants:
//! - Blocks that may be stored to are part of the file and backed by memory, so a store can neither
//!   be lost nor fail.
//! - Whole pages beyond the end of the file map an empty file, so touching one raises SIGBUS, as
//!   POSIX asks.
//!
//! Does not remember what is placed where; `task/mappings.rs` does.

use core::ffi::c_void;

use cairn_core::{Committed, Error, HandleId, InodeId, Position, WriteKind, WritePlan};
use cairn_platform::descriptor::Descriptor;
use cairn_platform::{checksum, sys};

use crate::error::{Errno, Result};
use crate::kernel;
use crate::mount::Mount;
use crate::pages::readers;
use crate::task::mappings::{Manner, PAGE_BYTES, Placed};

/// Most attempts at a mapping whose blocks keep moving, and at a hole that others fill and cut off.
const ATTEMPTS_MAX: usize = 100;

/// A mapping in progress.
pub(super) struct Place<'a> {
    pub mount: &'a Mount,
    pub mapping: HandleId,
    pub inode: InodeId,
    /// Offset of the first page in the file.
    pub start: usize,
    /// Its place in the file.
    pub offset: u64,
    pub manner: Manner,
}

/// A run of a plan, with its offset in the file.
struct Piece {
    at: u64,
    bytes: u64,
    source: Option<(u8, u64)>,
}

impl Place<'_> {
    /// Places the pages at file offsets `from..to`, again if blocks move meanwhile. Errors:
    /// `ENOSPC` if no blocks can be allocated for stores; `EAGAIN` if blocks keep moving.
    pub fn place(&self, from: u64, to: u64) -> Result<Placed> {
        for _ in 0..ATTEMPTS_MAX {
            let before = self.state()?;
            if (from..to).contains(&(before.end.saturating_sub(1))) {
                self.mount.settle(self.inode)?;
            }
            let holes = self.place_once(from, to)?;
            let after = self.state()?;
            if (after.moves, after.end) == (before.moves, before.end) {
                return Ok(Placed { holes, ..before });
            }
        }
        Err(Errno(libc::EAGAIN))
    }

    pub fn state(&self) -> Result<Placed> {
        let state = self.mount.fs().mapped_state(self.mapping)?;
        let end = state.size.next_multiple_of(PAGE_BYTES as u64);
        Ok(Placed { moves: state.moves, adds: state.adds, end, holes: false })
    }

    /// Places the pages once. Returns whether there are holes.
    fn place_once(&self, from: u64, to: u64) -> Result<bool> {
        let mut at = from;
        let mut holes = false;
        let mut fruitless = 0;
        while at < to && fruitless < ATTEMPTS_MAX {
            let caller = self.mount.caller();
            let plan = self.mount.fs().plan_mapping(&caller, self.mapping, at, to - at)?;
            if plan.length == 0 {
                break;
            }
            for run in plan.runs() {
                let piece = Piece { at, bytes: run.bytes, source: run.source };
                match piece.source {
                    Some((tier, offset)) => self.place_blocks(&piece, tier, offset)?,
                    None if self.manner.stores => {
                        // The next plan finds the blocks that are there then.
                        fruitless = if self.fill(&piece)? { 0 } else { fruitless + 1 };
                        break;
                    }
                    None => {
                        holes = true;
                        self.place_zeros(&piece)?;
                    }
                }
                // The last page of the file is placed as a whole.
                at = (at + run.bytes).next_multiple_of(PAGE_BYTES as u64);
            }
        }
        match fruitless < ATTEMPTS_MAX {
            true => self.place_nothing(at, to).map(|()| holes),
            false => Err(Errno(libc::EAGAIN)),
        }
    }

    fn address(&self, at: u64) -> *mut c_void {
        (self.start + (at - self.offset) as usize) as *mut c_void
    }

    fn place_blocks(&self, piece: &Piece, tier: u8, offset: u64) -> Result<()> {
        let device = self.mount.tier(tier)?;
        let tier = device.mappable().ok_or(Errno(libc::ENODEV))?;
        let read_only;
        let file = match self.manner.shared && !self.manner.stores {
            true => {
                read_only = readers::reader(tier.descriptor)?;
                read_only.raw()
            }
            false => tier.descriptor,
        };
        let kind = if self.manner.shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        let length = (piece.bytes as usize).next_multiple_of(PAGE_BYTES);
        device.show(offset, length, self.manner.stores)?;
        let start = self.address(piece.at);
        // SAFETY: the range lies in the reservation, whose user asked for it: a run ends where the
        // request does or within the last page of the file.
        unsafe {
            self.over(start, length, kind, file, tier.offset + offset)?;
            if !tier.in_memory {
                sys::madvise(start.cast(), length, libc::MADV_RANDOM)?;
            }
        }
        Ok(())
    }

    fn place_zeros(&self, piece: &Piece) -> Result<()> {
        let length = (piece.bytes as usize).next_multiple_of(PAGE_BYTES);
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: as in `place_blocks`.
        unsafe { self.over(self.address(piece.at), length, kind, -1, 0) }
    }

    /// Makes touching the pages raise SIGBUS.
    fn place_nothing(&self, from: u64, to: u64) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let (start, length) = (self.address(from), (to - from) as usize);
        let empty = kernel::memfd_create(c"cairn-end", libc::MFD_CLOEXEC);
        let empty = Descriptor::from_raw(empty?);
        let kind = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: as in `place_blocks`.
        unsafe { self.over(start, length, kind, empty.raw(), 0) }
    }

    /// # Safety
    /// The range belongs to the mapping.
    unsafe fn over(
        &self,
        start: *mut c_void,
        length: usize,
        kind: i32,
        file: i32,
        offset: u64,
    ) -> Result<()> {
        let flags = kind | libc::MAP_FIXED | self.manner.flags;
        // SAFETY: promised by the caller.
        unsafe { kernel::map(start, length, self.manner.protection, flags, file, offset) }.map(drop)
    }

    /// Allocates zeroed blocks for a part of a hole. Returns false if another process filled the
    /// hole meanwhile.
    fn fill(&self, hole: &Piece) -> Result<bool> {
        let (fs, caller) = (self.mount.fs(), self.mount.caller());
        let plan = || fs.plan_write(&caller, self.mapping, Position::At(hole.at), hole.bytes);
        let plan = match self.mount.retry_while_busy(plan) {
            Err(Error::Unsettled) => return self.mount.settle(self.inode).map(|()| false),
            plan => plan?,
        };
        let is_hole = plan.pieces().all(|piece| piece.kind == WriteKind::Fresh);
        let zeroed = if is_hole { self.zero(&plan) } else { Ok(()) };
        let is_done = is_hole
            && zeroed.is_ok()
            && matches!(fs.commit_write(&caller, &plan), Ok(Committed::Done));
        if !is_done {
            fs.abort_write(&caller, &plan)?;
        }
        zeroed.map(|()| is_done)
    }

    fn zero(&self, plan: &WritePlan) -> Result<()> {
        let block_bytes = u64::from(self.mount.fs().geometry().hugeblock_bytes);
        let sum = checksum::zeros(block_bytes);
        for piece in plan.pieces() {
            let offset = u64::from(piece.block) * block_bytes;
            self.mount.tier(piece.tier)?.zero(offset, block_bytes as usize)?;
            self.mount.fs().store_checksum(piece.tier, piece.block, sum)?;
        }
        Ok(())
    }
}
