//! Packing step by step: which files share a block, and how a reader and a packer notice each
//! other.
//!
//! Does not test that packing is invisible otherwise; `model.rs` does.

use cairn_core::{Error, HandleId, InodeId, OpenOptions, Position, ROOT};
use cairn_testing::driver::Process;
use cairn_testing::world::{READ_WRITE, SUPERUSER, World};

const READ: OpenOptions = OpenOptions { read: true, ..OpenOptions::NONE };

struct Stage {
    process: Process,
    files: Vec<(InodeId, Vec<u8>)>,
}

fn name(index: usize) -> Vec<u8> {
    format!("small.{index}").into_bytes()
}

impl Stage {
    /// Makes one closed file of each length.
    fn new(blocks: u32, lengths: &[usize]) -> Stage {
        let process = World::new(blocks, 128).process(SUPERUSER);
        let mut stage = Stage { process, files: Vec::new() };
        lengths.iter().for_each(|&length| stage.add(length));
        stage
    }

    fn add(&mut self, length: usize) {
        let (index, stage) = (self.files.len(), self);
        let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + index * 31 + 1) as u8).collect();
        let (handle, inode) = stage.open(index, READ_WRITE).expect("there is room");
        let caller = stage.process.caller();
        stage.process.write(&caller, handle, Position::At(0), &bytes).expect("there is room");
        stage.process.close(handle).expect("is open");
        stage.files.push((inode, bytes));
    }

    fn open(&self, index: usize, options: OpenOptions) -> Result<(HandleId, InodeId), Error> {
        let (fs, caller) = (&self.process.fs, self.process.caller());
        let opened = fs.open_file(&caller, ROOT, &name(index), options, 0o600)?;
        Ok((opened.handle, opened.inode))
    }

    fn used(&self) -> u64 {
        let report = self.process.fs.check().expect("is intact");
        report.capacity_blocks - report.free_blocks
    }

    fn holds(&self, index: usize) {
        let (handle, inode) = self.open(index, READ).expect("is there");
        let read = self.process.read(&self.process.caller(), handle, Position::At(0), 1 << 20);
        assert!(read.expect("is open").1 == self.files[index].1, "file {index}");
        self.process.verify_blocks(inode, handle).expect("checksums are right");
        self.process.close(handle).expect("is open");
    }
}

#[test]
fn small_files_take_what_they_hold_and_all_else_stays_as_it_is() {
    let stage = Stage::new(64, &[700; 40]);
    let before: Vec<_> =
        stage.files.iter().map(|(inode, _)| stage.process.fs.attributes(*inode)).collect();
    assert_eq!(stage.used(), 40);
    while stage.process.pack().expect("is intact") > 0 {}
    // Five files of 700 bytes fit into 4096.
    assert_eq!(stage.used(), 8);
    for (index, before) in before.into_iter().enumerate() {
        let before = before.expect("is there");
        let after = stage.process.fs.attributes(before.inode).expect("is there");
        assert_eq!(
            cairn_core::Attributes { allocated_bytes: before.allocated_bytes, ..after },
            before
        );
        stage.holds(index);
    }
    for index in 0..40 {
        let (fs, caller) = (&stage.process.fs, stage.process.caller());
        fs.unlink(&caller, ROOT, &name(index)).expect("is there");
    }
    assert_eq!(stage.used(), 0);
}

#[test]
fn what_is_large_open_for_writing_or_alone_keeps_its_block() {
    let stage = Stage::new(64, &[2049, 700, 5000, 600]);
    let (writer, _) = stage.open(1, READ_WRITE).expect("is there");
    assert_eq!(stage.process.pack(), Ok(0), "one is small and closed");
    stage.process.close(writer).expect("is open");
    let (reader, _) = stage.open(1, READ).expect("is there");
    assert_eq!(stage.process.pack(), Ok(1), "who reads is in nobody's way");
    assert_eq!(stage.process.pack(), Ok(0));
    stage.process.close(reader).expect("is open");
    (0..4).for_each(|index| stage.holds(index));
}

#[test]
fn reader_looks_again_when_its_file_was_packed_or_unpacked() {
    let stage = Stage::new(64, &[700, 600]);
    let (fs, caller) = (&stage.process.fs, stage.process.caller());
    for index in 0..2 {
        let (handle, inode) = stage.open(index, READ).expect("is there");
        let plan = || fs.plan_read(&caller, handle, Position::At(0), 4096).expect("is open");
        let planned = plan();
        while stage.process.pack().expect("is intact") > 0 {}
        assert!(!fs.read_is_valid(&planned), "file {index} was packed");
        let planned = plan();
        assert!(fs.read_is_valid(&planned));
        stage.process.unpack(inode).expect("there is room");
        assert!(!fs.read_is_valid(&planned), "file {index} was unpacked");
        let other = stage.files[1 - index].0;
        stage.process.unpack(other).expect("there is room");
        stage.process.close(handle).expect("is open");
    }
}

#[test]
fn who_changes_or_maps_a_packed_file_has_it_unpacked_before() {
    let stage = Stage::new(64, &[700, 600, 500]);
    let (fs, caller) = (&stage.process.fs, stage.process.caller());
    assert_eq!(stage.process.pack(), Ok(2));
    let packed = |index: usize| Error::Packed { inode: stage.files[index].0 };
    assert_eq!(stage.open(0, READ_WRITE), Err(packed(0)));
    assert_eq!(fs.truncate(&caller, stage.files[1].0, 10).err(), Some(packed(1)));
    let (reader, inode) = stage.open(2, READ).expect("is there");
    assert_eq!(fs.map_file(&caller, reader, false), Err(packed(2)));
    stage.process.unpack(inode).expect("there is room");
    fs.map_file(&caller, reader, false).expect("it has a block");
    assert_eq!(stage.process.pack(), Ok(0), "what is mapped stays where it is");
    stage.open(0, OpenOptions { truncate: true, ..READ_WRITE }).expect("nothing is left to unpack");
    assert_eq!(fs.attributes(stage.files[0].0).expect("is there").size, 0);
    stage.holds(1);
}

/// If the last write of a file was in the middle of a block, its checksum is unknown until it is
/// sealed.
#[test]
fn checksum_of_what_is_packed_is_found_on_the_way() {
    let stage = Stage::new(64, &[700, 600]);
    let (handle, inode) = stage.open(1, READ_WRITE).expect("is there");
    let at = Position::At(100);
    stage.process.write(&stage.process.caller(), handle, at, &[5; 10]).expect("there is room");
    stage.process.close(handle).expect("is open");
    let mut sum = [None];
    stage.process.fs.checksums(inode, 0, &mut sum).expect("is there");
    assert_eq!(sum, [None]);
    assert_eq!(stage.process.pack(), Ok(1));
    stage.process.fs.checksums(inode, 0, &mut sum).expect("is there");
    assert!(sum[0].is_some());
    let (handle, _) = stage.open(1, READ).expect("is there");
    stage.process.verify_blocks(inode, handle).expect("it is right");
}

/// Mechanism: a file that did not match its checksum stayed where it was, and was found again as
/// the next one to pack.
///
/// Consequence: packing never ended.
///
/// Fix: it is packed like any other file, and keeps the checksum that its bytes should have.
#[test]
fn damaged_file_is_packed_and_stays_damaged() {
    let stage = Stage::new(64, &[700, 600]);
    let (fs, caller) = (&stage.process.fs, stage.process.caller());
    let (mut pack, file) = fs.begin_pack(&caller).expect("is intact").expect("there are two");
    let known = file.crc32c.expect("it is sealed");
    let found = stage
        .process
        .copy_small(&file, fs.pack_target(&pack, &file).expect("it takes it"))
        .expect("the heap works");
    assert_eq!(found, known);
    assert_eq!(fs.put_in_pack(&caller, &mut pack, (&file, found ^ 1)), Ok(true));
    assert!(fs.next_for_pack(&pack).expect("is intact").is_none());
    fs.end_pack(&caller, &pack, true).expect("is open");
    let mut sum = [None];
    fs.checksums(stage.files[1].0, 0, &mut sum).expect("is there");
    assert_eq!(sum, [Some(known)]);
}

#[test]
fn pack_is_filled_further_by_whoever_comes_next_and_by_one_at_a_time() {
    let mut stage = Stage::new(64, &[700, 600]);
    assert_eq!(stage.process.pack(), Ok(1));
    assert_eq!(stage.used(), 1);
    stage.add(900);
    let (fs, caller) = (&stage.process.fs, stage.process.caller());
    let (pack, _) = fs.begin_pack(&caller).expect("is intact").expect("the pack has room");
    assert!(fs.is_packing().expect("is intact"));
    assert!(fs.begin_pack(&caller).expect("is intact").is_none(), "somebody fills it");
    fs.end_pack(&caller, &pack, true).expect("is open");
    assert!(!fs.is_packing().expect("is intact"));
    assert_eq!(stage.process.pack(), Ok(1));
    assert_eq!(stage.used(), 1);
    // A packer that gave up may still be storing into the pack.
    stage.add(800);
    let (fs, caller) = (&stage.process.fs, stage.process.caller());
    let (pack, _) = fs.begin_pack(&caller).expect("is intact").expect("the pack has room");
    fs.end_pack(&caller, &pack, false).expect("is open");
    assert_eq!(stage.process.pack(), Ok(0));
    (0..4).for_each(|index| stage.holds(index));
}

#[test]
fn what_is_left_of_packs_is_packed_again() {
    let mut stage = Stage::new(64, &[700; 40]);
    while stage.process.pack().expect("is intact") > 0 {}
    assert_eq!(stage.used(), 8);
    for index in (0..40).filter(|index| index % 5 != 2) {
        let (fs, caller) = (&stage.process.fs, stage.process.caller());
        fs.unlink(&caller, ROOT, &name(index)).expect("is there");
    }
    assert_eq!(stage.used(), 8);
    while stage.process.pack().expect("is intact") > 0 {}
    assert_eq!(stage.used(), 2, "of eight files of 700 bytes five fit into one");
    // A file with a block of its own fits into the space of a former one.
    stage.add(700);
    assert_eq!((stage.process.pack(), stage.used()), (Ok(1), 2));
    (0..40).filter(|index| index % 5 == 2).chain([40]).for_each(|index| stage.holds(index));
}

/// Mechanism: bytes of other files were put behind the end of a file that was longer in an image.
///
/// Consequence: the image showed them instead of its own bytes.
///
/// Fix: the block of such a file does not become a pack until the image has ended.
#[test]
fn block_of_a_file_that_was_longer_in_an_image_becomes_no_pack() {
    let mut stage = Stage::new(64, &[2000]);
    stage.process.fs.begin_image().expect("none is held");
    let caller = stage.process.caller();
    stage.process.truncate(&caller, stage.files[0].0, 100).expect("nobody has it open");
    stage.files[0].1.truncate(100);
    assert!(stage.process.seal(stage.files[0].0).is_ok());
    stage.add(1900);
    // Of the two files only the new one may be the first in a pack.
    assert_eq!(stage.process.pack(), Ok(1));
    stage.process.fs.end_image().expect("it is held");
    (0..2).for_each(|index| stage.holds(index));
}

#[test]
fn room_of_files_that_an_image_has_is_not_filled_before_it_ends() {
    let mut stage = Stage::new(64, &[2000, 2000]);
    assert_eq!(stage.process.pack(), Ok(1));
    stage.process.fs.begin_image().expect("none is held");
    let (fs, caller) = (&stage.process.fs, stage.process.caller());
    fs.unlink(&caller, ROOT, &name(1)).expect("is there");
    stage.add(1900);
    assert_eq!(stage.process.pack(), Ok(0), "the image has what is there");
    stage.process.fs.end_image().expect("it is held");
    assert_eq!((stage.process.pack(), stage.used()), (Ok(1), 1));
    [0, 2].into_iter().for_each(|index| stage.holds(index));
}

#[test]
fn last_file_of_a_pack_that_was_its_first_has_its_block_again() {
    let stage = Stage::new(2, &[700, 600]);
    assert_eq!(stage.process.pack(), Ok(1));
    let (fs, caller) = (&stage.process.fs, stage.process.caller());
    let (other, _) = stage.open(9, READ_WRITE).expect("an empty file needs no block");
    stage.process.write(&caller, other, Position::At(0), &[1; 4096]).expect("one was free");
    fs.unlink(&caller, ROOT, &name(1)).expect("is there");
    stage.process.unpack(stage.files[0].0).expect("it needs no other block");
    stage.holds(0);
    // When the file grows, bytes that followed it in the pack do not show.
    stage.process.truncate(&caller, stage.files[0].0, 2000).expect("it has a block");
    let (reader, inode) = stage.open(0, READ).expect("is there");
    let read = stage.process.read(&caller, reader, Position::At(0), 4096).expect("is open").1;
    assert!(read[..700] == stage.files[0].1 && read[700..] == [0; 1300]);
    assert!(stage.process.seal(inode).expect("nobody writes"));
    stage.process.verify_blocks(inode, reader).expect("its checksum is right");
    assert_eq!(stage.used(), 2);
}

#[test]
fn block_into_which_somebody_may_still_copy_is_not_taken_back() {
    let stage = Stage::new(8, &[700, 600]);
    let (fs, caller) = (&stage.process.fs, stage.process.caller());
    let (pack, _) = fs.begin_pack(&caller).expect("is intact").expect("there are two");
    fs.end_pack(&caller, &pack, false).expect("is open");
    assert_eq!(stage.used(), 2);
    let plan = fs.plan_unpacking(&caller, stage.files[0].0).expect("there is room");
    let plan = plan.expect("it needs another block");
    fs.abort_unpacking(&caller, &plan).expect("is in flight");
    stage.process.unpack(stage.files[0].0).expect("there is room");
    (0..2).for_each(|index| stage.holds(index));
}

#[test]
fn child_has_no_part_in_a_pack_that_another_thread_of_its_parent_fills() {
    let stage = Stage::new(64, &[700, 600]);
    let (fs, caller) = (&stage.process.fs, stage.process.caller());
    let (pack, _) = fs.begin_pack(&caller).expect("is intact").expect("there are two");
    let child = fs.spawn_begin(stage.process.slot).expect("there are slots");
    fs.end_pack(&caller, &pack, true).expect("is open");
    assert_eq!(fs.check().expect("is intact").handles, 0);
    fs.spawn_cancel(child, caller.now).expect("it is there");
}

#[test]
fn unpacking_needs_a_block() {
    let stage = Stage::new(4, &[700, 600, 3000, 3000]);
    assert_eq!(stage.process.pack(), Ok(1));
    let (handle, _) = stage.open(9, READ_WRITE).expect("an empty file needs none");
    let caller = stage.process.caller();
    stage.process.write(&caller, handle, Position::At(0), &[1; 100]).expect("one was free");
    let inode = stage.files[0].0;
    assert_eq!(stage.process.unpack(inode), Err(Error::NoSpace));
    stage.holds(0);
}
