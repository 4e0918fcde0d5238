"""Print what torchrun tells a rank; rank 0 sleeps, any other ends with exit code 7."""

import os
import sys
import time

names = ("NETOFFLOAD_RUN", "RANK", "WORLD_SIZE", "MASTER_ADDR", "NETOFFLOAD_ADDRESS", "GLOO_SOCKET_IFNAME")
print(*map(os.environ.get, names), flush=True)
if os.environ["RANK"] == "0":
    time.sleep(300)
print("end", file=sys.stderr)
sys.exit(7)
