"""Programs that test the NIC with the real Linux TCP; they know nothing of how the NIC works.

``options`` draws connections and their values. ``testbed.stream_end`` is the program at either end, which judges every
value, and ``flows`` runs pairs of it. ``damage`` loses, doubles and holds frames in the switch. ``events`` has the
other events of a testbed: new MTUs, links that go down, NICs that are killed or stopped. ``run`` combines all of them.
``routed`` turns a testbed's switch into two routers with a narrower link between them.
"""
