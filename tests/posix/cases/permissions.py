"""Who may open, search, create and remove; supplementary groups; what root may."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path

from kit.case import case, declare, fails, same
from kit.files import make, make_directory, make_owned, mode_of, opened
from kit.process import GROUP, OTHER, USER, Identity, run_as
from kit.system import LIBC, drop_capabilities

FLAGS = {"reading": (os.O_RDONLY, 4), "writing": (os.O_WRONLY, 2), "both": (os.O_RDWR, 6)}
MEMBER = Identity(OTHER.uid, OTHER.gid, (GROUP,))
MEMBER_AS_ROOT = Identity(0, OTHER.gid, (GROUP,))


def can_open(path: Path, flags: int) -> bool:
    """Whether this process may open a file."""
    try:
        os.close(os.open(path, flags))
    except PermissionError:
        return False
    return True


def openings(path: Path) -> dict[str, bool]:
    """Returns in which ways this process may open a file."""
    return {way: can_open(path, flags) for way, (flags, _) in FLAGS.items()}


def permitted(bits: int) -> dict[str, bool]:
    """Returns in which ways these three bits permit to open a file."""
    return {way: bits & needed == needed for way, (_, needed) in FLAGS.items()}


@case(ordinary=True)
def bits_of_the_owner_decide_for_the_owner_alone(here: Path) -> None:
    for bits in range(8):
        path = make(here / str(bits), mode=bits << 6 | (7 - bits) * 0o11)
        same(openings(path), permitted(bits), oct(bits))


@case(root=True)
def bits_of_the_group_decide_for_its_members_alone(here: Path) -> None:
    for bits in range(8):
        path = make_owned(here / str(bits), USER.uid, OTHER.gid, bits << 3 | (7 - bits) * 0o101)
        same(run_as(OTHER, openings, path), permitted(bits), oct(bits))


@case(root=True)
def bits_of_others_decide_for_who_is_neither_owner_nor_member(here: Path) -> None:
    for bits in range(8):
        path = make_owned(here / str(bits), USER.uid, USER.gid, bits | (7 - bits) * 0o110)
        same(run_as(OTHER, openings, path), permitted(bits), oct(bits))


@case(root=True)
def bits_of_the_group_decide_for_members_by_a_supplementary_group(here: Path) -> None:
    for bits in range(8):
        path = make_owned(here / str(bits), USER.uid, GROUP, bits << 3 | (7 - bits))
        same(run_as(MEMBER, openings, path), permitted(bits), oct(bits))


@case(root=True)
def one_of_many_supplementary_groups_is_enough(here: Path) -> None:
    path = make_owned(here / "f", USER.uid, GROUP, 0o060)
    many = Identity(OTHER.uid, OTHER.gid, (*range(20000, 20060), GROUP))
    same(run_as(many, openings, path), permitted(6))


@case(root=True)
def group_that_was_given_up_permits_nothing(here: Path) -> None:
    path = make_owned(here / "f", USER.uid, GROUP, 0o060)

    def after_giving_up() -> dict[str, bool]:
        MEMBER_AS_ROOT.take()
        os.setgroups([])
        os.setresuid(OTHER.uid, OTHER.uid, OTHER.uid)
        return openings(path)

    same(run_as(Identity(0, 0), after_giving_up), permitted(0))


@case(root=True)
def root_may_open_everything(here: Path) -> None:
    same(openings(make_owned(here / "f", USER.uid, USER.gid, 0)), permitted(7))
    same(os.listdir(make_owned(here / "d", USER.uid, USER.gid, 0, directory=True)), [])


@case(root=True)
def root_without_its_capabilities_is_checked_as_any_other(here: Path) -> None:
    path = make_owned(here / "f", USER.uid, USER.gid, 0o604)
    inner = make_owned(here / "d", USER.uid, USER.gid, 0o755, directory=True)

    def as_weak_root() -> None:
        drop_capabilities()
        same(openings(path), permitted(4))
        fails(errno.EACCES, os.mkdir, inner / "new")
        fails(errno.EPERM, os.chmod, path, 0o600)
        fails(errno.EPERM, os.chown, path, 0, 0)

    run_as(Identity(0, 0), as_weak_root)


@case(root=True)
def file_system_user_decides_for_open(here: Path) -> None:
    path = make_owned(here / "f", USER.uid, USER.gid, 0o600)

    def as_server() -> None:
        os.setgroups([])
        LIBC.setfsuid(OTHER.uid)
        same(openings(path), permitted(0), "another user")
        LIBC.setfsuid(USER.uid)
        same(openings(path), permitted(6), "the owner")

    run_as(Identity(0, 0), as_server)


@case(root=True)
def descriptor_permits_what_it_did_when_it_was_opened_to_every_user(here: Path) -> None:
    path = make_owned(here / "f", USER.uid, USER.gid, 0o600)
    with opened(path) as descriptor:

        def use() -> None:
            same(os.write(descriptor, b"content"), 7)
            os.ftruncate(descriptor, 4)
            same(os.pread(descriptor, 9, 0), b"cont")
            os.posix_fallocate(descriptor, 0, 10)
            with mmap.mmap(descriptor, 10) as mapping:
                mapping[0] = ord("C")
            fails(errno.EPERM, os.fchmod, descriptor, 0o666)
            fails(errno.EACCES, os.open, path, os.O_RDONLY)

        run_as(OTHER, use)
    same(path.read_bytes(), b"Cont" + bytes(6))


@case(root=True)
def effective_user_decides_for_open_and_real_user_for_access(here: Path) -> None:
    path = make_owned(here / "f", USER.uid, USER.gid, 0o600)

    def with_two_users() -> None:
        os.setgroups([])
        os.setresgid(OTHER.gid, USER.gid, 0)
        os.setresuid(OTHER.uid, USER.uid, 0)
        same(openings(path), permitted(6), "open")
        same(os.access(path, os.R_OK), False, "access")
        same(os.access(path, os.R_OK, effective_ids=True), True, "eaccess")

    run_as(Identity(0, 0), with_two_users)


@case(ordinary=True)
def access_says_what_the_bits_permit(here: Path) -> None:
    for bits in range(8):
        path = make(here / str(bits), mode=bits << 6)
        found = sum(flag for flag in (os.R_OK, os.W_OK, os.X_OK) if os.access(path, flag))
        same(found, bits, oct(bits))


@case(root=True)
def root_may_execute_only_what_somebody_may_execute(here: Path) -> None:
    same(os.access(make(here / "plain"), os.X_OK), False)
    same(os.access(make(here / "program", mode=0o001), os.X_OK), True)
    fails(errno.EACCES, os.execve, here / "plain", ["x"], {})


@case(ordinary=True)
def directory_is_listed_with_read_and_used_with_search_permission(here: Path) -> None:
    inner = make_directory(here / "d")
    make(inner / "f")
    os.chmod(inner, 0o400)
    same(os.listdir(inner), ["f"])
    fails(errno.EACCES, os.stat, inner / "f")
    fails(errno.EACCES, os.chdir, inner)
    os.chmod(inner, 0o100)
    same(os.stat(inner / "f").st_size, 0)
    fails(errno.EACCES, os.listdir, inner)
    os.chmod(inner, 0o700)


@case(ordinary=True)
def directory_that_was_opened_is_listed_after_its_mode_forbids_it(here: Path) -> None:
    inner = make_directory(here / "d")
    make(inner / "f")
    with opened(inner, os.O_RDONLY) as descriptor:
        os.chmod(inner, 0)
        same(os.listdir(descriptor), ["f"])
        os.chmod(inner, 0o700)


@case(ordinary=True)
def file_that_was_opened_is_written_after_its_mode_forbids_it(here: Path) -> None:
    path = make(here / "f")
    with opened(path) as descriptor:
        os.fchmod(descriptor, 0)
        same(os.write(descriptor, b"1"), 1)
        os.ftruncate(descriptor, 10)
        same(os.pread(descriptor, 2, 0), b"1\0")
        fails(errno.EACCES, os.open, path, os.O_RDONLY)


@case(ordinary=True)
def file_without_write_permission_is_created_and_written_by_its_creator(here: Path) -> None:
    with opened(here / "f", os.O_RDWR | os.O_CREAT, 0) as descriptor:
        same(os.write(descriptor, b"12"), 2)
        same(os.pread(descriptor, 2, 0), b"12")
    same(mode_of(here / "f"), 0)


@case(ordinary=True)
def truncate_needs_write_permission_of_the_file(here: Path) -> None:
    path = make(here / "f", b"123", mode=0o444)
    fails(errno.EACCES, os.truncate, path, 0)
    fails(errno.EACCES, os.open, path, os.O_RDONLY | os.O_TRUNC)
    same(os.stat(path).st_size, 3)


CHANGING: dict[str, Callable[[Path], object]] = {
    "open_that_creates": lambda d: os.open(d / "new", os.O_CREAT | os.O_WRONLY),
    "mkdir": lambda d: os.mkdir(d / "new"),
    "mknod": lambda d: os.mknod(d / "new"),
    "symlink": lambda d: os.symlink("target", d / "new"),
    "link": lambda d: os.link(d / "file", d / "new"),
    "unlink": lambda d: os.unlink(d / "file"),
    "rmdir": lambda d: os.rmdir(d / "directory"),
    "rename_within": lambda d: os.rename(d / "file", d / "new"),
    "rename_from": lambda d: os.rename(d / "file", d.parent / "new"),
    "rename_into": lambda d: os.rename(d.parent / "file", d / "new"),
    "rename_over": lambda d: os.rename(d.parent / "file", d / "file"),
}


def declare_unwritable(name: str, call: Callable[[Path], object]) -> None:
    """Declares the case that a call that changes a directory needs write permission there."""

    def body(here: Path) -> None:
        inner = make_directory(here / "d")
        make(here / "file")
        make(inner / "file")
        make_directory(inner / "directory")
        os.chmod(inner, 0o500)
        fails(errno.EACCES, call, inner)
        same(sorted(os.listdir(inner)), ["directory", "file"])

    declare(f"{name}_in_a_directory_without_write_permission_gives_EACCES", body, ordinary=True)


for _name, _call in CHANGING.items():
    declare_unwritable(_name, _call)


@case(ordinary=True)
def rename_of_a_directory_to_another_parent_needs_write_permission_of_it(here: Path) -> None:
    moved = make_directory(here / "moved", 0o500)
    make_directory(here / "parent")
    fails(errno.EACCES, os.rename, moved, here / "parent" / "moved")
    os.rename(moved, here / "renamed")


@case(ordinary=True)
def existing_name_in_a_directory_without_write_permission_gives_EEXIST(here: Path) -> None:
    inner = make_directory(here / "d")
    make(inner / "f")
    os.chmod(inner, 0o500)
    fails(errno.EEXIST, os.mkdir, inner / "f")
    fails(errno.EEXIST, os.open, inner / "f", os.O_CREAT | os.O_EXCL)
    os.close(os.open(inner / "f", os.O_CREAT | os.O_WRONLY))


@case(root=True)
def file_of_another_user_in_a_common_directory_is_removed(here: Path) -> None:
    common = make_directory(here / "d", 0o777)
    path = make_owned(common / "f", USER.uid, USER.gid, 0o400)
    run_as(OTHER, os.unlink, path)
    same(os.listdir(common), [])


@case(root=True)
def xattr_needs_the_permissions_of_the_data(here: Path) -> None:
    path = make_owned(here / "f", USER.uid, USER.gid, 0o644)
    run_as(USER, os.setxattr, path, "user.a", b"1")
    same(run_as(OTHER, os.getxattr, path, "user.a"), b"1")
    fails(errno.EACCES, run_as, OTHER, os.setxattr, path, "user.a", b"2")
    fails(errno.EACCES, run_as, OTHER, os.removexattr, path, "user.a")
    os.chmod(path, 0o600)
    fails(errno.EACCES, run_as, OTHER, os.getxattr, path, "user.a")
