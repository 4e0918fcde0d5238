"""A Ctrl-C at a moment that an event decides."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def interrupted_in(function: str) -> Iterator[None]:
    """Send this process's main thread a Ctrl-C, once it is inside a function of that name, and has waited there."""
    main, ended = threading.main_thread().ident, threading.Event()
    assert main is not None

    def send() -> None:
        while not _is_inside(sys._current_frames()[main], function):
            if ended.wait(0.01):
                return
        if not ended.wait(0.2):
            signal.pthread_kill(main, signal.SIGINT)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    try:
        yield
    finally:
        ended.set()


def _is_inside(frame: FrameType | None, function: str) -> bool:
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None
