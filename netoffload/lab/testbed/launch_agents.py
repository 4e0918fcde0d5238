"""Starts torchrun's agents, one per node, and ends with the first that fails.

It runs as a program, with a list of command lines as JSON. The caller has to end the other agents. It imports only the
standard library, and starts in some milliseconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence


def first_failure(commands: Sequence[Sequence[str]]) -> int:
    """Run all command lines at once; return the exit code of the first that fails, 0 when all have ended well.

    For a process that a signal ended it is 128 plus the signal, as shells report it.
    """
    left = {subprocess.Popen(command).pid for command in commands}
    while left:
        pid, status = os.wait()
        left.discard(pid)
        if code := os.waitstatus_to_exitcode(status):
            return code if code > 0 else 128 - code
    return 0


if __name__ == "__main__":
    sys.exit(first_failure(json.loads(sys.argv[1])))
