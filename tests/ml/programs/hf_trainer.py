"""transformers Trainer: resumes from the newest checkpoint-N of its output directory."""

import os
import sys

import torch
from record import record
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

directory, steps = sys.argv[1], int(sys.argv[2])


class Net(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self, config):
        super().__init__(config)
        self.first = torch.nn.Linear(256, 2048)
        self.second = torch.nn.Linear(2048, 256)
        self.post_init()

    def forward(self, x, labels=None):
        out = self.second(torch.relu(self.first(x)))
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        x = torch.full((256,), float(index % 97))
        return {"x": x, "labels": x / 2}


class Record(TrainerCallback):
    def tell(self, what, state, model, optimizer):
        moments = [optimizer.state[one] for group in optimizer.param_groups for one in group["params"]]
        record(what, state.global_step, [model.state_dict(), moments])

    def on_train_begin(self, args, state, control, model=None, optimizer=None, **_):
        self.tell("resumed", state, model, optimizer)

    def on_save(self, args, state, control, model=None, optimizer=None, **_):
        self.tell("saved", state, model, optimizer)


if os.environ.get("ML_ASIDE"):  # What docs/howto/huggingface.md adds.
    import cairn
    cairn.set_unfinished_aside(directory, "checkpoint-*")

torch.manual_seed(1)
arguments = TrainingArguments(
    output_dir=directory, max_steps=steps, save_steps=1, save_total_limit=3, per_device_train_batch_size=4,
    logging_strategy="no", report_to="none", use_cpu=os.environ["ML_DEVICE"] == "cpu", disable_tqdm=True, ignore_data_skip=True,
    lr_scheduler_type="constant",
)
trainer = Trainer(model=Net(PretrainedConfig()), args=arguments, train_dataset=Data(), callbacks=[Record()])
os.makedirs(directory, exist_ok=True)
trainer.train(resume_from_checkpoint=get_last_checkpoint(directory) is not None)
