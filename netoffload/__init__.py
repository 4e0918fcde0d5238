"""netoffload: a smart NIC that compresses gradients, in user space.

The layers, from the bottom; imports point down, never sideways (``tests/test_layers.py`` holds the table)::

    errors codec_specs              one exception tree; the list of codecs
    log                             log lines of long-running processes
    config                          settings
    control netlink                 the control socket, the kernel's network objects
    compiled                        Numba's set-up, and the parts that all compiled code shares
    torch_plugin                    registers the backend with torch
    wire                            formats: Ethernet, IPv4, TCP, the offload block
    nic_options                     the options of a NIC, and damage on purpose
    codec                           arrays <-> payload: the burst engine's arithmetic
    engine devices                  frames in, frames out; frames <-> descriptors
    collectives dissect             schedules over an abstract exchange; captured frames
    compressors                     float32 vectors <-> payloads, on the host
    machine                         what this machine has and lacks; versions and machine of a figure
    netoffload_daemon               the NIC process (folder daemon/)
    methods                         gradients of all ranks -> the same next weights, over an exchange
    transport                       sockets -> exchange: rendezvous, connections, liveness, compiled rounds
    netoffload_mpi                  CompComm over mpi4py (folder mpi_ext/)
    torch                           interfaces for torch programs: DDP hook, backend, optimizer, periodic averaging
    cli                             the command line

That is the product. ``lab``, above all of it, is the laboratory; the product never imports it.

Two paths through the layers explain the rest. A frame: device -> daemon loop -> engine -> codec -> engine ->
daemon loop -> device. A run: lab.cli -> lab.testbed -> ranks -> lab.training -> methods -> collectives -> exchange ->
record -> lab.reports.
"""

__version__ = "0.2.0"
