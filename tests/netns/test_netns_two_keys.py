"""Two NICs with different keys cannot talk in blocks; one of them says so."""

import secrets
import time
from pathlib import Path

from tests.netns.programs.both_ways import TAGGED, carry_both_ways
from tests.netns.programs.by_hand import nics_by_hand
from tests.netns.programs.foreign_streams import Stream, gradient
from tests.shared.beds import built

PORT = 7950
WARNED_S = 10.0


def logs_of_nics_with_keys(folder: Path, keys: tuple[str, str]) -> str:
    """Carry a tagged stream between NICs with these keys; return what both logged behind their start."""
    paths = []
    for number, key in enumerate(keys):
        path = folder / f"key{number}"
        path.touch(mode=0o600)
        path.write_text(key + "\n")
        paths.append(["--key", str(path)])
    stream = Stream(gradient(200_000).tobytes())
    with built() as bed, nics_by_hand(bed, folder, paths) as nics:
        started = [nic.log.read_text() for nic in nics]
        arrived = carry_both_ways(bed, stream, (TAGGED, TAGGED), port=PORT)
        assert arrived.error == ""
        assert len(arrived.forth) == len(stream.octets)
        until_s = time.monotonic() + (WARNED_S if keys[0] != keys[1] else 1.0)
        said = ""
        while time.monotonic() < until_s and "key" not in said:
            said = "".join(nic.log.read_text()[len(begin) :] for nic, begin in zip(nics, started, strict=True))
            time.sleep(0.1)
        return said


def test_different_keys_are_a_warning_in_the_log(tmp_path: Path) -> None:
    said = logs_of_nics_with_keys(tmp_path, (secrets.token_hex(32), secrets.token_hex(32)))
    lines = [line for line in said.splitlines() if "key" in line]
    assert lines, f"no NIC says that the keys differ: {said!r}"
    assert len(lines) <= 2, "a line per connection or block would fill a disk"


def test_the_same_key_is_no_warning(tmp_path: Path) -> None:
    key = secrets.token_hex(32)
    assert "key" not in logs_of_nics_with_keys(tmp_path, (key, key))
