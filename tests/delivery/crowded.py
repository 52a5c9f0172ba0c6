"""A store full of small files, which share blocks: the drained files are those in the notes of crowd.py.

One seed decides the operations, the moment of the kill, and whether the agent is killed, too. A killed
run is resumed and ends; or its store is drained.
"""

import random
import sys

from course import kill_run
from crowd import WRITERS, states
from harness import HERE, JOB, Failed, delivered, expect, told, wait_until

FILES = 400  # Of each of two writers: some 6 MiB of data in all.
NOTED_LIMIT_S = 60


def test(box, seed):
    dice = random.Random(seed)
    block = dice.choice([[], [], ["--block-size", "4K"], ["--block-size", "16K"]])
    box.tier = f"ram:{dice.choice([7, 8, 10])}M"
    notes = box.aside("cairn")
    command = [sys.executable, HERE / "crowd.py", "/cairn", notes, seed, FILES]
    if dice.random() < 0.3:
        result = box.run(command, *block)
        expect(result.code == 0, f"the run ended with {result.code}: {box.blame()}")
        check(delivered(box.out), noted(notes), "outside after exit code 0")
        return
    run = box.start(command, *block)
    wanted = dice.randrange(50, 2 * FILES * WRITERS)
    wait_until(lambda: lines(notes) >= wanted or run.poll() is not None, NOTED_LIMIT_S,
               f"{wanted} changes were not reached")
    if dice.random() < 0.3:
        box.kill(box.agents())
    kill_run(box, run)
    if not box.store_is_kept():
        expect(run.returncode == 0, "the store was not kept")  # It was over before.
        check(delivered(box.out), noted(notes), "outside after exit code 0")
        return
    if dice.random() < 0.5:
        for number in range(WRITERS):
            (notes / f"notes.{number}").rename(notes / f"earlier.{number}")
        result = box.run([*command, "earlier"], *block, "--resume", "as-is")
        expect(result.code == 0, f"the second run ended with {result.code}: {box.blame()}")
        check(delivered(box.out), noted(notes), "outside after a second run")
        return
    result = box.cairn("drain", JOB)
    expect(result.code == 0, f"drain ended with {result.code}: {result.last_line()}")
    want = noted(notes)
    check(delivered(box.out), want, "drained")


def lines(notes):
    return sum(path.read_bytes().count(b"\n") for path in notes.glob("notes.*"))


def noted(notes):
    found = {}
    for number in range(WRITERS):
        path = notes / f"notes.{number}"
        if path.exists():
            found |= {f"{number}/{name}": what for name, what in states(path).items()}
    return found


def check(got, want, what):
    """Fails unless each file has its last noted digest; a file under change may have any content."""
    wrong = []
    for path in sorted(want.keys() | {path for path in got if path.count("/") == 1}):
        digest, entry = want.get(path, "-"), got.get(path)
        found = entry["sha"] if entry and entry["kind"] == "file" else "-"
        if digest != found and digest != "?" and not path.endswith("/new"):
            wrong.append((path, f"{found:.8} instead of {digest:.8}"))
    if wrong:
        raise Failed(f"{what}: {told(wrong)}")
