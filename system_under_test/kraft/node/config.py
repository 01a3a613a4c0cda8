"""A node's configuration: one JSON file, written by the subject, the same for every start.  It includes the times of
snapshots, and the amounts of log and snapshots to keep.

Formats a data directory for a first start; separate from `process`, so that it loads little.
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
    """Kafka's configs of the same names, with its defaults; `retention_bytes` counts the log and all snapshots.

    part_max_bytes: of a snapshot in one answer, as a follower requests it. batch_max_bytes: size of records after which
    a batch of a snapshot is full; each is written in a separate turn of the loop.
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
"""Kafka's names of the fields of `SnapshotLimits`."""


class BadConfig(ValueError):
    """One sentence: the file and the error."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A voter with its address for the others."""

    name: str
    id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Brokers:
    """The configuration of a cluster whose brokers register.  It is the same on all nodes, except roles and rack.

    roles: of this node (`process.roles`): controller, broker or both.  A broker that is no controller observes the
    metadata log, and its file names only the voters as peers.
     features: the levels that the first controller writes into an empty log.
    The times are Kafka's broker.heartbeat.interval.ms, broker.session.timeout.ms, replica.lag.time.max.ms,
    metadata.max.idle.interval.ms and leader.imbalance.check.interval.seconds.  probe_interval_s: a leader asks its
    replicas this often.  move_interval_s: for tests, each broker moves the replicas of a partition that it leads, or
    has the preferred replica elected, this often.
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
    """peers: every voter, this one included, by id.  seed: of timeouts and topic ids.  bug: a planted bug, or None.

    directories: voter -> the directory id of its disk.  A voter that is not named here may have any disk.
    segment_bytes: a segment of the log that would grow beyond this is followed by another one.  cached_bytes: so much
    of the log's end is kept in memory. brokers: None if every voter is a broker by configuration.
    snapshots: when to take one, and how much of the log to keep.
    observer: this node follows the log and is no voter; `peers` of its file names the voters alone.
    dynamic: the voters can change (`kraft.version` 1): `peers` are those with which the cluster begins, as in the
    bootstrap snapshot that Kafka's format command makes, and later where a leader may be found.
    auto_join: it makes itself a voter when it is none (`controller.quorum.auto.join.enable`).
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
    """Raises BadConfig."""
    try:
        return parse(json.loads(path.read_text()))
    except OSError as problem:
        raise BadConfig(f"cannot read the configuration {path}: {problem.strerror}") from None
    except ValueError as problem:
        raise BadConfig(f"the configuration {path} is no good: {problem}") from None


def parse(fields: dict[str, Any]) -> Config:
    """Parse the JSON object {"node_id", "name", "cluster_id", "listen": "host:port", "peers": {name: [id, host, port]},
    "data_dir", "trace_dir", "seed", "bug", "directories": {name: directory id}, "segment_bytes", "cached_bytes",
    "process.roles": "broker,controller", "brokers": {field of Brokers: value}}; the last six may be absent.  So may
    "observer", "dynamic" and AUTO_JOIN (true or false), and Kafka's configs of the metadata log (`SNAPSHOT_CONFIGS`),
    by Kafka's names.

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
    """Raises ValueError for impossible roles, TypeError for an unknown setting."""
    if "process.roles" not in fields:
        return None
    roles = frozenset(role.strip() for role in str(fields["process.roles"]).split(","))
    if not roles <= {CONTROLLER, BROKER}:
        raise ValueError(f"process.roles is {fields['process.roles']!r}; it can name controller and broker")
    return Brokers(roles, **fields.get("brokers", {}))


def _id_of(peers: Iterable[Peer], name: str) -> int:
    """Raises ValueError."""
    found = next((peer.id for peer in peers if peer.name == name), None)
    if found is None:
        raise ValueError(f"a directory is named for {name!r}, which is no peer")
    return found


class AlreadyFormatted(FileExistsError):
    """The data directory may hold a log that is still needed."""


def format_directory(
    config: Config, *, force: bool = False, keeps_trace: bool = False, new_uuid: Callable[[], UUID] = uuid4
) -> UUID:
    """Format the data directory for a node with an empty log, and delete an earlier trace unless it is to be continued.

    Returns the directory id.  It is always new: a wiped disk has lost its votes and its log, so that it must not pass
    for the old disk (KIP-853).  Raises AlreadyFormatted, unless `force` is on, for a directory with meta.properties or
    a log; and OSError.
    """
    replaced = _directory_id(config.data_dir)
    config.data_dir.mkdir(parents=True, exist_ok=True)
    if not force and (found := _first_of_a_node(config.data_dir)):
        raise AlreadyFormatted(
            f"{config.data_dir} is formatted already, it holds {found}; --force erases it and its log for good"
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
    """Return the files of an empty disk: an empty log, and meta.properties last, so that an interrupted format does not
    count.

    The log exists before the first start, because the disk may be copied before that, and to a reader a folder without
    a log has lost it.
    """
    disk.make_dir(FOLDER)
    Segment.create(disk, FOLDER, 0).close()
    small_files.write_properties(disk, properties)


def _directory_id(folder: Path) -> UUID | None:
    """Return the id of a formatted directory."""
    try:
        return small_files.parse_properties((folder / small_files.META_PROPERTIES).read_bytes()).directory_id
    except (FileNotFoundError, small_files.WrongDirectory):
        return None


def _first_of_a_node(folder: Path) -> str | None:
    """Return the name of the first file or folder in `folder` that belongs to a node; None if there is none."""
    names = sorted(path.name for path in folder.iterdir())
    return next((name for name in names if name.startswith((small_files.META_PROPERTIES, "__cluster_metadata"))), None)
