//! File attributes in the structures that the C library's calls return.

use cairn_core::{Attributes, Timestamp};

use crate::error::Result;
use crate::mount::Mount;

/// Largest preferred I/O size reported, in bytes.
const BLOCK_SIZE_MAX: u32 = 1 << 20;
/// `f_type`; no file system of Linux uses it.
const FILE_SYSTEM_TYPE: i64 = 0x6361_6972;

fn block_size(mount: &Mount) -> u32 {
    mount.fs().geometry().hugeblock_bytes.min(BLOCK_SIZE_MAX)
}

/// Returns the reported size and number of 512-byte blocks. Space is allocated in hugeblocks, but a
/// file is charged for the pages it fills, as on file systems with small blocks. A directory
/// reports one page.
fn extent(attributes: &Attributes) -> (u64, u64) {
    const PAGE_BYTES: u64 = 4096;
    let (size, held) = match attributes.is_directory() {
        true => (PAGE_BYTES, PAGE_BYTES),
        false => (attributes.size, attributes.allocated_bytes),
    };
    (size, held.min(size.next_multiple_of(PAGE_BYTES)) / 512)
}

/// Returns the attributes as `struct stat` (the same as `struct stat64` on 64-bit targets).
pub fn stat(mount: &Mount, attributes: &Attributes) -> libc::stat {
    // SAFETY: plain integers, for which zero is a valid value.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    stat.st_dev = mount.device_number();
    stat.st_ino = u64::from(attributes.inode.0);
    stat.st_mode = attributes.mode;
    stat.st_nlink = attributes.links as _;
    stat.st_uid = attributes.uid;
    stat.st_gid = attributes.gid;
    let (size, blocks) = extent(attributes);
    stat.st_size = size as i64;
    stat.st_blksize = block_size(mount) as _;
    stat.st_blocks = blocks as i64;
    (stat.st_atime, stat.st_atime_nsec) = attributes.accessed.parts();
    (stat.st_mtime, stat.st_mtime_nsec) = attributes.modified.parts();
    (stat.st_ctime, stat.st_ctime_nsec) = attributes.changed.parts();
    stat
}

/// Returns the attributes as `struct statx`, with the birth time.
pub fn statx(mount: &Mount, attributes: &Attributes) -> libc::statx {
    let time = |time: Timestamp| {
        // SAFETY: plain integers, for which zero is a valid value.
        let mut value: libc::statx_timestamp = unsafe { core::mem::zeroed() };
        let (seconds, nanoseconds) = time.parts();
        value.tv_sec = seconds;
        value.tv_nsec = nanoseconds as u32;
        value
    };
    // SAFETY: plain integers, for which zero is a valid value.
    let mut statx: libc::statx = unsafe { core::mem::zeroed() };
    statx.stx_mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    statx.stx_blksize = block_size(mount);
    statx.stx_nlink = attributes.links;
    statx.stx_uid = attributes.uid;
    statx.stx_gid = attributes.gid;
    statx.stx_mode = attributes.mode as u16;
    statx.stx_ino = u64::from(attributes.inode.0);
    (statx.stx_size, statx.stx_blocks) = extent(attributes);
    statx.stx_atime = time(attributes.accessed);
    statx.stx_btime = time(attributes.born);
    statx.stx_ctime = time(attributes.changed);
    statx.stx_mtime = time(attributes.modified);
    statx.stx_dev_major = libc::major(mount.device_number());
    statx.stx_dev_minor = libc::minor(mount.device_number());
    statx
}

/// Usage of the mount: blocks of all tiers, and inodes.
struct Space {
    block_bytes: u64,
    blocks: u64,
    free: u64,
    inodes: u64,
    free_inodes: u64,
}

fn space(mount: &Mount) -> Result<Space> {
    let usage = mount.fs().usage()?;
    let blocks: u64 = usage.total_blocks.iter().sum();
    let used: u64 = usage.used_blocks.iter().sum();
    Ok(Space {
        block_bytes: usage.hugeblock_bytes,
        blocks,
        free: blocks.saturating_sub(used),
        inodes: usage.inode_capacity,
        free_inodes: usage.inode_capacity.saturating_sub(usage.inodes),
    })
}

/// Returns the usage as `struct statfs`.
pub fn statfs(mount: &Mount) -> Result<libc::statfs> {
    let space = space(mount)?;
    // SAFETY: plain integers, for which zero is a valid value.
    let mut statfs: libc::statfs = unsafe { core::mem::zeroed() };
    statfs.f_type = FILE_SYSTEM_TYPE as _;
    statfs.f_bsize = space.block_bytes as _;
    statfs.f_frsize = space.block_bytes as _;
    statfs.f_blocks = space.blocks;
    statfs.f_bfree = space.free;
    statfs.f_bavail = space.free;
    statfs.f_files = space.inodes;
    statfs.f_ffree = space.free_inodes;
    statfs.f_namelen = cairn_core::NAME_BYTES_MAX as _;
    Ok(statfs)
}

/// Returns the usage as `struct statvfs`.
pub fn statvfs(mount: &Mount) -> Result<libc::statvfs> {
    let space = space(mount)?;
    // SAFETY: plain integers, for which zero is a valid value.
    let mut statvfs: libc::statvfs = unsafe { core::mem::zeroed() };
    statvfs.f_bsize = space.block_bytes;
    statvfs.f_frsize = space.block_bytes;
    statvfs.f_blocks = space.blocks;
    statvfs.f_bfree = space.free;
    statvfs.f_bavail = space.free;
    statvfs.f_files = space.inodes;
    statvfs.f_ffree = space.free_inodes;
    statvfs.f_favail = space.free_inodes;
    statvfs.f_namemax = cairn_core::NAME_BYTES_MAX as _;
    Ok(statvfs)
}
