"""Codecs against their oracles, with the kernels that this CPU gets: ``round_trips.py CODEC...``; prints their name."""

import sys

import numpy as np

from netoffload.codec import get
from netoffload.codec.kernels import KERNEL

values = np.random.default_rng(5).normal(0, 0.01, 4001).astype(np.float32)
for codec in map(get, sys.argv[1:]):
    payload = codec.encode(values, 10)
    assert np.array_equal(payload, codec.oracle.encode(values, 10))
    wanted = codec.oracle.round_trip(values, 10).view(np.uint32)
    assert np.array_equal(codec.decode(payload, values.size, 10).view(np.uint32), wanted)
    assert np.array_equal(codec.round_trip(values, 10).view(np.uint32), wanted)
print(KERNEL)
