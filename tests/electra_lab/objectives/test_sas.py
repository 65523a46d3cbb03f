"""sas: one network that reads its own draws from a row's last visit, against the official code and by set algebra."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from electra_lab.assembly.data import open_data
from electra_lab.assembly.experiment import Experiment, assemble
from electra_lab.assembly.needs import forecast
from electra_lab.config.load import Loaded, load
from electra_lab.data.store import Store
from electra_lab.jobs.pretraining.facts import planned
from electra_lab.storage.checkpoint import load_newest, read_model, save, tensors_of
from electra_lab.testing import vocabulary
from electra_lab.testing.common import SPECIAL
from electra_lab.training.loop import advance
from electra_lab.training.random import Streams, key_of
from electra_lab.training.step import Learner
from registry import Batch, Losses, objectives, samplers
from registry.errors import CheckpointError
from tests.electra_lab.objectives import test_runs
from tests.electra_lab.objectives.tiny import SIZE, Fixed, Says, Table, berts, gradients, rows, sentences, total

CPU, EMPTY, UNVISITED = torch.device("cpu"), -1, -2
VISIBLE = 0.7


class Reading(Table):
    def token_logits(self, hidden: Tensor, positions: Tensor) -> Tensor:
        read = hidden.gather(1, positions.unsqueeze(-1).expand(-1, -1, self.dim))
        return super().token_logits(hidden, positions) + VISIBLE * read


def reading(masking: Any, sampler: Any, length: int = 8, number: int = 2, slots: int = 4, **options: Any) -> Any:
    made = objectives.get("sas").component(None, Reading(length, seed=2), masking, sampler, vocabulary(SIZE), **options)
    made.allocate(number, length, slots, CPU)
    return made.double().train()


class Noise(Streams):
    """Random numbers that give these tokens at the first visit."""

    def __init__(self, tokens: Tensor) -> None:
        super().__init__(key_of(0, 0), torch.arange(len(tokens)))
        weights = (vocabulary(SIZE).counts + 1).double().masked_fill(vocabulary(SIZE).is_special, 0.0)
        self.numbers = (weights.cumsum(0) - weights / 2)[tokens] / weights.sum()

    def __call__(self, purpose: str) -> Any:
        return self if purpose == "noise" else super().__call__(purpose)

    def uniform(self, *_: int) -> Tensor:
        return self.numbers


def visited(objective: Any, batch: Batch, rng: Any, *, taken: bool = True) -> Losses:
    learner = Learner(objective)
    losses: Losses = objective(batch, rng)
    learner.memory_updates.append(losses.memory)
    learner.remember(batch, torch.tensor(taken))
    return losses


def known(batch: Batch) -> Batch:
    return replace(batch, row_ids=torch.arange(len(batch)))


# Three visits by alibaba/self-augmentation-strategy 351197b, its model, its table of draws and its collator, around the
# networks above: its inputs, the weight of detection, both losses, and for each gradient the sums of absolute values
# and of squares. Masks, noise and draws were given; in each visit some of them equal originals. Its detection labels
# are float32.
NOISE = [[6, 7, 5, 9], [1, 5, 6, 8]]
DRAWN = [[7, 8, 8, 6, 8, 9, 5, 5], [9, 7, 6, 1, 6, 5, 9, 8], [6, 6, 6, 6, 6, 6, 1, 9]]
OFFICIAL: list[tuple[list[list[int]], float, float, float, tuple[float, float], tuple[float, float]]] = [
    (
        [[2, 6, 6, 7, 5, 9, 9, 3], [2, 1, 8, 5, 6, 5, 8, 3]], 50.0, 1.917951397913287, 0.6655317544937134,
        (1.3173927367715192, 0.07920390003018732), (22.885613301034834, 41.38835965370309),
    ),
    (
        [[2, 7, 6, 8, 8, 9, 6, 3], [2, 8, 8, 9, 5, 5, 5, 3]], 87.5, 2.2957584229558825, 0.5365933775901794,
        (1.5031602949548024, 0.13206046866598495), (34.81854608911593, 99.84177671250819),
    ),
    (
        [[2, 9, 6, 7, 8, 9, 1, 3], [2, 8, 8, 5, 9, 5, 8, 3]], 125.0, 1.9450752162953457, 0.7374928593635559,
        (1.5618673493081783, 0.15483427698789488), (59.816318839549965, 281.4289024105593),
    ),
]  # fmt: skip


def test_three_visits_are_those_of_the_official_code() -> None:
    tokens = torch.tensor([[2, 5, 6, 7, 8, 9, 5, 3], [2, 8, 8, 1, 6, 5, 7, 3]])
    batch = Batch(tokens, tokens > 0, tokens * 0, torch.arange(2), row_ids=torch.arange(2))
    sampler = Says()
    objective = reading(Fixed(1, 3, 4, 6), sampler)
    noting, read = objective.discriminator.hidden, list[Tensor]()
    objective.discriminator.hidden = lambda tokens, *others: (read.append(tokens), noting(tokens, *others))[1]
    for drawn, (inputs, weight, mlm, rtd, guesses, scores) in zip(DRAWN, OFFICIAL, strict=True):
        sampler.tokens, objective.discriminator_weight = torch.tensor(drawn), weight
        losses = visited(objective, batch, Noise(torch.tensor(NOISE)))
        assert read[-1].tolist() == inputs
        means = [float(losses.terms[name].sum.detach() / losses.terms[name].count) for name in ("mlm", "discriminator")]
        assert means == pytest.approx([mlm, rtd], rel=1e-7)
        found = gradients(objective, total(losses))
        for name, (size, squares) in {"guesses": guesses, "scores": scores}.items():
            gradient = found[f"discriminator.{name}"]
            assert [float(gradient.abs().sum()), float(gradient.square().sum())] == pytest.approx(
                [size, squares], rel=1e-7
            )


@pytest.mark.parametrize("remask", ["never", "every_visit"])
def test_a_later_visit_reads_what_was_stored_and_no_random_number(remask: str) -> None:
    batch = known(sentences())
    objective = berts("sas", size=30, remask=remask).train()
    objective.allocate(len(batch), 20, 3, CPU)
    before, counts = torch.ones_like(batch.attention_mask), []
    for step in range(4):
        rng = Streams.of(0, step, batch.example_ids)
        read = objective.visit(batch, rng)
        places, tokens = (objective.row_memory[name].long() for name in ("positions", "tokens"))
        if step:
            kept = places >= 0
            assert torch.equal(kept, tokens >= 0)
            at = kept.nonzero()[:, 0], places[kept]
            assert not torch.isin(tokens[kept], torch.tensor(SPECIAL)).any()
            assert (tokens[kept] != batch.tokens[at]).all()
            stored = batch.tokens.index_put(at, tokens[kept])
            assert torch.equal(read.inputs, stored)
            other = objective.visit(batch, Streams.of(7, 99, batch.example_ids))
            assert torch.equal(other.inputs, stored)
            assert torch.equal(other.positions.masked_fill(~other.valid, 0), places.clamp(min=0))
            now = torch.zeros_like(before).index_put(at, torch.tensor(True))
            assert remask == "every_visit" or not (now & ~before).any()
            before = now
        counted = objective.counts(batch, rng)["mlm"]
        assert counted == visited(objective, batch, rng).terms["mlm"].count == read.valid.sum()
        counts.append(int(counted))
    assert counts[0] == 6 * 2  # ceil(0.15 * 13) of each row
    if remask == "never":
        assert counts == sorted(counts, reverse=True)


def test_new_places_are_those_of_the_masking_strategy() -> None:
    """Each visit has new masks from separate random numbers; the draws come from the same states."""
    batch = known(rows(5, 6, 7, 8, 9, 5, 6, 7))
    objective = reading(Fixed(2, 5), Says(9, 9), number=1, slots=2, remask="every_visit")
    visited(objective, batch, Streams.of(0, 0, batch.example_ids))
    assert objective.row_memory["positions"].tolist() == [[2, 5]]
    objective.masking = Fixed(0, 7)
    visited(objective, batch, Streams.of(0, 1, batch.example_ids))
    assert objective.row_memory["positions"].tolist() == [[0, 7]]
    read = objective.visit(batch, Streams.of(0, 2, batch.example_ids))
    assert read.inputs.tolist() == [[9, 6, 7, 8, 9, 5, 6, 9]]
    shown = objective.sampler.logits.masked_fill(vocabulary(SIZE).is_special, 0.0)
    wanted = objective.discriminator.guesses[[0, 7]].float()
    wanted[0, 5] += VISIBLE  # in the second visit these places had their originals
    wanted[1, 7] += VISIBLE
    torch.testing.assert_close(shown, wanted.masked_fill(vocabulary(SIZE).is_special, 0.0))

    # Their originals, not those of the last positions, may be excluded.
    objective.masking, objective.disallow_correct = Fixed(3, 4), True
    visited(objective, batch, Streams.of(0, 3, batch.example_ids))
    excluded = objective.sampler.logits.isinf() & ~vocabulary(SIZE).is_special
    assert excluded.nonzero().tolist() == [[0, 8], [1, 9]]


@pytest.mark.parametrize(("options", "excluded"), [({}, False), ({"disallow_correct": True}, True)])
@pytest.mark.parametrize("remask", ["never", "every_visit"])
def test_stored_draws_follow_the_softmax(remask: str, options: dict[str, Any], excluded: bool) -> None:
    """Total variation distance, at one place of many rows; the share of draws that equal the original is left out."""
    number, at, original = 20_000, 3, 8
    batch = known(rows(5, 6, 7, original, 9, 5, number=number))
    sampler = samplers.get("temperature").component
    objective = reading(Fixed(at), sampler, 6, number, 1, remask=remask, **options)
    objective.discriminator.guesses.data[at, original] = 1.5
    visited(objective, batch, Noise(torch.full((number, 1), 6)))
    logits = objective.discriminator.guesses[at].detach().clone()
    logits[6] += VISIBLE  # both visits mask this position, which read the noise
    logits[list(SPECIAL)] = float("-inf")
    if excluded:
        logits[original] = float("-inf")
    expected = logits.softmax(-1)
    held = objective.row_memory["tokens"].flatten()
    found = torch.bincount(held[held >= 0].long(), minlength=SIZE) / number
    found[original] = (held == EMPTY).sum() / number
    assert (found - expected).abs().sum() / 2 < 0.01


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_a_first_visit_reads_tokens_by_their_frequency(power: float) -> None:
    number = 20_000
    batch = rows(5, 6, 7, 8, 9, 5, number=number)
    read = reading(Fixed(3), Says(6), 6, number, 1, noise_power=power).visit(batch, Streams.of(0, 0, batch.example_ids))
    expected = (vocabulary(SIZE).counts + 1.0).pow(power).masked_fill(vocabulary(SIZE).is_special, 0.0)
    found = torch.bincount(read.inputs[:, 3], minlength=SIZE) / number
    assert (found - expected / expected.sum()).abs().sum() / 2 < 0.01
    assert read.valid.all()  # also tokens that equal the original


def test_only_the_rows_of_a_step_that_was_taken_are_written() -> None:
    batch = replace(rows(5, 6, 7, 8, 9, 5, number=3), row_ids=torch.tensor([4, 1, 4]))
    objective = reading(Fixed(1, 3), Says(9, 9, 6, 6, 7, 7), 6, 6, 2)
    visited(objective, batch, Streams.of(0, 0, batch.example_ids), taken=False)
    assert all((held == UNVISITED).all() for held in objective.row_memory.values())
    visited(objective, batch, Streams.of(0, 0, batch.example_ids))
    expected = torch.full((6, 2), UNVISITED)
    expected[1], expected[4] = torch.tensor([EMPTY, 6]), torch.tensor([7, 7])  # 6 is an original; the later 4 counts
    assert objective.row_memory["tokens"].tolist() == expected.tolist()
    assert objective.row_memory["positions"].tolist()[1] == [EMPTY, 3]


def test_a_shorter_batch_has_fewer_slots() -> None:
    """Cut rows leave spare slots empty, and read as many as they have."""
    batch = known(rows(5, 6, 7, 8, 9, 5))
    objective = reading(Fixed(1, 3), Says(9, 9), 6, 1, 4)
    visited(objective, batch, Streams.of(0, 0, batch.example_ids))
    assert objective.row_memory["positions"].tolist() == [[1, 3, EMPTY, EMPTY]]
    assert objective.visit(batch, Streams.of(0, 1, batch.example_ids)).positions.shape == (1, 2)
    objective.masking = Fixed(0, 2, 4, 5)
    longer = objective.visit(batch, Streams.of(0, 1, batch.example_ids))
    assert longer.inputs.tolist() == [[5, 9, 7, 9, 9, 5]]
    assert int(longer.valid.sum()) == 2


@pytest.mark.parametrize("remask", ["never", "every_visit"])
def test_an_evaluation_visits_each_row_twice_and_needs_no_memory(remask: str) -> None:
    batch = rows(5, 6, 7, 8, 9, 5)
    objective = reading(Fixed(1, 3), Says(9, 8), 6, 1, 2, remask=remask).eval()
    objective.row_memory["positions"][:] = torch.tensor([[0, 4]])
    before = {name: held.clone() for name, held in objective.row_memory.items()}
    losses: Losses = objective(known(batch), Noise(torch.tensor([[7, 7]])))
    assert losses.detection is not None
    assert not losses.memory
    assert losses.detection.inputs.tolist() == [[5, 9, 7, 8, 9, 5]]  # the second draw is the original
    assert losses.terms["mlm"].count == losses.predictions["discriminator"].valid.sum() == 1
    shown = objective.sampler.logits[:, 7] - objective.discriminator.guesses[[1, 3], 7].float()
    torch.testing.assert_close(shown, torch.full((2,), VISIBLE))  # the first visit read the noise
    assert all(torch.equal(held, before[name]) for name, held in objective.row_memory.items())


def test_compiled_code_reads_the_memory_and_leaves_it_alone() -> None:
    """In one graph, which is not recompiled when the memory has changed."""
    batch, objective = known(sentences()), berts("sas", remask="every_visit").train()
    objective.allocate(len(batch), 20, 3, CPU)
    torch._dynamo.reset()
    compiled = torch.compile(objective, backend="eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for step in range(3):
            rng = Streams.of(0, step, batch.example_ids)
            before = {name: held.clone() for name, held in objective.row_memory.items()}
            found = compiled(batch, rng)
            assert all(torch.equal(held, before[name]) for name, held in objective.row_memory.items())
            expected = visited(objective, batch, rng)
            assert all(torch.equal(found.memory[name], noted) for name, noted in expected.memory.items())
            for name, term in expected.terms.items():
                torch.testing.assert_close(found.terms[name].sum, term.sum)


STEPS = 6


@pytest.fixture
def tiny(tmp_path: Path) -> tuple[Loaded, Store]:
    file = next(file for file in test_runs.FILES if file.stem == "sas")
    loaded = load(file, [*test_runs.overrides(tmp_path, file, 0.1), f"train.steps={STEPS}"])
    return loaded, open_data(loaded, lambda _: None)


def tensors(made: Experiment) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors_of(made.run.learner.objective, made.run.optimizer).items()}


def different(made: Experiment, final: dict[str, Tensor]) -> list[str]:
    while made.run.step < STEPS:
        advance(made.run, made.settings, made.train, CPU)
    found = tensors(made)
    return [name for name, tensor in final.items() if not torch.equal(found[name], tensor)]


def test_from_every_checkpoint_training_goes_on_bit_for_bit(tmp_path: Path, tiny: tuple[Loaded, Store]) -> None:
    """Also in a run that has gone further, as after a rollback. Rows are visited twice from step 4 on."""
    whole, other = (assemble(*tiny, CPU) for _ in range(2))
    for made in (whole, other):
        made.run.learner.objective.train()
        made.run.begin(made.settings, CPU)
    rows = len(whole.train)
    assert 12 <= rows < 4 * STEPS - 4
    for step in range(STEPS):
        save(tmp_path / str(step), step, tensors(whole), whole.run.state(whole.settings), 1)
        advance(whole.run, whole.settings, whole.train, CPU)
    final = tensors(whole)
    assert {name for name in final if name.startswith("memory.")} == {"memory.positions", "memory.tokens"}
    assert (final["memory.positions"] != UNVISITED).all()
    for step in reversed(range(STEPS)):
        state = load_newest(tmp_path / str(step), other.run.learner.objective, other.run.optimizer, print)
        assert state is not None
        other.run.restore(state)
        assert not different(other, final), step
    load_newest(tmp_path / "4", other.run.learner.objective, other.run.optimizer, print)
    other.run.step = 4
    other.run.learner.objective.row_memory["positions"].fill_(UNVISITED)
    assert different(other, final)  # so the memory is read

    # An exported model has no memory, and a memory of other rows is refused.
    assert not [name for name in read_model(tmp_path / "3").tensors if "memory" in name or name == "positions"]
    other.run.learner.objective.allocate(rows + 1, 32, 8, CPU)
    with pytest.raises(CheckpointError, match="has a memory of other rows; positions"):
        load_newest(tmp_path / "3", other.run.learner.objective, other.run.optimizer, print)


def test_a_dry_run_states_the_memory(tiny: tuple[Loaded, Store]) -> None:
    """Two bytes each for the position and the token of ceil(0.25 x 32) slots."""
    loaded, store = tiny
    needs = forecast(loaded, CPU, store)
    assert (needs.row_bytes, needs.memory_bytes) == (32, 32 * (needs.epoch or 0))
    peak = max(needs.working_bytes or 0, needs.evaluation_bytes or 0)
    assert needs.bytes == needs.state_bytes + needs.memory_bytes + peak
    forecasts = needs, replace(needs, steps=3), replace(needs, epoch=None)
    whole, short, unknown = (planned(loaded, forecast, CPU, "") for forecast in forecasts)
    assert f"row memory      0.0 MB, 32 bytes for each of {needs.epoch} rows" in whole
    assert "never read" not in whole
    assert "never read" in short
    assert "row memory      32 bytes per row" in unknown
