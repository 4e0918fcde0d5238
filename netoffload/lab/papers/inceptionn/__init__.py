"""INCEPTIONN: Fig. 4, 5, 7, 12 to 15, Tables II and III, and the engine.

``learning`` has the items without links, ``links`` those over links, ``exchange`` the growth of times with the nodes.
"""

from typing import Final

from netoffload.lab.papers.inceptionn import exchange, learning, links
from netoffload.lab.papers.item import Paper

PAPER: Final = Paper(
    "inceptionn",
    "Li et al., A Network-Centric Hardware/Algorithm Co-Design to Accelerate Distributed Training of Deep Neural "
    "Networks, MICRO 2018",
    (
        learning.FIG4,
        learning.FIG5,
        learning.FIG14,
        learning.ENGINE,
        links.TABLE2,
        links.FIG7,
        links.FIG12,
        links.FIG13,
        exchange.FIG15,
    ),
)
