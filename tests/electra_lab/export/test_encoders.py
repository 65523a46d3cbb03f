"""Exports of pairs around ModernBERT and DeBERTa: plain models of transformers, which the lab reads again."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import electra_lab
from electra_lab.export.export import export
from registry import backbones
from tests.electra_lab.assembly.initial_weights import made, validated
from tests.electra_lab.export.exports import SHAPES, assert_close, finished, inputs, logits, opened, states
from tests.electra_lab.jobs.pretraining.tiny import experiment, for_a_module, run
from tests.electra_lab.tokenizers.families import save

pytestmark = pytest.mark.usefixtures("no_report")

MODERN = "{type: modernbert, dim: 8, depth: 3, heads: 2, local_attention: 8, dropout: 0.0}"
DEBERTA = "{type: deberta, dim: 8, depth: 2, heads: 2, buckets: 8, max_distance: 16}"
CLASSES = {
    "modernbert": {"discriminator": "ForTokenClassification", "generator": "ForMaskedLM", "encoder": "Model"},
    "deberta": {"discriminator": "Model", "generator": "ForMaskedLM"},
}
ALL = {
    "bert": "{type: bert, dim: 8, depth: 1, heads: 2}",
    "performer": "{type: performer, dim: 8, depth: 1, heads: 2}",
    "roberta": "{type: hugging_face, model_type: roberta, dim: 8, depth: 1, heads: 2}",
    "gemma": "{type: hugging_face, model_type: gemma3_text, dim: 8, depth: 2, heads: 2, config: {sliding_window: 4}}",
    "transformer": "{type: transformer, dim: 8, depth: 1, heads: 2}",
    "two_towers": "{type: two_towers, dim: 8, depth: 1, heads: 2}",
    "reformer": "{type: reformer, dim: 8, depth: 1, heads: 2, bucket_size: 4, hashes: 1}",
    "decoding deberta": DEBERTA.replace("}", ", mask_decoder: true}"),
    "modernbert": MODERN,
    "modernbert with qk_norm": MODERN.replace("}", ", qk_norm: true}"),
    "transformer with options": "{type: transformer, dim: 8, depth: 2, heads: 2, rotary: true, theta: 5.0e4, "
    "glu: swiglu, bias: false, qk_norm: true, value_residual: true, softcap: 5}",
    "deberta": DEBERTA,
}
TOKENS = {"pad": 0, "bos": 2, "cls": 2, "eos": 3, "sep": 3, "mask": 4}  # ids of the lab's tokenizers, by role


@pytest.fixture(scope="module", params=CLASSES)
def exported(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, Path]]:
    folder = tmp_path_factory.mktemp("encoders")
    with for_a_module():
        path = finished(folder, discriminator=ALL[request.param], generator="{scale: 1.0}")
        export(path, folder / "out")
        yield request.param, path, folder / "out"


def test_plain_transformers_loads_all_parts(exported: tuple[str, Path, Path]) -> None:
    """Without remote code, nothing missing; the logits are the lab's, and those of ORIGINAL are 0."""
    name, path, out = exported
    ours = opened(path)
    assert {folder.name for folder in out.iterdir() if folder.is_dir()} == set(CLASSES[name])
    for part, ending in CLASSES[name].items():
        kind: Any = getattr(transformers, "AutoModel" + ending.removeprefix("Model"))
        model, report = kind.from_pretrained(out / part, output_loading_info=True)
        assert type(model).__name__.endswith(ending)
        assert not report["missing_keys"], report
        extra = {key.split(".")[0] for key in report["unexpected_keys"]}
        assert extra == ({"mask_predictions"} if (name, part) == ("deberta", "discriminator") else set())
        network = ours.networks["discriminator" if part == "encoder" else part]
        for rows, length in SHAPES:
            given = inputs(ours.vocabulary.size, rows, length)
            plain = {key: given[key] for key in ("input_ids", "attention_mask")}
            with torch.no_grad():
                found = model.eval()(**plain)[0]
            if ending == "ForTokenClassification":
                assert not found[..., 0].any()
                found = found[..., 1]
            assert_close(found, (states if ending == "Model" else logits)(network, given), given)


def test_the_code_of_every_card_runs_and_detection_is_the_labs(
    exported: tuple[str, Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    _, path, out = exported
    for card in out.glob("*/README.md"):
        monkeypatch.chdir(card.parent)
        text, names = card.read_text(), dict[str, Any]()
        exec(text.split("```python\n")[1].split("```")[0], names)
        assert capsys.readouterr().out
        assert "segment" not in text.partition("<details>")[0]
        if "probabilities" in names:
            ours = electra_lab.load(path).detect("the cat sat on the mat").probabilities
            found = names["probabilities"][0, 1:-1].tolist()
            assert found == pytest.approx(ours, abs=1e-5)


SENTENCES = {
    "modernbert": ("TokenizersBackend", MODERN),  # byte-level BPE
    "roberta": ("RobertaTokenizer", "{type: hugging_face, model_type: roberta, dim: 8, depth: 2, heads: 2}"),
    "deberta": ("DebertaV2Tokenizer", DEBERTA),  # SentencePiece
    "albert": (
        "AlbertTokenizer",
        "{type: hugging_face, model_type: albert, dim: 8, depth: 2, heads: 2, config: {initializer_range: 0.5}}",
    ),
    "electra": ("BertTokenizer", "{type: bert, dim: 8, depth: 2, heads: 2}"),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_sentence_transformers_embeds_as_the_lab(name: str, tmp_path: Path) -> None:
    """Texts that fit into a row, with a marker of the tokenizer's owner; longer ones are cut, and averaged here."""
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    kind, backbone = SENTENCES[name]
    save(kind, name, tmp_path / "tokenizer")
    path = finished(
        tmp_path, discriminator=backbone, generator="{scale: 1.0}",
        data=f"{{sequence_length: 32, held_out: 0.3, overlap: 1, store: {tmp_path / 'store'}}}",
        tokenizer=f"{{type: pretrained, path: {tmp_path / 'tokenizer'}}}",
    )  # fmt: skip
    export(path, tmp_path / "out")
    texts = ["the cat sat on the mat", "the", "Dogs [E1] the  cat", "\U0001f600 naïve"]
    for part in {"discriminator", "encoder"} & {folder.name for folder in (tmp_path / "out").iterdir()}:
        encoder = library.SentenceTransformer(str(tmp_path / "out" / part), device="cpu")
        for model in (path, tmp_path / "out", tmp_path / "out" / part):
            pair = electra_lab.load(model, device="cpu")
            assert pair.length == encoder.max_seq_length
            ours, theirs = pair.embed(texts), torch.tensor(encoder.encode(texts))
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
        assert (theirs[:, None] - theirs).norm(dim=-1).sort().values[:, 1].min() > 1e-4
        long = " ".join(texts * 9)
        cut = torch.tensor(encoder.encode([long]))[0]
        assert (pair.embed(long) - cut).norm() > 1e-4


def test_all_backbones_are_tried() -> None:
    assert {section.split("type: ")[1].split(",")[0] for section in ALL.values()} >= {*backbones.names()}


@pytest.mark.parametrize("name", ALL)
def test_a_run_from_an_export_begins_where_the_run_ended(name: str, tmp_path: Path) -> None:
    """With the same losses on held-out text as the run after its last step, and the tokens' own ids in every config."""
    sections = {"discriminator": ALL[name], "generator": "{scale: 1.0}", "evaluate": "{every: 3}",
                "train": "{steps: 3, batch_size: 4, precision: fp32, learning_rate: 0.05}"}  # fmt: skip
    if name == "two_towers":  # they cannot be a discriminator
        sections |= {"discriminator": ALL["bert"], "generator": ALL[name], "objective": "{type: electric}"}
    first = run(experiment(tmp_path / "first", **sections), tmp_path / "run")
    limits = export(first, tmp_path / "out").networks[0].limits
    assert any("`qk_norm`" in limit for limit in limits) == ("modernbert with" in name)
    for file in (tmp_path / "out").glob("*/config.json"):
        config = json.loads(file.read_text())
        assert all(config.get(f"{role}_token_id") in (None, token) for role, token in TOKENS.items()), file
    init = "{discriminator: ../out, generator: ../out}"
    begin = validated(made(experiment(tmp_path / "second", init=init, **sections)))
    records = [json.loads(line) for line in (first / "metrics.jsonl").read_text().splitlines()]
    last = next(record for record in records if record["split"] == "validation" and record["step"] == 3)
    for key in ("generator_loss", "discriminator_loss", "discriminator_auc"):
        assert begin[key] == pytest.approx(last[key], abs=1e-6), key
