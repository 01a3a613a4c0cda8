"""The client of the bundled KRaft: a key is a topic, and the register is its `retention.ms`.

    create  CreateTopics, one partition; a topic that is already there counts as ok
    write   IncrementalAlterConfigs SET retention.ms = value
    read    DescribeConfigs; no override (source DEFAULT) reads as nil

Outcomes.  One attempt per request, over one connection per process.

    answered without error                                    OK
    nothing was sent (refused, not connected in time)         FAIL
    41 with the mark NOT_QUEUED, or an error that proves
      that no record was written (validation)                 FAIL
    41 without the mark, 7, any other error                   INFO, reads FAIL
    no answer: timed out, reset, closed, malformed            INFO, reads FAIL; the connection is closed

The target.  A process that follows goes to the controller of the highest epoch its client node has seen.  If a later
one turns up while the process still waits for a former one, it gives that request up (no answer: INFO, reads FAIL) and
moves at once.  Otherwise it would wait through the very moments in which two leaders answer.  A process that stays
keeps the controller it knows until that one answers 41 or refuses the connection; a timeout does not make it move.
Without the second kind no process would ever ask a deposed leader, and stale reads would stay unseen.

Runs on client nodes; needs the standard library and kio.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from weakref import WeakValueDictionary

from kio.schema.create_topics.v7 import request as create_topics
from kio.schema.describe_configs.v4 import request as describe_configs
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1 import request as alter_configs

from checkers.base.history import Type
from system_under_test.client import Client, Outcome, Placement, Request
from system_under_test.kraft.client.decisions import may_resend
from system_under_test.kraft.client.finder import Controller, Finder
from system_under_test.kraft.controller.configs import ConfigOperation, ConfigSource
from system_under_test.kraft.controller.records import TOPIC_RESOURCE
from system_under_test.kraft.wire.connection import Connection
from system_under_test.kraft.wire.frames import Entity, MalformedFrame
from system_under_test.kraft.wire.marks import NOT_QUEUED, OUR_PREFIX

CONFIG = "retention.ms"
REPLICATION_FACTOR = 3

PROVE_NO_RECORD = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_topic_exception,
        ErrorCode.unsupported_version,
        ErrorCode.topic_already_exists,
        ErrorCode.invalid_partitions,
        ErrorCode.invalid_replication_factor,
        ErrorCode.invalid_replica_assignment,
        ErrorCode.invalid_config,
        ErrorCode.invalid_request,
        ErrorCode.policy_violation,
    }
)
"""Errors found while a request is judged: it then makes no records at all."""

REASON_MAX_CHARACTERS = 60

FIRST_SHARE = 0.4
"""Of an operation's time, where a planted bug needs time for a second attempt."""

_finders: WeakValueDictionary[tuple[object, ...], Finder] = WeakValueDictionary()


def connect(placement: Placement, peers: Mapping[str, str], config: Mapping[str, Any]) -> Client:
    """A client for one process; see `system_under_test.client.ClientFactory`.

    config: what the subject's `client_config` returns; "bug" names a planted bug of the client.
    """
    key = (placement.client_node, *sorted(peers.items()))
    finder = _finders.get(key)
    if finder is None:
        finder = _finders[key] = Finder(peers, f"{OUR_PREFIX}{placement.client_node}-finder")
    bug = config.get("bug")
    return KraftClient(placement, peers, finder, frozenset() if bug is None else frozenset({bug}))


class KraftClient:
    """One process.  finder: shared with the other processes of its client node."""

    def __init__(
        self, placement: Placement, peers: Mapping[str, str], finder: Finder, bugs: frozenset[str] = frozenset()
    ) -> None:
        self._bugs = bugs
        self._follows = placement.follows
        self._client_id = f"{OUR_PREFIX}{placement.client_node}-{placement.thread}"
        self._peers = dict(peers)
        self._finder = finder
        self._node = ""
        self._connection: Connection | None = None
        self._limit: asyncio.Timeout | None = None
        self._superseded = False
        finder.retain(self._later_epoch if self._follows else None)

    async def invoke(self, request: Request, timeout_s: float) -> Outcome:
        """See `system_under_test.client.Client.invoke`."""
        try:
            question = _question(request, len(self._peers))
        except ValueError as problem:
            return Outcome(Type.FAIL, request.value, error=str(problem))
        if not may_resend(self._bugs):
            return await self._attempt(request, question, timeout_s)
        outcome = await self._attempt(request, question, timeout_s * FIRST_SHARE)
        if outcome.type is Type.INFO:
            outcome = await self._attempt(request, question, timeout_s * (1 - FIRST_SHARE))
        return outcome

    async def _attempt(self, request: Request, question: Entity, timeout_s: float) -> Outcome:
        connection: Connection | None = None
        self._superseded = False
        try:
            async with asyncio.timeout(timeout_s) as self._limit:
                connection = await self._go()
                answer = await connection.ask(question)
        except (OSError, MalformedFrame) as problem:
            return self._unanswered(request, connection, problem)
        finally:
            self._limit = None
        node = self._node
        error, message = _error_of(answer)
        if error == ErrorCode.not_controller:
            self._refused()
        return _judge(request, answer, error, message, node)

    async def close(self) -> None:
        self._leave()
        await self._finder.release(self._later_epoch if self._follows else None)

    def _later_epoch(self, controller: Controller) -> None:
        """The finder has seen a later epoch: do not wait for its predecessor's answer any longer."""
        if self._limit is not None and not self._limit.expired() and self._node not in ("", controller.node):
            self._superseded = True
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def _go(self) -> Connection:
        """The connection to the controller that gets the next request."""
        if self._follows or not self._node:
            controller = await self._finder.controller()
            if controller.node != self._node:
                self._leave()
                self._node = controller.node
        if self._connection is None:
            host, _, port = self._peers[self._node].rpartition(":")
            self._connection = Connection(host, int(port), self._client_id)
        return self._connection

    def _unanswered(self, request: Request, connection: Connection | None, problem: Exception) -> Outcome:
        """The outcome of a request that got no answer; `Connection.ask` has closed the connection."""
        node = self._node if connection is not None else ""
        if connection is None or not connection.sent:
            if isinstance(problem, ConnectionRefusedError):
                self._refused()
                error = "connection refused"
            elif isinstance(problem, TimeoutError):
                error = "no controller known" if connection is None else self._why_late("connect timed out")
            else:
                error = "cannot connect"
            return Outcome(Type.FAIL, request.value, error=error, node=node)
        if isinstance(problem, TimeoutError):
            error = self._why_late("timed out")
        else:
            error = "malformed answer" if isinstance(problem, MalformedFrame) else "connection reset"
        return Outcome(_unknown(request), request.value, error=error, node=node)

    def _why_late(self, otherwise: str) -> str:
        return "gave up: a later epoch has another leader" if self._superseded else otherwise

    def _refused(self) -> None:
        """A process that stays moves now; one that follows waits until the finder knows better."""
        self._finder.hurry()
        if not self._follows:
            self._leave()

    def _leave(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._node = ""


def _question(request: Request, node_count: int) -> Entity:
    """Raises ValueError for a request this client does not know, in words."""
    if request.key is None:
        raise ValueError(f"{request.f} needs a key")
    if request.f == "read":
        resource = describe_configs.DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=request.key, configuration_keys=(CONFIG,)
        )
        return describe_configs.DescribeConfigsRequest(resources=(resource,))
    if request.f == "write" and request.value is not None:
        config = alter_configs.AlterableConfig(
            name=CONFIG, config_operation=ConfigOperation.SET, value=str(request.value)
        )
        altered = alter_configs.AlterConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=request.key, configs=(config,)
        )
        return alter_configs.IncrementalAlterConfigsRequest(resources=(altered,), validate_only=False)
    if request.f == "create":
        topic = create_topics.CreatableTopic(
            name=request.key,
            num_partitions=1,
            replication_factor=min(REPLICATION_FACTOR, node_count),
            assignments=(),
            configs=(),
        )
        return create_topics.CreateTopicsRequest(topics=(topic,), timeout=timedelta(seconds=30))
    raise ValueError(f"the KRaft client cannot {request.f} {request.value}")


def _only_result(answer: Entity) -> Any:
    """The one result of any of the three responses."""
    for name in ("topics", "responses", "results"):
        results = getattr(answer, name, None)
        if results:
            return results[0]
    return None


def _error_of(answer: Entity) -> tuple[int, str]:
    result = _only_result(answer)
    if result is None:
        return ErrorCode.unknown_server_error, "an answer without a result"
    return result.error_code, result.error_message or ""


def _judge(request: Request, answer: Entity, error: int, message: str, node: str) -> Outcome:
    if error == ErrorCode.none or (request.f == "create" and error == ErrorCode.topic_already_exists):
        return _answered(request, answer, node)
    if error == ErrorCode.not_controller and message.startswith(NOT_QUEUED):
        reason = message.removeprefix(NOT_QUEUED).lstrip(": ")[:REASON_MAX_CHARACTERS]
        return Outcome(Type.FAIL, request.value, error=f"not queued: {reason}", node=node)
    name = "not controller" if error == ErrorCode.not_controller else ErrorCode(error).name.replace("_", " ")
    kind = Type.FAIL if error in PROVE_NO_RECORD else _unknown(request)
    return Outcome(kind, request.value, error=name, node=node)


def _answered(request: Request, answer: Entity, node: str) -> Outcome:
    if request.f != "read":
        return Outcome(Type.OK, request.value, node=node)
    config = next((c for c in _only_result(answer).configs if c.name == CONFIG), None)
    if config is None:
        return Outcome(Type.FAIL, error=f"no {CONFIG} in the answer", node=node)
    if config.config_source != ConfigSource.TOPIC:
        return Outcome(Type.OK, None, node=node)
    try:
        return Outcome(Type.OK, int(config.value), node=node)
    except (TypeError, ValueError):
        return Outcome(Type.FAIL, error=f"{CONFIG} is no whole number", node=node)


def _unknown(request: Request) -> Type:
    """The type of an operation whose effect is unknown: a read has no effect."""
    return Type.FAIL if request.f == "read" else Type.INFO
