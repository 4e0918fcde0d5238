"""``netoffload nic``: one NIC in the foreground; ``warmup``: compile its kernels beforehand; ``unit``: for systemd."""

import os
import sys
import time
from importlib import resources
from types import SimpleNamespace
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from netoffload import config
from netoffload.cli.app import app, notes
from netoffload.errors import SystemRefusedError
from netoffload.nic_options import NicProcess, options_of, unit_words

UNITS: Final = ("nic", "link")


class _NicCommand(TyperCommand):
    """A command whose options are in the NIC's own parser, not in typer's; Tab completes them all the same."""

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        options = [option for _, option in options_of(NicProcess) if option.flag.startswith(incomplete)]
        return [SimpleNamespace(type="plain", value=option.flag, help=option.help_text) for option in options]


@app.command(
    "nic",
    cls=_NicCommand,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    help="Run one NIC between a host's interface (TAP or veth) and a wire; "
    "[bold]netoffload nic --help[/] lists its options.",
)
def _nic(context: typer.Context) -> None:
    from netoffload_daemon.__main__ import main

    sys.exit(main(context.args, "netoffload nic"))


@app.command()
def warmup() -> None:
    """Compile the kernels of the NIC, the codecs and the ranks into the cache, so that they start without delay.

    Example: netoffload warmup
    """
    from netoffload.cli.kernels import compile_all
    from netoffload.compiled.cache import remove_stale
    from netoffload.compiled.jit import CACHE_DIR

    if CACHE_DIR is None:
        raise SystemRefusedError(
            "no folder for compiled kernels belongs to this user alone: set XDG_CACHE_HOME to one that does"
        )
    start_s = time.monotonic()
    compile_all()
    if "NUMBA_CACHE_DIR" not in os.environ:
        remove_stale(CACHE_DIR)
    notes.print(f"kernels ready in {time.monotonic() - start_s:.1f} s ({CACHE_DIR})", soft_wrap=True)


@app.command()
def unit(
    name: Annotated[str, typer.Argument(help="nic: the NIC's process; link: its interfaces.")],
) -> None:
    """Print a systemd unit for NICs on a real host, made for this Python. docs/guide/cluster.md has the settings.

    Example: netoffload unit nic > /etc/systemd/system/netoffload-nic@.service
    """
    config.check_choice("unit", name, UNITS)
    template = resources.files("netoffload_daemon").joinpath(f"systemd/netoffload-{name}@.service")
    environment, words = unit_words()
    text = template.read_text(encoding="utf-8").replace("@PYTHON@", sys.executable)
    print(text.replace("@ENVIRONMENT@", environment).replace("@OPTIONS@", words), end="")
