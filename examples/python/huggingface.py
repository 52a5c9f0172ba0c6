"""transformers Trainer on Cairn: resumes from the newest complete checkpoint, and marks each save.

    cairn run --job train --persist results -- python3 huggingface.py /cairn/run 6

The directory and the number of steps are the arguments. Also runs without Cairn, in any directory.
"""

import sys

import torch
import transformers

import cairn


class MarkSaves(transformers.TrainerCallback):
    """The files that the Trainer writes between the end of a step and `on_save` are one checkpoint."""

    def on_step_end(self, args, state, control, **_):
        if control.should_save:
            cairn.begin(state.global_step, "trainer")

    def on_save(self, args, state, control, **_):
        cairn.end(state.global_step, "trainer")


class Net(transformers.PreTrainedModel):
    config_class = transformers.PretrainedConfig

    def __init__(self, config):
        super().__init__(config)
        self.layer = torch.nn.Linear(16, 16)
        self.post_init()

    def forward(self, x, labels=None):
        out = self.layer(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}


def main(directory, steps):
    data = [{"x": torch.full((16,), float(index)), "labels": torch.zeros(16)} for index in range(64)]
    arguments = transformers.TrainingArguments(
        output_dir=directory, max_steps=steps, save_steps=2, save_total_limit=2, use_cpu=True, report_to="none", disable_tqdm=True)
    model = Net(transformers.PretrainedConfig())
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data, callbacks=[MarkSaves()])

    newest = transformers.trainer_utils.get_last_checkpoint(directory) if trainer.is_world_process_zero() else None
    print("resuming from", newest)
    trainer.train(resume_from_checkpoint=newest)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
