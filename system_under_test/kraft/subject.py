"""The bundled KRaft as a system under test: installed, started, watched.

What a node says of itself comes from its trace alone, read through the agent: the data network may be cut, and a
request over it would disturb the node.
"""

from __future__ import annotations

import asyncio
import errno
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from system_under_test import subject
from system_under_test.kraft.client import client as client_decisions
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
"""Files whose damage a node notices, or mends.  Kafka gives quorum-state and meta.properties no checksum."""
SEGMENT_BYTES, CACHED_BYTES = 1 << 15, 1 << 12
"""A run of a minute writes 0.1 to 1 MB.  With the sizes of a real cluster it would never begin a second segment,
cut one away, recover several, or read a batch from the disk for a voter that lags."""
SNAPSHOTS_OFTEN = {
    "metadata.log.max.record.bytes.between.snapshots": 1 << 14,
    "metadata.log.max.snapshot.interval.ms": 3000,
    "metadata.max.retention.bytes": 3 << 15,
    "segment_bytes": 1 << 13,
}
"""Logs are cut several times a minute: at 200 operations per second a log holds what was written in the last 8 s."""
SNAPSHOTS_COPIED_EVERY_S = 6.0
_MODULE = "system_under_test.kraft"
_FORMAT_LIMIT_S = 60.0
_COMPLAINTS_MAX = 5  # of one node
_EXCERPT_LINES = 30
_COMPLAINT = re.compile(r"^(?:[^\n]*FATAL: |cannot start: |Traceback \(most recent call last\))[^\n]*", re.MULTILINE)


def _bug(
    name: str,
    found_by: str,
    witness_kinds: tuple[str, ...],
    shown_by: tuple[str, ...] = ("partition",),
    workloads: tuple[str, ...] = ("register",),
) -> subject.Bug:
    summary = {**decisions.BUGS, **of_controller.BUGS, **client_decisions.BUGS}[name]
    return subject.Bug(name, summary, found_by, witness_kinds, shown_by=shown_by, workloads=workloads)


def _simulated_bug(
    name: str, found_by: str, witness_kinds: tuple[str, ...], shown_by: tuple[str, ...] = ("partition",)
) -> subject.Bug:
    """A bug that runs in containers hardly ever show."""
    return replace(_bug(name, found_by, witness_kinds, shown_by), in_containers=False)


_SNAPSHOT_BUGS = (
    _bug(decisions.SNAPSHOT_FORGETS_TAIL, "snapshot-equals-prefix", ("snapshot differs from its prefix",)),
    _bug(
        decisions.SNAPSHOT_OF_UNCOMMITTED,
        "snapshot-equals-prefix",
        ("snapshot beyond the high watermark", "snapshot differs from its prefix"),
    ),
    _bug(decisions.SNAPSHOT_ID_INCLUSIVE, "snapshot-equals-prefix", ("snapshot differs from its prefix",)),
    _bug(decisions.RENAME_BEFORE_FSYNC, "nodes-stay-up", ("node died",), shown_by=("power",)),
    _bug(decisions.CLEANS_PAST_SNAPSHOT, "snapshot-equals-prefix", ("log begins behind its snapshot",)),
    _simulated_bug(decisions.APPLIES_DELTA_AFTER_SNAPSHOT, "state-machine-safety", ("applied states differ",)),
)
"""They need snapshots to show."""

_BUGS = (
    _bug(decisions.STALE_READ, "linearizability", ("stale read",)),
    _bug(
        decisions.MINORITY_COMMIT,
        "committed-never-lost",
        ("committed entry lost", "committed prefixes differ", "truncation below the high watermark"),
    ),
    _bug(decisions.DIVERGENCE_BY_OFFSET, "log-matching", ("logs differ below an equal epoch",)),
    _bug(decisions.LONE_VOTE, "election-safety", ("two leaders in one epoch",)),
    _bug(
        decisions.NO_OP_UNCONFIRMED,
        "linearizability",
        ("stale read", "lost write", "read against acknowledgement", "order cycle"),
        workloads=("repeated-register",),
    ),
    _bug(decisions.ACCEPTS_CORRUPT_BATCH, "state-machine-safety", ("applied states differ",), shown_by=("damage",)),
    _bug(decisions.NO_FSYNC, "committed-never-lost", ("committed entry lost",), shown_by=("power",)),
    _bug(decisions.FORGETS_ON_FULL_DISK, "committed-never-lost", ("committed entry lost",), shown_by=("disk",)),
    _bug(
        decisions.VOTE_NOT_PERSISTED,
        "vote-once",
        ("voted twice in one epoch", "vote not kept"),
        shown_by=("kill", "power", "partition", "pause"),
    ),
    _bug(
        decisions.TRUNCATES_TO_HIGH_WATERMARK,
        "committed-never-lost",
        ("committed entry lost", "truncation below the high watermark"),
        shown_by=("disk,partition",),
    ),
    _bug(
        decisions.LEASE_BY_WALL_CLOCK, "linearizability", ("stale read",), shown_by=("clock,partition", "clock,pause")
    ),
    _bug(
        client_decisions.RESENDS_AFTER_TIMEOUT,
        "history-against-log",
        ("write in a log twice", "log order against real time"),
        shown_by=("packets", "pause", "partition"),
    ),
    _bug(decisions.ACKS_BEFORE_COMMIT, "answers-after-commit", ("acknowledged before it was committed",)),
    _bug(decisions.RENOUNCE_KEEPS_SPECULATIVE, "state-machine-safety", ("applied states differ",)),
    *_SNAPSHOT_BUGS,
    _simulated_bug(decisions.OBSERVER_COUNTS, "high-watermark-majority", ("high watermark without a majority",)),
    _simulated_bug(decisions.COUNTS_UNFLUSHED_SELF, "majority-before-mark", ("high watermark before its majority",)),
    _simulated_bug(decisions.FETCH_ACKS_UNFLUSHED, "majority-before-mark", ("high watermark before its majority",)),
    _simulated_bug(decisions.FLUSH_OF_CUT_TAIL, "majority-before-mark", ("high watermark before its majority",)),
    _simulated_bug(
        decisions.CAMPAIGNS_UNFLUSHED, "trace-validation", ("row contradicts the rows before it",), shown_by=("disk",)
    ),
    _simulated_bug(decisions.DOUBLE_VOTE, "vote-once", ("voted twice in one epoch",)),
)


_VOTER_BUGS = (
    _bug(
        decisions.JOINS_WITHOUT_CATCHING_UP,
        "voters-caught-up",
        ("voter joined before it had caught up",),
        shown_by=("membership",),
    ),
    _bug(decisions.WIPED_DISK_KEEPS_ID, "committed-never-lost", ("committed entry lost",), shown_by=("membership",)),
    _simulated_bug(
        decisions.TWO_CHANGES_AT_ONCE,
        "quorum-intersection",
        ("voters changed before the last change was committed",),
        shown_by=("membership",),
    ),
    _simulated_bug(
        decisions.CHANGE_BEFORE_EPOCH_COMMITS,
        "quorum-intersection",
        ("voters changed before the epoch had committed",),
        shown_by=("membership",),
    ),
    _bug(
        decisions.VOTERS_AT_COMMIT,
        "majority-before-mark",
        ("high watermark before its majority",),
        shown_by=("membership",),
    ),
    _simulated_bug(
        decisions.VOTERS_NOT_TRUNCATED,
        "trace-validation",
        ("row contradicts the rows before it",),
        shown_by=("membership",),
    ),
    _simulated_bug(
        decisions.REMOVED_LEADER_COUNTS_ITSELF, "trace-validation", ("row without a cause",), shown_by=("membership",)
    ),
)


_BROKER_BUGS = (
    _bug(
        of_controller.STALE_BROKER_EPOCH,
        "broker-incarnations",
        ("broker epoch is not that of its registration",),
        shown_by=("kill", "power"),
    ),
    _bug(
        of_controller.FENCE_WITHOUT_RECORD,
        "partition-chain",
        ("leader is dropped and was never fenced",),
        shown_by=("partition", "pause", "kill"),
    ),
    _bug(
        of_controller.UNCLEAN_BY_DEFAULT, "partition-chain", ("leader was not in sync",), shown_by=("partition", "kill")
    ),
    _bug(
        of_controller.FENCED_JOINS_ISR,
        "partition-chain",
        ("broker joins the in-sync set while it is not alive",),
        shown_by=("pause", "partition", "kill"),
    ),
    # all replicas of a partition must restart, the last in-sync one last
    _simulated_bug(of_controller.LAST_KNOWN_LEADER_UNCHECKED, "partition-chain", ("leader is not alive",)),
    _bug(
        of_controller.REASSIGNMENT_DONE_EARLY,
        "partition-chain",
        ("reassignment ended before its replicas were in sync",),
        shown_by=("partition", "kill", "pause"),
    ),
    _bug(
        of_controller.TOPIC_ID_LOST_ON_CHANGE,
        "partition-chain",
        ("change of a partition that does not exist",),
        shown_by=("partition", "pause", "kill"),
    ),
    _bug(
        of_controller.SESSION_NOT_RENEWED,
        "broker-sessions",
        ("broker is fenced although it was heard",),
        shown_by=("partition", "pause", "kill"),
    ),
    _bug(
        of_controller.FAILOVER_FORGETS_SESSIONS,
        "broker-sessions",
        ("silent broker is never fenced",),
        shown_by=("kill", "pause", "partition"),
    ),
    _bug(
        of_controller.REGISTERS_UNFENCED,
        "broker-incarnations",
        ("new incarnation is not fenced",),
        shown_by=("kill", "power"),
    ),
    _bug(
        of_controller.ELR_KEEPS_UNCLEAN,
        "broker-sessions",
        ("broker came back uncleanly and stays an eligible leader",),
        shown_by=("kill", "power"),
    ),
    # two brokers must shut down at the same time
    _simulated_bug(of_controller.LEAVING_BROKER_LEADS, "partition-chain", ("leader is not alive",), shown_by=("stop",)),
    # no workload deletes topics
    _simulated_bug(
        of_controller.DELETES_TOPIC_KEEPS_CONFIGS,
        "replay-equals-live",
        ("a replay of the log leads to another state",),
        shown_by=(),
    ),
)


class Kraft(System):
    """takes_snapshots: every few seconds; otherwise as seldom as Kafka, and so never within a run."""

    takes_snapshots = False
    name = "kraft"
    summary = "the bundled KRaft quorum: static voters, each controller and metadata-serving broker in one"
    client_module = "system_under_test.kraft.client.client"
    port = PORT
    logs: Mapping[str, str] = {METADATA: METADATA_FOLDER}
    traces = FILE_NAME
    kraft_steps = True
    bugs: Mapping[str, subject.Bug] = {bug.name: bug for bug in _BUGS}
    functions = frozenset({"create", "read", "write", "add", "members", "append", "entries"})
    notices_damage: Mapping[str, str] = {"flip": NOTICED, "truncate": NOTICED, "wipe": "*"}
    simulated = "system_under_test.kraft.simulated:SimulatedKraft"
    cluster_settings: Mapping[str, Any] = {}
    """Settings of every node beyond the defaults of `node/config.py`."""

    def __init__(self) -> None:
        self._heard: dict[str, Hearsay] = {}
        self._directories: dict[str, str] = {}
        """Node -> the id of its disk."""

    async def install(self, node: OwnNode, nodes: Sequence[OwnNode]) -> None:
        """Make the data directory fit for a first start.  Raises OSError."""
        self._heard.pop(node.name, None)
        await self._configure(node, {})
        done = await node.node.run([*_argv(node), "--format", "--force"], timeout_s=_FORMAT_LIMIT_S)
        done.succeeded(f"{node.name}: its data directory cannot be formatted")
        self._directories[node.name] = done.stdout.decode().strip()

    async def installed(self, nodes: Sequence[OwnNode]) -> None:
        """Configure the ids of all disks, which are known only now: a node votes only with the disk of its id."""
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
            "bug": None if self.bug in client_decisions.BUGS else self.bug,
            "segment_bytes": SEGMENT_BYTES,
            "cached_bytes": CACHED_BYTES,
            **self.cluster_settings,
            **(SNAPSHOTS_OFTEN if self.takes_snapshots or self.bug in {bug.name for bug in _SNAPSHOT_BUGS} else {}),
            **self.settings_of(node.index + 1),
            **more,
        }
        await node.write(_config_path(node), json.dumps(config, indent=1))

    def settings_of(self, number: int) -> Mapping[str, Any]:
        """Return what the configuration of the node with this id has in place of `cluster_settings`."""
        return {}

    async def start(self, node: OwnNode, nodes: Sequence[OwnNode]) -> list[str]:
        return _argv(node)

    async def status(self, node: OwnNode) -> subject.NodeStatus | None:
        """Return what the rows say that the node has added to its trace since the last time."""
        try:
            heard = await self.hear(node)
        except OSError:
            return None  # the agent or node has ended, or its trace is lost
        if not heard.rows:
            return None
        return heard.status(node.name)

    async def ready(self, nodes: Sequence[OwnNode]) -> str | None:
        """Clients may come at once: a leader is waited for apart."""
        return None

    async def caught_up(self, nodes: Sequence[OwnNode]) -> str | None:
        """Return None if every live node follows one leader, and every log reaches the largest reported mark.

        Raises NotKnown if the trace of a live node is lost."""
        voters = {node.name for node in self._voters()}
        if 2 * sum(node.name in voters for node in nodes) <= len(voters):
            return f"only {len(nodes)} of {len(self.nodes)} nodes are alive"
        statuses = await asyncio.gather(*(self.status(node) for node in nodes))
        if lost := [node.name for node in nodes if node.name in self._heard and self._heard[node.name].lost]:
            raise subject.NotKnown(f"the trace of {', '.join(lost)} was cut or removed while the run went on")
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
        return {"bug": self.bug if self.bug in client_decisions.BUGS else None}

    def complaints_in(self, folder: Path) -> Sequence[subject.Complaint]:
        """Return tracebacks, refusals to start and refusals to go on, in the order in which they were printed."""
        logs = sorted(folder.glob(f"*/{OUTPUT}"))
        return [found for log in logs for found in _complaints(log.parent.name, log.read_text(errors="replace"))]

    async def hear(self, node: OwnNode | subject.Node) -> Hearsay:
        """Return what the trace of a node has reported so far.

        Raises OSError if the agent does not answer, or if the trace is lost."""
        heard = self._heard.setdefault(node.name, Hearsay())
        start = heard.wanted_from
        heard.take_from(start, await _node(node).read(_trace_path(node), start))
        if heard.lost:
            raise OSError(errno.EIO, f"{node.name}: its trace was cut or removed")
        return heard


class KraftBrokers(Kraft):
    """Every node is a broker, too: it registers, lives by heartbeats, and reports who is in sync."""

    name = "kraft-brokers"
    summary = "the bundled KRaft quorum with brokers that register: in-sync sets, elections and fencing, but no data"
    registers_brokers = True
    bugs: Mapping[str, subject.Bug] = {bug.name: bug for bug in _BROKER_BUGS}

    async def ready(self, nodes: Sequence[OwnNode]) -> str | None:
        """Every broker serves, so that the replicas of all topics are spread over all of them."""
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
    """The first three nodes are controllers alone; all others are brokers alone, which observe the metadata log."""

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
    summary = "the bundled KRaft quorum, whose nodes take snapshots every few seconds and cut their logs behind them"
    takes_snapshots = True
    logs_copied_every_s = SNAPSHOTS_COPIED_EVERY_S
    bugs: Mapping[str, subject.Bug] = {}


class KraftWithVoters(Kraft):
    """The voters stand in the log from the first leader on, and change through the API (`kraft.version` 1)."""

    name = "kraft-voters"
    summary = "the bundled KRaft quorum, whose voters can change while it runs"
    bugs: Mapping[str, subject.Bug] = {bug.name: bug for bug in _VOTER_BUGS}
    cluster_settings: Mapping[str, Any] = {"dynamic": True}

    def __init__(self) -> None:
        super().__init__()
        self.members = KraftMembers(self.hear, PORT, _argv, OUTPUT)


class KraftWhole(KraftWithVoters, KraftBrokers):
    """Brokers that register, voters that change, and snapshots every few seconds."""

    name = "kraft-whole"
    summary = "the bundled KRaft quorum with brokers that register, voters that change, and frequent snapshots"
    takes_snapshots = True
    logs_copied_every_s = SNAPSHOTS_COPIED_EVERY_S
    bugs: Mapping[str, subject.Bug] = {}
    cluster_settings: Mapping[str, Any] = {**KraftBrokers.cluster_settings, **KraftWithVoters.cluster_settings}


def _behind(known: Sequence[subject.NodeStatus], mark: int) -> str | None:
    """Return why these nodes have not all caught up with the mark under one leader; None if they have."""
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
    """Behind the first line that is not indented: the exception itself."""
    return next((i + 1 for i in range(start, len(lines)) if not lines[i].startswith(" ")), len(lines))
