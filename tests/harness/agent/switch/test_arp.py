"""Requests for addresses, answered by the switch in place of the node."""

from __future__ import annotations

import struct

import pytest

from harness.agent.frame_switch import reply_for

A, B = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")
IP_A, IP_B = bytes([198, 18, 0, 1]), bytes([198, 18, 0, 2])
MACS = {IP_A: A, IP_B: B}
REQUEST, REPLY = 1, 2


def frame(wanted: bytes, operation: int = REQUEST, protocol: int = 0x0800, kind: bytes = b"\x08\x06") -> bytes:
    packet = struct.pack("!HHBBH", 1, protocol, 6, 4, operation) + A + IP_A + bytes(6) + wanted
    return bytes(10) + b"\xff" * 6 + A + kind + packet + bytes(18)  # Ethernet pads short frames


def test_a_request_is_answered_as_the_node_would() -> None:
    reply = reply_for(frame(IP_B), MACS)
    assert reply is not None
    assert reply[10:24] == A + B + b"\x08\x06"
    assert reply[24:] == struct.pack("!HHBBH", 1, 0x0800, 6, 4, REPLY) + B + IP_B + A + IP_A


@pytest.mark.parametrize(
    "sent",
    [
        frame(bytes([198, 18, 0, 9])),
        frame(IP_A),
        frame(IP_B, operation=REPLY),
        frame(IP_B, protocol=0x86DD),
        frame(IP_B, kind=b"\x08\x00"),
        frame(IP_B)[:40],
        b"",
    ],
)
def test_what_is_no_request_for_another_node_of_the_switch_is_not_answered(sent: bytes) -> None:
    assert reply_for(sent, MACS) is None
