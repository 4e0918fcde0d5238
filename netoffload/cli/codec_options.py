"""``--codec`` and ``--bound`` for commands other than those that start a NIC."""

from typing import Annotated, Final

import typer

from netoffload import config

_NAMES: Final = ", ".join(config.CODECS)

Bound = Annotated[int, typer.Option(help="Error bound 2^-BOUND, 1..16.")]
NicCodec = Annotated[str, typer.Option(help=f"Codec of the NICs: {_NAMES}.")]
Codecs = Annotated[list[str] | None, typer.Option("--codec", help=f"{_NAMES}; repeat for several.", show_default=False)]
