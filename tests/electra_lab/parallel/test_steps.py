"""Two processes by gloo against one: steps, masks, draws, evaluation and checkpoints, with DDP and FSDP2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from electra_lab.parallel.world import ALONE
from tests.electra_lab.parallel import cases
from tests.electra_lab.parallel.cases import CASES, ROWS, STEPS, trained
from tests.electra_lab.parallel.launch import ended, start
from tests.scorecard.lab import Lab

HASHED = (
    "reformer",
    "reversible",
)  # their rotations come from torch's global generator, of which each rank has its own


@pytest.fixture(scope="module")
def folder(forks: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases, in two processes that are started once."""
    made = tmp_path_factory.mktemp("two")
    for code, _, said in ended(start(forks, f"{cases.__name__}:main", str(made), cwd=made)):
        assert code == 0, said
    return made


@pytest.fixture(scope="module")
def alone(folder: Path) -> Any:
    """What one process finds, by name of the experiment."""
    threads, found = torch.get_num_threads(), dict[str, Any]()
    torch.set_num_threads(1)

    def one(name: str) -> Any:
        if name not in found:
            found[name] = trained(folder / "one", "ddp", name, ALONE)
        return found[name]

    yield one
    torch.set_num_threads(threads)


def ranks(folder: Path, parallel: str, name: str) -> list[Any]:
    return [json.loads((folder / f"{parallel}-{name}-{rank}.json").read_text()) for rank in range(2)]


def saved(folder: Path, parallel: str, name: str, size: int, below: str = "") -> dict[str, torch.Tensor]:
    return load_file(folder / parallel / name / str(size) / below / f"step-{STEPS:08d}" / "state.safetensors")


@pytest.mark.parametrize(("parallel", "name"), [case for case in CASES if case[1] not in HASHED])
def test_losses_gradients_weights_and_states_are_those_of_one_process(
    folder: Path, alone: Any, parallel: str, name: str
) -> None:
    expected, found = alone(name), ranks(folder, parallel, name)
    for each in found:
        for step, one in zip(each["steps"], expected["steps"], strict=True):
            assert step["counts"] == one["counts"]
            assert step["finite"] == one["finite"]
            assert step["numbers"] == pytest.approx(one["numbers"], rel=1e-5, abs=1e-6, nan_ok=True)
    assert [step["finite"] for step in found[0]["steps"]] == [True, name not in ("poisoned", "overflowing"), True]
    if name == "overflowing":
        assert [step["numbers"]["scale"] for step in found[0]["steps"]] == [1024, 512, 512]
    weights, reference = saved(folder, parallel, name, 2), saved(folder / "one", "ddp", name, 1)
    assert weights.keys() == reference.keys()
    for key, value in reference.items():
        torch.testing.assert_close(
            weights[key], value, rtol=1e-5, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}"
        )


@pytest.mark.parametrize(("parallel", "name"), CASES)
def test_masks_and_draws_are_bit_identical_to_those_of_one_process(
    folder: Path, alone: Any, parallel: str, name: str
) -> None:
    """The generator reads the masked rows; the discriminator reads the draws, which depend on the weights, too, and
    these differ in the last bits after a step."""
    one, (first, second) = alone(name)["inputs"], (each["inputs"] for each in ranks(folder, parallel, name))
    for role, steps in {"generator": STEPS, "discriminator": STEPS if name == "mlm" else 1}.items():
        both = [rows + others for rows, others in zip(first[role], second[role], strict=True)]
        assert both[:steps] == one[role][:steps]
    assert all(len(rows) == ROWS for rows in one["discriminator" if name in ("mlm", "sas") else "generator"])


def test_each_rank_has_a_dropout_of_its_own(folder: Path) -> None:
    found = [each["drawn"] for case in CASES if case[1] not in HASHED for each in ranks(folder, *case)]
    assert len(set(found)) == 2


@pytest.mark.parametrize(("parallel", "name"), CASES)
def test_evaluation_is_that_of_one_process_and_rank_0_has_it(
    folder: Path, alone: Any, parallel: str, name: str
) -> None:
    """Bit for bit with the same weights, before the first step; the three batches are not divided evenly."""
    first, second = (each["before"] for each in ranks(folder, parallel, name))
    assert first == alone(name)["before"]
    assert first["examples"] or name in ("mlm", "plug_in")  # which detect nothing that could be shown
    first, second = (each["evaluation"] for each in ranks(folder, parallel, name))
    assert (second["tokens"], second["metrics"], second["examples"]) == (0, {}, [])
    assert first["tokens"] == alone(name)["evaluation"]["tokens"] > 0
    if name in HASHED:
        return
    one = alone(name)["evaluation"]
    assert first["metrics"].keys() == one["metrics"].keys()
    assert first["metrics"] == pytest.approx(one["metrics"], rel=1e-4, abs=1e-5, nan_ok=True)
    assert [example["originals"] for example in first["examples"]] == [e["originals"] for e in one["examples"]]


@pytest.mark.parametrize(("parallel", "name"), CASES)
def test_checkpoints_are_the_same_files_and_come_back_exactly(folder: Path, parallel: str, name: str) -> None:
    """After zeros in all weights, and without an optimizer's state. Names and shapes are compared with one process's
    above."""
    again = saved(folder, parallel, name, 2, "again")
    weights = saved(folder, parallel, name, 2)
    assert weights.keys() == again.keys()
    assert not [key for key, value in weights.items() if not torch.equal(value, again[key])]


def test_ranks_agree_on_the_rows_that_fit_on_each(folder: Path) -> None:
    assert [each["rows"] for each in ranks(folder, "ddp", "scarce")] == [2, 2]


@pytest.mark.parametrize(("parallel", "name"), CASES)
def test_only_fsdp_divides_all_parameters(folder: Path, parallel: str, name: str) -> None:
    found = ranks(folder, parallel, name)
    for each in found:
        assert each["divided"] == (each["parameters"] if parallel == "fsdp" else [])
        assert each["all"] == found[0]["all"]
    held = sum(each["held"] for each in found)
    assert held == found[0]["all"] * (1 if parallel == "fsdp" else 2)
