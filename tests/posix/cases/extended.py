"""Extended attributes of the namespace `user.`."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from kit.case import Skipped, case, fails, same
from kit.files import make, make_directory, opened


def prepared(here: Path) -> Path:
    """Returns a file with an attribute. Skips the case where the file system has none."""
    path = make(here / "f")
    try:
        os.setxattr(path, "user.first", b"1")
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            raise Skipped("the file system has no extended attributes") from error
        raise
    return path


@case
def xattr_is_set_read_listed_and_removed(here: Path) -> None:
    path = prepared(here)
    os.setxattr(path, "user.second", b"\0\xff\n")
    same(os.getxattr(path, "user.second"), b"\0\xff\n")
    same(sorted(user_names(path)), ["user.first", "user.second"])
    os.removexattr(path, "user.first")
    same(user_names(path), ["user.second"])
    fails(errno.ENODATA, os.getxattr, path, "user.first")
    fails(errno.ENODATA, os.removexattr, path, "user.first")


def user_names(path: Path | int) -> list[str]:
    """Returns the names of a file's attributes, without those that the system adds."""
    return [name for name in os.listxattr(path) if name.startswith("user.")]


@case
def xattr_is_replaced_and_may_be_empty(here: Path) -> None:
    path = prepared(here)
    for value in (b"a longer value", b"", b"x"):
        os.setxattr(path, "user.first", value)
        same(os.getxattr(path, "user.first"), value)
    same(user_names(path), ["user.first"])


@case
def XATTR_CREATE_and_XATTR_REPLACE_do_what_they_say(here: Path) -> None:
    path = prepared(here)
    fails(errno.EEXIST, os.setxattr, path, "user.first", b"2", os.XATTR_CREATE)
    fails(errno.ENODATA, os.setxattr, path, "user.new", b"2", os.XATTR_REPLACE)
    os.setxattr(path, "user.new", b"3", os.XATTR_CREATE)
    os.setxattr(path, "user.first", b"4", os.XATTR_REPLACE)
    same((os.getxattr(path, "user.first"), os.getxattr(path, "user.new")), (b"4", b"3"))


@case
def xattr_belongs_to_the_file_and_not_to_its_name(here: Path) -> None:
    path = prepared(here)
    os.link(path, here / "g")
    os.rename(path, here / "h")
    same(os.getxattr(here / "g", "user.first"), b"1")
    with opened(here / "g", os.O_RDONLY) as descriptor:
        os.unlink(here / "g")
        os.unlink(here / "h")
        os.setxattr(descriptor, "user.first", b"2")
        same(os.getxattr(descriptor, "user.first"), b"2")
    same(user_names(make(here / "f")), [])


@case
def xattr_of_a_directory_is_kept(here: Path) -> None:
    prepared(here)
    inner = make_directory(here / "d")
    os.setxattr(inner, "user.a", b"1")
    same((os.getxattr(inner, "user.a"), user_names(inner)), (b"1", ["user.a"]))
    make_directory(inner / "d")
    same(user_names(inner / "d"), [])


@case
def xattr_of_the_user_namespace_is_refused_on_links(here: Path) -> None:
    prepared(here)
    os.symlink("f", here / "s")
    fails(errno.EPERM, lambda: os.setxattr(here / "s", "user.a", b"1", follow_symlinks=False))
    os.setxattr(here / "s", "user.a", b"1")
    same(os.getxattr(here / "f", "user.a"), b"1")


@case
def xattr_with_a_bad_name_is_refused(here: Path) -> None:
    path = prepared(here)
    fails(errno.ERANGE, os.setxattr, path, "user." + "n" * 251, b"1")
    fails(errno.EOPNOTSUPP, os.setxattr, path, "nonsense.a", b"1")
    fails((errno.ERANGE, errno.EOPNOTSUPP), os.setxattr, path, "", b"1")
    fails(errno.EINVAL, os.setxattr, path, "user.", b"1")
    os.setxattr(path, "user." + "n" * 250, b"1")
    same(os.getxattr(path, "user." + "n" * 250), b"1")


@case
def xattr_that_is_too_large_is_refused(here: Path) -> None:
    path = prepared(here)
    fails((errno.E2BIG, errno.ENOSPC), os.setxattr, path, "user.a", bytes(65_537))
    same(user_names(path), ["user.first"])


@case
def xattrs_of_some_kilobytes_are_kept(here: Path) -> None:
    path = prepared(here)
    values = {f"user.{number}": bytes([number]) * 300 for number in range(10)}
    for name, value in values.items():
        os.setxattr(path, name, value)
    same({name: os.getxattr(path, name) for name in values}, values)
    same(len(user_names(path)), 11)
