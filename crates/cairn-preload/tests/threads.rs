//! Threads of one process that use files at the same time, are cancelled, or are at work when the
//! process ends.

mod common;

use common::same_on_both;

#[test]
fn threads_with_files_of_their_own_read_what_they_wrote() {
    same_on_both("threads", "each_has_a_file_of_its_own");
}

#[test]
fn records_that_threads_append_to_one_file_stay_whole_and_in_order() {
    same_on_both("threads", "all_append_to_one_file");
}

#[test]
fn writer_whose_file_another_thread_closes_gets_ebadf_and_loses_nothing() {
    same_on_both("threads", "one_closes_while_another_writes");
}

/// Mechanism: calls on files of ours made no system call that is a cancellation point.
/// Consequence: a thread that only read or wrote such files ran on for ever after `pthread_cancel`.
/// Fix: reading, writing and fsync look for a cancellation before they begin.
#[test]
fn cancelled_writer_ends_between_two_writes() {
    same_on_both("threads", "writer_is_cancelled");
}

#[test]
fn exit_with_busy_threads_ends_the_process_and_keeps_the_files() {
    same_on_both("threads", "process_exits_while_all_write");
}

/// Mechanism: a child has the descriptors that its parent had just before the memory, so what
/// another thread kept at hand meanwhile was not open in the child. Consequence: `open` failed
/// there with EBADF. Fix: a child looks whether what it finds at hand is what it should be.
#[test]
fn child_opens_files_that_threads_of_its_parent_open_meanwhile() {
    same_on_both("threads", "children_open_files_while_threads_do");
}

/// Mechanism: one current directory and one mask were kept for a process, whatever its threads
/// shared.
/// Consequence: after `chdir` in a thread that had called `unshare(CLONE_FS)`, relative paths of
/// all others led there.
/// Fix: such a thread has its own, and hands them to what it creates.
#[test]
fn thread_that_shares_no_directory_goes_its_own_ways() {
    same_on_both("threads", "one_goes_elsewhere");
}

/// Mechanism: where a thread was when it left was read after the kernel had parted it, and what it
/// had shared with others was never given up. Consequence: threads in a directory that nobody was
/// in, and no descriptor left after 32 767 of them.
/// Fix: kernel and record have to agree, before and after; users are counted.
#[test]
fn threads_that_leave_are_where_the_kernel_has_them_however_many_there_are() {
    same_on_both("threads", "many_go_elsewhere");
}

/// Mechanism: walks, with the functions of the program that they call, ran where panics are caught.
/// Consequence: a thread that ended or was cancelled in such a function ended the program, and an
/// order that is none broke the store for it (EIO). Fix: nothing is around them, and the C library
/// sorts.
#[test]
fn thread_ends_in_a_walk_and_others_go_on() {
    same_on_both("threads", "threads_end_in_walks");
}

/// Mechanism: once a process had given up what it has of the store, late calls of its other threads
/// failed (EIO, EINVAL, EBADF).
/// Consequence: a thread that ends the program at an error gave it another exit code than 0.
/// Fix: such a thread waits until the kernel stops it.
#[test]
fn threads_are_not_told_that_their_process_is_ending() {
    same_on_both("threads", "threads_write_until_the_end");
}
