"""Log lines of long-running processes on standard error: text for people, or one JSON object per line.

A JSON line has ``time`` (UTC, RFC 3339), ``level`` (``info``, ``warning``, ``error``), ``event`` (a name for programs)
and ``message`` (for people), and the fields of its event. A traceback is a field, so that every line is one object.
"""

import datetime
import json
import sys
import threading
import traceback
from typing import Any, Final

FORMATS: Final = ("text", "json")

_chosen = {"form": FORMATS[0]}  # of this process


def choose(form: str) -> None:
    """Log in one of :data:`FORMATS` from now on; JSON also logs uncaught exceptions."""
    _chosen["form"] = form
    if form == "json":
        sys.excepthook = lambda _kind, error, _trace: failed("uncaught", error)
        threading.excepthook = lambda args: failed("uncaught", args.exc_value or args.exc_type())


def line(form: str, event: str, message: str, *, level: str = "info", **fields: Any) -> str:
    """Return a log line without its newline."""
    if form == "text":
        return f"netoffload: {'warning: ' if level == 'warning' else ''}{message}"
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"time": now, "level": level, "event": event, "message": message, **fields}, default=str)


def say(event: str, message: str, *, level: str = "info", **fields: Any) -> None:
    """Write a log line at once. A text line has the ``fields`` in its message."""
    print(line(_chosen["form"], event, message, level=level, **fields), file=sys.stderr, flush=True)


def is_terminal() -> bool:
    """Return whether a log line may be written over: text on a terminal, on which no other program draws."""
    has_terminal = sys.stderr.isatty() and sys.stdout.isatty()
    return _chosen["form"] == "text" and sys.stderr is sys.__stderr__ and has_terminal


def note(event: str, message: str, **fields: Any) -> None:
    """Log an ordinary event, which only a log in JSON has."""
    if _chosen["form"] == "json":
        say(event, message, **fields)


def failed(event: str, error: BaseException) -> None:
    """Log a bug with its traceback."""
    trace = "".join(traceback.format_exception(error))
    if _chosen["form"] == "json":
        say(event, f"{type(error).__name__}: {error}", level="error", traceback=trace)
    else:
        print(trace, end="", file=sys.stderr, flush=True)
