"""transformers' Trainer, checkpointing and resuming as its documentation and its examples do."""

from __future__ import annotations

import os
from typing import Any

from safetensors.torch import save_file

from benchmarks.peers.tiny import EVERY, KEEP, ROWS, STEPS, Tiny, rows

MODULES = ("torch", "accelerate", "transformers", "transformers.trainer", "transformers.trainer_utils")
CHECKPOINT = "checkpoint-{}"
CONFIG = f"""\
output_dir: out
max_steps: {STEPS}
per_device_train_batch_size: {ROWS}
save_steps: {EVERY}
save_total_limit: {KEEP}
logging_steps: 1
learning_rate: 0.001
warmup_steps: 2
weight_decay: 0.01
max_grad_norm: 1.0
use_cpu: true
disable_tqdm: true
report_to: none
"""


def train(out: str, result: str) -> int:
    """Train, from the last checkpoint if there is one; then save the weights as `result`."""
    from transformers import TrainingArguments

    arguments = TrainingArguments(
        output_dir=out, max_steps=STEPS, per_device_train_batch_size=ROWS, save_steps=EVERY, save_total_limit=KEEP,
        logging_steps=1, learning_rate=1e-3, seed=0, use_cpu=True, disable_tqdm=True, report_to="none",
        **jit(),
    )  # fmt: skip
    return _train(arguments, result)


def configured(file: str) -> int:
    """Train as a YAML file says, with the library's own argument parser."""
    from transformers import HfArgumentParser, TrainingArguments

    (arguments,) = HfArgumentParser(TrainingArguments).parse_yaml_file(os.path.abspath(file))  # type: ignore[arg-type]
    return _train(arguments, "")


def _train(arguments: Any, result: str) -> int:
    from transformers import Trainer
    from transformers.trainer_utils import get_last_checkpoint

    trainer = Trainer(model=Tiny(), args=arguments, train_dataset=rows())  # type: ignore[arg-type]
    last = get_last_checkpoint(arguments.output_dir) if os.path.isdir(arguments.output_dir) else None
    trainer.train(resume_from_checkpoint=last)
    if trainer.state.global_step < STEPS:  # a signal stopped it, after it had saved
        return 75
    if result:
        save_file({name: value.contiguous() for name, value in trainer.model.state_dict().items()}, result)  # type: ignore[union-attr]
    return 0


def jit() -> dict[str, Any]:
    """Return the option that saves a checkpoint at SIGTERM, in the releases that have it."""
    from dataclasses import fields

    from transformers import TrainingArguments

    known = {field.name for field in fields(TrainingArguments)}
    return {"enable_jit_checkpoint": True} if "enable_jit_checkpoint" in known else {}
