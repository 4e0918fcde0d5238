"""What the laboratory adds to commands of the product, by name (``netoffload.cli.known.lab_offer``)."""

from __future__ import annotations

from netoffload.lab.testbed.checks import checks
from netoffload.lab.testbed.controls import nic_controls

__all__ = ["checks", "nic_controls"]
