#!/usr/bin/env python3
"""Kills an MPI job in the middle of a checkpoint: strike.py CAIRN JOB LAUNCHER_PID STEP_MIN

Waits until the store of JOB has a restart file of step STEP_MIN or later. Then it lets the ranks below
LAUNCHER_PID run for a moment at a time, until a restart file is partly written, and kills them with SIGKILL.
Prints what it did.

Must stay true: the ranks die while the file is still open, however busy the machine is. For that they are
stopped during every query of the store.
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
# Shorter than a checkpoint takes to write.
MOMENT_S = 0.002


def children(parent):
    """Process ids of all descendants of `parent`."""
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


def checkpoints(cairn, job, step_min):
    """Entries of `cairn ls` for the restart files of step `step_min` or later."""
    answer = subprocess.run([cairn, "ls", "--json", job], capture_output=True, text=True)
    if answer.returncode != 0:
        return []
    found = []
    for entry in json.loads(answer.stdout):
        name = re.fullmatch(r".*/melt\.(\d+)\.restart", entry["path"])
        if name and int(name[1]) >= step_min:
            found.append(entry)
    return found


def send(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def main():
    cairn, job, launcher, step_min = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    deadline = time.monotonic() + SECONDS_MAX
    has_begun = False
    while time.monotonic() < deadline and os.path.exists(f"/proc/{launcher}"):
        ranks = ranks_of(launcher) if has_begun else []
        send(ranks, signal.SIGSTOP)
        found = checkpoints(cairn, job, step_min)
        has_begun = has_begun or found != []
        caught = [entry for entry in found if entry["state"] == "open" and entry["bytes"] > 0]
        if ranks and caught:
            send(ranks, signal.SIGKILL)
            written = caught[0]["bytes"] / 1e6
            print(f"SIGKILL to {len(ranks)} ranks, {written:.1f} MB into {caught[0]['path']}")
            return 0
        send(ranks, signal.SIGCONT)
        time.sleep(MOMENT_S)
    print("strike.py: the run ended before a checkpoint could be caught open", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
