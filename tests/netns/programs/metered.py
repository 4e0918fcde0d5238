"""Run a Python program as a rank of ``netoffload run``; rank 0 prints the octets that it put on all wires.

netoffload run -n 4 --rate 500mbit/110mbit --offload inline --launcher torchrun -- \
    tests/netns/programs/metered.py examples/diloco.py --ddp
"""

import os
import runpy
import sys

from netoffload import control
from netoffload.config import ENV_METER


def wire_octets() -> int:
    """Return the octets that all nodes have sent."""
    return sum(int(node["tx_octets"]) for node in control.request(os.environ[ENV_METER], "wires")["nodes"])


is_first = os.environ.get("RANK", "0") == "0"
octets = wire_octets() if is_first else 0
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
if is_first:
    print(f"{wire_octets() - octets:,} octets on the wires", flush=True)
