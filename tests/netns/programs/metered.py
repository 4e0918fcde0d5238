"""Run a Python program as a rank of ``netoffload run``; rank 0 prints the octets that it put on all wires.

netoffload run -n 4 --rate 500mbit/110mbit --offload inline --launcher torchrun -- \
    tests/netns/programs/metered.py examples/diloco.py --ddp
"""

import os
import runpy
import sys

from netoffload.config import ENV_METER
from netoffload.lab.testbed.build import octets_on_wires

meter = os.environ[ENV_METER]
is_first = os.environ.get("RANK", "0") == "0"
octets = octets_on_wires(meter) if is_first else 0
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
if is_first:
    print(f"{octets_on_wires(meter) - octets:,} octets on the wires", flush=True)
