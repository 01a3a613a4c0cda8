"""How a user enters a node whose cluster was left up: the command, and what lies where."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entrance:
    """command: opens a shell on the node, in words for a POSIX shell.  address: of the node, among the nodes.

    data, logs: the folders of its data and of its logs, as that shell sees them.  client: of a client node, the command
    that speaks to the servers as clients do."""

    node: str
    command: str
    address: str
    data: str
    logs: str
    client: str = ""
