"""Own a server of forks, print where it is, and wait for a minute."""

import time

from netoffload.lab.testbed.forks import fork_server

with fork_server([]) as env:
    print(*env.values(), flush=True)
    time.sleep(60)
