//! Several processes on one mount: inheritance, orderly and violent ends, descriptors that appear
//! without a call that we saw.

mod common;

use cairn_core::Position;
use cairn_posix::data::io::At;
use cairn_posix::descriptors::{internal, recognition};
use cairn_posix::kernel;
use cairn_posix::process::{Exec, Spawn};
use cairn_posix::task::table;
use common::*;

#[test]
fn child_shares_the_cursor_and_its_close_does_not_close_the_parents() {
    let _turn = turn();
    let file = create("shared");
    write(file, b"parent,").unwrap();
    let status = forked(|| {
        write(file, b"child,").unwrap();
        close(file);
        assert!(!table::is_ours(file));
    });
    assert_eq!(status, 0);
    write(file, b"parent").unwrap();
    close(file);
    assert_eq!(get("shared"), b"parent,child,parent");
    remove("shared");
}

/// Mechanism: a child gave up a descriptor with its parent's slot, so the parent lost its
/// reference.
///
/// Consequence: the next process to inherit the file found it closed.
///
/// Fix: a child's slot counts from the fork on.
#[test]
fn child_that_only_closes_gives_up_its_own_reference() {
    let _turn = turn();
    let file = create("closed-in-child");
    let null = kernel::openat(libc::AT_FDCWD, c"/dev/null", libc::O_RDWR, 0).unwrap();
    for replaces in [false, true] {
        let status = forked(|| match replaces {
            true => assert_eq!(
                cairn_posix::descriptors::descriptor::duplicate_to(null, file, 0),
                Ok(file)
            ),
            false => close(file),
        });
        assert_eq!(status, 0);
        assert_eq!(write(file, b"mine"), Ok(4));
    }
    let status = forked(|| assert_eq!(write(file, b"yours"), Ok(5)));
    assert_eq!(status, 0);
    kernel::close(null).unwrap();
    close(file);
    assert_eq!(get("closed-in-child"), b"minemineyours");
    remove("closed-in-child");
}

#[test]
fn child_outlives_the_parents_close() {
    let _turn = turn();
    let file = create("handed-on");
    let [reader, writer] = kernel::pipe().unwrap();
    let spawn = Spawn::begin().unwrap();
    // SAFETY: the child leaves without the parent's exit handlers.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        spawn.child();
        let _ = kernel::read(reader, &mut [0]);
        let written = write(file, b"late");
        cairn_posix::process::end();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(written != Ok(4))) };
    }
    spawn.parent(pid);
    close(file);
    kernel::write(writer, b"x").unwrap();
    assert_eq!(wait(pid), 0);
    [reader, writer].into_iter().for_each(|end| kernel::close(end).unwrap());
    assert_eq!(get("handed-on"), b"late");
    remove("handed-on");
}

#[test]
fn fork_that_nobody_announced_still_has_its_files() {
    let _turn = turn();
    let file = create("unseen");
    // SAFETY: the child leaves without the parent's exit handlers.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let written = write(file, b"written");
        cairn_posix::process::end();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(written != Ok(7))) };
    }
    assert_eq!(wait(pid), 0);
    close(file);
    assert_eq!(get("unseen"), b"written");
    remove("unseen");
}

#[test]
fn killed_writer_leaves_its_file_unclean_and_an_orderly_one_does_not() {
    let _turn = turn();
    let ending = |name: &str, end: fn()| {
        forked(|| {
            let file = create(name);
            write(file, b"abc").unwrap();
            end();
        })
    };
    // SAFETY: ends this process by a signal.
    let killed = ending("killed", || unsafe { libc::abort() });
    assert_eq!(killed, 128 + libc::SIGABRT);
    assert_eq!(ending("orderly", || ()), 0);
    let closed = forked(|| {
        put("closed", b"abc");
        // SAFETY: ends this process by a signal.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    });
    assert_eq!(closed, 128 + libc::SIGKILL);
    reap();
    let state = |name| {
        let found = cairn_posix::files::file::stat(&at(name), true).unwrap();
        (found.unclean, found.writers, found.size)
    };
    assert_eq!(state("killed"), (true, 0, 3));
    assert_eq!(state("orderly"), (false, 0, 3));
    assert_eq!(state("closed"), (false, 0, 3));
    ["killed", "orderly", "closed"].into_iter().for_each(remove);
}

/// Mechanism: writes in flight of a killed process stay in flight until the process is reaped. A
/// waiting writer waited for milliseconds only; the agent reaps ten times a second, if it lives.
///
/// Consequence: a write that grew a file in which another process was killed failed with EDEADLK.
///
/// Fix: a writer that has waited for long reaps the dead itself.
#[test]
fn file_grows_though_a_process_was_killed_while_it_wrote_to_it_or_settled_it() {
    let _turn = turn();
    let end_in = |begin: &dyn Fn(i32)| {
        put("grows", b"abc");
        let status = forked(|| {
            begin(open("grows", libc::O_RDWR).unwrap());
            // SAFETY: ends this process by a signal.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        });
        assert_eq!(status, 128 + libc::SIGKILL);
        let file = open("grows", libc::O_RDWR).unwrap();
        assert_eq!(write_at(file, b"d", At::Offset(99)), Ok(1));
        assert_eq!(read_at(file, 4, At::Offset(96)).unwrap(), b"\0\0\0d");
        close(file);
        remove("grows");
    };
    end_in(&|file| {
        mount().fs().plan_write(&caller(), handle(file), Position::At(0), 3).unwrap();
    });
    end_in(&|file| {
        let inode = cairn_posix::files::file::attributes(handle(file)).unwrap().inode;
        assert!(mount().fs().plan_settle(&caller(), inode).unwrap().is_some());
    });
}

#[test]
fn process_in_which_a_panic_was_caught_gets_eio_and_no_other_does() {
    let _turn = turn();
    let eio = cairn_posix::Errno(libc::EIO);
    let file = create("poisoned");
    let status = forked(|| {
        write(file, b"before,").unwrap();
        cairn_posix::mount::poison();
        assert_eq!(write(file, b"never"), Err(eio));
        assert_eq!(errno(open("poisoned", libc::O_RDONLY)), eio.0);
    });
    assert_eq!(status, 0);
    write(file, b"after").unwrap();
    close(file);
    assert_eq!(get("poisoned"), b"before,after");
    reap();
    assert!(cairn_posix::files::file::stat(&at("poisoned"), true).unwrap().unclean);
    remove("poisoned");
}

#[test]
fn exec_gives_up_what_the_parent_still_holds_and_gets_it_back_when_it_fails() {
    let _turn = turn();
    let file = open("before-exec", libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC).unwrap();
    let processes = usage().processes;
    let status = forked(|| {
        assert_eq!(usage().processes, processes + 1);
        let exec = Exec::begin(false);
        // No descriptor survives the exec, so the child holds nothing in the store.
        exec.failed();
        write(file, b"still here").unwrap();
    });
    assert_eq!(status, 0);
    assert_eq!(usage().processes, processes);
    close(file);
    assert_eq!(get("before-exec"), b"still here");
    remove("before-exec");
}

#[test]
fn process_that_executed_another_program_ends_clean() {
    let _turn = turn();
    let status = forked(|| {
        let file = create("executed");
        write(file, b"abc").unwrap();
        let _exec = Exec::begin(false);
        // SAFETY: the executed program ends at once; if there is none, the assertion fails.
        unsafe { libc::execl(c"/bin/true".as_ptr(), c"true".as_ptr(), core::ptr::null::<i8>()) };
        unreachable!();
    });
    assert_eq!(status, 0);
    reap();
    let found = cairn_posix::files::file::stat(&at("executed"), true).unwrap();
    assert_eq!((found.unclean, found.writers), (false, 0));
    remove("executed");
}

#[test]
fn unknown_descriptor_on_a_placeholder_is_recognised() {
    let _turn = turn();
    put("known", b"0123456789");
    let file = open("known", libc::O_RDONLY).unwrap();
    assert_eq!(read(file, 4).unwrap(), b"0123");
    // A duplicate made without our hooks, as descriptor passing makes them.
    let duplicate = kernel::fcntl(file, libc::F_DUPFD, 0).unwrap();
    assert!(!table::is_ours(duplicate));
    assert!(recognition::classify(duplicate));
    assert_eq!(read(duplicate, 3).unwrap(), b"456");
    let null = kernel::openat(libc::AT_FDCWD, c"/dev/null", libc::O_RDONLY, 0).unwrap();
    assert!(!recognition::classify(null) && !recognition::classify(-1));
    kernel::close(null).unwrap();
    [file, duplicate].into_iter().for_each(close);
    remove("known");
}

#[test]
fn our_own_descriptors_are_told_from_the_applications() {
    let _turn = turn();
    let file = create("own");
    let internal: Vec<i32> = (3..2000).filter(|&number| internal::is_internal(number)).collect();
    assert!(!internal.is_empty() && !internal.contains(&file));
    cairn_posix::descriptors::descriptor::close_range(3, u32::MAX).unwrap();
    assert!(!table::is_ours(file));
    for &number in &internal {
        assert!(kernel::fcntl(number, libc::F_GETFD, 0).is_ok(), "{number} was closed");
    }
    put("own", b"works on");
    assert_eq!(get("own"), b"works on");
    remove("own");
}

#[test]
fn concurrent_appenders_lose_nothing() {
    let _turn = turn();
    const WRITERS: usize = 4;
    const RECORDS: usize = 200;
    put("appended", b"");
    let children: Vec<i32> = (0..WRITERS)
        .map(|writer| {
            let spawn = Spawn::begin().unwrap();
            // SAFETY: the child leaves without the parent's exit handlers.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                spawn.child();
                let file = open("appended", libc::O_WRONLY | libc::O_APPEND).unwrap();
                let record = [b'a' + writer as u8; 100];
                let complete = (0..RECORDS).all(|_| write(file, &record) == Ok(100));
                cairn_posix::process::end();
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(!complete)) };
            }
            spawn.parent(pid);
            pid
        })
        .collect();
    assert!(children.into_iter().all(|pid| wait(pid) == 0));
    let content = get("appended");
    assert_eq!(content.len(), WRITERS * RECORDS * 100);
    assert!(content.chunks(100).all(|record| record.iter().all(|byte| *byte == record[0])));
    remove("appended");
}

#[test]
fn threads_write_their_own_parts_of_one_file() {
    let _turn = turn();
    let file = create("parts");
    const PART: usize = 40_000;
    std::thread::scope(|scope| {
        for part in 0..12 {
            scope.spawn(move || {
                let bytes = pattern(PART, part);
                let offset = (part * PART) as u64;
                assert_eq!(write_at(file, &bytes, At::Offset(offset)), Ok(PART));
            });
        }
    });
    close(file);
    let content = get("parts");
    for part in 0..12 {
        assert_eq!(content[part * PART..(part + 1) * PART], pattern(PART, part), "part {part}");
    }
    remove("parts");
}
