"""``netoffload bench nic`` with two of its contenders: an interrupt ends two testbeds as it would end six."""

from netoffload.bench import nic
from netoffload.cli import main

for name in nic.WAYS.keys() - {"kernel", "coalesced"}:
    del nic.WAYS[name]
nic.ROUND_TRIP_KINDS.clear()
main()
