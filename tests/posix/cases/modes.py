"""chmod and chown: who may, set-user-ID and set-group-ID bits, directories that hand on a group."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

from kit.case import Skipped, case, declare, fails, same
from kit.files import make, make_directory, make_owned, mode_of, opened
from kit.process import GROUP, OTHER, USER, Identity, run_as
from kit.system import fallocate

MEMBER = Identity(USER.uid, USER.gid, (GROUP,))


@case
def chmod_sets_every_permission_bit(here: Path) -> None:
    path = make(here / "f")
    for mode in range(0, 0o1000, 0o111):
        os.chmod(path, mode)
        same(mode_of(path), mode)
    same(os.stat(path).st_nlink, 1)


@case
def chmod_sets_the_special_bits_of_own_files(here: Path) -> None:
    path = make(here / "f")
    for mode in (0o4755, 0o2755, 0o6711, 0o4000, 0o0644):
        os.chmod(path, mode)
        same(oct(mode_of(path)), oct(mode))
    inner = make_directory(here / "d")
    for mode in (0o1777, 0o2755, 0o3770, 0o0755):
        os.chmod(inner, mode)
        same(oct(mode_of(inner)), oct(mode))


@case
def chmod_follows_links(here: Path) -> None:
    path = make(here / "f")
    os.symlink("f", here / "link")
    os.chmod(here / "link", 0o600)
    same(mode_of(path), 0o600)


@case
def fchmod_works_on_a_descriptor_for_reading_and_on_a_file_without_names(here: Path) -> None:
    path = make(here / "f")
    with opened(path, os.O_RDONLY) as descriptor:
        os.unlink(path)
        os.fchmod(descriptor, 0o640)
        same(oct(mode_of(descriptor)), oct(0o640))


@case(root=True)
def chmod_by_another_user_gives_EPERM(here: Path) -> None:
    path = make_owned(here / "f", USER.uid, USER.gid, 0o666)
    fails(errno.EPERM, run_as, OTHER, os.chmod, path, 0o600)
    same(mode_of(path), 0o666)
    run_as(USER, os.chmod, path, 0o600)
    same(mode_of(path), 0o600)


@case(root=True)
def chmod_by_an_owner_outside_the_group_clears_set_group_id(here: Path) -> None:
    path = make_owned(here / "f", USER.uid, GROUP, 0o644)
    run_as(USER, os.chmod, path, 0o2755)
    same(oct(mode_of(path)), oct(0o755), "by an owner who is no member")
    run_as(MEMBER, os.chmod, path, 0o2755)
    same(oct(mode_of(path)), oct(0o2755), "by an owner who is a member")
    os.chmod(path, 0o755)
    os.chmod(path, 0o2755)
    same(oct(mode_of(path)), oct(0o2755), "by root")


@case(root=True)
def root_changes_owner_and_group(here: Path) -> None:
    path = make(here / "f")
    for uid, gid in ((USER.uid, -1), (-1, GROUP), (OTHER.uid, OTHER.gid), (0, 0)):
        before = os.stat(path)
        os.chown(path, uid, gid)
        after = os.stat(path)
        expected = (before.st_uid if uid == -1 else uid, before.st_gid if gid == -1 else gid)
        same((after.st_uid, after.st_gid), expected)


@case(root=True)
def owner_gives_a_file_to_own_groups_only(here: Path) -> None:
    path = make_owned(here / "f", USER.uid, USER.gid, 0o644)
    run_as(MEMBER, os.chown, path, -1, GROUP)
    same(os.stat(path).st_gid, GROUP)
    run_as(MEMBER, os.chown, path, USER.uid, USER.gid)
    same(os.stat(path).st_gid, USER.gid)
    fails(errno.EPERM, run_as, USER, os.chown, path, -1, GROUP)
    fails(errno.EPERM, run_as, USER, os.chown, path, OTHER.uid, -1)
    same(os.stat(path).st_uid, USER.uid)


@case(root=True)
def chown_by_another_user_gives_EPERM(here: Path) -> None:
    path = make_owned(here / "f", USER.uid, USER.gid, 0o666)
    fails(errno.EPERM, run_as, OTHER, os.chown, path, OTHER.uid, OTHER.gid)
    fails(errno.EPERM, run_as, OTHER, os.chown, path, -1, OTHER.gid)
    fails(errno.EPERM, run_as, OTHER, os.chown, path, OTHER.uid, -1)


@case(root=True)
def lchown_changes_the_link_and_chown_its_target(here: Path) -> None:
    path = make(here / "f")
    os.symlink("f", here / "link")
    os.lchown(here / "link", USER.uid, USER.gid)
    same((os.lstat(here / "link").st_uid, os.stat(path).st_uid), (USER.uid, 0))
    os.chown(here / "link", OTHER.uid, OTHER.gid)
    same((os.lstat(here / "link").st_uid, os.stat(path).st_uid), (USER.uid, OTHER.uid))


@case(root=True)
def chown_of_a_program_clears_its_set_id_bits(here: Path) -> None:
    path = make_owned(here / "f", USER.uid, USER.gid, 0o6755)
    run_as(MEMBER, os.chown, path, -1, GROUP)
    same(oct(mode_of(path)), oct(0o755), "by its owner")
    os.chmod(path, 0o6755)
    os.chown(path, OTHER.uid, OTHER.gid)
    same(oct(mode_of(path)), oct(0o755), "by root")


@case(root=True)
def chown_keeps_set_group_id_of_files_that_the_group_may_not_execute(here: Path) -> None:
    path = make_owned(here / "f", USER.uid, USER.gid, 0o2644)
    os.chown(path, USER.uid, OTHER.gid)
    same(oct(mode_of(path)), oct(0o2644))


@case(root=True)
def chown_of_a_directory_keeps_its_special_bits(here: Path) -> None:
    path = make_owned(here / "d", USER.uid, USER.gid, 0o7755, directory=True)
    os.chown(path, OTHER.uid, OTHER.gid)
    same(oct(mode_of(path)), oct(0o7755))


def write_one(path: Path) -> None:
    with opened(path, os.O_WRONLY) as descriptor:
        os.write(descriptor, b"1")


def allocate_one(path: Path) -> None:
    with opened(path, os.O_WRONLY) as descriptor:
        fallocate(descriptor, 0, 0, 1)


WRITING: dict[str, Callable[[Path], object]] = {
    "write": write_one,
    "truncate": lambda path: os.truncate(path, 1),
    "open_that_truncates": lambda path: os.close(os.open(path, os.O_WRONLY | os.O_TRUNC)),
    "fallocate": allocate_one,
}


def declare_clearing(name: str, call: Callable[[Path], object]) -> None:
    """Declares the cases about what a change of the data does to set-ID bits."""

    def by_owner(here: Path) -> None:
        path = make(here / "f", b"123", mode=0o6777)
        call(path)
        same(oct(mode_of(path)), oct(0o777))

    def by_another(here: Path) -> None:
        path = make_owned(here / "f", USER.uid, USER.gid, 0o6777)
        os.truncate(path, 3)
        os.chmod(path, 0o6777)
        run_as(OTHER, call, path)
        same(oct(mode_of(path)), oct(0o777))

    def by_root(here: Path) -> None:
        path = make_owned(here / "f", USER.uid, USER.gid, 0o6777)
        call(path)
        same(oct(mode_of(path)), oct(0o6777))

    declare(f"{name}_by_the_owner_clears_the_set_id_bits", by_owner, ordinary=True)
    declare(f"{name}_by_another_user_clears_the_set_id_bits", by_another, root=True)
    declare(f"{name}_by_root_keeps_the_set_id_bits", by_root, root=True)


for _name, _call in WRITING.items():
    declare_clearing(_name, _call)


@case(ordinary=True)
def set_group_id_without_execution_by_the_group_is_kept_by_a_write(here: Path) -> None:
    path = make(here / "f", mode=0o2666)
    write_one(path)
    same(oct(mode_of(path)), oct(0o2666))


@case
def mask_of_the_process_takes_bits_from_new_files(here: Path) -> None:
    for mask in (0, 0o022, 0o077, 0o777):
        os.umask(mask)
        os.close(os.open(here / f"f{mask}", os.O_CREAT | os.O_WRONLY, 0o666))
        os.mkdir(here / f"d{mask}", 0o777)
        os.mknod(here / f"n{mask}", 0o666)
        same(oct(mode_of(here / f"f{mask}")), oct(0o666 & ~mask))
        same(oct(mode_of(here / f"d{mask}")), oct(0o777 & ~mask))
        same(oct(mode_of(here / f"n{mask}")), oct(0o666 & ~mask))


@case(root=True)
def new_files_belong_to_the_effective_user_and_group(here: Path) -> None:
    os.chmod(here, 0o777)

    def make_all() -> None:
        make(here / "f")
        os.mkdir(here / "d")
        os.symlink("f", here / "s")
        os.mknod(here / "n")

    run_as(USER, make_all)
    for name in "fdsn":
        found = os.lstat(here / name)
        same((name, found.st_uid, found.st_gid), (name, USER.uid, USER.gid))


@case(root=True)
def set_group_id_directory_hands_its_group_on(here: Path) -> None:
    inner = make_owned(here / "d", USER.uid, GROUP, 0o2777, directory=True)

    def make_all() -> None:
        os.close(os.open(inner / "f", os.O_CREAT | os.O_WRONLY, 0o666))
        os.mkdir(inner / "d")
        os.symlink("f", inner / "s")
        os.mknod(inner / "n")

    run_as(OTHER, make_all)
    for name in "fdsn":
        found = os.lstat(inner / name)
        same((name, found.st_uid, found.st_gid), (name, OTHER.uid, GROUP))
    same(bool(mode_of(inner / "d") & stat.S_ISGID), True, "bit of the new directory is set:")
    same(bool(mode_of(inner / "f") & stat.S_ISGID), False, "bit of the new file is set:")


@case(root=True)
def program_made_in_a_set_group_id_directory_has_the_bit_only_for_members(here: Path) -> None:
    inner = make_owned(here / "d", USER.uid, GROUP, 0o2777, directory=True)
    flags = os.O_CREAT | os.O_WRONLY
    for name, identity, expected in (("other", OTHER, 0o755), ("member", MEMBER, 0o2755)):
        run_as(identity, os.open, inner / name, flags, 0o2755)
        same(oct(mode_of(inner / name)), oct(expected), name)


@case(ordinary=True)
def sticky_bit_of_a_file_of_an_ordinary_user_breaks_nothing(here: Path) -> None:
    path = make(here / "f")
    try:
        os.chmod(path, 0o1644)
    except OSError as error:
        raise Skipped("the file system refuses it, as POSIX permits") from error
    same(os.stat(path).st_size, 0)


@case
def chmod_of_an_open_file_is_seen_by_every_descriptor(here: Path) -> None:
    path = make(here / "f")
    with opened(path) as first, opened(path) as second:
        os.chmod(path, 0o600)
        same((mode_of(first), mode_of(second)), (0o600, 0o600))
