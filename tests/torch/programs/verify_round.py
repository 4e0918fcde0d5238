"""``netoffload verify collectives`` under torchrun; ``verify_round.py broken`` with wrong sums."""

import os
import sys

from torch import Tensor
from torch.distributed import ProcessGroup

from netoffload.cli import main
from netoffload.torch import verify

if __name__ == "__main__":
    right = verify.CALLS["all_reduce"]

    def wrong(own: Tensor, group: ProcessGroup) -> Tensor:
        """Add 1 to the first value that the backend gives rank 1."""
        total = right(own, group)
        total[:1] += group.name() == "netoffload"
        return total

    if sys.argv[1:] == ["broken"] and os.environ["RANK"] == "1":
        verify.CALLS = {**verify.CALLS, "all_reduce": wrong}  # type: ignore[misc]
    sys.argv[1:] = ["verify", "collectives", "--count", "1000", "--json"]
    main()
