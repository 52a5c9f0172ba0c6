//! Place of a file: a directory of ours, and the rest of a path from there.

use cairn_core::InodeId;

/// File of ours, as the application named it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// Directory that `path` starts from.
    pub base: InodeId,
    /// Rest of the path, without a leading slash; empty for `base` itself.
    pub path: &'a [u8],
}

impl Place<'_> {
    /// Whether the path starts at the mount prefix.
    pub fn is_from_prefix(&self) -> bool {
        self.base == cairn_core::ROOT
    }
}
