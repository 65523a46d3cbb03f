"""The main program of a worker process of the local launcher: `python -P _worker.py <connection> <lifeline>`.

A separate program instead of multiprocessing's spawn, which would import the launcher's main program again and keep an
extra process. Only quick imports are at the top: the launcher's sys.path comes by message.

Nothing is ever written to the lifeline. When the launcher closes it or dies, its end asks the worker to stop.
"""

import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection


def main(connection: Connection, lifeline: Connection) -> None:
    """Do the pieces that arrive, one after the other, until the connection ends."""
    path, argv, cpus, grace = connection.recv()
    if cpus:
        os.sched_setaffinity(0, cpus)  # before any library counts its cores
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a launcher that ignores it must not pass this on
    threading.Thread(target=_stop_at_the_end_of, args=(lifeline, grace), daemon=True).start()
    sys.path[:], sys.argv[:] = path, argv  # runs record their command

    from electra_lab.launchers._piece import attempt, sentence
    from registry import Outcome

    while True:
        try:
            work, folder, piece = connection.recv()
        except (EOFError, OSError):
            return
        except Exception as error:  # an import failed, which concerns this piece; the next may work
            traceback.print_exc()
            outcome = Outcome("failed", f"a worker process cannot import the work ({sentence(error)}).")
        else:
            outcome = attempt(work, folder, piece)
        connection.send(outcome)


def _stop_at_the_end_of(lifeline: Connection, grace: float) -> None:
    """Wait for the end of the lifeline; ask the piece to stop, and kill it with its processes after `grace` seconds."""
    with suppress(EOFError, OSError):
        lifeline.recv_bytes()
    # To the main thread, which runs Python's handlers, so that it wakes from any wait.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
    time.sleep(grace)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the launcher is gone
        main(Connection(int(sys.argv[1])), Connection(int(sys.argv[2]), writable=False))
