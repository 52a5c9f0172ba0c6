//! Space in files: allocating blocks for a range, zeroing it, and punching holes.
//!
//! Does not keep blocks beyond the end of a file: a range that goes past it is refused if the size
//! is to stay.

use crate::descriptors::description;
use cairn_core::{HandleId, InodeId, TimeUpdate, Truncation, Usage};

use crate::data::{io, space};
use crate::error::{Errno, Result};
use crate::files::file;
use crate::mount::{self, Mount};

/// Most steps of one punch; each frees a bounded part of the file.
const PUNCH_STEPS_MAX: usize = 1 << 22;

/// A range of a file that is open for writing.
struct Range {
    mount: &'static Mount,
    inode: InodeId,
    start: u64,
    end: u64,
    size: u64,
}

impl Range {
    fn new(handle: HandleId, offset: i64, length: i64) -> Result<Range> {
        let info = description::opened(handle)?;
        let start = u64::try_from(offset).map_err(|_| Errno(libc::EINVAL))?;
        let length = u64::try_from(length).ok().filter(|&length| length > 0);
        let length = length.ok_or(Errno(libc::EINVAL))?;
        if !info.write {
            return Err(Errno(libc::EBADF));
        }
        let end = start.checked_add(length).filter(|&end| end <= i64::MAX as u64);
        let end = end.ok_or(Errno(libc::EFBIG))?;
        let mount = mount::current()?;
        let size = mount.fs().attributes(info.inode)?.size;
        Ok(Range { mount, inode: info.inode, start, end, size })
    }

    fn block_bytes(&self) -> u64 {
        u64::from(self.mount.fs().geometry().hugeblock_bytes)
    }

    /// Calls `act` with a handle of its own. Searching for holes moves the cursor, and the
    /// application's cursor is shared.
    fn probe<T>(&self, act: impl FnOnce(HandleId) -> Result<T>) -> Result<T> {
        description::opened_once_more(self.mount, self.inode, false, act)
    }

    /// Marks the file as modified, whether or not its bytes changed.
    fn touch(&self) -> Result<()> {
        let caller = description::unrestricted(self.mount);
        Ok(self.mount.fs().set_times(&caller, self.inode, TimeUpdate::Omit, TimeUpdate::Now)?)
    }

    /// Checks that the range fits before anything is written. Otherwise the space would be used up,
    /// or data zeroed, before the lack of space shows. Errors: `EFBIG` if no file can be so large,
    /// `ENOSPC` if the part beyond the end of the file needs more space than is free.
    fn fits(&self) -> Result<()> {
        if self.end.div_ceil(self.block_bytes()) > u64::from(u32::MAX) {
            return Err(Errno(libc::EFBIG));
        }
        let usage = self.mount.fs().usage()?;
        let used: u64 = usage.used_blocks.iter().sum();
        match self.needed() <= bytes_of_all(&usage).saturating_sub(used * usage.hugeblock_bytes) {
            true => Ok(()),
            false => Err(Errno(libc::ENOSPC)),
        }
    }

    /// Bytes of the range beyond the end of the file.
    fn needed(&self) -> u64 {
        self.end.saturating_sub(self.size.max(self.start))
    }

    /// Returns the first offset from `at` on with data or a hole, as `whence` asks; `end` if there
    /// is none before it.
    fn next(&self, probe: HandleId, at: u64, end: u64, whence: i32) -> Result<u64> {
        if at >= end {
            return Ok(end);
        }
        let from = i64::try_from(at).map_err(|_| Errno(libc::EFBIG))?;
        match self.mount.fs().seek(probe, from, whence) {
            Ok(found) => Ok(found.min(end)),
            // Only a hole follows, up to the end of the file.
            Err(cairn_core::Error::NoSuchOffset) => Ok(end),
            Err(error) => Err(error.into()),
        }
    }

    /// Allocates blocks for each hole of the range, and for its part beyond the end of the file.
    fn fill_holes(&self) -> Result<()> {
        let (known, block_bytes) = (self.end.min(self.size), self.block_bytes());
        match self.fits() {
            // Wait for space only if a store of this size can hold the range at all.
            Err(Errno(libc::ENOSPC))
                if self.needed() <= bytes_of_all(&self.mount.fs().usage()?) =>
            {
                space::wait(self.mount, || self.fits())
            }
            fits => fits,
        }?;
        self.probe(|probe| {
            let mut at = self.start;
            loop {
                if at < known {
                    at = self.next(probe, at, known, libc::SEEK_HOLE)?;
                }
                if at >= self.end {
                    return Ok(());
                }
                io::write_zero(probe, at)?;
                at = (at / block_bytes + 1) * block_bytes;
            }
        })
    }

    /// Overwrites the data in `from..end` with zeros.
    fn zero(&self, from: u64, end: u64) -> Result<()> {
        let end = end.min(self.size);
        if from >= end {
            return Ok(());
        }
        self.probe(|probe| {
            let mut at = from;
            loop {
                at = self.next(probe, at, end, libc::SEEK_DATA)?;
                if at >= end {
                    return Ok(());
                }
                let hole = self.next(probe, at, end, libc::SEEK_HOLE)?;
                io::write_zeros(probe, at, hole)?;
                at = hole;
            }
        })
    }

    fn grow(&self) -> Result<()> {
        match self.size < self.end {
            true => file::set_size(self.mount, self.inode, self.end),
            false => Ok(()),
        }
    }

    /// Makes whole blocks a hole. Zeroes them instead if they are mapped, because a program may
    /// store to them.
    fn punch(&self, first: u32, end: u32) -> Result<()> {
        for _ in 0..PUNCH_STEPS_MAX {
            let step = self.mount.fs().punch(&self.mount.caller(), self.inode, first, end);
            self.mount.reclaim();
            match step {
                Ok(Truncation::More) => {}
                Ok(Truncation::Done) => return Ok(()),
                Err(cairn_core::Error::Busy) => {
                    let [from, to] =
                        [first, end].map(|block| u64::from(block) * self.block_bytes());
                    return self.zero(from, to);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno(libc::EIO))
    }

    /// Makes the range read as zeros. Whole blocks of it become a hole where possible.
    fn empty(&self) -> Result<()> {
        let bytes = self.block_bytes();
        let (first, end) = (self.start.div_ceil(bytes), self.end.min(self.size) / bytes);
        if first >= end || self.mount.fs().is_durable() {
            return self.zero(self.start, self.end);
        }
        self.zero(self.start, first * bytes)?;
        self.zero(end * bytes, self.end)?;
        self.punch(first as u32, end as u32)
    }
}

/// Overwrites the data in `start..end` with zeros. Precondition: the caller has the right to write.
pub(crate) fn clear(inode: InodeId, start: u64, end: u64) -> Result<()> {
    let mount = mount::current()?;
    let size = mount.fs().attributes(inode)?.size;
    Range { mount, inode, start, end, size }.zero(start, end)
}

/// As `posix_fallocate(3)`: afterwards the range belongs to the file and has blocks, so that a
/// write to it cannot fail for lack of space. Holes are filled with zeros. Bytes that another
/// writer stores in a hole at the same moment may be lost.
pub fn allocate(handle: HandleId, offset: i64, length: i64) -> Result<()> {
    let range = Range::new(handle, offset, length)?;
    range.mount.fs().note_change(handle)?;
    range.fill_holes()?;
    range.grow()?;
    range.touch()
}

/// As `fallocate(2)`. Errors: `EOPNOTSUPP` for modes that move data, and if blocks would be kept
/// beyond the end of the file.
pub fn change(handle: HandleId, mode: i32, offset: i64, length: i64) -> Result<()> {
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    const ZERO_KEEP: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
    if mode == 0 {
        return allocate(handle, offset, length);
    }
    let range = Range::new(handle, offset, length)?;
    let keeps = mode & libc::FALLOC_FL_KEEP_SIZE != 0 && mode != PUNCH;
    if keeps && range.end > range.size {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    range.mount.fs().note_change(handle)?;
    match mode {
        libc::FALLOC_FL_KEEP_SIZE => range.fill_holes(),
        PUNCH => range.empty(),
        libc::FALLOC_FL_ZERO_RANGE | ZERO_KEEP => {
            range.fits()?;
            range.zero(range.start, range.end)?;
            range.fill_holes()?;
            range.grow()
        }
        _ => Err(Errno(libc::EOPNOTSUPP)),
    }
}

/// Size of all tiers in bytes.
fn bytes_of_all(usage: &Usage) -> u64 {
    usage.total_blocks.iter().sum::<u64>().saturating_mul(usage.hugeblock_bytes)
}
