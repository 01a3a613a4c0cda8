"""etcd as a subject: a system known to be good, and the proof that the seam is not KRaft in disguise.

etcd 3.4 as Debian packages it, a static cluster, default election timeouts.  It has no log or trace that the checkers
could read, so linearizability, recovery, deaths and vacuity judge it; its raft term is the epoch.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from system_under_test.etcd.leadership import STATUS_PATH, MemberStatus, read_status
from system_under_test.etcd.members import CLIENT_PORT, FRESH, EtcdMembers, config_path, peer_url, post
from system_under_test.etcd.operations import OPERATIONS
from system_under_test.subject import (
    Complaint,
    Declares,
    Members,
    Node,
    NodeStatus,
    Subject,
)

BINARY = "/usr/bin/etcd"
_PATIENCE_S = 1.0

_COMPLAINT = re.compile(rb'^(?:panic: |fatal error: |\{"level":"(?:fatal|panic|dpanic)").*', re.MULTILINE)
_EXCERPT_BYTES = 2000


class Etcd(Subject):
    name = "etcd"
    summary = "etcd 3.4 as Debian packages it, through its JSON gateway"
    client_module = "system_under_test.etcd.client"
    port = CLIENT_PORT
    declares = Declares(nodes=True, logs=False, traces=False, elections=True, faults=True)
    functions = frozenset(OPERATIONS)
    notices_damage: Mapping[str, str] = {"flip": "*.wal"}
    """A write-ahead log that was cut short looks to etcd like an append that a crash interrupted."""

    unreachable_by: Mapping[str, str] = {
        "clock": "etcd is written in Go, which reads the clock without the C library, so no clock of it can be shifted"
    }

    members: Members | None = EtcdMembers()

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # member id -> name, learnt from what each member reports of itself

    async def install(self, nodes: Sequence[Node], *, seed: int, bug: str | None) -> None:
        """Raises ValueError for a bug (none is planted here), OSError where a node has no etcd."""
        if bug is not None:
            raise ValueError(f"subject etcd has no planted bug {bug!r}")
        self._names.clear()
        members = ",".join(f"{n.name}={peer_url(n)}" for n in nodes)
        await asyncio.gather(*(_install(node, members, seed) for node in nodes))

    async def start(self, node: Node) -> None:
        await node.start([BINARY, "--config-file", config_path(node)], output=f"{node.log_dir}/etcd.log")

    async def status(self, node: Node) -> NodeStatus | None:
        answer = await self._ask(node)
        if answer is None:
            return None
        member, _ = answer
        role = (
            "unattached" if not member.leader_id else "leader" if member.leader_id == member.member_id else "follower"
        )
        return NodeStatus(node.name, member.term, role, self._names.get(member.leader_id))

    async def caught_up(self, nodes: Sequence[Node], key_count: int) -> str | None:
        """Every live member knows a leader and has applied all that any of them knew to be committed."""
        states = await asyncio.gather(*(node.state() for node in nodes))
        live = [node for node, state in zip(nodes, states, strict=True) if state != "dead"]
        if len(live) <= len(nodes) // 2:
            return f"only {len(live)} of {len(nodes)} members are alive"
        answers = await asyncio.gather(*(self._ask(node) for node in live))
        goal = max((_index(a[1], "raftIndex") for a in answers if a is not None), default=0)
        for node, answer in zip(live, answers, strict=True):
            if answer is None:
                return f"{node.name} does not answer"
            member, status = answer
            if not member.leader_id:
                return f"{node.name} knows no leader in term {member.term}"
            if _index(status, "raftAppliedIndex") < goal and not await self._reached(node, goal):
                return f"{node.name} has not applied index {goal}"
        return None

    def client_config(self, *, seed: int, bug: str | None) -> dict[str, Any]:
        return {}

    async def collect(self, node: Node, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        data = await node.read(f"{node.log_dir}/etcd.log")
        (folder / "etcd.log").write_bytes(data)

    def complaints(self, run_folder: Path) -> Sequence[Complaint]:
        """The first panic or fatal line of each node's log."""
        found: list[Complaint] = []
        for log in sorted((run_folder / "nodes").glob("*/etcd.log")):
            data = log.read_bytes()
            if (line := _COMPLAINT.search(data)) is not None:
                excerpt = data[line.start() : line.start() + _EXCERPT_BYTES].decode(errors="replace")
                found.append(Complaint(log.parent.name, line.group().decode(errors="replace")[:200], excerpt))
        return found

    async def _reached(self, node: Node, goal: int) -> bool:
        """One more look: an entry just committed is applied a moment later."""
        again = await self._ask(node)
        return again is not None and _index(again[1], "raftAppliedIndex") >= goal

    async def _ask(self, node: Node) -> tuple[MemberStatus, dict[str, Any]] | None:
        """What the member reports of itself; None if it reports nothing, for any reason."""
        try:
            if await node.state() != "running":
                return None
            status = await post(node, STATUS_PATH, patience_s=_PATIENCE_S)
            member = read_status(status)
        except (OSError, ValueError):
            return None
        self._names[member.member_id] = node.name
        return member, status


async def _install(node: Node, members: str, seed: int) -> None:
    found = await node.run(["test", "-x", BINARY], timeout_s=10.0)
    if found.status != 0:
        raise OSError(f"{node.name} has no {BINARY}: install Debian's etcd-server there")
    cleared = await node.run(["sh", "-c", FRESH, "sh", f"{node.data_dir}/etcd"], timeout_s=10.0)
    cleared.succeeded(f"{node.name}: its data directory cannot be made")
    client, peer = f"http://{node.address}:{CLIENT_PORT}", peer_url(node)
    config = {  # a JSON file is a YAML file
        "name": node.name,
        "data-dir": f"{node.data_dir}/etcd",
        "listen-peer-urls": peer,
        "listen-client-urls": client,
        "initial-advertise-peer-urls": peer,
        "advertise-client-urls": client,
        "initial-cluster": members,
        "initial-cluster-state": "new",
        "strict-reconfig-check": True,  # the default on the command line, but not in a file
        "initial-cluster-token": f"krucible-{seed}",
        "enable-grpc-gateway": True,  # the default on the command line, but not in a file
        "pre-vote": True,  # as later releases do: a member that was cut off does not depose the leader when it returns
        "logger": "zap",
        "log-outputs": ["stderr"],
    }
    await node.write(config_path(node), json.dumps(config, indent=1).encode())


def _index(status: Mapping[str, Any], name: str) -> int:
    return int(status.get(name, 0))
