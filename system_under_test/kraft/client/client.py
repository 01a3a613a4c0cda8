"""The client of the bundled KRaft: a key is a topic, and the register is its `retention.ms`.

    create  CreateTopics, one partition; a topic that is already there counts as ok
    write   IncrementalAlterConfigs SET retention.ms = value
    read    DescribeConfigs; no override (source DEFAULT) reads as nil

One attempt per request, over one connection per process.  `outcomes.py` says what an answer proves.

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
from system_under_test.client import Outcome, Placement, ProcessClient, Request
from system_under_test.kraft.client import outcomes
from system_under_test.kraft.client.decisions import may_resend
from system_under_test.kraft.client.finder import Controller, Finder
from system_under_test.kraft.controller.configs import ConfigOperation
from system_under_test.kraft.controller.records import TOPIC_RESOURCE
from system_under_test.kraft.wire.connection import Connection
from system_under_test.kraft.wire.extensions import OUR_PREFIX
from system_under_test.kraft.wire.frames import Entity, MalformedFrame

REPLICATION_FACTOR = 3

FIRST_SHARE = 0.4
"""Of an operation's time, where a planted bug needs time for a second attempt."""

_finders: WeakValueDictionary[tuple[object, ...], Finder] = WeakValueDictionary()


def connect(placement: Placement, peers: Mapping[str, str], config: Mapping[str, Any]) -> ProcessClient:
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
        """See `system_under_test.client.ProcessClient.invoke`."""
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
        if outcomes.error_of(answer) == ErrorCode.not_controller:
            self._refused()
        return outcomes.of_answer(request, answer, node)

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
        return Outcome(outcomes.unknown(request), request.value, error=error, node=node)

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
            resource_type=TOPIC_RESOURCE, resource_name=request.key, configuration_keys=(outcomes.CONFIG,)
        )
        return describe_configs.DescribeConfigsRequest(resources=(resource,))
    if request.f == "write" and request.value is not None:
        config = alter_configs.AlterableConfig(
            name=outcomes.CONFIG, config_operation=ConfigOperation.SET, value=str(request.value)
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
