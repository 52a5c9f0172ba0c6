"""Random operations on one file, against a model in memory.

Each case draws operations from a seed, carries them out on the file and on a byte array, and
compares what is read and, at the end, all bytes. What it says when it fails names the seed and the
last operations.
"""

from __future__ import annotations

import errno
import mmap
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit.case import Failed, case, same
from kit.files import make, opened, read_at, write_at
from kit.process import Child
from kit.system import (
    FALLOC_KEEP_SIZE,
    FALLOC_PUNCH_HOLE,
    FALLOC_ZERO_RANGE,
    PAGE,
    fallocate,
)

# Set from the command line.
SEED = 0

LARGEST = 300_000
LARGEST_OPERATION = 70_000
STEPS = 600
# Operations that a failure tells.
TOLD = 12


class File:
    """A file, and what must be in it."""

    def __init__(self, path: Path, draw: random.Random, flags: int) -> None:
        self.path = path
        self.draw = draw
        self.flags = flags
        self.descriptor = os.open(path, flags)
        self.model = bytearray()
        self.log: list[str] = []

    def range(self) -> tuple[int, int]:
        """Draws an offset and a length."""
        offset = self.draw.randrange(LARGEST)
        if self.draw.random() < 0.3:
            offset -= offset % PAGE
        length = self.draw.choice((1, 10, PAGE, self.draw.randrange(1, LARGEST_OPERATION)))
        return offset, min(length, LARGEST - offset)

    def range_inside(self) -> tuple[int, int]:
        """Draws a range that is in the file, which may be empty."""
        offset, length = self.range()
        offset = min(offset, len(self.model))
        return offset, min(length, len(self.model) - offset)

    def note(self, operation: str, *numbers: int) -> None:
        """Remembers an operation for the message of a failure."""
        self.log.append(f"{operation}({', '.join(map(str, numbers))})")

    def extend(self, size: int) -> None:
        """Makes the model at least this long."""
        self.model.extend(bytes(max(0, size - len(self.model))))

    def expect(self, found: bytes, offset: int) -> None:
        """Fails unless these bytes are the model's."""
        expected = self.model[offset : offset + len(found)]
        for index, (got, needed) in enumerate(zip(found, expected, strict=True)):
            if got != needed:
                raise Failed(f"{needed} at {offset + index} {self.told()}", got)

    def told(self) -> str:
        """Returns the last operations as text."""
        return f"after {len(self.log)} operations, the last of them {' '.join(self.log[-TOLD:])}"


def read(file: File) -> None:
    offset, length = file.range()
    file.note("read", offset, length)
    found = read_at(file.descriptor, length, offset)
    same(len(found), max(0, min(length, len(file.model) - offset)), f"{file.told()}: length")
    file.expect(found, offset)


def write(file: File) -> None:
    offset, length = file.range()
    file.note("write", offset, length)
    content = file.draw.randbytes(length)
    write_at(file.descriptor, content, offset)
    file.extend(offset + length)
    file.model[offset : offset + length] = content


def append(file: File) -> None:
    length = min(file.range()[1], LARGEST - len(file.model))
    file.note("append", length)
    content = file.draw.randbytes(length)
    with opened(file.path, os.O_WRONLY | os.O_APPEND) as descriptor:
        while content:
            written = os.write(descriptor, content)
            file.model += content[:written]
            content = content[written:]


def truncate(file: File) -> None:
    size = file.range()[0]
    file.note("truncate", size)
    if file.draw.random() < 0.5:
        os.truncate(file.path, size)
    else:
        os.ftruncate(file.descriptor, size)
    file.extend(size)
    del file.model[size:]


def change_space(file: File) -> None:
    offset, length = file.range()
    mode = file.draw.choice((0, FALLOC_ZERO_RANGE, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE))
    file.note("fallocate", mode, offset, length)
    try:
        fallocate(file.descriptor, mode, offset, length)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return
        raise
    if mode & FALLOC_KEEP_SIZE == 0:
        file.extend(offset + length)
    if mode:
        end = min(offset + length, len(file.model))
        file.model[offset:end] = bytes(max(0, end - offset))


def read_mapped(file: File) -> None:
    offset, length = file.range_inside()
    file.note("read_mapped", offset, length)
    if length:
        kind = file.draw.choice((mmap.MAP_SHARED, mmap.MAP_PRIVATE))
        with mmap.mmap(file.descriptor, offset + length, kind, mmap.PROT_READ) as mapping:
            file.expect(mapping[offset:], offset)


def write_mapped(file: File) -> None:
    offset, length = file.range_inside()
    file.note("write_mapped", offset, length)
    if length:
        content = file.draw.randbytes(length)
        with mmap.mmap(file.descriptor, offset + length) as mapping:
            mapping[offset:] = content
        file.model[offset : offset + length] = content


def reopen(file: File) -> None:
    file.note("reopen")
    os.close(file.descriptor)
    file.descriptor = os.open(file.path, file.flags)


def look(file: File) -> None:
    file.note("stat")
    same(os.stat(file.path).st_size, len(file.model), f"{file.told()}: size")


def seek_data(file: File) -> None:
    """No byte other than zero may be in a hole."""
    offset = file.range()[0]
    file.note("seek_data", offset)
    if offset >= len(file.model):
        return
    try:
        data = os.lseek(file.descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        data = len(file.model)
    same(any(file.model[offset:data]), False, f"{file.told()}: data in a hole:")


def in_another_process(act: Callable[[File], None]) -> Callable[[File], None]:
    """Returns a function that does the same in a forked child, with a descriptor of its own."""

    def operation(file: File) -> None:
        def body() -> tuple[bytearray, list[str], tuple[Any, ...]]:
            file.descriptor = os.open(file.path, file.flags)
            act(file)
            os.close(file.descriptor)
            return file.model, file.log, file.draw.getstate()

        file.model, file.log, state = Child(body).result()
        file.draw.setstate(state)

    return operation


PLAIN = (read, read, write, write, append, truncate, change_space, reopen, look, seek_data)
MAPPED = (read_mapped, write_mapped)


def operate(here: Path, flags: int, operations: tuple[Callable[[File], None], ...]) -> None:
    """Carries out random operations, and compares."""
    draw = random.Random(SEED)
    file = File(make(here / "f"), draw, flags)
    try:
        for _ in range(STEPS):
            draw.choice(operations)(file)
        with opened(file.path, os.O_RDONLY) as descriptor:
            found = read_at(descriptor, LARGEST + 1, 0)
        same(len(found), len(file.model), "length at the end")
        file.expect(found, 0)
    except Failed as failed:
        raise Failed(f"{failed.expected} [seed {SEED}]", failed.got) from failed
    except OSError as error:
        raise Failed(f"no error {file.told()} [seed {SEED}]", error) from error


@case(seconds=60)
def random_reads_and_writes_agree_with_a_model(here: Path) -> None:
    operate(here, os.O_RDWR, PLAIN)


@case(seconds=60)
def random_reads_and_writes_beside_mappings_agree_with_a_model(here: Path) -> None:
    operate(here, os.O_RDWR, PLAIN + MAPPED)


@case(seconds=60)
def random_reads_and_writes_with_O_SYNC_agree_with_a_model(here: Path) -> None:
    operate(here, os.O_RDWR | os.O_SYNC, PLAIN + MAPPED)


@case(seconds=60)
def random_reads_and_writes_of_two_processes_agree_with_a_model(here: Path) -> None:
    others = tuple(in_another_process(act) for act in (read, write, truncate, *MAPPED))
    operate(here, os.O_RDWR, PLAIN + MAPPED + others)


@case(seconds=60)
def random_reads_and_writes_beside_a_lasting_mapping_agree_with_a_model(here: Path) -> None:
    """The file keeps its length, and all of it stays mapped."""
    draw = random.Random(SEED)
    file = File(make(here / "f", bytes(LARGEST)), draw, os.O_RDWR)
    file.extend(LARGEST)
    with mmap.mmap(file.descriptor, LARGEST) as mapping:
        try:
            for _ in range(STEPS):
                offset, length = file.range()
                content = draw.randbytes(length)
                way = draw.randrange(4)
                file.note(("read", "load", "write", "store")[way], offset, length)
                if way == 0:
                    file.expect(read_at(file.descriptor, length, offset), offset)
                elif way == 1:
                    file.expect(mapping[offset : offset + length], offset)
                else:
                    if way == 2:
                        write_at(file.descriptor, content, offset)
                    else:
                        mapping[offset : offset + length] = content
                    file.model[offset : offset + length] = content
        except Failed as failed:
            raise Failed(f"{failed.expected} [seed {SEED}]", failed.got) from failed
