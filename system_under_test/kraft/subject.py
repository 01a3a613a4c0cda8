"""The bundled KRaft as a system under test: its installation, start and status.

The status of a node comes only from its trace, read through the agent, because the data network may be cut, and a
request over it would disturb the node.
"""

from __future__ import annotations

import asyncio
import errno
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from system_under_test import subject
from system_under_test.kraft import client as of_client
from system_under_test.kraft.collected.members import Hearsay, KraftMembers
from system_under_test.kraft.controller import decisions as of_controller
from system_under_test.kraft.log.small_files import derived_uuid, kafka_uuid
from system_under_test.kraft.node.broker_life import LifeState
from system_under_test.kraft.node.trace import FILE_NAME
from system_under_test.kraft.raft import decisions
from system_under_test.system import METADATA, METADATA_FOLDER, OwnNode, System

PORT = 9092
OUTPUT = "server.log"
NOTICED = "*.log *.checkpoint recovery-point leader-epoch-checkpoint"
"""Patterns of files whose corruption a node detects or repairs.  In Kafka, quorum-state and meta.properties have no
checksum.
"""
SEGMENT_BYTES, CACHED_BYTES = 1 << 15, 1 << 12
"""Sizes of a segment and of the cache, small because a run of a minute writes only 0.1 to 1 MB.  With the sizes of a
real cluster, a node would never begin a second segment, delete one, recover several, or read a batch from the disk for
a voter that lags.
"""
SNAPSHOTS_OFTEN = {
    "metadata.log.max.record.bytes.between.snapshots": 1 << 14,
    "metadata.log.max.snapshot.interval.ms": 3000,
    "metadata.max.retention.bytes": 3 << 15,
    "segment_bytes": 1 << 13,
}
"""Settings with which the beginning of a log is deleted several times a minute: at 200 operations per second a log
contains the records of the last 8 s.
"""
SNAPSHOTS_COPIED_EVERY_S = 6.0
_MODULE = "system_under_test.kraft"
_FORMAT_LIMIT_S = 60.0
_COMPLAINTS_MAX = 5  # of one node
_EXCERPT_LINES = 30
_COMPLAINT = re.compile(r"^(?:[^\n]*FATAL: |cannot start: |Traceback \(most recent call last\))[^\n]*", re.MULTILINE)


_BUGS = subject.planted_bugs(
    Path(__file__).with_name("bugs.toml"), {**decisions.BUGS, **of_controller.BUGS, **of_client.BUGS}
)


class Kraft(System):
    """The bundled KRaft with static voters.

    takes_snapshots: True to take snapshots every few seconds; False to take them as seldom as Kafka, and so never
        within a run
    """

    takes_snapshots = False
    name = "kraft"
    summary = "the bundled KRaft quorum: static voters, each a controller and a metadata-serving broker in one"
    client_module = "system_under_test.kraft.client"
    port = PORT
    logs: Mapping[str, str] = {METADATA: METADATA_FOLDER}
    traces = FILE_NAME
    kraft_steps = True
    bugs: Mapping[str, subject.Bug] = {**_BUGS["quorum"], **_BUGS["snapshots"]}
    functions = frozenset({"create", "read", "write", "add", "members", "append", "entries"})
    notices_damage: Mapping[str, str] = {"flip": NOTICED, "truncate": NOTICED, "wipe": "*"}
    simulated = "system_under_test.kraft.simulated:SimulatedKraft"
    cluster_settings: Mapping[str, Any] = {}
    """Settings of every node that replace the defaults of `node/config.py`."""

    def __init__(self) -> None:
        self._heard: dict[str, Hearsay] = {}
        self._directories: dict[str, str] = {}
        """Node -> the id of its disk."""

    async def install(self, node: OwnNode, nodes: Sequence[OwnNode]) -> None:
        """Format the data directory for a first start.  Raises OSError."""
        self._heard.pop(node.name, None)
        await self._configure(node, {})
        done = await node.node.run([*_argv(node), "--format", "--force"], timeout_s=_FORMAT_LIMIT_S)
        done.succeeded(f"{node.name}: its data directory cannot be formatted")
        self._directories[node.name] = done.stdout.decode().strip()

    async def installed(self, nodes: Sequence[OwnNode]) -> None:
        """Write the ids of all disks, which are known only after all installations, into the configurations: a node
        votes only with the disk of its id.
        """
        voters = {node.name: self._directories[node.name] for node in self._voters()}
        await asyncio.gather(*(self._configure(node, {"directories": voters}) for node in nodes))

    def _voters(self) -> Sequence[OwnNode]:
        return self.nodes[: self.voters_max or None]

    async def _configure(self, node: OwnNode, more: Mapping[str, Any]) -> None:
        config = {
            "node_id": node.index + 1,
            "name": node.name,
            "listen": f"{node.address}:{PORT}",
            "data_dir": node.data_dir,
            "trace_dir": node.trace_dir,
            "cluster_id": kafka_uuid(derived_uuid("cluster", self.seed)),
            "peers": {voter.name: [voter.index + 1, voter.address, PORT] for voter in self._voters()},
            "seed": self.seed,
            "bug": None if self.bug in of_client.BUGS else self.bug,
            "segment_bytes": SEGMENT_BYTES,
            "cached_bytes": CACHED_BYTES,
            **self.cluster_settings,
            **(SNAPSHOTS_OFTEN if self.takes_snapshots or self.bug in _BUGS["snapshots"] else {}),
            **self.settings_of(node.index + 1),
            **more,
        }
        await node.write(_config_path(node), json.dumps(config, indent=1))

    def settings_of(self, number: int) -> Mapping[str, Any]:
        """Return settings of the node with this id that replace `cluster_settings`."""
        return {}

    async def start(self, node: OwnNode, nodes: Sequence[OwnNode]) -> list[str]:
        return _argv(node)

    async def status(self, node: OwnNode) -> subject.NodeStatus | None:
        """Return the status from the rows of the node's trace, read on since the last call."""
        try:
            heard = await self.hear(node)
        except OSError:
            return None  # the agent or node has ended, or its trace is lost
        if not heard.rows:
            return None
        return heard.status(node.name)

    async def ready(self, nodes: Sequence[OwnNode]) -> str | None:
        """Return None: clients may connect at once, because the harness waits for a leader separately."""
        return None

    async def caught_up(self, nodes: Sequence[OwnNode]) -> str | None:
        """Return None if every live node follows one leader, and every log reaches the largest reported high watermark;
        else the reason.

        Raises NotKnown if the trace of a live node is lost.
        """
        voters = {node.name for node in self._voters()}
        if 2 * sum(node.name in voters for node in nodes) <= len(voters):
            return f"only {len(nodes)} of {len(self.nodes)} nodes are alive"
        statuses = await asyncio.gather(*(self.status(node) for node in nodes))
        if lost := [node.name for node in nodes if node.name in self._heard and self._heard[node.name].lost]:
            raise subject.NotKnown(f"the trace of {', '.join(lost)} was truncated or removed during the run")
        known = [status for status in statuses if status is not None]
        if len(known) < len(nodes):
            silent = {node.name for node in nodes} - {status.node for status in known}
            return f"{', '.join(sorted(silent))}: no answer"
        return _behind(known, max(heard.largest_mark for heard in self._heard.values()))

    def live(self, node: OwnNode, started_monotonic_ns: int) -> subject.Live:
        # imported here, so that listing subjects does not load Arrow
        from system_under_test.kraft.collected.live import LiveNode

        return LiveNode(node.node, _trace_path(node), self.hear, started_monotonic_ns)

    def client_config(self) -> Mapping[str, Any]:
        return {"bug": self.bug if self.bug in of_client.BUGS else None}

    def complaints_in(self, folder: Path) -> Sequence[subject.Complaint]:
        """Return tracebacks, refusals to start and fatal errors, in the order in which they were printed."""
        logs = sorted(folder.glob(f"*/{OUTPUT}"))
        return [found for log in logs for found in _complaints(log.parent.name, log.read_text(errors="replace"))]

    async def hear(self, node: OwnNode | subject.Node) -> Hearsay:
        """Return the reports in the trace of a node so far.

        Raises OSError if the agent does not answer, or if the trace is lost.
        """
        heard = self._heard.setdefault(node.name, Hearsay())
        start = heard.wanted_from
        heard.take_from(start, await _node(node).read(_trace_path(node), start))
        if heard.lost:
            raise OSError(errno.EIO, f"{node.name}: its trace was truncated or removed")
        return heard


class KraftBrokers(Kraft):
    """The bundled KRaft with brokers: every node also registers as a broker, sends heartbeats, and proposes in-sync
    sets.
    """

    name = "kraft-brokers"
    summary = "the bundled KRaft quorum with brokers that register: in-sync sets, elections and fencing, but no data"
    registers_brokers = True
    bugs: Mapping[str, subject.Bug] = _BUGS["brokers"]

    async def ready(self, nodes: Sequence[OwnNode]) -> str | None:
        """Return None once every broker serves, so that the replicas of all topics are spread over all brokers; else
        the reason.
        """
        for node in nodes:
            if f"is {LifeState.SERVING.value}" not in await node.read(f"{node.log_dir}/{OUTPUT}"):
                return f"the broker {node.name} is not registered and unfenced yet"
        return None

    cluster_settings: Mapping[str, Any] = {
        "process.roles": "broker,controller",
        # A fault lasts five to ten seconds, so sessions and lags are shorter than Kafka's.
        "brokers": {
            "heartbeat_interval_s": 0.5,
            "session_timeout_s": 3.0,
            "lag_s": 2.0,
            "probe_interval_s": 0.3,
            "balance_interval_s": 10.0,
            "move_interval_s": 2.0,
            "features": {"metadata.version": 25, "eligible.leader.replicas.version": 1},
        },
    }


class KraftApart(KraftBrokers):
    """The bundled KRaft with separate roles: the first three nodes are only controllers; all others are only brokers,
    which observe the metadata log.
    """

    name = "kraft-apart"
    summary = "the bundled KRaft quorum on three nodes, and brokers that register on nodes of their own"
    bugs: Mapping[str, subject.Bug] = {}
    voters_max, nodes_min = 3, 4

    def settings_of(self, number: int) -> Mapping[str, Any]:
        return {"process.roles": "controller" if number <= self.voters_max else "broker"}

    def client_config(self) -> Mapping[str, Any]:
        return {**super().client_config(), "controllers": self.voters_max}

    async def ready(self, nodes: Sequence[OwnNode]) -> str | None:
        return await super().ready(nodes[self.voters_max :])


class KraftWithSnapshots(Kraft):
    name = "kraft-snapshots"
    summary = "the bundled KRaft quorum, whose nodes take snapshots every few seconds and delete the log before them"
    takes_snapshots = True
    logs_copied_every_s = SNAPSHOTS_COPIED_EVERY_S
    bugs: Mapping[str, subject.Bug] = {}


class KraftWithVoters(Kraft):
    """The bundled KRaft with dynamic voters: the log contains the voters from the first leader on, and they change
    through the API (`kraft.version` 1).
    """

    name = "kraft-voters"
    summary = "the bundled KRaft quorum, whose voters can change while it runs"
    bugs: Mapping[str, subject.Bug] = _BUGS["voters"]
    cluster_settings: Mapping[str, Any] = {"dynamic": True}

    def __init__(self) -> None:
        super().__init__()
        self.members = KraftMembers(self.hear, PORT, _argv, OUTPUT)


class KraftWhole(KraftWithVoters, KraftBrokers):
    """The bundled KRaft with brokers that register, dynamic voters, and snapshots every few seconds."""

    name = "kraft-whole"
    summary = "the bundled KRaft quorum with brokers that register, voters that change, and frequent snapshots"
    takes_snapshots = True
    logs_copied_every_s = SNAPSHOTS_COPIED_EVERY_S
    bugs: Mapping[str, subject.Bug] = {}
    cluster_settings: Mapping[str, Any] = {**KraftBrokers.cluster_settings, **KraftWithVoters.cluster_settings}


def _behind(known: Sequence[subject.NodeStatus], mark: int) -> str | None:
    """Return why these nodes have not all caught up with the high watermark `mark` under one leader; None if they
    have.
    """
    epoch = max(status.epoch for status in known)
    leader = next((status for status in known if status.epoch == epoch and status.role == "leader"), None)
    if leader is None:
        return f"no node leads epoch {epoch}"
    if leader.high_watermark is None:
        return f"{leader.node} has committed nothing in epoch {epoch}"
    for status in known:
        if status.epoch != epoch or status.leader != leader.node:
            return f"{status.node} is {status.role} in epoch {status.epoch}; {leader.node} leads epoch {epoch}"
        if (status.log_end or 0) < mark:
            return f"the log of {status.node} ends at {status.log_end}; offsets below {mark} are committed"
    return None


def _argv(node: OwnNode | subject.Node) -> list[str]:
    return [*node.python, "-m", _MODULE, "--config", _config_path(node)]


def _config_path(node: OwnNode | subject.Node) -> str:
    return f"{node.log_dir}/kraft.json"


def _trace_path(node: OwnNode | subject.Node) -> str:
    return f"{node.trace_dir}/{FILE_NAME}"


def _node(node: OwnNode | subject.Node) -> subject.Node:
    return node.node if isinstance(node, OwnNode) else node


def _complaints(node: str, text: str) -> list[subject.Complaint]:
    found: list[subject.Complaint] = []
    end_of_last = 0
    for match in _COMPLAINT.finditer(text):
        if match.start() < end_of_last or len(found) == _COMPLAINTS_MAX:
            continue
        lines = text[match.start() :].splitlines()[:_EXCERPT_LINES]
        traced = next((i for i, line in enumerate(lines[:2]) if line.startswith("Traceback")), None)
        if traced is not None:
            lines = lines[: _end_of_traceback(lines, traced + 1)]
            reason = lines[-1]
        else:
            lines = lines[:1]
            reason = lines[0]
        end_of_last = match.start() + len("\n".join(lines))
        found.append(subject.Complaint(node, reason[:300], "\n".join(lines), {"pid": None, "lines_before_end": -1}))
    return found


def _end_of_traceback(lines: Sequence[str], start: int) -> int:
    """Return the index after the first line that is not indented, which is the exception itself."""
    return next((i + 1 for i in range(start, len(lines)) if not lines[i].startswith(" ")), len(lines))
