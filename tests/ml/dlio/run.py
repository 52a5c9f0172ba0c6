#!/usr/bin/env python3
"""The checkpoints of DLIO's PyTorch workload on Cairn, on tmpfs and on a disk, in turn.

    tests/ml/dlio/run.py [--rounds 5] [--epochs 6]

Two ranks save an optimizer, two layers and a model after each epoch, as DLIO's Megatron-DeepSpeed
workload does, cut to 201 MB a rank; all checkpoints are kept, or, with --retain, leave the store once
they are drained. A figure is the rate of all checkpoints of a run, by DLIO's own times; the ratio to
tmpfs is the median of the rounds. The first checkpoint counts: memory is cold.

Needs mpiexec, and beside what tests/ml/requirements.txt names: pip install --no-deps
dlio-benchmark==2.0.0, and hydra-core mpi4py Pillow psutil tensorflow-cpu. DLIO's tracer is replaced
(dftracer/). The binaries are in CAIRN_BIN, else in target/release. Exit code 0, whatever is measured.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BINARIES = Path(os.environ.get("CAIRN_BIN", ROOT / "target/release")).resolve()
OPTIMIZER, LAYER, LAYERS, MODEL = 50_000_000, 25_000_000, 2, 1 << 20
RANK_BYTES = 3 * OPTIMIZER + LAYERS * LAYER + MODEL
# Checkpoints that a store with --retain holds.
ROOM = 3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=6)
    chosen = parser.parse_args()
    memory = Path(tempfile.mkdtemp(prefix="cairn-dlio.", dir="/dev/shm"))
    disk = Path(tempfile.mkdtemp(prefix="cairn-dlio.", dir=ROOT))
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors, Linux {platform.release()}, "
          f"{time.strftime('%Y-%m-%d %H:%M')}")
    media = ("cairn", "cairn --retain", "tmpfs", "disk")
    rates = {name: [] for name in media}
    try:
        made(disk, chosen.epochs)
        for _ in range(chosen.rounds):
            for name in media:
                rates[name].append(rate(name, chosen.epochs, memory, disk))
                for place in (memory / "saves", disk / "saves", disk / "persist"):
                    shutil.rmtree(place, ignore_errors=True)
    finally:
        shutil.rmtree(memory, ignore_errors=True)
        shutil.rmtree(disk, ignore_errors=True)
    for name, bar in (("cairn", 1.0), ("cairn --retain", 1.3), ("tmpfs", None), ("disk", None)):
        ratios = [one / other for one, other in zip(rates[name], rates["tmpfs"])]
        verdict = "" if bar is None else f"  {bar}x {'met' if statistics.median(ratios) >= bar else 'MISSED'}"
        print(f"{name:16} {statistics.median(rates[name]):6.2f} GB/s  {statistics.median(ratios):5.2f}x "
              f"[{min(ratios):5.2f}, {max(ratios):5.2f}]{verdict}")
    return 0


def words(disk, epochs, saves, *more):
    settings = {
        "framework": "pytorch", "model": "megatron_deepspeed", "reader.data_loader": "pytorch", "reader.read_threads": 0,
        "reader.batch_size": 1, "dataset.data_folder": disk / "data", "dataset.format": "npz", "dataset.num_files_train": 4,
        "dataset.num_samples_per_file": 2, "dataset.record_length": 2048, "train.epochs": epochs,
        "train.computation_time": 0.5, "evaluation.eval_time": 0.01, "checkpoint.checkpoint_folder": saves,
        "checkpoint.epochs_between_checkpoints": 1, "checkpoint.type": "all_ranks", "checkpoint.model_size": MODEL,
        "checkpoint.optimization_groups": f"[{OPTIMIZER}]", "checkpoint.num_layers": LAYERS,
        "checkpoint.layer_parameters": f"[{LAYER}]", "output.folder": disk / "output", **dict(more)}
    chosen = [f"++workload.{name}={value}" for name, value in settings.items()]
    return ["mpiexec", "--oversubscribe", "-n", "2", sys.executable, "-m", "dlio_benchmark.main", *chosen,
            f"hydra.run.dir={disk / 'hydra'}"]


def made(disk, epochs):
    """Makes the data that are read between checkpoints."""
    flow = [("workflow.generate_data", True), ("workflow.train", False), ("workflow.checkpoint", False)]
    started(words(disk, epochs, disk / "saves", *flow), {})


def rate(name, epochs, memory, disk):
    """Runs the workload; returns bytes a nanosecond over all its checkpoints."""
    saves = {"tmpfs": memory / "saves", "disk": disk / "saves"}.get(name, "/cairn/saves")
    flow = [("workflow.generate_data", False), ("workflow.train", True), ("workflow.checkpoint", True)]
    command = words(disk, epochs, saves, *flow)
    mib = 2 * RANK_BYTES * (epochs + 1) >> 20
    if name == "cairn":
        command = [BINARIES / "cairn", "run", "--job", "dlio", "--discard", "--tier", f"ram:{mib}M", "--", *command]
    elif name == "cairn --retain":
        room = f"ram:{2 * RANK_BYTES * ROOM >> 20}M"
        command = [BINARIES / "cairn", "run", "--job", "dlio", "--persist", disk / "persist", "--retain", "count=1",
                   "--tier", room, "--", *command]
    started(command, {"CAIRN_STORE_ROOT": str(memory)})
    stats = json.loads((disk / "output/per_epoch_stats.json").read_text())
    seconds = sum(span(part) for epoch in stats.values() for what, part in epoch.items() if what.startswith("ckpt"))
    return 2 * RANK_BYTES * epochs / seconds / 1e9


def span(part):
    begin, end = (datetime.fromisoformat(part[name]) for name in ("start", "end"))
    return (end - begin).total_seconds()


def started(command, more):
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    environment = dict(
        os.environ, PYTHONPATH=path, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", TF_CPP_MIN_LOG_LEVEL="3", **more)
    done = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        sys.exit(f"run.py: exit code {done.returncode}: {done.stdout[-1500:]}{done.stderr[-1500:]}")


if __name__ == "__main__":
    sys.exit(main())
