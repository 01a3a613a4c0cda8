"""What a client of your own derives from: one method per function, blocking or async, with any library.

The name of a method says which function it serves (`system_under_test/functions.py` lists them all): a client with
`read` and `write` runs the workload `register`, one with `add` and `members` runs `set`.  The arguments and the answer
are those of the function.

What an exception proves:

* raised by `leader`, `open` or `connect`: nothing was sent, so the operation certainly did not happen;
* one of `refused`, raised by a method: the answer proves that nothing happened;
* anything else: unknown, or, where the function only observes, that nothing was changed.

Switch the retries of your library off: an operation is one attempt.  After any exception the client is closed and
connects anew, so that a late answer can never answer the next operation.

Runs on client nodes; needs only the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from system_under_test.client import Placement


@dataclass(frozen=True, slots=True)
class Address:
    """A server as a client sees it.  port: the `port` of its system."""

    node: str
    host: str
    port: int


class Client:
    """who: the process that this client belongs to.  servers: node name -> its address, in the order of the nodes."""

    refused: tuple[type[BaseException], ...] = ()
    """Exceptions that prove that nothing happened."""

    connection: Any = None
    """What `open` returned."""

    def __init__(self, who: Placement, servers: Mapping[str, Address]) -> None:
        self.who = who
        self.servers = servers

    def leader(self) -> Any:
        """The name of the node that leads now, or None where it is not known.

        Without this method, each client keeps to one server.  With it, half of the clients follow the leader and half
        stay with the leader they know until it refuses them: some requests must reach a deposed leader.
        """
        raise NotImplementedError

    def open(self, server: Address) -> Any:
        """Connect to this server, and return the connection.  Called before the first operation, after any exception
        and after a change of leader."""
        return None

    def close(self) -> Any:
        """Drop the connection at once.  By default its own `close` is called, blocking or async."""
        return self.connection.close() if hasattr(self.connection, "close") else None

    def create(self, key: str | None = None) -> Any:
        """Make what the key stands for (a table, a queue).  Called before the test, until it succeeds."""
        return None
