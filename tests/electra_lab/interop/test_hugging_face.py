"""Networks around backbones other than `bert` load through the same Auto classes and support the usual changes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn

import electra_lab.interop.hugging_face  # noqa: F401  # registers the classes
import registry
from electra_lab.export.export import export
from electra_lab.interop.hugging_face import models
from electra_lab.model.network import STANDARD_DEVIATION
from electra_lab.model.weights import own_tensors, repeated
from registry import Backbone, backbones
from registry.errors import UnknownName
from tests.electra_lab.export.exports import SHAPES, assert_close, finished, inputs, logits, opened, states
from tests.electra_lab.jobs.pretraining.tiny import for_a_module
from tests.electra_lab.model.theirs import to_transformers
from tests.helpers import ROOT

AWKWARD = '''\
import torch
from torch import nn

from registry import Backbone, backbones


@backbones.register("awkward")
class Awkward(Backbone, nn.Module):
    """Shares a parameter and a module, reads numbers while it is built, and keeps a buffer out of its state."""

    def __init__(self, dim, depth, heads, max_length, /, *, gain: float = 2.0):
        super().__init__()
        self.one, self.two = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.two.weight = self.one.weight
        self.again = nn.ModuleList([self.one, self.two])
        self.rates = torch.linspace(0, 1, dim).tolist()
        self.register_buffer("gains", gain * torch.tensor(self.rates), persistent=False)

    @property
    def layers(self):
        return self.again

    def forward(self, x, attention_mask):
        return x + self.gains * self.two(torch.tanh(self.again[0](x)))
'''
LIGHT_CONV = f"[{ROOT / 'experiments' / 'plugins' / 'light_conv.py'}]"
SIZES = "dim: 16, depth: 2, heads: 4"
BACKBONES = {
    "reformer": f"{{type: reformer, {SIZES}, bucket_size: 4, local_heads: 1, glu: true, reversible: true}}",
    "performer": f"{{type: performer, {SIZES}, local_heads: 1, window: 4}}",
    "transformer": f"{{type: transformer, {SIZES}, rotary: true, rmsnorm: true, glu: true}}",
    "light_conv": f"{{type: light_conv, {SIZES}}}",
    "awkward": f"{{type: awkward, {SIZES}}}",
}
IMPORTS = {"light_conv": LIGHT_CONV, "awkward": "[awkward.py]"}
HEADS = {"discriminator": "AutoModelForPreTraining", "generator": "AutoModelForMaskedLM"}
OTHERS = {
    "AutoModel": "Model",
    "AutoModelForSequenceClassification": "ForSequenceClassification",
    "AutoModelForTokenClassification": "ForTokenClassification",
    "AutoModelForQuestionAnswering": "ForQuestionAnswering",
}


@pytest.fixture(scope="module", params=BACKBONES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, Path]]:
    """A backbone, a run, and its export."""
    name: str = request.param
    folder = tmp_path_factory.mktemp(name)
    (folder / "awkward.py").write_text(AWKWARD)
    imports = {"imports": IMPORTS[name]} if name in IMPORTS else {}
    with for_a_module():
        path = finished(folder, discriminator=BACKBONES[name], **imports)
        export(path, folder / "out")
        yield name, path, folder / "out"


def load(kind: str, folder: Path) -> Any:
    model, report = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    missing = [name for name in report["missing_keys"] if not name.startswith(("classifier.", "qa_outputs."))]
    assert not missing
    assert not report["mismatched_keys"]
    return model


@pytest.mark.parametrize("part", HEADS)
def test_logits_are_those_of_the_lab(made: tuple[str, Path, Path], part: str) -> None:
    _, run, folder = made
    ours, model = opened(run), load(HEADS[part], folder / part)
    assert type(model).__name__ == f"ElectraLab{HEADS[part].removeprefix('AutoModel')}"
    for rows, length in SHAPES:
        given = inputs(ours.vocabulary.size, rows, length)
        with torch.no_grad():
            assert_close(model(**given).logits, logits(ours.networks[part], given), given)


def test_the_encoder_is_that_of_the_lab_under_every_auto_class(made: tuple[str, Path, Path]) -> None:
    _, run, folder = made
    ours = opened(run)
    given = inputs(ours.vocabulary.size, 3, 16)
    expected = states(ours.networks["discriminator"], given)
    for auto, name in OTHERS.items():
        model = load(auto, folder / "discriminator")
        assert type(model).__name__ == f"ElectraLab{name}"
        with torch.no_grad():
            assert_close(model.base_model(**given).last_hidden_state, expected, given)


def test_what_is_saved_again_is_the_same_bit_by_bit(made: tuple[str, Path, Path], tmp_path: Path) -> None:
    name, run, folder = made
    for part, auto in HEADS.items():
        stored = load_file(folder / part / "model.safetensors")
        network = opened(run).networks[part]
        buffers = {n: b for n, b in network.named_buffers() if n in network.state_dict()}
        sizes = [tensor.numel() for tensor in [*network.parameters(), *set(buffers.values())]]
        assert sum(tensor.numel() for tensor in stored.values()) == sum(sizes)  # shared ones once
        own = {f"electra_lab.network.{ours}": tensor for ours, tensor in own_tensors(network).items()}
        assert all(torch.equal(own[name], tensor) for name, tensor in stored.items())
        model = load(auto, folder / part)
        model.save_pretrained(tmp_path / part)
        again = load_file(tmp_path / part / "model.safetensors")
        assert again.keys() == stored.keys()
        assert all(torch.equal(again[n], stored[n]) for n in stored)
        assert type(load(auto, tmp_path / part).base_model.network.backbone).__name__.lower() in name.replace("_", "")
        config = json.loads((folder / part / "config.json").read_text())
        assert config.items() <= json.loads((tmp_path / part / "config.json").read_text()).items()
        assert set(config) - {"architectures", "dtype", "model_type"} <= set(models.ElectraLabConfig().to_dict())


def test_what_the_network_shares_is_shared_after_loading(made: tuple[str, Path, Path]) -> None:
    _, run, folder = made
    ours = opened(run).networks["discriminator"]
    model = load(HEADS["discriminator"], folder / "discriminator")
    assert repeated(model.base_model.network) == repeated(ours)
    for name, buffer in ours.named_buffers():  # also those that are not in the file
        assert torch.equal(model.base_model.network.get_buffer(name), buffer)


def test_the_code_of_the_card_runs(made: tuple[str, Path, Path], monkeypatch: Any, capsys: Any) -> None:
    for part in HEADS:
        monkeypatch.chdir(made[2] / part)
        code = Path("README.md").read_text().split("```python\n")[1].split("```")[0]
        with for_a_module():
            forget_plugins()  # as if in a new process
            exec(code, {})
        assert capsys.readouterr().out


def forget_plugins() -> None:
    for name in IMPORTS:
        registry.backbones._entries.pop(name, None)
    registry.discovery._loaded.clear()


def test_without_its_plug_in_a_folder_says_what_to_load(made: tuple[str, Path, Path]) -> None:
    name, folder = made[0], made[2] / "discriminator"
    assert [path.name for path in folder.glob("*.py")] == [f"{name}.py"] * (name in IMPORTS)
    if name not in IMPORTS:
        return
    with for_a_module():
        forget_plugins()
        with pytest.raises(UnknownName, match=f"'{name}' is a plug-in, {name}.py") as refused:
            transformers.AutoModel.from_pretrained(folder)
        exec(str(refused.value).partition("first: ")[2], {})
        assert load(HEADS["discriminator"], folder)


def config_of(backbone: dict[str, Any], **more: Any) -> models.ElectraLabConfig:
    sizes = {"dim": 16, "depth": 2, "heads": 2}
    embedding = {"dim": 8, "max_length": 32, "dropout": 0.0}
    return models.ElectraLabConfig(vocab_size=50, backbone=sizes | backbone, embedding=embedding, **more)


NAMES = {"classifier.1.": "classifier.dense.", "classifier.4.": "classifier.out_proj."}
DETECTED = torch.tensor([[0, 1, 0, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0, 1]])
MASKED = torch.tensor([[-100, 7, 9, -100, 3, 0, 5], [7, 7, 7, -100, -100, -100, 2]])
SPANS = {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([2, 5])}
LABELS: dict[str, dict[str, torch.Tensor]] = {
    "ForPreTraining": {"labels": DETECTED},
    "ForMaskedLM": {"labels": MASKED},
    "ForSequenceClassification": {"labels": torch.tensor([2, 0])},
    "ForTokenClassification": {"labels": torch.arange(14).view(2, 7) % 3},
    "ForQuestionAnswering": SPANS,
}


@pytest.mark.parametrize("kind", LABELS)
def test_heads_and_losses_are_those_of_electra(kind: str) -> None:
    """A network around `bert` computes what transformers' class computes with the same weights."""
    torch.manual_seed(0)
    number = 2 if kind == "ForQuestionAnswering" else 3
    config = config_of({"type": "bert", "dropout": 0.0}, num_labels=number)
    ours = getattr(models, f"ElectraLab{kind}")(config).eval()
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.3)
    sizes = {"vocab_size": 50, "embedding_size": 8, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    other = transformers.ElectraConfig(**sizes, intermediate_size=64, max_position_embeddings=32, num_labels=number)
    theirs = getattr(transformers, f"Electra{kind}")(other).eval()
    weights = to_transformers(ours.electra_lab.network)
    names = {"classifier.1.": "classifier."} if kind == "ForTokenClassification" else NAMES
    for name, parameter in ours.named_parameters():
        if not name.startswith("electra_lab."):
            theirs_name = name
            for old, new in names.items():
                theirs_name = theirs_name.replace(old, new)
            weights[theirs_name] = parameter.detach()
    left = theirs.load_state_dict(weights, strict=False)
    assert not left.unexpected_keys
    assert set(left.missing_keys) <= {"generator_lm_head.weight"}  # tied
    given = inputs(50, 2, 7)
    labels = LABELS[kind]
    found, expected = ours(**given, **labels), theirs(**given, **labels)
    assert found.keys() == expected.keys()
    if kind != "ForQuestionAnswering":
        real = given["attention_mask"].bool() if found.logits.shape[1] == 7 else slice(None)
        torch.testing.assert_close(found.logits[real], expected.logits[real], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-5, atol=1e-5)
    assert torch.equal(ours(**given, **labels, return_dict=False)[0], found.loss)
    found.loss.backward()
    assert [n for n, p in ours.named_parameters() if p.grad is None] == []


def test_a_new_model_has_the_weights_that_the_lab_draws() -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForMaskedLM.from_config(
        config_of({"type": "transformer", "dim": 64, "rmsnorm": True})
    )
    network = model.base_model.network
    assert network.embeddings.tokens.weight.std().item() == pytest.approx(0.02, rel=0.2)
    assert not network.heads["tokens"].dense.bias.any()
    gains = [p for n, p in network.backbone.named_parameters() if n.endswith((".g", ".gamma"))]
    assert [bool(gain.any()) for gain in gains] == [False] * 5  # the library stores offsets: 0 is a gain of 1


def test_tokens_are_required_and_unknown_options_are_refused() -> None:
    model = models.ElectraLabModel(config_of({"type": "bert"}))
    with pytest.raises(ValueError, match="input_ids is required"):
        model(inputs_embeds=torch.zeros(1, 2, 16))
    with pytest.raises(Exception, match="width"):
        models.ElectraLabModel(config_of({"type": "bert", "width": 3}))
    with pytest.raises(UnknownName, match=r"no backbone is called 'brt'\. Did you mean 'bert'"):
        models.ElectraLabModel(config_of({"type": "brt"}))
    with pytest.raises(UnknownName, match=r"Read it, then load it first: pip install 'some-package==1\.0'"):
        models.ElectraLabModel(config_of({"type": "theirs"}, plugin="some-package 1.0"))


@pytest.mark.parametrize("made", ["reformer"], indirect=True)
def test_masks_are_filled_by_the_pipeline(made: tuple[str, Path, Path]) -> None:
    ours, folder, text = opened(made[1]), made[2], "the cat [MASK] on the mat"
    fill = transformers.pipeline("fill-mask", model=str(folder / "generator"), top_k=3)
    ids = torch.tensor([fill.tokenizer(text)["input_ids"]])
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    scores = logits(ours.networks["generator"], given)[ids == ours.vocabulary.mask_id].softmax(-1).topk(3)
    assert [candidate["token"] for candidate in fill(text)] == scores.indices[0].tolist()


CHANGED: dict[str, dict[str, Any]] = {
    "bert": {},
    "transformer": {"rmsnorm": True},
    "performer": {"local_heads": 1, "window": 4},
    "reformer": {"bucket_size": 4},
}


def config(kind: str, **more: Any) -> models.ElectraLabConfig:
    backbone = {"type": kind, "dim": 32, "depth": 1, "heads": 2} | CHANGED.get(kind, {})
    embedding = {"dim": 16, "max_length": 32, "dropout": 0.0}
    return models.ElectraLabConfig(vocab_size=50, backbone=backbone, embedding=embedding, **more)


@pytest.fixture
def memory_holds_nan() -> Iterator[None]:
    """Fill uninitialized memory with NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("memory_holds_nan")
@pytest.mark.parametrize("kind", CHANGED)
def test_a_part_that_a_file_lacks_has_what_it_was_built_with(kind: str) -> None:
    """Gains are 1 or, as offsets, 0; a table that is not drawn by `initialise` keeps its draw."""
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
        class ZeroOutput(Backbone, nn.Module):
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
            model.network.backbone.inner.weight.zero_()  # like fresh memory
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
    whole, half = (kind_of.from_pretrained(tmp_path, dtype=precision).eval() for precision in (torch.float32, dtype))
    assert half(**given).logits.dtype == dtype
    torch.testing.assert_close(half(**given).logits[real].float(), whole(**given).logits[real], rtol=0, atol=0.02)
