#!/usr/bin/env python3
"""Black-box tests of Cairn's deliveries: never worse than a disk.

    tests/delivery/run.py --small            some 60 s: every pair of values of two axes, and trees
    tests/delivery/run.py                    all of it, ten minutes on two cores
    tests/delivery/run.py --only 'trees/*'   or --only 'create/*/memory/*'; --list shows the names
    tests/delivery/run.py --random 50 --seed 7   only random histories; a failure names its seed

Names of tests:
    how/sync/blow/agent/then/tier   the matrix (matrix.py)
    trees/NAME, deaths/NAME         functions of trees.py and deaths.py
    programs/NAME                   applications that are killed or lose their node (programs.py)
    random/SEED                     random histories (histories.py)
    lost/SEED                       random histories of a node that is lost (losses.py)
    crowded/SEED                    runs with small files in little room (crowded.py)

worker.py and applications.py are the programs under test. harness.py has the store root, commands
and comparisons; course.py has what tests of whole trees share. The binaries are copied first, from
CAIRN_BIN or else from target/release.
"""

import argparse
import fnmatch
import os
import shutil
import signal
import sys
import tempfile
import traceback
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

sys.dont_write_bytecode = True  # The source tree stays as it is.

import crowded
import deaths
import histories
import losses
import matrix
import programs
import scarcity
import trees
from harness import HERE, Box, Failed, Skipped


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="GLOB", action="append", help="tests by name; repeated")
    parser.add_argument("--list", action="store_true", help="print the names, run nothing")
    parser.add_argument("--small", action="store_true", help="a subset for each change")
    parser.add_argument("--seed", type=int, default=1, help="of --small and --random")
    parser.add_argument("--random", metavar="N", type=int, help="N random histories, nothing else")
    parser.add_argument("--jobs", metavar="N", type=int, default=os.cpu_count(), help="at a time")
    parser.add_argument("--keep", action="store_true", help="keep scratch folders and stores")
    return parser.parse_args()


def tests(chosen):
    """name -> (function of a box, tier)."""
    found = {}
    if chosen.random is None:
        for case in matrix.small(chosen.seed) if chosen.small else matrix.cases():
            found[matrix.name(case)] = (lambda box, case=case: matrix.test(box, case), case.tier)
        for room in (trees, deaths, scarcity):
            found |= {name: test for name, *test in room.tests(chosen.small)}
        found |= {name: test for name, *test in programs.tests(chosen.small, chosen.seed)}
    count = chosen.random if chosen.random is not None else 8 if chosen.small else 40
    for seed in range(chosen.seed, chosen.seed + count):
        tier = ("ram", "file")[seed % 2]
        found[f"random/{seed}"] = (lambda box, seed=seed: histories.test(box, seed), tier)
        found[f"crowded/{seed}"] = (lambda box, seed=seed: crowded.test(box, seed), "ram")
        found[f"lost/{seed}"] = (lambda box, seed=seed: losses.test(box, seed), "ram")
    return {name: test for name, test in found.items()
            if not chosen.only or any(fnmatch.fnmatch(name, glob) for glob in chosen.only)}


def binaries(scratch):
    """Copies the programs, because a build may replace them during the tests."""
    built = Path(os.environ.get("CAIRN_BIN", HERE.parents[1] / "target/release"))
    copies = Path(scratch) / "bin"
    copies.mkdir()
    for name in ("cairn", "libcairn_preload.so"):
        shutil.copy(built / name, copies)
    return copies


def carry_out(name, test, place, keep):
    function, tier = test
    box = Box(*place, name.replace("/", "-"), tier, keep)
    try:
        with box:
            said = function(box)
        return "ok", said if isinstance(said, str) else ""
    except Failed as error:
        return "FAILED", str(error)
    except Skipped as error:
        return "skipped", str(error)
    except Exception:
        return "FAILED", "error of the harness: " + traceback.format_exc()


def main():
    chosen = arguments()
    selected = tests(chosen)
    if chosen.list:
        print(*selected, sep="\n")
        return 0
    counts = {"ok": 0, "FAILED": 0, "skipped": 0}
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    scratch = tempfile.mkdtemp(prefix="cairn-delivery-")
    shm = tempfile.mkdtemp(prefix="cairn-delivery-", dir="/dev/shm")
    pool = ThreadPoolExecutor(chosen.jobs)
    try:
        place = (binaries(scratch), scratch, shm)
        running = {pool.submit(carry_out, name, test, place, chosen.keep): name
                   for name, test in selected.items()}
        for done in as_completed(running):
            outcome, why = done.result()
            counts[outcome] += 1
            print(f"{running[done]}: {outcome} {why}".rstrip(), flush=True)
    except KeyboardInterrupt:
        print("interrupted: waiting for the tests that run")
    finally:
        pool.shutdown(cancel_futures=True)
        for folder in () if chosen.keep else (scratch, shm):
            shutil.rmtree(os.fsencode(folder), ignore_errors=True)
    if chosen.keep:
        print(f"kept: {scratch} {shm}")
    print("{ok} passed, {FAILED} failed, {skipped} skipped".format(**counts))
    return 1 if counts["FAILED"] or not counts["ok"] else 0


if __name__ == "__main__":
    sys.exit(main())
