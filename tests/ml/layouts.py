#!/usr/bin/env python3
"""Which checkpoints of training frameworks Cairn knows by their names, without a pattern.

    tests/ml/layouts.py [--only GLOB] [--table FILE]

Each layout has three steps. A real library writes it where it is installed (programs/), else a
generator that makes the directories and files in the library's order. Afterwards
`cairn ls --checkpoints` must show each step once, with all its files. Generators are also killed
when half of a step, and all but its last file, is written, the first one or the last: that step must not be complete, neither
before nor after the kill, while the ones before it stay complete. The next run must find every file of those where it was; of the
half step it must find all files or none. `GAPS` names the layouts for
which it does not, and what it shows instead; a gap that is closed is a failure, too, so that it
leaves the list.

The binaries are in CAIRN_BIN, else in target/release. Exit code: 0, or 1 if a layout is not as
expected. Shares no code with Cairn.
"""

import argparse
import fnmatch
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BINARIES = Path(os.environ.get("CAIRN_BIN", ROOT / "target/release")).resolve()
LIMIT_S = 300
STEPS = (10, 20, 30)

# Generators: what each framework has written when step {n} is done. A name that ends with "!" is
# rewritten at each step and belongs to no checkpoint. {i} is the index of the step, from 0.
LAYOUTS = {
    "hf trainer, sharded": [f"run/checkpoint-{{n}}/{name}" for name in (
        "config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
        "model.safetensors.index.json", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json",
        "training_args.bin")],
    "hf trainer, deepspeed inside": [f"run/checkpoint-{{n}}/{name}" for name in (
        "global_step{n}/mp_rank_00_model_states.pt", "global_step{n}/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "global_step{n}/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", "latest", "zero_to_fp32.py", "rng_state_0.pth",
        "rng_state_1.pth", "trainer_state.json")],
    "accelerate, fsdp": [f"run/checkpoints/checkpoint_{{i}}/{name}" for name in (
        "pytorch_model_fsdp_0/__0_0.distcp", "pytorch_model_fsdp_0/__1_0.distcp", "pytorch_model_fsdp_0/.metadata",
        "optimizer_0/__0_0.distcp", "optimizer_0/__1_0.distcp", "optimizer_0/.metadata", "random_states_0.pkl",
        "random_states_1.pkl", "scheduler.bin")],
    "deepspeed": [*(f"run/global_step{{n}}/{name}" for name in (
        "mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "zero_pp_rank_1_mp_rank_00_optim_states.pt")), "run/latest!", "run/zero_to_fp32.py!"],
    "megatron": [*(f"run/iter_{{n:07d}}/{name}" for name in (
        "mp_rank_00/model_optim_rng.pt", "mp_rank_01/model_optim_rng.pt", "mp_rank_00/distrib_optim.pt",
        "mp_rank_01/distrib_optim.pt")), "run/latest_checkpointed_iteration.txt!"],
    "megatron, distributed": [*(f"run/iter_{{n:07d}}/{name}" for name in (
        "__0_0.distcp", "__0_1.distcp", "__1_0.distcp", "__1_1.distcp", "common.pt", ".metadata", "metadata.json")),
        "run/latest_checkpointed_iteration.txt!"],
    "torchtitan": [f"outputs/checkpoint/step-{{n}}/{name}" for name in ("__0_0.distcp", "__1_0.distcp", ".metadata")],
    "dcp, directory named by the number": [f"run/{{n}}/{name}" for name in ("__0_0.distcp", "__1_0.distcp", ".metadata")],
    "torchtune": [f"run/epoch_{{i}}/{name}" for name in (
        "ft-model-00001-of-00002.safetensors", "ft-model-00002-of-00002.safetensors", "model.safetensors.index.json",
        "config.json")],
    "lightning": ["run/epoch={i}-step={n}.ckpt"],
    "lightning, metric in the name": ["run/epoch={i:02d}-val_loss=0.5{i}.ckpt"],
    "lightning, sharded": [f"run/epoch={{i}}-step={{n}}.ckpt/{name}" for name in (
        "__0_0.distcp", "__1_0.distcp", ".metadata", "meta.pt")],
    "nemo": [f"run/model--step={{n}}-consumed_samples={{n}}0.0/weights/{name}" for name in (
        "__0_0.distcp", "__0_1.distcp", "common.pt", ".metadata", "metadata.json")],
    "composer": ["run/ep{i}-ba{n}-rank0.pt", "run/ep{i}-ba{n}-rank1.pt"],
    "fairseq": ["run/checkpoint_{i}_{n}.pt"],
    "orbax": [f"run/{{n}}/{name}" for name in (
        "_CHECKPOINT_METADATA", "default/_METADATA", "default/_sharding", "default/manifest.ocdbt",
        "default/d/0123456789abcdef", "default/ocdbt.process_0/manifest.ocdbt")],
    "maxtext": [f"run/checkpoints/{{n}}/{name}" for name in (
        "_CHECKPOINT_METADATA", "items/_METADATA", "items/manifest.ocdbt", "items/d/fedcba9876543210")],
    "tensorflow": ["run/ckpt-{i}.index", "run/ckpt-{i}.data-00000-of-00001", "run/checkpoint!"],
    "keras": ["run/weights.{i:02d}-0.25.keras"],
    "ultralytics": ["run/weights/epoch{n}.pt", "run/weights/last.pt!"],
    "rank files": ["run/step{n}/rank0.pt", "run/step{n}/rank1.pt"],
}

# Layouts of real libraries: program, arguments, module, and how a step is named.
REAL = {
    "transformers (real)": ("hf_trainer.py", (), "transformers", "run/checkpoint-{n}/"),
    "accelerate (real)": ("accelerate_state.py", (), "accelerate", "run/checkpoints/checkpoint_{i}/"),
    "lightning (real)": ("lightning_fit.py", (), "lightning", "run/epoch=0-step={n}.ckpt"),
    "orbax (real)": ("orbax_manager.py", ("sync",), "orbax", "run/{n}/"),
    "dcp (real)": ("dcp.py", ("sync",), "torch", "run/step-{n}/"),
}

GAPS = {}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="GLOB", default="*", help="layouts by name")
    parser.add_argument("--table", metavar="FILE", help="write a table of Markdown")
    chosen = parser.parse_args()
    rows, failures = [], 0
    for name in [*LAYOUTS, *REAL]:
        if not fnmatch.fnmatch(name, chosen.only):
            continue
        if name in REAL and not importlib.util.find_spec(REAL[name][2]):
            print(f"left out: {name}: no {REAL[name][2]}", flush=True)
            continue
        if name in LAYOUTS:
            said = half(LAYOUTS[name]) or differences(*generated(LAYOUTS[name]))
        else:
            said = differences(*written(*REAL[name]))
        expected = GAPS.get(name)
        verdict = "known" if not said else f"not known: {said}"
        if bool(said) != (expected is not None):
            failures += 1
            verdict = f"FAILED: {said}" if said else f"FAILED: known now; remove it from GAPS: {expected}"
        print(f"{name}: {verdict}", flush=True)
        rows.append(f"| {name} | {'yes' if not said else expected or said} |")
    if chosen.table:
        Path(chosen.table).write_text("\n".join(["| layout | known by its names |", "|---|---|", *rows]) + "\n")
    print(f"{len(rows)} layouts, {failures} not as expected")
    return 1 if failures else 0


def generated(names):
    """Lets a program make the layout. Returns what Cairn shows, and the files of each step."""
    files = [[name.format(n=step, i=index) for name in names] for index, step in enumerate(STEPS)]
    plan = [[name.rstrip("!") for name in step] for step in files]
    code = f"""if True:
        import os
        for step in {plan!r}:
            for name in step:
                path = "/cairn/" + name
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as out:
                    out.write(path.encode() * 100)
        """
    wanted = [{name for name in step if not name.endswith("!")} for step in files]
    return shown([sys.executable, "-c", code], wanted)


def half(names):
    """Kills the program in the midst of a step. Returns in words what Cairn takes for complete wrongly."""
    own = [name for name in names if not name.endswith("!")]
    if len(own) < 2:
        return ""
    cuts = sorted({len(own) // 2, len(own) - 1})
    for last, cut in ((last, cut) for last in (0, len(STEPS) - 1) for cut in cuts):
        plan = [[name.format(n=step, i=index).rstrip("!") for name in names] for index, step in enumerate(STEPS[:last + 1])]
        plan[-1] = plan[-1][:cut]
        code = f"""if True:
            import os, signal, subprocess, sys
            for step in {plan!r}:
                for name in step:
                    path = "/cairn/" + name
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    with open(path, "wb") as out:
                        out.write(path.encode() * 100)
            subprocess.run([{str(BINARIES / "cairn")!r}, "ls", "--checkpoints", "--json"], stdout=open("before", "w"))
            os.kill(os.getpid(), signal.SIGKILL)
            """
        with Job() as job:
            job.run([sys.executable, "-c", code], expected=137)
            for moment, sets in (("before", json.loads((job.box / "before").read_text() or "[]")), ("after", job.sets())):
                complete = [one["step"] for one in sets if one["whole"]]
                if len(complete) != last:
                    return (f"steps {complete} are complete {moment} a kill after {cut} of {len(own)} files of step number "
                            f"{last + 1}")
            job.run(["find", "/cairn", "-type", "f", "-not", "-path", "*/.cairn-damaged/*", "-fprintf", job.box / "found", "%P\\n"])
            found = set((job.box / "found").read_text().split())
            *whole, part = (set(step) for step in plan)
            part = {name for name, pattern in zip(plan[-1], names) if not pattern.endswith("!")}
            lost = set().union(*whole) - found
            if lost or part & found not in (set(), part):
                return f"the next run finds {sorted(part & found)} of {sorted(part)}, and lacks {sorted(lost)}"
    return ""


def written(script, arguments, _, start):
    """Lets a real library write three steps; otherwise as `generated`."""
    program = [str(HERE / "programs" / script), "/cairn/run", "3", *arguments]
    words = [sys.executable, *program]
    if script == "dcp.py":
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *program]
    return shown(words, [start.format(n=step, i=step - 1) for step in (1, 2, 3)])


def shown(words, wanted):
    """Runs a program in a job of its own. Returns the sets that Cairn shows, each with its newest
    files' paths, and the files that are wanted."""
    with Job() as job:
        job.run(words)
        sets = job.sets()
        everything = {one["path"].removeprefix("/cairn/") for one in json.loads(job.asked("ls", "job:/", "-r", "--json"))
                      if one["kind"] == "file"}
        if isinstance(wanted[0], str):
            wanted = [{name for name in everything if name.startswith(start)} for start in wanted]
        # The newest complete checkpoint with a given file has exactly the files of its step.
        of_step = [job.asked("ls", "job", "--checkpoints", "--newest", sorted(step)[0]).split("\n") for step in wanted]
        return sets, wanted, [{one.removeprefix("/cairn/") for one in found if one} for found in of_step]


class Job:
    """A job with directories of its own, which are removed at the end."""

    def __enter__(self):
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.box = Path(tempfile.mkdtemp(prefix="cairn-ml."))
        self.stores = tempfile.mkdtemp(prefix="cairn-ml.", dir=memory)
        path = os.pathsep.join([str(HERE / "hooks"), str(ROOT / "python")])
        self.environment = dict(
            os.environ, PYTHONPATH=path, ML_LOG=f"{self.box}/log", CAIRN_STORE_ROOT=self.stores, HF_HUB_OFFLINE="1",
            ML_DEVICE="cpu", CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1", TMPDIR=str(self.box))
        return self

    def __exit__(self, *_):
        self.asked("rm", "job", "--discard")
        shutil.rmtree(self.box, ignore_errors=True)
        shutil.rmtree(self.stores, ignore_errors=True)

    def run(self, words, expected=0):
        options = ["--job", "job", "--persist", f"{self.box}/persist", "--drain", "none"]
        done = subprocess.run([BINARIES / "cairn", "run", *options, "--", *words], env=self.environment, cwd=self.box,
                              capture_output=True, text=True, timeout=LIMIT_S)
        if done.returncode not in (expected, 75):
            sys.exit(f"layouts.py: exit code {done.returncode}: {done.stdout[-500:]}{done.stderr[-1500:]}")

    def asked(self, *words):
        """Returns what `cairn` prints; nothing if it fails."""
        done = subprocess.run([BINARIES / "cairn", *words], env=self.environment, cwd=self.box, capture_output=True, text=True,
                              timeout=LIMIT_S)
        return done.stdout if done.returncode == 0 else ""

    def sets(self):
        return json.loads(self.asked("ls", "job", "--checkpoints", "--json") or "[]")


def differences(sets, wanted, of_step):
    """Returns in words how Cairn's view differs; an empty text if it does not."""
    incomplete = [f"{one['family']} {one['step']} ({one['reason']})" for one in sets if not one["whole"]]
    families = sorted({one["family"] for one in sets})
    if len(sets) != len(wanted) or len(families) != 1:
        return f"{len(sets)} sets of {', '.join(families) or 'no family'} instead of {len(wanted)}"
    if incomplete:
        return f"not complete: {', '.join(incomplete)}"
    for step, found in zip(wanted, of_step):
        if step != found:
            return f"lacks {sorted(step - found)[:2]}, has {sorted(found - step)[:2]} besides"
    return ""


if __name__ == "__main__":
    sys.exit(main())
