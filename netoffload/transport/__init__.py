"""Sockets -> :class:`~netoffload.collectives.exchange.Exchange`: how ranks talk, whoever started them.

Files: ``loop_port`` what compiled rounds share; ``ring_loop`` a ring, ``meeting_loop`` a meeting, in one compiled
function each.
"""
