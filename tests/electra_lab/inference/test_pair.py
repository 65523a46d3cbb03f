"""The answers of a pair are those of its networks, no matter how texts are batched, cut and streamed."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats

from electra_lab.assembly.networks import OpenedModel
from electra_lab.data.texts import CHUNK, tokenize
from electra_lab.inference.opening import load_pair as load
from electra_lab.inference.pair import Pair
from electra_lab.inference.results import Candidate
from electra_lab.training.random import Random
from registry import backbones
from registry.errors import CheckpointError, ConfigError, DataError
from tests.electra_lab.inference.tuned import SPOILED, spoil
from tests.electra_lab.jobs.pretraining.tiny import experiment, for_a_module, run
from tests.helpers import same_but_for_rounding

TEXTS = [f"the cat number {n} sat on the mat and saw {n + 1} dogs" for n in range(6)]
LONG = " ".join(TEXTS)


def row(pair: Pair, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tokens = torch.tensor([[pair.vocabulary.cls_id, *ids, pair.vocabulary.sep_id]])
    return tokens, torch.ones_like(tokens, dtype=torch.bool), torch.zeros_like(tokens)


@torch.no_grad()
def verdict(pair: Pair, ids: list[int]) -> torch.Tensor:
    """The discriminator itself, on one row."""
    network: Any = pair.discriminator
    return network.replaced_logits(network.hidden(*row(pair, ids))).sigmoid()[0, 1:-1]


@torch.no_grad()
def guesses(pair: Pair, ids: list[int]) -> torch.Tensor:
    """The generator itself, on one row: probabilities without special tokens."""
    network: Any = pair.generator
    positions = torch.arange(1, len(ids) + 1)[None]
    logits = network.token_logits(network.hidden(*row(pair, ids)), positions)[0]
    return logits.masked_fill(pair.vocabulary.is_special, -math.inf).softmax(-1)


def test_detection_is_the_discriminators(pair: Pair) -> None:
    text = "the cat saw 3 dogs"
    found = pair.detect(text)
    ids = pair.tokenizer.encode(text).ids
    assert found.tokens == [pair.tokenizer.id_to_token(id) for id in ids]
    assert found.probabilities == pytest.approx(verdict(pair, ids).tolist(), abs=1e-6)
    assert "".join(text[start:end] for start, end in found.offsets) == text.replace(" ", "")


def test_a_long_text_is_read_in_windows_of_the_length_that_was_trained(pair: Pair) -> None:
    assert pair.length == 16
    ids = pair.tokenizer.encode(LONG).ids
    found = pair.detect(LONG).probabilities
    assert len(found) == len(ids) > 14
    # 14 tokens fit, neighbouring windows share 3: tokens up to 13 are from the first window, up to 24 from the second.
    assert found[:13] == pytest.approx(verdict(pair, ids[:14])[:13].tolist(), abs=1e-6)
    assert found[13:24] == pytest.approx(verdict(pair, ids[11:25])[2:13].tolist(), abs=1e-6)


def test_answers_do_not_depend_on_how_texts_are_batched_or_streamed(pair: Pair) -> None:
    texts = ["", *TEXTS, LONG, "dogs"]
    whole = pair.detect(texts)
    single = [pair.detect(text, batch_size=1) for text in texts]
    streamed = list(pair.stream("detect", iter(texts), batch_size=2))
    for batched, alone, streamed_ in zip(whole, single, streamed, strict=True):
        assert batched.text == alone.text == streamed_.text
        assert batched.probabilities == pytest.approx(alone.probabilities, abs=1e-5)
        assert batched.probabilities == pytest.approx(streamed_.probabilities, abs=1e-5)
    assert (whole[0].tokens, pair.detect([])) == ([], [])
    many = [TEXTS[0]] * (CHUNK + 3)
    corrupted = pair.corrupt(many)
    assert [text.inputs for text in pair.stream("corrupt", many, batch_size=1)] == [text.inputs for text in corrupted]
    assert len({tuple(text.masked) for text in corrupted}) > 3  # each text has different masks
    assert [tokenize(pair.tokenizer, [text])[0] for text in TEXTS] == tokenize(pair.tokenizer, TEXTS)


def test_a_stream_reads_no_further_than_it_must_and_answers_what_it_has_read(pair: Pair) -> None:
    read: list[str] = []

    def texts() -> Iterator[str]:
        for number in range(CHUNK * 2):
            read.append(f"the cat {number}")
            yield read[-1]
        raise DataError("file:3")

    stream = pair.stream("detect", texts(), batch_size=1)
    assert next(stream).text == "the cat 0"
    assert len(read) == CHUNK
    stream = pair.stream("detect", texts())  # all in one chunk, which is cut short
    assert [next(stream).text for _ in range(CHUNK * 2)] == [f"the cat {number}" for number in range(CHUNK * 2)]
    with pytest.raises(DataError):
        next(stream)


def test_a_stream_holds_few_characters_at_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve lines of 5 MB took 5 GB when they were read together."""
    monkeypatch.setattr("electra_lab.data.texts.CHARACTERS", 20)
    held = list[list[str]]()
    detect = pair.detect
    monkeypatch.setattr(pair, "detect", lambda texts, **options: held.append(texts) or detect(texts, **options))
    texts = ["the cat", "sat", "on the mat and", "3", "the dogs saw the cat and more", "", "a"]
    assert [result.text for result in pair.stream("detect", texts)] == texts
    assert held == [texts[:3], texts[3:5], texts[5:]]


@pytest.mark.parametrize("mask_prob", [0.01, 0.15, 0.5, 1.0])
def test_as_many_tokens_are_masked_as_the_formula_says_and_only_they_change(pair: Pair, mask_prob: float) -> None:
    special = {pair.tokenizer.id_to_token(id) for id in pair.vocabulary.special_ids}
    for found in pair.corrupt([*TEXTS, LONG], mask_prob=mask_prob):
        masked = [i for i, m in enumerate(found.masked) if m]
        assert len(masked) == math.ceil(mask_prob * len(found.tokens) - 1e-9)
        assert masked == sorted(found.candidates)
        assert {i for i, replaced in enumerate(found.replaced) if replaced} <= {*masked}
        assert special.isdisjoint(found.inputs)


def test_the_verdict_is_about_what_the_discriminator_was_given(pair: Pair) -> None:
    found = pair.corrupt("the cat saw 3 dogs", mask_prob=0.5)
    assert any(found.replaced)
    ids = [pair.tokenizer.token_to_id(token) for token in found.inputs]
    assert found.probabilities == pytest.approx(verdict(pair, ids).tolist(), abs=1e-6)


def are_the_best(pair: Pair, candidates: Sequence[Candidate], probabilities: torch.Tensor) -> None:
    """Check that candidates are the most probable tokens."""
    best = probabilities.topk(len(candidates))
    assert [candidate.token for candidate in candidates] == [pair.tokenizer.id_to_token(int(i)) for i in best.indices]
    assert [candidate.probability for candidate in candidates] == pytest.approx(best.values.tolist(), abs=1e-6)


def test_candidates_are_the_generators_and_draws_follow_them(pair: Pair) -> None:
    text = "cat sat mat"
    found = pair.corrupt(text, mask_prob=0.3, top=3, seed=4)
    [(place, candidates)] = found.candidates.items()
    ids = pair.tokenizer.encode(text).ids
    ids[place] = pair.vocabulary.mask_id
    probabilities = guesses(pair, ids)[place]
    assert len(candidates) == 3
    are_the_best(pair, candidates, probabilities)
    options: Any = {"mask_prob": 0.3, "top": 1, "temperature": 0.5, "batch_size": 500}
    corrupted = pair.corrupt([text] * 3000, **options)
    drawn = Counter(found.inputs[place] for found in corrupted if found.masked[place])
    claimed = probabilities.double().log().div(0.5).softmax(-1)
    groups = claimed.argsort(descending=True).tensor_split(8)
    expected = torch.stack([claimed[group].sum() for group in groups])
    counts = torch.tensor([drawn[pair.tokenizer.id_to_token(id) or ""] for id in range(len(claimed))])
    seen = [int(counts[group].sum()) for group in groups]
    assert stats.chisquare(seen, (expected / expected.sum() * sum(seen)).numpy()).pvalue > 1e-4
    # From all tokens, one draw for each place.
    assert len(set(pair.corrupt("cat sat mat " * 4, mask_prob=1.0, temperature=1e9).inputs)) > 8
    # The smallest temperature draws the most probable token.
    found = pair.corrupt("the cat sat on the mat", mask_prob=1.0, temperature=1e-300)
    assert [found.inputs[i] for i in found.candidates] == [best[0].token for best in found.candidates.values()]


def test_the_same_seed_gives_the_same_corruption(pair: Pair) -> None:
    assert pair.corrupt(TEXTS, seed=3) == pair.corrupt(TEXTS, seed=3)
    assert pair.corrupt(TEXTS, seed=3) != pair.corrupt(TEXTS, seed=4)
    later = pair.corrupt(TEXTS)[2:]
    assert same_but_for_rounding(pair.corrupt(TEXTS[2:], first=2), later)
    assert same_but_for_rounding([*pair.stream("corrupt", TEXTS[2:], first=2)], later)


@pytest.mark.parametrize(
    ("verb", "wrong"),
    [
        ("corrupt", {"mask_prob": 0}), ("corrupt", {"mask_prob": 1.1}), ("corrupt", {"temperature": 0}),
        ("corrupt", {"temperature": math.inf}), ("corrupt", {"top": 0}), ("corrupt", {"batch_size": 0}),
        ("detect", {"batch_size": -1}), ("embed", {"batch_size": -1}), ("embed", {"pooling": "max"}),
        ("fill", {"top": 0}),
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(pair: Pair, verb: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        getattr(pair, verb)("the [MASK] sat on the mat", **wrong)
    if verb in ("detect", "fill"):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            next(pair.stream(verb, [], **wrong))


def test_a_long_text_costs_no_more_because_of_all_the_others(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only texts of its batch get random numbers for its full length; the numbers do not depend on neighbours."""
    drawn: list[int] = []
    uniform = Random.uniform

    def counted(self: Random, rows: int, *shape: int) -> torch.Tensor:
        drawn.append(rows * math.prod(shape))
        return uniform(self, rows, *shape)

    monkeypatch.setattr(Random, "uniform", counted)
    long = " ".join(["the cat"] * 300)
    alone = pair.corrupt(long)
    assert drawn == [len(alone.tokens)] * 2  # for masks, and for samples
    drawn.clear()
    together = pair.corrupt([long, *["the cat"] * 40], batch_size=8)
    assert sum(drawn) == 2 * (8 * len(alone.tokens) + 33 * 2)
    assert together[0].inputs == alone.inputs


SIZES = "dim: 16, depth: 2, heads: 2"
BACKBONES = {
    **dict.fromkeys(backbones.names(), ""),
    "reformer": ", bucket_size: 2, hashes: 2, memory: 4, local_heads: 1",
    "performer": ", features: 24, local_heads: 1, window: 4",
    "transformer": ", local_heads: 1, window: 4",
    "hugging_face": ", model_type: roberta",
}


# test_laws.py checks padding for every backbone; here one has windows, and one depends on lengths.
@pytest.mark.parametrize(
    "backbone",
    [pytest.param(name, marks=[] if name in ("transformer", "reformer") else pytest.mark.slow) for name in BACKBONES],
)
def test_an_answer_does_not_depend_on_the_other_texts(tmp_path: Path, backbone: str) -> None:
    discriminator, generator = f"{{type: {backbone}, {SIZES}{BACKBONES[backbone]}}}", "{scale: 1.0}"
    if backbone == "two_towers":  # they cannot be a discriminator
        discriminator, generator = f"{{type: bert, {SIZES}}}", discriminator
    train = "{steps: 8, batch_size: 4, precision: fp32, learning_rate: 0.1}"  # weights are large, attention is sharp
    with for_a_module():
        networks = {"discriminator": discriminator, "generator": generator}
        path = run(experiment(tmp_path, **networks, train=train), tmp_path / "run")
    pair = load(path, device="cpu")
    texts = ["the cat", LONG, "dogs", "the [MASK] sat on the mat and saw 7 dogs", TEXTS[3], "", "the cat [MASK] 12345"]
    alone = [numbers(pair, [text], first=number) for number, text in enumerate(texts)]
    for size in (2, 32):
        for verb, together in numbers(pair, texts, batch_size=size).items():
            for found, own, text in zip(together, alone, texts, strict=True):
                assert found == pytest.approx(own[verb][0], abs=1e-5), (verb, text)


def numbers(pair: Pair, texts: list[str], first: int = 0, batch_size: int = 32) -> dict[str, list[Any]]:
    """Return the numbers of each text, by verb."""
    embedded = {str(kind): pair.embed(texts, pooling=kind, batch_size=batch_size) for kind in ("mean", "cls", None)}
    corrupted = pair.corrupt(texts, mask_prob=0.4, first=first, batch_size=batch_size)
    filled = []
    for answer in pair.fill(texts, batch_size=batch_size):
        filled.append([best.probability for mask in answer.candidates for best in mask])
    found: dict[str, list[Any]] = {
        "detect": [answer.probabilities for answer in pair.detect(texts, batch_size=batch_size)],
        "corrupt": [answer.probabilities for answer in corrupted],
        "masked": [answer.masked for answer in corrupted],
        "fill": filled,
    }
    for by in ("detection", "likelihood"):
        scored = pair.score(texts, by=by, mask_prob=0.4, batch_size=batch_size)
        found[f"score {by}"] = [answer.values for answer in scored]
    for name, states in embedded.items():
        found[name] = [state.flatten().tolist() for state in states]
    return found


def spoiled(run_directory: Path, where: str) -> Pair:
    """Return a pair whose networks compute numbers that are not finite, in one row those of `dogs`."""
    pair = load(run_directory, device="cpu")
    for network, head in ((pair.discriminator, "replaced"), (pair.generator, "tokens")):
        spoil(where, network, network.heads[head], pair.tokenizer.token_to_id("dogs"))
    return pair


VERBS: list[tuple[Any, dict[str, Any]]] = [
    ("detect", {}), ("corrupt", {"mask_prob": 0.3}), ("fill", {}), ("score", {}), ("score", {"reduce": "max"}),
    ("score", {"by": "likelihood"}), ("embed", {}), ("embed", {"pooling": "cls"}), ("embed", {"pooling": None}),
]  # fmt: skip


@pytest.mark.parametrize("where", SPOILED)
def test_numbers_that_are_not_finite_are_no_answer(run_directory: Path, where: str) -> None:
    """Also in one row of a batch, which the text before it does not share."""
    pair, texts = spoiled(run_directory, where), ["the cat [MASK]", "the cat [MASK] 3 dogs"]
    for verb, options in VERBS:
        answer = getattr(pair, verb)
        if verb == "embed" and where == "head":  # which it does not use
            assert all(state.isfinite().all() for state in answer(texts, **options))
            continue
        with pytest.raises(CheckpointError, match=f"{run_directory}: .* not finite"):
            answer(texts, **options)
        if where == "one row" and verb in ("detect", "embed"):  # the others compare with the embedding of every word
            assert answer(texts[0], **options) is not None


def test_a_mean_that_overflows_is_no_answer(run_directory: Path) -> None:
    pair = load(run_directory, device="cpu")
    with torch.no_grad():
        pair.discriminator.backbone.layers[-1].output_norm.weight.fill_(1e38)  # type: ignore[union-attr, index]
    assert bool(pair.embed("the cat sat on the mat", pooling=None).isfinite().all())
    with pytest.raises(CheckpointError):
        pair.embed("the cat sat on the mat")


def test_masks_are_filled_each_with_the_best_tokens(pair: Pair) -> None:
    text = "the [MASK] sat on [MASK]"
    found = pair.fill(text, top=2)
    assert [text[start:end] for start, end in found.masks] == ["[MASK]", "[MASK]"]
    the, sat, on = (pair.tokenizer.encode(word).ids for word in ("the", "sat", "on"))
    ids = [*the, pair.vocabulary.mask_id, *sat, *on, pair.vocabulary.mask_id]
    for place, best in zip((1, len(ids) - 1), found.candidates, strict=True):
        assert len(best) == 2
        are_the_best(pair, best, guesses(pair, ids)[place])
    assert [len(answer.masks) for answer in pair.fill(["[MASK]", f"{LONG} [MASK] {LONG}", "the cat"])] == [1, 1, 0]
    with pytest.raises(ConfigError, match=r"no \[MASK\] to fill in 'the cat'"):
        pair.fill("the cat")


def test_a_model_without_the_head_of_a_task_predicts_nothing(pair: Pair) -> None:
    for predict in (pair.predict, lambda text: [*pair.stream("predict", [text])]):
        with pytest.raises(ConfigError, match="no head of a task"):
            predict("the cat")


def test_states_are_the_discriminators(pair: Pair) -> None:
    network: Any = pair.discriminator
    tokens = pair.tokenizer.encode(LONG).ids
    assert len(tokens) > 2 * (pair.length - 2)  # in three windows, of which the last is the shortest
    with torch.no_grad():
        states = network.hidden(*row(pair, pair.tokenizer.encode("the cat").ids))[0]
        begin = network.hidden(*row(pair, tokens[: pair.length - 2]))[0]
    several = pair.embed([*TEXTS, "", "the cat"])
    assert (several.shape, pair.embed([]).shape, bool(several[-2].any())) == ((8, 16), (0, 16), False)
    for found, expected in (
        (pair.embed("the cat", pooling=None), states[1:-1]),
        (pair.embed("the cat"), states.mean(0)),
        (several[-1], states.mean(0)),
        (pair.embed("the cat", pooling="cls"), states[0]),
        (pair.embed(LONG, pooling="cls"), begin[0]),
        (pair.embed(LONG, pooling=None)[:4], begin[1:5]),
    ):
        assert torch.allclose(found, expected, atol=1e-6)


def test_a_pair_says_what_it_lacks(tmp_path: Path, pair: Pair) -> None:
    with for_a_module():
        sections = {"objective": "{type: mlm}", "generator": "null", "sampler": "null"}
        mlm = load(run(experiment(tmp_path / "mlm", **sections), tmp_path / "run"), device="cpu")
        unigram = load(
            run(experiment(tmp_path / "unigram", generator="{type: unigram}"), tmp_path / "other"), device="cpu"
        )
    # The generator guesses by frequency, without context.
    first, second = unigram.fill(["[MASK] cat", "the dogs [MASK]"], top=1)
    assert first.candidates == second.candidates
    assert unigram.corrupt("the cat").probabilities is not None
    assert mlm.fill("the [MASK]").candidates
    assert mlm.corrupt("the cat sat").probabilities is None
    with pytest.raises(ConfigError, match=f"{tmp_path / 'run'}: has no detection head, so it cannot detect replaced"):
        mlm.detect("the cat")
    with pytest.raises(ConfigError, match="device is 'gpu'"):
        load(tmp_path / "run", device="gpu")
    # Empty windows would never end.
    two, three = (OpenedModel(replace(pair.model, length=n), pair.networks, pair.vocabulary, {}) for n in (2, 3))
    with pytest.raises(ConfigError, match=rf"^{pair.name}: reads 2 tokens at once; it needs at least 3"):
        Pair(two)
    assert Pair(three).detect(TEXTS[0])


@pytest.mark.parametrize("verb", ["detect", "corrupt", "score", "fill", "embed"])
@pytest.mark.parametrize("wrong", [None, 5, b"x", {"the": 1}, [None], [5], [b"x"], ("the", ["cat"]), object], ids=repr)
def test_what_is_not_a_text_is_refused(pair: Pair, verb: Any, wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"^text [12]: must be "):
        getattr(pair, verb)(wrong)
    with pytest.raises(ConfigError, match=r"^batch_size must be "):
        getattr(pair, verb)("the [MASK]", batch_size="32")
    if isinstance(wrong, list):
        with pytest.raises(ConfigError, match=r"^text 1: must be "):
            next(pair.stream(verb, wrong))
