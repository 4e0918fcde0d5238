"""netoffload: a smart NIC that compresses gradients, in user space.

The layers, from the bottom; imports point down, never sideways (``tests/test_layers.py`` holds the table)::

    errors codec_specs              one exception tree; the list of codecs
    log programs                    log lines of long-running processes; how programs end
    config faults record_formats    settings, damage on purpose, records of older formats
    control netlink                 the control socket, the kernel's network objects
    compiled                        Numba's set-up, and the parts that all compiled code shares
    torch_plugin                    registers the backend with torch
    wire                            octets <-> values: Ethernet, IPv4, TCP, the offload block
    nic_options results             the options of a NIC; records
    codec costmodel                 arrays <-> payload: the burst engine's arithmetic; the papers' performance models
    engine devices testbed          frames in, frames out; frames <-> descriptors; namespaces as data, then kernel state
    collectives reports dissect     schedules over an abstract exchange; records -> tables and figures; captured frames
    compressors environment         float32 vectors <-> payloads, on the host; versions and machine of a figure
    netoffload_daemon               the NIC process (folder daemon/)
    methods                         gradients of all ranks -> the same next weights, over an exchange
    transport                       sockets -> exchange: rendezvous, connections, liveness, compiled rounds
    netoffload_mpi                  CompComm over mpi4py (folder mpi_ext/)
    kernels                         all compiled kernels, compiled into the cache on every core
    torch                           interfaces for torch programs: DDP hook, backend, optimizer, periodic averaging
    training                        torch: one run = config in, record out
    bench                           experiments that measure
    papers                          the papers' tables and figures beside those of this project
    cli                             the command line

Two paths through the layers explain the rest. A frame: device -> daemon loop -> engine -> codec -> engine ->
daemon loop -> device. A run: cli -> testbed -> ranks -> training -> methods -> collectives -> exchange -> record ->
reports.
"""

__version__ = "0.2.0"
