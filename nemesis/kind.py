"""Definition of a kind of fault: one value with everything that the rest of the harness must know about the kind.

A file in `nemesis/kinds` builds one `Kind` and calls it KIND; the `__init__.py` there lists it.  The deck deals the
cards of a kind, the player resolves, injects, measures and heals them, and the checkers judge the measurements.  No
code of the deck, the player or the checkers depends on the name of a kind.

Scene      input for resolving a card: the nodes, the leader, the faults in force
Field      the faults in force on the cluster; merges the orders of several faults

Most kinds act in the same way on each of their nodes.  For these kinds, three functions build a callback from a
function for one node: `each_node` for an order, `demands` for limits of measurements, `readings_of` for a measurement.

*Recorded faults.*  A recorded fault is replayed on nodes by their current roles, not by their recorded names.

A schedule saved from a run contains "the leader, with c1, cut from the others", and the name of the leader, n2.  In the
replay another node leads.  So the names of the recorded and the current leader are exchanged everywhere in the fault:
it hits the leader again, and the same number of followers.  All other nodes keep their names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from random import Random
from typing import TYPE_CHECKING, Any

from checkers.record.faults import MAY_DIE, Condition, Fault, Ordered
from nemesis.cluster import PROCESSES, Cluster, Link
from system_under_test.subject import ProcessState

if TYPE_CHECKING:
    from nemesis.measure import Field

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class LeaderNow:
    node: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Scene:
    """State of the cluster in which a card is resolved.

    servers: all servers; a majority is a majority of these
    running: servers whose process runs and that no other fault makes unreachable
    leader: the current leader; None if the card names no leader
    avoid: nodes already hit by overlapping faults of the same kind
    spent: nodes that have already lost fsynced data because of faults of this run
    """

    servers: tuple[str, ...]
    clients: tuple[str, ...]
    running: tuple[str, ...]
    leader: LeaderNow | None
    rng: Random
    avoid: frozenset[str] = frozenset()
    spent: frozenset[str] = frozenset()

    @property
    def majority(self) -> int:
        return len(self.servers) // 2 + 1

    def links_of(self, nodes: Collection[str]) -> list[Link]:
        """Return every link of these nodes, in both directions."""
        return sorted(link for link in permutations((*self.servers, *self.clients), 2) if {*link} & {*nodes})


@dataclass(frozen=True, slots=True)
class Target:
    """One target of a kind of fault.

    against_leader: True if the target can only be resolved while a node leads
    servers_min: minimum number of servers with which the fault has an effect and its description is true
    hold_s: minimum and maximum hold, in seconds
    needs: capabilities in addition to those of the kind
    at_fsync: True if the fault waits for an fsync of a server
    """

    summary: str
    against_leader: bool = False
    servers_min: int = 1
    hold_s: Range = (3.0, 5.0)
    needs: frozenset[str] = frozenset()
    at_fsync: bool = False


@dataclass(frozen=True, slots=True)
class FigureStep:
    """One card of a figure.

    after_s: seconds between the begin of the figure and the begin of this card
    again: True to hit the node that the first step hit
    moment: event (`nemesis.coverage`) caused by the first step for which the card waits; "" to wait for none. The wait
        does not change the time of the heal.
    kind: kind of the card; "" for the kind of the deck
    until, until_s, line, line_nth: as in a `Card`
    until_step: like `Card.until_of`, but numbered from 1 within the figure
    """

    target: str
    after_s: float
    hold_s: float
    again: bool = False
    moment: str = ""
    kind: str = ""
    until: str = ""
    until_step: int = 0
    until_s: float = 0.0
    line: str = ""
    line_nth: int = 0


@dataclass(frozen=True, slots=True)
class Figure:
    """Several cards that belong together, such as repeated kills of one server."""

    summary: str
    steps: Callable[[Random, int], Sequence[FigureStep]]
    """Function that returns the steps, from a random generator and the number of servers."""
    servers_min: int = 1


@dataclass(frozen=True, slots=True)
class Deck:
    """The deck of a kind.  Its entries are names of targets or figures.

    opening: entries dealt first, in this order, each with its hold in seconds (a figure has its own times)
    rest: entries dealt after the opening
    opening_without_leaders: replaces the opening if the system does not report its leader; None: deal those entries of
        the opening that need no leader
    """

    opening: tuple[tuple[str, float], ...]
    rest: tuple[str, ...]
    opening_without_leaders: tuple[tuple[str, float], ...] | None = None
    figures: Mapping[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault.

    name: name in `--nemesis`, in cards and in the history ("inject-<name>")
    needs: capabilities that the backend must have
    resolve: returns the fault for this target in this scene; None if no node can be hit. Equal arguments give equal
        faults.
    inject, heal: carry out and undo the fault. Both raise OSError or CannotInject, and may be called twice.
    orders: returns the measurements expected while the fault is in force and after its heal. Cut links need no entry.
    measure: returns the numbers that `Ordered.held.values` and `Ordered.healed.values` limit. States and links need no
        such function. Raises OSError.
    ready: returns why the system cannot accept a fault of this kind yet, "" if it can; None if it always can. A card of
        such a kind waits until the system is ready, and its hold is not shortened. Raises OSError.
    costs: returns the nodes that may lose fsynced data. They must be at most a minority, unless the user exceeds the
        budget on purpose.
    parts: names of the kinds whose cards its figures deal. Such a kind has no targets and no cards of its own.
    settings: TypedDict of the settings of its faults, also in a schedule file
    refuse: raises ValueError, with a message of one sentence, for settings of a scheduled card that cannot be carried
        out or that no measurement could prove
    """

    name: str
    summary: str
    targets: Mapping[str, Target]
    deck: Deck
    needs: frozenset[str]
    resolve: Callable[[str, Scene], Fault | None]
    inject: Callable[[Field, Fault], Awaitable[None]]
    heal: Callable[[Field, Fault], Awaitable[None]]
    orders: Callable[[Fault], Ordered] = field(default=lambda fault: Ordered())
    measure: Callable[[Cluster, Fault], Awaitable[Mapping[str, float]]] | None = None
    ready: Callable[[Cluster], Awaitable[str]] | None = None
    costs: Callable[[Fault], frozenset[str]] = field(default=lambda fault: frozenset())
    settings: Any = dict[str, Any]
    refuse: Callable[[Mapping[str, Any]], None] = field(default=lambda settings: None)
    parts: tuple[str, ...] = ()

    def check(self, target: str) -> None:
        """Raise ValueError, with a message of one sentence, unless the kind has this target."""
        if self.parts:
            raise ValueError(f"{self.name} deals cards of {', '.join(self.parts)} and has none of its own")
        if target not in self.targets:
            raise ValueError(f"there is no {self.name} {target!r}; there are {', '.join(self.targets)}")


def out_of_reach(kind: Kind, other: Kind, fault: Fault) -> frozenset[str]:
    """Return the nodes of a fault in force that a card of `kind` must not hit, because one fault would undo or hide the
    other.

    For example, the links of a server whose clock is wrong can be cut, but not the links of a server that is down.
    """
    if PROCESSES in kind.needs:
        return frozenset(fault.nodes if PROCESSES in other.needs else ())
    return frozenset(fault.nodes if fault.settings.get(MAY_DIE) else other.orders(fault).held.states)


def isolated(fault: Fault) -> frozenset[str]:
    """Return the nodes with the most cut links, for a fault that cuts links and names no node."""
    lost = Counter(end for link in fault.cut for end in link)
    most = max(lost.values(), default=0)
    return frozenset(node for node, count in lost.items() if count == most and count > 1)


def needs_leader(fault: Fault) -> bool:
    """Return True if the recorded fault treats its leader differently from a follower, so that the replay needs a
    leader.
    """
    if fault.leader is None:
        return False
    return fault.leader in fault.nodes or any(fault.leader in link for link in fault.cut)


def by_role(fault: Fault, leader: str | None, servers: Collection[str]) -> Fault:
    """Return the fault with the current leader in the role of the recorded leader.

    leader: the current leader; None if no node leads, and then the recorded names are kept
    servers: the current servers, which may be fewer than at the recording
    """
    then = fault.leader
    if leader is None or then is None or leader == then:
        return replace(fault, leader=leader or then)
    named = {*fault.nodes, *(end for link in fault.cut for end in link)}
    free = [server for server in servers if server not in named and server != leader]
    other = then if then in servers else next(iter(free), then)
    names = {then: leader, leader: other}
    return Fault(
        fault.kind,
        _renamed(fault.words, names),
        tuple(names.get(node, node) for node in fault.nodes),
        frozenset((names.get(a, a), names.get(b, b)) for a, b in fault.cut),
        _renamed(fault.settings, names),
        leader,
    )


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Return the value with nodes renamed simultaneously in every string that it contains."""
    if isinstance(value, str):
        return re.sub(r"\b\w+\b", lambda word: names.get(word.group(), word.group()), value)
    if isinstance(value, Mapping):
        return {_renamed(key, names): _renamed(each, names) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_renamed(each, names) for each in value)
    return value


# ---- base classes of kinds that act on each node alike ---------------------------------------------------------------

Limits = Mapping[str, Range]
"""Name of a measured value -> its minimum and maximum."""

TRUE, FALSE = (1.0, 1.0), (0.0, 0.0)


def each_node(order: Callable[[Cluster, str, Fault], Awaitable[None]]) -> Callable[[Field, Fault], Awaitable[None]]:
    """Return the `inject` or `heal` of a kind that sends this order to all nodes of a fault concurrently."""

    async def give(field: Field, fault: Fault) -> None:
        await field.each(fault.nodes, lambda node: order(field.cluster, node, fault))

    return give


def demands(
    held: ProcessState | None = None,
    healed: ProcessState | None = None,
    *,
    values: Callable[[Fault], Limits] = lambda fault: {},
    healed_values: Callable[[Fault], Limits] = lambda fault: {},
) -> Callable[[Fault], Ordered]:
    """Return the `orders` of a kind with equal expectations for each node of a fault.

    held, healed: expected state of the node's process during the fault and after its heal; None for any state
    values, healed_values: limits of the results of `measure`, by names without the node
    """

    def condition(fault: Fault, state: ProcessState | None, limits: Limits) -> Condition:
        states = dict.fromkeys(fault.nodes, str(state)) if state else {}
        return Condition(states, {f"{node}: {name}": limit for node in fault.nodes for name, limit in limits.items()})

    return lambda fault: Ordered(condition(fault, held, values(fault)), condition(fault, healed, healed_values(fault)))


def readings_of(
    look: Callable[[Cluster, str, Fault], Awaitable[Mapping[str, float]]],
) -> Callable[[Cluster, Fault], Awaitable[Mapping[str, float]]]:
    """Return the `measure` of a kind that reads one node after another."""

    async def measure(cluster: Cluster, fault: Fault) -> Mapping[str, float]:
        values: dict[str, float] = {}
        for node in fault.nodes:
            values |= {f"{node}: {name}": value for name, value in (await look(cluster, node, fault)).items()}
        return values

    return measure
