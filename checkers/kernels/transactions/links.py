"""Collects dependencies while a kernel finds them one by one: direct edges, and the two sides of groups.

    links = new_links(...)    link_direct(links, ...)    stand_before(links, ...)    stand_after(links, ...)
    edges, groups = gathered(links)

The caller gives upper bounds for the rooms.  Unused parts are never touched, so large bounds cost no memory.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Int8, Int32, Int64
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.transactions.columns import Edges


class Groups(NamedTuple):
    """Groups: all transactions before a group precede all transactions after it.

    before, after: int32, transactions, at most once per group and side.  before_group, after_group: int32, the numbers
    of their groups, from 0.  before_kind: int8, the kind of the dependency.
    """

    before: Int32
    before_group: Int32
    before_kind: Int8
    after: Int32
    after_group: Int32


class Links(NamedTuple):
    """Room for dependencies.  counts: int64[3], the numbers of edges, of rows before groups, and of rows after them."""

    edges: Edges
    groups: Groups
    counts: Int64


@kernel
def new_links(edges: int, before: int, after: int) -> Links:
    """Make room for these numbers of edges and rows."""
    return Links(
        Edges(np.empty(edges, np.int32), np.empty(edges, np.int32), np.empty(edges, np.int8)),
        Groups(
            np.empty(before, np.int32),
            np.empty(before, np.int32),
            np.empty(before, np.int8),
            np.empty(after, np.int32),
            np.empty(after, np.int32),
        ),
        np.zeros(3, np.int64),
    )


@inner_kernel
def link_direct(links: Links, source: int, target: int, kind: int) -> None:
    """Add one edge between transactions."""
    n = links.counts[0]
    links.edges.source[n], links.edges.target[n], links.edges.kind[n] = source, target, kind
    links.counts[0] = n + 1


@inner_kernel
def stand_before(links: Links, t: int, group: int, kind: int) -> None:
    """Put transaction t before the group: it precedes all transactions after the group."""
    n = links.counts[1]
    links.groups.before[n], links.groups.before_group[n], links.groups.before_kind[n] = t, group, kind
    links.counts[1] = n + 1


@inner_kernel
def stand_after(links: Links, t: int, group: int) -> None:
    """Put transaction t after the group: it follows all transactions before the group."""
    n = links.counts[2]
    links.groups.after[n], links.groups.after_group[n] = t, group
    links.counts[2] = n + 1


@kernel
def gathered(links: Links) -> tuple[Edges, Groups]:
    """Return everything that was collected."""
    n, b, a = links.counts
    edges, groups = links.edges, links.groups
    return (
        Edges(edges.source[:n], edges.target[:n], edges.kind[:n]),
        Groups(
            groups.before[:b], groups.before_group[:b], groups.before_kind[:b], groups.after[:a], groups.after_group[:a]
        ),
    )
