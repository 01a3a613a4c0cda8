"""The seam between a workload and a system: a request, its outcome, and the client that turns one into the other.

Clients run on client nodes, hosted by the agent there, so this file needs nothing but the standard library.

The one rule that a client must never break: `FAIL` means *it certainly did not happen*.  The request was refused
before sending, or refused by an answer that proves it was never queued.  Or it was a cas whose answer was a mismatch,
or a read without an answer (it changed nothing).  Everything else without an answer is `INFO`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from checkers.base.history import Type


@dataclass(frozen=True, slots=True)
class Request:
    """What a process invokes; the fields are those of `checkers.base.history.Event`."""

    f: str
    key: str | None = None
    value: int | None = None
    value2: int | None = None
    payload: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended.  node: the one that answered, or the one that got the request; "" if no node got it."""

    type: Type
    value: int | None = None
    value2: int | None = None
    payload: str | None = None
    error: str | None = None
    node: str = ""


CANNOT_BE_MADE = "the client cannot be made: "
"""Stands in the error of an outcome where no other try can succeed, such as for a file that cannot be run."""


MISTAKE_IN_CODE = "mistake in the code of the client: "
"""How the error of an outcome begins where the author's own code is wrong.  The run ends."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Who a process is: where it runs, and whom it trusts.

    follows: True = goes to the controller of the highest epoch seen; False = stays with the controller it
        knows until that one refuses it (without such processes no request reaches a deposed leader, and stale
        reads stay unseen).
    reads_only: it never writes, so an isolated leader cannot block it in a write.
    """

    thread: int
    client_node: str
    follows: bool
    reads_only: bool


class ProcessClient(Protocol):
    """One process' connection to the system.  At most one request at a time; one attempt per request."""

    async def invoke(self, request: Request, timeout_s: float) -> Outcome:
        """Ask once.  Never raises for what the system or the network does; always returns within timeout_s
        (plus scheduling).  After any request without an answer the connection is closed, so that a late
        reply can never answer the next request."""
        ...

    async def close(self) -> None: ...


class ClientFactory(Protocol):
    """A function named `connect` in the module a subject names as its client (`Subject.client_module`).

    shared: a dictionary that the clients of one client node have in common, empty before the first is made.  They may
    keep in it what one of them makes for all, such as the view of who leads.

    peers: node name -> "host:port" of every server.  config: what the subject's `client_config` returned,
    JSON-ready, and under "functions" which function of `system_under_test/functions.py` serves each `f` of a
    request.  Called on the client node, once per process; must not block or connect yet.
    """

    def __call__(
        self, placement: Placement, peers: Mapping[str, str], config: Mapping[str, Any], shared: dict[str, Any]
    ) -> ProcessClient: ...
