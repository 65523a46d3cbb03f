"""The layers that find answers, against google-research/electra's formulas; the best span, by trying all."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from electra_lab.tasks._spans import NO_SPAN, Independent, Joint, NoAnswer, Read, Span, independent_span, joint_span
from electra_lab.tasks._windows import Window
from registry import Batch, Encoded

DIM = 6
ROWS = [(3, 5), (2, 9), (4, 0), (2, 1)]  # tokens of the question with [CLS] and [SEP], and of the context
WIDTH = max(question + context for question, context in ROWS) + 1


def batch(rows: list[tuple[int, int]] = ROWS, **labels: Tensor) -> Batch:
    width = max(question + context for question, context in rows) + 1
    places = torch.arange(width).expand(len(rows), width)
    questions, contexts = torch.tensor(rows).T.unsqueeze(-1)
    begins, ends = questions, questions + contexts
    real = places <= ends
    return Batch(places, real, ((places >= begins) & real).long(), torch.arange(len(rows)), labels=labels)


def states(rows: int = len(ROWS), width: int = WIDTH) -> Tensor:
    return torch.randn(rows, width, DIM, generator=torch.Generator().manual_seed(5))


def allowed(row: int) -> list[int]:
    """[CLS], the context and the [SEP] at its end."""
    question, context = ROWS[row]
    return [0, *range(question, question + context + 1)]


def chances(logits: Tensor, row: int) -> Tensor:
    found = torch.full((len(logits),), -torch.inf)
    found[allowed(row)] = logits[allowed(row)].log_softmax(0)
    return found


def joint(**options: int) -> Joint:
    torch.manual_seed(1)
    made = Joint(DIM, 0.0, classifier=True, **{"beam": 20, "longest": 3, **options}).eval()
    for parameter in made.parameters():
        parameter.data = torch.randn_like(parameter)
    return made


def end_logits(head: Joint, seen: Tensor, start: int) -> Tensor:
    pairs = torch.cat([seen[start].expand_as(seen), seen], 1)
    found: Tensor = head.end(F.gelu(head.pair(pairs))).squeeze(1)
    return found


@torch.no_grad()
def test_the_best_spans_are_those_of_all_pairs() -> None:
    head, seen = joint(), states()
    found = head(seen, batch())
    for row, (question, context) in enumerate(ROWS):
        first = chances(head.start(seen[row]).squeeze(1), row)
        inside = range(question, question + context)
        scores = {}
        for start in inside:
            last = first[start] + chances(end_logits(head, seen[row], start), row)
            best = max((end for end in inside if start <= end < start + 3), key=lambda end, last=last: float(last[end]))
            scores[start] = (best, float(last[best]))
        mine = zip(*(found[name][row].tolist() for name in ("first", "last", "score")), strict=True)
        valid = {start: (end, pytest.approx(score, abs=1e-4)) for start, end, score in mine if score > NO_SPAN}
        assert scores == valid


@torch.no_grad()
@pytest.mark.parametrize("beam", [1, 2, 4])
def test_a_beam_holds_the_most_likely_starts(beam: int) -> None:
    """The shapes of spans do not depend on the length, so that spans are not mistaken for outputs of tokens."""
    whole, some = joint()(states(), batch()), joint(beam=beam)(states(), batch())
    start = chances(joint().start(states()[1]).squeeze(1), 1)
    expected = sorted(range(2, 11), key=lambda place: -float(start[place]))[:beam]
    assert some["first"][1].tolist() == expected == whole["first"][1, :beam].tolist()
    assert torch.equal(some["score"], whole["score"][:, :beam])
    short = batch([(2, 1)])
    found = joint(beam=5)(states(1, short.tokens.shape[1]), short)
    assert found["first"].shape == found["last"].shape == found["score"].shape == (1, 5)


def test_training_takes_the_end_of_the_right_start() -> None:
    head, seen = joint().train(), states()
    starts = torch.tensor([4, 0, 0, 2])
    found = head(seen, batch(start=starts))
    assert found.keys() == {"start", "end", "no_answer"}
    for row, start in enumerate(starts.tolist()):
        theirs = chances(end_logits(head, seen[row], start), row)
        assert torch.allclose(found["end"][row].log_softmax(0)[allowed(row)], theirs[allowed(row)], atol=1e-5)
        forbidden = [place for place in range(WIDTH) if place not in allowed(row)]
        assert found["end"][row].softmax(0)[forbidden].sum() == 0
        assert found["start"][row].softmax(0)[forbidden].sum() == 0


@torch.no_grad()
def test_evaluation_does_not_see_the_right_start() -> None:
    head = joint()
    first, second = (head(states(), batch(start=torch.full((4,), start))) for start in (0, 2))
    assert not torch.equal(first["end"], second["end"])
    assert all(torch.equal(first[name], second[name]) for name in ("first", "last", "score", "start", "no_answer"))


@torch.no_grad()
def test_dropout_is_on_the_states() -> None:
    for head in (Joint(DIM, 0.5, classifier=True, beam=2, longest=3), Independent(DIM, 0.5, classifier=True)):
        given = batch(start=torch.tensor([4, 0, 0, 2]))
        first, second = head(states(), given), head(states(), given)
        assert not any(torch.equal(first[name], second[name]) for name in first)


@torch.no_grad()
def test_independent_logits() -> None:
    torch.manual_seed(1)
    head = Independent(DIM, 0.0, classifier=True).eval()
    found = head(states(), batch())
    for row in range(len(ROWS)):
        for column, name in enumerate(("start", "end")):
            theirs = chances(head.span(states()[row])[:, column], row).exp()
            assert torch.allclose(found[name][row].softmax(0), theirs, atol=1e-6)


@torch.no_grad()
def test_no_answer_looks_at_cls_and_at_likely_starts() -> None:
    torch.manual_seed(1)
    head, seen = NoAnswer(DIM), states()
    start = torch.randn(4, WIDTH)
    likely = torch.einsum("bt,btd->bd", start.softmax(1), seen)
    expected = head.out(F.gelu(head.dense(torch.cat([seen[:, 0], likely], 1)))).squeeze(1)
    assert torch.allclose(head(seen, start), expected, atol=1e-5)


TEXT = Encoded([], [], [])
LONGEST = 3


def read(window: Window, begin: int = 3) -> Read:
    return Read(TEXT, window, begin, False)


def test_independent_tries_all_spans() -> None:
    draw = np.random.default_rng(0)
    for _ in range(300):
        first, size, begin = (int(draw.integers(*bounds)) for bounds in ((0, 9), (1, 8), (2, 5)))
        cuts = sorted(draw.integers(0, size + 1, 2).tolist())
        window = Window(first, first + size, range(first + cuts[0], first + cuts[1]))
        start, end = draw.normal(size=(2, begin + size + 1)).astype(np.float32)
        start[:begin] = end[:begin] = start[-1] = end[-1] = 99.0  # the question and [SEP]
        found = independent_span(read(window, begin), {"start": start, "end": end}, LONGEST)
        spans = {}
        for left in window.best:
            for right in range(left, min(left + LONGEST, window.end)):
                spans[left, right] = float(start[begin + left - first]) + float(end[begin + right - first])
        if not spans:
            assert found is None
            continue
        best = max(spans, key=spans.__getitem__)
        assert found is not None
        assert (found.first, found.last) == best
        assert found.score == pytest.approx(spans[best])


def test_the_probability_is_that_of_start_and_end() -> None:
    start, end = np.log([[0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25]])
    found = independent_span(read(Window(0, 2, range(2)), 1), {"start": start + 3, "end": end - 2}, LONGEST)
    assert found == Span(pytest.approx(np.log(0.3 * 0.25) + 1), pytest.approx(0.3 * 0.25), 1, 1)


def of_pairs(score: list[float], first: list[int], last: list[int]) -> dict[str, np.ndarray]:
    return {"score": np.array(score), "first": np.array(first, np.float32), "last": np.array(last, np.float32)}


def test_joint_takes_the_best_that_begins_in_its_own_part() -> None:
    output = of_pairs([-1.0, -2.0, -3.0, -4.0], [3, 11, 5, 6], [4, 12, 9, 6])  # tokens 10, 18, 12 and 13
    assert joint_span(read(Window(10, 20, range(12, 18))), output) == Span(-3.0, pytest.approx(np.exp(-3)), 12, 16)
    window = read(Window(0, 4, range(4)))
    assert joint_span(window, of_pairs([-np.inf, -np.inf], [3, 4], [3, 4])) is None
    assert joint_span(window, of_pairs([-1.0], [0], [3])) is None
