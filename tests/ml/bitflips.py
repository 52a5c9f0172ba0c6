#!/usr/bin/env python3
"""Flips bits in shards of a distributed checkpoint, and asks whether Cairn finds each.

    tests/ml/bitflips.py [--flips N] [--seed N]

Half of the flips (default: 50 and 50) are in the store's memory, the others in the drained files. After
each one `cairn verify` must name the damaged file and end with 1. After all of them, with every bit back,
nothing is damaged. (A program that reads a file from memory compares no checksum: docs/FAULTS.md. A run
that resumes compares the newest checkpoint before its program starts.)

The binaries are in CAIRN_BIN, else in target/release. Exit code: 0, or 1 if a flip was not found. Shares
no code with Cairn. Needs no torch: the shards are random bytes under the names that
torch.distributed.checkpoint gives them.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BINARIES = Path(os.environ.get("CAIRN_BIN", Path(__file__).resolve().parents[2] / "target/release")).resolve()
SHARDS, BYTES = 8, 1 << 20
LIMIT_S = 120


class Job:
    """A job with one checkpoint of shards, in its store and drained."""

    def __init__(self, chance):
        self.box = Path(tempfile.mkdtemp(prefix="cairn-flips."))
        self.stores = Path(tempfile.mkdtemp(prefix="cairn-flips.", dir="/dev/shm"))
        self.persist = self.box / "persist"
        self.persist.mkdir()
        self.shards = {f"ckpt/step-1/__{rank}_0.distcp": chance.randbytes(BYTES) for rank in range(SHARDS)}
        for name, content in self.shards.items():
            (self.box / Path(name).name).write_bytes(content)
        script = f"mkdir -p /cairn/ckpt/step-1; cp {self.box}/*.distcp /cairn/ckpt/step-1/; echo > /cairn/ckpt/step-1/.metadata; exit 3"
        ran = self.cairn("run", "--job", "job", "--persist", self.persist, "--tier", "ram:64M", "--", "bash", "-c", script)
        assert ran.returncode == 3, ran.stderr

    def cairn(self, *words):
        environment = dict(os.environ, CAIRN_STORE_ROOT=str(self.stores))
        return subprocess.run([BINARIES / "cairn", *words], env=environment, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False)

    def remove(self):
        self.cairn("rm", "job", "--discard")
        shutil.rmtree(self.box)
        shutil.rmtree(self.stores)


def flip(path, offset, bit):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def in_store(job, chance):
    """Returns where the store has a random byte of a shard, and the shard."""
    name = chance.choice(list(job.shards))
    at = chance.randrange(BYTES)
    # Blocks are contiguous: the 64 bytes from a multiple of 64 on are side by side.
    start = at - at % 64
    pieces = job.shards[name][start:start + 64]
    for path in job.stores.rglob("*.ram*"):
        place = path.read_bytes().find(pieces)
        if place >= 0:
            return path, place + at - start, name
    raise AssertionError(f"{name} is not in memory at {at}")


def missed(job, chance, in_memory):
    """Flips one bit and back; returns what Cairn did wrong, or None."""
    if in_memory:
        path, offset, name = in_store(job, chance)
        command = ["verify", "--job", "job"]
    else:
        name = chance.choice(list(job.shards))
        path, offset, command = job.persist / name, chance.randrange(BYTES), ["verify", "--persist", job.persist]
    bit = chance.randrange(8)
    flip(path, offset, bit)
    try:
        ran = job.cairn(*command)
        if ran.returncode != 1 or name not in ran.stdout + ran.stderr:
            return f"{' '.join(map(str, command))}: {ran.returncode} after bit {bit} of {path} at {offset} was flipped: {ran.stdout}{ran.stderr}"
        return None
    finally:
        flip(path, offset, bit)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    chance = random.Random(chosen.seed)
    job = Job(chance)
    try:
        wrong = [missed(job, chance, index % 2 == 0) for index in range(chosen.flips)]
        wrong = [one for one in wrong if one]
        for command in (["verify", "--job", "job"], ["verify", "--persist", job.persist]):
            ran = job.cairn(*command)
            if ran.returncode != 0:
                wrong.append(f"damaged after all bits are back: {ran.stdout}{ran.stderr}")
    finally:
        job.remove()
    for one in wrong:
        print(one)
    print(f"{chosen.flips} bits flipped, {chosen.flips - len(wrong)} found")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
