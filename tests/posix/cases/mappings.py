"""Shared and private mappings beside read and write."""

from __future__ import annotations

import errno
import mmap
import os
import signal
from pathlib import Path

from kit.case import Failed, case, fails, same
from kit.files import make, opened, read
from kit.process import Child, Gate
from kit.system import PAGE

PRIVATE = mmap.MAP_PRIVATE
READ, WRITE = mmap.PROT_READ, mmap.PROT_WRITE


@case
def stores_to_a_shared_mapping_are_read_at_once(here: Path) -> None:
    path = make(here / "f", b"a" * 3 * PAGE)
    with opened(path) as descriptor, mmap.mmap(descriptor, 3 * PAGE) as mapping:
        for offset in (0, PAGE - 1, PAGE, 2 * PAGE + 7):
            mapping[offset] = ord("B")
            same(os.pread(descriptor, 1, offset), b"B", str(offset))
        same(read(path).count(b"B"), 4)


@case
def written_bytes_are_in_a_shared_mapping_at_once(here: Path) -> None:
    path = make(here / "f", b"a" * 3 * PAGE)
    with opened(path) as descriptor, mmap.mmap(descriptor, 3 * PAGE) as mapping:
        same(mapping[:3], b"aaa")
        for offset in (0, PAGE - 1, 2 * PAGE + 7):
            os.pwrite(descriptor, b"B", offset)
            same(mapping[offset : offset + 1], b"B", str(offset))


@case
def stores_and_writes_to_the_same_page_are_both_kept(here: Path) -> None:
    path = make(here / "f", b"." * PAGE)
    with opened(path) as descriptor, mmap.mmap(descriptor, PAGE) as mapping:
        for number in range(50):
            mapping[2 * number] = ord("m")
            os.pwrite(descriptor, b"w", 2 * number + 1)
        same(os.pread(descriptor, 100, 0), b"mw" * 50)
        same(mapping[:100], b"mw" * 50)


@case
def stores_are_in_the_file_after_the_mapping_ended(here: Path) -> None:
    path = make(here / "f", b"a" * PAGE)
    with opened(path) as descriptor:
        mapping = mmap.mmap(descriptor, PAGE)
    mapping[:3] = b"new"
    mapping.close()
    same(read(path)[:4], b"newa")


@case
def processes_share_a_mapping(here: Path) -> None:
    path = make(here / "f", bytes(PAGE))
    there, back = Gate(), Gate()

    def answer() -> None:
        with opened(path) as descriptor, mmap.mmap(descriptor, PAGE) as mapping:
            for number in range(1, 50):
                there.wait()
                same(mapping[0], number)
                mapping[1] = number
                back.open()

    child = Child(answer)
    with opened(path) as descriptor, mmap.mmap(descriptor, PAGE) as mapping:
        for number in range(1, 50):
            mapping[0] = number
            there.open()
            back.wait()
            same(mapping[1], number)
    child.result()


@case
def private_mapping_keeps_its_stores_to_itself(here: Path) -> None:
    path = make(here / "f", b"a" * PAGE)
    with opened(path, os.O_RDONLY) as descriptor:
        with mmap.mmap(descriptor, PAGE, PRIVATE, READ | WRITE) as mapping:
            mapping[:3] = b"new"
            same((mapping[:4], read(path)[:4]), (b"newa", b"aaaa"))
    same(read(path)[:4], b"aaaa")


@case
def mapping_needs_a_descriptor_that_permits_it(here: Path) -> None:
    path = make(here / "f", b"a" * PAGE)
    with opened(path, os.O_RDONLY) as descriptor:
        fails(errno.EACCES, mmap.mmap, descriptor, PAGE, mmap.MAP_SHARED, READ | WRITE)
        mmap.mmap(descriptor, PAGE, mmap.MAP_SHARED, READ).close()
    with opened(path, os.O_WRONLY) as descriptor:
        fails(errno.EACCES, mmap.mmap, descriptor, PAGE, mmap.MAP_SHARED, READ)


@case
def mapping_outlives_the_close_and_the_name_of_its_file(here: Path) -> None:
    path = make(here / "f", b"content")
    with opened(path) as descriptor:
        mapping = mmap.mmap(descriptor, 7)
    os.unlink(path)
    mapping[0] = ord("C")
    same(mapping[:], b"Content")
    mapping.close()


@case
def bytes_behind_the_end_in_the_last_page_are_zeros(here: Path) -> None:
    with opened(make(here / "f", b"123")) as descriptor:
        mapping = mmap.mmap(descriptor, 3)
        os.ftruncate(descriptor, PAGE)
        mapping.resize(PAGE)
        same(mapping[:], b"123" + bytes(PAGE - 3))
        mapping.close()


@case
def access_behind_the_last_page_gives_SIGBUS(here: Path) -> None:
    path = make(here / "f", b"a" * 2 * PAGE)

    def touch() -> None:
        with opened(path) as descriptor, mmap.mmap(descriptor, 2 * PAGE) as mapping:
            same(mapping[PAGE], ord("a"))
            os.ftruncate(descriptor, 10)
            mapping[PAGE]

    try:
        Child(touch).result()
    except Failed as failed:
        same(failed.got, signal.SIGBUS.name)
        return
    raise Failed(signal.SIGBUS.name, "success")


@case
def mapping_shows_a_file_that_was_cut_and_extended(here: Path) -> None:
    with opened(make(here / "f", b"a" * 2 * PAGE)) as descriptor:
        with mmap.mmap(descriptor, 2 * PAGE) as mapping:
            os.ftruncate(descriptor, 100)
            same(mapping[:200], b"a" * 100 + bytes(100))
            os.ftruncate(descriptor, 2 * PAGE)
            same(mapping[PAGE : PAGE + 10], bytes(10))
            os.pwrite(descriptor, b"b", PAGE)
            same(mapping[PAGE], ord("b"))


@case
def store_to_a_hole_makes_data(here: Path) -> None:
    with opened(make(here / "f")) as descriptor:
        os.ftruncate(descriptor, 64 * PAGE)
        with mmap.mmap(descriptor, 64 * PAGE) as mapping:
            same(mapping[40 * PAGE], 0)
            mapping[40 * PAGE] = 7
            mapping.flush()
        same(os.pread(descriptor, 2, 40 * PAGE), b"\x07\0")
        same(os.fstat(descriptor).st_size, 64 * PAGE)


@case
def forked_child_shares_a_mapping_with_its_parent(here: Path) -> None:
    with opened(make(here / "f", bytes(PAGE))) as descriptor:
        with mmap.mmap(descriptor, PAGE) as mapping:

            def store() -> None:
                mapping[5] = 5

            Child(store).result()
            same((mapping[5], os.pread(descriptor, 1, 5)), (5, b"\x05"))


@case
def read_into_a_mapping_of_the_same_file_copies(here: Path) -> None:
    with opened(make(here / "f", b"a" * PAGE + b"b" * PAGE)) as descriptor:
        with mmap.mmap(descriptor, 2 * PAGE) as mapping:
            with memoryview(mapping) as whole:
                same(os.preadv(descriptor, [whole[PAGE:]], 0), PAGE)
            same(os.pread(descriptor, PAGE, PAGE), b"a" * PAGE)


@case
def write_from_a_mapping_of_the_same_file_copies(here: Path) -> None:
    with opened(make(here / "f", b"a" * PAGE + b"b" * PAGE)) as descriptor:
        with mmap.mmap(descriptor, 2 * PAGE) as mapping:
            with memoryview(mapping) as whole:
                same(os.pwritev(descriptor, [whole[:PAGE]], PAGE), PAGE)
            same(mapping[PAGE:] == b"a" * PAGE, True, "mapping shows the copy:")


@case
def mapping_of_a_directory_gives_ENODEV(here: Path) -> None:
    with opened(here, os.O_RDONLY) as descriptor:
        fails((errno.ENODEV, errno.EACCES), mmap.mmap, descriptor, PAGE, PRIVATE, READ)
