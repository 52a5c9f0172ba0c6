#!/usr/bin/env python3
"""Kills an MPI job in the middle of a checkpoint: strike.py CAIRN JOB LAUNCHER_PID STEP_MIN

Waits until a restart file of step STEP_MIN or later is open for writing in the store of JOB, then sends
SIGKILL to every rank that descends from LAUNCHER_PID. Prints what it did.

What must stay true: the ranks die while the file is still open. Between seeing that and killing, a file
may be finished; so the ranks are stopped first, the store is asked again, and they go on if it is too late.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time

RANK_PROGRAM = "lmp"
SECONDS_MAX = 120
STOPS_MAX = 1000


def children(parent):
    """Process ids of the processes that descend from `parent`."""
    try:
        with open(f"/proc/{parent}/task/{parent}/children") as listing:
            direct = [int(word) for word in listing.read().split()]
    except FileNotFoundError:
        return []
    return direct + [pid for child in direct for pid in children(child)]


def name_of(pid):
    try:
        with open(f"/proc/{pid}/comm") as name:
            return name.read().strip()
    except FileNotFoundError:
        return ""


def ranks_of(launcher):
    return [pid for pid in children(launcher) if name_of(pid) == RANK_PROGRAM]


def open_checkpoint(cairn, job, step_min):
    """A restart file of `step_min` or later that somebody is writing, as `cairn ls` describes it."""
    answer = subprocess.run([cairn, "ls", "--json", job], capture_output=True, text=True)
    if answer.returncode != 0:
        return None
    for entry in json.loads(answer.stdout):
        found = re.fullmatch(r".*/melt\.(\d+)\.restart", entry["path"])
        if found and entry["state"] == "open" and int(found[1]) >= step_min:
            return entry
    return None


def send(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def caught_in_the_middle(cairn, job, step_min, ranks):
    """Stops `ranks` while a checkpoint is open and partly written, and describes it; None if it is too late."""
    for _ in range(STOPS_MAX):
        send(ranks, signal.SIGSTOP)
        entry = open_checkpoint(cairn, job, step_min)
        if entry is not None and entry["bytes"] > 0:
            return entry
        send(ranks, signal.SIGCONT)
        if entry is None:
            break
    return None


def main():
    cairn, job, launcher, step_min = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline and os.path.exists(f"/proc/{launcher}"):
        if open_checkpoint(cairn, job, step_min) is None:
            continue
        ranks = ranks_of(launcher)
        entry = caught_in_the_middle(cairn, job, step_min, ranks)
        if entry is None:
            continue
        send(ranks, signal.SIGKILL)
        written = entry["bytes"] / 1e6
        print(f"SIGKILL to {len(ranks)} ranks, {written:.1f} MB into {entry['path']}")
        return 0
    print("strike.py: the run ended before a checkpoint could be caught open", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
