//! Threads of one process at work at the same time: they share a process slot, its pins and its warm blocks.

mod common;

use cairn_posix::io::At;
use cairn_posix::names;
use common::*;

const THREADS: usize = 4;
const FILES: usize = 20;
const ROUNDS: usize = 300;
/// Four of these cross from a hugeblock that exists into one that is reserved.
const PIECE: usize = 9000;

/// Every thread has files of its own and begins each anew; what is freed by one is taken by another.
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
