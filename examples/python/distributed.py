"""torch.distributed.checkpoint on Cairn, synchronous: no second copy in memory, no thread.

    cairn run --job train --persist results -- torchrun --nproc-per-node=2 distributed.py /cairn/run 6

The directory and the number of steps are the arguments. Also runs without Cairn, in any directory.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import cairn.torch


def main(directory, steps):
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    state = {f"rank{dist.get_rank()}": torch.rand(1000), "step": 0}

    os.makedirs(directory, exist_ok=True)
    whole = [name for name in os.listdir(directory) if os.path.exists(f"{directory}/{name}/.metadata")]
    dist.barrier()
    newest = max(whole, key=lambda name: int(name[4:]), default=None)
    print("resuming from", newest)
    if newest:
        dcp.load(state, storage_reader=cairn.torch.Reader(f"{directory}/{newest}"))
    for step in range(state["step"] + 1, steps + 1):
        state["step"] = step
        dcp.save(state, checkpoint_id=f"{directory}/step{step}", storage_writer=cairn.torch.Writer())
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
