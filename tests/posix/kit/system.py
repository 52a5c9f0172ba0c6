"""Calls and constants of Linux that Python's library lacks, by ctypes.

Must stay true: an error raises `OSError` with the errno, as in the module `os`.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2

FALLOC_KEEP_SIZE = 1
FALLOC_PUNCH_HOLE = 2
FALLOC_COLLAPSE_RANGE = 8
FALLOC_ZERO_RANGE = 16
FALLOC_INSERT_RANGE = 32

PAGE = 4096
AT_FDCWD = -100
AT_SYMLINK_FOLLOW = 0x400
# Clock that advances by a tick; file systems take times from it.
CLOCK_REALTIME_COARSE = 5

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.opendir.restype = ctypes.c_void_p
LIBC.readdir.restype = ctypes.c_void_p
LIBC.telldir.restype = ctypes.c_long

# Offset of the name in a struct dirent.
DIRENT_NAME = 19
# struct flock: type, whence, start, length, process.
FLOCK = struct.Struct("hhqqi4x")


def checked(result: int) -> int:
    """Returns the result of a call, or raises its error."""
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def renameat2(old: Path, new: Path, flags: int) -> None:
    """Renames with flags."""
    checked(LIBC.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags))


def link_target(old: Path | str, new: Path) -> None:
    """Links what a symbolic link leads to. `os.link` links the symbolic link on Linux."""
    old_name, new_name = os.fsencode(old), os.fsencode(new)
    checked(LIBC.linkat(AT_FDCWD, old_name, AT_FDCWD, new_name, AT_SYMLINK_FOLLOW))


def fallocate(descriptor: int, mode: int, offset: int, length: int) -> None:
    """Changes the space of a file."""
    call = LIBC.fallocate
    checked(call(descriptor, mode, ctypes.c_int64(offset), ctypes.c_int64(length)))


class Moment(ctypes.Structure):
    """A time of `utimensat`, in seconds and nanoseconds."""

    _fields_ = [("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64)]


NOW = Moment(0, (1 << 30) - 1)
OMIT = Moment(0, (1 << 30) - 2)


def set_times(path: Path, accessed: Moment, modified: Moment) -> None:
    """Sets times as `utimensat` does."""
    moments = (Moment * 2)(accessed, modified)
    checked(LIBC.utimensat(AT_FDCWD, os.fsencode(path), moments, 0))


def drop_capabilities() -> None:
    """Takes all capabilities from this process, for good."""
    version_3 = 0x20080522
    header, none = (ctypes.c_uint32 * 2)(version_3, 0), (ctypes.c_uint32 * 6)()
    checked(LIBC.capset(header, none))


class Stream:
    """A directory stream whose position can be told and set."""

    def __init__(self, path: Path) -> None:
        self.stream = ctypes.c_void_p(LIBC.opendir(os.fsencode(path)))
        if not self.stream:
            checked(-1)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        LIBC.closedir(self.stream)

    def __iter__(self) -> Iterator[bytes]:
        """Gives the names from here to the end."""
        while True:
            entry = LIBC.readdir(self.stream)
            if not entry:
                return
            yield ctypes.string_at(entry + DIRENT_NAME)

    def tell(self) -> int:
        """Returns the position in front of the next name."""
        return int(LIBC.telldir(self.stream))

    def seek(self, position: int) -> None:
        """Goes to a position that `tell` returned."""
        LIBC.seekdir(self.stream, ctypes.c_long(position))

    def rewind(self) -> None:
        """Begins again, with the names that are there now."""
        LIBC.rewinddir(self.stream)


def wait_for_tick() -> None:
    """Waits until a change gets another time than all changes before."""
    before = time.clock_gettime_ns(CLOCK_REALTIME_COARSE)
    while time.clock_gettime_ns(CLOCK_REALTIME_COARSE) <= before:
        time.sleep(0.001)
