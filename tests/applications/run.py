#!/usr/bin/env python3
"""Real applications, unmodified, on Cairn, on tmpfs and on a disk: compares results and times.

    tests/applications/run.py                   all that are installed; a line for each
    tests/applications/run.py --only 'r*'       by name; --list shows the names
    tests/applications/run.py --rounds 5        how often each is timed; the medians count
    tests/applications/run.py --table FILE      also as a Markdown table

Each application works in a new directory on each of the three media, in turn. Its result is what its own
tools read there afterwards (`shown` in programs.py), or else every byte of the resulting tree. On Cairn that
is the persist directory after `cairn run` has ended with exit code 0. The time is that of the part that
writes (`timed` in programs.py), without the start of `cairn run` and its drain.

The binaries are in CAIRN_BIN, or else in target/release. Exit code: 0, or 1 if a result differs or a run
failed. Applications that are not installed are named and left out; scripts/setup.sh applications installs
them. Shares no code with Cairn.
"""

import argparse
import fnmatch
import hashlib
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from programs import PROGRAMS

ROOT = Path(__file__).resolve().parents[2]
BINARIES = Path(os.environ.get("CAIRN_BIN", ROOT / "target/release")).resolve()
LIMIT_S = 300  # The slowest takes 20 s by itself.
MEDIA = ["cairn", "tmpfs", "disk"]
BY_ARGUMENTS = {"fallocate", "fcntl", "ioctl"}

# Prologue of each program: `timed COMMAND…` adds the command's duration to the measured time.
PRELUDE = """
set -eu
umask 022
export LC_ALL=C TZ=UTC
timed() {
    local begin=$EPOCHREALTIME
    "$@"
    echo "$begin $EPOCHREALTIME" >>"$ASIDE/times"
}
cd "$HERE"
"""


class Failed(Exception):
    """A failure, with a message for people."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="GLOB", default="*", help="programs by name")
    parser.add_argument("--list", action="store_true", help="print the names, run nothing")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is timed (3)")
    parser.add_argument("--table", metavar="FILE", help="write a table of Markdown")
    arguments = parser.parse_args()
    chosen = [program for program in PROGRAMS if fnmatch.fnmatch(program.name, arguments.only)]
    if arguments.list:
        print("\n".join(program.name for program in chosen))
        return 0
    if not (BINARIES / "cairn").exists():
        print(f"run.py: no {BINARIES}/cairn: make build", file=sys.stderr)
        return 2
    rows, failures = [], 0
    with tempfile.TemporaryDirectory(prefix="cairn-applications.") as disk:
        with tempfile.TemporaryDirectory(prefix="cairn-applications.", dir="/dev/shm") as memory:
            for program in chosen:
                row = {"program": program, "said": ""}
                missing = [need for need in program.needs if not is_there(need)]
                try:
                    if missing:
                        print(f"left out: {program.name}: no {', '.join(missing)}", flush=True)
                        continue
                    row.update(measure(program, Path(disk), Path(memory), arguments.rounds))
                    print(line(row), flush=True)
                except Failed as error:
                    failures += 1
                    row["said"] = str(error)
                    print(f"FAILED: {program.name}: {error}", flush=True)
                rows.append(row)
    if arguments.table:
        Path(arguments.table).write_text(table(rows))
    print(f"{len(rows)} programs, {failures} failed")
    return 1 if failures else 0


def is_there(need):
    """Whether a command, a path, or `module:NAME` of the distribution's Python exists."""
    if need.startswith("module:"):
        asked = ["/usr/bin/python3", "-c", f"import {need[7:]}"]
        return os.path.exists(asked[0]) and subprocess.run(asked, capture_output=True).returncode == 0
    return os.path.exists(need) if need.startswith("/") else shutil.which(need) is not None


def measure(program, disk, memory, rounds):
    """Returns the time on each medium and the version. Raises Failed if a result differs from the disk's."""
    times = {medium: [] for medium in MEDIA}
    for number in range(rounds):
        results = {}
        for medium in MEDIA:
            box = disk / f"{program.name}.{medium}.{number}"
            box.mkdir()
            results[medium], seconds, _ = once(program, medium, box, memory)
            times[medium].append(seconds)
            shutil.rmtree(box)
        for medium in MEDIA:
            if results[medium] != results["disk"]:
                raise Failed(f"on {medium} the result is another one: {difference(results[medium], results['disk'])}")
    said = subprocess.run(["bash", "-c", program.version], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          cwd=disk)
    version = (said.stdout + said.stderr).strip().splitlines()
    found = {medium: statistics.median(taken) for medium, taken in times.items()}
    said = check(program)
    box = disk / f"{program.name}.calls"
    box.mkdir()
    refused = once(program, "cairn", box, memory, ["--report-calls"])[2]
    if said and (said == "served") != (not refused):
        raise Failed(f"cairn check says {said!r}, and these were not served: {', '.join(refused) or 'none'}")
    shutil.rmtree(box)
    return {"times": found, "version": version[0] if version else "", "check": said}


def once(program, medium, box, memory, options=()):
    """Runs a program once on a medium; returns its result, the timed seconds, and the functions that were not served."""
    aside, persist = box / "aside", box / "persist"
    aside.mkdir()
    persist.mkdir()
    script = box / "script"
    script.write_text(PRELUDE + program.work)
    here = {"cairn": Path("/cairn/work"), "tmpfs": memory / "work", "disk": box / "work"}[medium]
    environment = dict(os.environ, HERE=str(here), ASIDE=str(aside), HOME=str(aside), CAIRN_STORE_ROOT=str(box / "stores"))
    if medium == "cairn":
        # The store is in memory, as it is by default.
        stores = memory / "stores"
        stores.mkdir(exist_ok=True)
        environment["CAIRN_STORE_ROOT"] = str(stores)
        command = [BINARIES / "cairn", "run", "--job", "application", "--persist", persist, *options, "--",
                   "bash", "-c", f"mkdir /cairn/work && exec bash {script}"]
    else:
        here.mkdir()
        command = ["bash", script]
    done = run(command, environment, box)
    if done.returncode != 0:
        raise Failed(f"exit code {done.returncode} on {medium}: {(done.stdout + done.stderr)[-600:]}")
    spans = [line.split() for line in (aside / "times").read_text().splitlines()]
    seconds = sum(float(end) - float(begin) for begin, end in spans)
    left = persist / "work" if medium == "cairn" else here
    result = shown(program, left, environment, box) if program.shown else tree(left)
    if medium == "tmpfs":
        shutil.rmtree(here)
    refused = re.findall(r"^cairn: \S+:   (?:refused|missed)\b.*?  (\w+)  ", done.stderr, re.MULTILINE)
    return result, seconds, sorted(set(refused) - BY_ARGUMENTS)


def run(command, environment, where):
    return subprocess.run([str(word) for word in command], env=environment, cwd=where, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, errors="replace")


def shown(program, left, environment, box):
    """Output of the application's own tools on the resulting directory."""
    script = box / "show"
    script.write_text(PRELUDE + program.shown)
    done = run(["bash", script], dict(environment, HERE=str(left)), box)
    if done.returncode != 0:
        raise Failed(f"what is left cannot be read: {(done.stdout + done.stderr)[-600:]}")
    return {"what its tools read": done.stdout}


def tree(root):
    """Names, kinds, modes, link targets and contents of a tree."""
    found = {}
    for directory, names, files in os.walk(root):
        for name in names + files:
            path = Path(directory, name)
            kind = path.lstat()
            content = os.readlink(path) if path.is_symlink() else \
                hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            found[str(path.relative_to(root))] = f"{kind.st_mode:o} {kind.st_nlink if path.is_file() else ''} {content}"
    return found


def difference(one, other):
    names = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    first = names[0]
    return f"{len(names)} differ, first {first}: {str(one.get(first))[:200]!r} for {str(other.get(first))[:200]!r}"


def check(program):
    """Verdict of `cairn check` on the program's file."""
    file = shutil.which(program.file)
    if not file:
        return ""
    done = subprocess.run([BINARIES / "cairn", "check", "--json", file], capture_output=True, text=True)
    findings = [finding for finding in json.loads(done.stdout)["findings"] if finding["weight"] != "note"]
    return "served" if not findings else f"{len(findings)} to know: {findings[0]['what']}"


def line(row):
    times = row["times"]
    shown = " ".join(f"{medium} {times[medium]:.3f}" for medium in MEDIA)
    return f"ok {row['program'].name}: {shown} s; check: {row['check']}"


def table(rows):
    lines = ["| program | what was done | Cairn, s | tmpfs, s | disk, s | `cairn check` | result |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        program, times = row["program"], row.get("times")
        figures = [f"{times[medium]:.3f}" for medium in MEDIA] if times else ["", "", ""]
        name = f"{program.title} ({row['version'][:60]})" if row.get("version") else program.title
        cells = [name, program.done, *figures, row.get("check", ""), row["said"] or "as on a disk"]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 30
    lines.append(f"\n{os.cpu_count()} processors, {memory} GiB, Linux {platform.release()}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
