"""rename, with and without flags, and in sticky directories."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from kit.case import Skipped, case, declare, fails, same
from kit.files import make, make_directory, make_owned, opened, read
from kit.process import OTHER, USER, Child, Gate, run_as
from kit.system import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2

REPLACEMENTS = 2000


@case
def rename_keeps_the_file_and_drops_the_old_name(here: Path) -> None:
    path = make(here / "a", b"content", mode=0o640)
    number = os.stat(path).st_ino
    os.rename(path, here / "b")
    found = os.stat(here / "b")
    same((os.listdir(here), found.st_ino, found.st_nlink), (["b"], number, 1))
    same(read(here / "b"), b"content")


@case
def rename_over_a_file_replaces_it(here: Path) -> None:
    first, second = make(here / "a", b"new"), make(here / "b", b"old")
    with opened(second) as descriptor:
        os.rename(first, second)
        same((os.fstat(descriptor).st_nlink, os.pread(descriptor, 9, 0)), (0, b"old"))
    same((os.listdir(here), read(second)), (["b"], b"new"))


@case
def rename_over_another_name_of_the_same_file_does_nothing(here: Path) -> None:
    first = make(here / "a")
    os.link(first, here / "b")
    os.rename(first, here / "b")
    same((sorted(os.listdir(here)), os.stat(first).st_nlink), (["a", "b"], 2))
    os.rename(first, first)
    same(sorted(os.listdir(here)), ["a", "b"])


@case
def rename_of_a_link_moves_the_link(here: Path) -> None:
    make(here / "f")
    os.symlink("f", here / "s")
    os.rename(here / "s", here / "t")
    same((os.readlink(here / "t"), sorted(os.listdir(here))), ("f", ["f", "t"]))
    os.rename(here / "f", here / "t")
    same((os.listdir(here), os.path.islink(here / "t")), (["t"], False))


@case
def rename_between_kinds_is_refused(here: Path) -> None:
    path, inner = make(here / "f"), make_directory(here / "d")
    fails(errno.EISDIR, os.rename, path, inner)
    fails(errno.ENOTDIR, os.rename, inner, path)
    os.symlink("d", here / "s")
    fails(errno.ENOTDIR, os.rename, inner, here / "s")


@case
def rename_of_a_directory_replaces_an_empty_one_only(here: Path) -> None:
    first, second, third = (make_directory(here / name) for name in "abc")
    make(first / "f")
    make(third / "f")
    fails((errno.ENOTEMPTY, errno.EEXIST), os.rename, first, third)
    os.rename(first, second)
    same((sorted(os.listdir(here)), os.listdir(second)), (["b", "c"], ["f"]))


@case
def rename_of_a_directory_into_itself_gives_EINVAL(here: Path) -> None:
    outer = make_directory(here / "d")
    make_directory(outer / "inner")
    fails(errno.EINVAL, os.rename, outer, outer / "new")
    fails(errno.EINVAL, os.rename, outer, outer / "inner" / "new")
    fails((errno.ENOTEMPTY, errno.EEXIST), os.rename, outer / "inner", outer)


@case
def rename_of_dots_is_refused(here: Path) -> None:
    inner = make_directory(here / "d")
    for name in (".", ".."):
        fails((errno.EBUSY, errno.EINVAL), os.rename, f"{inner}/{name}", here / "new")
        fails((errno.EBUSY, errno.EINVAL), os.rename, inner, f"{here}/{name}")


@case
def rename_of_a_directory_changes_where_its_dots_lead(here: Path) -> None:
    first, second = make_directory(here / "a"), make_directory(here / "b")
    moved = make_directory(first / "d")
    os.chdir(moved)
    os.rename(moved, second / "d")
    same((os.getcwd(), os.stat("..").st_ino), (str(second / "d"), os.stat(second).st_ino))


@case
def rename_of_an_open_file_keeps_it_open(here: Path) -> None:
    path = make(here / "a", b"1")
    make_directory(here / "d")
    with opened(path) as descriptor:
        os.rename(path, here / "d" / "b")
        os.pwrite(descriptor, b"23", 1)
        same(read(here / "d" / "b"), b"123")


@case
def proc_tells_the_new_path_of_an_open_file_that_is_renamed(here: Path) -> None:
    path = make(here / "a")
    with opened(path) as descriptor:
        os.rename(path, here / "b")
        same(os.readlink(f"/proc/self/fd/{descriptor}"), str(here / "b"))


def declare_replaced(name: str, act: Callable[[Path], object]) -> None:
    """Declares the case that a call never misses a name that is replaced all the time."""
    declare(f"{name}_finds_a_name_that_is_replaced", lambda here: while_replaced(here, act))


def while_replaced(here: Path, act: Callable[[Path], object]) -> None:
    """Acts on a name again and again while another process renames other files over it."""
    path = make(here / "f", b"0" * 10)
    gate = Gate()

    def replace() -> None:
        gate.wait()
        for number in range(REPLACEMENTS):
            make(here / "new", b"%d" % (number % 10) * 10)
            os.rename(here / "new", path)

    writer = Child(replace)
    gate.open()
    for _ in range(REPLACEMENTS):
        act(path)
    writer.result()


def read_whole(path: Path) -> None:
    """Reads one of the files, which each hold one digit ten times."""
    content = read(path)
    same((len(content), len(set(content))), (10, 1), "length and number of different bytes")


ACTIONS: dict[str, Callable[[Path], object]] = {
    "open": read_whole,
    "open_with_O_CREAT": lambda path: os.close(os.open(path, os.O_CREAT | os.O_WRONLY)),
    "stat": os.stat,
    "access": lambda path: same(os.access(path, os.R_OK), True),
    "chmod": lambda path: os.chmod(path, 0o644),
    "utimensat": os.utime,
    "truncate": lambda path: os.truncate(path, 10),
    "listxattr": os.listxattr,
}

for _name, _act in ACTIONS.items():
    declare_replaced(_name, _act)


def flagged(old: Path, new: Path, flags: int) -> None:
    """Renames with flags. Skips the case where the file system has none."""
    try:
        renameat2(old, new, flags)
    except OSError as error:
        if error.errno == errno.EINVAL and flags in (RENAME_NOREPLACE, RENAME_EXCHANGE):
            raise Skipped("the file system has no such flag") from error
        raise


@case
def RENAME_NOREPLACE_refuses_a_name_that_is_there(here: Path) -> None:
    first, second = make(here / "a", b"a"), make(here / "b", b"b")
    fails(errno.EEXIST, flagged, first, second, RENAME_NOREPLACE)
    same((read(first), read(second)), (b"a", b"b"))
    flagged(first, here / "c", RENAME_NOREPLACE)
    same(sorted(os.listdir(here)), ["b", "c"])


@case
def RENAME_NOREPLACE_refuses_another_name_of_the_same_file(here: Path) -> None:
    first = make(here / "a")
    os.link(first, here / "b")
    fails(errno.EEXIST, flagged, first, here / "b", RENAME_NOREPLACE)


@case
def RENAME_EXCHANGE_exchanges_files_of_any_kinds(here: Path) -> None:
    path, inner = make(here / "f", b"1"), make_directory(here / "d")
    make(inner / "x")
    flagged(path, inner, RENAME_EXCHANGE)
    same((os.listdir(path), read(inner)), (["x"], b"1"))
    os.symlink("target", here / "s")
    flagged(here / "s", path, RENAME_EXCHANGE)
    same((os.readlink(path), os.listdir(here / "s")), ("target", ["x"]))


@case
def RENAME_EXCHANGE_between_directories_keeps_the_counts_right(here: Path) -> None:
    first, second = make_directory(here / "a"), make_directory(here / "b")
    make(first / "f")
    make_directory(second / "d")
    before = os.stat(first).st_nlink, os.stat(second).st_nlink
    flagged(first / "f", second / "d", RENAME_EXCHANGE)
    same((os.stat(second).st_nlink, os.stat(first).st_nlink), before)
    same(os.stat(first / "f" / "..").st_ino, os.stat(first).st_ino)


@case
def RENAME_EXCHANGE_needs_both_names(here: Path) -> None:
    path = make(here / "f")
    fails(errno.ENOENT, flagged, path, here / "absent", RENAME_EXCHANGE)
    fails(errno.ENOENT, flagged, here / "absent", path, RENAME_EXCHANGE)


@case
def RENAME_EXCHANGE_with_a_directory_above_gives_EINVAL(here: Path) -> None:
    inner = make_directory(make_directory(here / "d") / "inner")
    fails(errno.EINVAL, renameat2, here / "d", inner, RENAME_EXCHANGE)
    fails(errno.EINVAL, renameat2, inner, here / "d", RENAME_EXCHANGE)


@case
def rename_flags_that_contradict_each_other_give_EINVAL(here: Path) -> None:
    first, second = make(here / "a"), make(here / "b")
    for flags in (RENAME_NOREPLACE | RENAME_EXCHANGE, 1 << 10):
        fails(errno.EINVAL, renameat2, first, second, flags)


@case(root=True)
def sticky_directory_lets_owners_rename_and_nobody_else(here: Path) -> None:
    sticky, plain = make_directory(here / "s", 0o1777), make_directory(here / "p", 0o777)
    for name in "abcd":
        make_owned(sticky / name, USER.uid, USER.gid, 0o666)
    fails(errno.EPERM, run_as, OTHER, os.rename, sticky / "a", sticky / "new")
    fails(errno.EPERM, run_as, OTHER, os.rename, sticky / "a", plain / "new")
    run_as(USER, os.rename, sticky / "a", plain / "new")
    os.chown(sticky, OTHER.uid, OTHER.gid)
    run_as(OTHER, os.rename, sticky / "b", plain / "newer")
    os.rename(sticky / "c", plain / "newest")


@case(root=True)
def sticky_directory_keeps_names_from_being_replaced_by_others(here: Path) -> None:
    sticky, plain = make_directory(here / "s", 0o1777), make_directory(here / "p", 0o777)
    for kind in ("f", "d"):
        make_owned(sticky / kind, USER.uid, USER.gid, 0o777, directory=kind == "d")
        make_owned(plain / kind, OTHER.uid, OTHER.gid, 0o777, directory=kind == "d")
        fails(errno.EPERM, run_as, OTHER, os.rename, plain / kind, sticky / kind)
    os.chown(sticky / "f", OTHER.uid, OTHER.gid)
    run_as(OTHER, os.rename, plain / "f", sticky / "f")


@case(root=True)
def RENAME_EXCHANGE_in_a_sticky_directory_needs_both_owners(here: Path) -> None:
    sticky, plain = make_directory(here / "s", 0o1777), make_directory(here / "p", 0o777)
    make_owned(sticky / "f", USER.uid, USER.gid, 0o777)
    make_owned(plain / "f", OTHER.uid, OTHER.gid, 0o777)
    fails(errno.EPERM, run_as, OTHER, flagged, plain / "f", sticky / "f", RENAME_EXCHANGE)
    fails(errno.EPERM, run_as, OTHER, flagged, sticky / "f", plain / "f", RENAME_EXCHANGE)


def cross(here: Path, act: Callable[[Path, Path], object]) -> None:
    """Lets two processes rename two directories into each other; both must come to an end."""
    first, second = make_directory(here / "a"), make_directory(here / "b")

    def repeat(source: Path, target: Path) -> None:
        for _ in range(200):
            for old, new in ((source, target / "x"), (target / "x", source)):
                try:
                    act(old, new)
                except OSError as error:
                    if error.errno not in (errno.EINVAL, errno.ENOENT, errno.ENOTEMPTY):
                        raise

    children = [Child(repeat, first, second), Child(repeat, second, first)]
    for child in children:
        child.result()


@case
def directories_renamed_into_each_other_never_vanish(here: Path) -> None:
    cross(here, os.rename)
    found = list(here.rglob("*"))
    same(len(found), 2, "number of directories that are left")
