"""Transactions of a witness as the page shows them: what each did, and the cycle of reasons between them.

A cycle is drawn twice.  The ring shows at a glance which transaction must come before which.  The ladder lists the same
edges with the sentence behind each.  The ring is a directed graph, laid out here in pixels; the ladder is plain HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

import networkx

from harness.plain_words import shorten
from harness.story.story import Edge, Story, Transaction

RING_MOST = 12
"""Transactions of a ring; of a longer cycle only the ladder is shown."""

KEY_SHOWN_MOST = 10
"""Characters of a key beside an arrow; its sentence has it whole."""

_WIDTH = 330
_RADIUS_NODE = 19.0


@dataclass(frozen=True, slots=True)
class CycleNode:
    x: float
    y: float
    name: str


@dataclass(frozen=True, slots=True)
class Arrow:
    """A curve from the rim of one node to that of the next, its tip as a path, and where its words stand."""

    curve: str
    tip: str
    x: float
    y: float
    words: str
    anchor: str


@dataclass(frozen=True, slots=True)
class Ring:
    width: float
    height: float
    nodes: list[CycleNode]
    arrows: list[Arrow]


@dataclass(frozen=True, slots=True)
class Cycle:
    """transactions: one for each edge, from which it leaves.  left_out: edges of a long cycle that are not drawn."""

    edges: Sequence[Edge]
    transactions: list[Transaction]
    ring: Ring | None
    left_out: int


def cycle_of(story: Story) -> Cycle | None:
    """The cycle of a violation of isolation; None if it has none."""
    edges = story.edges
    if not edges:
        return None
    known = {transaction.name: transaction for transaction in story.transactions}
    nodes = [known.get(e.source, Transaction(e.source, "", "", "")) for e in edges]
    closed = story.length <= len(edges) <= RING_MOST and _is_simple_cycle(edges)
    return Cycle(edges, nodes, _ring(edges) if closed else None, max(0, story.length - len(edges)))


def _is_simple_cycle(edges: Sequence[Edge]) -> bool:
    """Whether the edges form one cycle that visits each transaction once.  The page also shows files of other hands."""
    graph = _graph_of(edges)
    each_once = graph.number_of_nodes() == graph.number_of_edges() == len(edges) > 1
    return each_once and bool(networkx.is_strongly_connected(graph))


def _graph_of(edges: Sequence[Edge]) -> networkx.DiGraph:
    return networkx.DiGraph([(edge.source, edge.target) for edge in edges])


def _short(edge: Edge) -> str:
    """What stands on the ring: kind and key."""
    return f"{edge.kind} {shorten(edge.key, KEY_SHOWN_MOST)}" if edge.key else edge.kind


def _ring(edges: Sequence[Edge]) -> Ring:
    """Lay the transactions out clockwise from the top; two of them stand side by side."""
    count = len(edges)
    radius = 84.0 if count == 2 else 62.0 + 13.0 * max(0, count - 3)
    centre_x, centre_y = _WIDTH / 2, 62.0 if count == 2 else radius + 46
    place = {}
    for name, (x, y) in networkx.circular_layout(_graph_of(edges), scale=radius).items():
        across, down = (-x, -y) if count == 2 else (y, -x)  # the layout begins at the right
        place[name] = CycleNode(round(centre_x + float(across), 1), round(centre_y + float(down), 1), name)
    arrows = [_arrow(place[e.source], place[e.target], _short(e)) for e in edges]
    return Ring(_WIDTH, round(2 * centre_y, 1), list(place.values()), arrows)


def _arrow(a: CycleNode, b: CycleNode, words: str) -> Arrow:
    """A curve that bends outwards, with its words beyond the bend."""
    middle_x, middle_y = (a.x + b.x) / 2, (a.y + b.y) / 2
    length = hypot(b.x - a.x, b.y - a.y) or 1.0
    across_x, across_y = (b.y - a.y) / length, -(b.x - a.x) / length  # to the left of the way from a to b: outwards
    bend = 0.28 * length
    bend_x, bend_y = middle_x + across_x * bend, middle_y + across_y * bend
    from_x, from_y = _rim(a.x, a.y, bend_x, bend_y, _RADIUS_NODE)
    to_x, to_y = _rim(b.x, b.y, bend_x, bend_y, _RADIUS_NODE + 3)
    back_x, back_y = _rim(to_x, to_y, bend_x, bend_y, 9)
    side_x, side_y = (to_y - back_y) / 2, -(to_x - back_x) / 2
    tip = (
        f"M{to_x:.1f} {to_y:.1f}L{back_x + side_x:.1f} {back_y + side_y:.1f}"
        f"L{back_x - side_x:.1f} {back_y - side_y:.1f}Z"
    )
    text_x, text_y = middle_x + across_x * (bend / 2 + 14), middle_y + across_y * (bend / 2 + 14) + 4
    anchor = "start" if across_x > 0.35 else "end" if across_x < -0.35 else "middle"
    half = len(words) * 3.65
    least, most = (4.0, _WIDTH - 2 * half) if anchor == "start" else (2 * half, _WIDTH - 4.0)
    if anchor == "middle":
        least, most = half + 4, _WIDTH - half - 4
    text_x = min(max(text_x, least), max(most, least))
    curve = f"M{from_x:.1f} {from_y:.1f}Q{bend_x:.1f} {bend_y:.1f} {back_x:.1f} {back_y:.1f}"
    return Arrow(curve, tip, round(text_x, 1), round(text_y, 1), words, anchor)


def _rim(x: float, y: float, towards_x: float, towards_y: float, radius: float) -> tuple[float, float]:
    """The point that far from (x, y) on the way to another."""
    length = hypot(towards_x - x, towards_y - y) or 1.0
    return x + (towards_x - x) * radius / length, y + (towards_y - y) * radius / length
