"""What people do with a loaded model: another head, more tokens, half the precision."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import electra_lab.interop.hugging_face  # noqa: F401  # registers the classes
from electra_lab.interop.hugging_face import models
from electra_lab.model.initialise import STANDARD_DEVIATION
from registry import backbones
from tests.electra_lab.export.exports import inputs

BACKBONES: dict[str, dict[str, Any]] = {
    "bert": {},
    "transformer": {"rmsnorm": True},
    "performer": {"local_heads": 1, "window": 4},
    "reformer": {"bucket_size": 4},
}


def config(kind: str, **more: Any) -> models.ElectraLabConfig:
    backbone = {"type": kind, "dim": 32, "depth": 1, "heads": 2} | BACKBONES.get(kind, {})
    embedding = {"dim": 16, "max_length": 32, "dropout": 0.0}
    return models.ElectraLabConfig(vocab_size=50, backbone=backbone, embedding=embedding, **more)


@pytest.fixture
def memory_holds_nan() -> Iterator[None]:
    """Fill what nobody set with NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("memory_holds_nan")
@pytest.mark.parametrize("kind", BACKBONES)
def test_a_part_that_a_file_lacks_has_what_it_was_built_with(kind: str) -> None:
    """Gains of 1 or, as offsets, of 0; a table that is drawn elsewhere than by `initialise` keeps its draw."""
    torch.manual_seed(0)
    new = models.ElectraLabForMaskedLM(config(kind))
    nothing = {"x": torch.zeros(1)}
    model = models.ElectraLabForMaskedLM.from_pretrained(None, config=config(kind), state_dict=nothing)
    drawn = [n for n, p in model.named_parameters() if p.min() != p.max()]
    for name, parameter in new.named_parameters():
        weight = model.get_parameter(name)
        if name in drawn:
            spread = (2 / sum(weight.shape)) ** 0.5 if "project" in name else STANDARD_DEVIATION  # Glorot's, or normal
            assert weight.std().item() == pytest.approx(spread, rel=0.2 if "heads" in name else 0.5), name
        else:
            assert torch.equal(weight, parameter), name
    assert len(drawn) > 4
    given = inputs(50, 2, 8)
    assert model.eval()(**given).logits[given["attention_mask"].bool()].isfinite().all()


def test_zeros_of_a_library_stay_zeros(tmp_path: Path) -> None:
    with backbones.isolated():

        @backbones.register("zero_output")
        class ZeroOutput(nn.Module):
            length_multiple, positions = 1, "lab"

            def __init__(self, dim: int, depth: int, heads: int, max_length: int, /) -> None:
                super().__init__()
                self.inner, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)
                nn.init.zeros_(self.out.weight)
                self.layers = [self.inner]

            def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
                return x + self.out(self.inner(x))

        nothing = {"x": torch.zeros(1)}
        model = models.ElectraLabModel.from_pretrained(None, config=config("zero_output"), state_dict=nothing)
        with torch.no_grad():
            model.network.backbone.inner.weight.zero_()  # as a fresh page of memory is
        model._init_weights(model.network.backbone.inner)
    assert not model.network.backbone.out.weight.any()
    assert model.network.backbone.inner.weight.any() or model.network.backbone.inner.weight._is_hf_initialized


@pytest.mark.parametrize("auto", ["MaskedLM", "PreTraining", "SequenceClassification"])
@pytest.mark.parametrize("size", [57, 45])
def test_the_vocabulary_can_grow_and_shrink(tmp_path: Path, auto: str, size: int) -> None:
    torch.manual_seed(0)
    model = getattr(models, f"ElectraLabFor{auto}")(config("bert")).eval()
    head = model.base_model.network.heads["tokens"] if auto == "MaskedLM" else None
    before = nn.init.normal_(head.bias).detach().clone() if head else None
    table = model.resize_token_embeddings(size, mean_resizing=False)
    assert table is model.get_input_embeddings()
    assert model.config.vocab_size == table.num_embeddings == size
    given = inputs(45, 2, 8)
    given["input_ids"][0, 0] = size - 1
    if head:
        assert head.bias.requires_grad
        assert torch.equal(head.bias[:45], before[:45])
        assert not head.bias[50:].any()
        assert model(**given, labels=given["input_ids"]).loss.isfinite()
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(again(**given).logits, model(**given).logits)
    assert model(**given).logits.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["bert", "transformer"])
def test_half_precision(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    models.ElectraLabForPreTraining(config(kind)).save_pretrained(tmp_path)
    kind_of, given = transformers.AutoModelForPreTraining, inputs(50, 2, 8)
    real = given["attention_mask"].bool()
    whole, half = (kind_of.from_pretrained(tmp_path, dtype=each).eval() for each in (torch.float32, dtype))
    assert half(**given).logits.dtype == dtype
    torch.testing.assert_close(half(**given).logits[real].float(), whole(**given).logits[real], rtol=0, atol=0.02)
