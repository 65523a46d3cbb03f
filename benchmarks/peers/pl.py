"""Lightning, checkpointing and resuming as its documentation does: ModelCheckpoint, and ckpt_path="last"."""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch
from safetensors.torch import save_file
from torch.utils.data import DataLoader

from benchmarks.peers.tiny import EVERY, KEEP, ROWS, STEPS, Tiny, rows

MODULES = ("torch", "lightning.pytorch", "lightning.pytorch.callbacks")
CHECKPOINT = "epoch=*-step={}.ckpt"
CONFIG = f"""\
max_steps: {STEPS}
gradient_clip_val: 1.0
accumulate_grad_batches: 1
log_every_n_steps: 1
accelerator: cpu
logger: false
enable_progress_bar: false
enable_model_summary: false
"""


def module() -> Any:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.tiny = Tiny()

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            return self.tiny(**batch)["loss"]  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    return Module()


def data() -> Any:
    return DataLoader(rows(), batch_size=ROWS, shuffle=True)  # type: ignore[arg-type]


def train(out: str, result: str) -> int:
    """Train, from the last checkpoint if there is one; then save the weights as `result`."""
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint

    warnings.filterwarnings("ignore")
    pl.seed_everything(0, verbose=False)
    saving = ModelCheckpoint(
        dirpath=os.path.join(out, "checkpoints"), every_n_train_steps=EVERY, monitor="step", mode="max",
        save_top_k=KEEP, save_last=True, save_on_exception=True,
    )  # fmt: skip
    trainer = pl.Trainer(
        max_steps=STEPS, callbacks=[saving], default_root_dir=out, accelerator="cpu", devices=1, logger=False,
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1,
    )  # fmt: skip
    trained = module()
    trainer.fit(trained, data(), ckpt_path="last")
    if trainer.interrupted or trainer.global_step < STEPS:
        return 130 if trainer.interrupted else 75
    save_file({name: value.contiguous() for name, value in trained.state_dict().items()}, result)
    return 0


def configured(file: str) -> int:
    """Train as a YAML file says, with the library's own argument parser (LightningCLI uses it)."""
    import lightning.pytorch as pl
    from jsonargparse import ArgumentParser

    parser = ArgumentParser()
    parser.add_class_arguments(pl.Trainer, None)
    given = parser.parse_path(file)
    pl.Trainer(**parser.instantiate_classes(given).as_dict()).fit(module(), data())
    return 0
