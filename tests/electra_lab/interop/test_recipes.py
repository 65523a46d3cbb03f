"""Scripts written for electra-pytorch and mlm-pytorch run with only the import line changed.

They make the same calls as those packages' READMEs and as the course note with the Reformer example.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

LINES = {name: f"from electra_lab.interop.electra_pytorch import {name}" for name in ("Electra", "MLM")}

REFORMERS = """
import torch
from torch import nn
from reformer_pytorch import ReformerLM

{Electra}

sizes = dict(num_tokens=200, emb_dim=16, dim_head=8, depth=2, max_seq_len=128)
generator = ReformerLM(dim=16, heads=2, ff_mult=2, **sizes)
discriminator = ReformerLM(dim=32, heads=4, ff_mult=4, return_embeddings={alone}, **sizes)

generator.token_emb = discriminator.token_emb
generator.pos_emb = discriminator.pos_emb

{trainer}

optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-3)
for _ in range(2):
    data = torch.randint(0, 200, (1, 128))
    results = trainer(data)
    results.loss.backward()
    optimizer.step()
    optimizer.zero_grad()

torch.save(discriminator, './pretrained-model.pt')
"""

# The README's first recipe and the course note's, and the README's second one.
IDS = "mask_token_id = 2, pad_token_id = 0, mask_prob = 0.15, mask_ignore_token_ids = []"
BY_HOOK = f"trainer = Electra(generator, discriminator, discr_dim = 32, discr_layer = 'reformer', {IDS})"
BY_HAND = f"""
discriminator_with_adapter = nn.Sequential(discriminator, nn.Linear(32, 1))
trainer = Electra(generator, discriminator_with_adapter, {IDS})
"""

# mlm-pytorch's README, on the CPU.
MASKED = """
import torch
from torch.optim import Adam
from x_transformers import TransformerWrapper, Encoder

{MLM}

transformer = TransformerWrapper(num_tokens=200, max_seq_len=64, attn_layers=Encoder(dim=32, depth=2, heads=2))

trainer = MLM(transformer, replace_prob = 0.90, {ids})
opt = Adam(trainer.parameters(), lr=3e-4)

data = torch.randint(0, 200, (8, 64))
losses = []
for _ in range(10):
    loss = trainer(data)
    loss.backward()
    opt.step()
    opt.zero_grad()
    losses.append(loss.item())

torch.save(transformer, './pretrained-model.pt')
"""


def run(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **words: object) -> Any:
    monkeypatch.chdir(folder)
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    for word, value in {**LINES, **words}.items():
        script = script.replace(f"{{{word}}}", str(value))
    exec(script, names)
    return names


@pytest.mark.parametrize("trainer", [BY_HOOK, BY_HAND], ids=["by hook", "by hand"])
def test_reformers(trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run(REFORMERS, tmp_path, monkeypatch, trainer=trainer, alone=trainer == BY_HAND)
    assert names["results"].loss.isfinite()
    assert names["results"].disc_labels.shape == names["results"].disc_predictions.shape == (1, 128)
    saved = torch.load(tmp_path / "pretrained-model.pt", weights_only=False)
    assert saved.state_dict().keys() == names["discriminator"].state_dict().keys()


def test_masked_language_modelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = run(MASKED, tmp_path, monkeypatch, ids=IDS)["losses"]
    assert losses[-1] < losses[0]
