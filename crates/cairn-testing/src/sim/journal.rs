//! A file that all programs append to at the same time.
//!
//! Must stay true after every failure: an append whose durability was promised, by a sync of any
//! program that began after it, is at the offset that the append returned. Appends that returned
//! never overlap.

use cairn_core::{Durability, Error, HandleId, OpenOptions, Position, ROOT, Result};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::scheduler::{draw, pause, tell};
use crate::driver::Process;
use crate::random::Random;

/// Name of the file.
const NAME: &[u8] = b"journal";
/// Longest record, in bytes.
const RECORD_BYTES_MAX: u64 = 9000;
/// Options with which the programs open it.
const OPTIONS: OpenOptions = OpenOptions {
    read: true,
    write: true,
    append: true,
    create: true,
    exclusive: false,
    truncate: false,
    directory: false,
    no_follow: true,
    path_only: false,
    ..OpenOptions::NONE
};
/// Time between two attempts while other writers are in the way, in nanoseconds.
const RETRY_AFTER: u64 = 20_000;

/// An append that returned.
struct Record {
    offset: u64,
    bytes: Vec<u8>,
    is_durable: bool,
}

/// Records that were promised to be in the file.
#[derive(Default)]
pub(super) struct Journal(Mutex<Vec<Record>>);

impl Journal {
    fn records(&self) -> MutexGuard<'_, Vec<Record>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the file, and creates it if there is none.
    pub fn open(process: &Process) -> Result<HandleId> {
        let opened = process.fs.open_file(&process.caller(), ROOT, NAME, OPTIONS, 0o644)?;
        Ok(opened.handle)
    }

    /// Appends a record, and perhaps makes it durable.
    pub fn append(&self, process: &Process, handle: HandleId) -> Result<()> {
        let length = draw(RECORD_BYTES_MAX) as usize + 1;
        let bytes = Random::new(draw(u64::MAX)).bytes(length);
        let (offset, count) = loop {
            match write(process, handle, &bytes) {
                Err(Error::Busy) => pause(RETRY_AFTER),
                result => break result?,
            }
        };
        let is_durable = process.fs.geometry().durability == Some(Durability::Operation);
        tell(format_args!("appended {count} bytes to the journal at {offset}"));
        let bytes = bytes[..count as usize].to_vec();
        self.add(Record { offset, bytes, is_durable });
        if draw(2) == 0 { self.sync(process) } else { Ok(()) }
    }

    fn add(&self, record: Record) {
        let mut records = self.records();
        let end = record.offset + record.bytes.len() as u64;
        let overlaps = |other: &&Record| {
            other.offset < end && record.offset < other.offset + other.bytes.len() as u64
        };
        if let Some(other) = records.iter().find(overlaps) {
            panic!("appends at {} and {} overlap", other.offset, record.offset);
        }
        records.push(record);
    }

    fn sync(&self, process: &Process) -> Result<()> {
        let before = self.records().len();
        process.fs.sync()?;
        self.records()[..before].iter_mut().for_each(|record| record.is_durable = true);
        tell(format_args!("synced {before} records of the journal"));
        Ok(())
    }

    /// Checks after a recovery that the durable records are there. Keeps the others that are there;
    /// they are durable from then on.
    pub fn check_recovered(&self, process: &Process) -> Result<()> {
        let content = read(process)?;
        self.records().retain_mut(|record| {
            let found = content.get(record.offset as usize..).unwrap_or(&[]);
            let is_there = found.starts_with(&record.bytes);
            let (start, length) = (record.offset, record.bytes.len());
            assert!(is_there || !record.is_durable, "lost of the journal: {length} at {start}");
            record.is_durable = true;
            is_there
        });
        Ok(())
    }

    /// Checks, while nobody appends, that every record is there.
    pub fn check_quiet(&self, process: &Process) -> Result<()> {
        self.sync(process)?;
        self.check_recovered(process)
    }
}

/// Appends as much of `bytes` as stays together. Returns the offset and the number of bytes.
fn write(process: &Process, handle: HandleId, bytes: &[u8]) -> Result<(u64, u64)> {
    let (caller, at) = (process.caller(), Position::Cursor);
    if process.write_small(&caller, handle, at, bytes)?.is_some() {
        // Others may have appended since, but not through this handle.
        let length = bytes.len() as u64;
        return Ok((process.fs.handle(handle)?.cursor - length, length));
    }
    let write = process.begin_write(&caller, handle, at, bytes)?;
    process.finish_write(&caller, handle, write)
}

fn read(process: &Process) -> Result<Vec<u8>> {
    let handle = Journal::open(process)?;
    let inode = process.fs.handle(handle)?.inode;
    let size = process.fs.attributes(inode)?.size;
    process.verify_blocks(inode, handle)?;
    let (_, content) = process.read(&process.caller(), handle, Position::At(0), size)?;
    process.close(handle)?;
    Ok(content)
}
