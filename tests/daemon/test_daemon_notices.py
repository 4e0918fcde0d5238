"""Lines for the operator while a NIC runs: what causes one, and that it does not come again at once."""

import pytest

from netoffload.engine.counters import Counter
from netoffload.engine.flows import PROMISE
from netoffload.engine.nic import make_settings, make_state
from netoffload.engine.promises import NO_SOCKET, REFUSED
from netoffload_daemon.notices import KINDS, QUIET_LOOKS, Notices


@pytest.mark.parametrize("counter", KINDS)
def test_each_kind_is_one_line_a_minute(counter: Counter, capsys: pytest.CaptureFixture[str]) -> None:
    nic = make_state(make_settings())
    nic.flows[7, PROMISE] = NO_SOCKET
    nic.counters[counter] = 5
    notices = Notices(nic)
    notices.look()
    assert capsys.readouterr().err == "", "what an earlier loop counted is old"
    for number in range(QUIET_LOOKS + 1):
        nic.counters[counter] += 2
        notices.look()
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == (number % QUIET_LOOKS == 0), number
        if number == QUIET_LOOKS and "{count}" in KINDS[counter][1]:
            assert str(2 * QUIET_LOOKS) in lines[0]


def test_sockets_without_the_tag_are_no_news(capsys: pytest.CaptureFixture[str]) -> None:
    nic = make_state(make_settings())
    notices = Notices(nic)
    nic.counters[Counter.BYPASS_UNPROMISED] = 9
    nic.flows[7, PROMISE] = REFUSED
    notices.look()
    assert capsys.readouterr().err == ""


def test_the_end_reports_what_came_last(capsys: pytest.CaptureFixture[str]) -> None:
    nic = make_state(make_settings())
    with Notices(nic):
        nic.counters[Counter.BYPASS_NO_SLOT] = 3
    assert "the flow table is full: 3 handshakes" in capsys.readouterr().err
