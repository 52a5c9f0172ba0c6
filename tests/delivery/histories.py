"""Random histories: three processes do random file operations in lockstep, and some are killed.

One seed decides all: the operations, the deaths of single processes, and the end of the run. The run
succeeds (calm: no process died), is killed between two steps, or is killed at any moment. The
expected result is that of the same history on a plain directory. After a kill at any moment it is the
tree before or after the step that was under way.
"""

import json
import random

from course import kill_run
from harness import Failed, check_drain, check_success, expect, same, wait_until
from matrix import between

STEPS = 60
NAMES = ["a", "b", "step.1", "step.2", "latest", "d/a", "d/step.1", "d/log", "e/a", "e/b"]
FOLDERS = ["d", "e", "d/f", "g"]
STEP_LIMIT_S = 30  # A step takes ms; the first one also starts a process.


def test(box, seed):
    dice = random.Random(seed)
    end = dice.choice(["calm", "well", "killed", "any moment"])
    steps = history(dice, end)
    if end == "any moment":
        killed_at_any_moment(box, dice, steps)
        return
    box.plan(steps)
    run = box.start(box.worker())
    if end == "killed":
        box.meet(run, "ready")
        kill(box, dice, run)
        want = box.on_disk()
        same_answers(box)
        check_drain(box, want)
        return
    result = box.finish(run)
    want = box.on_disk()
    same_answers(box)
    done = box.aside("cairn") / "done"
    expect(done.exists(), f"the history was not carried out ({result.code}): {box.blame()}")
    same(want, box.report("done"), "in the store at the end")
    died = any(step[0] == "die" for step in steps)
    if check_success(box, result, want, box.report("done"), may_keep=died):
        check_drain(box, want)


def kill(box, dice, run):
    if dice.random() < 0.5:
        box.kill(box.agents())
    kill_run(box, run)


def killed_at_any_moment(box, dice, steps):
    box.plan(steps)
    run = box.start(box.worker())
    wanted = dice.randrange(5, STEPS)
    journal = box.aside("cairn") / "journal"
    wait_until(lambda: lines(journal) >= 2 * wanted or run.poll() is not None, STEP_LIMIT_S,
               f"step {wanted} was not reached")
    kill(box, dice, run)
    events = journal.read_text().splitlines()[:-1] if journal.exists() else []
    answered = sum(json.loads(event)[0] == "end" for event in events)
    box.on_disk(trace=True)
    same_answers(box)
    trees = [tree for step, tree in box.trace() if step[0] in ("on", "die", "mkdirs")]
    first = len(FOLDERS) + answered - 1  # Trees follow the folders' steps and each answered step.
    states = trees[first:first + 3]
    check_drain(box, states[-1], lambda _, got, what: between(states, got, what))


def lines(path):
    return path.read_text().count("\n") if path.exists() else 0


def same_answers(box):
    """Fails unless each operation had the same result as on the disk; else trees are not comparable."""
    cairn, disk = ((box.aside(side) / "journal").read_text().splitlines()
                   for side in ("cairn", "disk"))
    for number, (ours, disks) in enumerate(zip(cairn, disk)):
        if ours != disks:
            raise Failed(f"answer {number} {ours}, on a disk {disks}: after {disk[number - 1]}")


def history(dice, end):
    steps = [["mkdirs", folder] for folder in FOLDERS]
    last = dice.randrange(STEPS // 3, STEPS) if end == "killed" else STEPS
    for number in range(last):
        if end != "calm" and dice.random() < 0.05:
            steps.append(["die", dice.randrange(3)])
        else:
            steps.append(["on", dice.randrange(3), operation(dice, number)])
    if end in ("calm", "well"):
        return [*steps, ["finish"], ["look", "done"]]
    return [*steps, ["meet", "ready"]]


def operation(dice, number, places=(0, 5, 4096, 33000), sizes=(0, 10, 50000)):
    file, name, other = dice.choice("xy"), dice.choice(NAMES), dice.choice(NAMES)
    length, place = dice.choice([0, 7, 900, 40000]), dice.choice(places)
    return dice.choice([
        ["open", file, name, dice.choice(["w", "r+", "a", "c", "x"])],
        ["open", file, name, dice.choice(["w", "r+", "a", "c", "x"])],
        ["open", file, name, "c"],
        ["write", file, number, length],
        ["write", file, number, length],
        ["write", file, number, length],
        ["pwrite", file, place, number, length],
        ["cut", file, dice.choice(sizes)],
        ["fsync", file],
        ["close", file],
        ["close", file],
        ["put", name, number, length, dice.choice([0o644, 0o600, 0o444])],
        ["put", name, number, length],
        ["truncate", name, dice.choice(sizes)],
        ["unlink", name],
        ["rename", name, other],
        ["rename", name, other],
        ["rename", dice.choice(FOLDERS), dice.choice(FOLDERS)],
        ["link", name, other],
        ["symlink", other, name],
        ["mkdirs", dice.choice(FOLDERS)],
        ["rmdir", dice.choice(FOLDERS)],
        ["chmod", name, dice.choice([0o600, 0o755, 0o444])],
        ["utime", name, number * 1_000_000_007],
        ["xattr", name, "note", str(number)],
    ])
