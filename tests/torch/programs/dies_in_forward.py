"""``dies_in_forward COUNT PROGRAM WORDS``: runs a program, and ends by SIGKILL in its forward pass COUNT; 0: never.

The pass lasts a second first, so the other replicas are in the quorum's exchange, and wait for this one.
"""

import os
import runpy
import signal
import sys
import time
from typing import Any

import torch

count, sys.argv = int(sys.argv[1]), sys.argv[2:]
right, passes = torch.nn.functional.cross_entropy, 0


def cross_entropy(*args: Any) -> torch.Tensor:
    global passes
    passes += 1
    if passes == count:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    return right(*args)


torch.nn.functional.cross_entropy = cross_entropy  # type: ignore[assignment]
runpy.run_path(sys.argv[0], run_name="__main__")
