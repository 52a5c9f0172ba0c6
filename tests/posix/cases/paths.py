"""Errors that every call with a path has.

Each call is tried on each kind of bad path. Calls that make a name of a kind that a file system may
lack (a FIFO) may say EPERM instead.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from kit.case import case, declare, fails
from kit.files import LONG_NAME, LONG_PATH, make, make_directory

Call = Callable[[Path], object]


def open_for(flags: int) -> Call:
    """Returns a call that opens and closes."""
    return lambda path: os.close(os.open(path, flags, 0o644))


def beside(path: Path, name: str) -> Path:
    """Returns a name in the case's directory, which is below one with only digits as its name."""
    here = next(parent for parent in path.parents if parent.name.isdigit())
    return here / name


# Calls on a file that must be there.
ON_FILES: dict[str, Call] = {
    "open": open_for(os.O_RDONLY),
    "open_for_writing": open_for(os.O_WRONLY),
    "stat": os.stat,
    "statvfs": os.statvfs,
    "access": lambda path: os.stat(path) if not os.access(path, os.F_OK) else None,
    "chmod": lambda path: os.chmod(path, 0o600),
    "chown": lambda path: os.chown(path, -1, -1),
    "truncate": lambda path: os.truncate(path, 0),
    "utimensat": lambda path: os.utime(path, (1, 1)),
    "chdir": os.chdir,
    "listing": os.listdir,
    "getxattr": lambda path: os.getxattr(path, "user.a"),
    "setxattr": lambda path: os.setxattr(path, "user.a", b"1"),
    "listxattr": os.listxattr,
    "execve": lambda path: os.execve(path, ["x"], {}),
}

# Calls on a name that must be there, which do not follow a link in its last part.
ON_NAMES: dict[str, Call] = {
    "lstat": os.lstat,
    "lchown": lambda path: os.lchown(path, -1, -1),
    "readlink": os.readlink,
    "unlink": os.unlink,
    "rmdir": os.rmdir,
    "link_from": lambda path: os.link(path, beside(path, "linked"), follow_symlinks=False),
    "rename_from": lambda path: os.rename(path, beside(path, "renamed")),
}

# Calls that make a name.
MAKING: dict[str, Call] = {
    "open_that_creates": open_for(os.O_WRONLY | os.O_CREAT),
    "open_that_creates_exclusively": open_for(os.O_WRONLY | os.O_CREAT | os.O_EXCL),
    "mkdir": os.mkdir,
    "mkfifo": os.mkfifo,
    "mknod": lambda path: os.mknod(path, 0o644),
    "symlink": lambda path: os.symlink("target", path),
    "link_to": lambda path: os.link(beside(path, "file"), path),
    "rename_to": lambda path: os.rename(beside(path, "file"), path),
}

ALL = {**ON_FILES, **ON_NAMES, **MAKING}


def declare_failing(name: str, call: Call, codes: int | tuple[int, ...], path: str) -> None:
    """Declares the case that a call with a path, below the case's directory, fails."""

    def body(here: Path) -> None:
        make(here / "file", b"content")
        make_directory(here / "directory")
        os.symlink("round", here / "round")
        os.symlink("absent", here / "dangling")
        fails(codes, call, here / path)

    declare(name, body)


def with_fifo(name: str, code: int) -> int | tuple[int, ...]:
    """Returns the errors of a call, if file systems without FIFOs count."""
    return (code, errno.EPERM) if name == "mkfifo" else code


for _name, _call in ALL.items():
    declare_failing(
        f"{_name}_below_an_absent_directory_gives_ENOENT", _call, errno.ENOENT, "absent/x"
    )
    declare_failing(f"{_name}_below_a_file_gives_ENOTDIR", _call, errno.ENOTDIR, "file/x")
    declare_failing(f"{_name}_below_a_circle_of_links_gives_ELOOP", _call, errno.ELOOP, "round/x")
    declare_failing(
        f"{_name}_below_a_dangling_link_gives_ENOENT", _call, errno.ENOENT, "dangling/x"
    )
    declare_failing(
        f"{_name}_of_a_name_of_256_bytes_gives_ENAMETOOLONG",
        _call,
        with_fifo(_name, errno.ENAMETOOLONG),
        LONG_NAME,
    )
    declare_failing(
        f"{_name}_below_a_name_of_256_bytes_gives_ENAMETOOLONG",
        _call,
        errno.ENAMETOOLONG,
        f"{LONG_NAME}/x",
    )
    declare_failing(
        f"{_name}_of_a_path_of_4096_bytes_gives_ENAMETOOLONG", _call, errno.ENAMETOOLONG, LONG_PATH
    )

for _name, _call in {**ON_FILES, **ON_NAMES}.items():
    declare_failing(f"{_name}_of_an_absent_name_gives_ENOENT", _call, errno.ENOENT, "absent")

for _name, _call in ON_FILES.items():
    declare_failing(f"{_name}_of_a_circle_of_links_gives_ELOOP", _call, errno.ELOOP, "round")
    declare_failing(f"{_name}_of_a_dangling_link_gives_ENOENT", _call, errno.ENOENT, "dangling")

for _name, _call in MAKING.items():
    if _name in ("rename_to", "open_that_creates"):
        continue
    for _there in ("file", "directory", "dangling", "round"):
        declare_failing(f"{_name}_over_a_{_there}_gives_EEXIST", _call, errno.EEXIST, _there)


def declare_denied(name: str, call: Call) -> None:
    """Declares the case that a call below a directory without search permission fails."""

    def body(here: Path) -> None:
        make(here / "file")
        closed = make_directory(here / "closed")
        make(closed / "x")
        os.chmod(closed, 0o600)
        fails(errno.EACCES, call, closed / "x")
        fails(errno.EACCES, call, closed / "absent")

    denied = "below_a_directory_without_search_permission_gives_EACCES"
    declare(f"{name}_{denied}", body, ordinary=True)


for _name, _call in ALL.items():
    declare_denied(_name, _call)


@case
def empty_path_gives_ENOENT(here: Path) -> None:
    os.chdir(here)
    for call in (os.stat, os.lstat, os.mkdir, os.unlink, os.rmdir, os.readlink, os.open):
        arguments = ("", os.O_RDONLY) if call is os.open else ("",)
        fails(errno.ENOENT, call, *arguments)


@case
def file_with_a_slash_behind_its_name_gives_ENOTDIR(here: Path) -> None:
    name = f"{make(here / 'file')}/"
    for call in (os.stat, os.lstat, os.unlink, os.listdir, os.rmdir):
        fails(errno.ENOTDIR, call, name)
    fails(errno.ENOTDIR, os.rename, name, here / "new")
    fails(errno.EISDIR, os.open, f"{here}/new/", os.O_CREAT | os.O_WRONLY)


@case
def path_through_40_links_is_followed_and_one_through_more_gives_ELOOP(here: Path) -> None:
    make(here / "link0", b"end")
    for number in range(1, 42):
        os.symlink(f"link{number - 1}", here / f"link{number}")
    os.stat(here / "link40")
    fails(errno.ELOOP, os.stat, here / "link41")


@case
def parts_that_are_dots_lead_nowhere_else(here: Path) -> None:
    inner = make_directory(make_directory(here / "outer") / "inner")
    make(here / "outer" / "file", b"1")
    assert os.stat(f"{inner}/.././inner/../file").st_size == 1
