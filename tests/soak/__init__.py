"""Programs that test the NIC with the real Linux TCP; they know nothing of how the NIC works.

``options`` draws connections and their values. ``testbed.stream_end`` is the program at either end, which judges every
value, and ``flows`` runs pairs of it. ``damage`` loses, doubles and holds frames in the switch. ``events`` has the
other events of a testbed: new MTUs, links that go down, NICs that are killed or stopped. ``run`` combines all of them.
``routed`` turns a testbed's switch into two routers with a narrower link between them.
"""

from tests.soak.damage import Damage, DamagedSwitch, nft_path, run_nft
from tests.soak.events import (
    add_ipv6,
    ip,
    kill_nic,
    link_down,
    nic_stopped,
    set_segmentation,
    set_window_scaling,
    start_nic,
)
from tests.soak.flows import Flow, Found, await_progress, carry, wait_for_any
from tests.soak.options import Direction, FlowOptions, Values, draw_options, draw_values
from tests.soak.routed import PathResult, measure_path, routed
from tests.soak.run import FLOWS, Soak, SoakResult, as_json

__all__ = [
    "FLOWS",
    "Damage",
    "DamagedSwitch",
    "Direction",
    "Flow",
    "FlowOptions",
    "Found",
    "PathResult",
    "Soak",
    "SoakResult",
    "Values",
    "add_ipv6",
    "as_json",
    "await_progress",
    "carry",
    "draw_options",
    "draw_values",
    "ip",
    "kill_nic",
    "link_down",
    "measure_path",
    "nft_path",
    "nic_stopped",
    "routed",
    "run_nft",
    "set_segmentation",
    "set_window_scaling",
    "start_nic",
    "wait_for_any",
]
