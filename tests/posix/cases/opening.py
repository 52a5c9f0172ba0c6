"""open with its flags, and what descriptors permit."""

from __future__ import annotations

import errno
import fcntl
import itertools
import mmap
import os
import socket
import stat
from pathlib import Path

from kit.case import Skipped, case, declare, fails, same
from kit.files import make, make_directory, opened, read
from kit.process import Child, Gate
from kit.system import PAGE, link_target

WAYS = {"O_RDONLY": os.O_RDONLY, "O_WRONLY": os.O_WRONLY, "O_RDWR": os.O_RDWR}
OPTIONS = {
    "O_CREAT": os.O_CREAT,
    "O_EXCL": os.O_EXCL,
    "O_TRUNC": os.O_TRUNC,
    "O_APPEND": os.O_APPEND,
}


def expected_end(way: str, options: tuple[str, ...], is_there: bool) -> bytes | int:
    """Returns what a file with `old` holds after an open and a write of `NEW`, or the errno."""
    if is_there and "O_CREAT" in options and "O_EXCL" in options:
        return errno.EEXIST
    if not is_there and "O_CREAT" not in options:
        return errno.ENOENT
    content = b"old-old" if is_there and "O_TRUNC" not in options else b""
    if way == "O_RDONLY":
        return content
    if "O_APPEND" in options:
        return content + b"NEW"
    return b"NEW" + content[3:]


def declare_flags(way: str, options: tuple[str, ...]) -> None:
    """Declares the case that a combination of flags does what it says."""
    flags = WAYS[way]
    for option in options:
        flags |= OPTIONS[option]

    def body(here: Path) -> None:
        for is_there in (False, True):
            path = here / str(is_there)
            if is_there:
                make(path, b"old-old")
            expected = expected_end(way, options, is_there)
            if isinstance(expected, int):
                fails(expected, os.open, path, flags, 0o644)
                continue
            with opened(path, flags) as descriptor:
                if way == "O_RDONLY":
                    fails(errno.EBADF, os.write, descriptor, b"NEW")
                else:
                    same(os.write(descriptor, b"NEW"), 3)
                if way == "O_WRONLY":
                    fails(errno.EBADF, os.read, descriptor, 1)
            same(read(path), expected, "on an existing file" if is_there else "on a new file")

    declare(f"open_with_{'_'.join((way, *options))}_does_what_its_flags_say", body)


for _way in WAYS:
    for _count in range(len(OPTIONS) + 1):
        for _options in itertools.combinations(OPTIONS, _count):
            declare_flags(_way, _options)


@case
def directory_is_not_opened_for_writing(here: Path) -> None:
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC):
        fails(errno.EISDIR, os.open, here, flags)
    fails(errno.EISDIR, os.open, here, os.O_RDONLY | os.O_CREAT)
    with opened(here, os.O_RDONLY) as descriptor:
        fails(errno.EISDIR, os.read, descriptor, 1)
        fails(errno.EBADF, os.write, descriptor, b"1")
        fails((errno.EINVAL, errno.EBADF), os.ftruncate, descriptor, 0)


@case
def O_DIRECTORY_opens_directories_only(here: Path) -> None:
    path = make(here / "f")
    os.symlink(here, here / "link")
    fails(errno.ENOTDIR, os.open, path, os.O_RDONLY | os.O_DIRECTORY)
    os.close(os.open(here / "link", os.O_RDONLY | os.O_DIRECTORY))
    both = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    fails(errno.ENOTDIR, os.open, here / "link", both)


@case
def O_NOFOLLOW_refuses_a_link_in_the_last_part_only(here: Path) -> None:
    make(here / "f")
    os.symlink("f", here / "link")
    os.symlink(here, here / "parent")
    fails(errno.ELOOP, os.open, here / "link", os.O_RDONLY | os.O_NOFOLLOW)
    os.close(os.open(here / "parent" / "f", os.O_RDONLY | os.O_NOFOLLOW))


@case
def O_CREAT_through_a_dangling_link_makes_its_target(here: Path) -> None:
    os.symlink("target", here / "link")
    os.close(os.open(here / "link", os.O_CREAT | os.O_WRONLY, 0o600))
    same(stat.S_ISREG(os.lstat(here / "target").st_mode), True)
    fails(errno.EEXIST, os.open, here / "link", os.O_CREAT | os.O_EXCL)


@case
def O_PATH_gives_a_descriptor_without_access_to_data(here: Path) -> None:
    path = make(here / "f", b"1")
    with opened(path, os.O_PATH) as descriptor:
        same(os.fstat(descriptor).st_size, 1)
        fails(errno.EBADF, os.read, descriptor, 1)
        fails(errno.EBADF, os.fchmod, descriptor, 0o600)
    with opened(here, os.O_PATH) as directory:
        inner = os.open("f", os.O_RDONLY, dir_fd=directory)
        same(os.read(inner, 1), b"1")
        os.close(inner)


@case
def O_TMPFILE_makes_a_file_without_a_name_that_linkat_names(here: Path) -> None:
    try:
        descriptor = os.open(here, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise Skipped("the file system has no O_TMPFILE") from error
        raise
    os.write(descriptor, b"content")
    same((os.fstat(descriptor).st_nlink, os.listdir(here)), (0, []))
    link_target(f"/proc/self/fd/{descriptor}", here / "named")
    same((os.fstat(descriptor).st_nlink, read(here / "named")), (1, b"content"))
    os.close(descriptor)


@case
def descriptors_of_one_open_share_a_position_and_those_of_two_do_not(here: Path) -> None:
    path = make(here / "f", b"0123456789")
    with opened(path) as first, opened(path) as second:
        copy = os.dup(first)
        os.read(first, 3)
        same((os.read(copy, 1), os.read(second, 1)), (b"3", b"0"))
        Child(os.read, first, 2).result()
        same(os.read(first, 1), b"6")
        os.close(copy)


@case
def descriptor_sent_over_a_socket_is_the_same_description(here: Path) -> None:
    path = make(here / "f", b"0123456789")
    near, far = socket.socketpair()

    def receive() -> None:
        _, descriptors, _, _ = socket.recv_fds(far, 1, 1)
        same(os.read(descriptors[0], 2), b"34")
        os.write(descriptors[0], b"X")

    child = Child(receive)
    with opened(path) as descriptor:
        os.read(descriptor, 3)
        socket.send_fds(near, [b"."], [descriptor])
        os.unlink(path)
        child.result()
        same((os.read(descriptor, 1), os.pread(descriptor, 3, 4)), (b"6", b"4X6"))


@case
def O_APPEND_set_by_fcntl_holds_from_then_on(here: Path) -> None:
    path = make(here / "f", b"12345")
    with opened(path, os.O_WRONLY) as descriptor:
        os.write(descriptor, b"a")
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
        os.write(descriptor, b"b")
        fcntl.fcntl(descriptor, fcntl.F_SETFL, 0)
        os.pwrite(descriptor, b"c", 2)
    same(read(path), b"a2c45b")


@case
def O_DIRECT_reads_and_writes_whole_blocks(here: Path) -> None:
    path = make(here / "f")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_DIRECT)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise Skipped("the file system has no O_DIRECT") from error
        raise
    with mmap.mmap(-1, 4 * PAGE) as buffer:
        buffer[:] = bytes(range(256)) * (4 * PAGE // 256)
        expected = buffer[:]
        same(os.pwritev(descriptor, [buffer], PAGE), 4 * PAGE)
        buffer[:] = bytes(4 * PAGE)
        same(os.preadv(descriptor, [buffer], PAGE), 4 * PAGE)
        same(buffer[:], expected)
        same(os.preadv(descriptor, [buffer], 4 * PAGE), PAGE, "count at the end of the file")
        same(os.preadv(descriptor, [buffer], 8 * PAGE), 0, "count behind the end of the file")
    os.close(descriptor)
    same(read(path), bytes(PAGE) + expected)


@case
def O_DIRECT_and_ordinary_descriptors_see_each_others_data(here: Path) -> None:
    path = make(here / "f", b"a" * PAGE)
    try:
        direct = os.open(path, os.O_RDWR | os.O_DIRECT)
    except OSError as error:
        raise Skipped("the file system has no O_DIRECT") from error
    with opened(path) as plain, mmap.mmap(-1, PAGE) as buffer:
        for letter in b"bcd":
            os.pwrite(plain, bytes([letter]) * PAGE, 0)
            os.preadv(direct, [buffer], 0)
            same(buffer[:], bytes([letter]) * PAGE)
            buffer[:] = bytes([letter + 10]) * PAGE
            os.pwritev(direct, [buffer], 0)
            same(os.pread(plain, PAGE, 0), bytes([letter + 10]) * PAGE)
    os.close(direct)


@case
def O_SYNC_and_O_DSYNC_write_as_usual(here: Path) -> None:
    for flag in (os.O_SYNC, os.O_DSYNC):
        path = here / str(flag)
        with opened(path, os.O_CREAT | os.O_RDWR | flag) as descriptor:
            os.write(descriptor, b"content")
            os.fsync(descriptor)
            os.fdatasync(descriptor)
        same(read(path), b"content")


@case
def program_that_runs_is_not_opened_for_writing(here: Path) -> None:
    with open("/bin/sleep", "rb") as source:
        path = make(here / "sleep", source.read(), mode=0o755)
    reading, writing = os.pipe()

    def run() -> None:
        os.set_inheritable(writing, False)
        os.execve(path, ["sleep", "10"], os.environ)

    child = Child(run)
    os.close(writing)
    os.read(reading, 1)
    try:
        fails(errno.ETXTBSY, os.open, path, os.O_WRONLY)
        fails(errno.ETXTBSY, os.truncate, path, 0)
    finally:
        os.kill(child.pid, 9)
        child.end()
    os.close(os.open(path, os.O_WRONLY))


@case
def program_that_is_open_for_writing_is_not_executed(here: Path) -> None:
    path = make(here / "program", b"#!/bin/true\n", mode=0o755)
    with opened(path, os.O_WRONLY):
        fails(errno.ETXTBSY, Child(os.execve, path, ["x"], {}).result)


@case
def exclusive_creation_succeeds_in_one_process_only(here: Path) -> None:
    gates = [Gate() for _ in range(4)]

    def create_all(gate: Gate) -> int:
        gate.wait()
        count = 0
        for number in range(100):
            try:
                os.close(os.open(here / str(number), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                count += 1
            except FileExistsError:
                pass
        return count

    children = [Child(create_all, gate) for gate in gates]
    for gate in gates:
        gate.open()
    same(sum(child.result() for child in children), 100)


@case
def closed_descriptor_gives_EBADF(here: Path) -> None:
    descriptor = os.open(make(here / "f"), os.O_RDWR)
    os.close(descriptor)
    fails(errno.EBADF, os.read, descriptor, 1)
    fails(errno.EBADF, os.write, descriptor, b"1")
    fails(errno.EBADF, os.fstat, descriptor)
    fails(errno.EBADF, os.ftruncate, descriptor, 0)
    fails(errno.EBADF, os.fsync, descriptor)
    fails(errno.EBADF, os.close, descriptor)


@case
def calls_relative_to_a_descriptor_work_below_it(here: Path) -> None:
    inner = make_directory(here / "d")
    make(inner / "f", b"1")
    with opened(inner, os.O_RDONLY) as directory:
        os.rename(inner, here / "moved")
        same(os.stat("f", dir_fd=directory).st_size, 1)
        os.mkdir("new", dir_fd=directory)
        os.symlink("f", "link", dir_fd=directory)
        os.rename("f", "g", src_dir_fd=directory, dst_dir_fd=directory)
        os.unlink("link", dir_fd=directory)
        os.rmdir("new", dir_fd=directory)
        same(os.listdir(directory), ["g"])
    with opened(here / "moved" / "g", os.O_RDONLY) as descriptor:
        fails(errno.ENOTDIR, lambda: os.stat("x", dir_fd=descriptor))
