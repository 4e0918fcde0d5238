"""``netoffload WORDS`` where a package is not installed, in a fork for every request on standard input.

A request is a line of JSON: ``package``, ``words`` and ``folder``. The fork runs in the folder, and writes ``out`` and
``err`` there. The answer is the exit code.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import netoffload.codec
import netoffload.lab.testbed  # noqa: F401  # so that not every fork imports what has no extras
from netoffload.__main__ import main
from netoffload.cli.known import import_all


def run(package: str, words: list[str], folder: Path) -> None:
    """Become the command; never return."""
    os.chdir(folder)
    for name, number in (("out", 1), ("err", 2)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
    assert package not in sys.modules
    sys.modules[package] = None  # type: ignore[assignment]  # Python's own word for "there is none"
    sys.argv[1:] = words
    main()
    sys.exit()


import_all()  # imports every command, but nothing of an extra
for line in sys.stdin:
    asked: dict[str, Any] = json.loads(line)
    if os.fork() == 0:
        run(asked["package"], asked["words"], Path(asked["folder"]))
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
