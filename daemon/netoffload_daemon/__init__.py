"""The NIC process: it joins a host's device and a wire through the engine.

::

    host's kernel ── TAP ──► read ──► engine.transmit ──► sendmmsg ──► packet socket ── wire
                     TAP ◄── write ◄── engine.receive ◄── recvmmsg ◄── packet socket

``libc``        the system calls, as functions that compiled code can call
``port``        buffers, tables and counters, made once before the first frame
``loop``        joins devices and engine: one compiled function without the GIL, which reads the clock
``vlan``        puts VLAN tags back that the kernel takes out
``faults``      damages frames for the wire (``--fault``)
``trace``       copies frames into a ring, and the ring into a pcapng file
``table``       the flow table in a file, for a restart
``control``     the answers of the control socket: counters, flows, metrics, stop
``metrics``     the counters in Prometheus' format, on the control socket and, with ``--metrics-port``, over HTTP
``bypass``      tc filters that carry unchanged frames past this process
``privileges``  gives up root before the first frame
``key``         the key of the MAC, from a file
``arguments``   the command line -> ``netoffload.nic_options``
``__main__``    arguments -> devices -> loop; set-up may end with one clear line, the loop may not

One thread runs the loop, or two, one per direction. The main thread waits for signals. One thread per request answers
the control socket from the counters, which are plain arrays that the loop adds to. One more thread watches the wire's
MTU, and writes it to an array that the loop reads for every batch.

**Two threads.** Each thread uses only its direction's buffers and writes only its direction's counters. Both write the
flow table: one the host's SYNs and segments, the other what a peer's frames say. A mutex guards the table. The
receiving thread holds it only while it notes what a frame says, so decoding never waits for encoding.

**Devices.** The host's device is a TAP, or the NIC's end of a veth pair through a packet socket; the wire is a packet
socket. The loop counts a frame that a device refuses; a deleted interface ends the NIC.

**Back-pressure.** A frame on its way out counts against the packet socket's buffer until the wire has taken it. When
the buffer is full, the loop stops reading the host's device and waits for the wire. So frames wait in the host's queue,
where TCP limits them, and none is lost.

**Stopping.** SIGTERM, SIGINT, SIGHUP and the control socket's ``stop`` all write to one event descriptor. The loop then
empties both directions once and returns; the process exits with 0.
"""
