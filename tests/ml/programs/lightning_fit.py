"""Lightning: ModelCheckpoint with save_last, resumed by ckpt_path="last"."""

import logging
import os
import sys
import warnings

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from record import record

directory, steps = sys.argv[1], int(sys.argv[2])
warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(512, 2048)

    def training_step(self, batch, index):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * steps

    def __getitem__(self, index):
        return torch.full((512,), float(index % 97))


def tell(what, trainer, module):
    record(what, trainer.global_step, [module.state_dict(), trainer.optimizers[0].state_dict()["state"]])


class Save(ModelCheckpoint):
    def _save_checkpoint(self, trainer, path):
        super()._save_checkpoint(trainer, path)
        if "last" in path:  # Written after the numbered one of the same step.
            tell("saved", trainer, trainer.lightning_module)


class Begin(Callback):
    def on_train_start(self, trainer, module):
        tell("resumed", trainer, module)


torch.manual_seed(1)
save = Save(dirpath=directory, filename="{epoch}-{step}", every_n_train_steps=1, save_top_k=3, monitor="step", mode="max",
            save_last=True)
trainer = lightning.Trainer(
    max_steps=steps, accelerator=os.environ["ML_DEVICE"].replace("cuda", "gpu"), devices=1, callbacks=[Begin(), save],
    logger=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=os.environ.get("TMPDIR", "/tmp"))
has_last = os.path.isdir(directory) and any(name.startswith("last") for name in os.listdir(directory))
trainer.fit(Net(), torch.utils.data.DataLoader(Data(), batch_size=4), ckpt_path="last" if has_last else None)
