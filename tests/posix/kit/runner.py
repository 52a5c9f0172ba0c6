"""Runs cases, each in a process and a directory of its own, and says what they found.

Must stay true: no case makes the program wait for longer than its time limit. A directory that a
case cannot empty is left to the next cleaning, and fails nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kit.case import Case, Failed, Skipped, show
from kit.process import USER, Child, Identity, run_as

CLEANING_SECONDS = 60


@dataclass
class Outcome:
    """What became of a case: `ok`, `FAIL` or `skip`, and why."""

    verdict: str
    reason: str = ""


class Place:
    """A directory of a mounted file system, in which cases run."""

    def __init__(self, directory: Path, identity: Identity | None) -> None:
        self.identity = identity
        self.root = directory.resolve() / f"posix.{os.getpid()}"
        self.count = 0
        Child(self.begin, seconds=CLEANING_SECONDS).result()

    def begin(self) -> None:
        """Makes the directory below which everything happens."""
        os.mkdir(self.root)
        os.chmod(self.root, 0o755)
        if self.identity is not None:
            os.chown(self.root, self.identity.uid, self.identity.gid)

    def is_reachable(self) -> bool:
        """Whether every user that the cases act as can reach the directory."""
        if os.geteuid() != 0:
            return True
        try:
            run_as(self.identity or USER, os.stat, self.root)
        except PermissionError:
            return False
        return True

    def end(self) -> None:
        """Removes it. Says so if that fails."""
        try:
            Child(remove_tree, self.root, seconds=CLEANING_SECONDS).result()
        except (Failed, OSError) as error:
            print(f"{self.root} is left: {error}", file=sys.stderr)

    def run(self, subject: Case) -> Outcome:
        """Runs a case."""
        is_root = os.geteuid() == 0 and self.identity is None
        if subject.root and not is_root:
            return Outcome("skip", "needs root")
        identity = USER if subject.ordinary and is_root else self.identity
        self.count += 1
        here = self.root / str(self.count)
        try:
            Child(self.begin_case, here, identity).result()
            outcome = run_case(subject, here, identity)
        except (Failed, OSError) as error:
            outcome = Outcome("FAIL", f"no directory for the case: {error}")
        with contextlib.suppress(Failed, OSError):
            Child(remove_tree, here, seconds=CLEANING_SECONDS).result()
        return outcome

    def begin_case(self, here: Path, identity: Identity | None) -> None:
        """Makes the directory of one case, which belongs to whoever runs it."""
        os.mkdir(here)
        os.chmod(here, 0o755)
        if identity is not None:
            os.chown(here, identity.uid, identity.gid)


def run_case(subject: Case, here: Path, identity: Identity | None) -> Outcome:
    """Runs a case in a child, and returns what it found."""
    child = Child(
        in_order, subject.body, here, identity=identity, seconds=subject.seconds, own_group=True
    )
    try:
        child.result()
    except Failed as failed:
        return Outcome("FAIL", f"expected {failed.expected}, got {failed.got}")
    except Skipped as skipped:
        return Outcome("skip", str(skipped))
    except OSError as error:
        return Outcome("FAIL", f"expected no error, got {show(error.errno or 0)} ({error})")
    except Exception as error:
        return Outcome("FAIL", f"expected no error, got {error!r}")
    return Outcome("ok")


def in_order(body: Callable[[Path], None], here: Path) -> None:
    """Runs a case under the usual mask, with the signals as a shell leaves them."""
    os.umask(0o022)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    body(here)


def remove_tree(directory: Path) -> None:
    """Removes a directory with all that is in it, whatever its modes are."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    remove_inside(descriptor)
    os.close(descriptor)
    os.rmdir(directory)


def remove_inside(directory: int) -> None:
    """Empties a directory. Paths in it may be longer than the kernel permits."""
    for name in os.listdir(directory):
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=directory)
            continue
        os.chmod(name, 0o700, dir_fd=directory)
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)
        remove_inside(inner)
        os.close(inner)
        os.rmdir(name, dir_fd=directory)
