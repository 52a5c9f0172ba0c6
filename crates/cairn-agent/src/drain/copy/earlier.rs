//! Makes the copy of a file from an earlier copy: only the differences are written and read back.
//!
//! Must stay true: pieces that are not known to be unchanged are compared byte by byte, because
//! files of many formats embed checksums that make the checksums of different parts equal. The copy
//! has a temporary name meanwhile, and counts as a copy of nothing.
//!
//! Does not decide which copies are worth patching, and does not know what is unchanged
//! (`drain/unchanged.rs`).

use cairn_platform::checksum;
use rustix::fs::Advice;
use std::fs::File;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::compare_length;
use crate::drain::meter::Meter;
use crate::model::error::{Error, Result};
use crate::store::read::{self, Chunk, Known};

/// Unit of comparison: a piece is written as a whole or not at all.
const PIECE_BYTES: usize = read::PIECE_BYTES as usize;
/// Number of consecutive parts without an equal piece after which the rest counts as different and
/// is not compared.
const OTHER_PARTS_MAX: u32 = 4;

/// An earlier copy of a file that is patched into the copy of its present version.
pub(super) struct Earlier {
    file: File,
    path: PathBuf,
    /// Its length before the patch.
    bytes: u64,
    known: Arc<Known>,
    /// Whether nothing is known to be unchanged, so that the whole file is compared with the copy.
    is_all_compared: bool,
    memory: Vec<u8>,
    others: u32,
    /// Ranges that were written.
    patches: Vec<Patch>,
}

struct Patch {
    offset: u64,
    bytes: usize,
    crc32c: u32,
}

/// The range of all bytes of a part.
pub(super) fn all(chunk: &Chunk<'_>) -> Vec<Range<usize>> {
    std::iter::once(0..chunk.length).collect()
}

fn pieces(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(PIECE_BYTES).map(move |start| start..(start + PIECE_BYTES).min(end))
}

/// Merges adjacent ranges.
fn together(ranges: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut joined: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match joined.last_mut().filter(|last| last.end == range.start) {
            Some(last) => last.end = range.end,
            None => joined.push(range),
        }
    }
    joined
}

impl Earlier {
    /// Opens the copy in `file`, which must be readable and writable. Errors: its length cannot be
    /// read.
    pub(super) fn new(
        file: File,
        path: &Path,
        unchanged: Option<Vec<Range<u64>>>,
    ) -> Result<Earlier> {
        let bytes = file.metadata().map_err(Error::file("look at", path))?.len();
        let is_all_compared = unchanged.is_none();
        let known = Arc::new(Known::new(unchanged.unwrap_or_default(), bytes));
        let (memory, patches) = Default::default();
        let path = path.to_path_buf();
        Ok(Earlier { file, path, bytes, known, is_all_compared, memory, others: 0, patches })
    }

    /// Ranges that the copy is known to have.
    pub(super) fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known)
    }

    /// Returns the ranges of the next part that the copy lacks, adjacent pieces merged. Known
    /// ranges are left out: `chunk` may not hold their bytes (`read.rs`). Errors: the copy cannot
    /// be read, and something is known.
    pub(super) fn differing(&mut self, chunk: &Chunk<'_>) -> Result<Vec<Range<usize>>> {
        let count = self.bytes.saturating_sub(chunk.offset).min(chunk.length as u64) as usize;
        if count == 0 && chunk.is_hole {
            return Ok(Vec::new());
        }
        if self.is_all_compared && self.others >= OTHER_PARTS_MAX {
            return Ok(all(chunk));
        }
        let at = |place: usize| chunk.offset + place as u64;
        let is_unknown = |piece: &Range<usize>| !self.known.has(&(at(piece.start)..at(piece.end)));
        let unknown = together(pieces(0..chunk.length).filter(is_unknown));
        if unknown.is_empty() {
            return Ok(unknown);
        }
        // Behind its end the copy will read as zeros.
        self.memory.clear();
        self.memory.resize(chunk.length, 0);
        for range in &unknown {
            let there = range.start.min(count)..range.end.min(count);
            let offset = at(there.start);
            match self.file.read_exact_at(&mut self.memory[there], offset) {
                Ok(()) => {}
                Err(_) if self.is_all_compared => return Ok(all(chunk)),
                Err(error) => return Err(Error::file("read", &self.path)(error)),
            }
        }
        let differs =
            |piece: &Range<usize>| self.memory[piece.clone()] != chunk.bytes()[piece.clone()];
        let differing = together(unknown.into_iter().flat_map(pieces).filter(differs));
        self.others = if differing == all(chunk) { self.others + 1 } else { 0 };
        Ok(differing)
    }

    /// Notes that a range of the part is written.
    pub(super) fn note(&mut self, chunk: &Chunk<'_>, range: &Range<usize>) {
        let crc32c = checksum::crc32c(0, &chunk.bytes()[range.clone()]);
        let offset = chunk.offset + range.start as u64;
        self.patches.push(Patch { offset, bytes: range.len(), crc32c });
    }

    /// Writes a range of the part.
    pub(super) fn write(&self, chunk: &Chunk<'_>, range: Range<usize>) -> std::io::Result<()> {
        self.file.write_all_at(&chunk.bytes()[range.clone()], chunk.offset + range.start as u64)
    }

    /// Reads back what was written. Errors: `CopyDiffers`, `LengthDiffers`, those of the file.
    pub(super) fn compare(&self, path: &Path, bytes: u64, meter: &Meter) -> Result<()> {
        let failed = || Error::file("read back", path);
        compare_length(path, bytes, self.file.metadata().map_err(failed())?.len())?;
        for patch in &self.patches {
            // Only advice: if the kernel ignores it, reading takes longer.
            let length = NonZeroU64::new(patch.bytes as u64);
            let _ = rustix::fs::fadvise(&self.file, patch.offset, length, Advice::WillNeed);
        }
        let mut memory = Vec::new();
        for &Patch { offset, bytes, crc32c: expected } in &self.patches {
            meter.get_on()?;
            memory.resize(bytes, 0);
            self.file.read_exact_at(&mut memory, offset).map_err(failed())?;
            let found = checksum::crc32c(0, &memory);
            if found != expected {
                return Err(Error::CopyDiffers { path: path.to_path_buf(), expected, found });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_platform::direct::Aligned;

    /// Returns the pieces that `earlier` lacks of a part at `offset`. All bytes of the part are
    /// `byte` except those at `others`.
    fn differing(
        earlier: &mut Earlier,
        (offset, pieces): (usize, usize),
        (byte, others): (u8, &[usize]),
        is_hole: bool,
    ) -> Vec<(usize, usize)> {
        let length = pieces * PIECE_BYTES;
        let mut memory = Aligned::default();
        memory.grow(length);
        memory.fill(byte);
        others.iter().for_each(|&at| memory[at] ^= 1);
        let (offset, memory) = ((offset * PIECE_BYTES) as u64, &mut memory);
        let chunk = Chunk { offset, length, memory, is_hole, crc32c: 0, is_checked: true };
        let piece =
            |range: &Range<usize>| (range.start / PIECE_BYTES, range.end.div_ceil(PIECE_BYTES));
        earlier.differing(&chunk).expect("can be read").iter().map(piece).collect()
    }

    #[test]
    fn only_pieces_that_differ_are_written() {
        let path = std::env::temp_dir().join(format!("cairn-earlier-{}", std::process::id()));
        let options = File::options().read(true).write(true).create_new(true).open(&path);
        let file = options.expect("makes");
        std::fs::remove_file(&path).expect("removes");
        file.write_all_at(&vec![7; 8 * PIECE_BYTES + 100], 0).expect("writes");
        let mut earlier = Earlier::new(file, &path, None).expect("looks");
        let no_hole =
            |earlier: &mut Earlier, place, content| differing(earlier, place, content, false);
        assert!(no_hole(&mut earlier, (0, 4), (7, &[])).is_empty());
        let others = [PIECE_BYTES, 3 * PIECE_BYTES - 1, 7 * PIECE_BYTES];
        assert_eq!(no_hole(&mut earlier, (0, 8), (7, &others)), [(1, 3), (7, 8)]);
        // Behind its end the copy reads as zeros, like a hole. A hole in the file does not match
        // bytes of the copy.
        assert_eq!(no_hole(&mut earlier, (8, 2), (0, &[])), [(0, 1)]);
        assert_eq!(differing(&mut earlier, (8, 2), (0, &[]), true), [(0, 1)]);
        assert!(differing(&mut earlier, (9, 2), (0, &[]), true).is_empty());
        // Another file is no longer compared.
        for _ in 0..OTHER_PARTS_MAX {
            assert_eq!(no_hole(&mut earlier, (0, 2), (1, &[])), [(0, 2)]);
        }
        assert_eq!(no_hole(&mut earlier, (0, 2), (7, &[])), [(0, 2)]);
    }

    #[test]
    fn what_is_known_is_not_compared_up_to_where_the_copy_ends() {
        let path = std::env::temp_dir().join(format!("cairn-known-{}", std::process::id()));
        let options = File::options().read(true).write(true).create_new(true).open(&path);
        let file = options.expect("makes");
        std::fs::remove_file(&path).expect("removes");
        file.write_all_at(&vec![7; 4 * PIECE_BYTES + 100], 0).expect("writes");
        let piece = PIECE_BYTES as u64;
        let mut earlier = Earlier::new(file, &path, Some(vec![0..piece, 2 * piece..9 * piece]));
        let earlier = earlier.as_mut().expect("looks");
        assert_eq!(differing(earlier, (0, 6), (1, &[]), false), [(1, 2), (4, 6)]);
        for _ in 0..=OTHER_PARTS_MAX {
            assert_eq!(differing(earlier, (1, 2), (1, &[]), false), [(0, 1)]);
        }
    }

    /// The medium changes a byte after the write.
    #[test]
    fn what_was_written_is_read_back() {
        let path = std::env::temp_dir().join(format!("cairn-read-back-{}", std::process::id()));
        let options = File::options().read(true).write(true).create_new(true).open(&path);
        let file = options.expect("makes");
        std::fs::remove_file(&path).expect("removes");
        let mut earlier = Earlier::new(file, &path, None).expect("looks");
        let mut memory = Aligned::default();
        memory.grow(PIECE_BYTES);
        memory.fill(3);
        let (offset, length, is_hole) = (PIECE_BYTES as u64, PIECE_BYTES, false);
        let memory = &mut memory;
        let chunk = Chunk { offset, length, memory, is_hole, crc32c: 0, is_checked: true };
        let bytes = 2 * offset;
        earlier.note(&chunk, &(0..length));
        earlier.write(&chunk, 0..length).expect("writes");
        let meter = Meter::default();
        assert!(earlier.compare(&path, bytes, &meter).is_ok());
        assert!(matches!(
            earlier.compare(&path, bytes + 1, &meter),
            Err(Error::LengthDiffers { .. })
        ));
        earlier.file.write_all_at(&[4], offset + 5).expect("writes");
        assert!(matches!(earlier.compare(&path, bytes, &meter), Err(Error::CopyDiffers { .. })));
    }
}
