"""Runs a switch (`carrier`) until its control stream ends.

    python -m harness.agent.switch <control fd> '{"ports": [["n1", "port0", "02:...", "198.18.0.11"], ...], ...}'

A port is a node, the interface at the switch's end (a name, or the number of an interface), and the node's hardware and
IPv4 addresses.  The last is "" where all nodes know each other.  "carries" is false for a switch beside a bridge.
"release" is true where a bridge has the interfaces and must let them go.  The first line on the control stream is
{"ready": true}, or {"error": "why"}.
"""

from __future__ import annotations

import ipaddress
import json
import subprocess
import sys
from collections.abc import Sequence
from socket import if_indextoname, socket

from harness.agent.switch.carrier import Port, Switch, open_port

_IP_S = 10.0


def main() -> None:
    control = socket(fileno=int(sys.argv[1]))
    plan = json.loads(sys.argv[2])
    try:
        interfaces = [_name(port[1]) for port in plan["ports"]]
        ports = [_opened(port, name) for port, name in zip(plan["ports"], interfaces, strict=True)]
        switch = Switch(ports, control, plan.get("carries", True))
        if plan.get("release"):  # only now: the switch has the frames that the bridge no longer gets
            _release(interfaces)
    except OSError as problem:
        control.sendall(json.dumps({"error": problem.strerror or str(problem)}).encode() + b"\n")
        return
    control.sendall(b'{"ready": true}\n')
    switch.serve()


def _name(interface: str | int) -> str:
    return if_indextoname(interface) if isinstance(interface, int) else interface


def _opened(port: Sequence[str], interface: str) -> Port:
    node, _, mac, address = port
    return open_port(node, interface, mac, ipaddress.IPv4Address(address).packed if address else b"")


def _release(interfaces: Sequence[str]) -> None:
    batch = "".join(f"link set dev {interface} nomaster\n" for interface in interfaces)
    done = subprocess.run(
        ["ip", "-batch", "-"], input=batch, capture_output=True, text=True, timeout=_IP_S, check=False
    )
    if done.returncode != 0:
        raise OSError(f"ip refused: {done.stderr.strip()}")


if __name__ == "__main__":
    main()
