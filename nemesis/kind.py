"""Definition of a kind of fault: one value that holds all that the rest of the harness must know about it.

A file in `nemesis/kinds` builds one `Kind` and calls it KIND; the `__init__.py` there lists it.  The deck deals the
cards of a kind, the player resolves, injects, measures and heals them, and the checkers judge the measurements.  None
of them knows a kind by name.

Scene      input for resolving a card: the nodes, the leader, the faults in force
Field      faults in force on the cluster; it merges orders of several faults

Most kinds act alike on each of their nodes.  For these, three functions build the callbacks of a kind from a row of
verbs: `each_node` for an order, `demands` for limits of measurements, `readings_of` for a measurement.

*Recorded faults.*  Each is replayed on the current roles, not on the recorded names.

A schedule saved from a run contains "the leader, with c1, cut from the others", and the name of the leader, n2.  In the
replay another node leads.  So the two nodes are exchanged everywhere in the fault: it hits the leader again, and
followers again.  All other nodes keep their names.
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

    servers: all servers, of which majorities are counted. running: servers whose process runs and that no other fault
    makes unreachable. leader: the current leader; None if the card names no leader.
    avoid: nodes already hit by overlapping faults of the same kind.
    spent: nodes that have already lost fsynced data to faults of this run.
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

    against_leader: it can only be resolved while a node leads. servers_min: minimum number of servers for it to have an
    effect and true words. hold_s: minimum and maximum hold, in seconds.
    needs: capabilities in addition to those of the kind. at_fsync: it waits for an fsync of a server.
    """

    summary: str
    against_leader: bool = False
    servers_min: int = 1
    hold_s: Range = (3.0, 5.0)
    needs: frozenset[str] = frozenset()
    at_fsync: bool = False


@dataclass(frozen=True, slots=True)
class FigureStep:
    """One card of a figure. after_s: seconds after the begin of the figure. again: hit the node that the first step
    hit.

    moment: wait for this event (`nemesis.coverage`) caused by the first step; "" = do not wait.  The wait does not
    change the time of the heal.
    kind: of the card, "" for that of the deck. until, until_step, until_s: as of a `Card`; the step is numbered from 1
    within the figure. line, line_nth: as of a `Card`.
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
    """Several cards that belong together, such as a server killed again and again.  steps: drawn with the seed."""

    summary: str
    steps: Callable[[Random, int], Sequence[FigureStep]]
    """`steps` is called with the random stream and the number of servers."""
    servers_min: int = 1


@dataclass(frozen=True, slots=True)
class Deck:
    """opening: dealt first, in this order, with the hold of each in seconds (a figure has its own times).
    opening_without_leaders: replaces it if the system does not report its leader; None: the entries of the opening that
    need no leader. rest: shuffled after that.  Entries are names of targets or figures.
    """

    opening: tuple[tuple[str, float], ...]
    rest: tuple[str, ...]
    opening_without_leaders: tuple[tuple[str, float], ...] | None = None
    figures: Mapping[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault.

    name: as in `--nemesis`, in cards and in the history ("inject-<name>"). needs: capabilities of the backend.
    resolve: returns the fault that this target means now; None if nothing can be hit.  Equal arguments give equal
    faults.
    inject, heal: carry out and undo the fault.  Both raise OSError or CannotInject, and may be called twice.
    orders: the measurements expected while this fault holds and after its heal; its links need no entry.
    measure: returns the numbers that `Ordered.held.values` and `Ordered.healed.values` limit; states and links need no
        such function.  Raises OSError.
    ready: returns what the system still lacks before it can take a fault of this kind, "" for nothing; None: it always
        can.  A card of such a kind waits, without a shorter hold.  Raises OSError.
    costs: nodes that may lose fsynced data.  They may be at most a minority, unless the budget is broken on purpose.
    parts: names of the kinds whose cards its figures deal; such a kind has no targets and no cards of its own.
    settings: a TypedDict of the settings of its faults, also in a schedule file.
    refuse: raises ValueError in one sentence for settings of a scheduled card that cannot be carried out, or that no
        measurement could prove.
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
        """Raise ValueError in one sentence unless the kind has this target."""
        if self.parts:
            raise ValueError(f"{self.name} deals cards of {', '.join(self.parts)} and has none of its own")
        if target not in self.targets:
            raise ValueError(f"there is no {self.name} {target!r}; there are {', '.join(self.targets)}")


def out_of_reach(kind: Kind, other: Kind, fault: Fault) -> frozenset[str]:
    """Return the nodes of a fault in force that a card of `kind` must not hit, because one fault would undo or hide the
    other.

    Links can be cut around a server whose clock is wrong, but not around a server that is down, which leads no
    server.
    """
    if PROCESSES in kind.needs:
        return frozenset(fault.nodes if PROCESSES in other.needs else ())
    return frozenset(fault.nodes if fault.settings.get(MAY_DIE) else other.orders(fault).held.states)


def isolated(fault: Fault) -> frozenset[str]:
    """Return the nodes that lose the most links to a fault that cuts links and names no node."""
    lost = Counter(end for link in fault.cut for end in link)
    most = max(lost.values(), default=0)
    return frozenset(node for node, count in lost.items() if count == most and count > 1)


def needs_leader(fault: Fault) -> bool:
    """Return whether the recorded fault treats its leader differently from a follower, so that a node must lead now."""
    if fault.leader is None:
        return False
    return fault.leader in fault.nodes or any(fault.leader in link for link in fault.cut)


def by_role(fault: Fault, leader: str | None, servers: Collection[str]) -> Fault:
    """Return the fault with the current leader in the role of the recorded leader.

    leader: the current leader; None if there is none, and then the recorded names stay. servers: may be fewer than
    recorded.
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
    """Return the value with these nodes renamed in every string inside it, simultaneously."""
    if isinstance(value, str):
        return re.sub(r"\b\w+\b", lambda word: names.get(word.group(), word.group()), value)
    if isinstance(value, Mapping):
        return {_renamed(key, names): _renamed(each, names) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_renamed(each, names) for each in value)
    return value


# ---- base classes of kinds that act on each node alike ---------------------------------------------------------------

Limits = Mapping[str, Range]
"""Name of a setting -> its minimum and maximum."""

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

    held, healed: the expected state of its process, None for any state. values, healed_values: limits of the results of
    `measure`, by names without the node.
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
