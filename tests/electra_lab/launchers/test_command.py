"""Signals at the start of a command, and its end in words."""

import os
import signal
import threading
from pathlib import Path

import pytest

from electra_lab.launchers._command import ended, signals_held
from electra_lab.testing.launchers import on_signal


@pytest.mark.parametrize(
    ("code", "expected", "words"),
    [
        (0, 0, ""), (1, 1, "exit code 1"), (75, 75, "exit code 75"), (130, 130, "exit code 130"),
        (-9, -9, "signal 9 (SIGKILL); the system sends it when memory runs out"), (137, -9, "signal 9 (SIGKILL)"),
        (-11, -11, "signal 11 (SIGSEGV); its"), (143, -15, "signal 15 (SIGTERM)"),
    ],
)  # fmt: skip
def test_an_exit_code_says_what_happened(code: int, expected: int, words: str) -> None:
    outcome = ended(code, Path("a.txt"))
    assert (outcome.code, bool(outcome.error)) == (expected, code != 0)
    assert words in outcome.error
    assert not outcome.error or outcome.error.endswith("its output is in a.txt.")


def test_a_signal_waits_for_the_end_of_the_block_and_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    reached = list[str]()

    def block() -> None:
        with signals_held():
            os.kill(os.getpid(), signal.SIGTERM)
            reached.append("the end of the block")

    with on_signal(signal.SIGTERM, TimeoutError("stopped")):
        with pytest.raises(TimeoutError, match="stopped"):
            block()
        assert reached
        with pytest.raises(TimeoutError, match="stopped"):  # no longer held
            signal.raise_signal(signal.SIGTERM)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_signals_that_are_ignored_or_end_a_process_are_not_held() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with signals_held():
            assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
            os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_threads_hold_nothing() -> None:
    """They run no signal handlers, and may not set any."""
    ended_by = list[BaseException]()

    def hold() -> None:
        try:
            with signals_held():
                pass
        except BaseException as error:
            ended_by.append(error)

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert not ended_by
