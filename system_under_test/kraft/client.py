"""The client of the bundled KRaft, and the finder of its active controller.

The client makes one attempt per request, over one connection per process.  Its functions are requests of Kafka's
protocol. A key is a topic, and the object is one of its configs:

    create            CreateTopics, one partition; a topic that is already there counts as ok
    write, read       a register: IncrementalAlterConfigs SET of REGISTER, and DescribeConfigs
    add, members      a set: IncrementalAlterConfigs APPEND to LIST, and DescribeConfigs
    append, entries   a log: the same list, whose order is that of the appends

A config without an override (source DEFAULT) is an empty object.  LIST contains pairs of a partition and a broker: the
element 7 is the member "7:0".  A list holds 32,767 bytes, about 4,000 elements.

*Proofs.*  Meaning of an answer, or of its absence, for an operation.

    answered without error                                    OK
    nothing was sent (refused, not connected in time)         FAIL
    41 with the mark NOT_QUEUED, or an error that proves
      that no record was written (validation)                 FAIL
    41 without the mark, 7, any other error                   INFO, reads FAIL
    no answer: timed out, reset, closed, malformed            INFO, reads FAIL; the connection is closed

"Reads" are all functions that observe.  They have no effect, so their outcome is never unknown.  In this table, `f` of
a request is the name of its function.

*Target.*  A process that follows uses the controller of the highest epoch that its client node has seen.  If a later
epoch appears while the process still waits for an earlier controller, the process abandons that request (no answer:
INFO, reads FAIL) and moves to the new controller at once.  Otherwise it would miss the time in which two leaders
answer.  A process that stays uses the controller that it knows until that controller answers 41 or refuses the
connection; a timeout does not make the process move.  Without processes that stay, no request would ever reach a
deposed leader, and stale reads would stay undetected.

*Finder.*  `Finder` finds the active controller, as one client node sees it.  A few times a second it sends
DescribeQuorum to every node, over separate connections: the answer names the leader and epoch that the node knows, with
or without error 6.  The highest epoch ever seen wins.  A deposed leader that has not noticed its deposition still names
itself in its old epoch; a client node that is cut off from all other nodes must believe that leader.

One Finder serves all processes of a client node.  Its traffic is client traffic: it travels on the data network, and
partitions cut it.  Processes read its result without waiting; only a process that knows no controller at all waits for
the Finder.

This module runs on client nodes and needs the standard library and kio.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from kio.schema.create_topics.v7 import request as create_topics
from kio.schema.describe_configs.v4 import request as describe_configs
from kio.schema.describe_quorum.v2 import request as describe
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1 import request as alter_configs

from checkers.base.history import Type
from system_under_test.client import Outcome, Placement, ProcessClient, Request
from system_under_test.functions import observes, outcome
from system_under_test.kraft.controller.configs import ConfigOperation, ConfigSource
from system_under_test.kraft.records.metadata import TOPIC_RESOURCE
from system_under_test.kraft.wire.channel import Connection
from system_under_test.kraft.wire.frames import Entity, MalformedFrame
from system_under_test.kraft.wire.translate import TOPIC
from system_under_test.kraft.wire.versions import NOT_QUEUED, OUR_PREFIX

REGISTER = "retention.ms"
LIST = "follower.replication.throttled.replicas"

OBSERVED: Mapping[str, str] = {"read": REGISTER, "members": LIST, "entries": LIST}
"""Function that reads -> its config."""

CHANGED: Mapping[str, tuple[str, ConfigOperation]] = {
    "write": (REGISTER, ConfigOperation.SET),
    "add": (LIST, ConfigOperation.APPEND),
    "append": (LIST, ConfigOperation.APPEND),
}
"""Function that changes -> its config, and the operation on the config."""

FUNCTIONS = frozenset({"create", *OBSERVED, *CHANGED})

REPLICATION_FACTOR = 3


def question(request: Request, broker_count: int) -> Entity:
    """Return the request of Kafka's protocol for the function `request.f`.  Raises ValueError, with a message, for an
    unknown function.
    """
    function, key = request.f, request.key
    if key is None:
        raise ValueError(f"{function} needs a key")
    if function == "create":
        topic = create_topics.CreatableTopic(
            name=key,
            num_partitions=1,
            replication_factor=min(REPLICATION_FACTOR, broker_count),
            assignments=(),
            configs=(),
        )
        return create_topics.CreateTopicsRequest(topics=(topic,), timeout=timedelta(seconds=30))
    if function in OBSERVED:
        resource = describe_configs.DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=key, configuration_keys=(OBSERVED[function],)
        )
        return describe_configs.DescribeConfigsRequest(resources=(resource,))
    if function in CHANGED and request.value is not None:
        name, operation = CHANGED[function]
        value = f"{request.value}:0" if name == LIST else str(request.value)
        config = alter_configs.AlterableConfig(name=name, config_operation=operation, value=value)
        altered = alter_configs.AlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=key, configs=(config,))
        return alter_configs.IncrementalAlterConfigsRequest(resources=(altered,), validate_only=False)
    raise ValueError(f"the KRaft client cannot {function} {request.value}")


def value_of(config: str, text: str | None) -> int | list[int] | None:
    """Return the value of a config.  Raises ValueError for a text that no client can write.

    text: None if the config has no override
    """
    if config == REGISTER:
        return None if text is None else int(text)
    return [_element(member) for member in text.split(",")] if text else []


def _element(member: str) -> int:
    element, _, broker = member.partition(":")
    if broker != "0":
        raise ValueError(f"{member!r} is no element")
    return int(element)


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
"""Errors of the validation of a request, which precedes all records."""

REASON_MAX_CHARACTERS = 60


def _only_result(answer: Entity) -> Any:
    """Return the only result in any of the three responses."""
    for name in ("topics", "responses", "results"):
        results = getattr(answer, name, None)
        if results:
            return results[0]
    return None


def error_of(answer: Entity) -> int:
    """Return the error code of an answer; an answer without a result counts as an unknown server error."""
    result = _only_result(answer)
    return ErrorCode.unknown_server_error if result is None else int(result.error_code)


def of_answer(request: Request, answer: Entity, node: str) -> Outcome:
    """Return the outcome that a node's answer proves."""
    message = getattr(_only_result(answer), "error_message", None) or ""
    return of_error(request, answer, error_of(answer), message, node)


def of_error(request: Request, answer: Entity, error: int, message: str, node: str) -> Outcome:
    """Return the outcome for an answer with this error code and message.  `answer` is only read if there is no
    error.
    """
    if error == ErrorCode.none or (request.f == "create" and error == ErrorCode.topic_already_exists):
        return _answered(request, answer, node)
    if error == ErrorCode.not_controller and message.startswith(NOT_QUEUED):
        reason = message.removeprefix(NOT_QUEUED).lstrip(": ")[:REASON_MAX_CHARACTERS]
        return Outcome(Type.FAIL, request.value, error=f"not queued: {reason}", node=node)
    name = "not controller" if error == ErrorCode.not_controller else ErrorCode(error).name.replace("_", " ")
    kind = Type.FAIL if error in PROVE_NO_RECORD else unknown(request)
    return Outcome(kind, request.value, error=name, node=node)


def _answered(request: Request, answer: Entity, node: str) -> Outcome:
    if request.f not in OBSERVED:
        return outcome(request.f, request, None, node)
    wanted = OBSERVED[request.f]
    config = next((c for c in _only_result(answer).configs if c.name == wanted), None)
    if config is None:
        return Outcome(Type.FAIL, error=f"no {wanted} in the answer", node=node)
    try:
        value = value_of(wanted, config.value if config.config_source == ConfigSource.TOPIC else None)
        return outcome(request.f, request, value, node)
    except (TypeError, ValueError):
        return Outcome(Type.FAIL, error=f"{wanted} contains a value that no client writes", node=node)


def unknown(request: Request) -> Type:
    """Return the type of an operation without an answer: FAIL if it only observes, because it has no effect, else
    INFO.
    """
    return Type.FAIL if observes(request.f) else Type.INFO


FIRST_SHARE = 0.4
"""Fraction of an operation's time limit for the first attempt, if a planted bug makes a second attempt."""


def connect(
    placement: Placement, peers: Mapping[str, str], config: Mapping[str, Any], shared: dict[str, Any]
) -> ProcessClient:
    """Return a client for one process (`system_under_test.client.ClientFactory`).

    config: result of the subject's `client_config`. "bug" names a planted bug of the client; "controllers" is the
        number of servers that are no brokers.
    """
    if "finder" not in shared:
        shared["finder"] = Finder(peers, f"{OUR_PREFIX}{placement.client_node}-finder")
    finder: Finder = shared["finder"]
    client = KraftClient(
        placement,
        peers,
        finder,
        config.get("functions") or {},
        frozenset({config["bug"]} if config.get("bug") else ()),
    )
    client.broker_count = len(peers) - int(config.get("controllers", 0))
    return client


class KraftClient:
    """The client of one process.

    finder: finder shared with the other processes of its client node
    broker_count: number of servers among the peers that can have replicas
    functions: `f` of a request -> function that executes it; an `f` that is missing here is itself the name of a
        function
    """

    def __init__(
        self,
        placement: Placement,
        peers: Mapping[str, str],
        finder: Finder,
        functions: Mapping[str, str] | None = None,
        bugs: frozenset[str] = frozenset(),
    ) -> None:
        self._functions = functions or {}
        self._bugs = bugs
        self._follows = placement.follows
        self._client_id = f"{OUR_PREFIX}{placement.client_node}-{placement.thread}"
        self._peers = dict(peers)
        self.broker_count = len(peers)
        self._finder = finder
        self._node = ""
        self._connection: Connection | None = None
        self._limit: asyncio.Timeout | None = None
        self._superseded = False
        finder.retain(self._later_epoch if self._follows else None)

    async def invoke(self, request: Request, timeout_s: float) -> Outcome:
        """Execute a request (`system_under_test.client.ProcessClient.invoke`)."""
        call = replace(request, f=self._functions.get(request.f, request.f))
        try:
            body = question(call, self.broker_count)
        except ValueError as problem:
            return Outcome(Type.FAIL, request.value, error=str(problem))
        if not may_resend(self._bugs):
            return await self._attempt(call, body, timeout_s)
        first = await self._attempt(call, body, timeout_s * FIRST_SHARE)
        if first.type is not Type.INFO:
            return first
        return await self._attempt(call, body, timeout_s * (1 - FIRST_SHARE))

    async def _attempt(self, call: Request, body: Entity, timeout_s: float) -> Outcome:
        connection: Connection | None = None
        self._superseded = False
        try:
            async with asyncio.timeout(timeout_s) as self._limit:
                connection = await self._go()
                answer = await connection.ask(body)
        except (OSError, MalformedFrame) as problem:
            return self._unanswered(call, connection, problem)
        finally:
            self._limit = None
        node = self._node
        if error_of(answer) == ErrorCode.not_controller:
            self._refused()
        return of_answer(call, answer, node)

    async def close(self) -> None:
        self._leave()
        await self._finder.release(self._later_epoch if self._follows else None)

    def _later_epoch(self, controller: Controller) -> None:
        """Stop waiting for an answer of an earlier epoch, because the finder has seen a later one."""
        if self._limit is not None and not self._limit.expired() and self._node not in ("", controller.node):
            self._superseded = True
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def _go(self) -> Connection:
        """Return the connection to the controller for the next request."""
        if self._follows or not self._node:
            controller = await self._finder.controller()
            if controller.node != self._node:
                self._leave()
                self._node = controller.node
        if self._connection is None:
            host, _, port = self._peers[self._node].rpartition(":")
            self._connection = Connection(host, int(port), self._client_id)
        return self._connection

    def _unanswered(self, call: Request, connection: Connection | None, problem: Exception) -> Outcome:
        """Return the outcome of an unanswered request; `Connection.ask` has closed the connection."""
        node = self._node if connection is not None else ""
        if connection is None or not connection.sent:
            if isinstance(problem, ConnectionRefusedError):
                self._refused()
                error = "connection refused"
            elif isinstance(problem, TimeoutError):
                error = "no controller known" if connection is None else self._why_late("connect timed out")
            else:
                error = "cannot connect"
            return Outcome(Type.FAIL, call.value, error=error, node=node)
        if isinstance(problem, TimeoutError):
            error = self._why_late("timed out")
        else:
            error = "malformed answer" if isinstance(problem, MalformedFrame) else "connection reset"
        return Outcome(unknown(call), call.value, error=error, node=node)

    def _why_late(self, otherwise: str) -> str:
        return "gave up: a later epoch has another leader" if self._superseded else otherwise

    def _refused(self) -> None:
        """Leave the server at once if the process stays with one; if it follows the leader, make the finder look
        again.
        """
        self._finder.hurry()
        if not self._follows:
            self._leave()

    def _leave(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._node = ""


RESENDS_AFTER_TIMEOUT = "resends-after-timeout"

BUGS: dict[str, str] = {
    RESENDS_AFTER_TIMEOUT: "the client retries a write without an answer, and reports the outcome of the retry",
}
"""Every planted bug of the client, with its effect."""


def may_resend(bugs: Collection[str] = ()) -> bool:
    """Return True if a write with unknown outcome is sent again.  Without a planted bug it never is, because the first
    write may still take effect later.
    """
    return RESENDS_AFTER_TIMEOUT in bugs


REFRESH_S = 0.15
HURRY_S = 0.05
"""Minimum seconds between two requests of the finder.  After a refusal it sends the next request without waiting for
REFRESH_S.
"""
PATIENCE_S = 0.5
"""Maximum seconds that one node may take to answer."""

WHO_LEADS = describe.DescribeQuorumRequest(
    topics=(describe.TopicData(topic_name=TOPIC, partitions=(describe.PartitionData(partition_index=0),)),)
)


@dataclass(frozen=True, slots=True)
class Controller:
    node: str
    epoch: int


Listener = Callable[[Controller], None]


class Finder:
    """Finder of the active controller.

    It starts with the first call of `controller`; `retain` and `release` count its clients, and the last release stops
    the finder.  A client that must be notified of later epochs at once passes a listener to both methods.

    peers: node name -> "host:port"
    """

    def __init__(self, peers: Mapping[str, str], client_id: str) -> None:
        self._addresses = dict(peers)
        self._client_id = client_id
        self._names: dict[int, str] = {}
        self._best: Controller | None = None
        self._found = asyncio.Event()
        self._hurry = asyncio.Event()
        self._hurried_at = 0.0
        self._watchers: list[asyncio.Task[None]] = []
        self._users = 0
        self._listeners: list[Listener] = []

    @property
    def best(self) -> Controller | None:
        """Return the controller of the highest epoch seen; None while there is none."""
        return self._best

    async def controller(self) -> Controller:
        """Wait until a controller is known, and return `best`."""
        if not self._watchers:
            self._watchers = [asyncio.ensure_future(self._watch(node)) for node in self._addresses]
        while self._best is None:
            await self._found.wait()
        return self._best

    def hurry(self) -> None:
        """Send the request for the leader again at once, after a refusal."""
        now = asyncio.get_running_loop().time()
        if now - self._hurried_at >= HURRY_S:
            self._hurried_at = now
            self._hurry.set()
            self._hurry = asyncio.Event()

    def retain(self, listener: Listener | None = None) -> None:
        self._users += 1
        if listener is not None:
            self._listeners.append(listener)

    async def release(self, listener: Listener | None = None) -> None:
        self._users -= 1
        if listener is not None:
            self._listeners.remove(listener)
        if self._users == 0:
            watchers, self._watchers = self._watchers, []
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)

    async def _watch(self, node: str) -> None:
        host, _, port = self._addresses[node].rpartition(":")
        connection = Connection(host, int(port), self._client_id)
        try:
            while True:
                hurry = self._hurry
                try:
                    async with asyncio.timeout(PATIENCE_S):
                        self._learn(node, await connection.ask(WHO_LEADS))
                except (OSError, MalformedFrame):
                    pass  # a node that does not answer proves nothing about the controller; the connection is closed
                try:
                    async with asyncio.timeout(REFRESH_S):
                        await hurry.wait()
                except TimeoutError:
                    continue
        finally:
            connection.close()

    def _learn(self, answering: str, answer: Any) -> None:
        if not answer.topics or not answer.topics[0].partitions:
            return
        partition = answer.topics[0].partitions[0]
        for node in answer.nodes:
            addresses = {f"{listener.host}:{listener.port}" for listener in node.listeners}
            for peer in (name for name, address in self._addresses.items() if address in addresses):
                self._names[node.node_id] = peer
        if partition.error_code == 0:
            self._names[partition.leader_id] = answering  # only the leader itself answers without error
        name = self._names.get(partition.leader_id)
        if name is not None and (self._best is None or partition.leader_epoch > self._best.epoch):
            self._best = Controller(name, partition.leader_epoch)
            self._found.set()
            for listener in self._listeners:
                listener(self._best)
