"""A pair in use: its answers are those of its networks, however texts are batched, cut and streamed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats

from electra_lab.data.texts import tokenize
from electra_lab.inference.pair import CHUNK, Pair, load
from electra_lab.training.random import Random
from registry import backbones
from registry.errors import ConfigError, DataError
from tests.electra_lab.jobs.pretraining.tiny import experiment, for_a_module, run

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
    # 14 tokens fit, neighbours share 3: the first window is asked for its first 13, the second for those up to 24.
    assert found[:13] == pytest.approx(verdict(pair, ids[:14])[:13].tolist(), abs=1e-6)
    assert found[13:24] == pytest.approx(verdict(pair, ids[11:25])[2:13].tolist(), abs=1e-6)


def test_answers_do_not_depend_on_how_texts_are_batched_or_streamed(pair: Pair) -> None:
    texts = ["", *TEXTS, LONG, "dogs"]
    whole = pair.detect(texts)
    single = [pair.detect(text, batch_size=1) for text in texts]
    streamed = list(pair.stream("detect", iter(texts), batch_size=2))
    for one, two, three in zip(whole, single, streamed, strict=True):
        assert one.text == two.text == three.text
        assert one.probabilities == pytest.approx(two.probabilities, abs=1e-5)
        assert one.probabilities == pytest.approx(three.probabilities, abs=1e-5)
    assert whole[0].tokens == []
    assert pair.detect([]) == []
    many = [TEXTS[0]] * (CHUNK + 3)
    corrupted = pair.corrupt(many)
    assert [each.inputs for each in pair.stream("corrupt", many, batch_size=1)] == [each.inputs for each in corrupted]
    assert len({tuple(each.masked) for each in corrupted}) > 3  # each text has masks of its own


def test_a_stream_reads_no_further_than_it_must(pair: Pair) -> None:
    read = Counter[str]()

    def texts() -> Any:
        while True:
            read["texts"] += 1
            yield "the cat"

    stream = pair.stream("detect", texts(), batch_size=1)
    next(stream)
    assert read["texts"] == CHUNK


def test_a_stream_holds_few_characters_at_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve lines of 5 MB took 5 GB, as they were read together."""
    monkeypatch.setattr("electra_lab.inference.pair.CHARACTERS", 20)
    held = list[list[str]]()
    detect = pair.detect
    monkeypatch.setattr(pair, "detect", lambda texts, **options: held.append(texts) or detect(texts, **options))
    texts = ["the cat", "sat", "on the mat and", "3", "the dogs saw the cat and more", "", "a"]
    assert [result.text for result in pair.stream("detect", texts)] == texts
    assert held == [texts[:3], texts[3:5], texts[5:]]


def test_texts_before_one_that_cannot_be_read_are_answered(pair: Pair) -> None:
    def texts() -> Iterator[str]:
        yield "the cat"
        yield "sat"
        raise DataError("file:3")

    stream = pair.stream("detect", texts())
    assert [next(stream).text, next(stream).text] == ["the cat", "sat"]
    with pytest.raises(DataError):
        next(stream)


def test_a_text_alone_has_the_tokens_that_it_has_among_others(pair: Pair) -> None:
    assert [tokenize(pair.tokenizer, [text])[0] for text in TEXTS] == tokenize(pair.tokenizer, TEXTS)


def test_as_many_tokens_are_masked_as_the_formula_says_and_only_they_change(pair: Pair) -> None:
    for mask_prob in (0.01, 0.15, 0.5, 1.0):
        for found in pair.corrupt([*TEXTS, LONG], mask_prob=mask_prob):
            total = len(found.tokens)
            assert sum(found.masked) == math.ceil(mask_prob * total - 1e-9)
            assert [i for i, m in enumerate(found.masked) if m] == sorted(found.candidates)
            assert all(masked for masked, replaced in zip(found.masked, found.replaced, strict=True) if replaced)
            special = {pair.tokenizer.id_to_token(id) for id in pair.vocabulary.special_ids}
            assert special.isdisjoint(found.inputs)


def test_the_verdict_is_about_what_the_discriminator_was_given(pair: Pair) -> None:
    found = pair.corrupt("the cat saw 3 dogs", mask_prob=0.5)
    assert any(found.replaced)
    ids = [pair.tokenizer.token_to_id(token) for token in found.inputs]
    assert found.probabilities == pytest.approx(verdict(pair, ids).tolist(), abs=1e-6)


def test_candidates_are_the_generators_and_draws_follow_them(pair: Pair) -> None:
    found = pair.corrupt("cat sat mat", mask_prob=0.3, top=3, seed=4)
    [place] = found.candidates
    ids = pair.tokenizer.encode("cat sat mat").ids
    ids[place] = pair.vocabulary.mask_id
    probabilities = guesses(pair, ids)[place]
    best = probabilities.topk(3)
    assert [each.token for each in found.candidates[place]] == [
        pair.tokenizer.id_to_token(int(i)) for i in best.indices
    ]
    assert [each.probability for each in found.candidates[place]] == pytest.approx(best.values.tolist(), abs=1e-6)
    temperature = 0.5
    drawn = Counter(
        each.inputs[place]
        for each in pair.corrupt(["cat sat mat"] * 3000, mask_prob=0.3, top=1, temperature=temperature, batch_size=500)
        if each.masked[place]
    )
    total = sum(drawn.values())
    claimed = probabilities.double().log().div(temperature).softmax(-1)
    order = claimed.argsort(descending=True)
    groups = order.tensor_split(8)
    expected = torch.stack([claimed[group].sum() for group in groups]) * total
    seen = [sum(drawn[pair.tokenizer.id_to_token(int(i)) or ""] for i in group) for group in groups]
    assert stats.chisquare(seen, expected.numpy() * (total / float(expected.sum()))).pvalue > 1e-4
    several = pair.corrupt(
        "cat sat mat " * 4, mask_prob=1.0, temperature=1e9
    )  # from all tokens, one draw for each place
    assert len(set(several.inputs)) > 8


def test_the_same_seed_gives_the_same_corruption(pair: Pair) -> None:
    assert pair.corrupt(TEXTS, seed=3) == pair.corrupt(TEXTS, seed=3)
    assert pair.corrupt(TEXTS, seed=3) != pair.corrupt(TEXTS, seed=4)
    assert pair.corrupt(TEXTS)[2:] == pair.corrupt(TEXTS[2:], first=2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mask_prob": 0},
        {"mask_prob": 1.1},
        {"temperature": 0},
        {"temperature": math.inf},
        {"top": 0},
        {"batch_size": 0},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(pair: Pair, wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} .*must be|{next(iter(wrong))} a finite|mask_prob must"):
        pair.corrupt("the cat sat on the mat", **wrong)


def test_other_verbs_refuse_them_too(pair: Pair) -> None:
    for act in (pair.detect, pair.embed, lambda text, **o: list(pair.stream("detect", [text], **o))):
        with pytest.raises(ConfigError, match="batch_size must be at least 1, is -1"):
            act("the cat", batch_size=-1)
    for act in (lambda: pair.fill("[MASK]", top=0), lambda: next(pair.stream("fill", [], top=0))):
        with pytest.raises(ConfigError, match="top must be at least 1"):
            act()
    with pytest.raises(ConfigError, match="device is 'gpu'; it must be 'cpu', 'cuda' or 'auto'"):
        load(pair.name, device="gpu")
    assert pair.embed([]).shape == (0, 16)


def test_the_smallest_temperature_draws_the_best_token(pair: Pair) -> None:
    found = pair.corrupt("the cat sat on the mat", mask_prob=1.0, temperature=1e-300)
    assert [found.inputs[i] for i in found.candidates] == [best[0].token for best in found.candidates.values()]
    again = list(pair.stream("corrupt", TEXTS[2:], first=2))
    assert again == pair.corrupt(TEXTS)[2:]


def test_a_long_text_costs_no_more_because_of_all_the_others(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers for its whole length are drawn for the texts of its batch alone; none depends on those beside it."""
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


# That padding never matters is a law of each backbone, in test_laws.py: here one has windows, and one looks at lengths.
@pytest.mark.parametrize(
    "backbone",
    [pytest.param(name, marks=[] if name in ("transformer", "reformer") else pytest.mark.slow) for name in BACKBONES],
)
def test_an_answer_does_not_depend_on_the_other_texts(tmp_path: Path, backbone: str) -> None:
    discriminator, generator = f"{{type: {backbone}, {SIZES}{BACKBONES[backbone]}}}", "{scale: 1.0}"
    if backbone == "two_towers":  # which are no discriminator
        discriminator, generator = f"{{type: bert, {SIZES}}}", discriminator
    train = "{steps: 8, batch_size: 4, precision: fp32, learning_rate: 0.1}"  # weights are large, attention is sharp
    with for_a_module():
        networks = {"discriminator": discriminator, "generator": generator}
        path = run(experiment(tmp_path, **networks, train=train), tmp_path / "run")
    pair = load(path, device="cpu")
    texts = ["the cat", LONG, "dogs", "the [MASK] sat on the mat and saw 7 dogs", TEXTS[3], "", "the cat [MASK] 12345"]
    for size in (2, 32):
        together = numbers(pair, texts, batch_size=size)
        for number, text in enumerate(texts):
            for verb, alone in numbers(pair, [text], first=number).items():
                assert together[verb][number] == pytest.approx(alone[0], abs=1e-5), (verb, text)


def numbers(pair: Pair, texts: list[str], first: int = 0, batch_size: int = 32) -> dict[str, list[Any]]:
    """Return the numbers of each text, by verb."""
    embedded = {str(kind): pair.embed(texts, pooling=kind, batch_size=batch_size) for kind in ("mean", "cls", None)}
    corrupted = pair.corrupt(texts, mask_prob=0.4, first=first, batch_size=batch_size)
    filled = [[best for mask in each.candidates for best in mask] for each in pair.fill(texts, batch_size=batch_size)]
    return {
        "detect": [each.probabilities for each in pair.detect(texts, batch_size=batch_size)],
        "corrupt": [each.probabilities for each in corrupted],
        "masked": [each.masked for each in corrupted],
        **{
            f"score {by}": [each.values for each in pair.score(texts, by=by, mask_prob=0.4, batch_size=batch_size)]
            for by in ("detection", "likelihood")
        },
        "fill": [[best.probability for best in each] for each in filled],
        **{name: [state.flatten().tolist() for state in states] for name, states in embedded.items()},
    }


def test_masks_are_filled_each_with_the_best_tokens(pair: Pair) -> None:
    text = "the [MASK] sat on [MASK]"
    found = pair.fill(text, top=2)
    assert [text[start:end] for start, end in found.masks] == ["[MASK]", "[MASK]"]
    start = pair.tokenizer.token_to_id("the")
    mask, sat, on = pair.vocabulary.mask_id, *(pair.tokenizer.encode(word).ids for word in ("sat", "on"))
    ids = [start, mask, *sat, *on, mask]
    probabilities = guesses(pair, ids)
    for place, best in zip((1, len(ids) - 1), found.candidates, strict=True):
        top = probabilities[place].topk(2)
        assert [each.token for each in best] == [pair.tokenizer.id_to_token(int(i)) for i in top.indices]
        assert [each.probability for each in best] == pytest.approx(top.values.tolist(), abs=1e-6)
    assert [len(each.masks) for each in pair.fill(["[MASK]", f"{LONG} [MASK] {LONG}"])] == [1, 1]
    with pytest.raises(ConfigError, match=r"there is no \[MASK\] to fill in 'the cat'"):
        pair.fill("the cat")
    assert [each.candidates == [] for each in pair.fill(["[MASK]", "the cat"])] == [False, True]


def test_states_are_the_discriminators(pair: Pair) -> None:
    network: Any = pair.discriminator
    ids = pair.tokenizer.encode("the cat").ids
    with torch.no_grad():
        states = network.hidden(*row(pair, ids))[0]
    assert torch.allclose(pair.embed("the cat", pooling=None), states[1:-1], atol=1e-6)
    assert torch.allclose(pair.embed("the cat"), states[1:-1].mean(0), atol=1e-6)
    assert torch.allclose(pair.embed("the cat", pooling="cls"), states[0], atol=1e-6)
    tokens = pair.tokenizer.encode(LONG).ids
    assert len(tokens) > 2 * (pair.length - 2)  # in three windows, of which the last is the shortest
    with torch.no_grad():
        begin = network.hidden(*row(pair, tokens[: pair.length - 2]))[0]
    assert torch.allclose(pair.embed(LONG, pooling="cls"), begin[0], atol=1e-6)
    assert torch.allclose(pair.embed(LONG, pooling=None)[:4], begin[1:5], atol=1e-6)
    several = pair.embed([*TEXTS, "", "the cat"])
    assert several.shape == (8, 16)
    assert torch.allclose(several[-1], states[1:-1].mean(0), atol=1e-6)
    assert not several[-2].any()
    with pytest.raises(ConfigError, match="pooling must be"):
        pair.embed("the cat", pooling="max")  # type: ignore[call-overload]


@pytest.mark.parametrize("kind", ["mlm", "unigram"])
def test_a_pair_says_what_it_lacks(tmp_path: Path, kind: str) -> None:
    sections = {
        "mlm": {"objective": "{type: mlm}", "generator": "null", "sampler": "null"},
        "unigram": {"generator": "{type: unigram}"},
    }
    with for_a_module():
        pair = load(run(experiment(tmp_path, **sections[kind]), tmp_path / "run"), device="cpu")
    if kind == "unigram":  # it guesses by frequency, whatever the context
        one, other = pair.fill(["[MASK] cat", "the dogs [MASK]"], top=1)
        assert one.candidates == other.candidates
        assert pair.corrupt("the cat").probabilities is not None
        return
    assert pair.fill("the [MASK]").candidates
    assert pair.corrupt("the cat sat").probabilities is None
    with pytest.raises(ConfigError, match=f"{tmp_path / 'run'}: has no detection head, so it cannot detect replaced"):
        pair.detect("the cat")


def test_a_length_without_room_for_a_token_is_refused(pair: Pair) -> None:
    """Windows of nothing would never come to an end."""
    with pytest.raises(ConfigError) as refused:
        Pair("it", pair.tokenizer, pair.vocabulary, 2, discriminator=pair.discriminator)
    assert str(refused.value) == "it: reads 2 tokens at once; it needs at least 3, for [CLS], [SEP] and a token."
    assert Pair("it", pair.tokenizer, pair.vocabulary, 3, discriminator=pair.discriminator).detect(TEXTS[0])
