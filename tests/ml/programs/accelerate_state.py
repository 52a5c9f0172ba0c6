"""accelerate: save_state with automatic names, load_state of the newest."""

import os
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from record import record

directory, steps = sys.argv[1], int(sys.argv[2])


class Steps:
    """Number of the step, part of the state."""

    step = 0

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


torch.manual_seed(1)
model = torch.nn.Linear(512, 2048)
optimizer = torch.optim.AdamW(model.parameters())
steps_done = Steps()
accelerator = Accelerator(cpu=os.environ["ML_DEVICE"] == "cpu", project_config=ProjectConfiguration(
    project_dir=directory, automatic_checkpoint_naming=True, total_limit=3))
model, optimizer = accelerator.prepare(model, optimizer)
accelerator.register_for_checkpointing(steps_done)

saves = os.path.join(directory, "checkpoints")
if os.environ.get("ML_ASIDE"):  # What docs/howto/huggingface.md adds.
    import cairn
    cairn.set_unfinished_aside(saves, "checkpoint_*")
names = [name for name in os.listdir(saves) if name.startswith("checkpoint_")] if os.path.isdir(saves) else []
if names:
    accelerator.load_state()  # The newest by its number.
    accelerator.project_configuration.iteration = max(int(name.rpartition("_")[2]) for name in names) + 1


def state():
    return [model.state_dict(), optimizer.state_dict()["state"]]


record("resumed", steps_done.step, state())
while steps_done.step < steps:
    steps_done.step += 1
    x = torch.full((4, 512), float(steps_done.step % 97), device=accelerator.device)
    loss = model(x).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.save_state()
    record("saved", steps_done.step, state())
