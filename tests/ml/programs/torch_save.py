"""torch.save to a new name, a rename, torch.load(mmap=True) of the newest.

Two DataLoader workers make the batches.
"""

import os
import sys

import torch
from record import record

directory, steps, device = sys.argv[1], int(sys.argv[2]), os.environ["ML_DEVICE"]


class Data(torch.utils.data.Dataset):
    def __init__(self, first):
        self.first = first

    def __len__(self):
        return steps - self.first

    def __getitem__(self, index):
        return torch.full((512,), float((self.first + index) % 97))


def state():
    return [model.state_dict(), optimizer.state_dict()["state"]]


if __name__ == "__main__":
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = torch.nn.Linear(512, 2048).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    os.makedirs(directory, exist_ok=True)
    names = [name for name in os.listdir(directory) if name.endswith(".pt")]
    step = max((int(name[5:-3]) for name in names), default=0)
    if step:
        saved = torch.load(f"{directory}/step-{step}.pt", mmap=True, map_location="cpu")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        assert saved["step"] == step
    record("resumed", step, state())
    for batch in torch.utils.data.DataLoader(Data(step), num_workers=2):
        step += 1
        model(batch.to(device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        path = f"{directory}/step-{step}.pt"
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{path}.tmp")
        os.replace(f"{path}.tmp", path)
        record("saved", step, state())
        if os.path.exists(f"{directory}/step-{step - 3}.pt"):
            os.remove(f"{directory}/step-{step - 3}.pt")
