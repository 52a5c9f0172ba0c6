"""Short ways to make files and to look at them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# A name, and a path, that are one byte too long.
LONG_NAME = "n" * 256
LONG_PATH = "p/" * 2047 + "pp"


@contextmanager
def opened(path: Path, flags: int = os.O_RDWR, mode: int = 0o644) -> Iterator[int]:
    """Gives a descriptor of a file while the block runs."""
    descriptor = os.open(path, flags, mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make(path: Path, content: bytes = b"", mode: int = 0o644) -> Path:
    """Makes a file with exactly this mode."""
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600) as descriptor:
        os.write(descriptor, content)
        os.fchmod(descriptor, mode)
    return path


def make_directory(path: Path, mode: int = 0o755) -> Path:
    """Makes a directory with exactly this mode."""
    os.mkdir(path)
    os.chmod(path, mode)
    return path


def make_owned(path: Path, uid: int, gid: int, mode: int, *, directory: bool = False) -> Path:
    """Makes a file or directory of another user. Only root may."""
    if directory:
        os.mkdir(path)
    else:
        make(path)
    os.chown(path, uid, gid)
    os.chmod(path, mode)
    return path


def mode_of(path: Path | int) -> int:
    """Returns the permission bits of a file."""
    found = os.lstat(path) if isinstance(path, Path) else os.fstat(path)
    return stat.S_IMODE(found.st_mode)


def read(path: Path) -> bytes:
    """Returns what is in a file."""
    return path.read_bytes()


def read_at(descriptor: int, length: int, offset: int) -> bytes:
    """Reads a range, however many calls it takes; less at the end of the file."""
    parts, left = [], length
    while left:
        part = os.pread(descriptor, left, offset + length - left)
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def write_at(descriptor: int, content: bytes, offset: int) -> None:
    """Writes all of it, however many calls it takes."""
    while content:
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written
