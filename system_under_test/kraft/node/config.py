"""A node's configuration, and the formatting of its data directory.

The configuration is one JSON file, which the subject writes once for all starts of the node.  It includes limits for
snapshots and for the log.  This module is separate from `process`, so that formatting a directory imports little.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from system_under_test.kraft.controller import decisions as of_controller
from system_under_test.kraft.log import small_files
from system_under_test.kraft.log.log import CACHE_MAX_BYTES, FOLDER
from system_under_test.kraft.log.segment import SEGMENT_MAX_BYTES, Segment
from system_under_test.kraft.log.small_files import MetaProperties, parse_uuid
from system_under_test.kraft.log.snapshot_file import BATCH_MAX_BYTES
from system_under_test.kraft.node.disk import RealDisk
from system_under_test.kraft.node.trace import FILE_NAME
from system_under_test.kraft.ports import Disk
from system_under_test.kraft.raft import decisions as of_raft
from system_under_test.kraft.raft.decisions import id_of_new_disk


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """Kafka's configs of the same names, with Kafka's defaults.

    retention_bytes: maximum bytes of the log and all snapshots together
    part_max_bytes: maximum bytes of a snapshot that a follower requests at once
    batch_max_bytes: bytes of records at which a batch of a snapshot is full; the node writes one batch per turn of its
        loop
    """

    max_record_bytes_between_snapshots: int = 20 << 20
    max_snapshot_interval_ms: int = 60 * 60 * 1000
    retention_bytes: int = 100 << 20
    retention_ms: int = 7 * 24 * 60 * 60 * 1000
    part_max_bytes: int = 1 << 20
    batch_max_bytes: int = BATCH_MAX_BYTES


KAFKA_LIMITS = SnapshotLimits()


BUGS = {**of_raft.BUGS, **of_controller.BUGS}
CONTROLLER, BROKER = "controller", "broker"
AUTO_JOIN = "controller.quorum.auto.join.enable"

SNAPSHOT_CONFIGS = {
    "metadata.log.max.record.bytes.between.snapshots": "max_record_bytes_between_snapshots",
    "metadata.log.max.snapshot.interval.ms": "max_snapshot_interval_ms",
    "metadata.max.retention.bytes": "retention_bytes",
    "metadata.max.retention.ms": "retention_ms",
}
"""Kafka's name of a config -> field of `SnapshotLimits`."""


class BadConfig(ValueError):
    """Raised for an invalid configuration.  The message names the file and the error."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A voter, with the address at which the other voters reach it."""

    name: str
    id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Brokers:
    """The configuration of a cluster whose brokers register.  It is the same on all nodes, except for roles and rack.

    roles: `process.roles` of this node: controller, broker or both.  A broker that is no controller observes the
        metadata log, and its file names only the voters as peers.
    heartbeat_interval_s: Kafka's broker.heartbeat.interval.ms, in seconds
    session_timeout_s: broker.session.timeout.ms
    lag_s: replica.lag.time.max.ms
    no_op_interval_s: metadata.max.idle.interval.ms
    balance_interval_s: leader.imbalance.check.interval.seconds
    probe_interval_s: seconds between two probes of a leader to its replicas
    move_interval_s: for tests, mean seconds between two moves of a partition, or elections of its preferred replica, by
        each leader
    features: feature levels that the first controller writes into an empty log
    """

    roles: frozenset[str]
    rack: str | None = None
    heartbeat_interval_s: float = 2.0
    session_timeout_s: float = 9.0
    lag_s: float = 30.0
    probe_interval_s: float = 0.5
    no_op_interval_s: float = 0.5
    balance_interval_s: float = 300.0
    move_interval_s: float | None = None
    features: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration of one node.

    peers: every voter, including this node if it is one, by id
    seed: seed of timeouts and topic ids
    bug: a planted bug, or None
    directories: voter -> directory id of its disk.  A voter without an entry may have any disk.
    segment_bytes: maximum size of a segment of the log
    cached_bytes: bytes of the newest batches that stay in memory
    brokers: None if every voter is a broker by configuration
    snapshots: when to take snapshots, and how much of the log to keep
    observer: True if this node follows the log and is no voter; `peers` in its file names only the voters
    dynamic: True if the voters can change (`kraft.version` 1).  Then `peers` are the first voters, as in Kafka's
        bootstrap snapshot, and later the nodes at which a leader may be found.
    auto_join: True if this node makes itself a voter (`controller.quorum.auto.join.enable`)
    """

    name: str
    node_id: int
    cluster_id: str
    host: str
    port: int
    peers: dict[int, Peer]
    data_dir: Path
    trace_dir: Path
    seed: int
    bug: str | None = None
    directories: Mapping[int, UUID] = field(default_factory=dict)
    segment_bytes: int = SEGMENT_MAX_BYTES
    cached_bytes: int = CACHE_MAX_BYTES
    brokers: Brokers | None = None
    snapshots: SnapshotLimits = KAFKA_LIMITS
    observer: bool = False
    dynamic: bool = False
    auto_join: bool = False

    @property
    def is_controller(self) -> bool:
        """Return whether this node can be a voter."""
        return self.brokers is None or CONTROLLER in self.brokers.roles

    @property
    def voters(self) -> tuple[int, ...]:
        return tuple(peer for peer in self.peers if not (self.observer and peer == self.node_id))


def load(path: Path) -> Config:
    """Read and parse a configuration file.  Raises BadConfig."""
    try:
        return parse(json.loads(path.read_text()))
    except OSError as problem:
        raise BadConfig(f"cannot read the configuration {path}: {problem.strerror}") from None
    except ValueError as problem:
        raise BadConfig(f"the configuration {path} is invalid: {problem}") from None


def parse(fields: dict[str, Any]) -> Config:
    """Parse the JSON object {"node_id", "name", "cluster_id", "listen": "host:port", "peers": {name: [id, host, port]},
    "data_dir", "trace_dir", "seed"}.  It may also contain "bug", "directories": {name: directory id}, "segment_bytes",
    "cached_bytes", "process.roles": "broker,controller", "brokers": {field of Brokers: value}, "observer", "dynamic",
    AUTO_JOIN (true or false), and Kafka's configs of the metadata log, by Kafka's names (`SNAPSHOT_CONFIGS`).

    Raises BadConfig.
    """
    try:
        host, _, port = fields["listen"].rpartition(":")
        peers = [Peer(name, int(i), str(h), int(p)) for name, (i, h, p) in fields["peers"].items()]
        me = Peer(str(fields["name"]), int(fields["node_id"]), host, int(port))
        brokers = _brokers(fields)
        broker_only = brokers is not None and CONTROLLER not in brokers.roles
        by_id = {peer.id: peer for peer in [*peers, *([] if any(p.id == me.id for p in peers) else [me])]}
        config = Config(
            me.name,
            me.id,
            str(fields["cluster_id"]),
            host,
            me.port,
            dict(sorted(by_id.items())),
            Path(fields["data_dir"]),
            Path(fields["trace_dir"]),
            int(fields["seed"]),
            fields.get("bug"),
            {_id_of(by_id.values(), name): parse_uuid(text) for name, text in fields.get("directories", {}).items()},
            int(fields.get("segment_bytes", SEGMENT_MAX_BYTES)),
            int(fields.get("cached_bytes", CACHE_MAX_BYTES)),
            brokers,
            SnapshotLimits(**{own: int(fields[name]) for name, own in SNAPSHOT_CONFIGS.items() if name in fields}),
            broker_only or bool(fields.get("observer", False)),
            bool(fields.get("dynamic", False)),
            bool(fields.get(AUTO_JOIN, False)),
        )
    except KeyError as problem:
        raise BadConfig(f"{problem} is missing") from None
    except (TypeError, ValueError, AttributeError) as problem:
        raise BadConfig(str(problem)) from None
    if len({peer.name for peer in by_id.values()}) != len(peers) + (me.id not in {p.id for p in peers}):
        raise BadConfig("two peers share a name or an id")
    if by_id[me.id].name != me.name:
        raise BadConfig(f"id {me.id} is {me.name} here and {by_id[me.id].name} among the peers")
    if broker_only and any(p.id == me.id for p in peers):
        raise BadConfig(f"{me.name} is one of the voters, so its process.roles must name controller")
    if broker_only and config.auto_join:
        raise BadConfig(f"{AUTO_JOIN} makes a voter of this node, so its process.roles must name controller")
    if config.auto_join and not config.dynamic:
        raise BadConfig(f"{AUTO_JOIN} needs voters that can change: set dynamic, too")
    if config.bug is not None and config.bug not in BUGS:
        raise BadConfig(f"there is no planted bug {config.bug!r}; known: {', '.join(BUGS)}")
    return config


def _brokers(fields: Mapping[str, Any]) -> Brokers | None:
    """Return the configuration of brokers, or None.  Raises ValueError for impossible roles, TypeError for an unknown
    setting.
    """
    if "process.roles" not in fields:
        return None
    roles = frozenset(role.strip() for role in str(fields["process.roles"]).split(","))
    if not roles <= {CONTROLLER, BROKER}:
        raise ValueError(f"process.roles is {fields['process.roles']!r}; it can name controller and broker")
    return Brokers(roles, **fields.get("brokers", {}))


def _id_of(peers: Iterable[Peer], name: str) -> int:
    """Return the id of a peer.  Raises ValueError for an unknown name."""
    found = next((peer.id for peer in peers if peer.name == name), None)
    if found is None:
        raise ValueError(f"directories contains {name!r}, which is no peer")
    return found


class AlreadyFormatted(FileExistsError):
    """Raised because the data directory may contain a log that is still needed."""


def format_directory(
    config: Config, *, force: bool = False, keeps_trace: bool = False, new_uuid: Callable[[], UUID] = uuid4
) -> UUID:
    """Format the data directory for a node with an empty log.  Returns the directory id.

    The id is always new: the votes and the log of a wiped disk are lost, so it must not be taken for the old disk
    (KIP-853).

    force: True to erase a directory that contains meta.properties or a log.  Otherwise AlreadyFormatted is raised.
    keeps_trace: True to continue an earlier trace instead of deleting it

    Raises AlreadyFormatted and OSError.
    """
    replaced = _directory_id(config.data_dir)
    config.data_dir.mkdir(parents=True, exist_ok=True)
    if not force and (found := _first_of_a_node(config.data_dir)):
        raise AlreadyFormatted(
            f"{config.data_dir} is already formatted, it contains {found}; --force erases it, including its log"
        )
    for path in config.data_dir.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    if not keeps_trace:
        (config.trace_dir / FILE_NAME).unlink(missing_ok=True)
    directory_id = id_of_new_disk(new_uuid(), replaced, {config.bug or ""})
    format_disk(RealDisk(config.data_dir), MetaProperties(config.cluster_id, config.node_id, directory_id))
    return directory_id


def format_disk(disk: Disk, properties: MetaProperties) -> None:
    """Write the files of an empty disk: an empty log, and meta.properties last, so that an interrupted format does not
    count.

    The log must exist before the first start.  The disk may be copied before that, and a folder without a log would
    look like one that has lost its log.
    """
    disk.make_dir(FOLDER)
    Segment.create(disk, FOLDER, 0).close()
    small_files.write_properties(disk, properties)


def _directory_id(folder: Path) -> UUID | None:
    """Return the id of a formatted directory; None if the directory is not formatted."""
    try:
        return small_files.parse_properties((folder / small_files.META_PROPERTIES).read_bytes()).directory_id
    except (FileNotFoundError, small_files.WrongDirectory):
        return None


def _first_of_a_node(folder: Path) -> str | None:
    """Return the name of the first file or folder in `folder` that belongs to a node; None if there is none."""
    names = sorted(path.name for path in folder.iterdir())
    return next((name for name in names if name.startswith((small_files.META_PROPERTIES, "__cluster_metadata"))), None)
