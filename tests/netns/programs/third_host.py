"""A third host at the switch of a testbed: no node, no NIC, and root in a namespace of its own."""

import contextlib
from collections.abc import Iterator
from typing import Final

from netoffload.lab.testbed import Testbed
from netoffload.lab.testbed.journal import Journal
from netoffload.netlink import Namespace
from tests.soak.events import ip

HOST_ADDRESS: Final = "10.98.1.77"
SILENT_ADDRESS: Final = "10.98.1.78"
"""An address whose hardware address the node knows, but where no host is."""
DEVICE: Final = "third0"


@contextlib.contextmanager
def third_host(bed: Testbed) -> Iterator[str]:
    """Attach a namespace to the switch, and return its name; it goes when the testbed is taken down."""
    name = f"no-{bed.plan.run_id}-third"
    Journal(bed.plan.state_dir).append("netns", name=name)
    with Namespace.create(name), Namespace.open(bed.plan.switch_netns) as switch:
        switch.add_veth("third1", DEVICE, name, bed.plan.settings.mtu)
        switch.set_up("third1", bed.plan.bridge)
        ip("-n", name, "link", "set", DEVICE, "up")
        ip("-n", name, "addr", "add", f"{HOST_ADDRESS}/24", "dev", DEVICE)
        for node in bed.plan.nodes:
            command = ("neigh", "replace", SILENT_ADDRESS, "lladdr", "02:00:00:00:00:78", "dev", node.device)
            ip("-n", node.netns, *command)
        yield name
