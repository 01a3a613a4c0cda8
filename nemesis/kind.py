"""Definition of a kind of fault: one value with all that the rest of the harness must know about it.

A file in `nemesis/kinds` builds one `Kind` and calls it KIND; `nemesis.catalog` lists it.  The deck deals a kind's
cards, the player resolves, injects, measures and heals them, and the checkers judge what was measured.  None of them
knows a kind by name.

Scene      what a card is resolved from: who is there, who leads, who is already hit
Field      what is in force on the cluster; it carries out orders of several faults at once

Most kinds do the same to each of their nodes.  For these, three functions turn a row of verbs into the parts of a kind:
`each_node` an order, `demands` what measurements must show, `readings_of` a measurement.

*Recorded faults.*  Each is carried out against the roles of now in place of the names of then.

A schedule that was saved from a run says "the leader, with c1, cut from the others", and that the leader was n2.  When
it is played again, another node leads.  So the two nodes change places everywhere in the fault: what hit the leader
hits the leader, and what hit a follower hits a follower.  All other nodes keep their names.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any

from checkers.record.faults import MAY_DIE, Condition, Fault, Ordered
from nemesis.cluster import PROCESSES, Cluster
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
    """State that a card is resolved from.

    servers: all of them, which is what majorities are counted of.  running: those whose process runs and that no other
    fault keeps out of reach.  leader: who leads now; None where the card names no leader.
    avoid: nodes that overlapping faults of the same kind already hit.
    spent: nodes that have already lost what they had fsynced to faults of this run.
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


@dataclass(frozen=True, slots=True)
class Target:
    """One thing a kind can be aimed at.

    against_leader: it can only be resolved while a node leads.  servers_min: with fewer servers it would hit
    nothing, or its words would be untrue.  hold_s: how long a card of it holds, at least and at most.
    needs: capabilities in addition to those of the kind.  at_fsync: it waits for an fsync of a server.
    """

    summary: str
    against_leader: bool = False
    servers_min: int = 1
    hold_s: Range = (3.0, 5.0)
    needs: frozenset[str] = frozenset()
    at_fsync: bool = False


@dataclass(frozen=True, slots=True)
class FigureStep:
    """One card of a figure.  after_s: seconds after the figure begins.  again: hit what the first step hit.

    moment: wait for this moment (`nemesis.coverage`) of what the first step has set off; "" = do not wait.  The
    card is healed when it would be without the wait.
    kind: of the card, "" for that of the deck.  until, until_step, until_s: as of a `Card`; the step is numbered from 1
    within the figure.  line, line_nth: as of a `Card`."""

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
    """Called with the random stream and the number of servers."""
    servers_min: int = 1


@dataclass(frozen=True, slots=True)
class Deck:
    """opening: dealt first, in this order, with how long each holds in seconds (a figure has times of its own).
    opening_without_leaders: takes its place where the system does not report who leads; None: what of the opening needs
    no leader.  rest: shuffled after that.  Names are targets or figures."""

    opening: tuple[tuple[str, float], ...]
    rest: tuple[str, ...]
    opening_without_leaders: tuple[tuple[str, float], ...] | None = None
    figures: Mapping[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault.

    name: as in `--nemesis`, in cards and in the history ("inject-<name>").  needs: capabilities of the backend.
    resolve: the fault that this target means now; None if nothing could be hit.  Equal arguments give equal faults.
    inject, heal: carry the order out and undo it.  Both raise OSError or CannotInject, and may be called twice.
    orders: what measurements must show while this fault holds and after its heal; its links need no entry.
    measure: numbers that `Ordered.held.values` and `Ordered.healed.values` limit; states and links need no such
        function.  Raises OSError.
    ready: what is still missing before the system can take a fault of this kind, "" for nothing; None: it always can.
        A card of such a kind waits, and holds as long as it would have.  Raises OSError.
    costs: nodes that may lose what they had fsynced.  At most a minority may, unless the budget is broken on purpose.
    parts: names of the kinds whose cards its figures deal; such a kind has no targets and no cards of its own.
    settings: a TypedDict of what the settings of its faults must hold, in a schedule file, too.
    refuse: raises ValueError in one sentence for settings, of a card in a schedule file, that cannot be carried out or
        that no measurement could prove.
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
    """The nodes of a fault in force that a card of `kind` must not hit, or the one would undo or hide the other.

    Links can be cut around a server whose clock is wrong, but not around one that is down: it leads no server."""
    if PROCESSES in kind.needs:
        return frozenset(fault.nodes if PROCESSES in other.needs else ())
    return frozenset(fault.nodes if fault.settings.get(MAY_DIE) else other.orders(fault).held.states)


def isolated(fault: Fault) -> frozenset[str]:
    """The nodes that lose the most links to a fault that cuts links and names no node."""
    lost: dict[str, int] = {}
    for link in fault.cut:
        for end in link:
            lost[end] = lost.get(end, 0) + 1
    most = max(lost.values(), default=0)
    return frozenset(node for node, count in lost.items() if count == most and count > 1)


def needs_leader(fault: Fault) -> bool:
    """Return whether the fault treats the leader of then in another way than a follower, so that one must lead now."""
    if fault.leader is None:
        return False
    return fault.leader in fault.nodes or any(fault.leader in link for link in fault.cut)


def by_role(fault: Fault, leader: str | None, servers: Collection[str]) -> Fault:
    """The fault with the leader of now in the role of the leader of then.

    leader: who leads now, None if none does; then the names of then stay.  servers: may be fewer than then."""
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
    """The value with these nodes renamed in every text of it, at once."""
    if isinstance(value, str):
        return re.sub(r"\b\w+\b", lambda word: names.get(word.group(), word.group()), value)
    if isinstance(value, Mapping):
        return {_renamed(key, names): _renamed(each, names) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_renamed(each, names) for each in value)
    return value


# ---- base classes of kinds that act on each node alike ---------------------------------------------------------------

Limits = Mapping[str, Range]
"""Name of a value -> the least and the most that it may be."""

TRUE, FALSE = (1.0, 1.0), (0.0, 0.0)


def each_node(order: Callable[[Cluster, str, Fault], Awaitable[None]]) -> Callable[[Field, Fault], Awaitable[None]]:
    """Return the `inject` or `heal` of a kind that gives this order to all nodes of a fault at once."""

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
    """Return the `orders` of a kind that demands the same of each node of a fault.

    held, healed: the state of its process, None if any will do.  values, healed_values: limits of what `measure`
    returns, by names without the node."""

    def condition(fault: Fault, state: ProcessState | None, limits: Limits) -> Condition:
        states = dict.fromkeys(fault.nodes, str(state)) if state else {}
        return Condition(states, {f"{node}: {name}": limit for node in fault.nodes for name, limit in limits.items()})

    return lambda fault: Ordered(condition(fault, held, values(fault)), condition(fault, healed, healed_values(fault)))


def readings_of(
    look: Callable[[Cluster, str, Fault], Awaitable[Mapping[str, float]]],
) -> Callable[[Cluster, Fault], Awaitable[Mapping[str, float]]]:
    """Return the `measure` of a kind that looks at one node after another."""

    async def measure(cluster: Cluster, fault: Fault) -> Mapping[str, float]:
        values: dict[str, float] = {}
        for node in fault.nodes:
            values |= {f"{node}: {name}": value for name, value in (await look(cluster, node, fault)).items()}
        return values

    return measure
