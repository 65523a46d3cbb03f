"""The main program of a worker process of the local launcher: `python -P _worker.py <connection> <lifeline>`.

It is a program of its own and not multiprocessing's spawn, because that imports the launcher's main program again, and
keeps a process beside the workers. At the top it imports only what is quick: the launcher's sys.path comes by message.

Nothing is ever written to the lifeline. Its end, which the launcher brings about or the launcher's death does, asks
the worker to stop.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection


def main(connection: Connection, lifeline: Connection) -> None:
    """Do the pieces that come, one after the other, until there is nobody to send any."""
    path, argv, cpus, grace = connection.recv()
    if cpus:
        os.sched_setaffinity(0, cpus)  # before any library counts its cores
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a launcher that ignores it must not hand that down
    threading.Thread(target=_stop_at_the_end_of, args=(lifeline, grace), daemon=True).start()
    sys.path[:], sys.argv[:] = path, argv  # runs record the command that they came from

    from electra_lab.launchers._piece import attempt, sentence
    from registry import Outcome

    while True:
        try:
            work, folder, piece = connection.recv()
        except (EOFError, OSError):
            return
        except Exception as error:  # an import failed: this piece's matter, the next may be of another mind
            traceback.print_exc()
            outcome = Outcome("failed", f"a worker process cannot import the work ({sentence(error)}).")
        else:
            outcome = attempt(work, folder, piece)
        connection.send(outcome)


def _stop_at_the_end_of(lifeline: Connection, grace: float) -> None:
    """Wait for it; then ask what runs to stop, and stop it after `grace` seconds, with all processes that it made."""
    with suppress(EOFError, OSError):
        lifeline.recv_bytes()
    # To the main thread, so that it wakes from what it waits in: there Python runs the handlers.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
    time.sleep(grace)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the launcher is gone
        main(Connection(int(sys.argv[1])), Connection(int(sys.argv[2]), writable=False))
