"""Equal parts of two experiments start from equal weights."""

from itertools import combinations
from pathlib import Path

import pytest
import torch
from torch import Tensor

from electra_lab.assembly.build import build
from electra_lab.config.load import Loaded, load
from electra_lab.data.vocabulary import stand_in_vocabulary
from electra_lab.jobs.sweeps.file import load_ablation
from tests.helpers import ROOT, write_experiment

ABLATIONS = sorted((ROOT / "experiments" / "ablations").glob("*.yaml"))
# Ablations at full size have counterparts at a small one, so they are slow tests.
FILES = [pytest.param(f, id=f.stem, marks=[pytest.mark.slow] * f.stem.endswith("_full")) for f in ABLATIONS]
Weights = dict[str, Tensor]


def weights(loaded: Loaded, seed: int | None = None) -> Weights:
    """Every parameter by network and name; shared ones under both networks."""
    torch.manual_seed(torch.seed())  # earlier draws must not matter
    made = build(loaded, stand_in_vocabulary(200), seed=loaded.config.seed if seed is None else seed)
    own = made.networks | {"objective": made.learner.objective}
    return {
        f"{network}.{name}": parameter.detach()
        for network, module in own.items()
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if network != "objective" or name.partition(".")[0] not in made.networks
    }


def unlike(one: Weights, other: Weights) -> list[str]:
    """Return the parameters of equal network, name and shape that differ."""
    both = one.keys() & other.keys()
    return sorted(n for n in both if one[n].shape == other[n].shape and not torch.equal(one[n], other[n]))


@pytest.mark.parametrize("file", FILES)
def test_the_variants_of_every_shipped_ablation_are_paired(file: Path) -> None:
    """Regardless of sharing and variation. Exceptions: a generator's own table, which depends on `tie`, and a single
    layer that both networks share.
    """
    one_layer = ["discriminator.depth=1"] if "_full" in file.stem and file.stem != "backbones_full" else []
    ablation = load_ablation(file, one_layer)
    found = {label: weights(ablation.loaded[cell.id]) for label, cell in ablation.firsts.items()}
    ties = {label: ablation.loaded[cell.id].config.embedding.tie for label, cell in ablation.firsts.items()}
    single = [label for label, tie in ties.items() if hasattr(tie, "layers")]
    of_generators = {
        value.data_ptr() for label in single for name, value in found[label].items() if "generator." in name
    }
    for (one, ones), (other, others) in combinations(found.items(), 2):
        differing = [n for n in unlike(ones, others) if not n.startswith("generator.embeddings.")]
        if "embedding.tie=all" in (one, other):  # the generator's encoder is the discriminator's there
            differing = [n for n in differing if n.startswith("discriminator.")]
        for label in {one, other}.intersection(single):
            differing = [n for n in differing if found[label][n].data_ptr() not in of_generators]
        assert differing == [], f"{one}, {other}"


def test_the_discriminators_table_starts_equal_however_it_is_tied(tmp_path: Path) -> None:
    tables = []
    for tie in ("none", "tokens", "embeddings", "gradient_disentangled"):
        loaded = load(write_experiment(tmp_path, embedding=f"{{dim: 16, max_length: 16, tie: {tie}}}"))
        tables.append(build(loaded, stand_in_vocabulary(200), seed=0).model.embeddings.tokens.weight)
    assert all(torch.equal(tables[0], table) for table in tables)


def test_seeds_networks_names_and_shapes_have_weights_of_their_own(tmp_path: Path) -> None:
    sizes = {"discriminator": "{type: bert, dim: 16, depth: 2, heads: 2}", "generator": "{type: bert, scale: 1.0}"}
    loaded = load(write_experiment(tmp_path, embedding="{dim: 8, max_length: 16, tie: none}", **sizes))
    first, again, other = weights(loaded), weights(loaded), weights(loaded, seed=1)  # each after different draws
    matrices = [name for name, value in first.items() if value.ndim > 1]
    assert not unlike(first, again)
    assert not {name for name in matrices if torch.equal(first[name], other[name])}
    values: dict[bytes, str] = {}
    for name in matrices:
        assert values.setdefault(first[name].numpy().tobytes(), name) == name, "two parts have the same weights"


OWN = """
import torch
from torch import nn
from registry import Backbone, backbones


@backbones.register("own_draws", initialized_by_lab=True)
class OwnDraws(Backbone, nn.Module):
    'Draws a table of its own while it is built.'

    def __init__(self, dim, depth, heads, max_length, /, *, extra: int = 0):
        super().__init__()
        self.free = nn.Parameter(torch.randn(3, dim))
        self.extra = nn.Parameter(torch.randn(extra, dim))
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))

    def forward(self, x, attention_mask):
        return x + self.free.mean() + self.extra.sum()
"""


def test_what_a_component_draws_itself_does_not_depend_on_the_other_network(tmp_path: Path) -> None:
    def drawn(extra: int, its_extra: int) -> Weights:
        discriminator = f"{{type: own_draws, dim: 16, depth: 1, heads: 2, extra: {extra}}}"
        generator = f"{{type: own_draws, scale: 1.0, extra: {its_extra}}}"
        sections = {"imports": "[own.py]", "discriminator": discriminator, "generator": generator}
        return weights(load(write_experiment(tmp_path, **sections)))

    (tmp_path / "own.py").write_text(OWN)
    first, other_generator, other_discriminator = drawn(1, 1), drawn(1, 5), drawn(5, 1)
    assert not unlike(first, other_generator)
    assert not unlike(first, other_discriminator)
    assert not torch.equal(first["discriminator.backbone.free"], first["generator.backbone.free"])


def test_parts_of_the_objective_are_paired_too(tmp_path: Path) -> None:
    sections = {"objective": "{type: all_tokens_mlm}"}
    half, whole = (
        weights(load(write_experiment(tmp_path, generator=f"{{type: bert, scale: {scale}}}", **sections)))
        for scale in (0.5, 1.0)
    )
    assert half["objective.copy.weight"].equal(whole["objective.copy.weight"])
