"""``netoffload WORDS``, and in the end the names of all modules on stderr."""

import atexit
import sys

from netoffload.__main__ import main

atexit.register(lambda: print(*sys.modules, file=sys.stderr))
main()
