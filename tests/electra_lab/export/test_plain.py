"""An exported `bert` pair consists of plain transformers models with the weights and logits of the run."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub import ModelCard, RepoCard
from safetensors.torch import load_file

import electra_lab
from electra_lab.cli.export import judge
from electra_lab.export.card import model_card, names_on_the_hub, with_metadata
from electra_lab.export.export import MARK, export, exportable
from electra_lab.presentation.run_page import closing
from electra_lab.pretrained.opening import read_run
from electra_lab.storage.provenance import Start
from electra_lab.storage.run_directory import RunDirectory
from registry.errors import CheckpointError, ConfigError
from tests.electra_lab.export.exports import SHAPES, TRAIN, assert_close, finished, inputs, logits, opened, states
from tests.electra_lab.jobs.pretraining.tiny import for_a_module, lines, tensors
from tests.electra_lab.model.theirs import to_transformers

WARMUP = "{start: 1, increment: 1, every: 2}"  # 1, 1, 2, 2, 3, 3 rows, then 4: 20 before step 8, 36 before step 12
PARTS = {"discriminator": "ElectraForPreTraining", "generator": "ElectraForMaskedLM"}
AUTO = {
    "AutoModel": "ElectraModel",
    "AutoModelForSequenceClassification": "ElectraForSequenceClassification",
    "AutoModelForTokenClassification": "ElectraForTokenClassification",
    "AutoModelForQuestionAnswering": "ElectraForQuestionAnswering",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A run and its export."""
    folder = tmp_path_factory.mktemp("plain")
    with for_a_module():
        bert = "{type: bert, dim: 16, depth: 2, heads: 2, dropout: 0.2}"
        path = finished(folder, discriminator=bert, train=TRAIN.replace("}", f", batch_warmup: {WARMUP}}}"))
        assert [network.name for network in export(path, folder / "out", judge=judge).networks] == list(PARTS)
        yield path, folder / "out"


def load(kind: str, folder: Path, **options: Any) -> tuple[Any, dict[str, Any]]:
    return getattr(transformers, kind).from_pretrained(folder, output_loading_info=True, **options)


@pytest.mark.parametrize("part", PARTS)
def test_logits_are_those_of_the_lab(made: tuple[Path, Path], part: str) -> None:
    run, folder = made
    model, report = load(PARTS[part].replace("Electra", "AutoModel"), folder / part)
    assert type(model).__name__ == PARTS[part] == model.config.architectures[0]
    assert type(model).__module__.startswith("transformers.")
    assert not any(report.values()), report
    ours = opened(run)
    for rows, length in SHAPES:
        given = inputs(ours.vocabulary.size, rows, length)
        with torch.no_grad():
            assert_close(model(**given).logits, logits(ours.networks[part], given), given)


@pytest.mark.parametrize("auto", AUTO)
@pytest.mark.parametrize("part", PARTS)
def test_auto_classes_take_the_encoder_and_draw_no_more_than_their_head(made: Any, part: str, auto: str) -> None:
    run, folder = made
    model, report = load(auto, folder / part)
    assert type(model).__name__ == AUTO[auto]
    assert all(name.startswith(("classifier.", "qa_outputs.")) for name in report["missing_keys"])
    ours = opened(run)
    given = inputs(ours.vocabulary.size, 3, 16)
    with torch.no_grad():
        encoder = getattr(model, "electra", model)
        assert_close(encoder(**given).last_hidden_state, states(ours.networks[part], given), given)


def test_the_config_says_what_was_trained(made: tuple[Path, Path]) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(made[1] / "discriminator")
    assert tokenizer.model_max_length == 48  # of the network, not of the rows in training
    config = transformers.AutoConfig.from_pretrained(made[1] / "discriminator")
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob, config.layer_norm_eps) == (0.2, 0.2, 1e-12)
    pad = opened(made[0]).vocabulary.pad_id
    assert (config.pad_token_id, config.hidden_act, config.intermediate_size) == (pad, "gelu", 64)


@pytest.mark.parametrize("part", PARTS)
def test_weights_come_back_bit_by_bit_and_no_table_is_stored_twice(made: tuple[Path, Path], part: str) -> None:
    run, folder = made
    stored, ours = load_file(folder / part / "model.safetensors"), to_transformers(opened(run).networks[part])
    assert stored.keys() == ours.keys()
    assert all(torch.equal(tensor, ours[name]) for name, tensor in stored.items())


def test_any_kept_step_can_be_exported(made: tuple[Path, Path], tmp_path: Path) -> None:
    run, _ = made
    assert export(run, tmp_path / "out", 8, judge=judge).step == 8
    stored = load_file(tmp_path / "out" / "discriminator" / "model.safetensors")
    name, ours = "discriminator_predictions.dense.weight", "model.discriminator.heads.replaced.dense.weight"
    assert torch.equal(stored[name], tensors(run, 8)[ours])
    assert not torch.equal(stored[name], tensors(run, 12)[ours])
    card = (tmp_path / "out" / "discriminator" / "README.md").read_text()
    (seen,) = (record for record in lines(run, "validation") if record["step"] == 6)
    assert "after step 8 of 12" in card
    provenance = json.loads((run / "provenance.json").read_text())
    assert provenance["flops"] == provenance["flops_per_step"] * 36 // 4
    assert (
        f"- steps: 8 of up to 4 rows, {20 * 16} tokens with padding\n- FLOPs: {provenance['flops'] * 20 / 36:.3g}"
        in card
    )
    assert f"after step 6 on {seen['tokens']} tokens, with padding, of validation text" in card
    assert f"| discriminator AUC | {seen['discriminator_auc']:.3f} |" in card
    assert f" against {seen['unigram_mask_entropy']:.3f} (" in card
    assert "_gain" not in card
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 4\. Kept: 8, 12"):
        export(run, tmp_path / "other", 4)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("part", PARTS)
def test_sentences_are_embedded_by_sentence_transformers(made: tuple[Path, Path], part: str) -> None:
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    run, folder = made
    ours, texts = opened(run), ["the cat sat on the mat", "dogs", "the"]
    encoder = library.SentenceTransformer(str(folder / part), device="cpu")
    vectors = encoder.encode(texts)
    pair = electra_lab.load(folder, device="cpu")
    assert (encoder.max_seq_length, "mean" in str(encoder[1])) == (pair.length, True)
    assert pair.length < opened(run).networks[part].longest(1000)  # rows of the run are shorter than its positions
    if part == "discriminator":
        for embeds in (pair, electra_lab.load(run, device="cpu"), electra_lab.load(folder / part, device="cpu")):
            torch.testing.assert_close(embeds.embed(texts), torch.tensor(vectors), rtol=0, atol=1e-6)
    for text, vector in zip(texts, vectors, strict=True):
        ids = [ours.vocabulary.cls_id, *ours.tokenizer.encode(text).ids, ours.vocabulary.sep_id]
        given = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
        mean = states(ours.networks[part], given | {"token_type_ids": torch.zeros_like(given["input_ids"])}).mean(1)[0]
        torch.testing.assert_close(torch.tensor(vector), mean, rtol=0, atol=1e-5)


@pytest.mark.parametrize("part", PARTS)
def test_the_code_of_the_card_runs(made: tuple[Path, Path], part: str, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(made[1] / part)
    code = Path("README.md").read_text().split("```python\n")[1].split("```")[0]
    exec(code, {})
    assert capsys.readouterr().out


def test_the_card_says_where_the_model_comes_from(made: tuple[Path, Path]) -> None:
    run, folder = made
    card = ModelCard.load(folder / "discriminator" / "README.md")
    assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "feature-extraction")
    assert {"electra", "replaced-token-detection"} <= set(card.data.tags)
    assert ModelCard.load(folder / "generator" / "README.md").data.pipeline_tag == "fill-mask"
    provenance, last = json.loads((run / "provenance.json").read_text()), lines(run, "test")[-1]
    data = provenance["data"]
    documents, tokens = data["documents"], data["tokens"]
    for fact in (
        f"`bert` of width 16,\ndepth 2 and 2 heads, with {provenance['parameters']['discriminator']:,} parameters.",
        "- corpus: `text_files`",
        "All tokens were in segment 0",
        f"- data: {documents['train']} documents, {tokens['train']} tokens to train; validation "
        f"{documents['validation']} and {tokens['validation']}; test {documents['test']} and {tokens['test']}",
        f"- overlap: {data['overlap']:.1%} of the 13-token runs",
        f"- steps: 12 of up to 4 rows, {36 * 16} tokens with padding",
        f"- FLOPs: {provenance['flops']:.3g} of matrix products of both networks",
        "- device: cpu, fp32",
        f"after step 12 on {last['tokens']} tokens, with padding, of test text",
        f"| discriminator AUC | {last['discriminator_auc']:.3f} |",
        "at most 48 tokens. In pre-training, rows had 16",
        f"commit {provenance['git']['commit']}" if provenance["git"] else "electra_lab: 0.1",
        provenance["config_sha256"],
        "dropout of embeddings; 0.1 was used",
        "\n- `ElectraTokenizer` does not compose characters",
        "  dim: 16\n  depth: 2\n",
    ):
        assert fact in card.content, fact
    assert str(run.parent) not in card.content  # folders on the author's machine
    assert "AutoModelForMaskedLM" not in card.content  # which is the class of the generator


def test_a_card_names_no_folder_of_this_machine(made: tuple[Path, Path]) -> None:
    """Neither the pre-trained model, which may be gone, nor a path in the config; names on the hub stay."""
    model = read_run(made[0])
    network = exportable(model, model.parts["discriminator"])
    config = {**model.run.config, "data": {**model.run.config["data"], "store": "/home/ada/store"}}
    for source, base in (("/home/ada/model", None), ("google/electra-small", "google/electra-small")):
        init = {"discriminator": Start(source=source, sha256={}, tokenizer=True)}
        origin = replace(model.run, provenance=model.run.provenance.model_copy(update={"init": init}), config=config)
        card = ModelCard(model_card(replace(model, run=origin), network))
        assert card.data.base_model == base
        assert f"weights of the discriminator: from {base or 'model'}\n" in card.content
        assert "/home/ada" not in card.content
        assert "  store: store\n" in card.content


def test_metadata_of_the_command_line_replaces_that_of_a_card() -> None:
    card = b"---\nlicense: mit\nlanguage: en\nmine: [1]\n---\n\n# Mine\n---\n"
    given = {"license": "apache-2.0", "language": None, "datasets": ["me/x"]}
    found = RepoCard(with_metadata(card, given))
    assert found.data.to_dict() == {"license": "apache-2.0", "language": "en", "mine": [1], "datasets": ["me/x"]}
    assert found.text.strip() == "# Mine\n---"
    for wrong in (b"---\na: [\n---\n", b"---\na: \xff\n---\n", b"---\n- 1\n---\n"):
        with pytest.raises(ConfigError, match=r"README\.md"):
            with_metadata(wrong, given)


def test_the_card_names_datasets_of_the_hub_alone() -> None:
    sources = [{"type": "hugging_face", "path": path} for path in ("me/corpus", "/mine/corpus", "me/corpus")]
    assert names_on_the_hub({"type": "mixture", "sources": [*sources, {"type": "files"}]}) == ["me/corpus"]


MASKED, REPLACED = "masked language model", "pre-trained to predict the original tokens"
SEGMENTS = {"packing": "{type: segments}"}
BARE = {"discriminator": "{type: modernbert, dim: 8, depth: 2, heads: 2, local_attention: 8}", "generator": "null"}


@pytest.mark.parametrize(
    ("sections", "parts", "said", "unsaid"),
    [
        ({"objective": "{type: mlm}", "sampler": "null", **BARE}, {"discriminator"}, {MASKED},
         {"own task", "segment", "electra\n", "both networks", "replace"}),
        ({"objective": "{type: replace_mlm}"}, {"discriminator", "generator"}, {REPLACED, "- electra\n", "own task"},
         {"fill-mask", "masked-language"}),
        (SEGMENTS, {"discriminator", "generator"}, {"replaced-token-detection"}, {"segment 1"}),
        ({"generator": "{type: unigram}"}, {"discriminator"}, {"segment 1", "own task"}, {"both networks"}),
        ({"objective": "{type: sas}", "generator": "null"}, {"discriminator"}, {"by replaced token detection"},
         {"generator"}),
    ],
)  # fmt: skip
def test_a_card_says_only_what_is_true_of_its_run(
    tmp_path: Path, sections: dict[str, str], parts: set[str], said: set[str], unsaid: set[str]
) -> None:
    with for_a_module():
        run = finished(tmp_path, **sections)
    exported = export(run, tmp_path / "out", judge=judge)
    assert {network.name for network in exported.networks} == parts
    card = (tmp_path / "out" / "discriminator" / "README.md").read_text().partition("<details>")[0]
    assert {text for text in said | unsaid if text in card} == said
    # On the terminal, too, nothing is said of a task that the run does not have.
    lines = closing(RunDirectory(run), run / "report.html", None)
    assert ("own task" in lines) == ("own task" in card)


MLM, UNIGRAM = {"objective": "{type: mlm}", "generator": "null", "sampler": "null"}, {"generator": "{type: unigram}"}
COPY, BOTH = {"objective": "{type: all_tokens_mlm}"}, dict.fromkeys(PARTS, "ElectraForMaskedLM")
DETECTS, FILLS = ({"discriminator": kind} for kind in PARTS.values())
TIED = "{dim: 8, max_length: 16, tie: all}"
DISENTANGLED = {"embedding": TIED.replace("all", "gradient_disentangled")}


@pytest.mark.parametrize(
    ("sections", "classes", "said"),
    [
        (MLM, FILLS, ""),
        (UNIGRAM, DETECTS, "The generator, `unigram`, learned nothing and was not exported."),
        (COPY, BOTH, "Parameters of the objective itself were not exported: copy.bias, copy.weight."),
        (DISENTANGLED, PARTS, ""),
        ({"embedding": TIED, "generator": "{scale: 1.0}"}, PARTS, ""),
    ],
)
def test_what_exists_is_exported_under_the_class_of_its_head(
    tmp_path: Path, sections: dict[str, str], classes: dict[str, str], said: str
) -> None:
    with for_a_module():
        run = finished(tmp_path, **sections)
    exported = export(run, tmp_path / "out")
    assert {network.name: network.class_name for network in exported.networks} == classes
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*classes, MARK}
    ours = opened(run)
    for part, name in classes.items():
        model, report = load(name, tmp_path / "out" / part)
        assert not any(report.values()), report
        given = inputs(ours.vocabulary.size, 2, 16)
        with torch.no_grad():
            assert_close(model(**given).logits, logits(ours.networks[part], given), given)
    limits = exported.networks[0].limits
    assert limits == ([said] if said else [])
    assert said in (tmp_path / "out" / "discriminator" / "README.md").read_text()
