"""Asks etcd through its JSON gateway: a register is one key, holding its value in decimal.

    read    linearizable range; no such key reads as nil
    write   put
    cas     one transaction: compare the value (or that there is none), then put
    create  nothing to make, so a linearizable read: ok once the cluster answers

Outcomes.  A request that was never sent FAILs, and so does a read without an answer: it changed nothing.  A write is
INFO whenever it may have been sent and was not answered with success; etcd's own errors too, because "request timed
out" says nothing about the proposal that was on its way.  After anything but success the connection is closed.

Runs on client nodes; needs only the standard library.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from checkers.history import Type
from system_under_test.client import Client, Outcome, Placement, Request
from system_under_test.etcd.gateway import BadAnswer, Gateway, NoAnswer, NotSent, Rejected, from_gateway, to_gateway
from system_under_test.etcd.leadership import Leadership

_RANGE, _PUT, _TXN = "/v3/kv/range", "/v3/kv/put", "/v3/kv/txn"
_CHANGES = ("write", "cas")

_views: WeakValueDictionary[tuple[tuple[str, str], ...], Leadership] = WeakValueDictionary()


def connect(placement: Placement, peers: Mapping[str, str], config: Mapping[str, Any]) -> Client:
    """A client for one process; see `system_under_test.client.ClientFactory`.  `config` is not used."""
    key = tuple(sorted(peers.items()))
    view = _views.get(key)
    if view is None:
        view = _views[key] = Leadership(peers)
    return _EtcdClient(placement, peers, view)


class _EtcdClient:
    def __init__(self, placement: Placement, peers: Mapping[str, str], view: Leadership) -> None:
        self._peers = peers
        self._view = view
        self._choice = _Choice(placement, sorted(peers), view)
        self._member = ""
        self._gateway: Gateway | None = None
        view.retain()

    async def invoke(self, request: Request, timeout_s: float) -> Outcome:
        unanswered = Type.INFO if request.f in _CHANGES else Type.FAIL
        asked = self._member
        try:
            path, body = _question(request)
            async with asyncio.timeout(timeout_s):
                asked, gateway = await self._go()
                return _outcome(request, await gateway.post(path, body), asked)
        except _CannotAsk as refusal:
            return Outcome(Type.FAIL, error=str(refusal))
        except NotSent as problem:
            self._choice.refused_by(asked)
            return self._closed(Type.FAIL, f"not sent: {problem}", asked)
        except TimeoutError:
            sent = self._gateway is not None and self._gateway.sent
            return self._closed(unanswered if sent else Type.FAIL, "timeout" if sent else "not sent: timeout", asked)
        except (NoAnswer, Rejected, BadAnswer) as problem:
            return self._closed(unanswered, str(problem), asked)

    async def close(self) -> None:
        if self._gateway is not None:
            self._gateway.close()
        await self._view.release()

    async def _go(self) -> tuple[str, Gateway]:
        """Whom to ask now, and the connection there."""
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
    """Whom a process asks.

    Both kinds begin with the leader.  One that follows asks the leader of the highest term seen.  One that stays keeps
    its member until that refuses a connection, or says itself that it follows another: etcd passes requests on instead
    of refusing them, so without this nobody would ever ask the *next* leader directly.
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


class _CannotAsk(ValueError):
    """The request means nothing to this client; it is refused before sending."""


def _question(request: Request) -> tuple[str, dict[str, Any]]:
    if request.key is None:
        raise _CannotAsk("a register request needs a key")
    key = to_gateway(request.key)
    if request.f in ("read", "create"):
        return _RANGE, {"key": key}
    if request.f == "write" and request.value is not None:
        return _PUT, {"key": key, "value": to_gateway(str(request.value))}
    if request.f == "cas" and request.value2 is not None:
        put = {"request_put": {"key": key, "value": to_gateway(str(request.value2))}}
        return _TXN, {"compare": [_holds(key, request.value)], "success": [put]}
    raise _CannotAsk(f"etcd's client cannot {request.f} {request.value}")


def _holds(key: str, value: int | None) -> dict[str, Any]:
    if value is None:
        return {"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
    return {"key": key, "target": "VALUE", "result": "EQUAL", "value": to_gateway(str(value))}


def _outcome(request: Request, answer: Mapping[str, Any], node: str) -> Outcome:
    """What a successful answer says.  Raises BadAnswer if it is not an answer to this request."""
    if "header" not in answer:
        raise BadAnswer("an answer without etcd's header")
    if request.f == "read":
        return Outcome(Type.OK, value=_value_read(answer), node=node)
    if request.f == "cas" and not answer.get("succeeded", False):
        return Outcome(Type.FAIL, value=request.value, value2=request.value2, error="mismatch", node=node)
    return Outcome(Type.OK, value=request.value, value2=request.value2, node=node)


def _value_read(answer: Mapping[str, Any]) -> int | None:
    found = answer.get("kvs") or []
    try:
        return int(from_gateway(found[0]["value"])) if found else None
    except (ValueError, KeyError, TypeError) as problem:
        raise BadAnswer("a value that is no number") from problem
