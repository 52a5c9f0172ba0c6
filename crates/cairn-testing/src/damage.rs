//! A populated namespace whose words a test can damage, and every public operation to try on it
//! afterwards.
//!
//! Invariant: each operation gets valid arguments, so only damaged metadata can contradict them. It
//! repeats what must be repeated a bounded number of times.
//!
//! Does not decide which words are damaged.

use crate::tier::clear;
use crate::world::{READ_WRITE, SUPERUSER, World};
use cairn_core::{
    Caller, ExtendedUpdate, HandleId, HeapMemory, InodeId, Memory, Microfs, OpenOptions, Position,
    ProcessIdentity, ROOT, RenameMode, Result, SlotId, TimeUpdate, Truncation, WritePlan,
};
use std::sync::atomic::Ordering::Relaxed;

/// Words of the static header, which has a checksum (docs/FORMAT.md).
pub const HEADER: std::ops::Range<usize> = 8..64;
/// First word of the undo area. It holds the length; the entries follow.
pub const UNDO: usize = 512;
/// Most rounds of an operation that is repeated until it is done.
const ROUNDS: usize = 20;
const READ_ONLY: OpenOptions = OpenOptions { write: false, create: false, ..READ_WRITE };
const APPEND: OpenOptions = OpenOptions { append: true, ..READ_WRITE };
const TRUNCATE: OpenOptions = OpenOptions { truncate: true, ..READ_WRITE };

/// A populated namespace, and what its processes know of it.
pub struct Image {
    /// Words of the whole segment.
    pub words: Vec<u64>,
    /// Indices of the words that are not zero, without the static header.
    pub interesting: Vec<usize>,
    caller: Caller,
    other: SlotId,
    inodes: Vec<InodeId>,
    handles: Vec<HandleId>,
    unfinished: WritePlan,
}

impl Image {
    /// Makes files with holes, links, directories, writes in flight and orphans.
    pub fn populate() -> Result<Image> {
        let world = World::new(256, 200);
        let process = world.process(SUPERUSER);
        let other = world.process(SUPERUSER);
        let caller = process.caller();
        let fs = &process.fs;
        fs.make_directory(&caller, ROOT, b"d", 0o755)?;
        fs.make_directory(&caller, ROOT, b"d/e", 0o755)?;
        let mut inodes = vec![ROOT];
        let mut handles = Vec::new();
        for number in 0..150u32 {
            // Enough names for the tree of names to have an inner node; some are longer than one
            // record.
            let name = format!("d/n{number}-{}", "x".repeat(number as usize));
            let opened = fs.open_file(&caller, ROOT, name.as_bytes(), READ_WRITE, 0o644)?;
            fs.release(process.slot, opened.handle, caller.now)?;
        }
        for (path, options) in
            [(&b"a"[..], READ_WRITE), (b"b", APPEND), (b"d/c", READ_WRITE), (b"gone", READ_WRITE)]
        {
            let opened = fs.open_file(&caller, ROOT, path, options, 0o644)?;
            for block in 0..6u64 {
                // Holes lie between the blocks.
                let bytes = vec![block as u8 + 1; 5000];
                process.write(&caller, opened.handle, Position::At(block * 12288), &bytes)?;
            }
            inodes.push(opened.inode);
            handles.push(opened.handle);
        }
        fs.unlink(&caller, ROOT, b"gone")?;
        process.truncate(&caller, inodes[1], 30_000)?;
        process.truncate(&caller, inodes[3], 30_000)?;
        fs.symlink(&caller, b"d/../a", ROOT, b"s")?;
        fs.symlink(&caller, b"s", ROOT, b"d/t")?;
        fs.link(&caller, (ROOT, b"a"), (ROOT, b"d/hard"), false)?;
        for _ in 0..3 {
            // The last write leaves a lease.
            process.write(&caller, handles[1], Position::Cursor, &[7; 500])?;
        }
        let foreign = other.fs.open_file(&other.caller(), ROOT, b"a", READ_WRITE, 0o644)?;
        handles.push(foreign.handle);
        let begun = other.plan(&other.caller(), foreign.handle, Position::At(100_000), 9000)?;
        assert!(begun.length > 0);
        let unfinished = fs.plan_write(&caller, handles[0], Position::At(4000), 20_000)?;
        // Truncation leaves an orphan that waits for the writes in flight.
        fs.open_file(&caller, ROOT, b"a", TRUNCATE, 0o644)?;
        inodes.push(fs.resolve(&caller, ROOT, b"d", true)?);
        inodes.push(fs.resolve(&caller, ROOT, b"d/e", true)?);
        inodes.push(fs.resolve(&caller, ROOT, b"s", false)?);
        for (index, &inode) in inodes[..inodes.len() - 1].iter().enumerate() {
            let (value, update) = (vec![9; 40 * index], ExtendedUpdate::default());
            fs.set_extended(&caller, inode, b"user.b", &value, update)?;
        }
        fs.check()?;
        let words: Vec<u64> = world.memory.words().iter().map(|word| word.load(Relaxed)).collect();
        let interesting = (HEADER.end..words.len()).filter(|&at| words[at] != 0).collect();
        Ok(Image { words, interesting, caller, other: other.slot, inodes, handles, unfinished })
    }

    /// Restores the words of the image in `memory`.
    pub fn restore(&self, memory: &HeapMemory) {
        assert_eq!(memory.words().len(), self.words.len());
        clear(memory);
        for at in HEADER.start..HEADER.end {
            memory.words()[at].store(self.words[at], Relaxed);
        }
        for &at in &self.interesting {
            memory.words()[at].store(self.words[at], Relaxed);
        }
    }
}

/// Name of an operation, and the operation.
pub type Operation = (&'static str, fn(&Microfs, &Image) -> Result<()>);

/// Every public operation. Each gets valid arguments, which damaged metadata may contradict.
pub const OPERATIONS: &[Operation] = &[
    ("check", |fs, _| fs.check().map(drop)),
    ("usage", |fs, _| fs.usage().map(drop)),
    ("orphans", |fs, _| {
        fs.orphans();
        fs.log_head();
        Ok(())
    }),
    ("read_log", |fs, _| {
        fs.read_log(&mut 0, &mut |_| {})?;
        let mut cursor = fs.log_head().saturating_sub(500);
        fs.read_log(&mut cursor, &mut |_| {}).map(drop)
    }),
    ("processes", |fs, _| fs.processes().map(drop)),
    ("stat", |fs, image| {
        for path in [&b"a"[..], b"b", b"d/c", b"d/e", b"s", b"d/t", b"d/e/../../a", b"none"] {
            let _ = fs.stat(&image.caller, ROOT, path, true);
            let _ = fs.access(&image.caller, ROOT, path, 7, false);
        }
        fs.stat(&image.caller, ROOT, b"s", false).map(drop)
    }),
    ("attributes", |fs, image| {
        image.inodes.iter().try_for_each(|&inode| fs.attributes(inode).map(drop))
    }),
    ("list", |fs, image| {
        for &inode in &image.inodes {
            // A reader stops somewhere; this one after more names than can exist.
            let mut left = 100_000;
            let _ = fs.list(&image.caller, inode, 0, &mut |_| {
                left -= 1;
                assert!(left > 0, "a listing without end");
                true
            });
        }
        Ok(())
    }),
    ("path_of", |fs, image| {
        for &inode in &image.inodes {
            let _ = fs.path_of(inode);
            let _ = fs.parent(inode);
        }
        Ok(())
    }),
    ("escape_path", |fs, image| fs.escape_path(&image.caller, ROOT, b"d/t/../..", true).map(drop)),
    ("read_link", |fs, image| {
        let mut target = Vec::new();
        fs.read_link(&image.caller, ROOT, b"s", &mut target)?;
        fs.read_link(&image.caller, ROOT, b"d/t", &mut target)
    }),
    ("handle", |fs, image| {
        for &handle in &image.handles {
            let _ = fs.handle(handle);
            let _ = fs.set_append(handle, false);
            let _ = fs.set_placeholder(handle, 77);
        }
        fs.handle_by_placeholder(78).map(drop)
    }),
    ("seek", |fs, image| {
        for &handle in &image.handles {
            for whence in 0..=4 {
                let _ = fs.seek(handle, 5000, whence);
            }
            let _ = fs.seek(handle, i64::MAX, 1);
        }
        Ok(())
    }),
    ("plan_read", |fs, image| {
        for &handle in &image.handles {
            for at in [Position::At(0), Position::At(20_000), Position::Cursor] {
                if let Ok(plan) = fs.plan_read(&image.caller, handle, at, 1 << 20) {
                    fs.read_is_valid(&plan);
                    plan.runs();
                }
            }
        }
        Ok(())
    }),
    ("write_small", |fs, image| {
        for &handle in &image.handles {
            let _ = fs.write_small(&image.caller, handle, Position::Cursor, 10, |_| Some(1));
            let _ = fs.write_small(&image.caller, handle, Position::At(30_000), 1000, |_| None);
        }
        Ok(())
    }),
    ("commit_unfinished", |fs, image| {
        fs.commit_write(&image.caller, &image.unfinished)?;
        fs.abort_write(&image.caller, &image.unfinished)
    }),
    ("plan_write", |fs, image| {
        for &handle in &image.handles {
            for at in [Position::At(0), Position::At(50_000), Position::Cursor, Position::Again(9)]
            {
                let Ok(plan) = fs.plan_write(&image.caller, handle, at, 70_000) else { continue };
                for piece in plan.pieces() {
                    let _ = fs.store_checksum(piece.tier, piece.block, 5);
                }
                let _ = fs.commit_write(&image.caller, &plan);
                let _ = fs.abort_write(&image.caller, &plan);
            }
        }
        Ok(())
    }),
    ("plan_write_and_abort", |fs, image| {
        for &handle in &image.handles {
            let plan = fs.plan_write(&image.caller, handle, Position::At(8192), 9000)?;
            fs.abort_write(&image.caller, &plan)?;
        }
        Ok(())
    }),
    ("settle", |fs, image| {
        for &inode in &image.inodes {
            if let Ok(Some(plan)) = fs.plan_settle(&image.caller, inode) {
                let _ = fs.commit_settle(&image.caller, &plan, true);
            }
        }
        Ok(())
    }),
    ("stale_and_seal", |fs, image| {
        for &inode in &image.inodes {
            let mut stale = Vec::new();
            if let Ok(version) = fs.stale_blocks(inode, &mut stale) {
                let sealed: Vec<_> = stale.into_iter().map(|block| (block, 3)).collect();
                let _ = fs.seal(inode, version, &sealed);
            }
        }
        Ok(())
    }),
    ("checksums", |fs, image| {
        for &inode in &image.inodes {
            let _ = fs.checksums(inode, 0, &mut [None; 40]);
            let _ = fs.checksums(inode, u32::MAX - 3, &mut [None; 40]);
        }
        Ok(())
    }),
    ("truncate", |fs, image| {
        for &inode in &image.inodes {
            for size in [40_001, 5000, 100_000, 0] {
                for _ in 0..ROUNDS {
                    match fs.truncate(&image.caller, inode, size) {
                        Ok(Truncation::More) => {}
                        _ => break,
                    }
                }
            }
        }
        Ok(())
    }),
    ("open_file", |fs, image| {
        for path in [&b"a"[..], b"new", b"d/c", b"d/t", b"d/e"] {
            let _ = fs.open_file(&image.caller, ROOT, path, READ_WRITE, 0o644);
            let _ = fs.open_file(&image.caller, ROOT, path, READ_ONLY, 0o644);
            let _ = fs.open_file(&image.caller, ROOT, path, TRUNCATE, 0o644);
        }
        Ok(())
    }),
    ("make_directory", |fs, image| fs.make_directory(&image.caller, ROOT, b"m", 0o755).map(drop)),
    ("symlink", |fs, image| fs.symlink(&image.caller, &[b'x'; 300], ROOT, b"d/long").map(drop)),
    ("link", |fs, image| fs.link(&image.caller, (ROOT, b"b"), (ROOT, b"d/hard2"), true)),
    ("rename", |fs, image| {
        let to =
            |from: &[u8], to: &[u8], mode| fs.rename(&image.caller, (ROOT, from), (ROOT, to), mode);
        let _ = to(b"d/c", b"moved", RenameMode::NoReplace);
        let _ = to(b"a", b"b", RenameMode::Exchange);
        let _ = to(b"d/e", b"e", RenameMode::Replace);
        let _ = to(b"a", b"b", RenameMode::Replace);
        to(b"d", b"e", RenameMode::Replace)
    }),
    ("set_attributes", |fs, image| {
        for &inode in &image.inodes {
            let _ = fs.set_mode(&image.caller, inode, 0o600);
            let _ = fs.set_owner(&image.caller, inode, Some(1), Some(1));
            let _ = fs.set_times(&image.caller, inode, TimeUpdate::Now, TimeUpdate::Omit);
            let _ = fs.mark_drained(inode, 4, image.caller.now);
            let update = ExtendedUpdate::default();
            let _ = fs.set_extended(&image.caller, inode, b"user.a", &[7; 200], update);
            let _ = fs.extended(&image.caller, inode, b"user.b");
            let _ = fs.all_extended(inode);
            let _ = fs.remove_extended(&image.caller, inode, b"user.a");
        }
        Ok(())
    }),
    ("unlink", |fs, image| {
        for path in [&b"a"[..], b"s", b"d/c", b"d/hard", b"b"] {
            let _ = fs.unlink(&image.caller, ROOT, path);
        }
        let _ = fs.evict(&image.caller, ROOT, b"d/t");
        fs.remove_directory(&image.caller, ROOT, b"d/e")
    }),
    ("reclaim", |fs, image| {
        for _ in 0..ROUNDS {
            if !fs.reclaim(Some(image.caller.slot))? {
                break;
            }
        }
        Ok(())
    }),
    ("attach_and_spawn", |fs, image| {
        let identity = ProcessIdentity { pid: 999, pid_namespace: 1, start_time: 8 };
        let slot = fs.attach(identity)?.slot;
        fs.set_working_directory(slot, Some((ROOT, 12)))?;
        fs.working_directory(slot, 12)?;
        let child = fs.spawn_begin(image.caller.slot)?;
        fs.spawn_parent(child, 1000)?;
        fs.spawn_child(child, ProcessIdentity { pid: 1000, ..identity })?;
        fs.mark_exec(child, true)?;
        fs.retain_only(child, &|handle| handle.0 % 2 == 0, image.caller.now)?;
        let second = fs.spawn_begin(image.caller.slot)?;
        fs.spawn_cancel(second, image.caller.now)?;
        fs.detach(slot, image.caller.now)
    }),
    ("retain", |fs, image| {
        for &handle in &image.handles {
            let _ = fs.retain(image.other, handle);
            let _ = fs.release(image.other, handle, image.caller.now);
        }
        Ok(())
    }),
    ("release", |fs, image| {
        for &handle in &image.handles {
            let _ = fs.release(image.caller.slot, handle, image.caller.now);
        }
        Ok(())
    }),
    ("reap", |fs, image| {
        for (slot, dead) in fs.processes()? {
            let _ = fs.reap(slot, dead, image.caller.now);
        }
        Ok(())
    }),
    ("check_again", |fs, _| fs.check().map(drop)),
];
