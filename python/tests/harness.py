"""Runs Python code in a job of Cairn, for the tests of the package.

The binaries are in CAIRN_BIN, else in target/release or target/debug. Without them the tests are
skipped, with the reason. Every store is in a directory of its own, which is removed at the end.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python"
sys.path.insert(0, str(PACKAGE))
# Far more than any job here takes on a busy machine.
LIMIT_S = 120


def binaries():
    """Returns the directory of the binaries; None if there is none."""
    named = os.environ.get("CAIRN_BIN")
    places = [Path(named)] if named else [ROOT / "target/release", ROOT / "target/debug"]
    for place in places:
        if (place / "cairn").exists() and (place / "libcairn_preload.so").exists():
            return place.resolve()
    return None


def lacks(distribution, minimum="0"):
    """Returns why a distribution of Python cannot be used here; an empty text if it can."""
    try:
        found = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return f"no {distribution}"
    numbers = [[int(part) for part in re.findall(r"\d+", version)[:3]] for version in (found, minimum)]
    return "" if numbers[0] >= numbers[1] else f"{distribution} {found} is older than {minimum}"


@unittest.skipUnless(binaries(), "no program cairn: make build, or name its directory in CAIRN_BIN")
class JobTest(unittest.TestCase):
    """A test with directories for stores and for what is drained."""

    def setUp(self):
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.stores = Path(tempfile.mkdtemp(prefix="cairn-python.", dir=memory))
        self.box = Path(tempfile.mkdtemp(prefix="cairn-python."))
        self.persist = self.box / "persist"
        self.addCleanup(self.remove)

    def remove(self):
        # A killed run leaves a store, and for a while its agent.
        subprocess.run([binaries() / "cairn", "--store-root", self.stores, "rm", "job", "--discard"], check=False,
                       capture_output=True, timeout=LIMIT_S)
        for directory in (self.stores, self.box):
            shutil.rmtree(directory, ignore_errors=True)

    def environment(self):
        path = os.pathsep.join([str(binaries()), os.environ["PATH"]])
        return dict(os.environ, PYTHONPATH=str(PACKAGE), PATH=path, CAIRN_STORE_ROOT=str(self.stores),
                    PYTHONWARNINGS="default::UserWarning", PYTHONDONTWRITEBYTECODE="1")

    def command(self, code, *options, persists=True):
        prologue = "import errno, os, signal, sys, time\nimport cairn\n"
        wanted = ["--persist", str(self.persist)] if persists else []
        return [str(binaries() / "cairn"), "run", "--job", "job", "--tier", "ram:256M", *wanted, *options, "--",
                sys.executable, "-c", prologue + textwrap.dedent(code)]

    def in_job(self, code, *options, persists=True, expected=0):
        """Runs code in the job and returns what it printed. Fails if the exit code is not `expected`,
        unless that is None."""
        done = subprocess.run(self.command(code, *options, persists=persists), env=self.environment(), cwd=self.box,
                              capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S)
        if expected is not None:
            self.assertEqual(done.returncode, expected, done.stdout + done.stderr)
        self.said = done.stderr
        return done.stdout
