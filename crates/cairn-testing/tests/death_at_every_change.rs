//! Whatever a process has changed of a transaction when it dies, the next owner of the lock finds
//! the namespace in the state before or after the transaction.
//!
//! A child runs one operation. It stops whenever it has saved another pre-image or has taken or
//! released the lock. Between two such moments the memory differs only in words that a rollback
//! restores. At every stop the segment is copied, the lock of the copy reports a dead owner, and
//! the copy is rolled back, checked and compared. Between two moments at which the lock is free,
//! only the states of these two moments may show. `death_in_lock.rs` kills real processes and uses
//! the real lock, but reaches fewer moments.
//!
//! The same runs while an image is held: at every stop the image shows the namespace as it was at
//! the cut, too.
//!
//! `CAIRN_SOAK=1` stops at every instruction instead. Without debug registers, the test stops at a
//! sample of the instructions.
#![cfg(target_arch = "x86_64")]

use cairn_core::{
    Caller, Error, ExtendedUpdate, Geometry, HandleId, HeapMemory, ImageMemory, ImageState,
    InodeId, Memory, Microfs, OpenOptions, Position, ProcessIdentity, ROOT, RenameMode, SlotId,
    Timestamp, WritePlan,
};
use cairn_testing::driver::{Clock, Process};
use cairn_testing::portrait::{VisibleState, portrait};
use cairn_testing::random::soaking;
use cairn_testing::shared::{Child, ForkShared, Stepped};
use cairn_testing::tier::{CHECKSUM, HeapTier, small_geometry};
use cairn_testing::world::{READ_WRITE, SUPERUSER};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

const PAGE_WORDS: usize = 512;
/// Word that holds the number of saved pre-images: the first one after page 0 (docs/FORMAT.md).
const UNDO_LENGTH: usize = PAGE_WORDS;
/// Number of hugeblocks of the first tier.
const FAST: u32 = 256;
/// Number of names that fill a leaf of the tree.
const NAMES: u32 = 130;
/// Number of stops by which an operation must be over.
const STOPS_MAX: u64 = 20_000_000;
/// Distance of the instructions examined, without debug registers.
const STRIDE: u64 = 97;

/// Size of the segment on the heap in which pages are saved while an image is held, words.
const SHADOW_WORDS: usize = 1 << 19;

/// Identity of the process that is reaped as dead.
const OTHER: ProcessIdentity = ProcessIdentity { pid: 2, pid_namespace: 1, start_time: 1 };

/// An operation of a child, and the least number of transactions it takes.
struct Operation {
    name: &'static str,
    transactions: usize,
    act: fn(&Stage),
}

/// State that the operations act on.
struct Stage {
    process: Process,
    /// The open file `a` of a little more than two blocks. A write to it is planned and its bytes
    /// are transferred.
    handle: HandleId,
    inode: InodeId,
    plan: Mutex<Option<WritePlan>>,
    /// A file written under a lease.
    leased: (HandleId, InodeId),
    lease_state: usize,
    /// An absent file of which one block is staged in.
    absent: InodeId,
    /// Slot of `OTHER`, which has open files, one of them deleted, and a write in flight.
    other: SlotId,
}

impl Stage {
    fn fs(&self) -> &Microfs {
        &self.process.fs
    }

    fn caller(&self) -> Caller {
        Caller { now: Timestamp(1_000_000), ..self.process.caller() }
    }

    fn take_plan(&self) -> WritePlan {
        self.plan.lock().expect("nobody panicked").take().expect("it is planned once")
    }
}

const OPERATIONS: [Operation; 28] = [
    Operation {
        name: "create",
        transactions: 1,
        act: |stage| {
            stage.fs().open_file(&stage.caller(), ROOT, &[b'n'; 100], READ_WRITE, 0o644).unwrap();
        },
    },
    Operation {
        name: "create next to many names",
        transactions: 1,
        act: |stage| {
            stage.fs().open_file(&stage.caller(), ROOT, b"many/new", READ_WRITE, 0o644).unwrap();
        },
    },
    Operation {
        name: "plan a write",
        transactions: 1,
        act: |stage| {
            let (at, length) = (Position::At(6 * 4096), 20_000);
            stage.fs().plan_write(&stage.caller(), stage.handle, at, length).unwrap();
        },
    },
    Operation {
        name: "commit a write with a new extent",
        transactions: 1,
        act: |stage| {
            stage.fs().commit_write(&stage.caller(), &stage.take_plan()).unwrap();
        },
    },
    Operation {
        name: "abort a write",
        transactions: 1,
        act: |stage| stage.fs().abort_write(&stage.caller(), &stage.take_plan()).unwrap(),
    },
    Operation {
        name: "write a few bytes",
        transactions: 2,
        act: |stage| {
            let caller = stage.caller();
            let file = stage.fs().open_file(&caller, ROOT, b"b", READ_WRITE, 0).unwrap().handle;
            let written = stage.process.write_small(&caller, file, Position::At(100), &[7; 100]);
            assert!(written.unwrap().is_some());
        },
    },
    Operation {
        name: "overwrite a few bytes",
        // Two of them are the write that voids the checksum.
        transactions: 4,
        act: |stage| {
            let caller = stage.caller();
            let file = stage.fs().open_file(&caller, ROOT, b"c", READ_WRITE, 0).unwrap().handle;
            stage.process.write(&caller, file, Position::At(100), &[7; 100]).unwrap();
            let later = Caller { now: Timestamp(2_000_000), ..caller };
            let written = stage.process.overwrite_small(&later, file, Position::At(150), &[8; 100]);
            assert!(written.unwrap().is_some());
        },
    },
    Operation {
        name: "write under a lease",
        transactions: 1,
        act: |stage| {
            let (process, caller) = (&stage.process, stage.caller());
            let begun = process.begin_leased(&caller, stage.leased.0, Position::Cursor, &[8; 50]);
            process.finish_write(&caller, stage.leased.0, begun.unwrap()).unwrap();
        },
    },
    Operation {
        // The visible state is the same before and after.
        name: "recall a lease",
        transactions: 0,
        act: |stage| {
            stage.fs().attributes(stage.leased.1).unwrap();
        },
    },
    Operation {
        name: "recall the lease of a write under way",
        transactions: 1,
        act: |stage| {
            let (process, caller) = (&stage.process, stage.caller());
            let begun = process.begin_leased(&caller, stage.leased.0, Position::Cursor, &[8; 50]);
            stage.fs().attributes(stage.leased.1).unwrap();
            process.finish_write(&caller, stage.leased.0, begun.unwrap()).unwrap();
        },
    },
    Operation {
        name: "rename over a file with blocks",
        transactions: 1,
        act: |stage| {
            let (from, to) = ((ROOT, &b"b"[..]), (ROOT, &b"c"[..]));
            stage.fs().rename(&stage.caller(), from, to, RenameMode::Replace).unwrap();
        },
    },
    Operation {
        name: "exchange a directory and a file",
        transactions: 1,
        act: |stage| {
            let (from, to) = ((ROOT, &b"directory/below"[..]), (ROOT, &b"c"[..]));
            stage.fs().rename(&stage.caller(), from, to, RenameMode::Exchange).unwrap();
        },
    },
    Operation {
        name: "unlink a file with blocks",
        transactions: 1,
        act: |stage| stage.fs().unlink(&stage.caller(), ROOT, b"c").unwrap(),
    },
    Operation {
        name: "make and remove a directory",
        transactions: 2,
        act: |stage| {
            let (fs, caller) = (stage.fs(), stage.caller());
            fs.make_directory(&caller, ROOT, b"directory/new", 0o755).unwrap();
            fs.remove_directory(&caller, ROOT, b"directory/new").unwrap();
        },
    },
    Operation {
        name: "make a symbolic link and a hard link",
        transactions: 2,
        act: |stage| {
            let (fs, caller) = (stage.fs(), stage.caller());
            fs.symlink(&caller, &[b't'; 300], ROOT, b"link").unwrap();
            fs.link(&caller, (ROOT, b"a"), (ROOT, b"hard"), false).unwrap();
        },
    },
    Operation {
        name: "set extended attributes and remove one",
        transactions: 4,
        act: |stage| {
            let (fs, caller) = (stage.fs(), stage.caller());
            let set = |name: &[u8], length: usize| {
                let update = ExtendedUpdate::default();
                fs.set_extended(&caller, stage.inode, name, &vec![5; length], update).unwrap();
            };
            set(b"user.first", 300);
            set(b"user.another", 2000);
            set(b"user.first", 10);
            fs.remove_extended(&caller, stage.inode, b"user.another").unwrap();
        },
    },
    Operation {
        name: "unlink a file with extended attributes",
        transactions: 1,
        act: |stage| stage.fs().unlink(&stage.caller(), ROOT, b"b").unwrap(),
    },
    Operation {
        name: "truncate into a block",
        transactions: 1,
        act: |stage| {
            stage.fs().truncate(&stage.caller(), stage.inode, 5000).unwrap();
        },
    },
    Operation {
        name: "open, emptying, and close",
        transactions: 2,
        act: |stage| {
            let options = OpenOptions { truncate: true, ..READ_WRITE };
            let opened = stage.fs().open_file(&stage.caller(), ROOT, b"c", options, 0).unwrap();
            stage.process.close(opened.handle).unwrap();
        },
    },
    Operation {
        name: "make a file absent",
        transactions: 3,
        act: |stage| {
            let (fs, caller) = (stage.fs(), stage.caller());
            let options = OpenOptions { read: false, exclusive: true, ..READ_WRITE };
            let handle = fs.open_file(&caller, ROOT, b"new", options, 0o644).unwrap().handle;
            fs.make_absent(&caller, handle, 5000, 7).unwrap();
            stage.process.close(handle).unwrap();
        },
    },
    Operation {
        name: "bring an absent file, of which a part was brought before",
        transactions: 4,
        act: |stage| {
            let (fs, caller) = (stage.fs(), stage.caller());
            let handle = fs.open_absent(&caller, stage.absent).unwrap();
            let write = begin_write(&stage.process, handle, 0, 4096);
            fs.commit_write(&caller, &write).unwrap();
            assert!(fs.end_absence(&caller, handle).unwrap());
        },
    },
    Operation {
        name: "empty an absent file",
        transactions: 1,
        act: |stage| {
            stage.fs().truncate(&stage.caller(), stage.absent, 0).unwrap();
        },
    },
    Operation {
        name: "promote blocks from the middle of an extent",
        transactions: 2,
        act: |stage| {
            let slow = stage.fs().resolve(&stage.caller(), ROOT, b"slow", false).unwrap();
            assert_eq!(stage.process.promote(slow, 1..3), Ok(2));
        },
    },
    Operation {
        name: "attach",
        transactions: 1,
        act: |stage| {
            let identity = ProcessIdentity { pid: 77, pid_namespace: 1, start_time: 9 };
            stage.fs().attach(identity).unwrap();
        },
    },
    Operation {
        name: "fork",
        transactions: 2,
        act: |stage| {
            let child = stage.fs().spawn_begin(stage.process.slot).unwrap();
            stage.fs().spawn_parent(child, 88).unwrap();
        },
    },
    Operation {
        name: "reap and reclaim",
        transactions: 3,
        act: |stage| {
            // A write in flight would keep the blocks of deleted files.
            stage.fs().abort_write(&stage.caller(), &stage.take_plan()).unwrap();
            assert!(stage.fs().reap(stage.other, OTHER, Timestamp(2_000_000)).unwrap());
            while stage.fs().reclaim(None).unwrap() {}
        },
    },
    Operation {
        name: "pack two files",
        // The block of one file becomes the pack; the other files are put into it; the pack is
        // closed.
        transactions: 3,
        act: pack_new_files,
    },
    Operation {
        name: "unpack one of two files, and remove the other",
        transactions: 6,
        act: |stage| {
            pack_new_files(stage);
            let caller = stage.caller();
            let found = stage.fs().stat(&caller, ROOT, b"e", true).unwrap();
            stage.process.unpack(found.inode).unwrap();
            stage.fs().unlink(&caller, ROOT, b"f").unwrap();
        },
    },
];

/// Operations that take another path while an image is held.
const IMAGE_OPERATIONS: [Operation; 6] = [
    Operation {
        name: "write over a part of two blocks of the image",
        transactions: 2,
        act: |stage| {
            let (process, caller) = (&stage.process, stage.caller());
            let at = Position::At(1000);
            process.write(&caller, stage.handle, at, &[8; 5000]).unwrap();
        },
    },
    Operation {
        name: "append to a block of the image",
        transactions: 2,
        act: |stage| {
            let (process, caller) = (&stage.process, stage.caller());
            let file = stage.fs().open_file(&caller, ROOT, b"b", READ_WRITE, 0).unwrap().handle;
            process.write(&caller, file, Position::At(100), &[8; 50]).unwrap();
        },
    },
    Operation {
        name: "cut a file in a block of the image and let it grow",
        transactions: 4,
        act: |stage| {
            let caller = stage.caller();
            let file = stage.fs().open_file(&caller, ROOT, b"c", READ_WRITE, 0).unwrap().inode;
            stage.process.truncate(&caller, file, 5000).unwrap();
            stage.process.truncate(&caller, file, 7000).unwrap();
        },
    },
    Operation {
        name: "map a file of the image",
        transactions: 1,
        act: |stage| {
            stage.fs().map_file(&stage.caller(), stage.handle, true).unwrap();
        },
    },
    Operation {
        name: "write a file of the image again",
        transactions: 3,
        act: |stage| {
            let (process, caller) = (&stage.process, stage.caller());
            let options = OpenOptions { truncate: true, ..READ_WRITE };
            let file = stage.fs().open_file(&caller, ROOT, b"c", options, 0).unwrap().handle;
            process.write(&caller, file, Position::At(0), &[8; 9000]).unwrap();
        },
    },
    Operation {
        name: "end the image",
        transactions: 0,
        act: |stage| stage.fs().end_image().unwrap(),
    },
];

fn create(process: &Process, path: &[u8], length: usize) -> (HandleId, InodeId) {
    let opened = process.fs.open_file(&process.caller(), ROOT, path, READ_WRITE, 0o644).unwrap();
    process.write(&process.caller(), opened.handle, Position::At(0), &vec![1; length]).unwrap();
    (opened.handle, opened.inode)
}

/// Packs two new files, and perhaps others. The new files have no block in an image.
fn pack_new_files(stage: &Stage) {
    for name in [b"e", b"f"] {
        stage.process.close(create(&stage.process, name, 200).0).unwrap();
    }
    assert!(stage.process.pack().unwrap() > 0);
}

fn begin_write(process: &Process, handle: HandleId, at: u64, length: usize) -> WritePlan {
    let (caller, bytes) = (process.caller(), vec![2; length]);
    let mut write = process.begin_write(&caller, handle, Position::At(at), &bytes).unwrap();
    process.transfer(&mut write).unwrap();
    write.plan
}

/// Makes an absent file whose stager has given up.
fn create_absent(process: &Process) -> InodeId {
    let (fs, caller) = (&process.fs, process.caller());
    let options = OpenOptions { read: false, ..READ_WRITE };
    let opened = fs.open_file(&caller, ROOT, b"absent", options, 0o644).unwrap();
    fs.make_absent(&caller, opened.handle, 9000, 7).unwrap();
    fs.commit_write(&caller, &begin_write(process, opened.handle, 0, 4096)).unwrap();
    process.close(opened.handle).unwrap();
    opened.inode
}

fn geometry() -> Geometry {
    Geometry { tier_blocks: [FAST, 16, 0, 0], ..small_geometry(FAST, 512) }
}

fn set_stage(memory: &Arc<ForkShared>) -> Stage {
    let geometry = geometry();
    let clock = Clock::default();
    Microfs::format(memory.as_ref(), &geometry, CHECKSUM, SUPERUSER, clock.tick()).unwrap();
    let tier = Arc::new(HeapTier::new(&geometry));
    let attach = |identity| {
        let fs = Microfs::open(Box::new(memory.clone()), CHECKSUM).unwrap();
        Process::attach(fs, identity, SUPERUSER, tier.clone(), clock.clone()).unwrap()
    };
    let (process, other) = (attach(ProcessIdentity { pid: 1, ..OTHER }), attach(OTHER));
    process.fs.bar(&[FAST]).unwrap();
    process.close(create(&process, b"slow", 5 * 4096).0).unwrap();
    process.fs.bar(&[0]).unwrap();
    for path in [&b"directory"[..], b"directory/below", b"many"] {
        process.fs.make_directory(&process.caller(), ROOT, path, 0o755).unwrap();
    }
    let (handle, inode) = create(&process, b"a", 2 * 4096 + 100);
    let (b, with_attributes) = create(&process, b"b", 100);
    let update = ExtendedUpdate::default();
    let set =
        process.fs.set_extended(&process.caller(), with_attributes, b"user.a", &[1; 500], update);
    set.unwrap();
    process.close(b).unwrap();
    process.close(create(&process, b"c", 5 * 4096).0).unwrap();
    for index in 0..NAMES {
        process.close(create(&process, format!("many/{index}").as_bytes(), 0).0).unwrap();
    }
    let absent = create_absent(&process);
    let (doomed, _) = create(&other, b"doomed", 4096);
    for block in 1..20 {
        let at = Position::At(block * 8192);
        other.write(&other.caller(), doomed, at, &[1; 4096]).unwrap();
    }
    other.fs.unlink(&other.caller(), ROOT, b"doomed").unwrap();
    let (written, _) = create(&other, b"written", 10);
    begin_write(&other, written, 10, 9000);
    let plan = Mutex::new(Some(begin_write(&process, handle, 4 * 4096, 8192)));
    let leased = create(&process, b"leased", 0);
    let proceed = || {
        let written = process.write(&process.caller(), leased.0, Position::Cursor, &[3; 200]);
        assert_eq!(written.map(|(_, length)| length), Ok(200));
    };
    (0..4).for_each(|_| proceed());
    let before: Vec<u64> = memory.words().iter().map(|word| word.load(Relaxed)).collect();
    proceed();
    let grew = |(word, old): (&AtomicU64, &u64)| *old >> 63 == 1 && word.load(Relaxed) != *old;
    let lease_state = memory.words().iter().zip(&before).position(grew).expect("it has a lease");
    Stage { process, handle, inode, plan, leased, lease_state, absent, other: other.slot }
}

/// Returns a page of a segment that nobody changes: the child that could is stopped or gone.
fn page_of(words: &[AtomicU64], page: usize) -> &[u64] {
    let words = &words[page * PAGE_WORDS..][..PAGE_WORDS];
    // SAFETY: an `AtomicU64` has the layout of a `u64`, and no other thread or process writes these
    // words while the slice is in use.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), PAGE_WORDS) }
}

/// Returns the pages in which two states differ and those in use. The latter may change
/// temporarily.
fn pages_in_use(before: &[u64], after: &[AtomicU64]) -> Vec<usize> {
    let unused = [0; PAGE_WORDS];
    let is_used = |page: &usize| {
        let old = &before[page * PAGE_WORDS..][..PAGE_WORDS];
        *old != unused || *old != *page_of(after, *page)
    };
    (0..before.len() / PAGE_WORDS).filter(is_used).collect()
}

fn copy_page(from: &[u64], to: &[AtomicU64], page: usize) {
    for (place, &word) in to[page * PAGE_WORDS..].iter().zip(from) {
        place.store(word, Relaxed);
    }
}

/// The image held at every stop, until it ends.
struct HeldImage {
    view: Arc<HeapMemory>,
    /// State that it must show.
    cut: VisibleState,
    /// Words of the shadow at the last look.
    shadow: Vec<u64>,
}

/// Examines in a copy of the segment what a death would leave.
struct CrashChecker {
    copy: Arc<HeapMemory>,
    fs: Microfs,
    image: Option<HeldImage>,
    /// Pages that the operation changes, with their content at the last look.
    pages: Vec<(usize, Vec<u64>)>,
    /// States at the moments at which the lock was free.
    committed: Vec<VisibleState>,
    /// State seen since the last of them, if it differs.
    next: Option<VisibleState>,
}

impl CrashChecker {
    fn new(words: &[u64], pages: &[usize], shadow: &[AtomicU64]) -> CrashChecker {
        let copy = Arc::new(HeapMemory::from_words(words));
        let fs = Microfs::open(Box::new(copy.clone()), CHECKSUM).expect("the header is intact");
        let first = portrait(&fs).expect("the namespace is consistent at first");
        let pages = pages.iter().map(|&page| (page, Vec::new())).collect();
        let mut judge =
            CrashChecker { copy, fs, image: None, pages, committed: vec![first], next: None };
        if judge.fs.image() != ImageState::None {
            let view = Arc::new(HeapMemory::new(words.len()));
            judge.image =
                Some(HeldImage { view, cut: judge.committed[0].clone(), shadow: Vec::new() });
            judge.copy_shadow(shadow);
            let cut = judge.portrait_of_image().expect("the image is held");
            judge.image.iter_mut().for_each(|image| image.cut = cut.clone());
        }
        judge
    }

    /// Copies the shadow. Returns whether it has changed.
    fn copy_shadow(&mut self, shadow: &[AtomicU64]) -> bool {
        let Some(image) = &mut self.image else { return false };
        let now: Vec<u64> = shadow.iter().map(|word| word.load(Relaxed)).collect();
        let changed = now != image.shadow;
        if changed {
            self.copy.shadow().iter().zip(&now).for_each(|(place, &word)| {
                if place.load(Relaxed) != word {
                    place.store(word, Relaxed);
                }
            });
            image.shadow = now;
        }
        changed
    }

    fn portrait_of_image(&self) -> cairn_core::Result<VisibleState> {
        let view = self.image.as_ref().map(|image| image.view.clone()).expect("one is held");
        let memory = ImageMemory::new(self.copy.clone(), Box::new(view), CHECKSUM)?;
        portrait(&Microfs::open_image(memory, CHECKSUM)?)
    }

    /// Checks that a process that comes after the death continues to save pages and the image stays
    /// the same.
    fn examine_what_follows(&self, moment: &str) {
        let Some(image) = &self.image else { return };
        let load = |words: &[AtomicU64]| words.iter().map(|word| word.load(Relaxed)).collect();
        let words: Vec<u64> = load(self.copy.words());
        let copy = Arc::new(HeapMemory::from_words(&words));
        copy.shadow()
            .iter()
            .zip(&image.shadow)
            .for_each(|(place, &word)| place.store(word, Relaxed));
        copy.simulate_owner_death();
        let fs = Microfs::open(Box::new(copy.clone()), CHECKSUM).expect("the header is intact");
        if !matches!(fs.image(), ImageState::Held(_)) {
            return;
        }
        let attached = fs.attach(ProcessIdentity { pid: 99, pid_namespace: 1, start_time: 9 });
        let slot = attached.expect("there are slots").slot;
        let caller =
            Caller { slot, credentials: SUPERUSER, groups: &[], now: Timestamp(9_000_000) };
        for path in [&b"many/after"[..], b"after"] {
            fs.open_file(&caller, ROOT, path, READ_WRITE, 0o644).expect("there is room");
        }
        fs.unlink(&caller, ROOT, b"hard").or_else(|_| fs.unlink(&caller, ROOT, b"slow")).unwrap();
        let memory = ImageMemory::new(copy, Box::new(image.view.clone()), CHECKSUM);
        let seen = memory.and_then(|memory| Microfs::open_image(memory, CHECKSUM));
        let seen = seen.and_then(|fs| portrait(&fs)).expect("the image is held");
        assert!(seen == image.cut, "{moment}, and what followed: the image has changed");
    }

    /// Checks that the image is unchanged, as long as it is held.
    fn examine_image(&self, moment: &str) {
        let Some(image) = &self.image else { return };
        match self.portrait_of_image() {
            Ok(seen) => assert!(seen == image.cut, "{moment}: the image has changed"),
            Err(error) => {
                assert_eq!(error, Error::ImageLost, "{moment}");
                let state = self.fs.image();
                assert!(!matches!(state, ImageState::Held(_)), "{moment}: {state:?}");
            }
        }
    }

    fn examine(&mut self, memory: &ForkShared, moment: &str) {
        let saved = self.copy_shadow(memory.shadow());
        let is_now = |(page, seen): &(usize, Vec<u64>)| page_of(memory.words(), *page) == seen;
        if !saved && self.pages.iter().all(is_now) {
            return;
        }
        for (page, seen) in &mut self.pages {
            page_of(memory.words(), *page).clone_into(seen);
            copy_page(seen, self.copy.words(), *page);
        }
        if memory.is_locked() {
            self.copy.simulate_owner_death();
        }
        let seen = match portrait(&self.fs) {
            Ok(seen) => seen,
            Err(error) => panic!("{moment}: {error}"),
        };
        self.examine_image(moment);
        if saved {
            self.examine_what_follows(moment);
        }
        let before = self.committed.last().expect("there is a first portrait");
        match &self.next {
            None if is_still(before, &seen) => {}
            None => self.next = Some(seen),
            Some(next) => assert!(seen == *next, "{moment}: neither before nor after"),
        }
        if !memory.is_locked() {
            self.committed.extend(self.next.take());
        }
    }
}

/// Whether two states are equal, except that the version of a file may be ahead. A higher version
/// only invalidates checksums that are being computed.
fn is_still(before: &VisibleState, seen: &VisibleState) -> bool {
    let mut before = before.clone();
    for (path, file) in &mut before.tree {
        if let Some(now) = seen.tree.get(path) {
            file.attributes.version = file.attributes.version.max(now.attributes.version);
        }
    }
    before == *seen
}

/// Runs the operation in a child and examines every stop. Returns the number of stops and of
/// committed states.
fn judge(operation: &Operation, holds_image: bool) -> (u64, usize) {
    let words = geometry().segment_bytes() as usize / 8;
    let memory = Arc::new(ForkShared::with_shadow(words, SHADOW_WORDS));
    let stage = set_stage(&memory);
    if holds_image {
        stage.fs().begin_image().expect("none is held");
    }
    let shadow: Vec<u64> = memory.shadow().iter().map(|word| word.load(Relaxed)).collect();
    let before: Vec<u64> = memory.words().iter().map(|word| word.load(Relaxed)).collect();
    // A run without stops shows which pages the operation changes.
    let rehearsal = Child::fork(false, || (operation.act)(&stage));
    assert_eq!(rehearsal.join(), Stepped::Ended(Some(0)), "{}", operation.name);
    let pages = pages_in_use(&before, memory.words());
    for &page in &pages {
        copy_page(&before[page * PAGE_WORDS..][..PAGE_WORDS], memory.words(), page);
    }
    memory.shadow().iter().zip(&shadow).for_each(|(word, &old)| word.store(old, Relaxed));
    let mut judge = CrashChecker::new(&before, &pages, memory.shadow());
    let mut child = Child::fork(true, || (operation.act)(&stage));
    let words = [0, UNDO_LENGTH, stage.lease_state].map(|at| &memory.words()[at]);
    // Words: the number of saved pages, and whether the first page is saved.
    let saved = [0, PAGE_WORDS].map(|at| &memory.shadow()[at]);
    let watched = match holds_image {
        true => [words[0], words[1], saved[0], saved[1]],
        false => [words[0], words[1], words[2], saved[0]],
    };
    let watches = !soaking() && child.watch(&watched);
    let mut stops = 0;
    loop {
        let stepped = if watches { child.run_to_watch() } else { child.step() };
        if stepped != Stepped::Stopped {
            assert_eq!(stepped, Stepped::Ended(Some(0)), "{}", operation.name);
            break;
        }
        stops += 1;
        assert!(stops < STOPS_MAX, "{} does not end", operation.name);
        if watches || soaking() || stops % STRIDE == 0 || !memory.is_locked() {
            judge.examine(&memory, &format!("{}, stop {stops}", operation.name));
        }
    }
    judge.examine(&memory, operation.name);
    assert_eq!(pages, pages_in_use(&before, memory.words()), "the rehearsal was different");
    (stops, judge.committed.len())
}

#[test]
fn death_at_any_change_leaves_the_state_before_or_after_the_transaction() {
    for operation in &OPERATIONS {
        let (stops, states) = judge(operation, false);
        println!("{}: {stops} stops, {states} states", operation.name);
        assert!(states > operation.transactions, "{}: {states} states", operation.name);
        // A write under a lease has only two stops.
        assert!(stops > 1, "{}: {stops} stops", operation.name);
    }
}

/// Whether an operation does not occur with an image: then there are no leases, and a few bytes are
/// not written at once into the image's blocks.
fn needs_no_image(operation: &Operation) -> bool {
    operation.name.contains("lease") || operation.name.contains("few bytes")
}

#[test]
fn death_at_any_change_while_an_image_is_held_leaves_the_image_as_it_was() {
    let others = OPERATIONS.iter().filter(|operation| !needs_no_image(operation));
    for operation in others.chain(&IMAGE_OPERATIONS) {
        let (stops, states) = judge(operation, true);
        println!("{}: {stops} stops, {states} states", operation.name);
        assert!(states > operation.transactions, "{}: {states} states", operation.name);
    }
}

#[test]
fn death_at_any_change_of_a_cut_leaves_an_image_or_none() {
    let cut = Operation {
        name: "begin an image",
        transactions: 0,
        act: |stage| assert_eq!(stage.fs().begin_image(), Ok(1)),
    };
    judge(&cut, false);
}
