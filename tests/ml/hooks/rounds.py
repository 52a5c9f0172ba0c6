"""Starts a program again and again within one job, as a launcher with restarts does.

    rounds.py --ranks N --imports MODULES --strikes FILE [--die] SCRIPT ARGUMENTS…

Each line of FILE is a round: `RANK:N:MS` for sitecustomize.arm in the process of that rank, or `-`
for a round that is left alone. The modules are imported once; each process is a fork of this one, so
a round takes a fraction of a second. When a process of a round has died, the others are ended, as
torchrun does. ML_LOG gets `round I -` before each round, and after it `ended SIGNAL -` (0 for an exit, -1 for
success) and `left N -`: the number of checkpoints that the round left unfinished. With --die the launcher ends itself by SIGKILL after
the last round.
"""

import argparse
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback

import sitecustomize


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--imports", default="")
    parser.add_argument("--strikes", required=True)
    parser.add_argument("--die", action="store_true")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    chosen = parser.parse_args()
    for name in filter(None, chosen.imports.split(",")):
        importlib.import_module(name)
    with open(chosen.strikes) as strikes:
        rounds = strikes.read().split()
    worst = 0
    for index, strike in enumerate(rounds):
        write(f"round {index} -")
        before = unfinished()
        ended = play(chosen, strike)
        worst = max(worst, int(ended >= 0))
        write(f"ended {ended} -")
        write(f"left {len(unfinished() - before)} -")
    if chosen.die:
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(worst)


def play(chosen, strike):
    """Runs a round. Returns the signal that ended its first process which failed, 0 if that one exited
    by itself, and -1 if all succeeded."""
    launch = {}
    if chosen.ranks:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        launch = {"WORLD_SIZE": str(chosen.ranks), "LOCAL_WORLD_SIZE": str(chosen.ranks), "MASTER_ADDR": "127.0.0.1",
                  "MASTER_PORT": str(port)}
    alive = {start(chosen, rank, dict(launch, RANK=str(rank), LOCAL_RANK=str(rank)) if launch else {}, strike)
             for rank in range(max(1, chosen.ranks))}
    ended = -1
    while alive:
        process, status = os.wait()
        if process not in alive:
            continue
        alive.discard(process)
        if status != 0 and ended < 0:
            ended = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            for other in alive:
                os.kill(other, signal.SIGKILL)
    return ended


def start(chosen, rank, launch, strike):
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.environ.update(launch)
        if strike != "-" and int(strike.split(":")[0]) == rank:
            _, at, milliseconds = strike.split(":")
            sitecustomize.arm(int(at), float(milliseconds))
        sys.argv = [chosen.script, *chosen.arguments]
        runpy.run_path(chosen.script, run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def unfinished():
    """Returns the checkpoints in the store that are not complete, each with the number of its files."""
    done = subprocess.run(["cairn", "ls", "--checkpoints", "--json"], capture_output=True, text=True, check=False)
    found = json.loads(done.stdout or "[]") if done.returncode == 0 else []
    # Those that were set aside have been counted already.
    return {(one["family"], one["step"], one["files"], one["bytes"]) for one in found
            if not one["whole"] and not one["family"].startswith("unfinished/")}


def write(line):
    log = os.open(os.environ["ML_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(log, f"{line}\n".encode())
    os.close(log)


if __name__ == "__main__":
    main()
