"""Build a testbed as nobody, and print the refusal: ``build_without_root.py RUN_ID``."""

import os
import sys

from netoffload.errors import SystemRefusedError
from netoffload.lab.testbed import Testbed, TestbedSettings, make_plan

os.seteuid(65534)
try:
    Testbed(make_plan(TestbedSettings(2), sys.argv[1])).__enter__()
except SystemRefusedError as error:
    print(error.exit_code, error)
