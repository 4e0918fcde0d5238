"""``netoffload verify collectives`` under torchrun; ``verify_round.py broken`` with wrong sums."""

import os
import sys
from collections.abc import Iterator

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

    if sys.argv[1:] == ["broken"] and os.environ["RANK"] == "1":
        verify.results = wrong
    sys.argv[1:] = ["verify", "collectives", "--count", "1000", "--json"]
    main()
