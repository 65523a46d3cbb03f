"""The laws of masks, labels and draws on other people's trainers: `make laws-peers`.

    python -m benchmarks.peers.laws [NAME ...]

Writes the smallest counterexamples to build/laws_peers.md. ELECTRA_LAB_LAWS_PEERS names a folder with clones of
microsoft/DeBERTa and richarddwang/electra_pytorch, if they are to be tested. Only the lab itself must obey the laws.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import torch
from hypothesis import HealthCheck, find, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from torch import Tensor

from benchmarks.peers import systems
from benchmarks.peers.systems import LOGITS, NAMES, Run, Seen
from electra_lab.testing import CLS, MASK, PAD, SEP, SIGNIFICANCE, chi_square_p
from electra_lab.testing.common import SPECIAL
from tests.helpers import ROOT

ADAPTERS = (
    systems.electra_lab, systems.electra_pytorch, systems.mlm_pytorch, systems.transformers, systems.txtai,
    systems.zeldarose, systems.deberta_rtd, systems.deberta_mlm, systems.richarddwang,
)  # fmt: skip
Breach = str | None  # the violation; "" if there is none, None if the system lacks the feature


def of_special(ids: Tensor) -> Tensor:
    return torch.isin(ids, torch.tensor(SPECIAL))


def show(row: Tensor) -> str:
    return " ".join(NAMES[token] for token in row)


def first(wrong: Tensor, tokens: Tensor, what: Callable[[int, int], str]) -> str:
    """Describe the first position that is wrong."""
    if not wrong.any():
        return ""
    row, place = wrong.nonzero()[0].tolist()
    return f"`{show(tokens[row])}`: {what(row, place)}"


def step(run: Run, tokens: Tensor, seed: int, training: bool = True, start: int = 0) -> Seen:
    """All laws look at the same steps, so these are kept."""
    key = (tuple(tokens.shape), tokens.numpy().tobytes(), seed, training, start)
    if key not in STEPS:
        torch.manual_seed(seed)
        STEPS[key] = run(tokens.clone(), training, start)
    return STEPS[key]


def never_masked(run: Run, tokens: Tensor, seed: int) -> Breach:
    found = step(run, tokens, seed)
    wrong = (found.chosen | (found.inputs != tokens)) & of_special(tokens)
    return first(wrong, tokens, lambda row, place: f"{NAMES[tokens[row, place]]} at {place} is masked")


def never_put_in(run: Run, tokens: Tensor, seed: int) -> Breach:
    found = step(run, tokens, seed)
    wrong = of_special(found.inputs) & (found.inputs != MASK) & (found.inputs != tokens)
    read = found.inputs
    if found.corrupted is not None and not wrong.any():
        read = found.corrupted
        wrong = of_special(read) & ~of_special(tokens)
    return first(wrong, tokens, lambda row, place: f"{NAMES[read[row, place]]} is put in at {place}")


def nothing_else_changes(run: Run, tokens: Tensor, seed: int) -> Breach:
    found = step(run, tokens, seed)
    read = found.inputs if found.corrupted is None else found.corrupted
    wrong = ((found.inputs != tokens) | (read != tokens)) & ~found.chosen & ~of_special(tokens)
    return first(wrong, tokens, lambda row, place: f"changed at {place}, where no loss asks for it")


def labels_tell(run: Run, tokens: Tensor, seed: int) -> Breach:
    found = step(run, tokens, seed)
    if found.corrupted is None or found.judged is None or found.labels is None:
        return None
    wrong = (found.labels != (found.corrupted != tokens)) & found.judged
    read, label = found.corrupted, found.labels
    said = ("original", "replaced")
    return first(
        wrong, tokens, lambda row, place: f"read as `{show(read[row])}`, {place} counts as {said[label[row, place]]}"
    )


def padding_never_counts(run: Run, tokens: Tensor, seed: int) -> Breach:
    found = step(run, tokens, seed)
    judged = found.chosen if found.judged is None else found.chosen | found.judged
    return first(judged & (tokens == PAD), tokens, lambda row, place: f"{place} counts in a loss")


def finite(run: Run, tokens: Tensor, seed: int) -> Breach:
    loss = step(run, tokens, seed).loss
    if loss is None:
        return None
    return "" if torch.tensor(loss).isfinite() else f"`{' / '.join(show(row) for row in tokens)}`: the loss is {loss}"


def alone_as_among_others(run: Run, tokens: Tensor, seed: int) -> Breach:
    """In evaluation, with the same seed, for the last row."""
    row = tokens[-1][tokens[-1] != PAD]
    among = step(run, tokens, seed, training=False)
    alone = step(run, row[None], seed, training=False, start=len(tokens) - 1)
    differ = (among.chosen[-1, : len(row)] != alone.chosen[0]).any()
    rows = " / ".join(show(row) for row in tokens)
    return f"`{rows}`: in the last row other tokens are masked than for it alone" if differ else ""


def batch(rows: list[list[int]]) -> Tensor:
    """As pre-processing leaves rows: [CLS] text [SEP], then padding."""
    whole = [torch.tensor([CLS, *row, SEP]) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(whole, batch_first=True, padding_value=PAD)


ROWS = st.lists(st.lists(st.integers(5, 23), min_size=1, max_size=24), min_size=1, max_size=5)
GIVEN = st.tuples(ROWS.map(batch), st.integers(0, 1000))
OPTIONS = settings(max_examples=150, deadline=None, database=None, suppress_health_check=[*HealthCheck])
LONG = settings(OPTIONS, max_examples=5000)  # for a law that is known to be broken, perhaps rarely


def smallest(run: Run) -> dict[str, Breach]:
    """Try each law of rows on 150 batches and seeds, then make its counterexample as small as hypothesis can."""
    found: dict[str, Breach] = {}

    @seed(0)
    @OPTIONS
    @given(GIVEN)
    def look(case: tuple[Tensor, int]) -> None:
        for name, law in OF_ROWS.items():
            found[name] = found.get(name) or law(run, *case)

    look()
    for name in [name for name, breach in found.items() if breach]:
        with suppress(NoSuchExample):
            law = OF_ROWS[name]
            found[name] = law(
                run, *find(GIVEN, lambda it, law=law: bool(law(run, *it)), settings=LONG, random=Random(0))
            )
    return found


def rate(run: Run) -> Breach:
    """A share of .15, exactly or on average, in rows of 1 to 120 tokens plus padding."""
    dice = Random(0)
    tokens = batch([[5] * dice.randint(1, 120) for _ in range(500)])
    ordinary = ~of_special(tokens)
    due, number = ordinary.sum(1) * 0.15, int((step(run, tokens, 0).chosen & ordinary).sum())
    least, most, spread = due.sum(), due.ceil().sum(), 5 * due.sum().sqrt()
    said = f"500 rows of 1 to 120 tokens: {number} are masked, where {least:.0f} to {most:.0f} are due"
    return "" if least - spread < number < most + spread else said


def every_position(run: Run) -> Breach:
    """Equally often, in rows of equal length."""
    counts = step(run, batch([[5] * 62] * 1500), 0).chosen[:, 1:-1].sum(0).double()
    p = chi_square_p(counts, torch.full((62,), 1 / 62).double())
    shares = f"{float(counts.min() / 15):.1f}% to {float(counts.max() / 15):.1f}%"
    return (
        "" if p > SIGNIFICANCE else f"62 tokens: each is masked in {shares} of rows, least {int(counts.argmin()) + 1}"
    )


def draws(run: Run) -> Breach:
    """Draws are ordinary tokens by softmax(logits); one token's frequency is checked."""
    found = step(run, batch([[5] * 62] * 1500), 0)
    if found.corrupted is None:
        return None
    drawn = torch.bincount(found.corrupted[found.chosen], minlength=systems.SIZE).double()
    if not drawn[5:].any():
        return "the discriminator reads only [MASK] at masked positions"
    p = chi_square_p(drawn[5:], LOGITS[5:].double().softmax(-1))
    return "" if p > SIGNIFICANCE else f"of {int(drawn.sum())} draws: p = {p:.1g}"


OF_ROWS: dict[str, Callable[[Run, Tensor, int], Breach]] = {
    "[PAD], [CLS] and [SEP] are never masked": never_masked,
    "no special token is put in for a token": never_put_in,
    "inputs differ only at masked positions": nothing_else_changes,
    "replaced means: differs from the original": labels_tell,
    "padding never counts in a loss": padding_never_counts,
    "the loss is finite, also if nothing is masked": finite,
    "evaluation masks a row alone as among others": alone_as_among_others,
}
OF_MANY: dict[str, Callable[[Run], Breach]] = {
    "the documented share is masked": rate,
    "every position is masked equally often": every_position,
    "draws follow the generator's softmax": draws,
}
LAWS = [*OF_ROWS, *OF_MANY]
STEPS: dict[Any, Seen] = {}
JSON = ROOT / "build" / "laws_peers.json"


def write_table() -> None:
    """Write the known results: a call for some systems keeps those of the others."""
    known = json.loads(JSON.read_text(encoding="utf-8"))
    ran = {name: row for name, row in known.items() if row["breaches"]}
    lines = ["| system | version | how it was called |", "|---|---|---|"]
    lines += [f"| {name} | {row['version']} | {row['how']} |" for name, row in known.items()]
    lines += ["", f"| law | {' | '.join(ran)} |", "|---|" + "---|" * len(ran)]
    for law in LAWS:
        cells = [{"": "holds", None: "–"}.get(row["breaches"][law], "**fails**") for row in ran.values()]
        lines.append(f"| {law} | {' | '.join(cells)} |")
    lines += ["", "| law | smallest counterexample | system |", "|---|---|---|"]
    for law in LAWS:
        by_breach: dict[str, list[str]] = {}
        for name, row in ran.items():
            by_breach.setdefault(row["breaches"][law] or "", []).append(name)
        lines += [f"| {law} | {breach} | {', '.join(broken)} |" for breach, broken in by_breach.items() if breach]
    text = "\n".join([*lines, "", f"{time.strftime('%Y-%m-%d')}, torch {torch.__version__}."])
    JSON.with_suffix(".md").write_text(text + "\n", encoding="utf-8")


def tried(adapter: Callable[[], tuple[str, Run]]) -> str:
    """Test a system against all laws, write the results, and return a line about it."""
    name, breaches = adapter.__name__.replace("_", "-"), {}
    STEPS.clear()
    try:
        version, run = adapter()
    except Exception as error:  # an old library may raise anything with newer dependencies
        if adapter is systems.electra_lab:
            raise
        version = f"not run: {error}"
    else:
        breaches = smallest(run) | {law: broken(run) for law, broken in OF_MANY.items()}
    JSON.parent.mkdir(exist_ok=True)
    known = json.loads(JSON.read_text(encoding="utf-8")) if JSON.exists() else {}
    known[name] = {"version": version, "how": (adapter.__doc__ or "").strip(), "breaches": breaches}
    JSON.write_text(json.dumps(known, indent=1), encoding="utf-8")
    write_table()
    broken_laws = [law for law, breach in breaches.items() if breach]
    if adapter is systems.electra_lab and broken_laws:
        sys.exit(f"the lab itself breaks laws: {breaches}")
    return f"{name} {version}: breaks {len(broken_laws)} laws"


if __name__ == "__main__":
    for adapter in ADAPTERS:
        if len(sys.argv) == 1 or adapter.__name__.replace("_", "-") in sys.argv[1:]:
            print(tried(adapter), flush=True)
