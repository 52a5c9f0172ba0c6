"""Locks of byte ranges (`fcntl`), of open-file descriptions, and of whole files (`flock`)."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections.abc import Callable
from pathlib import Path

from kit.case import Failed, case, fails, same
from kit.files import make, opened
from kit.process import Child, Gate
from kit.system import FLOCK

SHARED, EXCLUSIVE, UNLOCK = fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN
TRY = fcntl.LOCK_NB
TAKEN = (errno.EAGAIN, errno.EACCES)
# Seconds after which a call that waits is interrupted.
PATIENCE = 0.5


class Interrupted(Exception):
    """A signal has ended a call that waited."""


def interrupt_soon() -> None:
    """Lets SIGALRM end the call that comes next, if it waits."""

    def on_alarm(*_: object) -> None:
        raise Interrupted

    signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE, PATIENCE)


def can_lock(path: Path, kind: int, start: int = 0, length: int = 0) -> bool:
    """Whether another process can lock a range."""

    def attempt() -> bool:
        with opened(path) as descriptor:
            try:
                fcntl.lockf(descriptor, kind | TRY, length, start)
            except OSError as error:
                if error.errno not in TAKEN:
                    raise
                return False
        return True

    return Child(attempt).result()


def conflict(path: Path, kind: int, start: int, length: int) -> tuple[int, int, int, int]:
    """Returns the lock that another process would meet: its type, range, and process."""

    def ask() -> tuple[int, int, int, int]:
        with opened(path) as descriptor:
            asked = FLOCK.pack(kind, os.SEEK_SET, start, length, 0)
            found = fcntl.fcntl(descriptor, fcntl.F_GETLK, asked)
        kind_found, _, start_found, length_found, pid = FLOCK.unpack(found)
        return kind_found, start_found, length_found, pid

    return Child(ask).result()


@case
def exclusive_lock_excludes_other_processes(here: Path) -> None:
    path = make(here / "f")
    with opened(path) as descriptor:
        fcntl.lockf(descriptor, EXCLUSIVE)
        same((can_lock(path, SHARED), can_lock(path, EXCLUSIVE)), (False, False))
        fcntl.lockf(descriptor, UNLOCK)
        same(can_lock(path, EXCLUSIVE), True)


@case
def shared_locks_exclude_exclusive_ones_only(here: Path) -> None:
    path = make(here / "f")
    with opened(path) as descriptor:
        fcntl.lockf(descriptor, SHARED)
        same((can_lock(path, SHARED), can_lock(path, EXCLUSIVE)), (True, False))


@case
def locks_of_different_ranges_do_not_meet(here: Path) -> None:
    path = make(here / "f")
    with opened(path) as descriptor:
        fcntl.lockf(descriptor, EXCLUSIVE, 10, 100)
        found = [
            can_lock(path, EXCLUSIVE, *range_)
            for range_ in ((0, 100), (110, 0), (99, 2), (109, 1), (105, 1), (0, 0))
        ]
        same(found, [True, True, False, False, False, False])


@case
def unlocking_the_middle_of_a_range_leaves_its_ends_locked(here: Path) -> None:
    path = make(here / "f")
    with opened(path) as descriptor:
        fcntl.lockf(descriptor, EXCLUSIVE, 100, 0)
        fcntl.lockf(descriptor, UNLOCK, 20, 40)
        found = [can_lock(path, EXCLUSIVE, *range_) for range_ in ((0, 40), (40, 20), (60, 40))]
        same(found, [False, True, False])
        fcntl.lockf(descriptor, SHARED, 40, 0)
        same((can_lock(path, SHARED, 0, 40), can_lock(path, SHARED, 60, 40)), (True, False))


@case
def own_locks_are_replaced_and_never_conflict(here: Path) -> None:
    path = make(here / "f")
    with opened(path) as first, opened(path) as second:
        fcntl.lockf(first, EXCLUSIVE)
        fcntl.lockf(second, EXCLUSIVE | TRY)
        fcntl.lockf(second, SHARED | TRY)
        same(can_lock(path, SHARED), True)


@case
def F_GETLK_tells_the_lock_and_its_process(here: Path) -> None:
    path = make(here / "f")
    with opened(path) as descriptor:
        fcntl.lockf(descriptor, EXCLUSIVE, 10, 100)
        kind, start, length, pid = conflict(path, fcntl.F_RDLCK, 0, 0)
        same((kind, start, length), (fcntl.F_WRLCK, 100, 10))
        same(pid, os.getpid(), "process:")
        same(conflict(path, fcntl.F_WRLCK, 0, 100)[0], fcntl.F_UNLCK)


@case
def locks_end_when_any_descriptor_of_the_file_is_closed(here: Path) -> None:
    path = make(here / "f")
    with opened(path) as descriptor:
        fcntl.lockf(descriptor, EXCLUSIVE)
        os.close(os.open(path, os.O_RDONLY))
        same(can_lock(path, EXCLUSIVE), True)


@case
def locks_end_with_their_process_however_it_ends(here: Path) -> None:
    path = make(here / "f")
    for number in (signal.SIGTERM, signal.SIGKILL):
        gate = Gate()

        def hold(gate: Gate = gate) -> None:
            descriptor = os.open(path, os.O_RDWR)
            fcntl.lockf(descriptor, EXCLUSIVE)
            gate.open()
            signal.pause()

        child = Child(hold)
        gate.wait()
        same(can_lock(path, SHARED), False)
        os.kill(child.pid, number)
        child.end()
        same(can_lock(path, EXCLUSIVE), True)


@case
def locks_are_not_inherited_by_a_forked_child(here: Path) -> None:
    path = make(here / "f")
    with opened(path) as descriptor:
        fcntl.lockf(descriptor, EXCLUSIVE)

        def attempt() -> None:
            fails(TAKEN, fcntl.lockf, descriptor, EXCLUSIVE | TRY)

        Child(attempt).result()
        same(can_lock(path, EXCLUSIVE), False)


@case
def lock_needs_a_descriptor_that_permits_it(here: Path) -> None:
    path = make(here / "f")
    with opened(path, os.O_RDONLY) as descriptor:
        fails(errno.EBADF, fcntl.lockf, descriptor, EXCLUSIVE | TRY)
        fcntl.lockf(descriptor, SHARED | TRY)
    with opened(path, os.O_WRONLY) as descriptor:
        fails(errno.EBADF, fcntl.lockf, descriptor, SHARED | TRY)
        fcntl.lockf(descriptor, EXCLUSIVE | TRY)


@case
def lock_of_a_bad_range_gives_EINVAL(here: Path) -> None:
    with opened(make(here / "f")) as descriptor:
        for start, length in ((-1, 1), (5, -6)):
            asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
            fails(errno.EINVAL, fcntl.fcntl, descriptor, fcntl.F_SETLK, asked)


@case
def lock_with_a_negative_length_is_in_front_of_its_start(here: Path) -> None:
    path = make(here / "f")
    with opened(path) as descriptor:
        asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 100, -10, 0)
        fcntl.fcntl(descriptor, fcntl.F_SETLK, asked)
        found = [can_lock(path, EXCLUSIVE, *range_) for range_ in ((0, 90), (90, 10), (100, 0))]
        same(found, [True, False, True])


@case
def process_that_waits_for_a_lock_gets_it_when_it_is_free(here: Path) -> None:
    path = make(here / "f")
    gate = Gate()

    def wait() -> None:
        with opened(path) as descriptor:
            gate.open()
            fcntl.lockf(descriptor, EXCLUSIVE)

    with opened(path) as descriptor:
        fcntl.lockf(descriptor, EXCLUSIVE)
        child = Child(wait)
        gate.wait()
        same(child.reaped(PATIENCE), None, "the child waits:")
        fcntl.lockf(descriptor, UNLOCK)
        child.result()


def wait_until_interrupted(path: Path, wait: Callable[[int, int], object]) -> None:
    """Waits for a lock in a child that SIGALRM interrupts."""

    def attempt() -> None:
        with opened(path) as descriptor:
            interrupt_soon()
            try:
                wait(descriptor, EXCLUSIVE)
            except Interrupted:
                return
        raise Failed("a call that a signal ends", "the lock")

    Child(attempt).result()


@case
def process_that_waits_with_F_SETLKW_is_interrupted_by_a_signal(here: Path) -> None:
    path = make(here / "f")
    with opened(path) as descriptor:
        fcntl.lockf(descriptor, EXCLUSIVE)
        wait_until_interrupted(path, fcntl.lockf)
        fcntl.lockf(descriptor, UNLOCK)
        same(can_lock(path, EXCLUSIVE), True, "nothing is left of the lock that was given up:")


@case
def process_that_waits_with_flock_is_interrupted_by_a_signal(here: Path) -> None:
    path = make(here / "f")
    with opened(path) as descriptor:
        fcntl.flock(descriptor, EXCLUSIVE)
        wait_until_interrupted(path, fcntl.flock)


@case
def process_that_waits_for_a_lock_can_be_killed(here: Path) -> None:
    path = make(here / "f")
    gate = Gate()

    def wait() -> None:
        with opened(path) as descriptor:
            gate.open()
            fcntl.lockf(descriptor, EXCLUSIVE)

    with opened(path) as descriptor:
        fcntl.lockf(descriptor, EXCLUSIVE)
        child = Child(wait)
        gate.wait()
        same(child.reaped(PATIENCE), None, "the child waits:")
        os.kill(child.pid, signal.SIGKILL)
        same(child.end(), int(signal.SIGKILL))


@case
def processes_that_wait_for_each_other_get_EDEADLK_or_can_be_interrupted(here: Path) -> None:
    path = make(here / "f")
    locked = [Gate(), Gate()]

    def wait(own: int) -> str:
        with opened(path) as descriptor:
            fcntl.lockf(descriptor, EXCLUSIVE, 1, own)
            locked[own].open()
            locked[1 - own].wait()
            interrupt_soon()
            try:
                fcntl.lockf(descriptor, EXCLUSIVE, 1, 1 - own)
            except Interrupted:
                return "interrupted"
            except OSError as error:
                same(error.errno, errno.EDEADLK)
                return "refused"
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            return "locked"

    ends = {child.result() for child in [Child(wait, 0), Child(wait, 1)]}
    same(bool(ends & {"interrupted", "refused"}), True, "one of them gives up:")


@case
def locks_of_descriptions_conflict_within_a_process_and_are_inherited(here: Path) -> None:
    path = make(here / "f")
    whole = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    with opened(path) as first, opened(path) as second:
        fcntl.fcntl(first, fcntl.F_OFD_SETLK, whole)
        fails(TAKEN, fcntl.fcntl, second, fcntl.F_OFD_SETLK, whole)
        fails(TAKEN, fcntl.lockf, second, EXCLUSIVE | TRY)
        Child(fcntl.fcntl, first, fcntl.F_OFD_SETLK, whole).result()
        os.close(os.open(path, os.O_RDONLY))
        fails(TAKEN, fcntl.fcntl, second, fcntl.F_OFD_SETLK, whole)


@case
def lock_of_a_description_ends_with_its_last_close(here: Path) -> None:
    path = make(here / "f")
    whole = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    first = os.open(path, os.O_RDWR)
    fcntl.fcntl(first, fcntl.F_OFD_SETLK, whole)
    copy = os.dup(first)
    with opened(path) as second:
        os.close(first)
        fails(TAKEN, fcntl.fcntl, second, fcntl.F_OFD_SETLK, whole)
        os.close(copy)
        fcntl.fcntl(second, fcntl.F_OFD_SETLK, whole)
    same(can_lock(path, EXCLUSIVE), True)


@case
def flock_belongs_to_the_description(here: Path) -> None:
    path = make(here / "f")
    with opened(path) as first, opened(path) as second:
        fcntl.flock(first, EXCLUSIVE)
        fails(errno.EAGAIN, fcntl.flock, second, SHARED | TRY)
        copy = os.dup(first)
        os.close(copy)
        fails(errno.EAGAIN, fcntl.flock, second, SHARED | TRY)
        Child(fcntl.flock, first, SHARED).result()
        fcntl.flock(second, SHARED | TRY)
        fails(errno.EAGAIN, fcntl.flock, second, EXCLUSIVE | TRY)
        fcntl.flock(first, UNLOCK)
        fcntl.flock(second, EXCLUSIVE | TRY)


@case
def flock_ends_with_the_last_close(here: Path) -> None:
    path = make(here / "f")
    first = os.open(path, os.O_RDONLY)
    fcntl.flock(first, EXCLUSIVE)
    with opened(path) as second:
        fails(errno.EAGAIN, fcntl.flock, second, EXCLUSIVE | TRY)
        os.close(first)
        fcntl.flock(second, EXCLUSIVE | TRY)


@case
def counter_under_a_lock_loses_nothing(here: Path) -> None:
    path = make(here / "f", b"0")

    def add() -> None:
        with opened(path) as descriptor:
            for _ in range(50):
                fcntl.lockf(descriptor, EXCLUSIVE)
                number = int(os.pread(descriptor, 20, 0)) + 1
                os.pwrite(descriptor, b"%d" % number, 0)
                fcntl.lockf(descriptor, UNLOCK)

    for child in [Child(add) for _ in range(4)]:
        child.result()
    same(path.read_bytes(), b"200")
