"""Frames <-> file descriptors: the only ioctls and packet sockets of the project.

A device is a descriptor: one read gives one frame behind a 10-octet virtio-net header, and one write takes such a
frame. Both kinds use the same header, so a frame that crosses unchanged is written from the buffer it was read into.

``tap``     the host's side: a TAP interface in the host's namespace, with TSO and checksum offload left on. So the
            host's stack hands over large segments of up to 64 KiB and computes no checksums
``packet``  the wire's side: a packet socket bound to one interface (a veth end, a real card). It is the host's side
            too if the host's device is a veth pair
``mtu``     the MTU of an interface, watched
``netns``   entering a network namespace for the time it takes to open a device there

The descriptors are non-blocking; the compiled loop ``netoffload_daemon.loop`` reads and writes them.
"""
