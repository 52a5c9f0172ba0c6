//! Threads of one process at work at the same time: they share a process slot, its pins and its
//! warm blocks.

mod common;

use cairn_core::{Committed, Error, Position};
use cairn_posix::data::io::At;
use cairn_posix::files::{allocate, file, names};
use common::*;
use std::sync::atomic::{AtomicBool, Ordering};

const THREADS: usize = 4;
const FILES: usize = 20;
const ROUNDS: usize = 300;
/// Four of these cross from an existing hugeblock into a reserved one.
const PIECE: usize = 9000;

/// Every thread has files of its own and starts each from empty. Blocks that one frees are taken by
/// another.
fn rewrite(thread: usize, begin_anew: impl Fn(&str) -> i32) {
    let bytes = pattern(PIECE, thread);
    for round in 0..ROUNDS {
        let file = begin_anew(&format!("threads/{thread}.{}", round % FILES));
        for _ in 0..4 {
            assert_eq!(write(file, &bytes), Ok(PIECE));
        }
        let third = read_at(file, PIECE, At::Offset(2 * PIECE as u64)).unwrap();
        assert!(third == bytes, "thread {thread}, round {round}: another file's bytes");
        close(file);
    }
}

fn run(begin_anew: impl Fn(&str) -> i32 + Sync) {
    names::make_directory(&at("threads"), 0o755).unwrap();
    for _ in 0..10 {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let begin_anew = &begin_anew;
                scope.spawn(move || rewrite(thread, begin_anew));
            }
        });
        mount().fs().check().unwrap();
    }
    for thread in 0..THREADS {
        (0..FILES).for_each(|file| remove(&format!("threads/{thread}.{file}")));
    }
    names::remove_directory(&at("threads")).unwrap();
}

#[test]
fn threads_that_empty_and_write_their_files_do_not_get_each_others_blocks() {
    let _turn = turn();
    run(create);
}

#[test]
fn threads_that_replace_their_files_do_not_get_each_others_blocks() {
    let _turn = turn();
    run(|name| {
        let _ = names::unlink(&at(name));
        create(name)
    });
}

/// The writers take turns under one lease, which the reader recalls.
#[test]
fn threads_write_records_through_one_descriptor_then_each_is_there_once_and_whole() {
    const RECORD: usize = 100;
    const RECORDS: usize = 3000;
    let _turn = turn();
    let file = create("records");
    let begin = std::sync::Barrier::new(THREADS + 1);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let begin = &begin;
            scope.spawn(move || {
                begin.wait();
                for _ in 0..RECORDS {
                    assert_eq!(write(file, &[thread as u8 + 1; RECORD]), Ok(RECORD));
                }
            });
        }
        begin.wait();
        let mut before = 0;
        while before < (THREADS * RECORDS * RECORD) as u64 {
            let size = file::attributes(handle(file)).unwrap().size;
            assert!(size >= before && size % RECORD as u64 == 0, "{size} after {before}");
            before = size;
        }
    });
    let bytes = get("records");
    let mut counts = [0; THREADS];
    for record in bytes.chunks(RECORD) {
        assert!(record.iter().all(|byte| *byte == record[0]), "a record is torn");
        counts[record[0] as usize - 1] += 1;
    }
    assert_eq!(counts, [RECORDS; THREADS]);
    close(file);
    remove("records");
}

/// Mechanism: a process has a few pins, and a write in flight keeps one for as long as its device
/// takes. A thread that found none yielded ten thousand times, which is only milliseconds when the
/// others wait for a disk.
///
/// Consequence: sixteen threads that wrote 4 MiB each to a tier in a file got EDEADLK.
///
/// Fix: a waiting thread sleeps, and gives up only after minutes.
#[test]
fn write_waits_as_long_as_others_of_its_process_are_in_flight() {
    const ROUNDS: usize = 300_000;
    let _turn = turn();
    let file = create("in-flight");
    let (fs, caller) = (mount().fs(), caller());
    let plan = || fs.plan_write(&caller, handle(file), Position::At(0), PIECE as u64);
    let plans: Vec<_> = core::iter::from_fn(|| plan().ok()).collect();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_at(file, &pattern(PIECE, 1), At::Offset(0)));
        // Takes much longer than that many rounds of the writer would.
        assert!((0..ROUNDS).all(|_| plan().err() == Some(Error::Busy)));
        plans.iter().for_each(|plan| fs.abort_write(&caller, plan).unwrap());
        assert_eq!(writer.join().unwrap(), Ok(PIECE));
    });
    assert!(get("in-flight") == pattern(PIECE, 1));
    close(file);
    remove("in-flight");
}

/// Mechanism: as many threads as a process has pins append to a file that another thread truncates.
/// Each append keeps its place in a pin until it is planned again. For that the file's tail must be
/// zeroed, and zeroing needs a pin.
///
/// Consequence: all waited for one another until their patience ended, and their writes failed with
/// EDEADLK.
///
/// Fix: writes leave one pin of the process free, so that a tail can always be zeroed (`pin.rs`).
#[test]
fn tail_is_zeroed_while_appends_hold_every_pin_they_can_get() {
    let _turn = turn();
    put("pinned", &pattern(2 * HUGEBLOCK, 1));
    let appender = open("pinned", libc::O_WRONLY | libc::O_APPEND).unwrap();
    let (fs, caller) = (mount().fs(), caller());
    let plan = || fs.plan_write(&caller, handle(appender), Position::Cursor, PIECE as u64);
    let mut plans: Vec<_> = core::iter::from_fn(|| plan().ok()).collect();
    assert_eq!(plan().err(), Some(Error::Busy));
    file::truncate_handle(handle(appender), 1000).unwrap();
    for plan in &mut plans {
        assert_eq!(fs.commit_write(&caller, plan), Ok(Committed::Replan));
    }
    let inode = file::attributes(handle(appender)).unwrap().inode;
    let settled = fs.plan_settle(&caller, inode).map(|plan| plan.expect("the file has a tail"));
    fs.commit_settle(&caller, &settled.unwrap(), false).unwrap();
    plans.iter().for_each(|plan| fs.abort_write(&caller, plan).unwrap());
    close(appender);
    remove("pinned");
}

/// Mechanism: a read whose blocks moved meanwhile was planned again at its place. The new plan may
/// reach less far than the first, to whose end the cursor had already moved.
///
/// Consequence: the bytes in between were left out without an error.
#[test]
fn reader_at_the_cursor_leaves_nothing_out_while_blocks_move() {
    const BLOCKS: usize = 32;
    const PASSES: usize = 300;
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let _turn = turn();
    let words = (0..BLOCKS * HUGEBLOCK / 8).map(|word| word as u64 + 1);
    let content: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    put("moved", &content);
    let (reader, writer) =
        (open("moved", libc::O_RDONLY).unwrap(), open("moved", libc::O_WRONLY).unwrap());
    let is_read = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_read.load(Ordering::Relaxed) {
                for start in (0..BLOCKS).step_by(2).map(|block| block * HUGEBLOCK) {
                    allocate::change(handle(writer), PUNCH, start as i64, HUGEBLOCK as i64)
                        .unwrap();
                }
                assert_eq!(write_at(writer, &content, At::Offset(0)), Ok(content.len()));
            }
        });
        let content = &content;
        let pass = move |_| {
            file::seek(handle(reader), 0, libc::SEEK_SET).unwrap();
            let found = read(reader, content.len()).unwrap();
            let is_right = |(found, right): (&[u8], &[u8])| found == right || found == [0; 8];
            let mut words = found.chunks(8).zip(content.chunks(8));
            let wrong = words.position(|pair| !is_right(pair));
            wrong.or((found.len() < content.len()).then_some(found.len() / 8))
        };
        let read = scope.spawn(move || (0..PASSES).find_map(pass)).join();
        is_read.store(true, Ordering::Relaxed);
        assert_eq!(read.unwrap(), None, "words before this one are right");
    });
    close(reader);
    close(writer);
    remove("moved");
}
