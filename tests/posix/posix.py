#!/usr/bin/env python3
"""Tests whether a mounted file system does what POSIX and Linux say.

    python3 posix.py DIRECTORY [--as-user UID:GID] [--compare REFERENCE_DIRECTORY]

It is for any file system: it works below DIRECTORY with the ordinary calls, and knows nothing of
who serves them. As root it also acts as several users; DIRECTORY must then be one that any user can
reach. For each case it prints `ok NAME`, `FAIL NAME: expected …, got …` or `skip NAME: why`. The
exit code is 1 if a case failed, and 2 if a directory cannot be used.

Must stay true:
- The name of a case is the fact that it proves.
- Nothing hangs: each case has a process group of its own, which an alarm and then SIGKILL end.
- A local file system (ext4, tmpfs) passes. Where local file systems differ, a case accepts what
  POSIX accepts.
- Random cases print their seed when they fail, and `--seed` repeats them.

It does not test durability after a crash, quotas, access control lists, file flags (chattr), or
speed. It does not use programs or libraries other than Python's own.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NoReturn

import cases
from kit.case import CASES, Case, Failed
from kit.process import Identity
from kit.runner import Outcome, Place

SAME_AS_REFERENCE = "the kernel does so, too"


def identity_of(text: str) -> Identity:
    """Reads UID:GID."""
    uid, gid = text.split(":")
    return Identity(int(uid), int(gid))


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Tests a file system for what POSIX says.")
    parser.add_argument("directory", type=Path, help="a directory of the file system")
    parser.add_argument(
        "--as-user", type=identity_of, metavar="UID:GID", help="run every case as this user"
    )
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="DIRECTORY",
        help="a directory of a file system to compare with: what fails there, too, is no failure",
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this in their name")
    parser.add_argument("--seed", type=int, help="begin random cases with this number")
    parser.add_argument("--quiet", action="store_true", help="do not print cases that are ok")
    return parser.parse_args()


def opened(directory: Path, identity: Identity | None) -> Place:
    """Returns a place in which cases can run, or ends the program with exit code 2."""
    try:
        place = Place(directory, identity)
    except (Failed, OSError) as error:
        refuse(f"{directory}: {error}")
    if not place.is_reachable():
        place.end()
        refuse(f"{directory}: other users cannot reach this directory")
    return place


def refuse(reason: str) -> NoReturn:
    """Ends the program because it cannot test what it was given."""
    print(reason, file=sys.stderr)
    sys.exit(2)


def judged(subject: Case, place: Place, reference: Place | None) -> Outcome:
    """Runs a case; if it fails, on the reference, too."""
    outcome = place.run(subject)
    if outcome.verdict == "FAIL" and reference and reference.run(subject).verdict == "FAIL":
        return Outcome("skip", SAME_AS_REFERENCE)
    return outcome


def main() -> int:
    """Runs the cases, and returns the exit code."""
    given = arguments()
    cases.random_files.SEED = time.time_ns() if given.seed is None else given.seed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    place = opened(given.directory, given.as_user)
    reference = opened(given.compare, given.as_user) if given.compare else None
    totals: Counter[str] = Counter()
    try:
        for subject in CASES:
            if given.only not in subject.name:
                continue
            outcome = judged(subject, place, reference)
            totals[outcome.verdict] += 1
            if outcome.verdict != "ok" or not given.quiet:
                reason = f": {outcome.reason}" if outcome.reason else ""
                line = f"{outcome.verdict} {subject.name}{reason}"
                print(line.encode(errors="backslashreplace").decode(), flush=True)
    finally:
        place.end()
        if reference:
            reference.end()
    count = sum(totals.values())
    print(f"{count} cases: {totals['ok']} ok, {totals['FAIL']} FAIL, {totals['skip']} skip")
    return 1 if totals["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
