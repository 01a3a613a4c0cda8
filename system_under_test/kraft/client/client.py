"""The client of the bundled KRaft.

One attempt per request, over one connection per process.  `questions.py` says what is sent for a function, and
`outcomes.py` what an answer proves.

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
from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode

from checkers.base.history import Type
from system_under_test.client import Outcome, Placement, ProcessClient, Request
from system_under_test.kraft.client import outcomes
from system_under_test.kraft.client.decisions import may_resend
from system_under_test.kraft.client.finder import Controller, Finder
from system_under_test.kraft.client.questions import question
from system_under_test.kraft.wire.connection import Connection
from system_under_test.kraft.wire.extensions import OUR_PREFIX
from system_under_test.kraft.wire.frames import Entity, MalformedFrame

FIRST_SHARE = 0.4
"""Of an operation's time, where a planted bug needs time for a second attempt."""


def connect(
    placement: Placement, peers: Mapping[str, str], config: Mapping[str, Any], shared: dict[str, Any]
) -> ProcessClient:
    """A client for one process; see `system_under_test.client.ClientFactory`.

    config: what the subject's `client_config` returns; "bug" names a planted bug of the client.  "controllers": how
    many servers are no brokers.
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
    """One process.  finder: shared with the other processes of its client node.  broker_count: servers among the peers
    that hold replicas.
    functions: f of a request -> the function that serves it; an f that is missing names its function itself."""

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
        """See `system_under_test.client.ProcessClient.invoke`."""
        call = replace(request, f=self._functions.get(request.f, request.f))
        try:
            body = question(call, self.broker_count)
        except ValueError as problem:
            return Outcome(Type.FAIL, request.value, error=str(problem))
        if not may_resend(self._bugs):
            return await self._attempt(call, body, timeout_s)
        outcome = await self._attempt(call, body, timeout_s * FIRST_SHARE)
        if outcome.type is Type.INFO:
            outcome = await self._attempt(call, body, timeout_s * (1 - FIRST_SHARE))
        return outcome

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
        if outcomes.error_of(answer) == ErrorCode.not_controller:
            self._refused()
        return outcomes.of_answer(call, answer, node)

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

    def _unanswered(self, call: Request, connection: Connection | None, problem: Exception) -> Outcome:
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
            return Outcome(Type.FAIL, call.value, error=error, node=node)
        if isinstance(problem, TimeoutError):
            error = self._why_late("timed out")
        else:
            error = "malformed answer" if isinstance(problem, MalformedFrame) else "connection reset"
        return Outcome(outcomes.unknown(call), call.value, error=error, node=node)

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
