"""Every shipped experiment passes `check`, round-trips, and describes itself; paper sizes match the paper."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_lab.assembly.budget import count_parameters
from electra_lab.assembly.build import build, sketch
from electra_lab.assembly.experiment import check
from electra_lab.backbones import _hashing
from electra_lab.config.finetune import FinetuningTrain
from electra_lab.config.load import Loaded, dump, kind_of_file, load, load_finetuning
from electra_lab.data.vocabulary import stand_in_vocabulary
from electra_lab.jobs.finetuning.experiment import absent_examples
from electra_lab.jobs.sweeps.file import load_ablation
from electra_lab.jobs.sweeps.plan import checked
from registry.errors import ConfigError
from tests.helpers import ROOT

GLUE = ROOT / "experiments" / "downstream" / "glue.yaml"  # an ablation of fine-tunings
ABLATIONS = sorted((ROOT / "experiments" / "ablations").rglob("*.yaml"))
DOWNSTREAM = sorted({*(ROOT / "experiments" / "downstream").rglob("*.yaml")} - {GLUE})
# Replaces a tokenizer that would have to be downloaded.
PIECES = [f"tokenizer.path={ROOT / 'tests' / 'data' / 'sentencepiece' / 'deberta.model'}"]
FILES = sorted(set((ROOT / "experiments").rglob("*.yaml")) - {GLUE, *ABLATIONS, *DOWNSTREAM})


def test_the_log_says_of_each_what_it_gave_or_that_it_was_not_run() -> None:
    folder = ROOT / "experiments"
    names = {file.relative_to(folder).with_suffix("").as_posix() for file in (GLUE, *FILES, *ABLATIONS, *DOWNSTREAM)}
    logged = set(re.findall(r"`([a-z0-9_/]+)`", (folder / "LOG.md").read_text(encoding="utf-8")))
    assert names <= logged, sorted(names - logged)


ablation_of = cache(load_ablation)


def round_trip(file: Path, loaded: Loaded, load: Callable[[Path], Loaded], folder: Path) -> None:
    assert loaded.config.name == file.stem
    assert file.read_text(encoding="utf-8").startswith("# ")
    again = folder / "config.yaml"
    again.write_text(dump(loaded.config), encoding="utf-8")
    assert load(again).config == loaded.config


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_shipped_experiment(file: Path, tmp_path: Path) -> None:
    text = file.read_text(encoding="utf-8")
    loaded = load(file, PIECES if "deberta_v3" in text else [])
    check(loaded)
    round_trip(file, loaded, load, tmp_path)
    # The changes that its comments suggest.
    comments = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    suggested = re.findall(r"""--set ("[^"]*"|'[^']*'|\S+='[^']*'|\S+)""", comments)
    load(file, [*map("".join, map(shlex.split, suggested))])


@pytest.mark.parametrize("file", ABLATIONS, ids=lambda f: f.name)
def test_shipped_ablation(file: Path) -> None:
    ablation = ablation_of(file)
    checked(ablation)
    assert ablation.config.name == file.stem
    assert ablation.config.question.endswith("?")
    assert file.read_text(encoding="utf-8").startswith("# ")


def test_the_shipped_ablation_of_fine_tunings() -> None:
    ablation = load_ablation(GLUE)
    assert list(ablation.bases) == [file.stem for file in ablation.config.bases]
    assert len(ablation.cells) == 2 * 5 * len(ablation.bases)


@pytest.mark.parametrize("file", DOWNSTREAM, ids=lambda f: f.name)
def test_shipped_downstream_file(file: Path, tmp_path: Path) -> None:
    loaded = load_finetuning(file)
    round_trip(file, loaded, load_finetuning, tmp_path)
    assert not isinstance(absent_examples(loaded), ConfigError)  # its data may be absent; nothing else is wrong


def test_fine_tuning_has_the_official_hyper_parameters() -> None:
    """configure_finetuning.py of google-research/electra; the learning rate is the paper's for Small (its Table 7)."""
    epochs = {"rte": 10, "stsb": 10, "squad1": 2, "squad2": 2, "docstring_origin": 10}
    for file in DOWNSTREAM:
        if not (config := load_finetuning(file).config).trains:
            continue
        if file.stem.endswith("_small"):  # for encoders that were pre-trained for minutes
            continue
        train = config.train
        assert (train.epochs, train.batch_size, train.learning_rate) == (epochs.get(file.stem, 3), 32, 3e-4), file
        assert (train.layer_decay, train.dropout, config.schedules["learning_rate"].keywords()["warmup_share"]) == (
            0.8, 0.1 if config.task.type.startswith("text") else 0.0, 0.1,
        )  # fmt: skip
        assert config.optimizer.keywords()["weight_decay"] == 0.01
        if file.stem != "docstring_origin":
            assert config.data.max_length == (512 if file.stem.startswith("squad") else 128)
    assert FinetuningTrain().learning_rate == 1e-4


def test_ablations_lie_in_their_folder() -> None:
    assert ABLATIONS
    assert not [file for file in FILES if kind_of_file(file) == "ablation"]


@pytest.mark.parametrize(
    ("name", "published", "places"),
    [("electra_small", 14e6, -6), ("electra_small_pp", 14e6, -6), ("electra_base", 110e6, -7),
     ("electra_large", 335e6, -6)],
)  # fmt: skip
def test_paper_sizes_have_the_published_number_of_parameters(name: str, published: float, places: int) -> None:
    """Of the discriminator (Clark et al. 2020, Tables 1 and 2), to the rounding of the paper."""
    loaded = load(ROOT / "experiments" / f"{name}.yaml")
    networks = sketch(loaded).networks
    assert round(count_parameters(networks)["discriminator"], places) == published
    for network, component in (("discriminator", loaded.config.discriminator), ("generator", loaded.config.generator)):
        own = sum(parameter.numel() for parameter in networks[network].backbone.parameters())
        assert own == encoder_parameters(component.sizes), network


def encoder_parameters(sizes) -> int:
    """Return the number of parameters of transformers' ELECTRA encoder of these sizes."""
    from transformers import ElectraConfig, ElectraModel

    config = ElectraConfig(hidden_size=sizes.dim, num_hidden_layers=sizes.depth, num_attention_heads=sizes.heads,
                           intermediate_size=4 * sizes.dim)  # fmt: skip
    with torch.device("meta"):
        return sum(p.numel() for p in ElectraModel(config).encoder.parameters())


def test_encoders_of_today_have_the_published_shapes() -> None:
    """Parameters of transformers' models with the published configs, and of the released weights in millions."""
    from transformers import DebertaV2Config, DebertaV2Model, ModernBertConfig, ModernBertForMaskedLM

    def networks(name: str, *changes: str) -> Any:
        return sketch(load(ROOT / "experiments" / f"{name}.yaml", list(changes))).networks

    def number(module: Any) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    # rtd_small.json of microsoft/DeBERTa
    small = {"vocab_size": 501, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072,
             "relative_attention": True, "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True,
             "pos_att_type": ["p2c", "c2p"], "position_biased_input": False, "type_vocab_size": 0}  # fmt: skip
    pair = networks("deberta_v3_small", *PIECES)
    with torch.device("meta"):
        encoders = [DebertaV2Model(DebertaV2Config(num_hidden_layers=depth, **small)) for depth in (6, 3)]
        base = ModernBertForMaskedLM(ModernBertConfig())
    found = [number(pair[name].backbone) + 501 * 768 for name in ("discriminator", "generator")]
    assert found == [number(encoders[0]), number(encoders[1]) + 512 * 768]  # absolute positions of the mask decoder
    assert round(number(pair["discriminator"].backbone) / 1e6, 1) == 42.9
    assert number(networks("modernbert_base")["discriminator"]) == number(base)
    assert round(number(networks("ettin_17m")["discriminator"]) / 1e6) == 17
    domain = load(ROOT / "experiments" / "domain_deberta.yaml", PIECES).config
    assert (domain.train.learning_rate, domain.train.batch_size, domain.train.steps) == (5e-5, 256, 100_000)


# The hyper-parameters of google-research/electra's configure_pretraining.py and of the paper's Table 6.
PAPER = {
    "electra_small": (12, 256, 4, 128, 64, 1, 0.15, 5e-4, 128, 128, 1_000_000),
    "electra_small_pp": (12, 256, 4, 128, 256, 4, 0.15, 5e-4, 128, 512, 4_000_000),
    "electra_base": (12, 768, 12, 768, 256, 4, 0.15, 2e-4, 256, 512, 766_000),
    "electra_large": (24, 1024, 16, 1024, 256, 4, 0.25, 2e-4, 2048, 512, 400_000),
}


@pytest.mark.parametrize("name", PAPER)
def test_paper_hyper_parameters(name: str) -> None:
    config = load(ROOT / "experiments" / f"{name}.yaml").config
    d, g, train = config.discriminator, config.generator, config.train
    assert d.type == g.type == "bert"
    assert d.sizes is not None
    assert g.sizes is not None
    assert g.sizes.depth == d.sizes.depth
    masked = config.masking.keywords()
    assert PAPER[name] == (d.sizes.depth, d.sizes.dim, d.sizes.heads, config.embedding.dim, g.sizes.dim, g.sizes.heads,
                           masked["mask_prob"], train.learning_rate, train.batch_size, config.data.sequence_length,
                           train.steps)  # fmt: skip
    assert (masked["replace_prob"], masked["random_prob"]) == (0.85, 0.0)
    assert train.clip_norm == 1.0
    assert config.optimizer.dump() == {"type": "adamw", "weight_decay": 0.01, "betas": [0.9, 0.999], "epsilon": 1e-6}
    assert {key: schedule.dump() for key, schedule in config.schedules.items()} == {
        "learning_rate": {"type": "warmup_linear", "warmup_steps": 10_000, "warmup_share": None}
    }
    assert d.keywords() == g.keywords() == {"ff_mult": 4.0, "dropout": 0.1}
    assert (config.embedding.dropout, config.embedding.max_length, config.embedding.tie) == (0.1, 512, "embeddings")
    assert config.objective.keywords() == {
        "generator_weight": 1.0, "discriminator_weight": 50.0, "disallow_correct": False, "generator_smoothing": 0.0,
        "discriminator_smoothing": 0.0, "z_loss": None,
    }  # fmt: skip
    assert config.tokenizer.keywords()["vocab_size"] == 30_522


PAGES = {page: page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
BLOCKS = [
    (page.stem, block) for page, text in PAGES.items() for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
]
SHOWN = {
    f"{page}-{re.findall('^name: (.*)$', block, re.MULTILINE)[0]}": block
    for page, block in BLOCKS
    if re.search("^name: ", block, re.MULTILINE) and not re.search("^base: ../|^imports:", block, re.MULTILINE)
}


def test_files_that_the_docs_show_are_those_that_are_shipped() -> None:
    shown = [
        found.groups() for _, block in BLOCKS if (found := re.fullmatch(r"# (experiments/\S+)\n(.*)", block, re.DOTALL))
    ]
    assert shown
    for file, text in shown:
        shipped = (ROOT / file).read_text(encoding="utf-8").splitlines(keepends=True)
        assert text == "".join(line for line in shipped if not line.startswith("#"))


@pytest.mark.parametrize("text", SHOWN.values(), ids=SHOWN)
def test_whole_files_that_the_docs_show_are_valid(tmp_path: Path, text: str) -> None:
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    (tmp_path / "plugins").symlink_to(ROOT / "experiments" / "plugins")
    for shipped in (ROOT / "experiments").glob("*.yaml"):  # as `electra-lab new` copies them
        (tmp_path / shipped.name).symlink_to(shipped)
    for other in SHOWN.values():  # a page may extend what it shows
        if (name := re.match(r"# (\w+\.yaml)", other)) and other != text:
            (tmp_path / name[1]).write_text(other, encoding="utf-8")
    file = tmp_path / "shown.yaml"
    file.write_text(text, encoding="utf-8")
    {"fine-tuning": load_finetuning, "ablation": load_ablation}.get(kind_of_file(file), load)(file)


def reformers(file: Path) -> Iterator[Loaded]:
    """An experiment, or the variants of an ablation, with a reformer in it."""
    if file not in ABLATIONS:
        loaded = load(file)
        if "reformer" in (loaded.config.discriminator.type, getattr(loaded.config.generator, "type", None)):
            yield loaded
        return
    ablation = ablation_of(file)
    for cell in ablation.firsts.values():
        if ablation.loaded[cell.id].config.discriminator.type == "reformer":
            yield ablation.loaded[cell.id]


NAMING = [file for file in (*FILES, *ABLATIONS) if file.parent.name != "plugins" and "reformer" in file.read_text()]


@pytest.mark.parametrize("file", NAMING, ids=lambda file: file.stem)
def test_every_shipped_reformer_hashes(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for loaded in reformers(file):
        moves(loaded, monkeypatch)


def moves(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that other hashes change the output of every network."""
    networks: Any = build(loaded, stand_in_vocabulary(200), seed=0).networks.values()
    length = loaded.config.data.sequence_length
    tokens = torch.randint(5, 200, (2, length), generator=torch.Generator().manual_seed(0))
    mask, segments = torch.ones_like(tokens, dtype=torch.bool), torch.zeros_like(tokens)
    for network in networks:
        assert length // network.length_multiple >= 4
        states = []
        for seed in (1, 2):
            monkeypatch.setattr(_hashing, "EVALUATION_SEED", seed)
            with torch.no_grad():
                states.append(network.eval().hidden(tokens, mask, segments))
        moved = (states[0] - states[1]).norm(dim=-1) / states[0].norm(dim=-1)
        least = 1e-3 / network.backbone.hashes**0.5  # the mean of several rounds moves less
        assert moved.median() > least, f"{network.backbone.bucket_size}: {moved.median():.1e}"
