"""Faults on one named process of a server: `kill:agent`, `pause:agent`, `stop:agent`.

A system may name the processes of its nodes (`System.processes`).  The classic test of an agent that makes a database
highly available is the death of the agent alone: the database goes on, and its clients with it.

Such a kind is made from the kind of the same order: it has the same targets, and hits one process of each node.  A
process that its server starts under its name stays down until the heal, and is started again then.  One that another
process of the server starts is started again by that one, so its kill is proven by the end of those that lived.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from checkers.record.faults import Condition, Fault, Ordered
from nemesis.cluster import PROCESSES, Cluster, named_process
from nemesis.kind import Deck, Kind, Scene
from nemesis.kinds.processes import (
    LEADER_HOLD_S,
    SERVER_TARGETS,
    process_fault,
    servers_hit,
)

if TYPE_CHECKING:
    from nemesis.field import Field

_TRUE, _FALSE = (1.0, 1.0), (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class _Order:
    """done: what becomes of the process, in words.  shows: what a measurement of it must show while the fault holds."""

    signal: Literal["STOP", "KILL", "TERM"]
    done: str
    summary: str
    shows: str


_ORDERS: Mapping[str, _Order] = {
    "kill": _Order("KILL", "killed, started again at the heal", "dies (kill -9) and is started again", "has ended"),
    "pause": _Order("STOP", "paused", "stops (SIGSTOP) and goes on", "is stopped"),
    "stop": _Order(
        "TERM", "stopped, started again at the heal", "ends in order (SIGTERM), and is started again", "has ended"
    ),
}
KINDS_OF_PROCESSES = tuple(_ORDERS)
"""Names of the kinds that can be aimed at one process."""


def kind_on_process(name: str) -> Kind | None:
    """The kind with such a name; None for a name of another form.  It does not know which processes a system has."""
    base, colon, process = name.partition(":")
    if not colon or not process or base not in _ORDERS:
        return None
    order = _ORDERS[base]
    return Kind(
        name=name,
        summary=f"the process {process} of servers {order.summary}; the rest of the server goes on",
        targets=SERVER_TARGETS,
        deck=Deck(
            opening=(("leader", 10.0), ("one", 5.0), ("leader", LEADER_HOLD_S[0])),
            rest=("one", "minority", "majority", "all", "leader"),
        ),
        needs=frozenset({PROCESSES, named_process(process)}),
        resolve=_resolve(name, process, order),
        inject=_each(process, order.signal),
        heal=_each(process, "RELEASE"),
        orders=_orders(process, order),
        measure=_measure(process, order),
    )


def _resolve(name: str, process: str, order: _Order) -> Callable[[str, Scene], Fault | None]:
    def resolve(target: str, scene: Scene) -> Fault | None:
        return process_fault(name, target, servers_hit(target, scene), f"process {process} {order.done}")

    return resolve


def _each(
    process: str, signal: Literal["STOP", "KILL", "TERM", "RELEASE"]
) -> Callable[[Field, Fault], Awaitable[None]]:
    async def give(field: Field, fault: Fault) -> None:
        await field.each(fault.nodes, lambda node: field.cluster.signal_process(node, process, signal))

    return give


def _orders(process: str, order: _Order) -> Callable[[Fault], Ordered]:
    def orders(fault: Fault) -> Ordered:
        held = {f"{node}: {process} {order.shows}": _TRUE for node in fault.nodes}
        healed = {f"{node}: {process} is held by the harness": _FALSE for node in fault.nodes}
        return Ordered(Condition(values=held), Condition(values=healed))

    return orders


def _measure(process: str, order: _Order) -> Callable[[Cluster, Fault], Awaitable[Mapping[str, float]]]:
    async def measure(cluster: Cluster, fault: Fault) -> Mapping[str, float]:
        values: dict[str, float] = {}
        for node in fault.nodes:
            now = await cluster.process_now(node, process)
            shown = now.stopped if order.signal == "STOP" else now.ended
            values[f"{node}: {process} {order.shows}"] = float(shown)
            values[f"{node}: {process} is held by the harness"] = float(now.held or now.stopped)
        return values

    return measure
