"""Two NICs with different keys cannot talk in blocks; one of them says so."""

import secrets
import time
from pathlib import Path

import pytest

from tests.netns.programs.both_ways import TAGGED, carry_both_ways, gradient
from tests.shared.beds import built, nics_by_hand

PORT = 7950
WARNED_S = 10.0


@pytest.mark.parametrize("differ", [True, False])
def test_only_different_keys_are_a_warning_in_the_log(tmp_path: Path, differ: bool) -> None:
    keys, options = [secrets.token_hex(32)] * 2, []
    if differ:
        keys[1] = secrets.token_hex(32)
    for number, key in enumerate(keys):
        path = tmp_path / f"key{number}"
        path.touch(mode=0o600)
        path.write_text(key + "\n")
        options.append(["--key", str(path)])
    stream = gradient(200_000).tobytes()
    with built() as bed, nics_by_hand(bed, tmp_path, options) as nics:
        started = [nic.log.read_text() for nic in nics]
        arrived = carry_both_ways(bed, stream, (TAGGED, TAGGED), port=PORT)
        assert arrived.error == ""
        assert len(arrived.forth) == len(stream)
        until_s = time.monotonic() + (WARNED_S if differ else 1.0)
        said: list[str] = []
        while time.monotonic() < until_s and not said:
            logged = "".join(nic.log.read_text()[len(begin) :] for nic, begin in zip(nics, started, strict=True))
            said = [line for line in logged.splitlines() if "key" in line]
            time.sleep(0.1)
    assert bool(said) == differ
    assert len(said) <= 2, "a line per connection or block would fill a disk"
