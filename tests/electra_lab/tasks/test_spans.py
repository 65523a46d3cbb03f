"""The layers that find an answer, against the formulas of google-research/electra, position by position."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from electra_lab.tasks._spans import Independent, Joint, NoAnswer
from registry import Batch

DIM = 6
ROWS = [(3, 5), (2, 9), (4, 0), (2, 1)]  # tokens of the question with [CLS] and [SEP], and of the context
WIDTH = max(question + context for question, context in ROWS) + 1


def batch(rows: list[tuple[int, int]] = ROWS, **labels: Tensor) -> Batch:
    width = max(question + context for question, context in rows) + 1
    places = torch.arange(width).expand(len(rows), width)
    begins, ends = (torch.tensor(each).unsqueeze(1) for each in zip(*((q, q + c) for q, c in rows), strict=True))
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
        valid = {start: (end, pytest.approx(score, abs=1e-4)) for start, end, score in mine if score > -torch.inf}
        assert scores == valid


@torch.no_grad()
@pytest.mark.parametrize("beam", [1, 2, 4])
def test_a_beam_holds_the_most_likely_starts(beam: int) -> None:
    """And the shapes of spans do not depend on the length, so that they are not taken for outputs of tokens."""
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
    one, other = (head(states(), batch(start=torch.full((4,), start))) for start in (0, 2))
    assert not torch.equal(one["end"], other["end"])
    assert all(torch.equal(one[name], other[name]) for name in ("first", "last", "score", "start", "no_answer"))


@torch.no_grad()
def test_dropout_is_on_the_states() -> None:
    for head in (Joint(DIM, 0.5, classifier=True, beam=2, longest=3), Independent(DIM, 0.5, classifier=True)):
        given = batch(start=torch.tensor([4, 0, 0, 2]))
        one, other = head(states(), given), head(states(), given)
        assert not any(torch.equal(one[name], other[name]) for name in one)


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
