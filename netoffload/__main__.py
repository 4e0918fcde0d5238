"""The entry point of ``netoffload`` and ``python -m netoffload``; ``--version`` is answered before other imports."""

import contextlib
import os
import sys


def _open_closed_streams() -> None:
    """Open the null device in place of standard streams that the caller has closed; Python sets these to None."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  (as long as the process)


def main() -> None:
    """Run the command line."""
    _open_closed_streams()
    if sys.argv[1:] == ["--version"]:
        import netoffload

        with contextlib.suppress(OSError):  # run() below reports the error
            print(f"netoffload {netoffload.__version__}", flush=True)
            return
    try:
        from netoffload.cli import main as run
    except KeyboardInterrupt:  # in the half second before the command line hears of signals by itself
        print("netoffload: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
