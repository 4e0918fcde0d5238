"""``netoffload WORDS`` where a package is not installed: ``without_package.py PACKAGE WORDS...``."""

import sys

from netoffload.__main__ import main

sys.modules[sys.argv.pop(1)] = None  # type: ignore[assignment]  # Python's own word for "there is none"
main()
