"""A Ctrl-C at a moment that an event decides."""

import signal
import sys
import threading
import time
from types import FrameType


def interrupt_in(function: str) -> None:
    """Send this process's main thread a Ctrl-C, once it is inside a function of that name, and has waited there."""
    main = threading.main_thread().ident
    assert main is not None

    def send() -> None:
        while not _is_inside(sys._current_frames()[main], function):
            time.sleep(0.01)
        time.sleep(0.2)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=send, daemon=True).start()


def _is_inside(frame: FrameType | None, function: str) -> bool:
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None
