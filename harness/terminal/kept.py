"""How to enter a cluster that was left up, and how to end it, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def lines_to_enter(kept: Mapping[str, Any]) -> list[str]:
    """kept: a `KeptCluster` as a dictionary."""
    nodes: Sequence[Mapping[str, Any]] = kept["entrances"]
    lines = ["The cluster is up.  Faults are healed, and servers that the harness had stopped were started again."]
    width = max((len(node["node"]) for node in nodes), default=0)
    for node in nodes:
        lines.append(f"  {node['node']:<{width}}  {node['command']}")
        where = f"address {node['address']}"
        where += f", client shell:\n  {'':<{width}}  {node['client']}" if node["client"] else ""
        where += "" if node["client"] else f", data {node['data']}, logs {node['logs']}"
        lines.append(f"  {'':<{width}}  {where}")
    lines.append(f"release: krucible release {kept['folder']}")
    return lines


def line_of(kept: Mapping[str, Any], stale: str) -> str:
    """A kept cluster in a list.  stale: why it is up no more, "" if it is."""
    where = kept["folder"]
    if stale:
        return f"kept, but {stale}: {where} ({kept['title']}); `krucible release {where}` removes what is left"
    return f"kept: {where} ({kept['title']}), up since {kept['since']}; krucible release {where}"
