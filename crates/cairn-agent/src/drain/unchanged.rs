//! What of large files is as it was in an earlier image, so that only the rest of their copies is
//! made anew.
//!
//! Must stay true: what is called unchanged is what the copy in that place has, if it is one of the
//! same inode and not shorter. So all is forgotten if an image was taken that is not known here,
//! and nothing is known of a file that programs could store to by mappings when either image was
//! taken.
//! Does not survive its agent: the next one compares all of a file with its copy.

use super::Tree;
use crate::drain::carry::EARLIER_BYTES_MIN;
use crate::image::Image;
use crate::model::error::Result;
use crate::model::path::FilePath;
use crate::store::node::Kind;
use crate::store::volume::Volume;
use cairn_core::InodeId;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file that changed here and there in more places is compared as a whole; so are the rest where
/// all files of an image did in more.
const RANGES_MAX: usize = 1 << 16;
const ALL_RANGES_MAX: usize = 1 << 20;
/// Images that are remembered: the places where they lie need three, unless some come to nothing.
const TAKEN_MAX: usize = 6;

/// Of each file that is known, ranges of it.
type Files<T> = HashMap<u32, Vec<Range<T>>>;

/// What is known of the images that were taken.
#[derive(Default)]
pub struct Unchanged {
    /// One after another.
    taken: Vec<Taken>,
    /// The first of them, counted from the first that this agent has taken.
    first: u64,
    /// What the copies in each place are of, by that count, or of something later.
    places: HashMap<PathBuf, u64>,
}

struct Taken {
    /// Of each namespace, the image's number and the blocks that are as they were in the image
    /// before.
    namespaces: HashMap<String, (u64, Files<u32>)>,
}

impl Unchanged {
    /// An image was taken, in which programs could store to some files. Errors: it is not held any
    /// more.
    pub fn note(
        &mut self,
        image: &Image,
        trees: &[(&Arc<Volume>, Tree)],
        stored_to: &HashSet<FilePath>,
    ) -> Result<()> {
        let mut namespaces = HashMap::new();
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
            *self = Unchanged::default();
        }
        self.taken.push(Taken { namespaces });
        if self.taken.len() > TAKEN_MAX {
            self.taken.remove(0);
            self.first += 1;
        }
        Ok(())
    }

    /// All of the last one lies in this place.
    pub fn note_copied(&mut self, place: &Path) {
        let last = (self.first + self.taken.len() as u64).checked_sub(1);
        self.places.extend(last.map(|last| (place.to_path_buf(), last)));
    }

    /// What is in the last one as in what lies in this place.
    pub fn since(&self, place: &Path) -> Since<'_> {
        let of_place = self.places.get(place).and_then(|of| of.checked_sub(self.first));
        let taken = of_place.and_then(|first| self.taken.get(first as usize..));
        Since { taken: taken.unwrap_or_default() }
    }
}

/// Of each large file of an image, the blocks that are as they were before.
fn unchanged(volume: &Volume, tree: &Tree, stored_to: &HashSet<FilePath>) -> Result<Files<u32>> {
    let (mut files, mut all) = (HashMap::new(), 0);
    let is_known = |path: &FilePath, node: &crate::store::node::Node| {
        let is_large = node.kind == Kind::File && node.bytes >= EARLIER_BYTES_MIN;
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

/// Images from that of which there are copies to the last one.
#[derive(Clone, Copy)]
pub struct Since<'a> {
    taken: &'a [Taken],
}

impl<'a> Since<'a> {
    /// The bytes of a file that are as they were. None: that is not known.
    pub fn of(&self, volume: &Volume, inode: u32) -> Option<Vec<Range<u64>>> {
        let files = |taken: &'a Taken| taken.namespaces.get(volume.name()).map(|(_, files)| files);
        let (first, later) = self.taken.split_first()?;
        // Nobody could store to it then.
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

/// What is in both, each of which is in order.
fn common(one: &[Range<u32>], other: &[Range<u32>]) -> Vec<Range<u32>> {
    let (mut common, mut rest) = (Vec::new(), other);
    for range in one {
        rest = &rest[rest.partition_point(|other| other.end <= range.start)..];
        let meeting = rest.iter().take_while(|other| other.start < range.end);
        common.extend(meeting.map(|o| o.start.max(range.start)..o.end.min(range.end)));
    }
    common
}
