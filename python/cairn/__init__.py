"""Tells Cairn about checkpoints, and asks it what is safe.

A program needs none of this: Cairn serves files below its prefix as they are. Start it with
`cairn run --persist DIR -- python3 train.py`, write below `cairn.prefix()`, and say which files
are one checkpoint:

    with cairn.checkpoint(step):
        torch.save(model.state_dict(), f"/cairn/step{step}/model.pt")
    cairn.wait_safe(step)

Outside `cairn run` the functions do nothing. The first call says so by an `InactiveWarning`, so the
same script runs on a plain file system.

Times are in seconds, sizes in bytes. Errors are OSError with the errno of include/cairn.h, unless a
function says otherwise. All functions may be called from any thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import errno
import fnmatch
import glob
import json
import math
import os
import shutil
import subprocess
import time
import warnings
from dataclasses import dataclass
from typing import Iterator, List, Optional, Tuple, Union

from cairn import _library

__version__ = "0.1.0"
__all__ = [
    "Checkpoint", "Hint", "InactiveWarning", "Level", "SetState", "Status", "Tier", "checkpoint", "checkpoints", "hint",
    "begin", "end", "is_active", "job", "latest", "persist_directory", "prefix", "program", "set_unfinished_aside", "status",
    "wait_safe",
]

_POLL_MIN_S, _POLL_MAX_S = 0.02, 0.5
_STATUS_PERSISTS, _STATUS_AGENT = 1, 2
Path = Union[str, "os.PathLike[str]"]


class InactiveWarning(UserWarning):
    """This process is in no job of Cairn: the call did nothing."""


class Level(enum.IntEnum):
    """Levels of safety.

    NODE: safe against the death of every process of the job. PERSIST: in the persist directory, and
    verified.
    """

    NODE = 1
    PERSIST = 3


class Hint(enum.IntEnum):
    """Expected use of files.

    PERSISTENT: results that are kept. REUSABLE: a later job reads them. TEMPORARY: not needed after
    the job. PRELOAD: will be read soon; data that are not in the store are brought in. OFFLOAD: will
    not be read soon; once a file is drained, and nobody has it open, its data are only in the
    persist directory, until a program opens it.
    """

    PERSISTENT = 1
    REUSABLE = 2
    TEMPORARY = 3
    PRELOAD = 4
    OFFLOAD = 5


@dataclass(frozen=True)
class Tier:
    """Part of a store."""

    total_bytes: int
    used_bytes: int


@dataclass(frozen=True)
class Status:
    """State of the store.

    `undrained_*` count files whose newest version is not in the persist directory. Of these,
    `unclean_files` never will be: their writer died, or a part is lost.
    """

    persists: bool
    agent_is_alive: bool
    total_bytes: int
    free_bytes: int
    files: int
    file_bytes: int
    undrained_files: int
    undrained_bytes: int
    unclean_files: int
    tiers: Tuple[Tier, ...]


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint. It can be used as a path: `torch.load(cairn.latest())`.

    `path` is its directory, or its file if it is one file. `files` are all its files. Its step is in
    `checkpoints`.
    """

    path: str
    files: Tuple[str, ...]

    def __fspath__(self) -> str:
        return self.path

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True)
class SetState:
    """A set of files that are one checkpoint, or will be.

    `family` is the common part of the names, such as `run/checkpoint-{step}`. `level` is where it is
    safe and `wanted` where it will be; both are None while the set is not complete, and `reason` says
    why.
    """

    family: str
    step: Optional[int]
    files: int
    bytes: int
    is_complete: bool
    level: Optional[Level]
    wanted: Optional[Level]
    reason: Optional[str]


_found: Optional[ctypes.CDLL] = None
_has_warned = False


def _library_of_job() -> Optional[ctypes.CDLL]:
    global _found
    if _found is None:
        _found = _library.find()
    if _found is not None and _library.text(_found, "cairn_job") is not None:
        return _found
    return None


def _active(function: str) -> Optional[ctypes.CDLL]:
    """Returns the library; None, after a warning, outside a job."""
    global _has_warned
    library = _library_of_job()
    if library is None and not _has_warned:
        _has_warned = True
        warnings.warn(f"{function} did nothing: this process was not started by cairn run", InactiveWarning, stacklevel=4)
    return library


def is_active() -> bool:
    """Whether this process is in a job of Cairn. Gives no warning.

    >>> is_active()
    False
    """
    return _library_of_job() is not None


def prefix() -> Optional[str]:
    """Returns the directory below which files are in the store, such as `/cairn`; None outside a job.

    >>> prefix() or "checkpoints"
    'checkpoints'
    """
    library = _library_of_job()
    return None if library is None else _library.text(library, "cairn_prefix")


def job() -> Optional[str]:
    """Returns the name of the job; None outside one.

    >>> job() is None
    True
    """
    library = _library_of_job()
    return None if library is None else _library.text(library, "cairn_job")


def program() -> Optional[str]:
    """Returns the path of the program `cairn`: that of this package, else the one in PATH; None if
    there is none."""
    ours = os.path.join(os.path.dirname(os.path.realpath(__file__)), "_runtime", "bin", "cairn")
    return ours if os.path.exists(ours) else shutil.which("cairn")


@contextlib.contextmanager
def checkpoint(step: int, name: str = "checkpoint") -> Iterator[None]:
    """Says that the files which change inside the block are step `step` of the checkpoint `name`.

    The checkpoint is complete when every process that began it has ended it. If the block raises, it
    is not ended, so it is never taken for a complete one, and the exception goes on. The same holds
    if the process is killed: Cairn then waits for its end, also in later steps of that name.

    Raises: ValueError (`step` is negative, `name` empty), OSError (ENAMETOOLONG, ENOSPC).

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", InactiveWarning)
    ...     with checkpoint(7):
    ...         pass
    """
    begin(step, name)
    yield
    end(step, name)


def begin(step: int, name: str = "checkpoint") -> None:
    """First half of `checkpoint`, for programs whose save is no block. Errors: as there."""
    _mark("cairn_checkpoint_begin", step, name)


def end(step: int, name: str = "checkpoint") -> None:
    """Second half of `checkpoint`: this process has written its part. Errors: as there."""
    _mark("cairn_checkpoint_end", step, name)


def _mark(function: str, step: int, name: str) -> bool:
    """Records a mark; returns False outside a job."""
    if not 0 <= step < 1 << 64:
        raise ValueError(f"step {step} is not a number from 0 to 2^64 - 1")
    if not name or "\0" in name:
        raise ValueError("the name of a checkpoint is empty, or contains a zero byte")
    library = _active("cairn.checkpoint")
    if library is not None:
        _library.call(library, function, os.fsencode(name), step)
    return library is not None


def hint(path: Path, kind: Union[Hint, str]) -> None:
    """Gives a hint for the files that match `path`, a path or pattern below the prefix.

    `kind` is a `Hint` or its name. `*`, `?` and `[...]` match as in a shell, `**` also matches
    slashes.

    Raises: ValueError (no such kind), OSError (EINVAL: `path` is not below the prefix; ENAMETOOLONG;
    ENOSPC).

    >>> hint("/cairn/tmp/**", "never")
    Traceback (most recent call last):
    ValueError: no hint 'never'; there are persistent, reusable, temporary, preload, offload
    """
    if isinstance(kind, str):
        names = [known.name.lower() for known in Hint]
        if kind not in names:
            raise ValueError(f"no hint {kind!r}; there are {', '.join(names)}")
        kind = Hint[kind.upper()]
    library = _active("cairn.hint")
    if library is not None:
        _library.call(library, "cairn_hint", os.fsencode(path), int(kind))


def status() -> Optional[Status]:
    """Returns the state of the store; None outside a job.

    >>> status() is None
    True
    """
    library = _library_of_job()
    if library is None:
        return None
    found = _library.StoreStatus(size=ctypes.sizeof(_library.StoreStatus))
    _library.call(library, "cairn_status", ctypes.byref(found))
    return Status(
        persists=bool(found.flags & _STATUS_PERSISTS), agent_is_alive=bool(found.flags & _STATUS_AGENT),
        total_bytes=found.total_bytes, free_bytes=found.free_bytes, files=found.files, file_bytes=found.file_bytes,
        undrained_files=found.undrained_files, undrained_bytes=found.undrained_bytes, unclean_files=found.unclean_files,
        tiers=tuple(Tier(tier.total_bytes, tier.used_bytes) for tier in found.tier[:found.tiers]),
    )


def wait_safe(what: Union[Path, int, None] = None, level: Union[Level, str] = Level.PERSIST,
              timeout: Optional[float] = None) -> bool:
    """Waits until files are safe at `level`: `Level.PERSIST`, `Level.NODE`, or their names.

    `what` is a file, a directory with all its files, the step of a checkpoint, or None for every
    file of the store. `timeout` is in seconds, None for no limit. Returns True when they are safe,
    False outside a job.

    Raises: TimeoutError (not safe yet), ValueError (no such level), FileNotFoundError (no such file,
    or no checkpoint of that step is in the store), or OSError: ENOTSUP (the job has no persist
    directory, or the checkpoint is not to go there: --pfs-every), ESRCH (the job's agent is dead),
    EIO (a file will never be safe), EINVAL (not below the prefix).

    >>> wait_safe(7, "moon")
    Traceback (most recent call last):
    ValueError: no level 'moon'; there are node, persist
    """
    if isinstance(level, str):
        names = [known.name.lower() for known in Level]
        if level not in names:
            raise ValueError(f"no level {level!r}; there are {', '.join(names)}")
        level = Level[level.upper()]
    library = _active("cairn.wait_safe")
    if library is None:
        return False
    deadline = None if timeout is None else time.monotonic() + timeout
    if isinstance(what, int):
        _wait_for_step(library, what, Level(level), deadline)
    elif what is not None and os.path.isdir(what):
        for file in _files_below(what):
            _wait_for_file(library, file, level, deadline)
    else:
        _wait_for_file(library, what, level, deadline)
    return True


def _files_below(directory: Path) -> Iterator[str]:
    for parent, _, names in os.walk(directory):
        paths = (os.path.join(parent, name) for name in sorted(names))
        yield from (path for path in paths if not os.path.islink(path))


def _wait_for_file(library: ctypes.CDLL, path: Optional[Path], level: int, deadline: Optional[float]) -> None:
    name = None if path is None else os.fsencode(path)
    while True:
        left_ms = -1 if deadline is None else max(0, math.ceil(1000 * (deadline - time.monotonic())))
        try:
            _library.call(library, "cairn_wait_safe", name, int(level), left_ms)
            return
        except InterruptedError:
            continue  # Python has run the signal's handler; wait for the rest of the time.
        except OSError as error:
            if error.errno == errno.ETIMEDOUT:
                raise TimeoutError(errno.ETIMEDOUT, f"not safe yet: {path or 'all files'}") from None
            raise OSError(error.errno, os.strerror(error.errno or 0), path) from None


def _wait_for_step(library: ctypes.CDLL, step: int, level: Level, deadline: Optional[float]) -> None:
    """Waits until all sets of this step are complete and safe."""
    if level == Level.NODE:
        _wait_for_file(library, None, level, deadline)
    elif not (status() or _NOTHING).persists:
        raise OSError(errno.ENOTSUP, "the job has no persist directory")
    pause_s = _POLL_MIN_S
    while True:
        sets = [found for found in checkpoints() if found.step == step]
        if not sets:
            raise FileNotFoundError(errno.ENOENT, f"no checkpoint of step {step} is in the store")
        if all(found.is_complete and (found.level or 0) >= level for found in sets):
            return
        if any(found.wanted is not None and found.wanted < level for found in sets):
            raise OSError(errno.ENOTSUP, f"step {step} is not to go to the persist directory (--pfs-every)")
        if level != Level.NODE and not (status() or _NOTHING).agent_is_alive:
            raise OSError(errno.ESRCH, "the job's agent is dead")
        left_s = pause_s if deadline is None else deadline - time.monotonic()
        if left_s <= 0:
            said = "; ".join(found.reason or "not drained" for found in sets)
            raise TimeoutError(errno.ETIMEDOUT, f"step {step} is not safe yet: {said}")
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _POLL_MAX_S)


_NOTHING = Status(False, False, 0, 0, 0, 0, 0, 0, 0, ())


def checkpoints() -> List[SetState]:
    """Returns the checkpoints of the store, complete or not; an empty list outside a job.

    Starts the program `cairn`. Raises: OSError (ENOENT: it is not installed; EIO: it failed).

    >>> checkpoints()
    []
    """
    if not is_active():
        return []
    found = json.loads(_asked("ls", "--checkpoints", "--json") or "[]")
    levels = {"node": Level.NODE, "pfs": Level.PERSIST, "archive": Level.PERSIST}
    return [
        SetState(family=one["family"], step=one["step"], files=one["files"], bytes=one["bytes"], is_complete=one["whole"],
                 level=levels.get(one["level"] or ""), wanted=levels.get(one["wanted"] or ""), reason=one["reason"])
        for one in found
    ]


def latest(pattern: str = "*") -> Optional[Checkpoint]:
    """Returns the newest complete checkpoint with a file that matches; None if there is none.

    `pattern` counts from the prefix: `run1/checkpoint-*/*`. Cairn compares all files of the
    checkpoint with their checksums. An unfinished checkpoint is never the answer, so a program that
    resumes from it needs no other test. Outside a job the answer is None.

    Starts the program `cairn`. Raises: OSError (ENOENT: it is not installed; EIO: it failed).

    >>> latest() is None
    True
    """
    if _active("cairn.latest") is None:
        return None
    said = _asked("ls", "--checkpoints", "--newest", pattern)
    if said is None:
        return None
    files = tuple(said.splitlines())
    if len(files) == 1:
        above = os.path.dirname(files[0])
        return Checkpoint(path=above if _is_numbered(above) else files[0], files=files)
    return Checkpoint(path=os.path.commonpath(files), files=files)


def persist_directory() -> Optional[str]:
    """Returns the directory to which this job drains; None if there is none, or outside a job.

    Files lie there as below the prefix, unless `cairn run --map` says otherwise. Starts the program
    `cairn`. Raises: OSError (ENOENT: it is not installed; EIO: it failed).

    >>> persist_directory() is None
    True
    """
    if not is_active():
        return None
    found = json.loads(_asked("status", job() or "", "--json") or "[]")
    return found[0]["persist"] if found else None


def set_unfinished_aside(directory: Path, pattern: str) -> List[str]:
    """Moves checkpoints that a killed process left unfinished out of the way of programs that resume.

    Such programs take the directory with the highest number, finished or not. `cairn run` does this
    before it starts a program. Call it where processes are started again within a run, before they
    look, and before any process saves. Entries of `directory` whose names match `pattern`, such as
    `checkpoint-*`, are moved below `unfinished` at the prefix if Cairn does not know them to be
    complete: `/cairn/run/checkpoint-20` to `/cairn/unfinished/run/checkpoint-20`. Returns their new
    paths. Outside a job nothing is moved.

    Starts the program `cairn`. Raises: OSError (ENOENT: it is not installed; EIO: it failed; those
    of rename).

    >>> set_unfinished_aside("no/such/directory", "checkpoint-*")
    []
    """
    top, moved = prefix(), []
    if top is None or not os.path.isdir(directory):
        return []
    directory = os.path.abspath(directory)
    # Not in `directory`: some frameworks take every entry there for a checkpoint.
    aside = os.path.join(top, "unfinished")
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        place = os.path.relpath(path, top)
        if path == aside or not fnmatch.fnmatchcase(name, pattern) or _is_complete(place):
            continue
        target = os.path.join(aside, place)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        while os.path.lexists(target):
            target += "~"
        os.rename(path, target)
        moved.append(target)
    return moved


def _is_complete(path: str) -> bool:
    """Whether a file or directory, below the prefix, is a complete checkpoint, or in one."""
    name = glob.escape(path)
    return latest(name) is not None or latest(f"{name}/**") is not None


def _is_numbered(directory: str) -> bool:
    return any(character.isdigit() for character in os.path.basename(directory))


def _asked(*words: str) -> Optional[str]:
    """Returns what `cairn` prints; None if it finds nothing (exit code 1)."""
    path = program()
    if path is None:
        raise OSError(errno.ENOENT, "the program cairn is not installed")
    words = words + ("--job", job() or "") if words[0] == "ls" else words
    done = subprocess.run([path, *words], capture_output=True, text=True, check=False)
    if done.returncode == 1 and "no clean file matches" in done.stderr:
        return None
    if done.returncode != 0:
        raise OSError(errno.EIO, f"cairn {words[0]}: {done.stderr.strip()}")
    return done.stdout
