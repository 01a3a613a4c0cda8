"""The interface between a workload and a system: requests, outcomes, and clients, which execute requests.

A system has one of two kinds of client.  A `Client` has one method per function, blocking or async, with any library,
and runs in its own process.  A `ProcessClient` uses asyncio only and runs in the agent of its client node.

The one rule that a client must never break: `FAIL` means *the operation certainly did not happen*.  The request was
refused before sending, or refused by an answer that proves that it was never queued.  Or the request was a cas whose
answer was a mismatch, or a read without an answer, which changes nothing.  The outcome of every other request without
an answer is `INFO`.

Meaning of an exception of a `Client`:

* raised by `leader` or `open`: nothing was sent, so the operation certainly did not happen;
* a class in `refused`, raised by a method: the answer proves that nothing happened;
* any other exception: the outcome is unknown; but if the function only observes or `harmless` is True, nothing was
  changed.

This module runs on client nodes and needs only the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from checkers.base.history import Type


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a process, with the fields of `checkers.base.history.Event`."""

    f: str
    key: str | None = None
    value: int | None = None
    value2: int | None = None
    payload: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an operation.

    node: node that answered, or else node that received the request; "" if no node received it
    took_s: duration of the operation in seconds by the clock of its client node; 0 if not measured
    """

    type: Type
    value: int | None = None
    value2: int | None = None
    payload: str | None = None
    error: str | None = None
    node: str = ""
    took_s: float = field(default=0.0, compare=False)


CANNOT_BE_MADE = "the client cannot be made: "
"""Part of the error of an outcome if no further attempt can succeed, for example because a file cannot be executed."""


MISTAKE_IN_CODE = "mistake in the code of the client: "
"""Prefix of the error of an outcome if the user's own code contains a mistake.  The run then ends."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The identity of a process: its client node, and its choice of servers.

    follows: True if the process uses the leader of the highest epoch seen; False if it stays with the leader that it
        knows until that leader refuses a request. Without processes of the second kind no request reaches a deposed
        leader, and stale reads stay undetected.
    reads_only: True if the process never writes, so that an isolated leader cannot block it in a write
    member: server assigned to the process. If servers forward requests, a process that does not follow uses only this
        server, so that some requests pass through followers.
    """

    thread: int
    client_node: str
    follows: bool
    reads_only: bool
    member: str = ""


class ProcessClient(Protocol):
    """The connection of one process to the system, with at most one request at a time and one attempt per request."""

    async def invoke(self, request: Request, timeout_s: float) -> Outcome:
        """Execute the request in one attempt.  Never raises because of the system or the network; always returns within
        timeout_s (plus scheduling).  After any request without an answer the connection is closed, so that a late reply
        can never answer the next request.
        """
        ...

    async def close(self) -> None: ...


class ClientFactory(Protocol):
    """A function named `connect` in the client module of a subject (`Subject.client_module`).

    It is called on the client node, once per process.  It must not block, and must not connect yet.

    peers: node name -> "host:port" of every server
    config: JSON-ready result of the subject's `client_config`. Its "functions" maps each `f` of a request to a function
        of `system_under_test/functions.py`.
    shared: dictionary shared by the clients of one client node, empty before the first client is created. Clients may
        store common data in it, such as their view of the leader.
    """

    def __call__(
        self, placement: Placement, peers: Mapping[str, str], config: Mapping[str, Any], shared: dict[str, Any]
    ) -> ProcessClient: ...


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server for clients.

    port: the `port` of its system
    """

    node: str
    host: str
    port: int


class Client:
    """A client of a system, with one method per function that it executes.

    The name of a method determines its function (`system_under_test/functions.py` lists them all): a client with `read`
    and `write` can run the workload `register`, a client with `add` and `members` can run `set`.  The method has the
    arguments and the answer of the function.

    Disable retries of your library, because an operation must be one attempt.  After any exception the client is closed
    and reconnects, so that a late answer can never answer the next operation.

    who: process to which this client belongs
    servers: node name -> its address, in the order of the nodes
    bug, settings: planted bug and parameters of the system in this run (`System.bugs`, `System.parameters`)
    """

    refused: tuple[type[BaseException], ...] = ()
    """Exceptions that prove that nothing happened."""

    routes_by_itself: bool = False
    """True if the library chooses the server for each request.  The server that answers is then unknown, and checkers
    do not expect its name.  If the name is known afterwards, a method may set `answered`.
    """

    connection: Any = None
    """Connection that `open` returned."""

    answered: str = ""
    """Name of the server that answered; a method may set it.  The default is the server passed to `open`."""

    harmless: bool = False
    """True if the requests sent so far cannot change any state: a failure then proves that nothing happened.

    Each call of a method begins with the value that the class defines.  The method must set False before the first
    request that can change state, and may set True again once an answer proves that nothing was changed.
    """

    bug: str | None = None
    settings: Mapping[str, str | float] = {}

    def __init__(self, who: Placement, servers: Mapping[str, Address]) -> None:
        self.who = who
        self.servers = servers

    def leader(self) -> Any:
        """Return the name of the current leader, or None if it is unknown.

        Without this method, each client uses only one server.  With this method, half of the clients follow the leader,
        and half stay with the leader that they know until it refuses a request, because some requests must reach a
        deposed leader.

        If each key has its own leader, define `leader(self, key)`.
        """
        raise NotImplementedError

    def deposed(self) -> Any:
        """Return True if the server that this client stays with reports another leader.

        Only a system whose servers forward requests needs this method, because its servers never refuse a request.  It
        is called like `leader`.
        """
        return False

    def open(self, server: Address) -> Any:
        """Connect to this server, and return the connection.  Called before the first operation, after any exception,
        and after a change of leader.
        """
        return None

    def close(self) -> Any:
        """Close the connection at once.  The default calls the `close` method of the connection, blocking or async."""
        return self.connection.close() if hasattr(self.connection, "close") else None

    def create(self, key: str | None = None) -> Any:
        """Create the object of a key (a table, a queue).  Called before the test, until it succeeds."""
        return None
