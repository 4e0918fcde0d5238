"""Print the pid and wait for a minute; with $DEAF, SIGTERM does not end it."""

import os
import signal
import time

if "DEAF" in os.environ:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
time.sleep(60)
