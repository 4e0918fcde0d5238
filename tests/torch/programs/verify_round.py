"""``netoffload verify collectives`` under torchrun; ``verify_round.py broken`` with wrong sums."""

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.distributed import ProcessGroup

from netoffload.cli import main
from netoffload.torch import verify

if __name__ == "__main__":
    right = verify.results

    def wrong(own: Tensor, group: ProcessGroup) -> Iterator[tuple[str, Tensor]]:
        """Add 1 to the first value that the backend's sum gives rank 1."""
        for name, result in right(own, group):
            result[:1] += name == "all_reduce" and group.name() == "netoffload"
            yield name, result

    one_round = verify.one_round

    def late_round(count: int, seed: int, timeout_s: float) -> dict[str, Any]:
        """Rank 0 is late with its report; the others have none to print, and fail first."""
        record = one_round(count, seed, timeout_s)
        time.sleep(0.5)
        return record

    if sys.argv[1:] == ["broken"]:
        if os.environ["RANK"] == "1":
            verify.results = wrong
        else:
            verify.one_round = late_round
    sys.argv[1:] = ["verify", "collectives", "--count", "1000", "--json"]
    main()
