//! What is found at a path outside.

use crate::file::node::Kind;
use cairn_core::Timestamp;

const NANOSECONDS_PER_SECOND: i64 = 1_000_000_000;

/// Metadata of what is at a path of the persist directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Regular file, directory or symbolic link; None for anything else.
    pub kind: Option<Kind>,
    /// Length in bytes.
    pub bytes: u64,
    /// Modification time, nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// Permission bits.
    pub mode: u32,
    /// Inode number.
    pub inode: u64,
    /// Number of hard links.
    pub links: u64,
}

/// Whether a time read back is the one that was set, also on a file system whose times are coarser
/// or have a smaller range.
pub fn same_time(set_ns: i64, found_ns: i64) -> bool {
    const GRANULARITIES_NS: [i64; 4] = [1, 100, 1_000, NANOSECONDS_PER_SECOND];
    let is_rounded = |step| set_ns.checked_sub(set_ns.rem_euclid(step)) == Some(found_ns);
    GRANULARITIES_NS.into_iter().any(is_rounded) || is_nearest(set_ns, found_ns)
}

/// Whether `found_ns` is the first or last time of a file system that cannot store `set_ns`.
fn is_nearest(set_ns: i64, found_ns: i64) -> bool {
    // 1901, with 32 bits, and 1970.
    const FIRST_SECONDS: [i64; 2] = [i32::MIN as i64, 0];
    // 2038 and 2106. The limit of ext4, 2446, is beyond the range of a timestamp.
    const LAST_SECONDS: [i64; 2] = [i32::MAX as i64, u32::MAX as i64];
    let (set, found) = (Timestamp(set_ns).parts().0, Timestamp(found_ns).parts().0);
    FIRST_SECONDS.iter().any(|&first| set < first && found == first)
        || LAST_SECONDS.iter().any(|&last| set > last && found == last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_the_same_as_a_coarser_or_the_nearest_one() {
        let set = -4_123_456_789;
        for found in [set, -4_123_456_800, -4_123_457_000, -5_000_000_000, 0] {
            assert!(same_time(set, found), "{found}");
        }
        for found in [-4_000_000_000, -6_000_000_000, 1_000_000_000] {
            assert!(!same_time(set, found), "{found}");
        }
        let [first, last] =
            [i32::MIN, i32::MAX].map(|seconds| Timestamp::from_parts(seconds.into(), 0).0);
        assert!(same_time(i64::MIN, first) && same_time(i64::MAX, last));
        assert!(!same_time(set, first) && !same_time(i64::MAX, first));
    }
}
