//! Recognises the content of a block device by the marks of file systems, volume managers and
//! partition tables.
//!
//! Invariant: only zeros at both ends count as nothing. Anything unknown is somebody's data.
//!
//! Does not read a device.

use super::claimed::DIVIDED;

/// Content of both ends of a device.
pub(super) struct Ends {
    /// Bytes from the first one on.
    pub head: Vec<u8>,
    /// Bytes up to the last one, without those in the head.
    pub tail: Vec<u8>,
    /// Size of the device.
    pub bytes: u64,
}

/// A mark: its offset, its bytes, and what it says about the device.
type Mark = (u64, &'static [u8], &'static str);

const EXT: &str = "it holds an ext2, ext3 or ext4 file system";
const XFS: &str = "it holds an XFS file system";
const BTRFS: &str = "it holds a Btrfs file system";
const F2FS: &str = "it holds an F2FS file system";
const FAT: &str = "it holds a FAT file system";
const EXFAT: &str = "it holds an exFAT file system";
const NTFS: &str = "it holds an NTFS file system";
const ISO9660: &str = "it holds an ISO 9660 file system";
const ZFS: &str = "it belongs to a ZFS pool";
const LVM2: &str = "it is a physical volume of LVM2";
const MD: &str = "it is a member of an MD RAID array";
const LUKS: &str = "it is encrypted with LUKS";
const SWAP: &str = "it holds swap space";
const GPT: &str = "it has a GPT partition table";
const MBR: &str = "it has an MBR partition table";
const CAIRN: &str =
    "it holds a tier of Cairn, but no label at its end: it had another size, or is damaged";
const PARTS: &str = "it is divided into parts, which stores may use";
const DATA: &str = "it holds data";

/// Marks at the beginning, the more specific ones first: many leave the boot sector's mark as well.
const HEAD: [Mark; 27] = [
    (0, b"cairndev", CAIRN),
    (4096, b"cairndev", CAIRN),
    (0, b"LUKS\xba\xbe", LUKS),
    (0, b"XFSB", XFS),
    (0x438, b"\x53\xef", EXT),
    (0x1_0040, b"_BHRfS_M", BTRFS),
    (0x400, b"\x10\x20\xf5\xf2", F2FS),
    (0, b"LABELONE", LVM2),
    (512, b"LABELONE", LVM2),
    (1024, b"LABELONE", LVM2),
    (1536, b"LABELONE", LVM2),
    (0, MD_MAGIC, MD),
    (4096, MD_MAGIC, MD),
    (4096 - 10, b"SWAPSPACE2", SWAP),
    (8192 - 10, b"SWAPSPACE2", SWAP),
    (16_384 - 10, b"SWAPSPACE2", SWAP),
    (65_536 - 10, b"SWAPSPACE2", SWAP),
    (4096 - 10, b"SWAP-SPACE", SWAP),
    (0x8001, b"CD001", ISO9660),
    (3, b"NTFS    ", NTFS),
    (3, b"EXFAT   ", EXFAT),
    (54, b"FAT", FAT),
    (82, b"FAT32", FAT),
    (512, b"EFI PART", GPT),
    (4096, b"EFI PART", GPT),
    (0, b"EFI PART", GPT),
    (510, b"\x55\xaa", MBR),
];
const MD_MAGIC: &[u8] = b"\xfc\x4e\x2b\xa9";
/// Range and step of ZFS uberblocks: 128 KiB of them, at multiples of their size.
const ZFS_BLOCKS: (usize, usize, usize) = (128 << 10, 256 << 10, 1024);
const ZFS_MAGIC: u64 = 0x00ba_b10c;

/// Returns what the device holds; `None` if nothing.
pub(super) fn find(ends: &Ends) -> Option<&'static str> {
    let Ends { head, tail, bytes } = ends;
    let at_the_end = |from_end: u64, mark: &[u8]| {
        let at = tail.len().checked_sub(from_end as usize);
        at.is_some_and(|at| tail[at..].starts_with(mark))
    };
    // MD version 0.90 aligns its superblock to 64 KiB, version 1.0 to 4 KiB.
    let md_at = [bytes % 0x1_0000 + 0x1_0000, bytes % 4096 + 8192];
    let known = HEAD
        .iter()
        .find(|(at, mark, _)| head.get(*at as usize..).is_some_and(|rest| rest.starts_with(mark)));
    match known {
        _ if at_the_end(4096, &DIVIDED) => Some(PARTS),
        Some((_, _, what)) if *what != MBR => Some(what),
        _ if is_zfs(head) => Some(ZFS),
        _ if md_at.iter().any(|&from_end| at_the_end(from_end, MD_MAGIC)) => Some(MD),
        _ if [512, 4096].iter().any(|&sector| at_the_end(sector, b"EFI PART")) => Some(GPT),
        Some((_, _, what)) => Some(what),
        None if head.iter().chain(tail).any(|&byte| byte != 0) => Some(DATA),
        None => None,
    }
}

fn is_zfs(head: &[u8]) -> bool {
    let (start, end, step) = ZFS_BLOCKS;
    let blocks = (start..end.min(head.len())).step_by(step);
    let magics = [ZFS_MAGIC.to_le_bytes(), ZFS_MAGIC.to_be_bytes()];
    blocks.into_iter().any(|at| magics.iter().any(|magic| head[at..].starts_with(magic)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blank() -> Ends {
        Ends { head: vec![0; 1 << 20], tail: vec![0; 1 << 20], bytes: 64 << 20 }
    }

    #[test]
    fn zeros_are_nothing_and_any_other_byte_is_something() {
        assert_eq!(find(&blank()), None);
        for at in [0, 511, 4095, 70_000, (1 << 20) - 1] {
            let (mut first, mut last) = (blank(), blank());
            first.head[at] = 1;
            last.tail[at] = 1;
            assert_eq!((find(&first), find(&last)), (Some(DATA), Some(DATA)), "{at}");
        }
        assert_eq!(find(&Ends { head: Vec::new(), tail: Vec::new(), bytes: 0 }), None);
    }

    #[test]
    fn every_mark_is_known_also_behind_a_boot_sector() {
        for (at, mark, what) in HEAD {
            let mut ends = blank();
            ends.head[510..512].copy_from_slice(b"\x55\xaa");
            ends.head[at as usize..][..mark.len()].copy_from_slice(mark);
            assert_eq!(find(&ends), Some(what), "{mark:?} at {at}");
        }
    }

    #[test]
    fn marks_that_stand_elsewhere_are_known() {
        let mut zfs = blank();
        zfs.head[(128 << 10) + 5 * 1024..][..8].copy_from_slice(&ZFS_MAGIC.to_le_bytes());
        assert_eq!(find(&zfs), Some(ZFS));
        for (from_end, mark, what) in [
            (0x1_0000 + 0x2000, MD_MAGIC, MD),
            (8192, MD_MAGIC, MD),
            (512, b"EFI PART", GPT),
            (4096, b"EFI PART", GPT),
        ] {
            let mut ends = Ends { bytes: (64 << 20) + 0x2000, ..blank() };
            let at = ends.tail.len() - from_end;
            ends.tail[at..][..mark.len()].copy_from_slice(mark);
            assert_eq!(find(&ends), Some(what), "{mark:?} at {from_end} from the end");
        }
    }
}
