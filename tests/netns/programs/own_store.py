"""``own_store PROGRAM WORDS``: runs a program as the one rank of a replica, with the store that torchrun would give it.

It says its pid first.
"""

import os
import runpy
import sys

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not declared public

from netoffload.config import ENV_ADDRESS

sys.argv = sys.argv[1:]
store = TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False)
os.environ |= {"MASTER_ADDR": os.environ[ENV_ADDRESS], "MASTER_PORT": str(store.port), "RANK": "0", "WORLD_SIZE": "1"}
print(os.getpid(), flush=True)
runpy.run_path(sys.argv[0], run_name="__main__")
