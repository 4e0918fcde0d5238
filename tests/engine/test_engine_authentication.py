"""The MAC of compiled code is the defined one: at any length, in two threads, from another process's cache."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netoffload.compiled.arrays import Uint8Array
from netoffload.compiled.jit import JIT_DISABLED, inlined_with
from netoffload.engine import authentication
from netoffload.engine.authentication import Authenticator, has_mac, is_on, put_mac
from netoffload.errors import SystemRefusedError, UsageError
from netoffload.wire.authentication import KEY_LEN, MAC_LEN, block_mac, siphash128, siphash_key
from tests.shared.commands import python

KEY = bytes(range(KEY_LEN))
OTHER_KEY = bytes(reversed(KEY))
PROGRAMS = Path(__file__).with_name("programs")

# The authors' reference implementation, vectors.h: the key is 00 01 .. 0f, the octets are 00 01 .. as many as said.
VECTORS = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    7: "a1f1ebbed8dbc153c0b84aa61ff08239",
    8: "3b62a9ba6258f5610f83e264f31497b4",
    15: "5493e99933b0a8117e08ec0f97cfc3d9",
    16: "6ee2a4ca67b054bbfd3315bf85230577",
    63: "5150d1772f50834a503e069a973fbd7c",
}


@pytest.fixture(scope="module")
def authenticator() -> Iterator[Authenticator]:
    with Authenticator(KEY) as made:
        yield made


def random_octets(seed: int, length: int) -> Uint8Array:
    return np.random.default_rng(seed).integers(0, 256, length, np.uint8)


@pytest.mark.parametrize("length", VECTORS)
def test_the_oracle_is_the_authors(length: int) -> None:
    assert siphash128(bytes(range(16)), bytes(range(length))).hex() == VECTORS[length]


def test_the_key_of_a_file_never_changes_its_meaning() -> None:
    assert siphash_key(KEY).hex() == "4b6f5806686c671f08286701efdbc9d3"
    assert block_mac(KEY, b"netoffload").hex() == "ae48b5153c52077892695ad520afa276"


@given(seed=st.integers(0, 99), length=st.integers(0, 9000), at=st.integers(0, 9))
def test_a_mac_is_the_defined_one(authenticator: Authenticator, seed: int, length: int, at: int) -> None:
    octets = random_octets(seed, at + length + MAC_LEN + 1)
    rest = octets[at + length + MAC_LEN :].copy()
    put_mac(authenticator.words, octets, at, length, at + length)
    defined = block_mac(KEY, octets[at : at + length].tobytes())
    assert octets[at + length : at + length + MAC_LEN].tobytes() == defined
    assert (octets[at + length + MAC_LEN :] == rest).all()
    assert has_mac(authenticator.words, octets, at, length, at + length)


def test_every_length_up_to_a_few_words(authenticator: Authenticator) -> None:
    for length in range(70):
        octets = random_octets(length, MAC_LEN + length)
        put_mac(authenticator.words, octets, MAC_LEN, length, 0)
        assert octets[:MAC_LEN].tobytes() == block_mac(KEY, octets[MAC_LEN:].tobytes())


def test_every_bit_counts(authenticator: Authenticator) -> None:
    octets = random_octets(1, 100 + MAC_LEN)
    put_mac(authenticator.words, octets, 0, 100, 100)
    for index in range(octets.size):
        for bit in range(8):
            octets[index] ^= 1 << bit
            assert not has_mac(authenticator.words, octets, 0, 100, 100)
            octets[index] ^= 1 << bit
    assert has_mac(authenticator.words, octets, 0, 100, 100)


def test_another_key_makes_another_mac(authenticator: Authenticator) -> None:
    octets = random_octets(2, 500 + MAC_LEN)
    with Authenticator(OTHER_KEY) as other:
        put_mac(other.words, octets, 0, 500, 500)
        assert has_mac(other.words, octets, 0, 500, 500)
        assert not has_mac(authenticator.words, octets, 0, 500, 500)


def test_off_and_closed_make_no_mac_and_accept_none() -> None:
    closed = Authenticator(KEY)
    assert is_on(closed.words)
    closed.close()
    closed.close()
    for off in (Authenticator(None), closed):
        assert not is_on(off.words)
        assert not off.words.any()  # nor is a key left
        octets = np.full(100, 7, np.uint8)
        put_mac(off.words, octets, 0, 84, 84)
        assert (octets[84:] == 0).all()
        assert not has_mac(off.words, octets, 0, 84, 84)
        off.close()


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_a_key_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(UsageError, match=f"a key of {length} octets"):
        Authenticator(bytes(length))


@inlined_with
def chain(words: Any, octets: Any, rounds: Any) -> None:
    """Put MACs over more and less of the octets into their midst, so that each one decides the next ones."""
    for index in range(rounds):
        put_mac(words, octets, 0, index * 37 % 9000, index * 16 % 8992)


def chained(key: bytes, rounds: int) -> bytes:
    """What is left of that, by the definition."""
    octets = bytearray(9008)
    for index in range(rounds):
        at = index * 16 % 8992
        octets[at : at + MAC_LEN] = block_mac(key, bytes(octets[: index * 37 % 9000]))
    return bytes(octets)


def test_two_threads_with_an_authenticator_each() -> None:
    rounds = 100 if JIT_DISABLED else 20_000  # 40 ms of both at once
    keys = (KEY, OTHER_KEY)
    left = [np.zeros(9008, np.uint8) for _ in keys]
    alone = [np.zeros(9008, np.uint8) for _ in keys]
    with Authenticator(KEY) as one, Authenticator(OTHER_KEY) as other:
        for made, octets, key in zip((one, other), alone, keys, strict=True):
            chain(made.words, octets, 100)
            assert octets.tobytes() == chained(key, 100)
            octets[:] = 0
            chain(made.words, octets, rounds)
        threads = [
            threading.Thread(target=chain, args=(made.words, octets, rounds))
            for made, octets in zip((one, other), left, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for together, by_itself in zip(left, alone, strict=True):
        assert (together == by_itself).all()


@pytest.mark.slow
@pytest.mark.skipif(JIT_DISABLED, reason="needs compiled kernels")
def test_another_process_takes_the_compiled_code_from_disk(tmp_path: Path) -> None:
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    said = []
    for key in (KEY, OTHER_KEY):  # each process has its own addresses
        done = python(str(PROGRAMS / "authenticate.py"), key.hex(), env=environment, timeout_s=120)
        said.append((done.stdout, done.stderr))
    assert said == [("0 1\n", ""), ("1 0\n", "")]


@pytest.mark.skipif(JIT_DISABLED, reason="the process that it starts compiles nothing")
@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("missing", "SystemRefusedError 3 --key needs OpenSSL 3 (libcrypto.so.none: cannot open"),
        ("fips", "SystemRefusedError 3 libcrypto.so.3 offers no SipHash"),
    ],
)
def test_without_openssls_siphash_a_key_is_refused(why: str, said: str) -> None:
    done = python(str(PROGRAMS / "miss_siphash.py"), why, env={"NUMBA_DISABLE_JIT": "1"})
    assert done.stderr == ""
    assert done.stdout.startswith(said)
    assert done.stdout.count("\n") == 1


def test_an_openssl_that_computes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "siphash128", lambda key, octets: bytes(MAC_LEN))
    with pytest.raises(SystemRefusedError, match="computes a wrong SipHash"):
        Authenticator(KEY)
