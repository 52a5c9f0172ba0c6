"""Applications that are killed, or whose node is lost, end with the results of an undisturbed run.

Names are programs/APPLICATION_killed/TIER and programs/APPLICATION_lost/TIER. `killed`: program and
`cairn run` are killed at random moments, and the same command resumes in the kept store. Nothing
that the program knew to be written may be missing. `lost`: the node is lost some time after images
of the store were taken, and the program resumes elsewhere from the newest image. It finds the state
of that image, and nothing later. In the end the persist directory holds what the same program
(applications.py), undisturbed, leaves on a disk. The seed decides the moments.
"""

import itertools
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

from course import kill_run
from foreign import git_shown, redis_shown, rocksdb_shown
from harness import HERE, JOB, Failed, Skipped, delivered, expect, lose_memory, same, wait_until

SYSTEM_PYTHON = "/usr/bin/python3"  # The distribution's packages are for its own Python.
STEP_LIMIT_S = 60  # Import of PyTorch, and a step of the slowest program, on a busy machine.
CUT_LIMIT_S = 30  # Two images of some hundred KiB, asked for every second.
PROGRAM_LIMIT_S = 120  # The longest program takes 20 s by itself.
CLOCK_S = 0.02  # The file system's clock may be a tick behind.

# `every`: steps between checkpoints; `pause`: seconds per step while the node is to be lost;
# `small`: the program's test in `--small`; `views`: what is compared of a file or directory instead
# of its bytes; `owes`: a kill must lose no checkpoint (false where a file written in place is the
# only copy).
Program = namedtuple("Program", "name steps every pause small needs views owes",
                     defaults=[{}, True])


def program_of_python(name, **more):
    return Program(name, steps=400, every=more.pop("every", 5), pause=0.04,
                   small=more.pop("small", ""), needs=more.pop("needs", []), **more)


def sqlite_rows(path):
    base = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    expect(base.execute("PRAGMA integrity_check").fetchone()[0] == "ok", f"{path.name} is damaged")
    return base.execute("SELECT * FROM row, last ORDER BY row.step").fetchall()


def hdf5_rows(path):
    show = "import h5py, sys; print(list(h5py.File(sys.argv[1], 'r')['state']))"
    return subprocess.run([SYSTEM_PYTHON, "-c", show, path], capture_output=True,
                          check=True).stdout


def only_there(_):
    """View of a file that contains times of day or paths: only its existence is compared."""


PROGRAMS = [
    program_of_python("sqlite_rollback", every=1, small="killed", views={"rows.db": sqlite_rows}),
    program_of_python("sqlite_wal", every=1, small="lost", views={"rows.db": sqlite_rows}),
    program_of_python("trainer", small="killed"),
    program_of_python("tensorflow"),
    program_of_python("namd", small="lost"),
    program_of_python("lightning", owes=False),
    program_of_python("hdf5", needs=["h5py", "h5clear"], views={"run.h5": hdf5_rows}),
    program_of_python("netcdf", every=1, needs=["netCDF4"]),
    program_of_python("torch", needs=["torch"]),
    Program("lammps_one", 8000, 100, 0, "", ["lmp"], owes=False),
    Program("lammps_two", 8000, 100, 0, "", ["lmp"]),
    Program("gromacs", 16000, 1600, 0, "", ["gmx"],
            dict.fromkeys(["md.log", "md.cpt", "md_prev.cpt"], only_there)),
    *(Program(name, 400, 5, 0.04, "", [need]) for name, need in
      [("node", "node"), ("java", "java"), ("r", "Rscript"), ("octave", "octave-cli"), ("fortran", "gfortran")]),
    Program("redis_appends", 1000, 1, 0.01, "", ["redis-server"], {"appendonlydir": redis_shown}),
    Program("git", 200, 1, 0.04, "killed", ["git"], {"repository": git_shown}),
    Program("rocksdb", 200, 1, 0.04, "", ["ldb"], {"base": rocksdb_shown}),
]


def tests(small_only, seed):
    """Lists (name, function, tier), as `register` of course.py does."""
    for program, (blow, tier) in itertools.product(PROGRAMS, BLOWS):
        if not small_only or (tier == "ram" and program.small == blow.__name__):
            name = f"programs/{program.name}_{blow.__name__}/{tier}"
            yield name, test(program, blow, f"{name} {seed}", small_only), tier


def test(program, blow, seed, short):
    def carry_out(box):
        check_needs(program)
        try:
            return blow(box, program, random.Random(seed), short)
        except Failed as error:
            said = f"starts found {starts(journal(box))}, seed {seed!r}"
            raise Failed(f"{error} ({said})") from None

    return carry_out


def check_needs(program):
    for need in program.needs:
        there = shutil.which(need)
        if not there and os.path.exists(SYSTEM_PYTHON):
            asked = [SYSTEM_PYTHON, "-c", f"import {need}"]
            there = subprocess.run(asked, capture_output=True).returncode == 0
        if not there:
            raise Skipped(f"{need} is not installed")


# The program on either side.

def command(box, program, side="cairn"):
    modules = [need for need in program.needs if not shutil.which(need)]
    root = "/cairn" if side == "cairn" else box.disk
    return [SYSTEM_PYTHON if modules else sys.executable, HERE / "applications.py", program.name,
            root, box.aside(side), program.steps]


def undisturbed(box, program):
    """Result of an undisturbed run of the program on a disk."""
    pause(box, "disk", 0)
    line = list(map(str, command(box, program, "disk")))
    done = subprocess.run(line, env=box.environment(), capture_output=True, text=True,
                          cwd=box.scratch, timeout=PROGRAM_LIMIT_S)
    if done.returncode:
        raise RuntimeError("the reference failed: " + done.stderr[-500:])
    return result(box.disk, program)


def result(folder, program):
    found = delivered(folder)
    for name, view in program.views.items():
        if (path := Path(folder) / "work" / name).exists():
            inside = f"work/{name}/"
            found = {path: entry for path, entry in found.items() if not path.startswith(inside)}
            found[f"work/{name}"] = {"kind": "file", "sha": view(path)}
    return found


def pause(box, side, seconds):
    (box.aside(side) / "pause").write_text(str(seconds))


Line = namedtuple("Line", "what step time")


def journal(box):
    path = box.aside("cairn") / "journal"
    return [Line(*json.loads(line)) for line in path.read_text().splitlines()] if path.exists() \
        else []


def await_lines(box, run, count):
    """Waits until the journal has `count` lines; returns False if the run ended before."""
    wait_until(lambda: len(journal(box)) >= count or run.poll() is not None, STEP_LIMIT_S,
               "the program says nothing more")
    return run.poll() is None


def finish(box, program, want, run, *options):
    """Finishes `run`, or a new run if there is none. Fails unless all is outside, and nothing else."""
    pause(box, "cairn", 0)
    done = box.finish(run or box.start(command(box, program), *options), PROGRAM_LIMIT_S)
    expect(done.code == 0, f"the last run ended with {done.code}: {box.blame()}")
    same(want, result(box.out, program), "outside in the end")


# Killed and resumed in the kept store.

def killed(box, program, dice, short):
    want, blows = undisturbed(box, program), 4 if short else 8
    pause(box, "cairn", 0.002 if program.pause else 0)
    most = max(2, program.steps // program.every // (blows + 1))
    done, ended = 0, None
    while done < blows and not ended and not near_end(box, program):
        ended = kill_once(box, program, dice, most)
        done += not ended
    finish(box, program, want, ended)
    check_after_kills(program, journal(box))
    return f"killed {done} times, found {starts(journal(box))} of {program.steps} steps"


def near_end(box, program):
    """Whether the program is near its end, where a run that is killed may already have ended the job."""
    return max((line.step for line in journal(box)), default=0) > program.steps * 0.8


def kill_once(box, program, dice, most):
    """Kills one run at a random moment, at most `most` checkpoints after its start. Returns the run
    if it has ended by then."""
    before = len(journal(box))
    run = box.start(command(box, program))
    if dice.random() < 0.8:
        await_lines(box, run, before + 1 + dice.randint(0, most))
        time.sleep(dice.uniform(0, 0.05))
    else:
        time.sleep(dice.uniform(0, 1))
    if run.poll() is not None:
        return run
    fall = dice.choice([kill_run, kill_with_agent, kill_program])
    fall(box, run)


def kill_with_agent(box, run):
    agents = box.agents()
    box.kill([run.pid, *agents, *(pid for pid in box.processes() if pid not in (run.pid, *agents))])
    run.wait()
    box.kill_all()


def kill_program(box, run):
    """Kills the program; `cairn run` then ends by itself. Kills the run if it has no program yet."""
    pids = programs_of(box)
    if not pids:
        kill_run(box, run)
        return
    box.kill(pids)
    # Processes that were just being started were not in the list.
    while late := programs_of(box):
        box.kill(late)
    expect(box.finish(run).code != 0, "exit code 0 though the program was killed")


def programs_of(box):
    return [pid for pid, arguments in box.processes().items()
            if os.path.basename(arguments[0]) != "cairn"]


def check_after_kills(program, lines):
    """Fails unless each start found the last safe checkpoint, or the one that was being written."""
    safe, most = 0, program.every
    for line in lines:
        if line.what == "found":
            expect(line.step <= most, f"step {line.step} was found, written were {most} at most")
            expect(line.step >= safe or not program.owes,
                   f"step {safe} was safe, and the next start found {line.step}")
        if line.what in ("found", "safe"):
            safe, most = line.step, line.step + program.every


def starts(lines):
    return ", ".join(str(line.step) for line in lines if line.what == "found")


# Lost with the node and resumed elsewhere.

# Lines printed before the run and in all; completion times of the last two cuts outside.
Loss = namedtuple("Loss", "first lines before newest")


def lost(box, program, dice, short):
    want, losses, back, ended = undisturbed(box, program), [], [], None
    pause(box, "cairn", program.pause)
    while len(losses) < (1 if short else 3) and not ended and not near_end(box, program):
        loss, ended = lose_once(box, program, dice, ["--stage"] if losses else [])
        losses += [loss] if loss else []
    expect(losses, f"the program ended before its node was lost: {box.blame()}")
    finish(box, program, want, ended, "--stage")
    lines = journal(box)
    for loss in losses:
        back.append(check_after_loss(program, lines, loss))
    return f"lost {len(losses)} times, went back {'; '.join(back)}"


def lose_once(box, program, dice, options):
    """Loses the node at a random moment after two cuts of this run arrived. Returns (loss, None), or
    (None, run) if the run has ended by then."""
    seen, began, first = set(), time.time(), len(journal(box))
    run = box.start(command(box, program), *options)

    def two_cuts():
        seen.update(when for when in cuts(box) if when > began)
        return len(seen) >= 2 and len(journal(box)) > first or run.poll() is not None

    wait_until(two_cuts, CUT_LIMIT_S, "no two cuts")
    until = time.monotonic() + dice.uniform(0, 2.5)
    while time.monotonic() < until:
        two_cuts()
        time.sleep(0.005)
    if run.poll() is not None:
        return None, run
    lose_memory(box)
    run.wait()
    two_cuts()
    # What lies outside may be a later cut than the last complete one: one that is turned to at this
    # moment, or one with mapped files that would not hold still.
    is_complete = bool(cuts(box)) and not any(path.is_file() for path in box.out.glob(".cairn-*"))
    newest = max(seen)
    before = max((when for when in seen if when < newest), default=began)
    return Loss(first, len(journal(box)), before, newest if is_complete else time.time()), None


def cuts(box):
    """Completion time of the cut outside: the time of its manifest, which is replaced then."""
    try:
        with open(box.out / f"cairn-manifest.{JOB}.json", "rb") as file:
            return [os.stat(file.fileno()).st_mtime] if json.load(file)["complete"] else []
    except FileNotFoundError:
        return []


def check_after_loss(program, lines, loss):
    """Fails unless the start after the loss found the state of the newest cut.

    That cut has everything that was safe when the one before it was complete, and nothing later
    than its own completion. Returns how far back that is.
    """
    began = lines[loss.first]
    found = next(line for line in lines[loss.lines:] if line.what == "found")
    said = [line for line in lines[loss.first:loss.lines] if line.what in ("found", "safe")]
    least = last_safe(said, loss.before, began.step) if program.owes else 0
    most = last_safe(said, loss.newest + CLOCK_S, began.step) + program.every
    expect(least <= found.step <= most,
           f"step {found.step} was found; the newest cut was taken between {least} and {most}")
    last = said[-1]
    since = max((line.time for line in said if line.step <= found.step), default=began.time)
    return f"{last.step - found.step} steps ({last.time - since:.1f} s) to {found.step}"


def last_safe(lines, when, default):
    return max((line.step for line in lines if line.time <= when), default=default)


BLOWS = ((killed, "ram"), (killed, "file"), (lost, "ram"))
