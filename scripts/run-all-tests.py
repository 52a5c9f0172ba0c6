#!/usr/bin/env python3
"""Builds the workspace, then runs its test binaries and other commands, several at a time.

    scripts/run-all-tests.py [--lanes N] [COMMAND…]

`cargo test` runs one binary after the other, but most of our tests mostly wait for other processes
or a disk. So N binaries run at once (default: one and a half for each processor). Each COMMAND, one
argument of words, runs beside them; commands start first, in their order.

Must stay true: each binary runs in its package's directory, as under `cargo test`. Its output
appears as a whole when it has ended. Everything runs, whatever fails. The last lines give the totals
and name the failures. An interrupted run ends all sessions. CAIRN_BUILT tells tests that the command
and the libraries are up to date, so they do not ask cargo again.
"""

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

COUNTS = re.compile(r"^test result: .*? (\d+) passed; (\d+) failed; (\d+) ignored", re.MULTILINE)


def built():
    """Each test binary: (label, words of a command, directory)."""
    # Builds the programs and libraries that tests start; building tests alone does not update all
    # of them.
    made = subprocess.run(["cargo", "build", "--workspace", "--locked"], check=False)
    if made.returncode != 0:
        sys.exit(made.returncode)
    command = ["cargo", "test", "--workspace", "--locked", "--no-run",
               "--message-format=json-render-diagnostics"]
    found = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as cargo:
        for line in cargo.stdout:
            message = json.loads(line)
            if message.get("reason") != "compiler-artifact" or not message["profile"]["test"]:
                continue
            if message["executable"]:
                package = Path(message["manifest_path"]).parent
                label = f"{package.name} {message['target']['name']}"
                found.append((label, [message["executable"]], package))
    if cargo.returncode != 0:
        sys.exit(cargo.returncode)
    return found


class Sessions:
    """Processes, each in its own session; none can be started after `end`."""

    def __init__(self):
        self.lock = threading.Lock()
        self.leaders = set()
        self.is_over = False

    def start(self, words, directory, output):
        with self.lock:
            if self.is_over:
                raise InterruptedError(f"{words[0]}: not started any more")
            process = subprocess.Popen(words, cwd=directory, stdin=subprocess.DEVNULL,
                                       stdout=output, stderr=subprocess.STDOUT,
                                       start_new_session=True)
            self.leaders.add(process.pid)
            return process

    def leave(self, process):
        """Ends what a process that has ended left in its session, which keeps its number until then.
        Returns the commands."""
        with self.lock:
            self.leaders.discard(process.pid)
            return kill_all({process.pid})

    def end(self):
        """Ends every process in these sessions."""
        with self.lock:
            self.is_over = True
            kill_all(self.leaders)


def kill_all(sessions):
    """Kills every process in these sessions. Returns their commands."""
    killed = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            # After the name in parentheses: state, parent, group, session.
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) in sessions and fields[0] != "Z":
                words = (directory / "cmdline").read_bytes().replace(b"\0", b" ")
                os.kill(int(directory.name), signal.SIGKILL)
                killed.append(words.decode(errors="replace").strip())
        except (OSError, IndexError):
            pass  # It has ended.
    return killed


def run(label, words, directory, sessions):
    """Runs a command; returns its label, exit status, output, seconds and processor seconds."""
    started = time.monotonic()
    # Not a pipe: a process that a failed test left behind would hold it open.
    with tempfile.TemporaryFile() as file:
        process = sessions.start(words, directory, file)
        _, status, used = os.wait4(process.pid, 0)
        left = sessions.leave(process)
        file.seek(0)
        output = file.read().decode(errors="replace")
    output += "".join(f"\nleft behind, and ended: {words}" for words in left)
    status = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return label, status, output, time.monotonic() - started, used.ru_utime + used.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    lanes = max(2, (os.cpu_count() or 1) * 3 // 2)
    parser.add_argument("--lanes", metavar="N", type=int, default=lanes, help="at a time")
    parser.add_argument("commands", metavar="COMMAND", nargs="*", help="what else is to be run")
    chosen = parser.parse_args()

    here = Path.cwd()
    jobs = [(command, shlex.split(command), here) for command in chosen.commands] + built()
    os.environ["CAIRN_BUILT"] = "1"
    sessions, failed, totals = Sessions(), [], [0, 0, 0]

    def report(future):
        label, status, output, seconds, busy = future.result()
        ending = "" if status == 0 else f", status {status}"
        if status != 0:
            failed.append(label)
        for counts in COUNTS.findall(output):
            totals[:] = [total + int(count) for total, count in zip(totals, counts)]
        print(f"\n-- {label}: {seconds:.1f} s, processors {busy:.1f} s{ending}")
        print(output.strip(), flush=True)

    def interrupted(number, _frame):
        sessions.end()
        os._exit(128 + number)

    signal.signal(signal.SIGINT, interrupted)
    signal.signal(signal.SIGTERM, interrupted)
    with ThreadPoolExecutor(chosen.lanes) as pool:
        # In this thread, so that an error here, or in a start, ends the run as a failure.
        for future in as_completed([pool.submit(run, *job, sessions) for job in jobs]):
            report(future)
    passed, not_passed, ignored = totals
    print(f"\n{len(jobs)} commands; tests: {passed} passed, {not_passed} failed, {ignored} ignored")
    for label in failed:
        print(f"failed: {label}")
    sys.exit(1 if failed else 0)


main()
