//! Descriptions on their way between processes: what keeps them open, and what closes them.

mod common;

use cairn_device::Store;
use cairn_device::store::namespace::open_namespace;
use cairn_posix::descriptors::fd_passing::Token;
use cairn_posix::descriptors::recognition;
use cairn_posix::kernel::configuration;
use cairn_posix::task::table;
use cairn_posix::{Errno, kernel};
use common::*;

/// Reaps, as the agent does ten times a second.
fn look_after() {
    let store = Store::open(configuration::get().unwrap().store_path().to_str().unwrap().as_ref());
    open_namespace(&store.unwrap(), "node").unwrap().reap().unwrap();
    mount().fs().check().unwrap();
}

/// Returns the number of writers of a file, and whether it is unclean.
fn state(name: &str) -> (u32, bool) {
    let found = cairn_posix::files::file::stat(&at(name), true).unwrap();
    (found.writers, found.unclean)
}

/// Returns a copy of a token, as the receiver of a message gets it.
fn arrived(token: &Token) -> i32 {
    kernel::fcntl(token.number(), libc::F_DUPFD_CLOEXEC, 0).unwrap()
}

#[test]
fn description_whose_owner_closed_it_is_open_as_long_as_a_token_is_anywhere() {
    let _turn = turn();
    let file = create("sent");
    write(file, b"sender,").unwrap();
    let token = Token::of(file).unwrap();
    let copy = arrived(&token);
    close(file);
    look_after();
    drop(token);
    look_after();
    assert_eq!(state("sent"), (1, false));
    recognition::received(copy);
    assert_eq!(mount().fs().flights(), 0, "the receiver sees that nothing is on its way");
    write(copy, b"receiver").unwrap();
    let flags = kernel::fcntl(copy, libc::F_GETFD, 0);
    assert_eq!(flags, Ok(libc::FD_CLOEXEC));
    close(copy);
    assert_eq!(get("sent"), b"sender,receiver");
    assert_eq!(state("sent"), (0, false));
    remove("sent");
}

#[test]
fn token_that_nobody_receives_closes_an_orderly_file_clean_and_one_whose_writer_died_unclean() {
    let _turn = turn();
    for (name, dies) in [("orderly", false), ("killed", true)] {
        let file = create(name);
        write(file, b"abc").unwrap();
        let token = Token::of(file).unwrap();
        let ended = forked(|| {
            if dies {
                write(file, b"more").unwrap();
                // SAFETY: ends this process, which also has the file open, by a signal.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
        });
        assert_eq!(ended, if dies { 128 + libc::SIGKILL } else { 0 });
        close(file);
        look_after();
        assert_eq!(state(name).0, 1);
        drop(token);
        look_after();
        assert_eq!(state(name), (0, dies), "{name}");
        remove(name);
    }
}

#[test]
fn several_tokens_of_one_description_hold_it_together() {
    let _turn = turn();
    let file = create("twice");
    let tokens = [Token::of(file).unwrap(), Token::of(file).unwrap()];
    assert_eq!(mount().fs().flights(), 1);
    close(file);
    let [first, second] = tokens;
    drop(first);
    look_after();
    assert_eq!(state("twice"), (1, false));
    drop(second);
    look_after();
    assert_eq!((state("twice"), mount().fs().flights()), ((0, false), 0));
    remove("twice");
}

#[test]
fn token_can_be_neither_read_nor_written_and_one_that_came_unseen_is_recognised() {
    let _turn = turn();
    let file = create("unseen");
    write(file, b"abc").unwrap();
    let token = Token::of(file).unwrap();
    let copy = arrived(&token);
    assert_eq!(kernel::read(copy, &mut [0; 8]), Err(cairn_platform::sys::Errno(libc::EBADF)));
    // SAFETY: changes no handler: the Rust runtime ignores the signal already.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    assert_eq!(kernel::write(copy, b"x"), Err(cairn_platform::sys::Errno(libc::EPIPE)));
    assert!(recognition::classify(copy) && table::is_ours(copy));
    assert_eq!(kernel::write(copy, b"x"), Err(cairn_platform::sys::Errno(libc::EBADF)));
    [file, copy].into_iter().for_each(close);
    assert_eq!(Token::of(file).err(), Some(EBADF));
    drop(token);
    look_after();
    remove("unseen");
}

#[test]
fn forked_child_does_not_keep_what_its_parent_is_sending() {
    let _turn = turn();
    let file = create("forked");
    let token = Token::of(file).unwrap();
    let [reader, writer] = kernel::pipe().unwrap();
    let spawn = cairn_posix::process::Spawn::begin().unwrap();
    // SAFETY: the child leaves without the parent's exit handlers.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        spawn.child();
        close(file);
        kernel::close(writer).unwrap();
        // Stay alive until the parent has checked the file.
        let _ = kernel::read(reader, &mut [0]);
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    spawn.parent(pid);
    close(file);
    drop(token);
    while state("forked").0 > 0 {
        look_after();
    }
    kernel::close(writer).unwrap();
    assert_eq!(wait(pid), 0);
    kernel::close(reader).unwrap();
    remove("forked");
}

#[test]
fn process_without_free_numbers_cannot_send() {
    let _turn = turn();
    let file = create("unsent");
    let status = forked(|| {
        let limit = libc::rlimit { rlim_cur: file as u64 + 1, rlim_max: 4096 };
        // SAFETY: a valid limit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
        assert_eq!(Token::of(file).err(), Some(Errno(libc::EMFILE)));
    });
    assert_eq!(status, 0);
    close(file);
    look_after();
    assert_eq!(state("unsent"), (0, false));
    remove("unsent");
}
