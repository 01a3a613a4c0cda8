"""etcd's client: one process that invokes operations through the JSON gateway (`operations.py` says how each is made).

Outcomes.  A request that was never sent FAILs, and so does an operation without an answer that cannot have changed
anything.  All else is INFO unless etcd answered with success; etcd's own errors too, because "request timed out" says
nothing about the proposal that was on its way.  After anything but success the connection is closed.

Runs on client nodes; needs only the standard library.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from checkers.base.history import Type
from system_under_test.client import Outcome, Placement, ProcessClient, Request
from system_under_test.etcd.gateway import BadAnswer, Gateway, NotSent, NoUsableAnswer, Rejected
from system_under_test.etcd.leadership import Leadership
from system_under_test.etcd.operations import OPERATIONS, Beaten, Conversation
from system_under_test.functions import arguments, outcome


def connect(
    placement: Placement, peers: Mapping[str, str], config: Mapping[str, Any], shared: dict[str, Any]
) -> ProcessClient:
    """A client for one process; see `system_under_test.client.ClientFactory`.  config: "functions"."""
    if "view" not in shared:
        shared["view"] = Leadership(peers)
    view: Leadership = shared["view"]
    return _EtcdClient(placement, peers, view, config.get("functions") or {})


class _EtcdClient:
    def __init__(
        self, placement: Placement, peers: Mapping[str, str], view: Leadership, functions: Mapping[str, str]
    ) -> None:
        self._peers = peers
        self._functions = functions
        self._view = view
        self._choice = _Choice(placement, sorted(peers), view)
        self._member = ""
        self._gateway: Gateway | None = None
        view.retain()

    async def invoke(self, request: Request, timeout_s: float) -> Outcome:
        function = self._functions.get(request.f, request.f)
        if function not in OPERATIONS:
            return Outcome(Type.FAIL, error=f"etcd's client has no function {function}")
        try:
            given = arguments(function, request)
        except ValueError as problem:
            return Outcome(Type.FAIL, error=str(problem))
        member, talk = self._member, None
        try:
            async with asyncio.timeout(timeout_s):
                member, gateway = await self._go()
                talk = Conversation(gateway)
                answer = await OPERATIONS[function](talk, *given)
        except NotSent as problem:
            self._choice.refused_by(member)
            return self._closed(_unanswered(talk, sent=False), f"not sent: {problem}", member)
        except TimeoutError:
            sent = self._gateway is not None and self._gateway.sent
            return self._closed(_unanswered(talk, sent), "timeout" if sent else "not sent: timeout", member)
        except (NoUsableAnswer, Rejected, BadAnswer) as problem:
            return self._closed(_unanswered(talk, sent=True), str(problem), member)
        except Beaten as problem:
            return Outcome(Type.FAIL, error=str(problem), node=member)
        return outcome(function, request, answer, member)

    async def close(self) -> None:
        if self._gateway is not None:
            self._gateway.close()
        await self._view.release()

    async def _go(self) -> tuple[str, Gateway]:
        """The member that gets the next request, and the connection to it."""
        await self._view.first_view()
        member = self._choice.now()
        if member != self._member or self._gateway is None:
            if self._gateway is not None:
                self._gateway.close()
            self._member, self._gateway = member, Gateway(self._peers[member])
        return member, self._gateway

    def _closed(self, type: Type, error: str, node: str) -> Outcome:
        if self._gateway is not None:
            self._gateway.close()
        return Outcome(type, error=error, node=node)


class _Choice:
    """The member that gets the requests of a process.

    Both kinds begin with the leader.  One that follows asks the leader of the highest term seen.  One that stays keeps
    its member until that refuses a connection, or reports that it follows another.  etcd passes requests on instead of
    refusing them, so without this rule no process would ever reach the *next* leader directly.
    """

    def __init__(self, placement: Placement, members: Sequence[str], view: Leadership) -> None:
        self._follows = placement.follows
        self._members = members
        self._view = view
        self._current = members[placement.thread % len(members)]
        self._began = False
        self._refused: str | None = None

    def now(self) -> str:
        leader = self._view.leader
        move = self._follows or not self._began or self._refused == self._current or self._view.deposed(self._current)
        if move and leader is not None and leader != self._refused:
            self._current, self._refused, self._began = leader, None, True
        elif self._refused == self._current:
            self._current = self._members[(self._members.index(self._current) + 1) % len(self._members)]
        return self._current

    def refused_by(self, member: str) -> None:
        self._refused = member


def _unanswered(talk: Conversation | None, sent: bool) -> Type:
    """What an operation without an answer is.  sent: whether its last request was handed to the kernel.

    An operation sends at most one request that changes anything before it knows that request's outcome.
    """
    return Type.INFO if sent and talk is not None and talk.changing else Type.FAIL
