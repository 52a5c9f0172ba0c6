"""Calls the library that `cairn run` loads into this process.

Must stay true: nothing is loaded here. A process outside a job has no library, and none is given to
it, because a library that comes later cannot serve files that are open already. include/cairn.h
documents the functions.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Optional

TIERS_MAX = 4
TEXT_MAX = 4096


class TierStatus(ctypes.Structure):
    """`struct cairn_tier_status`."""

    _fields_ = [("total_bytes", ctypes.c_uint64), ("used_bytes", ctypes.c_uint64)]


class StoreStatus(ctypes.Structure):
    """`struct cairn_status`."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("flags", ctypes.c_uint32),
        ("tiers", ctypes.c_uint32),
        ("total_bytes", ctypes.c_uint64),
        ("free_bytes", ctypes.c_uint64),
        ("files", ctypes.c_uint64),
        ("file_bytes", ctypes.c_uint64),
        ("undrained_files", ctypes.c_uint64),
        ("undrained_bytes", ctypes.c_uint64),
        ("unclean_files", ctypes.c_uint64),
        ("tier", TierStatus * TIERS_MAX),
    ]


ARGUMENTS = {
    "cairn_version": [],
    "cairn_job": [ctypes.c_char_p, ctypes.c_size_t],
    "cairn_prefix": [ctypes.c_char_p, ctypes.c_size_t],
    "cairn_status": [ctypes.POINTER(StoreStatus)],
    "cairn_checkpoint_begin": [ctypes.c_char_p, ctypes.c_uint64],
    "cairn_checkpoint_end": [ctypes.c_char_p, ctypes.c_uint64],
    "cairn_hint": [ctypes.c_char_p, ctypes.c_int],
    "cairn_wait_safe": [ctypes.c_char_p, ctypes.c_int, ctypes.c_int64],
}


def find() -> Optional[ctypes.CDLL]:
    """Returns the library of this process; None if the process has none."""
    process = ctypes.CDLL(None, use_errno=True)
    try:
        for name, arguments in ARGUMENTS.items():
            function = getattr(process, name)
            function.argtypes = arguments
            function.restype = ctypes.c_uint if name == "cairn_version" else ctypes.c_int
    except AttributeError:
        return None
    return process


def call(library: ctypes.CDLL, name: str, *arguments: object) -> int:
    """Calls a function. Returns its result. Raises OSError if that is negative."""
    ctypes.set_errno(0)
    result: int = getattr(library, name)(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def text(library: ctypes.CDLL, name: str) -> Optional[str]:
    """Returns the text that a function stores; None if this process is in no job."""
    buffer = ctypes.create_string_buffer(TEXT_MAX)
    try:
        call(library, name, buffer, len(buffer))
    except OSError as error:
        if error.errno == errno.ENODEV:
            return None
        raise
    return os.fsdecode(buffer.value)
