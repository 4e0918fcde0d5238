"""TernGrad: Fig. 2 to 5, Tables 1 to 3."""

from typing import Final

from netoffload.lab.papers.item import Paper
from netoffload.lab.papers.terngrad import learning, throughput

PAPER: Final = Paper(
    "terngrad",
    "Wen et al., TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning, NIPS 2017",
    (learning.FIG2, learning.FIG3, learning.FIG4, throughput.FIG5, learning.TABLES),
)
