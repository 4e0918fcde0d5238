"""Frames <-> file descriptors: the only ioctls and packet sockets of the project.

A device is a descriptor on which one read gives one frame behind a 10-octet virtio-net header, and one write takes one.
Both kinds speak the same header, so a frame that crosses unchanged is written from the very buffer it was read into.

``tap``     the host's side: a TAP interface in the host's namespace, with TSO and checksum offload left on, so that
            the host's stack hands over whole super-segments of up to 64 KiB and sums nothing
``packet``  the wire's side: a packet socket bound to one interface (a veth end, a real card); the host's side too,
            where that is a veth pair
``qdisc``   whether an interface has tc filters
``mtu``     the MTU of an interface, watched (both ask the kernel through ``rtnetlink``)
``netns``   entering a network namespace for as long as it takes to open one of these

The descriptors are non-blocking; who reads and writes them is ``netoffload_daemon.loop``, compiled.
"""
