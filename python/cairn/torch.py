"""Writer and reader for torch.distributed.checkpoint.

    dcp.save(state, checkpoint_id=f"/cairn/run/step{step}", storage_writer=cairn.torch.Writer())
    dcp.load(state, storage_reader=cairn.torch.Reader(path))

DCP works on Cairn without them. `Writer` marks each save, so Cairn knows when all ranks are done: the
coordinator ends it after `.metadata` has its name. `Reader` also finds shards that are not in this
node's store, if the persist directory has them. Both work outside a job as their base classes do.

Needs torch 2.4 or newer.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from pathlib import Path
from typing import Any, Iterator, List, Optional, Tuple, Union

from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystem

import cairn

__all__ = ["Reader", "Writer"]

PathLike = Union[str, "os.PathLike[str]"]


class Writer(FileSystemWriter):  # type: ignore[misc]
    """FileSystemWriter that tells Cairn when a save begins and ends on this rank.

    `path` may be empty if `dcp.save` gets a `checkpoint_id`. The step is the last number in the path,
    0 without one. A save that fails is not ended, so it never counts as complete. `options` are
    those of FileSystemWriter.
    """

    def __init__(self, path: PathLike = "", **options: Any) -> None:
        super().__init__(path, **options)
        self._is_coordinator = True
        self._mark: Optional[Tuple[int, str]] = None

    def set_up_storage_writer(self, is_coordinator: bool, *arguments: Any, **options: Any) -> None:
        self._is_coordinator = is_coordinator
        super().set_up_storage_writer(is_coordinator, *arguments, **options)

    def write_data(self, plan: Any, planner: Any) -> Any:
        self._mark = mark_of(self.path)
        cairn.begin(*self._mark)
        written = super().write_data(plan, planner)
        # Without collectives each rank writes metadata of its own, and `finish` is called on each.
        if not self._is_coordinator and getattr(self, "use_collectives", True):
            cairn.end(*self._mark)
        return written

    def finish(self, metadata: Any, results: List[Any]) -> None:
        super().finish(metadata, results)
        if self._mark is not None:
            cairn.end(*self._mark)


def mark_of(path: PathLike) -> Tuple[int, str]:
    """Returns step and name of the checkpoint in this directory.

    >>> mark_of("/cairn/run2/step-0050")
    (50, '/cairn/run2/step-{step}')
    >>> mark_of("/cairn/last")
    (0, '/cairn/last')
    """
    directory, name = os.path.split(os.fspath(path))
    numbers = list(re.finditer(r"\d+", name))
    if not numbers:
        return 0, os.path.join(directory, name)
    last = numbers[-1]
    return int(last[0]), os.path.join(directory, f"{name[:last.start()]}{{step}}{name[last.end():]}")


class _WithPersistDirectory(FileSystem):  # type: ignore[misc]
    """Reads files that the store lacks from the persist directory."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._places: Optional[Tuple[Path, Path]] = None
        self._has_asked = False

    def copy_of(self, path: PathLike) -> Optional[Path]:
        """Returns where the copy of a file below the prefix would be; None if nothing is drained."""
        with self._lock:
            if not self._has_asked:
                self._has_asked = True
                top, target = cairn.prefix(), cairn.persist_directory()
                self._places = (Path(top), Path(target)) if top and target else None
        if self._places is None:
            return None
        prefix, persist = self._places
        try:
            return persist / Path(path).relative_to(prefix)
        except ValueError:
            return None

    @contextlib.contextmanager
    def create_stream(self, path: PathLike, mode: str) -> Iterator[Any]:
        place: PathLike = path
        if mode == "rb" and not os.path.exists(path):
            copy = self.copy_of(path)
            place = copy if copy is not None and copy.exists() else path
        with super().create_stream(place, mode) as stream:
            yield stream

    def exists(self, path: PathLike) -> bool:
        copy = None if super().exists(path) else self.copy_of(path)
        return super().exists(path) or (copy is not None and copy.exists())


class Reader(FileSystemReader):  # type: ignore[misc]
    """FileSystemReader that also finds what only the persist directory has.

    Each file is read from the store if it is there, else from the persist directory. `options` are
    those of FileSystemReader.
    """

    def __init__(self, path: PathLike, **options: Any) -> None:
        super().__init__(path, **options)
        self.fs = _WithPersistDirectory()
