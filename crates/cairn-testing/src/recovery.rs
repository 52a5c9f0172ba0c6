//! Recovery of media with arbitrary content, and use of the recovered namespace.
//!
//! Invariant: whatever is on the media, every call returns. What recovery accepts is a namespace:
//! it passes its own check before and after use, and can be recovered again.

use crate::driver::Process;
use crate::durable;
use crate::faulty::{ByteMedia, Image};
use crate::tier::CHECKSUM;
use cairn_core::recover;
use cairn_core::{
    InodeId, MODE_DIRECTORY, MODE_REGULAR, MODE_TYPE, Media, Memory, OpenOptions, Position, ROOT,
    RenameMode, Result, Superblock, recover_read_only,
};
use cairn_device::Workspace;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Number of bytes read at the beginning and at the end of each file.
const READ_BYTES: u64 = 10_000;
/// Names that operations on the recovered namespace use.
const PATHS: [&[u8]; 6] = [b"a", b"b", b"d", b"d/a", b"d/e", b"s"];

/// An image that, like a real store, supplies memory to rebuild a namespace in.
pub struct Store(pub Image);

impl Media for Store {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.0.read(offset, target)
    }

    fn write(&self, offset: u64, source: &[u8]) -> Result<()> {
        self.0.write(offset, source)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn workspace(&self, words: usize) -> Result<Box<dyn Memory>> {
        Ok(Box::new(Workspace::new(words)?))
    }
}

impl ByteMedia for Store {
    fn read_bytes(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.0.read_bytes(offset, target)
    }

    fn write_bytes(&self, offset: u64, source: &[u8]) -> Result<()> {
        self.0.write_bytes(offset, source)
    }
}

fn workspace(superblock: &Superblock) -> Result<Arc<Workspace>> {
    let words = superblock.geometry.segment_bytes() as usize / 8;
    Ok(Arc::new(Workspace::new(words)?))
}

/// Recovers the image and uses the namespace. Errors: why recovery does not accept the image.
pub fn recover_and_use(image: Image) -> Result<()> {
    let media = Arc::new(Store(image));
    let superblock = Superblock::read(media.as_ref(), CHECKSUM)?;
    let seen = recover_read_only(media.as_ref(), &workspace(&superblock)?, CHECKSUM);
    let process = open(&media, &superblock)?;
    assert!(seen.is_ok(), "recovered, but not to look at: {seen:?}");
    process.fs.check().expect("what was recovered is consistent");
    visit(&process);
    change(&process);
    process.fs.check().expect("what was used is consistent");
    // A full log, or a snapshot without room, is no fault of the reader.
    let is_written = process.fs.sync().is_ok() && process.fs.write_snapshot().is_ok();
    drop(process);
    if is_written {
        let again = open(&media, &superblock).expect("what was used can be recovered");
        again.fs.check().expect("what was recovered again is consistent");
    }
    Ok(())
}

/// Recovers the namespace from the media and attaches a process to it.
pub fn open(media: &Arc<Store>, superblock: &Superblock) -> Result<Process> {
    let memory = workspace(superblock)?;
    recover(media.as_ref(), &memory, CHECKSUM)?;
    Ok(durable::attach(memory, media.clone(), superblock, 1)
        .expect("what was recovered can be opened"))
}

/// Lists every directory and reads every file.
fn visit(process: &Process) {
    let (fs, caller) = (&process.fs, process.caller());
    let mut seen = BTreeSet::from([ROOT]);
    let mut left = vec![ROOT];
    while let Some(directory) = left.pop() {
        let mut entries: Vec<InodeId> = Vec::new();
        let _ = fs.list(&caller, directory, 0, &mut |entry| {
            entries.push(entry.inode);
            true
        });
        for inode in entries {
            let Ok(attributes) = fs.attributes(inode) else { continue };
            let _ = fs.path_of(inode);
            match attributes.mode & MODE_TYPE {
                MODE_DIRECTORY if seen.insert(inode) => left.push(inode),
                MODE_REGULAR => read(process, inode, attributes.size),
                _ => drop(fs.read_link(&caller, inode, b"", &mut Vec::new())),
            }
        }
    }
}

fn read(process: &Process, inode: InodeId, size: u64) {
    let (fs, caller) = (&process.fs, process.caller());
    let options = OpenOptions { read: true, ..OpenOptions::default() };
    let Ok(opened) = fs.open_file(&caller, inode, b"", options, 0) else { return };
    for at in [0, size.saturating_sub(READ_BYTES)] {
        let _ = process.read(&caller, opened.handle, Position::At(at), READ_BYTES);
    }
    let mut at = 0;
    while let Ok(start) = fs.seek(opened.handle, at, libc::SEEK_DATA) {
        let Ok(end) = fs.seek(opened.handle, start as i64, libc::SEEK_HOLE) else { break };
        assert!(end > at as u64, "data without end");
        at = end as i64;
    }
    let _ = process.close(opened.handle);
}

/// Tries a few operations of every kind. Any result will do.
fn change(process: &Process) {
    let (fs, caller) = (&process.fs, process.caller());
    let options = OpenOptions { read: true, write: true, create: true, ..OpenOptions::default() };
    for path in PATHS {
        let _ = fs.stat(&caller, ROOT, path, true);
        let Ok(opened) = fs.open_file(&caller, ROOT, path, options, 0o644) else { continue };
        let size = fs.attributes(opened.inode).map_or(0, |attributes| attributes.size);
        for at in [0, size, size.saturating_add(5000)] {
            let _ = process.write(&caller, opened.handle, Position::At(at), &[7; 5000]);
        }
        let _ = process.truncate(&caller, opened.inode, size / 2);
        let _ = process.seal(opened.inode);
        let _ = process.close(opened.handle);
    }
    let rename = |from: &[u8], to: &[u8], mode| {
        let _ = fs.rename(&caller, (ROOT, from), (ROOT, to), mode);
    };
    let _ = fs.make_directory(&caller, ROOT, b"m", 0o755);
    rename(b"d", b"m/d", RenameMode::Replace);
    rename(b"a", b"b", RenameMode::Exchange);
    rename(b"b", b"s", RenameMode::Replace);
    let _ = fs.link(&caller, (ROOT, b"a"), (ROOT, b"m/l"), false);
    let _ = fs.symlink(&caller, b"m/l", ROOT, b"t");
    for path in [&b"a"[..], b"m/d/a", b"s"] {
        let _ = fs.unlink(&caller, ROOT, path);
    }
    let _ = fs.remove_directory(&caller, ROOT, b"m/d/e");
    let _ = process.reclaim();
}
