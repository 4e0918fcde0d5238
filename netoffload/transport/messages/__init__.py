"""Messages: what one thread per rank, the watch, does beside the collectives.

::

    caller ── Context.send, receive, probe ──► Request                    the watch's thread, in poll(2)
                  │                               ▲                          │
                  ▼                               └── mailbox: which message ─┤
              peers: outbox, frames to send           goes into which receive │
                  │                                                           │
        control lane ──── frames: heartbeats, farewells, headers of messages ─┤
        messages lane ─── float32, in the order of the headers ───────────────┘

``links`` decides which ranks this one watches, and makes connections when they are first wanted. ``watch`` tells a late
rank from a lost one, and keeps communicators of the same ranks apart on the connections that they share.
"""
