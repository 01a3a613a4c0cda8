"""etcd's client, over its JSON gateway: the functions it has, each as requests.

    read, write, cas          one key that holds a number: a linearizable range, a put, a transaction that compares
    add, members              one key per element under the set's name: a put, and a range over all of them
    increment, total          one key that holds the sum
    append, entries,          one key that holds the whole list as JSON
    enqueue, dequeue, drain
    put, append_text, get     one key that holds the string as JSON
    generate                  the revision at which one key was put: etcd gives each to one request
    read_shown, write_shown   as read and write, with the revision of the answer
    digest                    etcd's hash of all that a member holds at a revision
    transact_lists,           one key per list or register; all of them under one prefix
    transact_registers
    transfer, balances        one key per account

What reads and then writes (`_guarded`) is one operation all the same: the second request is a transaction that compares
the revision of every key that the first one read.  If another client was faster nothing happened, and it tries again.

What matters is *knowing what may have happened*.  `NotSent` is raised only while not a byte of a request has been
handed to the kernel.  After that every failure of a change is unknown: etcd's own errors too, because "request timed
out" says nothing about the proposal that was on its way.

Runs on client nodes; needs only the standard library.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from system_under_test.client import Address, Client

RANGE, PUT, TXN = "/v3/kv/range", "/v3/kv/put", "/v3/kv/txn"
PEER_PORT, HASH = 2380, "/members/hashkv"
"""Port and path by which members ask each other for a hash of their data: old releases' gateway has none."""
DIGEST_EVERY = 100
"""Digests are taken of revisions that this number divides, so that several members are asked for the same one."""
TRIES = 5
"""Attempts of an operation that reads and then writes, as long as another client was faster."""

STATUS_PATH = "/v3/maintenance/status"
PATIENCE_S = 0.5
"""Seconds that a member may take to report its status."""
_ACCOUNT = "account/"

Json = dict[str, Any]


class Beaten(RuntimeError):
    """Other clients were faster every time; nothing happened."""


class EtcdClient(Client):
    """Asks the leader, or stays with a member until that follows another one: etcd forwards what it gets.

    A method sets `harmless` to False before the first request that changes anything.
    """

    harmless = True

    async def leader(self) -> str | None:
        """Return the leader of the highest term that a member reports; while none leads, the last one that did.

        A member answers its status from its own memory.  A deposed leader that has not noticed goes on claiming to
        lead, and a client that is cut off from the new leader rightly keeps the old one.
        """
        statuses = await asyncio.gather(*map(self._status, self.servers))
        named = [(s.term, s.leader_id) for s in statuses if s is not None and s.leader_id]
        names = {s.member_id: name for name, s in zip(self.servers, statuses, strict=True) if s is not None}
        self._names = {**self._names, **names}
        led = [(term, self._names[leader]) for term, leader in named if leader in self._names]
        EtcdClient._led = max(led)[1] if led else self._led
        return self._led

    async def deposed(self) -> bool:
        status = await self._status(self._member)
        return status is not None and status.leader_id not in ("", status.member_id)

    _led: str | None = None
    _names: Mapping[str, str] = {}
    """Member id -> name."""

    async def open(self, server: Address) -> Gateway:
        self._member = server.node
        gateway = Gateway(f"{server.host}:{server.port}")
        await gateway.connect()
        return gateway

    async def _status(self, name: str) -> MemberStatus | None:
        server = self.servers[name]
        gateway = Gateway(f"{server.host}:{server.port}")
        try:
            async with asyncio.timeout(PATIENCE_S):
                return read_status(await gateway.post(STATUS_PATH, {}))
        except (TimeoutError, ConnectionError, Rejected, ValueError):
            return None
        finally:
            gateway.close()

    async def _ask(self, path: str, body: Json, *, changes: bool = False) -> Json:
        """Raises what `Gateway.post` raises, and BadAnswer for what is no answer of etcd."""
        await self.connection.connect()
        self.harmless = self.harmless and not changes
        answer: Json = await self.connection.post(path, body)
        if "header" not in answer:
            raise BadAnswer("an answer without etcd's header")
        return answer

    async def create(self, key: str | None = None) -> None:
        """Return once the cluster answers: there is nothing to make."""
        await self._ask(RANGE, {"key": to_gateway(key or "krucible")})

    # ---- registers -----------------------------------------------------------------------------------------------

    async def read(self, key: str) -> int | None:
        found = (await self._ask(RANGE, {"key": to_gateway(key)})).get("kvs") or []
        return _number(found[0]) if found else None

    async def write(self, key: str, value: int) -> None:
        await self._ask(PUT, _put(key, str(value)), changes=True)

    async def cas(self, key: str, expected: int | None, new: int) -> bool:
        holds = {"key": to_gateway(key), "target": "VALUE", "result": "EQUAL", "value": to_gateway(str(expected))}
        compare = holds if expected is not None else _unchanged(key, None)
        body = {"compare": [compare], "success": [{"request_put": _put(key, str(new))}]}
        return bool((await self._ask(TXN, body, changes=True)).get("succeeded", False))

    # ---- sets, counters, logs ------------------------------------------------------------------------------------

    async def add(self, key: str, value: int) -> None:
        await self._ask(PUT, _put(f"{key}/{value}", str(value)), changes=True)

    async def members(self, key: str) -> list[int]:
        body = {"key": to_gateway(f"{key}/"), "range_end": to_gateway(f"{key}0")}  # "0" follows "/"
        return [_number(found) for found in (await self._ask(RANGE, body)).get("kvs") or []]

    async def increment(self, key: str, amount: int) -> None:
        await self._guarded([key], lambda held: {key: (held[key] or 0) + amount})

    async def total(self, key: str) -> int:
        return await self.read(key) or 0

    async def append(self, key: str, value: int) -> int:
        held = await self._guarded([key], lambda held: {key: [*(held[key] or []), value]})
        return len(held[key] or [])

    async def entries(self, key: str) -> list[int]:
        return (await self._held([key]))[0][key] or []

    # ---- queues, strings, ids -------------------------------------------------------------------------------------

    async def enqueue(self, key: str, value: int) -> None:
        await self.append(key, value)

    async def dequeue(self, key: str) -> int | None:
        held = await self._guarded([key], lambda held: {key: held[key][1:]} if held[key] else {})
        return held[key][0] if held[key] else None

    async def drain(self, key: str) -> list[int]:
        held = await self._guarded([key], lambda held: {key: []} if held[key] else {})
        return held[key] or []

    async def put(self, key: str, text: str) -> None:
        await self._ask(PUT, _put(key, json.dumps(text)), changes=True)

    async def append_text(self, key: str, text: str) -> None:
        await self._guarded([key], lambda held: {key: (held[key] or "") + text})

    async def get(self, key: str) -> str:
        return (await self._held([key]))[0][key] or ""

    async def generate(self, key: str) -> int:
        return self._shown(await self._ask(PUT, _put(key, ""), changes=True))

    # ---- the order that etcd shows -------------------------------------------------------------------------------

    _revision = 0

    def _shown(self, answer: Json) -> int:
        try:
            self._revision = int(answer["header"]["revision"])
        except (KeyError, TypeError, ValueError) as problem:
            raise BadAnswer("an answer without a revision") from problem
        return self._revision

    async def write_shown(self, key: str, value: int) -> int:
        return self._shown(await self._ask(PUT, _put(key, str(value)), changes=True))

    async def read_shown(self, key: str) -> tuple[int | None, int]:
        answer = await self._ask(RANGE, {"key": to_gateway(key)})
        found = answer.get("kvs") or []
        return _number(found[0]) if found else None, self._shown(answer)

    async def digest(self) -> tuple[int, str]:
        """Ask this member for the hash of all that it holds at a revision which others are asked for, too."""
        position = self._revision - self._revision % DIGEST_EVERY
        if not position:
            await self.read_shown("krucible")
            position = max(self._revision - self._revision % DIGEST_EVERY, 1)
        member = Gateway(f"{self.servers[self._member].host}:{PEER_PORT}")
        try:
            answer = await member.post(HASH, {"revision": position}, method="GET")
        finally:
            member.close()
        if not isinstance(answer.get("hash"), int) or answer.get("hash_revision", position) != position:
            raise BadAnswer("an answer without the hash of that revision")
        return position, f"{answer['hash']} from {answer.get('compact_revision', 0)}"

    # ---- transactions --------------------------------------------------------------------------------------------

    async def transact_lists(self, steps: Sequence[Sequence[Any]]) -> list[list[Any]]:
        return await self._transact(steps, lambda held, value: [*(held or []), value])

    async def transact_registers(self, steps: Sequence[Sequence[Any]]) -> list[list[Any]]:
        return await self._transact(steps, lambda held, value: value)

    async def _transact(self, steps: Sequence[Sequence[Any]], written: Callable[[Any, Any], Any]) -> list[list[Any]]:
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

        await self._guarded(list(dict.fromkeys(key for _, key, _ in steps)), play)
        return done

    # ---- accounts ------------------------------------------------------------------------------------------------

    async def open_account(self, account: str, balance: int) -> None:
        key = _ACCOUNT + account
        await self._guarded([key], lambda held: {key: balance} if held[key] is None else {})

    async def transfer(self, source: str, target: str, amount: int) -> bool:
        one, other = _ACCOUNT + source, _ACCOUNT + target

        def play(held: Mapping[str, Any]) -> dict[str, Any]:
            return {one: held[one] - amount, other: held[other] + amount} if held[one] >= amount else {}

        return bool((await self._guarded([one, other], play))[one] >= amount)

    async def balances(self) -> dict[str, int]:
        body = {"key": to_gateway(_ACCOUNT), "range_end": to_gateway("account0")}  # "0" follows "/"
        found = (await self._ask(RANGE, body)).get("kvs") or []
        return {from_gateway(each["key"]).removeprefix(_ACCOUNT): _number(each) for each in found}

    # ---- keys as JSON, read and written under guard ------------------------------------------------------------

    async def _guarded(
        self, keys: Sequence[str], play: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Read all keys at one moment and write what `play` makes of them, if no key has changed since.

        Returns what was read.  Nothing is written where `play` changes nothing.  Raises Beaten.
        """
        for _ in range(TRIES):
            held, revisions = await self._held(keys)
            changed = play(held)
            if not changed:
                return held
            body = {
                "compare": [_unchanged(key, revisions.get(key)) for key in keys],
                "success": [{"request_put": _put(key, json.dumps(value))} for key, value in changed.items()],
            }
            if (await self._ask(TXN, body, changes=True)).get("succeeded", False):
                return held
            self.harmless = True
        raise Beaten(f"other clients were faster {TRIES} times")

    async def _held(self, keys: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
        """(the value of each key, None where it holds nothing; the revision of each that holds something)."""
        body = {"success": [{"request_range": {"key": to_gateway(key)}} for key in keys]}
        responses = (await self._ask(TXN, body)).get("responses") or []
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


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """Status that a member last reported of itself; leader_id is "" if it knows none.

    term is that of the last entry it applied, and leader_id is of now: the two may belong to different elections."""

    member_id: str
    term: int
    leader_id: str


def read_status(answer: Mapping[str, object]) -> MemberStatus:
    """Return what an answer of STATUS_PATH says.  Raises ValueError if it is none."""
    header = answer.get("header")
    if not isinstance(header, dict) or "member_id" not in header:
        raise ValueError("a status without a member's id")
    leader_id = str(answer.get("leader") or "")
    return MemberStatus(
        str(header["member_id"]), int(str(answer.get("raftTerm", 0))), "" if leader_id == "0" else leader_id
    )


ANSWER_BYTES_MAX = 1 << 24
"""A set of 100,000 elements; no answer that this client expects is longer."""
_HEADERS_MAX = 64


class NotSent(ConnectionError):
    """The request never left: it certainly did not happen."""


class NoUsableAnswer(ConnectionError):
    """The request may have arrived and no usable answer came: its outcome is unknown."""


class Rejected(RuntimeError):
    """etcd answered with an error.  What that proves depends on the request."""


class BadAnswer(ValueError):
    """Answer that is no answer of etcd's gateway."""


class Gateway:
    """One HTTP/1.1 connection: one request at a time, one attempt each.

    Cancelling `post` (a timeout) leaves a connection on which an answer may still come: call `close` then.
    A connection that is found closed before sending is opened anew.  This is no retry: no request was sent on it.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host, int(port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: Mapping[str, Any], *, method: str = "POST") -> dict[str, Any]:
        """Return the answer of one request.  Raises NotSent, NoUsableAnswer, or Rejected with etcd's own words."""
        reader, writer = await self._open()
        packed = json.dumps(body, separators=(",", ":")).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Length: {len(packed)}\r\n\r\n"
        try:
            writer.write(head.encode() + packed)
            await writer.drain()
            status, answer = await _read_answer(reader)
        except (OSError, EOFError, ValueError) as problem:
            self.close()
            raise NoUsableAnswer(_said(problem)) from problem
        if status != 200:
            self.close()
            raise Rejected(str(answer.get("error") or answer.get("message") or f"HTTP status {status}"))
        return answer

    def close(self) -> None:
        """Close at once: an answer that comes later is dropped."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def connect(self) -> None:
        """Open the connection, or open it anew if it was closed.  Raises NotSent.

        The loop of a client runs only during its calls, so it needs two turns to notice that a connection was closed.
        """
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await self._open()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is not None and (self._streams[0].at_eof() or self._streams[1].is_closing()):
            self.close()
        if self._streams is None:
            try:
                self._streams = await asyncio.open_connection(self._host, self._port, limit=ANSWER_BYTES_MAX)
            except OSError as problem:
                raise NotSent(_said(problem)) from problem
        return self._streams


def to_gateway(text: str) -> str:
    """Keys and values travel in base64."""
    return base64.b64encode(text.encode()).decode()


def from_gateway(encoded: str) -> str:
    """Raises ValueError if it is no base64 of a text."""
    return base64.b64decode(encoded, validate=True).decode()


async def _read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
    """Status and JSON body.  Raises EOFError if the connection ends within it, ValueError if it is no such answer."""
    version, status, *_ = (await _line(reader)).split(" ", 2)
    if not version.startswith("HTTP/1."):
        raise BadAnswer("not an HTTP answer")
    length, chunked = None, False
    for _ in range(_HEADERS_MAX):
        line = await _line(reader)
        if not line:
            break
        name, _, value = line.partition(":")
        if name.lower() == "content-length":
            length = int(value)
        elif name.lower() == "transfer-encoding":
            chunked = "chunked" in value
    else:
        raise BadAnswer("too many headers")
    if chunked:
        body = await _read_chunks(reader)
    elif length is not None and 0 <= length <= ANSWER_BYTES_MAX:
        body = await reader.readexactly(length)
    else:
        raise BadAnswer("an answer without a usable length")
    answer = json.loads(body)
    if not isinstance(answer, dict):
        raise BadAnswer("not a JSON object")
    return int(status), answer


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while size := int((await _line(reader)).partition(";")[0], 16):
        if size < 0 or len(body) + size > ANSWER_BYTES_MAX:
            raise BadAnswer("too long an answer")
        body += await reader.readexactly(size)
        await _line(reader)
    while await _line(reader):
        continue  # trailers
    return bytes(body)


async def _line(reader: asyncio.StreamReader) -> str:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError("the connection was closed within an answer")
    return line.strip().decode("latin-1")


def _said(problem: BaseException) -> str:
    """Few different words: they become a column of the history."""
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror.partition(" (")[0].lower()
    if isinstance(problem, EOFError | OSError):
        return "the connection was closed"
    return str(problem) if isinstance(problem, BadAnswer) else "an answer that makes no sense"
