"""Admin requests that the active controller answers with one decision, and how a broker forwards such requests.

Each element of such a request (a topic, a voter) gets its own result.  `quorum_service.py` defines the interface of a
decision, and `brokers.py` contains the decisions about brokers.  `api.py` states which node answers, how a request can
end, and what a client may conclude.  The rules themselves are in `controller/`.

AddRaftVoter, RemoveRaftVoter and UpdateRaftVoter (KIP-853) are translated into changes of the voters, and their results
into responses.

A broker reports one log folder (KIP-113, KIP-827).  Nodes store no data of topics, so each hosted replica has 0 bytes
there, and no replica can move.

*Forwarding.*  Stock clients may send admin requests to any broker, which forwards them to the active controller.
Kafka's brokers wrap such a request into ENVELOPE 58 to carry the client's identity.  Without authentication the plain
request is enough, so our brokers forward that.  They send it under a client id with the project's prefix, and a node
never forwards such a request.  So no loop is possible, even if nodes disagree about which node is the controller.

A connection carries one request at a time.  A few connections to each controller are kept open and reused.  A
connection whose request is not answered is closed (`server.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller import access, configs, topics
from system_under_test.kraft.controller.features import LevelWanted, about_level, update_features
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.controller.one_by_one import Found, Result, result
from system_under_test.kraft.ports import Network
from system_under_test.kraft.raft.changes import AddVoter, RemoveVoter, UpdateVoter, VoterChange
from system_under_test.kraft.raft.messages import ReplicaKey
from system_under_test.kraft.raft.voters import VoterEndpoint, VoterEntry
from system_under_test.kraft.records.metadata import Record
from system_under_test.kraft.wire import brokers, versions
from system_under_test.kraft.wire.channel import Connection
from system_under_test.kraft.wire.frames import Entity, MalformedFrame
from system_under_test.kraft.wire.quorum_service import Decision, DecisionContext, NotQueued, QuorumService
from system_under_test.kraft.wire.versions import OUR_PREFIX


def _to_delete(body: Any) -> list[str | UUID]:
    """Return the names or ids of the topics to delete.  Up to version 5, a request contains names only."""
    if hasattr(body, "topic_names"):
        return list(body.topic_names)
    return [topic.topic_id or UUID(int=0) if topic.name is None else topic.name for topic in body.topics]


def levels_wanted(body: Any) -> list[LevelWanted]:
    """Return the requested levels.  Version 0 has a flag that allows a lower level; later versions state how far a
    downgrade may go (KIP-584, KIP-778).
    """
    return [
        LevelWanted(
            each.feature,
            each.max_version_level,
            may_fall=each.allow_downgrade if hasattr(each, "allow_downgrade") else each.upgrade_type > 1,
        )
        for each in body.feature_updates
    ]


def other_controllers(quorum: QuorumService) -> list[int]:
    """Return the other voters if controllers register; otherwise none."""
    voters = quorum.describe().voters if quorum.registers_brokers else ()
    return [voter.id for voter in voters if voter.id != quorum.node_id]


def _update_features(body: Any, cluster: DecisionContext, image: Image) -> tuple[list[Record], list[Result]]:
    controllers = other_controllers(cluster.quorum)
    return update_features(image, levels_wanted(body), cluster.quorum.kraft_version, controllers=controllers)


def _users(body: Any) -> list[str]:
    return list(dict.fromkeys(each.name for each in (*body.deletions, *body.upsertions)))


def _decision(
    entries: str | Callable[[Any], Sequence[Any]],
    about: Callable[[Any], Found],
    decide: Callable[[Any, DecisionContext, Image], tuple[list[Record], list[Result]]],
    results: str = "results",
) -> Decision:
    """Return a decision with one result for each element of the request.

    entries: the request's field with the elements, or a function that returns them
    about: returns the fields that identify an element
    results: the response's field with the results
    """
    find = attrgetter(entries) if isinstance(entries, str) else entries
    return Decision(
        decide,
        lambda body, why: [result(about(each), why) for each in find(body)],
        lambda found: {results: found},
    )


DECISIONS: dict[int, Decision] = {
    **brokers.DECISIONS,
    versions.CREATE_TOPICS: _decision(
        "topics",
        topics.about_topic,
        lambda body, cluster, image: topics.create_topics(
            image, body.topics, cluster.candidates(image), cluster.new_uuid
        ),
        "topics",
    ),
    versions.CREATE_PARTITIONS: _decision(
        "topics",
        topics.about_topic,
        lambda body, cluster, image: topics.create_partitions(image, body.topics, cluster.candidates(image)),
    ),
    versions.DELETE_TOPICS: _decision(
        _to_delete,
        topics.about_deletion,
        lambda body, cluster, image: topics.delete_topics(image, _to_delete(body)),
        "responses",
    ),
    versions.INCREMENTAL_ALTER_CONFIGS: _decision(
        "resources",
        configs.about_resource,
        lambda body, cluster, image: configs.alter_configs(image, body.resources),
        "responses",
    ),
    versions.ALTER_CONFIGS: _decision(
        "resources",
        configs.about_resource,
        lambda body, cluster, image: configs.replace_configs(image, body.resources),
        "responses",
    ),
    versions.CREATE_ACLS: _decision(
        "creations",
        lambda _: {},
        lambda body, cluster, image: access.create_acls(image, body.creations, cluster.new_uuid),
    ),
    versions.DELETE_ACLS: _decision(
        "filters",
        lambda _: {"matching_acls": ()},
        lambda body, cluster, image: access.delete_acls(image, body.filters),
        "filter_results",
    ),
    versions.ALTER_CLIENT_QUOTAS: _decision(
        "entries",
        lambda entry: {"entity": entry.entity},
        lambda body, cluster, image: access.alter_quotas(image, body.entries),
        "entries",
    ),
    versions.ALTER_USER_SCRAM_CREDENTIALS: _decision(
        _users,
        lambda user: {"user": user},
        lambda body, cluster, image: access.alter_credentials(image, body.deletions, body.upsertions),
    ),
    versions.UPDATE_FEATURES: _decision("feature_updates", about_level, _update_features),
}
"""API key -> its decision.  kio knows versions 0 and 1 of UpdateFeatures; later versions have one error for all
features.
"""


def describe_log_dirs(image: Image, broker: int, log_dir: str, body: Any) -> Mapping[str, Any]:
    """Return the fields of the response.

    body: the request; without topics, it requests every replica that the broker hosts
    """
    wanted: dict[str, Collection[int]]
    if body.topics is None:
        wanted = {name: topic.partitions.keys() for name, topic in image.topics.items()}
    else:
        wanted = {topic.topic: topic.partitions for topic in body.topics}
    empty = {"partition_size": 0, "offset_lag": 0, "is_future_key": False}
    hosted = {
        name: [{"partition_index": number, **empty} for number in numbers if not _error_of(image, broker, name, number)]
        for name, numbers in wanted.items()
    }
    named = [{"name": name, "partitions": partitions} for name, partitions in hosted.items() if partitions]
    return {"results": [{"log_dir": log_dir, "topics": named}]}


def alter_replica_log_dirs(image: Image, broker: int, log_dir: str, body: Any) -> Mapping[str, Any]:
    """Report success for each replica that shall go to the broker's only folder, and an error for any other folder."""
    results: dict[str, list[Mapping[str, Any]]] = {}
    for wanted in body.dirs:
        for topic in wanted.topics:
            for number in topic.partitions:
                here = wanted.path == log_dir
                error = _error_of(image, broker, topic.name, number) if here else ErrorCode.log_dir_not_found
                results.setdefault(topic.name, []).append({"partition_index": number, "error_code": error})
    return {"results": [{"topic_name": name, "partitions": partitions} for name, partitions in results.items()]}


def _error_of(image: Image, broker: int, topic: str, partition: int) -> ErrorCode:
    """Return the reason why this broker has no log of the partition."""
    known = image.topics.get(topic)
    if known is None or partition not in known.partitions:
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.none if broker in known.partitions[partition].replicas else ErrorCode.replica_not_available


def _key(body: Any) -> ReplicaKey:
    return ReplicaKey(int(body.voter_id), body.voter_directory_id)


def _endpoints(body: Any) -> tuple[VoterEndpoint, ...]:
    return tuple(VoterEndpoint(each.name, each.host, int(each.port)) for each in body.listeners)


def _update(body: Any) -> VoterChange:
    levels = body.k_raft_version_feature
    supported = (int(levels.min_supported_version), int(levels.max_supported_version))
    return UpdateVoter(VoterEntry(_key(body), _endpoints(body), supported))


CHANGES: dict[int, Callable[[Any], VoterChange]] = {
    versions.ADD_RAFT_VOTER: lambda body: AddVoter(VoterEntry(_key(body), _endpoints(body))),
    versions.REMOVE_RAFT_VOTER: lambda body: RemoveVoter(_key(body)),
    versions.UPDATE_RAFT_VOTER: _update,
}
"""API key -> function that returns the change of the voters for a request."""


def why_malformed(cluster_id: str, body: Any) -> tuple[ErrorCode, str] | None:
    """Return the reason why no leader can carry out a request; None if a leader can."""
    if body.cluster_id not in (None, cluster_id):
        return ErrorCode.inconsistent_cluster_id, f"the request names another cluster than {cluster_id}"
    if body.voter_id < 0 or body.voter_directory_id is None:
        return ErrorCode.invalid_request, "the request must contain the voter's id and directory id"
    listeners = getattr(body, "listeners", None)
    if listeners is not None and not listeners:
        return ErrorCode.invalid_request, "the request contains no listener of the voter"
    return None


def respond(error: ErrorCode, message: str | None, leader: Any) -> Mapping[str, Any]:
    """Return the fields of the response.

    leader: (id, epoch, host, port) of the leader that this node knows, for UpdateRaftVoter
    """
    known = dict(zip(("leader_id", "leader_epoch", "host", "port"), leader, strict=True))
    return {"error_code": error, "error_message": message, "current_leader": known}


CONNECT_TIMEOUT_S = 1.0
CONNECTIONS_MAX = 8
"""Maximum number of connections to one controller.  A further request waits until a connection is free."""


def is_ours(client_id: str | None) -> bool:
    return client_id is not None and client_id.startswith(OUR_PREFIX)


@dataclass(slots=True)
class _Pool:
    free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONNECTIONS_MAX))
    idle: list[Connection] = field(default_factory=list)


class Forwarder:
    """One node's connections to controllers.

    sender: name of this node in the client id
    """

    def __init__(self, sender: str, network: Network | None = None) -> None:
        self._client_id = OUR_PREFIX + sender
        self._network = network
        self._pools: dict[tuple[str, int], _Pool] = {}

    async def forward(self, host: str, port: int, request: Entity, timeout_s: float) -> Entity:
        """Return the controller's answer to `request`.

        Raises NotQueued if the request was not sent, TimeoutError if it was sent and the outcome is unknown.
        """
        pool = self._pools.setdefault((host, port), _Pool())
        connection: Connection | None = None
        try:
            async with asyncio.timeout(timeout_s), pool.free:
                connection = pool.idle.pop() if pool.idle else self._connection(host, port)
                answer = await connection.ask(request)
                pool.idle.append(connection)
                return answer
        except (OSError, MalformedFrame) as problem:
            if connection is None or not connection.sent:
                raise NotQueued("the controller cannot be reached") from problem
            raise TimeoutError(f"no answer from the controller: {problem}") from problem

    def close(self) -> None:
        """Close the idle connections."""
        for pool in self._pools.values():
            while pool.idle:
                pool.idle.pop().close()

    def _connection(self, host: str, port: int) -> Connection:
        return Connection(host, port, self._client_id, connect_timeout_s=CONNECT_TIMEOUT_S, network=self._network)
