"""What an operator should know while a NIC runs: a line in the log, at most one a minute of each kind.

The loop only counts. A thread compares the counters once a second with those of the last line.
"""

import threading
from typing import Final, Self

import numpy as np

from netoffload import log
from netoffload.engine.counters import Counter
from netoffload.engine.flows import PROMISE, SLOTS
from netoffload.engine.promises import NO_SOCKET
from netoffload.engine.state import NicState

LOOK_S: Final = 1.0
QUIET_LOOKS: Final = 60
"""Looks between two lines of one kind."""

KINDS: Final = {
    Counter.BYPASS_NO_SLOT: (
        "flow_table_full",
        "the flow table is full: {count} handshakes found no slot, and their connections stay raw until they are made "
        "anew; `netoffload stats` lists the connections that hold slots",
    ),
    Counter.DROP_BAD_MAC: (
        "other_key",
        "{count} blocks had no MAC of this NIC's key: give both NICs the same --key, or somebody forges blocks",
    ),
    Counter.TX_RESETS: (
        "connections_reset",
        "{count} connections were reset, because an earlier NIC ended with octets that only its flow table had: keep "
        "the table (--flow-table)",
    ),
    Counter.BYPASS_UNPROMISED: (
        "socket_not_found",
        "tagged connections stay raw, because their sockets are in no namespace that this NIC asks: name it with "
        "--socket-netns, or use --trust tag",
    ),
}
"""Per counter: the event, and the line for people."""


class Notices:
    """The thread that writes the lines; a context manager."""

    def __init__(self, nic: NicState) -> None:
        """Begin with the counters of ``nic``, which its loop changes."""
        self._nic = nic
        self._reported = {counter: int(nic.counters[counter]) for counter in KINDS}
        self._quiet = dict.fromkeys(KINDS, 0)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread; what happened since its last look is reported."""
        self._closing.set()
        self._thread.join()
        self.look()

    def look(self) -> None:
        """Write a line for each kind that happened since its last line, unless that was less than a minute ago."""
        for counter, (event, text) in KINDS.items():
            self._quiet[counter] = max(self._quiet[counter] - 1, 0)
            count = int(self._nic.counters[counter])
            if count == self._reported[counter] or self._quiet[counter]:
                continue
            if counter == Counter.BYPASS_UNPROMISED and not np.any(self._nic.flows[:SLOTS, PROMISE] == NO_SOCKET):
                continue  # these sockets exist and bear no tag: as it should be
            fresh, self._reported[counter], self._quiet[counter] = count - self._reported[counter], count, QUIET_LOOKS
            log.say(event, text.format(count=fresh), level="warning", count=fresh)

    def _run(self) -> None:
        while not self._closing.wait(LOOK_S):
            self.look()
