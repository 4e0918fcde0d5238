"""The NIC process: it joins a host's device and a wire through the engine.

::

    host's kernel ── TAP ──► read ──► engine.transmit ──► sendmmsg ──► packet socket ── wire
                     TAP ◄── write ◄── engine.receive ◄── recvmmsg ◄── packet socket

``libc``        the system calls, as functions that compiled code can call
``port``        buffers, tables and counters, made once before the first frame
``loop``        devices and engine meet here, and only here; one compiled function without the GIL, which owns the clock
``trouble``     devices that are down, or gone
``vlan``        puts tags back that the kernel takes out
``faults``      damages frames for the wire, where that is asked for
``trace``       copies frames into a ring, and the ring into a pcapng file
``table``       the flow tables in a file, for a restart
``control``     what the control socket answers: counters, flows, metrics, stop
``metrics``     the counters in Prometheus' format, on the control socket and, if asked for, over HTTP
``bypass``      tc filters around this process, where the kernel carries what is not touched
``privileges``  root is given up before the first frame
``arguments``   the words of the command line -> ``netoffload.nic_options``
``__main__``    arguments -> devices -> loop; set-up may exit with one clear line, the loop may not
``prefork``     loads the kernels once, and becomes each NIC of a testbed by a fork

One thread runs the loop, or two, one per direction; the main thread waits for signals, and one thread per request
answers the control socket from the counters, which are plain arrays that the loop adds to. One more thread hears of
changes of the wire's MTU, and writes it where the loop looks for every batch.

**Two threads.** Each has its direction's buffers for itself, and writes its direction's counters. Both write the
flow table: the host's SYNs and segments on one side, a peer's SYN (what it decodes) on the other. A mutex
guards it; the receiving thread takes it while it notes what a frame says, so decoding never waits for encoding.

**Devices.** The host's is a TAP, or the NIC's end of a veth pair through a packet socket; the wire's is a packet
socket. An error of a frame is counted; a deleted interface ends the NIC.

**Back-pressure.** A frame on its way out is charged to the packet socket until the wire has taken it. When that is full
the loop stops reading the host's device and waits for the wire, so frames queue where TCP put them and none is lost.

**Stopping.** SIGTERM, SIGINT and the control socket's ``stop`` all write to one event descriptor. The loop then empties
both directions once and returns; the process exits with 0.
"""
