"""The APIs and versions that a node supports, and its answer to ApiVersions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import timedelta
from functools import cache
from typing import Any

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller import features
from system_under_test.kraft.wire.frames import Entity, codec, shape_of

SUPPORTED: dict[int, tuple[int, int]] = {}
"""API key -> (lowest, highest) version.  The quorum's own RPCs have the versions that every Kafka since 4.0
supports.
"""


def _api(key: int, lowest: int, highest: int) -> int:
    SUPPORTED[key] = lowest, highest
    return key


FETCH = _api(1, 17, 18)
LIST_OFFSETS = _api(2, 1, 10)
METADATA = _api(3, 1, 12)
API_VERSIONS = _api(18, 0, 4)
CREATE_TOPICS = _api(19, 2, 7)
DELETE_TOPICS = _api(20, 1, 6)
DESCRIBE_ACLS = _api(29, 1, 3)
CREATE_ACLS = _api(30, 1, 3)
DELETE_ACLS = _api(31, 1, 3)
DESCRIBE_CONFIGS = _api(32, 1, 4)
ALTER_CONFIGS = _api(33, 0, 2)
ALTER_REPLICA_LOG_DIRS = _api(34, 1, 2)
DESCRIBE_LOG_DIRS = _api(35, 1, 4)
CREATE_PARTITIONS = _api(37, 0, 3)
ELECT_LEADERS = _api(43, 0, 2)
INCREMENTAL_ALTER_CONFIGS = _api(44, 0, 1)
ALTER_PARTITION_REASSIGNMENTS = _api(45, 0, 1)
LIST_PARTITION_REASSIGNMENTS = _api(46, 0, 0)
DESCRIBE_CLIENT_QUOTAS = _api(48, 0, 1)
ALTER_CLIENT_QUOTAS = _api(49, 0, 1)
DESCRIBE_USER_SCRAM_CREDENTIALS = _api(50, 0, 0)
ALTER_USER_SCRAM_CREDENTIALS = _api(51, 0, 0)
VOTE = _api(52, 2, 2)
BEGIN_QUORUM_EPOCH = _api(53, 1, 1)
END_QUORUM_EPOCH = _api(54, 1, 1)
DESCRIBE_QUORUM = _api(55, 0, 2)
ALTER_PARTITION = _api(56, 2, 3)
UPDATE_FEATURES = _api(57, 0, 1)
ENVELOPE = _api(58, 0, 0)
FETCH_SNAPSHOT = _api(59, 1, 1)
DESCRIBE_CLUSTER = _api(60, 0, 2)
BROKER_REGISTRATION = _api(62, 0, 4)
BROKER_HEARTBEAT = _api(63, 0, 2)
UNREGISTER_BROKER = _api(64, 0, 0)
ALLOCATE_PRODUCER_IDS = _api(67, 0, 0)
CONTROLLER_REGISTRATION = _api(70, 0, 0)
ASSIGN_REPLICAS_TO_DIRS = _api(73, 0, 0)
LIST_CONFIG_RESOURCES = _api(74, 0, 1)
DESCRIBE_TOPIC_PARTITIONS = _api(75, 0, 0)
ADD_RAFT_VOTER = _api(80, 0, 1)
REMOVE_RAFT_VOTER = _api(81, 0, 0)
UPDATE_RAFT_VOTER = _api(82, 0, 0)

FEATURES_SINCE = 3
LEVEL_0_SINCE = 4
"""First version of ApiVersions whose clients accept a supported range that begins at level 0 (KAFKA-17011).  Such a
range is left out for clients of version 3.
"""

NO_TIME = timedelta(0)
MESSAGE_MAX_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Finalized:
    """The levels of features on which the cluster has agreed, as one node knows them (KIP-584).

    epoch: offset of the last record that this node has applied; -1 if it has applied none
    levels: name -> level, of the features in use
    """

    epoch: int = -1
    levels: Mapping[str, int] = field(default_factory=dict)


def advertise(version: int, finalized: Finalized, error_code: int = 0) -> Entity:
    """Return the ApiVersions response in `version`.  It contains features from version 3 on."""
    supported = (
        {"name": name, "min_version": levels[0], "max_version": levels[-1]}
        for name, levels in sorted(features.SUPPORTED.items())
        if levels[0] > 0 or version >= LEVEL_0_SINCE
    )
    agreed = (
        {"name": name, "min_version_level": level, "max_version_level": level}
        for name, level in sorted(finalized.levels.items())
    )
    given = {
        "error_code": ErrorCode(error_code),
        "api_keys": [
            {"api_key": key, "min_version": lowest, "max_version": highest}
            for key, (lowest, highest) in sorted(SUPPORTED.items())
        ],
        "supported_features": supported,
        "finalized_features_epoch": finalized.epoch,
        "finalized_features": agreed,
    }
    return built(codec(API_VERSIONS, version).response_type, given)


_OURS = {
    "partition_index": "partition",
    "broker_id": "id",
    "node_id": "id",
    "replica_id": "id",
    "is_fenced": "fenced",
    "leader_id": "leader",
    "replica_nodes": "replicas",
    "isr_nodes": "isr",
    "replica_directory_id": "directory",
    "last_fetch_timestamp": "last_fetch_ms",
    "last_caught_up_timestamp": "last_caught_up_ms",
    "adding_replicas": "adding",
    "removing_replicas": "removing",
    "leader_recovery_state": "recovery_state",
    "min_supported_version": "level_min",
    "max_supported_version": "level_max",
    "entity_type": "type",
    "entity_name": "name",
}
"""Kafka's name of a field -> our name, where the names differ."""


_DEFAULTS = {"throttle_time": NO_TIME, "error_code": ErrorCode.none, "error_message": None}


@dataclass(frozen=True, slots=True)
class Filled:
    """An object whose attributes fill an entity, and the values of the entity's other fields."""

    source: object
    values: Mapping[str, Any]


def filled(source: object, **values: Any) -> Filled:
    return Filled(source, values)


def built(kind: Any, given: Any) -> Entity:
    """Make an entity, and all entities within it, in the version of `kind`.

    given: an entity of this kind; a mapping from names of fields; a `Filled`; or an object whose attributes have
        Kafka's or our names of the fields

    Values of fields that the version lacks are left out.  By default no client is throttled and there is no error.
    """
    if isinstance(given, kind):
        return given
    source, values = (given.source, given.values) if isinstance(given, Filled) else (given, {})
    if isinstance(given, Mapping):
        source, values = None, given
    made: dict[str, Any] = {}
    for name, (element, is_array) in _shapes(kind).items():
        attribute = name if hasattr(source, name) else _OURS.get(name, name)
        if name in values:
            value = values[name]
        elif hasattr(source, attribute):
            value = getattr(source, attribute)
        elif name in _DEFAULTS:
            value = _DEFAULTS[name]
        else:
            continue
        if is_array and value is not None:
            value = tuple(value if element is None else (built(element, each) for each in value))
        elif element is not None and value is not None:
            value = built(element, value)
        made[name] = short(value) if name == "error_message" else value
    return kind(**made)


def requested(api_key: int, version: int, given: Any) -> Entity:
    """Return a request in this version; see `built`."""
    return built(codec(api_key, version).request_type, given)


@cache
def _shapes(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Return, for each field, the entity type of the field or of its elements (None for other types), and whether the
    field is an array.
    """
    shapes = {each.name: shape_of(each.type) for each in fields(kind)}
    return {name: (of if is_dataclass(of) else None, is_array) for name, (of, is_array, _) in shapes.items()}


def short(message: str | None) -> str | None:
    """Cut a message that quotes the request.  It may be longer than a string in an older version can be."""
    return message if message is None else message[:MESSAGE_MAX_CHARACTERS]


NOT_QUEUED = "NOT_QUEUED"
"""Prefix of the error_message of 41 NOT_CONTROLLER if, and only if, the request certainly never reached the log."""

OUR_PREFIX = "krucible-"
"""Prefix of the client ids of the project's own clients.  A node answers or rejects their requests, and never forwards
them to another node.
"""
