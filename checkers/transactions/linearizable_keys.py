"""Version orders of registers from real time, under an assumption that is the caller's: each key is linearizable.

Theory.  If every key by itself is linearizable, a transaction that met version v of the key (wrote it, or read it) and
completed before a transaction that met another version w was invoked, met it earlier: v comes before w.  These pairs
are quadratically many.  It is enough to keep those without another version between: walk through the events of a key
with a *frontier* of the versions met by completed transactions; what is invoked follows all of the frontier, and when
it completes it takes the place of what it follows.  The frontier is never larger than the number of processes.

A key whose versions precede one another in a circle was not linearizable.  That is reported (it rules out strict
serializability, of which the assumption is a part) and the key gets no order from real time.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import numpy as np

from checkers.kernels.dependencies import WW
from checkers.kernels.operations import Int64
from checkers.kernels.rw_register import Orders, Registers
from checkers.kernels.transactions import NONLINEARIZABLE_KEY, OK, WRITE, Findings, Transactions, note

_Meeting = tuple[int, int]  # transaction, version


def version_orders_in_time(
    txns: Transactions, base: Int64, registers: Registers, orders: Orders, found: Findings
) -> Orders:
    """`orders` and what real time adds to them; no (transaction, version) stands twice on one side."""
    elements = int(base[-1])
    before = {
        (t, v): k
        for t, v, k in zip(
            orders.before.tolist(), orders.before_version.tolist(), orders.before_kind.tolist(), strict=True
        )
    }
    after = dict.fromkeys(zip(orders.after.tolist(), orders.after_version.tolist(), strict=True))
    writes: dict[int, int] = {}
    meetings: dict[int, list[_Meeting]] = {}
    for t in np.flatnonzero(registers.happened).tolist():
        rows = range(int(txns.first[t]), int(txns.first[t + 1]))
        for row in rows:
            key = int(txns.key[row])
            if registers.unusable[key]:
                continue
            version = int(base[key]) + int(txns.value[row])
            if txns.kind[row] == WRITE and registers.final[version]:
                writes[version] = t
                meetings.setdefault(key, []).append((t, version))
    for t, version in list(before):
        if version < elements:
            meetings.setdefault(int(base.searchsorted(version, side="right")) - 1, []).append((t, version))
    for key, met in meetings.items():
        pairs = {(v, w) for v, w in _precedences(txns, met) if v != w}
        circle = _circle(pairs)
        if circle:
            note(found, NONLINEARIZABLE_KEY, key, circle[0] - int(base[key]), circle[1] - int(base[key]))
            continue
        for earlier, later in pairs:
            if writes[earlier] != writes[later]:
                before.setdefault((writes[earlier], earlier), WW)
                after.setdefault((writes[later], earlier))
    return Orders(
        np.array([t for t, _ in before], np.int32),
        np.array([v for _, v in before], np.int32),
        np.array(list(before.values()), np.int8),
        np.array([t for t, _ in after], np.int32),
        np.array([v for _, v in after], np.int32),
    )


def _precedences(txns: Transactions, met: list[_Meeting]) -> set[tuple[int, int]]:
    """Pairs of versions of one key, the first certainly before the second."""
    events = [(int(txns.invoked[t]), True, m) for m, (t, _) in enumerate(met)]
    events += [(int(txns.completed[t]), False, m) for m, (t, _) in enumerate(met) if txns.status[t] == OK]
    pairs: set[tuple[int, int]] = set()
    frontier: set[int] = set()
    follows: dict[int, set[int]] = {}
    for _, is_invoke, m in sorted(events):
        if is_invoke:
            follows[m] = set(frontier)
            pairs.update((met[earlier][1], met[m][1]) for earlier in frontier)
        else:
            frontier -= follows[m]
            frontier.add(m)
    return pairs


def _circle(pairs: set[tuple[int, int]]) -> list[int]:
    """Versions that precede one another in a circle, or nothing."""
    graph: dict[int, list[int]] = {}
    for earlier, later in pairs:
        graph.setdefault(later, []).append(earlier)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []
