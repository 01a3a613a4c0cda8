"""The functions that etcd's client has, each as requests to the JSON gateway.

    read, write, cas          one key that holds a number: a linearizable range, a put, a transaction that compares
    add, members              one key per element under the set's name: a put, and a range over all of them
    increment, total          one key that holds the sum
    append, entries,          one key that holds the whole list as JSON
    enqueue, dequeue, drain
    put, append_text, get     one key that holds the string as JSON
    generate                  the revision at which one key was put: etcd gives each to one request
    transact_lists,           one key per list or register; all of them under one prefix
    transact_registers
    transfer, balances        one key per account

What reads and then writes (`_guarded`) is one operation all the same: the second request is a transaction that compares
the revision of every key that the first one read.  If another client was faster nothing happened, and it tries again.

Outcomes.  `Conversation.changing` is set before anything leaves that may change the store.  An operation without an
answer is unknown from then on; before, it certainly did not happen.

Runs on client nodes; needs only the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from system_under_test.etcd.gateway import BadAnswer, Gateway, from_gateway, to_gateway

RANGE, PUT, TXN = "/v3/kv/range", "/v3/kv/put", "/v3/kv/txn"
TRIES = 5
"""How often an operation that reads and then writes begins anew because another client was faster."""

Json = dict[str, Any]


class Beaten(RuntimeError):
    """Other clients were faster every time; nothing happened."""


class Conversation:
    """The requests of one operation over one connection."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.changing = False

    async def ask(self, path: str, body: Json, *, changes: bool = False) -> Json:
        """Raises what `Gateway.post` raises, and BadAnswer for what is no answer of etcd."""
        self.changing = self.changing or changes
        answer = await self._gateway.post(path, body)
        if "header" not in answer:
            raise BadAnswer("an answer without etcd's header")
        return answer

    def nothing_happened(self) -> None:
        """An answer proved that the request changed nothing."""
        self.changing = False


Operation = Callable[..., Awaitable[Any]]
"""Called with a conversation and with `system_under_test.functions.arguments`; returns what the function answers."""


async def create(talk: Conversation, key: str = "") -> None:
    """Nothing to make: ok once the cluster answers."""
    await talk.ask(RANGE, {"key": to_gateway(key or "krucible")})


# ---- registers ---------------------------------------------------------------------------------------------------


async def read(talk: Conversation, key: str) -> int | None:
    found = (await talk.ask(RANGE, {"key": to_gateway(key)})).get("kvs") or []
    return _number(found[0]) if found else None


async def write(talk: Conversation, key: str, value: int) -> None:
    await talk.ask(PUT, _put(key, str(value)), changes=True)


async def cas(talk: Conversation, key: str, expected: int | None, new: int) -> bool:
    holds = {"key": to_gateway(key), "target": "VALUE", "result": "EQUAL", "value": to_gateway(str(expected))}
    compare = holds if expected is not None else _unchanged(key, None)
    body = {"compare": [compare], "success": [{"request_put": _put(key, str(new))}]}
    return bool((await talk.ask(TXN, body, changes=True)).get("succeeded", False))


# ---- sets, counters, logs ----------------------------------------------------------------------------------------


async def add(talk: Conversation, key: str, value: int) -> None:
    await talk.ask(PUT, _put(f"{key}/{value}", str(value)), changes=True)


async def members(talk: Conversation, key: str) -> list[int]:
    body = {"key": to_gateway(f"{key}/"), "range_end": to_gateway(f"{key}0")}  # "0" follows "/"
    return [_number(found) for found in (await talk.ask(RANGE, body)).get("kvs") or []]


async def increment(talk: Conversation, key: str, amount: int) -> None:
    await _guarded(talk, [key], lambda held: {key: (held[key] or 0) + amount})


async def total(talk: Conversation, key: str) -> int:
    return await read(talk, key) or 0


async def append(talk: Conversation, key: str, value: int) -> int:
    held = await _guarded(talk, [key], lambda held: {key: [*(held[key] or []), value]})
    return len(held[key] or [])


async def entries(talk: Conversation, key: str) -> list[int]:
    return (await _held(talk, [key]))[0][key] or []


# ---- queues, strings, ids -----------------------------------------------------------------------------------------


async def enqueue(talk: Conversation, key: str, value: int) -> None:
    await append(talk, key, value)


async def dequeue(talk: Conversation, key: str) -> int | None:
    held = await _guarded(talk, [key], lambda held: {key: held[key][1:]} if held[key] else {})
    return held[key][0] if held[key] else None


async def drain(talk: Conversation, key: str) -> list[int]:
    held = await _guarded(talk, [key], lambda held: {key: []} if held[key] else {})
    return held[key] or []


async def put(talk: Conversation, key: str, text: str) -> None:
    await talk.ask(PUT, _put(key, json.dumps(text)), changes=True)


async def append_text(talk: Conversation, key: str, text: str) -> None:
    await _guarded(talk, [key], lambda held: {key: (held[key] or "") + text})


async def get(talk: Conversation, key: str) -> str:
    return (await _held(talk, [key]))[0][key] or ""


async def generate(talk: Conversation, key: str) -> int:
    answer = await talk.ask(PUT, _put(key, ""), changes=True)
    try:
        return int(answer["header"]["revision"])
    except (KeyError, TypeError, ValueError) as problem:
        raise BadAnswer("an answer without a revision") from problem


# ---- transactions ------------------------------------------------------------------------------------------------


async def transact_lists(talk: Conversation, steps: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return await _transact(talk, steps, lambda held, value: [*(held or []), value])


async def transact_registers(talk: Conversation, steps: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return await _transact(talk, steps, lambda held, value: value)


async def _transact(
    talk: Conversation, steps: Sequence[Sequence[Any]], written: Callable[[Any, Any], Any]
) -> list[list[Any]]:
    done: list[list[Any]] = []

    def play(held: Mapping[str, Any]) -> dict[str, Any]:
        done.clear()
        now, changed = dict(held), {}
        for f, key, value in steps:
            if f == "r":
                done.append([f, key, now[key]])
            else:
                changed[key] = now[key] = written(now[key], value)
                done.append([f, key, value])
        return changed

    await _guarded(talk, list(dict.fromkeys(key for _, key, _ in steps)), play)
    return done


# ---- accounts ----------------------------------------------------------------------------------------------------

_ACCOUNT = "account/"


async def open_account(talk: Conversation, account: str, balance: int) -> None:
    key = _ACCOUNT + account
    await _guarded(talk, [key], lambda held: {key: balance} if held[key] is None else {})


async def transfer(talk: Conversation, source: str, target: str, amount: int) -> bool:
    one, other = _ACCOUNT + source, _ACCOUNT + target

    def play(held: Mapping[str, Any]) -> dict[str, Any]:
        return {one: held[one] - amount, other: held[other] + amount} if held[one] >= amount else {}

    return bool((await _guarded(talk, [one, other], play))[one] >= amount)


async def balances(talk: Conversation) -> dict[str, int]:
    body = {"key": to_gateway(_ACCOUNT), "range_end": to_gateway("account0")}  # "0" follows "/"
    found = (await talk.ask(RANGE, body)).get("kvs") or []
    return {from_gateway(each["key"]).removeprefix(_ACCOUNT): _number(each) for each in found}


# ---- keys as JSON, read and written under guard ------------------------------------------------------------------


async def _guarded(
    talk: Conversation, keys: Sequence[str], play: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> dict[str, Any]:
    """Read all keys at one moment and write what `play` makes of them, if no key has changed since.

    Returns what was read.  Nothing is written where `play` changes nothing.  Raises Beaten.
    """
    for _ in range(TRIES):
        held, revisions = await _held(talk, keys)
        changed = play(held)
        if not changed:
            return held
        body = {
            "compare": [_unchanged(key, revisions.get(key)) for key in keys],
            "success": [{"request_put": _put(key, json.dumps(value))} for key, value in changed.items()],
        }
        if (await talk.ask(TXN, body, changes=True)).get("succeeded", False):
            return held
        talk.nothing_happened()
    raise Beaten(f"other clients were faster {TRIES} times")


async def _held(talk: Conversation, keys: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """(the value of each key, None where it holds nothing; the revision of each that holds something)."""
    body = {"success": [{"request_range": {"key": to_gateway(key)}} for key in keys]}
    responses = (await talk.ask(TXN, body)).get("responses") or []
    held: dict[str, Any] = dict.fromkeys(keys)
    revisions: dict[str, str] = {}
    try:
        for key, response in zip(keys, responses, strict=True):
            for found in response["response_range"].get("kvs") or []:
                held[key], revisions[key] = json.loads(from_gateway(found["value"])), str(found["mod_revision"])
    except (ValueError, KeyError, TypeError) as problem:
        raise BadAnswer("a transaction's answer that makes no sense") from problem
    return held, revisions


def _unchanged(key: str, revision: str | None) -> Json:
    """The comparison: the key is as it was in this revision, or still absent."""
    compare = {"key": to_gateway(key), "result": "EQUAL"}
    if revision is None:
        return {**compare, "target": "CREATE", "create_revision": "0"}
    return {**compare, "target": "MOD", "mod_revision": revision}


def _put(key: str, text: str) -> Json:
    return {"key": to_gateway(key), "value": to_gateway(text)}


def _number(found: Mapping[str, Any]) -> int:
    try:
        return int(from_gateway(found["value"]))
    except (ValueError, KeyError, TypeError) as problem:
        raise BadAnswer("a value that is no number") from problem


OPERATIONS: Mapping[str, Operation] = {
    operation.__name__: operation
    for operation in (
        *(create, read, write, cas, add, members, increment, total, append, entries),
        *(enqueue, dequeue, drain, put, append_text, get, generate),
        *(transact_lists, transact_registers, open_account, transfer, balances),
    )
}
