#!/usr/bin/env python3
"""Saves and loads of training jobs on Cairn, on tmpfs and on a disk, in turn in one run.

    tests/ml/bench.py [--rounds 7] [--mib 512] [--only GLOB] [--device cuda]

A process for each medium holds the state and waits for orders (measure.py), so that all three do the
same with warm code. Each round asks them in turn; two rounds before do not count. A figure is the
median of the rounds; the ratio is the median of the ratios of the pairs, with its smallest and
largest. The bars are those of docs/BENCHMARKS.md. Exit code 0, whatever is measured.
"""

import argparse
import fnmatch
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BINARIES = Path(os.environ.get("CAIRN_BIN", ROOT / "target/release")).resolve()
WARM_UP = 2


class Medium:
    """A process on one medium that takes orders."""

    def __init__(self, name, mode, mib, memory, disk, room_mib):
        self.name = name
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        environment = dict(os.environ, CAIRN_STORE_ROOT=str(memory), OMP_NUM_THREADS="1", MEASURE_PORT=str(port))
        directory = {"cairn": "/cairn/run", "tmpfs": memory / "tmpfs", "disk": disk / "disk"}[name.split()[0]]
        words = [sys.executable, HERE / "measure.py", mode, directory, str(mib)]
        if name == "cairn":
            words = [BINARIES / "cairn", "run", "--job", f"bench-{mode}", "--discard", "--tier", f"ram:{room_mib}M", "--", *words]
        self.process = subprocess.Popen([str(word) for word in words], env=environment, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def ask(self, order):
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
        said = self.process.stdout.readline()
        if not said:
            sys.exit(f"bench.py: the process on {self.name} has ended")
        return json.loads(said)

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--mib", type=int, default=512, help="size of a checkpoint")
    parser.add_argument("--only", metavar="GLOB", default="*", help="rows by name")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where the tensors are")
    chosen = parser.parse_args()
    os.environ["ML_DEVICE"] = chosen.device
    if chosen.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    memory, disk = Path(tempfile.mkdtemp(prefix="cairn-ml.", dir="/dev/shm")), Path(tempfile.mkdtemp(prefix="cairn-ml.", dir=ROOT))
    # Order, name, first and last medium of the ratio, bar, and whether more is better.
    singles = [("save", "torch.save, warm", 2.0), ("save-nocrc", "torch.save without its CRC, warm", 5.0),
               ("load", "torch.load", 1.0), ("keep", "torch.save, all kept, cold", 1.0)]
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors, Linux {platform.release()}, "
          f"{time.strftime('%Y-%m-%d %H:%M')}\n")
    print(f"{'what':36} {'cairn':>8} {'tmpfs':>8} {'disk':>8}       ratio to tmpfs    bar")
    try:
        chosen_singles = [one for one in singles if fnmatch.fnmatch(one[1], chosen.only)]
        if chosen_singles:
            # Kept checkpoints need room; a store of this size starts cold.
            room = chosen.mib * (chosen.rounds + WARM_UP + 4)
            media = [Medium(name, "single", chosen.mib, memory, disk, room) for name in ("cairn", "tmpfs", "disk")]
            if not any(order in ("save", "save-nocrc") for order, _, _ in chosen_singles):
                for medium in media:
                    medium.ask("save")
            for order, what, bar in chosen_singles:
                warm_up = 0 if order == "keep" else WARM_UP
                taken = rounds(media, order, chosen.rounds, warm_up)
                rates = {name: [chosen.mib / 1024 * 1.073741824 / one["seconds"] for one in found] for name, found in taken.items()}
                show(what, rates, "GB/s", bar, "cairn", "tmpfs", is_more_better=True)
            for medium in media:
                medium.end()
            shutil.rmtree(memory / "tmpfs", ignore_errors=True)
            shutil.rmtree(disk / "disk", ignore_errors=True)
        if fnmatch.fnmatch("dcp", chosen.only):
            distributed(chosen, memory, disk)
    finally:
        shutil.rmtree(memory, ignore_errors=True)
        shutil.rmtree(disk, ignore_errors=True)
    return 0


def distributed(chosen, memory, disk):
    half = chosen.mib // 2
    media = [Medium(name, "ranks", half, memory, disk, 8 * chosen.mib) for name in ("cairn", "tmpfs", "disk")]
    other = Medium("tmpfs async", "ranks", half, memory / "other", disk, 0)
    taken = {medium.name: [] for medium in (*media, other)}
    for number in range(-WARM_UP, chosen.rounds):
        for medium in (*media, other):
            found = medium.ask("async" if medium is other else "sync")
            if number >= 0:
                taken[medium.name].append(found)
    loads = rounds(media, "load", chosen.rounds, 1)
    for medium in (*media, other):
        medium.end()
    seconds = {name: [one["seconds"] for one in found] for name, found in taken.items()}
    show(f"dcp.save, 2 x {half} MiB, sync", seconds, "s", None, "cairn", "tmpfs", is_more_better=False)
    show("... / async_save on tmpfs, blocking", seconds, "s", 1.2, "cairn", "tmpfs async", is_more_better=False)
    show("dcp.load", {name: [one["seconds"] for one in found] for name, found in loads.items()}, "s", 1.0, "cairn", "tmpfs",
         is_more_better=False)
    done = statistics.median(one["done_s"] for one in taken["tmpfs async"])
    print(f"async_save on tmpfs is done after {done:.2f} s")
    for name, found in taken.items():
        growth = statistics.median(one["growth"] / one["before"] for one in found)
        print(f"RssAnon of rank 0 during a save on {name}: +{100 * growth:.0f} %")


def rounds(media, order, count, warm_up):
    taken = {medium.name: [] for medium in media}
    for number in range(-warm_up, count):
        for medium in media:
            found = medium.ask(order)
            if number >= 0:
                taken[medium.name].append(found)
    return taken


def show(what, taken, unit, bar, ours, theirs, is_more_better):
    ratios = [one / other for one, other in zip(taken[ours], taken[theirs])]
    ratio = statistics.median(ratios)
    medians = [f"{statistics.median(taken[name]):8.3f}" if name in taken else " " * 8 for name in ("cairn", "tmpfs", "disk")]
    if theirs not in ("tmpfs", "disk"):
        medians[1] = f"{statistics.median(taken[theirs]):8.3f}"
    verdict = ""
    if bar is not None:
        verdict = f"  {bar:.1f}x {'met' if (ratio >= bar if is_more_better else ratio <= bar) else 'MISSED'}"
    print(f"{what:36} {' '.join(medians)} {unit:4} {ratio:6.2f}x [{min(ratios):5.2f}, {max(ratios):5.2f}]{verdict}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
