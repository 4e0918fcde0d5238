"""Say something in JSON, and raise in a thread and in the end."""

import threading
from pathlib import Path

from netoffload import log

log.choose("json")
log.say("made", "made it", path=Path("/a"))
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise ValueError("two\nlines")
