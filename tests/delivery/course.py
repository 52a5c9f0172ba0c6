"""The course of a test of a whole tree: a run that succeeds or is killed, and a store staged anew.

`register` makes the decorator that registers a test with its tiers and whether `--small` has it.
"""

from harness import check_success, delivered, expect, same

WITH_TIMES = ("kind", "mode", "size", "sha", "target", "xattrs", "mtime")


def register(room):
    """Returns a decorator for the tests of `room`, and a function that lists (name, function, tier)."""
    entered = []

    def enter(small=True, tiers=("ram", "file")):
        return lambda function: entered.append((function, small, tiers)) or function

    def tests(small_only):
        """Returns the tests; a small selection has each cheap test on its first tier."""
        return [(f"{room}/{function.__name__}/{tier}", function, tier)
                for function, small, tiers in entered if small or not small_only
                for tier in (tiers[:1] if small_only else tiers)]

    return enter, tests


def start(box, steps, *options, outside={}):
    """Starts the worker. At each meeting it waits for the files that `outside` names to be drained."""
    box.plan(steps)
    run = box.start(box.worker(), *options)
    for marker, names in outside.items():
        box.meet(run, marker)
        box.await_outside(*names)
        box.go_on(marker)
    return run


def succeed(box, steps, *options, outside={}, may_keep=False, without=lambda path: False):
    """Does a run that succeeds, and checks that the disk's tree, less `without`, is outside. Returns it."""
    result = box.finish(start(box, [*steps, ["look", "done"]], *options, outside=outside))
    expect((box.aside("cairn") / "done").exists(), f"the worker failed: {box.blame()}")
    want = box.on_disk()
    same(want, box.report("done"), "in the store at the end")
    want = {path: entry for path, entry in want.items() if not without(path)}
    check_success(box, result, want, box.report("done"), may_keep=may_keep)
    return want


def crash(box, steps, *options, outside={}, agent=False):
    """Does `steps`, then kills run, worker and, on request, the `agent`. Returns the disk's tree."""
    run = start(box, [*steps, ["meet", "ready"]], *options, outside=outside)
    box.meet(run, "ready")
    if agent:
        box.kill(box.agents())
    kill_run(box, run)
    return box.on_disk()


def kill_run(box, run):
    """Kills `cairn run` and its processes, except agents."""
    agents = box.agents()
    box.kill([run.pid, *(pid for pid in box.processes() if pid not in (*agents, run.pid))])
    # Processes that were just being started were not in the list.
    while late := [pid for pid in box.processes() if pid not in box.agents()]:
        box.kill(late)
    run.wait()


def stage(box, want, *options):
    """Stages a new store, and checks that it has all files, with their times outside."""
    times = {path: entry for path, entry in delivered(box.out).items() if path in want}
    box.plan([["look", "staged"]])
    result = box.run(box.worker(), *(options or ["--stage"]))
    expect((box.aside("cairn") / "staged").exists(), f"no staged run: {box.blame()}")
    same(want, box.report("staged"), "in the store that was staged")
    same(times, box.report("staged"), "times in the staged store", keys=WITH_TIMES)
    check_success(box, result, want)
