"""The course of a test of a whole tree: a run that succeeds or is killed, and a store staged anew.

`register` makes the two decorators that enter a test: its tiers, and whether `--small` has it.
"""

from harness import check_success, delivered, expect, same

WITH_TIMES = ("kind", "mode", "size", "sha", "target", "xattrs", "mtime")


def register(room):
    """A decorator for the tests of `room`, and the function that gives (name, function, tier)."""
    entered = []

    def enter(small=True, tiers=("ram", "file")):
        return lambda function: entered.append((function, small, tiers)) or function

    def tests(small_only):
        """A small selection has each cheap test on its first tier."""
        return [(f"{room}/{function.__name__}/{tier}", function, tier)
                for function, small, tiers in entered if small or not small_only
                for tier in (tiers[:1] if small_only else tiers)]

    return enter, tests


def start(box, steps, *options, outside={}):
    """Starts the worker; at each meeting `outside` names what is to arrive before it goes on."""
    box.plan(steps)
    run = box.start(box.worker(), *options)
    for marker, names in outside.items():
        box.meet(run, marker)
        box.await_outside(*names)
        box.go_on(marker)
    return run


def succeed(box, steps, *options, outside={}, may_keep=False, without=lambda path: False):
    """A run that succeeds; what the disk has is outside, but for `without`. Gives that tree."""
    result = box.finish(start(box, [*steps, ["look", "done"]], *options, outside=outside))
    expect((box.aside("cairn") / "done").exists(), f"the worker failed: {box.blame()}")
    want = box.on_disk()
    same(want, box.report("done"), "in the store at the end")
    want = {path: entry for path, entry in want.items() if not without(path)}
    check_success(box, result, want, box.report("done"), may_keep=may_keep)
    return want


def crash(box, steps, *options, outside={}, agent=False):
    """Carries out `steps`, kills run and worker, and the `agent` too; gives the disk's tree."""
    run = start(box, [*steps, ["meet", "ready"]], *options, outside=outside)
    box.meet(run, "ready")
    if agent:
        box.kill(box.agents())
    kill_run(box, run)
    return box.on_disk()


def kill_run(box, run):
    """Kills `cairn run` and what it started, but no agent."""
    agents = box.agents()
    box.kill([run.pid, *(pid for pid in box.processes() if pid not in (*agents, run.pid))])
    # Processes that were just being started were not in the list.
    while late := [pid for pid in box.processes() if pid not in box.agents()]:
        box.kill(late)
    run.wait()


def stage(box, want, *options):
    """Fills a new store from outside: it has all, with the times that are outside."""
    times = {path: entry for path, entry in delivered(box.out).items() if path in want}
    box.plan([["look", "staged"]])
    result = box.run(box.worker(), *(options or ["--stage"]))
    expect((box.aside("cairn") / "staged").exists(), f"no staged run: {box.blame()}")
    same(want, box.report("staged"), "in the store that was staged")
    same(times, box.report("staged"), "times in the staged store", keys=WITH_TIMES)
    check_success(box, result, want)
