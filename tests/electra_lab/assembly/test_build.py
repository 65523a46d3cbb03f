"""The builder: shapes and numbers agree, everything is built once, and refusals name the line that caused them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from electra_lab.assembly.build import BERT_VOCABULARY, build, make_optimizer, outline, sketch, vocabulary_size
from electra_lab.assembly.experiment import check
from electra_lab.config.load import load
from electra_lab.data.vocabulary import stand_in_vocabulary
from electra_lab.jobs.pretraining import execute
from electra_lab.planning.memory import shapes_only
from registry import backbones
from registry.errors import BadResult, ConfigError
from tests.helpers import line_of, write_experiment

CONFIGS: dict[str, dict[str, str]] = {
    "bert": {},
    "reformer": {"discriminator": "{type: reformer, dim: 16, depth: 1, heads: 2, bucket_size: 4}"},
    "transformer": {"discriminator": "{type: transformer, dim: 16, depth: 2, heads: 2}"},
    "performer": {"discriminator": "{type: performer, dim: 16, depth: 1, heads: 2}"},
    "one encoder": {"embedding": "{dim: 8, max_length: 16, tie: all}", "generator": "{scale: 1.0}"},
    "disentangled": {"embedding": "{dim: 8, max_length: 16, tie: gradient_disentangled}"},
    "mlm": {"objective": "{type: mlm}", "generator": "null", "sampler": "null"},
    "fixed": {"generator": "{type: unigram}"},
    "gate": {"objective": "{type: all_tokens_mlm}"},
    "adafactor": {"optimizer": "{type: adafactor}"},
}


@pytest.fixture(autouse=True)
def _elsewhere(no_report: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def has_memory(parameter: nn.Parameter) -> bool:
    return not (parameter.is_meta or isinstance(parameter, FakeTensor))


def shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in module.named_parameters()}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_sketch_has_the_sizes_of_what_is_built_and_no_memory(tmp_path: Path, name: str) -> None:
    loaded = load(write_experiment(tmp_path, **CONFIGS[name]), ["train.flops=1e12", "train.steps=null"])
    real = build(loaded, stand_in_vocabulary(200), seed=0)
    computing = outline(loaded, stand_in_vocabulary(200), shapes_only())
    for from_shapes in (sketch(loaded), computing):
        assert from_shapes.flops == real.flops
        assert from_shapes.steps == real.steps > 1
        assert shapes(from_shapes.learner.objective) == shapes(real.learner.objective)
        assert list(from_shapes.networks) == list(real.networks)
        assert not any(has_memory(p) for p in from_shapes.learner.objective.parameters())
    assert all(isinstance(p, FakeTensor) for p in computing.learner.objective.parameters())
    assert all(has_memory(p) for p in real.learner.objective.parameters())
    assert real.model is real.networks["discriminator"]


def test_a_tokenizer_without_a_limit_gets_the_vocabulary_of_bert(tmp_path: Path, monkeypatch) -> None:
    loaded = load(write_experiment(tmp_path))
    assert vocabulary_size(loaded) == 200
    assert sketch(loaded).model.embeddings.tokens.num_embeddings == 200
    monkeypatch.setattr("electra_lab.assembly.build.vocabulary_size", lambda _: None)
    assert sketch(loaded).model.embeddings.tokens.num_embeddings == BERT_VOCABULARY == 30_522


COUNTING = '''
import torch
from registry import Backbone, backbones


@backbones.register("counting")
class Counting(Backbone, torch.nn.Module):
    """Counts how often it is built, and can read numbers or refuse."""

    built = []

    def __init__(self, dim, depth, heads, max_length, /, *, reads: bool = False, refuses: str = ""):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(dim, dim) for _ in range(depth))
        self.built.append(dim)
        if reads:
            assert self.layers[0].weight.sum().item() != 0.5
        if refuses:
            raise {"value": ValueError, "assert": AssertionError, "runtime": RuntimeError}[refuses]("never with me")

    def forward(self, x, attention_mask):
        for layer in self.layers:
            x = x + layer(x)
        return x
'''


def counting(folder: Path, options: str = "", **sections: str) -> tuple[Path, list[int]]:
    """Write an experiment with the backbone above; returns it with the list of widths that are built."""
    (folder / "counting.py").write_text(COUNTING)
    discriminator = f"{{type: counting, dim: 16, depth: 1, heads: 2{options}}}"
    file = write_experiment(
        folder, imports="[counting.py]", discriminator=discriminator, train="{steps: 2, batch_size: 2}", **sections
    )
    load(file)
    built: list[int] = backbones.get("counting").component.built
    built.clear()
    return file, built


def test_networks_are_built_once_for_a_check_and_once_more_for_a_dry_run_or_a_run(tmp_path: Path) -> None:
    """Both networks; before a run, everything is checked from shapes, and plug-ins are tried once with memory."""
    file, built = counting(tmp_path)

    def times(act: Callable[[], object]) -> int:
        built.clear()
        act()
        assert built == [16, 8] * (len(built) // 2)
        return len(built) // 2

    path = tmp_path / "run"
    assert times(lambda: check(load(file))) == 2
    assert times(lambda: execute.dry_run(file, [], None, "cpu", tries=False)) == 3
    assert times(lambda: execute.dry_run(file, [], None, "cpu")) == 4
    assert times(lambda: execute.run(file, [], path, "cpu")) == 3
    assert times(lambda: execute.resume(path, "cpu")) == 1


def test_a_component_that_reads_numbers_is_built_again_with_memory(tmp_path: Path) -> None:
    file, built = counting(tmp_path, ", reads: true")
    loaded = load(file)
    made = sketch(loaded)
    assert built == [16, 16, 8]  # the first attempt fails at its first number
    assert all(has_memory(p) for p in made.learner.objective.parameters())
    assert made.flops == build(loaded, stand_in_vocabulary(200)).flops
    shaped = outline(loaded, stand_in_vocabulary(200), shapes_only())
    assert shapes(shaped.learner.objective) == shapes(made.learner.objective)
    assert all(has_memory(p) for p in shaped.learner.objective.parameters())


@pytest.mark.parametrize(("error", "attempts"), [("value", 1), ("assert", 1), ("runtime", 2)])
def test_a_refusal_is_final_unless_it_may_be_about_numbers(tmp_path: Path, error: str, attempts: int) -> None:
    """A network that is too large must not be built with memory just to be refused again; torch raises RuntimeError."""
    file, built = counting(tmp_path, f", refuses: {error}")
    assert refusal(file) == f"{file}:{line_of('discriminator')}: discriminator: counting refuses this: never with me"
    assert built == [16] * attempts


def test_the_generators_own_refusal_is_at_its_own_line(tmp_path: Path) -> None:
    file, _ = counting(tmp_path, generator="{scale: 0.5, refuses: value}")
    assert f":{line_of('generator')}: generator: counting refuses this: never with me" in refusal(file)


def refusal(file: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as refused:
        check(load(file, list(overrides)))
    return str(refused.value)


WITHIN = "{type: contiguous, attention: within_documents}"
UNTIED = "{dim: 8, max_length: 16, tie: none}"
LOCAL = {"discriminator": "{type: transformer, dim: 16, depth: 1, heads: 2, local_heads: 1}",
         "embedding": "{dim: 8, max_length: 64}"}  # fmt: skip
LONG = "{steps: 20000, batch_size: 4, learning_rate: 0.001"
FALLING = "{train.generator_rate: {type: linear, start: 1.0, end: 0.5}}"


@pytest.mark.parametrize(
    ("reason", "sections"),
    [
        ("embedding.tie: all shares the whole encoder, but", {"embedding": "{dim: 8, max_length: 16, tie: all}"}),
        ("embedding.tie: tie: embeddings shares tokens",
         {"embedding": "{dim: 8, max_length: 16, tie: embeddings}",
          "generator": "{type: transformer, dim: 8, depth: 1, heads: 2, rotary: true}"}),
        ("data.sequence_length: reformer takes multiples of 32; 14 would be padded to 32, which is above embed",
         {"data": "{sequence_length: 14}", "generator": "{type: bert, dim: 8, depth: 1, heads: 2}",
          "discriminator": "{type: reformer, dim: 16, depth: 1, heads: 2, bucket_size: 16}"}),
        ("packing.attention: this performer cannot separate",
         {"packing": WITHIN, "discriminator": "{type: performer, dim: 16, depth: 1, heads: 2}"}),
        ("packing.attention: this transformer cannot separate",
         {"packing": WITHIN, "generator": "{scale: 0.5, local_heads: 0}", **LOCAL}),
        ("generator: transformer refuses this: local_heads 1 must be below heads 1: ",
         {"generator": "{scale: 0.5}", **LOCAL}),
        ("train.clip: needs two", {"generator": "{type: unigram}", "train": "{steps: 1, clip: per_network}"}),
        ("train.generator_rate: needs two",
         {"objective": "{type: frozen_generator, run: earlier}", "embedding": UNTIED,
          "train": "{steps: 1, generator_rate: 0.5}"}),
        ("train.generator_rate: needs two",
         {"objective": "{type: mlm}", "generator": "null", "sampler": "null",
          "train": "{steps: 1, generator_rate: 0.5}"}),
        ("schedules.train.generator_rate: needs two",
         {"generator": "{type: unigram}", "train": f"{LONG}}}", "schedules": FALLING}),
        ("train.generator_rate: schedules.train.generator_rate takes its place",
         {"train": f"{LONG}, generator_rate: 0.5}}", "schedules": FALLING}),
        ("objective: teams refuses this: its discriminator must return states of inner layers",
         {"objective": "{type: teams}",
          "discriminator": "{type: transformer, dim: 16, depth: 2, heads: 2, value_residual: true}"}),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_refused_at_its_line(tmp_path: Path, reason: str, sections: dict[str, str]) -> None:
    file = write_experiment(tmp_path, **sections)
    key = reason.split(":")[0].split(".")[0]
    assert refusal(file).startswith(f"{file}:{line_of(key, file.read_text())}: {reason}")


def test_a_head_that_does_not_exist_is_the_objectives_mistake(tmp_path: Path) -> None:
    (tmp_path / "heady.py").write_text(
        "from registry import Needs, objectives\nfrom electra_lab.objectives.electra import Electra\n\n\n"
        "@objectives.register('heady')\nclass Heady(Electra):\n    'Wants more.'\n"
        "    needs = Needs(heads=('replace',))\n"
    )
    file = write_experiment(tmp_path, imports="[heady.py]", objective="{type: heady}")
    with pytest.raises(BadResult, match=r"^heady\.py:5: objective 'heady': no head .* 'replace'\. .* 'replaced'\?"):
        check(load(file))


def test_what_the_optimizer_refuses_is_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "picky.py").write_text(
        "import torch\nfrom registry import optimizers\n\n\n@optimizers.register('picky')\n"
        "class Picky(torch.optim.SGD):\n    'Refuses.'\n\n    def __init__(self, parameters, learning_rate, /):\n"
        "        raise ValueError(f'not at {learning_rate}')\n"
    )
    file = write_experiment(tmp_path, imports="[picky.py]", optimizer="{type: picky}")
    place = f"{file}:{line_of('optimizer', file.read_text())}: optimizer"
    assert refusal(file, "train.learning_rate=0.25") == f"{place}: picky refuses this: not at 0.25"


def test_the_optimizer_has_everything_that_learns_once(tmp_path: Path) -> None:
    """A frozen generator is left out, shared tables occur once, and the optimizer has the file's options."""
    options = "{type: adamw, weight_decay: 0.25, betas: [0.5, 0.75], epsilon: 0.125}"
    file = write_experiment(tmp_path, optimizer=options, train="{steps: 1, learning_rate: 0.0625}")
    loaded = load(file)
    built = build(loaded, stand_in_vocabulary(200))
    objective, optimizer = built.learner.objective, make_optimizer(loaded, built)
    listed = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(listed) == len(set(listed))
    assert set(listed) == set(objective.parameters())
    for group, decay in zip(optimizer.param_groups, (0.25, 0.0), strict=True):
        assert (group["lr"], group["weight_decay"], group["betas"], group["eps"]) == (0.0625, decay, (0.5, 0.75), 0.125)

    frozen = "{type: frozen_generator, run: earlier}"
    loaded = load(write_experiment(tmp_path, objective=frozen, embedding=UNTIED))
    built = build(loaded, stand_in_vocabulary(200))
    listed = [p for group in make_optimizer(loaded, built).param_groups for p in group["params"]]
    assert set(listed) == set(built.networks["discriminator"].parameters())


def test_masking_sampler_and_embeddings_have_the_options_of_the_file(tmp_path: Path) -> None:
    sections = {"masking": "{type: replace_prob, mask_prob: 0.25, replace_prob: 0.5, random_prob: 0.125}",
                "sampler": "{type: temperature, temperature: 0.75}",
                "embedding": "{dim: 12, max_length: 24, tie: none, dropout: 0.375}"}  # fmt: skip
    built = sketch(load(write_experiment(tmp_path, **sections)))
    objective: Any = built.learner.objective
    assert objective.masking.entry.name == "replace_prob"
    assert objective.masking.options == {"mask_prob": 0.25, "replace_prob": 0.5, "random_prob": 0.125}
    assert objective.masking.largest == 0.25
    assert (objective.sampler.entry.name, objective.sampler.options) == ("temperature", {"temperature": 0.75})
    for network in built.networks.values():
        embeddings: Any = network.embeddings
        assert embeddings.tokens.weight.shape == (200, 12)
        assert embeddings.positions.weight.shape == (24, 12)
        assert embeddings.dropout.p == 0.375


def test_weights_are_also_drawn_for_what_the_objective_itself_adds(tmp_path: Path) -> None:
    """The gate of all_tokens_mlm, which is not part of a network, has normal weights and no bias."""
    wide = {"discriminator": "{type: bert, dim: 256, depth: 1, heads: 2}", "generator": "{scale: 0.25}"}
    loaded = load(write_experiment(tmp_path, objective="{type: all_tokens_mlm}", **wide))
    first, again, other = (build(loaded, stand_in_vocabulary(200), seed=seed).learner.objective for seed in (0, 0, 1))
    gate: Any = first.copy
    assert not gate.bias.any()
    assert float(gate.weight.std()) == pytest.approx(0.0176, rel=0.2)
    assert [torch.equal(gate.weight, objective.copy.weight) for objective in (again, other)] == [True, False]
