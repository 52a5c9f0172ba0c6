"""The matrix: how a file is open, whether it was synced, the blow that stops the run, and what follows.

A test is a run that a blow stops while `run/traj.dat` is open, and what follows. The same worker does
the same steps on a plain directory, is killed at the same step, and continues in the same way. In
every second test the first state of the file is drained before the file is opened again.
"""

import itertools
import os
import random
import signal
import zlib
from collections import namedtuple

from course import kill_run
from harness import Failed, check_drain, check_success, expect, lose_memory, same, told

AXES = {
    "how": ["create", "trunc0", "truncN", "overwrite", "append", "mmap", "tmpfile", "replace",
            "inherit"],
    "sync": ["synced", "unsynced"],
    "blow": ["writer", "command", "run", "term", "memory"],
    "agent": ["lives", "killed"],
    "then": ["drain", "finish", "ends", "leave", "rename-over", "remove"],
    "tier": ["ram", "file"],
}
Case = namedtuple("Case", AXES)
BASE = ["put", "run/traj.dat", 1, 70000, 0o640]
# Otherwise a torn file may be exchanged for its last whole version, as no disk does.
AS_IS = ("--resume", "as-is")
PHASES = {"trunc0", "truncN", "overwrite", "append", "mmap", "replace"}  # These begin with BASE.


def cases():
    for values in itertools.product(*AXES.values()):
        case = Case(*values)
        if case.blow != "memory" or (case.agent == "killed" and case.tier == "file"):
            yield case


def name(case):
    return "/".join(case)


def small(seed):
    """A small set of cases that covers every pair of values of two axes: greedy, ties by `seed`."""
    left = list(cases())
    random.Random(seed).shuffle(left)
    pairs = {case: set(itertools.combinations(enumerate(case), 2)) for case in left}
    missing = set().union(*pairs.values())
    while missing:
        best = max(left, key=lambda case: len(pairs[case] & missing))
        missing -= pairs[best]
        yield best


def opening(case):
    """The steps of the first run up to the blow, which falls at `ready`."""
    begin = [["mkdir", "run"], ["put", "run/kept.dat", 9, 3000]]
    if case.how in PHASES:
        begin += [BASE]
        if zlib.crc32(name(case).encode()) & 1:
            begin += [["meet", "await-base"]]
    if case.how == "replace":
        begin += [["put", "run/conf.dat", 2, 500]]
    begin += [["durable"]]
    sync = [["fsync", "f"], ["durable"]] if case.sync == "synced" else []
    ready = [["meet", "ready"]]
    write_a, write_b = ["write", "f", 3, 50000], ["write", "f", 4, 20000]
    return begin + {
        "create": [["open", "f", "run/traj.dat", "x"], write_a, *sync, write_b, *ready],
        "trunc0": [["open", "f", "run/traj.dat", "w"], write_a, *sync, write_b, *ready],
        "truncN": [["open", "f", "run/traj.dat", "r+"], ["cut", "f", 100], ["end", "f"], write_a,
                   *sync, write_b, *ready],
        "overwrite": [["open", "f", "run/traj.dat", "r+"], ["pwrite", "f", 10000, 3, 20000], *sync,
                      ["pwrite", "f", 35000, 4, 5000], *ready],
        "append": [["open", "f", "run/traj.dat", "a"], write_a, *sync, write_b, *ready],
        "mmap": [["open", "f", "run/traj.dat", "r+"], ["cut", "f", 80000], ["map", "f", 80000],
                 ["store", "f", 5000, 3, 10000],
                 *([["msync", "f"], ["durable"]] if sync else []),
                 ["store", "f", 60000, 4, 10000], *ready],
        "tmpfile": [["tmpfile", "f", "run"], write_a, ["linkat", "f", "run/traj.dat"], *sync,
                    write_b, *ready],
        "replace": [["open", "f", "run/traj.dat.tmp", "x"], write_a,
                    ["rename", "run/traj.dat.tmp", "run/traj.dat"], *sync, write_b,
                    ["open", "g", "run/conf.dat.tmp", "x"], ["write", "g", 5, 700], *ready],
        "inherit": [["open", "f", "run/traj.dat", "x"], write_a,
                    ["fork", [*sync, write_b, *ready]]],
    }[case.how]


def closing(case):
    """The steps of the second run."""
    go_on = [["open", "f", "run/traj.dat", "c"], ["end", "f"], ["write", "f", 6, 5000]]
    if case.how == "append":
        go_on = [["open", "f", "run/traj.dat", "a"], ["write", "f", 6, 5000]]
    if case.how == "mmap":
        go_on = [["open", "f", "run/traj.dat", "r+"], ["map", "f", 70000],
                 ["store", "f", 20000, 6, 5000], ["unmap", "f"]]
    conf = [["put", "run/conf.dat.tmp", 7, 800], ["rename", "run/conf.dat.tmp", "run/conf.dat"]]
    steps = {
        "drain": [["exit", 3]],
        "leave": [],
        "finish": go_on + [["fsync", "f"], ["close", "f"]],
        "ends": go_on,
        "rename-over": [["put", "run/traj.dat.new", 8, 60000],
                     ["rename", "run/traj.dat.new", "run/traj.dat"]],
        "remove": [["remove", "run/traj.dat"]],
    }[case.then]
    if case.how == "replace" and case.then not in ("drain", "leave"):
        steps += [["remove", "run/conf.dat.tmp"]] if case.then == "remove" else conf
    return [["look", "begun"], *steps, ["look", "done"]]


def test(box, case):
    before = first_run(box, case)
    if case.blow == "memory":
        after_memory_loss(box, case, before)
    elif case.then == "drain":
        if before.kept:
            check_drain(box, before.want)
    else:
        second_run(box, case, before)


Before = namedtuple("Before", "want states kept")


def first_run(box, case):
    """Runs up to the blow and past it; returns the disk's tree and whether the store was kept."""
    box.plan(opening(case))
    command = box.worker()
    if case.blow == "writer":
        command = ["bash", "-c", " ".join(command) + "; exit 0"]
    run = box.start(command)
    if ["meet", "await-base"] in opening(case):
        box.meet(run, "await-base")
        box.await_outside("run/traj.dat")
        box.go_on("await-base")
    writers = box.meet(run, "ready")
    blow(box, case, run, writers)
    want = box.on_disk(trace=case.blow == "memory")
    states = list(box.trace())
    if case.blow in ("run", "memory"):
        run.wait()
        return Before(want, states, True)
    result = box.finish(run)
    if case.blow == "writer":
        return Before(want, states, check_success(box, result, want, may_keep=True))
    expect(result.code not in (0, 75), f"exit code {result.code} though the command was killed")
    return Before(want, states, True)


def blow(box, case, run, writers):
    if case.agent == "killed":
        agents = box.agents()
        expect(agents or case.blow == "run", "no agent found to kill")
        for pid in agents:
            os.kill(pid, signal.SIGKILL)
    if case.blow in ("writer", "command"):
        box.kill(writers)
    elif case.blow == "term":
        os.kill(run.pid, signal.SIGTERM)
        box.kill(writers, signal.SIGTERM)
    elif case.blow == "run":
        kill_run(box, run)
    else:
        lose_memory(box)


def second_run(box, case, before):
    box.plan(closing(case))
    command = box.worker()
    if case.blow == "writer":
        command = ["bash", "-c", " ".join(command) + "; exit 0"]
    result = box.run(command, *AS_IS, *([] if before.kept else ["--stage"]))
    expect((box.aside("cairn") / "begun").exists(), f"no second run ({result.code}): {box.blame()}")
    same(before.want, box.report("begun"), "what the second run found")
    expect((box.aside("cairn") / "done").exists(), f"the second run failed: {box.blame()}")
    want = box.on_disk()
    same(want, box.report("done"), "in the store at the end")
    # A file mapped for writing until the process ends has the time of that end.
    seen = box.report("done") if case.how != "mmap" else None
    if check_success(box, result, want, seen, may_keep=case.then == "leave"):
        check_drain(box, want)


def after_memory_loss(box, case, before):
    """Checks that the recovered tree lies between the durable and the written state, then the rest."""
    box.plan(closing(case))
    result = box.run(box.worker(), *AS_IS)
    expect((box.aside("cairn") / "begun").exists(), f"no recovery ({result.code}): {box.blame()}")
    durable = max(index for index, (step, _) in enumerate(before.states) if step == ["durable"])
    between([tree for _, tree in before.states[durable:]], box.report("begun"), "recovered")
    if case.then == "drain":
        expect(result.code == 3, f"the recovering run ended with {result.code}: {box.blame()}")
        check_drain(box, box.report("begun"))
        return
    expect((box.aside("cairn") / "done").exists(), f"the recovering run failed: {box.blame()}")
    done = box.report("done")
    if check_success(box, result, done, done, may_keep=case.then == "leave"):
        check_drain(box, done)


def between(states, got, what):
    """Raises Failed unless each path is as in one of `states`, or a mix that a disk may show."""
    found = []
    for path in sorted(set(got).union(*states)):
        entries = [state.get(path) for state in states]
        if path not in got:
            if None not in entries:
                found.append((path, "missing"))
        elif not (known := [entry for entry in entries if entry]):
            found.append((path, "never there"))
        elif not (known := [entry for entry in known if entry["kind"] == got[path]["kind"]]):
            found.append((path, f"{got[path]['kind']} {got[path].get('why', '')}"))
        elif got[path]["kind"] == "file" and (how := not_between(known, got[path]["data"])):
            found.append((path, how))
    if found:
        raise Failed(f"{what}: {told(found)}")


def not_between(entries, data):
    """Returns None if a disk may hold `data` between the states `entries`, else the difference."""
    versions = [entry["data"] for entry in entries]
    shortest, longest = min(map(len, versions)), max(map(len, versions))
    if not shortest <= len(data) <= longest:
        return f"length {len(data)}, not {shortest}..{longest}"
    for place, byte in enumerate(data):
        values = {version[place] for version in versions if place < len(version)}
        if byte not in values and not (byte == "\0" and place >= shortest):
            return f"byte {place} of {len(data)} is none that was written there"
    return None
