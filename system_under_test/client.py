"""The interface between a workload and a system: a request, its outcome, and the client that turns one into the other.

A system has one of two kinds of client.  A `Client` has one method per function, blocking or async, with any library,
and runs in its own process.  A `ProcessClient` uses asyncio only and runs in the agent of its client node.

The one rule that a client must never break: `FAIL` means *it certainly did not happen*.  The request was refused
before sending, or refused by an answer that proves it was never queued.  Or it was a cas whose answer was a mismatch,
or a read without an answer (it changed nothing).  Everything else without an answer is `INFO`.

Meaning of an exception of a `Client`:

* raised by `leader` or `open`: nothing was sent, so the operation certainly did not happen;
* one of `refused`, raised by a method: the answer proves that nothing happened;
* anything else: unknown, or, where the function only observes or `harmless` is set, that nothing was changed.

Runs on client nodes; needs only the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from checkers.base.history import Type


@dataclass(frozen=True, slots=True)
class Request:
    """Request that a process invokes, with the fields of `checkers.base.history.Event`."""

    f: str
    key: str | None = None
    value: int | None = None
    value2: int | None = None
    payload: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """End of an operation. node: the one that answered, or the one that got the request; "" if no node got it.
    took_s: seconds until then by the clock of its client node; 0: not measured.
    """

    type: Type
    value: int | None = None
    value2: int | None = None
    payload: str | None = None
    error: str | None = None
    node: str = ""
    took_s: float = field(default=0.0, compare=False)


CANNOT_BE_MADE = "the client cannot be made: "
"""Part of the error of an outcome if no other attempt can succeed, such as for a file that cannot be executed."""


MISTAKE_IN_CODE = "mistake in the code of the client: "
"""Prefix of the error of an outcome if the user's own code is wrong.  The run ends."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Identity of a process: its client node, and its choice of servers.

    follows: True = uses the controller of the highest epoch seen; False = stays with the controller it knows until that
        one refuses it (without such processes no request reaches a deposed leader, and stale reads stay unseen).
    reads_only: it never writes, so an isolated leader cannot block it in a write.
    member: the server assigned to it.  If servers forward requests, a process that does not follow uses only this
        server, so that some requests go through followers.
    """

    thread: int
    client_node: str
    follows: bool
    reads_only: bool
    member: str = ""


class ProcessClient(Protocol):
    """One process' connection to the system.  At most one request at a time; one attempt per request."""

    async def invoke(self, request: Request, timeout_s: float) -> Outcome:
        """Ask once.  Never raises because of the system or the network; always returns within timeout_s (plus
        scheduling).  After any request without an answer the connection is closed, so that a late reply can never
        answer the next request.
        """
        ...

    async def close(self) -> None: ...


class ClientFactory(Protocol):
    """A function named `connect` in the client module of a subject (`Subject.client_module`).

    shared: a dictionary shared by the clients of one client node, empty before the first is created.  They may store
    common data in it, such as their view of the leader.

    peers: node name -> "host:port" of every server. config: the result of the subject's `client_config`, JSON-ready,
    and under "functions" the function of `system_under_test/functions.py` for each `f` of a request.  Called on the
    client node, once per process; must not block or connect yet.
    """

    def __call__(
        self, placement: Placement, peers: Mapping[str, str], config: Mapping[str, Any], shared: dict[str, Any]
    ) -> ProcessClient: ...


@dataclass(frozen=True, slots=True)
class Address:
    """A server as a client sees it.  port: the `port` of its system."""

    node: str
    host: str
    port: int


class Client:
    """A client of a system: one method per function that it serves.

    The name of a method determines its function (`system_under_test/functions.py` lists them all): a client with `read`
    and `write` runs the workload `register`, one with `add` and `members` runs `set`.  The arguments and the answer are
    those of the function.

    Disable retries of your library, because an operation is one attempt.  After any exception the client is closed and
    reconnects, so that a late answer can never answer the next operation.

    who: the process that this client belongs to.  servers: node name -> its address, in the order of the nodes.
    bug, settings: those of the system in this run (`System.bugs`, `System.parameters`).
    """

    refused: tuple[type[BaseException], ...] = ()
    """Exceptions that prove that nothing happened."""

    routes_by_itself: bool = False
    """True if the library chooses the server for each request, so that the one that answers is unknown and no checker
    asks for it.

    `answered` names it afterwards if it is known.
    """

    connection: Any = None
    """Connection that `open` returned."""

    answered: str = ""
    """A method may set it to the name of the server that answered.  The default is the one passed to `open`."""

    harmless: bool = False
    """True if the requests sent so far cannot change any state: a failure then proves that nothing happened.

    A method starts with the value of its class.  It sets False before the first request that can change state, and may
    set True again once an answer proved that nothing was changed.
    """

    bug: str | None = None
    settings: Mapping[str, str | float] = {}

    def __init__(self, who: Placement, servers: Mapping[str, Address]) -> None:
        self.who = who
        self.servers = servers

    def leader(self) -> Any:
        """Return the name of the current leader, or None if it is unknown.

        Without this method, each client keeps to one server.  With it, half of the clients follow the leader and half
        stay with the leader they know until it refuses them, because some requests must reach a deposed leader.

        If each key has its own leader, define `leader(self, key)`.
        """
        raise NotImplementedError

    def deposed(self) -> Any:
        """Return True if the server that this client stays with reports another leader.

        Only a system whose servers forward requests needs it, because there no server refuses.  Called like
        `leader`.
        """
        return False

    def open(self, server: Address) -> Any:
        """Connect to this server, and return the connection.  Called before the first operation, after any exception
        and after a change of leader."""
        return None

    def close(self) -> Any:
        """Close the connection at once.  The default calls its `close` method, blocking or async."""
        return self.connection.close() if hasattr(self.connection, "close") else None

    def create(self, key: str | None = None) -> Any:
        """Create the object of a key (a table, a queue).  Called before the test, until it succeeds."""
        return None
