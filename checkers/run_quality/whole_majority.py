"""Spans in which a majority of the servers was *whole*: running, untouched by faults, and in reach of a client.

Theory.  A fault takes nodes and directed links away, from the beginning of its order until its heal.  What is left is
a graph.  A majority is whole while all of these hold:

- No fault strikes one of its servers, and none of them has ended by itself.
- Every two of its servers reach each other, in both directions.
- One client node reaches all of its servers, in both directions.
- No other running server reaches only a part of it.  Such a server may campaign for ever, or be heard and not hear.

Then nothing that the harness did explains why the system does not answer this client.

A server that only was stopped or cut off counts again at the heal.  One whose process may have ended has to start, so
it counts once it answers: a client got an ok from it, or it reported a leader.  If nothing shows that, it counts after
the recovery limit.  What a fault touched that names no node and no link is not known, so nothing is whole then.

Which servers are the majority may change from one moment to the next.  A `WholeStretch` is a longest time in which some
majority was whole.  Each change of faults in it may cost one more election (`FaultEdge`).

Faults are `checkers.record.faults.FaultRecord`s.  All times are ns since the test began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

from checkers.record.faults import FaultRecord, Link
from checkers.record.outcome import Death, Report
from checkers.run_quality.faults_installed import SKIPPED

RETURN_S = 10.0
"""Seconds, times `holds`, until servers that can talk again do: connections back off and come back late."""
FOR_EVER_NS = 1 << 62
SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Struck:
    """Nodes and links that are not whole in [begin_ns, end_ns).  everything: no node is."""

    begin_ns: int
    end_ns: int
    nodes: frozenset[str] = frozenset()
    links: frozenset[Link] = frozenset()
    everything: bool = False


@dataclass(frozen=True, slots=True)
class Whole:
    """Servers that were whole from begin_ns to end_ns, and a client node that reached all of them."""

    servers: tuple[str, ...]
    client: str
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class WholeStretch:
    """A longest time in which some majority was whole at every moment: one of these, by their begins.

    from_start: one was whole when the main phase began, so begin_ns says only when that was."""

    wholes: tuple[Whole, ...]
    begin_ns: int
    end_ns: int
    from_start: bool


@dataclass(frozen=True, slots=True)
class FaultEdge:
    """A fault struck, or what it had struck came back, which may cost one more election."""

    at_ns: int
    back: bool


def struck_by(
    faults: Iterable[FaultRecord],
    deaths: Iterable[Death],
    main_begin_ns: int,
    recovery_limit_s: float,
    answered: ServerAnswers,
) -> list[Struck]:
    """Return what the faults, and ends of processes that nobody ordered, took away, and for how long."""
    found = [each for fault in faults for each in _of_fault(fault, main_begin_ns, recovery_limit_s, answered)]
    for death in deaths:
        if death.time_ns >= 0 and not death.ordered:
            found.append(Struck(death.time_ns, FOR_EVER_NS, frozenset({death.node})))
    return found


def changes_of(faults: Iterable[FaultRecord], struck: Sequence[Struck]) -> list[FaultEdge]:
    """Return every begin, heal and return of a server, each once, in order of time."""
    changes = {(s.begin_ns, False) for s in struck} | {(s.end_ns, True) for s in struck if s.end_ns < FOR_EVER_NS}
    changes |= {(fault.healed_ns, True) for fault in faults if fault.healed}
    return [FaultEdge(*change) for change in sorted(changes)]


def stretches(wholes: Sequence[Whole], main_begin_ns: int) -> list[WholeStretch]:
    """Join spans that overlap or follow each other.

    wholes: in order of their begins.
    """
    joined: list[WholeStretch] = []
    for whole in wholes:
        if joined and whole.begin_ns <= joined[-1].end_ns:
            last = joined[-1]
            joined[-1] = WholeStretch(
                (*last.wholes, whole), last.begin_ns, max(last.end_ns, whole.end_ns), last.from_start
            )
        else:
            joined.append(WholeStretch((whole,), whole.begin_ns, whole.end_ns, whole.begin_ns == main_begin_ns))
    return joined


class ServerAnswers:
    """Times at which each server is known to have answered: ends of ok operations, and reports that name a leader."""

    def __init__(self, reports: Iterable[Report], seconds: Iterable[tuple[str, int]]) -> None:
        """seconds: (node, second) in which an operation ended ok that this node answered."""
        self._spans: dict[str, list[tuple[int, int]]] = {}
        for report in reports:
            if report.leader is not None or report.role == "leader":
                self._spans.setdefault(report.node, []).append((report.time_ns, report.until_ns))
        for node, second in seconds:
            self._spans.setdefault(node, []).append((second * SECOND_NS, second * SECOND_NS))

    def since(self, node: str, from_ns: int) -> int:
        """Return when the node first answered, from this time on; FOR_EVER_NS if it is not known to have."""
        spans = self._spans.get(node, ())
        return min((max(begin, from_ns) for begin, end in spans if end >= from_ns), default=FOR_EVER_NS)


def whole_majorities(
    servers: Sequence[str], clients: Sequence[str], size: int, struck: Sequence[Struck], main: tuple[int, int]
) -> list[Whole]:
    """Return every longest span of the main phase in which `size` servers were whole for one client node.

    size: number of servers that the system needs.  Larger sets need no span of their own: each holds a set of this
    size, unless its other servers are struck.  main: [from, to).
    """
    edges = sorted({*main, *(t for s in struck for t in (s.begin_ns, s.end_ns) if main[0] < t < main[1])})
    open_: dict[tuple[tuple[str, ...], str], int] = {}
    done: list[Whole] = []
    for begin, end in pairwise(edges):
        now = set(_whole_between(begin, end, servers, clients, size, struck))
        done += [Whole(*name, open_.pop(name), begin) for name in [*open_] if name not in now]
        for name in now:
            open_.setdefault(name, begin)
    done += [Whole(*name, begin, main[1]) for name, begin in open_.items()]
    return sorted(done, key=lambda whole: (whole.begin_ns, whole.servers, whole.client))


def _whole_between(
    begin_ns: int, end_ns: int, servers: Sequence[str], clients: Sequence[str], size: int, struck: Sequence[Struck]
) -> Iterator[tuple[tuple[str, ...], str]]:
    now = [each for each in struck if each.begin_ns < end_ns and begin_ns < each.end_ns]
    if any(each.everything for each in now):
        return
    gone = frozenset[str]().union(*(each.nodes for each in now))
    cut = frozenset[Link]().union(*(each.links for each in now))

    def joined(a: str, b: str) -> bool:
        return (a, b) not in cut and (b, a) not in cut

    def apart(a: str, b: str) -> bool:
        return (a, b) in cut and (b, a) in cut

    for chosen in combinations([server for server in servers if server not in gone], size):
        if not all(joined(a, b) for a, b in combinations(chosen, 2)):
            continue
        others = [server for server in servers if server not in chosen]
        if not all(all(joined(o, s) for s in chosen) or all(apart(o, s) for s in chosen) for o in others):
            continue
        for client in clients:
            if client not in gone and all(joined(client, server) for server in chosen):
                yield chosen, client


def _of_fault(
    fault: FaultRecord, main_begin_ns: int, recovery_limit_s: float, answered: ServerAnswers
) -> Iterator[Struck]:
    if not fault.carried_out and fault.achieved is SKIPPED:
        return
    begin_ns, end_ns = fault.began_ns, fault.end_ns(FOR_EVER_NS)
    if not fault.carried_out:
        begin_ns, end_ns = main_begin_ns + int(fault.card.at_s * 1e9), FOR_EVER_NS
    if fault.over_budget or fault.may_stay_down:
        end_ns = FOR_EVER_NS
    nodes = frozenset(fault.nodes)
    links = frozenset(fault.cut) | frozenset(_links(fault.settings.get("links")))
    yield Struck(begin_ns, end_ns, nodes, links, everything=fault.over_budget or not (nodes or links))
    if fault.healed and end_ns < FOR_EVER_NS and _may_end(fault):
        latest_ns = end_ns + int(recovery_limit_s * 1e9)
        for node in fault.nodes:
            yield Struck(begin_ns, min(answered.since(node, end_ns), latest_ns), frozenset({node}))
    if fault.changes_members:  # what a majority is changes at both ends, and takes a while
        back_ns = end_ns if end_ns == FOR_EVER_NS else end_ns + int(RETURN_S * 1e9)
        yield Struck(begin_ns, back_ns, everything=True)


def _may_end(fault: FaultRecord) -> bool:
    """Return True if the fault may end a process."""
    states = {*fault.ordered.held.states.values(), *fault.ordered.healed.states.values()}
    return "dead" in states or fault.may_die or fault.hits_one_process


def _links(links: Any) -> Iterator[Link]:
    """The links in a setting of a kind, which may hold anything."""
    for link in links if isinstance(links, list | tuple) else ():
        if isinstance(link, list | tuple) and len(link) == 2:
            yield str(link[0]), str(link[1])
