"""Processes that a case or the program forks, and the users that they act as.

Must stay true: every process that is forked here ends by an alarm if nothing else ends it. Errors
of a child are those of the parent that waits for it.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kit.case import Failed

# Seconds that a child of a case may take.
CHILD_SECONDS = 15
# Seconds that a killed process has to disappear before it is left alone.
REAP_SECONDS = 2


@dataclass(frozen=True)
class Identity:
    """User, group, and supplementary groups of a process."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    def take(self) -> None:
        """Makes this process run as this identity, for good."""
        os.setgroups(self.groups)
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)


USER = Identity(65534, 65534)
OTHER = Identity(65533, 65533)
# Group that no identity has as its own.
GROUP = 65532


T = TypeVar("T")


class Child(Generic[T]):
    """A forked process that runs a function. `result` waits for what it returns or raises."""

    def __init__(
        self,
        function: Callable[..., T],
        *arguments: Any,
        identity: Identity | None = None,
        seconds: int = CHILD_SECONDS,
        own_group: bool = False,
    ) -> None:
        self.seconds = seconds
        self.own_group = own_group
        self.reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.reading)
            if own_group:
                os.setpgid(0, 0)
            for number in (signal.SIGALRM, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            signal.alarm(seconds)
            report(writing, function, arguments, identity)
        os.close(writing)

    def result(self) -> T:
        """Returns what the function returned, or raises what it raised."""
        answer, deadline = b"", time.monotonic() + self.seconds + 1
        while select.select([self.reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = os.read(self.reading, 1 << 16)
            if not part:
                break
            answer += part
        status = self.end()
        if not answer:
            raise Failed("a process that ends in order", described(status))
        succeeded, value = pickle.loads(answer)
        if not succeeded:
            raise value
        result: T = value
        return result

    def end(self) -> int | None:
        """Kills what is left of the process, and of its group. Returns its exit status."""
        os.close(self.reading)
        status = self.reaped(REAP_SECONDS)
        try:
            if self.own_group:
                os.killpg(self.pid, signal.SIGKILL)
            elif status is None:
                os.kill(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        return self.reaped(REAP_SECONDS) if status is None else status

    def reaped(self, seconds: float) -> int | None:
        """Waits for the end of the process, and returns its status."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return status
            time.sleep(0.001)
        return None


def report(
    writing: int, function: Callable[..., Any], arguments: Any, identity: Identity | None
) -> None:
    """Runs a function in a child that was just forked, sends its result, and ends the child."""
    try:
        if identity is not None:
            identity.take()
        answer = (True, function(*arguments))
    except Exception as error:
        answer = (False, error)
    try:
        message = pickle.dumps(answer)
    except Exception:
        message = pickle.dumps((False, Failed("a result", repr(answer[1]))))
    while message:
        message = message[os.write(writing, message) :]
    os._exit(0)


def described(status: int | None) -> str:
    """Returns a wait status in words."""
    if status is None:
        return "a process that cannot be killed"
    if not os.WIFSIGNALED(status):
        return f"exit code {os.WEXITSTATUS(status)}"
    number = os.WTERMSIG(status)
    return "no end in time" if number == signal.SIGALRM else signal.Signals(number).name


def run_as(identity: Identity, function: Callable[..., T], *arguments: Any) -> T:
    """Returns what the function returns in a child that has another identity."""
    return Child(function, *arguments, identity=identity).result()


class Gate:
    """Lets another process wait until this one has come to a point."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()

    def open(self) -> None:
        """Lets one waiting process go on."""
        os.write(self.writing, b".")

    def wait(self) -> None:
        """Waits for `open`. The alarm of the process bounds it."""
        os.read(self.reading, 1)
