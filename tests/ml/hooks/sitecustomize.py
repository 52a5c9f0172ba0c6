"""Kills a process in the midst of a save. Python imports this module in every process that it starts.

ML_KILL=N:MS: the N-th event of a save in a process arms a timer, which ends the process by SIGKILL
MS milliseconds later. Events are directories that are created, files opened for writing, and new
names, below ML_PREFIX, as Python's audit hooks report them. The timer is the kernel's, so it
strikes in the midst of code in C and Rust, too. With ML_VICTIM=parent it is the parent that is
killed first: the launcher of ranks. ML_EVENTS=FILE: each process appends its number of events at
its end.
"""

import atexit
import ctypes
import os
import signal
import sys

PREFIX = os.environ.get("ML_PREFIX", "/cairn") + "/"
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CLOCK_MONOTONIC, SIGEV_SIGNAL = 1, 0

events, strike_at, strike_ms = 0, 0, 0.0


class SignalEvent(ctypes.Structure):
    """`struct sigevent`, padded to its size."""

    _fields_ = [("value", ctypes.c_void_p), ("number", ctypes.c_int), ("notify", ctypes.c_int), ("rest", ctypes.c_char * 48)]


def strike_in(milliseconds):
    """Lets the kernel kill this process after that time."""
    process, timer = ctypes.CDLL(None), ctypes.c_void_p()
    event = SignalEvent(number=signal.SIGKILL, notify=SIGEV_SIGNAL)
    nanoseconds = max(1, int(milliseconds * 1e6))
    times = (ctypes.c_long * 4)(0, 0, nanoseconds // 10**9, nanoseconds % 10**9)
    if process.timer_create(CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)) == 0:
        process.timer_settime(timer, 0, ctypes.byref(times), None)


def watch(event, arguments):
    global events
    if event == "open":
        is_one = isinstance(arguments[2], int) and arguments[2] & WRITING
    else:
        is_one = event in ("os.mkdir", "os.rename")
    if not is_one:
        return
    place = arguments[1] if event == "os.rename" else arguments[0]
    if not str(place).startswith(PREFIX):
        return
    events += 1
    if events == strike_at:
        if os.environ.get("ML_VICTIM") == "parent":
            os.kill(os.getppid(), signal.SIGKILL)
        strike_in(strike_ms)


def report():
    with open(os.environ["ML_EVENTS"], "a") as out:
        out.write(f"{events}\n")


def arm(at, milliseconds):
    """From here on the process counts events, and dies that long after event number `at`."""
    global strike_at, strike_ms
    strike_at, strike_ms = at, milliseconds
    sys.addaudithook(watch)
    # Processes that this one starts with a new Python, such as savers, are armed alike.
    os.environ["ML_KILL"] = f"{at}:{milliseconds}"


if "ML_KILL" in os.environ:
    arm(*(kind(value) for kind, value in zip((int, float), os.environ["ML_KILL"].split(":"))))
if "ML_EVENTS" in os.environ:
    arm(0, 0.0)
    atexit.register(report)
