//! The weakened and refused behaviour in docs/SEMANTICS.md, call by call. These programs would
//! print something else on a disk.

mod common;

use common::{Stage, errors, text};

/// Plays one case below the mount and returns its output.
fn on_cairn(program: &str, case: &str) -> String {
    let stage = Stage::new();
    let mut command = stage.command(common::cairn());
    command.args(["run", "--discard", "--"]).arg(stage.compile(program)).args([case, "/cairn"]);
    // Instructions are not caught here, so that the output does not depend on the kernel.
    let played = command.env("CAIRN_RAW_CALLS", "pass").output().expect("cairn starts");
    assert_eq!(played.status.code(), Some(0), "{case}: {}", errors(&played));
    text(&played)
}

fn refused(case: &str, expected: &[&str]) {
    assert_eq!(on_cairn("refused", case).lines().collect::<Vec<_>>(), expected, "{case}");
}

fn weakened(case: &str, expected: &[&str]) {
    assert_eq!(on_cairn("weakened", case).lines().collect::<Vec<_>>(), expected, "{case}");
}

#[test]
fn modes_of_fallocate_and_unknown_flags_are_refused() {
    refused(
        "space",
        &[
            "fallocate mode 0x1: EOPNOTSUPP",
            "fallocate mode 0x2: EOPNOTSUPP",
            "fallocate mode 0x4: EOPNOTSUPP",
            "fallocate mode 0x8: EOPNOTSUPP",
            "fallocate mode 0x10: served",
            "fallocate mode 0x20: EOPNOTSUPP",
            "fallocate mode 0x40: EOPNOTSUPP",
            "fallocate: served",
            "fallocate to keep the size behind the end: EOPNOTSUPP",
            "fallocate to keep the size: served",
            "preadv2 of an unknown flag: EOPNOTSUPP",
            "pwritev2 RWF_DSYNC: served",
        ],
    );
}

#[test]
fn calls_on_names_that_cannot_be_served_are_refused() {
    refused(
        "names",
        &[
            "setxattr of security: EOPNOTSUPP",
            "setxattr of trusted: EOPNOTSUPP",
            "getxattr of a list of rights: EOPNOTSUPP",
            "setxattrat: ENOSYS",
            "listxattrat of a descriptor: ENOSYS",
            "open a directory to write: EISDIR",
            "name_to_handle_at: EOPNOTSUPP",
            "mkfifo: EPERM",
            "mknod of a socket: EPERM",
            "mknod of a device: EPERM",
            "mknod of a file: served",
            "bind: ENOENT",
            "dlopen: /cairn/f: cannot open shared object file: No such file or directory",
            "rename to outside: EXDEV",
            "link to outside: EXDEV",
        ],
    );
}

#[test]
fn events_device_control_and_calls_past_the_library_are_refused() {
    refused(
        "events_and_devices",
        &[
            "epoll_ctl: EPERM",
            "inotify_add_watch: ENOSPC",
            "ioctl TCGETS: ENOTTY",
            "ioctl FICLONE: EOPNOTSUPP",
            "ioctl FIONREAD: served",
            "splice: served",
            "tee: EBADF",
            "dup2 onto some number of the store: EBUSY",
            "fcntl F_SETLEASE: EINVAL",
            "io_uring_setup: ENOSYS",
            "raw read: EBADF",
            "raw open: ENOENT",
        ],
    );
}

#[test]
fn streams_that_cannot_be_served_are_refused() {
    refused("streams", &["fopen ccs=: EINVAL"]);
}

/// Mechanism: a cookie stream has no wide buffer, and the C library's functions for a single wide
/// character do not check that. Consequence: SIGSEGV in the application, even by `putwc` on a
/// redirected stdout. Fix: they are refused before the C library is called (`wide.rs`).
#[test]
fn wide_characters_are_refused_and_crash_nothing() {
    refused(
        "wide_characters",
        &[
            "fgetwc: EOPNOTSUPP",
            "getwc: EOPNOTSUPP",
            "fgetwc_unlocked: EOPNOTSUPP",
            "getwc_unlocked: EOPNOTSUPP",
            "fgetws: EOPNOTSUPP",
            "fgetws_unlocked: EOPNOTSUPP",
            "ungetwc: EOPNOTSUPP",
            "fputwc: EOPNOTSUPP",
            "putwc: EOPNOTSUPP",
            "putwc_unlocked: EOPNOTSUPP",
            "fputws: EOPNOTSUPP",
            "fwide: -1, fwprintf: -1, fwscanf: -1",
            "putwchar: 1, getwchar: 1",
        ],
    );
}

/// Mechanism: the last word that `execle` receives could be the null that ends the arguments, with
/// the environment after it, out of reach. Consequence: the program was executed with no
/// environment at all. Fix: a list whose environment is out of reach is refused as too long.
#[test]
fn list_of_arguments_longer_than_63_is_refused() {
    let expected = [
        "execl with 63 arguments: 0",
        "execl with 64: E2BIG",
        "execle with 62: 5",
        "dprintf with 65: E2BIG",
        "execle with 63: E2BIG",
    ];
    refused("long_lists", &expected);
}

/// Mechanism: the descriptor table is per process, and a call on a Cairn file can need system calls
/// other than read and write. Consequence: a thread with its own descriptors closed those of all
/// threads; a thread in strict seccomp mode was killed at its first write. Fix: such calls are
/// refused, as by a kernel without these features.
#[test]
fn threads_that_share_no_descriptors_or_confine_themselves_are_refused() {
    let expected = [
        "unshare CLONE_FILES beside a thread: EINVAL",
        "close_range beside a thread: EINVAL",
        "prctl PR_SET_SECCOMP: EINVAL",
        "seccomp: EINVAL",
        "unshare CLONE_FILES alone: served",
        "close_range alone: served",
        "1 bytes",
    ];
    refused("threads_that_leave", &expected);
}

#[test]
fn vfork_gives_the_child_memory_of_its_own() {
    weakened("vfork_is_fork", &["the child's memory is the parent's: 0"]);
}

#[test]
fn reopening_a_descriptor_by_name_makes_a_new_description() {
    weakened("reopened_descriptor", &["offset of the new one: 0", "offset of the new one: 0"]);
}

#[test]
fn directories_have_one_size_and_the_mount_is_seen_through_the_library_only() {
    weakened(
        "sizes_and_names",
        &[
            "directory: 4096 bytes, 8 blocks",
            "in the listing of its parent: 0",
            "through a link outside: ENOENT",
        ],
    );
}

#[test]
fn file_without_a_name_on_a_durable_tier_is_served_if_it_never_gets_one() {
    let stage = Stage::new();
    let program = stage.compile("weakened");
    let tier = format!("file:{}:64M", stage.plain().join("tier").display());
    let program = program.to_str().expect("UTF-8");
    let run = ["run", "--discard", "--tier", &tier, "--", program, "without_a_name", "/cairn"];
    let played = stage.cairn(&run);
    let expected = "that could be given a name: EOPNOTSUPP, that never can: served\n";
    assert_eq!(text(&played), expected, "{}", errors(&played));
    weakened("without_a_name", &["that could be given a name: served, that never can: served"]);
}

#[test]
fn punched_range_on_a_durable_tier_reads_as_zeros_and_keeps_its_space() {
    let stage = Stage::new();
    let program = stage.compile("weakened");
    let tier = format!("file:{}:64M", stage.plain().join("tier").display());
    let program = program.to_str().expect("UTF-8");
    let run = ["run", "--discard", "--tier", &tier, "--", program, "punched_range", "/cairn"];
    let played = stage.cairn(&run);
    assert_eq!(text(&played), "left: 57344, space given back: 0\n", "{}", errors(&played));
    weakened("punched_range", &["left: 57344, space given back: 1"]);
}

#[test]
fn only_the_first_read_after_a_change_sets_the_access_time() {
    weakened("access_times", &["the first read after a change counts: 1", "another: 0"]);
}

#[test]
fn processes_that_inherited_many_files_lock_the_last_ones_apart() {
    weakened("locks_made_after_fork", &["parent: EAGAIN"]);
}

#[test]
fn mapping_shows_what_other_processes_made_of_the_files_length_when_its_own_looks() {
    weakened(
        "mapping_of_others",
        &[
            "grown by another: SIGBUS, after fstat: g",
            "a hole filled by another: 0, after fstat: h",
            "cut by another: g, after fstat: SIGBUS",
            "read by other means: anew",
        ],
    );
}

#[test]
fn bad_address_kills_a_thread_that_blocks_the_signal_and_nobody_else() {
    weakened("bad_addresses", &["ended by SIGSEGV: 1", "f: others go on"]);
}

#[test]
fn kept_standard_stream_is_served_but_for_formatted_output() {
    weakened("kept_stream", &["fprintf: -1 EBADF, fputs: 1", "f: put", ""]);
}

#[test]
fn program_below_the_mount_runs_from_memory() {
    weakened("program_runs_from_memory", &["/memfd:cairn (deleted)"]);
}

/// Mechanism: the memfd was created without the flag that makes it executable. Consequence: on
/// nodes with `vm.memfd_noexec` no program below the mount ran. Fix: the flag is set, and all other
/// memfds are marked as not executable.
#[test]
fn program_below_the_mount_runs_where_files_in_memory_are_not_executed_by_default() {
    let stage = Stage::new();
    let mut command = stage.command(common::cairn());
    let script = "echo 1 2>/dev/null >/proc/sys/vm/memfd_noexec || exit 77; cp /bin/echo /cairn/p; /cairn/p hello";
    command.args(["run", "--discard", "--", "unshare", "-pf", "--mount-proc", "sh", "-c", script]);
    let played = command.output().expect("cairn starts");
    match played.status.code() {
        Some(0) => assert_eq!(text(&played), "hello\n"),
        // Not the superuser, or Linux before 6.3.
        Some(1 | 77) if !errors(&played).contains("/cairn/p") => {
            println!("left out: {}", errors(&played))
        }
        code => panic!("{code:?}: {}", errors(&played)),
    }
}

/// Mechanism: a Cairn descriptor that was closed past the C library stayed in the table.
/// Consequence: when its number came back as a socket, an eventfd or a stream, writes to that went
/// into the file that had had the number. Fix: each function that returns a descriptor makes the
/// table forget its number.
#[test]
#[cfg(target_arch = "x86_64")]
fn number_that_comes_back_as_something_else_is_not_the_files_any_more() {
    let printed = on_cairn("numbers", "numbers");
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.len(), 21, "{printed}");
    for line in lines {
        assert!(line.ends_with(": the number again, 0 bytes in the file, close 0"), "{line}");
    }
}
