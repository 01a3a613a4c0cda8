"""A loopback address of this process alone: a port that was found free there stays free until the test takes it."""

from __future__ import annotations

import os
import socket

HOST = f"127.{os.getpid() % 250 + 2}.{os.getpid() // 250 % 250}.77"


def free_ports(count: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> list[int]:
    """Different ports of HOST that no process listens on."""
    probes = [socket.socket(socket.AF_INET, kind) for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
