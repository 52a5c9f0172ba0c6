//! Absent files: their data are elsewhere until somebody stages them in.
//!
//! Must stay true: nobody reads partly staged data. Whatever programs do to the file meanwhile, and
//! wherever the stager dies or the power fails, the file is complete, still absent, or what
//! programs made of it.

use cairn_core::{
    Absence, Attributes, Error, HandleId, InodeId, Moment, OpenOptions, Position, Prospect, ROOT,
    RenameMode, TimeUpdate, Timestamp, Truncation,
};
use cairn_testing::crash::{Budget, for_every_crash};
use cairn_testing::driver::Process;
use cairn_testing::durable::{Setting, Tiers, attach, memory, recover_and_attach};
use cairn_testing::faulty::Image;
use cairn_testing::portrait::portrait;
use cairn_testing::tier::CHECKSUM;
use cairn_testing::world::{READ_WRITE, SUPERUSER, World};
use std::sync::Arc;

const READ: OpenOptions = OpenOptions { write: false, create: false, ..READ_WRITE };
const WRITE: OpenOptions = OpenOptions { read: false, create: false, ..READ_WRITE };
const NEW: OpenOptions = OpenOptions { read: false, exclusive: true, ..READ_WRITE };
const NAME_ONLY: OpenOptions = OpenOptions { path_only: true, ..OpenOptions::NONE };
const MODIFIED: Timestamp = Timestamp(77);
/// Size of a file: three blocks, the last one partly filled.
const BYTES: usize = 2 * 4096 + 1000;

fn content() -> Vec<u8> {
    (0..BYTES).map(|at| (at / 7 + at * at / 5) as u8 | 1).collect()
}

fn open(process: &Process, name: &[u8], options: OpenOptions) -> Result<HandleId, Error> {
    let opened = process.fs.open_file(&process.caller(), ROOT, name, options, 0o644);
    opened.map(|opened| opened.handle)
}

fn attributes(process: &Process, name: &[u8]) -> Attributes {
    process.fs.stat(&process.caller(), ROOT, name, false).expect("it is there")
}

/// Makes an absent file whose data elsewhere are `content`.
fn make_absent(process: &Process, name: &[u8], content: &[u8]) -> InodeId {
    let handle = open(process, name, NEW).expect("it is new");
    let crc32c = CHECKSUM(0, content);
    let made = process.fs.make_absent(&process.caller(), handle, content.len() as u64, crc32c);
    made.expect("it is empty");
    let inode = process.fs.handle(handle).expect("it is open").inode;
    let time = TimeUpdate::At(MODIFIED);
    process.fs.set_times(&process.caller(), inode, TimeUpdate::Omit, time).expect("has times");
    process.close(handle).expect("closes");
    inode
}

fn write(process: &Process, handle: HandleId, at: usize, bytes: &[u8]) {
    let mut done = 0;
    while done < bytes.len() {
        let at = Position::At((at + done) as u64);
        let mut write = process
            .begin_write(&process.caller(), handle, at, &bytes[done..])
            .expect("there is space");
        process.transfer(&mut write).expect("the tier takes bytes");
        assert!(process.commit(&process.caller(), &mut write).expect("it is in flight"));
        done += write.done as usize;
    }
}

fn bring(process: &Process, inode: InodeId, content: &[u8]) -> HandleId {
    let handle = process.fs.open_absent(&process.caller(), inode).expect("it is absent");
    write(process, handle, 0, content);
    handle
}

fn end(process: &Process, handle: HandleId) -> bool {
    let ended = process.fs.end_absence(&process.caller(), handle).expect("it is open");
    process.close(handle).expect("closes");
    ended
}

fn read(process: &Process, name: &[u8]) -> Result<Vec<u8>, Error> {
    let handle = open(process, name, READ)?;
    let inode = process.fs.handle(handle)?.inode;
    process.seal(inode)?;
    process.verify_blocks(inode, handle)?;
    let read = process.read(&process.caller(), handle, Position::At(0), 1 << 20)?.1;
    process.close(handle)?;
    Ok(read)
}

#[test]
fn absent_file_looks_as_it_will_and_is_opened_by_nobody_until_it_was_brought() {
    let world = World::new(64, 64);
    let (process, agent) = (world.process(SUPERUSER), world.process(SUPERUSER));
    let inode = make_absent(&process, b"f", &content());
    let refused = Err(Error::Absent { inode });
    let before = attributes(&process, b"f");
    assert_eq!((before.size, before.modified, before.inode), (BYTES as u64, MODIFIED, inode));
    assert_eq!(
        (before.allocated_bytes, before.is_drained(), before.unclean),
        (3 * 4096, true, false)
    );
    let said = |wanted| Absence {
        crc32c: CHECKSUM(0, &content()),
        wanted,
        unavailable: false,
        damaged: false,
    };
    assert_eq!(before.absence, Some(said(false)));
    for options in [READ, WRITE, READ_WRITE, OpenOptions { with_rights: true, ..OpenOptions::NONE }]
    {
        assert_eq!(open(&process, b"f", options), refused);
    }
    let cut = process.fs.truncate(&process.caller(), inode, 5);
    assert_eq!(cut, Err(Error::Absent { inode }));
    assert_eq!(process.fs.regions(inode, 0, &mut []), Err(Error::Absent { inode }));
    process.close(open(&process, b"f", NAME_ONLY).expect("it has a name")).expect("closes");

    assert_eq!((agent.fs.wanted_absent(), agent.fs.absence_wishes()), (Ok(Vec::new()), 0));
    assert_eq!(process.fs.request_stage_in(inode), Ok(Some(said(true))));
    assert_eq!((agent.fs.wanted_absent(), agent.fs.absence_wishes()), (Ok(vec![inode]), 1));
    let handle = bring(&agent, inode, &content());
    assert_eq!(agent.fs.open_absent(&agent.caller(), inode), Err(Error::Busy));
    let during = attributes(&process, b"f");
    assert_eq!((during.modified, during.changed), (before.modified, before.changed));
    assert_eq!(
        (during.size, during.version, during.absence),
        (before.size, before.version, Some(said(true)))
    );
    assert_eq!(open(&process, b"f", READ), refused);
    portrait(&process.fs).expect("the namespace is consistent");
    assert!(end(&agent, handle));
    let after = attributes(&process, b"f");
    assert_eq!(Attributes { absence: before.absence, ..after }, before, "only that it is there");
    assert_eq!((after.absence, read(&process, b"f")), (None, Ok(content())));
    assert_eq!(agent.fs.open_absent(&agent.caller(), inode), Err(Error::NotFound));
    assert_eq!(agent.fs.wanted_absent(), Ok(Vec::new()));
}

#[test]
fn only_a_new_file_becomes_absent() {
    let world = World::new(64, 64);
    let process = world.process(SUPERUSER);
    let make = |handle| process.fs.make_absent(&process.caller(), handle, 5, 6);
    let reading = open(&process, b"read", READ_WRITE).expect("it is new");
    assert_eq!(make(reading), Err(Error::Invalid));
    let written = open(&process, b"written", NEW).expect("it is new");
    write(&process, written, 0, b"bytes");
    assert_eq!(make(written), Err(Error::Invalid));
    let shared = open(&process, b"shared", NEW).expect("it is new");
    let other = open(&process, b"shared", READ).expect("it is there");
    assert_eq!(make(shared), Err(Error::Invalid));
    process.close(other).expect("closes");
    assert_eq!(make(shared), Ok(()));
}

/// Makes a file with `content`, closes it, and marks it as drained.
fn make_drained(process: &Process, name: &[u8], content: &[u8]) -> Attributes {
    let handle = open(process, name, NEW).expect("it is new");
    write(process, handle, 0, content);
    process.close(handle).expect("closes");
    let made = attributes(process, name);
    process.fs.mark_drained(made.inode, made.version, MODIFIED).expect("it is there");
    attributes(process, name)
}

fn release(process: &Process, file: &Attributes, content: &[u8]) -> Result<bool, Error> {
    let crc32c = CHECKSUM(0, content);
    process.fs.release_data(&process.caller(), file.inode, file.version, crc32c)
}

#[test]
fn drained_file_gives_up_its_room_and_looks_the_same_until_and_after_it_is_brought_again() {
    let world = World::new(64, 64);
    let (process, agent) = (world.process(SUPERUSER), world.process(SUPERUSER));
    let before = make_drained(&process, b"f", &content());
    assert_eq!(release(&agent, &before, &content()), Ok(true));
    while agent.fs.reclaim(None).expect("it can") {}
    assert_eq!(agent.fs.usage().expect("it can").used_blocks[0], 0, "it needs no room");
    let absent = attributes(&process, b"f");
    let wait = Absence {
        crc32c: CHECKSUM(0, &content()),
        wanted: false,
        unavailable: false,
        damaged: false,
    };
    let drained_version = absent.drained_version;
    assert_eq!(Attributes { absence: Some(wait), drained_version, ..before }, absent);
    assert!(absent.is_drained());
    assert_eq!(read(&process, b"f"), Err(Error::Absent { inode: before.inode }));
    assert_eq!(release(&agent, &before, &content()), Ok(false), "it has no data to give up");
    portrait(&process.fs).expect("the namespace is consistent");
    let handle = bring(&agent, before.inode, &content());
    assert!(end(&agent, handle));
    assert_eq!((attributes(&process, b"f"), read(&process, b"f")), (before, Ok(content())));
}

#[test]
fn file_that_is_open_changed_torn_or_without_a_name_keeps_its_data() {
    let world = World::new(64, 64);
    let process = world.process(SUPERUSER);
    let keeps = |file: &Attributes, why: &str| {
        assert_eq!(release(&process, file, &content()), Ok(false), "{why}");
    };
    let file = make_drained(&process, b"f", &content());
    for options in [READ, WRITE, NAME_ONLY] {
        let handle = open(&process, b"f", options).expect("it is there");
        keeps(&file, "it is open");
        process.close(handle).expect("closes");
    }
    keeps(&Attributes { version: file.version + 1, ..file }, "another version was drained");
    let handle = open(&process, b"f", WRITE).expect("it is there");
    write(&process, handle, 10, b"later");
    process.close(handle).expect("closes");
    keeps(&file, "it was written to");
    keeps(&attributes(&process, b"f"), "its new data were not drained");
    let torn = make_drained(&process, b"torn", &content());
    let dead = world.process(SUPERUSER);
    let handle = open(&dead, b"torn", WRITE).expect("it is there");
    write(&dead, handle, 0, b"t");
    process.reap(dead.slot).expect("it is there");
    let found = attributes(&process, b"torn");
    assert!(found.unclean && found.version != torn.version);
    process.fs.mark_drained(found.inode, found.version, MODIFIED).expect("it is there");
    keeps(&found, "its writer died");
    let gone = make_drained(&process, b"gone", &content());
    process.fs.unlink(&process.caller(), ROOT, b"gone").expect("removes");
    assert_eq!(release(&process, &gone, &content()), Err(Error::NotFound));
    portrait(&process.fs).expect("the namespace is consistent");
}

#[test]
fn file_that_is_emptied_while_it_is_brought_has_what_was_written_since() {
    let world = World::new(64, 64);
    let (process, agent) = (world.process(SUPERUSER), world.process(SUPERUSER));
    let inode = make_absent(&process, b"f", &content());
    let handle = agent.fs.open_absent(&agent.caller(), inode).expect("it is absent");
    write(&agent, handle, 0, &content()[..4096]);
    let at = Position::At(4096);
    let mut write_in_flight =
        agent.begin_write(&agent.caller(), handle, at, &content()[4096..]).expect("there is space");
    assert!(write_in_flight.plan.brings());
    let emptied = open(&process, b"f", OpenOptions { truncate: true, ..READ_WRITE });
    let emptied = emptied.expect("that needs no data");
    write(&process, emptied, 0, b"new");
    agent.transfer(&mut write_in_flight).expect("the tier takes bytes");
    assert!(agent.commit(&agent.caller(), &mut write_in_flight).expect("it is in flight"));
    let late =
        agent.begin_write(&agent.caller(), handle, at, &content()[..10]).expect("it is open");
    assert!(!late.plan.brings(), "who brings it learns that it is too late");
    agent.abort(&agent.caller(), &late).expect("it is in flight");
    assert!(!end(&agent, handle));
    process.close(emptied).expect("closes");
    assert_eq!(read(&process, b"f"), Ok(b"new".to_vec()));
    let seen = attributes(&process, b"f");
    assert_eq!((seen.size, seen.is_drained(), seen.absence), (3, false, None));
    portrait(&process.fs).expect("the namespace is consistent");
    while process.fs.reclaim(None).expect("it can") {}
    assert_eq!(
        process.fs.usage().expect("it can").used_blocks[0],
        1,
        "nothing is left of the rest"
    );
}

#[test]
fn absent_file_is_emptied_renamed_linked_and_removed_without_its_data() {
    let world = World::new(64, 64);
    let process = world.process(SUPERUSER);
    let (fs, caller) = (&process.fs, process.caller());
    let inode = make_absent(&process, b"f", &content());
    assert_eq!(fs.truncate(&caller, inode, 0), Ok(Truncation::Done));
    assert_eq!((attributes(&process, b"f").size, read(&process, b"f")), (0, Ok(Vec::new())));
    let inode = make_absent(&process, b"g", &content());
    fs.rename(&caller, (ROOT, b"g"), (ROOT, b"f"), RenameMode::Replace).expect("renames");
    fs.link(&caller, (ROOT, b"f"), (ROOT, b"h"), false).expect("links");
    fs.unlink(&caller, ROOT, b"f").expect("removes");
    assert_eq!(attributes(&process, b"h").inode, inode);
    let handle = bring(&process, inode, &content());
    fs.unlink(&caller, ROOT, b"h").expect("removes");
    assert!(end(&process, handle), "nobody is hindered by that");
    assert_eq!(fs.absence(inode), Err(Error::NotFound));
    let gone = make_absent(&process, b"gone", &content());
    let named = open(&process, b"gone", NAME_ONLY).expect("it has a name");
    fs.unlink(&caller, ROOT, b"gone").expect("removes");
    assert_eq!(fs.open_absent(&caller, gone), Err(Error::NotFound));
    process.close(named).expect("closes");
    portrait(fs).expect("the namespace is consistent");
}

#[test]
fn what_a_dead_one_brought_is_dropped_and_the_next_one_begins_anew() {
    let world = World::new(64, 64);
    let process = world.process(SUPERUSER);
    let inode = make_absent(&process, b"f", &content());
    let before = attributes(&process, b"f");
    let dead = world.process(SUPERUSER);
    let handle = dead.fs.open_absent(&dead.caller(), inode).expect("it is absent");
    write(&dead, handle, 0, &[9; 4096]);
    let rest = dead.begin_write(&dead.caller(), handle, Position::At(4096), &[9; 5000]);
    dead.transfer(&mut rest.expect("there is space")).expect("the tier takes bytes");
    let next = world.process(SUPERUSER);
    assert_eq!(next.fs.open_absent(&next.caller(), inode), Err(Error::Busy));
    next.reap(dead.slot).expect("it is there");
    let handle = next.fs.open_absent(&next.caller(), inode).expect("it is absent");
    let rest = attributes(&process, b"f");
    assert_eq!((rest.unclean, rest.version, rest.size), (false, before.version, before.size));
    write(&next, handle, 0, &content());
    assert!(end(&next, handle));
    assert_eq!(Attributes { absence: before.absence, ..attributes(&process, b"f") }, before);
    assert_eq!(read(&process, b"f"), Ok(content()));
    portrait(&process.fs).expect("the namespace is consistent");
}

#[test]
fn data_that_cannot_be_had_are_wanted_again_but_not_damaged_ones() {
    let world = World::new(64, 64);
    let process = world.process(SUPERUSER);
    let fs = &process.fs;
    let inode = make_absent(&process, b"f", &content());
    let state = |found: Result<Option<Absence>, Error>| {
        let found = found.expect("it is there").expect("it is absent");
        (found.wanted, found.unavailable, found.damaged)
    };
    assert_eq!(state(fs.request_stage_in(inode)), (true, false, false));
    fs.begin_stage_in(inode).expect("it is there");
    assert_eq!(fs.fail_absent(inode, false), Ok(true));
    assert_eq!(state(fs.absence(inode)), (false, true, false));
    assert_eq!(state(fs.request_stage_in(inode)), (true, false, false));
    assert_eq!(fs.fail_absent(inode, false), Ok(false), "that attempt began before");
    assert_eq!(state(fs.absence(inode)), (true, false, false));
    assert_eq!(fs.fail_absent(inode, true), Ok(true), "another one finds the same");
    assert_eq!(state(fs.request_stage_in(inode)), (false, true, true));
    assert_eq!(fs.wanted_absent(), Ok(Vec::new()));
    let emptied = open(&process, b"f", OpenOptions { truncate: true, ..WRITE });
    process.close(emptied.expect("that needs no data")).expect("closes");
    assert_eq!(fs.request_stage_in(inode), Ok(None));
    assert_eq!(fs.fail_absent(inode, true), Ok(true));
    assert_eq!(fs.absence(inode), Ok(None), "it is absent no more");
    portrait(fs).expect("the namespace is consistent");
}

#[test]
fn hope_lasts_as_long_as_somebody_says_that_files_are_brought() {
    const PATIENCE_MS: u32 = 30_000;
    /// A moment just before the clock wraps around.
    const START: u32 = u32::MAX - 500;
    let at = |passed_ms: u32| Moment(START.wrapping_add(passed_ms));
    let world = World::new(64, 64);
    let fs = world.microfs();
    assert_eq!(fs.absence_prospect(at(0), at(PATIENCE_MS)), Prospect::Some, "it may be replaced");
    assert_eq!(fs.absence_prospect(at(0), at(PATIENCE_MS + 1)), Prospect::None);
    fs.absence_beat(at(PATIENCE_MS));
    assert_eq!(fs.absence_prospect(at(0), at(2 * PATIENCE_MS)), Prospect::Some);
    assert_eq!(fs.absence_prospect(at(0), at(2 * PATIENCE_MS + 1)), Prospect::None);
    assert_eq!(fs.absence_prospect(at(2 * PATIENCE_MS), at(2 * PATIENCE_MS + 1)), Prospect::Some);
}

/// State of a file that may be found after a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    #[default]
    Nothing,
    /// Created, and not absent yet.
    Empty,
    Absent,
    Here,
    /// Emptied and written anew.
    Rewritten,
}

fn stage_found(process: &Process) -> Result<Stage, String> {
    let said = |error: Error| format!("{error:?}");
    let found = match process.fs.stat(&process.caller(), ROOT, b"f", false) {
        Err(Error::NotFound) => return Ok(Stage::Nothing),
        found => found.map_err(said)?,
    };
    if let Some(absence) = found.absence {
        let is_right = absence.crc32c == CHECKSUM(0, &content()) && found.size == BYTES as u64;
        let handle = process.fs.open_absent(&process.caller(), found.inode).map_err(said)?;
        write(process, handle, 0, &content());
        let is_brought = end(process, handle) && read(process, b"f") == Ok(content());
        return if is_right && is_brought { Ok(Stage::Absent) } else { Err(format!("{found:?}")) };
    }
    match read(process, b"f").map_err(said)? {
        bytes if bytes.is_empty() => Ok(Stage::Empty),
        bytes if bytes == content() && !found.unclean => Ok(Stage::Here),
        bytes if b"rewritten".starts_with(&bytes) => Ok(Stage::Rewritten),
        bytes => Err(format!("{} bytes, unclean: {}", bytes.len(), found.unclean)),
    }
}

/// Checks that the state found is between the two noted stages, whichever unflushed bytes are lost.
fn judge(
    image: Image,
    superblock: &cairn_core::Superblock,
    (least, most): (Stage, Stage),
) -> Result<(), String> {
    let recovered = recover_and_attach(Arc::new(image), superblock);
    let (process, _) = recovered.map_err(|error| format!("recovery: {error:?}"))?;
    let found = stage_found(&process)?;
    portrait(&process.fs).map_err(|error| format!("{error:?}"))?;
    match (least..=most).contains(&found) {
        true => Ok(()),
        false => Err(format!("{found:?} is not between {least:?} and {most:?}")),
    }
}

/// Makes a file absent, stages a part of it in, writes a snapshot, lets the stager die, and stages
/// the file in. With `rewrites` it empties the file meanwhile.
fn workload(
    media: &Arc<cairn_testing::faulty::FaultyMedia>,
    superblock: &cairn_core::Superblock,
    rewrites: bool,
    note: &dyn Fn(Stage, Stage),
) -> Result<(), Error> {
    let memory = memory(superblock);
    cairn_core::recover(media.as_ref(), &memory, CHECKSUM)?;
    let process = attach(memory.clone(), media.clone(), superblock, 1)?;
    note(Stage::Nothing, Stage::Absent);
    let inode = make_absent(&process, b"f", &content());
    process.fs.sync()?;
    note(Stage::Absent, Stage::Absent);
    let dead = attach(memory, media.clone(), superblock, 2)?;
    let handle = dead.fs.open_absent(&dead.caller(), inode)?;
    write(&dead, handle, 0, &vec![9; 5000]);
    process.fs.sync()?;
    process.fs.write_snapshot()?;
    process.reap(dead.slot)?;
    process.fs.sync()?;
    let handle = bring(&process, inode, &content());
    process.fs.sync()?;
    if rewrites {
        note(Stage::Absent, Stage::Rewritten);
        let emptied = open(&process, b"f", OpenOptions { truncate: true, ..WRITE })?;
        write(&process, emptied, 0, b"rewritten");
        process.close(emptied)?;
        end(&process, handle);
        process.fs.sync()?;
        note(Stage::Rewritten, Stage::Rewritten);
    } else {
        note(Stage::Absent, Stage::Here);
        end(&process, handle);
        process.fs.sync()?;
        note(Stage::Here, Stage::Here);
    }
    process.fs.write_snapshot()
}

#[test]
fn crash_at_any_write_leaves_a_file_absent_or_whole() {
    for (tiers, rewrites) in [(Tiers::One, false), (Tiers::One, true), (Tiers::Apart, false)] {
        let setting = Setting { tiers, ..Setting::simple() };
        let (base, superblock) = setting.format();
        let report = for_every_crash(
            &base,
            &Budget::new(2000, 1),
            |media, progress| {
                let note = |least, most| progress.note((least, most));
                workload(media, &superblock, rewrites, &note).expect("nothing fails");
            },
            |image, stages: &(Stage, Stage)| judge(image, &superblock, *stages),
        );
        let report = report.unwrap_or_else(|failure| panic!("{tiers:?} {rewrites}: {failure}"));
        println!("{} crashes", report.images);
        assert!(report.images > 50, "{} crashes", report.images);
    }
}

#[test]
fn absent_file_whose_blocks_were_lost_with_memory_is_brought_anew() {
    let setting = Setting { tiers: Tiers::Apart, in_memory: true, ..Setting::simple() };
    let (image, superblock) = setting.format();
    let media = Arc::new(image);
    let (process, _) = recover_and_attach(media.clone(), &superblock).expect("it can be recovered");
    let inode = make_absent(&process, b"f", &content());
    let handle = process.fs.open_absent(&process.caller(), inode).expect("it is absent");
    write(&process, handle, 0, &content()[..4096]);
    process.fs.sync().expect("syncs");
    drop(process);
    let (process, _) = recover_and_attach(media, &superblock).expect("it can be recovered");
    let found = attributes(&process, b"f");
    assert_eq!((found.lost, found.unclean, found.absence.is_some()), (false, false, true));
    assert_eq!(stage_found(&process), Ok(Stage::Absent));
}
