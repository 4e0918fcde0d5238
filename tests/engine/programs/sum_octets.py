"""The CRC32C of random octets; prints which registers fold here, and whether the CPU has an instruction for it."""

import numpy as np

from netoffload.engine import sums
from netoffload.wire import checksum

octets = np.random.default_rng(5).integers(0, 256, 1501, np.uint8)
assert sums.crc32c(octets, 1, 1500, 7) == checksum.crc32c(octets[1:].tobytes(), 7)
print(sums.USABLE_LANES, sums.HAS_CRC32C)
