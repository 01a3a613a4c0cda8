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

FETCH = 1
LIST_OFFSETS = 2
METADATA = 3
API_VERSIONS = 18
CREATE_TOPICS = 19
DELETE_TOPICS = 20
DESCRIBE_ACLS = 29
CREATE_ACLS = 30
DELETE_ACLS = 31
DESCRIBE_CONFIGS = 32
ALTER_CONFIGS = 33
ALTER_REPLICA_LOG_DIRS = 34
DESCRIBE_LOG_DIRS = 35
CREATE_PARTITIONS = 37
ELECT_LEADERS = 43
INCREMENTAL_ALTER_CONFIGS = 44
ALTER_PARTITION_REASSIGNMENTS = 45
LIST_PARTITION_REASSIGNMENTS = 46
DESCRIBE_CLIENT_QUOTAS = 48
ALTER_CLIENT_QUOTAS = 49
DESCRIBE_USER_SCRAM_CREDENTIALS = 50
ALTER_USER_SCRAM_CREDENTIALS = 51
VOTE = 52
BEGIN_QUORUM_EPOCH = 53
END_QUORUM_EPOCH = 54
DESCRIBE_QUORUM = 55
ALTER_PARTITION = 56
UPDATE_FEATURES = 57
ENVELOPE = 58
FETCH_SNAPSHOT = 59
DESCRIBE_CLUSTER = 60
BROKER_REGISTRATION = 62
BROKER_HEARTBEAT = 63
UNREGISTER_BROKER = 64
ALLOCATE_PRODUCER_IDS = 67
CONTROLLER_REGISTRATION = 70
ASSIGN_REPLICAS_TO_DIRS = 73
LIST_CONFIG_RESOURCES = 74
DESCRIBE_TOPIC_PARTITIONS = 75
ADD_RAFT_VOTER = 80
REMOVE_RAFT_VOTER = 81
UPDATE_RAFT_VOTER = 82

SUPPORTED: dict[int, tuple[int, int]] = {
    FETCH: (17, 18),
    LIST_OFFSETS: (1, 10),
    METADATA: (1, 12),
    API_VERSIONS: (0, 4),
    CREATE_TOPICS: (2, 7),
    DELETE_TOPICS: (1, 6),
    DESCRIBE_ACLS: (1, 3),
    CREATE_ACLS: (1, 3),
    DELETE_ACLS: (1, 3),
    DESCRIBE_CONFIGS: (1, 4),
    ALTER_CONFIGS: (0, 2),
    ALTER_REPLICA_LOG_DIRS: (1, 2),
    DESCRIBE_LOG_DIRS: (1, 4),
    CREATE_PARTITIONS: (0, 3),
    INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ELECT_LEADERS: (0, 2),
    ALTER_PARTITION_REASSIGNMENTS: (0, 1),
    LIST_PARTITION_REASSIGNMENTS: (0, 0),
    DESCRIBE_CLIENT_QUOTAS: (0, 1),
    ALTER_CLIENT_QUOTAS: (0, 1),
    DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0),
    ALTER_USER_SCRAM_CREDENTIALS: (0, 0),
    VOTE: (2, 2),
    BEGIN_QUORUM_EPOCH: (1, 1),
    END_QUORUM_EPOCH: (1, 1),
    DESCRIBE_QUORUM: (0, 2),
    UPDATE_FEATURES: (0, 1),
    ALTER_PARTITION: (2, 3),
    ENVELOPE: (0, 0),
    FETCH_SNAPSHOT: (1, 1),
    DESCRIBE_CLUSTER: (0, 2),
    BROKER_REGISTRATION: (0, 4),
    BROKER_HEARTBEAT: (0, 2),
    UNREGISTER_BROKER: (0, 0),
    ALLOCATE_PRODUCER_IDS: (0, 0),
    CONTROLLER_REGISTRATION: (0, 0),
    ASSIGN_REPLICAS_TO_DIRS: (0, 0),
    LIST_CONFIG_RESOURCES: (0, 1),
    DESCRIBE_TOPIC_PARTITIONS: (0, 0),
    ADD_RAFT_VOTER: (0, 1),
    REMOVE_RAFT_VOTER: (0, 0),
    UPDATE_RAFT_VOTER: (0, 0),
}
"""API key -> (lowest, highest) version.  Of the quorum's own RPCs those that every Kafka from 4.0 on speaks."""

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
    """The ApiVersions response, in `version`.  Features stand in it from version 3 on."""
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
