"""The environment variables that describe the processes of a training."""

import pytest
import torch

from electra_lab.jobs.endings import exit_code
from electra_lab.parallel import session as module
from electra_lab.parallel.session import is_first, neighbours, processes, session
from registry.contracts.objective import ALONE, World
from registry.errors import ConfigError, DataError, Reported

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
WHOLE = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def given(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("variables", [{}, {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "x"}])
def test_one_process_is_alone_and_has_no_process_group(monkeypatch, variables: dict[str, str]) -> None:
    given(monkeypatch, **variables)
    assert processes() == neighbours() == 1
    assert is_first()
    with session("cpu", exit_code) as world:
        assert world is ALONE
        assert (world.rank, world.size, world.first, world.part(7)) == (0, 1, True, slice(0, 7))
        assert world.agreed(15) == 15
        assert world.once(lambda: "done") == "done"
        assert not torch.distributed.is_initialized()


def test_neighbours_are_the_processes_of_this_machine_and_only_rank_0_answers(monkeypatch) -> None:
    given(monkeypatch, **WHOLE)
    assert (neighbours(), is_first()) == (2, False)
    given(monkeypatch, **WHOLE | {"LOCAL_WORLD_SIZE": "1", "RANK": "0"})
    assert (neighbours(), is_first()) == (1, True)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0', must be a number from 1"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two', must be a number from 1"),
        ({"RANK": ""}, "RANK is '', must be a number from 0"), ({"RANK": "-1"}, "RANK is '-1', must be a number"),
        ({"MASTER_ADDR": None}, "WORLD_SIZE is 2, but MASTER_ADDR is not set"),
        ({"MASTER_PORT": None}, "WORLD_SIZE is 2, but MASTER_PORT is not set"),
    ],
)  # fmt: skip
def test_wrong_variables_are_named(monkeypatch, changed: dict[str, str | None], sentence: str) -> None:
    given(monkeypatch, **{name: value for name, value in (WHOLE | changed).items() if value is not None})
    with pytest.raises(ConfigError, match=sentence), session("cpu", exit_code):
        pass


def test_more_processes_than_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, **WHOLE)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    reason = "LOCAL_RANK is 1, but this machine has 1 CUDA devices"
    with pytest.raises(ConfigError, match=reason), session("auto", exit_code):
        pass


@pytest.mark.parametrize(
    ("said", "brief"),
    [
        ("[/pytorch/gloo/transport/tcp/pair.cc:537] Read error [::1]:2: Connection reset by peer. GLHF!",
         "Connection reset by peer"),
        ("[pair.cc] Connection closed by peer [127.0.0.1]:30", "Connection closed by peer"),
        ("NCCL error in: here\nand more", "NCCL error in: here"),
        ("", "RuntimeError"),
    ],
)  # fmt: skip
def test_the_long_messages_of_libraries_are_cut_to_the_reason(said: str, brief: str) -> None:
    assert module._brief(RuntimeError(said)) == brief


class Two(World):
    """Rank 1 of two, without a group."""

    rank, size = 1, 2


def reason(error: BaseException, store: torch.distributed.Store) -> BaseException:
    return module._reason(error, store, Two(), module._Listener(store), exit_code)


@pytest.mark.parametrize(
    ("error", "code", "lost"),
    [
        (DataError("gone"), 3, False),
        (KeyError("unforeseen"), 1, False),
        (SystemExit(0), 1, False),
        # A failed exchange does not count as a lack of memory, regardless of its message.
        (RuntimeError("gloo: Connection closed by peer"), 1, True),
        (RuntimeError("NCCL error: out of memory"), 1, True),
        (torch.distributed.DistError("out of memory"), 1, True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_others_are_told_the_code_that_the_first_ends_with(error: BaseException, code: int, lost: bool) -> None:
    store = torch.distributed.HashStore()
    final = reason(error, store)
    assert int(store.get("exit_code")) == exit_code(final) == code
    assert ("died without a message" in str(final)) == lost
    later = reason(DataError("of the second"), store)
    assert isinstance(later, Reported)
    assert later.exit_code == code


def test_a_group_that_cannot_be_left_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "gloo")
    monkeypatch.setattr(torch.distributed, "destroy_process_group", fail)
    store = torch.distributed.HashStore()
    listener = module._Listener(store)
    listener.start()
    module._leave(store, Two(), listener, failed=False)
    assert not listener.is_alive()
    assert store.add("need_nothing", 0) == 1
