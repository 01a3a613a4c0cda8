"""Orders the stays of values on a stack, one inside another.  `models/objects/stack.py` explains the theory.

Times are places of events; gap g follows the event at place g.  Two binary trees have a leaf for each place.  One
contains the start of the push that returned at the place, unless the value is already ordered.  The other counts the
values that must be on the stack in each gap; a change of many leaves is stored at the nodes above them.

O(n p log n) for n values and p pushes that are under way at once.
"""

from __future__ import annotations

import numpy as np

from checkers.base.arrays import Bools, Int64
from checkers.kernels.jit import kernel

NOTHING = 2**62
"""Content of a leaf without a value; larger than every place."""


@kernel
def nest(stays: Int64, end: int) -> tuple[Int64, Int64, Bools, int, int]:
    """Order pushes and pops.

    Returns (order, first, placed, from, to):

    order: v for the push of value v, -1 - v for its pop
    first: for each entry of `order`, the place at which its outermost block begins
    placed: bool per value, True if the value is in the order
    from, to: -1 if there is an order.  Otherwise the values that are not placed and lie between these places prove that
        there is none, and `order` and `first` are incomplete.

    stays: for each value the places of four events: call and return of its push, call and return of its pop.  The push
        returned before the pop was called, and no two pushes returned at one place.
    end: larger than every place; a value that stayed on the stack has the pop (end, end + 1)
    """
    count = len(stays)
    leaves = 1
    while leaves < end + 2:
        leaves *= 2
    starts = np.full(2 * leaves, NOTHING, np.int64)
    value_at = np.full(end + 2, -1, np.int64)
    there = np.zeros(2 * leaves, np.int64)
    kept = np.zeros(2 * leaves, np.int64)
    for v in range(count):
        starts[leaves + stays[v, 1]] = stays[v, 0]
        value_at[stays[v, 1]] = v
        there[leaves + stays[v, 1]] += 1
        there[leaves + stays[v, 2]] -= 1
    for leaf in range(leaves + 1, 2 * leaves):
        there[leaf] += there[leaf - 1]
    for node in range(leaves - 1, 0, -1):
        starts[node] = min(starts[2 * node], starts[2 * node + 1])
        there[node] = min(there[2 * node], there[2 * node + 1])
    order = np.empty(2 * count, np.int64)
    first = np.empty(2 * count, np.int64)
    placed = np.zeros(count, np.bool_)
    waiting = np.empty((2 * count + 3, 2), np.int64)
    waiting[0, 0], waiting[0, 1] = 0, end
    size, made, depth, outermost = 1, 0, 0, 0
    while size:
        size -= 1
        low, high = waiting[size, 0], waiting[size, 1]
        if high < 0:
            order[made], first[made] = -1 - low, outermost
            made += 1
            depth -= 1
            continue
        low = _first_below(starts, leaves, low, high, NOTHING)
        if low < 0:
            continue
        last = _first_empty(there, kept, leaves, low)
        at = _first_below(starts, leaves, low, last, low)
        while at >= 0 and stays[value_at[at], 3] < last:
            at = _first_below(starts, leaves, at + 1, last, low)
        if at < 0:
            return order, first, placed, low, last
        v = value_at[at]
        placed[v] = True
        _forget(starts, leaves, at)
        _leave(there, kept, leaves, stays[v, 1], stays[v, 2])
        if not depth:
            outermost = low
        depth += 1
        order[made], first[made] = v, outermost
        made += 1
        if last < high:
            waiting[size, 0], waiting[size, 1] = last + 1, high
            size += 1
        waiting[size, 0], waiting[size, 1] = v, -1
        waiting[size + 1, 0], waiting[size + 1, 1] = low, last
        size += 2
    return order, first, placed, -1, -1


@kernel
def _first_below(tree: Int64, leaves: int, low: int, high: int, limit: int) -> int:
    """Return the first leaf from `low` to `high` whose content is below the limit; -1 if there is none."""
    if low > high:
        return -1
    node = leaves + low
    while tree[node] >= limit:
        while node & 1:
            node >>= 1
            if node == 0:
                return -1
        node += 1
    while node < leaves:
        node *= 2
        if tree[node] >= limit:
            node += 1
    return node - leaves if node - leaves <= high else -1


@kernel
def _forget(tree: Int64, leaves: int, place: int) -> None:
    node = leaves + place
    tree[node] = NOTHING
    node >>= 1
    while node:
        tree[node] = min(tree[2 * node], tree[2 * node + 1])
        node >>= 1


@kernel
def _first_empty(there: Int64, kept: Int64, leaves: int, low: int) -> int:
    """Return the first gap from `low` on in which no value must be on the stack, which is at latest the last gap."""
    nodes = np.empty((128, 2), np.int64)
    nodes[0, 0], nodes[0, 1] = 1, 0
    size = 1
    while size:
        size -= 1
        node, above = nodes[size, 0], nodes[size, 1]
        if there[node] + above > 0:
            continue
        if node >= leaves:
            if node - leaves >= low:
                return int(node - leaves)
            continue
        last = node
        while last < leaves:
            last = 2 * last + 1
        if last - leaves < low:
            continue
        above += kept[node]
        nodes[size, 0], nodes[size, 1] = 2 * node + 1, above
        nodes[size + 1, 0], nodes[size + 1, 1] = 2 * node, above
        size += 2
    return -1


@kernel
def _leave(there: Int64, kept: Int64, leaves: int, low: int, high: int) -> None:
    """Decrease the count of values in the gaps from `low` to `high` - 1 by one."""
    left, right = leaves + low, leaves + high
    while left < right:
        if left & 1:
            there[left] -= 1
            kept[left] -= 1
            left += 1
        if right & 1:
            right -= 1
            there[right] -= 1
            kept[right] -= 1
        left >>= 1
        right >>= 1
    for place in (low, high - 1):
        node = (leaves + place) >> 1
        while node:
            there[node] = min(there[2 * node], there[2 * node + 1]) + kept[node]
            node >>= 1


@kernel
def deadlines(under: Int64, over: Int64, end: int) -> Int64:
    """Return, for each value of `over`, the earliest return of a pop that the value's stay may block.

    Value u lies under value w if u was pushed before the push of w was called, and the pop of u was called after the
    push of w returned.

    under: as in `nest`, for values that were popped
    over: call and return of pushes
    """
    earliest = np.full(end + 2, NOTHING, np.int64)
    result = np.full(len(over), NOTHING, np.int64)
    returned, called = np.argsort(under[:, 1]), np.argsort(over[:, 0])
    done = 0
    for w in called:
        while done < len(under) and under[returned[done], 1] < over[w, 0]:
            u = returned[done]
            node = under[u, 2] + 1
            while node > 0:
                earliest[node] = min(earliest[node], under[u, 3])
                node -= node & -node
            done += 1
        node = over[w, 1] + 2
        while node < end + 2:
            result[w] = min(result[w], earliest[node])
            node += node & -node
    return result
