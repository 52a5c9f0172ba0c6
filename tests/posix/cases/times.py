"""Which times each operation changes, and setting them."""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

from kit.case import Skipped, case, declare, fails, holds, same
from kit.files import make, make_directory, make_owned, opened
from kit.process import OTHER, USER, run_as
from kit.system import NOW, OMIT, RENAME_EXCHANGE, Moment, renameat2, set_times, wait_for_tick

# Names that are watched, below the case's directory.
WATCHED = (".", "f", "g", "s", "d", "d/inner", "e")

# What changes: the modification time (m) and the status change time (c).
Changes = dict[str, str]


def prepare(here: Path) -> None:
    """Makes what operations are tried on."""
    make(here / "f", b"0123456789")
    os.link(here / "f", here / "g")
    os.symlink("f", here / "s")
    make_directory(make_directory(here / "d") / "inner")
    make_directory(here / "e")


def times_of(here: Path) -> dict[str, tuple[int, int]]:
    """Returns the times of modification and status change of all that is there."""
    found = {}
    for name in WATCHED:
        try:
            state = os.lstat(here / name)
        except FileNotFoundError:
            continue
        found[name] = (state.st_mtime_ns, state.st_ctime_ns)
    return found


def with_descriptor(
    flags: int, act: Callable[[int], object], name: str = "f"
) -> Callable[[Path], None]:
    """Returns a function that opens a file and acts on it."""

    def operation(here: Path) -> None:
        with opened(here / name, flags) as descriptor:
            act(descriptor)

    return operation


def ignore(code: int, act: Callable[[Path], object]) -> Callable[[Path], None]:
    """Returns a function that must fail with an errno."""
    return lambda here: fails(code, act, here)


FILE = {"f": "c", "g": "c"}
DATA = {"f": "mc", "g": "mc"}
R, W = os.O_RDONLY, os.O_WRONLY
CREATE = os.O_CREAT | os.O_WRONLY

# For each operation: what it does, what it must change, and what it may change besides.
OPERATIONS: dict[str, tuple[Callable[[Path], object], Changes, Changes]] = {
    "chmod": (lambda h: os.chmod(h / "f", 0o600), FILE, {}),
    "chown": (lambda h: os.chown(h / "f", os.getuid(), os.getgid()), FILE, {}),
    "lchown": (lambda h: os.lchown(h / "s", os.getuid(), os.getgid()), {"s": "c"}, {}),
    "link": (lambda h: os.link(h / "f", h / "d/new"), {**FILE, "d": "mc"}, {}),
    "unlink_of_one_of_two_names": (lambda h: os.unlink(h / "g"), {"f": "c", ".": "mc"}, {}),
    "symlink": (lambda h: os.symlink("x", h / "d/new"), {"d": "mc"}, {}),
    "mkdir": (lambda h: os.mkdir(h / "d/new"), {"d": "mc"}, {}),
    "mknod": (lambda h: os.mknod(h / "d/new"), {"d": "mc"}, {}),
    "rmdir": (lambda h: os.rmdir(h / "d/inner"), {"d": "mc"}, {}),
    "open_that_creates": (lambda h: os.close(os.open(h / "d/new", CREATE)), {"d": "mc"}, {}),
    "open_with_O_CREAT_of_an_existing_file": (
        lambda h: os.close(os.open(h / "f", CREATE)),
        {},
        {},
    ),
    "open_with_O_TRUNC": (lambda h: os.close(os.open(h / "f", W | os.O_TRUNC)), DATA, {}),
    "truncate_to_another_size": (lambda h: os.truncate(h / "f", 3), DATA, {}),
    "ftruncate_to_a_larger_size": (with_descriptor(W, lambda d: os.ftruncate(d, 99)), DATA, {}),
    "write": (with_descriptor(W, lambda d: os.write(d, b"x")), DATA, {}),
    "pwrite_behind_the_end": (with_descriptor(W, lambda d: os.pwrite(d, b"x", 99)), DATA, {}),
    "write_of_no_bytes": (with_descriptor(W, lambda d: os.write(d, b"")), {}, {}),
    "read": (with_descriptor(R, lambda d: os.read(d, 5)), {}, {}),
    "readlink": (lambda h: os.readlink(h / "s"), {}, {}),
    "listing": (lambda h: os.listdir(h / "d"), {}, {}),
    "stat": (lambda h: os.stat(h / "f"), {}, {}),
    "fsync": (with_descriptor(W, os.fsync), {}, {}),
    "utimensat": (lambda h: os.utime(h / "f", ns=(1, 2)), DATA, {}),
    "rename_within_a_directory": (lambda h: os.rename(h / "e", h / "n"), {".": "mc"}, {}),
    "rename_to_another_directory": (
        lambda h: os.rename(h / "g", h / "d/new"),
        {".": "mc", "d": "mc"},
        {"f": "c"},
    ),
    "rename_over_a_file": (
        lambda h: os.rename(h / "s", h / "g"),
        {".": "mc", "f": "c"},
        {"g": "mc"},
    ),
    "rename_onto_the_same_file": (lambda h: os.rename(h / "f", h / "g"), {}, {}),
    "exchange_of_directories": (
        lambda h: renameat2(h / "d/inner", h / "e", RENAME_EXCHANGE),
        {"d": "mc", ".": "mc"},
        {"e": "mc", "d/inner": "mc"},
    ),
    "failing_mkdir": (ignore(errno.EEXIST, lambda h: os.mkdir(h / "d/inner")), {}, {}),
    "failing_rmdir": (ignore(errno.ENOTEMPTY, lambda h: os.rmdir(h / "d")), {}, {}),
    "failing_unlink": (ignore(errno.ENOENT, lambda h: os.unlink(h / "d/absent")), {}, {}),
    "failing_link": (ignore(errno.EEXIST, lambda h: os.link(h / "f", h / "g")), {}, {}),
    "failing_rename": (ignore(errno.ENOTDIR, lambda h: os.rename(h / "d", h / "f")), {}, {}),
    "failing_truncate": (ignore(errno.EINVAL, lambda h: os.truncate(h / "f", -1)), {}, {}),
}


def declare_times(name: str, act: Callable[[Path], object], must: Changes, may: Changes) -> None:
    """Declares the case that an operation changes these times and no others."""

    def body(here: Path) -> None:
        prepare(here)
        before = times_of(here)
        wait_for_tick()
        act(here)
        after = times_of(here)
        for watched in before.keys() & after.keys():
            changed = "".join(
                letter
                for letter, old, new in zip("mc", before[watched], after[watched], strict=True)
                if old != new
            )
            needed = must.get(watched, "")
            expected = f"'{needed}' of '{watched}' changed"
            allowed = set(needed) | set(may.get(watched, ""))
            holds(set(needed) <= set(changed) <= allowed, expected, f"'{changed}'")

    changing = " and ".join(f"{changed} of {watched}" for watched, changed in must.items())
    declare(f"{name}_changes_{changing or 'no time'}".replace(" ", "_"), body)


for _name, (_act, _must, _may) in OPERATIONS.items():
    declare_times(_name, _act, _must, _may)


@case
def new_file_has_the_time_of_now(here: Path) -> None:
    before = time.time() - 1
    make(here / "f")
    os.mkdir(here / "d")
    os.symlink("x", here / "s")
    after = time.time() + 1
    for name in "fds":
        found = os.lstat(here / name)
        for moment in (found.st_atime, found.st_mtime, found.st_ctime):
            holds(before <= moment <= after, f"a time from {before} to {after}", moment)


@case
def times_are_set_to_the_nanosecond(here: Path) -> None:
    path = make(here / "f")
    for accessed, modified in (
        (1, 999_999_999),
        (1_700_000_000_123_456_789, 1_600_000_000_987_654_321),
        (0, 4_000_000_000_000_000_001),
    ):
        os.utime(path, ns=(accessed, modified))
        found = os.stat(path)
        same((found.st_atime_ns, found.st_mtime_ns), (accessed, modified))


@case
def UTIME_OMIT_keeps_a_time_and_UTIME_NOW_sets_that_of_now(here: Path) -> None:
    path = make(here / "f")
    os.utime(path, ns=(1, 2))
    set_times(path, OMIT, Moment(5, 6))
    same((os.stat(path).st_atime_ns, os.stat(path).st_mtime_ns), (1, 5_000_000_006))
    set_times(path, Moment(7, 8), OMIT)
    same((os.stat(path).st_atime_ns, os.stat(path).st_mtime_ns), (7_000_000_008, 5_000_000_006))
    before = time.time_ns() - 10**9
    set_times(path, OMIT, NOW)
    same(os.stat(path).st_atime_ns, 7_000_000_008)
    holds(os.stat(path).st_mtime_ns > before, "the time of now", os.stat(path).st_mtime_ns)
    changed = os.stat(path).st_ctime_ns
    wait_for_tick()
    set_times(path, OMIT, OMIT)
    same(os.stat(path).st_ctime_ns, changed, "change time when nothing is set:")
    fails(errno.EINVAL, set_times, path, OMIT, Moment(1, 10**9))


@case(root=True)
def one_time_of_another_users_file_is_never_set(here: Path) -> None:
    path = make_owned(here / "f", USER.uid, USER.gid, 0o666)
    fails(errno.EPERM, run_as, OTHER, set_times, path, Moment(5, 5), OMIT)
    fails(errno.EPERM, run_as, OTHER, set_times, path, OMIT, NOW)
    run_as(OTHER, set_times, path, NOW, NOW)
    run_as(OTHER, set_times, path, OMIT, OMIT)


@case
def times_before_1970_are_kept(here: Path) -> None:
    path = make(here / "f")
    for moment in (-1_000_000_000, -1, -1_500_000_000, -86_400_000_000_001):
        os.utime(path, ns=(moment, moment))
        found = os.stat(path)
        same((found.st_atime_ns, found.st_mtime_ns), (moment, moment))


@case
def times_of_a_link_and_of_a_directory_are_set(here: Path) -> None:
    make(here / "f")
    os.symlink("f", here / "s")
    os.utime(here / "s", ns=(5, 6), follow_symlinks=False)
    os.utime(here / "s", ns=(7, 8))
    same((os.lstat(here / "s").st_mtime_ns, os.stat(here / "f").st_mtime_ns), (6, 8))
    inner = make_directory(here / "d")
    os.utime(inner, ns=(9, 10))
    same(os.stat(inner).st_mtime_ns, 10)


@case
def time_of_an_open_file_stays_as_set_when_it_is_closed(here: Path) -> None:
    path = make(here / "f")
    with opened(path) as descriptor:
        os.write(descriptor, b"content")
        os.utime(descriptor, ns=(1, 2))
    same(os.stat(path).st_mtime_ns, 2)


@case(root=True)
def times_are_set_to_any_by_the_owner_and_to_now_by_who_may_write(here: Path) -> None:
    path = make_owned(here / "f", USER.uid, USER.gid, 0o666)
    run_as(USER, os.utime, path, (1, 1))
    same(os.stat(path).st_mtime, 1)
    fails(errno.EPERM, run_as, OTHER, os.utime, path, (2, 2))
    run_as(OTHER, os.utime, path)
    holds(os.stat(path).st_mtime > 1, "the time of now", os.stat(path).st_mtime)
    os.chmod(path, 0o444)
    fails(errno.EACCES, run_as, OTHER, os.utime, path)
    run_as(USER, os.utime, path)


@case
def first_read_after_a_change_sets_the_access_time(here: Path) -> None:
    if os.statvfs(here).f_flag & os.ST_NOATIME:
        raise Skipped("mounted with noatime")
    path = make(here / "f", b"content")
    now = time.time_ns()
    os.utime(path, ns=(now - 10**9, now))
    before = os.stat(path).st_atime_ns
    with opened(path, os.O_RDONLY) as descriptor:
        os.read(descriptor, 1)
    holds(os.stat(path).st_atime_ns > before, "a later access time", os.stat(path).st_atime_ns)


@case
def time_of_a_shared_mapping_that_was_stored_to_is_later(here: Path) -> None:
    path = make(here / "f", b"content")
    before = os.stat(path).st_mtime_ns
    wait_for_tick()
    with opened(path) as descriptor, mmap.mmap(descriptor, 7) as mapping:
        mapping[0] = 0
        mapping.flush()
    holds(os.stat(path).st_mtime_ns > before, "a later time", os.stat(path).st_mtime_ns)
