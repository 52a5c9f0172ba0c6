"""Directory streams: every entry once, also while names come and go; positions."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Set
from pathlib import Path

from kit.case import case, same
from kit.files import make, make_directory, opened
from kit.process import Child
from kit.system import Stream

# More names than the kernel returns at a time.
MANY = 1500
ROUNDS = 10


def make_many(here: Path, prefix: str, count: int) -> set[bytes]:
    """Makes many names of one file, which is faster than many files. Returns them."""
    first = make(here / f"{prefix}0000")
    for number in range(1, count):
        os.link(first, here / f"{prefix}{number:04}")
    return {os.fsencode(f"{prefix}{number:04}") for number in range(count)}


def once(names: list[bytes], needed: set[bytes], allowed: Set[bytes] = frozenset()) -> None:
    """Fails unless each name is there once, all that are needed, and no unknown one."""
    counts = Counter(name for name in names if name not in (b".", b".."))
    same([name for name, count in counts.items() if count > 1], [], "names that came twice:")
    same(sorted(needed - counts.keys()), [], "names that were missed:")
    same(sorted(counts.keys() - needed - allowed), [], "names that are not there:")


@case
def listing_gives_the_dots_and_every_entry_once(here: Path) -> None:
    names = make_many(here, "f", MANY)
    with Stream(here) as stream:
        found = list(stream)
    once(found, names)
    same(sorted(name for name in found if name in (b".", b"..")), [b".", b".."])


@case
def listing_tells_kinds_and_numbers_as_stat_does(here: Path) -> None:
    make(here / "f")
    make_directory(here / "d")
    os.symlink("f", here / "s")
    with os.scandir(here) as entries:
        for entry in entries:
            found = os.lstat(entry.path)
            same(entry.inode(), found.st_ino, f"number of {entry.name}")
            kinds = entry.is_file(follow_symlinks=False), entry.is_dir(follow_symlinks=False)
            same(kinds, (stat.S_ISREG(found.st_mode), stat.S_ISDIR(found.st_mode)), entry.name)
            same(entry.is_symlink(), stat.S_ISLNK(found.st_mode), entry.name)


@case
def listing_of_a_descriptor_starts_anew_after_a_rewind(here: Path) -> None:
    make(here / "a")
    with Stream(here) as stream:
        same(sorted(stream), [b".", b"..", b"a"])
        make(here / "b")
        stream.rewind()
        same(sorted(stream), [b".", b"..", b"a", b"b"])


@case
def names_that_stay_are_listed_once_while_others_come_and_go(here: Path) -> None:
    names = make_many(here, "stays", 400)
    others = {os.fsencode(f"goes{number:04}") for number in range(200)}

    def come_and_go() -> None:
        while True:
            for name in others:
                make(here / os.fsdecode(name))
            for name in others:
                os.unlink(here / os.fsdecode(name))

    child = Child(come_and_go)
    try:
        for _ in range(ROUNDS):
            with Stream(here) as stream:
                once(list(stream), names, others)
    finally:
        os.kill(child.pid, 9)
        child.end()


@case
def names_removed_while_they_are_listed_let_none_be_missed(here: Path) -> None:
    names = make_many(here, "f", MANY)
    found = []
    with Stream(here) as stream:
        for name in stream:
            found.append(name)
            if name not in (b".", b".."):
                os.unlink(here / os.fsdecode(name))
    once(found, names)
    same(os.listdir(here), [])


@case
def names_made_while_they_are_listed_disturb_no_others(here: Path) -> None:
    names = make_many(here, "f", MANY)
    new = set()
    found = []
    with Stream(here) as stream:
        for number, name in enumerate(stream):
            found.append(name)
            if number < MANY:
                os.link(here / "f0000", here / f"new{number:04}")
                new.add(os.fsencode(f"new{number:04}"))
    once(found, names, new)


@case
def position_of_a_stream_is_found_again(here: Path) -> None:
    make_many(here, "f", MANY)
    positions: list[tuple[int, bytes]] = []
    with Stream(here) as stream:
        position = stream.tell()
        for name in stream:
            positions.append((position, name))
            position = stream.tell()
        for place, name in positions[:: MANY // 30] + positions[:: -(MANY // 20)]:
            stream.seek(place)
            same(next(iter(stream)), name, f"name at position {place}")


@case
def position_of_a_stream_is_found_again_after_other_names_were_removed(here: Path) -> None:
    make_many(here, "f", 300)
    with Stream(here) as stream:
        names = iter(stream)
        seen = [next(names) for _ in range(150)]
        position = stream.tell()
        rest = list(stream)
        for name in seen + rest[::2]:
            if name not in (b".", b".."):
                os.unlink(here / os.fsdecode(name))
        stream.seek(position)
        once(list(stream), set(rest[1::2]) - {b".", b".."})


@case
def two_streams_of_one_directory_are_independent(here: Path) -> None:
    names = make_many(here, "f", 50)
    with Stream(here) as first, Stream(here) as second:
        pairs = list(zip(first, second, strict=True))
    once([name for name, _ in pairs], names)
    once([name for _, name in pairs], names)


@case
def listing_of_a_directory_that_is_renamed_goes_on(here: Path) -> None:
    inner = make_directory(here / "d")
    names = make_many(inner, "f", MANY)
    with Stream(inner) as stream:
        found = [next(iter(stream))]
        os.rename(inner, here / "new")
        found += list(stream)
    once(found, names)


@case
def listing_shows_at_once_what_another_process_did(here: Path) -> None:
    with opened(here, os.O_RDONLY) as descriptor:
        for number in range(20):
            path = here / str(number)
            Child(os.mkdir, path).result()
            same(os.listdir(descriptor), [path.name])
            Child(os.rmdir, path).result()
            same(os.listdir(descriptor), [])
