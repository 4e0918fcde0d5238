"""Wiring: one connection between two ranks, from its listener to its first float.

::

    lanes ── what a connection is for, which ToS its SYN has, where its listener is
      │
    joining ── the higher rank connects; both prove by ``hello`` who they are; strangers are closed
      │   └── ``nearby``: without TCP, where no wire lies between the two
      │
    a socket ── float32 as it is; or a ``coded_socket``, which sends ``chunks`` if the ranks compress by themselves

Nothing here blocks: the watch (``messages``) calls a :class:`~netoffload.transport.wiring.joining.Joiner` when a socket
is ready. Each rank has about two connections per doubling of the number of ranks, made when they are first used.
"""
