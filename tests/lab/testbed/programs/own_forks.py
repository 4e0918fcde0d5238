"""Own a server of forks, print where it is, and wait for a minute."""

import time

from netoffload.lab.testbed.forks import ForkServer

with ForkServer([]) as forks:
    print(*forks.env.values(), flush=True)
    time.sleep(60)
