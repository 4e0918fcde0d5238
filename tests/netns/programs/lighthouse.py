"""``lighthouse PORT``: torchft's lighthouse, until it is killed; a replica counts as dead after a second."""

import signal
import sys

from torchft.coordination import LighthouseServer

server = LighthouseServer(
    bind=f"[::]:{sys.argv[1]}", min_replicas=2, join_timeout_ms=2000, heartbeat_timeout_ms=1000, quorum_tick_ms=50
)
signal.pause()
