"""Build a testbed, with NICs or ``plain``, and wait: ``own_testbed.py RUN_ID nic|plain``."""

import sys

from netoffload.lab.testbed import NicSettings, Testbed, TestbedSettings, make_plan

nic = NicSettings() if sys.argv[2] == "nic" else None
with Testbed(make_plan(TestbedSettings(2, nic=nic), sys.argv[1]), check_rate=False) as bed:
    bed.popen(1, ["/bin/sleep", "300"], start_new_session=True)
    print("up", flush=True)
    sys.stdin.read()
