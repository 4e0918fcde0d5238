"""The NIC process: it joins a host's device and a wire through the engine.

::

    host's kernel ── TAP ──► read ──► engine.transmit ──► sendmmsg ──► packet socket ── wire
                     TAP ◄── write ◄── engine.receive ◄── recvmmsg ◄── packet socket

``libc``      the system calls, as functions that compiled code can call
``loop``      devices and engine meet here, and only here; one compiled function without the GIL, which owns the clock
``table``     the flow tables in a file, for a restart
``control``   what the control socket answers: counters, flows, metrics, stop
``metrics``   the counters in Prometheus' format, on the control socket and, if asked for, over HTTP
``__main__``  arguments -> devices -> loop; set-up may exit with one clear line, the loop may not

One thread runs the loop; the main thread waits for signals, and one thread per request answers the control socket from
the counters, which are plain arrays that the loop adds to.

**Back-pressure.** A frame on its way out is charged to the packet socket until the wire has taken it. When that is full
the loop stops reading the host's device and waits for the wire, so frames queue where TCP put them and none is lost.

**Stopping.** SIGTERM, SIGINT and the control socket's ``stop`` all write to one event descriptor. The loop then empties
both directions once and returns; the process exits with 0.
"""
