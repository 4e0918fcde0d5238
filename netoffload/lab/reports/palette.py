"""Colours and type of all figures.

Colours are Okabe and Ito's (distinct under every common colour blindness); in grey they differ by lightness.
"""

from __future__ import annotations

from typing import Any, Final

COMPUTE_COLOUR: Final = "#0072B2"
COMMUNICATE_COLOUR: Final = "#E9B872"
CODEC_COLOUR: Final = "#222222"
WIRE_COLOUR: Final = "#56B4E9"
CLASS_COLOURS: Final = {"0": "#E8E8E8", "8": "#A6CEE3", "16": "#5E9FC9", "32": "#0B4F7D"}
SERIES_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#222222", "#B8A900")
PRINTED_COLOUR: Final = "#A8A8A8"
"""Colour of a paper's printed values."""
TEXT_COLOUR: Final = "#222222"
MUTED_COLOUR: Final = "#666666"

STYLE: Final[dict[Any, Any]] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": TEXT_COLOUR,
    "axes.labelcolor": TEXT_COLOUR,
    "axes.edgecolor": "#BBBBBB",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "xtick.color": TEXT_COLOUR,
    "ytick.color": MUTED_COLOUR,
    "hatch.linewidth": 0.6,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "netoffload",  # the same figure gives the same file
}
