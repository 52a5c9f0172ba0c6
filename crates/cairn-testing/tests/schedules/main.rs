//! Explores interleavings of a few processes at the critical moments: around and inside
//! transactions, and in the middle of transfers. Processes also die there.
//!
//! A failure prints its schedule: `CAIRN_TEST_SCHEDULE=<schedule> cargo test -p cairn-testing
//! --test schedules NAME` replays it, as long as the code takes the same steps.
//! `CAIRN_TEST_SEEDS=n` explores n times 100 schedules, half of them random, half by random
//! priorities (PCT); `CAIRN_TEST_SEED=s` repeats one seed.
//!
//! Does not explore reordering by the hardware, nor deaths between two changes of a transaction;
//! `death_at_every_change.rs` does the latter.

mod descriptors;
mod stage;

use cairn_core::{Caller, Error, HandleId, OpenOptions, Position, ROOT, RenameMode, Result};
use cairn_testing::driver::Process;
use cairn_testing::random::for_each_seed;
use cairn_testing::world::READ_WRITE;
use shuttle::scheduler::{
    PctScheduler, RandomScheduler, ReplayScheduler, Schedule, Scheduler, Task, TaskId,
};
use shuttle::{Config, FailurePersistence, Runner};
use stage::{Defect, Stage, check, wait};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Environment variable that replays one schedule.
const SCHEDULE_VARIABLE: &str = "CAIRN_TEST_SCHEDULE";
/// Default number of seeds.
const SEEDS: u64 = 3;
/// Number of schedules per seed, for each way to choose them.
const SCHEDULES: usize = 50;
/// Number of switches that a priority schedule places at random.
const DEPTH: usize = 4;
/// Number of schedules within which a planted defect must be found.
const CANARY_SCHEDULES: usize = 2000;
/// Most attempts at an operation that others keep busy.
const PATIENCE: usize = 500;

const BLOCK: usize = 4096;

fn run(scheduler: impl Scheduler + 'static, play: fn()) {
    let mut config = Config::new();
    // Stack frames of unoptimised code are large.
    config.stack_size = 1 << 20;
    // This applies to planted defects, too: the first runner decides for all tests of the program.
    config.failure_persistence = FailurePersistence::Print;
    Runner::new(scheduler, config).run(play);
}

/// Plays many schedules, or the one that the environment names.
fn explore(play: fn()) {
    if let Ok(schedule) = std::env::var(SCHEDULE_VARIABLE) {
        return run(ReplayScheduler::new_from_encoded(&schedule), play);
    }
    for_each_seed(SEEDS, |seed| {
        run(RandomScheduler::new_from_seed(seed, SCHEDULES), play);
        run(PctScheduler::new_from_seed(seed, DEPTH, SCHEDULES), play);
    });
}

/// Forwards a scheduler's choices and remembers those of the last schedule.
struct Recorded<S> {
    scheduler: S,
    last: Arc<Mutex<Schedule>>,
}

impl<S> Recorded<S> {
    fn last(&self) -> MutexGuard<'_, Schedule> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Scheduler> Scheduler for Recorded<S> {
    fn new_execution(&mut self) -> Option<Schedule> {
        let schedule = self.scheduler.new_execution()?;
        *self.last() = schedule.clone();
        Some(schedule)
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        let chosen = self.scheduler.next_task(runnable, current, is_yielding)?;
        self.last().push_task(chosen);
        Some(chosen)
    }

    fn next_u64(&mut self) -> u64 {
        self.last().push_random();
        self.scheduler.next_u64()
    }
}

/// Plays until something fails. Returns the message of the failure.
fn failure_of(scheduler: impl Scheduler + 'static, play: fn()) -> Option<String> {
    let played = AssertUnwindSafe(|| run(scheduler, play));
    let said = catch_unwind(played).err()?;
    let text = said.downcast_ref::<String>().cloned();
    text.or_else(|| said.downcast_ref::<&str>().map(ToString::to_string))
}

/// Finds a planted defect, and checks that replaying its schedule finds it again.
fn find(play: fn()) {
    let last = Arc::new(Mutex::new(Schedule::new(0)));
    let scheduler = PctScheduler::new_from_seed(1, DEPTH, CANARY_SCHEDULES);
    let found = failure_of(Recorded { scheduler, last: last.clone() }, play);
    assert!(found.is_some(), "the defect is not found within {CANARY_SCHEDULES} schedules");
    let schedule = last.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let again = failure_of(ReplayScheduler::new_from_schedule(schedule), play);
    assert_eq!(found, again, "the schedule that showed the defect shows it again");
}

/// Repeats an operation that fails only because others are in the way or there is no space yet.
fn retry_while_busy<R>(mut act: impl FnMut() -> Result<R>) -> Option<R> {
    for _ in 0..PATIENCE {
        match act() {
            Ok(result) => return Some(result),
            Err(Error::Busy | Error::NoSpace) => wait(),
            Err(error) => panic!("{error:?}"),
        }
    }
    None
}

/// Writes as the POSIX layer does: it waits while others are in the way, and keeps the place of an
/// append meanwhile. Returns the number of bytes that found space.
fn write(process: &Process, handle: HandleId, at: Position, bytes: &[u8]) -> usize {
    let caller = process.caller();
    let mut begun = process.begin_leased(&caller, handle, at, bytes);
    if begun.is_none() {
        if process.write_small(&caller, handle, at, bytes).expect("it is open").is_some() {
            return bytes.len();
        }
        begun = retry_while_busy(|| process.begin_write(&caller, handle, at, bytes));
    }
    let Some(mut write) = begun else { return 0 };
    process.transfer(&mut write).expect("the tier takes bytes");
    while !process.commit(&caller, &mut write).expect("it was planned") {
        if retry_while_busy(|| process.replan(&caller, handle, &mut write)).is_none() {
            process.abort(&caller, &write).expect("it can always be given up");
            break;
        }
    }
    write.done as usize
}

fn open(process: &Process, path: &[u8], options: OpenOptions) -> HandleId {
    process.fs.open_file(&process.caller(), ROOT, path, options, 0o644).expect("it opens").handle
}

/// Creates a file of these bytes and leaves it open.
fn create(process: &Process, path: &[u8], bytes: &[u8]) -> HandleId {
    let handle = open(process, path, READ_WRITE);
    let written = process.write(&process.caller(), handle, Position::At(0), bytes);
    assert_eq!(written, Ok((0, bytes.len() as u64)));
    handle
}

fn read_all(process: &Process, handle: HandleId) -> Vec<u8> {
    let read = process.read(&process.caller(), handle, Position::At(0), 1 << 20);
    read.expect("it is open for reading").1
}

fn truncate(process: &Process, path: &[u8], size: u64) {
    let inode = process.fs.resolve(&process.caller(), ROOT, path, true).expect("it exists");
    retry_while_busy(|| process.truncate(&process.caller(), inode, size));
}

/// One process renames to and fro, one creates and removes names; both are mortal. A third one
/// looks.
fn names(defect: Defect) {
    let stage = Stage::new(8, defect);
    let agent = stage.process();
    let caller = agent.caller();
    agent.fs.make_directory(&caller, ROOT, b"d", 0o755).expect("the name is new");
    let moved = open(&agent, b"a", READ_WRITE);
    stage.start_mortal(|process| {
        let (here, there) = ((ROOT, &b"a"[..]), (ROOT, &b"d/b"[..]));
        for (from, to) in [(here, there), (there, here), (here, there)] {
            let renamed = process.fs.rename(&process.caller(), from, to, RenameMode::Replace);
            renamed.expect("nobody else renames it");
        }
    });
    stage.start_mortal(|process| {
        for _ in 0..2 {
            process.close(open(process, b"d/c", READ_WRITE)).expect("it is open");
            process.fs.unlink(&process.caller(), ROOT, b"d/c").expect("nobody else removes it");
        }
    });
    stage.start(|process| {
        for _ in 0..3 {
            check(process);
        }
    });
    stage.settle(&agent);
    let exists = |path: &[u8]| agent.fs.resolve(&agent.caller(), ROOT, path, true).is_ok();
    assert!(exists(b"a") != exists(b"d/b"), "it has one name");
    let inode = agent.fs.handle(moved).expect("it is open").inode;
    assert_eq!(agent.fs.attributes(inode).expect("it is open").links, 1);
    drop(agent);
    stage.end();
}

#[test]
fn names_are_changed_by_mortals_then_each_change_happened_or_did_not() {
    explore(|| names(Defect::None));
}

#[test]
fn lock_that_lets_everybody_in_is_found() {
    find(|| names(Defect::LockLetsIn));
}

#[test]
fn death_in_the_lock_that_nobody_sees_is_found() {
    find(|| names(Defect::DeathUnseen));
}

/// Reads like a reader that does not check whether the blocks still belong to the file.
fn read_carelessly(process: &Process, handle: HandleId) -> Vec<u8> {
    let caller = process.caller();
    let plan = process.fs.plan_read(&caller, handle, Position::At(0), 1 << 20).expect("it is open");
    let mut bytes = Vec::new();
    for run in plan.runs() {
        let start = bytes.len();
        bytes.resize(start + run.bytes as usize, 0);
        if let Some((_, offset)) = run.source {
            process.fetch(offset, &mut bytes[start..]).expect("the heap works");
        }
    }
    bytes
}

/// Reads a file while a mortal process empties it and another fills a new file with the freed
/// blocks.
fn reading(read: fn(&Process, HandleId) -> Vec<u8>) {
    let stage = Stage::new(4, Defect::None);
    let agent = stage.process();
    create(&agent, b"a", &[b'a'; 3 * BLOCK]);
    stage.start(move |process| {
        let handle = open(process, b"a", READ_WRITE);
        for _ in 0..3 {
            let bytes = read(process, handle);
            let foreign = bytes.iter().find(|&&byte| byte != b'a');
            assert_eq!(foreign, None, "bytes of another file among {}", bytes.len());
        }
    });
    stage.start_mortal(|process| {
        truncate(process, b"a", BLOCK as u64 + 100);
        truncate(process, b"a", 0);
        process.reclaim().expect("orphans can be freed");
    });
    stage.start_mortal(|process| {
        let handle = open(process, b"b", READ_WRITE);
        let bytes = [b'b'; 3 * BLOCK];
        write(process, handle, Position::At(0), &bytes);
    });
    stage.settle(&agent);
    drop(agent);
    stage.end();
}

#[test]
fn file_is_emptied_while_it_is_read_then_no_foreign_bytes_are_seen() {
    explore(|| reading(read_all));
}

#[test]
fn reader_that_does_not_look_back_is_found() {
    find(|| reading(read_carelessly));
}

/// Reads an open file to its end, although it was unlinked and its blocks are wanted.
fn unlinking() {
    let stage = Stage::new(5, Defect::None);
    let agent = stage.process();
    agent.close(create(&agent, b"a", &[b'a'; 2 * BLOCK])).expect("it is open");
    let reader = stage.process();
    let handle = open(&reader, b"a", READ_WRITE);
    stage.start_mortal(|process| {
        let _ = process.fs.unlink(&process.caller(), ROOT, b"a");
        process.reclaim().expect("orphans can be freed");
    });
    stage.start_mortal(|process| {
        let handle = open(process, b"b", READ_WRITE);
        let bytes = [b'b'; 4 * BLOCK];
        write(process, handle, Position::At(0), &bytes);
    });
    stage.start(move |_| {
        for _ in 0..3 {
            assert!(read_all(&reader, handle) == [b'a'; 2 * BLOCK], "an open file keeps its bytes");
        }
        reader.close(handle).expect("it is open");
        reader.reclaim().expect("orphans can be freed");
    });
    stage.settle(&agent);
    drop(agent);
    stage.end();
}

#[test]
fn open_file_is_unlinked_then_its_reader_keeps_its_bytes() {
    explore(unlinking);
}

/// A mortal process overwrites a file while another one empties it and a third fills a new file.
fn overwriting(defect: Defect) {
    let stage = Stage::new(4, defect);
    let agent = stage.process();
    create(&agent, b"a", &[b'a'; 3 * BLOCK]);
    stage.start_mortal(|process| {
        let handle = open(process, b"a", READ_WRITE);
        for (at, length) in [(0, 2 * BLOCK), (100, BLOCK), (BLOCK as u64, 50)] {
            let bytes = vec![b'w'; length];
            write(process, handle, Position::At(at), &bytes);
        }
    });
    stage.start(|process| {
        truncate(process, b"a", 0);
        process.reclaim().expect("orphans can be freed");
    });
    let mine = stage.process();
    stage.start(move |_| {
        let handle = open(&mine, b"b", READ_WRITE);
        let bytes = [b'b'; 2 * BLOCK];
        let length = write(&mine, handle, Position::At(0), &bytes);
        for _ in 0..3 {
            let bytes = read_all(&mine, handle);
            assert!(bytes == vec![b'b'; length], "bytes of another file's writer");
        }
        mine.close(handle).expect("it is open");
    });
    stage.settle(&agent);
    verify(&agent, b"a", &|_, byte| matches!(byte, 0 | b'a' | b'w'));
    verify(&agent, b"b", &|_, byte| byte == b'b');
    drop(agent);
    stage.end();
}

/// Checks that every byte of a file is a possible one, and that the checksums match.
fn verify(process: &Process, path: &[u8], may_be: &dyn Fn(usize, u8) -> bool) {
    let opened = process.fs.open_file(&process.caller(), ROOT, path, READ_WRITE, 0o644);
    let opened = opened.expect("it opens");
    let bytes = read_all(process, opened.handle);
    for (at, &byte) in bytes.iter().enumerate() {
        assert!(may_be(at, byte), "byte {at} of {} is {byte:#x}", String::from_utf8_lossy(path));
    }
    process.verify_blocks(opened.inode, opened.handle).expect("its blocks can be checked");
    process.close(opened.handle).expect("it is open");
}

#[test]
fn file_is_emptied_while_it_is_overwritten_then_writes_reach_no_other_file() {
    explore(|| overwriting(Defect::None));
}

#[test]
fn freeing_of_blocks_that_are_being_written_is_found() {
    find(|| overwriting(Defect::PinsUnseen));
}

/// Returns the runs of equal bytes with their lengths.
fn lengths(bytes: &[u8]) -> Vec<(u8, usize)> {
    bytes.chunk_by(|one, next| one == next).map(|run| (run[0], run.len())).collect()
}

/// Two processes append records while a third one reads them.
fn appending(first_is_mortal: bool) {
    const RECORD: [usize; 2] = [3000, 700];
    const RECORDS: usize = 3;
    let append = OpenOptions { append: true, ..READ_WRITE };
    let stage = Stage::new(8, Defect::None);
    let agent = stage.process();
    agent.close(create(&agent, b"log", b"")).expect("it is open");
    let writer = move |number: usize| {
        move |process: &Process| {
            let handle = open(process, b"log", append);
            for record in 0..RECORDS {
                let bytes = vec![(16 * (number + 1) + record) as u8; RECORD[number]];
                let written = write(process, handle, Position::Cursor, &bytes);
                assert_eq!(written, bytes.len(), "there is space for all");
            }
        }
    };
    match first_is_mortal {
        true => stage.start_mortal(writer(0)),
        false => stage.start(writer(0)),
    }
    stage.start(writer(1));
    let length_of = |fill: u8| RECORD[usize::from(fill >> 4) - 1];
    // Returns the fills of the records in a log, in order. A writer that died leaves some of its
    // bytes, then zeros.
    let records = move |mut log: &[u8]| {
        let mut fills = Vec::new();
        while let Some(&fill) = log.first() {
            let length = if fill == 0 { RECORD[0] } else { length_of(fill) };
            let (record, rest) = log.split_at_checked(length).expect("no record is cut");
            match lengths(record)[..] {
                [(0, _)] | [_, (0, _)] if first_is_mortal && fill >> 4 <= 1 => {}
                [_] if fill != 0 => fills.push(fill),
                _ => panic!("record {fill:#x} is not whole: {:x?}", lengths(record)),
            }
            log = rest;
        }
        fills
    };
    let known = stage.process();
    stage.start(move |_| {
        let handle = open(&known, b"log", READ_WRITE);
        let mut before = Vec::new();
        for _ in 0..3 {
            let fills = records(&read_all(&known, handle));
            assert!(fills.starts_with(&before), "{before:?} became {fills:?}");
            before = fills;
        }
        known.close(handle).expect("it is open");
    });
    let died = stage.settle(&agent);
    let log = open(&agent, b"log", READ_WRITE);
    let mut fills = records(&read_all(&agent, log));
    for number in 0..2 {
        let own: Vec<u8> = fills.iter().copied().filter(|fill| fill >> 4 == number + 1).collect();
        assert!(own.is_sorted(), "a writer's records are in order: {own:?}");
    }
    fills.sort_unstable();
    fills.dedup();
    if died == 0 {
        assert_eq!(fills, [0x10, 0x11, 0x12, 0x20, 0x21, 0x22]);
    }
    assert!(fills.ends_with(&[0x20, 0x21, 0x22]), "the living writer's records: {fills:x?}");
    verify(&agent, b"log", &|_, _| true);
    drop(agent);
    stage.end();
}

#[test]
fn two_append_then_every_record_is_there_once_and_whole() {
    explore(|| appending(false));
}

#[test]
fn appender_dies_then_the_records_of_the_other_are_there() {
    explore(|| appending(true));
}

/// A mortal process appends records under leases. Others recall them: a process that appends
/// sometimes, and a reader.
fn continuing(defect: Defect) {
    const RECORD: usize = 600;
    const RECORDS: u8 = 7;
    const RARE: [u8; 700] = [0xee; 700];
    let append = OpenOptions { append: true, ..READ_WRITE };
    let stage = Stage::new(8, defect);
    let agent = stage.process();
    agent.close(create(&agent, b"log", b"")).expect("it is open");
    stage.start_mortal(move |process| {
        let handle = open(process, b"log", append);
        for fill in 1..=RECORDS {
            let written = write(process, handle, Position::Cursor, &[fill; RECORD]);
            assert_eq!(written, RECORD, "there is space for all");
        }
    });
    stage.start(move |process| {
        for _ in 0..2 {
            let handle = open(process, b"log", append);
            assert_eq!(write(process, handle, Position::Cursor, &RARE), RARE.len());
            process.close(handle).expect("it is open");
        }
    });
    let records = |mut log: &[u8]| {
        let mut fills = Vec::new();
        while let Some(&fill) = log.first() {
            let length = if fill == RARE[0] { RARE.len() } else { RECORD };
            let (record, rest) = log.split_at_checked(length).expect("no record is cut");
            match lengths(record)[..] {
                // The death of its writer left this record incomplete.
                [(0, _)] | [_, (0, _)] if fill != RARE[0] => {}
                [_] => fills.push(fill),
                _ => panic!("record {fill:#x} is not whole: {:x?}", lengths(record)),
            }
            log = rest;
        }
        fills
    };
    let reader = stage.process();
    stage.start(move |_| {
        let handle = open(&reader, b"log", OpenOptions { write: false, ..READ_WRITE });
        let mut before = Vec::new();
        for _ in 0..3 {
            let fills = records(&read_all(&reader, handle));
            assert!(fills.starts_with(&before), "{before:?} became {fills:?}");
            before = fills;
        }
        reader.close(handle).expect("it is open");
    });
    let died = stage.settle(&agent);
    let log = open(&agent, b"log", READ_WRITE);
    let fills = records(&read_all(&agent, log));
    let mine: Vec<u8> = fills.iter().copied().filter(|&fill| fill != RARE[0]).collect();
    let expected: Vec<u8> = (1..=RECORDS).collect();
    assert!(expected.starts_with(&mine) && (died > 0 || mine == expected), "{fills:x?}");
    assert_eq!(fills.len() - mine.len(), 2, "the living writer's records: {fills:x?}");
    verify(&agent, b"log", &|_, _| true);
    drop(agent);
    stage.end();
}

#[test]
fn leases_are_recalled_while_records_are_written_then_each_is_there_once_and_whole() {
    explore(|| continuing(Defect::None));
}

#[test]
fn recall_that_overlooks_a_write_under_way_is_found() {
    find(|| continuing(Defect::BusyUnseen));
}

/// A file that a mortal process writes under leases is truncated and extended, and its blocks are
/// wanted for another file.
fn cutting() {
    let stage = Stage::new(5, Defect::None);
    let agent = stage.process();
    stage.start_mortal(|process| {
        let handle = open(process, b"a", READ_WRITE);
        for _ in 0..8 {
            write(process, handle, Position::Cursor, &[b'w'; 700]);
        }
    });
    agent.close(create(&agent, b"a", b"")).expect("it is open");
    stage.start_mortal(|process| {
        truncate(process, b"a", 1000);
        truncate(process, b"a", 6000);
        truncate(process, b"a", 0);
        process.reclaim().expect("orphans can be freed");
    });
    let other = stage.process();
    stage.start(move |_| {
        let handle = open(&other, b"b", READ_WRITE);
        let length = write(&other, handle, Position::At(0), &[b'b'; 2 * BLOCK]);
        for _ in 0..2 {
            assert!(read_all(&other, handle) == vec![b'b'; length], "bytes of another file");
        }
        other.close(handle).expect("it is open");
    });
    stage.settle(&agent);
    verify(&agent, b"a", &|_, byte| matches!(byte, 0 | b'w'));
    verify(&agent, b"b", &|_, byte| byte == b'b');
    drop(agent);
    stage.end();
}

#[test]
fn file_is_cut_while_it_is_written_under_leases_then_writes_reach_no_other_file() {
    explore(cutting);
}

/// A file is truncated, extended and written behind its old end while it is read. The bytes between
/// are zeros.
fn growing() {
    const CUT: usize = 100;
    const GROWN: usize = 6000;
    let stage = Stage::new(8, Defect::None);
    let agent = stage.process();
    create(&agent, b"a", &[b'a'; BLOCK + 1000]);
    let may_be = |at: usize, byte: u8| match byte {
        b'a' => at < BLOCK + 1000,
        b'w' => at >= GROWN,
        0 => at >= CUT,
        _ => false,
    };
    stage.start_mortal(|process| {
        truncate(process, b"a", CUT as u64);
        truncate(process, b"a", GROWN as u64);
    });
    stage.start_mortal(|process| {
        let handle = open(process, b"a", READ_WRITE);
        let at = Position::At(GROWN as u64);
        write(process, handle, at, &[b'w'; 3000]);
        let _ = process.seal(process.fs.handle(handle).expect("it is open").inode);
    });
    let reader = stage.process();
    stage.start(move |_| {
        let handle = open(&reader, b"a", READ_WRITE);
        for _ in 0..3 {
            for (at, &byte) in read_all(&reader, handle).iter().enumerate() {
                assert!(may_be(at, byte), "byte {at} is {byte:#x}");
            }
        }
        reader.close(handle).expect("it is open");
    });
    stage.settle(&agent);
    verify(&agent, b"a", &may_be);
    drop(agent);
    stage.end();
}

#[test]
fn file_is_cut_and_grown_then_what_is_between_is_zeros() {
    explore(growing);
}

/// A process ends in an orderly way while another of its threads writes.
fn ending() {
    let stage = Stage::new(8, Defect::None);
    let agent = stage.process();
    let process = stage.process();
    let handle = create(&process, b"file", b"");
    let slot = process.slot;
    stage.start(move |thread| {
        let caller = Caller { slot, ..thread.caller() };
        for at in 0..3 {
            let at = Position::At(at * BLOCK as u64);
            let Ok(mut write) = thread.begin_write(&caller, handle, at, &[1; BLOCK]) else { break };
            thread.transfer(&mut write).expect("the tier takes bytes");
            // The process may have ended.
            let _ = thread.commit(&caller, &mut write);
        }
    });
    stage.start(move |other| {
        process.fs.detach(slot, other.caller().now).expect("it is attached");
    });
    stage.settle(&agent);
    drop(agent);
    stage.end();
}

/// Mechanism: the writes of an ending process were given up before its open files, in separate
/// transactions. Another thread could begin a write between them.
///
/// Consequence: that write was never given up. Its blocks were lost, and blocks freed since were
/// not used again.
///
/// Fix: the writes are given up in the transaction that frees the slot.
#[test]
fn process_ends_while_its_threads_write_then_nothing_of_them_is_left() {
    explore(ending);
}
