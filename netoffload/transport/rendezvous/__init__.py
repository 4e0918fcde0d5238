"""Rendezvous: how ranks find each other before there is a connection between them, and what they agree on.

A rendezvous gathers one small value from each rank (``protocol``). Each gather names the ranks that do not come::

    launchers ── which rank of which attempt am I?
        │
    store (torch's)   addresses (a list)   MPI's (netoffload_mpi)      each a Rendezvous
        └──────────────────┴──────────────────┘
                           │  an Offer per rank: address, ports, token, codec, who compresses
                       agreement ── the same list on every rank, so the same decision or the same error

Called by ``transport.plane`` only, twice or three times per communicator.
"""
