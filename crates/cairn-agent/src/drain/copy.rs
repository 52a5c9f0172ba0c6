//! Copies one file of a cut to the shelf of the persist directory, verified at both ends.
//!
//! The order of the steps makes the copy trustworthy:
//! 1. every block read from the store is compared with the checksum it was written with;
//! 2. the copy, with its attributes, is made durable on the shelf;
//! 3. it is read back from its device and compared with the checksum of what step 1 read, unless
//!    the job trusts the file system (`Verify::Write`) and this agent wrote all of it;
//! 4. the cut must still be held: what was read is then as it was at its moment.
//!
//! Large files bypass the page cache (`direct.rs`). Small files go through each step together:
//! their device writes them back side by side, and one wait covers all of them. From time to time
//! the written part of a large file is made durable and marked (`marks.rs`): after a death the copy
//! continues there, and step 3 compares it from its beginning. A copy may be made from a spare, an
//! earlier copy, of which only the differences are written and read back (`earlier.rs`).
//!
//! Does not decide which files are copied (`plan.rs`), nor when copies get their names
//! (`sequence.rs`).

mod earlier;

use crate::store::extended;
use cairn_core::{Attributes, InodeId};
use cairn_job::pass::sequence::Made;
use cairn_platform::checksum;
use cairn_platform::direct::Aligned;
use earlier::Earlier;
use rustix::fs::Advice;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::thread;
use std::time::Instant;

use crate::drain::aside::Aside;
use crate::drain::meter::Meter;
use crate::drain::pace::PacedWork;
use crate::model::error::{Error, Result};
use crate::model::policy::Verify;
use crate::persist::destination::{Destination, Temporary};
use crate::persist::marks::{MARK_BYTES, MARK_EVERY, Mark, Marks};
use crate::store::read::{Buffer, CHUNK_BYTES, Chunk, Known, Start, Summary, read_from};
use crate::store::volume::{OpenFile, Volume};
use cairn_job::file::node::Node;
use cairn_job::file::path::FilePath;
use cairn_job::outside::manifest::Copy;

/// A file to be copied.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// Namespace of the file.
    pub volume: &'a Volume,
    /// Its path below the persist directory.
    pub path: &'a FilePath,
    /// Its state at the cut.
    pub node: &'a Node,
    /// Length and CRC32C of its last copy, which the new one may extend.
    pub before: Option<(u64, u32)>,
}

impl<'a> Source<'a> {
    /// Opens the file. Errors: `Changed` if the cut has another one under this name.
    fn open(&self) -> Result<OpenFile<'a>> {
        let changed = || Error::Changed { path: self.path.clone() };
        let inner = self.path.strip_prefix(self.volume.prefix()).ok_or_else(changed)?;
        let file = match self.volume.open_file(&inner) {
            Err(Error::Store { source: cairn_core::Error::NotFound, .. }) => return Err(changed()),
            opened => opened?,
        };
        if file.inode != InodeId(self.node.inode) {
            return Err(changed());
        }
        Ok(file)
    }

    /// Step 4: checks that what was read is the file at the moment of the cut. Errors: the image is
    /// not held any more; without one, `Changed`.
    fn confirm(&self, version: u64) -> Result<()> {
        let fs = self.volume.fs();
        if self.volume.is_image() {
            return fs.require_image().map_err(self.volume.error("read the image of", self.path));
        }
        let now = fs.attributes(InodeId(self.node.inode));
        match now.is_ok_and(|now| now.version == version && version == self.node.version) {
            true => Ok(()),
            false => Err(Error::Changed { path: self.path.clone() }),
        }
    }
}

/// Destination of copies, and the records kept about them.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The persist directory.
    pub destination: &'a Destination,
    /// Marks of how far large copies have come.
    pub marks: &'a Marks,
    /// How copies are verified.
    pub verify: Verify,
}

/// Copies small files together; the results are in the order of `sources`.
pub fn copy_together<'a>(
    place: Place<'_>,
    sources: &[Source<'a>],
    buffer: &mut Buffer,
    meter: &Meter,
) -> Vec<Result<Made>> {
    let write =
        |source: &Source<'a>| Written::write(place, *source, Beginning::Nothing, buffer, meter);
    let written: Vec<Result<Written<'a>>> = sources.iter().map(write).collect();
    written.iter().flatten().for_each(Written::write_back);
    let make_durable = |written: Written<'a>| written.make_durable(meter).map(|()| written);
    let durable: Vec<_> = written.into_iter().map(|one| one.and_then(make_durable)).collect();
    if place.verify == Verify::Read {
        durable.iter().flatten().for_each(Written::read_ahead);
    }
    durable.into_iter().map(|one| one.and_then(|one| one.finish(place, buffer, meter))).collect()
}

/// Copies a file. Errors: `Damaged`; the cut is not held any more; those of the persist directory.
pub fn copy_file(
    place: Place<'_>,
    source: Source<'_>,
    buffer: &mut Buffer,
    meter: &Meter,
) -> Result<Made> {
    let begun = place.marks.resume(place.destination, source.path, source.node);
    // A mark from a damaged file of marks may not be on a block boundary: start over.
    let block_bytes = source.volume.hugeblock_bytes();
    let begun = begun.filter(|(_, mark)| mark.offset % block_bytes == 0);
    let had_begun = begun.is_some();
    let mut copied = copy_on(place, source, begun, buffer, meter);
    if matches!(copied, Err(Error::Stopped)) {
        // The next pass goes on at the mark.
        return copied;
    }
    place.marks.forget(source.path);
    if had_begun && matches!(copied, Err(Error::CopyDiffers { .. } | Error::LengthDiffers { .. })) {
        // The part that a dead agent had written was damaged since: start over.
        copied = copy_on(place, source, None, buffer, meter);
        place.marks.forget(source.path);
    }
    copied
}

/// Copies a file, or the rest of it if its copy was `begun`. The caller must drop the mark
/// afterwards: the temporary file is the copy by then, or is gone.
fn copy_on(
    place: Place<'_>,
    source: Source<'_>,
    begun: Option<(Temporary, Mark)>,
    buffer: &mut Buffer,
    meter: &Meter,
) -> Result<Made> {
    let beginning = match begun {
        Some((temporary, mark)) => Beginning::Begun(temporary, mark),
        None => Beginning::Nothing,
    };
    let written = Written::write(place, source, beginning, buffer, meter)?;
    written.make_durable(meter)?;
    written.finish(place, buffer, meter)
}

/// Patches the spare of a file, with inode `spare`: writes only the differences. None: it cannot be
/// changed, and is gone.
pub fn patch_file(
    place: Place<'_>,
    source: Source<'_>,
    (spare, unchanged): (u64, Option<Vec<Range<u64>>>),
    buffer: &mut Buffer,
    meter: &Meter,
) -> Result<Option<Made>> {
    let Some(taken) = place.destination.take_spare(source.path, spare)? else {
        return Ok(None);
    };
    let earlier = Earlier::new(taken.reopen()?, taken.path(), unchanged)?;
    let written = Written::write(place, source, Beginning::Earlier(taken, earlier), buffer, meter)?;
    written.make_durable(meter)?;
    let made = written.finish(place, buffer, meter).map(Some);
    place.marks.forget(source.path);
    made
}

/// What exists of a copy before it is made.
enum Beginning {
    Nothing,
    /// The part that an agent wrote before it died.
    Begun(Temporary, Mark),
    /// An earlier copy.
    Earlier(Temporary, Earlier),
}

/// A copy under its temporary name, with all bytes and attributes, not verified yet.
struct Written<'a> {
    source: Source<'a>,
    temporary: Temporary,
    copy: Copy,
    /// See [`Made::extends`].
    extends: bool,
    /// Whether another agent, which died, wrote the beginning.
    was_begun: bool,
    /// For a patched copy: the ranges written. The other bytes were compared, or are known to be
    /// unchanged.
    earlier: Option<Earlier>,
}

impl<'a> Written<'a> {
    fn write(
        place: Place<'_>,
        source: Source<'a>,
        beginning: Beginning,
        buffer: &mut Buffer,
        meter: &Meter,
    ) -> Result<Written<'a>> {
        let _at_work = meter.at(source.path);
        let file = source.open()?;
        let (temporary, mark, mut earlier) = match beginning {
            Beginning::Nothing => (place.destination.create_temporary(source.path)?, None, None),
            Beginning::Begun(temporary, mark) => (temporary, Some(mark), None),
            Beginning::Earlier(temporary, earlier) => (temporary, None, Some(earlier)),
        };
        let path = temporary.path().to_path_buf();
        let failed = || Error::file("write", &path);
        let was_begun = mark.is_some();
        let start =
            mark.map(|Mark { version, offset, crc32c, .. }| Start { version, offset, crc32c });
        meter.copied(start.map_or(0, |start| start.offset));
        let known = earlier.as_ref().map(Earlier::known).unwrap_or_default();
        let mut progress = Progress::begin(place, source, &temporary)?;
        let mut lap = PacedWork::begin(meter);
        let mut prefix = Prefix::of(source.before);
        let summary = thread::scope(|scope| {
            let mut aside = Aside::new(scope, &temporary.file, source.node.bytes, CHUNK_BYTES);
            let summary = read(&file, (start, &known), buffer, meter, &mut |mut chunk| {
                let bytes = chunk.length as u64;
                prefix.note(&chunk, &known);
                let differing = match &mut earlier {
                    Some(earlier) => earlier.differing(&chunk)?,
                    None if chunk.is_hole => Vec::new(),
                    None => earlier::all(&chunk),
                };
                lap.admit(differing.iter().map(|range| range.len() as u64).sum())?;
                for range in differing {
                    if let Some(earlier) = &mut earlier {
                        earlier.note(&chunk, &range);
                        if chunk.is_hole || range.len() < chunk.length {
                            earlier.write(&chunk, range).map_err(failed())?;
                            continue;
                        }
                    }
                    let Chunk { memory, length, offset, .. } = &mut chunk;
                    aside.write(memory, *length, *offset).map_err(failed())?;
                }
                meter.copied(bytes);
                progress.note(&chunk, &temporary, &mut aside)
            })?;
            aside.settle().map_err(failed())?;
            Ok::<_, Error>(summary)
        });
        let summary = match summary {
            Err(Error::Stopped) if earlier.is_none() => {
                temporary.keep();
                return Err(Error::Stopped);
            }
            summary => summary?,
        };
        let Attributes { size: bytes, mode, modified, version, .. } = summary.attributes;
        let (mode, mtime_ns) = (mode & 0o7777, modified.0);
        temporary.file.set_len(bytes).map_err(failed())?;
        let extended = source.volume.extended(&file.path, &summary.attributes)?;
        let extended =
            extended.carried(extended.is_empty() || extended::give(&extended, &temporary.file));
        temporary.set_attributes(mode, Some(mtime_ns))?;
        let copy = Copy { bytes, crc32c: summary.crc32c, mode, mtime_ns, version, extended };
        let extends = prefix.is_same;
        Ok(Written { source, temporary, copy, extends, was_begun, earlier })
    }

    /// Starts write-back: the kernel begins it when told that nobody needs the pages.
    fn write_back(&self) {
        drop_cached(&self.temporary.file);
    }

    /// Step 2. Also drops the pages from the page cache.
    fn make_durable(&self, meter: &Meter) -> Result<()> {
        let _at_work = meter.at(self.source.path);
        let _lap = PacedWork::begin(meter);
        self.temporary.make_durable()?;
        drop_cached(&self.temporary.file);
        Ok(())
    }

    /// Starts read-ahead from the device.
    fn read_ahead(&self) {
        // Only advice: if the kernel ignores it, reading takes longer.
        let _ = rustix::fs::fadvise(&self.temporary.file, 0, None, Advice::WillNeed);
    }

    /// Steps 3 and 4. The copy stays on the shelf.
    fn finish(self, place: Place<'_>, buffer: &mut Buffer, meter: &Meter) -> Result<Made> {
        let Written { source, temporary, copy, extends, was_begun, earlier } = self;
        let _at_work = meter.at(source.path);
        let _lap = PacedWork::begin(meter);
        let path = temporary.path();
        let reads_back = place.verify == Verify::Read || was_begun;
        match earlier {
            Some(earlier) if reads_back => earlier.compare(path, copy.bytes, meter)?,
            None if reads_back => {
                compare(&temporary.file, path, (copy.bytes, copy.crc32c), buffer, meter)?;
            }
            _ => {
                let length = temporary.file.metadata().map_err(Error::file("look at", path))?.len();
                compare_length(path, copy.bytes, length)?;
            }
        }
        source.confirm(copy.version)?;
        let inode = temporary.inode()?;
        temporary.keep();
        Ok(Made { copy, inode, extends })
    }
}

/// Compares the beginning of a file with its last copy, by length and checksum.
struct Prefix {
    /// Length and CRC32C of the last copy; None if there is none, or once it was compared.
    wanted: Option<(u64, u32)>,
    /// CRC32C of the file so far.
    crc32c: u32,
    is_same: bool,
}

impl Prefix {
    fn of(wanted: Option<(u64, u32)>) -> Prefix {
        Prefix { wanted, crc32c: 0, is_same: false }
    }

    /// Takes the next part of the file. Parts in `known` are not there to be summed.
    fn note(&mut self, chunk: &Chunk<'_>, known: &Known) {
        let Some((bytes, crc32c)) = self.wanted else { return };
        let end = chunk.offset + chunk.length as u64;
        if end == bytes {
            (self.is_same, self.wanted) = (chunk.crc32c == crc32c, None);
        } else if end > bytes {
            let rest = (bytes - chunk.offset) as usize;
            let is_there = !known.touches(&(chunk.offset..end));
            let found = is_there.then(|| checksum::crc32c(self.crc32c, &chunk.bytes()[..rest]));
            (self.is_same, self.wanted) = (found == Some(crc32c), None);
        }
        self.crc32c = chunk.crc32c;
    }
}

/// Calls `read_from`. A long wait in the store does not count as a stall of the persist directory.
fn read(
    file: &OpenFile<'_>,
    from: (Option<Start>, &Known),
    buffer: &mut Buffer,
    meter: &Meter,
    consume: &mut dyn FnMut(Chunk<'_>) -> Result<()>,
) -> Result<Summary> {
    meter.is_in_store(true);
    let summary = read_from(file, from, buffer, &mut |chunk| {
        meter.is_in_store(false);
        consume(chunk)?;
        meter.is_in_store(true);
        Ok(())
    });
    meter.is_in_store(false);
    summary
}

/// Sets marks while a copy proceeds.
struct Progress<'a> {
    marks: &'a Marks,
    path: &'a FilePath,
    mark: Mark,
    unmarked_bytes: u64,
    marked_at: Instant,
}

impl<'a> Progress<'a> {
    fn begin(place: Place<'a>, source: Source<'a>, temporary: &Temporary) -> Result<Progress<'a>> {
        let &Node { inode, version, bytes, .. } = source.node;
        let mark =
            Mark { inode, version, bytes, temporary: temporary.inode()?, offset: 0, crc32c: 0 };
        let (marks, path, marked_at) = (place.marks, source.path, Instant::now());
        Ok(Progress { marks, path, mark, unmarked_bytes: 0, marked_at })
    }

    /// Makes the copied part durable from time to time, and marks it.
    fn note(
        &mut self,
        chunk: &Chunk<'_>,
        temporary: &Temporary,
        aside: &mut Aside<'_>,
    ) -> Result<()> {
        self.unmarked_bytes += if chunk.is_hole { 0 } else { chunk.length as u64 };
        let offset = chunk.offset + chunk.length as u64;
        let is_due = self.unmarked_bytes >= MARK_BYTES && self.marked_at.elapsed() >= MARK_EVERY;
        if !is_due || offset >= self.mark.bytes || !chunk.is_checked {
            return Ok(());
        }
        aside.settle().map_err(Error::file("write", temporary.path()))?;
        // A hole at the end does not extend the file by itself.
        let length = temporary.file.metadata().and_then(|found| match found.len() < offset {
            true => temporary.file.set_len(offset),
            false => Ok(()),
        });
        let durable = length.and_then(|()| temporary.file.sync_data());
        durable.map_err(Error::file("make durable", temporary.path()))?;
        self.unmarked_bytes = 0;
        self.marked_at = Instant::now();
        self.marks.set(self.path, Mark { offset, crc32c: chunk.crc32c, ..self.mark });
        Ok(())
    }
}

/// Checks whether `existing`, which an earlier store left in the persist directory, already is a
/// verified copy of the file, and gives it the file's attributes. None if it is not.
pub fn adopt_file(
    place: Place<'_>,
    source: Source<'_>,
    existing: &Copy,
    buffer: &mut Buffer,
    meter: &Meter,
) -> Result<Option<Made>> {
    let destination = place.destination;
    if existing.bytes != source.node.bytes {
        return Ok(None);
    }
    let _at_work = meter.at(source.path);
    let file = source.open()?;
    let summary = read(&file, (None, &Known::default()), buffer, meter, &mut |_| meter.get_on())?;
    let copy = destination.open_file(source.path)?;
    let path = destination.full_path(source.path);
    drop_cached(&copy);
    let same = summary.crc32c == existing.crc32c
        && compare(&copy, &path, (existing.bytes, existing.crc32c), buffer, meter).is_ok();
    if !same {
        return Ok(None);
    }
    source.confirm(summary.attributes.version)?;
    let (mode, mtime_ns) = (summary.attributes.mode & 0o7777, summary.attributes.modified.0);
    let version = summary.attributes.version;
    let extended = source.volume.extended(&file.path, &summary.attributes)?;
    let kept = destination.set_extended(source.path, &extended)?;
    destination.set_attributes(source.path, mode, mtime_ns)?;
    let found = destination.look(source.path)?;
    let Some(inode) = found.map(|found| found.inode) else { return Ok(None) };
    let extended = extended.carried(kept);
    let copy = Copy { mode, mtime_ns, version, extended, ..existing.clone() };
    Ok(Some(Made { copy, inode, extends: true }))
}

fn drop_cached(file: &File) {
    // Only advice: if the kernel ignores it, the comparison still covers what other readers get.
    let _ = rustix::fs::fadvise(file, 0, None, Advice::DontNeed);
}

/// Reads the copy at `path` from its device and compares it. Errors: `CopyDiffers`,
/// `LengthDiffers`, those of the persist directory.
pub fn verify(
    destination: &Destination,
    path: &FilePath,
    copy: &Copy,
    buffer: &mut Buffer,
    meter: &Meter,
) -> Result<()> {
    let file = destination.open_file(path)?;
    drop_cached(&file);
    compare(&file, &destination.full_path(path), (copy.bytes, copy.crc32c), buffer, meter)
}

/// Reads a copy and compares its length and CRC32C with `expected`. The data come from the device,
/// not from the page cache, if they are durable and were not read since.
pub fn compare(
    file: &File,
    path: &Path,
    expected: (u64, u32),
    buffer: &mut Buffer,
    meter: &Meter,
) -> Result<()> {
    let (bytes, crc32c) = expected;
    let (found_bytes, found) = checksum_of(file, path, buffer, &mut |_| meter.get_on())?;
    compare_length(path, bytes, found_bytes)?;
    if found != crc32c {
        return Err(Error::CopyDiffers { path: path.to_path_buf(), expected: crc32c, found });
    }
    Ok(())
}

fn compare_length(path: &Path, expected_bytes: u64, found_bytes: u64) -> Result<()> {
    match expected_bytes == found_bytes {
        true => Ok(()),
        false => {
            Err(Error::LengthDiffers { path: path.to_path_buf(), expected_bytes, found_bytes })
        }
    }
}

/// Returns length and CRC32C of a whole ordinary file. `progress` is called for every part read,
/// and may end it with an error.
pub fn checksum_of(
    file: &File,
    path: &Path,
    buffer: &mut Buffer,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<(u64, u32)> {
    let (mut bytes, mut crc32c) = (0, 0);
    let failed = || Error::file("read back", path);
    let length = file.metadata().map_err(failed())?.len();
    let begin = |aside: &mut Aside<'_>, memory: Aligned, at: u64| -> Result<u64> {
        let hole = hole_at(file, at, length);
        aside.read(memory, at + hole).map(|()| hole).map_err(failed())
    };
    thread::scope(|scope| {
        let mut aside = Aside::new(scope, file, length, CHUNK_BYTES);
        let mut next_hole = begin(&mut aside, buffer.lend(), bytes)?;
        let mut other = Aligned::default();
        loop {
            let (part, count) = aside.finish_read().map_err(failed())?;
            let (hole, end) = (next_hole, bytes + next_hole + count as u64);
            let is_last = count == 0 || end >= length;
            if !is_last {
                other.grow(part.len());
                next_hole = begin(&mut aside, std::mem::take(&mut other), end)?;
            }
            crc32c = checksum::combine(crc32c, checksum::zeros(hole), hole);
            crc32c = checksum::crc32c(crc32c, &part[..count]);
            progress(end - bytes)?;
            (bytes, other) = (end, part);
            if is_last {
                buffer.put_back(other);
                return Ok((bytes, crc32c));
            }
        }
    })
}

/// Length of the hole at `offset` in a file of `length` bytes, as far as its file system tells.
fn hole_at(file: &File, offset: u64, length: u64) -> u64 {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(offset)) {
        Ok(data) => data.min(length).saturating_sub(offset),
        // The hole extends to the end of the file.
        Err(rustix::io::Errno::NXIO) => length.saturating_sub(offset),
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests;
