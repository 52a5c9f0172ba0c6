//! Sends one checkpoint from the store to the archive.
//!
//! The steps, in the order that makes the archive trustworthy:
//! 1. Each file is read once to compute its checksum, and every block is verified. An object with
//!    the same name, length and checksum stays.
//! 2. The file is sent. The server compares its bytes, or they are read back. Parts that the server
//!    has from a killed agent, or from before an outage, are compared with the file and not sent
//!    again.
//! 3. Just before an object replaces another one, the manifest objects of the checkpoints that
//!    contain the old one are removed.
//! 4. When all files are there, the checkpoint's manifest object is written.
//!
//! Must stay true: a file of another version than the checkpoint's is never sent under its name. At
//! most one part of a file is in memory. Each part is admitted by the rate limit, as in the drain.

use cairn_core::InodeId;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::begun::{Begun, Notes};
use super::client::{Client, Content, Listed, Part};
use super::manifest::{FORMAT, File, MARK, Manifest, STEM};
use crate::drain::meter::Meter;
use crate::drain::pace::PacedWork;
use crate::model::error::{Error, Refusal, Result};
use crate::model::job::Job;
use crate::store::read::{Buffer, Chunk, Summary, read_whole};
use crate::store::volume::{OpenFile, Volume};
use cairn_job::checkpoint::sets::{Member, register};
use cairn_job::file::path::FilePath;
use cairn_job::outside::manifest::{CheckpointFile, order};

/// Minimum size of a part; larger if there would be too many parts. Smaller files are sent whole.
const PART_BYTES_MIN: u64 = 8 << 20;
/// Longest object name that S3 allows, bytes.
const KEY_BYTES_MAX: usize = 1024;
/// Maximum number of parts of an object.
const PARTS_MAX: u64 = 10_000;

/// A multipart upload that is not complete.
struct Unfinished {
    /// Upload id at the server.
    upload: String,
    /// Parts that the server has, by number.
    parts: BTreeMap<u16, Listed>,
}

/// Sends checkpoints of one store.
pub struct Uploader<'a> {
    /// Connection to the archive.
    pub client: &'a Client<'a>,
    /// Job of the store.
    pub job: &'a Job,
    /// Namespaces of the store.
    pub volumes: &'a [Arc<Volume>],
    /// Manifests known to be in the archive.
    pub archived: &'a mut Vec<Manifest>,
    /// Notes of unfinished uploads.
    pub begun: &'a Notes,
    /// Read buffer.
    pub buffer: &'a mut Buffer,
    /// Meter with the rate limit.
    pub meter: &'a Meter,
    /// Called with the number of bytes that need no more sending. Returns false if the agent ends.
    pub progress: &'a (dyn Fn(u64) -> bool + Sync),
}

impl Uploader<'_> {
    /// Sends `known`. Errors: those of the server; `Changed` or `Damaged` files; `Stopped`.
    pub fn send(&mut self, known: &register::Checkpoint) -> Result<()> {
        let files = known.files.iter().map(|member| self.send_file(member));
        let files = files.collect::<Result<Vec<File>>>()?;
        let others = self.archived.iter().map(|other| (&other.store[..], other.id, other.order));
        let manifest = Manifest {
            order: order::place(&self.job.store, known.id, others),
            format: FORMAT,
            job: self.job.job.clone(),
            store: self.job.store.clone(),
            mount: self.job.mount.clone(),
            id: known.id,
            name: known.name.clone(),
            modified_ns: known.modified_ns,
            files,
        };
        let key = self.client.location().key(&self.job.job, &manifest.object());
        let mut text = serde_json::to_vec_pretty(&manifest)
            .map_err(|source| Error::Json { path: key.clone().into(), source })?;
        text.push(b'\n');
        PacedWork::beside(self.meter).admit(text.len() as u64)?;
        self.client.put_small(&key, &text)?;
        self.archived.push(manifest);
        Ok(())
    }

    fn send_file(&mut self, member: &Member) -> Result<File> {
        let key = self.key(&member.path)?;
        let mut lap = PacedWork::beside(self.meter);
        let Summary { attributes, crc32c, .. } = self.read(member, &mut |_| lap.admit(0))?;
        drop(lap);
        let (path, bytes) = (member.path.clone(), member.bytes);
        let content = CheckpointFile { path, bytes, crc32c };
        if !self.is_there(&key, &content)? {
            let was_compared = match member.bytes > PART_BYTES_MIN {
                true => self.send_parts(&key, member, crc32c)?,
                false => self.send_whole(&key, member, crc32c)?,
            };
            if !was_compared {
                self.client.compare(&key, Content { bytes, crc32c })?;
            }
        }
        let (mode, modified_ns) = (attributes.mode & 0o7777, attributes.modified.0);
        match (self.progress)(bytes) {
            true => Ok(File { content, mode, modified_ns }),
            false => Err(Error::Stopped),
        }
    }

    /// Whether the archive already has the file, verified.
    fn is_there(&self, key: &str, file: &CheckpointFile) -> Result<bool> {
        let Some(found) = self.client.look(key)? else { return Ok(false) };
        let CheckpointFile { bytes, crc32c, .. } = *file;
        if (found.bytes, found.crc32c) != (bytes, Some(crc32c)) {
            return Ok(false);
        }
        // An object that cannot be read back is no error here: it is sent again.
        let is_whole = || self.client.compare(key, Content { bytes, crc32c }).is_ok();
        Ok(found.was_compared || is_whole())
    }

    /// Removes the manifest objects of checkpoints that contain another file of this name.
    fn supersede(&mut self, path: &FilePath) -> Result<()> {
        let is_stale = |there: &Manifest| there.file(path).is_some();
        while let Some(index) = self.archived.iter().position(is_stale) {
            let name = self.archived[index].object();
            self.client.remove(&self.client.location().key(&self.job.job, &name))?;
            self.archived.remove(index);
        }
        Ok(())
    }

    fn send_whole(&mut self, key: &str, member: &Member, crc32c: u32) -> Result<bool> {
        let mut whole = Vec::with_capacity(member.bytes as usize);
        let summary = self.read(member, &mut |chunk| {
            whole.extend_from_slice(chunk.bytes());
            Ok(())
        })?;
        same(member, &summary, crc32c)?;
        PacedWork::beside(self.meter).admit(member.bytes)?;
        self.supersede(&member.path)?;
        self.client.put(key, &whole, crc32c)
    }

    fn send_parts(&mut self, key: &str, member: &Member, crc32c: u32) -> Result<bool> {
        let client = self.client;
        let content = Content { bytes: member.bytes, crc32c };
        let unfinished = match self.resume(key, content)? {
            Some(unfinished) => unfinished,
            None => self.begin(key, content)?,
        };
        let upload = &unfinished.upload;
        let result = self.send_missing(key, &unfinished, member, crc32c).and_then(|parts| {
            self.supersede(&member.path)?;
            client.complete(key, upload, &parts)?;
            Ok(parts.iter().all(Part::was_compared))
        });
        match &result {
            Ok(_) => self.begun.forget(&client.address(key)),
            Err(error) if error.ends_upload() => self.give_up(key, upload),
            Err(_) => {}
        }
        result
    }

    /// Returns the unfinished upload of this object if it can be resumed. An upload of another
    /// content is aborted, because its metadata state the wrong checksum.
    fn resume(&self, key: &str, content: Content) -> Result<Option<Unfinished>> {
        let Some(begun) = self.begun.find(&self.client.address(key)) else { return Ok(None) };
        let parts = match begun.content == content {
            true => self.client.parts(key, &begun.upload)?,
            false => None,
        };
        if let Some(parts) = parts {
            return Ok(Some(Unfinished { upload: begun.upload, parts }));
        }
        self.give_up(key, &begun.upload);
        Ok(None)
    }

    fn begin(&self, key: &str, content: Content) -> Result<Unfinished> {
        let client = self.client;
        let mark = client.location().key(&self.job.job, MARK);
        if client.look(&mark)?.is_none() {
            // Without the mark, an agent of a job with a shorter prefix could abort this upload.
            PacedWork::beside(self.meter).admit(self.job.job.len() as u64)?;
            client.put_small(&mark, self.job.job.as_bytes())?;
        }
        let upload = client.begin(key, content.crc32c)?;
        self.begun.note(&client.address(key), Begun { upload: upload.clone(), content });
        Ok(Unfinished { upload, parts: BTreeMap::new() })
    }

    fn give_up(&self, key: &str, upload: &str) {
        self.begun.forget(&self.client.address(key));
        // If this fails, the sweep of unfinished uploads tries again.
        let _ = self.client.abort(key, upload);
    }

    /// Sends the parts that are missing. Returns all parts.
    fn send_missing(
        &mut self,
        key: &str,
        unfinished: &Unfinished,
        member: &Member,
        crc32c: u32,
    ) -> Result<Vec<Part>> {
        let (client, progress) = (self.client, self.progress);
        let mut lap = PacedWork::beside(self.meter);
        let part_bytes = part_bytes(member.bytes) as usize;
        let (mut parts, mut pending) = (Vec::<Part>::new(), Vec::with_capacity(part_bytes));
        let mut send = |bytes: &[u8]| -> Result<()> {
            let number = parts.len() as u16 + 1;
            let there = unfinished.parts.get(&number).and_then(|listed| listed.of(bytes));
            parts.push(match there {
                Some(part) => part,
                None => {
                    lap.admit(bytes.len() as u64)?;
                    client.put_part(key, &unfinished.upload, number, bytes)?
                }
            });
            Ok(())
        };
        let summary = self.read(member, &mut |chunk| {
            let mut rest = chunk.bytes();
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(part_bytes - pending.len()));
                pending.extend_from_slice(now);
                rest = later;
                if pending.len() == part_bytes {
                    send(&pending)?;
                    pending.clear();
                }
            }
            // No bytes count as sent before the whole object is there.
            if progress(0) { Ok(()) } else { Err(Error::Stopped) }
        })?;
        same(member, &summary, crc32c)?;
        if !pending.is_empty() {
            send(&pending)?;
        }
        Ok(parts)
    }

    /// Reads and verifies a file of the checkpoint. Errors: `Changed` if it is another version.
    fn read(
        &mut self,
        member: &Member,
        consume: &mut dyn FnMut(Chunk<'_>) -> Result<()>,
    ) -> Result<Summary> {
        let file = open(self.volumes, member)?;
        let summary = read_whole(&file, self.buffer, consume)?;
        let found = (summary.attributes.version, summary.attributes.size, summary.open_blocks);
        match found == (member.version, member.bytes, 0) {
            true => Ok(summary),
            false => Err(Error::Changed { path: member.path.clone() }),
        }
    }

    /// Returns the name of a file's object.
    fn key(&self, path: &FilePath) -> Result<String> {
        let refused = |problem: &str| Error::Object {
            action: "name",
            object: path.to_string(),
            problem: problem.to_string(),
            refusal: Refusal::OfObject,
        };
        let name = std::str::from_utf8(path.as_bytes())
            .map_err(|_| refused("names of objects are UTF-8, and this one is not"))?;
        let key = self.client.location().key(&self.job.job, name);
        match name.starts_with(STEM) || name == MARK {
            true => Err(refused("Cairn reserves the name for its own objects; rename it")),
            false if key.len() > KEY_BYTES_MAX => {
                Err(refused("names of objects have at most 1024 bytes, and this one has more"))
            }
            false => Ok(key),
        }
    }
}

fn open<'a>(volumes: &'a [Arc<Volume>], member: &Member) -> Result<OpenFile<'a>> {
    let changed = || Error::Changed { path: member.path.clone() };
    let place =
        |volume: &'a Arc<Volume>| Some((volume, member.path.strip_prefix(volume.prefix())?));
    let (volume, inner) = volumes.iter().find_map(place).ok_or_else(changed)?;
    match volume.open_file(&inner) {
        Ok(file) if file.inode == InodeId(member.inode) => Ok(file),
        Ok(_) | Err(Error::Store { source: cairn_core::Error::NotFound, .. }) => Err(changed()),
        Err(error) => Err(error),
    }
}

/// Checks that the second read gave the same content as the first. Errors: `Changed`.
fn same(member: &Member, summary: &Summary, crc32c: u32) -> Result<()> {
    match summary.crc32c == crc32c {
        true => Ok(()),
        false => Err(Error::Changed { path: member.path.clone() }),
    }
}

/// Returns the part size for an object of `bytes`.
fn part_bytes(bytes: u64) -> u64 {
    bytes.div_ceil(PARTS_MAX).max(PART_BYTES_MIN)
}

#[cfg(test)]
mod tests;
