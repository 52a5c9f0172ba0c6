"""Reading, writing, truncation, holes, allocation, and several processes that append."""

from __future__ import annotations

import errno
import os
import resource
import signal
from pathlib import Path

from kit.case import Skipped, case, declare, fails, holds, same
from kit.files import make, opened, read, read_at, write_at
from kit.process import Child, Gate
from kit.system import (
    FALLOC_COLLAPSE_RANGE,
    FALLOC_INSERT_RANGE,
    FALLOC_KEEP_SIZE,
    FALLOC_PUNCH_HOLE,
    FALLOC_ZERO_RANGE,
    PAGE,
    fallocate,
)

MIB = 1 << 20
# A range that is larger than the blocks of any file system that is tested.
WIDE = 4 * MIB
WRITERS = 4
RECORDS = 200


@case
def write_moves_the_position_and_pwrite_does_not(here: Path) -> None:
    with opened(make(here / "f", b"0123456789")) as descriptor:
        os.write(descriptor, b"ab")
        os.pwrite(descriptor, b"XY", 6)
        same(os.read(descriptor, 3), b"234")
        same(os.pread(descriptor, 100, 5), b"5XY89")
        same(os.read(descriptor, 100), b"5XY89")
        same(os.read(descriptor, 100), b"")


@case
def read_at_and_behind_the_end_gives_nothing(here: Path) -> None:
    with opened(make(here / "f", b"123")) as descriptor:
        for offset in (3, 4, 4096, 1 << 40):
            same(os.pread(descriptor, 10, offset), b"", str(offset))


@case
def write_behind_the_end_leaves_zeros_between(here: Path) -> None:
    with opened(make(here / "f", b"123")) as descriptor:
        for offset in (10, PAGE - 1, 3 * PAGE + 5, WIDE + 7):
            os.pwrite(descriptor, b"x", offset)
            same(os.fstat(descriptor).st_size, offset + 1)
        expected = bytearray(WIDE + 8)
        expected[:3] = b"123"
        for offset in (10, PAGE - 1, 3 * PAGE + 5, WIDE + 7):
            expected[offset] = ord("x")
        same(read_at(descriptor, WIDE + 100, 0) == bytes(expected), True, "content is right:")


@case
def large_write_arrives_whole(here: Path) -> None:
    content = os.urandom(MIB) * 5 + b"end"
    with opened(make(here / "f")) as descriptor:
        write_at(descriptor, content, 3)
        same(read_at(descriptor, len(content) + 9, 3) == content, True, "content is right:")


@case
def vectors_are_read_and_written_in_order(here: Path) -> None:
    with opened(make(here / "f")) as descriptor:
        same(os.writev(descriptor, [b"ab", b"", b"cde"]), 5)
        same(os.pwritev(descriptor, [b"X", b"Y"], 1), 2)
        first, second = bytearray(2), bytearray(10)
        same(os.preadv(descriptor, [first, second], 0), 5)
        same(bytes(first + second[:3]), b"aXYde")


@case
def bad_offsets_are_refused(here: Path) -> None:
    with opened(make(here / "f", b"123")) as descriptor:
        fails(errno.EINVAL, os.pread, descriptor, 1, -1)
        fails(errno.EINVAL, os.pwrite, descriptor, b"1", -1)
        fails(errno.EINVAL, os.lseek, descriptor, -1, os.SEEK_SET)
        fails(errno.EINVAL, os.lseek, descriptor, -4, os.SEEK_END)
        fails(errno.EINVAL, os.lseek, descriptor, 0, 99)
        fails(errno.EINVAL, os.ftruncate, descriptor, -1)
        same(os.lseek(descriptor, 5, os.SEEK_END), 8)


@case
def file_size_limit_gives_EFBIG_and_SIGXFSZ(here: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with opened(make(here / "f")) as descriptor:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        same(os.pwrite(descriptor, b"x" * 100, 9_950), 50)
        fails(errno.EFBIG, os.pwrite, descriptor, b"x", 10_000)
        fails(errno.EFBIG, os.ftruncate, descriptor, 10_001)


@case
def truncate_cuts_and_extends_with_zeros(here: Path) -> None:
    path = make(here / "f", b"0123456789")
    for call in (os.truncate, cut_by_descriptor):
        os.truncate(path, 0)
        path.write_bytes(b"0123456789")
        call(path, 4)
        same(read(path), b"0123")
        call(path, 8)
        same(read(path), b"0123\0\0\0\0")
        call(path, 8)
        same(os.stat(path).st_size, 8)


def cut_by_descriptor(path: Path, size: int) -> None:
    """Truncates a file by a descriptor of it."""
    with opened(path, os.O_WRONLY) as descriptor:
        os.ftruncate(descriptor, size)


@case
def bytes_that_were_cut_never_come_back(here: Path) -> None:
    with opened(make(here / "f")) as descriptor:
        for size in (1, PAGE - 1, PAGE, PAGE + 1, 100_000):
            os.ftruncate(descriptor, 0)
            write_at(descriptor, b"x" * 200_000, 0)
            os.ftruncate(descriptor, size)
            os.ftruncate(descriptor, 200_000)
            expected = b"x" * size + bytes(200_000 - size)
            same(read_at(descriptor, 200_000, 0) == expected, True, f"{size}: content is right:")


@case
def truncate_to_a_huge_size_makes_a_hole(here: Path) -> None:
    size = 1 << 40
    path = make(here / "f", b"123")
    os.truncate(path, size)
    found = os.stat(path)
    same(found.st_size, size)
    holds(found.st_blocks * 512 < MIB, "less than 1 MiB of blocks", found.st_blocks)
    with opened(path) as descriptor:
        same(os.pread(descriptor, 10, size - 5), bytes(5))


@case
def truncate_refuses_directories_and_descriptors_for_reading(here: Path) -> None:
    fails(errno.EISDIR, os.truncate, here, 0)
    with opened(make(here / "f"), os.O_RDONLY) as descriptor:
        fails((errno.EINVAL, errno.EBADF), os.ftruncate, descriptor, 0)
    fails(errno.EINVAL, os.truncate, here / "f", -1)


@case
def st_blocks_grows_with_data(here: Path) -> None:
    path = make(here / "f")
    same(os.stat(path).st_blocks, 0, "blocks of an empty file:")
    path.write_bytes(os.urandom(MIB))
    with opened(path) as descriptor:
        os.fsync(descriptor)
    blocks = os.stat(path).st_blocks
    holds(MIB <= blocks * 512 <= 2 * MIB, "1 to 2 MiB of blocks", blocks)


@case
def SEEK_DATA_and_SEEK_HOLE_tell_data_from_holes(here: Path) -> None:
    with opened(make(here / "f")) as descriptor:
        os.ftruncate(descriptor, 3 * WIDE)
        write_at(descriptor, b"x" * PAGE, WIDE)
        if os.lseek(descriptor, 0, os.SEEK_HOLE) == 3 * WIDE:
            raise Skipped("the file system reports no holes")
        data = os.lseek(descriptor, 0, os.SEEK_DATA)
        holds(0 < data <= WIDE, f"data from at most {WIDE}", data)
        hole = os.lseek(descriptor, WIDE, os.SEEK_HOLE)
        holds(WIDE + PAGE <= hole < 3 * WIDE, f"a hole from at least {WIDE + PAGE}", hole)
        same(os.lseek(descriptor, WIDE + 5, os.SEEK_DATA), WIDE + 5)
        same(os.lseek(descriptor, 5, os.SEEK_HOLE), 5)
        fails(errno.ENXIO, os.lseek, descriptor, 2 * WIDE, os.SEEK_DATA)
        fails(errno.ENXIO, os.lseek, descriptor, 3 * WIDE, os.SEEK_DATA)
        fails(errno.ENXIO, os.lseek, descriptor, 3 * WIDE, os.SEEK_HOLE)
        fails(errno.ENXIO, os.lseek, descriptor, -1, os.SEEK_DATA)


@case
def end_of_a_file_counts_as_a_hole(here: Path) -> None:
    with opened(make(here / "f", b"123")) as descriptor:
        same(os.lseek(descriptor, 0, os.SEEK_DATA), 0)
        same(os.lseek(descriptor, 1, os.SEEK_HOLE), 3)


def allocated(descriptor: int, mode: int, offset: int, length: int) -> None:
    """Changes the space of a file. Skips the case where the file system lacks the mode."""
    try:
        fallocate(descriptor, mode, offset, length)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            raise Skipped("the file system has no such mode") from error
        raise


@case
def posix_fallocate_extends_a_file_and_changes_no_byte(here: Path) -> None:
    with opened(make(here / "f", b"123")) as descriptor:
        os.posix_fallocate(descriptor, 1, 100_000)
        same(read_at(descriptor, 200_000, 0), b"123" + bytes(99_998))
        os.posix_fallocate(descriptor, 0, 10)
        same(os.fstat(descriptor).st_size, 100_001)


@case
def posix_fallocate_refuses_bad_ranges_and_descriptors(here: Path) -> None:
    path = make(here / "f")
    with opened(path) as descriptor:
        fails(errno.EINVAL, os.posix_fallocate, descriptor, 0, 0)
        fails(errno.EINVAL, os.posix_fallocate, descriptor, -1, 1)
        fails(errno.EINVAL, os.posix_fallocate, descriptor, 0, -1)
        fails(errno.EFBIG, os.posix_fallocate, descriptor, (1 << 63) - 10, 20)
    with opened(path, os.O_RDONLY) as descriptor:
        fails(errno.EBADF, os.posix_fallocate, descriptor, 0, 1)


@case
def fallocate_that_keeps_the_size_keeps_it(here: Path) -> None:
    with opened(make(here / "f", b"123")) as descriptor:
        allocated(descriptor, FALLOC_KEEP_SIZE, 0, MIB)
        same(os.fstat(descriptor).st_size, 3)


@case
def punched_range_reads_as_zeros_and_gives_back_its_blocks(here: Path) -> None:
    with opened(make(here / "f")) as descriptor:
        write_at(descriptor, b"x" * (3 * MIB), 0)
        os.fsync(descriptor)
        before = os.fstat(descriptor).st_blocks
        allocated(descriptor, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, MIB - 100, MIB + 200)
        expected = b"x" * (MIB - 100) + bytes(MIB + 200) + b"x" * (MIB - 100)
        same(read_at(descriptor, 4 * MIB, 0) == expected, True, "content is right:")
        after = os.fstat(descriptor).st_blocks
        holds(after <= before - MIB // 1024, f"at most {before - MIB // 1024} blocks", after)


@case
def punching_behind_the_end_changes_nothing(here: Path) -> None:
    with opened(make(here / "f", b"123")) as descriptor:
        allocated(descriptor, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 2, 2 * MIB)
        same(os.pread(descriptor, 10, 0), b"12\0")


@case
def zeroed_range_reads_as_zeros(here: Path) -> None:
    with opened(make(here / "f", b"x" * 10_000)) as descriptor:
        allocated(descriptor, FALLOC_ZERO_RANGE, 100, 5_000)
        same(read_at(descriptor, 20_000, 0), b"x" * 100 + bytes(5_000) + b"x" * 4_900)
        allocated(descriptor, FALLOC_ZERO_RANGE, 9_000, 5_000)
        same(os.fstat(descriptor).st_size, 14_000)


@case
def range_zeroed_behind_the_end_keeps_the_size_if_asked_to(here: Path) -> None:
    with opened(make(here / "f", b"x" * 14_000)) as descriptor:
        allocated(descriptor, FALLOC_ZERO_RANGE | FALLOC_KEEP_SIZE, 13_000, 5_000)
        same(os.fstat(descriptor).st_size, 14_000)
        same(os.pread(descriptor, 2_000, 12_999), b"x" + bytes(1_000))


@case
def collapsed_and_inserted_ranges_move_what_is_behind(here: Path) -> None:
    block = 64 * 1024
    with opened(make(here / "f")) as descriptor:
        write_at(descriptor, b"a" * block + b"b" * block + b"c" * block, 0)
        allocated(descriptor, FALLOC_COLLAPSE_RANGE, block, block)
        same(read_at(descriptor, 4 * block, 0) == b"a" * block + b"c" * block, True, "collapsed:")
        allocated(descriptor, FALLOC_INSERT_RANGE, block, block)
        expected = b"a" * block + bytes(block) + b"c" * block
        same(read_at(descriptor, 4 * block, 0) == expected, True, "inserted:")


@case
def fallocate_with_modes_that_contradict_each_other_is_refused(here: Path) -> None:
    with opened(make(here / "f", b"123")) as descriptor:
        for mode in (FALLOC_PUNCH_HOLE, 1 << 20, FALLOC_PUNCH_HOLE | FALLOC_ZERO_RANGE):
            fails((errno.EOPNOTSUPP, errno.EINVAL), fallocate, descriptor, mode, 0, 1)


def append_records(path: Path, letter: int, length: int, gate: Gate) -> None:
    """Appends records, each one of one letter and with a line end."""
    with opened(path, os.O_WRONLY | os.O_APPEND) as descriptor:
        gate.wait()
        for _ in range(RECORDS):
            record = bytes([letter]) * (length - 1) + b"\n"
            same(os.write(descriptor, record), length)


def declare_appending(length: int) -> None:
    """Declares the case that records of a length stay whole."""

    def body(here: Path) -> None:
        path = make(here / "f")
        gates = [Gate() for _ in range(WRITERS)]
        children = [
            Child(append_records, path, ord("a") + number, length, gate)
            for number, gate in enumerate(gates)
        ]
        for gate in gates:
            gate.open()
        for child in children:
            child.result()
        lines = read(path).splitlines(keepends=True)
        same(len(lines), WRITERS * RECORDS, "number of records:")
        whole = [len(line) == length and len(set(line[:-1])) == 1 for line in lines]
        same(whole.count(False), 0, "number of torn records:")

    declare(f"records_of_{length}_bytes_that_processes_append_stay_whole", body)


for _length in (10, 1_000, 5_000, 70_000):
    declare_appending(_length)


@case
def writers_of_different_parts_of_a_file_keep_each_others_data(here: Path) -> None:
    path = make(here / "f")

    def write_part(number: int) -> None:
        with opened(path, os.O_WRONLY) as descriptor:
            for record in range(RECORDS):
                offset = (record * WRITERS + number) * 100
                os.pwrite(descriptor, bytes([ord("a") + number]) * 100, offset)

    for child in [Child(write_part, number) for number in range(WRITERS)]:
        child.result()
    expected = b"".join(bytes([ord("a") + number]) * 100 for number in range(WRITERS)) * RECORDS
    same(read(path) == expected, True, "content is right:")


@case
def process_sees_at_once_what_another_has_written(here: Path) -> None:
    path = make(here / "f", b"0")
    there, back = Gate(), Gate()

    def answer() -> None:
        with opened(path) as descriptor:
            for number in range(50):
                there.wait()
                same(os.pread(descriptor, 10, 0), b"%d" % number)
                same(os.fstat(descriptor).st_size, len(b"%d" % number))
                os.pwrite(descriptor, b"answer%d" % number, 0)
                back.open()

    child = Child(answer)
    with opened(path) as descriptor:
        for number in range(50):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d" % number, 0)
            there.open()
            back.wait()
            same(os.pread(descriptor, 20, 0), b"answer%d" % number)
    child.result()


@case
def sendfile_and_copy_file_range_copy_bytes(here: Path) -> None:
    content = os.urandom(300_000)
    source = make(here / "a", content)
    with opened(source) as reading, opened(make(here / "b")) as writing:
        done = 0
        while done < len(content):
            count = os.copy_file_range(reading, writing, len(content) - done)
            holds(count > 0, "a part that is copied", count)
            done += count
        same(read(here / "b") == content, True, "copied:")
        os.ftruncate(writing, 0)
        os.lseek(writing, 0, os.SEEK_SET)
        done = 0
        while done < len(content):
            count = os.sendfile(writing, reading, done, len(content) - done)
            holds(count > 0, "a part that is sent", count)
            done += count
    same(read(here / "b") == content, True, "sent:")


@case
def fsync_works_on_files_and_directories(here: Path) -> None:
    with opened(make(here / "f", b"1"), os.O_RDONLY) as descriptor:
        os.fsync(descriptor)
        os.fdatasync(descriptor)
    with opened(here, os.O_RDONLY) as descriptor:
        os.fsync(descriptor)


@case
def statvfs_says_how_long_names_may_be(here: Path) -> None:
    found = os.statvfs(here)
    same(found.f_namemax, 255)
    holds(found.f_bsize > 0 and found.f_blocks >= found.f_bfree, "sizes that fit", found)
