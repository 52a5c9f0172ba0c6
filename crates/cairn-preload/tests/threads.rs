//! Threads of one process that use files at the same time, are cancelled, or are running when the
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

/// Mechanism: calls on Cairn files made no system call that is a cancellation point. Consequence: a
/// thread that only read or wrote such files ran forever after `pthread_cancel`. Fix: read, write
/// and fsync check for a cancellation before they begin.
#[test]
fn cancelled_writer_ends_between_two_writes() {
    same_on_both("threads", "writer_is_cancelled");
}

#[test]
fn exit_with_busy_threads_ends_the_process_and_keeps_the_files() {
    same_on_both("threads", "process_exits_while_all_write");
}

/// Mechanism: fork copies the descriptors before the memory. A descriptor that another thread put
/// into reserve in between was not open in the child. Consequence: `open` failed in the child with
/// EBADF. Fix: a child checks each reserved descriptor before use.
#[test]
fn child_opens_files_that_threads_of_its_parent_open_meanwhile() {
    same_on_both("threads", "children_open_files_while_threads_do");
}

/// Mechanism: one current directory and one umask were kept per process, whatever its threads
/// shared. Consequence: after `chdir` in a thread that had called `unshare(CLONE_FS)`, relative
/// paths of all other threads started there. Fix: such a thread has its own, and passes them to
/// threads and processes it creates.
#[test]
fn thread_that_shares_no_directory_goes_its_own_ways() {
    same_on_both("threads", "one_goes_elsewhere");
}

/// Mechanism: the current directory of a thread that called `unshare` was read after the kernel had
/// separated it, and what the thread had shared was never released. Consequence: threads in a
/// directory that no thread was in, and no descriptor left after 32 767 such threads. Fix: the
/// kernel and our record must agree before and after; users are counted.
#[test]
fn threads_that_leave_are_where_the_kernel_has_them_however_many_there_are() {
    same_on_both("threads", "many_go_elsewhere");
}

/// Mechanism: directory walks, including the program's callbacks, ran where panics are caught.
/// Consequence: a thread that ended or was cancelled in a callback ended the program, and an
/// inconsistent comparison function made the store unusable for it (EIO). Fix: nothing surrounds
/// callbacks, and the C library sorts.
#[test]
fn thread_ends_in_a_walk_and_others_go_on() {
    same_on_both("threads", "threads_end_in_walks");
}

/// Mechanism: after a process had released its part of the store, late calls of its other threads
/// failed (EIO, EINVAL, EBADF). Consequence: a thread that ends the program at an error gave it an
/// exit code other than 0. Fix: such a thread waits until the kernel stops it.
#[test]
fn threads_are_not_told_that_their_process_is_ending() {
    same_on_both("threads", "threads_write_until_the_end");
}
