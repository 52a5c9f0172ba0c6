"""Environment of one test: a store root, a scratch folder, `cairn` as a user calls it, comparisons.

Shares no code with Cairn. Processes are found by the store root in their environment or arguments,
so only this test's own processes are ever signalled.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from worker import tree

HERE = Path(__file__).resolve().parent
WORKER = str(HERE / "worker.py")
JOB = "job"

# Time limits, each several times what the slowest of our machines needed.
RUN_LIMIT_S = 60  # A run ends within 1 s; a checkpoint settles in 5 s; an agent is replaced in 1 s.
DRAIN_LIMIT_S = 30  # Some hundred KiB are drained, and perhaps an agent started.
MEET_LIMIT_S = 30  # The worker reaches its meeting point within 0.3 s.
ARRIVE_LIMIT_S = 10  # A closed file arrives within 1 s; 5 s more where it may be a checkpoint.
DEATH_LIMIT_S = 10  # A process is gone within ms of SIGKILL, but not while its memory is freed.


class Failed(Exception):
    """The contract is broken; the text says how."""


class Skipped(Exception):
    """This system or store lacks the feature under test."""


class Result:
    def __init__(self, code, said):
        self.code, self.said = code, said

    def last_line(self):
        lines = [line for line in self.said.strip().splitlines() if line.strip()]
        return lines[-1][:160] if lines else "(nothing said)"


def wait_until(condition, limit_s, what, reason=""):
    """Polls a condition. Raises Failed with `reason` after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {limit_s} s {reason}".rstrip())
        time.sleep(0.01)
    return value


class Box:
    """Store root, scratch folder and persist directory of one test; `with` cleans up."""

    def __init__(self, binaries, scratch, shm, name, tier="ram", keep=False):
        self.binaries, self.keep = binaries, keep
        self.scratch = Path(scratch) / name
        self.root = Path(shm) / name
        self.out = self.scratch / "out"
        self.disk = self.scratch / "disk"
        self.options = ["--persist", str(self.out)]
        self.tier = "ram:64M" if tier == "ram" else f"file:{self.scratch}/t:64M"

    def __enter__(self):
        for folder in (self.root, self.out, self.disk, self.aside("cairn"), self.aside("disk")):
            folder.mkdir(parents=True)
        return self

    def __exit__(self, *_):
        self.kill_all()
        if self.keep:
            return
        unmount_below(self.root)
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.rmtree(os.fsencode(self.scratch), ignore_errors=True)

    def aside(self, side):
        return self.scratch / ("aside-" + side)

    # Processes of this test.

    def environment(self):
        mine = {key: value for key, value in os.environ.items() if not key.startswith("CAIRN_")}
        return {**mine, "CAIRN_STORE_ROOT": str(self.root), "SCRATCH": str(self.scratch),
                "PATH": f"{self.binaries}:{mine['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}

    def processes(self):
        """pid -> arguments of the living processes that belong to this store root."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
                environment = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue  # Gone, or another user's.
            root = os.fsencode(self.root)
            ours = b"CAIRN_STORE_ROOT=" + root + b"\0" in environment + b"\0"
            if arguments and (ours or root + b"/" in arguments):
                found[int(pid)] = os.fsdecode(arguments).split("\0")
        return found

    def agents(self):
        """Processes of `cairn` with this root, other than `cairn run`; they outlive it."""
        return [pid for pid, arguments in self.processes().items()
                if os.path.basename(arguments[0]) == "cairn" and arguments[1:2] != ["run"]]

    def kill(self, pids, number=signal.SIGKILL):
        """Signals `pids` in order, then waits until they are gone."""
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
        wait_until(lambda: not any(alive(pid) for pid in pids), DEATH_LIMIT_S,
                   f"processes {pids} still there after signal {number}")

    def kill_all(self):
        """Kills all processes with this store root, repeatedly: an agent may be starting another."""
        for _ in range(100):
            pids = list(self.processes())
            if not pids:
                return
            self.kill(pids)
        raise Failed("processes of this store root keep coming back")

    # Cairn's commands.

    def cairn(self, *arguments, limit_s=DRAIN_LIMIT_S):
        command = [str(self.binaries / "cairn"), *map(str, arguments)]
        said = self.scratch / "said-command"
        try:
            with open(said, "wb") as file:
                done = subprocess.run(command, env=self.environment(), cwd=self.scratch,
                                      stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                      timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"cairn {arguments[0]} did not end within {limit_s} s") from None
        return Result(done.returncode, said.read_text(errors="replace"))

    def start(self, command, *options):
        """Starts `cairn run`. Its output goes to a file, because surviving processes may hold it open."""
        line = [str(self.binaries / "cairn"), "run", "--job", JOB, "--tier", self.tier,
                *self.options, *options, "--", *map(str, command)]
        with open(self.scratch / "said", "wb") as said:
            return subprocess.Popen(line, env=self.environment(), cwd=self.scratch, stdout=said,
                                    stdin=subprocess.DEVNULL, stderr=said, start_new_session=True)

    def finish(self, run, limit_s=RUN_LIMIT_S):
        try:
            code = run.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"cairn run did not end within {limit_s} s") from None
        if (self.aside("cairn") / "skip").exists():
            raise Skipped(self.report("skip"))
        return Result(code, (self.scratch / "said").read_text(errors="replace"))

    def run(self, command, *options):
        return self.finish(self.start(command, *options))

    def store_is_kept(self):
        return self.cairn("ls", JOB).code == 0

    # The worker, on a disk and on the store.

    def plan(self, steps):
        """Gives both workers their next steps."""
        for side in ("cairn", "disk"):
            for old in self.aside(side).iterdir():
                old.unlink()
            (self.aside(side) / "plan.json").write_text(json.dumps(steps))

    def worker(self, side="cairn"):
        """The worker's command line; always the same, so a second run counts as the same command."""
        root = "/cairn" if side == "cairn" else self.disk
        return [sys.executable, WORKER, str(root), str(self.aside(side))]

    def on_disk(self, trace=False):
        """Does the planned steps on a plain directory, as the reference, and kills them at `ready`."""
        said = self.scratch / "said-disk"
        with open(said, "wb") as file:
            worker = subprocess.Popen(self.worker("disk") + ["--trace"] * trace, stderr=file,
                                      env=self.environment(), start_new_session=True)
        while worker.poll() is None:
            for marker in self.aside("disk").iterdir():
                if marker.name == "ready":
                    self.kill([worker.pid, *json.loads(marker.read_text())])
                elif marker.name.startswith("await") and "." not in marker.name:
                    marker.with_suffix(".go").touch()
            time.sleep(0.005)
        if worker.returncode > 0:
            raise RuntimeError("the reference failed: " + said.read_text()[-500:])
        return tree(self.disk)

    def trace(self):
        """Yields each step of the reference with the tree after it; nothing without --trace."""
        aside, contents = self.aside("disk"), {}
        path = aside / "trace"
        lines = path.read_text().splitlines() if path.exists() else []
        for line in map(json.loads, lines):
            for entry in line["tree"].values():
                apart = aside / ("data-" + entry.get("sha", ""))
                if "data" not in entry and "sha" in entry and apart.exists():
                    if entry["sha"] not in contents:
                        contents[entry["sha"]] = apart.read_bytes().decode("latin-1")
                    entry["data"] = contents[entry["sha"]]
            yield line["step"], line["tree"]

    def meet(self, run, marker):
        """Waits until the worker below `run` is at `marker`; returns the pids that it reports."""
        path = self.aside("cairn") / marker
        wait_until(lambda: path.exists() or run.poll() is not None, MEET_LIMIT_S,
                   f"the worker did not reach {marker}")
        if not path.exists():
            result = self.finish(run)
            raise Failed(f"the worker ended before {marker} ({result.code}): {self.blame()}")
        return json.loads(path.read_text())

    def blame(self):
        """The error of a Python program in the run's output, else Cairn's first lines."""
        lines = (self.scratch / "said").read_text(errors="replace").splitlines()
        errors = [line for line in lines if "Error" in line]
        return (errors[-1] if errors else " / ".join(lines) or "nothing said")[:300]

    def go_on(self, marker):
        (self.aside("cairn") / (marker + ".go")).touch()

    def await_outside(self, *names):
        """Gives the agent time to drain `names`; returns whether they arrived."""
        try:
            wait_until(lambda: all(os.path.lexists(self.out / name) for name in names),
                       ARRIVE_LIMIT_S, "")
        except Failed:
            return False
        return True

    def report(self, name):
        return json.loads((self.aside("cairn") / name).read_text())


def lose_memory(box):
    """Simulates a crash of the node: kills all processes and removes the store's memory."""
    box.kill_all()
    unmount_below(box.root)
    for store in box.root.glob(f"*/{JOB}"):
        shutil.rmtree(store)


def unmount_below(folder):
    """Unmounts huge-page memory. As root Cairn mounts it in a store; a killed run leaves it mounted.

    The unmount is lazy, because a process that was just killed may not have freed its memory yet.
    """
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        place = line.split()[1]
        if place.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", place], check=False)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# Comparisons.

def delivered(folder):
    """The user's files below a persist directory, without Cairn's own."""
    return {path: entry for path, entry in tree(folder).items() if not is_cairns(path)}


def is_cairns(path):
    top, last = path.split("/")[0], os.path.basename(path)
    return (top.startswith(("cairn-manifest.", ".cairn", "cairn-whole.", "cairn-before."))
            or (last.startswith(".") and "cairn-" in last))


def differences(want, got, keys=("kind", "mode", "size", "sha", "target", "xattrs")):
    """Differences of `got` from `want`, as a list of (path, difference)."""
    found = []
    for path in sorted(want.keys() | got.keys()):
        if path not in got:
            found.append((path, "missing"))
        elif path not in want:
            found.append((path, "not the program's"))
        else:
            for key in keys:
                if want[path].get(key) != got[path].get(key):
                    found.append((path, difference(key, want[path].get(key), got[path].get(key))))
                    break
    return found


def difference(key, want, got):
    return "other bytes" if key == "sha" else f"{key} {got!s:.24} instead of {want!s:.24}"


def told(found, most=3):
    text = "; ".join(f"{path!r:.60}: {how}" for path, how in found[:most])
    return text + (f" and {len(found) - most} more" if len(found) > most else "")


def same(want, got, what, keys=None):
    """Raises Failed unless the trees are the same."""
    found = differences(want, got, keys) if keys else differences(want, got)
    if found:
        raise Failed(f"{what}: {told(found)}")


def expect(condition, what):
    if not condition:
        raise Failed(what)


def check_success(box, result, want, seen=None, may_keep=False):
    """Contract 1: all is outside; or, if `may_keep`, exit code 75, a kept store, and missing files named.

    `seen` is the store's own tree at the end, for the times. Returns whether the store was kept.
    """
    if result.code == 75 and may_keep:
        check_kept(box, result, want)
        return True
    expect(result.code == 0, f"the run ended with {result.code}: {box.blame()}")
    same(want, delivered(box.out), "outside after exit code 0")
    if seen:
        times = {path: entry for path, entry in seen.items() if path in want}
        same(times, delivered(box.out), "times outside", keys=("mtime",))
    return False


def check_kept(box, result, want):
    missing = [path for path, _ in differences(want, delivered(box.out)) if path in want]
    unnamed = [path for path in missing if path not in result.said]
    expect(missing, f"exit code 75 although all is outside: {result.last_line()}")
    expect(not unnamed, f"exit code 75 does not name {unnamed[:3]}")
    expect(box.store_is_kept(), f"exit code 75, but no store; missing: {missing[:3]}")


def check_drain(box, want, same_tree=same):
    """Contract 4: a drain of a kept store puts all in place, as the disk has it; then rm works."""
    expect(box.store_is_kept(), "the store was not kept")
    result = box.cairn("drain", JOB)
    expect(result.code == 0, f"drain ended with {result.code}: {result.last_line()}")
    same_tree(want, delivered(box.out), "drained")
    result = box.cairn("rm", JOB)
    expect(result.code == 0, f"rm after drain ended with {result.code}: {result.last_line()}")
    same_tree(want, delivered(box.out), "outside after rm")
