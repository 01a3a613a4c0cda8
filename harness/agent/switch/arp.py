"""Answers to ARP requests (RFC 826) for the nodes of a switch, as each node would answer itself.

A frame is: virtio header (10 bytes), Ethernet header (14), ARP packet (28).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

_VIRTIO_BYTES = 10
_ARP = b"\x08\x06"
_PACKET = struct.Struct("!HHBBH6s4s6s4s")
_ETHERNET, _IPV4, _REQUEST, _REPLY = 1, 0x0800, 1, 2


def reply_for(frame: bytes, macs: Mapping[bytes, bytes]) -> bytes | None:
    """The frame that answers this one; None if it is no request for an address of `macs` (IPv4 address -> MAC)."""
    ethernet = frame[_VIRTIO_BYTES : _VIRTIO_BYTES + 14]
    packet = frame[_VIRTIO_BYTES + 14 : _VIRTIO_BYTES + 14 + _PACKET.size]
    if ethernet[12:14] != _ARP or len(packet) < _PACKET.size:
        return None
    hardware, protocol, mac_bytes, address_bytes, operation, sender_mac, sender, _, wanted = _PACKET.unpack(packet)
    if (hardware, protocol, mac_bytes, address_bytes, operation) != (_ETHERNET, _IPV4, 6, 4, _REQUEST):
        return None
    mac = macs.get(wanted)
    if mac is None or mac == sender_mac:  # a node that looks for its own address wants no answer
        return None
    answer = _PACKET.pack(_ETHERNET, _IPV4, 6, 4, _REPLY, mac, wanted, sender_mac, sender)
    return bytes(_VIRTIO_BYTES) + ethernet[6:12] + mac + _ARP + answer
