//! Writes whole files into the store, for `cp` and `restore`, or the data of an absent file.
//!
//! Must stay true: a file appears under its name only when it is whole. It is written under a
//! temporary name and renamed, or nobody can open it before. Programs of the job never see half of
//! it.
//!
//! Does not read what it copies.

use crate::store::extended;
use cairn_core::{
    Committed, HandleId, InodeId, OpenOptions, Position, ROOT, RenameMode, TimeUpdate, Timestamp,
};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::model::error::Result;
use crate::store::volume::{Volume, now};
use cairn_job::file::extended::Extended;
use cairn_job::file::path::FilePath;

/// Options for creating a file.
const CREATE: OpenOptions =
    OpenOptions { write: true, create: true, no_follow: true, ..OpenOptions::NONE };

/// Number of files that this process has begun.
static MADE: AtomicU64 = AtomicU64::new(0);

/// A file that is written from its beginning.
struct Writer<'a> {
    volume: &'a Volume,
    /// For messages.
    path: FilePath,
    handle: HandleId,
    bytes: u64,
    /// Whether it brings in the data of an absent file.
    brings: bool,
}

impl Writer<'_> {
    /// Appends `bytes`. False if the file was emptied since its data began to be brought in.
    fn append(&mut self, mut bytes: &[u8]) -> Result<bool> {
        let mut at = Position::At(self.bytes);
        while !bytes.is_empty() {
            let volume = self.volume;
            let (fs, caller) = (volume.fs(), volume.caller());
            let failed = || volume.error("write", &self.path);
            let plan = || fs.plan_write(&caller, self.handle, at, bytes.len() as u64);
            let (mut planned, mut has_packed) = (plan(), true);
            while has_packed && matches!(planned, Err(cairn_core::Error::NoSpace)) {
                has_packed = volume.pack();
                planned = plan();
            }
            let mut plan = planned.map_err(failed())?;
            if plan.brings() != self.brings {
                fs.abort_write(&caller, &plan).map_err(failed())?;
                return Ok(false);
            }
            if let Err(error) = volume.namespace().store(&mut plan, &mut { bytes }) {
                fs.abort_write(&caller, &plan).map_err(failed())?;
                return Err(failed()(error));
            }
            at = match fs.commit_write(&caller, &plan).map_err(failed())? {
                Committed::Replan => Position::Again(plan.offset),
                Committed::Done => {
                    bytes = &bytes[plan.length as usize..];
                    self.bytes += plan.length;
                    Position::At(self.bytes)
                }
            };
        }
        Ok(true)
    }

    fn release(&self) -> cairn_core::Result<()> {
        self.volume.fs().release(self.volume.slot(), self.handle, now())
    }
}

/// Marks a file as one that its last writer did not close in order.
pub fn mark_unclean(volume: &Volume, path: &FilePath) -> Result<()> {
    let failed = || volume.error("mark", path);
    let (fs, caller) = (volume.fs(), volume.caller());
    let options = OpenOptions { write: true, no_follow: true, ..OpenOptions::NONE };
    let opened = fs.open_file(&caller, ROOT, path.as_bytes(), options, 0).map_err(failed())?;
    let marked = fs.note_change(opened.handle).and_then(|()| fs.note_death(opened.handle));
    let released = fs.release(volume.slot(), opened.handle, now());
    marked.and(released).map_err(failed())
}

/// Writes `bytes` at `offset` of an existing file.
#[cfg(test)]
pub fn overwrite(volume: &Volume, path: &FilePath, offset: u64, bytes: &[u8]) -> Result<()> {
    let failed = || volume.error("write", path);
    let (fs, caller) = (volume.fs(), volume.caller_as_user());
    let options = OpenOptions { write: true, ..OpenOptions::NONE };
    let opened = fs.open_file(&caller, ROOT, path.as_bytes(), options, 0).map_err(failed())?;
    let (handle, path) = (opened.handle, path.clone());
    let mut writer = Writer { volume, path, handle, bytes: offset, brings: false };
    writer.append(bytes)?;
    writer.release().map_err(failed())
}

/// A file being written; removed unless it is finished.
pub struct NewFile<'a> {
    writer: Writer<'a>,
    temporary: FilePath,
    inode: InodeId,
    finished: bool,
}

impl<'a> NewFile<'a> {
    /// Creates the file under a temporary name; it gets the name `path` when it is finished.
    pub fn create(volume: &'a Volume, path: &FilePath) -> Result<NewFile<'a>> {
        let failed = || volume.error("create", path);
        let (parent, name) = path.split().ok_or(cairn_core::Error::IsDirectory).map_err(failed())?;
        let kept = &name[..name.len().min(200)];
        // Names of files that are written at the same time may have the same beginning.
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let suffix = format!(".cairn-{}-{number}", std::process::id());
        let temporary = parent.join(&[b".", kept, suffix.as_bytes()].concat());
        let options = OpenOptions { truncate: true, ..CREATE };
        let opened = volume.fs().open_file(
            &volume.caller_as_user(),
            ROOT,
            temporary.as_bytes(),
            options,
            0o600,
        );
        let opened = opened.map_err(failed())?;
        let (path, handle) = (path.clone(), opened.handle);
        let writer = Writer { volume, path, handle, bytes: 0, brings: false };
        Ok(NewFile { writer, temporary, inode: opened.inode, finished: false })
    }

    /// Appends `bytes`.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.append(bytes).map(drop)
    }

    /// Appends `length` zeros; whole hugeblocks of them take no space.
    pub fn append_hole(&mut self, length: u64) -> Result<()> {
        let block_bytes = self.writer.volume.hugeblock_bytes();
        let zeros = vec![0; block_bytes as usize];
        let begun = self.writer.bytes % block_bytes;
        let head = if begun == 0 { 0 } else { (block_bytes - begun).min(length) };
        self.append(&zeros[..head as usize])?;
        let whole = (length - head) / block_bytes * block_bytes;
        self.writer.bytes += whole;
        self.append(&zeros[..(length - head - whole) as usize])
    }

    /// Sets extended attributes, as far as there is room.
    pub fn set_extended(&self, extended: &Extended) -> Result<()> {
        let set = extended::put(extended, self.writer.volume, self.inode);
        set.map_err(self.writer.volume.error("set the attributes of", &self.writer.path))
    }

    /// Sets mode and modification time, and renames the file to its final name.
    pub fn finish(mut self, mode: u32, mtime_ns: i64) -> Result<()> {
        let (volume, path) = (self.writer.volume, &self.writer.path);
        let failed = || volume.error("finish", path);
        let (fs, caller) = (volume.fs(), volume.caller_as_user());
        if fs.attributes(self.inode).map_err(failed())?.size < self.writer.bytes {
            // The file ends with a hole.
            fs.truncate(&caller, self.inode, self.writer.bytes).map_err(failed())?;
        }
        fs.set_mode(&caller, self.inode, mode & 0o7777).map_err(failed())?;
        set_mtime(volume, self.inode, mtime_ns).map_err(failed())?;
        // Rename while open: the drain leaves open files alone, so it never sees the temporary
        // name.
        let (from, to) = (self.temporary.as_bytes(), path.as_bytes());
        fs.rename(&caller, (ROOT, from), (ROOT, to), RenameMode::Replace).map_err(failed())?;
        self.finished = true;
        self.writer.release().map_err(failed())?;
        crate::store::reaper::reclaim(volume, None)
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if !self.finished {
            let volume = self.writer.volume;
            let (fs, caller) = (volume.fs(), volume.caller_as_user());
            // If this fails, the handle is released with the slot, or the file stays under its
            // temporary name.
            let _ = fs.unlink(&caller, ROOT, self.temporary.as_bytes());
            let _ = self.writer.release();
        }
    }
}

/// What an absent file is a copy of.
#[derive(Clone, Copy, Debug)]
pub struct Original {
    /// Length.
    pub bytes: u64,
    /// CRC32C of the whole file.
    pub crc32c: u32,
    /// Permission bits.
    pub mode: u32,
    /// Modification time, nanoseconds since the epoch.
    pub mtime_ns: i64,
}

impl From<&cairn_job::outside::manifest::Copy> for Original {
    fn from(copy: &cairn_job::outside::manifest::Copy) -> Original {
        let cairn_job::outside::manifest::Copy { bytes, crc32c, mode, mtime_ns, .. } = *copy;
        Original { bytes, crc32c, mode, mtime_ns }
    }
}

/// Brings in the data of an absent file. They are useless unless it is finished.
pub struct AbsentFile<'a> {
    writer: Writer<'a>,
}

impl<'a> AbsentFile<'a> {
    /// Makes a file with the attributes of `original` and these extended attributes, whose data are
    /// absent. Precondition: nobody else uses the namespace yet.
    pub fn create(
        volume: &Volume,
        path: &FilePath,
        original: &Original,
        extended: &Extended,
    ) -> Result<()> {
        let failed = || volume.error("create", path);
        let (fs, caller) = (volume.fs(), volume.caller_as_user());
        let options = OpenOptions { exclusive: true, ..CREATE };
        let opened = fs.open_file(&caller, ROOT, path.as_bytes(), options, 0o600);
        let opened = opened.map_err(failed())?;
        let made = || {
            if original.bytes > 0 {
                fs.make_absent(&caller, opened.handle, original.bytes, original.crc32c)?;
            }
            extended::put(extended, volume, opened.inode)?;
            fs.set_mode(&caller, opened.inode, original.mode & 0o7777)?;
            set_mtime(volume, opened.inode, original.mtime_ns)
        };
        let made = made();
        fs.release(volume.slot(), opened.handle, now()).and(made).map_err(failed())
    }

    /// Begins to bring in the data of an absent file. Errors: `Store` with `NotFound` if it is not
    /// absent any more, with `Busy` if a process that died still counts as bringing it in.
    pub fn open(volume: &'a Volume, path: &FilePath, inode: InodeId) -> Result<AbsentFile<'a>> {
        let opened = volume.fs().open_absent(&volume.caller(), inode);
        let handle = opened.map_err(volume.error("bring", path))?;
        let path = path.clone();
        Ok(AbsentFile { writer: Writer { volume, path, handle, bytes: 0, brings: true } })
    }

    /// Whether its data are to have this length and checksum. They stay so while this exists,
    /// unless the file is emptied.
    pub fn is_of(&self, bytes: u64, crc32c: u32) -> bool {
        let Writer { volume, handle, .. } = &self.writer;
        let found = volume.fs().handle(*handle).and_then(|info| volume.fs().attributes(info.inode));
        let Ok(found) = found else { return false };
        found.size == bytes && found.absence.is_some_and(|absence| absence.crc32c == crc32c)
    }

    /// Number of bytes brought in.
    pub fn bytes(&self) -> u64 {
        self.writer.bytes
    }

    /// Brings in the next `bytes`, or as many as fit. False if the file was emptied meanwhile.
    pub fn append(&mut self, bytes: &[u8]) -> Result<bool> {
        self.writer.append(bytes)
    }

    /// Ends the absence after all data were brought in and verified. False if the file was emptied
    /// meanwhile.
    pub fn finish(self) -> Result<bool> {
        let Writer { volume, path, handle, .. } = &self.writer;
        let ended = volume.fs().end_absence(&volume.caller(), *handle);
        ended.map_err(volume.error("bring", path))
    }
}

impl Drop for AbsentFile<'_> {
    fn drop(&mut self) {
        // If this fails, the handle is released with the slot.
        let _ = self.writer.release();
    }
}

/// Sets the modification time of an inode.
pub fn set_mtime(volume: &Volume, inode: InodeId, mtime_ns: i64) -> cairn_core::Result<()> {
    let time = TimeUpdate::At(Timestamp(mtime_ns));
    volume.fs().set_times(&volume.caller(), inode, TimeUpdate::Omit, time)
}
