"""A key-value store in memory, which ranks as threads share."""

import threading
from datetime import timedelta


class MemoryStore:
    """What torch's HashStore is, which takes four seconds to import."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value.encode()
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        return self._values[key]

    def check(self, keys: list[str]) -> bool:
        return self._values.keys() >= set(keys)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._values.keys() >= set(keys), timeout.total_seconds()):
                raise RuntimeError("Wait timeout")
