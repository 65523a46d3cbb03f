"""Exported runs, and the logits that the lab and transformers compute."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from electra_lab.assembly.networks import OpenedModel, build_networks
from electra_lab.pretrained.opening import open_model
from tests.electra_lab.jobs.pretraining.tiny import experiment, run

TRAIN = "{steps: 12, batch_size: 4, precision: fp32, log_every: 5, learning_rate: 0.1}"
CPU = torch.device("cpu")
SHAPES = [(1, 1), (2, 7), (3, 16), (2, 48)]  # (rows, tokens): every backbone that pads has to pad one


def finished(folder: Path, **sections: str) -> Path:
    """Train a tiny pair that reads up to 48 tokens, with checkpoints after steps 8 and 12.

    The learning rate makes weights large: with initial weights, attention is nearly uniform, which hides mistakes.
    """
    settings = {"embedding": "{dim: 8, max_length: 48}", "train": TRAIN}
    return run(experiment(folder, **(settings | sections)), folder / "run")


def opened(path: Path, step: int | None = None) -> OpenedModel:
    return build_networks(open_model(path, step=step), CPU)


def inputs(size: int, rows: int, length: int) -> dict[str, Tensor]:
    """Return tokens with padding at the end of all rows but the first, and segments."""
    tokens = torch.randint(5, size, (rows, length), generator=torch.Generator().manual_seed(length))
    mask = (torch.arange(length) < (length - torch.arange(rows) * (length // rows)).unsqueeze(1)).long()
    return {"input_ids": tokens * mask, "attention_mask": mask, "token_type_ids": tokens % 2 * mask}


@torch.no_grad()
def states(network: Any, given: dict[str, Tensor]) -> Tensor:
    """Return the lab's states."""
    found: Tensor = network.hidden(given["input_ids"], given["attention_mask"].bool(), given["token_type_ids"])
    return found


@torch.no_grad()
def logits(network: Any, given: dict[str, Tensor]) -> Tensor:
    """Return the lab's logits of the network's head."""
    hidden = states(network, given)
    if "replaced" in network.heads:
        return network.replaced_logits(hidden)
    return network.token_logits(hidden, torch.arange(hidden.shape[1]).expand(hidden.shape[:2]))


def assert_close(theirs: Tensor, ours: Tensor, given: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    """Compare results at real positions: those of padding are arbitrary."""
    real = given["attention_mask"].bool()
    assert theirs.shape == ours.shape
    assert torch.isfinite(ours[real]).all()
    torch.testing.assert_close(theirs[real], ours[real], rtol=0, atol=tolerance)
