"""Random histories of a node that is lost: what is outside is of one moment.

Three processes do random file operations in lockstep (histories.py). While all of them stand still,
a drain is requested: it leaves exactly the tree of that moment. Then they go on, and another drain is
requested. At a random moment every process is killed, including the agent in the middle of the
drain, and the memory is lost. A staged store then has the tree of the last drain, or of one that was
under way. The latter may have a part of the step that was under way, and no later step. A file that was
being written then may have a version that it had before; what was written is set aside.
"""

import random
import subprocess
import time

from course import WITH_TIMES
from harness import Failed, delivered, expect, lose_memory, same
from histories import FOLDERS, NAMES, STEPS, operation, same_answers
from matrix import between

DRAINS = 4  # Two copies of a large file take turns; both have been used then, and both again.
# Of larger files only what changed since the copy is copied.
LARGE = 600_000
PLACES = (0, 5, 4096, 33_000, 290_000, 400_000, LARGE - 10)
SIZES = (0, 10, 350_000, LARGE - 7, LARGE + 9000)
WITHOUT_TIMES = tuple(key for key in WITH_TIMES if key != "mtime")
ASIDE = ".cairn-damaged"
PAUSE_MAX_S = 0.4  # About what a drain of these few files takes, with its command.


def test(box, seed):
    dice = random.Random(seed)
    box.plan(history(dice))
    run = box.start(box.worker())
    for number in range(DRAINS):
        box.meet(run, f"await-{number}")
        result = box.cairn("drain", "job")
        expect(result.code == 0, f"drain {number} ended with {result.code}: {result.last_line()}")
        box.go_on(f"await-{number}")
    lose(box, dice)
    run.wait()
    box.on_disk(trace=True)
    same_answers(box)
    trace = list(box.trace())
    trees = states(trace)
    box.plan([["look", "staged"]])
    result = box.run(box.worker(), "--stage")
    expect((box.aside("cairn") / "staged").exists(), f"no staged run: {box.blame()}")
    expect(result.code == 0, f"the staged run ended with {result.code}: {box.blame()}")
    staged = box.report("staged")
    came = put_back(trace, staged)
    # An exchange changes the times of the directory.
    is_of_the_past(trees, came, WITH_TIMES if came == staged else WITHOUT_TIMES)
    outside = delivered(box.out)
    staged = {path: entry for path, entry in staged.items() if not path.startswith(ASIDE)}
    same(staged, {path: outside[path] for path in staged if path in outside}, "outside at the end")


def history(dice):
    steps = [["mkdirs", folder] for folder in FOLDERS]
    steps += [["on", 0, ["put", name, number, LARGE]] for number, name in enumerate(NAMES[:6])]
    for drain in range(DRAINS + 1):
        for number in range(STEPS // 3):
            step = operation(dice, drain * STEPS + number, PLACES, SIZES)
            steps.append(["on", dice.randrange(3), step])
        if drain < DRAINS:
            steps.append(["meet", f"await-{drain}"])
    return [*steps, ["meet", "ready"]]


def lose(box, dice):
    """Loses the node while a drain is under way."""
    command = [str(box.binaries / "cairn"), "drain", "job"]
    with open(box.scratch / "said-drain", "wb") as said:
        drain = subprocess.Popen(command, env=box.environment(), cwd=box.scratch, stdout=said,
                                 stdin=subprocess.DEVNULL, stderr=said)
    time.sleep(dice.random() * PAUSE_MAX_S)
    lose_memory(box)
    drain.wait()


def states(trace):
    """Steps since the last drain requested while all stood still, with their trees, oldest first."""
    last = [step for step, _ in trace].index(["meet", f"await-{DRAINS - 1}"])
    return trace[last:]


def put_back(trace, staged):
    """The tree as it came, before files were exchanged for versions that they had earlier."""
    came = {path: entry for path, entry in staged.items() if not path.startswith(ASIDE)}
    for path, entry in staged.items():
        name = path.removeprefix(ASIDE + "/")
        if name == path or entry["kind"] != "file":
            continue
        earlier = {tree[name].get("sha") for _, tree in trace if name in tree}
        expect(came[name].get("sha") in earlier, f"{name} was exchanged for what it never was")
        came[name] = entry
    return came


def is_of_the_past(states, staged, keys):
    """Fails unless `staged` is the first tree, or lies between two successive trees."""
    first = states[0][1]
    try:
        same(first, staged, "the drain of the moment in which all stood still", keys)
        return
    except Failed as error:
        exact = error
    for (_, before), (step, after) in zip(states, states[1:]):
        try:
            between(parts(before, step, after), staged, "the drain that was under way")
            return
        except Failed:
            continue
    raise Failed(f"neither a drain of one moment that was under way, nor {exact}")


def parts(before, step, after):
    """States between which `step` may stop: `put` truncates a file to zero before it writes it."""
    if "put" not in step[-1]:
        return [before, after]
    emptied = dict(before)
    for path in after:
        if before.get(path) != after[path] and after[path]["kind"] == "file":
            emptied[path] = {**after[path], "data": ""}
    return [before, emptied, after]
