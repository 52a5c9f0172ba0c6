//! Numbers of files in the kernel (node ids).
//!
//! Must stay true: a number never stands for a later file that got the same inode. The kernel may
//! use a number long after the file is gone, and a server keeps no table of those it gave out. So a
//! number is made of the inode and of a tag of the time at which the file was made, and every use
//! of it is checked. Two files of one inode have the same tag once in 2^31.

use cairn_core::{Attributes, InodeId, ROOT, Timestamp};
use cairn_posix::Errno;
use cairn_posix::mount::Mount;
use fuser::INodeNo;

/// Bits of the inode in a number.
const INODE_BITS: u32 = 32;

fn tag(born: Timestamp) -> u64 {
    let (seconds, nanoseconds) = born.parts();
    let mixed = (seconds as u64 ^ (nanoseconds as u64) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // Not 0, so that no number is that of the root.
    mixed >> 33 | 1 << 31
}

/// Returns the number of a file.
pub fn number(found: &Attributes) -> INodeNo {
    match found.inode {
        ROOT => INodeNo::ROOT,
        InodeId(inode) => INodeNo(tag(found.born) << INODE_BITS | u64::from(inode)),
    }
}

/// Returns the attributes of the file with this number. Errors: `ESTALE` if it is gone.
pub fn attributes(mount: &Mount, number: INodeNo) -> Result<Attributes, Errno> {
    const GONE: Errno = Errno(libc::ESTALE);
    let inode = InodeId(number.0 as u32);
    let found = mount.fs().attributes(inode).map_err(|error| match error {
        cairn_core::Error::NotFound => GONE,
        error => error.into(),
    })?;
    match self::number(&found) == number {
        true => Ok(found),
        false => Err(GONE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_files_born_one_after_another_differ() {
        let mut tags: Vec<u64> =
            (0..10_000).map(|step| tag(Timestamp::from_parts(1_800_000_000, step))).collect();
        assert!(tags.iter().all(|tag| *tag >= 1 << 31 && *tag < 1 << 32));
        tags.sort_unstable();
        tags.dedup();
        assert!(tags.len() >= 9_999, "{}", tags.len());
    }
}
