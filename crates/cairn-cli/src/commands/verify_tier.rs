//! `cairn verify` of durable tiers that no store uses: compares every block of every file with its
//! checksum.
//!
//! Must stay true: the tier is not written to. After a block that differs or cannot be read, the
//! comparison continues with the rest of the file.

use cairn_core::{
    Attributes, Caller, InodeId, Media, Microfs, OpenOptions, Position, ROOT, Superblock, inspect,
};
use cairn_device::MediaFile;
use cairn_device::media::label;
use cairn_device::media::media_file::Access;
use cairn_job::file::path::FilePath;
use cairn_platform::checksum::crc32c;
use std::borrow::Cow;
use std::collections::HashSet;
use std::path::Path;

use crate::Context;
use crate::commands::verify_report::{Damaged, VerifyReport};
use crate::error::{Error, Result, TierError};
use crate::output::progress::Progress;
use crate::store::offline::{self, TierFile};

/// Number of bytes per read, unless a hugeblock is larger.
const CHUNK_BYTES: u64 = 4 << 20;

/// Tiers that are being read.
struct Tiers {
    /// Files by tier number; None for a tier in memory, whose content is gone.
    files: Vec<Option<MediaFile>>,
    superblock: Superblock,
    fs: Microfs,
    caller: Caller,
    chunk: Vec<u8>,
    checksums: Vec<Option<u32>>,
}

/// A contiguous part of a file on a tier. Each end is at a block boundary or at the end of the
/// file.
struct Piece<'a> {
    path: &'a FilePath,
    inode: InodeId,
    /// Offset in the file, in bytes.
    offset: u64,
    tier: u8,
    /// Offset in the tier, in bytes.
    place: u64,
    bytes: u64,
}

/// Compares every file of the store whose metadata are in the file at `path`, and whose other tier
/// files are `further`. Errors: a file is not such a tier, is in use, or has damaged metadata; a
/// further file is missing, or one does not belong to the store.
pub fn verify(context: &Context, path: &Path, further: &[String]) -> Result<VerifyReport> {
    let damaged = offline::unusable(path);
    let mut tiers = Tiers::open(path, further)?;
    let files = offline::tree(&tiers.fs).map_err(damaged)?;
    let files: Vec<_> = files.into_iter().filter(|(_, found)| found.is_regular()).collect();
    let total = files.iter().map(|(_, found)| found.size).sum();
    let mut progress = Progress::new("verifying", total, context.json);
    let mut report = VerifyReport::default();
    let mut seen = HashSet::new();
    for (path, attributes) in &files {
        report.files += 1;
        report.bytes += attributes.size;
        if attributes.absence.is_some() {
            report.absent_files += 1;
            progress.advance(attributes.size);
            continue;
        }
        // Another name of a file that was already read.
        if attributes.links > 1 && !seen.insert(attributes.inode) {
            progress.advance(attributes.size);
            continue;
        }
        if attributes.lost {
            let path = offline::shown(&tiers.superblock, path);
            let reason = "a part of it was in memory only, and is lost".to_string();
            report.damaged.push(Damaged { path, reason });
            progress.advance(attributes.size);
            continue;
        }
        tiers.verify_file(path, attributes, &mut report, &mut progress)?;
    }
    Ok(report)
}

/// Opens the further tiers among `paths`, in the order of the superblock. `first` is the path of
/// the first tier.
fn open_further(
    first: &Path,
    superblock: &Superblock,
    paths: &[String],
) -> Result<Vec<Option<MediaFile>>> {
    let refused = |path: &Path, problem: &str, advice| {
        Error::Tier(TierError::TierFile {
            path: path.to_path_buf(),
            problem: problem.to_string(),
            advice: Cow::Borrowed(advice),
        })
    };
    let mut files: Vec<Option<MediaFile>> = superblock.further.iter().map(|_| None).collect();
    for path in paths.iter().map(|text| offline::path_of(text)) {
        let TierFile { file, .. } = offline::open(&path, Access::Read)?;
        let identity = Some(label::words(file.identity()));
        let found = superblock.further.iter().position(|further| *further == identity);
        let Some(tier) = found.filter(|&tier| files[tier].is_none()) else {
            let problem = format!("has no metadata in {}", first.display());
            return Err(refused(&path, &problem, "name the files of one store"));
        };
        files[tier] = Some(file);
    }
    let mut missing = superblock.further.iter().zip(&files);
    match missing.any(|(identity, file)| identity.is_some() && file.is_none()) {
        true => Err(refused(first, "has metadata of another file", "name that, too, with --tier")),
        false => Ok(files),
    }
}

impl Tiers {
    fn open(path: &Path, further: &[String]) -> Result<Tiers> {
        let damaged = offline::unusable(path);
        let TierFile { file, label_is_damaged } = offline::open(path, Access::Read)?;
        if label_is_damaged {
            return Err(damaged(cairn_core::Error::Corrupt { what: "label" }));
        }
        let superblock = Superblock::read(&file, crc32c).map_err(damaged)?;
        if inspect(&file, crc32c).map_err(damaged)?.is_some_and(|found| found.has_lost_writes()) {
            return Err(damaged(cairn_core::Error::Corrupt { what: "log or snapshot" }));
        }
        let mut files = open_further(path, &superblock, further)?;
        let (fs, _) = offline::rebuild(&file, &superblock).map_err(damaged)?;
        fs.check().map_err(damaged)?;
        let identity = cairn_platform::process::identity()
            .map_err(|errno| std::io::Error::from_raw_os_error(errno.0))
            .map_err(Error::file("read", Path::new("/proc/self/stat")))?;
        let caller = offline::caller(fs.attach_service(identity).map_err(damaged)?.slot);
        let block_bytes = u64::from(superblock.geometry.hugeblock_bytes);
        let chunk = vec![0; CHUNK_BYTES.max(block_bytes) as usize];
        let checksums = vec![None; chunk.len() / block_bytes as usize];
        files.insert(0, Some(file));
        Ok(Tiers { files, superblock, fs, caller, chunk, checksums })
    }

    /// Reads a file and reports each damaged block.
    fn verify_file(
        &mut self,
        path: &FilePath,
        attributes: &Attributes,
        report: &mut VerifyReport,
        progress: &mut Progress,
    ) -> Result<()> {
        let failed = |source| cairn_agent::Error::store("read", path)(source);
        let options = OpenOptions { read: true, no_follow: true, ..OpenOptions::default() };
        let opened = self.fs.open_file(&self.caller, ROOT, path.as_bytes(), options, 0);
        let handle = opened.map_err(failed)?.handle;
        let mut offset = 0;
        while offset < attributes.size {
            let wanted = (attributes.size - offset).min(self.chunk.len() as u64);
            let plan = self.fs.plan_read(&self.caller, handle, Position::At(offset), wanted);
            let plan = plan.map_err(failed)?;
            let mut at = offset;
            for run in plan.runs() {
                if let Some((tier, place)) = run.source {
                    let start = if tier == 0 { self.superblock.data_offset } else { 0 };
                    let (inode, place) = (attributes.inode, start + place);
                    let piece = Piece { path, inode, offset: at, tier, place, bytes: run.bytes };
                    self.verify_piece(&piece, report).map_err(failed)?;
                }
                at += run.bytes;
            }
            if at == offset {
                return Err(failed(cairn_core::Error::Corrupt { what: "end of a file" }).into());
            }
            progress.advance(at - offset);
            offset = at;
        }
        let released = self.fs.release(self.caller.slot, handle, self.caller.now);
        released.map(drop).map_err(|source| failed(source).into())
    }

    fn verify_piece(
        &mut self,
        piece: &Piece<'_>,
        report: &mut VerifyReport,
    ) -> cairn_core::Result<()> {
        let block_bytes = u64::from(self.superblock.geometry.hugeblock_bytes);
        let blocks = piece.bytes.div_ceil(block_bytes);
        let first = (piece.offset / block_bytes) as u32;
        let checksums = &mut self.checksums[..blocks as usize];
        self.fs.checksums(piece.inode, first, checksums)?;
        let chunk = &mut self.chunk[..(blocks * block_bytes) as usize];
        let missing = cairn_core::Error::Corrupt { what: "tier of a block" };
        let file =
            self.files.get(usize::from(piece.tier)).and_then(Option::as_ref).ok_or(missing)?;
        // If this fails, single blocks may still be readable.
        let is_read = file.read(piece.place, chunk).is_ok();
        let parts = chunk.chunks_exact_mut(block_bytes as usize).zip(checksums);
        for (index, (block, stored)) in (0..).zip(parts) {
            let Some(stored) = *stored else {
                report.open_blocks += 1;
                continue;
            };
            let start = index * block_bytes;
            let read = if is_read { Ok(()) } else { file.read(piece.place + start, block) };
            // Bytes after the end of the file count as zeros.
            block[block_bytes.min(piece.bytes - start) as usize..].fill(0);
            let found = read.map(|()| crc32c(0, block));
            report.checked_blocks += 1;
            let offset = piece.offset + start;
            let reason = match found {
                Ok(found) if found == stored => continue,
                Ok(found) => {
                    format!("offset {offset}: its checksum is {found:08x} instead of {stored:08x}")
                }
                Err(error) => format!("offset {offset}: {error}"),
            };
            let path = offline::shown(&self.superblock, piece.path);
            report.damaged.push(Damaged { path, reason });
        }
        Ok(())
    }
}
