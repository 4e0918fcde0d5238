"""``netoffload verify collectives`` whose rank 0 has a method that gives a wrong value: ``verify_broken METHOD WORDS``.

Without a name rank 0 stops before its second call.
"""

import functools
import os
import signal
import sys
import time
from typing import Any

from netoffload.cli import main
from netoffload_mpi import MPI, CompComm, verify
from netoffload_mpi.verify import CALLS


def wrong(self: CompComm, *arguments: Any, right: Any) -> Any:
    request = right(self, *arguments)
    if request is not None:
        request.Wait()
    into = arguments[1]
    (into[0] if isinstance(into, list) else into)[0] += 1
    return request


def late_round(*words: Any) -> dict[str, Any]:
    """Rank 0 is late with its report; the others have none to print, and fail first."""
    record = one_round(*words)
    time.sleep(0.5)
    return record


one_round = verify.one_round

if __name__ == "__main__":
    name = sys.argv.pop(1)
    if MPI.COMM_WORLD.rank == 0 and name:
        vars(verify)["one_round"] = late_round
        setattr(CompComm, name, functools.partialmethod(wrong, right=getattr(CompComm, name)))
    elif MPI.COMM_WORLD.rank == 0:
        CALLS["Reduce"] = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)  # type: ignore[assignment]
    main()
