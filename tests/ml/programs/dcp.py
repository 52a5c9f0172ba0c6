"""torch.distributed.checkpoint on two ranks: MODE is sync, thread or process.

The newest directory with .metadata counts.
"""

import os
import shutil
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from record import record
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType


def main(directory, steps, mode):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    device = os.environ["ML_DEVICE"]
    model = torch.nn.Linear(512, 1024).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    os.makedirs(directory, exist_ok=True)
    found = [name for name in os.listdir(directory) if os.path.exists(f"{directory}/{name}/.metadata")]
    step = max((int(name[5:]) for name in found), default=0)
    agreed = [None, None]
    dist.all_gather_object(agreed, step)
    step = min(agreed)

    def train():
        model(torch.full((4, 512), float(step % 97), device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def state():
        moments = {f"{index}.{name}": value for index, kept in optimizer.state_dict()["state"].items()
                   for name, value in kept.items()}
        return {f"rank{rank}": {"model": model.state_dict(), "moments": moments}, "step": step}

    if step:
        train()  # The optimizer has its moments from the first step on.
        loaded = state()
        dcp.load(loaded, checkpoint_id=f"{directory}/step-{step}")
        mine = loaded[f"rank{rank}"]
        model.load_state_dict(mine["model"])
        whole = optimizer.state_dict()
        for index, kept in whole["state"].items():
            kept.update({name: mine["moments"][f"{index}.{name}"] for name in kept})
        optimizer.load_state_dict(whole)
        assert loaded["step"] == step, loaded["step"]
    if rank == 0:
        record("resumed", step, state())
    while step < steps:
        step += 1
        train()
        path = f"{directory}/step-{step}"
        if mode == "sync":
            if rank == 0 and os.path.exists(path):
                shutil.rmtree(path)
            dist.barrier()
            dcp.save(state(), checkpoint_id=path)
        else:
            dcp.async_save(state(), checkpoint_id=path, async_checkpointer_type=AsyncCheckpointerType[mode.upper()]).result()
        dist.barrier()
        if rank == 0:
            record("saved", step, state())
            shutil.rmtree(f"{directory}/step-{step - 3}", ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
