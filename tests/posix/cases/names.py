"""link, symlink, mkdir, rmdir, unlink and mknod; how many names a file has; names of any bytes."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from kit.case import Skipped, case, fails, same
from kit.files import make, make_directory, make_owned, mode_of, opened, read
from kit.process import OTHER, USER, run_as
from kit.system import link_target

# Directories of some file systems (btrfs, overlayfs on it) always have one link.
ONE_LINK = 1


def links(path: Path) -> int:
    """Returns how many names a file has."""
    return os.lstat(path).st_nlink


@case
def link_gives_one_file_two_names(here: Path) -> None:
    first = make(here / "a", b"content")
    os.link(first, here / "b")
    same((links(first), links(here / "b")), (2, 2))
    same(os.stat(first).st_ino, os.stat(here / "b").st_ino)
    os.chmod(first, 0o600)
    same(mode_of(here / "b"), 0o600)
    os.unlink(first)
    same((links(here / "b"), read(here / "b")), (1, b"content"))


@case
def numbers_of_files_differ_and_stay(here: Path) -> None:
    paths = [make(here / str(number)) for number in range(100)]
    before = [os.stat(path).st_ino for path in paths]
    same(len(set(before)), 100, "number of different numbers:")
    for path in paths:
        os.rename(path, here / f"_{path.name}")
        path.write_bytes(b"new")
    same([os.stat(here / f"_{path.name}").st_ino for path in paths], before)


@case
def link_of_a_directory_gives_EPERM(here: Path) -> None:
    fails(errno.EPERM, os.link, make_directory(here / "d"), here / "new")


@case
def link_of_a_symbolic_link_names_the_link_or_its_target_as_asked(here: Path) -> None:
    make(here / "f")
    os.symlink("f", here / "s")
    os.link(here / "s", here / "link", follow_symlinks=False)
    link_target(here / "s", here / "target")
    same(os.readlink(here / "link"), "f")
    same(os.lstat(here / "target").st_ino, os.lstat(here / "f").st_ino)


@case
def link_to_another_file_system_gives_EXDEV(here: Path) -> None:
    fails(errno.EXDEV, os.link, "/proc/self/status", here / "new")
    fails(errno.EXDEV, os.rename, "/proc/self/status", here / "new")


@case
def file_with_many_links_counts_them(here: Path) -> None:
    path = make(here / "f")
    for number in range(200):
        os.link(path, here / str(number))
    same(links(path), 201)
    for number in range(200):
        os.unlink(here / str(number))
    same(links(path), 1)


@case
def symbolic_link_holds_any_text(here: Path) -> None:
    for number, target in enumerate(
        (b"x", b"/", b"../..", b"t" * 1000, b"\xff\n\x01 ", b"a" * 4095)
    ):
        link = os.fsencode(here / str(number))
        os.symlink(target, link)
        same(os.readlink(link), target)
        same(os.lstat(link).st_size, len(target))
        same(stat.S_ISLNK(os.lstat(link).st_mode), True)


@case
def symbolic_link_with_an_empty_or_too_long_text_is_refused(here: Path) -> None:
    fails(errno.ENOENT, os.symlink, "", here / "s")
    fails(errno.ENAMETOOLONG, os.symlink, "t" * 4096, here / "s")
    same(os.listdir(here), [])


@case
def symbolic_link_has_all_permissions(here: Path) -> None:
    os.umask(0o077)
    os.symlink("f", here / "s")
    same(oct(mode_of(here / "s")), oct(0o777))


@case
def readlink_of_what_is_no_link_gives_EINVAL(here: Path) -> None:
    fails(errno.EINVAL, os.readlink, make(here / "f"))
    fails(errno.EINVAL, os.readlink, here)


@case
def directory_has_a_link_of_each_directory_in_it(here: Path) -> None:
    outer = make_directory(here / "d")
    if links(outer) == ONE_LINK:
        raise Skipped("directories have one link here")
    same(links(outer), 2, "when it is empty")
    make_directory(outer / "a")
    make_directory(outer / "b")
    make(outer / "f")
    same(links(outer), 4, "with two directories")
    os.rename(outer / "a", here / "a")
    same((links(outer), links(here)), (3, 4), "after one was moved out")
    os.rmdir(outer / "b")
    same(links(outer), 2, "after one was removed")


@case
def directory_that_replaces_another_keeps_the_counts_right(here: Path) -> None:
    if links(here) == ONE_LINK:
        raise Skipped("directories have one link here")
    first, second = make_directory(here / "a"), make_directory(here / "b")
    make_directory(first / "d")
    make_directory(second / "d")
    os.rename(first / "d", second / "d")
    same((links(first), links(second), links(here)), (2, 3, 4))


@case
def rmdir_of_a_directory_that_is_not_empty_gives_ENOTEMPTY(here: Path) -> None:
    for name in ("file", "directory", "link"):
        outer = make_directory(here / name)
        if name == "file":
            make(outer / "x")
        elif name == "directory":
            make_directory(outer / "x")
        else:
            os.symlink("x", outer / "x")
        fails((errno.ENOTEMPTY, errno.EEXIST), os.rmdir, outer)


@case
def rmdir_refuses_dots_and_what_is_no_directory(here: Path) -> None:
    inner = make_directory(here / "d")
    fails(errno.EINVAL, os.rmdir, f"{inner}/.")
    fails((errno.ENOTEMPTY, errno.EEXIST), os.rmdir, f"{inner}/..")
    fails(errno.ENOTDIR, os.rmdir, make(here / "f"))
    os.symlink("d", here / "s")
    fails(errno.ENOTDIR, os.rmdir, here / "s")


@case
def mkdir_of_dots_gives_EEXIST(here: Path) -> None:
    for name in (".", ".."):
        fails(errno.EEXIST, os.mkdir, f"{here}/{name}")


@case
def unlink_of_a_directory_gives_EISDIR_or_EPERM(here: Path) -> None:
    fails((errno.EISDIR, errno.EPERM), os.unlink, make_directory(here / "d"))


@case
def unlink_of_a_link_leaves_its_target(here: Path) -> None:
    path = make(here / "f", b"1")
    os.symlink("f", here / "s")
    os.unlink(here / "s")
    same((os.listdir(here), read(path)), (["f"], b"1"))


@case
def unlinked_file_is_used_until_its_last_close(here: Path) -> None:
    path = make(here / "f", b"content")
    with opened(path) as descriptor:
        os.unlink(path)
        same((os.fstat(descriptor).st_nlink, os.fstat(descriptor).st_size), (0, 7))
        os.pwrite(descriptor, b"C", 0)
        os.ftruncate(descriptor, 10)
        same(os.pread(descriptor, 20, 0), b"Content\0\0\0")
        make(path, b"another")
        same(os.pread(descriptor, 7, 0), b"Content")
    same(read(path), b"another")


@case
def unlinked_file_is_stated_and_changed_by_descriptor(here: Path) -> None:
    path = make(here / "f")
    with opened(path) as descriptor:
        os.unlink(path)
        os.fchmod(descriptor, 0o600)
        os.utime(descriptor, ns=(1_000, 2_000))
        os.fchown(descriptor, -1, -1)
        found = os.fstat(descriptor)
        same((stat.S_IMODE(found.st_mode), found.st_mtime_ns), (0o600, 2_000))
        same(os.pread(os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY), 1, 0), b"")


@case
def unlinked_file_is_stated_by_a_descriptor_with_O_PATH(here: Path) -> None:
    path = make(here / "f", b"content")
    with opened(path, os.O_PATH) as descriptor:
        os.unlink(path)
        found = os.fstat(descriptor)
        same((found.st_nlink, found.st_size), (0, 7))


@case
def removed_directory_is_empty_and_takes_no_names(here: Path) -> None:
    inner = make_directory(here / "d")
    with opened(inner, os.O_RDONLY) as descriptor:
        os.rmdir(inner)
        same(os.listdir(descriptor), [])
        fails(errno.ENOENT, lambda: os.mkdir("x", dir_fd=descriptor))
        fails(errno.ENOENT, lambda: os.open("x", os.O_CREAT | os.O_RDWR, dir_fd=descriptor))
        fails(errno.ENOENT, lambda: os.symlink("x", "x", dir_fd=descriptor))
        fails(errno.ENOENT, lambda: os.stat("x", dir_fd=descriptor))


@case
def removed_directory_is_stated_by_a_descriptor(here: Path) -> None:
    inner = make_directory(here / "d")
    with opened(inner, os.O_RDONLY) as descriptor:
        number = os.fstat(descriptor).st_ino
        os.rmdir(inner)
        found = os.fstat(descriptor)
        same((found.st_ino, found.st_nlink in (0, ONE_LINK)), (number, True))


@case
def removed_working_directory_leads_to_its_parent(here: Path) -> None:
    inner = make_directory(here / "d")
    os.chdir(inner)
    os.rmdir(inner)
    os.chdir("..")
    same(os.getcwd(), str(here))


@case
def removed_working_directory_has_no_path(here: Path) -> None:
    inner = make_directory(here / "d")
    os.chdir(inner)
    os.rmdir(inner)
    fails(errno.ENOENT, os.getcwd)
    fails(errno.ENOENT, os.open, "new", os.O_CREAT | os.O_WRONLY)
    same(os.stat(".").st_nlink in (0, ONE_LINK), True)


@case
def file_stays_open_when_its_directory_is_removed(here: Path) -> None:
    inner = make_directory(here / "d")
    with opened(make(inner / "f", b"content")) as descriptor:
        os.unlink(inner / "f")
        os.rmdir(inner)
        os.pwrite(descriptor, b"C", 0)
        same(os.pread(descriptor, 10, 0), b"Content")
        os.ftruncate(descriptor, 1)
        same(os.fstat(descriptor).st_size, 1)


@case(root=True)
def sticky_directory_lets_owners_remove_names_and_nobody_else(here: Path) -> None:
    sticky = make_directory(here / "d", 0o1777)
    for kind in ("file", "directory"):
        for number in range(3):
            is_directory = kind == "directory"
            make_owned(
                sticky / f"{kind}{number}", USER.uid, USER.gid, 0o777, directory=is_directory
            )
    fails(errno.EPERM, run_as, OTHER, os.unlink, sticky / "file0")
    fails(errno.EPERM, run_as, OTHER, os.rmdir, sticky / "directory0")
    run_as(USER, os.unlink, sticky / "file0")
    run_as(USER, os.rmdir, sticky / "directory0")
    os.chown(sticky, OTHER.uid, OTHER.gid)
    run_as(OTHER, os.unlink, sticky / "file1")
    run_as(OTHER, os.rmdir, sticky / "directory1")
    os.unlink(sticky / "file2")
    os.rmdir(sticky / "directory2")


def make_special(path: Path, mode: int) -> None:
    """Makes a special file. Skips the case where the file system refuses its kind."""
    try:
        os.mknod(path, mode)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EOPNOTSUPP):
            raise Skipped("the file system has no special files of this kind") from error
        raise


@case
def fifo_carries_bytes_and_is_removed(here: Path) -> None:
    path = here / "f"
    make_special(path, stat.S_IFIFO | 0o640)
    same(oct(os.lstat(path).st_mode), oct(stat.S_IFIFO | 0o640))
    with opened(path, os.O_RDWR | os.O_NONBLOCK) as descriptor:
        os.write(descriptor, b"1")
        same(os.read(descriptor, 2), b"1")
    os.unlink(path)
    same(os.listdir(here), [])


@case
def socket_is_made_by_mknod(here: Path) -> None:
    make_special(here / "s", stat.S_IFSOCK | 0o600)
    same(stat.S_ISSOCK(os.lstat(here / "s").st_mode), True)
    fails(errno.ENXIO, os.open, here / "s", os.O_RDONLY)


@case(ordinary=True)
def device_is_not_made_by_an_ordinary_user(here: Path) -> None:
    for kind in (stat.S_IFCHR, stat.S_IFBLK):
        fails(errno.EPERM, os.mknod, here / "x", kind | 0o600, os.makedev(1, 3))


@case
def mknod_makes_an_empty_regular_file(here: Path) -> None:
    os.mknod(here / "f", stat.S_IFREG | 0o640)
    found = os.lstat(here / "f")
    same((oct(found.st_mode), found.st_size), (oct(stat.S_IFREG | 0o640), 0))


@case
def name_may_have_255_bytes(here: Path) -> None:
    name = "n" * 255
    make(here / name, b"1")
    os.mkdir(here / ("d" * 255))
    os.symlink(name, here / ("s" * 255))
    os.link(here / name, here / ("l" * 255))
    os.rename(here / ("l" * 255), here / ("r" * 255))
    same(sorted(os.listdir(here)), ["d" * 255, name, "r" * 255, "s" * 255])
    same(read(here / ("s" * 255)), b"1")


@case
def name_may_hold_every_byte_but_the_slash_and_zero(here: Path) -> None:
    directory = os.fsencode(here)
    names = {bytes([byte]) + b"x" for byte in range(1, 256) if byte != ord("/")}
    names |= {bytes(range(1, 47)), bytes(range(48, 256))}
    for name in names:
        os.close(os.open(os.path.join(directory, name), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    same(set(os.listdir(directory)), names)
    for name in names:
        os.rename(os.path.join(directory, name), os.path.join(directory, b"_" + name))
        os.unlink(os.path.join(directory, b"_" + name))
    same(os.listdir(here), [])


@case
def names_that_differ_in_case_or_composition_are_different(here: Path) -> None:
    names = ["a", "A", "\u00e9", "e\u0301", "a ", " a", "a.", ".a", "..."]
    for name in names:
        make(here / name, os.fsencode(name))
    same(sorted(os.listdir(here)), sorted(names))
    for name in names:
        same(read(here / name), os.fsencode(name))


@case
def path_may_have_4095_bytes(here: Path) -> None:
    os.chdir(here)
    for _ in range(16):
        os.mkdir("d" * 250)
        os.chdir("d" * 250)
    os.chdir(here)
    path = "d" * 250 + ("/" + "d" * 250) * 15
    path += "/" + "f" * (4095 - len(path) - 1)
    make(Path(path))
    same((len(path), os.stat(path).st_size), (4095, 0))
