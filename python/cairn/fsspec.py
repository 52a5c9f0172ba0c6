"""File system of the job for fsspec: `cairn://run1/step5/model.pt` is that file below the prefix.

A file that is written in a transaction appears under its name by one rename in the store. fsspec's
local file system writes it below $TMPDIR first and then copies it.

    with fsspec.filesystem("cairn").transaction:
        ...

Needs fsspec. Outside a job every path is refused with ENODEV.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from typing import Any

from fsspec.implementations.local import LocalFileOpener, LocalFileSystem

import cairn

# Directory of files whose transaction has not ended. It is never drained.
PENDING = ".fsspec-pending"


def _prefix() -> str:
    found = cairn.prefix()
    if found is None:
        raise OSError(errno.ENODEV, "cairn:// needs a job of Cairn; start the program by cairn run")
    return found


class CairnFileSystem(LocalFileSystem):  # type: ignore[misc]
    """Files below the job's prefix. Paths in results are absolute."""

    protocol = "cairn"

    def __init__(self, auto_mkdir: bool = True, **options: Any) -> None:
        super().__init__(auto_mkdir=auto_mkdir, **options)

    @property
    def fsid(self) -> str:
        return f"cairn-{cairn.job()}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, (list, tuple, set)):
            return type(path)(cls._strip_protocol(one) for one in path)
        top, path = _prefix(), os.fspath(path)
        for start in ("cairn://", "cairn:"):
            if path.startswith(start):
                path = path[len(start):]
                break
        is_inside = path == top or path.startswith(top.rstrip("/") + "/")
        return (path if is_inside else os.path.join(top, path.lstrip("/"))).rstrip("/") or "/"

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **options: Any) -> CairnFile:
        path = self._strip_protocol(path)
        if self.auto_mkdir and any(letter in mode for letter in "wxa"):
            self.makedirs(self._parent(path), exist_ok=True)
        return CairnFile(path, mode, fs=self, **options)


class CairnFile(LocalFileOpener):  # type: ignore[misc]
    """An open file. In a transaction it is written in `PENDING`, and `commit` renames it."""

    f: Any
    temp: str

    def _open(self) -> None:
        if self.autocommit or "w" not in self.mode or (self.f is not None and not self.f.closed):
            super()._open()
            return
        pending = os.path.join(_prefix(), PENDING)
        os.makedirs(pending, exist_ok=True)
        cairn.hint(os.path.join(pending, "**"), cairn.Hint.TEMPORARY)
        self.temp = os.path.join(pending, uuid.uuid4().hex)
        self.f = open(self.temp, self.mode)

    def commit(self) -> None:
        """Renames the file to its name."""
        if self.autocommit:
            raise RuntimeError("this file is in no transaction")
        self.f.close()
        os.replace(self.temp, self.path)
        self._leave()

    def discard(self) -> None:
        """Removes the file; its name keeps what it had."""
        if self.autocommit:
            raise RuntimeError("this file is in no transaction")
        self.f.close()
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.temp)
        self._leave()

    def _leave(self) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(self.temp))  # Unless others are in it.
