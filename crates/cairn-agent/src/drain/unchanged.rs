//! Ranges of large files that are unchanged since an earlier cut, so that only the rest of a copy
//! is written.
//!
//! Must stay true: a range called unchanged is in the copy of that cut, provided the copy is of the
//! same inode and not shorter. Therefore everything is forgotten if an image was taken that is
//! not recorded here, and nothing is known of a file that programs could store to through mappings
//! in either image.
//!
//! Does not survive its agent: the next agent compares the whole file with its copy.

use cairn_core::InodeId;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use super::Tree;
use crate::image::Moment;
use crate::model::error::Result;
use crate::store::volume::Volume;
use cairn_job::file::node::Kind;
use cairn_job::file::path::FilePath;
use cairn_job::pass::sequence::SPARE_BYTES_MIN;

/// Largest number of ranges of one file, and of all files of an image. A file beyond either limit
/// is compared as a whole.
const RANGES_MAX: usize = 1 << 16;
const ALL_RANGES_MAX: usize = 1 << 20;
/// Number of cuts remembered. Spares need three, unless some attempts fail.
const TAKEN_MAX: usize = 6;

/// Ranges of each known file, by inode.
type Files<T> = HashMap<u32, Vec<Range<T>>>;

/// Unchanged ranges between the images taken by this agent.
#[derive(Default)]
pub struct Unchanged {
    /// Images, oldest first.
    taken: Vec<Taken>,
    /// Number of the first of them; the agent's first image is 0.
    first: u64,
}

struct Taken {
    /// By namespace: the image's number, and the blocks that are as in the image before.
    namespaces: HashMap<String, (u64, Files<u32>)>,
}

impl Unchanged {
    /// Records a cut that was taken, and returns its number; programs could store to the files in
    /// `stored_to`. Errors: the image is no longer held.
    pub fn note(
        &mut self,
        image: &Moment,
        trees: &[(&Arc<Volume>, Tree)],
        stored_to: &HashSet<FilePath>,
    ) -> Result<u64> {
        let mut namespaces = HashMap::new();
        // Without an image nothing is known.
        for ((volume, tree), number) in trees.iter().zip(image.numbers()?) {
            let files = unchanged(volume, tree, stored_to)?;
            namespaces.insert(volume.name().to_string(), (number, files));
        }
        let follows = |last: &Taken| {
            let is_next = |(name, (number, _)): (&String, &(u64, _))| {
                last.namespaces.get(name).is_some_and(|(before, _)| before + 1 == *number)
            };
            last.namespaces.len() == namespaces.len() && namespaces.iter().all(is_next)
        };
        if !self.taken.last().is_none_or(follows) {
            // Numbers go on, so that nobody takes one for another.
            let first = self.first + self.taken.len() as u64;
            *self = Unchanged { first, ..Unchanged::default() };
        }
        self.taken.push(Taken { namespaces });
        if self.taken.len() > TAKEN_MAX {
            self.taken.remove(0);
            self.first += 1;
        }
        Ok(self.first + self.taken.len() as u64 - 1)
    }

    /// Returns what is unchanged between the cut with this number and the last one.
    pub fn since(&self, number: u64) -> Since<'_> {
        let first = number.checked_sub(self.first);
        let taken = first.and_then(|first| self.taken.get(first as usize..));
        Since { taken: taken.unwrap_or_default() }
    }
}

/// Returns the unchanged blocks of each large file of an image.
fn unchanged(volume: &Volume, tree: &Tree, stored_to: &HashSet<FilePath>) -> Result<Files<u32>> {
    let (mut files, mut all) = (HashMap::new(), 0);
    let is_known = |path: &FilePath, node: &cairn_job::file::node::Node| {
        let is_large = node.kind == Kind::File && node.bytes >= SPARE_BYTES_MIN;
        is_large && node.absence.is_none() && !stored_to.contains(path)
    };
    for (path, node) in tree.iter().filter(|(path, node)| is_known(path, node)) {
        let mut ranges = Vec::new();
        let found = volume.fs().unchanged_blocks(InodeId(node.inode), &mut ranges);
        found.map_err(volume.error("look at what has changed of", path))?;
        if ranges.len() <= RANGES_MAX && all + ranges.len() <= ALL_RANGES_MAX {
            all += ranges.len();
            ranges.shrink_to_fit();
            files.insert(node.inode, ranges);
        }
    }
    Ok(files)
}

/// The images from the one whose copies are in a place to the last one.
#[derive(Clone, Copy)]
pub struct Since<'a> {
    taken: &'a [Taken],
}

impl<'a> Since<'a> {
    /// Returns the unchanged byte ranges of a file; None if they are not known.
    pub fn of(&self, volume: &Volume, inode: u32) -> Option<Vec<Range<u64>>> {
        let files = |taken: &'a Taken| taken.namespaces.get(volume.name()).map(|(_, files)| files);
        let (first, later) = self.taken.split_first()?;
        // The file must be known in the first image: then nobody could store to it.
        files(first)?.get(&inode)?;
        let mut later = later.iter().map(|taken| files(taken)?.get(&inode));
        let mut blocks = later.next()??.clone();
        for ranges in later {
            blocks = common(&blocks, ranges?);
        }
        let block_bytes = volume.hugeblock_bytes();
        let bytes = |range: &Range<u32>| {
            u64::from(range.start) * block_bytes..u64::from(range.end) * block_bytes
        };
        Some(blocks.iter().map(bytes).collect())
    }
}

/// Intersection of two sorted lists of ranges.
fn common(one: &[Range<u32>], other: &[Range<u32>]) -> Vec<Range<u32>> {
    let (mut common, mut rest) = (Vec::new(), other);
    for range in one {
        rest = &rest[rest.partition_point(|other| other.end <= range.start)..];
        let meeting = rest.iter().take_while(|other| other.start < range.end);
        common.extend(meeting.map(|o| o.start.max(range.start)..o.end.min(range.end)));
    }
    common
}
