"""Print in JSON what a process has from the one that started it, speak on stderr, and end with exit code $CODE."""

import gc
import json
import os
import sys
from pathlib import Path

said = {"argv": sys.argv, "env": dict(os.environ), "folder": os.getcwd(), "path": sys.path[0]}
shown = Path("/proc/self/environ").read_text().rstrip("\0").split("\0")
done = {"imported": "decimal" in sys.modules, "called": not gc.isenabled()}
json.dump({**said, **done, "shown": shown, "server": os.getppid()}, sys.stdout)
print("also", file=sys.stderr)
sys.exit(int(os.environ["CODE"]))
