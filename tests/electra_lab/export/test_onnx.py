"""Networks as ONNX: onnxruntime computes the lab's states and logits, for every batch and length or for one."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from electra_lab.assembly.experiment import assemble
from electra_lab.data.store import load_store
from electra_lab.data.vocabulary import special_ids
from electra_lab.export import int8
from electra_lab.export import onnx as module
from electra_lab.export.export import export
from electra_lab.export.int8 import run_rows, validation_rows
from electra_lab.export.model_folder import copy_folder, with_head
from electra_lab.export.onnx import INPUTS, NamedOutputs, open_onnx, write_onnx
from electra_lab.model.network import Network
from electra_lab.model.pair import EmbeddingSizes, make_pair
from electra_lab.pretrained.hugging_face import read_part
from electra_lab.pretrained.opening import open_model, run_config
from electra_lab.pretrained.writing import write_tokenizer
from electra_lab.tokenizers.wordpiece import wordpiece
from registry import Backbone, backbones
from registry.errors import ConfigError
from tests.electra_lab.export.exports import CPU, assert_close, finished, inputs, logits, opened, states

for _name in module.NEEDED:
    pytest.importorskip(_name, reason=f"{_name} is not installed")

LONGEST = 48
slow = pytest.mark.skipif("ELECTRA_LAB_ONNX" not in os.environ, reason="takes a minute: make test-onnx")
NEW = {"depth": 2, "qk_norm": True, "value_residual": True, "softcap": 3.0}
SHAPES = [(1, 1), (1, 3), (2, 16), (3, 17), (5, LONGEST)]


def network(kind: str, heads: tuple[str, ...] = ("replaced",), depth: int = 1, **options: Any) -> Network:
    """Rows are longer than the windows, and than the distances with exact buckets."""
    torch.manual_seed(0)
    depth = 2 if kind == "modernbert" else depth
    backbone: Any = backbones.get(kind).component(16, depth, 4, LONGEST, **options)
    width = 16 if kind in ("modernbert", "deberta") else 8
    made = make_pair(None, 0, backbone, 16, EmbeddingSizes(60, width, LONGEST, 0.1), "none", 0, heads)[1]
    for parameter in made.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
    return made.eval()


def assert_computed(file: Path, ours: Network, size: int, fixed: tuple[int, int] | None = None) -> None:
    session, (batch, length) = open_onnx(file), fixed or ("batch", "length")
    found = [(tensor.name, tensor.type, tensor.shape) for tensor in session.get_inputs()]
    assert found == [(name, "tensor(int64)", [batch, length]) for name in INPUTS]
    wanted = {"logits": logits, "last_hidden_state": states}
    outputs = [(tensor.name, tensor.shape[:2]) for tensor in session.get_outputs()]
    assert outputs == [(name, [batch, length]) for name in wanted], "the order is that of transformers"
    for shape in [fixed] if fixed else SHAPES:
        given = inputs(size, *shape)
        for name, compute in wanted.items():
            computed = session.run([name], {name: given[name].numpy() for name in INPUTS})[0]
            assert_close(torch.from_numpy(computed), compute(ours, given), given, 1e-4)


@pytest.mark.usefixtures("no_report")
def test_an_export_has_the_discriminator(tmp_path: Path, capsys: Any) -> None:
    run = finished(tmp_path, generator="{type: unigram}")
    capsys.readouterr()
    (exported,) = export(run, tmp_path / "out", int8=True).networks
    assert capsys.readouterr() == ("", "")
    ours, folder = opened(run), tmp_path / "out" / "discriminator"
    assert_computed(folder / "model.onnx", ours.networks["discriminator"], ours.vocabulary.size)
    files = sorted(path.name for path in folder.rglob("*.onnx*"))
    assert files == ["model.onnx", "model_int8.onnx"]  # no separate file of weights
    card = (folder / "README.md").read_text()
    assert (
        "- `model.onnx` turns `input_ids`, `attention_mask`, `token_type_ids` into `logits`, `last_hidden_state`"
        in card
    )

    # fp32 has the AUC that the run measured on its test text, int8 a different one.
    tested = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][-1]
    (change,) = exported.int8
    assert change.auc[0] == pytest.approx(tested["discriminator_auc"], abs=1e-6)
    assert 0 < abs(change.auc[1] - change.auc[0]) < 0.2
    mean, largest = change.outputs
    assert 0 < mean < largest
    assert f"by {largest:.2g} at most" in str(change)
    assert change.bytes[1] < change.bytes[0]
    assert str(change) in card
    # All tokens of the test text, without [CLS], [SEP] and padding; the machine's threads, unless fewer were asked for.
    data = json.loads((run / "provenance.json").read_text())["data"]
    assert f"({data['tokens']['test'] - data['documents']['test']} tokens of the run's test text" in str(change)
    assert str(change).endswith(f" {torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)})")
    # The longest input is in the file and in the card.
    assert open_onnx(folder / "model.onnx").get_modelmeta().custom_metadata_map["longest"] == str(LONGEST)
    assert f"for rows of at most {LONGEST} tokens" in card


@pytest.mark.usefixtures("no_report")
def test_a_masked_language_model_in_int8_is_compared_on_the_masked_test_text(tmp_path: Path) -> None:
    run = finished(tmp_path, objective="{type: mlm}", generator="null", sampler="null")
    model = open_model(run)
    (rows,) = run_rows(model)
    given = {name: torch.from_numpy(part) for name, part in rows.inputs.items()}
    asked = given["input_ids"] == special_ids(model.tokenizer)["mask"]
    # The loss at these masks is the one that the run measured.
    store = load_store(tmp_path / "store" / model.run.provenance.data.store)
    (batch,) = assemble(run_config(run), store, CPU, restored=True).test.in_order(8, CPU)
    predicted = logits(opened(run).networks["discriminator"], given)[asked]
    tested = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    loss = nn.functional.cross_entropy(predicted, batch.tokens[asked]).item()
    assert loss == pytest.approx(tested["discriminator_token_mask_loss"], abs=1e-5)
    assert rows.judged[asked.numpy()].all()
    data = model.run.provenance.data
    assert rows.judged.sum() == data.tokens["test"] - data.documents["test"]  # without [SEP]


@pytest.mark.usefixtures("no_report")
def test_int8_of_an_earlier_checkpoint_is_compared_on_its_own_replacements(tmp_path: Path) -> None:
    run = finished(tmp_path, checkpoint="{every: 1, keep: 99}")
    inputs = [run_rows(open_model(run, step=step))[0].inputs["input_ids"].tolist() for step in (1, 12, None)]
    assert inputs[0] != inputs[1] == inputs[2]


class _Session:
    """Gives the same output each time, after some time."""

    def __init__(self, output: Any, seconds: float) -> None:
        self.output, self.seconds = np.array(output, np.float32), seconds

    def run(self, names: list[str], inputs: Any) -> list[Any]:
        assert names == ["logits"]
        time.sleep(self.seconds)
        return [self.output]


@pytest.mark.parametrize(
    ("heads", "labels", "fp32", "rounded", "equal", "auc"),
    [
        (("replaced",), [], [[[2, -1, 3, -4]]], [[[1, 1, -3, -4]]], "verdicts", (1.0, 0.625)),
        (("tokens",), [], [[[[2, 1], [2, 1], [2, 1], [0, 1]]]], [[[[0, 1], [0, 1], [3, 1], [0, 5]]]], "tokens", None),
        ((), ["O", "B-X"], [[[[2, 1], [2, 1], [2, 1], [0, 1]]]], [[[[0, 1], [0, 1], [3, 1], [0, 5]]]], "tags", None),
    ],
)
def test_the_effect_of_int8(
    tmp_path: Path, monkeypatch: Any, heads: Any, labels: Any, fp32: Any, rounded: Any, equal: str, auc: Any
) -> None:
    """Of two files with known outputs, the first slow and large, at judged tokens alone."""
    sessions = {"a": _Session(fp32[0], 0.004), "b": _Session(rounded[0], 0.0)}
    monkeypatch.setattr(int8, "open_onnx", lambda file, threads: sessions[file.name])
    for name, size in (("a", 400), ("b", 100)):
        (tmp_path / name).write_bytes(bytes(size))
    judged, replaced = np.array([[True] * 4]), np.array([[True, False, True, False]])
    rows = int8.Rows({"input_ids": np.zeros((1, 4), np.int64)}, judged, replaced if auc else None)
    network, outputs = SimpleNamespace(heads=heads), ("logits", "last_hidden_state")
    module: Any = SimpleNamespace(outputs=outputs, of_text=False, network=network, labels=labels)
    change = int8._compared(tmp_path / "a", tmp_path / "b", module, [rows, rows], "tokens")
    assert (change.agreement, change.auc, change.bytes, change.tokens) == (0.5, auc, (400, 100), 8)
    assert f"50.0% of the {equal} equal" in str(change)
    assert change.seconds[0] > change.seconds[1]
    gaps = np.abs(np.array(fp32) - np.array(rounded))
    assert change.outputs == pytest.approx((gaps.mean(), gaps.max()))


SENTENCES = [["the", "cat", "didn't"], ["dogs"], ["zebras", "sat", "on", "the", "mat"]] * 4


@pytest.mark.parametrize("fields", [("text",), ("text", "pair"), ("words",), ("question",)])
@pytest.mark.parametrize("size", [None, (4, 8)])
def test_a_fine_tuned_model_in_int8_is_compared_on_its_validation_data(
    tmp_path: Path, fields: tuple[str, ...], size: Any
) -> None:
    """As transformers reads it: both texts of a pair, and of words the first tokens."""
    transformers = pytest.importorskip("transformers")
    (tmp_path / "model").mkdir()
    write_tokenizer(tmp_path / "model", wordpiece([" ".join(words) for words in SENTENCES], vocab_size=40), LONGEST)
    values = [words if fields == ("words",) else " ".join(words) for words in SENTENCES]
    texts = [dict(zip(fields, (value, values[n - 1]), strict=False)) for n, value in enumerate(values)]
    lines = (json.dumps({"id": str(n), **text}) for n, text in enumerate(texts))
    (tmp_path / "predictions-validation.jsonl").write_text("\n".join(lines))
    found = validation_rows(tmp_path / "model", LONGEST, size)
    if fields == ("question",):
        assert found == []
        return
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    options = {"padding": "max_length", "max_length": 8} if size else {"padding": True}
    step = size[0] if size else 8
    for number, row in enumerate(found):
        batch = texts[number * step : (number + 1) * step]
        columns = [[text[field] for text in batch] for field in fields]
        theirs = read(*columns, truncation=True, is_split_into_words=fields == ("words",), **options)
        assert {name: part.tolist() for name, part in row.inputs.items()} == dict(theirs)
        judged = [[bool(real) for real in mask] for mask in theirs["attention_mask"]]
        if fields == ("words",):
            words = [theirs.word_ids(place) for place in range(len(batch))]
            judged = [[w is not None and w not in of[:at] for at, w in enumerate(of)] for of in words]
        assert row.judged.tolist() == judged
    assert sum(len(row.judged) for row in found) == len(SENTENCES)


WRITTEN: list[tuple[str, dict[str, Any]]] = [
    ("transformer", {"rotary": True, "rmsnorm": True, "glu": "swiglu", "bias": False, **NEW}),
    ("transformer", {"local_heads": 1, "window": 4, **NEW}),
    ("performer", {"local_heads": 1, "window": 4}),
    ("reformer", {"local_heads": 2, "bucket_size": 4, "hashes": 1}),
    ("hugging_face", {"model_type": "roberta"}),
    ("modernbert", {"local_attention": 8, "global_every": 2}),
    ("deberta", {"buckets": 8, "max_distance": 16}),
]


@slow
@pytest.mark.parametrize(("kind", "options"), WRITTEN)
def test_other_backbones_are_written(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    ours = network(kind, **options)
    write_onnx(tmp_path / "model.onnx", NamedOutputs(ours), 60, LONGEST)
    assert_computed(tmp_path / "model.onnx", ours, 60)


TRACED = [("modernbert", {"local_attention": 8, "global_every": 2}), ("deberta", {"max_distance": 257})]


@pytest.mark.parametrize(("kind", "options"), TRACED)
@torch.no_grad()
def test_what_is_traced_takes_any_length(kind: str, options: dict[str, Any]) -> None:
    """Without ONNX, which takes a minute: torch refuses code that depends on the length."""
    batch, length = torch.export.Dim("batch", min=1), torch.export.Dim("length", min=1, max=LONGEST)
    shapes, made = {name: {0: batch, 1: length} for name in INPUTS}, network(kind, ("tokens",), **options)
    prefers = {"prefer_deferred_runtime_asserts_over_guards": True}
    small, longer = module.random_inputs(2, 16, 60), module.random_inputs(3, LONGEST, 60)
    traced = torch.export.export(NamedOutputs(made), small, dynamic_shapes=shapes, **prefers)
    given = dict(zip(INPUTS, longer, strict=True))
    for found, compute in zip(traced.module()(*longer), (logits, states), strict=True):
        assert_close(found, compute(made, given), given)


@slow
def test_hashes_of_a_fixed_size_are_written(tmp_path: Path) -> None:
    """Quick tests cover hashing all lengths in one pass, below, and fixed sizes with another backbone."""
    ours = network("reformer", bucket_size=4, hashes=2, local_heads=1)
    write_onnx(tmp_path / "model.onnx", NamedOutputs(ours), 60, LONGEST, (3, 22))
    assert_computed(tmp_path / "model.onnx", ours, 60, (3, 22))


@pytest.mark.parametrize(
    "options", [{}, {"hashes": 2, "memory": 8}, {"hashes": 1, "local_heads": 2}, {"reversible": True, "hashes": 3}]
)
def test_reformer_hashes_rows_of_all_lengths_in_one_pass(monkeypatch: pytest.MonkeyPatch, options: Any) -> None:
    """Each row at its own length, as in evaluation, regardless of padding."""
    ours = network("reformer", bucket_size=4, **options)
    wide: Any = ours.backbone
    given = inputs(60, 6, 45)
    expected = states(ours, given)
    wide.before_export(LONGEST)
    monkeypatch.setattr("torch.compiler.is_exporting", lambda: True)
    assert_close(states(ours, given), expected, given)


OPTIONS = {
    "Electra": {"embedding_size": 8},
    "Bert": {},
    "ModernBert": {"local_attention": 8, "layer_types": ["full_attention", "sliding_attention"], "num_hidden_layers": 2,
                   "classifier_pooling": "mean", "pad_token_id": 0},
    "DebertaV2": {"relative_attention": True, "position_buckets": 8, "max_relative_positions": 16,
                  "position_biased_input": False, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0,
                  "share_att_key": True, "norm_rel_ebd": "layer_norm"},
}  # fmt: skip


def fine_tuned(kind: str, backbone: str, folder: Path) -> Any:
    """Write a model of transformers with random large weights, and return it."""
    transformers = pytest.importorskip("transformers")
    from electra_lab.interop.hugging_face import models

    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "num_labels": 2 if kind == "ForQuestionAnswering" else 3}
    if backbone in OPTIONS:
        shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
        given = {**shape, "max_position_embeddings": LONGEST, **sizes, **OPTIONS[backbone]}
        theirs = getattr(transformers, f"{backbone}{kind}")(getattr(transformers, f"{backbone}Config")(**given)).eval()
    else:
        sections = {"type": backbone, "dim": 16, "depth": 1, "heads": 4}, {"dim": 8, "max_length": 48, "dropout": 0.1}
        config = models.ElectraLabConfig(backbone=sections[0], embedding=sections[1], **sizes)
        theirs = getattr(models, f"ElectraLab{kind}")(config).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(folder)
    return theirs


def segments(theirs: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Return the segments for classes that have them; other classes would take them for positions."""
    return {} if type(theirs).__name__.startswith("Modern") else {"token_type_ids": given["token_type_ids"]}


OUTPUTS = ["logits", "last_hidden_state"]
HEADS = {
    "ForSequenceClassification": (OUTPUTS, ["batch", 3]),
    "ForTokenClassification": (OUTPUTS, ["batch", "length", 3]),
    "ForQuestionAnswering": (["start_logits", "end_logits", "last_hidden_state"], ["batch", "length"]),
}


@pytest.mark.parametrize("backbone", OPTIONS)
@torch.no_grad()
def test_a_file_would_have_the_logits_of_transformers(tmp_path: Path, backbone: str) -> None:
    """For each class of a task, and without a head, the module equals transformers' model before torch exports it."""
    for kind, (names, _) in (HEADS | {"Model": (OUTPUTS[-1:], [])}).items():
        theirs = fine_tuned(kind, backbone, tmp_path / kind)
        ours = with_head(tmp_path / kind, read_part(tmp_path / kind, "discriminator"))
        assert [*ours.outputs] == names
        given = inputs(60, 3, 30)
        expected = theirs(given["input_ids"], given["attention_mask"], **segments(theirs, given))
        kept = slice(None) if ours.of_text else given["attention_mask"].bool()
        for name, found in zip(names[:-1], ours.eval()(*given.values())[:-1], strict=True):
            torch.testing.assert_close(found[kept], expected[name][kept], rtol=0, atol=1e-5)


QUICK = ("ForSequenceClassification", "Electra")
TUNED = [(kind, backbone) for kind in HEADS for backbone in ("Electra", "ModernBert", "DebertaV2", "performer")]


@pytest.mark.parametrize(
    ("kind", "backbone"), [pytest.param(*case, marks=[] if case == QUICK else [slow]) for case in TUNED]
)
def test_fine_tuned_heads_are_those_of_transformers(tmp_path: Path, kind: str, backbone: str) -> None:
    theirs = fine_tuned(kind, backbone, tmp_path / "model")
    change = copy_folder(tmp_path / "model", tmp_path / "out", int8=True)
    answers = {"ForSequenceClassification": "labels", "ForTokenClassification": "tags"}
    assert (change.answers if change.agreement is not None else None) == answers.get(kind)
    session, (names, axes) = open_onnx(tmp_path / "out" / "model.onnx"), HEADS[kind]
    assert [tensor.name for tensor in session.get_outputs()] == names
    assert session.get_outputs()[0].shape == axes
    for shape in SHAPES:
        given = inputs(60, *shape)
        with torch.no_grad():
            expected = theirs(given["input_ids"], given["attention_mask"], **segments(theirs, given))
        computed = session.run(names[:-1], {name: given[name].numpy() for name in INPUTS})
        kept = slice(None) if kind == "ForSequenceClassification" else given["attention_mask"].bool()
        for name, output in zip(names[:-1], computed, strict=True):
            torch.testing.assert_close(torch.from_numpy(output)[kept], expected[name][kept], rtol=0, atol=1e-4)


@slow
def test_weights_of_a_large_network_are_in_a_second_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ONNX file holds 2 GB at most; the two files can be moved together. The head here is the token head."""
    monkeypatch.setattr(module, "LARGEST", 1000)
    ours = network("bert", ("tokens",))
    (tmp_path / "made").mkdir()
    write_onnx(tmp_path / "made" / "model.onnx", NamedOutputs(ours), 60, LONGEST)
    (tmp_path / "made").rename(tmp_path / "moved")
    assert sorted(path.name for path in (tmp_path / "moved").iterdir()) == ["model.onnx", "model.onnx.data"]
    assert_computed(tmp_path / "moved" / "model.onnx", ours, 60)


class _Sixteen(Backbone, nn.Module):
    """Behaves differently at one length."""

    layers, positions = (), "own"

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return 2 * x if x.shape[1] == 16 else x


def test_what_depends_on_the_sizes_of_its_input_needs_fixed_ones(tmp_path: Path) -> None:
    made = network("bert")
    made.backbone = _Sixteen()
    with pytest.raises(ConfigError, match=r"_Sixteen cannot be .* any batch and length: .* --onnx-size 1x48,"):
        write_onnx(tmp_path / "model.onnx", NamedOutputs(made), 60, LONGEST)
    write_onnx(tmp_path / "model.onnx", NamedOutputs(made), 60, LONGEST, (2, 16))
    assert_computed(tmp_path / "model.onnx", made, 60, (2, 16))
    assert open_onnx(tmp_path / "model.onnx").get_modelmeta().custom_metadata_map["longest"] == "16"
    with pytest.raises(ConfigError, match="--onnx-size 1x49: "):
        write_onnx(tmp_path / "model.onnx", NamedOutputs(made), 60, LONGEST, (1, LONGEST + 1))


@pytest.mark.parametrize("disk", [True, False])
def test_a_full_disk_is_not_a_fault_of_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: bool) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device") if disk else OSError("could not get source code")

    monkeypatch.setattr(torch.export, "export", fails)
    with pytest.raises(OSError if disk else ConfigError, match="No space" if disk else "source code"):
        write_onnx(tmp_path / "model.onnx", NamedOutputs(network("bert")), 60, LONGEST)


class _Odd(Backbone, nn.Module):
    """Adds random numbers, which onnxruntime draws differently."""

    layers, positions = (), "own"

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return x + 0.01 * torch.rand_like(x)


@slow
def test_other_logits_than_torchs_are_refused(tmp_path: Path) -> None:
    made = network("bert")
    made.backbone = _Odd()
    with pytest.raises(ConfigError, match=r"_Odd cannot be written .* would differ by 0\.\d+\. .* export without"):
        write_onnx(tmp_path / "model.onnx", NamedOutputs(made), 60, LONGEST)


def test_without_the_packages_nothing_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = finished(tmp_path / "a")
    monkeypatch.setattr(module, "NEEDED", ("onnx", "no_such_package"))
    with pytest.raises(ConfigError, match=r"ONNX needs no_such_package\. Install: pip install 'electra-lab\[onnx\]'"):
        export(run, tmp_path / "out", onnx=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
