"""Runs examples one after the other, each as its own program, but on ranks that have loaded torch once."""

import runpy
import sys

for line in sys.argv[1:]:
    sys.argv = line.split()
    runpy.run_path(sys.argv[0], run_name="__main__")
