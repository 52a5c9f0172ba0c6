"""Lightning on Cairn: a checkpoint plug-in that marks each save and leaves out $TMPDIR.

    cairn run --job train --persist results -- python3 lightning_fit.py /cairn/run 6

The directory and the number of steps are the arguments. Also runs without Cairn, in any directory.
"""

import os
import sys

import lightning
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

import cairn


class CairnIO(TorchCheckpointIO):
    """Writes beside the checkpoint and renames once. Lightning's own writer copies from $TMPDIR."""

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with cairn.checkpoint(checkpoint["global_step"], os.path.basename(path)):
            torch.save(checkpoint, f"{path}.unfinished")
            os.replace(f"{path}.unfinished", path)


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)

    def training_step(self, batch, index):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


def main(directory, steps):
    data = torch.utils.data.DataLoader([torch.full((16,), float(index)) for index in range(4 * steps)], batch_size=4)
    save = lightning.pytorch.callbacks.ModelCheckpoint(
        dirpath=directory, every_n_train_steps=2, save_top_k=2, monitor="step", mode="max", save_last=True)
    last = os.path.join(directory, "last.ckpt")
    newest = last if os.path.exists(last) else None
    print("resuming from", newest)
    trainer = lightning.Trainer(max_steps=steps, accelerator="cpu", devices=1, callbacks=[save], plugins=[CairnIO()],
                                logger=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Net(), data, ckpt_path=newest)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
