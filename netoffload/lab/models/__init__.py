"""Models: the time of an exchange (``exchange``), its schedules (``simulation``), the codecs as circuits, and the
gradients that experiments name (``gradients``).
"""
