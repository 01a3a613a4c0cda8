"""What the warden makes, as plain data, and the `ip` batches that make it.

The network of a run cannot be seen from outside, so all runs use the same addresses: 198.18.0.0/24 of the
benchmarking range, servers from .11, client nodes from .101.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

_SUBNET, _PREFIX_BITS = "198.18.0", 24
_FIRST_SERVER, _FIRST_CLIENT = 11, 101


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """folder: holds data, trace, log and agent.log.  port: the switch's end of its veth pair."""

    name: str
    address: str
    mac: str
    port: str
    folder: str


@dataclass(frozen=True, slots=True)
class WardenPlan:
    """Travels together with descriptors: the switch's control socket, then each node's stdin and stdout, in order."""

    nodes: tuple[PlannedNode, ...]

    @property
    def descriptor_count(self) -> int:
        return 1 + 2 * len(self.nodes)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str | bytes) -> WardenPlan:
        return WardenPlan(tuple(PlannedNode(**node) for node in json.loads(text)["nodes"]))


def addresses(servers: Sequence[str], clients: Sequence[str]) -> dict[str, str]:
    """Node -> address.  Raises ValueError for more servers than fit below the clients."""
    if len(servers) > _FIRST_CLIENT - _FIRST_SERVER or len(clients) > 255 - _FIRST_CLIENT:
        raise ValueError(f"{len(servers)} servers and {len(clients)} client nodes do not fit into {_SUBNET}.0/24")
    placed = {name: f"{_SUBNET}.{_FIRST_SERVER + place}" for place, name in enumerate(servers)}
    return placed | {name: f"{_SUBNET}.{_FIRST_CLIENT + place}" for place, name in enumerate(clients)}


def mac_of(place: int) -> str:
    """A locally administered address."""
    return f"02:00:c6:12:00:{place + 1:02x}"


def switch_side(plan: WardenPlan, pids: Sequence[int]) -> str:
    """`ip -batch` for the warden's own namespace: a veth pair per node, its far end in that node's namespace.

    No IPv6 addresses: their neighbour discovery is noise on every link."""
    lines = ["link set lo up"]
    for node, pid in zip(plan.nodes, pids, strict=True):
        lines += [
            f"link add name {node.port} type veth peer name eth0 address {node.mac} netns {pid}",
            f"link set {node.port} addrgenmode none",
            f"link set {node.port} up",
        ]
    return "\n".join(lines) + "\n"


def node_side(plan: WardenPlan, me: PlannedNode) -> str:
    """`ip -batch` for a node's namespace: its address, and every other node as a permanent neighbour."""
    lines = ["link set lo up", "link set eth0 addrgenmode none"]
    lines += [f"address add {me.address}/{_PREFIX_BITS} dev eth0", "link set eth0 up"]
    lines += [
        f"neighbour add {other.address} lladdr {other.mac} dev eth0 nud permanent"
        for other in plan.nodes
        if other is not me
    ]
    return "\n".join(lines) + "\n"
