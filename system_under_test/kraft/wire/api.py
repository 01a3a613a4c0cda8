"""The requests of clients, served by one node.  (`server.py` answers ApiVersions.)

`admin.py` lists the decisions of the controller.  This module contains the requests that only read.

    call -> request to the quorum -> results, or one Refused for the whole request -> response entity

Refused requests.  Kafka answers 41 NOT_CONTROLLER both if a write was never queued, and if it was queued and its
controller then lost leadership.  Here the error_message of `NotQueued`, and of no other error, begins with the prefix
NOT_QUEUED.  A client that finds this prefix may conclude that the request did not happen.  A queued write fails with 41
without the prefix, or with 7 REQUEST_TIMED_OUT.

Answers without records.  An error like TOPIC_ALREADY_EXISTS makes no record, nor does a SET to the current value.
Kafka may answer such a request from the memory of a deposed controller.  Here `QuorumService.submit` holds the answer
back until all pending writes are committed and a majority has confirmed the leader, as for a read.

Reads.  Stock Kafka answers DescribeConfigs from the broker's own image, which may be stale.  Here it is a linearizable
read at the active controller.

A request that the controller decides needs no task: `take_at_once` submits it to the quorum, and the answer is sent
when the quorum calls back.

Other nodes.  A node that is not the active controller rejects requests of the project's own clients, so that each
controller, deposed or not, answers for itself.  It forwards requests of stock clients (`admin.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, TypeVar
from uuid import UUID

from kio.schema.default_principal_data.v0 import DefaultPrincipalData
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from system_under_test.kraft.controller import access, configs, features
from system_under_test.kraft.controller.image import Image, Refused
from system_under_test.kraft.controller.one_by_one import Found, Result, one_by_one, result
from system_under_test.kraft.ports import Network
from system_under_test.kraft.raft.changes import RaiseVersion
from system_under_test.kraft.records.metadata import BROKER_RESOURCE, Record
from system_under_test.kraft.wire import admin, answers, frames, packed, quorum_service, versions
from system_under_test.kraft.wire.admin import DECISIONS, Forwarder, is_ours, levels_wanted
from system_under_test.kraft.wire.brokers import list_reassignments
from system_under_test.kraft.wire.frames import (
    Entity,
    MalformedFrame,
    RequestHeader,
    codec,
    decode_request_body,
    decode_request_header,
    encode_response,
    packed_response,
)
from system_under_test.kraft.wire.server import Reply, WireCall
from system_under_test.kraft.wire.versions import OUR_PREFIX, built

_FOUND: dict[int, tuple[str, Callable[[Image, Any], Any], Any]] = {
    versions.DESCRIBE_ACLS: ("resources", access.describe_acls, ()),
    versions.DESCRIBE_CLIENT_QUOTAS: (
        "entries",
        lambda image, body: access.describe_quotas(image, body.components, strict=body.strict),
        None,
    ),
    versions.DESCRIBE_USER_SCRAM_CREDENTIALS: (
        "results",
        lambda image, body: access.describe_credentials(image, [user.name for user in body.users or ()]),
        (),
    ),
    versions.LIST_PARTITION_REASSIGNMENTS: ("topics", list_reassignments, ()),
}
"""API key -> (field of the response, function that returns its value from a linearizable read or raises Refused, value
of the field after Refused).
"""

CONTROLLER_APIS = frozenset({*DECISIONS, *_FOUND, versions.DESCRIBE_CONFIGS})
"""API keys of requests that only the active controller can answer."""

PARTITIONS_OF_A_RESPONSE_MAX = 2000
"""Maximum number of partitions of DescribeTopicPartitions: Kafka's max.request.partition.size.limit."""

T = TypeVar("T")


class Api:
    """Serves one node's clients.

    new_uuid: returns ids of new topics (a seeded function makes runs repeatable)
    timeout_s: maximum seconds that a request waits for the quorum, unless the request names fewer
    log_dir: the log folder that this node reports
    """

    def __init__(
        self,
        quorum: quorum_service.QuorumService,
        *,
        new_uuid: Callable[[], UUID],
        timeout_s: float = 30.0,
        network: Network | None = None,
        log_dir: str = "/",
    ) -> None:
        self._quorum = quorum
        self._cluster = quorum_service.DecisionContext(quorum, new_uuid)
        self._timeout_s = timeout_s
        self._log_dir = log_dir
        self._forwarder = Forwarder(f"node-{quorum.node_id}", network)
        self._limits: dict[int, asyncio.TimerHandle] = {}  # request number -> timer of its time limit
        self._numbers = count()

    def close(self) -> None:
        """Close the connections over which requests were forwarded.  Requests that still wait get no answer."""
        self._forwarder.close()
        for limit in self._limits.values():
            limit.cancel()
        self._limits.clear()

    def take_at_once(self, connection: int, header: RequestHeader, frame: bytes, at: int, reply: Reply) -> bool:
        """Submit a request that the active controller decides; see `server.TakeAtOnce`."""
        if header.api_key not in DECISIONS or header.api_key == versions.UPDATE_FEATURES:
            return False
        if not is_ours(header.client_id) and not self._quorum.is_active():
            return False
        usual = packed.read_write_request(header, frame, at)
        body = decode_request_body(header, frame, at) if usual is None else usual

        def answer(results: Any) -> None:
            reply(partial(_encode_results, header, results, usual=usual is not None))

        self._decide(header.api_key, body, answer)
        return True

    async def ask_controller(self, request: Entity, timeout_s: float) -> Entity:
        """Return the active controller's answer to a request that this node makes itself.

        Raises NotQueued if the request was not sent, TimeoutError if it was sent and there is no answer.
        """
        if not self._quorum.is_active():
            host, port = self._controller_address()
            return await self._forwarder.forward(host, port, request, timeout_s)
        call = WireCall(0, type(request).__api_key__, type(request).__version__, OUR_PREFIX, request)
        async with asyncio.timeout(timeout_s):
            return await self.handle(call)

    async def handle(self, call: WireCall) -> Entity:
        """Return the response to a call of one of the APIs above.  Raises KeyError for any other API."""
        respond = _RESPONDERS[call.api_key]
        refusal = None
        if self._belongs_elsewhere(call.api_key) and not is_ours(call.client_id):
            answer = await self._settle(self._forward(call), self._timeout_s)
            if not isinstance(answer, Refused):
                return answer
            refusal = answer
        return built(codec(call.api_key, call.version).response_type, await respond(self, call, refusal))

    def _belongs_elsewhere(self, api_key: int) -> bool:
        if api_key == versions.DESCRIBE_QUORUM or api_key in admin.CHANGES:
            return self._quorum.leader_id != self._quorum.node_id
        return api_key in CONTROLLER_APIS and not self._quorum.is_active()

    def _controller_address(self) -> tuple[str, int]:
        """Return the address of the leader.  Raises NotQueued if no other node is known to lead."""
        leader = self._quorum.leader_id
        address = None if leader in (None, self._quorum.node_id) else self._leader_address()
        if address is None:
            raise quorum_service.NotQueued("no controller known")
        return address

    def _leader_address(self) -> tuple[str, int] | None:
        leader = self._quorum.leader_id
        return None if leader is None else self._quorum.address_of(leader)

    async def _forward(self, call: WireCall) -> Entity:
        host, port = self._controller_address()
        return await self._forwarder.forward(host, port, call.body, self._timeout_s)

    async def _settle(self, work: Awaitable[T], timeout_s: float) -> T | Refused:
        """Return the quorum's answer, or the error that states how the request ended."""
        try:
            async with asyncio.timeout(timeout_s):
                return await work
        except Refused as why:
            return why
        except TimeoutError:
            return quorum_service.TooLate()

    async def _decided(self, call: WireCall, refusal: Refused | None) -> Any:
        """Return the answer to a request of an API in DECISIONS."""
        decision, body = DECISIONS[call.api_key], call.body
        if refusal is not None:
            return decision.respond(decision.refused(body, refusal))
        results: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._decide(call.api_key, body, lambda found: None if results.done() else results.set_result(found))
        return decision.respond(await results)

    def _decide(self, api_key: int, body: Any, answer: Callable[[Any], None]) -> None:
        """Submit a request of an API in DECISIONS.  `answer` is called once with the results, or never if this node
        ends.
        """
        decision = DECISIONS[api_key]
        timeout_s = self._timeout_s
        if hasattr(body, "timeout"):
            timeout_s = min(timeout_s, max(body.timeout.total_seconds(), 0.0))

        def settled(results: Any, problem: Exception | None) -> None:
            if (limit := self._limits.pop(number, None)) is not None:  # otherwise the time limit has already answered
                limit.cancel()
                assert problem is None or isinstance(problem, Refused)
                answer(results if problem is None else decision.refused(body, problem))

        number = next(self._numbers)
        late = partial(settled, None, quorum_service.TooLate())
        self._limits[number] = asyncio.get_running_loop().call_later(timeout_s, late)
        try:
            self._quorum.submit(partial(decision.run, body, self._cluster), settled, at_once=decision.at_once)
        except Refused as why:
            settled(None, why)

    async def _unwrap(self, call: WireCall, refusal: None) -> Any:
        """Answer a request that a broker forwards for its client in an envelope (KIP-590).

        The client's principal must be readable.  Every principal is allowed everything.
        """
        try:
            error, data = ErrorCode.none, await self._unwrapped(call)
        except Refused as refused:
            error, data = refused.error, None
        return {"response_data": data, "error_code": error}

    async def _unwrapped(self, call: WireCall) -> bytes:
        """Return the bytes of the answer, beginning with its header.  Raises Refused."""
        if not self._quorum.is_active():
            raise Refused(ErrorCode.not_controller, "This node is not the active controller.")
        body = call.body
        if not _is_principal(body.request_principal or b""):
            raise Refused(ErrorCode.principal_deserialization_failure, "The principal cannot be read.")
        if len(body.client_host_address) not in (4, 16):
            raise Refused(ErrorCode.invalid_request, "The client address is not an IP address.")
        try:
            header, at = decode_request_header(body.request_data)
            lowest, highest = versions.SUPPORTED.get(header.api_key, (0, -1))
            if header.api_key not in FORWARDABLE or not lowest <= header.version <= highest:
                known = header.api_key in FORWARDABLE
                error = ErrorCode.unsupported_version if known else ErrorCode.invalid_request
                raise Refused(error, f"API {header.api_key} version {header.version} is not forwarded.")
            inner = decode_request_body(header, body.request_data, at)
        except MalformedFrame as problem:
            raise Refused(ErrorCode.unsupported_version, str(problem)) from None
        answer = await self.handle(WireCall(call.connection, header.api_key, header.version, OUR_PREFIX, inner))
        return encode_response(header.correlation_id, answer)[4:]

    async def _update_features(self, call: WireCall, refusal: Refused | None) -> Any:
        """Answer UpdateFeatures.  Levels other than `kraft.version` are metadata records, which are decided like any
        other record.
        """
        raised = next((each for each in levels_wanted(call.body) if each.feature == features.KRAFT_VERSION), None)
        if refusal is not None or raised is None:
            return await self._decided(call, refusal)
        results = await self._settle(self._raise_version(call.body, raised), self._timeout_s)
        if isinstance(results, Refused):
            results = DECISIONS[call.api_key].refused(call.body, results)
        return DECISIONS[call.api_key].respond(results)

    async def _raise_version(self, body: Entity, raised: features.LevelWanted) -> list[Result]:
        """Check all levels, then set `kraft.version`, then the other levels.  If this node ceases to lead in between,
        only `kraft.version` is set, and the answer states that the outcome is unknown.
        """
        decision = DECISIONS[versions.UPDATE_FEATURES]
        results: list[Result] = await quorum_service.written(
            self._quorum, lambda image: ([], decision.decide(body, self._cluster, image)[1])
        )
        if any(each["error_code"] for each in results):
            return results
        change = RaiseVersion(raised.level, validates_only=quorum_service.validates_only(body))
        error, words = await self._quorum.change_voters(change)
        if error == ErrorCode.not_leader_or_follower:
            raise quorum_service.LostLeadership
        if error != ErrorCode.none:
            problem, wanted = Refused(ErrorCode(error), words), levels_wanted(body)
            return features.refused_levels(wanted, [problem if each == raised else None for each in wanted])
        return await quorum_service.written(self._quorum, partial(decision.run, body, self._cluster))

    async def _image(self, refusal: Refused | None) -> Image:
        """Return the image of a linearizable read.  Raises Refused."""
        image = await self._settle(self._quorum.read(), self._timeout_s) if refusal is None else refusal
        if isinstance(image, Refused):
            raise image
        return image

    async def _describe_configs(self, call: WireCall, refusal: Refused | None) -> Any:
        body = call.body

        def about(resource: Any) -> Found:
            return {**configs.about_resource(resource), "configs": ()}

        try:
            image = await self._image(refusal)
        except Refused as why:
            return {"results": [result(about(each), why) for each in body.resources]}
        brokers = self._brokers(image)

        def describe(resource: Any) -> tuple[Sequence[Record], Found]:
            kind, name = resource.resource_type, resource.resource_name
            configs.check_resource(image, kind, name)
            # An empty list of names requests all configs, as null does.
            names = resource.configuration_keys or None
            broker = brokers.get(name) if kind == BROKER_RESOURCE else None
            described = configs.describe_configs(image, name, names, kind, broker)
            return [], {"configs": [answers.described_config(each, body.include_synonyms) for each in described]}

        return {"results": one_by_one(body.resources, about, describe)[1]}

    def _brokers(self, image: Image) -> dict[str, configs.OfBroker]:
        """Return the brokers of the cluster, including fenced brokers, by their names as resources."""
        found = answers.brokers_of(self._quorum, image, fenced=True)
        return {str(each.id): configs.OfBroker(each.id, each.host, each.port, each.rack) for each in found}

    async def _found(self, call: WireCall, refusal: Refused | None) -> Any:
        """Return the result of a linearizable read, or the error of the whole request."""
        field, find, if_refused = _FOUND[call.api_key]
        try:
            return {field: find(await self._image(refusal), call.body)}
        except Refused as why:
            return result({field: if_refused}, why)

    async def _shown(self, call: WireCall, refusal: Refused | None) -> Any:
        """Return an answer from this node's own image or its view of the quorum."""
        return _SHOWN[call.api_key](self, self._quorum.committed_image(), call.body)

    def _config_resources(self, image: Image, body: Any) -> Any:
        wanted = getattr(body, "resource_types", (configs.CLIENT_METRICS,))
        return answers.list_config_resources(configs.list_resources(image, wanted, self._brokers(image)))

    def _topic_partitions(self, image: Image, body: Any) -> Any:
        cursor = None if body.cursor is None else (body.cursor.topic_name, body.cursor.partition_index)
        names = [topic.name for topic in body.topics]
        most = max(1, min(body.response_partition_limit, PARTITIONS_OF_A_RESPONSE_MAX))
        alive = frozenset(broker.id for broker in answers.brokers_of(self._quorum, image))
        return answers.describe_topic_partitions(image, names, cursor, most, alive)

    async def _change_voters(self, call: WireCall, refusal: Refused | None) -> Any:
        """Answer a change of the voters.  If the leader ceases to lead afterwards, it answers 6, although the change
        may still commit.
        """
        body, outcome = call.body, refusal
        if outcome is None and (malformed := admin.why_malformed(self._quorum.cluster_id, body)) is not None:
            outcome = Refused(*malformed)
        if outcome is None:
            timeout_s = body.timeout.total_seconds() if hasattr(body, "timeout") else self._timeout_s
            change = admin.CHANGES[call.api_key](body)
            work = self._quorum.change_voters(change)
            settled = await self._settle(work, min(self._timeout_s, max(timeout_s, 0.0)))
            outcome = settled if isinstance(settled, Refused) else Refused(ErrorCode(settled[0]), settled[1])
        leader = self._quorum.leader_id
        host, port = self._leader_address() or ("", 0)
        known = (-1 if leader is None else leader, self._quorum.epoch, host, port)
        return admin.respond(outcome.error, outcome.message or None, known)


FORWARDABLE = frozenset({*CONTROLLER_APIS, *admin.CHANGES, versions.DESCRIBE_QUORUM}) - {
    versions.ALTER_PARTITION,
    versions.ASSIGN_REPLICAS_TO_DIRS,
    versions.BROKER_HEARTBEAT,
    versions.BROKER_REGISTRATION,
    versions.CONTROLLER_REGISTRATION,
}
"""API keys of requests that a broker forwards for its clients.  Requests that brokers and controllers make for
themselves are not among them.
"""


def _is_principal(data: bytes) -> bool:
    """Return whether bytes are Kafka's DefaultPrincipalData of version 0."""
    try:
        frames.decode(DefaultPrincipalData, entity_reader(DefaultPrincipalData), data, 2)
        return data[:2] == b"\0\0"
    except MalformedFrame:
        return False


def _encode_results(header: RequestHeader, results: Any, *, usual: bool) -> bytes:
    """Return the frame of the answer to a request of an API in DECISIONS.

    usual: True if the request had the usual form (`packed.py`)
    """
    body = packed.pack_write_response(results) if usual else None
    if body is not None:
        return packed_response(header.correlation_id, body)
    kind = codec(header.api_key, header.version).response_type
    return encode_response(header.correlation_id, built(kind, DECISIONS[header.api_key].respond(results)))


_SHOWN: dict[int, Callable[[Api, Image, Any], Any]] = {
    versions.METADATA: lambda api, image, body: answers.metadata(api._quorum, image, body),
    versions.DESCRIBE_CLUSTER: lambda api, image, body: answers.describe_cluster(api._quorum, image, body),
    versions.DESCRIBE_QUORUM: lambda api, _, body: answers.describe_quorum(api._quorum, body.topics),
    versions.LIST_OFFSETS: lambda api, image, body: answers.list_offsets(api._quorum.node_id, image, body.topics),
    versions.DESCRIBE_LOG_DIRS: lambda api, image, body: admin.describe_log_dirs(
        image, api._quorum.node_id, api._log_dir, body
    ),
    versions.ALTER_REPLICA_LOG_DIRS: lambda api, image, body: admin.alter_replica_log_dirs(
        image, api._quorum.node_id, api._log_dir, body
    ),
    versions.DESCRIBE_TOPIC_PARTITIONS: Api._topic_partitions,
    versions.LIST_CONFIG_RESOURCES: Api._config_resources,
}
"""API key -> function that returns the fields of an answer from this node's own view."""

_RESPONDERS: dict[int, Callable[[Api, WireCall, Any], Awaitable[Any]]] = {
    **dict.fromkeys(DECISIONS, Api._decided),
    **dict.fromkeys(_SHOWN, Api._shown),
    versions.UPDATE_FEATURES: Api._update_features,
    versions.ENVELOPE: Api._unwrap,
    versions.DESCRIBE_CONFIGS: Api._describe_configs,
    **dict.fromkeys(admin.CHANGES, Api._change_voters),
    **dict.fromkeys(_FOUND, Api._found),
}
