"""Steps that are recorded and replayed: on a CPU by a recorder of operations, with CUDA graphs where there is a GPU.

The recorder keeps the operations of one step with their tensors, and runs them again on the same tensors, as a CUDA
graph does. Whatever the host passed as a number is frozen in them, which changes the weights of later steps.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch

from electra_lab.training import execution, random
from electra_lab.training.execution import Watch
from electra_lab.training.graph import (
    CudaGraphs,
    Recorded,
    copied,
    obstacle,
    rates_on,
    refill,
    signature,
    tensors_of,
    tensors_that_change,
    waits_in,
)
from electra_lab.training.loop import Run, compute_step
from electra_lab.training.step import StepResult, prepare
from registry import Batch
from registry.contracts.objective import World
from tests.electra_lab.training.recorded import CPU, EXPERIMENTS, ROWS, CpuGraphs, Recorder, Trainer


def differing(
    name: str,
    *changes: str,
    before: Callable[[Run], None] = lambda _: None,
    **settings: Any,
) -> list[str]:
    """Return what differs between six eager steps and six of which the third is recorded and then replayed.

    before  is called before each of the latter
    """
    eager = Trainer(name, *changes, **settings)
    for step in range(6):
        compute_step(eager.run, eager.settings, eager.prepare(step))
    recorded, recorder = Trainer(name, *changes, rates=True, **settings), Recorder()
    with patch.object(random, "_in_numpy", return_value=False):  # a recorder sees torch's operations alone
        for step in range(6):
            before(recorded.run)
            batch = recorded.prepare(step)
            if step < 2:
                compute_step(recorded.run, recorded.settings, batch)
            elif step == 2:
                static, decided = copied(batch), signature(recorded.run, batch, recorded.settings.micro_batch_size)
                with recorder:
                    compute_step(recorded.run, recorded.settings, static)
            else:
                assert signature(recorded.run, batch, recorded.settings.micro_batch_size) == decided
                refill(static, batch)
                recorder.replay()
    found = recorded.state()
    return [key for key, value in eager.state().items() if not torch.equal(value, found[key])]


@pytest.fixture(autouse=True)
def _steps_are_rejected_and_scales_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "LEAD", 2)
    monkeypatch.setattr(execution, "CALM", 2)  # the scale of float16 grows


# The slow ones add nothing that the others do not do: no memory of rows, no stages, no second pass over a network.
QUICK = [
    "bert_small", "transformer_small", "performer_small", "modernbert_small", "deberta_small", "reformer_small",
    *(f"objectives/{name}" for name in ("sas", "two_stage", "teams", "electric", "coco_lm")),
]  # fmt: skip
OTHERS = {f"objectives/{file.stem}" for file in (EXPERIMENTS / "objectives").glob("*.yaml")} - {*QUICK}
NARROW = ("discriminator.dim=32", "discriminator.heads=2")  # float16 is slow on a CPU
NAMES = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in sorted(OTHERS))]


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_step_is_the_eager_step(name: str) -> None:
    assert differing(name) == []


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        ((), {"micro_batch_size": 4}),
        ((), {"precision": "bf16"}),
        (NARROW, {"precision": "fp16"}),
        (("discriminator.dropout=0.1", "embedding.dropout=0.1"), {}),
        (("schedules.sampler.temperature={type: linear, start: 3.0, end: 0.5}",), {}),
        (("schedules.objective.generator_weight={type: linear, start: 3.0, end: 0.5}",), {}),
        (("optimizer={type: adamw_no_bias_correction}",), {}),
        (("optimizer={type: adafactor}",), {}),
        (("optimizer={type: stable_adamw}",), {}),
    ],
    ids=str,
)
def test_a_recorded_step_is_the_eager_step_in_any_setting(changes: tuple[str, ...], settings: dict[str, Any]) -> None:
    assert differing("bert_small", *changes, **settings) == []


def move_key(run: Run) -> None:
    keys = run.learner.keys
    keys._tables = {rows: table.clone() for rows, table in keys._tables.items()}


def move_numbers(run: Run) -> None:
    run.learner.schedules.tensors = [tensor.clone() for tensor in run.learner.schedules.tensors]


def move_judged_step(run: Run) -> None:
    run.watch.step = run.watch.step.clone()


def move_average(run: Run) -> None:
    run.watch.average = run.watch.average.clone()


def move_scale(run: Run) -> None:
    assert run.scale
    run.scale.scale = run.scale.scale.clone()


def move_window(run: Run) -> None:
    run.window.totals = None if run.window.totals is None else run.window.totals.clone()


def pass_rates_as_numbers(run: Run) -> None:
    for group in run.optimizer.param_groups:
        group["lr"] = float(group["lr"])


@pytest.mark.parametrize(
    "frozen",
    [move_key, move_numbers, move_judged_step, move_average, move_scale, move_window, pass_rates_as_numbers],
)
def test_the_recorder_finds_what_a_graph_would_freeze(frozen: Callable[[Run], None]) -> None:
    """Each is moved to another address before every step, or passed as a number, as if the code did not keep it."""
    changes = ["schedules.objective.generator_weight={type: linear, start: 3.0, end: 0.5}"]
    if frozen is move_scale:
        assert differing("bert_small", *changes, *NARROW, precision="fp16", before=frozen) != []
    else:
        assert differing("bert_small", *changes, before=frozen) != []


@pytest.mark.parametrize("name", ["bert_small", "reformer_small", "objectives/sas"])
def test_after_the_first_steps_addresses_and_operations_stay(name: str) -> None:
    trainer, seen = Trainer(name, rates=True), []
    for step in range(4):
        batch = trainer.prepare(step)
        with Recorder() as recorder:
            compute_step(trainer.run, trainer.settings, batch)
        run = trainer.run
        rates = [group["lr"] for group in run.optimizer.param_groups]
        read = [
            *rates,
            run.learner.keys.table,
            run.watch.step,
            *run.learner.schedules.tensors,
            *tensors_that_change(run),
        ]
        names = [str(function) for function, *_ in recorder.calls]
        seen.append(([tensor.data_ptr() for tensor in read], names))
    assert seen[1] == seen[2] == seen[3]


def test_steps_with_other_decisions_have_other_graphs() -> None:
    """Another shape, another stage of the objective, or a part of a network in eval mode."""
    trainer = Trainer("objectives/two_stage", "objective.generator_steps=3")
    signatures = [signature(trainer.run, trainer.prepare(step), ROWS) for step in range(5)]
    assert signatures[0] == signatures[1] == signatures[2] != signatures[3] == signatures[4]
    batch = trainer.prepare(3)
    assert signature(trainer.run, batch[:4], ROWS) != signature(trainer.run, batch, ROWS)
    before = signature(trainer.run, batch, ROWS)
    trainer.run.learner.objective.discriminator.embeddings.eval()
    assert (in_eval := signature(trainer.run, batch, ROWS)) != before
    trainer.run.optimizer.param_groups[0]["params"][0].requires_grad_(False)
    assert signature(trainer.run, batch, ROWS) not in (before, in_eval)


def test_each_micro_batch_has_the_bound_of_its_documents() -> None:
    """A kernel that reads more documents than a graph was recorded for would end the process."""
    trainer = Trainer("bert_small")
    batches = [
        replace(trainer.prepare(1), document_counts=torch.tensor(counts))
        for counts in ([2, 2, 2, 2, 2, 2, 2, 3], [2, 2, 2, 3, 2, 2, 2, 2], [1, 2, 2, 2, 2, 2, 3, 3])
    ]
    whole, in_parts = ([signature(trainer.run, batch, size) for batch in batches] for size in (ROWS, ROWS // 2))
    assert whole[0] == whole[1] == whole[2]
    assert in_parts[0] == in_parts[2] != in_parts[1]


def test_preparing_a_step_does_not_wait_for_the_device() -> None:
    """Numbers are arguments of kernels; of a tensor, the host must not wait until it is copied."""
    run = Trainer("bert_small", "schedules.sampler.temperature={type: linear, start: 3.0, end: 0.5}").run
    elsewhere = torch.device("meta")
    run.learner.to(elsewhere)
    rates_on(elsewhere, run.optimizer)
    run.watch = Watch(elsewhere)
    with Recorder() as recorder:
        prepare(run.learner, run.optimizer, np.arange(ROWS), seed=3, step=1, rate=0.5, watch=run.watch)
    copies = [args[2:] for function, args, _, _ in recorder.calls if function is torch.ops.aten.copy_.default]
    assert copies == [(True,)]
    moved = [made.device for function, *_, made in recorder.calls if function is torch.ops.aten._to_copy.default]
    assert elsewhere not in moved


def test_rows_are_copied_to_where_a_graph_reads_them() -> None:
    trainer = Trainer("bert_small")
    batch, other = trainer.prepare(1), trainer.prepare(2)
    batch = replace(batch, labels={"answers": torch.zeros(ROWS)})
    other = replace(
        other, segments=batch.segments + 1, example_ids=batch.example_ids + 1, labels={"answers": torch.ones(ROWS)}
    )
    static = copied(batch)
    places = {name: tensor.data_ptr() for name, tensor in tensors_of(static).items()}
    refill(static, other)
    assert places == {name: tensor.data_ptr() for name, tensor in tensors_of(static).items()}
    assert {*places} == {"tokens", "attention_mask", "segments", "example_ids", "row_ids", "answers"}
    for name, tensor in tensors_of(static).items():
        assert torch.equal(tensor, tensors_of(other)[name])
        assert not torch.equal(tensor, tensors_of(batch)[name])


@pytest.mark.parametrize(
    ("graph", "device", "left", "processes", "says"),
    [
        ("auto", "cpu", 1000, 1, ""), ("off", "cuda", 1000, 1, ""), ("on", "cpu", 1000, 1, "no CUDA"),
        ("auto", "cuda", 99, 1, "fewer than 100"), ("on", "cuda", 99, 1, None), ("auto", "cuda", 100, 1, None),
        ("on", "cuda", 1000, 2, "processes"),
    ],
)  # fmt: skip
def test_the_reason_not_to_record(graph: Any, device: str, left: int, processes: int, says: str | None) -> None:
    trainer = Trainer("bert_small", **{"steps": left + 5})
    trainer.run.step, trainer.run.learner.world = 5, World()
    trainer.run.learner.world.size = processes
    found = obstacle(graph, trainer.run, trainer.settings, torch.device(device))
    assert found == says if not says else says in str(found)


class Unrecordable(CpuGraphs):
    def record(self, step: Callable[[], StepResult]) -> Any:
        step()
        raise RuntimeError("operation not permitted when stream is capturing\nand more")


class Waiting(CpuGraphs):
    """The host waits in some of the first steps, and torch warns of it."""

    waits = (True, True, True)

    def eagerly(self, step: Callable[[], StepResult]) -> tuple[StepResult, str]:
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            warnings.warn("something else", stacklevel=1)
            if self.waits[self.run.step]:
                warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)
            result = step()
        return result, waits_in(raised)


def trained(
    name: str,
    *changes: str,
    graphs: type[CpuGraphs] | None = None,
    before: Callable[[Run], None] = lambda _: None,
    full: Sequence[int] = (),
) -> tuple[Trainer, list[str], Any]:
    """Return a trainer after twelve steps, the messages, and what recorded them."""
    trainer, said = Trainer(name, *changes, rates=True, full=full), list[str]()
    recorder: Any = graphs(trainer.run) if graphs else None
    compute: Any = Recorded(trainer.run, recorder, CPU, said.append) if recorder else compute_step
    trainer.run.compute = compute
    with patch.object(random, "_in_numpy", return_value=False):
        for step in range(12):
            before(trainer.run)
            compute(trainer.run, trainer.settings, trainer.prepare(step))
            trainer.run.step += 1
    assert trainer.run.window.steps == 12
    return trainer, said, recorder


def same(one: Trainer, other: Trainer) -> bool:
    before, after = one.state(), other.state()
    return before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(("name", "changes", "graphs"), [
    ("bert_small", (), 1), ("bert_small", ("discriminator.dropout=0.1",), 1),
    ("objectives/two_stage", ("objective.generator_steps=6",), 2),
])  # fmt: skip
def test_a_training_by_graphs_has_the_numbers_of_an_eager_one(name: str, changes: tuple[str, ...], graphs: int) -> None:
    recorded, said, recorder = trained(name, *changes, graphs=CpuGraphs)
    assert (said, recorder.recorded) == ([], graphs)
    assert same(trained(name, *changes)[0], recorded)


@pytest.mark.parametrize("name", ["bert_small", "transformer_small", "modernbert_small"])
def test_batches_with_and_without_padding_have_a_graph_each(name: str) -> None:
    full = range(0, 12, 2)
    recorded, said, recorder = trained(name, graphs=CpuGraphs, full=full)
    assert (said, recorder.recorded) == ([], 2)
    assert same(trained(name, full=full)[0], recorded)


def test_what_cannot_be_recorded_is_trained_eagerly() -> None:
    recorded, said, _ = trained("bert_small", graphs=Unrecordable)
    assert len(said) == 1
    assert "operation not permitted" in said[0]
    assert "and more" not in said[0]
    assert not recorded.run.learner.updating


@pytest.mark.parametrize("waits", [(True, True, False), (False, False, True), (True, True, True)])
def test_a_step_in_which_the_host_waits_is_not_recorded(
    waits: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first steps may wait: recording would fail, and leave torch unable to go on."""
    monkeypatch.setattr(Waiting, "waits", waits)
    recorded, said, recorder = trained("bert_small", graphs=Waiting)
    assert (len(said), recorder.recorded) == ((1, 0) if waits[2] else (0, 1))
    assert not said or f"({Path(__file__).name}:" in said[0]
    assert same(trained("bert_small")[0], recorded)


def test_steps_that_are_never_alike_are_trained_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("electra_lab.training.graph.MOST", 2)
    numbers = iter(range(100))
    monkeypatch.setattr("electra_lab.training.graph.signature", lambda *_: (next(numbers),))
    recorded, said, recorder = trained("bert_small", graphs=CpuGraphs)
    assert (len(said), recorder.recorded) == (1, 0)
    assert same(trained("bert_small")[0], recorded)


@pytest.mark.parametrize("frozen", [move_key, move_average, pass_rates_as_numbers])
def test_a_graph_with_other_numbers_is_noticed_and_not_used(frozen: Callable[[Run], None]) -> None:
    recorded, said, _ = trained("bert_small", graphs=CpuGraphs, before=frozen)
    assert len(said) == 1
    assert "other numbers" in said[0]
    assert same(trained("bert_small", before=frozen)[0], recorded)
    assert recorded.run.compute.graphs == {}  # type: ignore[attr-defined]


class WrongAt(CpuGraphs):
    """Its graphs change a weight too much at one of their replays."""

    at = 1

    def record(self, step: Callable[[], StepResult]) -> tuple[Callable[[], None], StepResult]:
        replay, result = super().record(step)
        numbers = iter(range(1, 100))

        @torch.no_grad()
        def wrong() -> None:
            replay()
            if next(numbers) == self.at:
                next(self.run.learner.objective.parameters()).add_(1)

        return wrong, result


@pytest.mark.parametrize("at", [1, 2])
def test_no_step_of_a_wrong_graph_is_kept(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WrongAt, "at", at)
    recorded, said, _ = trained("bert_small", graphs=WrongAt)
    assert len(said) == 1
    assert same(trained("bert_small")[0], recorded)


def test_an_error_in_a_comparison_leaves_nothing_to_save(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Run] = []
    monkeypatch.setattr(torch, "equal", Mock(side_effect=RuntimeError("out of memory")))
    with pytest.raises(RuntimeError, match="out of memory"):
        trained("bert_small", graphs=WrongAt, before=runs.append)
    assert runs[0].learner.updating


def test_a_rejected_step_leaves_the_memory_of_its_rows() -> None:
    trainer = Trainer("objectives/sas")
    memory = trainer.run.learner.objective.row_memory
    compute_step(trainer.run, trainer.settings, trainer.prepare(0))
    written = {name: held.clone() for name, held in memory.items()}
    assert any(held.any() for held in written.values())
    trainer.run.watch.accepted.fill_(100)
    trainer.run.watch.average.fill_(1e-30)  # every norm is a spike
    compute_step(trainer.run, trainer.settings, trainer.prepare(1))
    assert int(trainer.run.watch.first) == 1
    assert all(torch.equal(held, written[name]) for name, held in memory.items())


# With CUDA graphs


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("name", NAMES)
def test_a_graph_is_the_eager_step_on_cuda(name: str, precision: str, dropout: float) -> None:
    cuda, states = torch.device("cuda"), []
    for records in (False, True):
        trainer = Trainer(name, f"embedding.dropout={dropout}", precision=precision)
        trainer.run.learner.objective.to(cuda)
        trainer.run.begin(trainer.settings, cuda)
        rates_on(cuda, trainer.run.optimizer)
        said: list[str] = []
        compute: Any = Recorded(trainer.run, CudaGraphs(cuda), cuda, said.append) if records else compute_step
        for step in range(20):
            compute(trainer.run, trainer.settings, on(cuda, trainer.prepare(step)))
            trainer.run.step += 1
        assert said == []
        assert not records or compute.graphs
        states.append(trainer.state())
    assert [key for key, value in states[0].items() if not torch.equal(value, states[1][key])] == []


def on(device: torch.device, batch: Batch) -> Batch:
    moved = {name: tensor.to(device) for name, tensor in tensors_of(batch).items()}
    return replace(batch, **moved)
