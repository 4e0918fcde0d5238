"""Programs that hold the NIC against the real Linux TCP, without a word about how the NIC works.

``options`` draws connections and their values, ``endpoint`` is the program at either end, which judges every value,
and ``flows`` runs pairs of it. ``damage`` loses, doubles and holds frames in the switch. ``events`` has what can happen
to a testbed: other MTUs, links that go down, NICs that are killed or stopped. ``run`` lets it all happen together.
"""

from netoffload.testbed.soak.damage import Damage, DamagedSwitch, nft_path, run_nft
from netoffload.testbed.soak.flows import Flow, Found
from netoffload.testbed.soak.options import Direction, FlowOptions, Values, draw_options, draw_values
from netoffload.testbed.soak.run import FLOWS, Soak, SoakResult, as_json

__all__ = [
    "FLOWS",
    "Damage",
    "DamagedSwitch",
    "Direction",
    "Flow",
    "FlowOptions",
    "Found",
    "Soak",
    "SoakResult",
    "Values",
    "as_json",
    "draw_options",
    "draw_values",
    "nft_path",
    "run_nft",
]
