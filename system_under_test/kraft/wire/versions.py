"""The APIs and versions that a node speaks, and its answer to ApiVersions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from types import ModuleType
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller import features
from system_under_test.kraft.wire.frames import Entity, codec

SUPPORTED: dict[int, tuple[int, int]] = {}
"""API key -> (lowest, highest) version.  Of the quorum's own RPCs those that every Kafka from 4.0 on speaks."""


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
"""Clients of version 3 do not accept a supported range that begins at 0, so it is left out for them (KAFKA-17011)."""

T = TypeVar("T")
NO_TIME = timedelta(0)
MESSAGE_MAX_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Finalized:
    """The levels of features on which the cluster has agreed, as one node knows them (KIP-584).

    epoch: the offset of the last record that this node has applied; -1 if it has applied none.  levels: of the features
    that are in use, by name."""

    epoch: int = -1
    levels: Mapping[str, int] = field(default_factory=dict)


def advertise(version: int, finalized: Finalized, error_code: int = 0) -> Entity:
    """Return the ApiVersions response, in `version`.  Features stand in it from version 3 on."""
    types = codec(API_VERSIONS, version).responses
    keys = tuple(
        types.ApiVersion(api_key=key, min_version=lowest, max_version=highest)
        for key, (lowest, highest) in sorted(SUPPORTED.items())
    )
    return make(
        types.ApiVersionsResponse,
        error_code=ErrorCode(error_code),
        api_keys=keys,
        throttle_time=NO_TIME,
        **(_features(types, finalized) if version >= FEATURES_SINCE else {}),
    )


def _features(types: ModuleType, finalized: Finalized) -> dict[str, Any]:
    return {
        "supported_features": tuple(
            types.SupportedFeatureKey(name=name, min_version=levels[0], max_version=levels[-1])
            for name, levels in sorted(features.SUPPORTED.items())
            if levels[0] > 0 or types.ApiVersionsResponse.__version__ >= LEVEL_0_SINCE
        ),
        "finalized_features_epoch": finalized.epoch,
        "finalized_features": tuple(
            types.FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            for name, level in sorted(finalized.levels.items())
        ),
    }


def make(entity_type: type[Any], **values: Any) -> Entity:
    """Make an entity from those of `values` that its version has.  By default no client is throttled."""
    known = entity_type.__dataclass_fields__
    if "throttle_time" in known:
        values.setdefault("throttle_time", NO_TIME)
    return entity_type(**{name: value for name, value in values.items() if name in known})


_OURS = {
    "error_code": "error",
    "error_message": "message",
    "num_partitions": "partitions",
    "resource_type": "type",
    "resource_name": "name",
    "partition_index": "partition",
    "partition_id": "partition",
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
    "match_type": "how",
    "resource_pattern_type": "pattern_type",
    "name": "user",
}
"""Kafka's name of a field -> ours, where they differ."""


def filled(entity_type: type[Any], source: object, **values: Any) -> Entity:
    """Make an entity from `values`, else from the attributes of `source` that have the names of its fields, or ours."""
    for known in entity_type.__dataclass_fields__:
        name = known if hasattr(source, known) else _OURS.get(known, known)
        if known not in values and hasattr(source, name):
            values[known] = getattr(source, name)
    if "error_message" in values:
        values["error_message"] = short(values["error_message"])
    return make(entity_type, **values)


def taken(kind: type[T], entity: Entity) -> T:
    """Make a value of ours from the attributes of an entity that have the names of its fields, or Kafka's."""
    values = {}
    for each in fields(kind):  # type: ignore[arg-type]  # each is a dataclass
        theirs = [name for name, ours in _OURS.items() if ours == each.name]
        for name in (each.name, *theirs, f"entity_{each.name}", f"{each.name}_filter"):
            if hasattr(entity, name):
                values[each.name] = getattr(entity, name)
                break
    return kind(**values)


def short(message: str | None) -> str | None:
    """Cut a message that quotes the request, which may be longer than a string of an older version can be."""
    return message if message is None else message[:MESSAGE_MAX_CHARACTERS]


NOT_QUEUED = "NOT_QUEUED"
"""Prefix of the error_message of a 41 NOT_CONTROLLER if, and only if, the request certainly never reached the log."""

OUR_PREFIX = "krucible-"
"""Client ids that begin so are the project's own: their requests are answered where they arrive or refused, never
handed on to another node."""
