"""What a process that runs for long says on standard error: a line for people, or one JSON object.

A JSON line has ``time`` (UTC, RFC 3339), ``level`` (``info``, ``warning``, ``error``), ``event`` (a name for programs)
and ``message`` (for people), and the fields of its event. A traceback is a field, so that a line stays an object.
"""

from __future__ import annotations

import datetime
import json
import sys
import threading
import traceback
from typing import Any, Final

FORMATS: Final = ("text", "json")

_chosen = {"form": FORMATS[0]}


def choose(form: str) -> None:
    """Write what this process says from now on in one of :data:`FORMATS`; JSON takes what nobody catches as well."""
    _chosen["form"] = form
    if form == "json":
        sys.excepthook = lambda _kind, error, _trace: failed("uncaught", error)
        threading.excepthook = lambda args: failed("uncaught", args.exc_value or args.exc_type())


def line(form: str, event: str, message: str, *, level: str = "info", **fields: Any) -> str:
    """Return a line without its end."""
    if form == "text":
        return f"netoffload: {'warning: ' if level == 'warning' else ''}{message}"
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    said: dict[str, Any] = {"time": now, "level": level, "event": event, "message": message, **fields}
    return json.dumps(said, default=str)


def say(event: str, message: str, *, level: str = "info", **fields: Any) -> None:
    """Say something at once.

    Args:
        event: its name, for programs.
        message: one line for people.
        level: ``info``, ``warning`` or ``error``.
        fields: what JSON has besides; a text has them in its message.
    """
    print(line(_chosen["form"], event, message, level=level, **fields), file=sys.stderr, flush=True)


def note(event: str, message: str, **fields: Any) -> None:
    """Say something that only a log in JSON has: that all is well."""
    if _chosen["form"] == "json":
        say(event, message, **fields)


def failed(event: str, error: BaseException) -> None:
    """Say that there is a bug, with its traceback."""
    trace = "".join(traceback.format_exception(error))
    if _chosen["form"] == "json":
        say(event, f"{type(error).__name__}: {error}", level="error", traceback=trace)
    else:
        print(trace, end="", file=sys.stderr, flush=True)
