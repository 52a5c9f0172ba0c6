//! Copying one file from the store to the persist directory, verified at both ends.
//!
//! The steps, in the order that makes the copy trustworthy:
//! 1. every block read from the store is compared with the checksum it was written with;
//! 2. the copy, with its attributes, is made durable under a temporary name and its cached pages
//!    are dropped;
//! 3. it is read back and compared with the checksum of what was read in step 1;
//! 4. only if the file in the store is still the same version, closed, and of the same name, and
//!    after the journal says so, does the copy replace what has the name in the persist directory.
//!
//! Does not decide which files are copied; `plan.rs` does.

use crate::destination::Destination;
use crate::error::{Error, Result};
use crate::journal::{Intent, Journal};
use crate::manifest::Copy;
use crate::meter::Meter;
use crate::path::FilePath;
use crate::plan::Node;
use crate::read::{Buffer, Chunk, Summary, read_whole};
use crate::volume::{OpenFile, Volume, now};
use cairn_core::InodeId;
use cairn_device::checksum;
use rustix::fs::Advice;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Bytes read at a time when a copy is checked.
const READ_BACK_BYTES: usize = 1 << 20;

/// A file to be copied.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The namespace it lies in.
    pub volume: &'a Volume,
    /// Its path below the persist directory.
    pub path: &'a FilePath,
    /// What it was when the copy was planned.
    pub node: &'a Node,
}

impl<'a> Source<'a> {
    /// Opens the file; `Changed` if its name leads elsewhere by now.
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

    /// Step 4: whether what was read is still the file.
    fn confirm(&self, file: &OpenFile<'_>, summary: &Summary) -> Result<()> {
        let now = file.attributes()?;
        let same = now.version == summary.attributes.version
            && now.writers == 0
            && !now.unclean
            && summary.open_blocks == 0;
        match same && file.is_still_named() {
            true => Ok(()),
            false => Err(Error::Changed { path: self.path.clone() }),
        }
    }

    /// Says in the journal that `inode` of the persist directory becomes the file's copy now.
    fn announce(&self, journal: &Journal, copy: &Copy, inode: u64) -> Result<()> {
        let entry = Some(self.node.drained_entry(copy.clone()));
        journal.add(&Intent { path: self.path.clone(), entry, inode: Some(inode) })
    }
}

/// Copies a file and tells what the copy is.
/// Errors: `Changed` (try again after the next close), `Damaged`, those of the persist directory.
pub fn copy_file(
    destination: &Destination,
    journal: &Journal,
    source: Source<'_>,
    buffer: &mut Buffer,
    meter: &Meter,
) -> Result<Copy> {
    let file = source.open()?;
    let mut temporary = destination.create_temporary(source.path)?;
    let path = temporary.path().to_path_buf();
    let summary = read_whole(&file, buffer, &mut |Chunk { offset, bytes, is_hole }| {
        if meter.is_stopping() {
            return Err(Error::Stopped);
        }
        if !is_hole {
            temporary.file.write_all_at(bytes, offset).map_err(Error::file("write", &path))?;
        }
        meter.copied(bytes.len() as u64);
        Ok(())
    })?;
    let bytes = summary.attributes.size;
    temporary.file.set_len(bytes).map_err(Error::file("write", &path))?;
    let (mode, mtime_ns) = (summary.attributes.mode & 0o7777, summary.attributes.modified.0);
    let extended = source.volume.extended(&file.path, &summary.attributes)?;
    let extended = extended.carried(extended.is_empty() || extended.give(&temporary.file));
    temporary.finish(mode, Some(mtime_ns))?;
    compare(&mut temporary.file, &path, bytes, summary.crc32c)?;
    source.confirm(&file, &summary)?;
    let version = summary.attributes.version;
    let copy = Copy { bytes, crc32c: summary.crc32c, mode, mtime_ns, version, extended };
    source.announce(journal, &copy, temporary.inode()?)?;
    temporary.publish()?;
    mark_drained(&file, &summary);
    Ok(copy)
}

/// Whether `existing`, which an earlier store left in the persist directory, is a verified copy of
/// the file already.
pub fn adopt_file(
    destination: &Destination,
    journal: &Journal,
    source: Source<'_>,
    existing: &Copy,
    buffer: &mut Buffer,
) -> Result<Option<Copy>> {
    if existing.bytes != source.node.bytes {
        return Ok(None);
    }
    let file = source.open()?;
    let summary = read_whole(&file, buffer, &mut |_| Ok(()))?;
    let mut copy = destination.open_file(source.path)?;
    let path = destination.full_path(source.path);
    let same = summary.crc32c == existing.crc32c
        && compare(&mut copy, &path, existing.bytes, existing.crc32c).is_ok();
    if !same {
        return Ok(None);
    }
    let inode = copy.metadata().map_err(Error::file("look at", &path))?.ino();
    let (mode, mtime_ns) = (summary.attributes.mode & 0o7777, summary.attributes.modified.0);
    let version = summary.attributes.version;
    let adopted = Copy { mode, mtime_ns, version, ..existing.clone() };
    source.confirm(&file, &summary)?;
    source.announce(journal, &adopted, inode)?;
    let extended = source.volume.extended(&file.path, &summary.attributes)?;
    let kept = destination.set_extended(source.path, &extended)?;
    destination.set_attributes(source.path, mode, mtime_ns)?;
    mark_drained(&file, &summary);
    Ok(Some(Copy { extended: extended.carried(kept), ..adopted }))
}

fn mark_drained(file: &OpenFile<'_>, summary: &Summary) {
    // What fails here is only the mark that `ls` shows; the manifest is what counts.
    let _ = file.volume.fs().mark_drained(file.inode, summary.attributes.version, now());
}

/// Reads a copy from its device, not from the page cache, and compares it.
fn compare(file: &mut File, path: &Path, bytes: u64, crc32c: u32) -> Result<()> {
    // Only advice: where it is not taken the comparison is still one of what other readers get.
    let _ = rustix::fs::fadvise(&*file, 0, None, Advice::DontNeed);
    let (found_bytes, found) = checksum_of(file, path, &mut |_| ())?;
    if found_bytes != bytes {
        let path = path.to_path_buf();
        return Err(Error::LengthDiffers { path, expected_bytes: bytes, found_bytes });
    }
    if found != crc32c {
        return Err(Error::CopyDiffers { path: path.to_path_buf(), expected: crc32c, found });
    }
    Ok(())
}

/// Length and CRC32C of a whole ordinary file; `progress` hears of every part read.
pub fn checksum_of(
    file: &mut File,
    path: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<(u64, u32)> {
    let failed = || Error::file("read back", path);
    file.rewind().map_err(failed())?;
    let mut buffer = vec![0; READ_BACK_BYTES];
    let (mut bytes, mut crc32c) = (0, 0);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok((bytes, crc32c)),
            Ok(length) => {
                crc32c = checksum::crc32c(crc32c, &buffer[..length]);
                bytes += length as u64;
                progress(length as u64);
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed()(error)),
        }
    }
}
