//! Copies whole files between a store and ordinary directories, for `cp` and `restore`.
//!
//! Must stay true: on either side a file appears under its name only when it is complete, unless a
//! symbolic link leads to it. Data that leave the store are compared with their checksums. So are
//! data that enter it, if a manifest describes them.

use cairn_agent::persist::destination::Destination;
use cairn_agent::store::extended;
use cairn_agent::store::read::{Buffer, read_whole};
use cairn_agent::store::volume::Volume;
use cairn_agent::store::write::{NewFile, set_mtime};
use cairn_core::{ROOT, Timestamp};
use cairn_job::file::extended::Extended;
use cairn_job::file::path::FilePath;
use cairn_platform::checksum;
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::error::{Error, Result};
use crate::output::progress::Progress;

/// Maximum and minimum number of bytes per read of a local file.
const READ_BYTES: usize = 4 << 20;
const READ_BYTES_MIN: usize = 64 << 10;

/// Copies a regular file out of the store to `target` below `destination`. If its data are still
/// elsewhere, waits until they are in the store.
pub fn copy_out(
    volume: &Volume,
    inner: &FilePath,
    destination: &Destination,
    target: &FilePath,
    progress: &mut Progress,
) -> Result<()> {
    let file = volume.open_present(inner)?;
    // Read before the copy: afterwards the file may be gone and its inode number reused.
    let extended = volume.extended(inner, &file.attributes()?)?;
    let temporary = destination.create_temporary(target)?;
    let path = temporary.path().to_path_buf();
    let mut buffer = Buffer::default();
    let summary = read_whole(&file, &mut buffer, &mut |chunk| {
        progress.advance(chunk.length as u64);
        match chunk.is_hole {
            true => Ok(()),
            false => {
                let written = temporary.file.write_all_at(chunk.bytes(), chunk.offset);
                written.map_err(cairn_agent::Error::file("write", &path))
            }
        }
    })?;
    let attributes = summary.attributes;
    temporary.file.set_len(attributes.size).map_err(Error::file("write", &path))?;
    extended::give(&extended, &temporary.file);
    temporary.finish(attributes.mode, Some(attributes.modified.0))?;
    temporary.keep();
    destination.publish(target)?;
    destination.remove_empty_shelves();
    Ok(())
}

/// Writes a regular file of the store into an existing `path` that is not a regular file: a device,
/// a FIFO, or the target of a symbolic link.
pub fn write_out(
    volume: &Volume,
    inner: &FilePath,
    path: &Path,
    progress: &mut Progress,
) -> Result<()> {
    let file = volume.open_present(inner)?;
    let target = File::options().write(true).truncate(true).open(path);
    let mut target = target.map_err(Error::file("open", path))?;
    read_whole(&file, &mut Buffer::default(), &mut |chunk| {
        progress.advance(chunk.length as u64);
        let written = match chunk.is_hole {
            true => io::copy(&mut io::repeat(0).take(chunk.length as u64), &mut target).map(drop),
            false => target.write_all(chunk.bytes()),
        };
        written.map_err(cairn_agent::Error::file("write", path))
    })?;
    Ok(())
}

/// Expected content of a local file.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Length in bytes.
    pub bytes: u64,
    /// CRC32C of the data.
    pub crc32c: u32,
}

/// Copies a local file into the store with its attributes, or with those of `like`. Returns the
/// CRC32C of its data; None, and leaves no file, if its content is not the expected one. `advance`
/// is called with the number of bytes of each part; its error ends the copy.
pub fn copy_in(
    (mut source, source_path): (File, &Path),
    like: Option<&File>,
    (volume, inner): (&Volume, &FilePath),
    expected: Option<Expected>,
    advance: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Option<u32>> {
    let metadata = source.metadata().map_err(Error::file("look at", source_path))?;
    let mut target = NewFile::create(volume, inner)?;
    // Small files are many, and to clear a large buffer takes longer than to copy one.
    let expected_bytes = usize::try_from(metadata.len()).unwrap_or(READ_BYTES);
    let mut buffer = vec![0; expected_bytes.clamp(READ_BYTES_MIN, READ_BYTES)];
    let (mut bytes, mut crc32c) = (0, 0);
    let mut data_end = 0;
    loop {
        if bytes == data_end {
            let (hole, end) = next_data(&source, bytes, metadata.len());
            if hole > 0 {
                target.append_hole(hole)?;
                crc32c = checksum::combine(crc32c, checksum::zeros(hole), hole);
                bytes += hole;
                advance(hole)?;
            }
            data_end = end;
        }
        // After the known end, reads on, because the file may have grown.
        let most = usize::try_from(data_end.saturating_sub(bytes)).unwrap_or(READ_BYTES);
        let most = if most == 0 { buffer.len() } else { most.min(buffer.len()) };
        let length = source.read(&mut buffer[..most]).map_err(Error::file("read", source_path))?;
        if length == 0 {
            break;
        }
        target.append(&buffer[..length])?;
        crc32c = checksum::crc32c(crc32c, &buffer[..length]);
        bytes += length as u64;
        advance(length as u64)?;
    }
    if expected.is_some_and(|expected| (expected.bytes, expected.crc32c) != (bytes, crc32c)) {
        return Ok(None);
    }
    let like = like.unwrap_or(&source);
    let metadata = like.metadata().map_err(Error::file("look at", source_path))?;
    target.set_extended(&extended::read(like))?;
    target.finish(metadata.mode(), mtime_ns(&metadata))?;
    Ok(Some(crc32c))
}

/// Returns the length of the hole at `offset` of a local file of `bytes` bytes, and the end of the
/// data after it. Moves the file offset to the start of those data. Without support from the file
/// system there are no holes.
fn next_data(file: &File, offset: u64, bytes: u64) -> (u64, u64) {
    use rustix::fs::SeekFrom;
    let begin = match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Ok(begin) => begin.clamp(offset, bytes.max(offset)),
        Err(rustix::io::Errno::NXIO) => bytes.max(offset),
        Err(_) => offset,
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(begin)).unwrap_or(bytes).max(begin);
    // If this fails, the next read fails too.
    let _ = rustix::fs::seek(file, SeekFrom::Start(begin));
    (begin - offset, end)
}

/// Creates a directory in the store if it does not exist, and sets its extended attributes.
pub fn make_directory(
    volume: &Volume,
    inner: &FilePath,
    mode: u32,
    extended: &Extended,
) -> Result<()> {
    if inner.is_root() {
        return Ok(());
    }
    let caller = volume.caller_as_user();
    let made = volume.fs().make_directory(&caller, ROOT, inner.as_bytes(), mode & 0o7777);
    let inode = match made {
        Ok(inode) => inode,
        Err(cairn_core::Error::Exists) if volume.attributes(inner)?.is_directory() => {
            volume.attributes(inner)?.inode
        }
        Err(error) => return Err(volume.error("make the directory", inner)(error).into()),
    };
    let given = extended::put(extended, volume, inode);
    Ok(given.map_err(volume.error("set the attributes of", inner))?)
}

/// Creates a symbolic link in the store; replaces an existing link.
pub fn make_symlink(volume: &Volume, inner: &FilePath, target: &[u8], mtime_ns: i64) -> Result<()> {
    let caller = volume.caller_as_user();
    let make = || volume.fs().symlink(&caller, target, ROOT, inner.as_bytes());
    let made = match make() {
        Err(cairn_core::Error::Exists) if volume.attributes(inner)?.is_symlink() => {
            let removed = volume.fs().unlink(&caller, ROOT, inner.as_bytes());
            removed.map_err(volume.error("replace", inner))?;
            make()
        }
        other => other,
    };
    made.map_err(volume.error("make the symbolic link", inner))?;
    let inode = volume.attributes(inner)?.inode;
    set_mtime(volume, inode, mtime_ns).map_err(volume.error("set the time of", inner))?;
    Ok(())
}

/// Returns the modification time of a local file, in nanoseconds since the epoch.
pub fn mtime_ns(metadata: &Metadata) -> i64 {
    Timestamp::from_parts(metadata.mtime(), metadata.mtime_nsec()).0
}
