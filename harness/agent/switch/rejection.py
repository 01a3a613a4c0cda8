"""The answer of a link that rejects: a TCP reset to the sender of each segment, as firewalls send it.

A frame is: virtio header (10 bytes), Ethernet header (14), IPv4 header, TCP segment.  The reset seems to come from the
node that the segment was for.  Its numbers follow RFC 9293, 3.10.7.1: if the segment has an ACK, the reset carries that
number as its sequence number; otherwise it acknowledges the segment.  A reset is never answered with a reset.
"""

from __future__ import annotations

import struct

_VIRTIO_BYTES = 10
_ETHERNET_BYTES = 14
_IPV4 = b"\x08\x00"
_PROTOCOL_TCP = 6
_FIN, _SYN, _RST, _ACK = 1, 2, 4, 16
_TTL = 64


def reset_for(frame: bytes) -> bytes | None:
    """The frame that resets the connection of this one; None if it is no TCP segment that may be answered."""
    ethernet, packet = frame[_VIRTIO_BYTES : _VIRTIO_BYTES + _ETHERNET_BYTES], frame[_VIRTIO_BYTES + _ETHERNET_BYTES :]
    if ethernet[12:14] != _IPV4 or len(packet) < 40 or packet[0] >> 4 != 4 or packet[9] != _PROTOCOL_TCP:
        return None
    header_bytes = (packet[0] & 15) * 4
    segment = packet[header_bytes:]
    if len(segment) < 20 or struct.unpack_from("!H", packet, 6)[0] & 0x1FFF:  # a later fragment has no TCP header
        return None
    to_port, from_port, sequence, acknowledged, offset, flags = struct.unpack_from("!HHIIBB", segment)
    if flags & _RST:
        return None
    source, destination = packet[12:16], packet[16:20]
    if flags & _ACK:
        numbers = acknowledged, 0, _RST
    else:
        payload_bytes = struct.unpack_from("!H", packet, 2)[0] - header_bytes - (offset >> 4) * 4
        end = sequence + payload_bytes + bool(flags & _SYN) + bool(flags & _FIN)
        numbers = 0, end & 0xFFFFFFFF, _RST | _ACK
    number, next_number, flags = numbers
    header = struct.pack("!HHIIBBHHH", from_port, to_port, number, next_number, 5 << 4, flags, 0, 0, 0)
    reset = _with_checksum(header, destination + source)
    ip = _ipv4(destination, source, len(reset))
    return bytes(_VIRTIO_BYTES) + ethernet[6:12] + ethernet[0:6] + _IPV4 + ip + reset


def _with_checksum(segment: bytes, addresses: bytes) -> bytes:
    """A TCP segment with its checksum, which covers the addresses of sender and receiver, too (RFC 9293, 3.1)."""
    pseudo = addresses + struct.pack("!BBH", 0, _PROTOCOL_TCP, len(segment))
    return segment[:16] + struct.pack("!H", _checksum(pseudo + segment)) + segment[18:]


def _ipv4(source: bytes, to: bytes, payload_bytes: int) -> bytes:
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + payload_bytes, 0, 0, _TTL, _PROTOCOL_TCP, 0) + source + to
    return header[:10] + struct.pack("!H", _checksum(header)) + header[12:]


def _checksum(data: bytes) -> int:
    """The Internet checksum of an even number of bytes (RFC 1071)."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
