"""Resets made by hand: read back, and held against what the kernel accepts elsewhere (test_namespaces_backend)."""

from __future__ import annotations

import struct

import pytest

from harness.agent.frame_switch import reset_for

A, B = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")
IP_A, IP_B = bytes([198, 18, 0, 1]), bytes([198, 18, 0, 2])
SYN, RST, ACK = 2, 4, 16


def frame(flags: int, payload: bytes = b"", sequence: int = 1000, acknowledged: int = 0, protocol: int = 6) -> bytes:
    tcp = struct.pack("!HHIIBBHHH", 40000, 7100, sequence, acknowledged, 5 << 4, flags, 100, 0, 0) + payload
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 7, 0, 64, protocol, 0) + IP_A + IP_B
    return bytes(10) + B + A + b"\x08\x00" + ip + tcp


def checksum_is_right(data: bytes) -> bool:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    return (total & 0xFFFF) + (total >> 16) == 0xFFFF


@pytest.mark.parametrize(
    ("sent", "sequence", "acknowledged", "flags"),
    [
        (frame(SYN), 0, 1001, RST | ACK),
        (frame(0, b"abc"), 0, 1003, RST | ACK),
        (frame(SYN, sequence=0xFFFFFFFF), 0, 0, RST | ACK),
        (frame(ACK, b"abc", acknowledged=777), 777, 0, RST),
    ],
)
def test_a_segment_is_answered_by_the_reset_its_sender_accepts(
    sent: bytes, sequence: int, acknowledged: int, flags: int
) -> None:
    reset = reset_for(sent)
    assert reset is not None
    assert reset[10:22] == A + B, "back to the sender"
    ip, tcp = reset[24:44], reset[44:]
    assert (ip[12:16], ip[16:20]) == (IP_B, IP_A)
    assert struct.unpack("!HHIIBB", tcp[:14]) == (7100, 40000, sequence, acknowledged, 5 << 4, flags)
    assert checksum_is_right(ip)
    assert checksum_is_right(IP_B + IP_A + struct.pack("!BBH", 0, 6, len(tcp)) + tcp)


@pytest.mark.parametrize(
    "sent",
    [frame(RST), frame(SYN, protocol=17), frame(SYN)[:40], b"", bytes(24), frame(SYN)[:22] + b"\x86\xdd" + bytes(60)],
)
def test_what_is_no_segment_or_a_reset_itself_is_not_answered(sent: bytes) -> None:
    assert reset_for(sent) is None
