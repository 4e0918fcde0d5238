"""What the flow table says, for people and programs: rows of plain values. Not compiled."""

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from netoffload.codec_specs import SPECS, CodecId
from netoffload.compiled.arrays import Int64Array
from netoffload.engine import flows as table
from netoffload.engine import forms, judgement, promises

VERDICTS = {judgement.UNDECIDED: "undecided", judgement.FLOATS: "floats", judgement.NOT_FLOATS: "not floats"}
PROMISES = {
    promises.UNASKED: "not asked",
    promises.ASKED: "not answered",
    promises.REFUSED: "nobody",
    promises.NO_SOCKET: "no socket",
    promises.BY_SOCKET: "socket",
    promises.BY_OPERATOR: "operator",
}
FORMS = {forms.EXACT: "exact", forms.ROUNDED: "rounded", forms.CLOSING: "closing"}


def as_dicts(flows: Int64Array, codec_id: int) -> list[dict[str, Any]]:
    """Return a row per direction of every connection that carried data, ``tx`` first, largest first.

    With a lossless codec any octets are right, and no connection needs a promise.
    """
    used = flows[: table.SLOTS][flows[: table.SLOTS, table.IP_VERSION] != 0]
    promised_by = PROMISES | {promises.BY_OPERATOR: "not needed"} if SPECS[CodecId(codec_id)].is_lossless else PROMISES
    rows = [*_sent(used, promised_by), *_received(used)]
    return sorted(rows, key=lambda row: (row["direction"] == "rx", -row["raw_octets"]))


def _sent(used: Int64Array, promised_by: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    for row in used[(used[:, table.SEGMENTS] > 0) | (used[:, table.BYPASSED] > 0)]:
        yield {
            "direction": "tx",
            **_ends(row, is_reversed=False),
            "segments": int(row[table.SEGMENTS]),
            "raw_octets": int(row[table.RAW_OCTETS]),
            "payload_octets": int(row[table.PAYLOAD_OCTETS]),
            "blocks": int(row[table.BLOCKS]),
            "wire_octets": int(row[table.WIRE_OCTETS]),
            "bypassed_segments": int(row[table.BYPASSED]),
            "peer_decodes": bool(row[table.PEER_CODECS]),
            "peer_takes_udp": bool(row[table.PEER_WAYS] & 1),
            "promised_by": promised_by[int(row[table.PROMISE])],
            "verdict": VERDICTS[int(row[table.JUDGED + judgement.JUDGED_VERDICT])],
            "form": FORMS[int(row[table.FORM])],
            "on_probation": bool(row[table.PLAIN_UNTIL_NS]),
            "datagram_max_octets": int(row[table.DATAGRAM_MAX]) or None,
            "closed": bool(row[table.STATE] == table.CLOSED),
        }


def _received(used: Int64Array) -> Iterator[dict[str, Any]]:
    for row in used[used[:, table.RX_BLOCKS] > 0]:
        yield {
            "direction": "rx",
            **_ends(row, is_reversed=True),
            "segments": int(row[table.RX_SEGMENTS]),
            "raw_octets": int(row[table.RX_RAW_OCTETS]),
            "payload_octets": int(row[table.RX_PAYLOAD_OCTETS]),
            "blocks": int(row[table.RX_BLOCKS]),
            "bypassed_segments": 0,
            "closed": bool(row[table.RX_IS_CLOSED]),
        }


def _ends(row: Int64Array, is_reversed: bool) -> dict[str, Any]:
    version, ports = int(row[table.IP_VERSION]), int(row[table.PORTS])
    host = _address(version, row[table.SRC_HIGH], row[table.SRC_LOW]), ports >> 16
    peer = _address(version, row[table.DST_HIGH], row[table.DST_LOW]), ports & 0xFFFF
    (src, sport), (dst, dport) = (peer, host) if is_reversed else (host, peer)
    return {"src": src, "sport": sport, "dst": dst, "dport": dport}


def _address(version: int, high: np.int64, low: np.int64) -> str:
    if version == 4:
        return str(ipaddress.IPv4Address(int(low)))
    return str(ipaddress.IPv6Address((int(high) & 2**64 - 1) << 64 | int(low) & 2**64 - 1))
