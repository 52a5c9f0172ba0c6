//! Images of a namespace: when they begin, end and are given up, what they hold, and what they
//! report of mapped files.
//!
//! Does not test that an image stays as the namespace was at the cut: `model.rs` does at random,
//! and `recovery.rs` on media.

use cairn_core::{
    Acquired, Caller, Error, HandleId, HeapMemory, ImageLoss, ImageMemory, ImageState, InodeId,
    Memory, Microfs, Position, ROOT, RenameMode, Rendezvous, Truncation,
};
use cairn_testing::driver::Process;
use cairn_testing::tier::CHECKSUM;
use cairn_testing::world::{READ_WRITE, SUPERUSER, World};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const BLOCK: u64 = 4096;

struct Open {
    handle: HandleId,
    inode: InodeId,
}

fn open(process: &Process, path: &[u8]) -> Open {
    let opened = process.fs.open_file(&process.caller(), ROOT, path, READ_WRITE, 0o644);
    let opened = opened.expect("there is room");
    Open { handle: opened.handle, inode: opened.inode }
}

fn write(process: &Process, file: &Open, at: u64, bytes: &[u8]) {
    let written = process.write(&process.caller(), file.handle, Position::At(at), bytes);
    assert_eq!(written, Ok((at, bytes.len() as u64)));
}

fn view(world: &World) -> Result<Microfs, Error> {
    let view = HeapMemory::new(Memory::words(&world.memory).len());
    let memory = ImageMemory::new(world.memory.clone(), Box::new(view), CHECKSUM)?;
    Microfs::open_image(memory, CHECKSUM)
}

/// Returns all bytes of a file of the image.
fn content(process: &Process, image: &Microfs, inode: InodeId) -> Vec<u8> {
    let size = image.attributes(inode).expect("it is in the image").size;
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < size {
        let at = bytes.len() as u64;
        let plan = image.plan_read_of(inode, at, size - at).expect("it is here");
        for run in plan.runs() {
            let start = bytes.len();
            bytes.resize(start + run.bytes as usize, 0);
            if let Some((tier, offset)) = run.source {
                process.fetch(process.start_of(tier) + offset, &mut bytes[start..]).unwrap();
            }
        }
    }
    bytes
}

#[test]
fn namespace_holds_one_image_at_a_time_and_numbers_them() {
    let world = World::new(64, 100);
    let process = world.process(SUPERUSER);
    let fs = &process.fs;
    assert_eq!(fs.image(), ImageState::None);
    assert!(matches!(view(&world), Err(Error::ImageLost)));
    assert_eq!(fs.image_is_settled(), Err(Error::ImageLost));
    assert_eq!(fs.begin_image(), Ok(1));
    assert_eq!(fs.begin_image(), Err(Error::Busy));
    assert_eq!(fs.image(), ImageState::Held(1));
    let first = view(&world).expect("it is held");
    assert_eq!(first.require_image(), Ok(()));
    // A process that comes after a dead holder ends the image.
    world.microfs().end_image().unwrap();
    assert_eq!(first.require_image(), Err(Error::ImageLost));
    assert_eq!(first.attributes(ROOT).map(drop), Err(Error::ImageLost));
    assert_eq!(fs.begin_image(), Ok(2));
    assert_eq!(first.require_image(), Err(Error::ImageLost), "it is another one");
    fs.end_image().unwrap();
    assert_eq!(fs.end_image(), Ok(()));
}

#[test]
fn more_pages_change_than_can_be_saved_then_the_image_is_given_up_and_no_call_fails() {
    const FILES: u32 = 40_000;
    let world = World::new(64, FILES + 100);
    let process = world.process(SUPERUSER);
    let fs = &process.fs;
    let number = fs.begin_image().unwrap();
    let image = view(&world).unwrap();
    let lost = (0..FILES).find(|index| {
        let file = open(&process, format!("{index}").as_bytes());
        process.close(file.handle).unwrap();
        fs.image() != ImageState::Held(number)
    });
    assert!(lost.is_some(), "all pages could be saved");
    assert_eq!(fs.image(), ImageState::Lost(number, ImageLoss::TooManyPages));
    assert_eq!(image.attributes(ROOT).map(drop), Err(Error::ImageLost));
    assert_eq!(fs.begin_image(), Err(Error::Busy));
    fs.end_image().unwrap();
    assert_eq!(fs.image(), ImageState::None);
    fs.check().expect("the namespace is consistent");
    assert_eq!(fs.begin_image(), Ok(number + 1));
    let entries = view(&world).unwrap().usage().unwrap().inodes;
    assert_eq!(entries, fs.usage().unwrap().inodes);
}

/// A process's view of a segment; it counts the shadow words that the process has to back.
struct Counted {
    memory: Arc<HeapMemory>,
    backed: Arc<AtomicUsize>,
}

impl Memory for Counted {
    fn words(&self) -> &[AtomicU64] {
        Memory::words(&self.memory)
    }

    fn lock(&self) -> Result<Acquired, Error> {
        self.memory.lock()
    }

    fn unlock(&self) {
        self.memory.unlock();
    }

    fn back(&self, first_word: usize, word_count: usize) -> Result<(), Error> {
        self.memory.back(first_word, word_count)
    }

    fn shadow(&self) -> &[AtomicU64] {
        self.memory.shadow()
    }

    fn back_shadow(&self, first_word: usize, word_count: usize) -> Result<(), Error> {
        self.backed.fetch_add(word_count, Ordering::Relaxed);
        self.memory.back_shadow(first_word, word_count)
    }
}

#[test]
fn second_image_is_held_then_its_first_pages_need_no_memory_anew_and_those_behind_them_do() {
    let world = World::new(64, 40_000);
    let backed = Arc::new(AtomicUsize::new(0));
    let memory = Counted { memory: world.memory.clone(), backed: backed.clone() };
    let fs = Microfs::open(Box::new(memory), CHECKSUM).unwrap();
    let agent = world.microfs();
    let caller = world.process(SUPERUSER).caller();
    let mut next = 0;
    let mut make = |count: u32| {
        let before = backed.load(Ordering::Relaxed);
        for number in next..next + count {
            let name = number.to_string();
            fs.make_directory(&caller, ROOT, name.as_bytes(), 0o755).expect("there is room");
        }
        next += count;
        backed.load(Ordering::Relaxed) - before
    };
    let mut image_and = |count: u32| {
        agent.begin_image().unwrap();
        let backed = make(count);
        assert!(matches!(agent.image(), ImageState::Held(_)));
        agent.end_image().unwrap();
        backed
    };
    assert!(image_and(10) > 0, "a process that was there before none was held");
    assert_eq!(image_and(10), 0);
    // More pages than stay backed.
    assert!(image_and(10_000) > 0);
    assert!(image_and(10_000) > 0, "what was given back is backed anew");
    assert_eq!(image_and(10), 0);
}

#[test]
fn blocks_that_only_the_image_has_are_counted_and_free_when_it_ends() {
    let world = World::new(8, 100);
    let process = world.process(SUPERUSER);
    let file = open(&process, b"a");
    write(&process, &file, 0, &[1; 6 * BLOCK as usize]);
    process.fs.begin_image().unwrap();
    assert_eq!(process.fs.image_blocks_held(), Ok(0));
    write(&process, &file, 0, &[2; 2 * BLOCK as usize]);
    assert_eq!(process.fs.image_blocks_held(), Ok(2));
    // This block is not part of the image, so it is written in place.
    write(&process, &file, 0, &[3; BLOCK as usize]);
    let image = view(&world).unwrap();
    assert!(content(&process, &image, file.inode) == [1; 6 * BLOCK as usize]);
    assert_eq!(image.require_image(), Ok(()));
    // A write that needs the image's blocks gets them.
    write(&process, &file, 6 * BLOCK, &[4; BLOCK as usize]);
    assert_eq!(image.require_image(), Err(Error::ImageLost));
    process.fs.end_image().unwrap();
    assert_eq!(process.fs.image_blocks_held(), Ok(0));
    write(&process, &file, 6 * BLOCK, &[4; 2 * BLOCK as usize]);
}

#[test]
fn write_planned_before_the_cut_is_waited_for_by_those_after_it() {
    let world = World::new(64, 100);
    let (process, other) = (world.process(SUPERUSER), world.process(SUPERUSER));
    let file = open(&process, b"a");
    write(&process, &file, 0, &[1; 3 * BLOCK as usize]);
    let (caller, bytes) = (process.caller(), vec![2; 100]);
    let begun = process.begin_write(&caller, file.handle, Position::At(BLOCK), &bytes);
    let mut begun = begun.unwrap();
    process.fs.begin_image().unwrap();
    assert_eq!(process.fs.image_is_settled(), Ok(false));
    let theirs = open(&other, b"a");
    let plan = |at| other.plan(&other.caller(), theirs.handle, Position::At(at), 100).map(drop);
    assert_eq!(plan(BLOCK + 500), Err(Error::Busy), "its block may still change");
    write(&other, &theirs, 2 * BLOCK, &[3; 100]);
    process.transfer(&mut begun).unwrap();
    assert_eq!(process.commit(&caller, &mut begun), Ok(true));
    assert_eq!(process.fs.image_is_settled(), Ok(true));
    write(&other, &theirs, BLOCK + 500, &[3; 100]);
    let image = view(&world).unwrap();
    let mut expected = vec![1; 3 * BLOCK as usize];
    expected[BLOCK as usize..][..100].fill(2);
    assert!(content(&process, &image, file.inode) == expected);
}

#[test]
fn image_is_given_up_then_nobody_waits_for_writes_from_before_the_cut() {
    let world = World::new(64, 100);
    let (process, other) = (world.process(SUPERUSER), world.process(SUPERUSER));
    let file = open(&process, b"a");
    write(&process, &file, 0, &[1; 3 * BLOCK as usize]);
    let caller = process.caller();
    let begun = process.begin_write(&caller, file.handle, Position::At(0), &[2; 100]);
    let mut begun = begun.unwrap();
    process.fs.begin_image().unwrap();
    let theirs = open(&other, b"a");
    let bytes = [3; 100];
    let plan = || other.begin_write(&other.caller(), theirs.handle, Position::At(50), &bytes);
    assert_eq!(plan().map(drop), Err(Error::Busy));
    // A redirect in flight fails together with its image.
    let redirected = other.begin_write(&other.caller(), theirs.handle, Position::At(BLOCK), &bytes);
    let mut redirected = redirected.unwrap();
    other.transfer(&mut redirected).unwrap();
    other.fs.give_up_image(ImageLoss::Awaited).unwrap();
    assert_eq!(other.fs.image(), ImageState::Lost(1, ImageLoss::Awaited));
    let overwritten = plan().unwrap();
    other.finish_write(&other.caller(), theirs.handle, overwritten).unwrap();
    assert_eq!(other.commit(&other.caller(), &mut redirected), Ok(false));
    other.replan(&other.caller(), theirs.handle, &mut redirected).unwrap();
    assert_eq!(other.commit(&other.caller(), &mut redirected), Ok(true));
    process.transfer(&mut begun).unwrap();
    assert_eq!(process.commit(&caller, &mut begun), Ok(true));
    process.fs.end_image().unwrap();
    process.fs.check().unwrap();
}

#[test]
fn file_is_mapped_at_the_cut_or_later_then_the_image_says_so() {
    let world = World::new(64, 100);
    let process = world.process(SUPERUSER);
    let (fs, caller): (_, Caller) = (&process.fs, process.caller());
    let files = [&b"before"[..], b"later", b"never"].map(|path| open(&process, path));
    files.iter().for_each(|file| write(&process, file, 0, &[1; 5000]));
    let before = fs.map_file(&caller, files[0].handle, true).unwrap();
    fs.begin_image().unwrap();
    let later = fs.map_file(&caller, files[1].handle, true).unwrap();
    let blocks = |file: &Open| fs.plan_of(file.inode, 0, 5000).unwrap().runs()[0].source;
    let places = [0, 1].map(|index| blocks(&files[index]));
    for (file, &place) in files.iter().zip(&places) {
        write(&process, file, 100, &[2; 50]);
        assert_eq!(blocks(file), place, "a mapping shows the blocks where they are");
    }
    [before, later].into_iter().for_each(|mapping| {
        fs.end_mapping(process.slot, mapping, caller.now).unwrap();
        fs.release(process.slot, mapping, caller.now).unwrap();
    });
    write(&process, &files[1], 200, &[2; 50]);
    assert_eq!(blocks(&files[1]), places[1], "what changed once is not kept any more");
    let lacks = [0, 1, 2].map(|index| fs.image_may_lack(files[index].inode));
    assert_eq!(lacks, [Ok(true), Ok(true), Ok(false)]);
    let image = view(&world).unwrap();
    image.check().expect("the image is consistent");
    write(&process, &files[2], 100, &[2; 50]);
    assert!(content(&process, &image, files[2].inode) == [1; 5000]);
    fs.end_image().unwrap();
}

#[test]
fn what_orders_stores_to_mapped_files_is_counted_while_an_image_is_held() {
    let world = World::new(64, 100);
    let process = world.process(SUPERUSER);
    let (fs, caller): (_, Caller) = (&process.fs, process.caller());
    let files = [&b"mapped"[..], b"plain", b"closed"].map(|path| open(&process, path));
    files.iter().for_each(|file| write(&process, file, 0, &[1; 5000]));
    fs.map_file(&caller, files[0].handle, false).unwrap();
    let counted = |what: &dyn Fn()| {
        let before = fs.barriers();
        what();
        fs.barriers() - before
    };
    let rename = |from: &[u8], to: &[u8]| {
        fs.rename(&caller, (ROOT, from), (ROOT, to), RenameMode::Replace).unwrap();
    };
    let all = || {
        fs.note_barrier();
        rename(b"plain", b"renamed");
        rename(b"renamed", b"plain");
    };
    assert_eq!(counted(&all), 1, "the rest is of no use without an image");
    fs.begin_image().unwrap();
    let lacks = || fs.image_may_lack(files[0].inode).unwrap();
    assert_eq!(counted(&all), 3);
    assert_eq!(counted(&|| write(&process, &files[1], 100, &[2; 50])), 0, "goes to a copy");
    assert_eq!(counted(&|| write(&process, &files[0], 5000, &[2; 50])), 0, "is behind the image");
    assert!(!lacks(), "it is mapped to be read");
    for _ in 0..3 {
        assert_eq!(counted(&|| write(&process, &files[0], 100, &[2; 50])), 1, "is in the image");
    }
    assert!(lacks());
    let close = || fs.release(process.slot, files[2].handle, caller.now).unwrap();
    assert_eq!(counted(&close), 1);
    fs.end_image().unwrap();
}

#[test]
fn fresh_block_is_written_in_place_then_the_image_lacks_nothing_of_its_neighbour() {
    let world = World::new(64, 100);
    let process = world.process(SUPERUSER);
    let (fs, caller): (_, Caller) = (&process.fs, process.caller());
    let (before, file) = (open(&process, b"before"), open(&process, b"a"));
    write(&process, &before, 0, &[1; BLOCK as usize]);
    write(&process, &file, BLOCK, &[1; 2 * BLOCK as usize]);
    process.close(before.handle).unwrap();
    fs.unlink(&caller, ROOT, b"before").unwrap();
    process.reclaim().unwrap();
    fs.begin_image().unwrap();
    write(&process, &file, 0, &[2; BLOCK as usize]);
    // The rest of the extent is put back behind the fresh block, and the two form one run.
    write(&process, &file, 2 * BLOCK, &[2; BLOCK as usize]);
    let plan = fs.plan_of(file.inode, 0, 2 * BLOCK).unwrap();
    assert_eq!(plan.runs().len(), 1);
    for _ in 0..2 {
        write(&process, &file, 100, &[3; 50]);
    }
    assert_eq!(fs.image_may_lack(file.inode), Ok(false));
    fs.end_image().unwrap();
}

/// Makes a cut and returns the blocks of a file that are unchanged since the previous one.
fn unchanged(world: &World, fs: &Microfs, file: &Open) -> Vec<Range<u32>> {
    fs.begin_image().unwrap();
    let (image, mut found) = (view(world).unwrap(), Vec::new());
    image.unchanged_blocks(file.inode, &mut found).unwrap();
    fs.end_image().unwrap();
    found
}

#[test]
fn changed_block_is_promoted_then_it_has_changed() {
    let world = World::tiered([16, 16, 0, 0], 64);
    let process = world.process(SUPERUSER);
    let fs = &process.fs;
    let file = open(&process, b"a");
    fs.bar(&[16]).unwrap();
    write(&process, &file, 0, &[1; 4 * BLOCK as usize]);
    assert_eq!(process.seal(file.inode), Ok(true));
    fs.bar(&[0]).unwrap();
    assert_eq!(unchanged(&world, fs, &file), []);
    write(&process, &file, BLOCK, &[2; BLOCK as usize]);
    assert_eq!(process.promote(file.inode, 1..2), Ok(1));
    assert_eq!(unchanged(&world, fs, &file), [0..1, 2..4]);
}

#[test]
fn blocks_are_unchanged_if_nothing_of_them_changed_since_the_last_cut() {
    let world = World::new(64, 100);
    let process = world.process(SUPERUSER);
    let (fs, caller): (_, Caller) = (&process.fs, process.caller());
    let file = open(&process, b"a");
    write(&process, &file, 0, &[1; 8 * BLOCK as usize]);
    let unchanged = || unchanged(&world, fs, &file);
    assert_eq!(unchanged(), [], "all are new");
    assert_eq!(unchanged(), vec![0..8; 1]);
    write(&process, &file, BLOCK, &[2; BLOCK as usize]);
    write(&process, &file, 3 * BLOCK + 5, &[2; 10]);
    assert_eq!(unchanged(), [0..1, 2..3, 4..8]);
    // The block has been stale since before the cut.
    write(&process, &file, 3 * BLOCK + 50, &[3; 10]);
    assert_eq!(unchanged(), [0..3, 4..8]);
    // A cut in between does not count, nor does a write while its image was held.
    fs.begin_image().unwrap();
    write(&process, &file, 5 * BLOCK, &[4; 10]);
    fs.end_image().unwrap();
    assert_eq!(unchanged(), [0..5, 6..8]);
    fs.punch(&caller, file.inode, 2, 3).unwrap();
    assert_eq!(unchanged(), [0..2, 3..8], "a hole is no block");
    write(&process, &file, 8 * BLOCK, &[5; 10]);
    assert_eq!(unchanged(), [0..2, 3..8]);
    process.truncate(&caller, file.inode, 7 * BLOCK + 10).unwrap();
    assert_eq!(unchanged(), [0..2, 3..7]);
}

#[test]
fn file_is_cut_within_a_block_of_the_image_and_grows_then_the_image_has_what_was_cut_off() {
    let world = World::new(64, 100);
    let process = world.process(SUPERUSER);
    let file = open(&process, b"a");
    write(&process, &file, 0, &[1; 3000]);
    assert_eq!(process.seal(file.inode), Ok(true));
    process.fs.begin_image().unwrap();
    let image = view(&world).unwrap();
    let caller = process.caller();
    assert_eq!(process.fs.truncate(&caller, file.inode, 1000), Ok(Truncation::Done));
    assert_eq!(process.seal(file.inode), Ok(true));
    assert!(content(&process, &image, file.inode) == [1; 3000]);
    process.truncate(&caller, file.inode, 2000).unwrap();
    write(&process, &file, 1500, &[2; 10]);
    assert!(content(&process, &image, file.inode) == [1; 3000]);
    process.verify_blocks(file.inode, file.handle).unwrap();
    let (_, bytes) = process.read(&caller, file.handle, Position::At(0), 4000).unwrap();
    let mut expected = vec![1; 1000];
    expected.resize(2000, 0);
    expected[1500..1510].fill(2);
    assert!(bytes == expected);
    let mut stored = [None];
    image.checksums(file.inode, 0, &mut stored).unwrap();
    let mut block = vec![1; 3000];
    block.resize(BLOCK as usize, 0);
    assert_eq!(stored, [Some(CHECKSUM(0, &block))]);
}

#[test]
fn one_of_several_namespaces_cannot_be_cut_then_none_is() {
    let worlds = [World::new(64, 100), World::new(64, 100)];
    let spaces = [0, 1].map(|index: usize| worlds[index].microfs());
    let begin = |spaces: &[Microfs; 2]| {
        let rendezvous = Rendezvous::new(spaces.len());
        std::thread::scope(|scope| {
            let rendezvous = &rendezvous;
            let threads = [0, 1].map(|index: usize| {
                scope.spawn(move || spaces[index].begin_image_together(rendezvous))
            });
            threads.map(|thread| thread.join().unwrap())
        })
    };
    assert_eq!(begin(&spaces), [Ok(1), Ok(1)]);
    spaces[0].end_image().unwrap();
    assert_eq!(begin(&spaces), [Err(Error::Busy); 2]);
    assert_eq!(spaces[0].image(), ImageState::None);
    spaces[1].end_image().unwrap();
    assert_eq!(begin(&spaces), [Ok(2), Ok(2)]);
}
