#!/usr/bin/env python3
"""Training programs on Cairn, unmodified: killed in the midst of saves, resumed, and compared.

    tests/ml/run.py                    all programs, 200 kills; a line for each, then the table
    tests/ml/run.py --only 'dcp*'      by name; --list shows the names
    tests/ml/run.py --kills 20         how many kills are shared out among them; each gets at least 6
    tests/ml/run.py --seed N           which saves are struck, and when
    tests/ml/run.py --table FILE       the table as Markdown, too
    tests/ml/run.py --device cuda      the programs with a GPU (those of torch)

Each program saves after every step, and continues from what its framework takes for the newest
checkpoint. It runs on `cairn run --persist` and is ended by SIGKILL at a random moment of a random
save (hooks/sitecustomize.py), and started again, within the job (hooks/rounds.py) and, every few
kills, by `cairn run` after the launcher was killed, too. A last run is left alone. The judge compares digests of the state:

- A run must not resume from an unfinished checkpoint: it starts, and has the state that was saved.
- Nothing is lost: it resumes from the last step whose save returned, or from a later one.
- What was drained, read without Cairn, resumes from the last step as well.

Frameworks that take the newest checkpoint by its name alone rely on `cairn run`, which sets unfinished
ones aside before it starts a program: those marked `as it is` are killed once in each run. Those marked
`aside` call cairn.set_unfinished_aside, because they are started again within a run. Until a first
checkpoint is whole, a start `as it is` may fail; that is counted. Lightning copies each checkpoint from
TMPDIR over the last one: if that is elsewhere, it may end with an error, as on a disk; also counted.

The binaries are in CAIRN_BIN, else in target/release. Exit code: 0, or 1 if a program failed. A
framework that is not installed is named and left out. Shares no code with Cairn.
"""

import argparse
import concurrent.futures
import fnmatch
import importlib.util
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BINARIES = Path(os.environ.get("CAIRN_BIN", ROOT / "target/release")).resolve()
LIMIT_S = 300  # A run takes 30 s at most when the machine is busy.
STEPS_MAX = 100_000  # A run that is not killed in time would go on for ever.
RANKS = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


@dataclass
class Program:
    """A program, its arguments behind the directory and the number of steps, and how it is killed."""

    name: str
    script: str
    needs: str
    arguments: tuple = ()
    ranks: int = 0
    imports: str = ""  # What the launcher imports before it forks.
    tmpdir: str = ""  # TMPDIR in the job; outside the store if it is empty.
    torchrun: bool = False  # Started by torchrun itself, and killed once in each run.
    weight: int = 0  # Share of the kills; programs of weight 0 get the least.
    aside: bool = False
    is_of_torch: bool = True
    copies: bool = False  # Replaces its last checkpoint by copying over it, and may fail to load what is left.
    is_by_name: bool = False  # Takes the newest by its name, finished or not, and is killed once in each run.


HF = "torch,transformers,transformers.trainer,accelerate,safetensors.torch"
DCP = "torch,torch.distributed.checkpoint"
PROGRAMS = [
    Program("hf-trainer aside", "hf_trainer.py", "transformers", imports=HF, weight=8, aside=True),
    Program("hf-trainer as it is", "hf_trainer.py", "transformers", imports=HF, weight=1, is_by_name=True),
    Program("dcp sync", "dcp.py", "torch", ("sync",), ranks=2, imports=DCP, weight=6),
    Program("dcp async thread", "dcp.py", "torch", ("thread",), ranks=2, imports=DCP, weight=4),
    Program("dcp async process", "dcp.py", "torch", ("process",), ranks=2, imports=DCP, weight=1),
    Program("dcp sync, torchrun", "dcp.py", "torch", ("sync",), ranks=2, torchrun=True),
    Program("accelerate aside", "accelerate_state.py", "accelerate", imports=HF, aside=True),
    Program("accelerate as it is", "accelerate_state.py", "accelerate", imports=HF, is_by_name=True),
    Program("lightning, TMPDIR in the store", "lightning_fit.py", "lightning", imports="lightning", tmpdir="/cairn/tmp"),
    Program("lightning as it is", "lightning_fit.py", "lightning", imports="lightning", is_by_name=True, copies=True),
    Program("torch.save, mmap, DataLoader", "torch_save.py", "torch", imports="torch"),
    Program("orbax sync", "orbax_manager.py", "orbax", ("sync",), is_of_torch=False),
    Program("orbax async", "orbax_manager.py", "orbax", ("async",), is_of_torch=False),
    *(Program(kind, "arrays.py", kind, (kind,), imports=f"numpy,{kind}", is_of_torch=False) for kind in ("numpy", "zarr", "h5py", "pandas")),
]
KILLS_MIN, ROUNDS_MAX = 6, 8
# Whether there is a GPU must be asked without CUDA: its context does not survive the fork of a round.
CPU = {"ML_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""}
GPU = {"ML_DEVICE": "cuda", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


@dataclass
class Outcome:
    """What became of a program."""

    program: Program
    kills: int = 0
    partial: int = 0  # Kills that left a checkpoint unfinished.
    from_unfinished: int = 0
    lost: int = 0
    resumes: int = 0
    refused: int = 0  # Calls that were not served in the last run.
    seconds: float = 0
    said: list = field(default_factory=list)

    @property
    def has_failed(self):
        return bool(self.said)


class Failed(Exception):
    """A failure, with a message for people."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="GLOB", default="*", help="programs by name")
    parser.add_argument("--list", action="store_true", help="print the names, run nothing")
    parser.add_argument("--kills", type=int, default=200, help="shared out among HF and DCP (200)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--jobs", type=int, default=2, help="programs at a time (2)")
    parser.add_argument("--table", metavar="FILE", help="write a table of Markdown")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    chosen = parser.parse_args()
    programs = [program for program in PROGRAMS if fnmatch.fnmatch(program.name, chosen.only)]
    if chosen.device == "cuda":
        os.environ.update(GPU)
        programs = [program for program in programs if program.is_of_torch]
    if chosen.list:
        print("\n".join(program.name for program in programs))
        return 0
    if not (BINARIES / "cairn").exists():
        print(f"run.py: no {BINARIES}/cairn: make build", file=sys.stderr)
        return 2
    print(f"seed {chosen.seed}", flush=True)
    total = sum(program.weight for program in PROGRAMS if program.weight)
    there = []
    for program in programs:
        if importlib.util.find_spec(program.needs):
            kills = max(KILLS_MIN, round(chosen.kills * program.weight / total))
            there.append((program, kills))
        else:
            print(f"left out: {program.name}: no {program.needs}", flush=True)
    with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
        asked = [pool.submit(try_out, program, kills, chosen.seed) for program, kills in there]
        outcomes = []
        for future in concurrent.futures.as_completed(asked):
            outcomes.append(future.result())
            print(line(outcomes[-1]), flush=True)
    outcomes.sort(key=lambda outcome: PROGRAMS.index(outcome.program))
    print("\n" + table(outcomes))
    if chosen.table:
        Path(chosen.table).write_text(table(outcomes))
    failed = [outcome for outcome in outcomes if outcome.has_failed]
    print(f"{len(outcomes)} programs, {sum(outcome.kills for outcome in outcomes)} kills, {len(failed)} failed")
    return 1 if failed else 0


def try_out(program, kills, seed):
    outcome = Outcome(program)
    begun = time.monotonic()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="cairn-ml.") as box, \
            tempfile.TemporaryDirectory(prefix="cairn-ml.", dir=memory) as stores:
        job = Job(program, Path(box), Path(stores))
        try:
            judge(job, outcome, kills, random.Random(f"{seed} {program.name}"))
        except (Failed, subprocess.TimeoutExpired) as error:
            outcome.said.append(str(error))
        finally:
            job.remove()
    outcome.seconds = time.monotonic() - begun
    return outcome


def judge(job, outcome, kills, chance):
    """Kills the job as often as asked, then lets it end. Raises Failed when something is lost."""
    program, known = outcome.program, Known()
    events, save_ms = job.measure()
    sets_aside, runs = program.aside, 0
    while outcome.kills < kills:
        runs += 1
        if runs > 2 * kills + 3:
            raise Failed(f"{runs} runs, and only {outcome.kills} kills")
        count = 1 if program.torchrun or program.is_by_name else min(ROUNDS_MAX, kills - outcome.kills)
        strikes = [(chance.randrange(max(1, program.ranks)), chance.randint(1, 2 * events + 1), chance.uniform(0, save_ms))
                   for _ in range(count)]
        rounds = job.run(STEPS_MAX, strikes, sets_aside)
        sets_aside = program.aside
        for lines in rounds:
            ends = {what: step for what, step, _ in lines if what in ("ended", "left")}
            lines = [one for one in lines if one[0] not in ("ended", "left")]
            if not lines and ends.get("ended") == 9:
                continue  # It was killed before it had resumed.
            if not lines:
                if program.copies and job.has_unfinished():
                    outcome.from_unfinished += 1
                    return
                # It did not start. The next run has to set aside what stopped it.
                take_failure(job, outcome, sets_aside or known.acknowledged > 0)
                sets_aside = True
                break
            weigh(outcome, lines, known)
            outcome.kills += 1
            outcome.partial += job.has_unfinished() if program.torchrun else ends.get("left", 0) > 0
    last = known.acknowledged + 3
    try:
        rounds = job.run(last, None, True)
    except Failed:
        if not program.copies or not job.has_unfinished():
            raise
        outcome.from_unfinished += 1
        return
    for lines in rounds:
        lines = [one for one in lines if one[0] not in ("ended", "left")]
        if not lines:
            take_failure(job, outcome, True)
        weigh(outcome, lines, known)
    counted = re.search(r"calls served, (\d+) not served", job.said)
    if not counted:
        raise Failed(f"the last run did not count its calls: {job.said[-600:]}")
    # An event loop asks for a ring and does without.
    rings = sum(map(int, re.findall(r"refused ENOSYS +io_uring_setup +(\d+)", job.said)))
    outcome.refused = int(counted[1]) - rings
    if outcome.refused and not program.is_by_name:
        raise Failed(f"calls were not served: {job.said[-600:]}")
    if known.acknowledged != last:
        raise Failed(f"the last run ended at step {known.acknowledged} instead of {last}: {job.said[-600:]}")
    rounds = job.run_outside(last + 1)
    if not rounds[0] or rounds[0][0][1:] != (last, known.digests[last]):
        raise Failed(f"what was drained resumes from {rounds[0][:1]} instead of step {last}: {job.said[-600:]}")


@dataclass
class Known:
    """Digests of the states by step, and the last step whose save returned."""

    digests: dict = field(default_factory=dict)
    acknowledged: int = 0


def take_failure(job, outcome, sets_aside):
    """A round failed before it resumed: only a framework that goes by names may do so."""
    outcome.from_unfinished += 1
    if not outcome.program.is_by_name or sets_aside:
        raise Failed(f"a run did not resume: {job.said[-1500:]}")


def weigh(outcome, lines, known):
    """Compares what a round reported with what is known."""
    what, step, digest = lines[0]
    outcome.resumes += step > 0
    if what != "resumed":
        raise Failed(f"the first line of a round is {lines[0]}")
    if step > 0 and known.digests.get(step, digest) != digest:
        outcome.from_unfinished += 1
        raise Failed(f"resumed from step {step} with a state that nobody saved")
    if step < known.acknowledged:
        outcome.lost += 1
        raise Failed(f"resumed from step {step}, but step {known.acknowledged} was saved")
    known.digests[step] = digest
    for what, step, digest in lines[1:]:
        if known.digests.setdefault(step, digest) != digest:
            raise Failed(f"step {step} was saved twice, with different states")
        known.acknowledged = step


class Job:
    """A job of Cairn with one program. `said` has the output of its last run."""

    def __init__(self, program, box, stores):
        self.program, self.box, self.stores = program, box, stores
        self.persist, self.log, self.said = box / "persist", box / "log", ""
        self.temporary = box / "tmp"
        self.temporary.mkdir()

    def words(self, directory, steps, strikes=None, dies=False):
        """The command. Without strikes the program runs once, as its user would start it."""
        program = [HERE / "programs" / self.program.script, directory, str(steps), *self.program.arguments]
        if self.program.torchrun or (strikes is None and not self.program.ranks):
            return [sys.executable, *(RANKS if self.program.torchrun else []), *program]
        plan = self.box / "strikes"
        plan.write_text("\n".join(":".join(map(str, strike)) for strike in strikes) if strikes else "-")
        return [sys.executable, HERE / "hooks/rounds.py", "--ranks", str(self.program.ranks), "--imports", self.program.imports,
                "--strikes", plan, *(["--die"] if dies else []), *program]

    def environment(self, **more):
        found = {name: value for name, value in os.environ.items() if not name.startswith(("CAIRN", "ML_", "LD_PRELOAD"))}
        device = GPU if os.environ.get("ML_DEVICE") == "cuda" else CPU
        path = os.pathsep.join([str(HERE / "hooks"), str(ROOT / "python")])
        return dict(
            found, PATH=f"{BINARIES}:{found['PATH']}", PYTHONPATH=path, ML_LOG=str(self.log), OMP_NUM_THREADS="1",
            TMPDIR=str(self.temporary), HOME=str(self.box), CAIRN_STORE_ROOT=str(self.stores), HF_HUB_OFFLINE="1",
            ML_PREFIX="/cairn/run", PYTHONDONTWRITEBYTECODE="1", TOKENIZERS_PARALLELISM="false", **device, **more)

    def run(self, steps, strikes, sets_aside):
        """Runs the program on Cairn; returns the lines of each round."""
        more = {"ML_ASIDE": "1"} if sets_aside else {}
        start = []
        if self.program.tmpdir:
            start = ["sh", "-c", 'mkdir -p "$TMPDIR" && exec "$@"', "sh"]
            more["TMPDIR"] = self.program.tmpdir
        if self.program.torchrun and strikes:
            more["ML_KILL"] = "{1}:{2}".format(*strikes[0])
            more["ML_VICTIM"] = "parent" if strikes[0][0] else "self"
        counting = [] if strikes else ["--report-calls"]
        words = [BINARIES / "cairn", "run", "--job", "job", "--persist", self.persist, "--tier", "ram:1G", *counting, "--", *start, *self.words("/cairn/run", steps, strikes, dies=bool(strikes))]
        return self.started(words, dict(self.environment(), **more), expects_success=strikes is None)

    def run_outside(self, steps):
        """Runs the program without Cairn on a copy of what was drained; returns the lines of its rounds."""
        copy = self.box / "copy"
        shutil.copytree(self.persist / "run", copy)
        return self.started(self.words(copy, steps), self.environment(ML_ASIDE="1"), expects_success=True)

    def measure(self):
        """Runs the program for a few steps outside Cairn; returns events and milliseconds of a save."""
        scratch, events = self.box / "measured", self.box / "events"
        environment = dict(self.environment(), ML_EVENTS=str(events), ML_PREFIX=str(scratch))
        begun = time.monotonic()
        self.started(self.words(scratch, 1), environment, expects_success=True)
        first_s = time.monotonic() - begun
        counted = max(map(int, events.read_text().split()), default=0)
        shutil.rmtree(scratch, ignore_errors=True)
        # A save takes far less than a run; strikes that come late hit the next save.
        return max(1, counted), min(200.0, 1000 * first_s / 10)

    def started(self, words, environment, expects_success):
        self.log.unlink(missing_ok=True)
        process = subprocess.Popen([str(word) for word in words], env=environment, cwd=self.box, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                   start_new_session=True)
        try:
            self.said, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            self.said, _ = process.communicate()
            raise Failed(f"no end after {LIMIT_S} s: {self.said[-1500:]}") from None
        if expects_success and process.returncode not in (0, 75):
            raise Failed(f"exit code {process.returncode}: {self.said[-1500:]}")
        found = self.log.read_text().splitlines() if self.log.exists() else []
        rounds = [[]]
        for what, step, digest in map(str.split, found):
            if what == "round" and int(step) > 0:
                rounds.append([])
            elif what != "round":
                rounds[-1].append((what, int(step), digest))
        return rounds

    def has_unfinished(self):
        """Whether the store that a run left has a checkpoint that is not complete."""
        words = [BINARIES / "cairn", "--store-root", self.stores, "ls", "job", "--checkpoints", "--json"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
        return done.returncode == 0 and any(not one["whole"] for one in json.loads(done.stdout))

    def remove(self):
        words = [BINARIES / "cairn", "--store-root", self.stores, "rm", "job", "--discard"]
        subprocess.run(words, capture_output=True, timeout=LIMIT_S)


def line(outcome):
    verdict = "FAILED" if outcome.has_failed else "ok"
    said = f": {outcome.said[0]}" if outcome.has_failed else ""
    return (f"{verdict}: {outcome.program.name}: {outcome.kills} kills, {outcome.partial} left a checkpoint unfinished, "
            f"{outcome.from_unfinished} resumed from one, {outcome.lost} lost, {outcome.seconds:.0f} s{said}")


def table(outcomes):
    rows = ["| program | kills | left a checkpoint unfinished | resumed from it | saves lost | calls not served | result |",
            "|---|---|---|---|---|---|---|"]
    for outcome in outcomes:
        result = "failed" if outcome.has_failed else "as undisturbed"
        if outcome.from_unfinished and not outcome.has_failed:
            result = "takes the newest name"
        rows.append(f"| {outcome.program.name} | {outcome.kills} | {outcome.partial} | {outcome.from_unfinished} | "
                    f"{outcome.lost} | {outcome.refused} | {result} |")
    return "\n".join(rows) + f"\n\n{os.cpu_count()} processors, Linux {platform.release()}, {time.strftime('%Y-%m-%d')}\n"


if __name__ == "__main__":
    sys.exit(main())
