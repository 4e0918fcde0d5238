"""Codecs against their oracles, with the kernels that this CPU gets: ``round_trips.py CODEC...``; prints their name."""

import sys

import numpy as np

from netoffload.codec.kernels import KERNEL
from tests.codec.variants import Variant

values = np.random.default_rng(5).normal(0, 0.01, 4001).astype(np.float32)
for variant in (Variant(name, KERNEL) for name in sys.argv[1:]):
    payload = variant.encode_all(values, 10)
    assert np.array_equal(payload, variant.oracle.encode(values, 10))
    wanted = variant.oracle.round_trip(values, 10)
    assert variant.decode(payload, values.size, 10) == (payload.size, wanted.tobytes())
print(KERNEL)
