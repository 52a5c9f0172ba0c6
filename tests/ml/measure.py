"""Measures saves and loads in a directory, on demand. Started by bench.py, which says when.

    measure.py single DIR MIB       one process; orders: save, save-nocrc, keep, load
    measure.py ranks DIR MIB        two ranks with MIB each; orders: sync, async, load

Reads an order a line from standard input and answers with one line of JSON: seconds, and for ranks
the growth of RssAnon, in bytes, of rank 0. `save` replaces the file of the save before; `keep` makes
a new one.
"""

import json
import os
import sys
import threading
import time

import torch

MIB = 1 << 20
DEVICE = os.environ["ML_DEVICE"]


def anonymous():
    """Returns the RssAnon of this process, bytes."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


class Peak:
    """Highest RssAnon while it is open, sampled every 2 ms."""

    def __enter__(self):
        self.begin = self.highest = anonymous()
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self):
        while not self.is_over.wait(0.002):
            self.highest = max(self.highest, anonymous())

    def __exit__(self, *_):
        self.highest = max(self.highest, anonymous())
        self.is_over.set()
        self.thread.join()


def single(directory, mib):
    state = tensors(mib)
    path, kept = f"{directory}/last.pt", 0
    for order in map(str.strip, sys.stdin):
        begun = time.perf_counter()
        if order == "load":
            found = torch.load(path, map_location=DEVICE)
            assert len(found) == 8
            settle()
        elif order == "keep":
            kept += 1
            torch.save(state, f"{directory}/kept-{kept}.pt")
        else:
            torch.serialization.set_crc32_options(order != "save-nocrc")
            torch.save(state, f"{path}.unfinished")
            os.replace(f"{path}.unfinished", path)
        answer(seconds=time.perf_counter() - begun)


def ranks(directory, mib):
    import shutil

    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    rank = int(os.fork() == 0)
    if rank:
        sys.stdin = open(os.devnull)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["MEASURE_PORT"], RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo")
    state = {f"rank{rank}": tensors(mib)}
    last = None
    while True:
        order = [sys.stdin.readline().strip() if rank == 0 else None]
        dist.broadcast_object_list(order, 0)
        if not order[0]:
            dist.destroy_process_group()
            return
        path = f"{directory}/step-{1 if last != 1 else 2}"
        if order[0] != "load" and rank == 0:
            shutil.rmtree(path, ignore_errors=True)
        dist.barrier()
        done_s = None
        with Peak() as peak:
            begun = time.perf_counter()
            if order[0] == "load":
                dcp.load(state, checkpoint_id=f"{directory}/step-{last}")
                settle()
            elif order[0] == "sync":
                dcp.save(state, checkpoint_id=path)
            else:
                saving = dcp.async_save(state, checkpoint_id=path)
            taken_s = time.perf_counter() - begun
            if order[0] == "async":
                saving.result()
                done_s = time.perf_counter() - begun
        if order[0] != "load":
            last = 1 if last != 1 else 2
        dist.barrier()
        if rank == 0:
            answer(seconds=taken_s, done_s=done_s, growth=peak.highest - peak.begin, before=peak.begin)


def tensors(mib):
    return {f"part{index}": torch.rand(mib * MIB // 4 // 8, device=DEVICE) for index in range(8)}


def settle():
    """Waits until what was copied to the GPU is there."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def answer(**found):
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.makedirs(sys.argv[2], exist_ok=True)
    {"single": single, "ranks": ranks}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
