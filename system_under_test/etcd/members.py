"""The members of an etcd cluster, and how they change while it runs: through etcd's own API, called on the nodes.

Every request goes to the member that leads, because another one may answer with an old list.  A request without an
answer may have been carried out.  So each change is repeated until the leader's list shows it, or the time is over.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from system_under_test.etcd.leadership import STATUS_PATH, read_status
from system_under_test.subject import Node

CLIENT_PORT, PEER_PORT = 2379, 2380
CHANGE_S_MAX = 8.0
_LIST, _ADD, _REMOVE = "/v3/cluster/member/list", "/v3/cluster/member/add", "/v3/cluster/member/remove"
_AGAIN_S = 0.2
_PATIENCE_S = 1.0

_ASK = (
    r"""exec 3<>"/dev/tcp/$1/$2" && printf 'POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s' "$3" "${#4}" "$4" >&3 """
    r"""&& exec cat <&3"""
)
"""bash opens the connection itself: a few ms on the node, where an interpreter would take sixty."""


async def post(node: Node, path: str, body: str = "{}", patience_s: float = _PATIENCE_S) -> dict[str, Any]:
    """What the member on this node answers.  Raises OSError if it gives no answer, or refuses."""
    argv = ["bash", "-c", _ASK, "ask", node.address, str(CLIENT_PORT), path, body]
    done = await node.run(argv, timeout_s=patience_s)
    head, _, content = done.stdout.partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise OSError(f"{node.name}: etcd refused {path}: {content.decode(errors='replace')[:200] or 'no answer'}")
    try:
        answer = json.loads(content)
    except ValueError as problem:
        raise OSError(f"{node.name}: etcd's answer to {path} is cut short") from problem
    if not isinstance(answer, dict):
        raise OSError(f"{node.name}: etcd's answer to {path} is no object")
    return answer


class EtcdMembers:
    """Implements `subject.Members`."""

    async def members(self, nodes: Sequence[Node]) -> frozenset[str]:
        """Raises OSError while no member leads."""
        listed = await _listed(await _leader(nodes))
        return frozenset(name for name, entry in _by_node(nodes, listed).items() if entry.get("name"))

    async def remove(self, nodes: Sequence[Node], leaving: Node) -> None:
        async def attempt() -> bool:
            leader = await _leader(nodes)
            entry = _by_node(nodes, await _listed(leader)).get(leaving.name)
            if entry is not None:
                await post(leader, _REMOVE, json.dumps({"ID": entry["ID"]}))
            return entry is None

        await _until(attempt, f"{leaving.name} could not be removed")

    async def add(self, nodes: Sequence[Node], joining: Node, *, wiped: bool = False) -> None:
        """See `subject.Members`.  wiped makes no difference: etcd needs an empty disk in any case."""
        others = [node for node in nodes if node.name != joining.name]
        members: dict[str, dict[str, Any]] = {}

        async def attempt() -> bool:
            leader = await _leader(others)
            members.update(_by_node(nodes, await _listed(leader)))
            if joining.name not in members:
                await post(leader, _ADD, json.dumps({"peerURLs": [peer_url(joining)]}))
            return joining.name in members

        await self.remove(others, joining)
        await _until(attempt, f"{joining.name} could not be added")
        await _clear(joining)
        config = json.loads(await joining.read(config_path(joining)))
        config |= {
            "initial-cluster": ",".join(f"{n.name}={peer_url(n)}" for n in nodes if n.name in members),
            "initial-cluster-state": "existing",
        }
        await joining.write(config_path(joining), json.dumps(config, indent=1).encode())


def peer_url(node: Node) -> str:
    return f"http://{node.address}:{PEER_PORT}"


def config_path(node: Node) -> str:
    return f"{node.data_dir}/etcd.json"


async def _leader(nodes: Sequence[Node]) -> Node:
    """The node whose member leads, by its own status; of two that claim it, the one in the higher term.

    Raises OSError if none does."""
    answers = await asyncio.gather(*(_status(node) for node in nodes))
    leading = [(own.term, node.name, node) for node, own in zip(nodes, answers, strict=True) if own is not None]
    if not leading:
        raise OSError("no member of etcd leads")
    return max(leading)[2]


async def _status(node: Node) -> Any:
    """The status of a member that leads; None for every other."""
    try:
        if await node.state() != "running":
            return None
        status = read_status(await post(node, STATUS_PATH, patience_s=1.0))
    except (OSError, ValueError):
        return None
    return status if status.leader_id == status.member_id else None


async def _listed(leader: Node) -> list[dict[str, Any]]:
    return list((await post(leader, _LIST)).get("members") or ())


def _by_node(nodes: Sequence[Node], listed: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Node -> its entry in the list of members.  A member that was added and not started has no name yet."""
    node_of = {peer_url(node): node.name for node in nodes}
    return {node_of[url]: entry for entry in listed for url in entry.get("peerURLs") or () if url in node_of}


async def _until(attempt: Any, words: str) -> None:
    """Repeat an attempt until it is true.  Raises OSError with the last refusal."""
    loop = asyncio.get_running_loop()
    until, why = loop.time() + CHANGE_S_MAX, "the list of members did not show it"
    while loop.time() < until:
        try:
            if await attempt():
                return
        except OSError as refusal:
            why = str(refusal)
        await asyncio.sleep(_AGAIN_S)
    raise OSError(f"{words} within {CHANGE_S_MAX:g} s: {why}")


async def _clear(node: Node) -> None:
    done = await node.run(["sh", "-c", FRESH, "sh", f"{node.data_dir}/etcd"], timeout_s=10.0)
    done.succeeded(f"{node.name}: its data directory cannot be made")


FRESH = 'rm -rf "$1" && mkdir -p "$1" && chmod 700 "$1"'
