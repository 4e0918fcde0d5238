"""Rounds: collectives over connections, whole rounds at a time in compiled code.

::

    collectives (ring, meeting, gathering)
        │  Exchange.drive(a plain description)             else, channel by channel: the oracle in Python
        ▼                                                      ▼
    exchange ──► driver ──► ring_loop, meeting_loop,        TcpChannel ── send_some, receive_some
                    ▲       over a loop_port
                    └── a result: done, broken, silent ── becomes times, octets or an error that names a rank
"""
