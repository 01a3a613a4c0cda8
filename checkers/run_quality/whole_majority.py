"""When was a majority of the servers *whole*: running, untouched by faults, and in reach of each other and a client?

Theory.  A fault takes nodes and directed links away, from the beginning of its order until some time after its heal.
What is left is a graph.  A majority is whole while all of these hold:

- No fault strikes one of its servers, and none of them has ended by itself.
- Every two of its servers reach each other, in both directions.
- One client node reaches all of its servers, in both directions.
- No other running server reaches only a part of it.  Such a server may campaign for ever, or be heard and not hear.

Then nothing that the harness did explains why the system does not answer this client.

A server is not whole again at once.  One that only was stopped or cut off gets RETURN_S.  One whose process may have
ended gets the whole recovery limit, because it has to start and to catch up.  What a fault touched that names no node
and no link is not known, so nothing is whole then.

Faults are `checkers.record.faults.FaultRecord`s.  All times are ns since the test began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

from checkers.record.faults import FaultRecord, Link
from checkers.record.outcome import Death
from checkers.run_quality.faults_installed import SKIPPED

RETURN_S = 10.0
"""After the heal, a server or a link that never ended gets so long, times `holds`: connections back off and come
back late."""
FOR_EVER_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class Struck:
    """[begin_ns, end_ns): these nodes and links are not whole.  everything: no node is."""

    begin_ns: int
    end_ns: int
    nodes: frozenset[str] = frozenset()
    links: frozenset[Link] = frozenset()
    everything: bool = False


@dataclass(frozen=True, slots=True)
class Whole:
    """These servers were whole from begin_ns to end_ns, and this client node reached all of them.

    from_start: they were whole when the main phase began, so begin_ns says only when that was."""

    servers: tuple[str, ...]
    client: str
    begin_ns: int
    end_ns: int
    from_start: bool


def struck_by(
    faults: Iterable[FaultRecord],
    deaths: Iterable[Death],
    main_begin_ns: int,
    recovery_limit_s: float,
    holds: float = 1.0,
) -> list[Struck]:
    """What the faults, and ends of processes that nobody ordered, took away, and for how long."""
    found = [each for fault in faults for each in _of_fault(fault, main_begin_ns, recovery_limit_s, holds)]
    for death in deaths:
        if death.time_ns >= 0 and not death.ordered:
            found.append(Struck(death.time_ns, FOR_EVER_NS, frozenset({death.node})))
    return found


def changes_of(faults: Iterable[FaultRecord]) -> list[int]:
    """When a fault began or was healed: each may cost a system one more election.  In order of time."""
    return sorted(at_ns for fault in faults for at_ns in (fault.injected_ns, fault.healed_ns) if at_ns >= 0)


def whole_majorities(
    servers: Sequence[str], clients: Sequence[str], size: int, struck: Sequence[Struck], main: tuple[int, int]
) -> list[Whole]:
    """Every longest span of the main phase in which `size` servers were whole for one client node.

    size: how many servers the system needs.  Larger sets need no span of their own: each holds a set of this size,
    unless its other servers are struck.  main: [from, to).
    """
    edges = sorted({*main, *(t for s in struck for t in (s.begin_ns, s.end_ns) if main[0] < t < main[1])})
    open_: dict[tuple[tuple[str, ...], str], Whole] = {}
    done: list[Whole] = []
    for begin, end in pairwise(edges):
        now = set(_whole_between(begin, end, servers, clients, size, struck))
        done += [open_.pop(name) for name in [*open_] if name not in now]
        for name in now:
            before = open_.get(name)
            since, from_start = (before.begin_ns, before.from_start) if before else (begin, begin == main[0])
            open_[name] = Whole(*name, since, end, from_start)
    return sorted([*done, *open_.values()], key=lambda whole: (whole.begin_ns, whole.servers, whole.client))


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


def _of_fault(fault: FaultRecord, main_begin_ns: int, recovery_limit_s: float, holds: float) -> Iterator[Struck]:
    links = frozenset(fault.cut) | frozenset(_links(fault.settings.get("links")))
    if not fault.carried_out:
        if fault.achieved is SKIPPED:
            return
        begin_ns, end_ns = main_begin_ns + int(fault.card.at_s * 1e9), FOR_EVER_NS
    else:
        back_s = max(recovery_limit_s, RETURN_S * holds) if _may_end(fault) else RETURN_S * holds
        begin_ns = fault.began_ns
        end_ns = fault.healed_ns + int(back_s * 1e9) if fault.healed else FOR_EVER_NS
    if fault.over_budget or fault.may_stay_down:
        end_ns = FOR_EVER_NS
    nodes = frozenset(fault.nodes)
    yield Struck(begin_ns, end_ns, nodes, links, everything=fault.over_budget or not (nodes or links))
    if fault.changes_members:  # what a majority is changes at both ends
        yield Struck(begin_ns, end_ns, everything=True)


def _may_end(fault: FaultRecord) -> bool:
    """Whether the fault may end a process."""
    states = {*fault.ordered.held.states.values(), *fault.ordered.healed.states.values()}
    return "dead" in states or fault.may_die or fault.hits_one_process


def _links(links: Any) -> Iterator[Link]:
    """The links in a setting of a kind, which may hold anything."""
    for link in links if isinstance(links, list | tuple) else ():
        if isinstance(link, list | tuple) and len(link) == 2:
            yield str(link[0]), str(link[1])
