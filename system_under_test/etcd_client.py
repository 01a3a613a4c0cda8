"""Client of etcd, over its JSON gateway.  The table shows the etcd requests for each function.

    read, write, cas          one key that holds a number: a linearizable range, a put, a transaction that compares
    add, members              one key per element under the set's name: a put, and a range over all of them
    increment, total          one key that holds the sum
    append, entries,          one key that holds the whole list as JSON
    enqueue, dequeue, drain
    put, append_text, get     one key that holds the string as JSON
    generate                  the revision at which one key was put: etcd assigns each revision to one request
    read_shown, write_shown   as read and write, with the revision of the answer
    digest                    etcd's hash of all data of a member at a revision
    transact_lists,           one key per list or register, all under one prefix
    transact_registers
    transfer, balances        one key per account

A function that reads and then writes (`_guarded`) is still one operation: the second request is a transaction that
compares the revision of every key that the first request read.  If another client was faster, nothing happened, and the
function tries again.

The client must *know which operations may have happened*.  `NotSent` is raised only before the first byte of a request
reached the kernel.  After that the outcome of every failed change is unknown, even if etcd itself answers with an
error, because a proposal in flight may still be committed after "request timed out".

This module runs on client nodes and needs only the standard library.
"""

from __future__ import annotations

import base64
import json
import select
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import BadStatusLine, HTTPConnection, HTTPException, HTTPResponse
from socket import socket
from typing import Any

from system_under_test.client import Address, Client

RANGE, PUT, TXN = "/v3/kv/range", "/v3/kv/put", "/v3/kv/txn"
PEER_PORT, HASH = 2380, "/members/hashkv"
"""Port and path for a hash of a member's data.  Members request it from each other; the gateway of old releases does
not offer it.
"""
DIGEST_EVERY = 100
"""Revisions between two digests.  Digests are requested at multiples of it, so that several members are compared at the
same revision.
"""
TRIES = 5
"""Maximum number of attempts of an operation that reads and then writes, if other clients are faster."""

STATUS_PATH = "/v3/maintenance/status"
PATIENCE_S = 0.5
"""Maximum seconds that a member may take to accept a connection, and again to report its status."""
_ACCOUNT = "account/"

Json = dict[str, Any]


class Beaten(RuntimeError):
    """Other clients were faster at every attempt.  The operation certainly did not happen."""


class EtcdClient(Client):
    """A client that sends requests to the leader, or stays with a member until that member reports another leader,
    because etcd forwards requests.

    A method sets `harmless` to False before the first request that changes state.
    """

    harmless = True

    def leader(self) -> str | None:
        """Return the leader of the highest term that a member reports; the last known leader while no member reports
        one.

        A member answers status requests from its own memory.  A deposed leader that has not noticed its deposition
        still claims to lead, and a client that is cut off from the new leader rightly stays with the old leader.
        """
        pool = ThreadPoolExecutor(len(self.servers))
        try:
            statuses = list(pool.map(self._status, self.servers))
        finally:
            pool.shutdown(wait=False)
        named = [(s.term, s.leader_id) for s in statuses if s is not None and s.leader_id]
        names = {s.member_id: name for name, s in zip(self.servers, statuses, strict=True) if s is not None}
        self._names = {**self._names, **names}
        led = [(term, self._names[leader]) for term, leader in named if leader in self._names]
        EtcdClient._led = max(led)[1] if led else self._led
        return self._led

    def deposed(self) -> bool:
        status = self._status(self._member)
        return status is not None and status.leader_id not in ("", status.member_id)

    _led: str | None = None
    _names: Mapping[str, str] = {}
    """Member id -> name."""

    def open(self, server: Address) -> Gateway:
        self._member = server.node
        gateway = Gateway(f"{server.host}:{server.port}")
        gateway.connect()
        return gateway

    def _status(self, name: str) -> MemberStatus | None:
        server = self.servers[name]
        gateway = Gateway(f"{server.host}:{server.port}", PATIENCE_S)
        try:
            return read_status(gateway.post(STATUS_PATH, {}))
        except (TimeoutError, ConnectionError, Rejected, ValueError):
            return None
        finally:
            gateway.close()

    def _ask(self, path: str, body: Json, *, changes: bool = False) -> Json:
        """Send one request, and return its answer.  Raises the errors of `Gateway.post`, and BadAnswer for an invalid
        answer.
        """
        self.connection.connect()
        self.harmless = self.harmless and not changes
        answer: Json = self.connection.post(path, body)
        if "header" not in answer:
            raise BadAnswer("an answer without etcd's header")
        return answer

    def create(self, key: str | None = None) -> None:
        """Return once the cluster answers.  etcd needs no creation of objects."""
        self._ask(RANGE, {"key": to_gateway(key or "krucible")})

    # ---- registers -----------------------------------------------------------------------------------------------

    def read(self, key: str) -> int | None:
        found = (self._ask(RANGE, {"key": to_gateway(key)})).get("kvs") or []
        return _number(found[0]) if found else None

    def write(self, key: str, value: int) -> None:
        self._ask(PUT, _put(key, str(value)), changes=True)

    def cas(self, key: str, expected: int | None, new: int) -> bool:
        holds = {"key": to_gateway(key), "target": "VALUE", "result": "EQUAL", "value": to_gateway(str(expected))}
        compare = holds if expected is not None else _unchanged(key, None)
        body = {"compare": [compare], "success": [{"request_put": _put(key, str(new))}]}
        return bool((self._ask(TXN, body, changes=True)).get("succeeded", False))

    # ---- sets, counters, logs ------------------------------------------------------------------------------------

    def add(self, key: str, value: int) -> None:
        self._ask(PUT, _put(f"{key}/{value}", str(value)), changes=True)

    def members(self, key: str) -> list[int]:
        body = {"key": to_gateway(f"{key}/"), "range_end": to_gateway(f"{key}0")}  # "0" follows "/"
        return [_number(found) for found in (self._ask(RANGE, body)).get("kvs") or []]

    def increment(self, key: str, amount: int) -> None:
        self._guarded([key], lambda held: {key: (held[key] or 0) + amount})

    def total(self, key: str) -> int:
        return self.read(key) or 0

    def append(self, key: str, value: int) -> int:
        held = self._guarded([key], lambda held: {key: [*(held[key] or []), value]})
        return len(held[key] or [])

    def entries(self, key: str) -> list[int]:
        return (self._held([key]))[0][key] or []

    # ---- queues, strings, ids -------------------------------------------------------------------------------------

    def enqueue(self, key: str, value: int) -> None:
        self.append(key, value)

    def dequeue(self, key: str) -> int | None:
        held = self._guarded([key], lambda held: {key: held[key][1:]} if held[key] else {})
        return held[key][0] if held[key] else None

    def drain(self, key: str) -> list[int]:
        held = self._guarded([key], lambda held: {key: []} if held[key] else {})
        return held[key] or []

    def put(self, key: str, text: str) -> None:
        self._ask(PUT, _put(key, json.dumps(text)), changes=True)

    def append_text(self, key: str, text: str) -> None:
        self._guarded([key], lambda held: {key: (held[key] or "") + text})

    def get(self, key: str) -> str:
        return (self._held([key]))[0][key] or ""

    def generate(self, key: str) -> int:
        return self._shown(self._ask(PUT, _put(key, ""), changes=True))

    # ---- the order in which etcd committed --------------------------------------------------------------------------

    _revision = 0

    def _shown(self, answer: Json) -> int:
        try:
            self._revision = int(answer["header"]["revision"])
        except (KeyError, TypeError, ValueError) as problem:
            raise BadAnswer("an answer without a revision") from problem
        return self._revision

    def write_shown(self, key: str, value: int) -> int:
        return self._shown(self._ask(PUT, _put(key, str(value)), changes=True))

    def read_shown(self, key: str) -> tuple[int | None, int]:
        answer = self._ask(RANGE, {"key": to_gateway(key)})
        found = answer.get("kvs") or []
        return _number(found[0]) if found else None, self._shown(answer)

    def digest(self) -> tuple[int, str]:
        """Return this member's hash of all its data, at a revision at which other members are asked, too."""
        position = self._revision - self._revision % DIGEST_EVERY
        if not position:
            self.read_shown("krucible")
            position = max(self._revision - self._revision % DIGEST_EVERY, 1)
        member = Gateway(f"{self.servers[self._member].host}:{PEER_PORT}")
        try:
            answer = member.post(HASH, {"revision": position}, method="GET")
        finally:
            member.close()
        if not isinstance(answer.get("hash"), int) or answer.get("hash_revision", position) != position:
            raise BadAnswer("an answer without the hash of that revision")
        return position, f"{answer['hash']} from {answer.get('compact_revision', 0)}"

    # ---- transactions --------------------------------------------------------------------------------------------

    def transact_lists(self, steps: Sequence[Sequence[Any]]) -> list[list[Any]]:
        return self._transact(steps, lambda held, value: [*(held or []), value])

    def transact_registers(self, steps: Sequence[Sequence[Any]]) -> list[list[Any]]:
        return self._transact(steps, lambda held, value: value)

    def _transact(self, steps: Sequence[Sequence[Any]], written: Callable[[Any, Any], Any]) -> list[list[Any]]:
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

        self._guarded(list(dict.fromkeys(key for _, key, _ in steps)), play)
        return done

    # ---- accounts ------------------------------------------------------------------------------------------------

    def open_account(self, account: str, balance: int) -> None:
        key = _ACCOUNT + account
        self._guarded([key], lambda held: {key: balance} if held[key] is None else {})

    def transfer(self, source: str, target: str, amount: int) -> bool:
        one, other = _ACCOUNT + source, _ACCOUNT + target

        def play(held: Mapping[str, Any]) -> dict[str, Any]:
            return {one: held[one] - amount, other: held[other] + amount} if held[one] >= amount else {}

        return bool((self._guarded([one, other], play))[one] >= amount)

    def balances(self) -> dict[str, int]:
        body = {"key": to_gateway(_ACCOUNT), "range_end": to_gateway("account0")}  # "0" follows "/"
        found = (self._ask(RANGE, body)).get("kvs") or []
        return {from_gateway(each["key"]).removeprefix(_ACCOUNT): _number(each) for each in found}

    # ---- JSON values, written only if unchanged since the read --------------------------------------------------

    def _guarded(self, keys: Sequence[str], play: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> dict[str, Any]:
        """Read all keys at one revision, and write the result of `play` if no key has changed since.

        Returns the values that were read.  Writes nothing if the result of `play` is empty.  Raises Beaten if keys have
        changed at every attempt.
        """
        for _ in range(TRIES):
            held, revisions = self._held(keys)
            changed = play(held)
            if not changed:
                return held
            body = {
                "compare": [_unchanged(key, revisions.get(key)) for key in keys],
                "success": [{"request_put": _put(key, json.dumps(value))} for key, value in changed.items()],
            }
            if (self._ask(TXN, body, changes=True)).get("succeeded", False):
                return held
            self.harmless = True
        raise Beaten(f"other clients were faster {TRIES} times")

    def _held(self, keys: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the value of each key, None for a key without a value, and the revision of each key with a value."""
        body = {"success": [{"request_range": {"key": to_gateway(key)}} for key in keys]}
        responses = (self._ask(TXN, body)).get("responses") or []
        held: dict[str, Any] = dict.fromkeys(keys)
        revisions: dict[str, str] = {}
        try:
            for key, response in zip(keys, responses, strict=True):
                for found in response["response_range"].get("kvs") or []:
                    held[key], revisions[key] = json.loads(from_gateway(found["value"])), str(found["mod_revision"])
        except (ValueError, KeyError, TypeError) as problem:
            raise BadAnswer("an invalid answer to a transaction") from problem
        return held, revisions


def _unchanged(key: str, revision: str | None) -> Json:
    """Return the comparison that the key has not changed since this revision, or, for None, that it is still absent."""
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
    """The last status that a member reported of itself.

    term: term of the last applied entry
    leader_id: the current leader; "" if the member knows none. It may belong to another election than `term`.
    """

    member_id: str
    term: int
    leader_id: str


def read_status(answer: Mapping[str, object]) -> MemberStatus:
    """Parse an answer of STATUS_PATH.  Raises ValueError if it is invalid."""
    header = answer.get("header")
    if not isinstance(header, dict) or "member_id" not in header:
        raise ValueError("a status without a member's id")
    leader_id = str(answer.get("leader") or "")
    return MemberStatus(
        str(header["member_id"]), int(str(answer.get("raftTerm", 0))), "" if leader_id == "0" else leader_id
    )


ANSWER_BYTES_MAX = 1 << 24
"""Maximum size of an answer in bytes, enough for a set of 100,000 elements."""


class NotSent(ConnectionError):
    """The request was not sent, so it certainly did not happen."""


class NoUsableAnswer(ConnectionError):
    """The request may have arrived, but no usable answer came back, so the outcome is unknown."""


class Rejected(RuntimeError):
    """etcd answered with an error.  Its meaning depends on the request."""


class BadAnswer(ValueError):
    """An answer that etcd's gateway cannot return."""


class Gateway:
    """One HTTP/1.1 connection, with one request at a time and one attempt per request.

    A connection that was closed before sending is opened again.  This is no retry, because no request was sent on the
    closed connection.

    timeout_s: maximum seconds for connecting and for each read; None if the caller interrupts them
    """

    def __init__(self, address: str, timeout_s: float | None = None) -> None:
        host, _, port = address.rpartition(":")
        self._connection = HTTPConnection(host, int(port), timeout=timeout_s)

    def post(self, path: str, body: Mapping[str, Any], *, method: str = "POST") -> dict[str, Any]:
        """Return the answer to one request.  Raises NotSent, NoUsableAnswer, Rejected with etcd's own message, or
        TimeoutError.
        """
        self.connect()
        answered = False
        try:
            self._connection.request(method, path, json.dumps(body, separators=(",", ":")).encode())
            response = self._connection.getresponse()
            answer = _read_answer(response)
            answered = response.status == 200
        except TimeoutError:
            raise
        except (OSError, HTTPException, ValueError) as problem:
            raise NoUsableAnswer(_said(problem)) from problem
        finally:
            if not answered:  # a late answer may still arrive on this connection
                self.close()
        if not answered:
            raise Rejected(str(answer.get("error") or answer.get("message") or f"HTTP status {response.status}"))
        return answer

    def close(self) -> None:
        """Close the connection at once.  A later answer is dropped."""
        self._connection.close()

    def connect(self) -> None:
        """Open the connection, or reopen it if it was closed.  Raises NotSent, or TimeoutError."""
        # the connection ended, or an answer has arrived for which no request waits
        if self._connection.sock is not None and _is_readable(self._connection.sock):
            self.close()
        if self._connection.sock is None:
            try:
                self._connection.connect()
            except TimeoutError:
                raise
            except OSError as problem:
                raise NotSent(_said(problem)) from problem


def _is_readable(connection: socket) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def to_gateway(text: str) -> str:
    """Encode a key or value in base64."""
    return base64.b64encode(text.encode()).decode()


def from_gateway(encoded: str) -> str:
    """Decode base64; raise ValueError if it is not the base64 of a text."""
    return base64.b64decode(encoded, validate=True).decode()


def _read_answer(response: HTTPResponse) -> dict[str, Any]:
    """Return the JSON object of an answer.  Raises OSError or HTTPException if the connection ends within the answer,
    ValueError if it contains no JSON object.
    """
    if not response.chunked and (response.length is None or response.length > ANSWER_BYTES_MAX):
        raise BadAnswer("an answer without a usable length")
    answer = json.loads(response.read(ANSWER_BYTES_MAX) if response.chunked else response.read())
    if not isinstance(answer, dict):
        raise BadAnswer("not a JSON object")
    return answer


def _said(problem: Exception) -> str:
    """Return the message for an error: one of few distinct messages, because they become a column of the history."""
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror.partition(" (")[0].lower()
    if isinstance(problem, BadStatusLine) and not isinstance(problem, OSError):
        return "not an HTTP answer"
    if isinstance(problem, OSError | HTTPException):
        return "the connection was closed"
    return str(problem) if isinstance(problem, BadAnswer) else "an invalid answer"
