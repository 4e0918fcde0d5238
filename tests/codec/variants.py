"""One codec's kernels in one variant, called between octets that they must not touch."""

import multiprocessing
from dataclasses import dataclass

import numpy as np

from netoffload.codec import bursts, get, kernels
from netoffload.codec.reference import Oracle
from netoffload.compiled.arrays import Float32Array, Uint8Array

CANARY = 0xA5


@dataclass(frozen=True)
class Variant:
    """The kernels of a codec with tags or masks; the bound is 2^-10 where it does not matter."""

    codec: str
    kernel: str

    def __str__(self) -> str:
        return f"{self.codec}-{self.kernel}"

    @property
    def oracle(self) -> Oracle:
        return get(self.codec).oracle

    @property
    def kernels(self) -> kernels.Kernels:
        return kernels.kernels_of(get(self.codec).codec_id, self.kernel)

    def encode(
        self, values: Float32Array, bound_k: int = 10, capacity: int | None = None, offset: int = 0
    ) -> tuple[int, Uint8Array]:
        """Return how many floats fit, and their payload; the source starts ``offset`` octets behind an aligned one."""
        capacity = 5 * values.size + bursts.MAX_BURST_PAYLOAD if capacity is None else capacity
        source = np.concatenate([np.zeros(offset, np.uint8), np.ascontiguousarray(values).view(np.uint8)])
        target = np.full(16 + capacity + bursts.ENCODE_SLACK + 64, CANARY, np.uint8)
        classes = np.zeros(4, np.int64)
        count, length = self.kernels.encode(source, offset, values.size, bound_k, target, 16, capacity, classes)
        assert length <= capacity
        assert classes.sum() == count
        if self.oracle.compress is not None:
            tags = self.oracle.compress(values[:count], bound_k)[0]
            assert classes.tolist() == np.bincount(tags, minlength=4).tolist()
        assert (target[:16] == CANARY).all()
        assert (target[-64:] == CANARY).all()
        return count, target[16 : 16 + length].copy()

    def encode_all(self, values: Float32Array, bound_k: int = 10) -> Uint8Array:
        count, payload = self.encode(values, bound_k)
        assert count == values.size
        return payload

    def decode(
        self, payload: Uint8Array, count: int, bound_k: int = 10, middle: tuple[int, int] | None = None
    ) -> tuple[int, bytes]:
        """Return the status and the floats' octets; with ``middle``, octets and floats of the first half, as halves."""
        padded = np.concatenate([payload, np.full(bursts.DECODE_SLACK, 0xFF, np.uint8)])
        room = 32 * -(-count // 8)
        target = np.full(16 + room + 16, CANARY, np.uint8)
        bound = self.kernels.decoding(bound_k)
        bound = np.float32(bound) if isinstance(bound, float) else bound
        if middle is None:
            read = self.kernels.decode(padded, 0, payload.size, count, bound, target, 16)
        else:
            half = bursts.Middle(*middle)
            read = self.kernels.decode_halves(padded, 0, payload.size, count, half, bound, target, 16)
        assert (target[:16] == CANARY).all()
        assert (target[16 + room :] == CANARY).all()
        return int(read), target[16 : 16 + 4 * count].tobytes()


def compile_all(kernel: str) -> None:
    """Compile what tests call of all codecs' kernels for an instruction set."""
    words = np.zeros(16, np.uint32)
    for variant in (Variant(codec, kernel) for codec in ("inceptionn", "bounded", "packed", "exact")):
        payload = variant.encode_all(words.view(np.float32))
        for middle in (None, (0, 0)):
            variant.decode(payload, words.size, middle=middle)
        variant.kernels.round_trip(words, 10, words.copy())


if __name__ == "__main__":  # for scripts/setup: each worker of pytest would compile them by itself
    with multiprocessing.get_context("spawn").Pool() as pool:
        pool.map(compile_all, kernels.usable_kernels(), chunksize=1)
