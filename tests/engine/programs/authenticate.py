"""A block's MAC from a kernel that is kept on disk: ``authenticate.py KEY``; prints the cache's hits and misses."""

import sys
from typing import Any

import numpy as np

from netoffload.compiled.arrays import Int64Array, Uint8Array
from netoffload.compiled.jit import kernel
from netoffload.engine.authentication import Authenticator, has_mac, is_on, put_mac
from netoffload.wire.authentication import block_mac


def _both(words: Int64Array, octets: Uint8Array, length: int) -> bool:
    if not is_on(words):
        return False
    put_mac(words, octets, 0, length, length)
    return has_mac(words, octets, 0, length, length)


both: Any = kernel(_both)
key = bytes.fromhex(sys.argv[1])
octets = np.arange(1016).astype(np.uint8)
with Authenticator(key) as authenticator:
    assert both(authenticator.words, octets, 1000)
assert octets[1000:].tobytes() == block_mac(key, octets[:1000].tobytes())
print(sum(both.stats.cache_hits.values()), sum(both.stats.cache_misses.values()))
