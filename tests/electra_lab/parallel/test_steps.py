"""Two processes with gloo against one: steps, masks, draws, evaluation and checkpoints, with DDP and FSDP2."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from registry.contracts.objective import ALONE
from tests.electra_lab.parallel import cases
from tests.electra_lab.parallel.cases import CASES, ROWS, STEPS, trained
from tests.electra_lab.parallel.launch import ended, start
from tests.scorecard.lab import Lab

# Their rotations come from torch's global generator, of which each rank has its own.
HASHED = ("reformer", "reversible")


@pytest.fixture(scope="module")
def folder(forks: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of all cases in two processes, which are started once."""
    made = tmp_path_factory.mktemp("two")
    for code, _, said in ended(start(forks, f"{cases.__name__}:main", str(made), cwd=made)):
        assert code == 0, said
    return made


@pytest.fixture(scope="module")
def alone(folder: Path) -> Iterator[Callable[[str], Any]]:
    """The results of one process, by name of the experiment."""
    threads, found = torch.get_num_threads(), dict[str, Any]()
    torch.set_num_threads(1)

    def of(name: str) -> Any:
        if name not in found:
            found[name] = trained(folder / "one", "ddp", name, ALONE)
        return found[name]

    yield of
    torch.set_num_threads(threads)


@pytest.fixture(params=CASES, ids="-".join)
def case(request: pytest.FixtureRequest, folder: Path) -> Any:
    """The results of an experiment, by rank."""
    parallel, name = request.param
    return SimpleNamespace(parallel=parallel, name=name, ranks=ranks(folder, parallel, name), folder=folder)


def ranks(folder: Path, parallel: str, name: str) -> list[Any]:
    return [json.loads((folder / f"{parallel}-{name}-{rank}.json").read_text()) for rank in range(2)]


def saved(folder: Path, parallel: str, name: str, size: int, below: str = "") -> dict[str, torch.Tensor]:
    return load_file(folder / parallel / name / str(size) / below / f"step-{STEPS:08d}" / "state.safetensors")


def test_losses_gradients_weights_and_states_are_those_of_one_process(case: Any, alone: Any) -> None:
    expected, name = alone(case.name), case.name
    if name in HASHED:
        pytest.skip("each rank draws different rotations")
    for rank in case.ranks:
        for step, whole in zip(rank["steps"], expected["steps"], strict=True):
            assert step["counts"] == whole["counts"]
            assert step["finite"] == whole["finite"]
            assert step["numbers"] == pytest.approx(whole["numbers"], rel=1e-5, abs=1e-6, nan_ok=True)
    steps = case.ranks[0]["steps"]
    assert [step["finite"] for step in steps] == [True, name not in ("poisoned", "overflowing"), True]
    if name == "overflowing":
        assert [step["numbers"]["scale"] for step in steps] == [1024, 512, 512]
    weights, reference = saved(case.folder, case.parallel, name, 2), saved(case.folder / "one", "ddp", name, 1)
    assert weights.keys() == reference.keys()
    for key, value in reference.items():
        torch.testing.assert_close(weights[key], value, rtol=1e-5, atol=1e-6)


def test_masks_and_draws_are_bit_identical_to_those_of_one_process(case: Any, alone: Any) -> None:
    """The generator reads the masked rows; the discriminator reads the draws, which also depend on the weights, whose
    last bits differ after a step."""
    alone_, (first, second) = alone(case.name)["inputs"], (rank["inputs"] for rank in case.ranks)
    for role, steps in {"generator": STEPS, "discriminator": STEPS if case.name == "mlm" else 1}.items():
        both = [rows + others for rows, others in zip(first[role], second[role], strict=True)]
        assert both[:steps] == alone_[role][:steps]
    read = alone_["discriminator" if case.name in ("mlm", "sas") else "generator"]
    assert [len(rows) for rows in read] == [ROWS] * STEPS


def test_each_rank_has_a_dropout_of_its_own(folder: Path) -> None:
    found = [rank["drawn"] for case in CASES if case[1] not in HASHED for rank in ranks(folder, *case)]
    assert len(set(found)) == 2


def test_evaluation_is_that_of_one_process_and_rank_0_has_it(case: Any, alone: Any) -> None:
    """Bit for bit with the same weights, before the first step; three batches cannot be divided evenly."""
    before, whole = case.ranks[0]["before"], alone(case.name)["evaluation"]
    assert before == alone(case.name)["before"]
    assert before["examples"] or case.name in ("mlm", "plug_in")  # these have no detections to show
    first, second = (rank["evaluation"] for rank in case.ranks)
    assert (second["tokens"], second["metrics"], second["examples"]) == (0, {}, [])
    assert first["tokens"] == whole["tokens"] > 0
    if case.name in HASHED:
        return
    assert first["metrics"].keys() == whole["metrics"].keys()
    assert first["metrics"] == pytest.approx(whole["metrics"], rel=1e-4, abs=1e-5, nan_ok=True)
    assert [example["originals"] for example in first["examples"]] == [e["originals"] for e in whole["examples"]]


def test_checkpoints_are_the_same_files_and_come_back_exactly(case: Any) -> None:
    """After setting all weights to zero, and without the optimizer's state. Names and shapes are compared with those of
    one process above."""
    weights, again = (saved(case.folder, case.parallel, case.name, 2, below) for below in ("", "again"))
    assert weights.keys() == again.keys()
    assert not [key for key, value in weights.items() if not torch.equal(value, again[key])]


def test_ranks_agree_on_the_rows_that_fit_on_each(folder: Path) -> None:
    assert [rank["rows"] for rank in ranks(folder, "ddp", "scarce")] == [2, 2]


def test_only_fsdp_divides_all_parameters(case: Any) -> None:
    whole = case.ranks[0]["all"]
    for rank in case.ranks:
        assert rank["divided"] == (rank["parameters"] if case.parallel == "fsdp" else [])
        assert rank["all"] == whole
    assert sum(rank["held"] for rank in case.ranks) == whole * (1 if case.parallel == "fsdp" else 2)
