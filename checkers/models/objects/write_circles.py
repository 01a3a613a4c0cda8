"""Whether some order of writes explains which of them each read showed.

A read that shows x and lacks y puts x before itself, and itself before y.  The writes have an order that explains all
reads exactly if these edges have no cycle: any topological order of them is one.  (A read needs no real time here.)

    shown write -> read -> write that it lacks

Two reads that show x without y, and y without x, make the shortest such circle of two writes.  Reads of different keys
can make a longer one: x without y, y without z, z without x.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import networkx

MOST_STARTS = 200
"""From so many writes of a knot the shortest circle is searched.  Each search takes time linear in the knot's size."""

_Node = tuple[str, int]
"""("write" or "read", its place)."""


class Seen(NamedTuple):
    """What one read showed of the writes.  shown, lacked: numbers of writes, which may be of any kind of event."""

    shown: frozenset[int]
    lacked: frozenset[int]


class Link(NamedTuple):
    """One read of a circle.  read: its place.  It showed the write `shown` and lacked `lacked`."""

    read: int
    shown: int
    lacked: int


def circle_of(reads: Sequence[Seen]) -> list[Link]:
    """A circle with few reads, whose `lacked` write is the `shown` one of the next read; [] if an order explains all.

    A circle of one read is a write of which it showed a part only.  Time and space: linear in the sizes of all
    different reads, and MOST_STARTS times that of one knot.
    """
    import networkx  # half a second of CPU, which a check of any other object must not pay

    graph = _graph(reads, _out_of_order(reads))
    knots = [knot for knot in networkx.strongly_connected_components(graph) if len(knot) > 1]
    if not knots:
        return []
    knot = graph.subgraph(min(knots, key=lambda nodes: (len(nodes), min(nodes))))
    starts = sorted(node for node in knot if node[0] == "write")[:MOST_STARTS]
    nodes = min((_shortest(knot, start) for start in starts), key=len)
    return [
        Link(nodes[place][1], nodes[place - 1][1], nodes[(place + 1) % len(nodes)][1])
        for place in range(1, len(nodes), 2)
    ]


def overlapping(groups: Iterable[frozenset[int]]) -> set[frozenset[int]]:
    """The groups that share a write with another one.  The others can be decided by themselves."""
    every = list(groups)
    owner: dict[int, frozenset[int]] = {}
    found: set[frozenset[int]] = set()
    for group in every:
        for write in group:
            other = owner.setdefault(write, group)
            if other is not group:
                found |= {group, other}
    return found


def _out_of_order(reads: Sequence[Seen]) -> list[int]:
    """The reads that no order reaches: those of circles, and those that need them first.  One each of equal reads.

    Reads and writes are put in order as long as one is free.  A read is free when all that it showed is in order, and
    a write when all reads that lack it are in order.
    """
    places = list({read: place for place, read in reversed(list(enumerate(reads)))}.values())
    shown_by: dict[int, list[int]] = defaultdict(list)
    lacked_by: Counter[int] = Counter()
    for place in places:
        for write in reads[place].shown:
            shown_by[write].append(place)
        lacked_by.update(reads[place].lacked)
    missing = {place: len(reads[place].shown) for place in places}
    free = [place for place in places if not missing[place]]
    writes = [write for write in shown_by if not lacked_by[write]]
    while free or writes:
        if free:
            place = free.pop()
            del missing[place]
            for write in reads[place].lacked:
                lacked_by[write] -= 1
                if not lacked_by[write]:
                    writes.append(write)
            continue
        for place in shown_by.get(writes.pop(), ()):
            missing[place] -= 1
            if not missing[place]:
                free.append(place)
    return list(missing)


def _graph(reads: Sequence[Seen], places: Iterable[int]) -> networkx.DiGraph[_Node]:
    import networkx

    graph: networkx.DiGraph[_Node] = networkx.DiGraph()
    for place in places:
        graph.add_edges_from((("write", write), ("read", place)) for write in reads[place].shown)
        graph.add_edges_from((("read", place), ("write", write)) for write in reads[place].lacked)
    return graph


def _shortest(graph: networkx.DiGraph, start: _Node) -> list[_Node]:
    """The nodes of a shortest cycle through `start`, which begins with it.  There is one, as all lie in one knot."""
    before: dict[_Node, _Node] = {}
    waiting = deque([start])
    while start not in before:
        node = waiting.popleft()
        for following in sorted(graph.successors(node)):
            if following not in before:
                before[following] = node
                waiting.append(following)
    nodes = [before[start]]
    while nodes[-1] != start:
        nodes.append(before[nodes[-1]])
    return nodes[::-1]
